//! Completions and events wake tasks; what will never come does too.

use crate::fixture::{Pair, SHORT, Setup, Side};
use crate::target::Target;
use crate::{block_on, patiently, tests};
use ironverbs::tokio::{AsyncCq, EventStream, OperationError, Operations};
use ironverbs::{AsyncEventType, Error, PollError, Pool, Subject, WrFlags};
use std::time::Duration;
use tokio::time::timeout;

tests! {
    completion_wakes_the_task,
    dropped_wait_loses_nothing,
    busy_task_lets_others_run,
    overrun_wakes_the_task,
    overrun_that_another_task_reads_wakes_the_task,
    shutdown_wakes_every_task,
    operations_end_with_their_driver,
    completions_of_no_operation_are_passed_on,
    refused_posts_give_the_slot_back,
    without_a_runtime_there_is_an_error,
}

fn with_channels() -> Setup {
    Setup { channel: true, ..Setup::default() }
}

fn completion_wakes_the_task(target: &Target) {
    const ROUNDS: u64 = 1000;
    let Pair { a, mut b } = Pair::new(target, &with_channels());
    // Before the first message leaves, and each further one before the answer that calls for the next message.
    b.recv(0, &[]);
    block_on(async move {
        let pong = tokio::spawn(async move {
            let Side { qp: mut b_qp, cq, .. } = b;
            let mut cq = AsyncCq::new(cq).unwrap();
            for id in 0..ROUNDS {
                assert_eq!(next(&mut cq).await, id);
                crate::fixture::try_recv(&mut b_qp, |batch| batch.recv(id + 1, &[])).unwrap();
                crate::fixture::try_send(&mut b_qp, |batch| batch.send(id, WrFlags::SIGNALED, &[])).unwrap();
            }
            // Kept: the last message may not have left yet.
            (b_qp, cq)
        });
        let Side { mut qp, cq, .. } = a;
        let mut cq = AsyncCq::new(cq).unwrap();
        for id in 0..ROUNDS {
            crate::fixture::try_recv(&mut qp, |batch| batch.recv(id, &[])).unwrap();
            crate::fixture::try_send(&mut qp, |batch| batch.send(id, WrFlags::SIGNALED, &[])).unwrap();
            assert_eq!(next(&mut cq).await, id);
        }
        drop(pong.await.unwrap());
    });
}

/// The number of the next receive. There is one under way at most, and sends complete before and after it.
async fn next(cq: &mut AsyncCq) -> u64 {
    let mut received = None;
    while received.is_none() {
        let mut completions = patiently("a completion", cq.completions()).await.unwrap();
        while let Some(completion) = completions.next() {
            if completion.outcome().unwrap().opcode.is_recv() {
                received = Some(completion.wr_id());
            }
        }
    }
    received.unwrap()
}

fn dropped_wait_loses_nothing(target: &Target) {
    let Pair { mut a, b } = Pair::new(target, &with_channels());
    block_on(async {
        let Side { qp: mut b_qp, cq, .. } = b;
        let mut cq = AsyncCq::new(cq).unwrap();
        for id in 0..200 {
            crate::fixture::try_recv(&mut b_qp, |batch| batch.recv(id, &[])).unwrap();
            // Given up before, while and after the message comes.
            assert!(timeout(Duration::from_micros(id * 5), cq.ready()).await.is_err());
            while a.cq.poll_one().unwrap().is_some() {}
            a.send(|batch| batch.send(id, WrFlags::SIGNALED, &[]));
            let _ = timeout(Duration::from_micros(id * 5), cq.ready()).await;
            assert_eq!(next(&mut cq).await, id);
        }
    });
}

/// Completions that never end must not hold the other tasks up.
fn busy_task_lets_others_run(target: &Target) {
    let Pair { mut a, mut b } = Pair::new(target, &with_channels());
    block_on(async {
        b.recv(1, &[]);
        a.send(|batch| batch.send(1, WrFlags::NONE, &[]));
        let mut cq = AsyncCq::new(b.cq).unwrap();
        patiently("the message", cq.ready()).await.unwrap();
        let other = tokio::spawn(async {});
        while !other.is_finished() {
            // It stays there, so that the wait never has to wait.
            patiently("the other task", cq.ready()).await.unwrap();
        }
    });
}

