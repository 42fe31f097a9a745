//! Connections that end, or do not come about, in every way there is.

use crate::scene::{WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{
    ConnParams, Error, EventType, Handshake, Listener, Reason, RejectReason, Route, SendData, Step,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

tests! {
    rejections_carry_their_data,
    nobody_listens,
    a_peer_that_gave_up_is_told_when_it_is_accepted,
    an_answer_that_does_not_suit_is_rejected,
    a_request_that_is_dropped_turns_the_peer_away,
    an_end_before_the_beginning,
    a_side_that_is_dropped_ends_the_connection,
    everybody_who_waits_is_told,
    a_full_backlog_makes_peers_wait,
}

/// A route, and a queue pair for it.
fn route(scene: &crate::scene::Scene, port: u16) -> (Route, ironverbs::PreparedQp) {
    scene.route(scene.at(port))
}

fn prepared(
    scene: &crate::scene::Scene,
    id: &ironverbs::rdma_cm::CmId,
    build: impl FnOnce(&ironverbs::Pd, &ironverbs::Cq) -> ironverbs::PreparedQp,
) -> ironverbs::PreparedQp {
    let context = scene.devices.context_of(id).unwrap();
    build(&context.alloc_pd().unwrap(), &context.create_cq(16).unwrap())
}

/// None, one byte and the most: the receiver finds them at the start of a field that is always the same size.
fn rejections_carry_their_data(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7511)).unwrap();
    let bytes: Vec<_> = (1..=149).collect();
    for len in [0, 1, 148] {
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let request = listener.request(WITHIN).unwrap().unwrap();
                request.reject(SendData::raw(&bytes[..len])).unwrap();
            });
            let (route, prepared) = route(&scene, 7511);
            let error = route.connect(prepared, &Handshake::default(), WITHIN).unwrap_err();
            server.join().unwrap();
            let Error::Failed { step: Step::Connect, event: EventType::REJECTED, reason, private_data, .. } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(*reason, Reason::Rejected(RejectReason::CONSUMER_DEFINED));
            assert_eq!((private_data.padded().len(), &private_data.padded()[..len]), (148, &bytes[..len]));
            assert!(private_data.padded()[len..].iter().all(|byte| *byte == 0));
            assert!(error.to_string().contains("rejected by the peer's program (reason 28)"), "{error}");
        });
    }
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.request(WITHIN).unwrap().unwrap();
            let error = request.reject(SendData::raw(&bytes)).unwrap_err();
            assert!(error.to_string().contains("149 bytes; the message has room for 148 bytes"), "{error}");
        });
        let (route, prepared) = route(&scene, 7511);
        assert!(route.connect(prepared, &Handshake::default(), WITHIN).is_err(), "dropped, the request turns it away");
        server.join().unwrap();
    });
    drop(listener);
    nothing_is_left(target, &before);
}

fn nobody_listens(target: &Target) {
    let scene = scene(target);
    let (route, prepared) = route(&scene, 7512);
    let error = route.connect(prepared, &Handshake::default(), WITHIN).unwrap_err().to_string();
    assert!(error.starts_with(&format!("rdma_connect from {}:", scene.ip)), "{error}");
    assert!(error.contains(&format!(" to {} (via ", scene.at(7512))), "{error}");
    assert!(error.contains("nobody listens there (reason 8): start the server"), "{error}");
}

/// The peer has gone before its request is accepted: the error says so, and not just EINVAL.
fn a_peer_that_gave_up_is_told_when_it_is_accepted(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7513)).unwrap();
    let (client, prepared) = route(&scene, 7513);
    client.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
    let request = listener.request(WITHIN).unwrap().unwrap();
    drop(client);
    // The kernel tells a request's end to nobody before it is accepted.
    std::thread::sleep(Duration::from_millis(300));
    let prepared = self::prepared(&scene, request.id(), |pd, cq| {
        let builder = request.qp_builder(pd, cq, cq);
        builder.unwrap_or_else(|_| ironverbs::QpBuilder::rc(pd, cq, cq)).build().unwrap()
    });
    let error = request.accept(prepared, &Handshake::default(), WITHIN).unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
    let text = error.to_string();
    let told = text.contains("the peer has given up meanwhile");
    assert!(told || matches!(error, Error::Failed { .. } | Error::Unexpected { .. }), "{text}");
}

