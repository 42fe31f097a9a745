//! What every queue pair is made of, whatever its transport: the kernel's object, shared, and one side for each queue.
//!
//! # Safety argument
//!
//! A device may use a queue's memory as long as the kernel's queue pair exists. So a side that is dropped does not free its
//! queue, but parks it with the kernel's object, which both sides share: the queues are freed once that is destroyed, and
//! left with it as long as the kernel refuses. The one unsafe step takes a queue out of the side that is being dropped.
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
    pub(super) send: SendSide<P>,
    pub(super) recv: RecvSide<P>,
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

/// Queues of sides that are gone.
struct Parked<P: Provider> {
    sq: Option<P::Sq>,
    rq: Option<P::Rq>,
}

/// A queue pair is counted on the queues that it uses, and known by its number, until this is dropped. It may be left with one that
/// the kernel does not destroy, and does not keep the queues.
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
        if let Some(cq) = send_cq.upgrade() {
            cq.attached.fetch_sub(1, Ordering::Relaxed);
            cq.demand.remove(asked.max_send_wr.into(), None);
        }
        if let Some(cq) = recv_cq.upgrade() {
            cq.attached.fetch_sub(u32::from(!Weak::ptr_eq(send_cq, recv_cq)), Ordering::Relaxed);
            cq.demand.remove(asked.max_recv_wr.into(), srq.as_ref());
        }
        if let Some(srq) = srq {
            srq.attached.fetch_sub(1, Ordering::Relaxed);
        }
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
        let cqs = [("send completion queue", &send_cq.context), ("receive completion queue", &recv_cq.context)];
        for (what, used) in cqs.into_iter().chain(srq.map(|srq| ("shared receive queue", &srq.pd.context))) {
            if !Arc::ptr_eq(used, context) {
                let limit = "it belongs to another context than the protection domain";
                return Err(Error::invalid(Verb::CreateQp, what, "foreign", limit));
            }
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
            send: SendSide { sq: ManuallyDrop::new(sq), ready: false, shared: shared.clone() },
            recv: RecvSide { rq: ManuallyDrop::new(rq), ready: false, shared },
        })
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
    pub(super) fn look_at_state(&mut self) {
        let state = self.shared().state();
        self.send.ready = matches!(state, QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR);
        self.recv.ready = state != QpState::RESET;
    }

    pub(super) fn destroy(&self) -> Result<(), Error> {
        self.shared().leave_groups();
        self.shared().windows.destroy();
        self.shared().control.handle.destroy().map(drop)
    }
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

    fn park(&self, put: impl FnOnce(&mut Parked<P>)) {
        put(&mut self.parked.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl<P: Provider> Drop for SendSide<P> {
    fn drop(&mut self) {
        // SAFETY: the side is being dropped, so that its queue is not used again.
        let sq = unsafe { ManuallyDrop::take(&mut self.sq) };
        self.shared.park(|parked| parked.sq = Some(sq));
    }
}

impl<P: Provider> Drop for RecvSide<P> {
    fn drop(&mut self) {
        // SAFETY: the side is being dropped, so that its queue is not used again.
        let rq = unsafe { ManuallyDrop::take(&mut self.rq) };
        self.shared.park(|parked| parked.rq = Some(rq));
    }
}

/// Both sides are gone: destroys the kernel's queue pair, then frees the queues.
impl<P: Provider> Drop for QpShared<P> {
    fn drop(&mut self) {
        self.leave_groups();
        self.windows.destroy();
        let is_gone = self.control.handle.destroy_or_leak();
        let attached = self.attached();
        if !is_gone {
            // It is still there, and may put completions into its completion queues.
            let Parked { sq, rq } = self.parked.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.control.handle.leave(Box::new((Mutex::new((sq.take(), rq.take())), attached)));
        }
    }
}
