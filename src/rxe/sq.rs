//! The send queue: work requests written in place, handed over with one doorbell per batch.
//!
//! # Safety argument
//!
//! A queue is made only over slots that hold the largest work queue element it will write (checked in `new`), so
//! all stores of `SendEntry` stay inside the slot that the ring lends it.
#![allow(unsafe_code)]

use super::abi::{
    DmaInfo, RxeAv, SendState, SendWqe, SendWr, WrAtomic, WrFlush, WrMw, WrRdma, WrUd, opcode, send_flags,
};
use super::address::RxeAh;
use super::dma::{write_inline, write_sges};
use super::queue::Producer;
use super::ring_memory::{Entry, MappedRing, RingMemory};
use crate::uverbs::abi::verbs::device_cap;
use crate::uverbs::doorbell::SendDoorbell;
use crate::uverbs::memory_wr::{FlushLevel, FlushPlacement, MwBinding, Owner};
use crate::uverbs::wr::{self, Payload, PostError, SendOp};
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

/// Tells the kernel that a send queue has new entries.
pub trait Doorbell {
    /// One system call, whatever the number of entries. Afterwards `unheard` tells whether it was refused.
    fn ring(&self, unheard: &mut bool) -> Result<(), PostError>;
}

impl Doorbell for SendDoorbell {
    #[inline(always)]
    fn ring(&self, unheard: &mut bool) -> Result<(), PostError> {
        self.ring(unheard)
    }
}

/// Bytes of a send queue's slot for these limits.
pub const fn wqe_bytes(max_sge: u32, max_inline: u32) -> usize {
    let sges = max_sge as usize * size_of::<super::abi::RxeSge>();
    let inline = max_inline as usize;
    let payload = if sges > inline { sges } else { inline };
    // An ATOMIC_WRITE has its eight bytes there whatever the limits are.
    size_of::<SendWqe>() + if payload > size_of::<u64>() { payload } else { size_of::<u64>() }
}

/// Send queue of one queue pair.
///
/// Pushed work requests are in the ring but not visible to the kernel until [`submit`](Self::submit).
pub struct RxeSq<D = SendDoorbell, M = MappedRing> {
    ring: Producer<M>,
    max_sge: u32,
    max_inline: u32,
    /// Bytes of a datagram at most.
    max_datagram: u32,
    extras: Extras,
    owner: Owner,
    doorbell: D,
    /// The last doorbell was refused: the kernel has not been told of everything.
    unheard: bool,
}

/// Operations that only some devices have. The driver of one that has not may not look whether it knows an opcode, so
/// that a work request with it must never reach the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Extras {
    atomic_write: bool,
    /// Placements of FLUSH.
    flush: u8,
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub struct UdTo<'a> {
    pub ah: &'a RxeAh,
    pub qpn: u32,
    pub qkey: u32,
}

impl<D: Doorbell, M: RingMemory> RxeSq<D, M> {
    /// A queue over a ring whose slots have at least [`wqe_bytes`] bytes.
    ///
    /// # Panics
    ///
    /// If they have not.
    pub fn new(memory: M, max_sge: u32, max_inline: u32, doorbell: D) -> Self {
        assert!(memory.slot_bytes() >= wqe_bytes(max_sge, max_inline), "send queue slots are too small");
        Self {
            ring: Producer::new(memory),
            max_sge,
            max_inline,
            max_datagram: u32::MAX,
            extras: Extras::default(),
            owner: Owner::default(),
            doorbell,
            unheard: false,
        }
    }

    /// From here on datagrams of more bytes are refused. The kernel drops them and calls it a success.
    pub fn set_max_datagram(&mut self, bytes: u32) {
        self.max_datagram = bytes;
    }

