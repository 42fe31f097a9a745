//! Which entry of a port's GID table to use.
//!
//! A RoCE port has an entry for each address of its network device and for each RoCE version, and the kernel leaves the
//! choice to the caller. A bad one shows late, as a peer that never answers: RoCE v1 is not routed, a link-local address
//! reaches one network only, and an IPv4 peer is not reached from an IPv6 address.

use crate::uverbs::attr::{GidEntry, GidType};
use crate::uverbs::types::{Gid, GidIndex, LinkLayer};
use std::fmt;
use std::net::Ipv6Addr;

/// What is known of the other side.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// use ironverbs::{AddressFamily, GidWant, PortNum};
/// let choice = context.choose_gid(PortNum::ONE, Some(GidWant::Family(AddressFamily::Ipv6)))?;
/// println!("index {}", choice.index);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidWant {
    /// Addresses of this family are preferred.
    Family(AddressFamily),
    /// The peer's GID. On RoCE, only GIDs of its address family reach it.
    Peer(Gid),
}

/// Address family of a RoCE GID.
///
/// ```
/// use ironverbs::{AddressFamily, Gid};
/// let gid = Gid::from(std::net::IpAddr::from([10, 9, 9, 1]));
/// assert_eq!(AddressFamily::of(gid), AddressFamily::Ipv4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4, as `::ffff:a.b.c.d`.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl AddressFamily {
    /// The family of a RoCE GID.
    pub fn of(gid: Gid) -> Self {
        if gid.to_ipv4().is_some() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

impl fmt::Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// The entry to use, and why.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let choice = context.choose_gid(ironverbs::PortNum::ONE, None)?;
/// println!("{} at index {}, for {:?}", choice.entry.gid, choice.index, choice.reasons);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidChoice {
    /// The entry.
    pub entry: GidEntry,
    /// Its index, as a queue pair takes it.
    pub index: GidIndex,
    /// Whether packets need a global route header: always on RoCE; on InfiniBand only to another subnet.
    pub needs_grh: bool,
    /// What it was preferred for, the weightiest first. Never empty.
    pub reasons: Vec<GidReason>,
    /// Every other entry, in the order given, and why it was not chosen.
    pub losers: Vec<(GidEntry, GidLoss)>,
}

impl fmt::Display for GidChoice {
    /// As `index 3, RoCE v2, 0000:...: a routable address, RoCE v2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {}, {}, {}: ", self.index, self.entry.gid_type, self.entry.gid)?;
        for (i, reason) in self.reasons.iter().enumerate() {
            write!(f, "{}{reason}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Why an entry was chosen.
///
/// ```no_run
/// # fn f(choice: &ironverbs::GidChoice) -> Result<(), ironverbs::Error> {
/// for reason in &choice.reasons {
///     println!("preferred for {reason}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidReason {
    /// No other entry can be used.
    Only,
    /// Its address family is the one that was asked for.
    Family(AddressFamily),
    /// It is routable, others are not.
    Routable,
    /// It is link-local, as the peer's is.
    LinkLocal,
    /// It is in the peer's subnet (InfiniBand).
    SameSubnet,
    /// Its type is preferred to that of others.
    Type(GidType),
    /// It shares more leading bits with the peer's address than others.
    NearPeer,
    /// It comes first among equals.
    First,
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("the only one that can be used"),
            Self::Family(family) => write!(f, "{family} like the other side"),
            Self::Routable => f.write_str("a routable address"),
            Self::LinkLocal => f.write_str("link-local like the peer"),
            Self::SameSubnet => f.write_str("in the peer's subnet"),
            Self::Type(gid_type) => write!(f, "{gid_type}"),
            Self::NearPeer => f.write_str("nearest to the peer's address"),
            Self::First => f.write_str("the lowest index"),
        }
    }
}

/// Why an entry was not chosen.
///
/// ```no_run
/// # fn f(choice: &ironverbs::GidChoice) -> Result<(), ironverbs::Error> {
/// for (entry, why) in &choice.losers {
///     println!("not {}: {why}", entry.gid);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidLoss {
    /// It is zero: an empty slot.
    Empty,
    /// Its index does not fit the eight bits of a queue pair's address.
    IndexTooHigh,
    /// Its address family is not the one that was asked for.
    Family(AddressFamily),
    /// It reaches one network only, and there is one that is routable.
    LinkLocal,
    /// The peer's GID is link-local, and this one is not.
    NotLinkLocal,
    /// It is not in the peer's subnet (InfiniBand).
    OtherSubnet,
    /// There is one of a type that is preferred.
    Type {
        /// Its type.
        has: GidType,
        /// The type preferred.
        preferred: GidType,
    },
    /// Another one shares more leading bits with the peer's address.
    FartherFromPeer,
    /// It equals the chosen one in all that counts, and comes later.
    HigherIndex,
}

