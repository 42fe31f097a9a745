//! Multicast groups: two receivers, on another device if there is one.

use crate::fixture::{DATAGRAM_ROOM, QKEY, Setup, Side, eventually};
use crate::harness::skip;
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{Datagram, Gid, GidEntry, GidIndex, Inline, Lid, LinkLayer, Path, Qpn, Ud, WrFlags};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

tests! {
    two_receivers,
    two_receivers_by_ipv6,
    two_receivers_by_lid,
    groups_and_drops_in_any_order,
    what_is_no_group_is_refused,
}

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 101, 102, 103);
/// Of the site, and not assigned for good.
const GROUP_6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0x10, 0x20, 0x30);

fn gid() -> Gid {
    Gid::from(IpAddr::from(GROUP))
}

/// A side with an IPv4 GID, and its address.
fn side(target: &Target, peer: bool) -> (Side<Ud>, Ipv4Addr) {
    let (side, entry) = side_with(target, peer, "IPv4", |gid| gid.to_ipv4().is_some());
    (side, entry.gid.to_ipv4().unwrap())
}

/// A side with a GID of that kind.
fn side_with(target: &Target, peer: bool, kind: &str, wanted: fn(&Gid) -> bool) -> (Side<Ud>, GidEntry) {
    let context = if peer { target.open_peer() } else { target.open() };
    if context.query_port(target.port).unwrap().link_layer != LinkLayer::Ethernet {
        skip("groups on InfiniBand have LIDs: see two_receivers_by_lid");
    }
    let entry = context.gid_table().unwrap().into_iter().find(|entry| wanted(&entry.gid));
    let Some(entry) = entry else { skip(format!("the port has no {kind} address")) };
    let index = Some(GidIndex(entry.index as u8));
    (Side::datagrams(target, context, index, &Setup::default()), entry)
}

