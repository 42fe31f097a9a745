//! Polling: one and many, partly and past the end.

use crate::fixture::{Pair, Setup};
use crate::target::Target;
use crate::tests;
use ironverbs::{Wc, WrFlags};
use std::mem::MaybeUninit;

tests! {
    one_at_a_time,
    into_memory_as_much_as_it_has_room_for,
    what_was_not_taken_comes_next_time,
    past_the_end_there_is_nothing,
    many_queue_pairs_on_one_completion_queue,
    separate_send_and_receive_queues,
}

/// A pair whose side `a` has `n` completions waiting, numbered from `first`.
fn with_completions(target: &Target, n: u64, first: u64) -> Pair {
    let mut pair = Pair::new(target, &Setup { cq_depth: 31, ..Setup::default() });
    add_completions(target, &mut pair, n, first);
    pair
}

fn add_completions(target: &Target, pair: &mut Pair, n: u64, first: u64) {
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a.send(|batch| {
        (first..first + n).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote))?;
        // Soft-RoCE frees a request's slot just before it adds the completion, so once this one's is free, theirs are there.
        batch.write(u64::MAX, WrFlags::NONE, &[entry], remote)
    });
    pair.a.settle(target);
}

fn ids(all: &[Wc]) -> Vec<u64> {
    all.iter().map(|wc| wc.wr_id).collect()
}

fn one_at_a_time(target: &Target) {
    let mut pair = with_completions(target, 5, 10);
    for id in 10..15 {
        assert_eq!(pair.a.cq.poll_one().unwrap().map(|wc| wc.wr_id), Some(id));
    }
    for _ in 0..100 {
        assert_eq!(pair.a.cq.poll_one().unwrap(), None);
    }
}

fn into_memory_as_much_as_it_has_room_for(target: &Target) {
    let mut pair = with_completions(target, 7, 10);
    let mut room = [const { MaybeUninit::uninit() }; 16];
    let cq = &mut pair.a.cq;
    assert_eq!(ids(cq.poll_into(&mut room[..3]).unwrap()), [10, 11, 12]);
    assert_eq!(ids(cq.poll_into(&mut []).unwrap()), [0; 0], "no room takes nothing");
    assert_eq!(ids(cq.poll_into(&mut room).unwrap()), [13, 14, 15, 16]);
    assert_eq!(ids(cq.poll_into(&mut room).unwrap()), [0; 0]);
}

/// Completions that a poll left alone are not lost, wherever in the ring it stopped.
fn what_was_not_taken_comes_next_time(target: &Target) {
    let mut pair = with_completions(target, 0, 0);
    let mut next = 0;
    for round in 0..40u64 {
        let n = 1 + round % 9;
        add_completions(target, &mut pair, n, next);
        let mut seen = vec![];
        let mut take = round % 4;
        while (seen.len() as u64) < n {
            let mut completions = pair.a.cq.poll().unwrap();
            for _ in 0..take {
                seen.extend(completions.next().map(|completion| completion.wr_id()));
            }
            drop(completions);
            take += 1;
        }
        assert_eq!(seen, (next..next + n).collect::<Vec<_>>());
        next += n;
    }
    pair.a.silent();
}

/// Phantom completions: a consumer that went on past the last entry found old ones again.
fn past_the_end_there_is_nothing(target: &Target) {
    let mut pair = with_completions(target, 1, 0);
    for id in 0..50 {
        let mut completions = pair.a.cq.poll().unwrap();
        assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(id));
        for _ in 0..3 {
            assert!(completions.next().is_none());
        }
        drop(completions);
        for _ in 0..3 {
            assert!(pair.a.cq.poll().unwrap().next().is_none());
        }
        add_completions(target, &mut pair, 1, id + 1);
    }
}

