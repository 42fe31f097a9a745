//! Waiting: completion events and asynchronous events, with no wake-up lost and no wait without end.

use crate::fixture::{Half, PATIENCE, Pair, Patience, SHORT, Setup, Side, connect, pass, prepare, try_recv, try_send};
use crate::harness::{skip, step};
use crate::target::{Kind, Target};
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AsyncEventType, CompChannel, Context, Cq, CqId, Error, Notify, PollError, RemoteAddr, Sge, Subject, WrFlags,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

tests! {
    completion_before_the_arm_raises_no_event,
    completion_after_the_arm_raises_one_event,
    solicited_arm_wakes_for_solicited_messages_only,
    solicited_arm_wakes_for_errors,
    wait_finds_what_is_there_and_what_comes,
    wait_ends_when_nothing_comes,
    wait_loses_no_wake_up,
    spinning_ends_at_the_deadline,
    ping_pong_that_spins_before_it_blocks,
    documented_loop_loses_no_wake_up_with_edge_triggered_epoll,
    one_channel_serves_many_queues,
    events_of_a_dropped_queue_harm_nobody,
    queue_without_channel_cannot_wait,
    overrun_is_told_to_who_polls,
    overrun_is_told_to_who_only_polls,
    overrun_is_told_to_who_waits,
    overrun_that_another_thread_reads_is_told_to_who_waits,
    waiting_for_async_events_ends,
}

fn with_channels() -> Setup {
    Setup { channel: true, ..Setup::default() }
}

fn channel_of(side: &Side) -> &CompChannel {
    side.channel.as_ref().unwrap()
}

/// The events on a channel now.
fn events(channel: &CompChannel) -> Vec<CqId> {
    let mut all = vec![];
    assert_eq!(channel.drain(|id| all.push(id)).unwrap(), all.len());
    all
}

fn send_one(pair: &mut Pair, id: u64, flags: WrFlags) {
    pair.b.recv(id, &[]);
    pair.a.send(|batch| batch.send(id, WrFlags::SIGNALED | flags, &[]));
    pair.a.success();
}

/// A loop that arms and then waits, without another look, sleeps for ever.
fn completion_before_the_arm_raises_no_event(target: &Target) {
    let mut pair = Pair::new(target, &with_channels());
    send_one(&mut pair, 1, WrFlags::NONE);
    pass(SHORT);
    pair.b.cq.arm(Notify::Any).unwrap();
    if target.kind.is_rxe() {
        assert!(!channel_of(&pair.b).wait(SHORT).unwrap());
        assert_eq!(pair.b.success().wr_id, 1);
    } else {
        // Devices that are armed with the place of the next completion raise one at once.
        assert!(channel_of(&pair.b).wait(PATIENCE).unwrap());
        assert_eq!(events(channel_of(&pair.b)), [pair.b.cq.id()]);
        assert_eq!(pair.b.success().wr_id, 1);
        pair.b.cq.arm(Notify::Any).unwrap();
        assert!(!channel_of(&pair.b).wait(SHORT).unwrap());
    }
    step("the arm stands for the next one");
    send_one(&mut pair, 2, WrFlags::NONE);
    assert!(channel_of(&pair.b).wait(PATIENCE).unwrap());
    assert_eq!(events(channel_of(&pair.b)), [pair.b.cq.id()]);
    assert_eq!(pair.b.success().wr_id, 2);
}

fn completion_after_the_arm_raises_one_event(target: &Target) {
    let mut pair = Pair::new(target, &with_channels());
    for round in 0..20 {
        step(format!("round {round}"));
        pair.b.cq.arm(Notify::Any).unwrap();
        let n = 1 + round % 4;
        for id in 0..n {
            send_one(&mut pair, id, WrFlags::NONE);
        }
        assert!(channel_of(&pair.b).wait(PATIENCE).unwrap());
        pair.b.successes(n as usize);
        assert_eq!(events(channel_of(&pair.b)), [pair.b.cq.id()]);
        assert!(!channel_of(&pair.b).wait(Duration::ZERO).unwrap());
    }
    step("not armed");
    send_one(&mut pair, 9, WrFlags::SOLICITED);
    pair.b.success();
    assert!(!channel_of(&pair.b).wait(SHORT).unwrap());
}