    /// Whose it is; nobody's at first.
    #[inline(always)]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    pub fn set_owner(&mut self, owner: Owner) {
        self.owner = owner;
    }

    /// Takes work requests that only some devices have, as far as `caps` (`enum ib_uverbs_device_cap_flags`) name them.
    pub fn set_device_caps(&mut self, caps: u64) {
        let placement = |cap, placement: FlushPlacement| if caps & cap != 0 { placement.bits() } else { 0 };
        self.extras = Extras {
            atomic_write: caps & device_cap::ATOMIC_WRITE != 0,
            flush: placement(device_cap::FLUSH_GLOBAL, FlushPlacement::GLOBAL_VISIBILITY)
                | placement(device_cap::FLUSH_PERSISTENT, FlushPlacement::PERSISTENCE),
        };
    }

    /// Work requests that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Scatter/gather entries that a work request takes at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Inline bytes that a work request takes at most.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Starts a batch: what an earlier one pushed but never submitted is dropped.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.ring.rollback();
    }

    /// Work requests that can be pushed now. Reads the kernel's index; `push` itself does so only when it must.
    pub fn remaining(&mut self) -> u32 {
        self.ring.remaining()
    }

    /// Writes a work request into the next slot. On an error nothing was pushed.
    #[inline(always)]
    pub fn push(&mut self, wr: &wr::SendWr<'_>) -> Result<(), PostError> {
        let Self { max_sge, max_inline, extras, .. } = *self;
        let entry = SendEntry { wr, to: None, max_sge, max_inline, max_bytes: u32::MAX, extras };
        // SAFETY: `new` checked that slots have room for an entry with these limits.
        unsafe { self.ring.stage(entry) }
    }

    /// As [`push`](Self::push), for a SEND on a datagram queue pair.
    #[inline(always)]
    pub fn push_to(&mut self, wr: &wr::SendWr<'_>, to: UdTo<'_>) -> Result<(), PostError> {
        let Self { max_sge, max_inline, extras, max_datagram: max_bytes, .. } = *self;
        let entry = SendEntry { wr, to: Some(to), max_sge, max_inline, max_bytes, extras };
        // SAFETY: `new` checked that slots have room for an entry with these limits.
        unsafe { self.ring.stage(entry) }
    }

    /// Hands everything pushed to the kernel and rings the doorbell once. Does nothing if nothing was pushed, unless the
    /// last doorbell was refused.
    #[inline(always)]
    pub fn submit(&mut self) -> Result<(), PostError> {
        if !self.ring.publish() && !self.unheard {
            return Ok(());
        }
        self.doorbell.ring(&mut self.unheard)
    }

    /// Forgets what was pushed and not submitted.
    #[inline(always)]
    pub fn rollback(&mut self) {
        self.ring.rollback();
    }

    /// Takes up the ring's indices anew, after the queue pair was modified to RESET.
    pub fn resync(&mut self) {
        self.ring.resync();
        self.unheard = false;
    }
}

/// A work request on its way into a slot of at least [`wqe_bytes`]`(max_sge, max_inline)` bytes.
struct SendEntry<'a> {
    wr: &'a wr::SendWr<'a>,
    /// On a datagram queue pair.
    to: Option<UdTo<'a>>,
    max_sge: u32,
    max_inline: u32,
    max_bytes: u32,
    extras: Extras,
}

