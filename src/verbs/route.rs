//! What it means that the kernel could not resolve a peer's address.

use super::device::ContextInner;
use crate::uverbs::attr::AddressVector;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::Error;
use crate::uverbs::types::{GidIndex, PortNum};
use std::net::Ipv6Addr;

/// The kernel looks up the peer's link address when it is given an address, for a queue pair or an address handle, and
/// returns what that lookup returned.
pub(super) fn explain_route(error: Error, context: &ContextInner, av: &AddressVector) -> Error {
    if !av.is_global {
        return error;
    }
    // This form shows an IPv4 address as such.
    let (peer, index) = (Ipv6Addr::from(av.dgid.0), av.sgid_index);
    let local = || {
        let entry =
            PortNum::new(av.port_num).ok().and_then(|port| context.query_gid(port, GidIndex(index)).ok().flatten());
        entry.map_or_else(|| "an empty entry".to_string(), |entry| Ipv6Addr::from(entry.gid.0).to_string())
    };
    match error.errno() {
        Some(Errno::ETIMEDOUT | Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN | Errno::EADDRNOTAVAIL) => {
            let hint = format!(
                "no answer from {peer} via {} (GID index {index}): check route and neighbour, and that UDP port 4791 passes",
                local()
            );
            error.with_hint(hint)
        }
        Some(Errno::ENODATA | Errno::ENOENT) => {
            error.with_hint(format!("GID index {index} is empty: the port has no such GID any more"))
        }
        Some(Errno::EINVAL) => {
            let hint = format!("is {peer} reachable from {} (GID index {index}), of the same family?", local());
            error.with_hint(hint)
        }
        _ => error,
    }
}
