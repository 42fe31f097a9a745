//! Queue pairs: what their contexts say, their transitions, and what a query tells.

use super::command::{Command, PAGES, Status, paged_ring};
use crate::bits::context::{ads, qpc, sqc, wq};
use crate::bits::field::Field;
use crate::bits::firmware::{opcode as op, status};
use crate::commands::NO_USER_INDEX;
use crate::device::Device;
use crate::mkey::Access;
use crate::port::{Path, PathGrh};
use crate::qp::{QpAttr, QpKind, QpSpec, QpState, SendSpec};
use crate::recv::RecvSpec;
use std::collections::BTreeMap;

/// Contexts by number, as the driver made the queue pairs.
#[derive(Debug, Default)]
pub(super) struct QueuePairs(BTreeMap<u32, [u8; qpc::BYTES]>);

/// Where a command's queue pair context begins.
const QPC: usize = 0x18;
/// Where it says which optional fields count.
const OPTIONAL: usize = 0x10;
/// Log of a data segment's bytes, which strides are told in, and of a basic block's.
const LOG_SEGMENT: u32 = 4;
const LOG_BB: u32 = 6;

/// Kinds of receive queues.
const RQ_OWN: u64 = 0;
const RQ_SHARED: u64 = 1;

impl QueuePairs {
    pub fn create(&mut self, device: &mut Device, c: &mut Command<'_>) -> Result<(), Status> {
        use qpc::service;
        let context = c.context(QPC, qpc::BYTES)?;
        let service = qpc::SERVICE_TYPE.get32(context);
        let no_sq = qpc::NO_SQ.is_set(context);
        let kind = match service {
            // The driver's own queue pair for memory keys is connected to nobody.
            service::RC | service::REG_UMR => QpKind::Rc,
            service::UC => QpKind::Uc,
            service::UD | service::QP0 | service::QP1 => QpKind::Ud,
            service::XRC if no_sq => QpKind::XrcTgt,
            service::XRC => QpKind::XrcIni,
            _ => return Err(Status(status::BAD_PARAM)),
        };
        let is_xrc = matches!(kind, QpKind::XrcIni | QpKind::XrcTgt);
        let rq_type = qpc::RQ_TYPE.get(context);
        let record = qpc::RECORD.get(context);

        // The receive ring is first, the send ring follows.
        let (log_rq, log_stride) = (qpc::LOG_RQ_SIZE.get32(context), qpc::LOG_RQ_STRIDE.get32(context) + LOG_SEGMENT);
        let rq_bytes = if rq_type == RQ_OWN && !is_xrc { 1_u64 << (log_rq + log_stride) } else { 0 };
        let log_sq = qpc::LOG_SQ_SIZE.get32(context);
        let sq_bytes = if no_sq { 0 } else { 1_u64 << (log_sq + LOG_BB) };
        let (log_page, offset) = (qpc::LOG_PAGE_SIZE.get32(context), qpc::PAGE_OFFSET.get(context));
        let rings = if rq_bytes + sq_bytes == 0 {
            None
        } else {
            Some(paged_ring(c.from(PAGES), log_page, offset, rq_bytes + sq_bytes)?)
        };
        let ring = |at, len| rings.as_ref().filter(|_| len != 0).map(|rings| rings.part(at, len));
        let user_index = qpc::USER_INDEX.get32(context);
        let qpn = device.create_qp(QpSpec {
            kind,
            pd: qpc::PD.get32(context),
            send_cq: qpc::CQN_SEND.get32(context),
            recv_cq: qpc::CQN_RECV.get32(context),
            srq: (rq_type == RQ_SHARED && !is_xrc).then(|| qpc::SRQN.get32(context)),
            xrcd: (kind == QpKind::XrcTgt).then(|| qpc::XRCD.get32(context)),
            send: ring(rq_bytes, sq_bytes).map(|ring| SendSpec { ring, log2_bbs: log_sq, record }),
            recv: ring(0, rq_bytes).map(|ring| RecvSpec {
                ring,
                log2_count: log_rq,
                log2_stride: log_stride,
                record,
                linked: false,
            }),
            uar_page: qpc::UAR_PAGE.get32(context),
            user_index: (user_index != NO_USER_INDEX).then_some(user_index),
            scatter_requester: qpc::CS_REQ.is_set(context),
            scatter_responder: qpc::CS_RES.is_set(context),
            block_multicast_loopback: qpc::BLOCK_LOOPBACK.is_set(context),
        })?;
        let known = match service {
            service::QP0 => device.set_well_known(0, qpn),
            service::QP1 => device.set_well_known(1, qpn),
            service::REG_UMR => device.set_privileged(qpn),
            _ => Ok(()),
        };
        if let Err(refusal) = known {
            device.destroy_qp(qpn)?;
            return Err(refusal.into());
        }
        self.0.insert(qpn, crate::bits::array(context, 0));
        c.put_number(qpn);
        Ok(())
    }

