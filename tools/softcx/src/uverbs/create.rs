//! Creating completion queues, shared receive queues and queue pairs: what the driver checks, and what the device is told.

use super::caps::*;
use super::file::{File, What, errno};
use super::host_memory::is_mapped;
use super::router::Subject;
use super::uapi::{Call, Request, Response};
use crate::cq::{CqSpec, Moderation};
use crate::memory::Buffer;
use crate::mini::MiniFormat;
use crate::qp::{QpKind, QpSpec, SendSpec};
use crate::recv::{RecvSpec, XrcSrq};
use ironverbs::Errno;
use std::time::Duration;

/// Bytes of a page of the host.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a doorbell record.
const RECORD_BYTES: u64 = 8;
/// User index of a context without user indexes.
const NO_USER_INDEX: u32 = 0xff_ffff;

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
    pub limit: u32,
    pub srq_type: u64,
    pub event_file: Option<i32>,
    pub driver: Request<'a>,
    pub driver_room: Option<usize>,
}

/// What creating a QP needs.
pub(super) struct QpWish<'a> {
    pub user_handle: u64,
    pub pd: Option<u32>,
    pub xrcd: Option<u32>,
    pub srq: Option<u32>,
    pub send_cq: Option<u32>,
    pub recv_cq: Option<u32>,
    /// Send WRs, receive WRs, send SGEs, receive SGEs, inline bytes.
    pub cap: [u32; 5],
    pub qp_type: u64,
    pub flags: u64,
    pub event_file: Option<i32>,
    pub driver: Request<'a>,
    pub driver_room: Option<usize>,
}

/// A ring or record must be memory of the process.
fn pinned(address: u64, len: u64) -> Result<(), Errno> {
    if is_mapped(address, len) { Ok(()) } else { Err(Errno::EFAULT) }
}