/// Every message of every queue pair is accounted for, and told by its queue pair's number.
fn many_queue_pairs_on_one_completion_queue(target: &Target) {
    use crate::fixture::{completions, connect, prepare, try_recv, try_send};
    use std::collections::BTreeMap;
    const PAIRS: usize = 16;
    const MESSAGES: u64 = 12;
    let setup = Setup { send_wr: MESSAGES as u32, recv_wr: MESSAGES as u32, ..Setup::default() };
    let (a, b) = (target.open(), target.open_peer());
    let (a_pd, b_pd) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let depth = PAIRS as u32 * MESSAGES as u32;
    let (mut a_cq, mut b_cq) = (a.create_cq(depth).unwrap(), b.create_cq(depth).unwrap());
    let mut pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let a = prepare(target, &a_pd, &a_cq, &a_cq, &setup);
            let b = prepare(target, &b_pd, &b_cq, &b_cq, &setup);
            let (a_end, b_end) = (a.endpoint(), b.endpoint());
            (connect(a, &b_end, &setup), connect(b, &a_end, &setup))
        })
        .collect();
    for (_, b) in &mut pairs {
        try_recv(b, |batch| (0..MESSAGES).try_for_each(|id| batch.recv(id, &[]))).unwrap();
    }
    for (a, _) in &mut pairs {
        let qpn = a.qpn().get();
        try_send(a, |batch| {
            (0..MESSAGES).try_for_each(|id| batch.send_imm(id, WrFlags::SIGNALED, &[], qpn ^ id as u32))
        })
        .unwrap();
    }
    let mut sent: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for wc in completions(&mut a_cq, PAIRS * MESSAGES as usize) {
        wc.outcome().unwrap();
        sent.entry(wc.qpn()).or_default().push(wc.wr_id);
    }
    let mut received: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for wc in completions(&mut b_cq, PAIRS * MESSAGES as usize) {
        let (a, _) = pairs.iter().find(|(_, b)| b.qpn().get() == wc.qpn()).expect("a queue pair of ours");
        assert_eq!(wc.outcome().unwrap().imm, Some(a.qpn().get() ^ wc.wr_id as u32));
        received.entry(wc.qpn()).or_default().push(wc.wr_id);
    }
    let all: Vec<_> = (0..MESSAGES).collect();
    for (a, b) in &pairs {
        assert_eq!((&sent[&a.qpn().get()], &received[&b.qpn().get()]), (&all, &all));
    }
    crate::fixture::silent(&mut a_cq);
    crate::fixture::silent(&mut b_cq);
}

/// Sends complete on the one queue, receives on the other.
fn separate_send_and_receive_queues(target: &Target) {
    use crate::fixture::{completions, connect, prepare, silent, try_recv, try_send};
    let setup = Setup::default();
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let [mut send_cq, mut recv_cq, mut peer_cq] = [(); 3].map(|()| context.create_cq(32).unwrap());
    let one = prepare(target, &pd, &send_cq, &recv_cq, &setup);
    let peer = prepare(target, &pd, &peer_cq, &peer_cq, &setup);
    let (one_end, peer_end) = (one.endpoint(), peer.endpoint());
    let (mut one, mut peer) = (connect(one, &peer_end, &setup), connect(peer, &one_end, &setup));
    try_recv(&mut one, |batch| batch.recv(1, &[])).unwrap();
    try_recv(&mut peer, |batch| batch.recv(2, &[])).unwrap();
    try_send(&mut one, |batch| batch.send(3, WrFlags::SIGNALED, &[])).unwrap();
    assert_eq!(ids(&completions(&mut send_cq, 1)), [3]);
    silent(&mut recv_cq);
    try_send(&mut peer, |batch| batch.send(4, WrFlags::SIGNALED, &[])).unwrap();
    assert_eq!(ids(&completions(&mut recv_cq, 1)), [1]);
    silent(&mut send_cq);
    let mut both = ids(&completions(&mut peer_cq, 2));
    both.sort();
    assert_eq!(both, [2, 4]);
}
