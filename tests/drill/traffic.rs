//! The device goes under traffic: the program that makes it ends with an error, and at once.

use crate::adapter::{Adapter, LIMIT, all_until_gone, works};
use crate::fixture::{Pair, Setup, Side};
use crate::harness::{descriptors_may_stay, step};
use crate::target::Target;
use crate::tests;
use ironverbs::{PollError, Pool, PostError, WrFlags};
use softcx::pci::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

tests! {
    unbound_under_traffic,
    firmware_fails_under_traffic,
    pulled_out_under_traffic,
    slots_under_way_when_the_device_goes,
}

fn unbound_under_traffic(target: &Target) {
    descriptors_may_stay();
    let adapter = Adapter::of(target);
    for round in 0..3 {
        step(format!("round {round}"));
        let players = players(target);
        let took = adapter.unbind();
        assert!(took < LIMIT, "unbinding took {took:?}");
        players.end();
        adapter.bind();
        works(target);
    }
}

fn firmware_fails_under_traffic(target: &Target) {
    descriptors_may_stay();
    let adapter = Adapter::of(target);
    let players = players(target);
    adapter.make(Fault::Fatal);
    players.end();
    works(target);
}

fn pulled_out_under_traffic(target: &Target) {
    descriptors_may_stay();
    let adapter = Adapter::of(target);
    for round in 0..2 {
        step(format!("round {round}"));
        let players = players(target);
        adapter.make(Fault::Gone);
        players.end();
        adapter.remove();
        adapter.rescan();
        works(target);
    }
}

/// Two ends of a ping-pong that goes on for as long as it can, and a reader of events for each.
struct Players {
    ends: [JoinHandle<PollError>; 2],
    readers: [JoinHandle<usize>; 2],
}

fn players(target: &Target) -> Players {
    let own = Target { peer: target.device.clone(), ..target.clone() };
    let Pair { mut a, mut b } = Pair::new(&own, &Setup::default());
    // Before either begins: a message that finds no receive ends the connection, and it may take long to start a thread.
    for side in [&mut a, &mut b] {
        let entry = side.sge(0, 512);
        (0..8).for_each(|id| side.recv(id, &[entry]));
    }
    let readers = [&a, &b].map(|side| side.context.async_events());
    let moves = Arc::new(AtomicU64::new(0));
    let [first, second] = [(a, true), (b, false)].map(|(side, begins)| {
        let moves = moves.clone();
        thread::spawn(move || play(side, begins, &moves))
    });
    let readers = readers.map(|events| thread::spawn(move || all_until_gone(&events).len()));
    let begin = Instant::now();
    while moves.load(Ordering::Relaxed) < 200 {
        assert!(begin.elapsed() < LIMIT, "no traffic");
        sleep(Duration::from_millis(5));
    }
    Players { ends: [first, second], readers }
}

impl Players {
    /// Both ended, in time, since their device is gone.
    fn end(self) {
        let begin = Instant::now();
        for end in self.ends {
            let error = end.join().unwrap();
            assert_eq!(error, PollError::DeviceGone);
        }
        for reader in self.readers {
            assert!(reader.join().unwrap() >= 1, "no event");
        }
        assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
    }
}

/// Sends, waits for the answer, sends: until the device is gone.
fn play(mut side: Side, begins: bool, moves: &AtomicU64) -> PollError {
    let entry = side.sge(0, 512);
    let mut turn = begins;
    loop {
        if std::mem::take(&mut turn) {
            match side.try_send(|batch| batch.send(100, WrFlags::SIGNALED, &[entry])) {
                Ok(()) | Err(PostError::QueueFull) => {}
                other => panic!("{other:?}"),
            }
        }
        match side.cq.poll_one() {
            Ok(None) => thread::yield_now(),
            Ok(Some(wc)) => {
                // The other end may have stopped first.
                if wc.outcome().is_ok_and(|done| done.opcode.is_recv()) {
                    side.recv(0, &[entry]);
                    moves.fetch_add(1, Ordering::Relaxed);
                    turn = true;
                }
            }
            Err(error) => return error,
        }
    }
}

/// A pool's memory stays with the device that went; the pool and what it gave out can go in any order.
fn slots_under_way_when_the_device_goes(target: &Target) {
    descriptors_may_stay();
    let adapter = Adapter::of(target);
    let own = Target { peer: target.device.clone(), ..target.clone() };
    let mut pair: Pair = Pair::new(&own, &Setup { channel: true, ..Setup::default() });
    let pool = Pool::new(&pair.a.pd, 4, 64).unwrap();
    let held = pool.take().unwrap();
    (0..2).for_each(|_| pair.a.qp.recv_slot(pool.take().unwrap()).unwrap());
    adapter.unbind();
    let error = pair.a.cq.wait(LIMIT).unwrap_err();
    assert!(matches!(error, ironverbs::Error::DeviceGone { .. }), "{error}");
    let left = pool.take();
    assert!(left.is_some() && pool.take().is_none(), "what was posted stays away");
    drop(pair);
    drop(pool);
    drop(left);
    drop(held);
    adapter.bind();
    works(target);
}
