//! Options of ids, and what becomes of them.

use crate::scene::{WITHIN, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{
    CmId, ConnParams, Connector, Ece, Error, EventChannel, EventType, Handshake, Listener, PortSpace, Reason,
    RejectReason, SendData, Step,
};
use ironverbs::{AckTimeout, AsyncEventType, Errno, QpState};
use std::net::SocketAddr;

tests! {
    what_a_connection_was_asked_to_have,
    a_port_for_several,
    a_listener_for_ipv6_only,
    an_ece_that_does_not_suit,
    a_listener_moves_to_another_channel,
    a_route_that_is_given,
    a_last_word_that_the_queue_pair_has_heard,
    what_does_not_fit_is_refused_in_time,
}

fn id(space: PortSpace) -> CmId {
    EventChannel::open().unwrap().create_id(space).unwrap()
}

/// Type of service and acknowledgement time-out get as far as the queue pair.
fn what_a_connection_was_asked_to_have(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7541)).unwrap();
    let code = AckTimeout::from_code(22).unwrap();
    for (connector, tos, timeout) in [
        (Connector::to(scene.at(7541)).type_of_service(0x60).ack_timeout(code), 0x60, Some(22)),
        (Connector::to(scene.at(7541)), 0, None),
    ] {
        let route = connector.resolve(WITHIN).unwrap();
        let context = scene.devices.context_of(route.id()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let prepared = route.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| scene_accept(target, &listener));
            let mut connection = route.connect(prepared, &Handshake::default(), WITHIN).unwrap();
            let attr = connection.qp().query().unwrap();
            assert_eq!(attr.dest.traffic_class, tos);
            match timeout {
                Some(code) => assert_eq!(attr.timeout, code),
                None => assert_ne!(attr.timeout, 22, "the kernel's own choice"),
            }
            drop(server.join().unwrap());
        });
    }
}

fn scene_accept(target: &Target, listener: &Listener) -> crate::scene::End {
    scene(target).accept(listener, (1, 64), &Handshake::default()).unwrap()
}

fn a_port_for_several(target: &Target) {
    let scene = scene(target);
    let ids = [(); 2].map(|()| id(PortSpace::Tcp));
    for id in &ids {
        id.set_reuse_addr(true).unwrap();
        id.bind(scene.at(7542)).unwrap();
    }
    let other = id(PortSpace::Tcp);
    let error = other.bind(scene.at(7542)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EADDRINUSE), "{error}");
    // Who listens has it alone.
    let [first, second] = ids;
    assert_eq!(first.listen(1).unwrap_err().errno(), Some(Errno::EADDRINUSE));
    drop(second);
    first.listen(1).unwrap();
}

/// Then the same port is free for IPv4.
fn a_listener_for_ipv6_only(target: &Target) {
    scene(target);
    let [v6, v4]: [SocketAddr; 2] = ["[::]:7543", "0.0.0.0:7543"].map(|text| text.parse().unwrap());
    for only in [true, false] {
        let first = id(PortSpace::Tcp);
        first.set_ipv6_only(only).unwrap();
        first.bind(v6).unwrap();
        first.listen(1).unwrap();
        let second = Listener::bind(v4).map(drop);
        if only {
            second.unwrap();
        } else {
            let error = second.unwrap_err();
            assert_eq!(error.errno(), Some(Errno::EADDRNOTAVAIL), "{error}");
            assert!(error.to_string().contains("port 7543 is taken in this port space"), "{error}");
        }
    }
}

fn an_ece_that_does_not_suit(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7544)).unwrap();
    let (route, prepared) = scene.route(scene.at(7544));
    let mut handshake = Handshake::default();
    handshake.ece = Ece { vendor_id: 0x15b3, attr_mod: 0x1003 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.request(WITHIN).unwrap().unwrap();
            assert_eq!(request.ece(), handshake.ece);
            request.id().reject_ece(SendData::NONE).unwrap();
        });
        let error = route.connect(prepared, &handshake, WITHIN).unwrap_err();
        let ironverbs::rdma_cm::Error::Failed { reason, .. } = &error else { panic!("{error}") };
        assert_eq!(*reason, Reason::Rejected(RejectReason::VENDOR_OPTION_NOT_SUPPORTED), "{error}");
    });
}

