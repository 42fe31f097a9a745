use super::*;
use crate::uverbs::abi::verbs;
use std::net::IpAddr;

const PAYLOAD: &[u8] = b"payload";

fn wc(byte_len: usize) -> Wc {
    Wc::from_kernel(verbs::Wc {
        opcode: 128,
        byte_len: byte_len as u32,
        src_qp: 0x12,
        wc_flags: 1,
        ..Default::default()
    })
}

/// The buffer with what is undefined before an IPv4 header filled with `garbage`.
fn ipv4(garbage: u8, checksum: bool) -> Vec<u8> {
    let mut header = [0x45, 0x28, 0, 60, 0x12, 0x34, 0x40, 0, 63, 17, 0, 0, 10, 1, 2, 3, 10, 9, 8, 7];
    if checksum {
        let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = !(((sum & 0xffff) + (sum >> 16)) as u16);
        header[10..12].copy_from_slice(&folded.to_be_bytes());
    }
    [&[garbage; 20], &header[..], PAYLOAD].concat()
}

fn ipv6(next_header: u8) -> Vec<u8> {
    let mut header = vec![0x62, 0x81, 0x23, 0x45, 0, 40, next_header, 61];
    header.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    header.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    [&header, PAYLOAD].concat()
}

fn gid(text: &str) -> Gid {
    Gid::from(text.parse::<IpAddr>().unwrap())
}

/// With IPv4 the first 20 of the 40 bytes are undefined. They must not be looked at as if they were addresses.
#[test]
fn ipv4_header_is_found_whatever_is_before_it() {
    for (garbage, checksum) in [(0, true), (0xa5, true), (0x66, true), (0xff, false), (0x60, false), (0x11, true)] {
        let buffer = ipv4(garbage, checksum);
        let datagram = Datagram::new(&buffer, &wc(buffer.len())).unwrap();
        assert_eq!(datagram.payload, PAYLOAD);
        let expected = ReceivedGrh {
            kind: GrhKind::Ipv4,
            sgid: gid("10.1.2.3"),
            dgid: gid("10.9.8.7"),
            traffic_class: 0x28,
            flow_label: 0,
            hop_limit: 63,
        };
        assert_eq!(datagram.grh, Some(expected), "{garbage:#x} {checksum}");
    }
}

/// An old IPv6 header in the first 20 bytes, as an earlier datagram of another family leaves there.
#[test]
fn ipv4_header_after_what_looks_like_ipv6() {
    for checksum in [true, false] {
        let mut buffer = ipv4(0, checksum);
        buffer[..20].copy_from_slice(&ipv6(17)[..20]);
        let datagram = Datagram::new(&buffer, &wc(buffer.len())).unwrap();
        assert_eq!(datagram.grh.unwrap().kind, GrhKind::Ipv4, "checksum: {checksum}");
    }
}

/// An IPv6 destination may have the bytes of an IPv4 header's start.
#[test]
fn ipv6_addresses_that_look_like_ipv4() {
    let mut buffer = ipv6(17);
    (buffer[20], buffer[29]) = (0x45, 17);
    assert_eq!(Datagram::new(&buffer, &wc(buffer.len())).unwrap().grh.unwrap().kind, GrhKind::Ipv6);
}

#[test]
fn ipv6_header_and_grh() {
    for (next_header, kind) in [(17, GrhKind::Ipv6), (0x1b, GrhKind::Grh)] {
        let buffer = ipv6(next_header);
        let datagram = Datagram::new(&buffer, &wc(buffer.len())).unwrap();
        let expected = ReceivedGrh {
            kind,
            sgid: gid("fd00::1"),
            dgid: gid("fd00::2"),
            traffic_class: 0x28,
            flow_label: 0x1_2345,
            hop_limit: 61,
        };
        assert_eq!(datagram, Datagram { grh: Some(expected), payload: PAYLOAD });
    }
}

#[test]
fn buffer_longer_than_the_datagram() {
    let mut buffer = ipv4(0xa5, true);
    let told = buffer.len();
    buffer.extend([0xee; 100]);
    assert_eq!(Datagram::new(&buffer, &wc(told)).unwrap().payload, PAYLOAD);
    assert_eq!(Datagram::new(&buffer, &wc(40)).unwrap().payload, b"");
}

#[test]
fn without_a_grh_there_is_only_payload() {
    let buffer = ipv4(0xa5, true);
    let kernel = verbs::Wc { opcode: 128, byte_len: buffer.len() as u32, ..Default::default() };
    let datagram = Datagram::new(&buffer, &Wc::from_kernel(kernel)).unwrap();
    assert_eq!(datagram, Datagram { grh: None, payload: PAYLOAD });
}

#[test]
fn what_is_no_datagram_is_refused() {
    let buffer = ipv4(0xa5, true);
    let refused = |buffer: &[u8], wc| Datagram::new(buffer, &wc).unwrap_err();
    assert_eq!(refused(&buffer, wc(39)), DatagramError::Size { told: 39, has: 47 });
    assert_eq!(refused(&buffer, wc(48)), DatagramError::Size { told: 48, has: 47 });
    assert_eq!(refused(&[0xa5; 47], wc(47)), DatagramError::Header);
    let sent = verbs::Wc { byte_len: 47, wc_flags: 1, ..Default::default() };
    assert_eq!(refused(&buffer, Wc::from_kernel(sent)), DatagramError::NotReceived);
    let failed = verbs::Wc { status: 5, opcode: 128, byte_len: 47, ..Default::default() };
    assert!(matches!(refused(&buffer, Wc::from_kernel(failed)), DatagramError::Failed(_)));
}

#[test]
fn the_way_back_is_the_way_it_came() {
    let buffer = ipv6(17);
    let wc = wc(buffer.len());
    let grh = Datagram::new(&buffer, &wc).unwrap().grh.unwrap();
    let back = Path::reply(PortNum::ONE, GidIndex(5), &wc.source().unwrap(), &grh);
    let expected =
        Grh { dgid: gid("fd00::1"), sgid_index: GidIndex(5), hop_limit: 64, traffic_class: 0x28, flow_label: 0x1_2345 };
    assert_eq!(back.grh, Some(expected));
}
