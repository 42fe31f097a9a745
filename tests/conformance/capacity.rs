//! Queues hold exactly what they say: filled to the last slot, refused beyond it, nothing lost and nothing overwritten.

use crate::fixture::{Pair, Setup, eventually, receives_may_be_late};
use crate::harness::{skip, step};
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{PostError, WcOpcode, WrFlags};

tests! {
    caps_are_at_least_what_was_asked,
    send_queue_filled_by_one_batch,
    send_queue_filled_one_by_one,
    receive_queue_filled,
    completion_queue_filled,
    batch_rings_once_and_only_at_submit,
    dropped_batch_posts_nothing,
    refused_request_leaves_the_batch_whole,
    unsignaled_requests_complete_silently,
    signal_all_signals_all,
    reserve_checks_once_for_many,
}

const SIZES: [u32; 6] = [1, 2, 3, 5, 16, 100];

fn caps_are_at_least_what_was_asked(target: &Target) {
    let setup = Setup { send_wr: 20, recv_wr: 30, send_sge: 3, recv_sge: 5, inline: 50, ..Setup::default() };
    let mut pair = Pair::new(target, &setup);
    let caps = pair.a.qp.cap();
    assert!(caps.max_send_wr >= 20 && caps.max_recv_wr >= 30, "{caps:?}");
    assert!(caps.max_send_sge >= 3 && caps.max_recv_sge >= 5 && caps.max_inline_data >= 50, "{caps:?}");
    assert_eq!(pair.a.qp.send_batch().remaining(), caps.max_send_wr);
    assert_eq!(pair.a.qp.recv_batch().remaining(), caps.max_recv_wr);
    assert!(pair.a.cq.capacity() >= setup.cq_depth);
}

/// Some kernels return the number that was asked for although the ring is another size.
fn send_queue_filled_by_one_batch(target: &Target) {
    let mut rng = Rng::with_seed(21);
    for asked in SIZES {
        let mut pair = Pair::new(target, &Setup { send_wr: asked, ..Setup::default() });
        pair.scramble(&mut rng);
        let capacity = pair.a.qp.cap().max_send_wr;
        for round in 0..3 {
            step(format!("asked for {asked}, got {capacity}, round {round}"));
            let (entries, remotes): (Vec<_>, Vec<_>) =
                (0..capacity as usize).map(|i| (pair.a.sge(i * 8, 8), pair.b.remote(4096 + i * 8))).unzip();
            pair.a.send(|batch| {
                for i in 0..capacity {
                    assert_eq!(batch.remaining(), capacity - i);
                    let (entry, remote) = (entries[i as usize], remotes[i as usize]);
                    batch.write(i.into(), WrFlags::SIGNALED, &[entry], remote)?;
                }
                assert_eq!(batch.remaining(), 0);
                let one_more = batch.write(99, WrFlags::SIGNALED, &[entries[0]], remotes[0]);
                assert_eq!(one_more, Err(PostError::QueueFull));
                Ok(())
            });
            let ids: Vec<_> = pair.a.successes(capacity as usize).iter().map(|wc| wc.wr_id).collect();
            assert!(ids.into_iter().eq(0..u64::from(capacity)));
            let written = pair.a.image[..capacity as usize * 8].to_vec();
            pair.b.expect(4096, &written);
            pair.check();
            pair.a.scramble(&mut rng);
        }
        pair.a.silent();
    }
}

/// The peer has no receive posted, so nothing completes until it has.
fn send_queue_filled_one_by_one(target: &Target) {
    for asked in SIZES {
        let setup = Setup { send_wr: asked, recv_wr: 256, options: receives_may_be_late, ..Setup::default() };
        let mut pair = Pair::new(target, &setup);
        let capacity = pair.a.qp.cap().max_send_wr;
        step(format!("asked for {asked}, got {capacity}"));
        let entry = pair.a.sge(0, 4);
        for i in 0..capacity {
            pair.a.send(|batch| batch.send(i.into(), WrFlags::SIGNALED, &[entry]));
        }
        let one_more = pair.a.try_send(|batch| batch.send(99, WrFlags::SIGNALED, &[entry]));
        assert_eq!(one_more, Err(PostError::QueueFull));
        let into = pair.b.sge(64, 4);
        for i in 0..capacity {
            pair.b.recv(i.into(), &[into]);
        }
        for side in [&mut pair.a, &mut pair.b] {
            let ids: Vec<_> = side.successes(capacity as usize).iter().map(|wc| wc.wr_id).collect();
            assert!(ids.into_iter().eq(0..u64::from(capacity)));
            side.silent();
        }
        assert_eq!(pair.a.qp.send_batch().remaining(), capacity);
    }
}

