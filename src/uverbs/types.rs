//! Numbers and addresses of the verbs, each a type of its own. Everything here is in host order.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A value that does not fit its type.
///
/// ```
/// let error = ironverbs::Qpn::new(1 << 24).unwrap_err();
/// println!("{error}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:#x} is out of range: at most {max:#x}")]
pub struct OutOfRange {
    what: &'static str,
    value: u64,
    max: u64,
}

macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(u32);

        impl $name {
            /// The highest value: 24 bits.
            pub const MAX: Self = Self(0xff_ffff);

            /// Refuses a value of more than 24 bits.
            pub const fn new(value: u32) -> Result<Self, OutOfRange> {
                if value > Self::MAX.0 {
                    return Err(OutOfRange { what: $what, value: value as u64, max: Self::MAX.0 as u64 });
                }
                Ok(Self(value))
            }

            /// The value, at most 24 bits.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#08x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

number24! {
    /// Queue pair number (QPN), 24 bits (IB spec 9.2.4). Printed as tools of the field print it: `0x000011`.
    ///
    /// ```
    /// use ironverbs::Qpn;
    /// assert_eq!(Qpn::new(17).unwrap().to_string(), "0x000011");
    /// assert_eq!(Qpn::new(17).unwrap().get(), 17);
    /// assert!(Qpn::new(1 << 24).is_err()); // 24 bits
    /// ```
    Qpn, "queue pair number"
}

number24! {
    /// Shared receive queue number (SRQN), 24 bits: what a peer names an XRC shared receive queue by (IB spec 9.2.6).
    ///
    /// ```
    /// use ironverbs::Srqn;
    /// assert_eq!(Srqn::new(17).unwrap().get(), 17);
    /// assert!(Srqn::new(1 << 24).is_err()); // 24 bits
    /// ```
    Srqn, "shared receive queue number"
}

number24! {
    /// Packet sequence number (PSN), 24 bits, wraps to zero (IB spec 9.2.8).
    ///
    /// ```
    /// use ironverbs::Psn;
    /// assert_eq!(Psn::MAX.advance(1).get(), 0); // 24 bits
    /// assert!(Psn::new(1 << 24).is_err());
    /// ```
    Psn, "packet sequence number"
}

impl Qpn {
    /// Where datagrams to a multicast group go (IB spec 9.4.1).
    pub const MULTICAST: Self = Self(0xff_ffff);
}

impl Psn {
    /// The PSN `n` packets later.
    pub const fn advance(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & Self::MAX.0)
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }
    };
}

key! {
    /// Local key of a memory region: goes into the scatter/gather entries of one's own work requests.
    ///
    /// ```no_run
    /// # fn f(mr: &ironverbs::Mr) {
    /// println!("{:?}", mr.lkey());
    /// # }
    /// ```
    Lkey
}
key! {
    /// Remote key of a memory region: given to a peer, who names it in one-sided work requests.
    ///
    /// ```no_run
    /// # fn f(mr: &ironverbs::Mr) {
    /// println!("{:#x}", mr.rkey().0);
    /// # }
    /// ```
    Rkey
}

/// Queue key (Q_Key): a datagram is taken only by a queue pair that has the key it carries (IB spec 10.2.4).
///
/// A key with its highest bit set is *controlled*: only privileged programs give it to a queue pair (`CAP_NET_RAW`), and a
/// send that names one is to carry the sending queue pair's own key instead (Soft-RoCE sends the one that was named).
///
/// ```
/// use ironverbs::QKey;
/// assert!(QKey(0x8001_0000).is_controlled()); // needs CAP_NET_RAW
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// Whether it is controlled: its highest bit is set.
    pub const fn is_controlled(self) -> bool {
        self.0 >> 31 == 1
    }
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({self})")
    }
}

impl Rkey {
    /// The key with its low 8 bits, which belong to the program, counted up; they wrap.
    ///
    /// ```
    /// use ironverbs::Rkey;
    /// assert_eq!(Rkey(0x1234_56ff).next_key(), Rkey(0x1234_5600));
    /// ```
    #[doc(alias = "ibv_inc_rkey")]
    pub const fn next_key(self) -> Self {
        Self(self.0 & !0xff | self.0.wrapping_add(1) & 0xff)
    }
}

