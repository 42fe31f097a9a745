//! Creating completion queues and shared receive queues: what the driver checks, and what the device is told.

use super::caps::*;
use super::file::{File, What, errno};
use super::router::Subject;
use super::uapi::{Call, Request, Response};
use crate::commands::NO_USER_INDEX;
use crate::cq::{CqSpec, Moderation};
use crate::host_memory::is_mapped;
use crate::memory::Buffer;
use crate::mini::MiniFormat;
use crate::recv::{RecvSpec, XrcSrq};
use ironverbs::Errno;
use std::time::Duration;

/// Bytes of a page of the host.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a doorbell record.
const RECORD_BYTES: u64 = 8;

/// What creating a CQ needs, however it was asked for.
pub(super) struct CqWish<'a> {
    pub cqe: u32,
    pub user_handle: u64,
    pub channel: Option<i32>,
    pub vector: u32,
    pub flags: u64,
    pub event_file: Option<i32>,
    /// UAR page, where it came in an attribute of its own.
    pub uar_page: Option<u32>,
    pub driver: Request<'a>,
    pub driver_room: Option<usize>,
}

/// What creating an SRQ needs.
pub(super) struct SrqWish<'a> {
    pub pd: u32,
    pub xrcd: Option<u32>,
    pub cq: Option<u32>,
    pub user_handle: u64,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_type: u64,
    pub event_file: Option<i32>,
    pub driver: Request<'a>,
    pub driver_room: Option<usize>,
}

/// A ring or record must be memory of the process.
pub(super) fn pinned(address: u64, len: u64) -> Result<(), Errno> {
    if is_mapped(address, len) { Ok(()) } else { Err(Errno::EFAULT) }
}

pub(super) fn record(address: u64) -> Result<u64, Errno> {
    if !address.is_multiple_of(RECORD_BYTES) {
        return Err(Errno::EINVAL);
    }
    pinned(address, RECORD_BYTES).map(|()| address)
}

