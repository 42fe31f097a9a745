//! In which order of bytes an atomic leaves what it found.

use super::device::Context;
use super::opened::Opened;
use super::provider::Provider;

/// Byte order of the eight bytes that a compare and swap or a fetch and add puts into its result.
///
/// ```
/// use ironverbs::AtomicOrder;
/// assert_eq!(AtomicOrder::BigEndian.value(*b"\0\0\0\0\0\0\x01\x02"), 0x102);
/// assert_eq!(AtomicOrder::Host.value(7_u64.to_ne_bytes()), 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOrder {
    /// The host's.
    Host,
    /// Most significant byte first, whatever the host's is: of ConnectX adapters that are set so, which say that they have no
    /// atomics ([`atomic_cap`](crate::DeviceAttr::atomic_cap) is 0).
    BigEndian,
}

impl AtomicOrder {
    /// The number that the result holds.
    pub fn value(self, result: [u8; 8]) -> u64 {
        match self {
            Self::Host => u64::from_ne_bytes(result),
            Self::BigEndian => u64::from_be_bytes(result),
        }
    }
}

impl<P: Provider> Context<P> {
    /// In which order of bytes the device leaves the results of its own atomics.
    #[doc(alias = "atomic_req_8B_endianness_mode")]
    pub fn atomic_order(&self) -> AtomicOrder {
        match self.inner().opened {
            // `IB_ATOMIC_NONE`: the driver says so where it cannot have results in the host's order.
            Opened::Mlx5(_) if self.attr().atomic_cap == 0 => AtomicOrder::BigEndian,
            _ => AtomicOrder::Host,
        }
    }
}
