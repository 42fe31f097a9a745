//! What memory may be used for, and whether a device can do it.

use super::device::ContextInner;
use crate::uverbs::abi::verbs::{access, device_cap};
use crate::uverbs::attr::DeviceAttr;
use crate::uverbs::error::{Error, Lacking, Verb};
use std::fmt;

/// What a memory region, a memory window or a queue pair allows (`enum ib_uverbs_access_flags`).
///
/// ```
/// use ironverbs::AccessFlags;
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
/// assert!(access.contains(AccessFlags::LOCAL_WRITE) && !access.contains(AccessFlags::REMOTE_WRITE));
/// ```
#[doc(alias = "ibv_access_flags")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessFlags(u32);

impl AccessFlags {
    /// The device may read it, as the source of sends.
    pub const LOCAL_READ: Self = Self(0);
    /// The device may write it, as the target of receives and READs.
    pub const LOCAL_WRITE: Self = Self(access::LOCAL_WRITE);
    /// Peers may write it. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_WRITE: Self = Self(access::REMOTE_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(access::REMOTE_READ);
    /// Peers may run atomics on it. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_ATOMIC: Self = Self(access::REMOTE_ATOMIC);
    /// Local and remote reads, writes and atomics.
    pub const ALL: Self = Self(0xf);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(access::MW_BIND);
    /// Work requests name it by addresses that count from zero. Soft-RoCE refuses it for regions since Linux 6.2, and
    /// ignores it before; an [`iova`](crate::MrBuilder::iova) of the program's choice does the same and works everywhere.
    pub const ZERO_BASED: Self = Self(access::ZERO_BASED);
    /// Pages are brought in when they are used (on-demand paging). Refused unless the device says that it can.
    pub const ON_DEMAND: Self = Self(access::ON_DEMAND);
    /// A promise that all of it lies in huge pages. Soft-RoCE refuses it since Linux 6.2, and registers memory in huge
    /// pages without it.
    pub const HUGETLB: Self = Self(access::HUGETLB);
    /// Peers may FLUSH it to global visibility. Refused unless the device says that it can.
    pub const FLUSH_GLOBAL: Self = Self(access::FLUSH_GLOBAL);
    /// Peers may FLUSH it to persistence. Refused unless the device says that it can.
    pub const FLUSH_PERSISTENT: Self = Self(access::FLUSH_PERSISTENT);
    /// The device may let writes pass each other. A program that watches memory for the last byte of a WRITE must not ask
    /// for it: bytes may arrive in any order, and only the completion tells that all are there.
    ///
    /// A hint: left out where the kernel does not know hints, and ignored by devices that have no use for it.
    pub const RELAXED_ORDERING: Self = Self(access::RELAXED_ORDERING);

    /// The raw bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// From raw bits. Bits without a name here are refused where they are used, unless they are in the range of hints (20
    /// to 29), which a kernel that does not know them ignores.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Both sets of flags; `|` where a constant is not needed.
    ///
    /// ```
    /// use ironverbs::AccessFlags;
    /// const SERVED: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ);
    /// assert_eq!(SERVED, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
    /// ```
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Refuses what the device says that it cannot, naming the capability: a kernel would answer with a bare `EINVAL`.
    pub(super) fn check_offered(self, verb: Verb, context: &ContextInner) -> Result<(), Error> {
        if self.every_device_offers() {
            return Ok(());
        }
        match self.not_offered(context).next() {
            None => Ok(()),
            Some((flag, capability)) => {
                let what = format!("access {flag}, which needs {capability},").into();
                Err(Error::Unsupported { verb, what, by: Lacking::Device })
            }
        }
    }

    /// Without what the device says that it cannot.
    pub(super) fn offered(self, context: &ContextInner) -> Self {
        if self.every_device_offers() {
            return self;
        }
        self.not_offered(context).fold(self, |left, (flag, _)| Self(left.0 & !flag.0))
    }

    fn every_device_offers(self) -> bool {
        RARE.iter().all(|(flag, ..)| !self.contains(*flag))
    }

    /// What the device says that it cannot, and by which capability.
    fn not_offered(self, context: &ContextInner) -> impl Iterator<Item = (Self, &'static str)> {
        let attr = &context.attr;
        let lacking = RARE.iter().filter(move |(flag, offers, _)| self.contains(*flag) && !offers(attr));
        lacking.map(|(flag, _, capability)| (*flag, *capability))
    }
}

/// Whether the device says that it can.
type Offers = fn(&DeviceAttr) -> bool;

/// The flags that not every device offers, and by which capability it would.
const RARE: [(AccessFlags, Offers, &str); 4] = [
    (
        AccessFlags::FLUSH_GLOBAL,
        |attr| attr.device_cap_flags_ex & device_cap::FLUSH_GLOBAL != 0,
        "device_cap_flags_ex bit 38",
    ),
    (
        AccessFlags::FLUSH_PERSISTENT,
        |attr| attr.device_cap_flags_ex & device_cap::FLUSH_PERSISTENT != 0,
        "device_cap_flags_ex bit 39",
    ),
    (AccessFlags::ON_DEMAND, |attr| attr.odp_caps.general & odp::SUPPORT != 0, "IBV_ODP_SUPPORT in odp_caps"),
    (AccessFlags::MW_BIND, |attr| attr.max_mw > 0, "max_mw above zero"),
];

/// Bits of [`OdpCaps::general`](crate::OdpCaps) (`enum ib_odp_general_cap_bits`).
pub(super) mod odp {
    /// On-demand paging at all.
    pub const SUPPORT: u64 = 1;
    /// Of the whole address space.
    pub const IMPLICIT: u64 = 2;
}

impl std::ops::BitOr for AccessFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&access::names(self.0))
    }
}

impl fmt::Debug for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessFlags({self})")
    }
}
