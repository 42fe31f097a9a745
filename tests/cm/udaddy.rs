//! `udaddy`: the client sends datagrams to each service it has resolved, and the server answers with as many. Each datagram
//! carries its sender's queue pair number as immediate data.

use crate::datagrams::{Port, listening, next, resolved};
use crate::peer::Peer;
use crate::scene::{is_receive, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{EventType, PortSpace};
use ironverbs::{AddressHandle, Datagram, QKey, Qpn, Slot, Wc};

tests! {
    its_client_and_our_server,
    our_client_and_its_server,
}

const MESSAGES: u32 = 10;
const SIZE: usize = 48;
/// Of the port space UDP (`RDMA_UDP_QKEY`).
const QKEY: QKey = QKey(0x0123_4567);

fn its_client_and_our_server(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    // Its port cannot be chosen.
    let listener = listening(scene.at(7174), PortSpace::Udp);
    let client = Peer::start("udaddy", &["-s", &scene.ip.to_string(), "-c", "2", "-C", "10", "-S", "48"]);
    let mut ports: Vec<_> = (0..2)
        .map(|_| {
            let port = Port::of(&scene, next(&listener, EventType::CONNECT_REQUEST).take_request().unwrap(), MESSAGES);
            port.id.accept(&port.params()).unwrap();
            port
        })
        .collect();
    for port in &mut ports {
        let mut from = None;
        for _ in 0..MESSAGES {
            let (slot, wc) = receive(port);
            let datagram = Datagram::new(&slot, &wc).unwrap();
            assert_eq!(datagram.payload.len(), SIZE);
            let number = wc.outcome().unwrap().imm.expect("the sender's number");
            from.get_or_insert_with(|| (port.qp.create_ah_from(&wc, &datagram).unwrap(), Qpn::new(number).unwrap()));
        }
        let (ah, qpn) = from.unwrap();
        send_all(port, &ah, qpn);
    }
    let printed = client.finish();
    assert!(printed.contains("data transfers complete") && printed.contains("return status 0"), "{printed}");
    drop(ports);
    drop(listener);
    nothing_is_left(target, &before);
}

fn our_client_and_its_server(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let server = Peer::start("udaddy", &["-b", &scene.ip.to_string(), "-c", "1", "-C", "10", "-S", "48"]);
    // Until it listens, the answer is that there is no such service.
    let (mut port, event) = loop {
        let port = Port::of(&scene, resolved(scene.at(7174), PortSpace::Udp), MESSAGES);
        port.id.connect(&port.params()).unwrap();
        let event = port.id.channel().next(crate::scene::WITHIN).unwrap().expect("an answer");
        match event.event_type() {
            EventType::ESTABLISHED => break (port, event),
            EventType::UNREACHABLE => std::thread::sleep(std::time::Duration::from_millis(20)),
            _ => panic!("{event:?}"),
        }
    };
    let peer = event.datagram_peer().unwrap();
    assert_eq!(peer.qkey, QKEY);
    let ah = port.kit.pd.create_ah(&peer.path().unwrap()).unwrap();
    send_all(&mut port, &ah, Qpn::new(peer.qpn).unwrap());
    for _ in 0..MESSAGES {
        let (slot, wc) = receive(&mut port);
        let imm = wc.outcome().unwrap().imm;
        assert_eq!((Datagram::new(&slot, &wc).unwrap().payload.len(), imm), (SIZE, Some(peer.qpn)));
    }
    let printed = server.finish();
    assert!(printed.contains("data transfers complete") && printed.contains("return status 0"), "{printed}");
    drop((port, ah));
    nothing_is_left(target, &before);
}

fn send_all(port: &mut Port, ah: &AddressHandle, qpn: Qpn) {
    let number = port.qp.qpn().get();
    for _ in 0..MESSAGES {
        let slot = port.kit.pool.take().unwrap();
        port.qp.send_imm_slot_to(slot, SIZE as u32, number, ah.to(qpn, QKEY)).unwrap();
    }
}

/// The next datagram that comes in; completions of sends may come before it.
fn receive(port: &mut Port) -> (Slot, Wc) {
    loop {
        let (slot, wc) = port.kit.completion();
        if is_receive(&wc) {
            return (slot, wc);
        }
    }
}
