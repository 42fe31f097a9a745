//! Datagrams: every shape of payload, over IPv4 and IPv6, their headers, keys and addresses.

use crate::fixture::{DATAGRAM_ROOM, QKEY, Setup, Side, assert_sent};
use crate::harness::{skip, step};
use crate::opcodes::scatter;
use crate::seen;
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AddressHandle, Datagram, Error, Gid, GidEntry, GidIndex, GidType, GrhKind, Inline, InlinePieces, Lid, Path,
    Payload, Pool, PostError, Psn, QKey, QpBuilder, QpState, QpUpdate, Ud, WcOpcode, WrFlags,
};
use std::net::IpAddr;

tests! {
    every_shape_over_every_kind_of_gid,
    send_imm,
    way_back_from_a_completion,
    longer_than_a_packet_is_refused,
    receive_without_room_for_the_header_is_refused,
    wrong_key_is_not_received,
    no_receive_is_no_error,
    address_that_does_not_answer_is_told,
    address_without_a_gid_is_refused,
    address_handle_may_be_dropped_any_time,
    address_handle_of_another_domain_is_refused,
    key_of_a_queue_pair_can_change,
    slots_and_scopes_send_datagrams,
    packet_numbers_wrap,
}

/// Bytes of which no test's payload or header is made.
const POISON: u8 = 0xa5;

/// One GID of each address family, global ones first, with the kind of header that its datagrams have.
fn gids(target: &Target) -> Vec<(GidIndex, Gid, GrhKind)> {
    let mut table: Vec<GidEntry> = target.open().gid_table().unwrap();
    table.retain(|entry| entry.port == target.port && entry.gid_type != GidType::ROCE_V1);
    table.sort_by_key(|entry| entry.gid.is_link_local());
    let kind = |entry: &GidEntry| match (entry.gid_type, entry.gid.to_ipv4()) {
        (GidType::ROCE_V2, Some(_)) => GrhKind::Ipv4,
        (GidType::ROCE_V2, None) => GrhKind::Ipv6,
        _ => GrhKind::Grh,
    };
    let mut chosen: Vec<(GidIndex, Gid, GrhKind)> = vec![];
    for entry in table {
        if chosen.iter().all(|(_, _, other)| *other != kind(&entry)) {
            chosen.push((GidIndex(entry.index as u8), entry.gid, kind(&entry)));
        }
    }
    assert!(!chosen.is_empty());
    chosen
}

/// Two queue pairs on the same device, with the GID at `index`.
fn sides(target: &Target, index: Option<GidIndex>) -> (Side<Ud>, Side<Ud>) {
    let setup = Setup { mr_bytes: 64 * 1024, inline: 128, ..Setup::default() };
    let side = || Side::datagrams(target, target.open(), index, &setup);
    (side(), side())
}

/// Where a datagram is received: poisoned before, so that what is not written is seen.
fn post_receive(side: &mut Side<Ud>, wr_id: u64) {
    let at = side.image.len() - DATAGRAM_ROOM;
    side.put(at, &[POISON; DATAGRAM_ROOM]);
    let entry = side.sge(at, DATAGRAM_ROOM);
    side.recv(wr_id, &[entry]);
}

/// The buffer of [`post_receive`].
fn received(side: &Side<Ud>) -> Vec<u8> {
    side.bytes(side.image.len() - DATAGRAM_ROOM, DATAGRAM_ROOM)
}

