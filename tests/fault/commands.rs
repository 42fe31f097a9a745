//! Commands of the data path: how many there are, and what their failure does.

use crate::harness::skip;
use crate::scene::{Freed, Scene, completions, recv, recv_shared, send};
use crate::target::Target;
use crate::tests;
use ironverbs::sys::{CommandForm, Fault};
use ironverbs::{Errno, Error, PollError, Pool, PostError, WcStatus, WrFlags};
use std::thread;
use std::time::{Duration, Instant};

tests! {
    one_command_for_a_batch_and_none_to_poll,
    refused_doorbell_loses_nothing,
    refused_doorbell_keeps_the_slot_posted,
    refused_doorbell_in_a_scope_ends_it,
    refused_arm_ends_the_wait,
    completion_queue_that_is_not_mapped_after_a_resize,
    shared_receive_queue_that_is_not_mapped_after_a_resize,
}

/// Skips a test of what only Soft-RoCE's driver does; `others` says what is so with others.
fn soft_roce_only(target: &Target, others: &str) {
    if !target.kind.is_rxe() {
        skip(format!("with other devices than Soft-RoCE {others}"));
    }
}

/// One command per batch of sends, however long; none for receives, polling, an empty batch or a dropped one.
fn one_command_for_a_batch_and_none_to_poll(target: &Target) {
    let fault = Fault::new();
    let (mut scene, _context) = Scene::watched(target, &fault, &Freed::default());
    let (entry, remote) = (scene.entry(), scene.mr.remote(0).unwrap());
    let mut seen = fault.count();
    let mut commands = || {
        let before = std::mem::replace(&mut seen, fault.count());
        seen - before
    };
    // Soft-RoCE only: other devices' doorbells are no commands at all.
    let doorbell = u64::from(target.kind.is_rxe());
    for n in [1u64, 2, 15] {
        send(&mut scene.a, |batch| (0..n).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)))
            .unwrap();
        assert_eq!(commands(), doorbell, "a batch of {n}");
        assert_eq!(completions(&mut scene.cq, n as usize).len(), n as usize);
        assert_eq!(commands(), 0, "polling");
    }
    send(&mut scene.a, |_| Ok(())).unwrap();
    assert_eq!(commands(), 0, "an empty batch");
    let mut batch = scene.a.send_batch();
    batch.write(1, WrFlags::SIGNALED, &[entry], remote).unwrap();
    drop(batch);
    assert_eq!(commands(), 0, "a dropped batch");
    recv(&mut scene.b, 1, &[entry]).unwrap();
    assert_eq!(commands(), 0, "a receive");
    assert_eq!(scene.cq.poll_one().unwrap(), None);
}

