//! What work requests about a peer's memory or about memory windows carry, beside addresses and keys.

use super::abi::verbs::access;
use super::types::{Lkey, Rkey};
use super::wr::RemoteAddr;

/// What an RDMA FLUSH makes certain (IB spec 9.4.8, placement type). Several can be asked for at once.
///
/// ```
/// use ironverbs::FlushPlacement;
/// let both = FlushPlacement::GLOBAL_VISIBILITY | FlushPlacement::PERSISTENCE;
/// assert!(both.contains(FlushPlacement::PERSISTENCE));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPlacement(u8);

impl FlushPlacement {
    /// Everything at the peer sees what was written. The region needs
    /// [`FLUSH_GLOBAL`](crate::AccessFlags::FLUSH_GLOBAL).
    #[doc(alias = "IBV_FLUSH_GLOBAL")]
    pub const GLOBAL_VISIBILITY: Self = Self(1);
    /// What was written outlasts a loss of power. The region needs
    /// [`FLUSH_PERSISTENT`](crate::AccessFlags::FLUSH_PERSISTENT).
    #[doc(alias = "IBV_FLUSH_PERSISTENT")]
    pub const PERSISTENCE: Self = Self(2);

    /// The raw bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether every placement of `other` is asked for.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for FlushPlacement {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How much of a peer's memory an RDMA FLUSH is about (IB spec 9.4.8, selectivity level).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushLevel {
    /// So many bytes from the remote address on.
    #[doc(alias = "IBV_FLUSH_RANGE")]
    Range(u32),
    /// The whole region that the remote key names.
    #[doc(alias = "IBV_FLUSH_MR")]
    Region,
}

/// What a memory window is to be bound to; made by [`Mw::plan_bind`](crate::Mw::plan_bind) and
/// [`Mw::plan_unbind`](crate::Mw::plan_unbind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBinding {
    /// The window's key until then.
    pub(crate) old_rkey: Rkey,
    pub(crate) new_rkey: Rkey,
    pub(crate) lkey: Lkey,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    /// `enum ib_uverbs_access_flags`.
    pub(crate) access: u32,
    /// Whether the window is of type 2, which one queue pair alone may use.
    pub(crate) type_2: bool,
}

impl MwBinding {
    /// The window's key once it is bound: what the peer needs.
    pub fn rkey(&self) -> Rkey {
        self.new_rkey
    }

    /// What the peer needs to reach the window's first byte, once it is bound.
    pub fn remote(&self) -> RemoteAddr {
        let addr = if self.access & access::ZERO_BASED != 0 { 0 } else { self.addr };
        RemoteAddr { addr, rkey: self.new_rkey }
    }

    /// Bytes; zero for none, which unbinds the window.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// Whose a send queue is, or a memory window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The protection domain, told apart from all others that there are.
    pub pd: usize,
    /// The queue pair's number; zero for a window of no queue pair in particular.
    pub qpn: u32,
}