fn record(address: u64) -> Result<u64, Errno> {
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
        // No padding, no real-time clock.
        if flags & (PAD | REAL_TIME) != 0 {
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
        if u64::from(wish.limit) >= entries {
            return Err(Errno::EINVAL);
        }
        let event_file = state.async_file(wish.event_file)?;
        let srqn = self.with(|d| d.create_srq(pd, spec, xrc, wish.limit as u16));
        self.watch(Subject::Srq(srqn), wish.user_handle, None, event_file);
        let max_wr = entries as u32 - 1;
        let handle = state.insert(What::Srq { srqn, max_wr, max_sge: wish.max_sge }, uses);
        Ok((handle, max_wr, srqn, Response::new(8).u32(0, srqn).done()))
    }

    /// Answers handle, QP number, and the driver's answer.
    pub(super) fn create_qp(&self, wish: &QpWish<'_>) -> Result<(u32, u32, Vec<u8>), Errno> {
        /// Own bits of `flags` (`enum ib_uverbs_qp_create_flags`).
        const BLOCK_MULTICAST_LOOPBACK: u64 = 1 << 1;
        const SQ_SIG_ALL: u64 = 1 << 12;
        const ANSWER_BYTES: usize = 40;
        let kind = match wish.qp_type {
            2 => QpKind::Rc,
            3 => QpKind::Uc,
            4 => QpKind::Ud,
            9 => QpKind::XrcIni,
            10 => QpKind::XrcTgt,
            // SMI and GSI are the kernel's.
            0 | 1 => return Err(Errno::EINVAL),
            8 => return Err(Errno::EPERM),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if wish.flags & !(BLOCK_MULTICAST_LOOPBACK | SQ_SIG_ALL) != 0 {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state();
        let rings = Rings::check(wish, kind, state.context()?.cqe_version)?;
        if rings.is_some() && wish.driver_room.is_none_or(|room| room < 4) {
            return Err(Errno::EFAULT);
        }
        let mut uses: Vec<u32> = [wish.pd, wish.xrcd, wish.srq].into_iter().flatten().collect();
        let pd = match wish.pd {
            Some(handle) => state.pd(handle)?,
            None if kind == QpKind::XrcTgt => 0,
            None => return Err(Errno::EINVAL),
        };
        let cqn = |handle: Option<u32>, needed: bool| match handle {
            Some(handle) => state.cqn(handle),
            None if needed => Err(Errno::EINVAL),
            None => Ok(0),
        };
        let send_cq = cqn(wish.send_cq, kind != QpKind::XrcTgt)?;
        let recv_cq = cqn(wish.recv_cq, !matches!(kind, QpKind::XrcIni | QpKind::XrcTgt))?;
        uses.extend(wish.send_cq.into_iter().chain(wish.recv_cq));
        let srq = wish
            .srq
            .map(
                |handle| {
                    if let What::Srq { srqn, .. } = state.object(handle)? { Ok(*srqn) } else { Err(Errno::EINVAL) }
                },
            )
            .transpose()?;
        let xrcd = match (kind, wish.xrcd) {
            (QpKind::XrcTgt, Some(handle)) => Some(state.xrcd(handle)?),
            (QpKind::XrcTgt, None) => return Err(Errno::EINVAL),
            _ => None,
        };
        let rings = rings.unwrap_or_default();
        if kind != QpKind::XrcTgt && !state.has_uar(rings.uar_page) {
            return Err(Errno::EINVAL);
        }
        let spec = QpSpec {
            kind,
            pd,
            send_cq,
            recv_cq,
            srq,
            xrcd,
            send: rings.send,
            recv: rings.recv,
            uar_page: rings.uar_page,
            user_index: rings.user_index,
            scatter_requester: rings.scatter && wish.flags & SQ_SIG_ALL != 0 || rings.scatter_always,
            scatter_responder: rings.scatter && matches!(kind, QpKind::Rc | QpKind::Uc),
            block_multicast_loopback: wish.flags & BLOCK_MULTICAST_LOOPBACK != 0,
        };
        let event_file = state.async_file(wish.event_file)?;
        let qpn = self.with(|d| d.create_qp(spec)).map_err(errno)?;
        self.watch(Subject::Qp(qpn), wish.user_handle, None, event_file);
        let what =
            What::Qp { qpn, qp_type: wish.qp_type as u8, sig_all: wish.flags & SQ_SIG_ALL != 0, inline: wish.cap[4] };
        let handle = state.insert(what, uses);
        // The register was the program's own choice.
        let driver = Response::new(ANSWER_BYTES).u32(0, u32::MAX).done();
        Ok((handle, qpn, driver))
    }
}

/// The rings of a queue pair, as `mlx5_ib_create_qp` gives them.
#[derive(Default)]
struct Rings {
    send: Option<SendSpec>,
    recv: Option<RecvSpec>,
    uar_page: u32,
    user_index: Option<u32>,
    scatter: bool,
    scatter_always: bool,
}

impl Rings {
    /// `None` for the receiving end of XRC, which has none.
    fn check(wish: &QpWish<'_>, kind: QpKind, cqe_version: u8) -> Result<Option<Self>, Errno> {
        const SCATTER: u32 = 1 << 1;
        const BFREG_INDEX: u32 = 1 << 3;
        const ALLOW_SCATTER: u32 = 1 << 8;
        const UAR_PAGE_INDEX: u32 = 1 << 10;
        const MIN_REQUEST_BYTES: usize = 48;
        let driver = wish.driver;
        if driver.0.len() < MIN_REQUEST_BYTES || !driver.is_zero_from(54) {
            return Err(Errno::EINVAL);
        }
        if kind == QpKind::XrcTgt {
            return Ok(None);
        }
        let (sq_count, rq_count, rq_shift) = (driver.u32(16), driver.u32(20), driver.u32(24));
        let (flags, user_index) = (driver.u32(28), driver.u32(32));
        if flags & !(SCATTER | ALLOW_SCATTER | UAR_PAGE_INDEX) != 0
            || flags & UAR_PAGE_INDEX == 0
            || flags & BFREG_INDEX != 0
            || user_index > NO_USER_INDEX
            || cqe_version == 0 && user_index != NO_USER_INDEX
        {
            return Err(Errno::EINVAL);
        }
        let [send_wr, recv_wr, send_sge, recv_sge, _] = wish.cap;
        if send_wr > 1 << LOG2_MAX_QP_SIZE || send_sge > u32::from(MAX_SEND_WQE_BYTES) / 16 {
            return Err(Errno::EINVAL);
        }
        let has_send = send_wr != 0;
        let has_recv = recv_wr != 0 && wish.srq.is_none() && kind != QpKind::XrcIni;
        if has_send && !(sq_count.is_power_of_two() && sq_count <= 1 << LOG2_MAX_QP_SIZE)
            || !has_recv && (rq_count, rq_shift) != (0, 0)
            || has_recv
                && (rq_count == 0
                    || rq_count > 1 << LOG2_MAX_QP_SIZE
                    || !(4..=9).contains(&rq_shift)
                    || recv_sge > (1 << rq_shift) / 16)
        {
            return Err(Errno::EINVAL);
        }
        let ring = driver.u64(0);
        if !ring.is_multiple_of(64) {
            return Err(Errno::EINVAL);
        }
        // The kernel takes the power of two below.
        let log2_rq = if has_recv { rq_count.ilog2() } else { 0 };
        let rq_bytes = if has_recv { 1_u64 << log2_rq << rq_shift } else { 0 };
        let sq_bytes = if has_send { u64::from(sq_count) * 64 } else { 0 };
        if rq_bytes + sq_bytes > 0 {
            pinned(ring, rq_bytes + sq_bytes)?;
        }
        let record = record(driver.u64(8))?;
        Ok(Some(Self {
            send: has_send.then(|| SendSpec {
                ring: Buffer::contiguous(ring + rq_bytes, sq_bytes),
                log2_bbs: sq_count.ilog2(),
                record,
            }),
            recv: has_recv.then(|| RecvSpec {
                ring: Buffer::contiguous(ring, rq_bytes),
                log2_count: log2_rq,
                log2_stride: rq_shift,
                record,
                linked: false,
            }),
            uar_page: driver.u32(36),
            user_index: (cqe_version == 1).then_some(user_index),
            scatter: flags & SCATTER != 0,
            scatter_always: flags & ALLOW_SCATTER != 0,
        }))
    }
}