/// One, several and no pieces, inline or not, up to the longest there is; the receive buffer is poisoned, so that the 20
/// bytes that IPv4 leaves undefined cannot be taken for anything.
fn every_shape_over_every_kind_of_gid(target: &Target) {
    let mut rng = Rng::with_seed(71);
    for (index, gid, kind) in gids(target) {
        let (mut a, mut b) = sides(target, Some(index));
        a.scramble(&mut rng);
        let mtu = a.qp.endpoint().mtu.unwrap().bytes() as usize;
        let (most, inline) = (a.qp.cap().max_send_sge as usize, a.qp.cap().max_inline_data as usize);
        let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
        let to = ah.to(b.qp.qpn(), QKEY);
        let shapes: Vec<Vec<usize>> =
            vec![vec![], vec![1], vec![7], vec![mtu - 1], vec![mtu], vec![8; most], vec![5, 0, 9], vec![1, mtu - 4, 3]];
        for lens in &shapes {
            for whole in [true, false] {
                let len: usize = lens.iter().sum();
                if !whole && len > inline {
                    continue;
                }
                step(format!("{kind:?}: {lens:?}, of registered memory: {whole}"));
                let (sent_id, received_id) = (rng.u64(..), rng.u64(..));
                post_receive(&mut b, received_id);
                let from = scatter(lens, 0..16 * 1024, &mut rng);
                let bytes: Vec<Vec<u8>> = from.iter().map(|piece| a.image[piece.clone()].to_vec()).collect();
                let pieces: Vec<&[u8]> = bytes.iter().map(|piece| &piece[..]).collect();
                let sges = a.sges(&from);
                let payload = if whole { Payload::from(&sges[..]) } else { InlinePieces(&pieces).into() };
                a.send(|batch| batch.send_to(sent_id, WrFlags::SIGNALED, payload, to));
                assert_sent(&a.completions(1)[0], sent_id, &a.qp, WcOpcode::SEND);
                let wc = b.success();
                let done = wc.outcome().unwrap();
                assert_eq!((wc.wr_id, wc.qpn(), done.opcode), (received_id, b.qp.qpn().get(), WcOpcode::RECV));
                assert_eq!((done.byte_len as usize, done.imm), (40 + len, None), "the header counts");
                let buffer = received(&b);
                assert!(buffer[40 + len..].iter().all(|byte| *byte == POISON), "nothing is written after the payload");
                let datagram = Datagram::new(&buffer, &wc).unwrap();
                assert_eq!(datagram.payload, pieces.concat());
                let grh = datagram.grh.unwrap();
                assert_eq!((grh.kind, grh.sgid, grh.dgid), (kind, gid, gid));
                assert!(grh.hop_limit > 1, "routers let it pass: {grh:?}");
                let source = wc.source().unwrap();
                assert_eq!((source.qpn, source.sl), (a.qp.qpn(), 0));
            }
        }
        a.silent();
        b.silent();
    }
    seen::works("UD SEND");
}

fn send_imm(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    for imm in [0x1122_3344, 0, u32::MAX] {
        post_receive(&mut b, 1);
        a.send(|batch| batch.send_imm_to(2, WrFlags::SIGNALED, Inline(b"abc"), imm, ah.to(b.qp.qpn(), QKEY)));
        assert_sent(&a.completions(1)[0], 2, &a.qp, WcOpcode::SEND);
        let wc = b.success();
        assert_eq!(wc.outcome().unwrap().imm, Some(imm));
        assert_eq!(Datagram::new(&received(&b), &wc).unwrap().payload, b"abc");
    }
    seen::works("UD SEND with immediate");
}

/// A server that knows no client before it hears from it.
fn way_back_from_a_completion(target: &Target) {
    for (index, _, kind) in gids(target) {
        step(format!("{kind:?}"));
        let (mut a, mut b) = sides(target, Some(index));
        let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
        post_receive(&mut b, 1);
        a.send(|batch| batch.send_to(2, WrFlags::SIGNALED, Inline(b"ping"), ah.to(b.qp.qpn(), QKEY)));
        a.success();
        let wc = b.success();
        let buffer = received(&b);
        let datagram = Datagram::new(&buffer, &wc).unwrap();
        let back = b.qp.create_ah_from(&wc, &datagram).unwrap();
        assert_eq!(back.path().grh.unwrap().sgid_index, index, "the GID it was sent to");
        assert_eq!(back.path().grh.unwrap().dgid, a.qp.endpoint().gid.unwrap());
        post_receive(&mut a, 3);
        let to = back.to(wc.source().unwrap().qpn, QKEY);
        b.send(|batch| batch.send_to(4, WrFlags::SIGNALED, Inline(b"pong"), to));
        b.success();
        let wc = a.success();
        assert_eq!(Datagram::new(&received(&a), &wc).unwrap().payload, b"pong");
    }
    seen::works("AH from a completion");
}

