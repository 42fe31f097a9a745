//! Queue pairs and completion queues in different threads.

use crate::fixture::{
    PATIENCE, Pair, Patience, Setup, Side, completions, connect, prepare, receives_may_be_late, try_recv, try_send,
};
use crate::target::Target;
use crate::tests;
use ironverbs::{Pool, PostError, WcOpcode, WrFlags};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

tests! {
    queue_pair_moves_to_another_thread,
    two_threads_in_one_context,
    one_thread_posts_and_another_polls,
    a_slot_comes_back_on_another_thread,
    objects_are_made_and_dropped_while_others_work,
    both_halves_and_the_completion_queue_in_three_threads,
    two_queue_pairs_on_one_completion_queue_from_two_threads,
    halves_join_and_close,
}

fn queue_pair_moves_to_another_thread(target: &Target) {
    let mut pair = Pair::new(target, &Setup { send_wr: 7, recv_wr: 7, ..Setup::default() });
    for round in 0..20 {
        pair = thread::spawn(move || {
            for id in 0..3 {
                pair.b.recv(id, &[]);
                pair.a.send(|batch| batch.send_imm(id, WrFlags::SIGNALED, &[], round));
                assert_eq!(pair.a.success().wr_id, id);
                assert_eq!(pair.b.success().outcome().unwrap().imm, Some(round));
            }
            pair
        })
        .join()
        .unwrap();
    }
}

/// Each thread with its own queue pairs and completion queue, in one context and one protection domain.
fn two_threads_in_one_context(target: &Target) {
    const MESSAGES: u64 = 300;
    let setup = Setup::default();
    let (context, peer) = (target.open(), target.open_peer());
    let (pd, peer_pd) = (context.alloc_pd().unwrap(), peer.alloc_pd().unwrap());
    thread::scope(|scope| {
        for number in 0..2u32 {
            let (context, peer, pd, peer_pd, setup) = (&context, &peer, &pd, &peer_pd, &setup);
            scope.spawn(move || {
                let (mut cq, mut peer_cq) = (context.create_cq(32).unwrap(), peer.create_cq(32).unwrap());
                let a = prepare(target, pd, &cq, &cq, setup);
                let b = prepare(target, peer_pd, &peer_cq, &peer_cq, setup);
                let (a_end, b_end) = (a.endpoint(), b.endpoint());
                let (mut a, mut b) = (connect(a, &b_end, setup), connect(b, &a_end, setup));
                for id in 0..MESSAGES {
                    try_recv(&mut b, |batch| batch.recv(id, &[])).unwrap();
                    try_send(&mut a, |batch| batch.send_imm(id, WrFlags::SIGNALED, &[], number)).unwrap();
                    let (sent, received) = (completions(&mut cq, 1)[0], completions(&mut peer_cq, 1)[0]);
                    assert_eq!((sent.wr_id, sent.qpn(), received.wr_id), (id, a.qpn().get(), id));
                    assert_eq!(received.outcome().unwrap().imm, Some(number));
                }
            });
        }
    });
}

/// Nothing that posting and polling share needs a lock: requests are found complete, in order, once each.
fn one_thread_posts_and_another_polls(target: &Target) {
    const MESSAGES: u64 = 3000;
    let Pair { a, b } = Pair::new(target, &Setup { send_wr: 15, cq_depth: 4096, ..Setup::default() });
    let (entry, remote) = (a.sge(0, 8), b.remote(0));
    let Side { mut qp, mut cq, mr: _mr, .. } = a;
    let poller = thread::spawn(move || {
        let patience = Patience::new();
        let mut next = 0;
        while next < MESSAGES {
            let mut completions = cq.poll().unwrap();
            let before = next;
            while let Some(completion) = completions.next() {
                let wc = completion.wc();
                assert_eq!((wc.wr_id, wc.outcome().unwrap().opcode), (next, WcOpcode::RDMA_WRITE));
                next += 1;
            }
            drop(completions);
            if next == before {
                patience.check("the next write is done");
            }
        }
        cq
    });
    let patience = Patience::new();
    let mut id = 0;
    while id < MESSAGES {
        match try_send(&mut qp, |batch| batch.write(id, WrFlags::SIGNALED, &[entry], remote)) {
            Ok(()) => id += 1,
            Err(PostError::QueueFull) => patience.check("there is room for the next write"),
            Err(error) => panic!("{error}"),
        }
    }
    let mut cq = poller.join().unwrap();
    assert_eq!(cq.poll_one().unwrap(), None);
}

