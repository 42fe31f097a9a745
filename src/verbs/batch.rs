//! Batches of work requests: written straight into the ring, published together, rung once.
//!
//! A batch borrows the queue, so that two open batches on one queue do not compile. Dropping a batch takes back what
//! was written; nothing of it ever reaches the device.
//!
//! # Safety argument
//!
//! This file holds no unsafe block. It declares the two `submit` functions unsafe, since they hand memory to the device
//! that only raw [`Sge`]s describe.
#![allow(unsafe_code)]

use super::ah::Destination;
use super::datagram::GRH_BYTES;
use super::provider::sealed::{OpenSends, RecvOps, SendOps};
use super::provider::{Any, Provider};
use super::qp_type::{Connected, QpType, Rc, Ud};
use super::transition::Transport;
use super::way::Way;
use crate::mem::branch::aside;
use crate::mem::copy::stay_a_loop;
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, SendWr, Sge, WrFlags};
use std::marker::PhantomData;

/// Send work requests on their way into a queue pair's send queue.
///
/// [`submit`](Self::submit) posts them; a batch that is dropped without it posts nothing, and the queue is as before.
///
/// Each takes a `wr_id`, the program's own number, which comes back in the completion. Keep it below 2^32 where completions
/// of the queue pair are shown to a [`Pool`](crate::Pool), which marks its own by the upper half.
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp, sge: ironverbs::Sge, remote: ironverbs::RemoteAddr) -> Result<(), ironverbs::PostError> {
/// use ironverbs::{Inline, WrFlags};
/// let mut batch = qp.send_batch();
/// batch.write(1, WrFlags::NONE, &[sge], remote)?;
/// batch.send(2, WrFlags::SIGNALED, Inline(b"written"))?;
/// // SAFETY: `sge` names registered memory that nothing else touches until work request 2 completes.
/// unsafe { batch.submit() }
/// # }
/// ```
#[must_use = "a batch that is dropped posts nothing"]
pub struct SendBatch<'qp, P: Provider = Any, T: QpType = Rc> {
    sq: <P::Sq as SendOps>::Open<'qp>,
    /// Whether the queue pair's state takes sends. Looked at last.
    ready: &'qp bool,
    submitted: bool,
    kind: PhantomData<T>,
}

impl<'qp, P: Provider, T: QpType> SendBatch<'qp, P, T> {
    #[inline(always)]
    pub(super) fn new(sq: &'qp mut P::Sq, ready: &'qp bool) -> Self {
        Self { sq: sq.open(), ready, submitted: false, kind: PhantomData }
    }

    /// How many more work requests the queue takes now.
    #[inline(always)]
    pub fn remaining(&mut self) -> u32 {
        self.sq.remaining()
    }

    /// Checks once that `n` more work requests fit.
    #[inline(always)]
    pub fn reserve(&mut self, n: u32) -> Result<(), PostError> {
        if self.sq.remaining() < n { Err(PostError::QueueFull) } else { Ok(()) }
    }

    #[inline(always)]
    pub(super) fn owner(&self) -> Owner {
        self.sq.owner()
    }

    #[inline(always)]
    pub(super) fn push(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        op: SendOp,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        self.sq.push(&SendWr { wr_id, flags, op, payload })
    }

    /// As [`push`](Self::push), for queue pairs that leave open where a work request goes.
    #[inline(always)]
    pub(super) fn push_on(&mut self, way: Way<'_>, wr: &SendWr<'_>) -> Result<(), PostError> {
        way.push(&mut self.sq, wr)
    }

    /// Does nothing, in its turn: completes when all before it have been begun, or with [`FENCE`](WrFlags::FENCE) when READs and
    /// atomics before it are done, as [`DRIVER1`](crate::WcOpcode::DRIVER1). ConnectX adapters only; elsewhere refused with
    /// [`PostError::NotOffered`].
    #[doc(alias = "IBV_WR_NOP")]
    #[inline(always)]
    pub fn nop(&mut self, wr_id: u64, flags: WrFlags) -> Result<(), PostError> {
        self.sq.push_nop(wr_id, flags)
    }

    /// Publishes all work requests of the batch and rings the doorbell once. An empty batch does nothing.
    ///
    /// # Safety
    ///
    /// Until each work request has completed (a later signaled one on the same queue has, or this one did), or its queue
    /// pair is destroyed:
    /// - the memory its [`Sge`]s name stays registered under their keys;
    /// - no Rust reference to memory that it writes (READ, atomics) is used, nor a mutable one to memory that it reads.
    ///
    /// No `wr_id` is 2^32 or more, unless the queue pair's completions never reach a [`Pool`](crate::Pool).
    #[inline(always)]
    pub unsafe fn submit(mut self) -> Result<(), PostError> {
        if !*self.ready {
            aside();
            return Err(PostError::BadState);
        }
        self.submitted = true;
        self.sq.submit()
    }
}