/// Drivers call it a success and drop it.
fn longer_than_a_packet_is_refused(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    let mtu = a.qp.endpoint().mtu.unwrap().bytes() as usize;
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    let to = ah.to(b.qp.qpn(), QKEY);
    for lens in [vec![mtu + 1], vec![mtu, 1], vec![1 << 15]] {
        let sges: Vec<_> = lens.iter().map(|len| a.sge(0, *len)).collect();
        let refused = a.try_send(|batch| batch.send_to(1, WrFlags::SIGNALED, &sges[..], to));
        assert_eq!(refused, Err(PostError::DatagramTooLong));
    }
    let text = a.qp.explain(ironverbs::Verb::PostSend, PostError::DatagramTooLong).to_string();
    assert!(text.starts_with(&format!("post_send: datagram is longer than {mtu} bytes; ")), "{text}");
    post_receive(&mut b, 2);
    let whole = a.sge(0, mtu);
    a.send(|batch| batch.send_to(3, WrFlags::SIGNALED, &[whole], to));
    assert_eq!((a.success().wr_id, b.success().wr_id), (3, 2), "what was refused is not in the queue");
}

fn receive_without_room_for_the_header_is_refused(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    for lens in [vec![], vec![39], vec![20, 19]] {
        let sges: Vec<_> = lens.iter().map(|len| b.sge(0, *len)).collect();
        assert_eq!(b.try_recv(|batch| batch.recv(1, &sges)), Err(PostError::NoRoomForGrh), "{lens:?}");
    }
    let sges = [b.sge(0, 20), b.sge(100, 20)];
    b.recv(2, &sges);
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    a.send(|batch| batch.send_to(3, WrFlags::SIGNALED, &[], ah.to(b.qp.qpn(), QKEY)));
    a.success();
    let wc = b.success();
    assert_eq!((wc.wr_id, wc.outcome().unwrap().byte_len), (2, 40));
}

fn wrong_key_is_not_received(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    post_receive(&mut b, 1);
    a.send(|batch| batch.send_to(2, WrFlags::SIGNALED, Inline(b"x"), ah.to(b.qp.qpn(), QKey(QKEY.0 + 1))));
    a.success();
    b.silent();
    assert_eq!(b.qp.query().unwrap().qp_state, QpState::RTS);
    a.send(|batch| batch.send_to(3, WrFlags::SIGNALED, Inline(b"y"), ah.to(b.qp.qpn(), QKEY)));
    a.success();
    let wc = b.success();
    assert_eq!(Datagram::new(&received(&b), &wc).unwrap().payload, b"y");
}

/// The device would end the queue pair, with nothing but flushed requests to tell why.
fn address_handle_of_another_domain_is_refused(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    let own = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    let pool = Pool::new(&a.pd, 1, 64).unwrap();
    for context in [a.context.clone(), target.open()] {
        let foreign = context.alloc_pd().unwrap().create_ah(own.path()).unwrap();
        let to = foreign.to(b.qp.qpn(), QKEY);
        let refused = a.try_send(|batch| batch.send_to(1, WrFlags::SIGNALED, Inline(b"x"), to));
        assert_eq!(refused, Err(PostError::ForeignPd));
        let refused = a.qp.send_slot_to(pool.take().unwrap(), 8, to).unwrap_err();
        assert_eq!((refused.error, refused.slot.is_some()), (PostError::ForeignPd, true));
    }
    post_receive(&mut b, 2);
    a.send(|batch| batch.send_to(3, WrFlags::SIGNALED, Inline(b"y"), own.to(b.qp.qpn(), QKEY)));
    assert_eq!((a.success().wr_id, b.success().wr_id), (3, 2));
}