fn receive_queue_filled(target: &Target) {
    let mut rng = Rng::with_seed(22);
    for asked in SIZES {
        let mut pair = Pair::new(target, &Setup { send_wr: 256, recv_wr: asked, ..Setup::default() });
        pair.scramble(&mut rng);
        let capacity = pair.b.qp.cap().max_recv_wr;
        for round in 0..3 {
            step(format!("asked for {asked}, got {capacity}, round {round}"));
            for i in 0..capacity as usize {
                let entry = pair.b.sge(4096 + i * 16, 8);
                pair.b.recv(i as u64, &[entry]);
            }
            let entry = pair.b.sge(0, 8);
            assert_eq!(pair.b.try_recv(|batch| batch.recv(99, &[entry])), Err(PostError::QueueFull));
            let entries: Vec<_> = (0..capacity as usize).map(|i| pair.a.sge(i * 8, 8)).collect();
            pair.a.send(|batch| {
                for (i, entry) in entries.iter().enumerate() {
                    batch.send(i as u64, WrFlags::SIGNALED, &[*entry])?;
                }
                Ok(())
            });
            let ids: Vec<_> = pair.b.successes(capacity as usize).iter().map(|wc| wc.wr_id).collect();
            assert!(ids.into_iter().eq(0..u64::from(capacity)), "receives complete in the order they were posted");
            pair.a.successes(capacity as usize);
            for i in 0..capacity as usize {
                let payload = pair.a.image[i * 8..][..8].to_vec();
                pair.b.expect(4096 + i * 16, &payload);
            }
            pair.check();
            pair.a.scramble(&mut rng);
        }
        pair.b.silent();
    }
}

/// To the last entry, more than once around: no completion is lost, and the device does not report an overrun.
fn completion_queue_filled(target: &Target) {
    for asked in [1, 2, 7, 30] {
        let mut pair = Pair::new(target, &Setup { send_wr: 64, cq_depth: asked, ..Setup::default() });
        let capacity = pair.a.cq.capacity() as usize;
        if capacity > 64 {
            skip(format!("the smallest completion queue has {capacity} entries, more than this test fills"));
        }
        let events = pair.a.context.async_events();
        let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
        for round in 0..5 {
            step(format!("asked for {asked}, got {capacity}, round {round}"));
            pair.a.send(|batch| {
                for i in 0..capacity {
                    batch.write(i as u64, WrFlags::SIGNALED, &[entry], remote)?;
                }
                Ok(())
            });
            // Nobody polls until all of them are there: the send queue is empty again.
            pair.a.settle(target);
            let ids: Vec<_> = pair.a.successes(capacity).iter().map(|wc| wc.wr_id).collect();
            assert!(ids.into_iter().eq(0..capacity as u64));
        }
        assert_eq!(events.try_next().unwrap(), None);
        pair.a.silent();
    }
}

/// Before `submit` the device sees nothing of a batch, however long it stays open.
fn batch_rings_once_and_only_at_submit(target: &Target) {
    let mut rng = Rng::with_seed(23);
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut rng);
    let (entry, remote) = (pair.a.sge(0, 64), pair.b.remote(0));
    let payload = pair.a.image[..64].to_vec();
    let before = pair.b.image[..64].to_vec();
    let mr = &pair.b.mr;
    let cq = &mut pair.a.cq;
    crate::fixture::try_send(&mut pair.a.qp, |batch| {
        for i in 0..10 {
            batch.write(i, WrFlags::SIGNALED, &[entry], remote)?;
        }
        crate::fixture::silent(cq);
        let mut now = [0; 64];
        mr.read(0, &mut now).unwrap();
        assert_eq!(now[..], before);
        Ok(())
    })
    .unwrap();
    pair.a.successes(10);
    pair.b.expect(0, &payload);
    pair.check();
    pair.a.silent();
    step("an empty batch");
    pair.a.send(|_| Ok(()));
    pair.a.silent();
}

fn dropped_batch_posts_nothing(target: &Target) {
    let mut rng = Rng::with_seed(24);
    let mut pair = Pair::new(target, &Setup { send_wr: 7, recv_wr: 7, ..Setup::default() });
    pair.scramble(&mut rng);
    let capacity = pair.a.qp.cap().max_send_wr;
    for round in 0..20 {
        step(format!("round {round}"));
        let (entry, remote) = (pair.a.sge(0, 64), pair.b.remote(1024));
        let mut batch = pair.a.qp.send_batch();
        for i in 0..rng.u64(1..=u64::from(capacity)) {
            batch.write(100 + i, WrFlags::SIGNALED, &[entry], remote).unwrap();
        }
        drop(batch);
        let wrong = pair.b.sge(4096, 64);
        let mut batch = pair.b.qp.recv_batch();
        for i in 0..rng.u64(1..5) {
            batch.recv(200 + i, &[wrong]).unwrap();
        }
        drop(batch);

        // Only what is posted now arrives, and it takes only the receive that is posted now.
        let right = pair.b.sge(2048, 64);
        pair.b.recv(round, &[right]);
        pair.a.send(|batch| {
            assert_eq!(batch.remaining(), capacity);
            batch.send(round, WrFlags::SIGNALED, &[entry])
        });
        assert_eq!(pair.a.success().wr_id, round);
        assert_eq!(pair.b.success().wr_id, round);
        let payload = pair.a.image[..64].to_vec();
        pair.b.expect(2048, &payload);
        pair.check();
        pair.a.scramble(&mut rng);
    }
    pair.a.silent();
    pair.b.silent();
}