/// Work requests of both connected transports.
impl<P: Provider, T: Connected> SendBatch<'_, P, T> {
    /// SEND: the payload goes into the receive that the peer posted first.
    #[inline(always)]
    pub fn send<'a>(&mut self, wr_id: u64, flags: WrFlags, payload: impl Into<Payload<'a>>) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::Send, payload.into())
    }

    /// SEND with 32 bits of immediate data, in host order, which the peer finds in its completion.
    #[inline(always)]
    pub fn send_imm<'a>(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        payload: impl Into<Payload<'a>>,
        imm: u32,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::SendImm(imm), payload.into())
    }

    /// RDMA WRITE: the payload goes into the peer's memory; the peer's CPU sees nothing of it.
    ///
    /// The peer must allow it twice: its queue pair with [`QpBuilder::access`](crate::QpBuilder::access), which allows
    /// nothing by default, and its region with [`AccessFlags`](crate::AccessFlags); both `REMOTE_WRITE`. Else it completes
    /// with [`REM_INV_REQ_ERR`](crate::WcStatus::REM_INV_REQ_ERR) or [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR).
    ///
    /// ```no_run
    /// # fn f(pd: &ironverbs::Pd, qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq, theirs: ironverbs::RemoteAddr) -> Result<(), Box<dyn std::error::Error>> {
    /// use ironverbs::{AccessFlags, WrFlags};
    /// // The peer made `theirs` of a region with `REMOTE_WRITE` (`mr.remote(0)`), and told it over TCP, say.
    /// let mut mr = pd.alloc_mr(4096, AccessFlags::LOCAL_READ)?;
    /// mr.write(0, b"for the peer")?;
    /// let mut batch = qp.send_batch();
    /// batch.write(1, WrFlags::SIGNALED, &[mr.sge(..12)?], theirs)?;
    /// // SAFETY: the region stays as it is until the completion, which is waited for.
    /// unsafe { batch.submit()? };
    /// while cq.poll_one()?.map(|wc| wc.outcome()).transpose()?.is_none() {
    ///     std::thread::yield_now();
    /// }
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn write<'a>(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        payload: impl Into<Payload<'a>>,
        remote: RemoteAddr,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::Write(remote), payload.into())
    }

    /// RDMA WRITE with immediate: as [`write`](Self::write), and completes a receive at the peer with `imm` (host order).
    #[inline(always)]
    pub fn write_imm<'a>(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        payload: impl Into<Payload<'a>>,
        remote: RemoteAddr,
        imm: u32,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::WriteImm(remote, imm), payload.into())
    }
}

/// Work requests that need an answer, and so a reliable connection.
impl<P: Provider> SendBatch<'_, P, Rc> {
    /// RDMA READ: the peer's memory goes into `sges`. Needs `REMOTE_READ` at the peer, of queue pair and region, as
    /// [`write`](Self::write) needs `REMOTE_WRITE`.
    ///
    /// ```no_run
    /// # fn f(pd: &ironverbs::Pd, qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq, theirs: ironverbs::RemoteAddr) -> Result<(), Box<dyn std::error::Error>> {
    /// use ironverbs::{AccessFlags, WrFlags};
    /// let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?;
    /// let mut batch = qp.send_batch();
    /// batch.read(1, WrFlags::SIGNALED, &[mr.sge(..64)?], theirs)?;
    /// // SAFETY: nothing else touches the region until the completion, which is waited for.
    /// unsafe { batch.submit()? };
    /// while cq.poll_one()?.map(|wc| wc.outcome()).transpose()?.is_none() {
    ///     std::thread::yield_now();
    /// }
    /// let mut bytes = [0; 64];
    /// mr.read(0, &mut bytes)?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn read(&mut self, wr_id: u64, flags: WrFlags, sges: &[Sge], remote: RemoteAddr) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::Read(remote), Payload::Sges(sges))
    }

    /// Atomic compare and swap of eight aligned bytes at the peer. What they held before goes into `result`, eight bytes
    /// in host order (on some adapters in another: [`Context::atomic_order`](crate::Context::atomic_order)). Needs `REMOTE_ATOMIC` at the peer, of queue pair and region, as [`write`](Self::write) needs
    /// `REMOTE_WRITE`.
    ///
    /// ```no_run
    /// # fn f(pd: &ironverbs::Pd, qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq, theirs: ironverbs::RemoteAddr) -> Result<(), Box<dyn std::error::Error>> {
    /// use ironverbs::{AccessFlags, WrFlags};
    /// let mr = pd.alloc_mr(8, AccessFlags::LOCAL_WRITE)?;
    /// let mut batch = qp.send_batch();
    /// // Take the lock at the peer, if it is 0.
    /// batch.compare_swap(1, WrFlags::SIGNALED, mr.sge(..8)?, theirs, 0, 1)?;
    /// // SAFETY: nothing else touches the region until the completion, which is waited for.
    /// unsafe { batch.submit()? };
    /// while cq.poll_one()?.map(|wc| wc.outcome()).transpose()?.is_none() {
    ///     std::thread::yield_now();
    /// }
    /// let mut before = [0; 8];
    /// mr.read(0, &mut before)?;
    /// println!("taken: {}", u64::from_ne_bytes(before) == 0);
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn compare_swap(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        result: Sge,
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::CompareSwap { remote, compare, swap }, Payload::Sges(&[result]))
    }

    /// Atomic fetch and add of eight aligned bytes at the peer. What they held before goes into `result`, eight bytes in
    /// host order. Needs `REMOTE_ATOMIC` as [`compare_swap`](Self::compare_swap) does, which has an example.
    #[inline(always)]
    pub fn fetch_add(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        result: Sge,
        remote: RemoteAddr,
        add: u64,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::FetchAdd { remote, add }, Payload::Sges(&[result]))
    }
}

