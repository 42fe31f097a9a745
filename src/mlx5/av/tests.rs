use super::*;
use crate::uverbs::types::{Gid, Lid};
use zerocopy::IntoBytes;

const DMAC: [u8; 6] = [2, 3, 4, 5, 6, 7];
const V2: Link = Link::RoceV2 { dmac: DMAC, min_sport: MIN_SPORT };

fn bytes(address: &AddressVector, link: Link) -> Vec<u8> {
    address_vector(address, link).as_bytes().to_vec()
}

/// Every service level on each link layer: whole on InfiniBand, three bits and one higher on Ethernet.
#[test]
fn service_levels() {
    for sl in 0..16 {
        let address = AddressVector { sl, ..Default::default() };
        assert_eq!(bytes(&address, Link::InfiniBand)[12], sl);
        assert_eq!(bytes(&address, V2)[12], (sl % 8) * 2);
        assert_eq!(bytes(&address, Link::RoceV1 { dmac: DMAC })[12], (sl % 8) * 2);
    }
}

/// `enum ib_rate` and the device's numbers, as the kernel driver has them; what it has no number for becomes slower.
#[test]
fn static_rates() {
    let device = [
        (0, 0),
        (2, 7),
        (3, 8),
        (4, 9),
        (5, 10),
        (6, 11),
        (7, 12),
        (8, 13),
        (9, 14),
        (10, 15),
        (12, 1),
        (15, 2),
        (16, 3),
        (17, 4),
        (20, 5),
        (21, 6),
        (23, 0),
        (11, 8),
        (13, 3),
        (14, 15),
        (18, 4),
        (19, 2),
        (22, 6),
        (1, 0),
        (255, 0),
    ];
    for (static_rate, code) in device {
        let address = AddressVector { static_rate, sl: 5, ..Default::default() };
        assert_eq!(bytes(&address, Link::InfiniBand)[12], code << 4 | 5, "rate {static_rate}");
        assert_eq!(bytes(&address, V2)[12], code << 4 | 10, "rate {static_rate}");
    }
}

#[test]
fn infiniband_with_and_without_a_route_header() {
    let mut address = AddressVector {
        dgid: Gid([0xfd; 16]),
        flow_label: 0xfff_fffff,
        dlid: Lid(0xabcd),
        sgid_index: 0x7f,
        hop_limit: 9,
        traffic_class: 0x21,
        src_path_bits: 0xff,
        ..Default::default()
    };
    let local = bytes(&address, Link::InfiniBand);
    assert_eq!((&local[13..16], &local[16..48]), ([0x7f, 0xab, 0xcd].as_slice(), [0; 32].as_slice()));
    address.is_global = true;
    let global = bytes(&address, Link::InfiniBand);
    assert_eq!(global[13..16], [0x7f, 0xab, 0xcd]);
    assert_eq!(global[16..32], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x21, 9, 0x47, 0xff, 0xff, 0xff]);
    assert_eq!(global[32..], [0xfd; 16]);
}

#[test]
fn roce_always_has_a_route_header_and_an_ethernet_address() {
    let address = AddressVector {
        dlid: Lid(0xabcd),
        src_path_bits: 5,
        hop_limit: 64,
        traffic_class: 0x20,
        sgid_index: 1,
        ..Default::default()
    };
    let v1 = bytes(&address, Link::RoceV1 { dmac: DMAC });
    assert_eq!(v1[13..32], [0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 0x20, 64, 0x40, 0x10, 0, 0]);
    let v2 = bytes(&address, V2);
    assert_eq!(v2[13..32], [0, 0xc0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 0x22, 64, 0x40, 0x10, 0, 0]);
}

#[test]
fn flows_have_ports_of_their_own_in_the_dynamic_range() {
    let port = |flow_label| {
        let v2 =
            bytes(&AddressVector { flow_label, ..Default::default() }, Link::RoceV2 { dmac: DMAC, min_sport: 0xd000 });
        u16::from_be_bytes([v2[14], v2[15]])
    };
    assert_eq!(port(0), 0xd000);
    assert_eq!((port(1), port(0x3fff), port(0x4000), port(0xf_ffff)), (0xc001, 0xffff, 0xc001, 0xffc0));
    assert!((1..0xf_ffff).step_by(997).all(|label| port(label) >= 0xc000));
}
