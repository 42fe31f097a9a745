//! Safe buffers: a pool of equal slots in one memory region, each owned by the program or by the device.
//!
//! A [`Slot`] is a buffer like any other until it is posted; posting takes it, and its completion gives it back. There is
//! no unsafe step, and no allocation after the pool was made.
//!
//! # Safety argument
//!
//! Each slot is in one of three states: free (its index is in the free list), held (one `Slot` exists), posted (a work
//! request names it). Only a held slot gives references, and there is one `Slot` for it, so they alias nothing. `Slot` →
//! posted takes the `Slot` by value. Posted → `Slot` takes a [`Completion`] by value, of which a completion queue makes
//! exactly one for each work request, and checks its number: the pool's own number, unique in the process, and a slot
//! that is posted. Numbers of the pool's kind are made nowhere else: `submit` of a raw batch forbids them.
//!
//! The region allows no remote access, so no peer writes a held slot. If a posted slot is never completed, because its
//! queue pair went to RESET or was dropped, or its completion queue was, it is lost to the pool, and its memory lives as long
//! as the region: until the pool and its held slots are gone.
#![allow(unsafe_code)]

use super::access::AccessFlags;
use super::counted::Counted;
use super::datagram::GRH_BYTES;
use super::mr::Mr;
use super::owners::Owners;
use super::pages::Pages;
use super::pd::Pd;
use super::provider::Provider;
use super::provider::sealed::{OpenSends, RecvOps, SendOps};
use super::qp_core::{RecvSide, SendSide};
use super::qp_type::QpType;
use super::transition::Transport;
use super::way::Way;
use super::wc::Completion;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::wc::{InlineData, Wc};
use crate::uverbs::wr::{Payload, PostError, SendOp, SendWr, Sge, WrFlags};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// A pool of registered buffers of equal size.
///
/// Slots can be received into, sent with and without immediate data, and be the local side of a WRITE or a READ. WRITE with
/// immediate, inline payload, several entries for one message, unsignaled sends and atomics take a raw batch
/// ([`Qp::send_batch`](crate::Qp::send_batch)) on the same queue pair, with a `wr_id` below 2^32. Peers cannot reach the
/// slots: what they are to WRITE or READ is a region of its own ([`Pd::alloc_mr`](crate::Pd::alloc_mr)).
///
/// A slot that is posted comes back with its [`Completion`] only, as [`Cq::poll`](crate::Cq::poll) lends it: that is given once,
/// and [`reclaim`](Self::reclaim) takes it. The copies of [`Cq::poll_one`](crate::Cq::poll_one) and
/// [`Cq::poll_into`](crate::Cq::poll_into) could be shown twice, and so give nothing back. Where the completion never comes, or
/// is not shown to the pool, the slot is lost to it: if the queue pair is moved to RESET (to ERR, which completes everything as flushed, first, and poll), if it or its completion
/// queue is dropped, or if the queue overruns. The memory stays until the pool and all held slots are gone.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = ironverbs::Pool::new(pd, 64, 4096)?;
/// let mut slot = pool.take().ok_or("every slot is in use")?;
/// slot[..5].copy_from_slice(b"hello");
/// qp.send_slot(slot, 5)?;
/// while let Some(completion) = cq.poll()?.next() {
///     if let Ok((slot, wc)) = pool.reclaim(completion) {
///         println!("{:?}: slot {} is ours again", wc.outcome(), slot.index());
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool {
    inner: Counted<PoolInner>,
}

struct PoolInner {
    mr: Mr<Pages>,
    /// [`PdInner::identity`](super::pd::PdInner) of its protection domain.
    pd: usize,
    base: *mut u8,
    slot_bytes: usize,
    stride: usize,
    /// The high half of its work requests' numbers; never zero, never used twice in a process.
    id: u32,
    owners: Owners,
}

// SAFETY: `base` is the address of memory that `mr` owns; slots of it are reached by their one `Slot` only.
unsafe impl Send for PoolInner {}
// SAFETY: as above; who owns a slot is decided by atomics.
unsafe impl Sync for PoolInner {}

/// The high half of work request numbers that nobody else in this process uses, now or later. Never zero.
pub(super) fn numbers() -> Result<u32, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1)).map_err(|last| {
        Error::invalid(Verb::PostSend, "pool or scope number", last, "a process makes fewer than 2^32 pools and scopes")
    })
}

/// Slots start at multiples of this, so that two never share a cache line.
const SLOT_ALIGN: usize = 64;