impl fmt::Display for GidLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty"),
            Self::IndexTooHigh => f.write_str("its index is above 255, which queue pairs cannot address"),
            Self::Family(family) => write!(f, "{family}, unlike the other side"),
            Self::LinkLocal => f.write_str("not routable"),
            Self::NotLinkLocal => f.write_str("not link-local, unlike the peer"),
            Self::OtherSubnet => f.write_str("not in the peer's subnet"),
            Self::Type { has, preferred } => write!(f, "{has}, where there is {preferred}"),
            Self::FartherFromPeer => f.write_str("farther from the peer's address"),
            Self::HigherIndex => f.write_str("as good as the chosen one, at a higher index"),
        }
    }
}

/// Why no entry can be used.
///
/// ```
/// use ironverbs::{LinkLayer, NoGid, choose_gid};
/// assert_eq!(choose_gid(LinkLayer::Ethernet, &[], None), Err(NoGid::Empty));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoGid {
    /// The table is empty.
    #[error("the port has no GID: is the network interface behind it up, and has it an address?")]
    Empty,
    /// All entries are beyond what a queue pair can address.
    #[error("all GIDs of the port have an index above 255, which queue pairs cannot address")]
    IndexTooHigh,
    /// No entry has the address family of the peer.
    #[error("the peer's GID {peer} is {family}, and the port has none: give its network interface an {family} address")]
    Family {
        /// The peer's GID.
        peer: Gid,
        /// Its address family.
        family: AddressFamily,
    },
}

/// Chooses one of the entries of a port.
///
/// On Ethernet (RoCE): first the address family wanted, then routable addresses (global, unique-local, IPv4) before
/// link-local ones, or the other way round if the peer is link-local; then RoCE v2 before v1, then the address nearest to
/// the peer's (as RFC 6724, section 5, rule 8), then the lowest index. On InfiniBand, where the link-local prefix is the
/// usual one: a GID of the peer's subnet, then the lowest index. Zero entries are never chosen.
pub fn choose_gid(link_layer: LinkLayer, entries: &[GidEntry], want: Option<GidWant>) -> Result<GidChoice, NoGid> {
    let policy = Policy { roce: link_layer == LinkLayer::Ethernet, want };
    let usable = entries.iter().enumerate().filter(|(_, entry)| policy.exclusion(entry).is_none());
    let Some((at, &entry)) = usable.max_by_key(|(_, entry)| policy.merits(entry)) else {
        return Err(policy.no_gid(entries));
    };
    // Excludes nothing any more: a higher index excludes an entry.
    let index = GidIndex(u8::try_from(entry.index).map_err(|_| NoGid::IndexTooHigh)?);

    let others = entries.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, other)| other);
    let losers = others.map(|other| (*other, policy.loss(other, &entry))).collect::<Vec<_>>();
    let reasons = policy.reasons(&entry, &losers);
    Ok(GidChoice { entry, index, needs_grh: policy.needs_grh(entry.gid), reasons, losers })
}

/// The rules for one choice.
struct Policy {
    roce: bool,
    want: Option<GidWant>,
}

impl Policy {
    /// Why an entry cannot be used at all.
    fn exclusion(&self, entry: &GidEntry) -> Option<GidLoss> {
        let family = AddressFamily::of(entry.gid);
        match self.want {
            _ if entry.gid.is_zero() => Some(GidLoss::Empty),
            _ if u8::try_from(entry.index).is_err() => Some(GidLoss::IndexTooHigh),
            // The kernel resolves no route from one family to the other (drivers/infiniband/core/addr.c).
            Some(GidWant::Peer(peer)) if self.roce && AddressFamily::of(peer) != family => {
                Some(GidLoss::Family(family))
            }
            _ => None,
        }
    }

    /// What speaks for an entry, the weightiest first; more is better.
    fn merits(&self, entry: &GidEntry) -> [u32; 5] {
        let gid = entry.gid;
        let first = u32::MAX - entry.index;
        let peer = self.peer();
        if !self.roce {
            let same_subnet = peer.is_none_or(|peer| subnet(peer) == subnet(gid));
            return [same_subnet.into(), 0, 0, 0, first];
        }
        let family = self.family().is_none_or(|family| family == AddressFamily::of(gid));
        let scope = is_routable(gid) == peer.is_none_or(is_routable);
        let version = match entry.gid_type {
            GidType::ROCE_V2 => 3,
            GidType::ROCE_V1 => 2,
            GidType::IB => 1,
            _ => 0,
        };
        [family.into(), scope.into(), version, peer.map_or(0, |peer| common_bits(peer, gid)), first]
    }

