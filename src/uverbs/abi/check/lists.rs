//! The lists: every structure and constant of `abi`.

use super::{Checks, constants, structure};
use crate::uverbs::abi::ioctl::{self, attr, method, object};
use crate::uverbs::abi::verbs::{self, access};
use crate::uverbs::abi::write::{self, command};
use crate::uverbs::attr::GidType;
use crate::uverbs::device::DriverId;

#[test]
fn ioctl_framing() {
    Checks {
        headers: &["rdma/rdma_user_ioctl_cmds.h", "rdma/rdma_user_ioctl.h", "rdma/ib_user_ioctl_cmds.h"],
        structures: vec![
            structure!(ioctl::IoctlHdr as "struct ib_uverbs_ioctl_hdr" {
                length, object_id, method_id, num_attrs, reserved1, driver_id, reserved2,
            }),
            structure!(ioctl::Attr as "struct ib_uverbs_attr" {
                attr_id, len, flags, attr_data, data,
            }),
        ],
        constants: constants!(
            ioctl::RDMA_VERBS_IOCTL => "RDMA_VERBS_IOCTL",
            ioctl::attr_flags::MANDATORY => "UVERBS_ATTR_F_MANDATORY",
        ),
    }
    .compare();
}

#[test]
fn objects_methods_and_attributes() {
    Checks {
        headers: &["rdma/ib_user_ioctl_cmds.h"],
        structures: vec![],
        constants: constants!(
            object::DEVICE => "UVERBS_OBJECT_DEVICE",
            object::PD => "UVERBS_OBJECT_PD",
            object::COMP_CHANNEL => "UVERBS_OBJECT_COMP_CHANNEL",
            object::CQ => "UVERBS_OBJECT_CQ",
            object::QP => "UVERBS_OBJECT_QP",
            object::SRQ => "UVERBS_OBJECT_SRQ",
            object::AH => "UVERBS_OBJECT_AH",
            object::MR => "UVERBS_OBJECT_MR",
            object::MW => "UVERBS_OBJECT_MW",
            object::XRCD => "UVERBS_OBJECT_XRCD",
            object::DM => "UVERBS_OBJECT_DM",
            object::ASYNC_EVENT => "UVERBS_OBJECT_ASYNC_EVENT",
            method::INVOKE_WRITE.method => "UVERBS_METHOD_INVOKE_WRITE",
            method::INFO_HANDLES.method => "UVERBS_METHOD_INFO_HANDLES",
            method::QUERY_PORT.method => "UVERBS_METHOD_QUERY_PORT",
            method::GET_CONTEXT.method => "UVERBS_METHOD_GET_CONTEXT",
            method::QUERY_GID_TABLE.method => "UVERBS_METHOD_QUERY_GID_TABLE",
            method::QUERY_GID_ENTRY.method => "UVERBS_METHOD_QUERY_GID_ENTRY",
            method::PD_DESTROY.method => "UVERBS_METHOD_PD_DESTROY",
            method::CQ_CREATE.method => "UVERBS_METHOD_CQ_CREATE",
            method::CQ_DESTROY.method => "UVERBS_METHOD_CQ_DESTROY",
            method::AH_DESTROY.method => "UVERBS_METHOD_AH_DESTROY",
            method::QP_CREATE.method => "UVERBS_METHOD_QP_CREATE",
            method::QP_DESTROY.method => "UVERBS_METHOD_QP_DESTROY",
            method::SRQ_CREATE.method => "UVERBS_METHOD_SRQ_CREATE",
            method::SRQ_DESTROY.method => "UVERBS_METHOD_SRQ_DESTROY",
            method::MR_DESTROY.method => "UVERBS_METHOD_MR_DESTROY",
            method::ADVISE_MR.method => "UVERBS_METHOD_ADVISE_MR",
            method::REG_DMABUF_MR.method => "UVERBS_METHOD_REG_DMABUF_MR",
            method::MW_DESTROY.method => "UVERBS_METHOD_MW_DESTROY",
            method::XRCD_DESTROY.method => "UVERBS_METHOD_XRCD_DESTROY",
            method::DM_ALLOC.method => "UVERBS_METHOD_DM_ALLOC",
            method::DM_FREE.method => "UVERBS_METHOD_DM_FREE",
            method::ASYNC_EVENT_ALLOC.method => "UVERBS_METHOD_ASYNC_EVENT_ALLOC",
            attr::UHW_IN => "UVERBS_ATTR_UHW_IN",
            attr::UHW_OUT => "UVERBS_ATTR_UHW_OUT",
            attr::invoke_write::CORE_IN => "UVERBS_ATTR_CORE_IN",
            attr::invoke_write::CORE_OUT => "UVERBS_ATTR_CORE_OUT",
            attr::invoke_write::WRITE_CMD => "UVERBS_ATTR_WRITE_CMD",
            attr::info_handles::OBJECT_ID => "UVERBS_ATTR_INFO_OBJECT_ID",
            attr::info_handles::TOTAL_HANDLES => "UVERBS_ATTR_INFO_TOTAL_HANDLES",
            attr::info_handles::HANDLES_LIST => "UVERBS_ATTR_INFO_HANDLES_LIST",
            attr::query_port::PORT_NUM => "UVERBS_ATTR_QUERY_PORT_PORT_NUM",
            attr::query_port::RESP => "UVERBS_ATTR_QUERY_PORT_RESP",
            attr::get_context::NUM_COMP_VECTORS => "UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS",
            attr::get_context::CORE_SUPPORT => "UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT",
            attr::query_gid_table::ENTRY_SIZE => "UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE",
            attr::query_gid_table::FLAGS => "UVERBS_ATTR_QUERY_GID_TABLE_FLAGS",
            attr::query_gid_table::RESP_ENTRIES => "UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES",
            attr::query_gid_table::RESP_NUM_ENTRIES => "UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES",
            attr::query_gid_entry::PORT => "UVERBS_ATTR_QUERY_GID_ENTRY_PORT",
            attr::query_gid_entry::GID_INDEX => "UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX",
            attr::query_gid_entry::FLAGS => "UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS",
            attr::query_gid_entry::RESP_ENTRY => "UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_PD_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_MR_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_AH_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_CQ_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_QP_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_MW_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_FREE_DM_HANDLE",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_XRCD_HANDLE",
            attr::advise_mr::PD_HANDLE => "UVERBS_ATTR_ADVISE_MR_PD_HANDLE",
            attr::advise_mr::ADVICE => "UVERBS_ATTR_ADVISE_MR_ADVICE",
            attr::advise_mr::FLAGS => "UVERBS_ATTR_ADVISE_MR_FLAGS",
            attr::advise_mr::SGE_LIST => "UVERBS_ATTR_ADVISE_MR_SGE_LIST",
            attr::reg_dmabuf_mr::HANDLE => "UVERBS_ATTR_REG_DMABUF_MR_HANDLE",
            attr::reg_dmabuf_mr::PD_HANDLE => "UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE",
            attr::reg_dmabuf_mr::OFFSET => "UVERBS_ATTR_REG_DMABUF_MR_OFFSET",
            attr::reg_dmabuf_mr::LENGTH => "UVERBS_ATTR_REG_DMABUF_MR_LENGTH",
            attr::reg_dmabuf_mr::IOVA => "UVERBS_ATTR_REG_DMABUF_MR_IOVA",
            attr::reg_dmabuf_mr::FD => "UVERBS_ATTR_REG_DMABUF_MR_FD",
            attr::reg_dmabuf_mr::ACCESS_FLAGS => "UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS",
            attr::reg_dmabuf_mr::RESP_LKEY => "UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY",
            attr::reg_dmabuf_mr::RESP_RKEY => "UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY",
            attr::alloc_dm::HANDLE => "UVERBS_ATTR_ALLOC_DM_HANDLE",
            attr::alloc_dm::LENGTH => "UVERBS_ATTR_ALLOC_DM_LENGTH",
            attr::alloc_dm::ALIGNMENT => "UVERBS_ATTR_ALLOC_DM_ALIGNMENT",
            attr::destroy::RESP => "UVERBS_ATTR_DESTROY_CQ_RESP",
            attr::destroy::RESP => "UVERBS_ATTR_DESTROY_QP_RESP",
            attr::destroy::HANDLE => "UVERBS_ATTR_DESTROY_SRQ_HANDLE",
            attr::destroy::RESP => "UVERBS_ATTR_DESTROY_SRQ_RESP",
            attr::create_cq::HANDLE => "UVERBS_ATTR_CREATE_CQ_HANDLE",
            attr::create_cq::CQE => "UVERBS_ATTR_CREATE_CQ_CQE",
            attr::create_cq::USER_HANDLE => "UVERBS_ATTR_CREATE_CQ_USER_HANDLE",
            attr::create_cq::COMP_CHANNEL => "UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL",
            attr::create_cq::COMP_VECTOR => "UVERBS_ATTR_CREATE_CQ_COMP_VECTOR",
            attr::create_cq::FLAGS => "UVERBS_ATTR_CREATE_CQ_FLAGS",
            attr::create_cq::RESP_CQE => "UVERBS_ATTR_CREATE_CQ_RESP_CQE",
            attr::create_qp::HANDLE => "UVERBS_ATTR_CREATE_QP_HANDLE",
            attr::create_qp::XRCD_HANDLE => "UVERBS_ATTR_CREATE_QP_XRCD_HANDLE",
            attr::create_qp::PD_HANDLE => "UVERBS_ATTR_CREATE_QP_PD_HANDLE",
            attr::create_qp::SRQ_HANDLE => "UVERBS_ATTR_CREATE_QP_SRQ_HANDLE",
            attr::create_qp::SEND_CQ_HANDLE => "UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE",
            attr::create_qp::RECV_CQ_HANDLE => "UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE",
            attr::create_qp::USER_HANDLE => "UVERBS_ATTR_CREATE_QP_USER_HANDLE",
            attr::create_qp::CAP => "UVERBS_ATTR_CREATE_QP_CAP",
            attr::create_qp::TYPE => "UVERBS_ATTR_CREATE_QP_TYPE",
            attr::create_qp::FLAGS => "UVERBS_ATTR_CREATE_QP_FLAGS",
            attr::create_qp::RESP_CAP => "UVERBS_ATTR_CREATE_QP_RESP_CAP",
            attr::create_qp::RESP_QP_NUM => "UVERBS_ATTR_CREATE_QP_RESP_QP_NUM",
            attr::create_srq::HANDLE => "UVERBS_ATTR_CREATE_SRQ_HANDLE",
            attr::create_srq::PD_HANDLE => "UVERBS_ATTR_CREATE_SRQ_PD_HANDLE",
            attr::create_srq::XRCD_HANDLE => "UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE",
            attr::create_srq::CQ_HANDLE => "UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE",
            attr::create_srq::USER_HANDLE => "UVERBS_ATTR_CREATE_SRQ_USER_HANDLE",
            attr::create_srq::MAX_WR => "UVERBS_ATTR_CREATE_SRQ_MAX_WR",
            attr::create_srq::MAX_SGE => "UVERBS_ATTR_CREATE_SRQ_MAX_SGE",
            attr::create_srq::LIMIT => "UVERBS_ATTR_CREATE_SRQ_LIMIT",
            attr::create_srq::TYPE => "UVERBS_ATTR_CREATE_SRQ_TYPE",
            attr::create_srq::RESP_MAX_WR => "UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR",
            attr::create_srq::RESP_MAX_SGE => "UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE",
            attr::create_srq::RESP_SRQ_NUM => "UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM",
            attr::async_event_alloc::FD_HANDLE => "UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE",
        ),
    }
    .compare();
}