fn solicited_arm_wakes_for_solicited_messages_only(target: &Target) {
    let mut pair = Pair::new(target, &with_channels());
    for round in 0..5 {
        step(format!("round {round}"));
        pair.b.cq.arm(Notify::Solicited).unwrap();
        send_one(&mut pair, 1, WrFlags::NONE);
        pair.b.success();
        assert!(!channel_of(&pair.b).wait(SHORT).unwrap(), "woken by a message that did not ask for it");
        let remote = pair.b.remote(0);
        pair.b.recv(2, &[]);
        pair.a.send(|batch| match round % 2 {
            0 => batch.send(2, WrFlags::SIGNALED | WrFlags::SOLICITED, &[]),
            _ => batch.write_imm(2, WrFlags::SIGNALED | WrFlags::SOLICITED, &[], remote, 7),
        });
        pair.a.success();
        assert!(channel_of(&pair.b).wait(PATIENCE).unwrap());
        pair.b.success();
        assert_eq!(events(channel_of(&pair.b)), [pair.b.cq.id()]);
    }
}

fn solicited_arm_wakes_for_errors(target: &Target) {
    if target.kind == Kind::Rxe6_12 {
        skip("Soft-RoCE raises no solicited event for errors (rxe_cq_post in rxe_comp.c and rxe_resp.c)");
    }
    let mut pair = Pair::new(target, &with_channels());
    pair.b.recv(1, &[]);
    pair.b.cq.arm(Notify::Solicited).unwrap();
    pair.b.qp.to_error().unwrap();
    assert!(channel_of(&pair.b).wait(PATIENCE).unwrap());
    assert_eq!(events(channel_of(&pair.b)), [pair.b.cq.id()]);
    pair.b.completions(1);
}

fn wait_finds_what_is_there_and_what_comes(target: &Target) {
    let mut pair = Pair::new(target, &with_channels());
    send_one(&mut pair, 1, WrFlags::NONE);
    assert!(pair.b.cq.wait(PATIENCE).unwrap());
    assert!(pair.b.cq.wait(Duration::ZERO).unwrap(), "it is still there");
    pair.b.success();
    step("from another thread, later");
    let Pair { mut a, mut b } = pair;
    b.recv(2, &[]);
    let later = thread::spawn(move || {
        thread::sleep(SHORT);
        a.send(|batch| batch.send(2, WrFlags::SIGNALED, &[]));
        a.success();
    });
    // As long as there can be, so the message ends it.
    assert!(b.cq.wait(Duration::MAX).unwrap());
    assert_eq!(b.success().wr_id, 2);
    later.join().unwrap();
}

fn wait_ends_when_nothing_comes(target: &Target) {
    let mut pair = Pair::new(target, &with_channels());
    for timeout in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(130)] {
        let started = Instant::now();
        assert!(!pair.b.cq.wait(timeout).unwrap());
        let waited = started.elapsed();
        assert!(waited >= timeout && waited < timeout + Duration::from_secs(2), "{waited:?} instead of {timeout:?}");
    }
    assert!(!channel_of(&pair.b).wait(SHORT).unwrap());
}

/// Thousands of messages, sent before, while and after the receiver arms and falls asleep. With a wake-up lost, the
/// receiver sleeps on although a completion is there.
/// A send on a completion queue that is used for sends only. Most devices give a send's place back when its completion, or a
/// later one, is polled.
fn send_on(side: &mut Side, id: u64) {
    while side.cq.poll_one().unwrap().is_some() {}
    side.send(|batch| batch.send(id, WrFlags::SIGNALED, &[]));
}

fn wait_loses_no_wake_up(target: &Target) {
    const MESSAGES: u64 = 3000;
    let Pair { mut a, mut b } = Pair::new(target, &with_channels());
    for id in 0..16 {
        b.recv(id, &[]);
    }
    let (go, went) = channel();
    let sender = thread::spawn(move || {
        let mut rng = Rng::with_seed(61);
        while let Ok(id) = went.recv() {
            for _ in 0..rng.u32(0..3000) {
                std::hint::spin_loop();
            }
            if id % 8 == 0 {
                thread::yield_now();
            }
            send_on(&mut a, id);
        }
        a
    });
    let (mut received, mut spurious) = (0, 0);
    go.send(0).unwrap();
    while received < MESSAGES {
        step(format!("waiting for message {received}"));
        assert!(b.cq.wait(PATIENCE).unwrap(), "message {received} woke nobody within {PATIENCE:?}");
        let before = received;
        while let Some(wc) = b.cq.poll_one().unwrap() {
            assert_eq!(wc.outcome().unwrap().byte_len, 0);
            received += 1;
            b.recv(received, &[]);
            // Sent while this thread polls, arms or falls asleep.
            go.send(received).unwrap();
        }
        spurious += u64::from(received == before);
    }
    assert_eq!(spurious, 0, "a wait that says there is something means it");
    drop(go);
    sender.join().unwrap();
}

