//! Queue pairs.

use super::attr::QpUpdate;
use super::batch::{RecvBatch, SendBatch};
use super::endpoint::Endpoint;
use super::mr::CloseError;
use super::provider::{Any, Provider};
use super::qp_core::QpCore;
use super::qp_type::{QpType, Rc, Receives};
use super::reach::Local;
use crate::uverbs::attr::{QpAttr, QpCap, QpState};
use crate::uverbs::error::Error;
use crate::uverbs::types::Qpn;
use std::fmt;
use std::marker::PhantomData;

/// Queue pair (QP) of the transport service `T`: a send queue and a receive queue.
///
/// Post from one thread at a time (`&mut self`); it can be moved to another, and [`split`](Self::split) lets one thread send
/// while another receives. Made by [`PreparedQp::connect`](crate::PreparedQp::connect), or
/// [`PreparedQp::activate`](crate::PreparedQp::activate) for datagrams.
///
/// There is no type for "ready to send": the device can move a queue pair to the error state at any time, and every work
/// request then completes as flushed.
///
/// ```no_run
/// # fn f(prepared: ironverbs::PreparedQp, remote: &ironverbs::Endpoint, slot: ironverbs::Slot) -> Result<(), Box<dyn std::error::Error>> {
/// let mut qp: ironverbs::Qp = prepared.connect(remote)?;
/// qp.send_slot(slot, 5)?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp")]
pub struct Qp<P: Provider = Any, T: QpType = Rc> {
    pub(super) core: QpCore<P>,
    pub(super) local: Local,
    pub(super) kind: PhantomData<T>,
}

impl<P: Provider, T: QpType> Qp<P, T> {
    pub(super) fn new(core: QpCore<P>, local: Local) -> Self {
        Self { core, local, kind: PhantomData }
    }

    /// The queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.core.shared().qpn
    }

    /// What a peer needs to know of it.
    pub fn endpoint(&self) -> Endpoint {
        self.local.endpoint
    }

    /// The sizes of its queues, as the provider made them: at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.core.shared().cap
    }

    /// The state it was last put in from here. The device may have moved it to ERR since; [`query`](Self::query) tells.
    pub fn state(&self) -> QpState {
        self.core.shared().state()
    }

    /// Opens a batch of send work requests. One batch at a time: it borrows the queue pair.
    #[doc(alias("ibv_post_send", "ibv_wr_start"))]
    #[inline(always)]
    pub fn send_batch(&mut self) -> SendBatch<'_, P, T> {
        self.core.send.batch()
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
        self.core.shared().query()
    }

    /// Moves it to the error state: every work request posted so far completes as flushed.
    ///
    /// Receives posted after this are flushed by another call.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.modify(&QpUpdate::to(QpState::ERR))
    }

    /// Destroys it, or gives it back with the kernel's reason; then it has left its multicast groups all the same, and its
    /// memory windows of type 2 are gone. To drop it does the same, without a word.
    ///
    /// Work requests that were not completed give no completion any more; [drain](Self::drain) it first to have one
    /// for each. Completions that are in its completion queues already stay there, in their order, until they are polled. They
    /// are the program's to tell by their `wr_id`: the kernel gives the [number of a queue pair](Self::qpn) to another one
    /// sooner or later, so that [`Wc::qpn`](crate::Wc::qpn) alone does not say whose they are. Numbers of work requests that
    /// are unique over all queue pairs of a completion queue do. A [`Slot`](crate::Slot) finds its pool in any case.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        CloseError::unless(self.core.destroy(), self)
    }
}

impl<P: Provider, T: Receives> Qp<P, T> {
    /// Opens a batch of receives. One batch at a time: it borrows the queue pair.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, P, T> {
        self.core.recv.batch()
    }
}

impl<P: Provider, T: QpType> fmt::Debug for Qp<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("transport", &T::TRANSPORT)
            .field("qpn", &self.qpn())
            .field("state", &self.state())
            .finish()
    }
}
