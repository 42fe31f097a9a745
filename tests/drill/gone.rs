//! The device goes while programs wait: each learns of it in time, whatever it waits for, and by a typed error; what it has can
//! be used and dropped without harm; and the device can be opened again when it is back.

use crate::adapter::{Adapter, LIMIT, all_until_gone, works};
use crate::fixture::{Pair, SHORT, Setup, receives_may_be_late};
use crate::harness::{descriptors_may_stay, step};
use crate::target::Target;
use crate::tests;
use ironverbs::{AsyncEventType, Context, Error, ObjectKind, PollError, PostError, QpUpdate, Subject, WrFlags};
use softcx::pci::Fault;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

tests! {
    driver_unbound_under_waiters,
    function_removed_under_waiters,
    function_pulled_out_under_waiters,
    firmware_that_fails_for_good,
    driver_unbound_again_and_again,
}

/// From when the driver begins to go: one that waited for its users would take for ever.
const SOON: Duration = Duration::from_secs(30);
/// From when the device has failed by itself: the driver looks at its health every two seconds, and is slow in an emulated guest.
const HEALTH: Duration = Duration::from_secs(50);

fn driver_unbound_under_waiters(target: &Target) {
    let adapter = Adapter::of(target);
    everybody_learns(target, SOON, || {
        let took = adapter.unbind();
        assert!(took < SOON, "the driver waited for its users: {took:?}");
    });
    adapter.bind();
    works(target);
}

fn function_removed_under_waiters(target: &Target) {
    let adapter = Adapter::of(target);
    everybody_learns(target, SOON, || adapter.remove());
    adapter.rescan();
    works(target);
}

/// Nobody tells the kernel, which finds out by itself: the driver reads nothing but ones.
fn function_pulled_out_under_waiters(target: &Target) {
    let adapter = Adapter::of(target);
    everybody_learns(target, HEALTH, || adapter.make(Fault::Gone));
    adapter.remove();
    adapter.rescan();
    works(target);
}

/// The driver finds out by itself, and starts the firmware anew: nobody does anything for the device to come back.
fn firmware_that_fails_for_good(target: &Target) {
    let adapter = Adapter::of(target);
    everybody_learns(target, HEALTH, || adapter.make(Fault::Fatal));
    works(target);
}

fn driver_unbound_again_and_again(target: &Target) {
    descriptors_may_stay();
    let adapter = Adapter::of(target);
    for round in 0..5 {
        step(format!("round {round}"));
        let pair: Pair = Pair::new(target, &Setup { channel: true, ..Setup::default() });
        adapter.unbind();
        if round % 2 == 0 {
            // Still there while the device comes back.
            adapter.bind();
            works(target);
            assert_gone(&pair.a.context);
            drop(pair);
        } else {
            drop(pair);
            adapter.bind();
            works(target);
        }
    }
}