/// What was in the ring when its doorbell was refused goes out with the next one, once.
fn refused_doorbell_loses_nothing(target: &Target) {
    soft_roce_only(target, "doorbells are no commands");
    let fault = Fault::new();
    let (mut scene, _context) = Scene::watched(target, &fault, &Freed::default());
    let (entry, remote) = (scene.entry(), scene.mr.remote(0).unwrap());
    for errno in [Errno::EINTR, Errno::ENOMEM, Errno::EINVAL] {
        fault.fail_nth(0, errno);
        let refused =
            send(&mut scene.a, |batch| (0..3).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
        assert_eq!(refused, Err(PostError::Doorbell(errno)));
        assert_eq!(scene.cq.poll_one().unwrap(), None);
        // An empty batch rings for what is there; what comes later rings for itself.
        send(&mut scene.a, |_| Ok(())).unwrap();
        assert!(completions(&mut scene.cq, 3).iter().map(|wc| wc.wr_id).eq(0..3));
        let before = fault.count();
        send(&mut scene.a, |_| Ok(())).unwrap();
        assert_eq!(fault.count(), before, "everything was rung for");
        fault.fail_nth(0, errno);
        let refused =
            send(&mut scene.a, |batch| (0..3).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
        assert_eq!(refused, Err(PostError::Doorbell(errno)));
        send(&mut scene.a, |batch| batch.write(3, WrFlags::SIGNALED, &[entry], remote)).unwrap();
        let all = completions(&mut scene.cq, 4);
        assert!(all.iter().map(|wc| wc.wr_id).eq(0..4), "{all:?}");
        assert!(all.iter().all(|wc| wc.status() == WcStatus::SUCCESS), "{all:?}");
        thread::sleep(Duration::from_millis(20));
        assert_eq!(scene.cq.poll_one().unwrap(), None);
    }
}

fn refused_doorbell_keeps_the_slot_posted(target: &Target) {
    soft_roce_only(target, "doorbells are no commands");
    let fault = Fault::new();
    let (mut scene, _context) = Scene::watched(target, &fault, &Freed::default());
    let (entry, remote) = (scene.entry(), scene.mr.remote(0).unwrap());
    let pool = Pool::new(&scene.pd, 1, 8).unwrap();
    fault.fail_nth(0, Errno::EINTR);
    let refused = scene.a.write_slot(pool.take().unwrap(), 8, remote).unwrap_err();
    assert_eq!(refused.error, PostError::Doorbell(Errno::EINTR));
    assert!(refused.slot.is_none(), "the device has it");
    assert!(pool.take().is_none());
    send(&mut scene.a, |batch| batch.write(0, WrFlags::NONE, &[entry], remote)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < deadline);
        if let Some(completion) = scene.cq.poll().unwrap().next() {
            let (_, wc) = pool.reclaim(completion).unwrap();
            break assert_eq!(wc.status(), WcStatus::SUCCESS);
        }
    }
    assert!(pool.take().is_some());
}

/// Its buffer is in the ring, so the scope flushes it before it gives the buffer back.
fn refused_doorbell_in_a_scope_ends_it(target: &Target) {
    soft_roce_only(target, "doorbells are no commands");
    let fault = Fault::new();
    let (scene, context) = Scene::watched(target, &fault, &Freed::default());
    let remote = scene.mr.remote(0).unwrap();
    // A scope wants the completion queue for itself.
    let mut alone = context.create_cq(8).unwrap();
    let qp = ironverbs::QpBuilder::rc(&scene.pd, &alone, &alone).port(target.port).build().unwrap();
    let mut qp = qp.connect(&scene.b.endpoint()).unwrap();
    let bytes = [7u8; 8];
    let started = Instant::now();
    let error = qp
        .scope(&mut alone, Duration::from_millis(50), |scope| {
            // The region is made by the first command; the doorbell is the one after it.
            fault.fail_nth(1, Errno::EINTR);
            scope.write(&bytes, remote)
        })
        .unwrap_err();
    assert!(error.to_string().contains("the doorbell was refused: EINTR"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(context.leaks().is_empty());
}

fn refused_arm_ends_the_wait(target: &Target) {
    soft_roce_only(target, "doorbells are no commands");
    let fault = Fault::new();
    let (mut scene, _context) = Scene::watched(target, &fault, &Freed::default());
    fault.fail_nth(0, Errno::ENOMEM);
    let error = scene.cq.wait(Duration::from_secs(20)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENOMEM));
    fault.fail_nth(0, Errno::EIO);
    let error = scene.cq.wait(Duration::from_secs(20)).unwrap_err();
    assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
    // The kernel means it for good, so the queue is not waited for again. The channel tells what the kernel tells of it.
    assert!(matches!(scene.cq.wait(Duration::from_secs(20)), Err(Error::DeviceGone { .. })));
    assert!(scene.channel.drain(|_| ()).is_ok());
}

/// It says so until it is resized once more. What was in it and what came meanwhile is there then.
fn completion_queue_that_is_not_mapped_after_a_resize(target: &Target) {
    soft_roce_only(target, "queues are the program's own memory, and are not mapped");
    let fault = Fault::new();
    let (mut scene, context) = Scene::watched(target, &fault, &Freed::default());
    let (entry, remote) = (scene.entry(), scene.mr.remote(0).unwrap());
    send(&mut scene.a, |batch| (0..3).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote))).unwrap();
    assert_eq!(completions(&mut scene.cq, 1)[0].wr_id, 0);
    fault.fail_matching(|command| command.form() == CommandForm::Map, Errno::ENOMEM);
    let error = scene.cq.resize(200).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENOMEM));
    assert!(error.to_string().contains("the completion queue that resize_cq made cannot be mapped"), "{error}");
    fault.clear();
    let unmapped = |scene: &mut Scene| {
        assert_eq!(scene.cq.capacity(), 0);
        assert_eq!(scene.cq.poll_one(), Err(PollError::Unmapped));
        assert_eq!(scene.cq.poll().err(), Some(PollError::Unmapped));
        let error = scene.cq.wait(Duration::from_secs(20)).unwrap_err();
        assert!(error.to_string().contains("resize it once more"), "{error}");
    };
    unmapped(&mut scene);
    send(&mut scene.a, |batch| (3..5).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote))).unwrap();
    // A refusal changes nothing, so the queue is still not mapped.
    fault.fail_nth(0, Errno::EINVAL);
    assert_eq!(scene.cq.resize(200).unwrap_err().errno(), Some(Errno::EINVAL));
    unmapped(&mut scene);
    scene.cq.resize(100).unwrap();
    assert!(scene.cq.capacity() >= 100);
    let all = completions(&mut scene.cq, 4);
    assert!(all.iter().map(|wc| wc.wr_id).eq(1..5), "{all:?}");
    // And a refusal of a queue that is mapped leaves it as it was.
    let capacity = scene.cq.capacity();
    fault.fail_nth(0, Errno::EINVAL);
    scene.cq.resize(10).unwrap_err();
    assert_eq!((scene.cq.capacity(), scene.cq.poll_one()), (capacity, Ok(None)));
    drop(scene);
    assert_eq!(context.leaks(), vec![]);
}

