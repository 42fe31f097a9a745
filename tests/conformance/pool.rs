//! Pools: a slot is the program's or the device's, never both, and comes back whatever happens.

use crate::fixture::{Pair, Patience, Setup, receives_may_be_late, try_send};
use crate::harness::step;
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{Cq, Pool, PostError, QpUpdate, Slot, Wc, WcOpcode, WcStatus, WrFlags};

tests! {
    slots_carry_messages,
    slots_write_and_read_the_peer,
    slot_sends_in_a_ring_that_wraps,
    every_slot_is_given_out_once,
    slots_come_back_with_errors,
    slots_that_could_not_be_posted_come_back,
    completions_of_others_are_left_alone,
    lost_slots_cost_only_themselves,
    pool_outlives_its_makers,
    slot_of_another_domain_is_refused,
    slot_without_a_pool_is_refused,
    reset_costs_what_was_posted,
}

/// Waits for one completion and gives it to the pool.
fn reclaim(cq: &mut Cq, pool: &Pool) -> Result<(Slot, Wc), Wc> {
    let patience = Patience::new();
    loop {
        if let Some(completion) = cq.poll().unwrap().next() {
            return pool.reclaim(completion);
        }
        patience.check("a completion comes");
    }
}

fn slots_carry_messages(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (a, b) = (Pool::new(&pair.a.pd, 3, 100).unwrap(), Pool::new(&pair.b.pd, 3, 1000).unwrap());
    assert_eq!((a.count(), a.slot_bytes()), (3, 100));
    let mut rng = Rng::with_seed(81);
    for round in 0..60u32 {
        step(format!("round {round}"));
        let receive = b.take().unwrap();
        let receive_index = receive.index();
        pair.b.qp.recv_slot(receive).unwrap();
        let mut slot = a.take().unwrap();
        assert_eq!(slot.len(), 100);
        rng.fill(&mut slot);
        let (sent, len, index) = (slot.to_vec(), rng.usize(0..=100), slot.index());
        match round % 2 {
            0 => pair.a.qp.send_slot(slot, len as u32).unwrap(),
            _ => pair.a.qp.send_imm_slot(slot, len as u32, round).unwrap(),
        }
        let (slot, wc) = reclaim(&mut pair.a.cq, &a).unwrap();
        assert_eq!(
            (slot.index(), wc.qpn(), wc.outcome().unwrap().opcode),
            (index, pair.a.qp.qpn().get(), WcOpcode::SEND)
        );
        assert_eq!(*slot, sent, "what was sent is still in its slot");
        let (slot, wc) = reclaim(&mut pair.b.cq, &b).unwrap();
        let done = wc.outcome().unwrap();
        assert_eq!((slot.index(), done.byte_len as usize), (receive_index, len));
        assert_eq!(done.imm, (round % 2 == 1).then_some(round));
        assert_eq!(slot[..len], sent[..len]);
    }
}

fn slots_write_and_read_the_peer(target: &Target) {
    let mut rng = Rng::with_seed(82);
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut rng);
    let pool = Pool::new(&pair.a.pd, 2, 64).unwrap();
    for round in 0..20 {
        step(format!("round {round}"));
        let (mut slot, at) = (pool.take().unwrap(), rng.usize(0..1000));
        rng.fill(&mut slot);
        pair.b.expect(at, &slot[..50]);
        pair.a.qp.write_slot(slot, 50, pair.b.remote(at)).unwrap();
        let (slot, wc) = reclaim(&mut pair.a.cq, &pool).unwrap();
        assert_eq!(wc.outcome().unwrap().opcode, WcOpcode::RDMA_WRITE);
        pair.check();
        let beyond = slot[60..].to_vec();
        let from = rng.usize(0..1000);
        pair.a.qp.read_slot(slot, 60, pair.b.remote(from)).unwrap();
        let (slot, wc) = reclaim(&mut pair.a.cq, &pool).unwrap();
        assert_eq!(wc.outcome().unwrap().opcode, WcOpcode::RDMA_READ);
        assert_eq!(slot[..60], pair.b.image[from..from + 60]);
        assert_eq!(slot[60..], beyond, "beyond the length that was read");
    }
}

