//! Packets between devices, and how they are addressed.

use crate::wqe::Atomic;

/// A global identifier (GID), network byte order.
pub type Gid = [u8; 16];
/// The first LID of multicast groups.
pub(crate) const MULTICAST_LIDS: u16 = 0xc000;

/// Whether a GID is a group's: one that starts with 0xff, or that an IPv4 group is mapped to.
pub(crate) fn is_multicast(gid: &Gid) -> bool {
    matches!(gid, [0xff, ..] | [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224..=239, ..])
}

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Which network a packet travels on. Devices of one network cannot hear another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the networks'")]
pub enum Network {
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// Where a packet comes from and goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network.
    pub network: Network,
    /// InfiniBand: source LID.
    pub slid: u16,
    /// InfiniBand: destination LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Ethernet: source address.
    pub smac: Mac,
    /// Ethernet: destination address.
    pub dmac: Mac,
    /// Global route: always on Ethernet.
    pub grh: Option<Grh>,
    /// RoCE v2: UDP source port.
    pub udp_sport: u16,
}

/// Global route header (GRH).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub struct Grh {
    pub sgid: Gid,
    pub dgid: Gid,
    pub flow_label: u32,
    pub tclass: u8,
    pub hop_limit: u8,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Addresses.
    pub route: Route,
    /// P_Key: partition of the sender.
    pub pkey: u16,
    /// Transport that it belongs to.
    pub transport: Transport,
    /// Destination queue pair.
    pub dest_qpn: u32,
    /// Source queue pair. Only UD packets of a real network carry it.
    pub src_qpn: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// Answer this packet at once.
    pub ack_req: bool,
    /// Solicited event.
    pub solicited: bool,
    /// UD: Q_Key.
    pub qkey: u32,
    /// XRC: SRQ number.
    pub xrc_srqn: u32,
    /// What it says.
    pub body: Body,
}

/// Transport of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the transports'")]
pub enum Transport {
    Rc,
    Uc,
    Ud,
    Xrc,
}

/// Which part of a message a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first.
    pub first: bool,
    /// The last.
    pub last: bool,
}

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub enum Body {
    Send { part: Part, payload: Vec<u8>, imm: Option<[u8; 4]>, invalidate: Option<u32> },
    Write { part: Part, remote: Remote, payload: Vec<u8>, imm: Option<[u8; 4]> },
    ReadRequest { remote: Remote },
    AtomicRequest { remote: Remote, op: Atomic },
    ReadResponse { payload: Vec<u8> },
    AtomicResponse { old: u64 },
    Ack,
    RnrNak { timer: u8 },
    Nak(Nak),
}

impl Body {
    /// Whether it is an answer.
    pub fn is_response(&self) -> bool {
        !matches!(self, Self::Send { .. } | Self::Write { .. } | Self::ReadRequest { .. } | Self::AtomicRequest { .. })
    }
}

/// A range of the responder's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub struct Remote {
    pub address: u64,
    pub rkey: u32,
    pub len: u32,
}

/// Why a responder refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum Nak {
    SequenceError,
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
}
