//! Address handles: where a datagram goes.
//!
//! The kernel keeps the address under a number, and a work request may name that. The driver looks it up when the datagram leaves:
//! in Linux 6.12 some time after the doorbell, by a worker of its own, so that the datagrams of an address handle that was dropped
//! meanwhile would be lost. A work request with the whole address vector, in the form for kernels without such numbers, needs
//! nothing but itself; it has in it what the kernel would have looked up.

use super::abi::{RxeAv, network_type};
use crate::uverbs::attr::{AddressVector, GidEntry};
use crate::uverbs::context::Ucontext;
use crate::uverbs::error::Error;
use crate::uverbs::object::Handle;
use crate::uverbs::types::Gid;
use std::sync::Arc;

/// What work requests say of an address.
pub struct RxeAh {
    pub vector: RxeAv,
}

/// Makes an address handle. `local` is the GID that `av` names as its source.
pub fn create_ah(
    ctx: &Arc<Ucontext>,
    pd: &Handle,
    av: &AddressVector,
    local: &GidEntry,
) -> Result<(Handle, RxeAh), Error> {
    // What is wrong with the address, the kernel says now.
    let handle = ctx.create_ah(pd, av, &mut [])?;
    let is_own = av.dgid == local.gid || ctx.gid_table()?.iter().any(|entry| entry.gid == av.dgid);
    Ok((handle, RxeAh { vector: vector(av, local, is_own) }))
}

/// `is_own`: the device has that GID itself.
fn vector(av: &AddressVector, local: &GidEntry, is_own: bool) -> RxeAv {
    RxeAv {
        port_num: av.port_num,
        network_type: if local.gid.to_ipv4().is_some() { network_type::IPV4 } else { network_type::IPV6 },
        dmac: link_address(av.dgid, local, is_own),
        dgid: av.dgid.0,
        flow_label: av.flow_label,
        sgid_index: av.sgid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        padding: 0,
        sgid_addr: socket_address(local.gid),
        dgid_addr: socket_address(av.dgid),
    }
}

/// `struct sockaddr_in` or `sockaddr_in6` without a port.
fn socket_address(gid: Gid) -> [u8; 28] {
    let mut bytes = [0; 28];
    let (family, at, address) = match gid.to_ipv4() {
        Some(ip) => (libc::AF_INET, 4, ip.octets().to_vec()),
        None => (libc::AF_INET6, 8, gid.0.to_vec()),
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[at..at + address.len()].copy_from_slice(&address);
    bytes
}

/// The peer's link address, as far as the driver looks at it: it routes by the IP address, and compares this one with its
/// own to find out that the peer is on the same device.
fn link_address(dgid: Gid, local: &GidEntry, is_own: bool) -> [u8; 6] {
    match (dgid.to_ipv4(), dgid.0) {
        _ if is_own => own_link_address(local).unwrap_or_default(),
        // RFC 1112, section 6.4.
        (Some(ip), _) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        // RFC 2464, section 7.
        (None, [0xff, .., a, b, c, d]) => [0x33, 0x33, a, b, c, d],
        _ => [0; 6],
    }
}

fn own_link_address(local: &GidEntry) -> Option<[u8; 6]> {
    let name = nix::net::if_::if_indextoname(local.netdev_ifindex?).ok()?;
    let text = std::fs::read_to_string(format!("/sys/class/net/{}/address", name.to_str().ok()?)).ok()?;
    let mut bytes = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests;
