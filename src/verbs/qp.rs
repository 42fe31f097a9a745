//! Queue pairs.

use super::attr::QpUpdate;
use super::batch::{RecvBatch, SendBatch};
use super::cq::CqShared;
use super::device::ContextInner;
use super::mr::CloseError;
use super::pd::{Pd, PdInner};
use super::prepared::Endpoint;
use super::provider::sealed::{NewQp, RecvOps, SendOps};
use super::provider::{Any, Provider};
use super::registry::Source;
use super::transition::{self, Transport};
use crate::uverbs::attr::{CreateQp, QpAttr, QpCap, QpState};
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;

use crate::uverbs::types::Qpn;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Queue pair (QP) of a reliable connection, connected to a peer.
///
/// Post from one thread at a time (`&mut self`); it can be moved to another. Made by
/// [`PreparedQp::connect`](crate::PreparedQp::connect).
///
/// There is no type for "ready to send": the device can move a queue pair to the error state at any time, and every work
/// request then completes as flushed.
#[doc(alias = "ibv_qp")]
pub struct Qp<P: Provider = Any> {
    pub(super) core: QpCore<P>,
    pub(super) local: Endpoint,
}

/// The queue pair itself, prepared or connected.
pub(super) struct QpCore<P: Provider> {
    handle: Handle,
    /// Dropped in `Drop` after the kernel's queue pair is gone, and leaked if the kernel refused to destroy it.
    pub(super) sq: ManuallyDrop<P::Sq>,
    pub(super) rq: ManuallyDrop<P::Rq>,
    pub(super) qpn: Qpn,
    pub(super) cap: QpCap,
    /// As of the last change made from here; the device may have moved on to ERR.
    pub(super) state: QpState,
    transport: Transport,
    user_handle: u64,
    pub(super) pd: Arc<PdInner>,
    pub(super) send_cq: Arc<CqShared>,
    pub(super) recv_cq: Arc<CqShared>,
}

impl<P: Provider> QpCore<P> {
    pub(super) fn create(
        pd: &Pd,
        send_cq: &Arc<CqShared>,
        recv_cq: &Arc<CqShared>,
        transport: Transport,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Result<Self, Error> {
        let pd = pd.inner().clone();
        let context = &pd.context;
        for (what, cq) in [("send completion queue", send_cq), ("receive completion queue", recv_cq)] {
            if !Arc::ptr_eq(&cq.context, context) {
                let limit = "it belongs to another context than the protection domain";
                return Err(Error::invalid(Verb::CreateQp, what, "foreign", limit));
            }
        }
        let user_handle = context.ucontext.next_user_handle();
        let request = CreateQp {
            pd: &pd.handle,
            send_cq: &send_cq.handle,
            recv_cq: &recv_cq.handle,
            qp_type: transport.raw(),
            sq_sig_all,
            cap,
            user_handle,
        };
        let NewQp { handle, qpn, cap, sq, rq } = P::create_qp(context.driver, &context.ucontext, &request)?;
        context.registry.insert(user_handle, Source::Qp(qpn));
        send_cq.attached.fetch_add(1, Ordering::Relaxed);
        if !Arc::ptr_eq(send_cq, recv_cq) {
            recv_cq.attached.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Self {
            handle,
            sq: ManuallyDrop::new(sq),
            rq: ManuallyDrop::new(rq),
            qpn,
            cap,
            state: QpState::RESET,
            transport,
            user_handle,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            pd,
        })
    }

    pub(super) fn context(&self) -> &Arc<ContextInner> {
        &self.pd.context
    }

    pub(super) fn modify(&mut self, update: &QpUpdate) -> Result<(), Error> {
        update.check_ranges()?;
        transition::check(self.transport, self.state, update.state(), update.raw.attr_mask)?;
        let done = self.pd.context.ucontext.modify_qp(&self.handle, &update.raw);
        done.map_err(|error| self.explain(error))?;
        self.state = update.state();
        if self.state == QpState::RESET {
            // The kernel emptied the rings, and leaves its indexes where they were.
            self.sq.resync();
            self.rq.resync();
        }
        Ok(())
    }

    /// A refused change is most often one from a state that the device has left.
    fn explain(&self, error: Error) -> Error {
        if error.errno() != Some(Errno::EINVAL) {
            return error;
        }
        match self.query() {
            Ok(attr) if attr.qp_state != self.state => {
                error.with_hint(format!("the queue pair went from {} to {} by itself", self.state, attr.qp_state))
            }
            _ => error,
        }
    }

    pub(super) fn query(&self) -> Result<QpAttr, Error> {
        self.pd.context.ucontext.query_qp(&self.handle)
    }

    pub(super) fn destroy(&mut self) -> Result<(), Error> {
        self.handle.destroy().map(drop)
    }

    /// Whether sends can be posted, as far as is known here: a queue pair that has left for ERR flushes them.
    #[inline(always)]
    pub(super) fn takes_sends(&self) -> bool {
        matches!(self.state, QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR)
    }

    #[inline(always)]
    pub(super) fn recv_batch(&mut self) -> RecvBatch<'_, P> {
        RecvBatch::new(&mut *self.rq, self.state != QpState::RESET)
    }
}

