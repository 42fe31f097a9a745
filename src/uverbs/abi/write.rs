//! The commands of the write() interface: their requests, responses and numbers.
//!
//! They are also sent through the ioctl (`INVOKE_WRITE`): the same structures, without [`CmdHdr`].
//! Source: `include/uapi/rdma/ib_user_verbs.h`. Rules: `verify_hdr` in `drivers/infiniband/core/uverbs_main.c`.
//!
//! # Safety argument
//!
//! [`WriteCommand`] is an `unsafe trait` that promises that a request names no memory of the caller. It is implemented
//! by hand for each structure below; the two that do name memory (`RegMr`, and any request's `response`, which is filled
//! in where the command is sent) are set apart.
#![allow(unsafe_code)]

use super::layout;
use super::verbs::{DestroyCqResp, DestroyQpResp, QueryPortResp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bit of a command number that marks the extended form, which has [`ExCmdHdr`] and counts 8-byte words.
#[doc(alias = "IB_USER_VERBS_CMD_FLAG_EXTENDED")]
pub const EXTENDED: u32 = 0x8000_0000;

/// Numbers of commands (`enum ib_uverbs_write_cmds`).
#[doc(alias = "ib_uverbs_write_cmds")]
pub mod command {
    use super::EXTENDED;

    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const REG_MR: u32 = 9;
    pub const DEREG_MR: u32 = 13;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const DESTROY_CQ: u32 = 20;
    pub const REQ_NOTIFY_CQ: u32 = 23;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
    pub const EX_QUERY_DEVICE: u32 = EXTENDED | 1;
}

/// A request that is sent with [`WriteCommand::COMMAND`] and answered with a `Response`.
///
/// A plain command with a response starts with an 8-byte `response`, zero until the command is sent.
///
/// # Safety
///
/// `COMMAND` is the number of the command that `Self` and `Response` are the kernel's structures of, and the request
/// hands no memory to the kernel or the device: neither during the call, other than the response, nor later.
pub unsafe trait WriteCommand: IntoBytes + Immutable {
    /// The command's number, with [`EXTENDED`] where it is extended.
    const COMMAND: u32;
    /// What the kernel answers; `()` for nothing.
    type Response: IntoBytes + FromBytes + Immutable;
}

macro_rules! commands {
    ($($request:ty = $command:ident -> $response:ty;)*) => {
        $(
            // SAFETY: the number and the structures carry the same name in the kernel's header, and none of the
            // request's fields is an address, other than `response`.
            unsafe impl WriteCommand for $request {
                const COMMAND: u32 = command::$command;
                type Response = $response;
            }
        )*
    };
}

commands! {
    GetContext = GET_CONTEXT -> GetContextResp;
    QueryDevice = QUERY_DEVICE -> QueryDeviceResp;
    ExQueryDevice = EX_QUERY_DEVICE -> ExQueryDeviceResp;
    QueryPort = QUERY_PORT -> QueryPortResp;
    AllocPd = ALLOC_PD -> AllocPdResp;
    DeallocPd = DEALLOC_PD -> ();
    DeregMr = DEREG_MR -> ();
    CreateCompChannel = CREATE_COMP_CHANNEL -> CreateCompChannelResp;
    CreateCq = CREATE_CQ -> CreateCqResp;
    DestroyCq = DESTROY_CQ -> DestroyCqResp;
    ReqNotifyCq = REQ_NOTIFY_CQ -> ();
    CreateQp = CREATE_QP -> CreateQpResp;
    QueryQp = QUERY_QP -> QueryQpResp;
    ModifyQp = MODIFY_QP -> ();
    DestroyQp = DESTROY_QP -> DestroyQpResp;
    PostSend = POST_SEND -> PostSendResp;
}

/// Head of a command given to write().
#[doc(alias = "ib_uverbs_cmd_hdr")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CmdHdr {
    pub command: u32,
    /// Plain: 4-byte words of header and request. Extended: 8-byte words of the request alone.
    pub in_words: u16,
    /// Words of the response, of the same size.
    pub out_words: u16,
}
layout!(CmdHdr, 8, in_words @ 4, out_words @ 6);

/// Second head of an extended command given to write().
#[doc(alias = "ib_uverbs_ex_cmd_hdr")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExCmdHdr {
    pub response: u64,
    /// 8-byte words of the driver's request.
    pub provider_in_words: u16,
    /// 8-byte words of the driver's response.
    pub provider_out_words: u16,
    pub cmd_hdr_reserved: u32,
}
layout!(ExCmdHdr, 16, provider_in_words @ 8, provider_out_words @ 10);

/// Opens the file's context.
#[doc(alias = "ib_uverbs_get_context")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetContext {
    pub response: u64,
}
layout!(GetContext, 8);

/// Answer to [`GetContext`].
#[doc(alias = "ib_uverbs_get_context_resp")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetContextResp {
    /// A new file descriptor.
    pub async_fd: u32,
    pub num_comp_vectors: u32,
}
layout!(GetContextResp, 8, num_comp_vectors @ 4);

