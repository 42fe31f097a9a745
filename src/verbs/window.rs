//! Memory windows: part of a region, open to peers for as long as the program wants.

use super::access::AccessFlags;
use super::mr::{CloseError, Memory, Mr};
use super::pd::{Pd, PdInner};
use super::provider::Provider;
use super::qp::Qp;
use crate::uverbs::abi::verbs::access;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::memory_wr::{MwBinding, Owner};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::{PostError, WcStatus};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Types of memory windows (`enum ib_uverbs_mw_type`).
#[doc(alias = "ibv_mw_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Of a protection domain: bound through any of its queue pairs, and open to the peers of all of them.
    Type1 = 1,
    /// Of one queue pair (2B): open to its peer only, and can be invalidated by either side.
    Type2 = 2,
}

/// Memory window (MW): a remote key of its own for part of a memory region, which a work request opens, and another one or
/// the peer closes.
///
/// Each binding has a new key: the low 8 bits of the old one are counted up, so that a peer with an old key is refused.
/// One work request about the window can be under way at a time; show its completion to [`observe`](Self::observe).
///
/// Dropping the window unbinds it. A window of type 2 belongs to the queue pair that it was made on, and goes with it: it is
/// taken away before the queue pair is destroyed.
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq, mr: &ironverbs::Mr) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::AccessFlags;
/// let mut window = qp.alloc_mw()?;
/// let binding = window.plan_bind(mr, 0..4096, AccessFlags::REMOTE_READ)?;
/// qp.bind_mw(7, &mut window, binding)?;
/// while !window.is_bound() {
///     if let Some(wc) = cq.poll_one()? {
///         window.observe(&wc);
///         wc.outcome()?;
///     }
/// }
/// println!("tell the peer: {:?}", binding.remote());
/// # Ok(()) }
/// ```
///
/// # Soft-RoCE
///
/// Read in the source of kernels 6.1 and 6.12, and not tried out:
/// - It checks a peer's access against the window's flags, but the address against the whole region, not the window: with
///   the key of a window a peer reaches everything in the region that it is bound to. Bind windows to regions that hold
///   nothing else.
/// - It does not check that a window of type 2 is bound when it invalidates one, and brings the kernel down if it is not
///   (`rxe_do_invalidate_mw`). [`SendBatch::local_inv`](crate::SendBatch::local_inv) therefore refuses a window that is not
///   known to be bound. A peer's SEND with invalidate is nothing that this side can check: let no untrusted peer connect to
///   a queue pair that has windows, and do not invalidate on both sides.
///
/// Read in their source and seen in both kernels:
/// - A region with a window bound to it cannot be deregistered (`EINVAL`).
/// - With 6.12 a failed bind or invalidate completes as [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), with 6.1 as
///   [`MW_BIND_ERR`](crate::WcStatus::MW_BIND_ERR) or [`LOC_QP_OP_ERR`](crate::WcStatus::LOC_QP_OP_ERR).
#[doc(alias = "ibv_mw")]
pub struct Mw {
    /// Shared with the queue pair of a window of type 2, which destroys it before itself.
    handle: Arc<Handle>,
    mw_type: MwType,
    rkey: Rkey,
    state: State,
    pending: Option<Pending>,
    /// Of its protection domain, and of its queue pair if it is of type 2.
    owner: Owner,
    pd: Arc<PdInner>,
}

/// What the kernel knows of the window, as far as is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Bound,
    /// A work request was given up, or failed, that may have been carried out.
    Unknown,
}

/// A work request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    wr_id: u64,
    qpn: u32,
    change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Bind { rkey: Rkey, open: bool },
    Invalidate,
}

impl Pd {
    /// Makes a memory window of type 1, bound to nothing.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self) -> Result<Mw, Error> {
        let pd = self.inner().clone();
        let owner = Owner { pd: pd.identity(), qpn: 0 };
        Mw::new(pd, MwType::Type1, owner)
    }
}

impl<P: Provider> Qp<P> {
    /// Makes a memory window of type 2 for this queue pair, bound to nothing.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self) -> Result<Mw, Error> {
        let shared = self.core.shared();
        let pd = shared.pd.clone();
        let owner = Owner { pd: pd.identity(), qpn: shared.qpn.get() };
        let mw = Mw::new(pd, MwType::Type2, owner)?;
        shared.windows.add(&mw.handle);
        Ok(mw)
    }
}

