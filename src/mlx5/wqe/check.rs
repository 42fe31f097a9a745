//! The segments and numbers here against an installed `infiniband/mlx5dv.h` (Debian: libibverbs-dev).

use super::*;
use crate::mlx5::cqe;
use crate::uverbs::abi::check::{Checks, Structure, constants, structure};

/// Big-endian fields have no alignment of their own here; in C the structure has that of its largest field.
fn aligned(align: usize, structure: Structure) -> Structure {
    Structure { align, ..structure }
}

#[test]
fn segments_and_numbers() {
    Checks {
        headers: &["infiniband/mlx5dv.h"],
        structures: vec![
            aligned(4, structure!(Ctrl as "struct mlx5_wqe_ctrl_seg" {
                opmod_idx_opcode, qpn_ds, signature, dci_stream: "dci_stream_channel_id", fm_ce_se, imm,
            })),
            aligned(8, structure!(Raddr as "struct mlx5_wqe_raddr_seg" { raddr, rkey, reserved })),
            aligned(8, structure!(Atomic as "struct mlx5_wqe_atomic_seg" { swap_add, compare })),
            aligned(8, structure!(Data as "struct mlx5_wqe_data_seg" { byte_count, lkey, addr })),
            aligned(4, structure!(InlineHead as "struct mlx5_wqe_inl_data_seg" { byte_count })),
            aligned(8, structure!(Av as "struct mlx5_wqe_av" {
                qkey: "key.qkey.qkey", reserved: "key.qkey.reserved", dqp_dct, stat_rate_sl, fl_mlid, rlid, reserved0,
                rmac, tclass, hop_limit, grh_gid_fl, rgid,
            })),
            aligned(8, structure!(UmrCtrl as "struct mlx5_wqe_umr_ctrl_seg" {
                flags, reserved: "rsvd0", klm_octowords, translation_offset, mkey_mask, reserved1: "rsvd1",
            })),
            aligned(8, structure!(Mkey as "struct mlx5_wqe_mkey_context_seg" {
                free, reserved1, access_flags, sf, qpn_mkey, reserved2, flags_pd, start_addr, len, bsf_octword_size,
                reserved3, translations_octword_size, reserved4, log_page_size, reserved5: "reserved",
            })),
            aligned(8, structure!(Klm as "struct mlx5_wqe_umr_klm_seg" { byte_count, mkey, address })),
            aligned(2, structure!(SrqNext as "struct mlx5_wqe_srq_next_seg" {
                reserved0: "rsvd0", next_wqe_index, signature, reserved1: "rsvd1",
            })),
            aligned(8, structure!(cqe::Cqe64 as "struct mlx5_cqe64" {
                reserved0: "rsvd0", wqe_id, reserved4: "rsvd4", ml_path, reserved18: "rsvd20", slid,
                flags_rqpn, hds_ip_ext, l4_hdr_type_etc, vlan_info, srqn_uidx, imm_inval_pkey, app, app_op, app_info,
                byte_cnt, timestamp, sop_drop_qpn, wqe_counter, signature, op_own,
            })),
        ],
        constants: constants!(
            BB_BYTES => "MLX5_SEND_WQE_BB",
            INLINE => "MLX5_INLINE_SEG",
            TERMINATE_LKEY => "MLX5_INVALID_LKEY",
            EXTENDED_AV => "MLX5_EXTENDED_UD_AV",
            MKEY_FREE => "MLX5_WQE_MKEY_CONTEXT_FREE",
            ctrl_flags::INITIATOR_SMALL_FENCE => "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE",
            ctrl_flags::FENCE => "MLX5_WQE_CTRL_FENCE",
            ctrl_flags::CQ_UPDATE => "MLX5_WQE_CTRL_CQ_UPDATE",
            ctrl_flags::SOLICITED => "MLX5_WQE_CTRL_SOLICITED",
            opcode::NOP => "MLX5_OPCODE_NOP",
            opcode::SEND_INVAL => "MLX5_OPCODE_SEND_INVAL",
            opcode::RDMA_WRITE => "MLX5_OPCODE_RDMA_WRITE",
            opcode::RDMA_WRITE_IMM => "MLX5_OPCODE_RDMA_WRITE_IMM",
            opcode::SEND => "MLX5_OPCODE_SEND",
            opcode::SEND_IMM => "MLX5_OPCODE_SEND_IMM",
            opcode::TSO => "MLX5_OPCODE_TSO",
            opcode::RDMA_READ => "MLX5_OPCODE_RDMA_READ",
            opcode::ATOMIC_CS => "MLX5_OPCODE_ATOMIC_CS",
            opcode::ATOMIC_FA => "MLX5_OPCODE_ATOMIC_FA",
            opcode::ATOMIC_MASKED_CS => "MLX5_OPCODE_ATOMIC_MASKED_CS",
            opcode::ATOMIC_MASKED_FA => "MLX5_OPCODE_ATOMIC_MASKED_FA",
            opcode::UMR => "MLX5_OPCODE_UMR",
            umr_flags::INLINE => "MLX5_WQE_UMR_CTRL_FLAG_INLINE",
            umr_flags::CHECK_FREE => "MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE",
            umr_flags::TRANSLATION_OFFSET => "MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET",
            umr_flags::CHECK_QPN => "MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN",
            mkey_mask::LEN => "MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN",
            mkey_mask::START_ADDR => "MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR",
            mkey_mask::MKEY => "MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY",
            mkey_mask::QPN => "MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN",
            mkey_mask::ACCESS_LOCAL_WRITE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE",
            mkey_mask::ACCESS_REMOTE_READ => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ",
            mkey_mask::ACCESS_REMOTE_WRITE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE",
            mkey_mask::ACCESS_ATOMIC => "MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC",
            mkey_mask::FREE => "MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE",
            mkey_access::LOCAL_READ => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_READ",
            mkey_access::LOCAL_WRITE => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE",
            mkey_access::REMOTE_READ => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ",
            mkey_access::REMOTE_WRITE => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE",
            mkey_access::ATOMIC => "MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC",
            cqe::opcode::REQ => "MLX5_CQE_REQ",
            cqe::opcode::RESP_WR_IMM => "MLX5_CQE_RESP_WR_IMM",
            cqe::opcode::RESP_SEND => "MLX5_CQE_RESP_SEND",
            cqe::opcode::RESP_SEND_IMM => "MLX5_CQE_RESP_SEND_IMM",
            cqe::opcode::RESP_SEND_INV => "MLX5_CQE_RESP_SEND_INV",
            cqe::opcode::RESIZE_CQ => "MLX5_CQE_RESIZE_CQ",
            cqe::opcode::NO_PACKET => "MLX5_CQE_NO_PACKET",
            cqe::opcode::SIG_ERR => "MLX5_CQE_SIG_ERR",
            cqe::opcode::REQ_ERR => "MLX5_CQE_REQ_ERR",
            cqe::opcode::RESP_ERR => "MLX5_CQE_RESP_ERR",
            cqe::opcode::INVALID => "MLX5_CQE_INVALID",
            cqe::syndrome::LOCAL_LENGTH => "MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR",
            cqe::syndrome::LOCAL_QP_OP => "MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR",
            cqe::syndrome::LOCAL_PROT => "MLX5_CQE_SYNDROME_LOCAL_PROT_ERR",
            cqe::syndrome::WR_FLUSH => "MLX5_CQE_SYNDROME_WR_FLUSH_ERR",
            cqe::syndrome::MW_BIND => "MLX5_CQE_SYNDROME_MW_BIND_ERR",
            cqe::syndrome::BAD_RESP => "MLX5_CQE_SYNDROME_BAD_RESP_ERR",
            cqe::syndrome::LOCAL_ACCESS => "MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR",
            cqe::syndrome::REMOTE_INVAL_REQ => "MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR",
            cqe::syndrome::REMOTE_ACCESS => "MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR",
            cqe::syndrome::REMOTE_OP => "MLX5_CQE_SYNDROME_REMOTE_OP_ERR",
            cqe::syndrome::TRANSPORT_RETRY_EXC => "MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR",
            cqe::syndrome::RNR_RETRY_EXC => "MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR",
            cqe::syndrome::REMOTE_ABORTED => "MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR",
        ),
    }
    .compare();
}