/// Posted here, completed there: the pool is shared without a lock.
fn a_slot_comes_back_on_another_thread(target: &Target) {
    const MESSAGES: u32 = 1000;
    let Pair { a, b } = Pair::new(target, &Setup { send_wr: 15, ..Setup::default() });
    let remote = b.remote(0);
    let pool = Pool::new(&a.pd, 4, 8).unwrap();
    let Side { mut qp, mut cq, .. } = a;
    let (theirs, stop) = (pool.clone(), &AtomicBool::new(false));
    thread::scope(|scope| {
        let poller = scope.spawn(move || {
            let mut back = 0;
            while back < MESSAGES && !stop.load(Ordering::Relaxed) {
                let mut completions = cq.poll().unwrap();
                while let Some(completion) = completions.next() {
                    let (slot, wc) = theirs.reclaim(completion).unwrap();
                    wc.outcome().unwrap();
                    assert_eq!(slot[..4], slot[4..], "written by the next user of the slot too early");
                    back += 1;
                }
                drop(completions);
                thread::yield_now();
            }
            back
        });
        let started = std::time::Instant::now();
        let mut posted = 0;
        while posted < MESSAGES && started.elapsed() < PATIENCE {
            let Some(mut slot) = pool.take() else {
                thread::yield_now();
                continue;
            };
            slot[..4].copy_from_slice(&posted.to_ne_bytes());
            slot[4..].copy_from_slice(&posted.to_ne_bytes());
            qp.write_slot(slot, 8, remote).unwrap();
            posted += 1;
        }
        stop.store(posted < MESSAGES, Ordering::Relaxed);
        assert_eq!((posted, poller.join().unwrap()), (MESSAGES, MESSAGES));
    });
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(all.len(), 4);
}

/// The kernel's answers to one thread's commands do not reach another's.
fn objects_are_made_and_dropped_while_others_work(target: &Target) {
    let context = target.open();
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            let context = context.clone();
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let pd = context.alloc_pd().unwrap();
                    let cq = context.create_cq(3).unwrap();
                    let mr = pd.alloc_mr(100, ironverbs::AccessFlags::ALL).unwrap();
                    let qp = prepare(target, &pd, &cq, &cq, &Setup::default());
                    drop((cq, pd, qp, mr));
                }
            });
        }
        let _done = SetOnDrop(done);
        let mut pair = Pair::new(target, &Setup::default());
        for id in 0..200 {
            pair.b.recv(id, &[]);
            pair.a.send(|batch| batch.send(id, WrFlags::SIGNALED, &[]));
            assert_eq!((pair.a.success().wr_id, pair.b.success().wr_id), (id, id));
        }
    });
    assert!(context.leaks().is_empty());
}