/// A port of a device. Ports count from 1.
///
/// ```
/// use ironverbs::PortNum;
/// assert_eq!(PortNum::new(1).unwrap(), PortNum::ONE);
/// assert!(PortNum::new(0).is_err()); // ports count from 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNum(std::num::NonZeroU8);

impl PortNum {
    /// Port 1, the only one of most devices.
    pub const ONE: Self = Self(std::num::NonZeroU8::MIN);

    /// Refuses port 0.
    pub const fn new(value: u8) -> Result<Self, OutOfRange> {
        match std::num::NonZeroU8::new(value) {
            Some(v) => Ok(Self(v)),
            None => Err(OutOfRange { what: "port number (ports count from 1)", value: 0, max: 255 }),
        }
    }

    /// The port's number.
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An index into a port's GID table. Indexes count from 0.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// let prepared = ironverbs::QpBuilder::rc(pd, cq, cq).gid_index(ironverbs::GidIndex(1)).build()?;
/// # drop(prepared);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GidIndex(pub u8);

impl fmt::Display for GidIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Local identifier (LID) of an InfiniBand port. Zero on Ethernet.
///
/// ```
/// let none = ironverbs::Lid(0); // of an Ethernet port
/// # let _ = none;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Lid(pub u16);

/// Global identifier (GID): 16 bytes in the order they travel; an IPv6 address on RoCE (IPv4 as `::ffff:a.b.c.d`).
///
/// ```
/// use ironverbs::Gid;
/// let gid: Gid = "fe80::1".parse().unwrap();
/// assert!(gid.is_link_local());
/// assert_eq!(Gid::from(std::net::IpAddr::from([10, 9, 9, 1])).to_ipv4(), Some([10, 9, 9, 1].into()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether all bytes are zero, as an empty table entry's are.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is a link-local address (`fe80::/64`), the InfiniBand default prefix.
    pub fn is_link_local(self) -> bool {
        self.0[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
    }

    /// Whether it names a multicast group: `ff00::/8`, or an IPv4 address in `224.0.0.0/4`.
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.to_ipv4().is_some_and(|ip| ip.is_multicast())
    }

    /// The IPv4 address it stands for, if it is IPv4-mapped.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The low eight bytes, the interface identifier.
    pub fn interface_id(self) -> [u8; 8] {
        let mut id = [0; 8];
        id.copy_from_slice(&self.0[8..]);
        id
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl fmt::Display for Gid {
    /// All eight groups, as sysfs and `ibv_devinfo` print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            write!(f, "{}{:02x}{:02x}", if i == 0 { "" } else { ":" }, pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl std::str::FromStr for Gid {
    type Err = std::net::AddrParseError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse::<IpAddr>().map(Self::from)
    }
}

/// A 64-bit globally unique identifier, as a number (`0x0250fffe_...` prints most significant byte first).
///
/// ```
/// assert_eq!(ironverbs::Guid(0x0200_00ff_fe09_0901).to_string(), "0200:00ff:fe09:0901");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", v >> 48, (v >> 32) & 0xffff, (v >> 16) & 0xffff, v & 0xffff)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

/// What a port's link speaks.
///
/// ```
/// assert_eq!(ironverbs::LinkLayer::Ethernet.to_string(), "Ethernet");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, GIDs optional.
    InfiniBand,
    /// Ethernet: RoCE, always addressed by GID.
    Ethernet,
    /// A value that this library does not know.
    Other(u8),
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Other(raw) => write!(f, "link layer {raw}"),
        }
    }
}

/// Maximum transfer unit: payload bytes of one packet (IB spec 9.2, `enum ib_mtu`).
///
/// ```
/// use ironverbs::Mtu;
/// assert_eq!(Mtu::from_bytes(1024), Some(Mtu::B1024));
/// assert!(Mtu::B256 < Mtu::B4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant is its size in bytes")]
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    B1024 = 3,
    B2048 = 4,
    B4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// From the number the kernel uses, 1 to 5.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// From a size in bytes, one of 256, 512, 1024, 2048, 4096.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// The number the kernel uses, 1 to 5.
    pub const fn raw(self) -> u8 {
        self as u8
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}