    pub fn query(&self, device: &Device, c: &mut Command<'_>) -> Result<(), Status> {
        const BYTES: usize = 0x1d0;
        let mut context = *self.0.get(&c.number()).ok_or(Status(status::BAD_RESOURCE))?;
        let (state, attr) = device.query_qp(c.number()).ok_or(Status(status::BAD_RESOURCE))?;
        describe(&mut context, state, &attr);
        c.output(QPC, BYTES - QPC)[..qpc::BYTES].copy_from_slice(&context);
        Ok(())
    }

    pub fn destroy(&mut self, device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
        device.destroy_qp(c.number())?;
        self.0.remove(&c.number());
        Ok(())
    }
}

/// Where a command's send queue context begins.
const SQC: usize = 0x20;

/// CREATE_SQ: a send queue by itself is one that is connected to nobody.
pub(super) fn create_sq(device: &mut Device, c: &mut Command<'_>) -> Result<(), Status> {
    let context = c.context(SQC, wq::IN_RMPC + wq::PAGES)?;
    let queue = c.from(SQC + wq::IN_RMPC);
    let log_size = wq::LOG_SIZE.get32(queue);
    let (log_page, offset) = (wq::LOG_PAGE_SIZE.get32(queue), wq::PAGE_OFFSET.get(queue));
    if wq::LOG_STRIDE.get32(queue) != LOG_BB {
        return Err(Status(status::BAD_PARAM));
    }
    let ring = paged_ring(queue.get(wq::PAGES..).unwrap_or_default(), log_page, offset, 1 << (log_size + LOG_BB))?;
    let cqn = sqc::CQN.get32(context);
    let sqn = device.create_qp(QpSpec {
        kind: QpKind::Rc,
        pd: wq::PD.get32(queue),
        send_cq: cqn,
        recv_cq: cqn,
        srq: None,
        xrcd: None,
        send: Some(SendSpec { ring, log2_bbs: log_size, record: wq::RECORD.get(queue) }),
        recv: None,
        uar_page: wq::UAR_PAGE.get32(queue),
        user_index: Some(sqc::USER_INDEX.get32(context)),
        scatter_requester: false,
        scatter_responder: false,
        block_multicast_loopback: false,
    })?;
    c.put_number(sqn);
    Ok(())
}

/// MODIFY_SQ: only the way to ready is gone.
pub(super) fn modify_sq(device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
    if sqc::STATE.get(c.from(SQC)) != sqc::READY {
        return Err(Status(status::BAD_PARAM));
    }
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        device.modify_qp(c.number(), |_| {}, Some(state))?;
    }
    Ok(())
}

/// The states that a transition leads from and to; `None` for from: any.
fn transition(opcode: u16) -> (Option<QpState>, QpState) {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match opcode {
        op::RST2INIT_QP => (Some(Reset), Init),
        op::INIT2INIT_QP => (Some(Init), Init),
        op::INIT2RTR_QP => (Some(Init), Rtr),
        op::RTR2RTS_QP => (Some(Rtr), Rts),
        op::RTS2RTS_QP => (Some(Rts), Rts),
        op::SQERR2RTS_QP => (Some(Sqe), Rts),
        op::SQD_RTS_QP => (Some(Sqd), Rts),
        op::TO_RST_QP => (None, Reset),
        _ => (None, Err),
    }
}