/// Ends the other threads' loops, also when this thread panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread sends, one posts receives, one polls for both, and none waits for a lock.
fn both_halves_and_the_completion_queue_in_three_threads(target: &Target) {
    const MESSAGES: u64 = 2000;
    let setup = Setup { send_wr: 15, recv_wr: 31, cq_depth: 512, options: receives_may_be_late, ..Setup::default() };
    let mut pair = Pair::new(target, &setup);
    let (own, far) = (pair.b.sge(0, 8), pair.a.sge(0, 8));
    pair.b.recv(0, &[]);
    pair.a.send(|batch| batch.send(0, WrFlags::SIGNALED, &[]));
    pair.a.success();
    pair.b.success();
    let Pair { a: Side { qp: mut client, cq: mut client_cq, mr: _client_mr, .. }, b } = pair;
    let Side { qp, mut cq, mr: _mr, .. } = b;
    let (mut sender, mut receiver) = qp.split();
    thread::scope(|scope| {
        // The peer answers each message, and takes each of ours.
        scope.spawn(|| {
            let patience = Patience::new();
            let (mut posted, mut received, mut sent, mut completed) = (0, 0, 0, 0);
            while received < MESSAGES || completed < MESSAGES {
                while posted < MESSAGES
                    && posted - received < 31
                    && try_recv(&mut client, |batch| batch.recv(posted, &[far])).is_ok()
                {
                    posted += 1;
                }
                while sent < MESSAGES
                    && sent - completed < 15
                    && try_send(&mut client, |batch| batch.send(sent, WrFlags::SIGNALED, &[far])).is_ok()
                {
                    sent += 1;
                }
                while let Some(wc) = client_cq.poll_one().unwrap() {
                    match wc.outcome().unwrap().opcode {
                        WcOpcode::RECV => received += 1,
                        _ => completed += 1,
                    }
                }
                patience.check("the peer's messages");
            }
        });
        let sender = scope.spawn(|| {
            let patience = Patience::new();
            let mut id = 0;
            while id < MESSAGES {
                match crate::fixture::try_send_half(&mut sender, |batch| batch.send(id, WrFlags::SIGNALED, &[own])) {
                    Ok(()) => id += 1,
                    Err(PostError::QueueFull) => patience.check("room in the send queue"),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let receiver = scope.spawn(|| {
            let patience = Patience::new();
            let mut id = 0;
            while id < MESSAGES {
                match crate::fixture::try_recv_half(&mut receiver, |batch| batch.recv(1_000_000 + id, &[own])) {
                    Ok(()) => id += 1,
                    Err(PostError::QueueFull) => patience.check("room in the receive queue"),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let patience = Patience::new();
        let (mut sent, mut received) = (0, 0);
        while sent < MESSAGES || received < MESSAGES {
            while let Some(wc) = cq.poll_one().unwrap() {
                let done = wc.outcome().unwrap();
                let next = if done.opcode == WcOpcode::RECV { &mut received } else { &mut sent };
                assert_eq!(wc.wr_id % 1_000_000, *next, "in order, once each");
                *next += 1;
            }
            patience.check("every completion");
        }
        sender.join().unwrap();
        receiver.join().unwrap();
    });
    let mut qp = sender.join(receiver).unwrap();
    qp.drain(&mut [&mut cq], PATIENCE, |completion| panic!("{completion:?}")).unwrap();
    qp.close().unwrap();
}

/// A third thread polls for both; each queue pair's own requests come in order.
fn two_queue_pairs_on_one_completion_queue_from_two_threads(target: &Target) {
    const MESSAGES: u64 = 1500;
    let setup = Setup { send_wr: 15, ..Setup::default() };
    let (context, peer) = (target.open(), target.open_peer());
    let (pd, peer_pd) = (context.alloc_pd().unwrap(), peer.alloc_pd().unwrap());
    // Room for all: the device gives a send's slot back before its completion is polled, so the queue pairs' sizes bound
    // nothing.
    let (mut cq, peer_cq) = (context.create_cq(2 * MESSAGES as u32).unwrap(), peer.create_cq(16).unwrap());
    let mr = peer_pd.alloc_mr(64, ironverbs::AccessFlags::ALL).unwrap();
    let own = pd.alloc_mr(64, ironverbs::AccessFlags::LOCAL_WRITE).unwrap();
    let connected = || {
        let (a, b) = (prepare(target, &pd, &cq, &cq, &setup), prepare(target, &peer_pd, &peer_cq, &peer_cq, &setup));
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        (connect(a, &b_end, &setup), connect(b, &a_end, &setup))
    };
    let ((first, _first_peer), (second, _second_peer)) = (connected(), connected());
    let numbers = [first.qpn().get(), second.qpn().get()];
    let (entry, remote) = (own.sge(0..8).unwrap(), mr.remote(0).unwrap());
    thread::scope(|scope| {
        for mut qp in [first, second] {
            scope.spawn(move || {
                let patience = Patience::new();
                let mut id = 0;
                while id < MESSAGES {
                    match try_send(&mut qp, |batch| batch.write(id, WrFlags::SIGNALED, &[entry], remote)) {
                        Ok(()) => id += 1,
                        Err(PostError::QueueFull) => patience.check("room in the send queue"),
                        Err(error) => panic!("{error}"),
                    }
                }
                crate::fixture::eventually("all writes are done", || {
                    let capacity = qp.cap().max_send_wr;
                    qp.send_batch().remaining() == capacity
                });
            });
        }
        let patience = Patience::new();
        let mut next = [0; 2];
        while next != [MESSAGES; 2] {
            while let Some(wc) = cq.poll_one().unwrap() {
                wc.outcome().unwrap();
                let which = numbers.iter().position(|qpn| *qpn == wc.qpn()).expect("one of the two");
                assert_eq!(wc.wr_id, next[which]);
                next[which] += 1;
            }
            patience.check("every completion");
        }
    });
}

fn halves_join_and_close(target: &Target) {
    let Pair { a, b } = Pair::new(target, &Setup::default());
    let Side { qp, mut cq, context, .. } = a;
    let (send, recv) = qp.split();
    let (other_send, other_recv) = b.qp.split();
    assert_eq!((send.qpn(), send.endpoint(), send.cap()), (recv.qpn(), recv.endpoint(), recv.cap()));
    let numbers = (send.qpn(), other_recv.qpn());
    let mixed = send.join(other_recv).unwrap_err();
    assert_eq!(mixed.to_string(), format!("the halves are of two queue pairs, {} and {}", numbers.0, numbers.1));
    let (mut send, other_recv) = (mixed.send, mixed.recv);
    crate::fixture::try_send_half(&mut send, |batch| batch.send(1, WrFlags::SIGNALED, &[])).unwrap();
    recv.to_error().unwrap();
    assert_eq!(send.state(), ironverbs::QpState::ERR);
    assert_eq!(completions(&mut cq, 1)[0].wr_id, 1);
    let mut qp = send.join(recv).unwrap();
    qp.modify(&ironverbs::QpUpdate::to(ironverbs::QpState::RESET)).unwrap();
    qp.close().unwrap();
    // A half alone keeps the queue pair; the last one takes it along.
    drop(other_send);
    assert_eq!(other_recv.query().unwrap().qp_state, other_recv.state());
    drop(other_recv);
    assert!(context.leaks().is_empty() && b.context.leaks().is_empty());
}
