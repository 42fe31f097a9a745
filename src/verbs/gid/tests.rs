use super::*;
use crate::uverbs::types::PortNum;
use proptest::prelude::*;

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// Entries `(index, address, type)`; type 0 is IB, 1 and 2 the RoCE version.
fn table(entries: &[(u32, &str, u32)]) -> Vec<GidEntry> {
    entries
        .iter()
        .map(|&(index, address, kind)| GidEntry {
            port: PortNum::ONE,
            index,
            gid: gid(address),
            gid_type: GidType(kind),
            netdev_ifindex: None,
        })
        .collect()
}

fn roce(entries: &[(u32, &str, u32)], want: Option<GidWant>) -> GidChoice {
    choose_gid(LinkLayer::Ethernet, &table(entries), want).unwrap()
}

const USUAL: [(u32, &str, u32); 4] =
    [(0, "fe80::1", 1), (1, "fe80::1", 2), (2, "192.168.7.1", 1), (3, "192.168.7.1", 2)];

#[test]
fn usual_roce_table_gives_the_routable_v2_entry() {
    let choice = roce(&USUAL, None);
    assert_eq!(choice.index, GidIndex(3));
    assert!(choice.needs_grh);
    assert_eq!(choice.reasons, [GidReason::Routable, GidReason::Type(GidType::ROCE_V2)]);
    let losses: Vec<_> = choice.losers.iter().map(|(e, l)| (e.index, *l)).collect();
    let v1 = GidLoss::Type { has: GidType::ROCE_V1, preferred: GidType::ROCE_V2 };
    assert_eq!(losses, [(0, GidLoss::LinkLocal), (1, GidLoss::LinkLocal), (2, v1)]);
    assert_eq!(
        choice.to_string(),
        "index 3, RoCE v2, 0000:0000:0000:0000:0000:ffff:c0a8:0701: a routable address, RoCE v2"
    );
    assert_eq!(choice.losers[2].1.to_string(), "RoCE v1, where there is RoCE v2");
}

#[test]
fn choices_on_roce() {
    use AddressFamily::{Ipv4, Ipv6};
    let v4 = |t| Some(GidWant::Peer(gid(t)));
    let both = [(0, "fe80::1", 2), (1, "10.0.0.1", 2), (2, "2001:db8::1", 2)];
    let two_nets = [(0, "10.1.0.1", 1), (1, "10.1.0.1", 2), (2, "192.168.0.1", 1), (3, "192.168.0.1", 2)];
    for (what, entries, want, expected) in [
        ("pure IPv6, unique-local", &[(0, "fe80::1", 1), (1, "fe80::1", 2), (2, "fd00::1", 2)][..], None, 2),
        ("holes, not in order", &[(9, "10.0.0.1", 2), (4, "::", 0), (7, "10.0.0.1", 2), (8, "::", 2)], None, 7),
        ("only link-local", &[(0, "fe80::1", 1), (1, "fe80::1", 2)], None, 1),
        ("only RoCE v1", &[(0, "fe80::1", 1), (1, "10.0.0.1", 1)], None, 1),
        ("link-local IPv4 is no better", &[(0, "169.254.3.4", 2), (1, "fd00::1", 2)], None, 1),
        ("loopback is no better", &[(0, "127.0.0.1", 2), (1, "10.0.0.1", 2)], None, 1),
        ("only loopback", &[(0, "127.0.0.1", 1), (1, "127.0.0.1", 2)], None, 1),
        ("family IPv6", &both, Some(GidWant::Family(Ipv6)), 2),
        ("family IPv4", &both, Some(GidWant::Family(Ipv4)), 1),
        ("no family: the first", &both, None, 1),
        ("family outweighs scope", &[(0, "fe80::1", 2), (1, "10.0.0.1", 2)], Some(GidWant::Family(Ipv6)), 0),
        ("a family that is not there is only a wish", &[(0, "fe80::1", 2)], Some(GidWant::Family(Ipv4)), 0),
        ("peer IPv6", &both, v4("2001:db8::2"), 2),
        ("peer link-local", &both, v4("fe80::2"), 0),
        ("peer in the second network", &two_nets, v4("192.168.0.9"), 3),
        ("peer in the first network", &two_nets, v4("10.1.0.9"), 1),
        ("peer in neither network, nearer to the first", &two_nets, v4("10.200.0.9"), 1),
        ("unknown type last", &[(0, "10.0.0.1", 77), (1, "10.0.0.1", 1)], None, 1),
        ("IB type on Ethernet", &[(0, "10.0.0.1", 0)], None, 0),
        ("index 255 can be addressed", &[(255, "10.0.0.1", 2), (256, "10.0.0.1", 2), (1, "fe80::1", 2)], None, 255),
        ("index 256 cannot", &[(256, "10.0.0.1", 2), (1, "fe80::1", 2)], None, 1),
    ] {
        let choice = roce(entries, want);
        assert_eq!(u32::from(choice.index.0), expected, "{what}: {choice}");
        assert_eq!(choice.entry.index, expected, "{what}");
        assert!(!choice.reasons.is_empty(), "{what}");
        assert_eq!(choice.losers.len(), entries.len() - 1, "{what}");
    }
}

