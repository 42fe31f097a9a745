//! Peers that are killed, whatever they are at: what comes of it is told in time, and nothing is left.

use crate::peer::Peer;
use crate::scene::{Kit, Scene, WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{Connection, Connector, Error, Handshake, Listener};
use std::time::Duration;

tests! {
    a_client_at_any_time,
    a_listener_with_connections_in_every_state,
}

const TRIES: u64 = 6;

/// What is left of a connection ends by itself.
fn ends(made: Result<Connection, Error>) -> &'static str {
    match made {
        Ok(connection) => {
            let end = connection.link().wait_end(WITHIN).unwrap();
            assert!(end.is_some(), "the end of the peer is told");
            "connected"
        }
        Err(error @ (Error::Timeout { .. } | Error::Invalid { .. })) => panic!("{error}"),
        Err(_) => "failed",
    }
}

fn a_client_at_any_time(target: &Target) {
    let here = scene(target);
    let before = objects(target);
    let listener = Listener::bind(here.at(7611)).unwrap();
    let address = here.ip.to_string();
    let mut seen = vec![];
    for n in 0..TRIES {
        let mut client = Some(Peer::start("rping", &["-c", "-a", &address, "-p", "7611", "-C", "1000000"]));
        let request = listener.request(WITHIN).unwrap().expect("it asks in time");
        if n % 3 == 0 {
            // It has gone by the time that it is accepted.
            drop(client.take());
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(n / 3 * 20));
                drop(client.take());
            });
            seen.push(ends(accept(&here, request)));
        });
    }
    eprintln!("{seen:?}");
    drop(listener);
    nothing_is_left(target, &before);
}

fn accept(scene: &Scene, request: ironverbs::rdma_cm::Request) -> Result<Connection, Error> {
    let kit = Kit::on(&scene.devices.context_of(request.id())?, 4, 64);
    let mut prepared = request.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
    prepared.recv_slot(kit.pool.take().unwrap()).unwrap();
    request.accept(prepared, &Handshake::default(), WITHIN)
}

/// Clients on their own threads keep connecting until the listener is gone, and each connection ends.
fn a_listener_with_connections_in_every_state(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let address = scene.ip.to_string();
    for n in 0..TRIES {
        // It accepts connections one after the other, and holds them.
        let server = Peer::start("rping", &["-s", "-P", "-a", &address, "-p", "7612"]);
        drop(scene.connect(scene.at(7612), (1, 64), &Handshake::default()).unwrap());
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..6).map(|_| scope.spawn(|| ends(connect(&scene)))).collect();
            std::thread::sleep(Duration::from_millis(n * 80));
            drop(server);
            let seen: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
            eprintln!("{seen:?}");
        });
    }
    nothing_is_left(target, &before);
}

fn connect(scene: &Scene) -> Result<Connection, Error> {
    let route = Connector::to(scene.at(7612)).resolve(WITHIN)?;
    let kit = Kit::on(&scene.devices.context_of(route.id())?, 4, 64);
    let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
    route.connect(prepared, &Handshake::default(), WITHIN)
}
