//! What a completion and the bytes in front of a datagram say of the way that a message came.

use crate::bits::cqe::{self, Cqe};
use crate::packet::{Network, Route};

/// Bytes in front of a datagram's payload, where a global route header may be.
const GRH_BYTES: usize = 40;

/// The remote queue pair, the service level or L3 type, and whether there is a global route header.
pub(super) fn describe_route(entry: &mut Cqe, route: &Route, src_qpn: u32, grh: bool) {
    let v4 = route.grh.as_ref().is_some_and(|g| g.dgid[..12] == V4_MAPPED);
    let kind = match route.network {
        Network::InfiniBand => u32::from(route.sl & 0xf),
        Network::RoceV1 => 0,
        Network::RoceV2 if v4 => 2,
        Network::RoceV2 => 1,
    };
    let flags = u32::from(grh) << 28 | kind << 24 | src_qpn & 0xff_ffff;
    entry.put(cqe::FLAGS_RQPN, &flags.to_be_bytes());
}

/// First bytes of a GID that stands for an IPv4 address.
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The 40 bytes in front of a datagram: the global route header, an IPv6 header, an IPv4 header in the last 20 bytes, or
/// nothing.
pub(super) fn route_header(route: &Route, payload: usize) -> [u8; GRH_BYTES] {
    let mut header = [0; GRH_BYTES];
    let Some(grh) = &route.grh else { return header };
    if route.network == Network::RoceV2 && grh.dgid[..12] == V4_MAPPED {
        let total = (20 + 8 + 12 + 8 + payload + 4) as u16;
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[1] = grh.tclass;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6] = 0x40;
        ip[8] = grh.hop_limit;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&grh.sgid[12..]);
        ip[16..20].copy_from_slice(&grh.dgid[12..]);
        let sum: u32 = ip.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
        return header;
    }
    let word = 6 << 28 | u32::from(grh.tclass) << 20 | grh.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&word.to_be_bytes());
    let (udp, next) = if route.network == Network::RoceV2 { (8, 17) } else { (0, 0x1b) };
    let len = (udp + 12 + 8 + payload + 4) as u16;
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6] = next;
    header[7] = grh.hop_limit;
    header[8..24].copy_from_slice(&grh.sgid);
    header[24..].copy_from_slice(&grh.dgid);
    header
}