impl Mw {
    fn new(pd: Arc<PdInner>, mw_type: MwType, owner: Owner) -> Result<Self, Error> {
        let (handle, rkey) = pd.context.ucontext.alloc_mw(&pd.handle, mw_type as u8)?;
        Ok(Self { handle: Arc::new(handle), mw_type, rkey, state: State::Free, pending: None, owner, pd })
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Its key: of the last binding that has completed, or the one it was made with.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Whether it is known to be bound.
    pub fn is_bound(&self) -> bool {
        self.state == State::Bound
    }

    /// What to bind it to: a range of a region, with what the peer may do there ([`REMOTE_READ`](AccessFlags::REMOTE_READ),
    /// [`REMOTE_WRITE`](AccessFlags::REMOTE_WRITE), [`REMOTE_ATOMIC`](AccessFlags::REMOTE_ATOMIC); type 2 also
    /// [`ZERO_BASED`](AccessFlags::ZERO_BASED)). Nothing is sent to the device.
    ///
    /// The region must be registered with [`MW_BIND`](AccessFlags::MW_BIND), in the same protection domain, and for a peer
    /// that writes with [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE); it need not allow remote access itself.
    pub fn plan_bind<M: Memory>(
        &self,
        mr: &Mr<M>,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<MwBinding, Error> {
        let refuse = |what, value: String, limit| Err(Error::invalid(Verb::BindMw, what, value, limit));
        if !Arc::ptr_eq(mr.pd(), &self.pd) {
            return refuse("region", "of another protection domain".into(), "bind one of the window's own");
        }
        if !mr.access().contains(AccessFlags::MW_BIND) {
            let limit = "register it with MW_BIND as well";
            return refuse("region's access", mr.access().to_string(), limit);
        }
        let writes = access.bits() & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        if writes && !mr.access().contains(AccessFlags::LOCAL_WRITE) {
            let limit = "a window that peers write needs a region with LOCAL_WRITE";
            return refuse("region's access", mr.access().to_string(), limit);
        }
        let remote = access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        let (allowed, limit) = match self.mw_type {
            MwType::Type1 => (remote, "a window of type 1 takes REMOTE_READ, REMOTE_WRITE and REMOTE_ATOMIC"),
            MwType::Type2 => {
                (remote | access::ZERO_BASED, "a window takes REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and ZERO_BASED")
            }
        };
        if access.bits() & !allowed != 0 || access.bits() & remote == 0 {
            return refuse("access", access.to_string(), limit);
        }
        let (start, length) = mr.check(range)?;
        if length == 0 {
            return refuse("length", "0".into(), "a window has at least 1 byte; plan_unbind closes it");
        }
        Ok(MwBinding {
            old_rkey: self.rkey,
            new_rkey: self.rkey.next_key(),
            lkey: mr.lkey(),
            addr: mr.iova() + start as u64,
            length: length as u64,
            access: access.bits(),
            type_2: self.mw_type == MwType::Type2,
        })
    }

    /// To bind a window of type 1 to nothing. One of type 2 is invalidated instead.
    pub fn plan_unbind(&self) -> Result<MwBinding, Error> {
        if self.mw_type == MwType::Type2 {
            let limit = "only one of type 1 is bound to nothing; invalidate this one";
            return Err(Error::invalid(Verb::BindMw, "window", "of type 2", limit));
        }
        let (old_rkey, new_rkey) = (self.rkey, self.rkey.next_key());
        Ok(MwBinding { old_rkey, new_rkey, lkey: Lkey(0), addr: 0, length: 0, access: 0, type_2: false })
    }

    /// Learns from a completion whether the window was bound, unbound or invalidated, by this side or by the peer. Returns
    /// whether the completion was about it. Show it every completion of its queue pair that may be.
    ///
    /// A failed completion tells that nothing was done if it is a [`MW_BIND_ERR`](crate::WcStatus::MW_BIND_ERR), and leaves
    /// it open otherwise: Soft-RoCE flushes what it has carried out, too, when a request before it fails. From then on the
    /// window can be neither bound nor invalidated, and does not count as bound; drop it and make another one.
    pub fn observe(&mut self, wc: &Wc) -> bool {
        // A receive may have the same number. One that failed does not tell that it is one.
        let received = wc.outcome().is_ok_and(|done| done.opcode.is_recv());
        if let Some(pending) = self.pending
            && !received
            && (pending.wr_id, pending.qpn) == (wc.wr_id, wc.qpn())
        {
            self.pending = None;
            match (wc.status(), pending.change) {
                (WcStatus::SUCCESS, Change::Bind { rkey, open }) => {
                    self.rkey = rkey;
                    self.state = if open { State::Bound } else { State::Free };
                }
                (WcStatus::SUCCESS, Change::Invalidate) => self.state = State::Free,
                // Refused, so that all is as it was.
                (WcStatus::MW_BIND_ERR, _) => {}
                _ => self.state = State::Unknown,
            }
            return true;
        }
        let by_peer = wc.invalidated_rkey() == Some(self.rkey) && wc.qpn() == self.owner.qpn;
        if by_peer {
            self.state = State::Free;
        }
        by_peer
    }

    /// Gives up a work request about the window that will not complete: its batch was dropped, or its queue pair is gone.
    ///
    /// If it was posted, whether it was carried out is not known, so that the window can only be bound anew if it was a bind
    /// that was not, and cannot be invalidated. Drop it and make another one if in doubt.
    pub fn give_up(&mut self) {
        if let Some(Pending { change: Change::Invalidate, .. }) = self.pending.take() {
            self.state = State::Unknown;
        }
    }

    /// Destroys it, bound or not; or gives it back with the kernel's reason.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        CloseError::unless(self.handle.destroy(), self)
    }

    /// Whether a bind can be posted on the queue of `owner`.
    #[inline(always)]
    pub(super) fn check_bind(&self, owner: Owner, binding: &MwBinding) -> Result<(), PostError> {
        self.check_owner(owner)?;
        if binding.old_rkey != self.rkey {
            return Err(PostError::StaleBinding);
        }
        match (self.mw_type, self.state) {
            (MwType::Type2, State::Bound) => Err(PostError::WindowBound),
            (_, State::Unknown) => Err(PostError::WindowUnknown),
            _ => Ok(()),
        }
    }

    /// Whether an invalidate can be posted on the queue of `owner`.
    #[inline(always)]
    pub(super) fn check_invalidate(&self, owner: Owner) -> Result<(), PostError> {
        self.check_owner(owner)?;
        if self.mw_type == MwType::Type2 && self.state == State::Bound { Ok(()) } else { Err(PostError::NotBound) }
    }

    #[inline(always)]
    fn check_owner(&self, owner: Owner) -> Result<(), PostError> {
        if self.owner.pd != owner.pd {
            return Err(PostError::ForeignPd);
        }
        if self.mw_type == MwType::Type2 && self.owner.qpn != owner.qpn {
            return Err(PostError::ForeignWindow);
        }
        if self.pending.is_some() { Err(PostError::WindowBusy) } else { Ok(()) }
    }

    #[inline(always)]
    pub(super) fn binding_posted(&mut self, wr_id: u64, owner: Owner, binding: &MwBinding) {
        let change = Change::Bind { rkey: binding.new_rkey, open: binding.length != 0 };
        self.pending = Some(Pending { wr_id, qpn: owner.qpn, change });
    }

    #[inline(always)]
    pub(super) fn invalidate_posted(&mut self, wr_id: u64, owner: Owner) {
        self.pending = Some(Pending { wr_id, qpn: owner.qpn, change: Change::Invalidate });
    }

    /// The last work request about it was taken back before the device saw it.
    pub(super) fn not_posted(&mut self) {
        self.pending = None;
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // The queue pair may be about to do the same.
        self.handle.destroy_or_leak();
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mw")
            .field("type", &self.mw_type)
            .field("rkey", &self.rkey)
            .field("state", &self.state)
            .field("pending", &self.pending)
            .finish()
    }
}

/// The windows of type 2 of one queue pair.
///
/// A bound one holds on to its queue pair in the kernel: Soft-RoCE would wait 50 s for it to be gone, and then destroy the
/// queue pair under it (`__rxe_cleanup`). So they go first.
#[derive(Default)]
pub(super) struct Windows(Mutex<Vec<Weak<Handle>>>);

impl Windows {
    fn add(&self, handle: &Arc<Handle>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|window| window.strong_count() > 0);
        all.push(Arc::downgrade(handle));
    }

    /// Destroys those that are left. Their owners keep objects that name nothing.
    pub(super) fn destroy(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            return;
        }
        let all = std::mem::take(&mut *held);
        drop(held);
        for window in all.iter().filter_map(Weak::upgrade) {
            window.destroy_or_leak();
        }
    }
}