#[test]
fn shared_structures() {
    Checks {
        headers: &["rdma/ib_user_verbs.h", "rdma/ib_user_ioctl_verbs.h"],
        structures: vec![
            structure!(verbs::QpCap as "struct ib_uverbs_qp_cap" {
                max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
            }),
            structure!(verbs::GidEntry as "struct ib_uverbs_gid_entry" {
                gid, gid_index, port_num, gid_type, netdev_ifindex,
            }),
            structure!(verbs::QueryPortResp as "struct ib_uverbs_query_port_resp" {
                port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, gid_tbl_len, pkey_tbl_len, lid, sm_lid,
                state, max_mtu, active_mtu, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
                active_speed, phys_state, link_layer, flags, reserved,
            }),
            structure!(verbs::QueryPortRespEx as "struct ib_uverbs_query_port_resp_ex" {
                legacy_resp,
                port_cap_flags2,
                // Longer in older headers.
                reserved0: "reserved[0]",
                reserved1: "reserved[1]",
                active_speed_ex since "6.7",
            }),
            structure!(verbs::DestroyCqResp as "struct ib_uverbs_destroy_cq_resp" {
                comp_events_reported, async_events_reported,
            }),
            structure!(verbs::DestroyQpResp as "struct ib_uverbs_destroy_qp_resp" { events_reported }),
            structure!(verbs::DestroySrqResp as "struct ib_uverbs_destroy_srq_resp" { events_reported }),
            structure!(verbs::CompEventDesc as "struct ib_uverbs_comp_event_desc" { cq_handle }),
            structure!(verbs::AsyncEventDesc as "struct ib_uverbs_async_event_desc" {
                element, event_type, reserved,
            }),
            structure!(verbs::Wc as "struct ib_uverbs_wc" {
                wr_id, status, opcode, vendor_err, byte_len, ex, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
                dlid_path_bits, port_num, reserved,
            }),
        ],
        constants: constants!(
            access::LOCAL_WRITE => "IB_UVERBS_ACCESS_LOCAL_WRITE",
            access::REMOTE_WRITE => "IB_UVERBS_ACCESS_REMOTE_WRITE",
            access::REMOTE_READ => "IB_UVERBS_ACCESS_REMOTE_READ",
            access::REMOTE_ATOMIC => "IB_UVERBS_ACCESS_REMOTE_ATOMIC",
            access::MW_BIND => "IB_UVERBS_ACCESS_MW_BIND",
            access::ZERO_BASED => "IB_UVERBS_ACCESS_ZERO_BASED",
            access::ON_DEMAND => "IB_UVERBS_ACCESS_ON_DEMAND",
            access::HUGETLB => "IB_UVERBS_ACCESS_HUGETLB",
            access::RELAXED_ORDERING => "IB_UVERBS_ACCESS_RELAXED_ORDERING",
            access::OPTIONAL_RANGE => "IB_UVERBS_ACCESS_OPTIONAL_RANGE",
            verbs::core_support::OPTIONAL_MR_ACCESS => "IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS",
            verbs::qp_type::RC => "IB_UVERBS_QPT_RC",
            verbs::qp_type::UC => "IB_UVERBS_QPT_UC",
            verbs::qp_type::UD => "IB_UVERBS_QPT_UD",
            verbs::qp_type::XRC_INI => "IB_UVERBS_QPT_XRC_INI",
            verbs::qp_type::XRC_TGT => "IB_UVERBS_QPT_XRC_TGT",
            verbs::srq_type::BASIC => "IB_UVERBS_SRQT_BASIC",
            verbs::device_cap::XRC => "IB_UVERBS_DEVICE_XRC",
            verbs::srq_type::XRC => "IB_UVERBS_SRQT_XRC",
            ioctl::cq_create_flags::TIMESTAMP_COMPLETION => "IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION",
            ioctl::qp_create_flags::SQ_SIG_ALL => "IB_UVERBS_QP_CREATE_SQ_SIG_ALL",
            GidType::IB.0 => "IB_UVERBS_GID_TYPE_IB",
            GidType::ROCE_V1.0 => "IB_UVERBS_GID_TYPE_ROCE_V1",
            GidType::ROCE_V2.0 => "IB_UVERBS_GID_TYPE_ROCE_V2",
            DriverId::MLX5.0 => "RDMA_DRIVER_MLX5",
            DriverId::RXE.0 => "RDMA_DRIVER_RXE",
        ),
    }
    .compare();
}