/// Asks for the device's limits.
#[doc(alias = "ib_uverbs_query_device")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDevice {
    pub response: u64,
}
layout!(QueryDevice, 8);

/// Answer to [`QueryDevice`], and the start of the answer to [`ExQueryDevice`].
#[doc(alias = "ib_uverbs_query_device_resp")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDeviceResp {
    pub fw_ver: u64,
    /// Big endian.
    pub node_guid: u64,
    /// Big endian.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    pub atomic_cap: u32,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    pub reserved: [u8; 4],
}
layout!(QueryDeviceResp, 176, max_qp_wr @ 56, max_cqe @ 76, atomic_cap @ 108, phys_port_cnt @ 171);

/// Asks for the device's limits and later additions.
#[doc(alias = "ib_uverbs_ex_query_device")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExQueryDevice {
    /// Must be zero.
    pub comp_mask: u32,
    pub reserved: u32,
}
layout!(ExQueryDevice, 8);

/// On-demand paging: what each transport can do.
#[doc(alias = "ib_uverbs_odp_caps")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OdpCaps {
    pub general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
    pub reserved: u32,
}
layout!(OdpCaps, 24, rc_odp_caps @ 8);

/// Receive-side scaling.
#[doc(alias = "ib_uverbs_rss_caps")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RssCaps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub reserved: u32,
}
layout!(RssCaps, 16);

/// Tag matching.
#[doc(alias = "ib_uverbs_tm_caps")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TmCaps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
    pub reserved: u32,
}
layout!(TmCaps, 24);

/// Moderation of completion events.
#[doc(alias = "ib_uverbs_cq_moderation_caps")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqModerationCaps {
    pub max_cq_moderation_count: u16,
    pub max_cq_moderation_period: u16,
    pub reserved: u32,
}
layout!(CqModerationCaps, 8);

/// Answer to [`ExQueryDevice`]. Bytes beyond `response_length` were not written.
#[doc(alias = "ib_uverbs_ex_query_device_resp")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExQueryDeviceResp {
    pub base: QueryDeviceResp,
    pub comp_mask: u32,
    pub response_length: u32,
    pub odp_caps: OdpCaps,
    pub timestamp_mask: u64,
    /// kHz.
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub rss_caps: RssCaps,
    pub max_wq_type_rq: u32,
    pub raw_packet_caps: u32,
    pub tm_caps: TmCaps,
    pub cq_moderation_caps: CqModerationCaps,
    pub max_dm_size: u64,
    pub xrc_odp_caps: u32,
    pub reserved: u32,
}
layout!(ExQueryDeviceResp, 304, response_length @ 180, odp_caps @ 184, device_cap_flags_ex @ 224, tm_caps @ 256);

/// Asks for a port's state.
#[doc(alias = "ib_uverbs_query_port")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPort {
    pub response: u64,
    pub port_num: u8,
    pub reserved: [u8; 7],
}
layout!(QueryPort, 16, port_num @ 8);

/// Makes a protection domain.
#[doc(alias = "ib_uverbs_alloc_pd")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocPd {
    pub response: u64,
}
layout!(AllocPd, 8);

/// Answer to [`AllocPd`].
#[doc(alias = "ib_uverbs_alloc_pd_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocPdResp {
    pub pd_handle: u32,
}
layout!(AllocPdResp, 4);

/// Destroys a protection domain.
#[doc(alias = "ib_uverbs_dealloc_pd")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeallocPd {
    pub pd_handle: u32,
}
layout!(DeallocPd, 4);

/// Registers memory. No [`WriteCommand`]: it hands memory to the device.
#[doc(alias = "ib_uverbs_reg_mr")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegMr {
    pub response: u64,
    pub start: u64,
    pub length: u64,
    /// The address by which work requests name the first byte.
    pub hca_va: u64,
    pub pd_handle: u32,
    pub access_flags: u32,
}
layout!(RegMr, 40, start @ 8, hca_va @ 24, pd_handle @ 32, access_flags @ 36);

/// Answer to [`RegMr`].
#[doc(alias = "ib_uverbs_reg_mr_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegMrResp {
    pub mr_handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(RegMrResp, 12, lkey @ 4, rkey @ 8);

/// Deregisters memory.
#[doc(alias = "ib_uverbs_dereg_mr")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeregMr {
    pub mr_handle: u32,
}
layout!(DeregMr, 4);

/// Makes a completion channel.
#[doc(alias = "ib_uverbs_create_comp_channel")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCompChannel {
    pub response: u64,
}
layout!(CreateCompChannel, 8);

/// Answer to [`CreateCompChannel`].
#[doc(alias = "ib_uverbs_create_comp_channel_resp")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCompChannelResp {
    /// A new file descriptor.
    pub fd: u32,
}
layout!(CreateCompChannelResp, 4);

