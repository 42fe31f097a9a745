//! Creating queue pairs: what the driver checks, and what the device is told.

use super::caps::*;
use super::create::{pinned, record};
use super::file::{File, What, errno};
use super::router::Subject;
use super::uapi::{Request, Response};
use crate::commands::NO_USER_INDEX;
use crate::memory::Buffer;
use crate::qp::{QpKind, QpSpec, SendSpec};
use crate::recv::RecvSpec;
use ironverbs::Errno;

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

impl File {
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
        if let Some(xrcd) = xrcd {
            self.shared.domains().receiving.insert((self.id, qpn), (xrcd, 1));
        }
        self.watch(Subject::Qp(qpn), wish.user_handle, None, event_file);
        let sig_all = wish.flags & SQ_SIG_ALL != 0;
        let what = What::Qp { qpn, qp_type: wish.qp_type as u8, sig_all, inline: wish.cap[4], opened: false };
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
