use super::super::discover::tests::Tree;
use super::super::sys::Sys;
use super::*;

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

#[test]
fn rxe_from_sysfs() {
    let tree = Tree::new();
    tree.rxe("rxe0").uverbs(0, "rxe0", 2);
    let details = tree.linux().details(&tree.devices()[0]);
    assert_eq!(details.name, "rxe0");
    assert_eq!(details.node_type, Some(NodeType::CA));
    assert_eq!(details.node_desc.as_deref(), Some("rxe"));
    assert_eq!((details.board_id, details.hw_rev, details.hca_type), (None, None, None));
    assert_eq!(details.fw_version.as_deref(), Some(""));
    assert_eq!((details.hardware, details.hardware_driver), (None, None));
    // Only netlink tells these.
    assert_eq!(
        (details.netns_mode, details.copy_on_fork, details.protocol, details.cap_flags),
        (None, None, None, None)
    );
    let [port] = &details.ports[..] else { panic!() };
    assert_eq!(port.port, PortNum::ONE);
    assert_eq!((port.state, port.phys_state), (Some(PortState::ACTIVE), Some(PhysState::LINK_UP)));
    assert_eq!(port.link_layer, Some(LinkLayer::Ethernet));
    assert_eq!((port.lid, port.sm_lid, port.lmc, port.sm_sl), (Some(Lid(0)), Some(Lid(0)), Some(0), Some(0)));
    assert_eq!(port.cap_mask, Some(0x10000));
    let rate = port.rate.as_ref().unwrap();
    assert_eq!((rate.text.as_str(), rate.mbps), ("2.5 Gb/sec (1X SDR)", Some(2500)));
    assert_eq!(port.netdev.as_deref(), Some("d0"));
    assert_eq!(port.pkeys, [(0, 0xffff)]);
    let gids: Vec<_> = port.gids.iter().map(|g| (g.entry.index, g.entry.gid, g.entry.gid_type)).collect();
    assert_eq!(
        gids,
        [
            (0, gid("fe80::a4ce:aff:fe0c:1967"), GidType::ROCE_V2),
            (1, gid("10.9.9.1"), GidType::ROCE_V2), // index 2 is an empty slot
        ]
    );
    assert_eq!(port.gids[0].netdev.as_deref(), Some("d0"));
}

#[test]
fn both_ports_of_a_card() {
    let tree = Tree::new();
    tree.mlx5("mlx5_0").uverbs(0, "mlx5_0", 1);
    let device = &tree.devices()[0];
    assert!(device.usable.is_ok());
    let details = tree.linux().details(device);
    assert_eq!(details.hardware.as_deref(), Some("0000:3b:00.0"));
    assert_eq!(details.hardware_driver.as_deref(), Some("mlx5_core"));
    assert_eq!((details.hca_type.as_deref(), details.hw_rev.as_deref()), (Some("MT4129"), Some("0")));
    assert_eq!(details.board_id.as_deref(), Some("MT_0000000838"));
    let [first, second] = &details.ports[..] else { panic!() };
    assert_eq!((first.state, second.state), (Some(PortState::ACTIVE), Some(PortState::DOWN)));
    assert_eq!((first.lid, second.lid, first.sm_lid), (Some(Lid(0x1f)), Some(Lid(0xffff)), Some(Lid(1))));
    // Faster than an eight-bit speed code can say.
    assert_eq!(first.rate.as_ref().unwrap().mbps, Some(800_000));
    let gids = |port: &PortDetails| port.gids.iter().map(|g| (g.entry.port.get(), g.entry.index)).collect::<Vec<_>>();
    assert_eq!(gids(first), [(1, 0)]);
    assert_eq!(gids(second), [(2, 0), (2, 5)]);
    assert!(first.gids.iter().chain(&second.gids).all(|g| g.entry.gid_type == GidType::IB && g.netdev.is_none()));
    assert_eq!(first.pkeys, [(0, 0xffff), (2, 0x8001)]);
}

#[test]
fn pkeys_one_by_one() {
    let tree = Tree::new();
    tree.mlx5("mlx5_0").uverbs(0, "mlx5_0", 1);
    let (linux, device) = (tree.linux(), tree.devices().remove(0));
    let port = |n| PortNum::new(n).unwrap();
    assert_eq!(linux.pkey(&device, port(1), 2).unwrap(), 0x8001);
    assert_eq!(linux.pkey(&device, port(1), 1).unwrap(), 0);
    for (number, index, text) in [
        (1, 3, "query_pkey: P_Key index is 3; port 1 of mlx5_0 has 3 P_Keys"),
        (2, 0, "query_pkey: P_Key index is 0; port 2 of mlx5_0 has 0 P_Keys"),
        (3, 0, "query_pkey: port is 3; mlx5_0 has ports 1 to 2"),
    ] {
        assert_eq!(linux.pkey(&device, port(number), index).unwrap_err().to_string(), text);
    }
    tree.remove("sys/class/infiniband");
    let error = linux.pkey(&device, port(1), 0).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENOENT));
    assert!(error.to_string().contains("does not show mlx5_0"), "{error}");
}

