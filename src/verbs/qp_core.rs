//! What every queue pair is made of, whatever its transport: the kernel's object, shared, and one side for each queue.
//!
//! # Safety argument
//!
//! A device may use a queue's memory as long as the kernel's queue pair exists. So a side that is dropped does not free its
//! queue unless that is destroyed, but parks it with the kernel's object, which both sides share: the queues are freed once that
//! is destroyed, and left with it as long as the kernel refuses. Where both sides are dropped together, the kernel's object
//! goes first. The unsafe steps drop a queue, or take it out, of the side that is being dropped.
#![allow(unsafe_code)]

use super::attr::QpUpdate;
use super::batch::{RecvBatch, SendBatch};
use super::cq::CqShared;
use super::device::ContextInner;
use super::mcast::Groups;
use super::opened::Opened;
use super::pd::{Pd, PdInner};
use super::provider::Provider;
use super::provider::sealed::{NewQp, QpRequest, RecvOps, SendOps};
use super::qp_control::QpControl;
use super::qp_type::QpType;
use super::registry::{Registered, Source};
use super::srq::SrqShared;
use super::transition::Transport;
use super::window::Windows;
use crate::uverbs::attr::{CreateQp, QpAttr, QpCap, QpDomain, QpState};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::types::Qpn;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A whole queue pair: both sides. Its type says nothing of the transport, which [`QpShared`] knows.
pub(super) struct QpCore<P: Provider> {
    // Dropped in this order: the sides then find that nothing uses their queues any more.
    whole: Whole<P>,
    pub(super) send: SendSide<P>,
    pub(super) recv: RecvSide<P>,
}

/// Ends the kernel's queue pair when it is dropped, unless the sides have parted.
struct Whole<P: Provider>(Option<Arc<QpShared<P>>>);

impl<P: Provider> Drop for Whole<P> {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.end();
        }
    }
}

/// The send queue, and what it needs of the queue pair.
pub(super) struct SendSide<P: Provider> {
    pub(super) sq: ManuallyDrop<P::Sq>,
    /// Whether sends can be posted, as far as is known here: a queue pair that has left for ERR flushes them.
    pub(super) ready: bool,
    pub(super) shared: Arc<QpShared<P>>,
}

/// The receive queue, and what it needs of the queue pair.
pub(super) struct RecvSide<P: Provider> {
    pub(super) rq: ManuallyDrop<P::Rq>,
    /// Whether receives can be posted.
    pub(super) ready: bool,
    pub(super) shared: Arc<QpShared<P>>,
}

/// The kernel's queue pair, and what it uses.
pub(super) struct QpShared<P: Provider> {
    pub(super) control: QpControl,
    pub(super) qpn: Qpn,
    pub(super) cap: QpCap,
    user_handle: u64,
    /// Memory windows that go before the queue pair.
    pub(super) windows: Windows,
    pub(super) pd: Arc<PdInner>,
    pub(super) send_cq: Arc<CqShared>,
    pub(super) recv_cq: Arc<CqShared>,
    pub(super) srq: Option<Arc<SrqShared>>,
    pub(super) groups: Groups,
    parked: Mutex<Parked<P>>,
    /// The sizes of its queues, as they were asked for.
    asked: QpCap,
    /// Short messages may be in completions instead of in memory.
    pub(super) data_in_completions: bool,
}

/// Queues of sides that are gone, before the kernel's queue pair is.
struct Parked<P: Provider> {
    sq: Option<Box<P::Sq>>,
    rq: Option<Box<P::Rq>>,
}

/// A queue pair that the kernel does not destroy is counted on the queues that it uses, and known by its number, until this is
/// dropped, which does not keep the queues.
struct Attached {
    send_cq: Weak<CqShared>,
    recv_cq: Weak<CqShared>,
    srq: Option<Weak<SrqShared>>,
    asked: QpCap,
    _registered: Registered,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Self { send_cq, recv_cq, srq, asked, .. } = self;
        // Held until the end, so that it is not destroyed under a completion queue's lock.
        let srq = srq.as_ref().and_then(Weak::upgrade);
        detach(send_cq.upgrade().as_ref(), recv_cq.upgrade().as_ref(), srq.as_ref(), asked);
    }
}

