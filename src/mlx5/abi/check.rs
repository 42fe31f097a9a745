//! The structures here against the installed `rdma/mlx5-abi.h` and its companions.

use super::*;
use crate::uverbs::abi::check::{Checks, constants, structure};

#[test]
fn structures_and_numbers() {
    Checks {
        headers: &["rdma/mlx5-abi.h", "rdma/mlx5_user_ioctl_cmds.h", "rdma/mlx5_user_ioctl_verbs.h"],
        structures: vec![
            structure!(AllocUcontextReq as "struct mlx5_ib_alloc_ucontext_req_v2" {
                total_num_bfregs, num_low_latency_bfregs, flags, comp_mask, max_cqe_version, reserved0, reserved1,
                reserved2, lib_caps,
            }),
            structure!(AllocUcontextResp as "struct mlx5_ib_alloc_ucontext_resp" {
                qp_tab_size, bf_reg_size, tot_bfregs, cache_line_size, max_sq_desc_sz, max_rq_desc_sz, max_send_wqebb,
                max_recv_wr, max_srq_recv_wr, num_ports, flow_action_flags, comp_mask, response_length, cqe_version,
                cmds_supp_uhw, eth_min_inline, clock_info_versions, hca_core_clock_offset, log_uar_size,
                num_uars_per_page, num_dyn_bfregs, dump_fill_mkey,
            }),
            structure!(AllocPdResp as "struct mlx5_ib_alloc_pd_resp" { pdn }),
            structure!(CreateCq as "struct mlx5_ib_create_cq" {
                buf_addr, db_addr, cqe_size, cqe_comp_en, cqe_comp_res_format, flags, uar_page_index, reserved0,
                reserved1,
            }),
            structure!(CreateCqResp as "struct mlx5_ib_create_cq_resp" { cqn, reserved }),
            structure!(ResizeCq as "struct mlx5_ib_resize_cq" { buf_addr, cqe_size, reserved0, reserved1 }),
            structure!(CreateSrq as "struct mlx5_ib_create_srq" {
                buf_addr, db_addr, flags, reserved0, uidx, reserved1,
            }),
            structure!(CreateSrqResp as "struct mlx5_ib_create_srq_resp" { srqn, reserved }),
            structure!(CreateQp as "struct mlx5_ib_create_qp" {
                buf_addr, db_addr, sq_wqe_count, rq_wqe_count, rq_wqe_shift, flags, uidx, bfreg_index, sq_buf_addr,
                ece_options, dci_streams, reserved,
            }),
            structure!(CreateQpResp as "struct mlx5_ib_create_qp_resp" {
                bfreg_index, ece_options, comp_mask, tirn, tisn, rqn, sqn, reserved1, tir_icm_addr,
            }),
            structure!(AllocMw as "struct mlx5_ib_alloc_mw" { comp_mask, num_klms, reserved1, reserved2 }),
            structure!(CreateAhResp as "struct mlx5_ib_create_ah_resp" { response_length, dmac, reserved }),
            structure!(BurstInfo as "struct mlx5_ib_burst_info" { max_burst_sz, typical_pkt_sz, reserved }),
            structure!(ModifyQp as "struct mlx5_ib_modify_qp" { comp_mask, burst_info, ece_options }),
            structure!(ClockInfo as "struct mlx5_ib_clock_info" {
                sign, resv, nsec, cycles, frac, mult, shift, mask, overflow_period,
            }),
        ],
        constants: constants!(
            ABI_VERSION => "MLX5_IB_UVERBS_ABI_VERSION",
            lib_caps::UAR_4K => "MLX5_LIB_CAP_4K_UAR",
            lib_caps::DYN_UAR => "MLX5_LIB_CAP_DYN_UAR",
            ucontext_mask::CORE_CLOCK_OFFSET => "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET",
            ucontext_mask::DUMP_FILL_MKEY => "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY",
            ucontext_mask::ECE => "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE",
            ucontext_mask::SQD2RTS => "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS",
            ucontext_mask::REAL_TIME_TS => "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS",
            ucontext_mask::MKEY_UPDATE_TAG => "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG",
            create_cq_flags::CQE_128B_PAD => "MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD",
            create_cq_flags::UAR_PAGE_INDEX => "MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX",
            create_cq_flags::REAL_TIME_TS => "MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS",
            cqe_comp_format::HASH => "MLX5_IB_CQE_RES_FORMAT_HASH",
            cqe_comp_format::CSUM => "MLX5_IB_CQE_RES_FORMAT_CSUM",
            cqe_comp_format::CSUM_STRIDX => "MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX",
            create_qp_flags::SIGNATURE => "MLX5_QP_FLAG_SIGNATURE",
            create_qp_flags::SCATTER_CQE => "MLX5_QP_FLAG_SCATTER_CQE",
            create_qp_flags::BFREG_INDEX => "MLX5_QP_FLAG_BFREG_INDEX",
            create_qp_flags::ALLOW_SCATTER_CQE => "MLX5_QP_FLAG_ALLOW_SCATTER_CQE",
            create_qp_flags::UAR_PAGE_INDEX => "MLX5_QP_FLAG_UAR_PAGE_INDEX",
            uar::OBJECT => "MLX5_IB_OBJECT_UAR",
            uar::ALLOC.method => "MLX5_IB_METHOD_UAR_OBJ_ALLOC",
            uar::DESTROY.method => "MLX5_IB_METHOD_UAR_OBJ_DESTROY",
            uar::attr::HANDLE => "MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE",
            uar::attr::HANDLE => "MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE",
            uar::attr::TYPE => "MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE",
            uar::attr::MMAP_OFFSET => "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET",
            uar::attr::MMAP_LENGTH => "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH",
            uar::attr::PAGE_ID => "MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID",
            uar::kind::BF => "MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF",
            uar::kind::NC => "MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC",
        ),
    }
    .compare();
}