#[test]
fn write_commands() {
    Checks {
        headers: &["rdma/ib_user_verbs.h"],
        structures: vec![
            structure!(write::CmdHdr as "struct ib_uverbs_cmd_hdr" { command, in_words, out_words }),
            structure!(write::ExCmdHdr as "struct ib_uverbs_ex_cmd_hdr" {
                response, provider_in_words, provider_out_words, cmd_hdr_reserved,
            }),
            structure!(write::GetContext as "struct ib_uverbs_get_context" { response }),
            structure!(write::GetContextResp as "struct ib_uverbs_get_context_resp" {
                async_fd, num_comp_vectors,
            }),
            structure!(write::QueryPort as "struct ib_uverbs_query_port" { response, port_num, reserved }),
            structure!(write::AllocPd as "struct ib_uverbs_alloc_pd" { response }),
            structure!(write::AllocPdResp as "struct ib_uverbs_alloc_pd_resp" { pd_handle }),
            structure!(write::DeallocPd as "struct ib_uverbs_dealloc_pd" { pd_handle }),
            structure!(write::RegMr as "struct ib_uverbs_reg_mr" {
                response, start, length, hca_va, pd_handle, access_flags,
            }),
            structure!(write::RegMrResp as "struct ib_uverbs_reg_mr_resp" { mr_handle, lkey, rkey }),
            structure!(write::DeregMr as "struct ib_uverbs_dereg_mr" { mr_handle }),
            structure!(write::ReregMr as "struct ib_uverbs_rereg_mr" {
                response, mr_handle, flags, start, length, hca_va, pd_handle, access_flags,
            }),
            structure!(write::ReregMrResp as "struct ib_uverbs_rereg_mr_resp" { lkey, rkey }),
            structure!(write::AllocMw as "struct ib_uverbs_alloc_mw" { response, pd_handle, mw_type, reserved }),
            structure!(write::AllocMwResp as "struct ib_uverbs_alloc_mw_resp" { mw_handle, rkey }),
            structure!(write::DeallocMw as "struct ib_uverbs_dealloc_mw" { mw_handle }),
            structure!(write::CreateCompChannel as "struct ib_uverbs_create_comp_channel" { response }),
            structure!(write::CreateCompChannelResp as "struct ib_uverbs_create_comp_channel_resp" { fd }),
            structure!(write::CreateCq as "struct ib_uverbs_create_cq" {
                response, user_handle, cqe, comp_vector, comp_channel, reserved,
            }),
            structure!(write::CreateCqResp as "struct ib_uverbs_create_cq_resp" { cq_handle, cqe }),
            structure!(write::ResizeCq as "struct ib_uverbs_resize_cq" { response, cq_handle, cqe }),
            structure!(write::ResizeCqResp as "struct ib_uverbs_resize_cq_resp" { cqe, reserved }),
            structure!(write::DestroyCq as "struct ib_uverbs_destroy_cq" { response, cq_handle, reserved }),
            structure!(write::ReqNotifyCq as "struct ib_uverbs_req_notify_cq" { cq_handle, solicited_only }),
            structure!(write::ExModifyCq as "struct ib_uverbs_ex_modify_cq" {
                cq_handle, attr_mask, attr, reserved,
            }),
            structure!(write::CqModeration as "struct ib_uverbs_cq_moderation" { cq_count, cq_period }),
            structure!(write::CreateQp as "struct ib_uverbs_create_qp" {
                response, user_handle, pd_handle, send_cq_handle, recv_cq_handle, srq_handle, max_send_wr,
                max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, sq_sig_all, qp_type, is_srq, reserved,
            }),
            structure!(write::CreateQpResp as "struct ib_uverbs_create_qp_resp" {
                qp_handle, qpn, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, reserved,
            }),
            structure!(write::QpDest as "struct ib_uverbs_qp_dest" {
                dgid, flow_label, dlid, reserved, sgid_index, hop_limit, traffic_class, sl, src_path_bits,
                static_rate, is_global, port_num,
            }),
            structure!(write::QueryQp as "struct ib_uverbs_query_qp" { response, qp_handle, attr_mask }),
            structure!(write::QueryQpResp as "struct ib_uverbs_query_qp_resp" {
                dest, alt_dest, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, qkey, rq_psn,
                sq_psn, dest_qp_num, qp_access_flags, pkey_index, alt_pkey_index, qp_state, cur_qp_state, path_mtu,
                path_mig_state, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
                retry_cnt, rnr_retry, alt_port_num, alt_timeout, sq_sig_all, reserved,
            }),
            structure!(write::ModifyQp as "struct ib_uverbs_modify_qp" {
                dest, alt_dest, qp_handle, attr_mask, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags,
                pkey_index, alt_pkey_index, qp_state, cur_qp_state, path_mtu, path_mig_state, en_sqd_async_notify,
                max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
                alt_port_num, alt_timeout, reserved,
            }),
            structure!(write::DestroyQp as "struct ib_uverbs_destroy_qp" { response, qp_handle, reserved }),
            structure!(write::CreateSrq as "struct ib_uverbs_create_srq" {
                response, user_handle, pd_handle, max_wr, max_sge, srq_limit,
            }),
            structure!(write::CreateSrqResp as "struct ib_uverbs_create_srq_resp" {
                srq_handle, max_wr, max_sge, srqn,
            }),
            structure!(write::ModifySrq as "struct ib_uverbs_modify_srq" {
                srq_handle, attr_mask, max_wr, srq_limit,
            }),
            structure!(write::QuerySrq as "struct ib_uverbs_query_srq" { response, srq_handle, reserved }),
            structure!(write::QuerySrqResp as "struct ib_uverbs_query_srq_resp" {
                max_wr, max_sge, srq_limit, reserved,
            }),
            structure!(write::DestroySrq as "struct ib_uverbs_destroy_srq" { response, srq_handle, reserved }),
            structure!(write::OpenXrcd as "struct ib_uverbs_open_xrcd" { response, fd, oflags }),
            structure!(write::OpenXrcdResp as "struct ib_uverbs_open_xrcd_resp" { xrcd_handle }),
            structure!(write::CloseXrcd as "struct ib_uverbs_close_xrcd" { xrcd_handle }),
            structure!(write::CreateXsrq as "struct ib_uverbs_create_xsrq" {
                response, user_handle, srq_type, pd_handle, max_wr, max_sge, srq_limit, max_num_tags, xrcd_handle,
                cq_handle,
            }),
            structure!(write::OpenQp as "struct ib_uverbs_open_qp" {
                response, user_handle, pd_handle, qpn, qp_type, reserved,
            }),
            structure!(write::PostSend as "struct ib_uverbs_post_send" {
                response, qp_handle, wr_count, sge_count, wqe_size,
            }),
            structure!(write::PostSendResp as "struct ib_uverbs_post_send_resp" { bad_wr }),
            structure!(write::GlobalRoute as "struct ib_uverbs_global_route" {
                dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved,
            }),
            structure!(write::AhAttr as "struct ib_uverbs_ah_attr" {
                grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved,
            }),
            structure!(write::CreateAh as "struct ib_uverbs_create_ah" {
                response, user_handle, pd_handle, reserved, attr,
            }),
            structure!(write::CreateAhResp as "struct ib_uverbs_create_ah_resp" { ah_handle }),
            structure!(write::DestroyAh as "struct ib_uverbs_destroy_ah" { ah_handle }),
            structure!(write::AttachMcast as "struct ib_uverbs_attach_mcast" { gid, qp_handle, mlid, reserved }),
            structure!(write::DetachMcast as "struct ib_uverbs_detach_mcast" { gid, qp_handle, mlid, reserved }),
        ],
        constants: constants!(
            write::EXTENDED => "IB_USER_VERBS_CMD_FLAG_EXTENDED",
            write::SEND_WR_BYTES => "sizeof(struct ib_uverbs_send_wr)",
            command::GET_CONTEXT => "IB_USER_VERBS_CMD_GET_CONTEXT",
            command::QUERY_DEVICE => "IB_USER_VERBS_CMD_QUERY_DEVICE",
            command::QUERY_PORT => "IB_USER_VERBS_CMD_QUERY_PORT",
            command::ALLOC_PD => "IB_USER_VERBS_CMD_ALLOC_PD",
            command::DEALLOC_PD => "IB_USER_VERBS_CMD_DEALLOC_PD",
            command::REG_MR => "IB_USER_VERBS_CMD_REG_MR",
            command::DEREG_MR => "IB_USER_VERBS_CMD_DEREG_MR",
            command::REREG_MR => "IB_USER_VERBS_CMD_REREG_MR",
            command::ALLOC_MW => "IB_USER_VERBS_CMD_ALLOC_MW",
            command::DEALLOC_MW => "IB_USER_VERBS_CMD_DEALLOC_MW",
            command::CREATE_COMP_CHANNEL => "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL",
            command::CREATE_CQ => "IB_USER_VERBS_CMD_CREATE_CQ",
            command::RESIZE_CQ => "IB_USER_VERBS_CMD_RESIZE_CQ",
            command::DESTROY_CQ => "IB_USER_VERBS_CMD_DESTROY_CQ",
            command::REQ_NOTIFY_CQ => "IB_USER_VERBS_CMD_REQ_NOTIFY_CQ",
            command::CREATE_QP => "IB_USER_VERBS_CMD_CREATE_QP",
            command::QUERY_QP => "IB_USER_VERBS_CMD_QUERY_QP",
            command::MODIFY_QP => "IB_USER_VERBS_CMD_MODIFY_QP",
            command::DESTROY_QP => "IB_USER_VERBS_CMD_DESTROY_QP",
            command::CREATE_SRQ => "IB_USER_VERBS_CMD_CREATE_SRQ",
            command::OPEN_XRCD => "IB_USER_VERBS_CMD_OPEN_XRCD",
            command::CLOSE_XRCD => "IB_USER_VERBS_CMD_CLOSE_XRCD",
            command::CREATE_XSRQ => "IB_USER_VERBS_CMD_CREATE_XSRQ",
            command::OPEN_QP => "IB_USER_VERBS_CMD_OPEN_QP",
            command::MODIFY_SRQ => "IB_USER_VERBS_CMD_MODIFY_SRQ",
            command::QUERY_SRQ => "IB_USER_VERBS_CMD_QUERY_SRQ",
            command::DESTROY_SRQ => "IB_USER_VERBS_CMD_DESTROY_SRQ",
            command::POST_SEND => "IB_USER_VERBS_CMD_POST_SEND",
            command::CREATE_AH => "IB_USER_VERBS_CMD_CREATE_AH",
            command::DESTROY_AH => "IB_USER_VERBS_CMD_DESTROY_AH",
            command::ATTACH_MCAST => "IB_USER_VERBS_CMD_ATTACH_MCAST",
            command::DETACH_MCAST => "IB_USER_VERBS_CMD_DETACH_MCAST",
            command::EX_MODIFY_CQ => "IB_USER_VERBS_EX_CMD_MODIFY_CQ | IB_USER_VERBS_CMD_FLAG_EXTENDED",
            command::EX_QUERY_DEVICE => "IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED",
        ),
    }
    .compare();
}

