//! Completion queues as such: their size, changed under traffic, their load, their vectors, and what becomes of completions
//! whose queue pair is gone.

use crate::fixture::{
    Half, PATIENCE, Pair, Patience, SHORT, Setup, builder, connect, pass, patient, prepare, receives_may_be_late,
    recv_early, try_recv, try_send,
};
use crate::harness::step;
use crate::seen;
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{CqDepth, CqId, Errno, Error, Notify, Pool, Qp, QpBuilder, Rc, WcStatus, WrFlags};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

tests! {
    resized_under_traffic,
    resized_between_batches_that_were_cut_short,
    waited_for_after_a_batch_that_was_forgotten,
    too_small_a_size_is_refused_and_changes_nothing,
    sizes_are_checked,
    keeps_its_channel_when_resized,
    load_tells_what_its_queue_pairs_can_put_into_it,
    vectors_are_checked,
    several_queues_on_one_channel_tell_which_they_are,
    completions_of_destroyed_queue_pairs_keep_their_numbers,
    slots_of_destroyed_queue_pairs_come_to_nobody_else,
}

fn number(name: &str, default: u64) -> u64 {
    let number = std::env::var(format!("IRONVERBS_TEST_{name}")).ok();
    number.map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("IRONVERBS_TEST_{name} is a number")))
}

