//! IP addresses as the kernel writes them.

use super::abi::{SockaddrIn6, Storage};
use super::query::IbAddress;
use crate::uverbs::types::Gid;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
const AF_IB: u16 = libc::AF_IB as u16;

const IN_BYTES: u16 = 16;
const IN6_BYTES: u16 = size_of::<SockaddrIn6>() as u16;

/// In a structure for IP only, where an IPv4 address fills the first 16 bytes.
pub fn sockaddr_in6(address: SocketAddr) -> SockaddrIn6 {
    match address {
        SocketAddr::V4(v4) => SockaddrIn6 {
            family: AF_INET,
            port: v4.port().to_be_bytes(),
            flowinfo: v4.ip().octets(),
            ..Default::default()
        },
        SocketAddr::V6(v6) => SockaddrIn6 {
            family: AF_INET6,
            port: v6.port().to_be_bytes(),
            flowinfo: v6.flowinfo().to_be_bytes(),
            addr: v6.ip().octets(),
            scope_id: v6.scope_id(),
        },
    }
}

/// In room for any family, and how many bytes of it count.
pub fn storage(address: SocketAddr) -> (Storage, u16) {
    let mut storage = Storage::new_zeroed();
    storage.bytes[..usize::from(IN6_BYTES)].copy_from_slice(sockaddr_in6(address).as_bytes());
    (storage, if address.is_ipv4() { IN_BYTES } else { IN6_BYTES })
}

/// The IP address in a structure for IP. `None` if the family is another, as that of an id that is bound to none.
pub fn from_sockaddr_in6(raw: &SockaddrIn6) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(raw.port);
    match raw.family {
        AF_INET => Some(SocketAddrV4::new(Ipv4Addr::from(raw.flowinfo), port).into()),
        AF_INET6 => {
            let flowinfo = u32::from_be_bytes(raw.flowinfo);
            Some(SocketAddrV6::new(Ipv6Addr::from(raw.addr), port, flowinfo, raw.scope_id).into())
        }
        _ => None,
    }
}

/// The IP address in room for any family.
pub fn from_storage(storage: &Storage) -> Option<SocketAddr> {
    let (raw, _) = SockaddrIn6::read_from_prefix(&storage.bytes).ok()?;
    from_sockaddr_in6(&raw)
}

/// The InfiniBand address in room for any family (`struct sockaddr_ib`).
pub fn ib_from_storage(storage: &Storage) -> Option<IbAddress> {
    let bytes = &storage.bytes;
    let at = |offset: usize, len: usize| &bytes[offset..offset + len];
    if u16::from_ne_bytes(at(0, 2).try_into().ok()?) != AF_IB {
        return None;
    }
    Some(IbAddress {
        pkey: u16::from_be_bytes(at(2, 2).try_into().ok()?),
        gid: Gid(at(8, 16).try_into().ok()?),
        service_id: u64::from_be_bytes(at(24, 8).try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_as_sockets_have_it() {
        let address: SocketAddr = "10.9.8.7:4660".parse().unwrap();
        let (storage, len) = storage(address);
        assert_eq!(len, 16);
        let mut expected = [0; 128];
        expected[..2].copy_from_slice(&2_u16.to_ne_bytes());
        expected[2..8].copy_from_slice(&[0x12, 0x34, 10, 9, 8, 7]);
        assert_eq!(storage.bytes, expected);
        assert_eq!(from_storage(&storage), Some(address));
    }

    #[test]
    fn ipv6_keeps_its_scope_and_flow() {
        let address: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 4660, 0x0001_0203, 0x0a0b_0c0d).into();
        let (storage, len) = storage(address);
        assert_eq!(len, 28);
        assert_eq!(storage.bytes[..8], [&10_u16.to_ne_bytes()[..], &[0x12, 0x34, 0, 1, 2, 3]].concat()[..]);
        assert_eq!(storage.bytes[8..12], [0xfe, 0x80, 0, 0]);
        assert_eq!(storage.bytes[24..28], 0x0a0b_0c0d_u32.to_ne_bytes());
        assert_eq!(from_storage(&storage), Some(address));
    }

    #[test]
    fn what_is_no_ip_address_is_none() {
        assert_eq!(from_storage(&Storage::new_zeroed()), None);
        let mut ib = Storage::new_zeroed();
        ib.bytes[..2].copy_from_slice(&27_u16.to_ne_bytes());
        ib.bytes[2..4].copy_from_slice(&[0xff, 0xff]);
        ib.bytes[8..24].copy_from_slice(&[7; 16]);
        ib.bytes[24..32].copy_from_slice(&[0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
        assert_eq!(from_storage(&ib), None);
        let address = ib_from_storage(&ib).unwrap();
        assert_eq!((address.pkey, address.gid, address.service_id), (0xffff, Gid([7; 16]), 0x0106_1d2f));
        assert_eq!(ib_from_storage(&Storage::new_zeroed()), None);
    }
}
