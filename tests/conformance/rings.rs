//! Every ring around many times, so that each slot is used again after a request of another shape.

use crate::fixture::{Pair, Patience, Setup, Side};
use crate::harness::step;
use crate::opcodes::{Local, Op, exchange, pair_of_widest, scatter};
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{Inline, WcOpcode, WrFlags};
use std::collections::VecDeque;

tests! {
    slots_keep_nothing_of_earlier_requests,
    rings_of_different_sizes_wrap_under_load,
    completions_are_never_read_twice,
    packet_numbers_wrap,
}

/// A long list of entries, then a short one in the same slot, then none, then inline bytes: old entries, lengths and
/// positions left in a slot would show as wrong bytes at the peer.
fn slots_keep_nothing_of_earlier_requests(target: &Target) {
    let mut rng = Rng::with_seed(31);
    let mut pair =
        Pair::new(target, &Setup { send_wr: 3, recv_wr: 3, send_sge: 6, recv_sge: 6, cq_depth: 3, ..Setup::default() });
    pair.scramble(&mut rng);
    let ops = [Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read];
    let most = pair.a.qp.cap().max_send_sge as usize;
    for n in 0..160 {
        let op = ops[rng.usize(..ops.len())];
        let lens = |rng: &mut Rng, most| (0..rng.usize(0..=most)).map(|_| rng.usize(0..200)).collect::<Vec<_>>();
        let local = match rng.u8(0..4) {
            0 if op != Op::Read => Local::Inline(rng.usize(0..=64)),
            1 if op != Op::Read => Local::InlinePieces(vec![rng.usize(0..20), rng.usize(0..20), rng.usize(0..20)]),
            _ => Local::Sges(lens(&mut rng, most)),
        };
        let total: usize = match &local {
            Local::Inline(len) => *len,
            Local::InlinePieces(lens) | Local::Sges(lens) => lens.iter().sum(),
        };
        let mut room = vec![total + rng.usize(0..9)];
        while room.len() < rng.usize(1..=6) {
            let (i, last) = (rng.usize(..room.len()), room.len());
            room.push(room[i] / 2);
            room[i] -= room[last];
        }
        step(format!("request {n}: {op:?} of {local:?} into {room:?}"));
        exchange(target, &mut pair, op, &local, &room, &mut rng);
        if n % 7 == 0 {
            pair.swap();
        }
    }
    step("the widest the device has");
    let mut pair = pair_of_widest::<ironverbs::Rc>(target);
    pair.scramble(&mut rng);
    let most = pair.a.qp.cap().max_send_sge as usize;
    for n in 0..3 * pair.a.qp.cap().max_send_wr as usize {
        let count = if n % 2 == 0 { most } else { n % 3 };
        exchange(target, &mut pair, Op::Write, &Local::Sges(vec![3; count]), &[], &mut rng);
    }
}

