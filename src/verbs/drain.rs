//! Emptying a queue pair before it goes: every work request comes back.

use super::attr::QpUpdate;
use super::channel::deadline;
use super::cq::Cq;
use super::pool::numbers;
use super::provider::Provider;
use super::provider::sealed::{OpenSends, RecvOps, SendOps};
use super::qp::Qp;
use super::qp_type::QpType;
use super::wc::Completion;
use crate::uverbs::attr::QpState;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::wr::{Payload, PostError, SendOp, SendWr, WrFlags};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The work request that tells that a queue is empty: it was posted after all others, and queues complete in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marker {
    ToPost,
    Posted,
    Back,
}

impl<P: Provider, T: QpType> Qp<P, T> {
    /// Moves it to the error state and waits until every work request has come back, as flushed or as what it was. Then no
    /// completion of this queue pair will ever come, and its buffers are the program's: [`close`](Self::close) it.
    ///
    /// `cqs` are the completion queues of its queues: one, or two. Whatever is in them meanwhile, also of other queue
    /// pairs, is given to `each`. Receives that a shared receive queue holds stay there. A queue pair in RESET is empty.
    ///
    /// Fails when `timeout` is over, and can be called again. Work requests of its own are under way then: their completions,
    /// with numbers above 2^32 that belong to no pool, come to the next call's `each`, or to who polls. It does not rely on the event
    /// [`QP_LAST_WQE_REACHED`](crate::AsyncEventType::QP_LAST_WQE_REACHED), which some drivers never raise.
    ///
    /// ```no_run
    /// # fn f(mut qp: ironverbs::Qp, cq: &mut ironverbs::Cq, pool: &ironverbs::Pool) -> Result<(), Box<dyn std::error::Error>> {
    /// qp.drain(&mut [cq], std::time::Duration::from_secs(1), |completion| {
    ///     let _ = pool.reclaim(completion);
    /// })?;
    /// qp.close()?;
    /// # Ok(()) }
    /// ```
    #[doc(alias("ib_drain_qp", "rdma_drain"))]
    pub fn drain(
        &mut self,
        cqs: &mut [&mut Cq<P>],
        timeout: Duration,
        mut each: impl FnMut(Completion<'_, P>),
    ) -> Result<(), Error> {
        let shared = self.core.shared();
        for (what, needed) in
            [("send completion queue", &shared.send_cq), ("receive completion queue", &shared.recv_cq)]
        {
            if !cqs.iter().any(|cq| Arc::ptr_eq(cq.shared(), needed)) {
                return Err(Error::invalid(Verb::DrainQp, what, "missing", "it must be among those that are polled"));
            }
        }
        if shared.state() == QpState::RESET {
            return Ok(());
        }
        let deadline = deadline(timeout);
        let number = u64::from(numbers()?) << 32;
        let (sends, receives) = (number, number + 1);
        let mut send = Marker::ToPost;
        // A queue that is shared, or holds nothing, needs no marker.
        let no_receives = shared.srq.is_some() || self.core.recv.rq.capacity() == 0;
        let mut recv = if no_receives { Marker::Back } else { Marker::ToPost };
        self.core.modify(&QpUpdate::to(QpState::ERR))?;
        while (send, recv) != (Marker::Back, Marker::Back) {
            if send == Marker::ToPost && self.post_send_marker(sends)? {
                send = Marker::Posted;
            }
            if recv == Marker::ToPost && self.post_recv_marker(receives)? {
                recv = Marker::Posted;
            }
            let mut idle = true;
            for cq in cqs.iter_mut() {
                let mut completions = cq.poll().map_err(|error| error.during(Verb::DrainQp))?;
                while let Some(completion) = completions.next() {
                    idle = false;
                    match completion.wr_id() {
                        id if id == sends => send = Marker::Back,
                        id if id == receives => recv = Marker::Back,
                        _ => each(completion),
                    }
                }
            }
            // Also while completions come: those of other queue pairs may never end.
            if (send, recv) != (Marker::Back, Marker::Back) && Instant::now() >= deadline {
                return Err(Error::Timeout { verb: Verb::DrainQp, waited: timeout });
            }
            if idle {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// `false` while the queue is full: the device is still flushing it.
    fn post_send_marker(&mut self, wr_id: u64) -> Result<bool, Error> {
        let mut sq = self.core.send.sq.open();
        let marker = SendWr { wr_id, flags: WrFlags::SIGNALED, op: SendOp::Send, payload: Payload::Sges(&[]) };
        match sq.push(&marker) {
            Ok(()) => {}
            Err(PostError::QueueFull) => return Ok(false),
            Err(error) => return Err(Error::invalid(Verb::DrainQp, "marker", "refused", error.to_string())),
        }
        match sq.submit() {
            Ok(()) => Ok(true),
            Err(PostError::Doorbell(errno)) => Err(Error::kernel(Verb::DrainQp, errno)),
            Err(error) => Err(Error::invalid(Verb::DrainQp, "marker", "refused", error.to_string())),
        }
    }

    /// As [`post_send_marker`](Self::post_send_marker). A receive that comes after the error state is flushed by another
    /// change to it.
    fn post_recv_marker(&mut self, wr_id: u64) -> Result<bool, Error> {
        let rq = &mut *self.core.recv.rq;
        rq.begin();
        match rq.push(wr_id, &[]) {
            Ok(()) => rq.submit(),
            Err(PostError::QueueFull) => return Ok(false),
            Err(error) => return Err(Error::invalid(Verb::DrainQp, "marker", "refused", error.to_string())),
        }
        self.core.modify(&QpUpdate::to(QpState::ERR))?;
        Ok(true)
    }
}