/// Posts more signaled writes than the completion queue of side `a` holds.
fn overrun(a: &mut Side, b: &Side) {
    let (entry, remote) = (a.sge(0, 8), b.remote(0));
    let n = u64::from(a.cq.capacity()) + 9;
    a.send(|batch| (0..n).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
}

fn small() -> Setup {
    Setup { cq_depth: 4, send_wr: 64, channel: true, ..Setup::default() }
}

async fn expect_overrun(cq: &mut AsyncCq) {
    loop {
        match patiently("the overrun is told", cq.completions()).await {
            Ok(mut completions) => while completions.next().is_some() {},
            Err(error) => break assert!(matches!(error, Error::CqOverrun { .. }), "{error}"),
        }
    }
}

fn overrun_wakes_the_task(target: &Target) {
    let Pair { mut a, b } = Pair::new(target, &small());
    block_on(async {
        overrun(&mut a, &b);
        let mut cq = AsyncCq::new(a.cq).unwrap();
        expect_overrun(&mut cq).await;
        assert_eq!(cq.get_mut().poll_one().unwrap_err(), PollError::Overrun);
    });
}

fn overrun_that_another_task_reads_wakes_the_task(target: &Target) {
    let Pair { mut a, b } = Pair::new(target, &small());
    block_on(async {
        let id = a.cq.id();
        let mut events = EventStream::new(a.context.async_events()).unwrap();
        assert!(timeout(SHORT, events.next()).await.is_err());
        let reader = tokio::spawn(async move {
            let event = patiently("the event", events.next()).await.unwrap();
            assert_eq!((event.kind, event.subject), (AsyncEventType::CQ_ERR, Subject::Cq(id)));
            events
        });
        overrun(&mut a, &b);
        let mut cq = AsyncCq::new(a.cq).unwrap();
        expect_overrun(&mut cq).await;
        reader.await.unwrap();
    });
}

fn shutdown_wakes_every_task(target: &Target) {
    let Pair { a, b } = Pair::new(target, &with_channels());
    let Side { mut qp, cq, context, pd, .. } = a;
    block_on(async {
        let pool = Pool::new(&pd, 2, 64).unwrap();
        let mut events = EventStream::new(context.async_events()).unwrap();
        let (operations, mut driver) = Operations::new(&pool, cq).unwrap();
        let operation = operations.recv(&mut qp, pool.take().unwrap()).unwrap();
        let driver = tokio::spawn(async move { driver.run().await });
        let reader = tokio::spawn(async move { events.next().await });
        tokio::time::sleep(SHORT).await;
        context.shutdown().unwrap();
        let error = patiently("the driver", driver).await.unwrap();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
        let error = patiently("the reader", reader).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
        let error = patiently("the operation", operation).await.unwrap_err();
        assert_eq!(error, OperationError::Queue(PollError::DeviceGone));
    });
    drop(b);
}

fn operations_end_with_their_driver(target: &Target) {
    let Pair { a, b } = Pair::new(target, &with_channels());
    let Side { mut qp, cq, pd, .. } = a;
    block_on(async {
        let pool = Pool::new(&pd, 3, 64).unwrap();
        let (operations, driver) = Operations::new(&pool, cq).unwrap();
        let waiting = operations.recv(&mut qp, pool.take().unwrap()).unwrap();
        let waiting = tokio::spawn(waiting);
        tokio::time::sleep(SHORT).await;
        drop(driver);
        let told = patiently("the operation", waiting).await.unwrap().unwrap_err();
        assert_eq!(told, OperationError::NoDriver);
        let later = operations.recv(&mut qp, pool.take().unwrap()).unwrap();
        assert_eq!(later.await.unwrap_err(), OperationError::NoDriver);
        let left = [pool.take(), pool.take()].map(|slot| slot.is_some());
        assert_eq!(left, [true, false], "the device has the other two");
    });
    drop(b);
}

fn completions_of_no_operation_are_passed_on(target: &Target) {
    let Pair { a, mut b } = Pair::new(target, &with_channels());
    let Side { mut qp, cq, pd, .. } = a;
    block_on(async {
        let pool = Pool::new(&pd, 2, 64).unwrap();
        let (operations, mut driver) = Operations::new(&pool, cq).unwrap();
        b.recv(1, &[]);
        b.recv(2, &[]);
        b.recv(3, &[]);
        crate::fixture::try_send(&mut qp, |batch| batch.send(77, WrFlags::SIGNALED, &[])).unwrap();
        qp.send_slot(pool.take().unwrap(), 0).unwrap();
        let operation = operations.send(&mut qp, pool.take().unwrap(), 0).unwrap();
        let mut others = vec![];
        let _ = timeout(Duration::from_millis(500), driver.run_with(|wc| others.push(wc.wr_id))).await;
        assert_eq!((others.len(), others[0]), (2, 77));
        let (slot, wc) = operation.await.unwrap();
        wc.outcome().unwrap();
        drop(slot);
        assert!(pool.take().is_some());
    });
}

fn refused_posts_give_the_slot_back(target: &Target) {
    let Pair { a, b } = Pair::new(target, &Setup { send_wr: 1, ..with_channels() });
    let Side { mut qp, cq, pd, .. } = a;
    block_on(async {
        let (pool, other) = (Pool::new(&pd, 2, 64).unwrap(), Pool::new(&pd, 1, 64).unwrap());
        let (operations, _driver) = Operations::new(&pool, cq).unwrap();
        let refused = operations.send(&mut qp, pool.take().unwrap(), 65).unwrap_err();
        assert_eq!(refused.error, ironverbs::PostError::BeyondSlot);
        drop(refused);
        let refused = operations.send(&mut qp, other.take().unwrap(), 1).unwrap_err();
        assert_eq!(refused.error, ironverbs::PostError::ForeignSlot);
        drop(refused);
        assert!(other.take().is_some());
        let (one, two) = (pool.take(), pool.take());
        assert!(one.is_some() && two.is_some());
    });
    drop(b);
}

fn without_a_runtime_there_is_an_error(target: &Target) {
    let context = target.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.cq_builder(4).channel(&channel).build().unwrap();
    let errors = [
        AsyncCq::new(cq).map(drop).unwrap_err(),
        EventStream::new(context.async_events()).map(drop).unwrap_err(),
        block_on(async { AsyncCq::new(context.create_cq(4).unwrap()).map(drop).unwrap_err() }),
    ];
    for (error, part) in errors.iter().zip(["tokio runtime", "tokio runtime", "CqBuilder::channel"]) {
        assert!(error.to_string().contains(part), "{error}");
    }
}
