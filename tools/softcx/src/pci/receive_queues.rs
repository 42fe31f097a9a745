//! Shared receive queues: those for XRC, and the receive memory pools (RMP) that all others are.

use super::command::{CONTEXT, Command, PAGES, Status, paged_ring};
use crate::bits::context::{RMP_STATE, wq, xrc_srqc};
use crate::bits::firmware::status;
use crate::device::Device;
use crate::recv::{RecvSpec, XrcSrq};
use std::collections::BTreeMap;

/// Contexts by number, as the driver gave them.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueues(BTreeMap<u32, Vec<u8>>);

/// Where the receive memory pool context begins.
const POOL: usize = 0x20;
const POOL_BYTES: usize = 0xf0;
/// Ready.
const READY: u64 = 1;
/// Log of a data segment's bytes, which strides are told in.
const LOG_SEGMENT: u32 = 4;

impl ReceiveQueues {
    pub fn create_xrc(&mut self, device: &mut Device, c: &mut Command<'_>) -> Result<(), Status> {
        use xrc_srqc as at;
        let context = c.context(CONTEXT, at::BYTES)?;
        let (log_size, log_stride) = (at::LOG_SIZE.get32(context), at::LOG_STRIDE.get32(context) + LOG_SEGMENT);
        let (log_page, offset) = (at::LOG_PAGE_SIZE.get32(context), at::PAGE_OFFSET.get(context));
        let spec = RecvSpec {
            ring: paged_ring(c.from(PAGES), log_page, offset, 1 << (log_size + log_stride))?,
            log2_count: log_size,
            log2_stride: log_stride,
            record: at::RECORD.get(context),
            linked: true,
        };
        let xrc = XrcSrq {
            xrcd: at::XRCD.get32(context),
            cqn: at::CQN.get32(context),
            user_index: at::USER_INDEX.get32(context),
        };
        if device.cq(xrc.cqn).is_none() {
            return Err(Status(status::BAD_RESOURCE));
        }
        let srqn = device.create_srq(at::PD.get32(context), spec, Some(xrc), at::LIMIT.get(context) as u16)?;
        self.0.insert(srqn, context.to_vec());
        c.put_number(srqn);
        Ok(())
    }

    pub fn create_pool(&mut self, device: &mut Device, c: &mut Command<'_>) -> Result<(), Status> {
        let context = c.context(POOL, POOL_BYTES)?;
        let queue = c.from(POOL + wq::IN_RMPC);
        let (log_size, log_stride) = (wq::LOG_SIZE.get32(queue), wq::LOG_STRIDE.get32(queue));
        let (log_page, offset) = (wq::LOG_PAGE_SIZE.get32(queue), wq::PAGE_OFFSET.get(queue));
        let list = queue.get(wq::PAGES..).unwrap_or_default();
        if log_stride < LOG_SEGMENT {
            return Err(Status(status::BAD_PARAM));
        }
        let spec = RecvSpec {
            ring: paged_ring(list, log_page, offset, 1 << (log_size + log_stride))?,
            log2_count: log_size,
            log2_stride: log_stride,
            record: wq::RECORD.get(queue),
            linked: true,
        };
        let srqn = device.create_srq(wq::PD.get32(queue), spec, None, wq::LIMIT.get(queue) as u16)?;
        self.0.insert(srqn, context.to_vec());
        c.put_number(srqn);
        Ok(())
    }

    pub fn query_xrc(&self, device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
        let (limit, context) = self.known(device, c.number())?;
        let out = c.output(CONTEXT, xrc_srqc::BYTES);
        out.copy_from_slice(context.get(..xrc_srqc::BYTES).ok_or(Status(status::BAD_RESOURCE))?);
        xrc_srqc::LIMIT.set(out, limit);
        // The state of one that is well is 0.
        xrc_srqc::STATE.set(out, 0);
        Ok(())
    }

    pub fn query_pool(&self, device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
        let (limit, context) = self.known(device, c.number())?;
        let out = c.output(POOL, POOL_BYTES);
        out.copy_from_slice(context.get(..POOL_BYTES).ok_or(Status(status::BAD_RESOURCE))?);
        wq::LIMIT.set(&mut out[wq::IN_RMPC..], limit);
        RMP_STATE.set(out, READY);
        Ok(())
    }

    /// MODIFY_RMP: sets the limit.
    pub fn modify_pool(&mut self, device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
        /// Where the mask of fields is: bit 0 of its last byte is the limit's.
        const MASK: usize = 0x17;
        if c.input.get(MASK).is_some_and(|mask| mask & 1 == 1) {
            let queue = c.from(POOL + wq::IN_RMPC);
            device.arm_srq(c.number(), wq::LIMIT.get(queue) as u16)?;
        }
        Ok(())
    }

    pub fn destroy(&mut self, device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
        device.destroy_srq(c.number())?;
        self.0.remove(&c.number());
        Ok(())
    }

    fn known(&self, device: &Device, srqn: u32) -> Result<(u64, &[u8]), Status> {
        let limit = device.srq_limit(srqn).ok_or(Status(status::BAD_RESOURCE))?;
        let context = self.0.get(&srqn).ok_or(Status(status::BAD_RESOURCE))?;
        Ok((limit.into(), context))
    }
}