/// Many slots in flight, in queues that go around often.
fn slot_sends_in_a_ring_that_wraps(target: &Target) {
    const MESSAGES: u32 = 500;
    let mut pair = Pair::new(target, &Setup { send_wr: 7, recv_wr: 15, ..Setup::default() });
    let (a, b) = (Pool::new(&pair.a.pd, 9, 8).unwrap(), Pool::new(&pair.b.pd, 15, 8).unwrap());
    let (mut sent, mut received, mut posted) = (0, 0, 0);
    let patience = Patience::new();
    while received < MESSAGES {
        patience.check("all messages are received");
        while let Some(slot) = b.take() {
            match pair.b.qp.recv_slot(slot) {
                Ok(()) => posted += 1,
                Err(refused) => {
                    assert_eq!(refused.error, PostError::QueueFull);
                    break;
                }
            }
        }
        while sent < MESSAGES && sent < posted {
            let Some(mut slot) = a.take() else { break };
            slot.copy_from_slice(&u64::from(sent).to_ne_bytes());
            match pair.a.qp.send_slot(slot, 8) {
                Ok(()) => sent += 1,
                Err(refused) => {
                    assert_eq!(refused.error, PostError::QueueFull);
                    assert!(refused.slot.is_some());
                    break;
                }
            }
        }
        let mut completions = pair.a.cq.poll().unwrap();
        while let Some(completion) = completions.next() {
            let (_, wc) = a.reclaim(completion).unwrap();
            wc.outcome().unwrap();
        }
        drop(completions);
        let mut completions = pair.b.cq.poll().unwrap();
        while let Some(completion) = completions.next() {
            let (slot, wc) = b.reclaim(completion).unwrap();
            assert_eq!(wc.outcome().unwrap().byte_len, 8);
            assert_eq!(*slot, u64::from(received).to_ne_bytes());
            received += 1;
        }
    }
}

fn every_slot_is_given_out_once(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let pool = Pool::new(&pd, 5, 10).unwrap();
    let mut slots: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    let mut indexes: Vec<_> = slots.iter().map(|slot| slot.index()).collect();
    indexes.sort();
    assert_eq!(indexes, [0, 1, 2, 3, 4]);
    for (i, slot) in slots.iter_mut().enumerate() {
        slot.fill(i as u8);
    }
    for (i, slot) in slots.iter().enumerate() {
        assert_eq!(**slot, [i as u8; 10], "slots do not overlap");
    }
    let dropped = slots.swap_remove(2).index();
    assert_eq!(pool.take().map(|slot| slot.index()), Some(dropped));
    for (count, bytes) in [(0, 1), (1, 0), (u32::MAX, usize::MAX)] {
        let error = Pool::new(&pd, count, bytes).unwrap_err();
        assert!(error.to_string().starts_with("reg_mr: pool size is"), "{error}");
    }
}

/// A failed or flushed request gives its slot back as well.
fn slots_come_back_with_errors(target: &Target) {
    let mut pair = Pair::new(target, &Setup { options: receives_may_be_late, ..Setup::default() });
    let (a, b) = (Pool::new(&pair.a.pd, 4, 8).unwrap(), Pool::new(&pair.b.pd, 4, 8).unwrap());
    for pool in [&a, &b] {
        for _ in 0..4 {
            let slot = pool.take().unwrap();
            match std::ptr::eq(pool, &a) {
                // There is no receive for these.
                true => pair.a.qp.send_slot(slot, 8).unwrap(),
                false => pair.b.qp.recv_slot(slot).unwrap(),
            }
        }
        assert!(pool.take().is_none());
        let (qp, cq) = match std::ptr::eq(pool, &a) {
            true => (&mut pair.a.qp, &mut pair.a.cq),
            false => (&mut pair.b.qp, &mut pair.b.cq),
        };
        qp.to_error().unwrap();
        let mut back: Vec<_> = (0..4)
            .map(|_| {
                let (slot, wc) = reclaim(cq, pool).unwrap();
                assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
                slot
            })
            .collect();
        back.sort_by_key(|slot| slot.index());
        assert!(back.iter().map(|slot| slot.index()).eq(0..4));
    }
}

fn slots_that_could_not_be_posted_come_back(target: &Target) {
    let mut pair = Pair::new(target, &Setup { recv_wr: 1, ..Setup::default() });
    let pool = Pool::new(&pair.a.pd, 2, 16).unwrap();
    step("too long");
    let refused = pair.a.qp.send_slot(pool.take().unwrap(), 17).unwrap_err();
    assert_eq!(refused.error, PostError::BeyondSlot);
    let text = refused.to_string();
    assert!(text.contains(&format!("has {} bytes", refused.slot.as_ref().unwrap().len())), "{text}");
    let slot = refused.slot.unwrap();
    step("no room");
    let capacity = pair.a.qp.cap().max_recv_wr;
    for id in 0..capacity {
        pair.a.recv(id.into(), &[]);
    }
    let refused = pair.a.qp.recv_slot(slot).unwrap_err();
    assert_eq!((refused.error, refused.to_string().contains("full")), (PostError::QueueFull, true));
    step("wrong state");
    pair.a.qp.modify(&QpUpdate::to(ironverbs::QpState::RESET)).unwrap();
    let refused = pair.a.qp.send_slot(refused.slot.unwrap(), 1).unwrap_err();
    assert_eq!(refused.error, PostError::BadState);
    let refused = pair.a.qp.recv_slot(refused.slot.unwrap()).unwrap_err();
    assert_eq!(refused.error, PostError::BadState);
    drop(refused);
    let both: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(both.len(), 2, "no slot was lost");
}