fn no_receive_is_no_error(target: &Target) {
    let (mut a, b) = sides(target, None);
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    for wr_id in 0..20 {
        a.send(|batch| batch.send_to(wr_id, WrFlags::SIGNALED, Inline(b"x"), ah.to(b.qp.qpn(), QKEY)));
        a.success();
    }
    assert_eq!(a.qp.query().unwrap().qp_state, QpState::RTS);
}

/// The kernel looks up the peer's link address when it makes an address handle.
fn address_that_does_not_answer_is_told(target: &Target) {
    let (a, _) = sides(target, None);
    let Some(own) = a.qp.endpoint().gid.and_then(Gid::to_ipv4) else {
        skip("the chosen GID is no IPv4 address");
    };
    let [first, second, third, _] = own.octets();
    let nobody = Gid::from(IpAddr::from([first, second, third, 251]));
    let path = Path::to_gid(a.port, a.gid_index.unwrap(), nobody);
    let Err(error) = a.pd.create_ah(&path) else {
        skip("the network device needs no link addresses, so every peer seems to answer");
    };
    let text = error.to_string();
    assert!(text.starts_with("create_ah: "), "{text}");
    let shown = |gid: Gid| std::net::Ipv6Addr::from(gid.0).to_string();
    assert!(text.contains(&shown(nobody)) && text.contains(&shown(Gid::from(IpAddr::from(own)))), "{text}");
    assert!(text.contains(&format!("GID index {}", a.gid_index.unwrap())) && text.contains("4791"), "{text}");
}

fn address_without_a_gid_is_refused(target: &Target) {
    let (a, b) = sides(target, None);
    if b.qp.endpoint().lid != Lid(0) {
        skip("an InfiniBand port is reached by LID");
    }
    let error = a.qp.create_ah(&ironverbs::Endpoint { gid: None, ..b.qp.endpoint() }).unwrap_err();
    let text = "create_ah: peer's GID is missing; a RoCE port is reached by GID only; the path needs a GRH";
    assert_eq!(error.to_string(), text);
    let mut path = Path::to_gid(a.port, GidIndex(200), b.qp.endpoint().gid.unwrap());
    let error = a.pd.create_ah(&path).unwrap_err();
    assert!(error.to_string().contains("GID index is 200; that entry is empty"), "{error}");
    path = Path { sl: 16, ..Path::to_gid(a.port, a.gid_index.unwrap(), b.qp.endpoint().gid.unwrap()) };
    assert_eq!(a.pd.create_ah(&path).unwrap_err().to_string(), "create_ah: service level is 16; at most 15");
}

/// Its datagrams leave all the same, and the next one works: also while the queue is full of them, several times around.
fn address_handle_may_be_dropped_any_time(target: &Target) {
    const AT_ONCE: u64 = 20;
    let (mut a, mut b) = sides(target, None);
    for round in 0..20 {
        for id in 0..AT_ONCE {
            post_receive(&mut b, id);
        }
        for id in 0..AT_ONCE {
            let ah: AddressHandle = a.qp.create_ah(&b.qp.endpoint()).unwrap();
            a.send(|batch| batch.send_to(id, WrFlags::SIGNALED, Inline(b"x"), ah.to(b.qp.qpn(), QKEY)));
        }
        step(format!("round {round}"));
        for (id, wc) in (0..).zip(a.successes(AT_ONCE as usize)) {
            assert_eq!(wc.wr_id, id);
        }
        for (id, wc) in (0..).zip(b.successes(AT_ONCE as usize)) {
            assert_eq!(wc.wr_id, id);
        }
    }
    drop((a.pd, a.qp));
    assert!(a.context.leaks().is_empty(), "{:?}", a.context.leaks());
    seen::works("AH create");
}