/// Up and down, a thousand times, with completions in it and more on their way: none is lost, none comes twice.
fn resized_under_traffic(target: &Target) {
    const RESIZES: u64 = 1000;
    let mut rng = Rng::with_seed(41);
    let mut pair = Pair::new(target, &Setup { send_wr: 64, ..Setup::default() });
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    let (mut sent, mut done) = (0, 0);
    let mut most = 0;
    for resize in 0..RESIZES {
        step(format!("resize {resize}, {done} of {sent} done"));
        let n = rng.u64(0..=32).min(48 - (sent - done));
        pair.a.send(|batch| (sent..sent + n).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
        sent += n;
        if !target.kind.is_rxe() {
            // A device whose commands take no time is given some for its work.
            pass(Duration::from_micros(300));
        }
        // Never fewer than are under way.
        let depth = rng.u32(48..400);
        pair.a.cq.resize(depth).unwrap();
        assert!(pair.a.cq.capacity() >= depth);
        let mut completions = pair.a.cq.poll().unwrap();
        let mut here = 0;
        for _ in 0..rng.u64(0..40) {
            let Some(completion) = completions.next() else { break };
            assert_eq!((completion.wr_id(), completion.status()), (done, WcStatus::SUCCESS));
            done += 1;
            here += 1;
        }
        most = most.max(here);
    }
    let patience = Patience::new();
    while done < sent {
        match pair.a.cq.poll_one().unwrap() {
            Some(wc) => {
                assert_eq!(wc.wr_id, done);
                done += 1;
            }
            None => patience.check("the rest"),
        }
    }
    assert!(sent > RESIZES && most > 1, "there was no traffic worth the name: {sent} sent, {most} at once");
    pair.a.silent();
    seen::works("CQ resize");
}

/// What was read is not carried over, also if the batch never ended.
fn resized_between_batches_that_were_cut_short(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a.send(|batch| (0..20).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
    pair.a.settle(target);
    for (first, depth, forget) in [(0, 300, false), (4, 20, true), (8, 500, true), (12, 20, false)] {
        let mut completions = pair.a.cq.poll().unwrap();
        for id in first..first + 4 {
            assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(id));
        }
        if forget {
            std::mem::forget(completions);
        } else {
            drop(completions);
        }
        pair.a.cq.resize(depth).unwrap();
    }
    for id in 16..20 {
        assert_eq!(pair.a.cq.poll_one().unwrap().map(|wc| wc.wr_id), Some(id));
    }
    pair.a.silent();
}

/// What was read is room again once the queue is waited for, also if the batch never ended.
fn waited_for_after_a_batch_that_was_forgotten(target: &Target) {
    let mut pair = Pair::new(target, &Setup { channel: true, cq_depth: 4, ..Setup::default() });
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    let capacity = u64::from(pair.a.cq.capacity());
    pair.a.send(|batch| (0..capacity).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
    pair.a.settle(target);
    let mut completions = pair.a.cq.poll().unwrap();
    for id in 0..capacity {
        assert_eq!(completions.next().map(|completion| completion.wr_id()), Some(id));
    }
    std::mem::forget(completions);
    assert!(!pair.a.cq.wait(SHORT).unwrap());
    pair.a.send(|batch| batch.write(77, WrFlags::SIGNALED, &[entry], remote));
    assert!(pair.a.cq.wait(PATIENCE).unwrap());
    assert_eq!(pair.a.cq.poll_one().unwrap().map(|wc| wc.wr_id), Some(77));
}

fn too_small_a_size_is_refused_and_changes_nothing(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    let capacity = pair.a.cq.capacity();
    pair.a.send(|batch| (0..20).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
    pair.a.settle(target);
    let error = pair.a.cq.resize(19).unwrap_err();
    if target.kind.is_rxe() {
        assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
        assert!(error.to_string().contains("more than 19 completions may be in it"), "{error}");
    } else {
        assert!(error.to_string().contains("the queue holds 20 completions: poll them first"), "{error}");
    }
    assert_eq!(pair.a.cq.capacity(), capacity);
    pair.a.cq.resize(20).unwrap();
    assert!((20..capacity).contains(&pair.a.cq.capacity()), "smaller than {capacity}");
    let ids: Vec<_> = pair.a.successes(20).iter().map(|wc| wc.wr_id).collect();
    assert!(ids.into_iter().eq(0..20));
    pair.a.silent();
}

fn sizes_are_checked(target: &Target) {
    let context = target.open();
    let most = context.attr().max_cqe;
    let mut cq = context.create_cq(8).unwrap();
    for depth in [0, most + 1] {
        for error in [context.create_cq(depth).unwrap_err(), cq.resize(depth).unwrap_err()] {
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            assert!(error.to_string().contains(&most.to_string()), "{error}");
        }
    }
    cq.resize(most).unwrap();
    assert!(cq.capacity() >= most);
}

fn keeps_its_channel_when_resized(target: &Target) {
    let mut pair = Pair::new(target, &Setup { channel: true, ..Setup::default() });
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    for round in 0..20 {
        pair.a.cq.arm(Notify::Any).unwrap();
        pair.a.cq.resize(16 + round * 20).unwrap();
        pair.a.send(|batch| batch.write(round.into(), WrFlags::SIGNALED, &[entry], remote));
        let channel = pair.a.channel.as_ref().unwrap();
        assert!(channel.wait(Duration::from_secs(20)).unwrap(), "round {round}");
        let mut told = vec![];
        channel.drain(|id| told.push(id)).unwrap();
        assert_eq!(told, [pair.a.cq.id()]);
        assert_eq!(pair.a.success().wr_id, u64::from(round));
    }
}

/// The program is told, and not refused: it may know that it has less under way.
fn load_tells_what_its_queue_pairs_can_put_into_it(target: &Target) {
    let context = target.open();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(32).unwrap());
    let capacity = cq.capacity();
    let one = CqDepth::new().queue_pairs(1, 16, 16).entries();
    assert!(capacity < 3 * one, "a queue of 32 holds {capacity}, and is never short here");
    let mut made = vec![];
    for n in 1..=3 {
        let prepared = QpBuilder::rc(&pd, &cq, &cq).port(target.port).max_send_wr(16).max_recv_wr(16).build().unwrap();
        let load = cq.load();
        assert_eq!((load.queue_pairs, load.demand, load.capacity), (n, u64::from(n * one), capacity));
        assert_eq!(prepared.short_cq().is_some(), load.is_short(), "{load}");
        made.push(prepared);
    }
    let short = made[2].short_cq().unwrap();
    assert!(short.to_string().contains(&format!("96 completions under way; the completion queue holds {capacity}")));
    cq.resize(3 * one).unwrap();
    assert_eq!(made[2].short_cq(), None);
    // Receives that are shared count once.
    let srq = context.create_srq(&pd, 100).unwrap();
    let shared: Vec<_> =
        (0..2).map(|_| QpBuilder::rc(&pd, &cq, &cq).port(target.port).srq(&srq).build().unwrap()).collect();
    assert_eq!((cq.load().queue_pairs, cq.load().demand), (5, 3 * 32 + 2 * 16 + 100));
    drop(shared);
    assert_eq!((cq.load().queue_pairs, cq.load().demand), (3, 96));
    srq.close().unwrap();
    drop(made);
    assert_eq!((cq.load().queue_pairs, cq.load().demand), (0, 0));
}

fn vectors_are_checked(target: &Target) {
    let context = target.open();
    let vectors = context.num_comp_vectors();
    for vector in 0..vectors.min(64) {
        context.cq_builder(8).comp_vector(vector).build().unwrap();
    }
    let error = context.cq_builder(8).comp_vector(vectors.max(1)).build().unwrap_err();
    assert!(error.to_string().contains(&format!("the device has {vectors} vectors")), "{error}");
    seen::works("CQ completion vector");
}

fn several_queues_on_one_channel_tell_which_they_are(target: &Target) {
    let mut pair = Pair::new(target, &Setup { channel: true, ..Setup::default() });
    let channel = pair.a.channel.take().unwrap();
    let mut cqs: Vec<_> = (0..5).map(|_| pair.a.context.cq_builder(16).channel(&channel).build().unwrap()).collect();
    let ids: HashSet<CqId> = cqs.iter().map(|cq| cq.id()).collect();
    assert_eq!(ids.len(), cqs.len());
    let setup = Setup { options: patient, ..Setup::default() };
    let peer = target.open_peer();
    let (peer_pd, peer_cq) = (peer.alloc_pd().unwrap(), peer.create_cq(64).unwrap());
    let mut qps = vec![];
    for cq in &cqs {
        let ours = prepare(target, &pair.a.pd, cq, cq, &setup);
        let theirs = prepare(target, &peer_pd, &peer_cq, &peer_cq, &setup);
        let (our_end, their_end) = (ours.endpoint(), theirs.endpoint());
        qps.push((connect(ours, &their_end, &setup), connect(theirs, &our_end, &setup)));
    }
    let memory = peer_pd.alloc_mr(64, ironverbs::AccessFlags::ALL).unwrap();
    for round in 0..30 {
        let (one, other) = (round % 5, (round + 2) % 5);
        for i in [one, other] {
            cqs[i].arm(Notify::Any).unwrap();
            try_send(&mut qps[i].0, |batch| batch.write(i as u64, WrFlags::SIGNALED, &[], memory.remote(0).unwrap()))
                .unwrap();
        }
        let patience = Patience::new();
        let mut told = HashSet::new();
        while told.len() < 2 {
            channel.wait(Duration::from_millis(100)).unwrap();
            channel.drain(|id| assert!(told.insert(id), "told twice")).unwrap();
            patience.check("two events");
        }
        assert_eq!(told, HashSet::from([cqs[one].id(), cqs[other].id()]));
        for i in [one, other] {
            assert_eq!(cqs[i].poll_one().unwrap().map(|wc| wc.wr_id), Some(i as u64));
        }
    }
}

/// Queue pairs come and go with work under way, on one completion queue: each completion carries the number that was posted
/// on the queue pair whose number it carries, and comes once.
///
/// What a destroyed queue pair left in the completion queue stays there. It is the program's, by `wr_id`: numbers of queue
/// pairs are used again by the kernel, and tell nothing alone.
fn completions_of_destroyed_queue_pairs_keep_their_numbers(target: &Target) {
    const EACH: u64 = 8;
    let rounds = number("QUEUE_PAIRS", 300);
    let before = target.objects();
    let setup = Setup { options: receives_may_be_late, cq_depth: 512, ..Setup::default() };
    let mut ours = Half::new(target, target.open(), &setup);
    let peer = Half::new(target, target.open_peer(), &setup);
    let (place, into) = (ours.mr.sge(0..64).unwrap(), peer.mr.sge(0..64).unwrap());
    // By number of the work request: the queue pair it was posted on.
    let mut posted: HashMap<u64, u32> = HashMap::new();
    let mut leftovers = 0;
    for round in 0..rounds {
        step(format!("round {round} of {rounds}, {} under way", posted.len()));
        let mut near = builder::<Rc>(target, &ours.pd, &ours.cq, &ours.cq, &setup).build().unwrap();
        let mut far = builder::<Rc>(target, &peer.pd, &peer.cq, &peer.cq, &setup).build().unwrap();
        let (near_end, far_end) = (near.endpoint(), far.endpoint());
        let qpn = near.qpn().get();
        for n in 0..EACH {
            recv_early(&mut near, round * 100 + 50 + n, &[place]);
            posted.insert(round * 100 + 50 + n, qpn);
        }
        for n in 0..EACH / 2 {
            recv_early(&mut far, n, &[into]);
        }
        let (mut near, far) = (connect(near, &far_end, &setup), connect(far, &near_end, &setup));
        // Half of them find a receive; the others wait for one until the end.
        try_send(&mut near, |batch| {
            (0..EACH).try_for_each(|n| batch.send(round * 100 + n, WrFlags::SIGNALED, &[place]))
        })
        .unwrap();
        posted.extend((0..EACH).map(|n| (round * 100 + n, qpn)));
        match round % 4 {
            0 => near.to_error().unwrap(),
            // Completions come from another thread of this process, or from the kernel.
            1 if target.kind.is_rxe() => std::thread::sleep(Duration::from_micros(300)),
            1 => pass(Duration::from_millis(5)),
            _ => {}
        }
        if round % 3 == 0 {
            drop(far);
            drop(near);
        } else {
            near.close().unwrap();
            drop(far);
        }
        if round % 5 == 4 {
            ours.cq.resize(500 + round as u32 % 7 * 100).unwrap();
        }
        if round % 2 == 0 {
            continue;
        }
        let mut completions = ours.cq.poll().unwrap();
        while let Some(completion) = completions.next() {
            let owner = posted.remove(&completion.wr_id());
            assert_eq!(owner, Some(completion.qpn()), "{completion:?}");
            leftovers += 1;
        }
    }
    // Without a kernel between, most queue pairs are gone before they have done anything.
    let least = if target.kind.is_rxe() { rounds } else { rounds / 4 };
    assert!(leftovers > least, "{leftovers} completions came: nothing was under way");
    let context = ours.context.clone();
    drop((ours, peer));
    assert_eq!(context.leaks(), vec![]);
    drop(context);
    match (before, target.objects()) {
        (Ok(before), Ok(after)) => assert_eq!(before, after),
        (before, after) => eprintln!("objects are not counted: {before:?}, {after:?}"),
    }
}

/// A pool gives a slot back for its own completion only, whatever else is in the completion queue.
fn slots_of_destroyed_queue_pairs_come_to_nobody_else(target: &Target) {
    let setup = Setup { options: receives_may_be_late, cq_depth: 512, ..Setup::default() };
    let mut ours = Half::new(target, target.open(), &setup);
    let peer = Half::new(target, target.open_peer(), &setup);
    let pools = [Pool::new(&ours.pd, 400, 64).unwrap(), Pool::new(&ours.pd, 400, 64).unwrap()];
    let connected = |ours: &Half| -> (Qp, Qp) {
        let near = prepare(target, &ours.pd, &ours.cq, &ours.cq, &setup);
        let far = prepare(target, &peer.pd, &peer.cq, &peer.cq, &setup);
        let (near_end, far_end) = (near.endpoint(), far.endpoint());
        (connect(near, &far_end, &setup), connect(far, &near_end, &setup))
    };
    let into = peer.mr.sge(0..64).unwrap();
    for round in 0..40_u32 {
        let (mut near, mut far) = connected(&ours);
        try_recv(&mut far, |batch| (0..4).try_for_each(|n| batch.recv(n, &[into]))).unwrap();
        let (mine, other) = (&pools[round as usize % 2], &pools[(round as usize + 1) % 2]);
        for n in 0..6 {
            let mut slot = mine.take().unwrap();
            slot[0] = n;
            near.send_slot(slot, 64).unwrap();
            near.recv_slot(mine.take().unwrap()).unwrap();
        }
        if round % 2 == 0 {
            near.to_error().unwrap();
        } else {
            pass(Duration::from_millis(1));
        }
        drop((near, far));
        let mut back = 0;
        let mut completions = ours.cq.poll().unwrap();
        while let Some(completion) = completions.next() {
            let qpn = completion.qpn();
            let foreign = other.reclaim(completion).expect_err("not a slot of that pool");
            assert_eq!(foreign.qpn(), qpn);
            back += 1;
        }
        assert!(back <= 12, "{back} completions of 12 requests");
    }
}
