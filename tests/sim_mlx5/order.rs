//! Completions in other orders than work requests, and queue pairs that go between their completions.

use crate::rig::{Rig, receive, send};
use ironverbs::{AccessFlags, Inline, QpBuilder, WcOpcode, WcStatus, WrFlags};
use softcx::{Body, Verdict};

/// Queue pairs complete in any order, each in its own.
#[test]
fn completions_of_several_queue_pairs_come_in_any_order() {
    let mut rig = Rig::new(1024);
    let mut pairs: Vec<_> = (0..8).map(|_| rig.pair(32, None)).collect();
    let mut orders = std::collections::BTreeSet::new();
    for round in 0..10 {
        for (n, [a, _]) in pairs.iter_mut().enumerate() {
            let mut batch = a.send_batch();
            for i in 0..8 {
                batch.write(n as u64 * 100 + i, WrFlags::SIGNALED, Inline(&[7]), rig.mr.remote(n).unwrap()).unwrap();
            }
            // SAFETY: inline payload.
            unsafe { batch.submit().unwrap() };
        }
        rig.settle();
        if round % 2 == 1 {
            // The order changes with each turn of the device: one more, in which nothing happens.
            rig.host.fabric().step(rig.host.fabric().now());
        }
        let all = rig.poll();
        assert_eq!(all.len(), 64);
        for n in 0..8 {
            let own: Vec<u64> = all.iter().map(|wc| wc.wr_id).filter(|id| id / 100 == n).collect();
            assert_eq!(own, (n * 100..n * 100 + 8).collect::<Vec<_>>(), "round {round}");
        }
        orders.insert(all.iter().map(|wc| wc.wr_id).collect::<Vec<_>>());
    }
    assert!(orders.len() > 1, "the device answers in one order only: nothing was tested");
    drop(pairs);
    rig.finish();
}

/// One of several queue pairs goes while its completions are in the queue, some read and some not; another takes its place
/// and its numbers at once.
#[test]
fn a_queue_pair_goes_between_its_completions() {
    let mut rig = Rig::new(256);
    let mut others = rig.pair(16, None);
    for round in 0..20_u64 {
        let [mut a, mut b] = rig.pair(16, None);
        for wr_id in 0..6 {
            receive(&mut b, 100 + wr_id, &rig.mr);
            send(&mut a, wr_id, WrFlags::SIGNALED);
        }
        rig.settle();
        let read: Vec<u64> = (0..round % 12).map(|_| rig.cq.poll_one().unwrap().unwrap().wr_id).collect();
        drop((a, b));
        let [mut c, mut d] = rig.pair(16, None);
        receive(&mut d, 300, &rig.mr);
        send(&mut c, 200, WrFlags::SIGNALED);
        receive(&mut others[1], 500, &rig.mr);
        send(&mut others[0], 400, WrFlags::SIGNALED);
        rig.settle();
        let rest = rig.poll();
        assert!(rest.iter().all(|wc| wc.status() == WcStatus::SUCCESS), "{rest:?}");
        let mut all: Vec<u64> = read.into_iter().chain(rest.iter().map(|wc| wc.wr_id)).collect();
        all.sort_unstable();
        let want: Vec<u64> = (0..6).chain(100..106).chain([200, 300, 400, 500]).collect();
        assert_eq!(all, want, "round {round}");
        drop((c, d));
    }
    drop(others);
    rig.finish();
}