/// Counts a queue pair no longer on the queues that it used, as far as they are there.
fn detach(
    send_cq: Option<&Arc<CqShared>>,
    recv_cq: Option<&Arc<CqShared>>,
    srq: Option<&Arc<SrqShared>>,
    asked: &QpCap,
) {
    if let Some(cq) = send_cq {
        cq.attached.fetch_sub(1, Ordering::Relaxed);
        cq.demand.remove(asked.max_send_wr.into(), None);
    }
    if let Some(cq) = recv_cq {
        let is_other = !send_cq.is_some_and(|send_cq| Arc::ptr_eq(send_cq, cq));
        cq.attached.fetch_sub(u32::from(is_other), Ordering::Relaxed);
        cq.demand.remove(asked.max_recv_wr.into(), srq);
    }
    if let Some(srq) = srq {
        srq.attached.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is asked of a queue pair, beside what it uses.
pub(super) struct Asked {
    pub(super) cap: QpCap,
    pub(super) signal_all: bool,
    /// The device may put short messages into completions.
    pub(super) data_in_completions: bool,
}

impl<P: Provider> QpCore<P> {
    pub(super) fn create(
        pd: &Pd,
        send_cq: &Arc<CqShared>,
        recv_cq: &Arc<CqShared>,
        srq: Option<&Arc<SrqShared>>,
        transport: Transport,
        asked: Asked,
    ) -> Result<Self, Error> {
        let Asked { cap, signal_all: sq_sig_all, data_in_completions } = asked;
        let pd = pd.inner().clone();
        let context = &pd.context;
        check_same("send completion queue", &send_cq.context, context)?;
        check_same("receive completion queue", &recv_cq.context, context)?;
        if let Some(srq) = srq {
            check_same("shared receive queue", &srq.pd.context, context)?;
        }
        if transport == Transport::XrcSend {
            context.check_xrc(Verb::CreateQp)?;
        }
        let user_handle = context.ucontext.next_user_handle();
        let request = CreateQp {
            domain: QpDomain::Pd(&pd.handle),
            send_cq: Some(&send_cq.handle),
            recv_cq: (transport != Transport::XrcSend).then_some(&recv_cq.handle),
            srq: srq.map(|srq| &srq.handle),
            qp_type: transport.raw(),
            sq_sig_all,
            cap,
            user_handle,
        };
        let asked = cap;
        let request = QpRequest {
            create: request,
            send_cq: &send_cq.link,
            recv_cq: &recv_cq.link,
            srq: srq.map(|srq| &srq.link),
            data_in_completions,
        };
        let NewQp { handle, qpn, cap, mut sq, rq } = P::create_qp(&context.opened, &request)?;
        sq.introduce(Owner { pd: pd.identity(), qpn: qpn.get() }, context.attr.device_cap_flags_ex);
        context.registry.insert(user_handle, Source::Qp(qpn));
        let shared = Arc::new(QpShared {
            control: QpControl::new(handle, transport, context.clone()),
            qpn,
            cap,
            user_handle,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: srq.cloned(),
            windows: Windows::default(),
            pd,
            groups: Groups::default(),
            parked: Mutex::new(Parked { sq: None, rq: None }),
            asked,
            data_in_completions,
        });
        shared.attach();
        Ok(Self {
            whole: Whole(Some(shared.clone())),
            send: SendSide { sq: ManuallyDrop::new(sq), ready: false, shared: shared.clone() },
            recv: RecvSide { rq: ManuallyDrop::new(rq), ready: false, shared },
        })
    }

    /// Its sides, each of which keeps the kernel's queue pair.
    pub(super) fn split(self) -> (SendSide<P>, RecvSide<P>) {
        let Self { mut whole, send, recv } = self;
        whole.0 = None;
        (send, recv)
    }

    /// Of both sides of one queue pair.
    pub(super) fn join(send: SendSide<P>, recv: RecvSide<P>) -> Self {
        let mut core = Self { whole: Whole(Some(send.shared.clone())), send, recv };
        // A side may have moved it to the error state.
        core.look_at_state();
        core
    }

    pub(super) fn shared(&self) -> &Arc<QpShared<P>> {
        &self.send.shared
    }

    pub(super) fn context(&self) -> &Arc<ContextInner> {
        &self.shared().pd.context
    }

    pub(super) fn modify(&mut self, update: &QpUpdate) -> Result<(), Error> {
        self.shared().modify(update)?;
        self.look_at_state();
        if update.state() == QpState::RESET {
            // The kernel emptied the rings, and leaves its indexes where they were.
            self.send.sq.resync();
            self.recv.rq.resync();
        }
        Ok(())
    }

    /// Takes up what each side can do in the state it is in.
    fn look_at_state(&mut self) {
        let state = self.shared().state();
        self.send.ready = matches!(state, QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR);
        self.recv.ready = state != QpState::RESET;
    }

    pub(super) fn destroy(&self) -> Result<(), Error> {
        self.shared().prepare_end();
        self.shared().control.handle.destroy().map(drop)
    }
}

fn check_same(what: &'static str, used: &Arc<ContextInner>, context: &Arc<ContextInner>) -> Result<(), Error> {
    if !Arc::ptr_eq(used, context) {
        let limit = "it belongs to another context than the protection domain";
        return Err(Error::invalid(Verb::CreateQp, what, "foreign", limit));
    }
    Ok(())
}

impl<P: Provider> SendSide<P> {
    #[inline(always)]
    pub(super) fn batch<T: QpType>(&mut self) -> SendBatch<'_, P, T> {
        SendBatch::new(&mut *self.sq, &self.ready)
    }
}

impl<P: Provider> RecvSide<P> {
    #[inline(always)]
    pub(super) fn batch<T: QpType>(&mut self) -> RecvBatch<'_, P, T> {
        RecvBatch::new(&mut *self.rq, &self.ready)
    }
}

