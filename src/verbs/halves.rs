//! The two queues of a queue pair, for two threads.

use super::attr::QpUpdate;
use super::batch::{RecvBatch, SendBatch};
use super::endpoint::Endpoint;
use super::provider::{Any, Provider};
use super::qp::Qp;
use super::qp_core::{QpCore, QpShared, RecvSide, SendSide};
use super::qp_type::{QpType, Rc, Receives};
use super::reach::Local;
use crate::uverbs::attr::{QpAttr, QpCap, QpState};
use crate::uverbs::error::Error;
use crate::uverbs::types::Qpn;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// The send queue of a queue pair. See [`Qp::split`].
///
/// ```no_run
/// # fn f(qp: ironverbs::Qp, slot: ironverbs::Slot) -> Result<(), ironverbs::SlotError> {
/// let (mut sender, _receiver) = qp.split();
/// sender.send_slot(slot, 5)?;
/// # Ok(()) }
/// ```
pub struct SendHalf<P: Provider = Any, T: QpType = Rc> {
    pub(super) side: SendSide<P>,
    pub(super) local: Local,
    kind: PhantomData<T>,
}

/// The receive queue of a queue pair. See [`Qp::split`].
///
/// ```no_run
/// # fn f(qp: ironverbs::Qp, slot: ironverbs::Slot) -> Result<(), ironverbs::SlotError> {
/// let (_sender, mut receiver) = qp.split();
/// receiver.recv_slot(slot)?;
/// # Ok(()) }
/// ```
pub struct RecvHalf<P: Provider = Any, T: QpType = Rc> {
    pub(super) side: RecvSide<P>,
    pub(super) local: Local,
    kind: PhantomData<T>,
}

impl<P: Provider, T: Receives> Qp<P, T> {
    /// Splits it, so that one thread can send while another receives; neither takes a lock. A third one can poll the
    /// completion queue, or one thread each of two.
    ///
    /// The halves keep the queue pair alive, and it is destroyed when both are dropped. [`SendHalf::join`] makes one of them
    /// again, which can change state and be closed.
    ///
    /// ```no_run
    /// # fn f(qp: ironverbs::Qp, sge: ironverbs::Sge) -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut sender, mut receiver) = qp.split();
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| {
    ///         let mut batch = receiver.recv_batch();
    ///         batch.recv(1, &[sge])?;
    ///         // SAFETY: `sge` names registered memory that nothing else touches until the receive completes.
    ///         unsafe { batch.submit() }
    ///     });
    ///     let mut batch = sender.send_batch();
    ///     batch.send(2, ironverbs::WrFlags::SIGNALED, ironverbs::Inline(b"hello"))?;
    ///     // SAFETY: inline payload is copied; nothing else is named by the batch.
    ///     unsafe { batch.submit() }
    /// })?;
    /// let qp = sender.join(receiver)?;
    /// qp.close()?;
    /// # Ok(()) }
    /// ```
    pub fn split(self) -> (SendHalf<P, T>, RecvHalf<P, T>) {
        let Self { core, local, kind } = self;
        let (send, recv) = core.split();
        (SendHalf { side: send, local, kind }, RecvHalf { side: recv, local, kind })
    }
}

impl<P: Provider, T: QpType> SendHalf<P, T> {
    /// Opens a batch of send work requests.
    #[inline(always)]
    pub fn send_batch(&mut self) -> SendBatch<'_, P, T> {
        self.side.batch()
    }

    /// The whole queue pair again.
    pub fn join(self, recv: RecvHalf<P, T>) -> Result<Qp<P, T>, JoinError<P, T>> {
        if !Arc::ptr_eq(&self.side.shared, &recv.side.shared) {
            return Err(JoinError { send: self, recv });
        }
        Ok(Qp::new(QpCore::join(self.side, recv.side), self.local))
    }
}

impl<P: Provider, T: Receives> RecvHalf<P, T> {
    /// Opens a batch of receives.
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, P, T> {
        self.side.batch()
    }
}

/// What both halves can tell and do of the queue pair as a whole.
macro_rules! half {
    ($name:ident) => {
        impl<P: Provider, T: QpType> $name<P, T> {
            fn shared(&self) -> &QpShared<P> {
                &self.side.shared
            }

            /// The queue pair's number.
            pub fn qpn(&self) -> Qpn {
                self.shared().qpn
            }

            /// What a peer needs to know of the queue pair.
            pub fn endpoint(&self) -> Endpoint {
                self.local.endpoint
            }

            /// The sizes of the queue pair's queues.
            pub fn cap(&self) -> QpCap {
                self.shared().cap
            }

            /// The state that the queue pair was last put in from here.
            pub fn state(&self) -> QpState {
                self.shared().state()
            }

            /// Asks the kernel for the queue pair's state and attributes.
            pub fn query(&self) -> Result<QpAttr, Error> {
                self.shared().query()
            }

            /// Moves the queue pair to the error state: every work request of both halves posted so far completes as
            /// flushed. Every other change of state needs the whole queue pair.
            pub fn to_error(&self) -> Result<(), Error> {
                self.shared().modify(&QpUpdate::to(QpState::ERR))
            }
        }

        impl<P: Provider, T: QpType> fmt::Debug for $name<P, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("transport", &T::TRANSPORT).field("qpn", &self.qpn()).finish()
            }
        }
    };
}

half!(SendHalf);
half!(RecvHalf);

/// Two halves that are not of the same queue pair.
#[derive(thiserror::Error)]
#[error("the halves are of two queue pairs, {} and {}", .send.qpn(), .recv.qpn())]
pub struct JoinError<P: Provider = Any, T: QpType = Rc> {
    /// The one.
    pub send: SendHalf<P, T>,
    /// The other.
    pub recv: RecvHalf<P, T>,
}

impl<P: Provider, T: QpType> fmt::Debug for JoinError<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinError").field("send", &self.send).field("recv", &self.recv).finish()
    }
}
