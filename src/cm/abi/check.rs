//! The lists: every structure and constant of `abi`, as the installed headers have them.

use super::*;
use crate::uverbs::abi::check::{Checks, constants, structure};

const HEADERS: &[&str] = &["rdma/rdma_user_cm.h"];

#[test]
fn requests() {
    let structures = vec![
        structure!(CmdHdr as "struct rdma_ucm_cmd_hdr" { cmd, in_bytes: "in", out_bytes: "out" }),
        structure!(CreateId as "struct rdma_ucm_create_id" { uid, response, ps, qp_type, reserved }),
        structure!(DestroyId as "struct rdma_ucm_destroy_id" { response, id, reserved }),
        structure!(LeaveMcast as "struct rdma_ucm_destroy_id" { response, id, reserved }),
        structure!(BindIp as "struct rdma_ucm_bind_ip" { response, addr, id }),
        structure!(Bind as "struct rdma_ucm_bind" { id, addr_size, reserved, addr }),
        structure!(ResolveIp as "struct rdma_ucm_resolve_ip" { src_addr, dst_addr, id, timeout_ms }),
        structure!(ResolveAddr as "struct rdma_ucm_resolve_addr" {
            id, timeout_ms, src_size, dst_size, reserved, src_addr, dst_addr,
        }),
        structure!(ResolveRoute as "struct rdma_ucm_resolve_route" { id, timeout_ms }),
        structure!(QueryAddr as "struct rdma_ucm_query" { response, id, option }),
        structure!(QueryPath as "struct rdma_ucm_query" { response, id, option }),
        structure!(QueryRoute as "struct rdma_ucm_query" { response, id, option }),
        structure!(ConnParam as "struct rdma_ucm_conn_param" {
            qp_num, qkey, private_data, private_data_len, srq, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, valid,
        }),
        structure!(Ece as "struct rdma_ucm_ece" { vendor_id, attr_mod }),
        structure!(Connect as "struct rdma_ucm_connect" { conn_param, id, reserved, ece }),
        structure!(Listen as "struct rdma_ucm_listen" { id, backlog }),
        structure!(Accept as "struct rdma_ucm_accept" { uid, conn_param, id, reserved, ece }),
        structure!(Reject as "struct rdma_ucm_reject" { id, private_data_len, reason, reserved, private_data }),
        structure!(Disconnect as "struct rdma_ucm_disconnect" { id }),
        structure!(InitQpAttr as "struct rdma_ucm_init_qp_attr" { response, id, qp_state }),
        structure!(Notify as "struct rdma_ucm_notify" { id, event }),
        structure!(JoinIpMcast as "struct rdma_ucm_join_ip_mcast" { response, uid, addr, id }),
        structure!(JoinMcast as "struct rdma_ucm_join_mcast" { response, uid, id, addr_size, join_flags, addr }),
        structure!(GetEvent as "struct rdma_ucm_get_event" { response }),
        structure!(SetOption as "struct rdma_ucm_set_option" { optval, id, level, optname, optlen }),
        structure!(MigrateId as "struct rdma_ucm_migrate_id" { response, id, fd }),
        structure!(SockaddrIn6 as "struct sockaddr_in6" {
            family: "sin6_family", port: "sin6_port", flowinfo: "sin6_flowinfo", addr: "sin6_addr",
            scope_id: "sin6_scope_id",
        }),
    ];
    Checks { headers: HEADERS, structures, constants: vec![] }.compare();
}

#[test]
fn responses() {
    let structures = vec![
        structure!(IdResp as "struct rdma_ucm_create_id_resp" { id }),
        structure!(EventsReported as "struct rdma_ucm_destroy_id_resp" { events_reported }),
        structure!(EventsReported as "struct rdma_ucm_migrate_resp" { events_reported }),
        structure!(QueryAddrResp as "struct rdma_ucm_query_addr_resp" {
            node_guid, port_num, reserved, pkey, src_size, dst_size, src_addr, dst_addr, ibdev_index, reserved1,
        }),
        structure!(PathData as "struct ib_path_rec_data" { flags, reserved, path_rec }),
        structure!(PathRec as "struct ib_user_path_rec" {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit, traffic_class, numb_path,
            sl, mtu_selector, rate_selector, rate, packet_life_time_selector, packet_life_time, preference,
        }),
        structure!(QueryRouteResp as "struct rdma_ucm_query_route_resp" {
            node_guid, ib_route, src_addr, dst_addr, num_paths, port_num, reserved, ibdev_index, reserved1,
        }),
        structure!(QpAttr as "struct ib_uverbs_qp_attr" {
            qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
            pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, reserved,
        }),
        structure!(UdParam as "struct rdma_ucm_ud_param" {
            qp_num, qkey, ah_attr, private_data, private_data_len, reserved,
        }),
        structure!(EventResp as "struct rdma_ucm_event_resp" { uid, id, event, status, param, reserved, ece }),
    ];
    Checks { headers: HEADERS, structures, constants: vec![] }.compare();
}