/// As above. What was posted is received into meanwhile; nothing can be posted.
fn shared_receive_queue_that_is_not_mapped_after_a_resize(target: &Target) {
    soft_roce_only(target, "queues are the program's own memory, and are not mapped");
    let fault = Fault::new();
    let (mut scene, context) = Scene::watched(target, &fault, &Freed::default());
    let entry = scene.entry();
    (0..2).for_each(|id| recv_shared(&mut scene.srq, id, &[entry]).unwrap());
    fault.fail_matching(|command| command.form() == CommandForm::Map, Errno::ENOMEM);
    let error = scene.srq.resize(100).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENOMEM));
    assert!(error.to_string().contains("the shared receive queue that modify_srq made cannot be mapped"), "{error}");
    fault.clear();
    let pool = Pool::new(&scene.pd, 1, 8).unwrap();
    let unmapped = |scene: &mut Scene| {
        assert_eq!((scene.srq.capacity(), scene.srq.recv_batch().remaining()), (0, 0));
        assert_eq!(recv_shared(&mut scene.srq, 2, &[entry]), Err(PostError::Unmapped));
        let refused = scene.srq.recv_slot(pool.take().unwrap()).unwrap_err();
        assert_eq!((refused.error, refused.slot.is_some()), (PostError::Unmapped, true));
    };
    unmapped(&mut scene);
    let message = |scene: &mut Scene, id| {
        send(&mut scene.b, |batch| batch.send(9, WrFlags::SIGNALED, &[entry])).unwrap();
        let mut ids: Vec<_> = completions(&mut scene.cq, 2).iter().map(|wc| wc.wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [id, 9]);
    };
    message(&mut scene, 0);
    fault.fail_nth(0, Errno::EINVAL);
    assert_eq!(scene.srq.resize(100).unwrap_err().errno(), Some(Errno::EINVAL));
    unmapped(&mut scene);
    scene.srq.resize(50).unwrap();
    assert!(scene.srq.capacity() >= 50 && scene.srq.max_sge() >= 1);
    recv_shared(&mut scene.srq, 2, &[entry]).unwrap();
    message(&mut scene, 1);
    message(&mut scene, 2);
    drop((pool, scene));
    assert_eq!(context.leaks(), vec![]);
}
