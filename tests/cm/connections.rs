//! Connections of two sides of the library.

use crate::harness::step;
use crate::scene::{WITHIN, is_receive, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{
    ConnParams, Connector, Ece, Error, EventChannel, EventType, Handshake, Listener, PortSpace, Reason, SendData, State,
};
use ironverbs::sys::{CmFile, CmSys, LinuxCm};
use ironverbs::{Errno, QpBuilder, QpState, Qpn};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

tests! {
    data_goes_both_ways_and_the_end_is_told,
    the_handshake_carries_what_each_side_says,
    depths_are_agreed_on,
    an_event_loop_makes_connections,
    in_the_port_space_of_infiniband,
    a_listener_is_told_where_it_is,
    a_server_that_accepts_and_goes,
    an_end_before_it_is_established_is_none,
}

fn data_goes_both_ways_and_the_end_is_told(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let (mut client, mut server) = scene.pair(7501);
    for round in 0..100_u32 {
        client.kit.send(client.connection.qp(), &round.to_le_bytes());
        assert_eq!(server.kit.message(), round.to_le_bytes());
        let slot = server.kit.pool.take().unwrap();
        server.connection.qp().recv_slot(slot).unwrap();
        server.kit.send(server.connection.qp(), &(!round).to_le_bytes());
        assert_eq!(client.kit.message(), (!round).to_le_bytes());
        let slot = client.kit.pool.take().unwrap();
        client.connection.qp().recv_slot(slot).unwrap();
    }
    assert_eq!(client.connection.link().addresses().peer, Some(scene.at(7501)));
    assert_eq!(server.connection.link().addresses().local, Some(scene.at(7501)));
    assert_eq!(server.connection.link().wait_end(Duration::ZERO).unwrap(), None, "nobody has ended it");
    std::thread::scope(|scope| {
        let end = scope.spawn(|| server.connection.link().wait_end(WITHIN).unwrap());
        assert_eq!(client.connection.disconnect(WITHIN).unwrap(), Reason::None);
        assert_eq!(end.join().unwrap(), Some(Reason::None));
    });
    assert_eq!(client.connection.link().id().state(), State::Disconnected);
    assert_eq!(server.connection.disconnect(WITHIN).unwrap(), Reason::None, "a second time is no error");
    // What was posted comes back as flushed.
    let (_, wc) = server.kit.any_completion().unwrap();
    assert!(wc.outcome().is_err() || !is_receive(&wc), "{wc:?}");
    drop((client, server));
    nothing_is_left(target, &before);
}

fn the_handshake_carries_what_each_side_says(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7502)).unwrap();
    let ece = Ece { vendor_id: 0x1234, attr_mod: 0x5678 };
    let most = [0xa5; 196];
    let mut ask = Handshake::default();
    (ask.private_data, ask.ece) = (SendData::counted(b"hello\0"), ece);
    let mut answer = Handshake::default();
    answer.private_data = SendData::raw(&most);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.request(WITHIN).unwrap().unwrap();
            assert_eq!(request.peer_data().counted(), Some(&b"hello\0"[..]));
            assert_eq!(request.peer_data().padded().len(), 56, "the field, and not what was sent");
            assert_eq!(request.ece(), ece);
            assert_eq!((request.peer().retry_count, request.peer().rnr_retry_count), (6, 6));
            assert!(request.peer().flow_control && !request.peer().srq);
            let context = scene.devices.context_of(request.id()).unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
            let prepared = request.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap();
            request.accept(prepared, &answer, WITHIN).unwrap()
        });
        let client = scene.connect(scene.at(7502), (1, 64), &ask).unwrap();
        assert_eq!(client.connection.peer_data().padded(), most);
        drop(server.join().unwrap());
    });
}