impl<P: Provider> Drop for QpCore<P> {
    fn drop(&mut self) {
        self.context().registry.remove(self.user_handle);
        self.send_cq.attached.fetch_sub(1, Ordering::Relaxed);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.attached.fetch_sub(1, Ordering::Relaxed);
        }
        if self.handle.destroy_or_leak() {
            self.free_queues();
        }
    }
}

mod free {
    //! # Safety argument
    //!
    //! The queues are dropped in one place only, which `Drop` of the queue pair calls once, last.
    #![allow(unsafe_code)]

    use super::{ManuallyDrop, Provider, QpCore};

    impl<P: Provider> QpCore<P> {
        /// Frees the queues. Called by `Drop` only, once the kernel's queue pair is gone.
        pub(super) fn free_queues(&mut self) {
            // SAFETY: called once, from `Drop`, after which nothing uses `self`.
            unsafe {
                ManuallyDrop::drop(&mut self.sq);
                ManuallyDrop::drop(&mut self.rq);
            }
        }
    }
}

impl<P: Provider> Qp<P> {
    /// The queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    /// What a peer needs to know of it.
    pub fn endpoint(&self) -> Endpoint {
        self.local
    }

    /// The sizes of its queues, as the provider made them: at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.core.cap
    }

    /// The state it was last put in from here. The device may have moved it to ERR since; [`query`](Self::query) tells.
    pub fn state(&self) -> QpState {
        self.core.state
    }

    /// Opens a batch of send work requests. One batch at a time: it borrows the queue pair.
    #[doc(alias("ibv_post_send", "ibv_wr_start"))]
    #[inline(always)]
    pub fn send_batch(&mut self) -> SendBatch<'_, P> {
        let ready = self.core.takes_sends();
        SendBatch::new(&mut *self.core.sq, ready)
    }

    /// Opens a batch of receives. One batch at a time: it borrows the queue pair.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, P> {
        self.core.recv_batch()
    }

    /// Changes state or attributes. A set of attributes that the transition does not take is refused before any system
    /// call, with the names of what is missing or too much.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, update: &QpUpdate) -> Result<(), Error> {
        self.core.modify(update)
    }

    /// Asks the kernel for state and attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.core.query()
    }

    /// Moves it to the error state: every work request posted so far completes as flushed.
    ///
    /// Receives posted after this are flushed by another call.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.modify(&QpUpdate::to(QpState::ERR))
    }

    /// Destroys it, or gives it back with the kernel's reason.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        match self.core.destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err(CloseError { error, object: self }),
        }
    }
}

impl<P: Provider> fmt::Debug for Qp<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.core.qpn).field("state", &self.core.state).finish()
    }
}
