//! Ports and their GIDs.

use crate::uverbs::types::{Gid, Lid, LinkLayer, Mtu, PortNum};
use std::fmt;

/// State of a port (`enum ib_port_state`). Unknown numbers are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortState(pub u8);

#[allow(missing_docs, reason = "each constant is the C constant of the same name")]
impl PortState {
    pub const NOP: Self = Self(0);
    pub const DOWN: Self = Self(1);
    pub const INIT: Self = Self(2);
    pub const ARMED: Self = Self(3);
    pub const ACTIVE: Self = Self(4);
    pub const ACTIVE_DEFER: Self = Self(5);
}

impl PortState {
    /// The C name without its prefix, for known values.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NOP => "NOP",
            Self::DOWN => "DOWN",
            Self::INIT => "INIT",
            Self::ARMED => "ARMED",
            Self::ACTIVE => "ACTIVE",
            Self::ACTIVE_DEFER => "ACTIVE_DEFER",
            _ => return None,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "state {}", self.0),
        }
    }
}

impl fmt::Debug for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortState({self})")
    }
}

/// A port's state and limits (`struct ib_uverbs_query_port_resp_ex`), by the kernel's names.
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