/// The side that accepts offers no more than the one that asks can use, and both queue pairs are made so.
fn depths_are_agreed_on(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7503)).unwrap();
    let mut ask = Handshake::default();
    // Powers of two, because drivers round up to them.
    (ask.responder_resources, ask.initiator_depth) = (Some(4), Some(2));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| scene.accept(&listener, (1, 64), &Handshake::default()).unwrap());
        let mut client = scene.connect(scene.at(7503), (1, 64), &ask).unwrap();
        let mut server = server.join().unwrap();
        let (ours, theirs) = (client.connection.qp().query().unwrap(), server.connection.qp().query().unwrap());
        assert_eq!((ours.max_rd_atomic, theirs.max_dest_rd_atomic), (2, 2));
        assert_eq!((ours.max_dest_rd_atomic, theirs.max_rd_atomic), (4, 4));
        // Zero, which the kernel hands out, would be the longest wait there is.
        assert_eq!(ours.min_rnr_timer, ironverbs::RnrTimer::DEFAULT.code());
        assert_eq!((ours.qp_state, theirs.qp_state), (QpState::RTS, QpState::RTS));
        assert_eq!(client.connection.qp().endpoint().psn.get(), ours.sq_psn);
    });
}

/// All steps by hand, on one channel for both sides.
fn an_event_loop_makes_connections(target: &Target) {
    event_loop(target, PortSpace::Tcp);
}

fn in_the_port_space_of_infiniband(target: &Target) {
    event_loop(target, PortSpace::IbRc);
}

fn event_loop(target: &Target, space: PortSpace) {
    let scene = scene(target);
    let channel = EventChannel::open().unwrap();
    let listener = channel.create_id(space).unwrap();
    listener.bind(scene.at(7504)).unwrap();
    listener.listen(4).unwrap();
    let client = channel.create_id(space).unwrap();
    client.resolve_addr(None, scene.at(7504), WITHIN).unwrap();
    let (mut asking, mut accepted, mut connected) = (None, None, None);
    let mut seen = vec![];
    while accepted.as_ref().is_none_or(|(id, _): &(ironverbs::rdma_cm::CmId, _)| id.state() != State::Established) {
        let mut event = channel.next(WITHIN).unwrap().expect("an event comes in time");
        seen.push(event.event_type());
        let parts = |id| {
            let context = scene.devices.context_of(id).unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
            QpBuilder::rc(&pd, &cq, &cq).on_id(id).unwrap().build().unwrap()
        };
        match event.event_type() {
            EventType::ADDR_RESOLVED => client.resolve_route(WITHIN).unwrap(),
            EventType::ROUTE_RESOLVED => {
                let prepared = parts(&client);
                client.connect(&ConnParams::new(prepared.qpn())).unwrap();
                asking = Some(prepared);
            }
            EventType::CONNECT_REQUEST => {
                assert_eq!(event.id(), listener.key());
                let id = event.take_request().unwrap();
                let qp = id.bring_up(parts(&id)).unwrap();
                id.accept(&ConnParams::new(qp.qpn())).unwrap();
                accepted = Some((id, qp));
            }
            EventType::CONNECT_RESPONSE => {
                connected = Some(client.bring_up(asking.take().unwrap()).unwrap());
                client.establish().unwrap();
            }
            EventType::ESTABLISHED => {}
            _ => panic!("{event:?}"),
        }
    }
    assert_eq!(
        seen,
        [
            EventType::ADDR_RESOLVED,
            EventType::ROUTE_RESOLVED,
            EventType::CONNECT_REQUEST,
            EventType::CONNECT_RESPONSE,
            EventType::ESTABLISHED
        ]
    );
    assert_eq!(client.state(), State::Established);
    let (id, qp) = accepted.unwrap();
    let dest = |qp: &ironverbs::Qp| Qpn::new(qp.query().unwrap().dest_qp_num).unwrap();
    let connected = connected.unwrap();
    assert_eq!((dest(&qp), dest(&connected)), (connected.qpn(), qp.qpn()));
    assert_eq!(id.gids().unwrap().local.gid, client.gids().unwrap().peer.gid);
    assert_eq!(client.paths().unwrap().len(), 1);
    assert_eq!(client.paths().unwrap()[0][8..24], client.gids().unwrap().peer.gid.0);
}

fn a_listener_is_told_where_it_is(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(0)).unwrap();
    let here = listener.local_addr().unwrap().unwrap();
    assert!(here.ip() == scene.ip && here.port() != 0, "{here}");
    assert!(listener.request(Duration::from_millis(20)).unwrap().is_none());
    let route = Connector::to(here).type_of_service(32).resolve(WITHIN).unwrap();
    assert_eq!(route.addresses().peer, Some(here));
}

