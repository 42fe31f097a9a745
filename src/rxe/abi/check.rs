//! The structures here against the installed `rdma/rdma_user_rxe.h`.

use super::*;
use crate::uverbs::abi::check::{Checks, Field, Structure, constants, structure};
use std::mem::offset_of;

#[test]
fn structures_and_opcodes() {
    Checks {
        headers: &["rdma/rdma_user_rxe.h", "rdma/ib_user_verbs.h"],
        structures: vec![
            structure!(QueueBuf as "struct rxe_queue_buf" {
                log2_elem_size, index_mask, pad_1, producer_index, pad_2, consumer_index, pad_3,
            }),
            send_wqe(),
            structure!(DmaInfo as "struct rxe_dma_info" { length, resid, cur_sge, num_sge, sge_offset, reserved }),
            structure!(RxeSge as "struct rxe_sge" { addr, length, lkey }),
            structure!(RecvWqe as "struct rxe_recv_wqe" { wr_id, reserved, padding, dma }),
            structure!(MmapInfo as "struct mminfo" { offset, size, pad }),
            structure!(RxeAv as "struct rxe_av" {
                port_num,
                network_type,
                dmac,
                dgid: "grh.dgid",
                flow_label: "grh.flow_label",
                sgid_index: "grh.sgid_index",
                hop_limit: "grh.hop_limit",
                traffic_class: "grh.traffic_class",
                // The last byte of `grh`, which has no name.
                padding: "grh.dgid.raw[23]",
                sgid_addr,
                dgid_addr,
            }),
            structure!(CreateCqResp as "struct rxe_create_cq_resp" { mi }),
            structure!(ResizeCqResp as "struct rxe_resize_cq_resp" { mi }),
            structure!(CreateSrqResp as "struct rxe_create_srq_resp" { mi, srq_num, reserved }),
            structure!(ModifySrqCmd as "struct rxe_modify_srq_cmd" { mmap_info_addr }),
            structure!(CreateQpResp as "struct rxe_create_qp_resp" { rq_mi, sq_mi }),
        ],
        constants: constants!(
            network_type::IPV4 => "RXE_NETWORK_TYPE_IPV4",
            network_type::IPV6 => "RXE_NETWORK_TYPE_IPV6",
            opcode::RDMA_WRITE => "IB_UVERBS_WR_RDMA_WRITE",
            opcode::RDMA_WRITE_WITH_IMM => "IB_UVERBS_WR_RDMA_WRITE_WITH_IMM",
            opcode::SEND => "IB_UVERBS_WR_SEND",
            opcode::SEND_WITH_IMM => "IB_UVERBS_WR_SEND_WITH_IMM",
            opcode::RDMA_READ => "IB_UVERBS_WR_RDMA_READ",
            opcode::ATOMIC_CMP_AND_SWP => "IB_UVERBS_WR_ATOMIC_CMP_AND_SWP",
            opcode::ATOMIC_FETCH_AND_ADD => "IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD",
            opcode::LOCAL_INV => "IB_UVERBS_WR_LOCAL_INV",
            opcode::BIND_MW => "IB_UVERBS_WR_BIND_MW",
            opcode::SEND_WITH_INV => "IB_UVERBS_WR_SEND_WITH_INV",
        ),
    }
    .compare();
}

/// The parts that a send work queue element is written in, put together again.
fn send_wqe() -> Structure {
    let whole = structure!(SendWqe as "struct rxe_send_wqe" { wr, op: "wr.wr", state });
    let parts = [
        (
            offset_of!(SendWqe, wr),
            structure!(SendWr as "" {
                wr_id: "wr.wr_id",
                reserved: "wr.reserved",
                opcode: "wr.opcode",
                send_flags: "wr.send_flags",
                ex: "wr.ex",
            }),
        ),
        (
            offset_of!(SendWqe, op),
            structure!(WrRdma as "" {
                remote_addr: "wr.wr.rdma.remote_addr",
                rkey: "wr.wr.rdma.rkey",
                reserved: "wr.wr.rdma.reserved",
            }),
        ),
        (
            offset_of!(SendWqe, op),
            structure!(WrMw as "" {
                addr: "wr.wr.mw.addr",
                length: "wr.wr.mw.length",
                mr_lkey: "wr.wr.mw.mr_lkey",
                mw_rkey: "wr.wr.mw.mw_rkey",
                rkey: "wr.wr.mw.rkey",
                access: "wr.wr.mw.access",
            }),
        ),
        (
            offset_of!(SendWqe, op),
            structure!(WrAtomic as "" {
                remote_addr: "wr.wr.atomic.remote_addr",
                compare_add: "wr.wr.atomic.compare_add",
                swap: "wr.wr.atomic.swap",
                rkey: "wr.wr.atomic.rkey",
                reserved: "wr.wr.atomic.reserved",
            }),
        ),
        (
            offset_of!(SendWqe, op),
            structure!(WrUd as "" {
                remote_qpn: "wr.wr.ud.remote_qpn",
                remote_qkey: "wr.wr.ud.remote_qkey",
                pkey_index: "wr.wr.ud.pkey_index",
                reserved: "wr.wr.ud.reserved",
                ah_num: "wr.wr.ud.ah_num",
                pad: "wr.wr.ud.pad",
            }),
        ),
        (
            offset_of!(SendWqe, state),
            structure!(SendState as "" {
                status, state, iova, mask, first_psn, last_psn, ack_length, ssn, has_rd_atomic, dma,
            }),
        ),
    ];
    // `wr` and `state` are no members of their own in C; the union is.
    let union = whole.fields.into_iter().filter(|f| f.c_name == "wr.wr");
    let members = parts
        .into_iter()
        .flat_map(|(base, part)| part.fields.into_iter().map(move |f| Field { offset: base + f.offset, ..f }));
    Structure { fields: union.chain(members).collect(), ..whole }
}
