//! Processes of the library's own that are killed, in each state there is: the other end is told in time, by typed results, and
//! nothing is left.

use crate::harness::step;
use crate::scene::{Scene, WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use crate::victim::{At, CLIENTS, LISTENERS, Victim};
use ironverbs::rdma_cm::{ConnParams, Connection, Error, EventType, Handshake, Listener, Reason, RejectReason};
use std::time::{Duration, Instant};

tests! {
    a_client_in_every_state,
    a_listener_in_every_state,
}

/// From the kill to when the other end knows.
const SOON: Duration = Duration::from_secs(10);

fn a_client_in_every_state(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7621)).unwrap();
    for at in CLIENTS {
        step(format!("{at:?}"));
        let mut client = Victim::start(at, scene.at(7621));
        match at {
            At::Connecting => {
                let request = listener.request(WITHIN).unwrap().expect("it asks");
                client.is_there();
                client.kill();
                // The kernel tells a request's end to nobody before it is accepted.
                let error = scene.accept_request(request, (1, 64), &Handshake::default()).err().expect("nobody asks");
                assert!(!matches!(error, Error::Timeout { .. }), "{error}");
                assert!(error.errno().is_some() || matches!(error, Error::Failed { .. }), "{error}");
            }
            At::Answered => {
                let error = ends_as(client, || accept(&scene, &listener)).expect_err("it has not said its last word");
                assert!(matches!(error, Error::Failed { event: EventType::REJECTED, .. }), "{error}");
            }
            At::ToldTheEnd(_) => {
                let mut connection = accept(&scene, &listener).unwrap();
                let reason = ends_as(client, || connection.disconnect(WITHIN)).unwrap();
                assert_eq!(reason, Reason::None);
            }
            At::Established(_) | At::Disconnecting(_) => {
                let connection = accept(&scene, &listener).unwrap();
                assert_eq!(ends_as(client, || connection.link().wait_end(WITHIN)).unwrap(), Some(Reason::None));
            }
            _ => {
                client.is_there();
                client.kill();
                assert!(listener.request(Duration::ZERO).unwrap().is_none(), "{at:?}: nobody asks");
            }
        }
    }
    drop(listener);
    nothing_is_left(target, &before);
}

fn accept(scene: &Scene, listener: &Listener) -> Result<Connection, Error> {
    scene.accept(listener, (1, 64), &Handshake::default()).map(|end| end.connection)
}

/// What this side learns in time, when the victim is where it is to be and killed there.
fn ends_as<T: Send>(mut victim: Victim, learn: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let learner = scope.spawn(learn);
        victim.is_there();
        victim.kill();
        let killed = Instant::now();
        let learnt = learner.join().unwrap();
        assert!(killed.elapsed() < SOON);
        learnt
    })
}

fn a_listener_in_every_state(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    for at in LISTENERS {
        step(format!("{at:?}"));
        let mut listener = Victim::start(at, scene.at(7622));
        if matches!(at, At::Bound | At::Listening) {
            listener.is_there();
            listener.kill();
            let (client, prepared) = scene.route(scene.at(7622));
            let error = client.connect(prepared, &Handshake::default(), WITHIN).unwrap_err();
            assert_eq!(rejection(&error), RejectReason::INVALID_SERVICE_ID, "{error}");
            continue;
        }
        listener.listens();
        let (client, prepared) = scene.route(scene.at(7622));
        match at {
            At::RequestUnread | At::Requested => {
                let error = ends_as(listener, || client.connect(prepared, &Handshake::default(), WITHIN)).unwrap_err();
                rejection(&error);
            }
            At::Accepted => {
                let id = client.id();
                id.connect(&ConnParams::new(prepared.qpn())).unwrap();
                let answer = id.channel().next(WITHIN).unwrap().expect("an answer");
                assert_eq!(answer.event_type(), EventType::CONNECT_RESPONSE, "{answer:?}");
                let end = ends_as(listener, || id.channel().next(WITHIN).unwrap()).expect("the end is told");
                assert_eq!(end.event_type(), EventType::REJECTED, "{end:?}");
                assert!(id.state().is_over());
                let error = id.establish().unwrap_err();
                assert!(error.errno().is_some(), "{error}");
            }
            At::ToldTheEnd(_) => {
                let mut connection = client.connect(prepared, &Handshake::default(), WITHIN).unwrap();
                let reason = ends_as(listener, || connection.disconnect(WITHIN)).unwrap();
                assert_eq!(reason, Reason::None);
            }
            _ => {
                let connection = client.connect(prepared, &Handshake::default(), WITHIN).unwrap();
                assert_eq!(ends_as(listener, || connection.link().wait_end(WITHIN)).unwrap(), Some(Reason::None));
            }
        }
    }
    nothing_is_left(target, &before);
}

fn rejection(error: &Error) -> RejectReason {
    match error {
        Error::Failed { event: EventType::REJECTED, reason: Reason::Rejected(reason), .. } => *reason,
        _ => panic!("{error}"),
    }
}