impl<P: Provider> QpShared<P> {
    /// Counts it on the queues that it uses, until there is nothing left of it.
    fn attach(&self) {
        let Self { send_cq, recv_cq, srq, asked, .. } = self;
        send_cq.attached.fetch_add(1, Ordering::Relaxed);
        if !Arc::ptr_eq(send_cq, recv_cq) {
            recv_cq.attached.fetch_add(1, Ordering::Relaxed);
        }
        send_cq.demand.add(asked.max_send_wr.into(), None);
        recv_cq.demand.add(asked.max_recv_wr.into(), srq.as_ref());
        if let Some(srq) = srq {
            srq.attached.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What goes before it.
    fn prepare_end(&self) {
        self.leave_groups();
        self.windows.destroy();
    }

    /// Destroys the kernel's queue pair. Whether it is gone.
    fn end(&self) -> bool {
        self.prepare_end();
        self.control.handle.destroy_or_leak()
    }

    /// What keeps it counted.
    fn attached(&self) -> Attached {
        Attached {
            send_cq: Arc::downgrade(&self.send_cq),
            recv_cq: Arc::downgrade(&self.recv_cq),
            srq: self.srq.as_ref().map(Arc::downgrade),
            asked: self.asked,
            _registered: Registered::of(&self.pd.context, self.user_handle),
        }
    }

    pub(super) fn state(&self) -> QpState {
        self.control.state()
    }

    /// Changes state or attributes. To RESET only where both sides can be told of it.
    pub(super) fn modify(&self, update: &QpUpdate) -> Result<(), Error> {
        self.control.modify(update)
    }

    pub(super) fn query(&self) -> Result<QpAttr, Error> {
        let mut attr = self.control.query()?;
        if let Opened::Mlx5(_) = self.pd.context.opened {
            // The driver leaves what it did not decide to the library.
            attr.cap = self.cap;
        }
        Ok(attr)
    }

    /// Frees the queue of a side that is being dropped, or keeps it as long as the device may use it.
    ///
    /// # Safety
    ///
    /// The queue is not used again.
    unsafe fn let_go<Q>(&self, queue: &mut ManuallyDrop<Q>, place: impl FnOnce(&mut Parked<P>) -> &mut Option<Box<Q>>) {
        if self.control.handle.is_destroyed() {
            // SAFETY: the caller's part.
            return unsafe { ManuallyDrop::drop(queue) };
        }
        // SAFETY: the caller's part.
        let queue = Box::new(unsafe { ManuallyDrop::take(queue) });
        *place(&mut self.parked.lock().unwrap_or_else(PoisonError::into_inner)) = Some(queue);
    }
}

impl<P: Provider> Drop for SendSide<P> {
    fn drop(&mut self) {
        // SAFETY: the side is being dropped, so that its queue is not used again.
        unsafe { self.shared.let_go(&mut self.sq, |parked| &mut parked.sq) };
    }
}

impl<P: Provider> Drop for RecvSide<P> {
    fn drop(&mut self) {
        // SAFETY: the side is being dropped, so that its queue is not used again.
        unsafe { self.shared.let_go(&mut self.rq, |parked| &mut parked.rq) };
    }
}

/// Both sides are gone: destroys the kernel's queue pair, then frees the queues, unless that was done when it was dropped whole.
impl<P: Provider> Drop for QpShared<P> {
    fn drop(&mut self) {
        if self.control.handle.is_destroyed() || self.end() {
            detach(Some(&self.send_cq), Some(&self.recv_cq), self.srq.as_ref(), &self.asked);
            self.pd.context.registry.remove(self.user_handle);
            return;
        }
        // It is still there, and may put completions into its completion queues.
        let attached = self.attached();
        let Parked { sq, rq } = self.parked.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.control.handle.leave(Box::new((Mutex::new((sq.take(), rq.take())), attached)));
    }
}
