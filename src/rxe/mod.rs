//! The provider for Soft-RoCE (rxe): queues in memory that the kernel driver shares with its users.
//!
//! Creating a queue returns where to map it (`mminfo`), and the mapped header tells its geometry. Sends are written into
//! the ring and announced with one POST_SEND command per batch; receives and completions need no command.
//!
//! The queues here own their mappings and nothing else. Whoever owns the kernel objects drops the queues with them; any
//! order is sound, since the kernel keeps a mapped queue's memory until it is unmapped.

mod abi;
mod address;
mod cq;
mod dma;
mod queue;
mod ring_memory;
mod rq;
mod sq;
mod srq;

pub use address::{RxeAh, create_ah};
pub use cq::{RxeCq, RxeCqe};
pub use rq::RxeRq;
pub use sq::{RxeSq, UdTo};
pub use srq::{create_srq, modify_srq};

use crate::uverbs::abi::verbs::qp_type;
use crate::uverbs::attr::{CreateQp, CreatedQp, QpCap};
use crate::uverbs::context::Ucontext;
use crate::uverbs::doorbell::SendDoorbell;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::explain;
use crate::uverbs::object::Handle;
use crate::uverbs::types::Qpn;
use crate::uverbs::wr::PostError;
use abi::{CreateCqResp, CreateQpResp, MmapInfo, ResizeCqResp};
use ring_memory::MappedRing;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A new queue pair, in state RESET, with its queues.
pub struct RxeQp {
    pub handle: Handle,
    pub qpn: Qpn,
    /// What the queues really hold. Older kernels return the depth that was asked for; the rings are never smaller.
    pub cap: QpCap,
    pub sq: RxeSq,
    pub rq: RxeRq,
}

/// Makes a completion queue of at least `cqe` entries; its true capacity is [`RxeCq::capacity`]. Events on `channel`
/// carry `user_handle`.
pub fn create_cq(
    ctx: &Arc<Ucontext>,
    cqe: u32,
    user_handle: u64,
    channel: Option<BorrowedFd<'_>>,
    comp_vector: u32,
) -> Result<(Handle, RxeCq), Error> {
    let mut response = CreateCqResp::default();
    let (handle, _) = ctx.create_cq(cqe, user_handle, channel, comp_vector, &[], response.as_mut_bytes())?;
    let ring = map(ctx, Verb::CreateCq, response.mi, "completion queue", cq::CQE_BYTES)?;
    Ok((handle, RxeCq::new(ring)))
}

/// Makes a completion queue hold at least `cqe` completions. The kernel moves what was not given back to the new ring.
pub fn resize_cq(ctx: &Ucontext, handle: &Handle, cq: &mut RxeCq, cqe: u32) -> Result<(), Error> {
    // What was read but not given back, as after a batch that was forgotten, is not to come again.
    cq.give_back();
    let mut response = ResizeCqResp::default();
    ctx.resize_cq(handle, cqe, &[], response.as_mut_bytes())?;
    let ring = map(ctx, Verb::ResizeCq, response.mi, "completion queue", cq::CQE_BYTES);
    replace(ring, |ring| cq.replace(ring))
}

/// Gives a queue the ring that the kernel has made for its new size, or none where that one is out of reach: the kernel uses
/// the old one no longer.
fn replace(ring: Result<MappedRing, Error>, queue: impl FnOnce(Option<MappedRing>)) -> Result<(), Error> {
    let (ring, result) = match ring {
        Ok(ring) => (Some(ring), Ok(())),
        Err(error) => (None, Err(error)),
    };
    queue(ring);
    result
}

/// Makes a queue pair and maps its queues.
pub fn create_qp(ctx: &Arc<Ucontext>, req: &CreateQp<'_>) -> Result<RxeQp, Error> {
    if ![qp_type::RC, qp_type::UC, qp_type::UD].contains(&req.qp_type) {
        return Err(Error::Unsupported {
            verb: Verb::CreateQp,
            what: format!("queue pair type {}", req.qp_type).into(),
            by: if [qp_type::XRC_INI, qp_type::XRC_TGT].contains(&req.qp_type) {
                Lacking::Driver
            } else {
                Lacking::Library
            },
        });
    }
    let mut response = CreateQpResp::default();
    let CreatedQp { handle, qpn, cap } =
        ctx.create_qp(req, &[], response.as_mut_bytes()).map_err(|e| explain_inline(e, req.cap.max_inline_data))?;
    // The kernel checks work requests against the limits it returned; a slot is made for just those.
    let sq_bytes = sq::wqe_bytes(cap.max_send_sge, cap.max_inline_data);
    let sq = map(ctx, Verb::CreateQp, response.sq_mi, "send queue", sq_bytes)?;
    let rq = match req.srq {
        None => {
            let rq_bytes = rq::wqe_bytes(cap.max_recv_sge);
            RxeRq::new(map(ctx, Verb::CreateQp, response.rq_mi, "receive queue", rq_bytes)?, cap.max_recv_sge)
        }
        Some(_) => RxeRq::none(PostError::SharedReceives),
    };
    let doorbell = SendDoorbell::new(ctx.cdev(), &handle);
    let sq = RxeSq::new(sq, cap.max_send_sge, cap.max_inline_data, doorbell);
    let cap = QpCap { max_send_wr: sq.capacity(), max_recv_wr: rq.capacity(), max_recv_sge: rq.max_sge(), ..cap };
    Ok(RxeQp { handle, qpn, cap, sq, rq })
}

/// Maps a queue and checks its header.
fn map(
    ctx: &Ucontext,
    verb: Verb,
    info: MmapInfo,
    queue: &'static str,
    need_bytes: usize,
) -> Result<MappedRing, Error> {
    let mapping = ctx.cdev().map(info.offset, info.size as usize).map_err(|errno| {
        let what = format!("the {queue} that {verb} made");
        explain::mapping(Error::kernel(Verb::MapQueue, errno), &what, info.size as usize)
    })?;
    MappedRing::new(mapping, queue, need_bytes)
}

/// The one limit of a queue pair that no query tells.
fn explain_inline(error: Error, max_inline_data: u32) -> Error {
    match error {
        Error::Kernel { verb, errno: Errno::EINVAL, .. } if max_inline_data > 0 => Error::kernel(verb, Errno::EINVAL)
            .with_hint(format!(
                "{max_inline_data} inline bytes may be too many: rxe takes up to 512, older kernels up to 400"
            )),
        other => other,
    }
}

#[cfg(all(test, not(loom)))]
mod create_tests;
#[cfg(all(test, not(loom)))]
mod testing;
