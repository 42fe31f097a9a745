//! What devices, ports and queue pairs tell of themselves, and what a queue pair is asked to be. Host order throughout.

use super::named::named;
use super::object::Handle;
use super::types::{Gid, Guid, Lid, LinkLayer, Mtu, PortNum, Qpn};
use std::fmt;

/// A device's limits and abilities (`struct ib_uverbs_ex_query_device_resp`), by the kernel's names.
///
/// Fields that the kernel or the driver does not know are zero.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let attr = context.attr();
/// println!("{} queue pairs of {} work requests, {} entries each", attr.max_qp, attr.max_qp_wr, attr.max_sge);
/// # Ok(()) }
/// ```
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
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// println!("on-demand paging: {:?}", context.attr().odp_caps);
/// # Ok(()) }
/// ```
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
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// println!("receive side scaling: {:?}", context.attr().rss_caps);
/// # Ok(()) }
/// ```
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
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// println!("tag matching: {:?}", context.attr().tm_caps);
/// # Ok(()) }
/// ```
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

named! {
    /// State of a port (`enum ib_port_state`). Unknown numbers are kept.
    ///
    /// ```
    /// assert_eq!(ironverbs::PortState::ACTIVE.to_string(), "ACTIVE");
    /// ```
    PortState else "state" {
        NOP = 0 "NOP",
        DOWN = 1 "DOWN",
        INIT = 2 "INIT",
        ARMED = 3 "ARMED",
        ACTIVE = 4 "ACTIVE",
        ACTIVE_DEFER = 5 "ACTIVE_DEFER",
    }
}

/// A port's state and limits (`struct ib_uverbs_query_port_resp_ex`), by the kernel's names.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let port = context.query_port(ironverbs::PortNum::ONE)?;
/// println!("{}, active MTU {:?}", port.state, port.active_mtu);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Logical state; work needs [`PortState::ACTIVE`].
    pub state: PortState,
    /// Largest MTU, if the kernel's number is one.
    pub max_mtu: Option<Mtu>,
    /// MTU in use, if the kernel's number is one. On RoCE the largest that fits the network device's.
    pub active_mtu: Option<Mtu>,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Abilities (`enum ib_uverbs_query_port_cap_flags`).
    pub port_cap_flags: u32,
    /// More abilities (IB spec, CapabilityMask2).
    pub port_cap_flags2: u16,
    /// Longest message, bytes.
    pub max_msg_sz: u32,
    /// Packets with a bad partition key.
    pub bad_pkey_cntr: u32,
    /// Packets with a bad queue key.
    pub qkey_viol_cntr: u32,
    /// Entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// Local identifier; zero on Ethernet.
    pub lid: Lid,
    /// The subnet manager's local identifier.
    pub sm_lid: Lid,
    /// The subnet manager's service level.
    pub sm_sl: u8,
    /// How many low bits of the LID name paths.
    pub lmc: u8,
    /// Virtual lanes, encoded (IB spec 14.2.5.6).
    pub max_vl_num: u8,
    /// Subnet time-out: 4.096 µs × 2^n.
    pub subnet_timeout: u8,
    /// What the subnet manager initialised.
    pub init_type_reply: u8,
    /// Link width (`enum ib_port_width`): 1, 2, 4, 8 for 1X, 4X, 8X, 12X.
    pub active_width: u8,
    /// Link speed per lane (`enum ib_port_speed`).
    pub active_speed: u32,
    /// Physical state (`enum ib_port_phys_state`); 5 is link up.
    pub phys_state: u8,
    /// What the link speaks.
    pub link_layer: LinkLayer,
    /// Flags (`enum ib_uverbs_query_port_flags`): bit 0, a GRH is required.
    pub flags: u8,
}

/// What packets a GID table entry is for (`enum ib_uverbs_gid_type`). Unknown numbers are kept.
///
/// ```
/// use ironverbs::GidType;
/// assert_eq!(GidType::ROCE_V2.to_string(), "RoCE v2");
/// assert_eq!(GidType(9).to_string(), "type 9"); // unknown numbers are kept
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GidType(pub u32);