/// The client is told that the peer went, and not just that the kernel takes a step no more: at whatever step that was. Held at either
/// of its last two, it comes too late; else it may come in time.
fn a_server_that_accepts_and_goes(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7506)).unwrap();
    let held = [Some(Held::BringUp), Some(Held::Establish)];
    for hold in held.into_iter().chain([None; 20]) {
        step(format!("the client held at {hold:?}"));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let connector = Connector::to(scene.at(7506)).on(Arc::new(HoldingCm(hold)));
                let route = connector.resolve(WITHIN).unwrap();
                let context = scene.devices.context_of(route.id()).unwrap();
                let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
                let prepared = route.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap();
                route.connect(prepared, &Handshake::default(), WITHIN).map(drop)
            });
            let request = listener.request(WITHIN).unwrap().unwrap();
            let _qp = scene.answer(&request);
            drop(request);
            match client.join().unwrap() {
                Err(error) => {
                    assert!(matches!(error, Error::Failed { event: EventType::REJECTED, .. }), "{error}");
                }
                Ok(()) => assert_eq!(hold, None, "the peer had gone"),
            }
        });
    }
    drop(listener);
    nothing_is_left(target, &before);
}

/// A step that is held until an event waits to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Held {
    BringUp,
    Establish,
}

impl Held {
    /// Whether the command (`rdma_user_cm.h`) is the first of the step: INIT_QP_ATTR for RTR, or ACCEPT.
    fn is(self, command: &[u8]) -> bool {
        let word = |at: usize| command.get(at..at + 4).and_then(|four| Some(u32::from_ne_bytes(four.try_into().ok()?)));
        match self {
            Self::BringUp => word(0) == Some(11) && word(20) == Some(QpState::RTR.0.into()),
            Self::Establish => word(0) == Some(8),
        }
    }
}

/// The host's connection manager, with a step held.
struct HoldingCm(Option<Held>);

struct HoldingFile {
    inner: Arc<dyn CmFile>,
    held: Option<Held>,
}

impl CmSys for HoldingCm {
    fn open(&self) -> Result<Arc<dyn CmFile>, Error> {
        Ok(Arc::new(HoldingFile { inner: LinuxCm::new().open()?, held: self.0 }))
    }
}

// SAFETY: what the implementer owes, `inner` does, for every call is handed on as it is.
#[allow(unsafe_code)]
unsafe impl CmFile for HoldingFile {
    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
        if self.held.is_some_and(|held| held.is(command)) {
            let mut event = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut event, PollTimeout::try_from(WITHIN).unwrap()), Ok(1), "the end comes in time");
        }
        // SAFETY: the caller's part is passed on.
        unsafe { self.inner.write(command) }
    }

    fn let_wait(&self, wait: bool) -> Result<(), Errno> {
        self.inner.let_wait(wait)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// The kernel takes the step, and nobody hears of it; so the id is not on its way to an end that never comes.
fn an_end_before_it_is_established_is_none(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7507)).unwrap();
    let (route, prepared) = scene.route(scene.at(7507));
    let client = route.id();
    client.connect(&ConnParams::new(prepared.qpn())).unwrap();
    let request = listener.request(WITHIN).unwrap().unwrap();
    let server = request.id();
    let context = scene.devices.context_of(server).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let qp = server.bring_up(request.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap()).unwrap();
    server.accept(&ConnParams::new(qp.qpn())).unwrap();
    let next = |id: &ironverbs::rdma_cm::CmId| id.channel().next(WITHIN).unwrap().expect("an event comes").event_type();
    assert_eq!(next(client), EventType::CONNECT_RESPONSE);
    for (id, state) in [(server, State::Accepted), (client, State::Answered)] {
        id.disconnect().unwrap();
        assert_eq!(id.state(), state);
        assert!(id.channel().next(Duration::from_millis(200)).unwrap().is_none(), "nothing has ended");
    }
    let _client_qp = client.bring_up(prepared).unwrap();
    client.establish().unwrap();
    assert_eq!(next(server), EventType::ESTABLISHED);
    assert_eq!((server.state(), client.state()), (State::Established, State::Established));
    // Now there is.
    server.disconnect().unwrap();
    assert_eq!(server.state(), State::Disconnecting);
    assert_eq!(next(client), EventType::DISCONNECTED);
    client.disconnect().unwrap();
    assert_eq!(next(server), EventType::DISCONNECTED);
}
