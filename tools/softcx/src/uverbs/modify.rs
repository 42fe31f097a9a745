//! Modifying and querying queue pairs: the table of transitions, and the attributes.

use super::caps::LOG2_MAX_RD_ATOMIC;
use super::file::{File, What, errno};
use super::query::mtu_number;
use super::uapi::{Request, Response};
use crate::mkey::Access;
use crate::packet::{Gid, Mac, Network};
use crate::port::{Link, Path, PathGrh};
use crate::qp::{QpAttr, QpState};
use ironverbs::Errno;

/// Bits of the attribute mask (`enum ib_qp_attr_mask`).
mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const ACCESS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG: u32 = 1 << 18;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const KNOWN: u32 = 0x1f_ffff;
}

/// Types of queue pairs.
mod qp_type {
    pub const RC: u8 = 2;
    pub const UC: u8 = 3;
    pub const UD: u8 = 4;
    pub const XRC_INI: u8 = 9;
    pub const XRC_TGT: u8 = 10;
}

/// What a transition needs, and what it may have besides. `None`: there is no such transition.
fn transition(qp_type: u8, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqe};
    use mask::*;
    use qp_type::*;
    let connected = qp_type != UD;
    Some(match (from, to) {
        (_, Reset | Err) => (0, 0),
        (Reset, Init) if connected => (PKEY_INDEX | PORT | ACCESS, 0),
        (Reset, Init) => (PKEY_INDEX | PORT | QKEY, 0),
        (Init, Init) if connected => (0, PKEY_INDEX | PORT | ACCESS),
        (Init, Init) => (0, PKEY_INDEX | PORT | QKEY),
        (Init, Rtr) => match qp_type {
            UD => (0, PKEY_INDEX | QKEY),
            UC | XRC_INI => (AV | PATH_MTU | DEST_QPN | RQ_PSN, ALT_PATH | ACCESS | PKEY_INDEX),
            _ => {
                (AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, ALT_PATH | ACCESS | PKEY_INDEX)
            }
        },
        (Rtr, Rts) => match qp_type {
            UD => (SQ_PSN, CUR_STATE | QKEY),
            UC => (SQ_PSN, CUR_STATE | ALT_PATH | ACCESS | PATH_MIG),
            XRC_INI => {
                (TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC, CUR_STATE | ALT_PATH | ACCESS | PATH_MIG)
            }
            XRC_TGT => (TIMEOUT | SQ_PSN, CUR_STATE | ALT_PATH | ACCESS | MIN_RNR_TIMER | PATH_MIG),
            _ => (
                TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
                CUR_STATE | ALT_PATH | ACCESS | MIN_RNR_TIMER | PATH_MIG,
            ),
        },
        (Rts, Rts) => match qp_type {
            UD => (0, CUR_STATE | QKEY),
            RC | XRC_TGT => (0, CUR_STATE | ACCESS | ALT_PATH | PATH_MIG | MIN_RNR_TIMER),
            _ => (0, CUR_STATE | ACCESS | ALT_PATH | PATH_MIG),
        },
        (Sqe, Rts) if qp_type == UD => (0, CUR_STATE | QKEY),
        (Sqe, Rts) if qp_type == UC => (0, CUR_STATE | ACCESS),
        // To SQD the driver never goes.
        _ => return None,
    })
}

fn state_of(number: u8) -> Result<QpState, Errno> {
    use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].get(usize::from(number)).copied().ok_or(Errno::EINVAL)
}

fn access_of(flags: u32) -> Access {
    let mut access = Access::LOCAL_READ;
    for (bit, right) in
        [(0, Access::LOCAL_WRITE), (1, Access::REMOTE_WRITE), (2, Access::REMOTE_READ), (3, Access::REMOTE_ATOMIC)]
    {
        if flags & 1 << bit != 0 {
            access = access | right;
        }
    }
    access
}