#[test]
fn device_limits() {
    Checks {
        headers: &["rdma/ib_user_verbs.h"],
        structures: vec![
            structure!(write::QueryDevice as "struct ib_uverbs_query_device" { response }),
            structure!(write::QueryDeviceResp as "struct ib_uverbs_query_device_resp" {
                fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver,
                max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd,
                max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom,
                atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp,
                max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq,
                max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt, reserved,
            }),
            structure!(write::ExQueryDevice as "struct ib_uverbs_ex_query_device" { comp_mask, reserved }),
            structure!(write::OdpCaps as "struct ib_uverbs_odp_caps" {
                general_caps,
                rc_odp_caps: "per_transport_caps.rc_odp_caps",
                uc_odp_caps: "per_transport_caps.uc_odp_caps",
                ud_odp_caps: "per_transport_caps.ud_odp_caps",
                reserved,
            }),
            structure!(write::RssCaps as "struct ib_uverbs_rss_caps" {
                supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size, reserved,
            }),
            structure!(write::TmCaps as "struct ib_uverbs_tm_caps" {
                max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge, reserved,
            }),
            structure!(write::CqModerationCaps as "struct ib_uverbs_cq_moderation_caps" {
                max_cq_moderation_count, max_cq_moderation_period, reserved,
            }),
            structure!(write::ExQueryDeviceResp as "struct ib_uverbs_ex_query_device_resp" {
                base, comp_mask, response_length, odp_caps, timestamp_mask, hca_core_clock, device_cap_flags_ex,
                rss_caps, max_wq_type_rq, raw_packet_caps, tm_caps, cq_moderation_caps, max_dm_size, xrc_odp_caps,
                reserved,
            }),
        ],
        constants: vec![],
    }
    .compare();
}