fn key_of_a_queue_pair_can_change(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    b.qp.modify(&QpUpdate::to(QpState::RTS).qkey(QKey(0x2222_2222))).unwrap();
    assert_eq!(b.qp.query().unwrap().qkey, 0x2222_2222);
    post_receive(&mut b, 1);
    a.send(|batch| batch.send_to(2, WrFlags::SIGNALED, Inline(b"old"), ah.to(b.qp.qpn(), QKEY)));
    a.send(|batch| batch.send_to(3, WrFlags::SIGNALED, Inline(b"new"), ah.to(b.qp.qpn(), QKey(0x2222_2222))));
    a.successes(2);
    let wc = b.success();
    assert_eq!(Datagram::new(&received(&b), &wc).unwrap().payload, b"new");
    // A controlled key takes a privilege.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    const CAP_NET_RAW: u32 = 13;
    let privileged = u64::from_str_radix(effective, 16).unwrap() >> CAP_NET_RAW & 1 != 0;
    let (context, pd, cq) = (&b.context, &b.pd, &b.cq);
    match QpBuilder::ud(pd, cq, cq).port(target.port).qkey(QKey(0x8000_0001)).build() {
        Ok(prepared) => {
            assert!(privileged, "a plain user set a controlled key");
            assert_eq!(prepared.activate().unwrap().query().unwrap().qkey, 0x8000_0001);
            seen::works("UD controlled Q_Key");
        }
        Err(error) => {
            assert!(!privileged, "{error}");
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
            assert!(matches!(error, Error::Kernel { .. }));
        }
    }
    assert!(context.leaks().is_empty());
}

fn slots_and_scopes_send_datagrams(target: &Target) {
    let (mut a, mut b) = sides(target, None);
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    let to = ah.to(b.qp.qpn(), QKEY);
    let pool = ironverbs::Pool::new(&b.pd, 2, 40 + 64).unwrap();
    let short = ironverbs::Pool::new(&b.pd, 1, 39).unwrap();
    let refused = b.qp.recv_slot(short.take().unwrap()).unwrap_err();
    assert_eq!(refused.error, PostError::NoRoomForGrh);
    b.qp.recv_slot(pool.take().unwrap()).unwrap();
    a.qp.scope(&mut a.cq, crate::fixture::PATIENCE, |scope| {
        scope.send_to(b"of borrowed memory", to)?;
        scope.wait().map(drop)
    })
    .unwrap();
    crate::fixture::eventually("the datagram comes", || {
        let mut completions = b.cq.poll().unwrap();
        let Some(completion) = completions.next() else { return false };
        let (slot, wc) = pool.reclaim(completion).unwrap();
        assert_eq!(Datagram::new(&slot, &wc).unwrap().payload, b"of borrowed memory");
        true
    });
    let own = ironverbs::Pool::new(&a.pd, 1, 64).unwrap();
    let mut slot = own.take().unwrap();
    slot[..4].copy_from_slice(b"slot");
    b.qp.recv_slot(pool.take().unwrap()).unwrap();
    a.qp.send_imm_slot_to(slot, 4, 7, to).unwrap();
    let wc = b.success();
    assert_eq!((wc.outcome().unwrap().imm, wc.outcome().unwrap().byte_len), (Some(7), 44));
}

/// Each datagram has a packet number of 24 bits, one more than the last.
fn packet_numbers_wrap(target: &Target) {
    let psn = Psn::new(0xff_fff0).unwrap();
    let setup = Setup { psn: Some(psn), ..Setup::default() };
    let mut a = Side::datagrams(target, target.open(), None, &setup);
    let mut b = Side::datagrams(target, target.open_peer(), None, &Setup::default());
    assert_eq!((a.qp.endpoint().psn, a.qp.query().unwrap().sq_psn), (psn, psn.get()));
    let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
    let to = ah.to(b.qp.qpn(), QKEY);
    for n in 0..40_u32 {
        post_receive(&mut b, u64::from(n));
        a.send(|batch| batch.send_imm_to(1, WrFlags::SIGNALED, Inline(&n.to_le_bytes()), n, to));
        a.success();
        let wc = b.success();
        assert_eq!((wc.wr_id, wc.outcome().unwrap().imm), (u64::from(n), Some(n)));
    }
}
