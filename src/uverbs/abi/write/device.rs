//! Requests and responses about the file, the device and its ports.

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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
#[repr(C, align(8))]
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