impl Entry for SendEntry<'_> {
    /// Writes every byte that the kernel reads for this opcode, and no other.
    ///
    /// The kernel reads the union at offset 24 by opcode, so what an older work request left there does no harm; its own
    /// state from offset 144 on is always written whole.
    #[inline(always)]
    unsafe fn write_to(self, slot: NonNull<u8>) -> Result<(), PostError> {
        let Self { wr, to, max_sge, max_inline, max_bytes, extras } = self;
        let slot = slot.as_ptr();
        // SAFETY: the payload starts at the end of `SendWqe`, and the slot has room for `max_sge` entries or
        // `max_inline` bytes there; 208 is a multiple of an entry's alignment. No slice of the work request is in a
        // slot, since no reference to the ring's memory exists.
        let (mut dma, inline) = unsafe {
            let payload = slot.add(size_of::<SendWqe>());
            match wr.payload {
                Payload::Sges(sges) => (write_sges(payload, max_sge, sges)?, 0),
                Payload::Inline(bytes) => (write_inline(payload, max_inline, &[bytes])?, send_flags::INLINE),
                Payload::InlinePieces(pieces) => (write_inline(payload, max_inline, pieces)?, send_flags::INLINE),
            }
        };
        // SAFETY: in bounds of `SendWqe`, which the slot has room for; the offset of `op` is a multiple of 8, the alignment
        // of both its forms.
        let op = unsafe { slot.add(offset_of!(SendWqe, op)) };
        if let Some(to) = to {
            if dma.length > max_bytes {
                return Err(PostError::DatagramTooLong);
            }
            // SAFETY: see `op`.
            unsafe { write_ud(op, to) };
        }
        let (opcode, ex, iova) = match wr.op {
            SendOp::Send => (opcode::SEND, 0, 0),
            SendOp::SendImm(imm) => (opcode::SEND_WITH_IMM, imm.to_be(), 0),
            SendOp::Write(remote) => {
                // SAFETY: see `op`.
                unsafe { write_rdma(op, remote) };
                (opcode::RDMA_WRITE, 0, remote.addr)
            }
            SendOp::WriteImm(remote, imm) => {
                // SAFETY: see `op`.
                unsafe { write_rdma(op, remote) };
                (opcode::RDMA_WRITE_WITH_IMM, imm.to_be(), remote.addr)
            }
            SendOp::Read(remote) => {
                if inline != 0 {
                    return Err(PostError::InlineRead);
                }
                // SAFETY: see `op`.
                unsafe { write_rdma(op, remote) };
                (opcode::RDMA_READ, 0, remote.addr)
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                check_atomic(remote, dma.length, inline)?;
                // SAFETY: see `op`.
                unsafe { write_atomic(op, remote, compare, swap) };
                (opcode::ATOMIC_CMP_AND_SWP, 0, remote.addr)
            }
            SendOp::FetchAdd { remote, add } => {
                check_atomic(remote, dma.length, inline)?;
                // SAFETY: see `op`.
                unsafe { write_atomic(op, remote, add, 0) };
                (opcode::ATOMIC_FETCH_AND_ADD, 0, remote.addr)
            }
            SendOp::SendInvalidate(rkey) => (opcode::SEND_WITH_INV, rkey.0, 0),
            SendOp::LocalInvalidate(rkey) => (opcode::LOCAL_INV, rkey.0, 0),
            SendOp::Bind(binding) => {
                // SAFETY: see `op`.
                unsafe { write_mw(op, binding) };
                (opcode::BIND_MW, 0, 0)
            }
            SendOp::AtomicWrite(remote, value) => {
                check_atomic_write(remote, max_sge, extras)?;
                // SAFETY: see `op`. The payload's place has room for eight bytes whatever the limits are, and is aligned.
                unsafe {
                    write_rdma(op, remote);
                    slot.add(size_of::<SendWqe>()).cast::<u64>().write(value);
                }
                dma = DmaInfo::new(size_of::<u64>() as u32, 0);
                (opcode::ATOMIC_WRITE, 0, remote.addr)
            }
            SendOp::Flush(remote, placement, level) => {
                check_flush(placement, max_sge, extras)?;
                let length = match level {
                    FlushLevel::Range(length) => length,
                    FlushLevel::Region => 0,
                };
                // SAFETY: see `op`.
                unsafe { write_flush(op, remote, placement, level, length) };
                dma = DmaInfo::new(length, 0);
                (opcode::FLUSH, 0, remote.addr)
            }
        };
        let head = SendWr { wr_id: wr.wr_id, reserved: 0, opcode, send_flags: wr.flags.bits() | inline, ex };
        let state = SendState {
            status: 0,
            state: 0,
            iova,
            mask: 0,
            first_psn: 0,
            last_psn: 0,
            ack_length: 0,
            ssn: 0,
            has_rd_atomic: 0,
            dma,
        };
        // SAFETY: both are fields of `SendWqe`, which the slot has room for, and aligned since the slot is.
        unsafe {
            slot.cast::<SendWr>().write(head);
            slot.add(offset_of!(SendWqe, state)).cast::<SendState>().write(state);
        }
        Ok(())
    }
}

