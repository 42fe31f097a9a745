//! Limits and abilities of a device.

use crate::uverbs::types::Guid;

/// A device's limits and abilities (`struct ib_uverbs_ex_query_device_resp`), by the kernel's names.
///
/// Fields that the kernel or the driver does not know are zero.
#[doc(alias = "ibv_device_attr")]
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version, in the driver's own packing.
    pub fw_ver: u64,
    /// Node GUID.
    pub node_guid: Guid,
    /// System image GUID.
    pub sys_image_guid: Guid,
    /// Longest memory region, bytes.
    pub max_mr_size: u64,
    /// Page sizes the device can map, one bit each: bit n stands for 2^n bytes.
    pub page_size_cap: u64,
    /// Vendor, an IEEE OUI.
    pub vendor_id: u32,
    /// Vendor's part number.
    pub vendor_part_id: u32,
    /// Hardware version.
    pub hw_ver: u32,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most outstanding work requests of one queue.
    pub max_qp_wr: u32,
    /// Low 32 bits of `device_cap_flags_ex`.
    pub device_cap_flags: u32,
    /// Most scatter/gather entries of a work request.
    pub max_sge: u32,
    /// Most scatter/gather entries of an RDMA READ.
    pub max_sge_rd: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most READs and atomics that a queue pair answers at once.
    pub max_qp_rd_atom: u32,
    /// The same for end-to-end contexts.
    pub max_ee_rd_atom: u32,
    /// Most READs and atomics that the device answers at once.
    pub max_res_rd_atom: u32,
    /// Most READs and atomics that a queue pair has outstanding.
    pub max_qp_init_rd_atom: u32,
    /// The same for end-to-end contexts.
    pub max_ee_init_rd_atom: u32,
    /// Atomics: 0 none, 1 among this device's own, 2 with every access to the memory (`enum ib_atomic_cap`).
    pub atomic_cap: u32,
    /// Most end-to-end contexts.
    pub max_ee: u32,
    /// Most reliable datagram domains.
    pub max_rdd: u32,
    /// Most memory windows.
    pub max_mw: u32,
    /// Most raw IPv6 queue pairs.
    pub max_raw_ipv6_qp: u32,
    /// Most raw Ethertype queue pairs.
    pub max_raw_ethy_qp: u32,
    /// Most multicast groups.
    pub max_mcast_grp: u32,
    /// Most queue pairs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// Most queue pairs in all multicast groups.
    pub max_total_mcast_qp_attach: u32,
    /// Most address handles.
    pub max_ah: u32,
    /// Most fast memory regions.
    pub max_fmr: u32,
    /// Most maps of a fast memory region between unmaps.
    pub max_map_per_fmr: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most work requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Most scatter/gather entries of a shared receive queue's work request.
    pub max_srq_sge: u32,
    /// Length of the partition key table.
    pub max_pkeys: u16,
    /// Delay of an acknowledgement: 4.096 µs × 2^n (IB spec 9.7.6.1.3).
    pub local_ca_ack_delay: u8,
    /// Number of ports.
    pub phys_port_cnt: u8,
    /// On-demand paging: general, then by transport, as `enum ib_uverbs_odp_...` bits.
    pub odp_caps: OdpCaps,
    /// Which bits of a completion timestamp are valid.
    pub timestamp_mask: u64,
    /// Frequency of the completion timestamps' clock, kHz.
    pub hca_core_clock_khz: u64,
    /// Device abilities (`enum ib_uverbs_device_cap_flags`).
    pub device_cap_flags_ex: u64,
    /// Receive-side scaling.
    pub rss_caps: RssCaps,
    /// Most receive work queues.
    pub max_wq_type_rq: u32,
    /// Raw packet abilities (`enum ib_uverbs_raw_packet_caps`).
    pub raw_packet_caps: u32,
    /// Tag matching.
    pub tm_caps: TmCaps,
    /// Most completions that one event can stand for.
    pub max_cq_moderation_count: u16,
    /// Longest delay of a completion event, µs.
    pub max_cq_moderation_period_us: u16,
    /// Device memory, bytes.
    pub max_dm_size: u64,
}

/// On-demand paging abilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "one word of bits per transport, as the kernel names them")]
#[non_exhaustive]
pub struct OdpCaps {
    pub general: u64,
    pub rc: u32,
    pub uc: u32,
    pub ud: u32,
    pub xrc: u32,
}

/// Receive-side scaling abilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RssCaps {
    /// Queue pair types it works with, one bit each.
    pub supported_qpts: u32,
    /// Most indirection tables.
    pub max_rwq_indirection_tables: u32,
    /// Most entries of one.
    pub max_rwq_indirection_table_size: u32,
}

/// Tag matching abilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TmCaps {
    /// Longest rendezvous header, bytes.
    pub max_rndv_hdr_size: u32,
    /// Most tags.
    pub max_num_tags: u32,
    /// Flags (`enum ib_uverbs_tm_cap_flags`).
    pub flags: u32,
    /// Most outstanding operations.
    pub max_ops: u32,
    /// Most scatter/gather entries.
    pub max_sge: u32,
}
