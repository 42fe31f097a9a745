//! Which device and address an id is at.

use crate::harness::skip;
use crate::scene::{End, Kit, Scene, WITHIN, address_of, change_network, from_the_other_device, link_of, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{
    Connector, Devices, Error, EventChannel, EventType, Handshake, Listener, PortSpace, Reason, SendData, Step,
};
use ironverbs::{Gid, GidEntry, GidIndex, PortNum, Qp, QpBuilder, QpState};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Barrier;

tests! {
    a_device_is_found_by_its_index,
    connections_by_ipv4,
    connections_by_ipv6,
    connections_by_link_local_addresses,
    a_link_local_peer_is_sought_on_its_link,
    a_listener_everywhere,
    an_id_moves_to_another_channel,
    between_two_devices,
}

fn global(gid: &Gid) -> bool {
    gid.to_ipv4().is_none() && !gid.is_link_local()
}

fn a_device_is_found_by_its_index(target: &Target) {
    let scene = scene(target);
    let opened = target.open();
    scene.devices.add(opened.clone());
    let channel = EventChannel::open().unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.bind(scene.at(0)).unwrap();
    assert_eq!(id.addresses().unwrap().device, opened.index());
    assert_eq!(scene.devices.context_of(&id).unwrap().index(), opened.index());
    if target.peer == target.device {
        return;
    }
    // On the other device another context, and the first one's protection domain will not do.
    let other = address_of(target, &target.peer, |gid| gid.to_ipv4().is_some()).unwrap().gid.to_ipv4().unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.bind(SocketAddr::new(other.into(), 0)).unwrap();
    let context = scene.devices.context_of(&id).unwrap();
    assert_eq!((context.info().name.as_str(), context.index() == opened.index()), (target.peer.as_str(), false));
    assert_eq!(format!("{:?}", scene.devices), format!("[{:?}, {:?}]", target.device, target.peer));
    let kit = Kit::on(&opened, 1, 64);
    let error = QpBuilder::rc(&kit.pd, &kit.cq, &kit.cq).on_id(&id).err().expect("the wrong device");
    assert!(matches!(error, Error::Invalid { step: Step::PrepareQp, .. }), "{error}");
    assert!(error.to_string().contains(&format!("the protection domain is of {}", target.device)), "{error}");
}

/// A connection to that address, from wherever it is reached, and a message over it.
fn connect_to(devices: Devices, address: SocketAddr) {
    let scene = Scene { devices, ip: address.ip() };
    let listener = Listener::bind(address).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| scene.accept(&listener, (1, 64), &Handshake::default()).unwrap());
        let mut client = scene.connect(address, (1, 64), &Handshake::default()).unwrap();
        let mut server = server.join().unwrap();
        assert_eq!(
            client.connection.link().addresses().peer.map(|peer| (peer.ip(), peer.port())),
            Some((address.ip(), address.port()))
        );
        client.kit.send(client.connection.qp(), b"there");
        assert_eq!(server.kit.message(), b"there");
        for end in [&mut client, &mut server] {
            let context = scene.devices.context_of(end.connection.link().id()).unwrap();
            let (qp, dest) = (end.connection.qp().endpoint(), end.connection.qp().query().unwrap().dest);
            let port = PortNum::new(dest.port_num).unwrap();
            let entry = context.query_gid(port, GidIndex(dest.sgid_index)).unwrap();
            assert_eq!(qp.gid, entry.map(|entry| entry.gid), "the GID that is told is the one that is used");
            assert!(qp.gid.is_some());
        }
        // A queue pair that is made for an id is in the partition that the kernel would name.
        let (mut made, id) = (unconnected(&client), client.connection.link().id());
        let ours = made.query().unwrap().pkey_index;
        made.modify(&id.qp_update(QpState::INIT).unwrap()).unwrap();
        assert_eq!(made.query().unwrap().pkey_index, ours);
    });
}

fn connections_by_ipv4(target: &Target) {
    let scene = scene(target);
    connect_to(Devices::new(), scene.at(7534));
}

/// A queue pair more, for the same id.
fn unconnected(end: &End) -> Qp {
    let builder = QpBuilder::rc(&end.kit.pd, &end.kit.cq, &end.kit.cq);
    builder.on_id(end.connection.link().id()).unwrap().build().unwrap().into_unconnected()
}

fn ipv6(target: &Target, wanted: fn(&Gid) -> bool, kind: &str) -> (Ipv6Addr, GidEntry) {
    let Some(entry) = address_of(target, &target.device, wanted) else {
        skip(format!("the port has no {kind} address"))
    };
    (entry.gid.0.into(), entry)
}

fn connections_by_ipv6(target: &Target) {
    let (address, _) = ipv6(target, global, "global IPv6");
    connect_to(Devices::new(), SocketAddr::new(address.into(), 7531));
}

fn connections_by_link_local_addresses(target: &Target) {
    let (address, entry) = ipv6(target, |gid| gid.is_link_local(), "link-local IPv6");
    let Some(scope) = entry.netdev_ifindex else { skip("the kernel does not tell the network device") };
    connect_to(Devices::new(), SocketAddrV6::new(address, 7532, 0, scope).into());
    // Without the scope nobody knows which link is meant.
    let error = Listener::bind(SocketAddrV6::new(address, 7532, 0, 0).into()).unwrap_err();
    assert_eq!(error.step(), Some(Step::Bind), "{error}");
}

