//! The provider for Soft-RoCE (rxe).

mod abi;
mod cq;
mod dma;
mod queue;
mod ring_memory;
mod rq;
mod sq;

use crate::uverbs::attr::{CreateQp, QpCap};
use crate::uverbs::context::Ucontext;
use crate::uverbs::doorbell::SendDoorbell;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::Qpn;
use abi::{CreateQpResp, MmapInfo};
pub use cq::{RxeCq, RxeCqe};
use ring_memory::MappedRing;
pub use rq::RxeRq;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// A send queue that rings the kernel.
pub type RxeSq = sq::RxeSq<SendDoorbell>;

impl sq::Doorbell for SendDoorbell {
    #[inline(always)]
    fn ring(&self) -> Result<(), Errno> {
        SendDoorbell::ring(self)
    }
}

/// `IB_WC_WITH_IMM` of [`RxeCqe::wc_flags`].
pub const WC_WITH_IMM: u32 = 2;

/// A queue pair just made, its rings mapped.
pub struct RxeQp {
    pub handle: Handle,
    pub qpn: Qpn,
    /// What the rings really hold.
    pub cap: QpCap,
    pub sq: RxeSq,
    pub rq: RxeRq,
}

/// Makes a completion queue and maps its ring.
pub fn create_cq(
    context: &Arc<Ucontext>,
    cqe: u32,
    user_handle: u64,
    channel: Option<BorrowedFd<'_>>,
    comp_vector: u32,
) -> Result<(Handle, RxeCq), Error> {
    let mut mi = MmapInfo::new_zeroed();
    let (handle, _) = context.create_cq(cqe, user_handle, channel, comp_vector, &[], mi.as_mut_bytes())?;
    let ring = map(context, &mi, "completion queue", cq::CQE_BYTES)?;
    Ok((handle, RxeCq::new(ring)))
}

/// Makes a queue pair and maps its rings.
pub fn create_qp(context: &Arc<Ucontext>, request: &CreateQp<'_>) -> Result<RxeQp, Error> {
    let mut resp = CreateQpResp::new_zeroed();
    let created = context.create_qp(request, &[], resp.as_mut_bytes())?;
    let cap = created.cap;
    let sq_memory = map(context, &resp.sq_mi, "send queue", sq::wqe_bytes(cap.max_send_sge, cap.max_inline_data))?;
    let rq_memory = map(context, &resp.rq_mi, "receive queue", rq::wqe_bytes(cap.max_recv_sge))?;
    let doorbell = SendDoorbell::new(context.cdev(), &created.handle);
    let sq = RxeSq::new(sq_memory, cap.max_send_sge, cap.max_inline_data, doorbell);
    let rq = RxeRq::new(rq_memory, cap.max_recv_sge);
    // Linux 6.1 echoes the number asked for, though the ring is a power of two.
    let cap = QpCap { max_send_wr: sq.capacity(), max_recv_wr: rq.capacity(), ..cap };
    Ok(RxeQp { handle: created.handle, qpn: created.qpn, cap, sq, rq })
}

fn map(context: &Arc<Ucontext>, mi: &MmapInfo, queue: &'static str, need: usize) -> Result<MappedRing, Error> {
    let mapping = context.cdev().map(mi.offset, mi.size as usize).map_err(|e| Error::kernel(Verb::MapQueue, e))?;
    MappedRing::new(mapping, queue, need)
}

#[cfg(test)]
mod testing;