/// # Safety
///
/// `op` is the union of a writable [`SendWqe`].
#[inline(always)]
unsafe fn write_rdma(op: *mut u8, remote: wr::RemoteAddr) {
    let form = WrRdma { remote_addr: remote.addr, rkey: remote.rkey.0, reserved: 0 };
    // SAFETY: passed on to the caller; the union is larger, and aligned to 8.
    unsafe { op.cast::<WrRdma>().write(form) };
}

/// # Safety
///
/// `op` is the union of a writable [`SendWqe`].
#[inline(always)]
unsafe fn write_atomic(op: *mut u8, remote: wr::RemoteAddr, compare_add: u64, swap: u64) {
    let form = WrAtomic { remote_addr: remote.addr, compare_add, swap, rkey: remote.rkey.0, reserved: 0 };
    // SAFETY: passed on to the caller; the union is larger, and aligned to 8.
    unsafe { op.cast::<WrAtomic>().write(form) };
}

/// Writes the destination, whole: a number of 0 says that the vector counts.
///
/// # Safety
///
/// `op` is the union of a writable [`SendWqe`].
#[inline(always)]
unsafe fn write_ud(op: *mut u8, to: UdTo<'_>) {
    let form = WrUd { remote_qpn: to.qpn, remote_qkey: to.qkey, pkey_index: 0, reserved: 0, ah_num: 0, pad: [0; 4] };
    // SAFETY: passed on to the caller; the union holds one after the other exactly, and both are aligned to 8 there at
    // most, as `op` is.
    unsafe {
        op.cast::<WrUd>().write(form);
        op.add(size_of::<WrUd>()).cast::<RxeAv>().write(to.ah.vector);
    }
}

/// # Safety
///
/// `op` is the union of a writable [`SendWqe`].
#[inline(always)]
unsafe fn write_mw(op: *mut u8, binding: MwBinding) {
    let form = WrMw {
        addr: binding.addr,
        length: binding.length,
        mr_lkey: binding.lkey.0,
        mw_rkey: binding.old_rkey.0,
        rkey: binding.new_rkey.0,
        access: binding.access,
    };
    // SAFETY: passed on to the caller; the union is larger, and aligned to 8.
    unsafe { op.cast::<WrMw>().write(form) };
}

/// # Safety
///
/// `op` is the union of a writable [`SendWqe`].
#[inline(always)]
unsafe fn write_flush(op: *mut u8, remote: wr::RemoteAddr, placement: FlushPlacement, level: FlushLevel, length: u32) {
    let form = WrFlush {
        remote_addr: remote.addr,
        length,
        rkey: remote.rkey.0,
        placement: placement.bits(),
        level: matches!(level, FlushLevel::Region).into(),
        pad: [0; 6],
    };
    // SAFETY: passed on to the caller; the union is larger, and aligned to 8.
    unsafe { op.cast::<WrFlush>().write(form) };
}

/// The kernel takes a work request with a length only on a queue pair that was made for entries, even where the operation
/// has none.
#[inline(always)]
fn check_flush(placement: FlushPlacement, max_sge: u32, extras: Extras) -> Result<(), PostError> {
    if placement.bits() & !extras.flush != 0 || placement.bits() == 0 {
        return Err(PostError::NoFlush);
    }
    if max_sge == 0 { Err(PostError::TooManySges) } else { Ok(()) }
}

/// See [`check_flush`].
#[inline(always)]
fn check_atomic_write(remote: wr::RemoteAddr, max_sge: u32, extras: Extras) -> Result<(), PostError> {
    if !extras.atomic_write {
        return Err(PostError::NoAtomicWrite);
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment);
    }
    if max_sge == 0 { Err(PostError::TooManySges) } else { Ok(()) }
}

/// An atomic works on one aligned 64-bit word, and puts its old value into registered memory (IB spec 9.4.5).
#[inline(always)]
fn check_atomic(remote: wr::RemoteAddr, length: u32, inline: u32) -> Result<(), PostError> {
    if length != 8 || inline != 0 {
        return Err(PostError::AtomicPayload);
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment);
    }
    Ok(())
}

#[cfg(all(test, not(loom), target_endian = "little"))]
mod golden;
#[cfg(all(test, not(loom)))]
mod tests;