/// A transition: some fields of the context always count, others where the mask says so.
pub(super) fn modify(device: &mut Device, c: &Command<'_>) -> Result<(), Status> {
    let (from, to) = transition(c.opcode);
    let (state, _) = device.query_qp(c.number()).ok_or(Status(status::BAD_RESOURCE))?;
    if from.is_some_and(|from| from != state) {
        return Err(Status(status::BAD_QP_STATE));
    }
    let context = match from {
        Some(_) => c.context(QPC, qpc::BYTES)?,
        None => &[],
    };
    let optional = c.be32(OPTIONAL);
    let change = |attr: &mut QpAttr| match c.opcode {
        op::TO_RST_QP | op::TO_ERR_QP => {}
        op::RST2INIT_QP => {
            set_optional(attr, context, !qpc::optional::RNR_TIMEOUT);
        }
        op::INIT2RTR_QP => {
            set_receiving(attr, context);
            set_optional(attr, context, optional);
        }
        op::RTR2RTS_QP => {
            set_sending(attr, context);
            set_optional(attr, context, optional);
        }
        _ => set_optional(attr, context, optional),
    };
    Ok(device.modify_qp(c.number(), change, Some(to))?)
}

/// What the way to RTR takes.
fn set_receiving(attr: &mut QpAttr, context: &[u8]) {
    attr.path = path(&context[qpc::PRIMARY_PATH..]);
    attr.mtu_bytes = 128 << qpc::MTU.get(context);
    attr.dest_qpn = qpc::REMOTE_QPN.get32(context);
    attr.rq_psn = qpc::NEXT_RECV_PSN.get32(context);
    attr.max_dest_rd_atomic = 1 << qpc::LOG_RRA_MAX.get(context);
    attr.min_rnr_timer = qpc::MIN_RNR_NAK.get(context) as u8;
}

/// What the way to RTS takes.
fn set_sending(attr: &mut QpAttr, context: &[u8]) {
    attr.sq_psn = qpc::NEXT_SEND_PSN.get32(context);
    attr.timeout = ads::ACK_TIMEOUT.get(&context[qpc::PRIMARY_PATH..]) as u8;
    attr.retry_count = qpc::RETRY_COUNT.get(context) as u8;
    attr.rnr_retry = qpc::RNR_RETRY.get(context) as u8;
    attr.max_rd_atomic = 1 << qpc::LOG_SRA_MAX.get(context);
}