fn refused_request_leaves_the_batch_whole(target: &Target) {
    let mut rng = Rng::with_seed(25);
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut rng);
    let caps = pair.a.qp.cap();
    let (entry, far, near) = (pair.a.sge(0, 8), pair.b.remote(512), pair.b.remote(0));
    let (wide, long) = (vec![entry; caps.max_send_sge as usize + 1], vec![1u8; caps.max_inline_data as usize + 1]);
    let halves = [&long[..long.len() / 2], &long[long.len() / 2..]];
    pair.a.send(|batch| {
        use ironverbs::{Inline, InlinePieces};
        batch.write(1, WrFlags::SIGNALED, &[entry], far)?;
        assert_eq!(batch.write(2, WrFlags::SIGNALED, &wide[..], near), Err(PostError::TooManySges));
        assert_eq!(batch.read(2, WrFlags::SIGNALED, &wide, near), Err(PostError::TooManySges));
        assert_eq!(batch.write(2, WrFlags::SIGNALED, Inline(&long), near), Err(PostError::InlineTooLong));
        assert_eq!(batch.write(2, WrFlags::SIGNALED, InlinePieces(&halves), near), Err(PostError::InlineTooLong));
        batch.write(3, WrFlags::SIGNALED, &[entry], far)
    });
    let ids: Vec<_> = pair.a.successes(2).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 3]);
    let wide = vec![pair.b.sge(0, 8); pair.b.qp.cap().max_recv_sge as usize + 1];
    assert_eq!(pair.b.try_recv(|batch| batch.recv(1, &wide)), Err(PostError::TooManySges));
    let payload = pair.a.image[..8].to_vec();
    pair.b.expect(512, &payload);
    pair.check();
    pair.a.silent();
}

fn unsignaled_requests_complete_silently(target: &Target) {
    let mut rng = Rng::with_seed(26);
    let mut pair = Pair::new(target, &Setup { send_wr: 15, ..Setup::default() });
    pair.scramble(&mut rng);
    let capacity = pair.a.qp.cap().max_send_wr as u64;
    for round in 0..20 {
        step(format!("round {round}"));
        let signaled = rng.u64(0..capacity);
        for i in 0..capacity {
            let entry = pair.a.sge(i as usize * 8, 8);
            let remote = pair.b.remote(i as usize * 8);
            // The last one is signaled too, so that its completion tells that all are done.
            let flags = if i == signaled || i == capacity - 1 { WrFlags::SIGNALED } else { WrFlags::NONE };
            eventually("there is room", || pair.a.qp.send_batch().remaining() > 0);
            pair.a.send(|batch| batch.write(i, flags, &[entry], remote));
        }
        let mut ids = vec![signaled];
        if signaled != capacity - 1 {
            ids.push(capacity - 1);
        }
        let came: Vec<_> = pair.a.successes(ids.len()).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(came, ids);
        let written = pair.a.image[..capacity as usize * 8].to_vec();
        pair.b.expect(0, &written);
        pair.check();
        assert_eq!(u64::from(pair.a.qp.send_batch().remaining()), capacity);
        pair.a.scramble(&mut rng);
    }
    pair.a.silent();
}

fn signal_all_signals_all(target: &Target) {
    let mut pair = Pair::new(target, &Setup { signal_all: true, ..Setup::default() });
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.b.recv(0, &[]);
    pair.a.send(|batch| {
        batch.write(1, WrFlags::NONE, &[entry], remote)?;
        batch.write(2, WrFlags::SIGNALED, &[entry], remote)?;
        batch.read(3, WrFlags::NONE, &[entry], remote)?;
        batch.send(4, WrFlags::NONE, &[])
    });
    let came: Vec<_> = pair.a.successes(4).iter().map(|wc| (wc.wr_id, wc.outcome().unwrap().opcode)).collect();
    let opcodes = [WcOpcode::RDMA_WRITE, WcOpcode::RDMA_WRITE, WcOpcode::RDMA_READ, WcOpcode::SEND];
    assert!(came.into_iter().eq((1..).zip(opcodes)));
    pair.a.silent();
}

fn reserve_checks_once_for_many(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (sends, receives) = (pair.a.qp.cap().max_send_wr, pair.a.qp.cap().max_recv_wr);
    let mut batch = pair.a.qp.send_batch();
    assert_eq!(batch.reserve(sends), Ok(()));
    assert_eq!(batch.reserve(sends + 1), Err(PostError::QueueFull));
    drop(batch);
    let mut batch = pair.a.qp.recv_batch();
    assert_eq!(batch.reserve(receives), Ok(()));
    assert_eq!(batch.reserve(receives + 1), Err(PostError::QueueFull));
}