fn spinning_ends_at_the_deadline(target: &Target) {
    let mut pair = Pair::new(target, &with_channels());
    for spins in [0, 100, u32::MAX] {
        let started = Instant::now();
        assert!(!pair.b.cq.spin_then_wait(spins, SHORT).unwrap());
        let waited = started.elapsed();
        assert!(waited >= SHORT && waited < SHORT + Duration::from_secs(2), "{waited:?} with {spins} looks");
    }
    send_one(&mut pair, 1, WrFlags::NONE);
    assert!(pair.b.cq.spin_then_wait(u32::MAX, PATIENCE).unwrap());
    assert!(pair.b.cq.spin_then_wait(0, Duration::ZERO).unwrap(), "it is still there");
}

/// Reports of programs that hung on a software device: they polled, and it had no processor left. With one processor the
/// budget is spent in vain each time, and yet this ends.
fn ping_pong_that_spins_before_it_blocks(target: &Target) {
    const ROUNDS: u64 = 1000;
    let Pair { mut a, mut b } = Pair::new(target, &with_channels());
    let next = |side: &mut Side, id| {
        loop {
            assert!(side.cq.spin_then_wait(2000, PATIENCE).unwrap(), "message {id} did not come within {PATIENCE:?}");
            let wc = side.cq.poll_one().unwrap().unwrap();
            if wc.outcome().unwrap().opcode.is_recv() {
                break assert_eq!(wc.wr_id, id);
            }
        }
    };
    b.recv(0, &[]);
    let pong = thread::spawn(move || {
        for id in 0..ROUNDS {
            next(&mut b, id);
            b.recv(id + 1, &[]);
            b.send(|batch| batch.send(id, WrFlags::SIGNALED, &[]));
        }
        b
    });
    for id in 0..ROUNDS {
        a.recv(id, &[]);
        a.send(|batch| batch.send(id, WrFlags::SIGNALED, &[]));
        next(&mut a, id);
    }
    pong.join().unwrap();
}

/// The loop of the channel's documentation on a descriptor that wakes once for each event: an event left unread would be
/// the last.
fn documented_loop_loses_no_wake_up_with_edge_triggered_epoll(target: &Target) {
    const MESSAGES: u64 = 1500;
    let Pair { mut a, mut b } = Pair::new(target, &with_channels());
    for id in 0..16 {
        b.recv(id, &[]);
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let edge = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
    epoll.add(channel_of(&b).as_fd(), edge).unwrap();
    let (go, went) = channel();
    let sender = thread::spawn(move || {
        while let Ok(id) = went.recv() {
            send_on(&mut a, id);
        }
        a
    });
    let mut received = 0;
    go.send(0).unwrap();
    while received < MESSAGES {
        step(format!("waiting for message {received}"));
        let mut there = take(&mut b, &mut received, &go);
        if !there {
            b.cq.arm(Notify::Any).unwrap();
            there = take(&mut b, &mut received, &go);
        }
        if there {
            continue;
        }
        let woken = epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::try_from(PATIENCE).unwrap()).unwrap();
        assert_eq!(woken, 1, "message {received} woke nobody within {PATIENCE:?}");
        assert!(events(channel_of(&b)).iter().all(|id| *id == b.cq.id()));
    }
    drop(go);
    sender.join().unwrap();
}

/// Takes every completion, posts a receive for each, and has the next message sent.
fn take(side: &mut Side, received: &mut u64, go: &std::sync::mpsc::Sender<u64>) -> bool {
    let mut any = false;
    while let Some(wc) = side.cq.poll_one().unwrap() {
        wc.outcome().unwrap();
        *received += 1;
        side.recv(*received, &[]);
        go.send(*received).unwrap();
        any = true;
    }
    any
}