/// Makes a completion queue.
#[doc(alias = "ib_uverbs_create_cq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCq {
    pub response: u64,
    pub user_handle: u64,
    pub cqe: u32,
    pub comp_vector: u32,
    /// File descriptor, or -1.
    pub comp_channel: i32,
    pub reserved: u32,
}
layout!(CreateCq, 32, user_handle @ 8, cqe @ 16, comp_channel @ 24);

/// Answer to [`CreateCq`].
#[doc(alias = "ib_uverbs_create_cq_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCqResp {
    pub cq_handle: u32,
    pub cqe: u32,
}
layout!(CreateCqResp, 8, cqe @ 4);

/// Destroys a completion queue.
#[doc(alias = "ib_uverbs_destroy_cq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCq {
    pub response: u64,
    pub cq_handle: u32,
    pub reserved: u32,
}
layout!(DestroyCq, 16, cq_handle @ 8);

/// Arms a completion queue.
#[doc(alias = "ib_uverbs_req_notify_cq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReqNotifyCq {
    pub cq_handle: u32,
    pub solicited_only: u32,
}
layout!(ReqNotifyCq, 8, solicited_only @ 4);

/// Makes a queue pair.
#[doc(alias = "ib_uverbs_create_qp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQp {
    pub response: u64,
    pub user_handle: u64,
    pub pd_handle: u32,
    pub send_cq_handle: u32,
    pub recv_cq_handle: u32,
    pub srq_handle: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub sq_sig_all: u8,
    pub qp_type: u8,
    pub is_srq: u8,
    pub reserved: u8,
}
layout!(CreateQp, 56, pd_handle @ 16, max_send_wr @ 32, sq_sig_all @ 52, qp_type @ 53);

/// Answer to [`CreateQp`].
#[doc(alias = "ib_uverbs_create_qp_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQpResp {
    pub qp_handle: u32,
    pub qpn: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub reserved: u32,
}
layout!(CreateQpResp, 32, qpn @ 4, max_inline_data @ 24);

/// Address vector of a queue pair.
#[doc(alias = "ib_uverbs_qp_dest")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpDest {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub dlid: u16,
    pub reserved: u16,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(QpDest, 32, flow_label @ 16, dlid @ 20, sgid_index @ 24, is_global @ 30, port_num @ 31);

/// Asks for a queue pair's attributes.
#[doc(alias = "ib_uverbs_query_qp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryQp {
    pub response: u64,
    pub qp_handle: u32,
    pub attr_mask: u32,
}
layout!(QueryQp, 16, qp_handle @ 8, attr_mask @ 12);

/// Answer to [`QueryQp`].
#[doc(alias = "ib_uverbs_query_qp_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryQpResp {
    pub dest: QpDest,
    pub alt_dest: QpDest,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub qp_state: u8,
    pub cur_qp_state: u8,
    pub path_mtu: u8,
    pub path_mig_state: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub sq_sig_all: u8,
    pub reserved: [u8; 5],
}
layout!(QueryQpResp, 128, max_send_wr @ 64, rq_psn @ 88, qp_state @ 108, port_num @ 116, sq_sig_all @ 122);

/// Changes a queue pair's attributes.
#[doc(alias = "ib_uverbs_modify_qp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQp {
    pub dest: QpDest,
    pub alt_dest: QpDest,
    pub qp_handle: u32,
    /// Which of the following are meant (`enum ib_qp_attr_mask`).
    pub attr_mask: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub qp_state: u8,
    pub cur_qp_state: u8,
    pub path_mtu: u8,
    pub path_mig_state: u8,
    pub en_sqd_async_notify: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 2],
}
layout!(ModifyQp, 112, qp_handle @ 64, attr_mask @ 68, rq_psn @ 76, dest_qp_num @ 84, qp_state @ 96, timeout @ 105);

/// Destroys a queue pair.
#[doc(alias = "ib_uverbs_destroy_qp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQp {
    pub response: u64,
    pub qp_handle: u32,
    pub reserved: u32,
}
layout!(DestroyQp, 16, qp_handle @ 8);

/// Makes the kernel look at a send queue that it shares with user space (rxe): a doorbell, with `wr_count` zero.
#[doc(alias = "ib_uverbs_post_send")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PostSend {
    pub response: u64,
    pub qp_handle: u32,
    pub wr_count: u32,
    pub sge_count: u32,
    /// Bytes of a `struct ib_uverbs_send_wr`, 56; newer kernels refuse less even where none follows.
    pub wqe_size: u32,
}
layout!(PostSend, 24, qp_handle @ 8, wqe_size @ 20);

/// Bytes of a `struct ib_uverbs_send_wr`.
#[doc(alias = "ib_uverbs_send_wr")]
pub const SEND_WR_BYTES: u32 = 56;

/// Answer to [`PostSend`].
#[doc(alias = "ib_uverbs_post_send_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PostSendResp {
    pub bad_wr: u32,
}
layout!(PostSendResp, 4);