impl File {
    /// MODIFY_QP: `ib_uverbs_modify_qp`, 112 bytes.
    pub(super) fn modify_qp(&self, request: Request<'_>) -> Result<(), Errno> {
        use mask::*;
        let given = request.u32(68);
        let (qpn, qp_type) = match *self.state().object(request.u32(64))? {
            What::Qp { qpn, qp_type, .. } => (qpn, qp_type),
            _ => return Err(Errno::EINVAL),
        };
        if given & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let has = |bit: u32| given & bit != 0;
        let (current, attr) = self.with(|d| d.query_qp(qpn)).ok_or(Errno::EINVAL)?;
        if has(PORT) && !self.has_port(request.u8(104)) {
            return Err(Errno::EINVAL);
        }
        let path =
            if has(AV) { Some(self.path(request, if has(PORT) { request.u8(104) } else { attr.port })?) } else { None };
        let from = if has(CUR_STATE) { state_of(request.u8(97))? } else { current };
        let to = if has(STATE) { state_of(request.u8(96))? } else { from };
        let (needs, allows) = transition(qp_type, from, to).ok_or(Errno::EINVAL)?;
        if from != current || given & needs != needs || given & !(needs | allows | STATE) != 0 {
            return Err(Errno::EINVAL);
        }
        let mtu = request.u8(98);
        let limit = 1 << LOG2_MAX_RD_ATOMIC;
        let port_of = |n: u8| usize::from(n).saturating_sub(1);
        let port = if has(PORT) { request.u8(104) } else { attr.port };
        let pkeys = self.with(|d| d.ports().get(port_of(port)).map_or(0, |p| p.pkeys.len()));
        if has(PATH_MTU) && !(1..=5).contains(&mtu)
            || has(MAX_RD_ATOMIC) && u32::from(request.u8(101)) > limit
            || has(MAX_DEST_RD_ATOMIC) && u32::from(request.u8(102)) > limit
            || has(PKEY_INDEX) && usize::from(request.u16(92)) >= pkeys
            || has(TIMEOUT) && request.u8(105) > 31
            || has(RETRY_CNT) && request.u8(106) > 7
            || has(RNR_RETRY) && request.u8(107) > 7
            || has(MIN_RNR_TIMER) && request.u8(103) > 31
            || has(DEST_QPN) && request.u32(84) > 0xff_ffff
        {
            return Err(Errno::EINVAL);
        }
        const CONTROLLED_QKEY: u32 = 1 << 31;
        if has(QKEY) && request.u32(72) & CONTROLLED_QKEY != 0 && !self.shared.has_net_raw() {
            return Err(Errno::EPERM);
        }
        let change = |a: &mut QpAttr| {
            let mut set = |bit: u32, f: &mut dyn FnMut(&mut QpAttr)| {
                if has(bit) {
                    f(a);
                }
            };
            set(PORT, &mut |a| a.port = request.u8(104));
            set(PKEY_INDEX, &mut |a| a.pkey_index = request.u16(92));
            set(QKEY, &mut |a| a.qkey = request.u32(72));
            set(ACCESS, &mut |a| a.access = access_of(request.u32(88)));
            set(AV, &mut |a| a.path = path.clone().unwrap_or_default());
            set(PATH_MTU, &mut |a| a.mtu_bytes = 128 << mtu);
            set(DEST_QPN, &mut |a| a.dest_qpn = request.u32(84));
            set(RQ_PSN, &mut |a| a.rq_psn = request.u32(76) & 0xff_ffff);
            set(SQ_PSN, &mut |a| a.sq_psn = request.u32(80) & 0xff_ffff);
            set(MAX_RD_ATOMIC, &mut |a| a.max_rd_atomic = request.u8(101).into());
            set(MAX_DEST_RD_ATOMIC, &mut |a| a.max_dest_rd_atomic = request.u8(102).into());
            set(MIN_RNR_TIMER, &mut |a| a.min_rnr_timer = request.u8(103));
            set(TIMEOUT, &mut |a| a.timeout = request.u8(105));
            set(RETRY_CNT, &mut |a| a.retry_count = request.u8(106));
            set(RNR_RETRY, &mut |a| a.rnr_retry = request.u8(107));
        };
        self.with(|d| d.modify_qp(qpn, change, has(STATE).then_some(to))).map_err(errno)
    }

    fn has_port(&self, port: u8) -> bool {
        port != 0 && self.with(|d| usize::from(port) <= d.ports().len())
    }