/// Each event tells which completion queue it is about.
fn one_channel_serves_many_queues(target: &Target) {
    let setup = Setup::default();
    let (a, b) = (target.open(), target.open_peer());
    let (a_pd, b_pd) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let channel = b.create_comp_channel().unwrap();
    let a_cq = a.create_cq(64).unwrap();
    let mut sides: Vec<_> = (0..3)
        .map(|_| {
            let b_cq = b.cq_builder(64).channel(&channel).build().unwrap();
            let (one, other) =
                (prepare(target, &a_pd, &a_cq, &a_cq, &setup), prepare(target, &b_pd, &b_cq, &b_cq, &setup));
            let (one_end, other_end) = (one.endpoint(), other.endpoint());
            (connect(one, &other_end, &setup), connect(other, &one_end, &setup), b_cq)
        })
        .collect();
    let ids: Vec<_> = sides.iter().map(|(_, _, cq)| cq.id()).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    let refused = sides[0].2.wait(SHORT).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    for which in [vec![0], vec![1], vec![2], vec![0, 2], vec![2, 1, 0]] {
        step(format!("queues {which:?}"));
        for (_, _, cq) in &sides {
            cq.arm(Notify::Any).unwrap();
        }
        for &i in &which {
            let (a, b, _) = &mut sides[i];
            try_recv(b, |batch| batch.recv(i as u64, &[])).unwrap();
            try_send(a, |batch| batch.send(i as u64, WrFlags::NONE, &[])).unwrap();
        }
        let mut told = vec![];
        let patience = Patience::new();
        while told.len() < which.len() {
            patience.check("an event of each queue");
            channel.wait(SHORT).unwrap();
            thread::sleep(SHORT);
            told.extend(events(&channel));
            assert!(!channel.wait(Duration::ZERO).unwrap(), "a drain takes every event that is there");
        }
        told.sort();
        let mut expected: Vec<_> = which.iter().map(|i| ids[*i]).collect();
        expected.sort();
        assert_eq!(told, expected);
        for &i in &which {
            assert_eq!(crate::fixture::completions(&mut sides[i].2, 1)[0].wr_id, i as u64);
        }
    }
}

/// An event that was not read when its queue was dropped.
fn events_of_a_dropped_queue_harm_nobody(target: &Target) {
    for read in [false, true] {
        step(format!("read: {read}"));
        let mut pair = Pair::new(target, &with_channels());
        pair.b.cq.arm(Notify::Any).unwrap();
        send_one(&mut pair, 1, WrFlags::NONE);
        assert!(channel_of(&pair.b).wait(PATIENCE).unwrap());
        let Side { qp, cq, channel, context, .. } = pair.b;
        let (id, channel) = (cq.id(), channel.unwrap());
        drop(cq);
        drop(qp);
        if read {
            // The kernel takes back what was not read when it destroys the queue.
            assert!(events(&channel).iter().all(|told| *told == id));
            assert!(!channel.wait(Duration::ZERO).unwrap());
        }
        let next = context.cq_builder(4).channel(&channel).build().unwrap();
        assert_ne!(next.id(), id);
    }
}

fn queue_without_channel_cannot_wait(target: &Target) {
    let context = target.open();
    let mut cq = context.create_cq(4).unwrap();
    for error in [cq.arm(Notify::Any).unwrap_err(), cq.wait(SHORT).unwrap_err()] {
        assert!(
            error.to_string().contains("completion channel is none; give it one with CqBuilder::channel"),
            "{error}"
        );
    }
    let other = target.open();
    let channel = other.create_comp_channel().unwrap();
    let error = context.cq_builder(4).channel(&channel).build().unwrap_err();
    assert!(error.to_string().contains("it belongs to another context"), "{error}");
}

/// A pair whose side `a` can post more signaled writes than its completion queue holds.
fn about_to_overrun(target: &Target) -> (Pair, Sge, RemoteAddr) {
    let setup = Setup { cq_depth: 4, send_wr: 64, channel: true, ..Setup::default() };
    let pair = Pair::new(target, &setup);
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    (pair, entry, remote)
}

