//! Requests and responses about objects: protection domains, memory regions, completion queues, queue pairs.

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
#[repr(C, align(8))]
pub struct CreateCqResp {
    pub cq_handle: u32,
    pub cqe: u32,
}
layout!(CreateCqResp, 8, cqe @ 4);

/// Makes a completion queue larger or smaller.
#[doc(alias = "ib_uverbs_resize_cq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCq {
    pub response: u64,
    pub cq_handle: u32,
    pub cqe: u32,
}
layout!(ResizeCq, 16, cq_handle @ 8, cqe @ 12);

/// Answer to [`ResizeCq`].
#[doc(alias = "ib_uverbs_resize_cq_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct ResizeCqResp {
    pub cqe: u32,
    pub reserved: u32,
}
layout!(ResizeCqResp, 8, cqe @ 0);

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

/// Changes when a completion queue's events are raised. Extended.
#[doc(alias = "ib_uverbs_ex_modify_cq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExModifyCq {
    pub cq_handle: u32,
    /// Bit 0 ([`CQ_MODERATE`]): `attr` is meant.
    pub attr_mask: u32,
    pub attr: CqModeration,
    pub reserved: u32,
}
layout!(ExModifyCq, 16, attr_mask @ 4, attr @ 8);

/// Bit of [`ExModifyCq::attr_mask`] (`enum ib_cq_attr_mask`, `drivers/infiniband/core/uverbs_cmd.c`).
pub const CQ_MODERATE: u32 = 1 << 0;

/// How many completions an event may stand for, and how long it may wait.
#[doc(alias = "ib_uverbs_cq_moderation")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqModeration {
    pub cq_count: u16,
    /// Microseconds.
    pub cq_period: u16,
}
layout!(CqModeration, 4, cq_period @ 2);

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
layout!(CreateQp, 56, pd_handle @ 16, srq_handle @ 28, max_send_wr @ 32, sq_sig_all @ 52, qp_type @ 53, is_srq @ 54);

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
#[repr(C, align(8))]
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
#[repr(C, align(8))]
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
