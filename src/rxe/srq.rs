//! Shared receive queues: the ring is a [`RxeRq`] like a queue pair's own; making and resizing one is here.
//!
//! # Safety argument
//!
//! The driver reads the address of a structure with every change, and writes to it when it makes a new ring. The structure
//! is a local variable that outlives the call.
#![allow(unsafe_code)]

use super::abi::{CreateSrqResp, MmapInfo, ModifySrqCmd};
use super::rq::{self, RxeRq};
use super::{map, replace};
use crate::uverbs::context::Ucontext;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::{CreateSrq, CreatedSrq, ModifySrq};
use std::sync::Arc;
use zerocopy::IntoBytes;

const QUEUE: &str = "shared receive queue";

/// Makes a shared receive queue; its true capacity is [`RxeRq::capacity`].
pub fn create_srq(ctx: &Arc<Ucontext>, req: &CreateSrq<'_>) -> Result<(Handle, RxeRq), Error> {
    let mut response = CreateSrqResp::default();
    let CreatedSrq { handle, max_sge, .. } = ctx.create_srq(req, &[], response.as_mut_bytes())?;
    let ring = map(ctx, Verb::CreateSrq, response.mi, QUEUE, rq::wqe_bytes(max_sge))?;
    Ok((handle, RxeRq::new(ring, max_sge)))
}

/// Changes a shared receive queue's size or limit. The kernel moves what is posted to the ring of the new size.
pub fn modify_srq(ctx: &Ucontext, srq: &Handle, queue: &mut RxeRq, change: ModifySrq) -> Result<(), Error> {
    let mut info = MmapInfo::default();
    let cmd = ModifySrqCmd { mmap_info_addr: (&raw mut info).expose_provenance() as u64 };
    // SAFETY: the address is that of `info`, which outlives the call and is not used during it.
    unsafe { ctx.modify_srq(srq, change, cmd.as_bytes()) }?;
    if let ModifySrq::MaxWr(_) = change {
        let ring = map(ctx, Verb::ModifySrq, info, QUEUE, rq::wqe_bytes(queue.max_sge()));
        return replace(ring, |ring| queue.replace(ring));
    }
    Ok(())
}