/// Structures of which the header has no twin: an array without a length there, or a type that it only refers to.
#[test]
fn sizes() {
    let sizes = constants!(
        size_of::<Storage>() => "sizeof(struct __kernel_sockaddr_storage)",
        align_of::<Storage>() => "_Alignof(struct __kernel_sockaddr_storage)",
        std::mem::offset_of!(QueryPathResp, path_data) => "offsetof(struct rdma_ucm_query_path_resp, path_data)",
        size_of::<EventParam>() => "sizeof(((struct rdma_ucm_event_resp *)0)->param)",
    );
    Checks { headers: HEADERS, structures: vec![], constants: sizes }.compare();
}

#[test]
fn numbers() {
    let constants = constants!(
        ABI_VERSION => "RDMA_USER_CM_ABI_VERSION",
        MAX_PRIVATE_DATA => "RDMA_MAX_PRIVATE_DATA",
        command::CREATE_ID => "RDMA_USER_CM_CMD_CREATE_ID",
        command::DESTROY_ID => "RDMA_USER_CM_CMD_DESTROY_ID",
        command::BIND_IP => "RDMA_USER_CM_CMD_BIND_IP",
        command::RESOLVE_IP => "RDMA_USER_CM_CMD_RESOLVE_IP",
        command::RESOLVE_ROUTE => "RDMA_USER_CM_CMD_RESOLVE_ROUTE",
        command::QUERY_ROUTE => "RDMA_USER_CM_CMD_QUERY_ROUTE",
        command::CONNECT => "RDMA_USER_CM_CMD_CONNECT",
        command::LISTEN => "RDMA_USER_CM_CMD_LISTEN",
        command::ACCEPT => "RDMA_USER_CM_CMD_ACCEPT",
        command::REJECT => "RDMA_USER_CM_CMD_REJECT",
        command::DISCONNECT => "RDMA_USER_CM_CMD_DISCONNECT",
        command::INIT_QP_ATTR => "RDMA_USER_CM_CMD_INIT_QP_ATTR",
        command::GET_EVENT => "RDMA_USER_CM_CMD_GET_EVENT",
        command::SET_OPTION => "RDMA_USER_CM_CMD_SET_OPTION",
        command::NOTIFY => "RDMA_USER_CM_CMD_NOTIFY",
        command::JOIN_IP_MCAST => "RDMA_USER_CM_CMD_JOIN_IP_MCAST",
        command::LEAVE_MCAST => "RDMA_USER_CM_CMD_LEAVE_MCAST",
        command::MIGRATE_ID => "RDMA_USER_CM_CMD_MIGRATE_ID",
        command::QUERY => "RDMA_USER_CM_CMD_QUERY",
        command::BIND => "RDMA_USER_CM_CMD_BIND",
        command::RESOLVE_ADDR => "RDMA_USER_CM_CMD_RESOLVE_ADDR",
        command::JOIN_MCAST => "RDMA_USER_CM_CMD_JOIN_MCAST",
        port_space::IPOIB => "RDMA_PS_IPOIB",
        port_space::TCP => "RDMA_PS_TCP",
        port_space::UDP => "RDMA_PS_UDP",
        port_space::IB => "RDMA_PS_IB",
        query::ADDR => "RDMA_USER_CM_QUERY_ADDR",
        query::PATH => "RDMA_USER_CM_QUERY_PATH",
        query::GID => "RDMA_USER_CM_QUERY_GID",
        option::ID => "RDMA_OPTION_ID",
        option::IB => "RDMA_OPTION_IB",
        option::ID_TOS => "RDMA_OPTION_ID_TOS",
        option::ID_REUSEADDR => "RDMA_OPTION_ID_REUSEADDR",
        option::ID_AFONLY => "RDMA_OPTION_ID_AFONLY",
        option::ID_ACK_TIMEOUT => "RDMA_OPTION_ID_ACK_TIMEOUT",
        option::IB_PATH => "RDMA_OPTION_IB_PATH",
        path_flags::GMP => "IB_PATH_GMP",
        path_flags::PRIMARY => "IB_PATH_PRIMARY",
        path_flags::OUTBOUND => "IB_PATH_OUTBOUND",
        path_flags::INBOUND_REVERSE => "IB_PATH_INBOUND_REVERSE",
        path_flags::BIDIRECTIONAL => "IB_PATH_BIDIRECTIONAL",
        join::FULLMEMBER => "RDMA_MC_JOIN_FLAG_FULLMEMBER",
        join::SENDONLY_FULLMEMBER => "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER",
    );
    Checks { headers: HEADERS, structures: vec![], constants }.compare();
}

#[test]
fn a_response_goes_where_the_command_has_room_for_it() {
    let mut create = CreateId::default();
    create.respond_to(0x0102_0304_0506_0708);
    assert_eq!(create.as_bytes()[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    let mut disconnect = Disconnect { id: 7 };
    disconnect.respond_to(u64::MAX);
    assert_eq!(disconnect.as_bytes(), 7_u32.to_ne_bytes());
}