#[test]
fn a_peer_of_the_other_family_is_refused() {
    let entries = table(&[(0, "fe80::1", 2), (1, "2001:db8::1", 2)]);
    let peer = gid("10.0.0.2");
    let error = choose_gid(LinkLayer::Ethernet, &entries, Some(GidWant::Peer(peer))).unwrap_err();
    assert_eq!(error, NoGid::Family { peer, family: AddressFamily::Ipv4 });
    assert_eq!(
        error.to_string(),
        "the peer's GID 0000:0000:0000:0000:0000:ffff:0a00:0002 is IPv4, and the port has none: give its network \
         interface an IPv4 address"
    );
}

#[test]
fn nothing_to_choose_from() {
    for (entries, error) in [
        (vec![], NoGid::Empty),
        (table(&[(0, "::", 0), (1, "::", 2)]), NoGid::Empty),
        (table(&[(0, "::", 0), (300, "10.0.0.1", 2)]), NoGid::IndexTooHigh),
    ] {
        for link_layer in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
            assert_eq!(choose_gid(link_layer, &entries, None), Err(error), "{entries:?}");
        }
    }
}

#[test]
fn infiniband_takes_its_link_local_gid_and_needs_no_header_within_the_subnet() {
    let entries = table(&[(0, "fe80::2:c903:1", 0), (1, "fec0::2:c903:1", 0)]);
    let choose =
        |peer: Option<&str>| choose_gid(LinkLayer::InfiniBand, &entries, peer.map(|p| GidWant::Peer(gid(p)))).unwrap();

    let choice = choose(None);
    assert_eq!((choice.index, choice.needs_grh), (GidIndex(0), false));
    assert_eq!(choice.reasons, [GidReason::First]);
    assert_eq!(choice.losers[0].1, GidLoss::HigherIndex);

    let choice = choose(Some("fe80::2:c903:99"));
    assert_eq!((choice.index, choice.needs_grh), (GidIndex(0), false));
    assert_eq!(choice.reasons, [GidReason::SameSubnet]);

    let choice = choose(Some("fec0::2:c903:99"));
    assert_eq!((choice.index, choice.needs_grh), (GidIndex(1), false));
    assert_eq!(choice.losers[0].1, GidLoss::OtherSubnet);

    let choice = choose(Some("fed0::2:c903:99"));
    assert_eq!((choice.index, choice.needs_grh), (GidIndex(0), true));

    let alone = choose_gid(LinkLayer::InfiniBand, &entries[..1], None).unwrap();
    assert_eq!(alone.reasons, [GidReason::Only]);
}

#[test]
fn reasons_come_in_order_of_weight() {
    let entries =
        [(0, "10.0.0.1", 2), (1, "fe80::1", 2), (2, "fd00::1", 1), (3, "fd00::1", 2), (4, "fd00::1", 2), (5, "::", 2)];
    let choice = roce(&entries, Some(GidWant::Family(AddressFamily::Ipv6)));
    assert_eq!(
        choice.reasons,
        [
            GidReason::Family(AddressFamily::Ipv6),
            GidReason::Routable,
            GidReason::Type(GidType::ROCE_V2),
            GidReason::First
        ]
    );
    let losses: Vec<_> = choice.losers.iter().map(|l| l.1.to_string()).collect();
    assert_eq!(
        losses,
        [
            "IPv4, unlike the other side",
            "not routable",
            "RoCE v1, where there is RoCE v2",
            "as good as the chosen one, at a higher index",
            "empty"
        ]
    );
}

fn entry() -> impl Strategy<Value = GidEntry> {
    let address = prop_oneof![
        Just("::"),
        Just("fe80::1"),
        Just("fe80::2"),
        Just("10.0.0.1"),
        Just("169.254.0.1"),
        Just("fd00::1"),
        Just("2001:db8::1")
    ];
    (0u32..300, address, 0u32..4).prop_map(|(index, address, kind)| table(&[(index, address, kind)])[0])
}

proptest! {
    /// Whatever the table: the choice is usable, is independent of the order of entries, and every entry is accounted
    /// for.
    #[test]
    fn choice_is_sound(
        mut entries in proptest::collection::vec(entry(), 0..12),
        peer in proptest::option::of(entry()),
        ethernet: bool,
    ) {
        entries.sort_by_key(|e| e.index);
        entries.dedup_by_key(|e| e.index);
        let link_layer = if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let want = peer.map(|p| GidWant::Peer(p.gid));
        let choice = choose_gid(link_layer, &entries, want);
        if let Ok(choice) = &choice {
            prop_assert!(!choice.entry.gid.is_zero() && choice.entry.index < 256);
            prop_assert_eq!(choice.losers.len() + 1, entries.len());
            prop_assert_eq!(choice.losers.is_empty(), entries.len() == 1);
        } else {
            prop_assert!(entries.iter().all(|e| e.gid.is_zero() || e.index > 255 || want.is_some()));
        }
        entries.reverse();
        let again = choose_gid(link_layer, &entries, want);
        prop_assert_eq!(again.map(|c| (c.entry, c.reasons)), choice.map(|c| (c.entry, c.reasons)));
    }
}
