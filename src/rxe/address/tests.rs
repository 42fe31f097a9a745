use super::*;
use crate::uverbs::attr::GidType;
use crate::uverbs::types::PortNum;
use std::net::IpAddr;
use zerocopy::IntoBytes;

fn gid(text: &str) -> Gid {
    Gid::from(text.parse::<IpAddr>().unwrap())
}

fn vector_to(peer: &str, local: &str) -> RxeAv {
    let local =
        GidEntry { gid: gid(local), index: 3, port: PortNum::ONE, gid_type: GidType::ROCE_V2, netdev_ifindex: None };
    let av = AddressVector {
        dgid: gid(peer),
        flow_label: 0x1_2345,
        sgid_index: 3,
        hop_limit: 64,
        traffic_class: 0x28,
        is_global: true,
        port_num: 1,
        ..Default::default()
    };
    vector(&av, &local, false)
}

#[test]
fn ipv4_address() {
    let bytes = vector_to("10.1.2.3", "10.9.8.7");
    let expected = crate::rxe::testing::hex(
        "
        01                                      #  0 port_num
        01                                      #  1 network_type: IPv4
        00*6                                    #  2 dmac
        00*10 ffff 0a010203                     #  8 grh.dgid
        45230100                                # 24 grh.flow_label
        03 40 28 00                             # 28 grh.sgid_index, hop_limit, traffic_class
        0200 0000 0a090807 00*20                # 32 sgid_addr: AF_INET
        0200 0000 0a010203 00*20                # 60 dgid_addr
        ",
    );
    assert_eq!(bytes.as_bytes(), expected);
}

#[test]
fn ipv6_address() {
    let bytes = vector_to("fd00::2", "fd00::1");
    let expected = crate::rxe::testing::hex(
        "
        01                                      #  0 port_num
        02                                      #  1 network_type: IPv6
        00*6                                    #  2 dmac
        fd00 00*13 02                           #  8 grh.dgid
        45230100                                # 24 grh.flow_label
        03 40 28 00                             # 28 grh.sgid_index, hop_limit, traffic_class
        0a00 0000 00000000 fd00 00*13 01 00*4   # 32 sgid_addr: AF_INET6
        0a00 0000 00000000 fd00 00*13 02 00*4   # 60 dgid_addr
        ",
    );
    assert_eq!(bytes.as_bytes(), expected);
}

#[test]
fn groups_have_link_addresses_of_their_own() {
    assert_eq!(vector_to("239.129.2.3", "10.0.0.1").dmac, [0x01, 0x00, 0x5e, 0x01, 0x02, 0x03]);
    assert_eq!(vector_to("ff12::1:2", "fd00::1").dmac, [0x33, 0x33, 0x00, 0x01, 0x00, 0x02]);
    assert_eq!(vector_to("10.0.0.2", "10.0.0.1").dmac, [0; 6]);
}
