//! Work requests of the sending end of an extended reliable connection.

use super::batch::SendBatch;
use super::provider::{Any, Provider};
use super::qp_type::XrcSend;
use super::way::Way;
use crate::uverbs::types::Srqn;
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, SendWr, Sge, WrFlags};

/// A batch's work requests for one XRC shared receive queue of the peer's. See [`SendBatch::to_srq`].
///
/// A SEND, and a WRITE with immediate, takes a receive of that queue. To all others the queue says whose memory they may
/// reach: that of its protection domain.
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp<ironverbs::Any, ironverbs::XrcSend>, srqns: [ironverbs::Srqn; 2], sge: ironverbs::Sge, remote: ironverbs::RemoteAddr) -> Result<(), ironverbs::PostError> {
/// use ironverbs::{Inline, WrFlags};
/// let mut batch = qp.send_batch();
/// let mut first = batch.to_srq(srqns[0]);
/// first.write(1, WrFlags::NONE, &[sge], remote)?;
/// first.send(2, WrFlags::NONE, Inline(b"for the one"))?;
/// batch.to_srq(srqns[1]).send(3, WrFlags::SIGNALED, Inline(b"for the other"))?;
/// // SAFETY: `sge` names registered memory that nothing else touches until work request 3 completes.
/// unsafe { batch.submit() }
/// # }
/// ```
pub struct ToSrq<'b, 'qp, P: Provider = Any> {
    batch: &'b mut SendBatch<'qp, P, XrcSend>,
    srqn: Srqn,
}

impl<'qp, P: Provider> SendBatch<'qp, P, XrcSend> {
    /// What follows is for the peer's XRC shared receive queue of that number, which the peer told
    /// ([`Srq::number`](crate::Srq::number)).
    #[doc(alias("ibv_wr_set_xrc_srqn", "remote_srqn"))]
    #[inline(always)]
    pub fn to_srq(&mut self, srqn: Srqn) -> ToSrq<'_, 'qp, P> {
        ToSrq { batch: self, srqn }
    }
}

impl<P: Provider> ToSrq<'_, '_, P> {
    #[inline(always)]
    fn push(&mut self, wr_id: u64, flags: WrFlags, op: SendOp, payload: Payload<'_>) -> Result<(), PostError> {
        self.batch.push_on(Way::Srq(self.srqn), &SendWr { wr_id, flags, op, payload })
    }

    /// As [`send`](SendBatch::send), into the queue's first receive.
    #[inline(always)]
    pub fn send<'a>(&mut self, wr_id: u64, flags: WrFlags, payload: impl Into<Payload<'a>>) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::Send, payload.into())
    }

    /// As [`send_imm`](SendBatch::send_imm), into the queue's first receive.
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

    /// As [`write`](SendBatch::write). The peer's [`XrcRecvQp`](crate::XrcRecvQp) must allow it, and the region's protection
    /// domain be the queue's.
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

    /// As [`write_imm`](SendBatch::write_imm); the receive that it completes is the queue's first.
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

    /// As [`read`](SendBatch::read).
    #[inline(always)]
    pub fn read(&mut self, wr_id: u64, flags: WrFlags, sges: &[Sge], remote: RemoteAddr) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::Read(remote), Payload::Sges(sges))
    }

    /// As [`compare_swap`](SendBatch::compare_swap).
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

    /// As [`fetch_add`](SendBatch::fetch_add).
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