/// Work requests of datagrams: each names where it goes.
impl<P: Provider> SendBatch<'_, P, Ud> {
    /// SEND to a queue pair: the payload, of at most the port's MTU, goes into the receive that the peer posted first, after
    /// 40 bytes that say where it came from. If there is none, or on the way something is lost, nobody is told.
    #[inline(always)]
    pub fn send_to<'a>(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        payload: impl Into<Payload<'a>>,
        to: Destination<'_>,
    ) -> Result<(), PostError> {
        self.push_on(Way::Datagram(to), &SendWr { wr_id, flags, op: SendOp::Send, payload: payload.into() })
    }

    /// As [`send_to`](Self::send_to), with 32 bits of immediate data, in host order.
    #[inline(always)]
    pub fn send_imm_to<'a>(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        payload: impl Into<Payload<'a>>,
        imm: u32,
        to: Destination<'_>,
    ) -> Result<(), PostError> {
        self.push_on(Way::Datagram(to), &SendWr { wr_id, flags, op: SendOp::SendImm(imm), payload: payload.into() })
    }
}

impl<P: Provider, T: QpType> Drop for SendBatch<'_, P, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.submitted {
            self.sq.rollback();
        }
    }
}

/// Receive work requests on their way into a receive queue.
///
/// [`submit`](Self::submit) posts them; a batch that is dropped without it posts nothing. For `wr_id` see [`SendBatch`].
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp, sge: ironverbs::Sge) -> Result<(), ironverbs::PostError> {
/// let mut batch = qp.recv_batch();
/// batch.recv(1, &[sge])?;
/// // SAFETY: `sge` names registered memory that nothing else touches until receive 1 completes.
/// unsafe { batch.submit()? };
/// # Ok(()) }
/// ```
#[must_use = "a batch that is dropped posts nothing"]
pub struct RecvBatch<'qp, P: Provider = Any, T: QpType = Rc> {
    rq: &'qp mut P::Rq,
    ready: &'qp bool,
    submitted: bool,
    kind: PhantomData<T>,
}

impl<'qp, P: Provider, T: QpType> RecvBatch<'qp, P, T> {
    #[inline(always)]
    pub(super) fn new(rq: &'qp mut P::Rq, ready: &'qp bool) -> Self {
        rq.begin();
        Self { rq, ready, submitted: false, kind: PhantomData }
    }

    /// How many more work requests the queue takes now.
    #[inline(always)]
    pub fn remaining(&mut self) -> u32 {
        self.rq.remaining()
    }

    /// Checks once that `n` more work requests fit.
    #[inline(always)]
    pub fn reserve(&mut self, n: u32) -> Result<(), PostError> {
        if self.rq.remaining() < n { Err(self.rq.full()) } else { Ok(()) }
    }

    /// One receive: a message goes into `sges`, in order. No entries at all take messages without payload.
    ///
    /// A datagram's receive has 40 bytes ([`GRH_BYTES`]) for its header, and then the payload: see
    /// [`Datagram`](crate::Datagram).
    #[inline(always)]
    pub fn recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if T::TRANSPORT == Transport::Ud {
            check_room_for_grh(sges)?;
        }
        self.rq.push(wr_id, sges)
    }

    /// Publishes all receives of the batch.
    ///
    /// # Safety
    ///
    /// As for [`SendBatch::submit`]; a receive writes its memory.
    #[inline(always)]
    pub unsafe fn submit(mut self) -> Result<(), PostError> {
        if !*self.ready {
            aside();
            return Err(PostError::BadState);
        }
        self.submitted = true;
        self.rq.submit();
        Ok(())
    }
}

/// A receive of a datagram begins with 40 bytes that are not payload.
#[inline(always)]
pub(super) fn check_room_for_grh(sges: &[Sge]) -> Result<(), PostError> {
    let mut room = 0_u64;
    for sge in sges {
        room = room.wrapping_add(u64::from(sge.length()));
        stay_a_loop();
    }
    if room < GRH_BYTES as u64 { Err(PostError::NoRoomForGrh) } else { Ok(()) }
}

impl<P: Provider, T: QpType> Drop for RecvBatch<'_, P, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.submitted {
            self.rq.rollback();
        }
    }
}