/// Receives of a shared queue complete in the order in which their messages end, not in that in which they began: one message
/// loses its last packet, and others overtake it. On one completion queue, and on two.
#[test]
fn receives_of_a_shared_queue_complete_out_of_order() {
    let mut rig = Rig::new(256);
    let mut other = rig.context.create_cq(256).unwrap();
    let mut srq = rig.context.create_srq(&rig.pd, 12).unwrap();
    const ROOM: usize = 4096;
    let buffers = rig.pd.alloc_mr(8 * ROOM, AccessFlags::LOCAL_WRITE).unwrap();
    let prepare = |recv_cq| {
        let builder = QpBuilder::rc(&rig.pd, &rig.cq, recv_cq).max_send_wr(8).max_inline_bytes(64);
        builder.srq(&srq).build().unwrap()
    };
    let mut pairs: Vec<_> = (0..3)
        .map(|n| {
            let (a, b) = (prepare(&rig.cq), prepare(if n == 1 { &other } else { &rig.cq }));
            let (to_a, to_b) = (a.endpoint(), b.endpoint());
            [a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap()]
        })
        .collect();
    let mut free: std::collections::VecDeque<u64> = (0..8).collect();
    let mut inversions = 0;
    for round in 0..60_u64 {
        // Everything that is free, in the order in which it came back.
        let posted: Vec<u64> = free.drain(..).collect();
        let mut batch = srq.recv_batch();
        for id in &posted {
            let at = *id as usize * ROOM;
            batch.recv(*id, &[buffers.sge(at..at + ROOM).unwrap()]).unwrap();
        }
        // SAFETY: see the file's argument.
        unsafe { batch.submit().unwrap() };
        // Which pair's long message loses its last packet, once.
        let slow = pairs[round as usize % 3][0].qpn().get();
        let mut left = 1;
        rig.host.fabric().filter(move |packet| match &packet.body {
            Body::Send { part, .. } if packet.src_qpn == slow && part.last && !part.first && left > 0 => {
                left -= 1;
                Verdict::Drop
            }
            _ => Verdict::Pass,
        });
        let bytes: Vec<u8> = (0..3000).map(|i| (i + round) as u8).collect();
        let mut long = rig.pd.alloc_mr(bytes.len(), AccessFlags::LOCAL_READ).unwrap();
        long.write(0, &bytes).unwrap();
        let slow_first = [round as usize % 3, (round as usize + 1) % 3, (round as usize + 2) % 3];
        for at in slow_first {
            let mut batch = pairs[at][0].send_batch();
            if at == slow_first[0] {
                batch.send(1, WrFlags::SIGNALED, &[long.sge(..).unwrap()]).unwrap();
            } else {
                batch.send(2, WrFlags::SIGNALED, Inline(&[at as u8; 40])).unwrap();
                batch.send(3, WrFlags::SIGNALED, Inline(&[at as u8; 40])).unwrap();
            }
            // SAFETY: see the file's argument.
            unsafe { batch.submit().unwrap() };
            // The messages begin in this order.
            rig.host.fabric().step(rig.host.fabric().now());
        }
        rig.settle();
        let mut all = rig.poll();
        all.extend(std::iter::from_fn(|| other.poll_one().unwrap()));
        let mut came = vec![];
        for wc in &all {
            let done = wc.outcome().unwrap();
            if done.opcode == WcOpcode::SEND {
                continue;
            }
            let pair = pairs.iter().position(|[_, b]| b.qpn().get() == wc.qpn()).unwrap();
            let mut got = vec![0; done.byte_len as usize];
            buffers.read(wc.wr_id as usize * ROOM, &mut got).unwrap();
            if pair == slow_first[0] {
                assert!(got == bytes, "round {round}: the long message");
            } else {
                assert_eq!(got, [pair as u8; 40], "round {round}");
            }
            came.push(wc.wr_id);
        }
        assert_eq!(came.len(), 5, "round {round}: {all:?}");
        let place = |id: u64| posted.iter().position(|posted| *posted == id).unwrap();
        inversions += came.windows(2).filter(|pair| place(pair[0]) > place(pair[1])).count();
        free.extend(came);
        // What was posted and not used is posted still: take it out of the queue by small messages.
        rig.host.fabric().no_filter();
        for _ in 0..3 {
            send(&mut pairs[0][0], 4, WrFlags::NONE);
        }
        rig.settle();
        free.extend(rig.poll().iter().map(|wc| wc.wr_id));
        assert_eq!(free.len(), 8, "round {round}");
    }
    assert!(inversions >= 60, "only {inversions} receives came before one that was posted earlier");
    drop((pairs, srq, other));
    rig.finish();
}
