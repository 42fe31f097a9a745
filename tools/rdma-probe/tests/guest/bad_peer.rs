//! A peer that sends back other bytes than it got.
//!
//! # Safety argument
//!
//! Work requests name one registered region, which lives until the queue pair is dropped, and whose bytes are only
//! reached by volatile copies.
#![allow(unsafe_code)]

use crate::Test;
use crate::support::{Device, Ended, LIMIT, Run};
use ironverbs::{
    AccessFlags, Context, Cq, Endpoint, Gid, GidIndex, Lid, Mtu, PreparedQp, Psn, QpBuilder, Qpn, Sge, WrFlags,
};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Instant;

pub const TESTS: &[Test] =
    &[("bad_peer::one_wrong_byte_is_found", one_wrong_byte), ("bad_peer::a_stale_message_is_found", stale_message)];

const SIZE: usize = 5000;

/// The third answer has one wrong byte.
fn one_wrong_byte(device: &Device) {
    let ended = ping(device, |round, message| {
        if round == 2 {
            message[4321] ^= 0x40;
        }
    });
    let ended = ended.expect_failure(6, &["message 2", "offset 4321", "1 wrong byte"]);
    assert_eq!(ended.json()["result"]["check"]["messages"], 2);
}

/// The fifth answer is the fourth one again.
fn stale_message(device: &Device) {
    let mut last = Vec::new();
    let ended = ping(device, move |round, message| {
        if round == 4 {
            message.copy_from_slice(&last);
        }
        last = message.to_vec();
    });
    ended.expect_failure(6, &["message 4"]);
}

/// A client of a server that lets `spoil` at each message before it goes back.
fn ping(device: &Device, spoil: impl FnMut(usize, &mut [u8]) + Send + 'static) -> Ended {
    let size = SIZE.to_string();
    let client = ["ping", "--json", "-c", "-n", "20", "-s", &size];
    with_server(device, &client, |listener, name, index, client| serve(&listener, &name, index, &client, spoil))
}

/// Runs rdma-probe with these words against a server in this process. That is told when the client has ended: nobody holds the
/// other end of its channel any more.
pub fn with_server(
    device: &Device,
    client: &[&str],
    serve: impl FnOnce(TcpListener, String, u8, Receiver<()>) + Send + 'static,
) -> Ended {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (name, index) = (device.name.clone(), device.gid_index.parse().unwrap());
    let (running, ended) = channel();
    let server = thread::spawn(move || serve(listener, name, index, ended));
    let client = Run::probe([client, &["-d", &device.name, "-p", &port, "127.0.0.1"]].concat());
    drop(running);
    server.join().unwrap();
    client
}

/// An echo server in the manner of ibv_rc_pingpong, which lets `spoil` at each message before it goes back. Ends when the
/// client does.
fn serve(
    listener: &TcpListener,
    device: &str,
    gid_index: u8,
    client: &Receiver<()>,
    mut spoil: impl FnMut(usize, &mut [u8]),
) {
    let context = Context::open(device).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(16).unwrap();
    let mut mr = pd.alloc_mr(SIZE, AccessFlags::LOCAL_WRITE).unwrap();
    let sge = mr.sge(..).unwrap();
    let mut qp = QpBuilder::rc(&pd, &cq, &cq).gid_index(GidIndex(gid_index)).build().unwrap();
    let mut batch = qp.recv_batch();
    batch.recv(0, &[sge]).unwrap();
    // SAFETY: see the module.
    unsafe { batch.submit() }.unwrap();

    let mut qp = introduce(listener, qp);
    for round in 0.. {
        if !completes(&mut cq, client) {
            return;
        }
        let mut message = vec![0; SIZE];
        mr.read(0, &mut message).unwrap();
        spoil(round, &mut message);
        mr.write(0, &message).unwrap();
        let mut batch = qp.recv_batch();
        batch.recv(0, &[sge]).unwrap();
        // SAFETY: see the module.
        unsafe { batch.submit() }.unwrap();
        if !send(&mut qp, sge) || !completes(&mut cq, client) {
            return;
        }
    }
}

/// A server that connects and never posts a receive. Ends when the client does.
pub fn never_receive(listener: &TcpListener, device: &str, gid_index: u8, client: &Receiver<()>) {
    let context = Context::open(device).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    let qp = QpBuilder::rc(&pd, &cq, &cq).gid_index(GidIndex(gid_index)).build().unwrap();
    let qp = introduce(listener, qp);
    assert_eq!(client.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected), "the client goes on");
    drop(qp);
}

/// The TCP conversation, and both queue pairs connected.
fn introduce(listener: &TcpListener, qp: PreparedQp) -> ironverbs::Qp {
    let (mut tcp, _) = listener.accept().unwrap();
    let mut record = [0; 52];
    tcp.read_exact(&mut record).unwrap();
    let local = qp.endpoint();
    let mut options = qp.connect_options();
    options.path_mtu = Some(Mtu::B1024);
    let qp = qp.connect_with(&remote(&record), &options).unwrap();
    let gid: String = local.gid.unwrap().0.iter().map(|b| format!("{b:02x}")).collect();
    tcp.write_all(format!("0000:{:06x}:{:06x}:{gid}\0", local.qpn.get(), local.psn.get()).as_bytes()).unwrap();
    tcp.read_exact(&mut [0; 5]).unwrap();
    qp
}

fn send(qp: &mut ironverbs::Qp, sge: Sge) -> bool {
    let mut batch = qp.send_batch();
    batch.send(1, WrFlags::SIGNALED, &[sge]).unwrap();
    // SAFETY: see the module.
    unsafe { batch.submit() }.is_ok()
}

/// Whether the next completion is a success, and comes while the client is there.
fn completes(cq: &mut Cq, client: &Receiver<()>) -> bool {
    let begin = Instant::now();
    while client.try_recv() == Err(TryRecvError::Empty) {
        if let Some(wc) = cq.poll_one().unwrap() {
            return wc.outcome().is_ok();
        }
        assert!(begin.elapsed() < LIMIT, "the client goes on, and sends nothing");
        thread::yield_now();
    }
    false
}

fn remote(record: &[u8; 52]) -> Endpoint {
    let text = std::str::from_utf8(&record[..51]).unwrap();
    let fields: Vec<&str> = text.split(':').collect();
    let number = |i: usize| u32::from_str_radix(fields[i], 16).unwrap();
    let mut gid = Gid::default();
    for (i, byte) in gid.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&fields[3][2 * i..2 * i + 2], 16).unwrap();
    }
    Endpoint {
        lid: Lid(number(0) as u16),
        qpn: Qpn::new(number(1)).unwrap(),
        psn: Psn::new(number(2)).unwrap(),
        gid: Some(gid),
        mtu: None,
    }
}
