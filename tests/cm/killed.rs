//! Peers that are killed, whatever they are at: what comes of it is told in time, and nothing is left.

use crate::peer::Peer;
use crate::scene::{End, Kit, Scene, WITHIN, is_receive, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{Connector, Error, Handshake, Listener};
use std::time::Duration;

tests! {
    a_client_at_any_time,
    a_listener_with_connections_in_every_state,
}

const TRIES: u64 = 6;

/// How long the end of a peer that is told may take.
const TOLD: Duration = Duration::from_secs(20);

/// What is left of a connection ends by itself. A kernel whose program is killed before it has heard that the peer is connected rejects
/// it; nobody confirms that message, so where it was lost, the peer finds nobody when it sends.
fn ends(made: Result<End, Error>) -> &'static str {
    match made {
        Ok(mut end) => {
            if end.connection.link().wait_end(TOLD).unwrap().is_some() {
                return "connected";
            }
            end.kit.send(end.connection.qp(), b"anybody there?");
            let wc = loop {
                let (_, wc) = end.kit.any_completion().expect("what nobody takes fails in time");
                if !is_receive(&wc) {
                    break wc;
                }
            };
            assert!(wc.outcome().is_err(), "{wc:?}");
            "found nobody"
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

fn accept(scene: &Scene, request: ironverbs::rdma_cm::Request) -> Result<End, Error> {
    let kit = Kit::on(&scene.devices.context_of(request.id())?, 4, 64);
    let mut prepared = request.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
    prepared.recv_slot(kit.pool.take().unwrap()).unwrap();
    let connection = request.accept(prepared, &Handshake::default(), WITHIN)?;
    Ok(End { connection, kit })
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

fn connect(scene: &Scene) -> Result<End, Error> {
    let route = Connector::to(scene.at(7612)).resolve(WITHIN)?;
    let kit = Kit::on(&scene.devices.context_of(route.id())?, 4, 64);
    let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
    let connection = route.connect(prepared, &Handshake::default(), WITHIN)?;
    Ok(End { connection, kit })
}