impl GidType {
    /// InfiniBand.
    pub const IB: Self = Self(0);
    /// RoCE v1: Ethernet frames, not routable.
    pub const ROCE_V1: Self = Self(1);
    /// RoCE v2: UDP over IP.
    pub const ROCE_V2: Self = Self(2);
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IB => f.write_str("IB"),
            Self::ROCE_V1 => f.write_str("RoCE v1"),
            Self::ROCE_V2 => f.write_str("RoCE v2"),
            Self(raw) => write!(f, "type {raw}"),
        }
    }
}

impl fmt::Debug for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GidType({self})")
    }
}

/// One valid entry of a port's GID table (`struct ib_uverbs_gid_entry`).
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// for entry in context.gid_table()? {
///     println!("port {} index {}: {} ({})", entry.port, entry.index, entry.gid, entry.gid_type);
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the port's table.
    pub index: u32,
    /// The port.
    pub port: PortNum,
    /// What packets it is for.
    pub gid_type: GidType,
    /// Index of the network device it belongs to, where there is one.
    pub netdev_ifindex: Option<u32>,
}

impl GidEntry {
    /// An entry that belongs to no network device.
    ///
    /// ```
    /// use ironverbs::{Gid, GidEntry, GidType, PortNum};
    /// let entry = GidEntry::new(PortNum::ONE, 3, Gid([0; 16]), GidType::ROCE_V2);
    /// assert_eq!(entry.index, 3);
    /// ```
    pub fn new(port: PortNum, index: u32, gid: Gid, gid_type: GidType) -> Self {
        Self { gid, index, port, gid_type, netdev_ifindex: None }
    }
}

named! {
    /// State of a queue pair (`enum ib_qp_state`). Unknown numbers are kept.
    ///
    /// ```
    /// use ironverbs::QpState;
    /// assert_eq!(QpState::RTS.to_string(), "RTS");
    /// assert_eq!(QpState(9).to_string(), "state 9"); // unknown numbers are kept
    /// ```
    #[derive(Default)]
    QpState else "state" {
        RESET = 0 "RESET",
        INIT = 1 "INIT",
        RTR = 2 "RTR",
        RTS = 3 "RTS",
        SQD = 4 "SQD",
        SQE = 5 "SQE",
        ERR = 6 "ERR",
    }
}

/// Capacities of a queue pair, as asked for or as given.
///
/// ```no_run
/// # fn f(qp: &ironverbs::Qp) -> Result<(), ironverbs::Error> {
/// let cap = qp.cap();
/// println!("{} sends, {} bytes inline", cap.max_send_wr, cap.max_inline_data);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Work requests that the send queue holds.
    pub max_send_wr: u32,
    /// Work requests that the receive queue holds.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send work request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive work request.
    pub max_recv_sge: u32,
    /// Bytes that a send work request can carry itself.
    pub max_inline_data: u32,
}

/// What a queue pair is to be.
#[derive(Clone, Copy)]
pub struct CreateQp<'a> {
    pub domain: QpDomain<'a>,
    /// None of the receiving end of XRC.
    pub send_cq: Option<&'a Handle>,
    /// None of either end of XRC.
    pub recv_cq: Option<&'a Handle>,
    /// Where receives come from, instead of a queue of its own.
    pub srq: Option<&'a Handle>,
    /// `enum ib_uverbs_qp_type`.
    pub qp_type: u8,
    /// Every send work request completes, signaled or not.
    pub sq_sig_all: bool,
    pub cap: QpCap,
    /// Comes back in events.
    pub user_handle: u64,
}