impl Pool {
    /// Allocates and registers `count` slots of `slot_bytes` each.
    pub fn new(pd: &Pd, count: u32, slot_bytes: usize) -> Result<Self, Error> {
        if count == 0 || slot_bytes == 0 || u32::try_from(slot_bytes).is_err() {
            let size = format_args!("{count} slots of {slot_bytes} bytes");
            return Err(Error::invalid(Verb::RegMr, "pool size", size, "at least one slot, of 1 byte to 4 GiB"));
        }
        let stride = slot_bytes.next_multiple_of(SLOT_ALIGN);
        let Some(total) = stride.checked_mul(count as usize) else {
            return Err(Error::invalid(Verb::RegMr, "pool size", count, "the slots do not fit the address space"));
        };
        let id = numbers()?;
        let mut mr = pd.alloc_mr(total, AccessFlags::LOCAL_WRITE)?;
        // SAFETY: only the pointer is kept; nothing is posted yet, and the reference ends here.
        let base = unsafe { mr.as_mut_slice().as_mut_ptr() };
        let owners = Owners::new(count);
        let pd = pd.inner().identity();
        Ok(Self { inner: Counted::new(PoolInner { mr, pd, base, slot_bytes, stride, id, owners }) })
    }

    /// A free slot, if there is one. Its bytes are whatever was last in it.
    #[inline(always)]
    pub fn take(&self) -> Option<Slot> {
        let index = self.inner.owners.take()?;
        Some(Slot { pool: self.inner.clone(), index })
    }

    /// Takes back the slot of a completion, of either kind and with any status. A completion that is not of this pool
    /// comes back as a value.
    #[inline(always)]
    pub fn reclaim<P: Provider>(&self, completion: Completion<'_, P>) -> Result<(Slot, Wc), Wc> {
        let wc = completion.wc();
        let index = wc.wr_id as u32;
        let ours = (wc.wr_id >> 32) as u32 == self.inner.id;
        if ours && self.inner.owners.reclaim(index) {
            let mut slot = Slot { pool: self.inner.clone(), index };
            if let Some(data) = completion.inline_data_in_place() {
                slot.fill(data);
            }
            Ok((slot, wc))
        } else {
            Err(wc)
        }
    }

    /// Whether the slot is one of this pool's.
    pub fn owns(&self, slot: &Slot) -> bool {
        self.inner.same(&slot.pool)
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// How many slots there are.
    pub fn count(&self) -> u32 {
        self.inner.owners.count()
    }
}

/// One buffer of a [`Pool`], owned. Derefs to its bytes; goes back to the pool when dropped.
///
/// ```no_run
/// # fn f(pool: &ironverbs::Pool, qp: &mut ironverbs::Qp) -> Result<(), Box<dyn std::error::Error>> {
/// let mut slot = pool.take().ok_or("every slot is in use")?;
/// slot[..5].copy_from_slice(b"hello");
/// qp.send_slot(slot, 5)?; // the device's, until its completion
/// # Ok(()) }
/// ```
pub struct Slot {
    pool: Counted<PoolInner>,
    index: u32,
}

impl Slot {
    /// Its place in the pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    fn sge(&self, len_bytes: u32) -> Option<Sge> {
        if len_bytes as usize > self.pool.slot_bytes {
            return None;
        }
        let addr = self.pool.mr.addr() + self.pool.stride as u64 * u64::from(self.index);
        Some(Sge::from_raw(addr, len_bytes, self.pool.mr.lkey()))
    }

    #[inline(always)]
    fn wr_id(&self) -> u64 {
        u64::from(self.pool.id) << 32 | u64::from(self.index)
    }

