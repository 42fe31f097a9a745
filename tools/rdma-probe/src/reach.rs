//! How the ends of a ping reach each other: by GID, or within an InfiniBand subnet by LID alone.
//!
//! The C tools say by their record which it is: without `-g` they send a GID of zeros and expect one, and a global route to them
//! fails. So this end does likewise, unless it was told an index or the peer wants a GID.

use crate::place::Place;
use crate::wire::Address;
use ironverbs::{AddressFamily, Gid, GidChoice, GidIndex, GidWant};

/// How an end is reached, and reaches its peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// By LID alone: packets have no global route header.
    Lid,
    /// By the GID that was asked for, or the one that fits this best.
    Gid(Option<GidWant>),
}

impl Reach {
    /// What an end begins with, as long as nothing is known of its peer but perhaps `want`.
    pub fn first(place: &Place<'_>, want: Option<GidWant>) -> Self {
        if place.is_ethernet() || place.args.gid_index.is_some() { Self::Gid(want) } else { Self::Lid }
    }

    /// What a server does instead, which has `local`, when a client comes with `remote`; `None`: it stays as it is.
    pub fn instead(self, place: &Place<'_>, local: Option<Gid>, remote: Gid) -> Option<Self> {
        match self {
            Self::Lid => (!remote.is_zero()).then_some(Self::Gid(None)),
            Self::Gid(_) if !place.is_ethernet() => remote.is_zero().then_some(Self::Lid),
            // Another GID, if none was asked for and the peer's is of another address family.
            Self::Gid(_) => {
                let free = place.args.gid_index.is_none() && !remote.is_zero();
                let other = free && AddressFamily::of(local?) != AddressFamily::of(remote);
                other.then_some(Self::Gid(Some(GidWant::Peer(remote))))
            }
        }
    }

    /// An address, this end's or the peer's, with what is used of it.
    pub fn used(self, address: Address) -> Address {
        match self {
            Self::Lid => Address { gid: Gid::default(), ..address },
            Self::Gid(_) => address,
        }
    }

    /// What a queue pair's GID is, and why, if it is used at all.
    pub fn gid(self, index: Option<GidIndex>, choice: Option<&GidChoice>) -> (Option<GidIndex>, Option<&GidChoice>) {
        if self == Self::Lid { (None, None) } else { (index, choice) }
    }
}