/// Who asked may turn the answer down; the other side has accepted already.
fn an_answer_that_does_not_suit_is_rejected(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7514)).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| scene.accept(&listener, (1, 64), &Handshake::default()));
        let (client, prepared) = route(&scene, 7514);
        client.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
        let event = client.id().channel().next(WITHIN).unwrap().unwrap();
        assert_eq!(event.event_type(), EventType::CONNECT_RESPONSE);
        client.id().reject(SendData::raw(b"no")).unwrap();
        let error = server.join().unwrap().err().expect("a rejection");
        let Error::Failed { step: Step::Accept, event: EventType::REJECTED, private_data, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(private_data.padded()[..2], *b"no");
    });
}

fn a_request_that_is_dropped_turns_the_peer_away(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7515)).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| drop(listener.request(WITHIN).unwrap().unwrap()));
        let (client, prepared) = route(&scene, 7515);
        let error = client.connect(prepared, &Handshake::default(), WITHIN).unwrap_err();
        assert!(matches!(error, Error::Failed { event: EventType::REJECTED, .. }), "{error}");
        server.join().unwrap();
    });
    // Nor is one left that nobody has read.
    let (client, prepared) = route(&scene, 7515);
    client.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
    let mut came = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut came, PollTimeout::try_from(WITHIN).unwrap()).unwrap(), 1, "the request comes in time");
    drop(listener);
    let event = client.id().channel().next(WITHIN).unwrap().unwrap();
    assert_eq!(event.event_type(), EventType::REJECTED, "{event:?}");
    assert_ne!(
        event.reason(),
        Reason::Rejected(RejectReason::INVALID_SERVICE_ID),
        "that nobody listens is something else"
    );
}

/// The side that asked goes between the answer and its last word.
fn an_end_before_the_beginning(target: &Target) {
    let scene = scene(target);
    let listener = Listener::bind(scene.at(7516)).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| scene.accept(&listener, (1, 64), &Handshake::default()));
        let (client, prepared) = route(&scene, 7516);
        client.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
        client.id().channel().next(WITHIN).unwrap().unwrap();
        drop(client);
        let error = server.join().unwrap().err().expect("no connection");
        assert!(matches!(error, Error::Failed { .. } | Error::Unexpected { .. }), "{error}");
    });
}

fn a_side_that_is_dropped_ends_the_connection(target: &Target) {
    let scene = scene(target);
    let (client, server) = scene.pair(7517);
    drop(client);
    assert_eq!(server.connection.link().wait_end(WITHIN).unwrap(), Some(Reason::None));
}

/// Several threads that wait for an end or ask for it: one reads the event, and none of the others waits on, for the next event or for
/// its time to be over.
fn everybody_who_waits_is_told(target: &Target) {
    let scene = scene(target);
    for round in 0..10 {
        let (client, server) = scene.pair(7519);
        let [client, server] = [&client, &server].map(|end| end.connection.link());
        std::thread::scope(|scope| {
            let mut waits = vec![];
            for link in [client, server] {
                for time in [WITHIN, Duration::MAX] {
                    waits.push(scope.spawn(move || link.wait_end(time).unwrap()));
                }
            }
            // Before they wait, or when they do.
            std::thread::sleep(Duration::from_millis(round));
            waits.push(scope.spawn(|| client.disconnect(WITHIN).map(Some).unwrap()));
            for wait in waits {
                assert_eq!(wait.join().unwrap(), Some(Reason::None));
            }
        });
        for link in [client, server] {
            let told = format!("{:?}", link.id());
            assert!(told.contains("EventType(DISCONNECTED)"), "somebody has waited for what comes later: {told}");
        }
    }
}

/// One may wait. Another gets no answer, and its kernel asks again.
fn a_full_backlog_makes_peers_wait(target: &Target) {
    let scene = scene(target);
    let sys = std::sync::Arc::new(ironverbs::sys::LinuxCm::new());
    let listener = Listener::bind_on(sys, scene.at(7518), 1, |_| Ok(())).unwrap();
    let peers = [(); 2].map(|()| {
        let (client, prepared) = route(&scene, 7518);
        client.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
        (client, prepared)
    });
    for (client, _) in &peers {
        assert!(client.id().channel().next(Duration::from_millis(200)).unwrap().is_none());
    }
    // Either may be the first to ask again, also when it has been turned away and the answer was lost.
    let mut waiting: Vec<_> = peers.iter().collect();
    let deadline = Instant::now() + WITHIN;
    while !waiting.is_empty() {
        assert!(Instant::now() < deadline, "{} peers have no answer", waiting.len());
        drop(listener.request(Duration::from_millis(200)).unwrap());
        waiting.retain(|(client, _)| match client.id().channel().next(Duration::from_millis(200)).unwrap() {
            None => true,
            Some(event) => {
                assert_eq!(event.event_type(), EventType::REJECTED);
                false
            }
        });
    }
}