impl File {
    /// Answers handle, entries, and the driver's answer.
    pub(super) fn create_cq(&self, wish: &CqWish<'_>) -> Result<(u32, u32, Vec<u8>), Errno> {
        const PAD: u16 = 1;
        const UAR_PAGE: u16 = 2;
        const REAL_TIME: u16 = 4;
        const MIN_REQUEST_BYTES: usize = 22;
        let driver = wish.driver;
        if driver.0.len() < MIN_REQUEST_BYTES || wish.vector >= COMP_VECTORS {
            return Err(Errno::EINVAL);
        }
        let entries = (u64::from(wish.cqe) + 1).next_power_of_two();
        if entries > 1 << LOG2_MAX_CQ_SIZE {
            return Err(Errno::EINVAL);
        }
        let (ring, entry_bytes, flags) = (driver.u64(0), u64::from(driver.u32(16)), driver.u16(22));
        if !matches!(entry_bytes, 64 | 128)
            || flags & !(PAD | UAR_PAGE | REAL_TIME) != 0
            || !driver.is_zero_from(26)
            || !ring.is_multiple_of(PAGE_BYTES)
        {
            return Err(Errno::EINVAL);
        }
        // No padding; the time only of a device that keeps it.
        let real_time = flags & REAL_TIME != 0;
        if flags & PAD != 0 || real_time && !self.with(|d| d.shared.keeps_time) {
            return Err(Errno::EOPNOTSUPP);
        }
        let compress = match (driver.u8(20), driver.u8(21)) {
            (0, _) => None,
            (1, 1) if entry_bytes == 64 => Some(MiniFormat::Hash),
            (1, 2) if entry_bytes == 64 => Some(MiniFormat::Checksum),
            (1, 4) if entry_bytes == 64 => Some(MiniFormat::ChecksumStride),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        const TIMESTAMP: u64 = 1;
        const IGNORE_OVERRUN: u64 = 2;
        if wish.flags & !(TIMESTAMP | IGNORE_OVERRUN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let uar_page = match wish.uar_page {
            Some(page) => page,
            None if flags & UAR_PAGE != 0 => driver.u16(24).into(),
            None => return Err(Errno::EINVAL),
        };
        const ANSWER_BYTES: usize = 4;
        if wish.driver_room.is_none_or(|room| room < ANSWER_BYTES) {
            return Err(Errno::EFAULT);
        }
        let mut state = self.state();
        if !state.has_uar(uar_page) {
            return Err(Errno::EINVAL);
        }
        pinned(ring, entries * entry_bytes)?;
        let spec = CqSpec {
            ring: Buffer::contiguous(ring, entries * entry_bytes),
            log2_size: entries.ilog2(),
            entry_bytes,
            record: record(driver.u64(8))?,
            uar_page,
            ignore_overrun: wish.flags & IGNORE_OVERRUN != 0,
            compress,
            real_time,
        };
        let channel = wish.channel.map(|number| state.channel(number)).transpose()?;
        let event_file = state.async_file(wish.event_file)?;
        let cqn = self.with(|d| d.create_cq(spec)).map_err(errno)?;
        self.watch(Subject::Cq(cqn), wish.user_handle, channel, event_file);
        let handle = state.insert(What::Cq { cqn }, vec![]);
        Ok((handle, entries as u32 - 1, Response::new(8).u32(0, cqn).done()))
    }

    /// Extended MODIFY_CQ: moderation of its events.
    pub(super) fn modify_cq(&self, request: Request<'_>) -> Result<(), Errno> {
        const MODERATION: u32 = 1;
        let cqn = self.state().cqn(request.u32(0))?;
        if request.u32(4) & !MODERATION != 0 || request.u32(12) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (count, period_us) = (request.u16(8), request.u16(10));
        if period_us > MAX_MODERATION_US {
            return Err(Errno::EINVAL);
        }
        let moderation = Moderation { count, period: Duration::from_micros(period_us.into()) };
        self.with(|d| d.moderate_cq(cqn, moderation)).map_err(errno)
    }

    /// RESIZE_CQ.
    pub(super) fn resize_cq(&self, call: &Call<'_>) -> Result<Response, Errno> {
        let entries = (u64::from(call.request.u32(12)) + 1).next_power_of_two();
        let state = self.state();
        let cqn = state.cqn(call.request.u32(8))?;
        let (ring, size) = (call.driver.u64(0), u64::from(call.driver.u16(8)));
        let entry_bytes = self.with(|d| d.cq(cqn).map(|cq| cq.spec.entry_bytes)).ok_or(Errno::EINVAL)?;
        if call.request.u32(12) == 0
            || entries > 1 << LOG2_MAX_CQ_SIZE
            || call.driver.0.len() < 16
            || !call.driver.is_zero_from(10)
            || size != entry_bytes
            || !ring.is_multiple_of(PAGE_BYTES)
        {
            return Err(Errno::EINVAL);
        }
        if self.with(|d| d.cq(cqn).map(|cq| cq.spec.log2_size)) == Some(entries.ilog2()) {
            // The size that it has: the driver leaves everything as it is.
            return Ok(Response::new(8).u32(0, entries as u32 - 1));
        }
        pinned(ring, entries * size)?;
        let buffer = Buffer::contiguous(ring, entries * size);
        self.with(|d| d.resize_cq(cqn, buffer, entries.ilog2())).map_err(errno)?;
        Ok(Response::new(8).u32(0, entries as u32 - 1))
    }

    /// Answers handle, WRs, SRQ number, and the driver's answer.
    pub(super) fn create_srq(&self, wish: &SrqWish<'_>) -> Result<(u32, u32, u32, Vec<u8>), Errno> {
        const BASIC: u64 = 0;
        const XRC: u64 = 1;
        const REQUEST_BYTES: usize = 32;
        const ANSWER_BYTES: usize = 4;
        let driver = wish.driver;
        let mut state = self.state();
        let has_uidx = state.context()?.cqe_version == 1;
        if driver.0.len() < if has_uidx { REQUEST_BYTES } else { 16 } || driver.u32(16) != 0 || driver.u32(20) != 0 {
            return Err(Errno::EINVAL);
        }
        if wish.max_wr >= 1 << LOG2_MAX_SRQ_SIZE || wish.max_sge > MAX_SRQ_SGE {
            return Err(Errno::EINVAL);
        }
        if wish.driver_room.is_none_or(|room| room < ANSWER_BYTES) {
            return Err(Errno::EFAULT);
        }
        let pd = state.pd(wish.pd)?;
        let mut uses = vec![wish.pd];
        let xrc = match (wish.srq_type, wish.xrcd, wish.cq) {
            (BASIC, _, _) => None,
            (XRC, Some(xrcd), Some(cq)) => {
                uses.extend([xrcd, cq]);
                let user_index = driver.u32(24);
                if user_index > NO_USER_INDEX {
                    return Err(Errno::EINVAL);
                }
                Some(XrcSrq { xrcd: state.xrcd(xrcd)?, cqn: state.cqn(cq)?, user_index })
            }
            (XRC, ..) => return Err(Errno::EINVAL),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let stride = u64::from(16 + 16 * wish.max_sge).next_power_of_two().max(32);
        let entries = u64::from(wish.max_wr + 1).next_power_of_two();
        let ring = driver.u64(0);
        pinned(ring, entries * stride)?;
        let spec = RecvSpec {
            ring: Buffer::contiguous(ring, entries * stride),
            log2_count: entries.ilog2(),
            log2_stride: stride.ilog2(),
            record: record(driver.u64(8))?,
            linked: true,
        };
        let event_file = state.async_file(wish.event_file)?;
        // The driver passes over the limit of a new queue.
        let srqn = self.with(|d| d.create_srq(pd, spec, xrc, 0)).map_err(errno)?;
        self.watch(Subject::Srq(srqn), wish.user_handle, None, event_file);
        let max_wr = entries as u32 - 1;
        let handle = state.insert(What::Srq { srqn, max_wr, max_sge: wish.max_sge }, uses);
        Ok((handle, max_wr, srqn, Response::new(8).u32(0, srqn).done()))
    }
}
