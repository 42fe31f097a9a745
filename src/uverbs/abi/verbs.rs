//! Structures that both forms of a command share, and event records.
//!
//! Sources: `include/uapi/rdma/ib_user_ioctl_verbs.h` and `include/uapi/rdma/ib_user_verbs.h`.

use super::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Capacities of a queue pair.
#[doc(alias = "ib_uverbs_qp_cap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
layout!(QpCap, 20, max_inline_data @ 16);

/// One entry of a GID table.
#[doc(alias = "ib_uverbs_gid_entry")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GidEntry {
    /// The 16 bytes of the GID, in the order they travel.
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    /// `enum ib_uverbs_gid_type`.
    pub gid_type: u32,
    /// Zero: no network device.
    pub netdev_ifindex: u32,
}
layout!(GidEntry, 32, gid_index @ 16, port_num @ 20, gid_type @ 24, netdev_ifindex @ 28);

/// Answer to QUERY_PORT.
#[doc(alias = "ib_uverbs_query_port_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPortResp {
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub state: u8,
    pub max_mtu: u8,
    pub active_mtu: u8,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub reserved: u8,
}
layout!(QueryPortResp, 40, gid_tbl_len @ 16, lid @ 22, state @ 26, link_layer @ 37);

/// Answer to the native QUERY_PORT. The kernel takes no less than this, even where it fills less.
#[doc(alias = "ib_uverbs_query_port_resp_ex")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPortRespEx {
    pub legacy_resp: QueryPortResp,
    pub port_cap_flags2: u16,
    pub reserved0: u8,
    pub reserved1: u8,
    /// Since Linux 6.7; reserved and zero before.
    pub active_speed_ex: u32,
}
layout!(QueryPortRespEx, 48, port_cap_flags2 @ 40, active_speed_ex @ 44);

/// Counts of events that were ever reported for a completion queue.
#[doc(alias = "ib_uverbs_destroy_cq_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCqResp {
    pub comp_events_reported: u32,
    pub async_events_reported: u32,
}
layout!(DestroyCqResp, 8);

/// Count of events that were ever reported for a queue pair.
#[doc(alias = "ib_uverbs_destroy_qp_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQpResp {
    pub events_reported: u32,
}
layout!(DestroyQpResp, 4);

/// Count of events that were ever reported for a shared receive queue.
#[doc(alias = "ib_uverbs_destroy_srq_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroySrqResp {
    pub events_reported: u32,
}
layout!(DestroySrqResp, 4);

/// Record read from a completion channel.
#[doc(alias = "ib_uverbs_comp_event_desc")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompEventDesc {
    /// The user handle that the completion queue was created with.
    pub cq_handle: u64,
}
layout!(CompEventDesc, 8);

/// Record read from an asynchronous event file.
#[doc(alias = "ib_uverbs_async_event_desc")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AsyncEventDesc {
    /// The user handle of the object, or the port number.
    pub element: u64,
    /// `enum ib_event_type`.
    pub event_type: u32,
    pub reserved: u32,
}
layout!(AsyncEventDesc, 16, event_type @ 8);

/// A completion as the kernel writes it into a queue that it shares with user space (rxe).
#[doc(alias = "ib_uverbs_wc")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data (big endian) or the invalidated key (host order).
    pub ex: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
    pub port_num: u8,
    pub reserved: u8,
}
layout!(Wc, 48, status @ 8, ex @ 24, qp_num @ 28, wc_flags @ 36, port_num @ 46);

/// Access flags of a memory region (`enum ib_uverbs_access_flags`).
pub mod access {
    #[doc(alias = "IB_UVERBS_ACCESS_LOCAL_WRITE")]
    pub const LOCAL_WRITE: u32 = 1 << 0;
    #[doc(alias = "IB_UVERBS_ACCESS_REMOTE_WRITE")]
    pub const REMOTE_WRITE: u32 = 1 << 1;
    #[doc(alias = "IB_UVERBS_ACCESS_REMOTE_READ")]
    pub const REMOTE_READ: u32 = 1 << 2;
    #[doc(alias = "IB_UVERBS_ACCESS_REMOTE_ATOMIC")]
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    #[doc(alias = "IB_UVERBS_ACCESS_MW_BIND")]
    pub const MW_BIND: u32 = 1 << 4;
    #[doc(alias = "IB_UVERBS_ACCESS_ZERO_BASED")]
    pub const ZERO_BASED: u32 = 1 << 5;
    #[doc(alias = "IB_UVERBS_ACCESS_ON_DEMAND")]
    pub const ON_DEMAND: u32 = 1 << 6;
    #[doc(alias = "IB_UVERBS_ACCESS_HUGETLB")]
    pub const HUGETLB: u32 = 1 << 7;
    /// Since Linux 6.2, as is the next one.
    #[doc(alias = "IB_UVERBS_ACCESS_FLUSH_GLOBAL")]
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    #[doc(alias = "IB_UVERBS_ACCESS_FLUSH_PERSISTENT")]
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    #[doc(alias = "IB_UVERBS_ACCESS_RELAXED_ORDERING")]
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// Flags that a kernel may ignore, if it says so (`core_support`); others refuse what they do not know.
    #[doc(alias = "IB_UVERBS_ACCESS_OPTIONAL_RANGE")]
    pub const OPTIONAL_RANGE: u32 = 0x3ff0_0000;