/// Many requests in flight at once, on rings whose sizes have no common divisor, with batches of changing length.
fn rings_of_different_sizes_wrap_under_load(target: &Target) {
    const MESSAGES: u64 = 600;
    let mut rng = Rng::with_seed(32);
    let setup = Setup { send_wr: 7, recv_wr: 15, cq_depth: 31, send_sge: 3, recv_sge: 2, ..Setup::default() };
    let mut pair = Pair::new(target, &setup);
    pair.scramble(&mut rng);
    let receive_slots = pair.b.qp.cap().max_recv_wr as usize;
    let receive_area = |slot: usize| 16 * 1024 + slot * 256;
    let mut waiting = VecDeque::new();
    let (mut posted, mut received, mut sent, mut done) = (0, 0, 0, 0);
    let patience = Patience::new();
    while received < MESSAGES {
        patience.check("all messages are received");
        step(format!("{received} of {MESSAGES} received, {sent} sent"));
        // As many receives as there is room for, in batches of one to four.
        while posted < MESSAGES && posted - received < receive_slots as u64 {
            let n = rng.u64(1..5).min(MESSAGES - posted).min(receive_slots as u64 - (posted - received));
            let entries: Vec<_> = (posted..posted + n)
                .map(|id| {
                    let at = receive_area(id as usize % receive_slots);
                    [pair.b.sge(at, 10 + (id % 50) as usize), pair.b.sge(at + 80, 150)]
                })
                .collect();
            pair.b
                .try_recv(|batch| (posted..).zip(&entries).try_for_each(|(id, entry)| batch.recv(id, entry)))
                .unwrap();
            posted += n;
        }
        // Some sends, each of its own shape, every third one signaled and so the last of each batch.
        let room = u64::from(pair.a.qp.send_batch().remaining()).min(posted - sent);
        let n = rng.u64(0..=room);
        let mut batch = vec![];
        for _ in 0..n {
            let lens: Vec<_> = (0..rng.usize(0..=3)).map(|_| rng.usize(1..50)).collect();
            let pieces = scatter(&lens, 0..1024, &mut rng);
            let payload: Vec<u8> = pieces.iter().flat_map(|p| pair.a.image[p.clone()].to_vec()).collect();
            batch.push((pair.a.sges(&pieces), payload));
        }
        pair.a.send(|b| {
            for (i, (entries, payload)) in batch.iter().enumerate() {
                let id = sent + i as u64;
                let flags =
                    if id.is_multiple_of(3) || i + 1 == batch.len() { WrFlags::SIGNALED } else { WrFlags::NONE };
                match payload.len() {
                    1..=64 if id.is_multiple_of(5) => b.send_imm(id, flags, Inline(payload), id as u32)?,
                    _ => b.send_imm(id, flags, &entries[..], id as u32)?,
                }
            }
            Ok(())
        });
        waiting.extend(batch.into_iter().map(|(_, payload)| payload));
        sent += n;
        // What arrived: in order, each with its own payload.
        while let Some(wc) = pair.b.cq.poll_one().unwrap() {
            let payload = waiting.pop_front().unwrap();
            let outcome = wc.outcome().unwrap();
            assert_eq!((wc.wr_id, outcome.imm), (received, Some(received as u32)));
            assert_eq!(outcome.byte_len as usize, payload.len(), "message {received}");
            let at = receive_area(received as usize % receive_slots);
            let first = (10 + (received % 50) as usize).min(payload.len());
            let mut now = pair.b.bytes(at, first);
            now.extend(pair.b.bytes(at + 80, payload.len() - first));
            assert_eq!(now, payload, "message {received}");
            received += 1;
        }
        done += drain_sends(&mut pair.a, done);
    }
    while done < MESSAGES {
        patience.check("all sends are done");
        done += drain_sends(&mut pair.a, done);
    }
    pair.a.silent();
    pair.b.silent();
}

/// Polls what sends are done and returns by how many messages that goes on. Completions come in order.
fn drain_sends(side: &mut Side, done: u64) -> u64 {
    let mut last = None;
    while let Some(wc) = side.cq.poll_one().unwrap() {
        assert_eq!(wc.outcome().unwrap().opcode, WcOpcode::SEND);
        assert!(wc.wr_id >= done && last.is_none_or(|last| wc.wr_id > last), "{} after {last:?}", wc.wr_id);
        last = Some(wc.wr_id);
    }
    last.map_or(0, |last| last + 1 - done)
}

/// A small completion queue around often, with bursts that stop at every place in it; requests are numbered, so an entry
/// read twice, or read before it was written, shows.
fn completions_are_never_read_twice(target: &Target) {
    let mut rng = Rng::with_seed(33);
    let mut pair = Pair::new(target, &Setup { cq_depth: 5, send_wr: 64, ..Setup::default() });
    let capacity = pair.a.cq.capacity().min(60) as usize;
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    let mut next = 0;
    for _ in 0..200 {
        let burst = rng.usize(1..=capacity) as u64;
        pair.a
            .send(|batch| (next..next + burst).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
        for wc in pair.a.successes(burst as usize) {
            assert_eq!(wc.wr_id, next);
            next += 1;
        }
        assert_eq!(pair.a.cq.poll_one().unwrap(), None);
    }
    pair.a.silent();
}

/// Reports of connections dying when 24-bit packet numbers pass zero: they start just below, and messages of one and of
/// several packets, and READs, cross it.
fn packet_numbers_wrap(target: &Target) {
    let mut rng = Rng::with_seed(34);
    let psn = Some(ironverbs::Psn::new(0xff_fff0).unwrap());
    for several_packets in [false, true] {
        let mut pair = Pair::new(target, &Setup { psn, ..Setup::default() });
        pair.scramble(&mut rng);
        assert_eq!(Some(pair.a.qp.endpoint().psn), psn);
        let mtu = pair.mtu() as usize;
        for n in 0..64 {
            let len = if several_packets { rng.usize(1..3 * mtu).min(12_000) } else { rng.usize(1..mtu) };
            let op = [Op::Send, Op::Write, Op::Read, Op::WriteImm][n % 4];
            step(format!("message {n}: {op:?} of {len} bytes"));
            exchange(target, &mut pair, op, &Local::Sges(vec![len]), &[len], &mut rng);
            pair.swap();
        }
    }
}