#[test]
fn a_name_is_told_without_what_acts_on_a_terminal() {
    let (tree, name) = (Tree::new(), "mlx5\u{1b}[2J");
    tree.mlx5(name).uverbs(0, name, 1);
    let (linux, device) = (tree.linux(), tree.devices().remove(0));
    let port = |n| PortNum::new(n).unwrap();
    let too_high = linux.pkey(&device, port(3), 0).unwrap_err();
    let none_there = linux.pkey(&device, port(1), 9).unwrap_err();
    tree.remove("sys/class/infiniband");
    let not_shown = linux.pkey(&device, port(1), 0).unwrap_err();
    for text in [too_high, none_there, not_shown].map(|error| error.to_string()) {
        assert!(text.contains(r"mlx5\u{1b}[2J") && !text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn a_device_that_is_not_there_any_more_has_no_details() {
    let tree = Tree::new();
    let details = tree.linux().details(&DeviceInfo::new("../../etc"));
    assert_eq!(details.ports.len(), 0);
    assert_eq!(details.node_type, None);
    assert!(tree.linux().devices().unwrap().is_empty());
}

#[test]
fn rates() {
    for (text, mbps) in [
        ("2.5 Gb/sec (1X SDR)", Some(2_500)),
        ("100 Gb/sec (4X EDR)", Some(100_000)),
        ("25600 Gb/sec (12X XDR)", Some(25_600_000)),
        ("4294968 Gb/sec", None),
        ("2.57 Gb/sec", None),
        ("-1 Gb/sec", None),
        ("fast", None),
        ("", None),
    ] {
        assert_eq!(LinkRate::parse(text.to_owned()), LinkRate { text: text.to_owned(), mbps }, "{text}");
    }
}

#[test]
fn whether_a_network_device_is_in_this_namespace() {
    let interfaces: Vec<Interface> = [("lo", None), ("lo", Some("127.0.0.1")), ("d0", None), ("d0", Some("10.9.9.1"))]
        .into_iter()
        .map(|(name, address)| Interface { name: name.to_owned(), address: address.map(|a| a.parse().unwrap()) })
        .collect();
    for (netdev, address, port_netdev, expected) in [
        // Netlink said that the port's network device is here.
        ("d0", "fe80::1", Some(Some("d0")), Some(true)),
        ("d0", "fe80::1", Some(Some("bond0")), Some(true)),
        ("d1", "fe80::1", Some(Some("d0")), Some(false)),
        // It said that it is not: one of the same name is another, unless it has that address.
        ("d0", "fe80::1", Some(None), Some(false)),
        ("d0", "10.9.9.1", Some(None), Some(true)),
        ("d0", "10.9.9.2", Some(None), Some(false)),
        ("d1", "10.9.9.1", Some(None), Some(false)),
        ("lo", "10.9.9.1", Some(None), Some(false)),
        // Nobody said.
        ("d0", "10.9.9.1", None, Some(true)),
        ("d0", "fe80::1", None, None),
        ("d1", "fe80::1", None, Some(false)),
    ] {
        let here = is_here(netdev, gid(address), port_netdev, &interfaces);
        assert_eq!(here, expected, "{netdev} {address} {port_netdev:?}");
    }
    assert_eq!(is_here("d0", gid("10.9.9.1"), None, &[]), None);
}

#[test]
fn gid_types_by_link_layer() {
    let slot =
        |kind: Option<&str>| GidSlot { index: 0, gid: gid("fe80::1"), kind: kind.map(str::to_owned), netdev: None };
    for (kind, link_layer, expected) in [
        (Some("IB/RoCE v1"), Some(LinkLayer::InfiniBand), GidType::IB),
        (Some("IB/RoCE v1"), Some(LinkLayer::Ethernet), GidType::ROCE_V1),
        (Some("RoCE v2"), Some(LinkLayer::Ethernet), GidType::ROCE_V2),
        (None, Some(LinkLayer::InfiniBand), GidType::IB),
        (None, Some(LinkLayer::Ethernet), GidType(u32::MAX)),
        (Some("RoCE v9"), Some(LinkLayer::Ethernet), GidType(u32::MAX)),
    ] {
        let details = gid_details(PortNum::ONE, link_layer, slot(kind), None, &[]);
        assert_eq!(details.entry.gid_type, expected, "{kind:?} {link_layer:?}");
        assert_eq!(details.netdev_is_here, None);
    }
}

#[test]
fn unknown_states_keep_their_number() {
    assert_eq!(PortState(4).to_string(), "ACTIVE");
    assert_eq!(PortState(77).to_string(), "state 77");
    assert_eq!(PhysState(0).to_string(), "number 0");
    assert_eq!(NodeType(4).to_string(), "iWARP NIC");
    assert_eq!(format!("{:?}", PhysState(5)), "PhysState(LINK_UP)");
}