    /// Why `entry` is not `chosen`.
    fn loss(&self, entry: &GidEntry, chosen: &GidEntry) -> GidLoss {
        if let Some(exclusion) = self.exclusion(entry) {
            return exclusion;
        }
        let (mine, best) = (self.merits(entry), self.merits(chosen));
        match mine.iter().zip(&best).position(|(mine, best)| mine < best) {
            Some(0) if self.roce => GidLoss::Family(AddressFamily::of(entry.gid)),
            Some(0) => GidLoss::OtherSubnet,
            Some(1) if is_routable(entry.gid) => GidLoss::NotLinkLocal,
            Some(1) => GidLoss::LinkLocal,
            Some(2) => GidLoss::Type { has: entry.gid_type, preferred: chosen.gid_type },
            Some(3) => GidLoss::FartherFromPeer,
            _ => GidLoss::HigherIndex,
        }
    }

    /// What decided against the losers, the weightiest first.
    fn reasons(&self, chosen: &GidEntry, losers: &[(GidEntry, GidLoss)]) -> Vec<GidReason> {
        let lost = |why: fn(&GidLoss) -> bool| losers.iter().any(|(_, loss)| why(loss));
        let decided = [
            (lost(|l| matches!(l, GidLoss::Family(_))), GidReason::Family(AddressFamily::of(chosen.gid))),
            (lost(|l| matches!(l, GidLoss::OtherSubnet)), GidReason::SameSubnet),
            (lost(|l| matches!(l, GidLoss::LinkLocal)), GidReason::Routable),
            (lost(|l| matches!(l, GidLoss::NotLinkLocal)), GidReason::LinkLocal),
            (lost(|l| matches!(l, GidLoss::Type { .. })), GidReason::Type(chosen.gid_type)),
            (lost(|l| matches!(l, GidLoss::FartherFromPeer)), GidReason::NearPeer),
            (lost(|l| matches!(l, GidLoss::HigherIndex)), GidReason::First),
        ];
        let reasons: Vec<GidReason> = decided.into_iter().filter(|(decided, _)| *decided).map(|(_, r)| r).collect();
        if reasons.is_empty() { vec![GidReason::Only] } else { reasons }
    }

    /// Why there is no entry to choose.
    fn no_gid(&self, entries: &[GidEntry]) -> NoGid {
        let exclusions = || entries.iter().filter_map(|e| self.exclusion(e));
        match self.peer() {
            Some(peer) if exclusions().any(|e| matches!(e, GidLoss::Family(_))) => {
                NoGid::Family { peer, family: AddressFamily::of(peer) }
            }
            _ if exclusions().any(|e| e == GidLoss::IndexTooHigh) => NoGid::IndexTooHigh,
            _ => NoGid::Empty,
        }
    }

    fn needs_grh(&self, gid: Gid) -> bool {
        self.roce || self.peer().is_some_and(|peer| subnet(peer) != subnet(gid))
    }

    fn peer(&self) -> Option<Gid> {
        match self.want {
            Some(GidWant::Peer(peer)) => Some(peer),
            Some(GidWant::Family(_)) | None => None,
        }
    }

    fn family(&self) -> Option<AddressFamily> {
        match self.want? {
            GidWant::Family(family) => Some(family),
            GidWant::Peer(peer) => Some(AddressFamily::of(peer)),
        }
    }
}

/// Whether an address has a meaning beyond one network: neither link-local nor the host itself.
fn is_routable(gid: Gid) -> bool {
    match gid.to_ipv4() {
        Some(v4) => !(v4.is_link_local() || v4.is_loopback() || v4.is_unspecified()),
        None => {
            let v6 = Ipv6Addr::from(gid.0);
            !(v6.is_unicast_link_local() || v6.is_loopback())
        }
    }
}

/// Subnet prefix of an InfiniBand GID.
fn subnet(gid: Gid) -> u64 {
    (u128::from_be_bytes(gid.0) >> 64) as u64
}

/// How many leading bits two addresses share. Beyond its 64-bit prefix, an IPv6 address names the host.
fn common_bits(a: Gid, b: Gid) -> u32 {
    let common = (u128::from_be_bytes(a.0) ^ u128::from_be_bytes(b.0)).leading_zeros();
    if a.to_ipv4().is_some() { common } else { common.min(64) }
}

#[cfg(test)]
mod tests;