/// The network device joins the group, without which its packets do not come in. A simulated device has none, and needs none.
fn join(target: &Target, address: Ipv4Addr) -> Option<UdpSocket> {
    if target.host.simulated().is_some() {
        return None;
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    if let Err(error) = socket.join_multicast_v4(&GROUP, &address) {
        skip(format!("the network device cannot join a group: {error}"));
    }
    Some(socket)
}

fn two_receivers(target: &Target) {
    let (sender, _) = side(target, false);
    let ((first, address), (second, _)) = (side(target, true), side(target, true));
    let _member = join(target, address);
    all_receive((gid(), Lid(0)), sender, [first, second]);
    seen::works("UD multicast");
}

fn two_receivers_by_ipv6(target: &Target) {
    let side = |peer| side_with(target, peer, "global IPv6", |gid| gid.to_ipv4().is_none() && !gid.is_link_local());
    let ((sender, _), (first, entry), (second, _)) = (side(false), side(true), side(true));
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    if target.host.simulated().is_none() {
        let Some(link) = entry.netdev_ifindex else { skip("the kernel does not tell the network device") };
        if let Err(error) = socket.join_multicast_v6(&GROUP_6, link) {
            skip(format!("the network device cannot join a group: {error}"));
        }
    }
    all_receive((Gid::from(IpAddr::from(GROUP_6)), Lid(0)), sender, [first, second]);
    seen::works("UD multicast by IPv6");
}

/// InfiniBand: the subnet manager gives the group a LID, and has the switches bring its packets. Simulated ports are all on
/// one wire, and hear every group.
fn two_receivers_by_lid(target: &Target) {
    if target.open().query_port(target.port).unwrap().link_layer == LinkLayer::Ethernet {
        skip("groups on Ethernet have no LIDs");
    }
    if target.host.simulated().is_none() {
        skip("the subnet manager must know of the group");
    }
    let side = |context| Side::datagrams(target, context, Some(GidIndex(0)), &Setup::default());
    let (sender, first, second) = (side(target.open()), side(target.open_peer()), side(target.open_peer()));
    let group = Gid::from(IpAddr::from(GROUP_6));
    for lid in [Lid(0), Lid(1), Lid(0xffff)] {
        let error = first.qp.attach_mcast(group, lid).unwrap_err();
        assert!(error.to_string().contains("the LID must be a multicast one, 0xc000 to 0xfffe"), "{error}");
    }
    all_receive((group, Lid(0xc0fe)), sender, [first, second]);
    seen::works("UD multicast by LID");
}

/// Every member receives what is sent to the group, until it leaves.
fn all_receive((gid, lid): (Gid, Lid), mut sender: Side<Ud>, [mut first, mut second]: [Side<Ud>; 2]) {
    for receiver in [&mut first, &mut second] {
        receiver.qp.attach_mcast(gid, lid).unwrap();
        receiver.qp.attach_mcast(gid, lid).expect("joining twice is no error");
        let entry = receiver.sge(0, DATAGRAM_ROOM);
        receiver.recv(1, &[entry]);
        receiver.recv(2, &[entry]);
    }
    let path = Path { dlid: lid, ..Path::to_gid(sender.port, sender.gid_index.unwrap(), gid) };
    let ah = sender.pd.create_ah(&path).unwrap();
    let to = ah.to(Qpn::MULTICAST, QKEY);
    sender.send(|batch| batch.send_to(1, WrFlags::SIGNALED, Inline(b"to all"), to));
    sender.success();
    for receiver in [&mut first, &mut second] {
        let mut wc = None;
        eventually("the datagram reaches every member", || {
            wc = receiver.cq.poll_one().unwrap();
            wc.is_some()
        });
        let wc = wc.unwrap();
        let buffer = receiver.bytes(0, DATAGRAM_ROOM);
        let datagram = Datagram::new(&buffer, &wc).unwrap();
        assert_eq!(datagram.payload, b"to all");
        let grh = datagram.grh.unwrap();
        assert_eq!((grh.dgid, Some(grh.sgid)), (gid, sender.qp.endpoint().gid));
        let back = receiver.qp.create_ah_from(&wc, &datagram).unwrap();
        assert_eq!(back.path().grh.unwrap().sgid_index, receiver.gid_index.unwrap(), "the group's GID is not its own");
    }
    // Who left receives nothing more.
    first.qp.detach_mcast(gid, lid).unwrap();
    sender.send(|batch| batch.send_to(2, WrFlags::SIGNALED, Inline(b"to the rest"), to));
    sender.success();
    second.success();
    first.silent();
}

/// The kernel does not destroy a queue pair that is in a group.
fn groups_and_drops_in_any_order(target: &Target) {
    let (Side { qp, context, cq, pd, mr, .. }, _) = side(target, false);
    let another = Gid::from(IpAddr::from([239, 1, 1, 1]));
    qp.attach_mcast(gid(), Lid(0)).unwrap();
    qp.attach_mcast(another, Lid(0)).unwrap();
    drop((pd, cq, mr));
    drop(qp);
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
    let (Side { qp, context, .. }, _) = side(target, false);
    qp.attach_mcast(gid(), Lid(0)).unwrap();
    qp.close().unwrap();
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
}

fn what_is_no_group_is_refused(target: &Target) {
    let (side, address) = side(target, false);
    let own = Gid::from(IpAddr::from(address));
    let error = side.qp.attach_mcast(own, Lid(0)).unwrap_err();
    assert!(error.to_string().contains("attach_mcast: gid is"), "{error}");
    assert!(error.to_string().contains("ff00::/8, or an IPv4 address in 224.0.0.0/4"), "{error}");
    // The group joined a second time under a LID could never be left.
    side.qp.attach_mcast(gid(), Lid(0)).unwrap();
    let error = side.qp.attach_mcast(gid(), Lid(1)).unwrap_err();
    assert!(error.to_string().contains("attach_mcast: LID is 1; groups on Ethernet have none"), "{error}");
    side.qp.detach_mcast(gid(), Lid(0)).unwrap();
    let error = side.qp.detach_mcast(gid(), Lid(0)).unwrap_err();
    assert!(error.to_string().contains("the queue pair is not in that group"), "{error}");
}