    /// Those for which a kernel pins pages to be written (`ib_access_writable`).
    pub const WRITING: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;

    const NAMES: [(u32, &str); 11] = [
        (LOCAL_WRITE, "LOCAL_WRITE"),
        (REMOTE_WRITE, "REMOTE_WRITE"),
        (REMOTE_READ, "REMOTE_READ"),
        (REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        (MW_BIND, "MW_BIND"),
        (ZERO_BASED, "ZERO_BASED"),
        (ON_DEMAND, "ON_DEMAND"),
        (HUGETLB, "HUGETLB"),
        (FLUSH_GLOBAL, "FLUSH_GLOBAL"),
        (FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
        (RELAXED_ORDERING, "RELAXED_ORDERING"),
    ];

    /// Flags that have no name here.
    pub fn unknown(bits: u32) -> u32 {
        NAMES.iter().fold(bits, |rest, (bit, _)| rest & !bit)
    }

    /// The names of the flags, as `LOCAL_WRITE | REMOTE_READ`.
    pub fn names(bits: u32) -> String {
        let mut names: Vec<_> =
            NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
        if unknown(bits) != 0 {
            names.push(format!("{:#x}", unknown(bits)));
        }
        if names.is_empty() { "LOCAL_READ".to_owned() } else { names.join(" | ") }
    }
}

/// Abilities of a device that decide what may be made and posted (`enum ib_uverbs_device_cap_flags`). All but XRC are there
/// since Linux 6.2.
pub mod device_cap {
    /// Extended reliable connections.
    #[doc(alias = "IB_UVERBS_DEVICE_XRC")]
    pub const XRC: u64 = 1 << 20;
    #[doc(alias = "IB_UVERBS_DEVICE_FLUSH_GLOBAL")]
    pub const FLUSH_GLOBAL: u64 = 1 << 38;
    #[doc(alias = "IB_UVERBS_DEVICE_FLUSH_PERSISTENT")]
    pub const FLUSH_PERSISTENT: u64 = 1 << 39;
    #[doc(alias = "IB_UVERBS_DEVICE_ATOMIC_WRITE")]
    pub const ATOMIC_WRITE: u64 = 1 << 40;
}

/// Bits of what the kernel's core offers beyond its first version (`enum ib_uverbs_core_support`).
pub mod core_support {
    /// Access flags in [`OPTIONAL_RANGE`](super::access::OPTIONAL_RANGE) are ignored where they mean nothing.
    #[doc(alias = "IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS")]
    pub const OPTIONAL_MR_ACCESS: u64 = 1 << 0;
}

/// Transports of a queue pair (`enum ib_uverbs_qp_type`).
pub mod qp_type {
    #[doc(alias = "IB_UVERBS_QPT_RC")]
    pub const RC: u8 = 2;
    #[doc(alias = "IB_UVERBS_QPT_UC")]
    pub const UC: u8 = 3;
    #[doc(alias = "IB_UVERBS_QPT_UD")]
    pub const UD: u8 = 4;
    #[doc(alias = "IB_UVERBS_QPT_XRC_INI")]
    pub const XRC_INI: u8 = 9;
    #[doc(alias = "IB_UVERBS_QPT_XRC_TGT")]
    pub const XRC_TGT: u8 = 10;
}

/// Kinds of shared receive queues (`enum ib_uverbs_srq_type`).
pub mod srq_type {
    #[doc(alias = "IB_UVERBS_SRQT_BASIC")]
    pub const BASIC: u8 = 0;
    #[doc(alias = "IB_UVERBS_SRQT_XRC")]
    pub const XRC: u8 = 1;
}