    /// The path in `ib_uverbs_qp_dest`, the first 32 bytes of the request.
    fn path(&self, request: Request<'_>, qp_port: u8) -> Result<Path, Errno> {
        let port = request.u8(31);
        if port != qp_port || !self.has_port(port) {
            return Err(Errno::EINVAL);
        }
        let global = (request.u8(30) != 0).then(|| PathGrh {
            dgid: request.bytes(0),
            flow_label: request.u32(16) & 0xf_ffff,
            sgid_index: request.u8(24),
            hop_limit: request.u8(25),
            tclass: request.u8(26),
        });
        let dmac = self.resolve(port, global.as_ref())?;
        Ok(Path {
            dlid: request.u16(20),
            sl: request.u8(27),
            src_path_bits: request.u8(28),
            static_rate: request.u8(29),
            dmac,
            udp_sport: 0xc000 | (request.u32(16) & 0x3fff) as u16,
            grh: global,
        })
    }

    /// The destination's Ethernet address, as the kernel's address resolution finds it. InfiniBand has none.
    pub(super) fn resolve(&self, port: u8, global: Option<&PathGrh>) -> Result<Mac, Errno> {
        let port = self.with(|d| d.ports().get(usize::from(port).wrapping_sub(1)).cloned()).ok_or(Errno::EINVAL)?;
        let own = |g: &PathGrh| port.gids.get(usize::from(g.sgid_index)).copied().flatten();
        match (port.link, global) {
            (Link::InfiniBand { .. }, None) => Ok([0; 6]),
            (Link::InfiniBand { .. }, Some(g)) => own(g).map(|_| [0; 6]).ok_or(Errno::EINVAL),
            (Link::Ethernet { .. }, None) => Err(Errno::EINVAL),
            (Link::Ethernet { .. }, Some(g)) => {
                let network = own(g).ok_or(Errno::ENODATA)?.network;
                multicast_mac(&g.dgid, network)
                    .or_else(|| self.shared.fabric.find_mac(&g.dgid, network))
                    .ok_or(Errno::ETIMEDOUT)
            }
        }
    }

    /// QUERY_QP: 128 bytes.
    pub(super) fn query_qp(&self, handle: u32) -> Result<Response, Errno> {
        let (qpn, sig_all, inline) = match *self.state().object(handle)? {
            What::Qp { qpn, sig_all, inline, .. } => (qpn, sig_all, inline),
            _ => return Err(Errno::EINVAL),
        };
        let (state, attr) = self.with(|d| d.query_qp(qpn)).ok_or(Errno::EINVAL)?;
        let mut response = Response::new(128);
        if let Some(g) = &attr.path.grh {
            response = response
                .put(0, &g.dgid)
                .u32(16, g.flow_label)
                .u8(24, g.sgid_index)
                .u8(25, g.hop_limit)
                .u8(26, g.tclass)
                .u8(30, 1);
        }
        Ok(response
            .u16(20, attr.path.dlid)
            .u8(27, attr.path.sl)
            .u8(28, attr.path.src_path_bits)
            .u8(29, attr.path.static_rate)
            .u8(31, attr.port)
            // What the program made itself, the kernel does not know.
            .u32(80, inline)
            .u32(84, attr.qkey)
            .u32(88, attr.rq_psn)
            .u32(92, attr.sq_psn)
            .u32(96, attr.dest_qpn)
            .u32(100, u32::from(attr.access.0))
            .u16(104, attr.pkey_index)
            .u8(108, state as u8)
            .u8(109, state as u8)
            .u8(110, mtu_number(attr.mtu_bytes))
            .u8(113, attr.max_rd_atomic as u8)
            .u8(114, attr.max_dest_rd_atomic as u8)
            .u8(115, attr.min_rnr_timer)
            .u8(116, attr.port)
            .u8(117, attr.timeout)
            .u8(118, attr.retry_count)
            .u8(119, attr.rnr_retry)
            .u8(122, sig_all.into()))
    }
}

/// The Ethernet address of a multicast GID: IPv4's and IPv6's rule.
fn multicast_mac(gid: &Gid, network: Network) -> Option<Mac> {
    match gid {
        [0xff, .., a, b, c, d] if network == Network::RoceV1 || gid[1] != 0xff => Some([0x33, 0x33, *a, *b, *c, *d]),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] if (224..240).contains(a) => {
            Some([0x01, 0x00, 0x5e, b & 0x7f, *c, *d])
        }
        _ => None,
    }
}