/// Two pools and raw requests on one queue: each pool takes its own completions only.
fn completions_of_others_are_left_alone(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (one, two) = (Pool::new(&pair.a.pd, 2, 8).unwrap(), Pool::new(&pair.a.pd, 2, 8).unwrap());
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    pair.a.qp.write_slot(one.take().unwrap(), 8, remote).unwrap();
    let wc = reclaim(&mut pair.a.cq, &two).unwrap_err();
    assert_eq!(wc.status(), WcStatus::SUCCESS);
    step("raw requests with any number below 2^32");
    for id in [0, 1, 7, u64::from(u32::MAX)] {
        try_send(&mut pair.a.qp, |batch| batch.write(id, WrFlags::SIGNALED, &[entry], remote)).unwrap();
        assert_eq!(reclaim(&mut pair.a.cq, &one).unwrap_err().wr_id, id);
    }
    assert!(two.take().is_some() && one.take().is_some());
}

/// A completion that was polled without its pool, and a queue pair dropped with slots posted.
fn lost_slots_cost_only_themselves(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let pool = Pool::new(&pair.b.pd, 3, 8).unwrap();
    pair.b.qp.recv_slot(pool.take().unwrap()).unwrap();
    pair.a.send(|batch| batch.send(1, WrFlags::SIGNALED, &[]));
    pair.b.success();
    pair.b.qp.recv_slot(pool.take().unwrap()).unwrap();
    let Pair { a, b } = pair;
    drop(b.qp);
    let last: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(last.len(), 1);
    drop((pool, last, a));
}

/// A slot keeps the pool's memory, its protection domain and its context.
fn pool_outlives_its_makers(target: &Target) {
    let mut slot = {
        let context = target.open();
        let pool = Pool::new(&context.alloc_pd().unwrap(), 1, 4).unwrap();
        pool.take().unwrap()
    };
    slot.copy_from_slice(b"kept");
    assert_eq!(*slot, *b"kept");
}

/// The device would find no memory under its key, or somebody else's.
fn slot_of_another_domain_is_refused(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let pd = pair.a.context.alloc_pd().unwrap();
    let pool = Pool::new(&pd, 1, 64).unwrap();
    let remote = pair.b.remote(0);
    let mut slot = pool.take().unwrap();
    for what in ["send", "write", "receive"] {
        let refused = match what {
            "send" => pair.a.qp.send_slot(slot, 8),
            "write" => pair.a.qp.write_slot(slot, 8, remote),
            _ => pair.a.qp.recv_slot(slot),
        };
        let refused = refused.unwrap_err();
        assert_eq!(refused.error, PostError::ForeignPd, "{what}");
        slot = refused.slot.expect("it comes back");
    }
    pair.a.silent();
    drop(slot);
    assert!(pool.take().is_some());
}

/// Its completion could give it back to nobody.
fn slot_without_a_pool_is_refused(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let slot = Pool::new(&pair.a.pd, 1, 64).unwrap().take().unwrap();
    let refused = pair.a.qp.recv_slot(slot).unwrap_err();
    assert_eq!(refused.error, PostError::PoolGone);
    let mut slot = refused.slot.expect("it comes back");
    slot.fill(7);
    let refused = pair.a.qp.send_slot(slot, 8).unwrap_err();
    assert_eq!((refused.error, refused.slot.map(|slot| slot[0])), (PostError::PoolGone, Some(7)));
    pair.a.silent();
}

/// What the documentation says of RESET: nothing completes, so that the slots are lost, and nothing else is.
fn reset_costs_what_was_posted(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let pool = Pool::new(&pair.a.pd, 3, 64).unwrap();
    let kept = pool.take().unwrap();
    for _ in 0..2 {
        pair.a.qp.recv_slot(pool.take().unwrap()).unwrap();
    }
    pair.a.qp.modify(&QpUpdate::to(ironverbs::QpState::RESET)).unwrap();
    pair.a.silent();
    assert!(pool.take().is_none());
    drop(kept);
    assert!(pool.take().is_some());
}