/// Work of every kind is under way, and somebody waits for it in every way there is. After `fail` all of them must end within
/// `limit`.
fn everybody_learns(target: &Target, limit: Duration, fail: impl FnOnce()) {
    // A region that the kernel does not say to be free keeps its memory, and the context that it came from.
    descriptors_may_stay();
    // Nothing completes: the sends find no receive, and ask again for ever.
    let own = Target { peer: target.device.clone(), ..target.clone() };
    let setup = Setup { channel: true, options: receives_may_be_late, ..Setup::default() };
    let [mut waited, mut polled, mut drained]: [Pair; 3] = [(); 3].map(|()| Pair::new(&own, &setup));
    for pair in [&mut waited, &mut polled, &mut drained] {
        let (sent, received) = (pair.a.sge(0, 64), pair.a.sge(64, 64));
        pair.a.send(|batch| (0..4).try_for_each(|id| batch.send(id, WrFlags::SIGNALED, &[sent])));
        (4..8).for_each(|id| pair.a.recv(id, &[received]));
    }
    let contexts = [&waited, &polled, &drained].map(|pair| [pair.a.context.clone(), pair.b.context.clone()]);
    let contexts = contexts.concat();

    let (told, tell) = channel::<(&str, Instant)>();
    let mut threads: Vec<JoinHandle<Pair>> = vec![];
    // One sleeps on its completion queue, and nobody reads events for it.
    threads.push(waiter(&told, "wait", waited, |pair| {
        let error = pair.a.cq.wait(LIMIT).unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
        assert_eq!(pair.a.cq.poll_one().unwrap_err(), PollError::DeviceGone);
    }));
    // One only polls; a thread of the same program reads events.
    let events = polled.a.context.async_events();
    let told_events = told.clone();
    let reader = thread::spawn(move || {
        let all = all_until_gone(&events);
        told_events.send(("events", Instant::now())).unwrap();
        all
    });
    threads.push(waiter(&told, "poll", polled, |pair| {
        let begin = Instant::now();
        loop {
            match pair.a.cq.poll_one() {
                Ok(None) => assert!(begin.elapsed() < LIMIT, "polled in vain"),
                Err(PollError::DeviceGone) => break,
                other => panic!("{other:?}"),
            }
            thread::yield_now();
        }
    }));
    // One waits for the channel that several queues may share.
    threads.push(waiter(&told, "channel", drained, |pair| {
        let channel = pair.a.channel.as_ref().unwrap();
        loop {
            let emptied = channel.wait(LIMIT).and_then(|told| {
                assert!(told, "the channel tells nothing");
                channel.drain(|_| ())
            });
            if let Err(error) = emptied {
                assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
                break;
            }
            if let Err(error) = pair.a.cq.poll_one() {
                assert_eq!(error, PollError::DeviceGone);
                break;
            }
        }
        // And empties its queue pair, of which nothing comes back.
        let error = pair.a.qp.drain(&mut [&mut pair.a.cq], Duration::from_secs(1), |_| ()).unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    }));

    sleep(SHORT * 10);
    assert!(tell.try_recv().is_err(), "somebody learned of something before it was");
    step("the device fails");
    let begin = Instant::now();
    fail();
    for _ in 0..4 {
        let (who, when) = tell.recv_timeout(LIMIT).unwrap();
        let after = when.saturating_duration_since(begin);
        step(format!("{who} learned of it after {after:?}"));
        assert!(after < limit, "{who} learned of it after {after:?}");
    }
    let all = reader.join().unwrap();
    let fatal = all.iter().find(|event| event.kind == AsyncEventType::DEVICE_FATAL);
    assert_eq!(fatal.expect("the device says that it fails").subject, Subject::Device, "{all:?}");
    let pairs: Vec<Pair> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();

    step("objects of the device that is gone");
    for mut pair in pairs {
        let entry = pair.a.sge(0, 8);
        // What is posted goes nowhere, and nothing crashes: the doorbell's page is a page of nothing.
        for _ in 0..3 {
            let posted = pair.a.try_send(|batch| batch.send(20, WrFlags::SIGNALED, &[entry]));
            assert!(matches!(posted, Ok(()) | Err(PostError::Doorbell(_))), "{posted:?}");
            pair.b.try_recv(|batch| batch.recv(21, &[])).unwrap();
        }
        let _ = pair.b.cq.arm(ironverbs::Notify::Any);
        let error = pair.a.qp.modify(&QpUpdate::to(ironverbs::QpState::ERR)).unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
        assert!(matches!(pair.a.qp.query().unwrap_err(), Error::DeviceGone { .. }));
        drop(pair);
    }
    for context in contexts {
        assert_gone(&context);
        // The kernel's answer does not tell when the device was done with the memory.
        let leaks = context.leaks();
        assert!(leaks.iter().all(|leak| leak.kind == ObjectKind::Mr), "{leaks:?}");
    }
}

/// A thread that waits with a pair, and says when it knows.
fn waiter(
    told: &Sender<(&'static str, Instant)>,
    name: &'static str,
    mut pair: Pair,
    wait: impl FnOnce(&mut Pair) + Send + 'static,
) -> JoinHandle<Pair> {
    let told = told.clone();
    thread::spawn(move || {
        wait(&mut pair);
        told.send((name, Instant::now())).unwrap();
        pair
    })
}

/// Nothing can be made any more.
#[track_caller]
fn assert_gone(context: &Context) {
    for error in [
        context.alloc_pd().map(drop).unwrap_err(),
        context.create_cq(4).map(drop).unwrap_err(),
        context.create_comp_channel().map(drop).unwrap_err(),
        context.query_device().map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    }
}
