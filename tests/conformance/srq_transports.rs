//! Shared receive queues of every transport, with receives of several entries.

use crate::fixture::{Kind, QKEY, Setup, Side, builder, completions, connect, silent, try_recv_shared, try_send};
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{AccessFlags, Cq, Datagram, Inline, Mr, QpBuilder, Rc, Srq, Uc, WcOpcode, WrFlags};
use std::ops::Range;

tests! {
    reliable_connections,
    unreliable_connections,
    datagrams,
}

/// Where a message of more than one piece goes: pieces of different lengths, apart from each other and not in their order.
const ROOM: [Range<usize>; 3] = [2000..2045, 0..1, 300..1700];
const POISON: u8 = 0xa5;

/// The queue, with memory that is poisoned.
struct Shared {
    srq: Srq,
    cq: Cq,
    mr: Mr,
}

impl Shared {
    /// Posts a receive into the pieces.
    fn recv(&mut self, wr_id: u64) {
        self.mr.write(0, &[POISON; 4096]).unwrap();
        let entries = ROOM.map(|piece| self.mr.sge(piece).unwrap());
        try_recv_shared(&mut self.srq, |batch| batch.recv(wr_id, &entries)).unwrap();
    }

    /// What the pieces have, one after the other.
    fn pieces(&self) -> Vec<u8> {
        let mut all = vec![0; 4096];
        self.mr.read(0, &mut all).unwrap();
        ROOM.into_iter().flat_map(|piece| all[piece].to_vec()).collect()
    }
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + len) as u8).collect()
}

fn connections<T: Kind>(target: &Target, name: &str) {
    let setup = Setup { inline: 128, ..Setup::default() };
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let srq = context.srq_builder(&pd, 8).max_sge(3).build().unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let mut shared = Shared { srq, cq, mr };
    let peer = target.open_peer();
    let (client_pd, mut client_cq) = (peer.alloc_pd().unwrap(), peer.create_cq(64).unwrap());
    for len in [0, 1, 45, 46, 47, 100] {
        let server = builder::<T>(target, &pd, &shared.cq, &shared.cq, &setup).srq(&shared.srq).build().unwrap();
        let client = builder::<T>(target, &client_pd, &client_cq, &client_cq, &setup).build().unwrap();
        let (server_end, client_end) = (server.endpoint(), client.endpoint());
        let server = connect(server, &client_end, &setup);
        let mut client = connect(client, &server_end, &setup);
        shared.recv(len as u64);
        try_send(&mut client, |batch| batch.send(1, WrFlags::SIGNALED, Inline(&message(len)))).unwrap();
        assert!(completions(&mut client_cq, 1)[0].outcome().is_ok());
        let wc = completions(&mut shared.cq, 1)[0];
        let done = wc.outcome().unwrap();
        assert_eq!((wc.wr_id, wc.qpn(), done.byte_len), (len as u64, server.qpn().get(), len as u32));
        assert_eq!(done.opcode, WcOpcode::RECV);
        let pieces = shared.pieces();
        assert_eq!(pieces[..len], message(len));
        assert!(pieces[len..].iter().all(|byte| *byte == POISON), "{len} bytes, and more was written");
    }
    silent(&mut shared.cq);
    seen::works(&format!("{name} on an SRQ"));
}

fn reliable_connections(target: &Target) {
    connections::<Rc>(target, "RC");
}

fn unreliable_connections(target: &Target) {
    connections::<Uc>(target, "UC");
}

/// The header is the first 40 bytes of the first piece.
fn datagrams(target: &Target) {
    let setup = Setup { inline: 128, ..Setup::default() };
    let mut sender = Side::datagrams(target, target.open(), None, &setup);
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let srq = context.srq_builder(&pd, 8).max_sge(3).build().unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let mut shared = Shared { srq, cq, mr };
    let mut receiver = QpBuilder::ud(&pd, &shared.cq, &shared.cq).port(target.port).qkey(QKEY).srq(&shared.srq);
    if let Some(index) = target.gid_index {
        receiver = receiver.gid_index(index);
    }
    let receiver = receiver.build().unwrap().activate().unwrap();
    let ah = sender.qp.create_ah(&receiver.endpoint()).unwrap();
    let to = ah.to(receiver.qpn(), QKEY);
    for len in [0, 1, 5, 6, 7, 100] {
        shared.recv(len as u64);
        sender.send(|batch| batch.send_to(1, WrFlags::SIGNALED, Inline(&message(len)), to));
        sender.success();
        let wc = completions(&mut shared.cq, 1)[0];
        assert_eq!((wc.wr_id, wc.qpn()), (len as u64, receiver.qpn().get()));
        let pieces = shared.pieces();
        let datagram = Datagram::new(&pieces, &wc).unwrap();
        assert_eq!(datagram.payload, message(len));
        assert_eq!(datagram.grh.map(|grh| grh.sgid), sender.qp.endpoint().gid);
        assert!(pieces[40 + len..].iter().all(|byte| *byte == POISON), "{len} bytes, and more was written");
    }
    silent(&mut shared.cq);
    seen::works("UD on an SRQ");
}
