//! Plain borrowed buffers, safely: a scope that does not end before the device is done with them.
//!
//! The simplest way to move bytes, and the slowest: every buffer is registered for the one operation, and the thread
//! waits. For tests, examples and simple programs.
//!
//! # Safety argument
//!
//! Buffers are borrowed for `'env`, which outlives the call of [`Qp::scope`]. Before that call returns, normally or by
//! panic, every region made for them is deregistered, which is the kernel's word that the device is done with them. If
//! the kernel refuses that, or cannot tell because the device was removed, the process is aborted, since borrowed memory
//! cannot be leaked.
#![allow(unsafe_code)]

use super::access::AccessFlags;
use super::ah::Destination;
use super::batch::check_room_for_grh;
use super::channel::deadline;
use super::cq::Cq;
use super::mr::Region;
use super::pd::Pd;
use super::pool::numbers;
use super::provider::sealed::{OpenSends, RecvOps, SendOps};
use super::provider::{Any, Provider};
use super::qp::Qp;
use super::qp_type::{Connected, QpType, Rc, Ud};
use super::transition::Transport;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, SendWr, WcStatus, WrFlags};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long flushed work requests may take to come back after a time-out: what a caller waits for beyond its own limit. The
/// buffers do not need them, since a region that is deregistered is out of the device's reach.
const FLUSH_TIME: Duration = Duration::from_millis(20);

/// Posts borrowed buffers. See [`Qp::scope`].
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// let message = *b"borrowed for as long as it takes";
/// qp.scope(cq, std::time::Duration::from_secs(1), |scope| scope.send(&message))?;
/// # Ok(()) }
/// ```
pub struct Scope<'s, 'env, P: Provider = Any, T: QpType = Rc> {
    qp: &'s mut Qp<P, T>,
    cq: &'s mut Cq<P>,
    pd: Pd,
    regions: Vec<Region>,
    /// The number of the next work request. Unique in the process, so that no other completion is taken for one of these.
    next_id: u64,
    /// Work requests under way.
    posted: u64,
    /// The verb of each work request, in the order of posting.
    verbs: Vec<Verb>,
    /// Completions that the closure has not looked at.
    done: Vec<Wc>,
    deadline: Instant,
    timeout: Duration,
    env: PhantomData<&'env mut &'env ()>,
}

impl<P: Provider, T: QpType> Qp<P, T> {
    /// Runs `f`, which can post buffers that it borrows, and returns when all of them are the program's again.
    ///
    /// `cq` must be the completion queue of both of the queue pair's queues, used by this queue pair alone, and nothing
    /// may be under way. All waits together end `timeout` after the start, but for some 20 ms in which what was posted is given
    /// up; the queue pair is then in the error state. Completions that come later stay in the completion queue.
    ///
    /// An operation that failed makes the scope fail with [`Error::Failed`], which tells why, unless the closure looked at
    /// it with [`wait_each`](Scope::wait_each). The queue pair is in the error state after it.
    ///
    /// ```no_run
    /// # fn f(qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq) -> Result<(), ironverbs::Error> {
    /// let (question, mut answer) = (*b"ping", [0; 4]);
    /// qp.scope(cq, std::time::Duration::from_secs(1), |scope| {
    ///     scope.recv(&mut answer)?;
    ///     scope.send(&question)
    /// })?; // both have succeeded
    /// assert_eq!(answer, *b"pong");
    /// # Ok(()) }
    /// ```
    ///
    /// A buffer that does not outlive the scope does not compile, nor does its use while the device may write it.
    pub fn scope<'env, R, F>(&mut self, cq: &mut Cq<P>, timeout: Duration, f: F) -> Result<R, Error>
    where
        F: for<'s> FnOnce(&mut Scope<'s, 'env, P, T>) -> Result<R, Error>,
    {
        let refuse = |limit| Err(Error::invalid(Verb::PostSend, "scope", "refused", limit));
        let shared = self.core.shared();
        if !Arc::ptr_eq(&shared.send_cq, cq.shared()) || !Arc::ptr_eq(&shared.recv_cq, cq.shared()) {
            return refuse("the completion queue must be that of the queue pair's both queues");
        }
        if self.core.shared().srq.is_some() {
            return refuse("its receives come from a shared receive queue, and may complete here at any time");
        }
        if shared.data_in_completions {
            return refuse("the device puts short messages into completions, not into buffers");
        }
        if !cq.is_quiet() || !self.core.send.sq.is_idle() || !self.core.recv.rq.is_idle() {
            return refuse("earlier work requests are still under way, or other queue pairs use the completion queue");
        }
        let pd = Pd::from_inner(self.core.shared().pd.clone());
        let next_id = u64::from(numbers()?) << 32;
        let mut scope = Scope {
            qp: self,
            cq,
            pd,
            regions: Vec::new(),
            next_id,
            posted: 0,
            verbs: Vec::new(),
            done: Vec::new(),
            deadline: deadline(timeout),
            timeout,
            env: PhantomData,
        };
        let result = f(&mut scope);
        let drained = scope.drain();
        drop(scope);
        let value = result?;
        drained?;
        Ok(value)
    }
}