/// Every link has the network `fe80::/64`. The scope says which is meant.
fn a_link_local_peer_is_sought_on_its_link(target: &Target) {
    let (here, ours) = ipv6(target, |gid| gid.is_link_local(), "link-local IPv6");
    if target.peer == target.device {
        skip("IRONVERBS_TEST_PEER names no second device");
    }
    let theirs = address_of(target, &target.peer, |gid| gid.is_link_local()).expect("as the first has one");
    let [Some(net0), Some(net1)] = [ours.netdev_ifindex, theirs.netdev_ifindex] else {
        skip("the kernel does not tell the network device")
    };
    let nobody = "fe80::dead".parse().unwrap();
    let to = |ip, port, link| SocketAddr::from(SocketAddrV6::new(ip, port, 0, link));
    for link in [net1, net0] {
        let error = Connector::to(to(nobody, 7538, link)).resolve(WITHIN).unwrap_err();
        assert!(error.to_string().contains("is nobody's address on its network"), "{error}");
        let sought = |link| neighbours(link).contains("fe80::dead");
        assert!(sought(link), "not sought on {link}: {error}");
        change_network("ip", &format!("-6 neigh flush to fe80::dead dev {}", link_of(link)));
    }
    // From the second device to the first, which is behind that link, and from the first to itself.
    let listener = Listener::bind(to(here, 7538, net0)).unwrap();
    for (link, device) in [(net1, &target.peer), (net0, &target.device)] {
        let route = Connector::to(to(here, 7538, link)).resolve(WITHIN).unwrap();
        let devices = Devices::new();
        let context = devices.context_of(route.id()).unwrap();
        assert_eq!(&context.info().name, device);
        let kit = Kit::on(&context, 1, 64);
        let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq).unwrap().build().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let scene = Scene { devices: Devices::new(), ip: here.into() };
                scene.accept(&listener, (1, 64), &Handshake::default()).unwrap()
            });
            let client = route.connect(prepared, &Handshake::default(), WITHIN).unwrap();
            drop((client, server.join().unwrap()));
        });
    }
}

/// As `ip` tells of whom it looked for on a link, also in vain.
fn neighbours(link: u32) -> String {
    let arguments = ["-6", "neigh", "show", "nud", "all", "dev", &link_of(link)];
    let told = std::process::Command::new("ip").args(arguments).output().unwrap();
    String::from_utf8(told.stdout).unwrap()
}

/// It has no device until a peer comes by one.
fn a_listener_everywhere(target: &Target) {
    let scene = scene(target);
    let sys = std::sync::Arc::new(ironverbs::sys::LinuxCm::new());
    let any = "[::]:7533".parse().unwrap();
    let listener = Listener::bind_on(sys, any, 0, |id| id.set_ipv6_only(false)).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.request(WITHIN).unwrap().unwrap();
            let context = scene.devices.context_of(request.id()).unwrap();
            assert_eq!(context.info().name, target.device);
            request.reject(SendData::NONE).unwrap();
        });
        let route = Connector::to(scene.at(7533)).resolve(WITHIN).unwrap();
        let kit = Kit::on(&scene.devices.context_of(route.id()).unwrap(), 1, 64);
        let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq).unwrap().build().unwrap();
        route.connect(prepared, &Handshake::default(), WITHIN).unwrap_err();
        server.join().unwrap();
    });
}

fn an_id_moves_to_another_channel(target: &Target) {
    let scene = scene(target);
    let [old, new] = [(); 2].map(|()| EventChannel::open().unwrap());
    let id = old.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, scene.at(7534), WITHIN).unwrap();
    id.migrate(&new).unwrap();
    drop(old);
    let event = new.next(WITHIN).unwrap().unwrap();
    assert_eq!((event.id(), event.event_type()), (id.key(), EventType::ADDR_RESOLVED));
    id.resolve_route(WITHIN).unwrap();
    assert_eq!(new.next(WITHIN).unwrap().unwrap().event_type(), EventType::ROUTE_RESOLVED);
}

/// From one device to the other: over the wire, and not within the device.
fn between_two_devices(target: &Target) {
    let scene = scene(target);
    let (route, prepared) = from_the_other_device(target, &scene, 7535);
    let listener = Listener::bind(scene.at(7535)).unwrap();
    // A goodbye may overtake the end of the handshake, and then the server has no connection.
    let accepted = Barrier::new(2);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let end = scene.accept(&listener, (1, 64), &Handshake::default());
            accepted.wait();
            end.unwrap().connection.link().wait_end(WITHIN).unwrap()
        });
        let client = route.connect(prepared, &Handshake::default(), WITHIN);
        accepted.wait();
        let mut client = client.unwrap();
        assert_eq!(client.disconnect(WITHIN).unwrap(), Reason::None);
        assert_eq!(server.join().unwrap(), Some(Reason::None));
    });
}
