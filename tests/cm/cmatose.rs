//! `ucmatose`: many connections, over each of which the server sends its messages and the client answers with as many.

use crate::peer::Peer;
use crate::scene::{End, WITHIN, is_receive, length, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{Handshake, Listener, Reason};

tests! {
    its_client_and_our_server,
    our_client_and_its_server,
}

const CONNECTIONS: usize = 20;
const MESSAGES: usize = 10;
const SIZE: usize = 100;

fn its_client_and_our_server(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7561)).unwrap();
    let (address, connections) = (scene.ip.to_string(), CONNECTIONS.to_string());
    let client = Peer::start("ucmatose", &["-s", &address, "-p", "7561", "-c", &connections, "-C", "10", "-S", "100"]);
    let accept = |_| scene.accept(&listener, (MESSAGES as u32, SIZE), &Handshake::default()).unwrap();
    let mut ends: Vec<_> = (0..CONNECTIONS).map(accept).collect();
    ends.iter_mut().for_each(send_all);
    ends.iter_mut().for_each(receive_all);
    for end in &mut ends {
        assert_eq!(end.connection.disconnect(WITHIN).unwrap(), Reason::None);
    }
    let printed = client.finish();
    assert!(printed.contains("data transfers complete") && printed.contains("return status 0"), "{printed}");
    drop((ends, listener));
    nothing_is_left(target, &before);
}

fn our_client_and_its_server(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let (address, connections) = (scene.ip.to_string(), CONNECTIONS.to_string());
    let server = Peer::start("ucmatose", &["-b", &address, "-p", "7562", "-c", &connections, "-C", "10", "-S", "100"]);
    let connect = |_| scene.connect(scene.at(7562), (MESSAGES as u32, SIZE), &Handshake::default()).unwrap();
    let mut ends: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    ends.iter_mut().for_each(receive_all);
    ends.iter_mut().for_each(send_all);
    // The server ends each of them.
    for end in &ends {
        assert_eq!(end.connection.link().wait_end(WITHIN).unwrap(), Some(Reason::None));
    }
    let printed = server.finish();
    assert!(printed.contains("disconnected") && printed.contains("return status 0"), "{printed}");
    drop(ends);
    nothing_is_left(target, &before);
}

fn send_all(end: &mut End) {
    for _ in 0..MESSAGES {
        end.kit.send(end.connection.qp(), &[0x5a; SIZE]);
    }
}

fn receive_all(end: &mut End) {
    let mut n_messages = 0;
    while n_messages < MESSAGES {
        let (_, wc) = end.kit.completion();
        if is_receive(&wc) {
            assert_eq!(length(&wc), SIZE);
            n_messages += 1;
        }
    }
}