fn set_optional(attr: &mut QpAttr, context: &[u8], mask: u32) {
    use qpc::optional as bit;
    let path = &context[qpc::PRIMARY_PATH..];
    for (bit, field, right) in [
        (bit::REMOTE_READ, qpc::REMOTE_READ, Access::REMOTE_READ),
        (bit::REMOTE_WRITE, qpc::REMOTE_WRITE, Access::REMOTE_WRITE),
        (bit::REMOTE_ATOMIC, qpc::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        if mask & bit != 0 {
            let granted = if field.is_set(context) { right.0 } else { 0 };
            attr.access = Access(attr.access.0 & !right.0 | granted);
        }
    }
    if mask & bit::PKEY_INDEX != 0 {
        attr.pkey_index = ads::PKEY_INDEX.get(path) as u16;
    }
    if mask & bit::PRIMARY_PORT != 0 && ads::PORT.is_set(path) {
        attr.port = ads::PORT.get(path) as u8;
    }
    if mask & bit::QKEY != 0 {
        attr.qkey = qpc::QKEY.get32(context);
    }
    if mask & bit::RNR_TIMEOUT != 0 {
        attr.min_rnr_timer = qpc::MIN_RNR_NAK.get(context) as u8;
    }
}

fn path(bytes: &[u8]) -> Path {
    Path {
        dlid: ads::RLID.get(bytes) as u16,
        sl: ads::SL.get(bytes) as u8,
        src_path_bits: ads::MLID.get(bytes) as u8,
        static_rate: ads::STAT_RATE.get(bytes) as u8,
        dmac: crate::bits::array(bytes, ads::RMAC),
        udp_sport: ads::UDP_SPORT.get(bytes) as u16,
        grh: ads::GRH.is_set(bytes).then(|| PathGrh {
            sgid_index: ads::SRC_ADDR_INDEX.get(bytes) as u8,
            dgid: crate::bits::array(bytes, ads::RGID),
            flow_label: ads::FLOW_LABEL.get32(bytes),
            tclass: ads::TCLASS.get(bytes) as u8,
            hop_limit: ads::HOP_LIMIT.get(bytes) as u8,
        }),
    }
}

/// The context as it is now.
fn describe(context: &mut [u8], state: QpState, attr: &QpAttr) {
    let number = match state {
        QpState::Reset => qpc::state::RESET,
        QpState::Init => qpc::state::INIT,
        QpState::Rtr => qpc::state::RTR,
        QpState::Rts => qpc::state::RTS,
        QpState::Sqd => qpc::state::SQ_DRAINED,
        QpState::Sqe => qpc::state::SQ_ERROR,
        QpState::Err => qpc::state::ERROR,
    };
    let log = |n: u32| u64::from(n.max(1).ilog2());
    let flag = |right: Access| u64::from(attr.access.allows(right));
    let fields: [(Field, u64); 17] = [
        (qpc::STATE, number),
        (qpc::PM_STATE, qpc::MIGRATED),
        (qpc::MTU, u64::from(attr.mtu_bytes / 128).max(1).ilog2().into()),
        (qpc::REMOTE_QPN, attr.dest_qpn.into()),
        (qpc::LOG_SRA_MAX, log(attr.max_rd_atomic)),
        (qpc::LOG_RRA_MAX, log(attr.max_dest_rd_atomic)),
        (qpc::RETRY_COUNT, attr.retry_count.into()),
        (qpc::RNR_RETRY, attr.rnr_retry.into()),
        (qpc::NEXT_SEND_PSN, attr.sq_psn.into()),
        (qpc::NEXT_RECV_PSN, attr.rq_psn.into()),
        (qpc::MIN_RNR_NAK, attr.min_rnr_timer.into()),
        (qpc::QKEY, attr.qkey.into()),
        (qpc::REMOTE_READ, flag(Access::REMOTE_READ)),
        (qpc::REMOTE_WRITE, flag(Access::REMOTE_WRITE)),
        (qpc::REMOTE_ATOMIC, flag(Access::REMOTE_ATOMIC)),
        (qpc::HW_SQ_COUNTER, 0),
        (qpc::SW_SQ_COUNTER, 0),
    ];
    for (field, value) in fields {
        field.set(context, value);
    }
    let path = &mut context[qpc::PRIMARY_PATH..];
    let fields: [(Field, u64); 7] = [
        (ads::PKEY_INDEX, attr.pkey_index.into()),
        (ads::PORT, attr.port.into()),
        (ads::ACK_TIMEOUT, attr.timeout.into()),
        (ads::RLID, attr.path.dlid.into()),
        (ads::SL, attr.path.sl.into()),
        (ads::MLID, attr.path.src_path_bits.into()),
        (ads::STAT_RATE, attr.path.static_rate.into()),
    ];
    for (field, value) in fields {
        field.set(path, value);
    }
    if let Some(grh) = &attr.path.grh {
        let fields: [(Field, u64); 5] = [
            (ads::GRH, 1),
            (ads::SRC_ADDR_INDEX, grh.sgid_index.into()),
            (ads::HOP_LIMIT, grh.hop_limit.into()),
            (ads::TCLASS, grh.tclass.into()),
            (ads::FLOW_LABEL, grh.flow_label.into()),
        ];
        for (field, value) in fields {
            field.set(path, value);
        }
        crate::bits::put(path, ads::RGID, &grh.dgid);
    }
}