    /// Puts what came inside a completion where the device would have put it.
    #[cold]
    #[inline(never)]
    #[allow(
        improper_ctypes_definitions,
        reason = "of Rust's own callers; the convention is there so that nothing unwinds"
    )]
    extern "C" fn fill(&mut self, data: &InlineData) {
        for (to, from) in self.iter_mut().zip(data.iter()) {
            *to = *from;
        }
    }

    /// Ends the `Slot` without giving it back: the device has it now. Refused if nobody holds the pool but this slot.
    #[inline(always)]
    fn into_posted(self) -> Result<(), Self> {
        self.pool.owners.post(self.index);
        let this = ManuallyDrop::new(self);
        let index = this.index;
        // SAFETY: `this` is never used again and its destructor does not run, so the holder is taken out once.
        let pool = unsafe { std::ptr::read(&this.pool) };
        // The reclaimed `Slot` becomes a holder of its own.
        pool.go_unless_last().map_err(|pool| {
            pool.owners.reclaim(index);
            Self { pool, index }
        })
    }

    #[inline(always)]
    fn bytes(&self) -> *mut u8 {
        // SAFETY: the index is below the count, so that the slot lies within the region.
        unsafe { self.pool.base.add(self.pool.stride * self.index as usize) }
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is held, so neither the device nor another `Slot` writes it; its memory lives in the region
        // that `pool` keeps, and is initialised.
        unsafe { std::slice::from_raw_parts(self.bytes(), self.pool.slot_bytes) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes other references to it.
        unsafe { std::slice::from_raw_parts_mut(self.bytes(), self.pool.slot_bytes) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.owners.give_back(self.index);
    }
}

/// A slot that could not be posted.
///
/// ```no_run
/// # fn f(slot: ironverbs::Slot, qp: &mut ironverbs::Qp) -> Result<(), ironverbs::Error> {
/// if let Err(refused) = qp.send_slot(slot, 5) {
///     let slot = refused.slot; // still ours
/// #   drop(slot);
///     println!("{}", refused.error);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}{}", Room(.error, .slot))]
pub struct SlotError {
    /// Why.
    pub error: PostError,
    /// The slot, unless the device has it all the same: after [`PostError::Doorbell`] it is in the queue.
    pub slot: Option<Slot>,
}

/// How many bytes there were, where those were too few.
struct Room<'a>(&'a PostError, &'a Option<Slot>);

impl fmt::Display for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(PostError::BeyondSlot | PostError::NoRoomForGrh, Some(slot)) => {
                write!(f, " (a slot of this pool has {} bytes)", slot.len())
            }
            _ => Ok(()),
        }
    }
}

impl<P: Provider> SendSide<P> {
    #[inline(always)]
    pub(super) fn post_slot(&mut self, slot: Slot, len_bytes: u32, op: SendOp, way: Way<'_>) -> Result<(), SlotError> {
        let Some(sge) = slot.sge(len_bytes) else {
            return Err(SlotError { error: PostError::BeyondSlot, slot: Some(slot) });
        };
        if !self.ready {
            return Err(SlotError { error: PostError::BadState, slot: Some(slot) });
        }
        if slot.pool.pd != self.shared.pd.identity() {
            return Err(SlotError { error: PostError::ForeignPd, slot: Some(slot) });
        }
        let sq = &mut *self.sq;
        let wr = SendWr { wr_id: slot.wr_id(), flags: WrFlags::SIGNALED, op, payload: Payload::Sges(&[sge]) };
        let mut sq = sq.open();
        if let Err(error) = way.push(&mut sq, &wr) {
            sq.rollback();
            return Err(SlotError { error, slot: Some(slot) });
        }
        // Marked before the device sees it: its completion can be polled by another thread at once.
        if let Err(slot) = slot.into_posted() {
            sq.rollback();
            return Err(SlotError { error: PostError::PoolGone, slot: Some(slot) });
        }
        sq.submit().map_err(|error| SlotError { error, slot: None })
    }
}

impl<P: Provider> RecvSide<P> {
    #[inline(always)]
    pub(super) fn post_slot<T: QpType>(&mut self, slot: Slot) -> Result<(), SlotError> {
        if !self.ready {
            return Err(SlotError { error: PostError::BadState, slot: Some(slot) });
        }
        if T::TRANSPORT == Transport::Ud && slot.pool.slot_bytes < GRH_BYTES {
            return Err(SlotError { error: PostError::NoRoomForGrh, slot: Some(slot) });
        }
        post_recv_slot(&mut *self.rq, self.shared.pd.identity(), slot)
    }
}

/// Posts a receive into a slot, to a queue of protection domain `pd` that takes receives now.
#[inline(always)]
pub(super) fn post_recv_slot(rq: &mut impl RecvOps, pd: usize, slot: Slot) -> Result<(), SlotError> {
    if slot.pool.pd != pd {
        return Err(SlotError { error: PostError::ForeignPd, slot: Some(slot) });
    }
    let sge = Sge::from_raw(slot.bytes() as u64, slot.pool.slot_bytes as u32, slot.pool.mr.lkey());
    rq.begin();
    if let Err(error) = rq.push(slot.wr_id(), &[sge]) {
        rq.rollback();
        return Err(SlotError { error, slot: Some(slot) });
    }
    if let Err(slot) = slot.into_posted() {
        rq.rollback();
        return Err(SlotError { error: PostError::PoolGone, slot: Some(slot) });
    }
    rq.submit();
    Ok(())
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("count", &self.count()).field("slot_bytes", &self.slot_bytes()).finish()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).finish()
    }
}
