//! `rping`: each ping is read from the client by the server, and written back.
//!
//! The client tells where its ping is (address, key, length), the server READs it and says so; then the client tells where the
//! pong goes, and the server WRITEs it there and says so. Each of the four messages has 16 bytes, of which only the client's
//! mean anything.

use crate::peer::Peer;
use crate::scene::{End, Kit, Scene, WITHIN, is_receive, length, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{Connection, Handshake, Listener, Reason};
use ironverbs::{AccessFlags, Mr, RemoteAddr, Rkey, Slot, WcOpcode};

tests! {
    its_client_and_our_server,
    our_client_and_its_server,
}

/// Up to its most.
const SIZES: [usize; 3] = [64, 4096, 65535];
const INFO: usize = 16;

/// `IRONVERBS_TEST_ROUNDS` of the shortest, and a tenth of that of the others, whose bytes take most of the time.
fn rounds(size: usize) -> usize {
    let rounds = std::env::var("IRONVERBS_TEST_ROUNDS").map_or(20, |n| n.parse().expect("a number"));
    if size == SIZES[0] { rounds } else { rounds.div_ceil(10) }
}

fn its_client_and_our_server(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    for (n, size) in SIZES.into_iter().enumerate() {
        let port = 7551 + n as u16;
        let listener = Listener::bind(scene.at(port)).unwrap();
        let (address, port) = (scene.ip.to_string(), port.to_string());
        let (size_text, count) = (size.to_string(), rounds(size).to_string());
        let client =
            Peer::start("rping", &["-c", "-a", &address, "-p", &port, "-v", "-V", "-S", &size_text, "-C", &count]);
        let End { mut connection, mut kit } = scene.accept(&listener, (4, size), &Handshake::default()).unwrap();
        for _ in 0..rounds(size) {
            let ping = take_info(&mut connection, &mut kit);
            connection.qp().read_slot(kit.pool.take().unwrap(), size as u32, ping).unwrap();
            let slot = other_than_receive(&mut kit);
            go_on(&mut connection, &mut kit);
            let pong = take_info(&mut connection, &mut kit);
            // Of a pong it takes what is text, and the zero that ends it.
            connection.qp().write_slot(slot, size as u32, pong).unwrap();
            other_than_receive(&mut kit);
            go_on(&mut connection, &mut kit);
        }
        let end = connection.link().wait_end(WITHIN).unwrap();
        assert_eq!(end, Some(Reason::None));
        let printed = client.finish();
        assert_eq!(printed.matches("ping data: rdma-ping-").count(), rounds(size), "{printed}");
    }
    nothing_is_left(target, &before);
}

/// Takes the next message of the client, and gives its receive back.
fn take_info(connection: &mut Connection, kit: &mut Kit) -> RemoteAddr {
    loop {
        let (slot, wc) = kit.completion();
        if !is_receive(&wc) {
            continue; // a message that was sent
        }
        assert_eq!(length(&wc), INFO);
        let addr = u64::from_be_bytes(slot[..8].try_into().unwrap());
        let rkey = Rkey(u32::from_be_bytes(slot[8..12].try_into().unwrap()));
        connection.qp().recv_slot(slot).unwrap();
        return RemoteAddr { addr, rkey };
    }
}

/// The slot of the READ or WRITE that was just posted: no message comes before it is done.
fn other_than_receive(kit: &mut Kit) -> Slot {
    loop {
        let (slot, wc) = kit.completion();
        assert!(!is_receive(&wc), "the client goes on before it is told to");
        if wc.outcome().unwrap().opcode != WcOpcode::SEND {
            return slot;
        }
    }
}

fn go_on(connection: &mut Connection, kit: &mut Kit) {
    kit.send(connection.qp(), &[0; INFO]);
}

fn our_client_and_its_server(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    for (n, size) in SIZES.into_iter().enumerate() {
        let port = 7554 + n as u16;
        let (address, port_text) = (scene.ip.to_string(), port.to_string());
        let (size_text, count) = (size.to_string(), rounds(size).to_string());
        let server =
            Peer::start("rping", &["-s", "-a", &address, "-p", &port_text, "-v", "-S", &size_text, "-C", &count]);
        ping(&scene, port, size);
        let printed = server.finish();
        assert_eq!(printed.matches("server ping data: rdma-ping-").count(), rounds(size), "{printed}");
    }
    nothing_is_left(target, &before);
}

fn ping(scene: &Scene, port: u16, size: usize) {
    let End { mut connection, mut kit } = scene.connect(scene.at(port), (4, INFO), &Handshake::default()).unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let [mut start, sink] = [(); 2].map(|()| kit.pd.alloc_mr(size, access).unwrap());
    for round in 0..rounds(size) {
        // Text, ended by a zero: the server writes back as much as that.
        let mut text = format!("rdma-ping-{round}: ").into_bytes();
        text.extend((b'A'..=b'z').cycle().take(size - 1 - text.len()));
        text.push(0);
        start.write(0, &text).unwrap();
        for region in [&start, &sink] {
            kit.send(connection.qp(), &info(region));
            assert_eq!(kit.message().len(), INFO, "the server says that it is done");
            let slot = kit.pool.take().unwrap();
            connection.qp().recv_slot(slot).unwrap();
        }
        let mut back = vec![0; size];
        sink.read(0, &mut back).unwrap();
        assert_eq!(back, text, "ping {round} of {size} bytes");
    }
    connection.disconnect(WITHIN).unwrap();
}

/// Where a region is, in the server's words.
fn info(region: &Mr) -> [u8; INFO] {
    let at = region.remote(0).unwrap();
    let mut bytes = [0; INFO];
    bytes[..8].copy_from_slice(&at.addr.to_be_bytes());
    bytes[8..12].copy_from_slice(&at.rkey.0.to_be_bytes());
    bytes[12..].copy_from_slice(&(region.len_bytes() as u32).to_be_bytes());
    bytes
}