/// What holds a queue pair and the objects that it may use.
#[derive(Clone, Copy)]
pub enum QpDomain<'a> {
    /// A protection domain.
    Pd(&'a Handle),
    /// An XRC domain, which the receiving end of XRC has instead.
    Xrcd(&'a Handle),
}

/// A queue pair that was made.
pub struct CreatedQp {
    pub handle: Handle,
    pub qpn: Qpn,
    /// As the kernel returned it. Not every driver returns what its rings really hold.
    pub cap: QpCap,
}

/// Where a queue pair sends (`struct ib_uverbs_qp_dest`).
///
/// ```no_run
/// # fn f(qp: &ironverbs::Qp) -> Result<(), ironverbs::Error> {
/// let to = qp.query()?.dest;
/// println!("sends to {} from GID index {}, hop limit {}", to.dgid, to.sgid_index, to.hop_limit);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID; counts if `is_global`.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The peer's LID; zero on Ethernet.
    pub dlid: Lid,
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Hop limit (time to live).
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Low bits of the own LID.
    pub src_path_bits: u8,
    /// Rate limit (`enum ib_rate`), 0 for none.
    pub static_rate: u8,
    /// Whether packets carry a global route header; always on Ethernet.
    pub is_global: bool,
    /// The port to send from; counts from 1.
    pub port_num: u8,
}

/// Bits that say which fields of [`ModifyQp`] are meant (`enum ib_qp_attr_mask`).
#[allow(missing_docs, reason = "each constant is the C constant of the same name")]
pub mod qp_attr_mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// A change to a queue pair (`struct ib_uverbs_modify_qp`); only the fields that `attr_mask` names count.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModifyQp {
    pub attr_mask: u32,
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    /// `enum ib_mtu`: see [`Mtu::raw`].
    pub path_mtu: u8,
    pub path_mig_state: u8,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub dest: AddressVector,
    pub alt_dest: AddressVector,
}

/// A queue pair's attributes (`struct ib_uverbs_query_qp_resp`), by the kernel's names.
///
/// ```no_run
/// # fn f(qp: &ironverbs::Qp) -> Result<(), ironverbs::Error> {
/// let attr = qp.query()?;
/// println!("{}, next PSN {:#x}", attr.qp_state, attr.sq_psn);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// State.
    pub qp_state: QpState,
    /// State that the caller believed it to be in; drivers return the state itself.
    pub cur_qp_state: QpState,
    /// Path MTU, if the kernel's number is one; none before RTR.
    pub path_mtu: Option<Mtu>,
    /// Path migration state (`enum ib_mig_state`).
    pub path_mig_state: u8,
    /// Queue key.
    pub qkey: u32,
    /// Packet sequence number expected next.
    pub rq_psn: u32,
    /// Packet sequence number sent next.
    pub sq_psn: u32,
    /// The peer's queue pair number.
    pub dest_qp_num: u32,
    /// What a peer may do (`enum ib_uverbs_access_flags`).
    pub qp_access_flags: u32,
    /// Capacities, as the driver tells them.
    pub cap: QpCap,
    /// Where it sends.
    pub dest: AddressVector,
    /// Where it would send after a migration.
    pub alt_dest: AddressVector,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the partition key after a migration.
    pub alt_pkey_index: u16,
    /// Whether the send queue is draining.
    pub sq_draining: bool,
    /// READs and atomics outstanding at once.
    pub max_rd_atomic: u8,
    /// READs and atomics answered at once.
    pub max_dest_rd_atomic: u8,
    /// Receiver-not-ready timer, encoded (IB spec 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// Port.
    pub port_num: u8,
    /// Acknowledgement time-out: 4.096 µs × 2^n, 0 for none.
    pub timeout: u8,
    /// Retries after a time-out.
    pub retry_cnt: u8,
    /// Retries after receiver-not-ready; 7 is without end.
    pub rnr_retry: u8,
    /// Port after a migration.
    pub alt_port_num: u8,
    /// Time-out after a migration.
    pub alt_timeout: u8,
    /// Whether every send work request completes.
    pub sq_sig_all: bool,
}