fn a_listener_moves_to_another_channel(target: &Target) {
    let scene = scene(target);
    let [old, new] = [(); 2].map(|()| EventChannel::open().unwrap());
    let listener = old.create_id(PortSpace::Tcp).unwrap();
    listener.bind(scene.at(7545)).unwrap();
    listener.listen(1).unwrap();
    listener.migrate(&new).unwrap();
    let (route, prepared) = scene.route(scene.at(7545));
    route.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
    let mut event = new.next(WITHIN).unwrap().expect("a peer asks on the new one");
    assert_eq!((event.id(), event.event_type()), (listener.key(), EventType::CONNECT_REQUEST));
    assert!(old.try_next().unwrap().is_none());
    let request = event.take_request().unwrap();
    // And its request may move on.
    request.migrate(&old).unwrap();
    request.reject(SendData::NONE).unwrap();
    let event = route.id().channel().next(WITHIN).unwrap().unwrap();
    assert_eq!(event.event_type(), EventType::REJECTED);
}

/// As it was found by another id.
fn a_route_that_is_given(target: &Target) {
    let scene = scene(target);
    let (found, _prepared) = scene.route(scene.at(7546));
    let record = found.id().paths().unwrap()[0];
    let given = id(PortSpace::Tcp);
    given.resolve_addr(None, scene.at(7546), WITHIN).unwrap();
    assert_eq!(given.channel().next(WITHIN).unwrap().unwrap().event_type(), EventType::ADDR_RESOLVED);
    given.set_path(&record).unwrap();
    assert_eq!(given.channel().next(WITHIN).unwrap().unwrap().event_type(), EventType::ROUTE_RESOLVED);
    assert_eq!(given.paths().unwrap()[0][8..40], record[8..40], "from and to the same GIDs");
}

/// The client's last word is not said; a message would tell that it was.
fn a_last_word_that_the_queue_pair_has_heard(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7547)).unwrap();
    let (route, prepared) = scene.route(scene.at(7547));
    route.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
    let request = listener.request(WITHIN).unwrap().unwrap();
    let context = scene.devices.context_of(request.id()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let id = request.id();
    let qp = id.bring_up(request.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap()).unwrap();
    id.accept(&ConnParams::new(qp.qpn())).unwrap();
    let answer = route.id().channel().next(WITHIN).unwrap().unwrap();
    assert_eq!(answer.event_type(), EventType::CONNECT_RESPONSE);
    assert!(id.channel().try_next().unwrap().is_none());
    id.notify(AsyncEventType::COMM_EST).unwrap();
    let event = id.channel().next(WITHIN).unwrap().expect("established");
    assert_eq!(event.event_type(), EventType::ESTABLISHED);
    assert_eq!(qp.query().unwrap().qp_state, QpState::RTS);
}

/// Both sides are told of their mistake while they can mend it, and the peer hears nothing of it.
fn what_does_not_fit_is_refused_in_time(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7548)).unwrap();
    let (long, most) = ([7; 197], [7; 196]);
    let with = |bytes| {
        let mut handshake = Handshake::default();
        handshake.private_data = SendData::raw(bytes);
        handshake
    };
    std::thread::scope(|threads| {
        let client = threads.spawn(|| {
            let (route, prepared) = scene.route(scene.at(7548));
            let error = route.connect(prepared, &with(&most[..57]), WITHIN).unwrap_err();
            assert!(matches!(error, Error::Invalid { step: Step::Connect, .. }), "{error}");
            let (route, prepared) = scene.route(scene.at(7548));
            route.check(&with(&most[..57])).unwrap_err();
            route.check(&with(&most[..56])).unwrap();
            route.connect(prepared, &with(&most[..56]), WITHIN).unwrap()
        });
        let request = listener.request(WITHIN).unwrap().unwrap();
        assert_eq!(request.peer_data().padded(), &most[..56], "only that was sent which fits");
        let error = request.check(&with(&long)).unwrap_err();
        assert!(matches!(error, Error::Invalid { step: Step::Accept, .. }), "{error}");
        let server = scene.accept_request(request, (1, 64), &with(&most)).unwrap();
        assert_eq!(client.join().unwrap().peer_data().padded(), most);
        drop(server);
    });
}
