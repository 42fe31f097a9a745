//! Which network interface an address belongs to, or is reached through: for error texts.

use nix::ifaddrs::getifaddrs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The interface that packets from `from` to `to` would leave by. `None` if there is no way there, or nothing to tell by.
/// For an error: a link may have any name, also one that would act on a terminal.
pub fn between(from: Option<SocketAddr>, to: Option<SocketAddr>) -> Option<String> {
    Some(named_between(from, to)?.escape_debug().to_string())
}

fn named_between(from: Option<SocketAddr>, to: Option<SocketAddr>) -> Option<String> {
    let own = from.filter(|from| !from.ip().is_unspecified());
    if let Some(SocketAddr::V6(own)) = own.or(to)
        && own.scope_id() != 0
    {
        return name_of_index(own.scope_id());
    }
    let own = match (own, to) {
        (Some(own), _) => own.ip(),
        (None, Some(to)) => source_to(to)?,
        (None, None) => return None,
    };
    holder(own)
}

/// The address that the kernel would send from. No packet is sent.
fn source_to(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port will do, but zero.
    socket.connect(SocketAddr::new(to.ip(), to.port().max(1))).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The interface that has the address.
fn holder(own: IpAddr) -> Option<String> {
    getifaddrs().ok()?.find(|entry| address_of(entry) == Some(own)).map(|entry| entry.interface_name)
}

/// Whether this host has the address; every host has the unspecified one.
pub fn is_own(ip: IpAddr) -> bool {
    ip.is_unspecified() || holder(ip).is_some()
}

fn address_of(entry: &nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let address = entry.address.as_ref()?;
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(v4.ip().into());
    }
    address.as_sockaddr_in6().map(|v6| v6.ip().into())
}

fn name_of_index(index: u32) -> Option<String> {
    let interfaces = nix::net::if_::if_nameindex().ok()?;
    let found = interfaces.iter().find(|interface| interface.index() == index)?;
    found.name().to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_lo() {
        let to = Some("127.0.0.1:7471".parse().unwrap());
        assert_eq!(between(None, to).as_deref(), Some("lo"));
        assert_eq!(between(to, None).as_deref(), Some("lo"));
        assert_eq!(between(Some("0.0.0.0:0".parse().unwrap()), to).as_deref(), Some("lo"));
    }

    #[test]
    fn a_scope_names_the_interface() {
        let to = SocketAddr::V6(std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, 1));
        assert_eq!(
            between(None, Some(to)).as_deref(),
            Some("lo"),
            "index 1 is the loopback interface of any namespace"
        );
        assert_eq!(between(None, None), None);
    }
}
