//! Completion queues: what their contexts say, and which event queue hears of each.

use super::command::{CONTEXT, Command, PAGES, Status, paged_ring};
use super::event_queues::EventQueues;
use crate::bits::context::cqc;
use crate::bits::firmware::status;
use crate::cq::{CqSpec, Moderation};
use crate::device::Device;
use crate::memory::Buffer;
use crate::mini::MiniFormat;
use std::collections::BTreeMap;
use std::time::Duration;

/// Contexts by number, as the driver gave them.
#[derive(Debug, Default)]
pub(super) struct CompletionQueues(BTreeMap<u32, [u8; cqc::BYTES]>);

/// Where MODIFY_CQ says which fields count.
const SELECT: usize = 12;

impl CompletionQueues {
    pub fn create(&mut self, device: &mut Device, eqs: &EventQueues, c: &mut Command<'_>) -> Result<(), Status> {
        let context = c.context(CONTEXT, cqc::BYTES)?;
        let compress = match (cqc::COMPRESS.is_set(context), cqc::MINI_FORMAT.get(context)) {
            (false, _) => None,
            (true, 0) => Some(MiniFormat::Hash),
            (true, 1) => Some(MiniFormat::Checksum),
            (true, 3) => Some(MiniFormat::ChecksumStride),
            _ => return Err(Status(status::BAD_PARAM)),
        };
        if !eqs.has(cqc::EQN.get32(context)) {
            return Err(Status(status::BAD_RESOURCE));
        }
        let (ring, entry_bytes, log2_size) = ring(context, c.from(PAGES))?;
        let cqn = device.create_cq(CqSpec {
            ring,
            log2_size,
            entry_bytes,
            record: cqc::RECORD.get(context),
            uar_page: cqc::UAR_PAGE.get32(context),
            ignore_overrun: cqc::IGNORE_OVERRUN.is_set(context),
            compress,
            real_time: false,
        })?;
        device.moderate_cq(cqn, moderation(context))?;
        self.0.insert(cqn, crate::bits::array(context, 0));
        c.put_number(cqn);
        Ok(())
    }

    /// MODIFY_CQ: modifier 1 moves the queue to another ring, 0 sets moderation.
    pub fn modify(&mut self, device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
        const RESIZE: u16 = 1;
        const PERIOD: u32 = 1;
        const COUNT: u32 = 2;
        let (cqn, new) = (c.number(), c.context(CONTEXT, cqc::BYTES)?);
        let context = self.0.get_mut(&cqn).ok_or(Status(status::BAD_RESOURCE))?;
        if c.modifier == RESIZE {
            let (ring, entry_bytes, log2_size) = ring(new, c.from(PAGES))?;
            if cqc::ENTRY_SIZE.get(new) != cqc::ENTRY_SIZE.get(&*context) {
                return Err(Status(status::BAD_PARAM));
            }
            debug_assert!(entry_bytes >= 64);
            device.resize_cq(cqn, ring, log2_size)?;
            for field in [cqc::LOG_SIZE, cqc::LOG_PAGE_SIZE, cqc::PAGE_OFFSET] {
                field.set(context, field.get(new));
            }
            return Ok(());
        }
        let select = c.be32(SELECT);
        if select & PERIOD != 0 {
            cqc::PERIOD.set(context, cqc::PERIOD.get(new));
        }
        if select & COUNT != 0 {
            cqc::MAX_COUNT.set(context, cqc::MAX_COUNT.get(new));
        }
        Ok(device.moderate_cq(cqn, moderation(context))?)
    }

    pub fn query(&self, device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
        /// Overflow.
        const OVERRUN: u64 = 9;
        let mut context = *self.0.get(&c.number()).ok_or(Status(status::BAD_RESOURCE))?;
        let cq = device.cq(c.number()).ok_or(Status(status::BAD_RESOURCE))?;
        cqc::PRODUCER.set(&mut context, cq.produced().into());
        if cq.is_broken() {
            cqc::STATUS.set(&mut context, OVERRUN);
        }
        c.output(CONTEXT, cqc::BYTES).copy_from_slice(&context);
        Ok(())
    }

    pub fn destroy(&mut self, device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
        device.destroy_cq(c.number())?;
        self.0.remove(&c.number());
        Ok(())
    }

    /// The event queue that hears of a queue's completions.
    pub fn event_queue(&self, cqn: u32) -> Option<u8> {
        self.0.get(&cqn).map(|context| cqc::EQN.get(context) as u8)
    }

    pub fn use_event_queue(&self, number: u8) -> bool {
        self.0.values().any(|context| cqc::EQN.get(context) == u64::from(number))
    }
}

fn moderation(context: &[u8]) -> Moderation {
    let period = Duration::from_micros(cqc::PERIOD.get(context));
    Moderation { count: cqc::MAX_COUNT.get(context) as u16, period }
}

/// The ring, bytes of an entry, and log of the entries.
fn ring(context: &[u8], list: &[u8]) -> Result<(Buffer, u64, u32), Status> {
    let entry_bytes = match cqc::ENTRY_SIZE.get(context) {
        0 => 64_u64,
        1 => 128,
        _ => return Err(Status(status::BAD_PARAM)),
    };
    let log_size = cqc::LOG_SIZE.get32(context);
    let (log_page, offset) = (cqc::LOG_PAGE_SIZE.get32(context), cqc::PAGE_OFFSET.get(context));
    Ok((paged_ring(list, log_page, offset, entry_bytes << log_size)?, entry_bytes, log_size))
}