impl<'env, P: Provider, T: Connected> Scope<'_, 'env, P, T> {
    /// Sends `bytes`.
    pub fn send(&mut self, bytes: &'env [u8]) -> Result<(), Error> {
        self.post_send(NonNull::from(bytes), AccessFlags::LOCAL_READ, SendOp::Send)
    }

    /// Writes `bytes` to the peer's memory.
    pub fn write(&mut self, bytes: &'env [u8], remote: RemoteAddr) -> Result<(), Error> {
        self.post_send(NonNull::from(bytes), AccessFlags::LOCAL_READ, SendOp::Write(remote))
    }
}

impl<'env, P: Provider> Scope<'_, 'env, P, Ud> {
    /// Sends `bytes` as a datagram.
    pub fn send_to(&mut self, bytes: &'env [u8], to: Destination<'_>) -> Result<(), Error> {
        let bytes = NonNull::from(bytes);
        self.post_send_with(bytes, AccessFlags::LOCAL_READ, SendOp::Send, |sq, wr| sq.push_to(wr, to))
    }
}

impl<'env, P: Provider> Scope<'_, 'env, P> {
    /// Reads the peer's memory into `buffer`.
    pub fn read(&mut self, buffer: &'env mut [u8], remote: RemoteAddr) -> Result<(), Error> {
        self.post_send(NonNull::from(buffer), AccessFlags::LOCAL_WRITE, SendOp::Read(remote))
    }
}