/// Signaled writes, as many as fill the queue and 9 more.
fn overrun(side: &mut Side, entry: Sge, remote: RemoteAddr) {
    let n = u64::from(side.cq.capacity()) + 9;
    assert!(n <= side.qp.cap().max_send_wr.into(), "a completion queue of 4 has {} entries", side.cq.capacity());
    side.send(|batch| (0..n).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
}

fn expect_overrun_event(context: &Context, cq: &Cq) {
    let events = context.async_events();
    let event = events.next(PATIENCE).unwrap().expect("an event for the overrun");
    assert_eq!((event.kind, event.subject), (AsyncEventType::CQ_ERR, Subject::Cq(cq.id())));
}

/// A device that finds the queue full loses completions and says so once, aside; whoever polls must learn of it.
fn overrun_is_told_to_who_polls(target: &Target) {
    let (mut pair, entry, remote) = about_to_overrun(target);
    let other = pair.a.context.create_cq(4).unwrap();
    assert_ne!(other.id(), pair.a.cq.id());
    overrun(&mut pair.a, entry, remote);
    expect_overrun_event(&pair.a.context, &pair.a.cq);
    drain_then_overrun(&mut pair.a.cq);
    assert!(pair.a.cq.poll().is_err());
    assert!(matches!(pair.a.cq.wait(PATIENCE).unwrap_err(), Error::CqOverrun { .. }));
    step("nobody else is harmed");
    let mut other = other;
    assert_eq!(other.poll_one().unwrap(), None);
    assert_eq!(pair.b.cq.poll_one().unwrap(), None);
}

/// What was there before the loss comes first, in order, and nothing after it.
fn drain_then_overrun(cq: &mut Cq) {
    let capacity = u64::from(cq.capacity());
    let patience = Patience::new();
    let mut next = 0;
    loop {
        match cq.poll_one() {
            Ok(Some(wc)) => {
                assert_eq!(wc.wr_id, next);
                next += 1;
            }
            Ok(None) => patience.check("the overrun is told"),
            Err(error) => break assert_eq!(error, PollError::Overrun),
        }
    }
    // Some devices fill the place that every queue keeps free, too.
    assert!((capacity..=capacity + 1).contains(&next), "{next} of all {capacity} that the queue holds");
    assert_eq!(cq.poll_one(), Err(PollError::Overrun), "and it stays so");
}

/// Nobody waits, nobody reads asynchronous events: the queue that is found full gives it away.
fn overrun_is_told_to_who_only_polls(target: &Target) {
    for late in [false, true] {
        let setup = Setup { cq_depth: 4, send_wr: 64, ..Setup::default() };
        let mut pair = Pair::new(target, &setup);
        let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
        overrun(&mut pair.a, entry, remote);
        if late {
            pair.a.settle(target);
            drain_then_overrun(&mut pair.a.cq);
            let error = pair.a.context.async_events().next(PATIENCE).unwrap().unwrap();
            assert_eq!((error.kind, error.subject), (AsyncEventType::CQ_ERR, Subject::Cq(pair.a.cq.id())));
            continue;
        }
        // A program that polls while the device works may make room in time; if not, it is told.
        let n = pair.a.cq.capacity() + 9;
        let patience = Patience::new();
        let mut ids = vec![];
        while ids.len() < n as usize {
            match pair.a.cq.poll_one() {
                Ok(Some(wc)) => ids.push(wc.wr_id),
                Ok(None) => patience.check("a completion, or word that it is lost"),
                Err(error) => {
                    assert_eq!(error, PollError::Overrun);
                    break;
                }
            }
        }
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }
}

/// A wait for a completion that was lost ends with the reason, although nobody reads asynchronous events.
fn overrun_is_told_to_who_waits(target: &Target) {
    let (mut pair, entry, remote) = about_to_overrun(target);
    overrun(&mut pair.a, entry, remote);
    let started = Instant::now();
    let patience = Patience::new();
    let error = loop {
        patience.check("the overrun is told");
        match pair.a.cq.wait(PATIENCE) {
            Ok(true) => match pair.a.cq.poll_one() {
                Ok(_) => {}
                Err(error) => break error.to_string(),
            },
            Ok(false) => panic!("waited for {:?} and was not told", started.elapsed()),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("overran"), "{error}");
    expect_overrun_event(&pair.a.context, &pair.a.cq);
}

/// While someone has an [`ironverbs::AsyncEvents`], reading is their duty; a waiter still learns of it in the end.
fn overrun_that_another_thread_reads_is_told_to_who_waits(target: &Target) {
    let (mut pair, entry, remote) = about_to_overrun(target);
    let events = pair.a.context.async_events();
    let id = pair.a.cq.id();
    let reader = thread::spawn(move || {
        let event = events.next(Duration::MAX).unwrap().expect("an event for the overrun");
        assert_eq!((event.kind, event.subject), (AsyncEventType::CQ_ERR, Subject::Cq(id)));
        events
    });
    overrun(&mut pair.a, entry, remote);
    let patience = Patience::new();
    loop {
        patience.check("the overrun is told");
        match pair.a.cq.wait(PATIENCE) {
            Ok(true) => match pair.a.cq.poll_one() {
                Ok(_) => {}
                Err(error) => break assert_eq!(error, PollError::Overrun),
            },
            Ok(false) => panic!("waited for {PATIENCE:?} and was not told"),
            Err(error) => break assert!(matches!(error, Error::CqOverrun { .. }), "{error}"),
        }
    }
    reader.join().unwrap();
}

/// The kernel never ends a read of asynchronous events, so the library has to.
fn waiting_for_async_events_ends(target: &Target) {
    let Half { context, .. } = Half::new(target, target.open(), &Setup::default());
    let events = context.async_events();
    assert_eq!(events.try_next().unwrap(), None);
    let started = Instant::now();
    assert_eq!(events.next(SHORT).unwrap(), None);
    assert!(started.elapsed() >= SHORT);
    drop(context);
    assert_eq!(events.next(SHORT).unwrap(), None);
}