impl<'env, P: Provider, T: QpType> Scope<'_, 'env, P, T> {
    /// Receives a message into `buffer`.
    pub fn recv(&mut self, buffer: &'env mut [u8]) -> Result<(), Error> {
        let len = buffer.len();
        if !self.qp.core.recv.ready {
            return Err(refused(Verb::PostRecv, PostError::BadState, len));
        }
        let room = super::Sge::from_raw(0, u32::try_from(len).unwrap_or(u32::MAX), super::Lkey(0));
        if let (Transport::Ud, Err(error)) = (T::TRANSPORT, check_room_for_grh(&[room])) {
            return Err(refused(Verb::PostRecv, error, len));
        }
        let sge = self.register(NonNull::from(buffer), AccessFlags::LOCAL_WRITE)?;
        let rq = &mut *self.qp.core.recv.rq;
        rq.begin();
        if let Err(error) = rq.push(self.next_id, sge.as_slice()) {
            rq.rollback();
            return Err(refused(Verb::PostRecv, error, len));
        }
        rq.submit();
        self.note(Verb::PostRecv);
        Ok(())
    }

    /// Waits until everything posted so far has completed, and returns the completions in the order they came, all of them
    /// successful; or [`Error::Failed`] if one failed. Their numbers count up in the order of posting. A completion that is
    /// not of the scope is returned too, and not waited for.
    pub fn wait(&mut self) -> Result<Vec<Wc>, Error> {
        self.wait_for(self.deadline)?;
        self.succeeded()?;
        Ok(std::mem::take(&mut self.done))
    }

    /// As [`wait`](Self::wait), for a closure that looks at each outcome itself: failed completions are returned, too, and
    /// no error of the scope any more.
    pub fn wait_each(&mut self) -> Result<Vec<Wc>, Error> {
        self.wait_for(self.deadline)?;
        Ok(std::mem::take(&mut self.done))
    }

    fn post_send(&mut self, range: NonNull<[u8]>, access: AccessFlags, op: SendOp) -> Result<(), Error> {
        self.post_send_with(range, access, op, |sq, wr| sq.push(wr))
    }

    fn post_send_with(
        &mut self,
        range: NonNull<[u8]>,
        access: AccessFlags,
        op: SendOp,
        push: impl FnOnce(&mut <P::Sq as SendOps>::Open<'_>, &SendWr<'_>) -> Result<(), PostError>,
    ) -> Result<(), Error> {
        if !self.qp.core.send.ready {
            return Err(refused(Verb::PostSend, PostError::BadState, range.len()));
        }
        let sge = self.register(range, access)?;
        let payload = Payload::Sges(sge.as_slice());
        let mut sq = self.qp.core.send.sq.open();
        if let Err(error) = push(&mut sq, &SendWr { wr_id: self.next_id, flags: WrFlags::SIGNALED, op, payload }) {
            sq.rollback();
            return Err(refused(Verb::PostSend, error, range.len()));
        }
        // Counted even if the doorbell is refused: the work request is in the queue.
        let submitted = sq.submit();
        drop(sq);
        self.note(Verb::PostSend);
        submitted.map_err(|error| refused(Verb::PostSend, error, range.len()))
    }

    /// One more work request is under way.
    fn note(&mut self, verb: Verb) {
        self.next_id += 1;
        self.posted += 1;
        self.verbs.push(verb);
    }

    /// Whether no work request of the scope has failed. Of several failures the first is the cause, and the flushed ones
    /// its consequence.
    fn succeeded(&self) -> Result<(), Error> {
        let own = self.next_id >> 32;
        let failures = self.done.iter().filter(|wc| wc.wr_id >> 32 == own).filter_map(|wc| {
            let verb = self.verbs.get(wc.wr_id as u32 as usize)?;
            Some((*verb, wc.wr_id as u32, wc.outcome().err()?))
        });
        match failures.min_by_key(|(_, _, error)| error.status == WcStatus::WR_FLUSH_ERR) {
            Some((verb, index, error)) => Err(Error::Failed { verb, index, error }),
            None => Ok(()),
        }
    }

    /// A scatter/gather entry for a borrowed buffer; none for an empty one, which cannot be registered.
    fn register(&mut self, range: NonNull<[u8]>, access: AccessFlags) -> Result<Option<super::Sge>, Error> {
        let len = range.len();
        if len == 0 {
            return Ok(None);
        }
        let limit = "one operation moves less than 4 GiB";
        let len = u32::try_from(len).map_err(|_| Error::invalid(Verb::RegMr, "length", len, limit))?;
        // SAFETY: the buffer is borrowed for `'env`, and `Drop` deregisters before the scope, which `'env` outlives, ends.
        let region = unsafe { Region::new(&self.pd, range, access, None)? };
        let sge = region.sge(0, len);
        self.regions.push(region);
        Ok(Some(sge))
    }

    fn wait_for(&mut self, deadline: Instant) -> Result<(), Error> {
        let own = self.next_id >> 32;
        while self.posted > 0 {
            let mut completions = self.cq.poll().map_err(|error| error.during(Verb::PollCq))?;
            let before = self.posted;
            while let Some(completion) = completions.next() {
                let wc = completion.wc();
                if wc.wr_id >> 32 == own {
                    self.posted -= 1;
                }
                self.done.push(wc);
            }
            drop(completions);
            if self.posted == before {
                if Instant::now() >= deadline {
                    return Err(Error::Timeout { verb: Verb::PollCq, waited: self.timeout });
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Waits for what is left; if that takes too long, has it flushed. Tells of a failure that the closure did not look at.
    fn drain(&mut self) -> Result<(), Error> {
        let waited = self.wait_for(self.deadline);
        if waited.is_err() {
            self.qp.to_error()?;
            let _ = self.wait_for(deadline(FLUSH_TIME));
            return waited;
        }
        self.succeeded()
    }
}

impl<P: Provider, T: QpType> Drop for Scope<'_, '_, P, T> {
    fn drop(&mut self) {
        // After a panic in the closure there may be work under way. Deregistering makes it fail, and is waited for.
        if self.posted > 0 {
            let _ = self.qp.to_error();
        }
        for region in &mut self.regions {
            if region.deregister().is_err() {
                // The device may still write memory that the caller will soon use otherwise. Nothing safe is left to do.
                std::process::abort();
            }
        }
    }
}

fn refused(verb: Verb, error: PostError, len: usize) -> Error {
    let limit = error.to_string();
    Error::invalid(verb, "buffer", format_args!("{len} bytes"), limit)
}
