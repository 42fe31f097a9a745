//! Completions that the device packs into blocks.

use crate::rig::{Rig, receive, send};
use ironverbs::{Inline, Qp, QpState, QpUpdate, Wc, WcOpcode, WcStatus, WrFlags};
use softcx::{Body, Syndrome, Verdict};

impl Rig {
    /// Completions that came in blocks so far.
    fn in_blocks(&self) -> u64 {
        self.host.with(self.device, |device| device.packed_completions()).unwrap()
    }
}

/// Posts `n` WRITEs that complete, and are alike.
fn writes(qp: &mut Qp, rig: &Rig, ids: std::ops::Range<u64>) {
    let mut batch = qp.send_batch();
    for id in ids {
        batch.write(id, WrFlags::SIGNALED, Inline(&[7]), rig.mr.remote(0).unwrap()).unwrap();
    }
    // SAFETY: inline payload.
    unsafe { batch.submit().unwrap() };
}

/// Blocks of every length from every place of the ring, of sends and of receives, and single completions between them.
#[test]
fn blocks_of_every_length_go_around_the_rings_end() {
    let mut rig = Rig::packed(63);
    let [mut a, mut b] = rig.pair(64, None);
    let mut id = 0;
    for step in 0..64 {
        for count in [1 + step % 31, 1, 30 - step % 29] {
            for n in 0..count {
                receive(&mut b, 1000 + n, &rig.mr);
            }
            let mut batch = a.send_batch();
            for n in 0..count {
                // Each of another length, from 1 to 31 bytes.
                let bytes = [n as u8; 31];
                batch.send(id + n, WrFlags::SIGNALED, Inline(&bytes[..1 + n as usize])).unwrap();
            }
            // SAFETY: inline payload.
            unsafe { batch.submit().unwrap() };
            rig.settle();
            let all = rig.poll();
            let (sent, received): (Vec<&Wc>, Vec<&Wc>) = all.iter().partition(|wc| wc.qpn() == a.qpn().get());
            assert_eq!((sent.len() as u64, received.len() as u64), (count, count), "step {step}");
            for (wc, n) in sent.iter().zip(0..) {
                assert_eq!((wc.wr_id, wc.outcome().unwrap().opcode), (id + n, WcOpcode::SEND), "step {step}");
            }
            for (wc, n) in received.iter().zip(0..) {
                let done = wc.outcome().unwrap();
                assert_eq!((wc.wr_id, done.opcode, done.byte_len), (1000 + n, WcOpcode::RECV, 1 + n as u32));
            }
            id += count;
        }
    }
    assert!(rig.in_blocks() > 3000, "{} completions came in blocks", rig.in_blocks());
    drop((a, b));
    rig.finish();
}

/// Of several queue pairs some fail, whose failures are never packed, between blocks of the others.
#[test]
fn failures_lie_between_blocks() {
    let mut rig = Rig::packed(500);
    let mut good = rig.pair(64, None);
    for round in 0..12_u64 {
        let [mut a, b] = rig.pair(32, None);
        writes(&mut a, &rig, 0..5);
        writes(&mut good[0], &rig, 100..112);
        rig.settle();
        rig.host
            .with(rig.device, |device| {
                device.fail_next_send(a.qpn().get(), Syndrome::REMOTE_OPERATION).unwrap();
            })
            .unwrap();
        writes(&mut a, &rig, 5..8 + round % 3);
        writes(&mut good[0], &rig, 112..130);
        rig.settle();
        let all = rig.poll();
        let of = |qpn: u32| all.iter().filter(|wc| wc.qpn() == qpn).collect::<Vec<_>>();
        let (failing, working) = (of(a.qpn().get()), of(good[0].qpn().get()));
        assert_eq!(working.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (100..130).collect::<Vec<_>>());
        assert!(working.iter().all(|wc| wc.outcome().is_ok_and(|done| done.opcode == WcOpcode::RDMA_WRITE)));
        assert_eq!(failing.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..8 + round % 3).collect::<Vec<_>>());
        for wc in failing {
            let want = match wc.wr_id {
                0..5 => WcStatus::SUCCESS,
                5 => WcStatus::REM_OP_ERR,
                _ => WcStatus::WR_FLUSH_ERR,
            };
            assert_eq!(wc.status(), want, "{wc:?}");
        }
        drop((a, b));
    }
    assert!(rig.in_blocks() >= 12 * 34, "{} completions came in blocks", rig.in_blocks());
    drop(good);
    rig.finish();
}

/// A queue pair goes while its block is packed, or partly read; another has its numbers at once.
#[test]
fn a_queue_pair_goes_while_its_completions_are_packed() {
    let mut rig = Rig::packed(255);
    let (mut packed, mut second) = (0, 0);
    for round in 0..24_u64 {
        let [mut a, mut b] = rig.pair(32, None);
        for id in 0..10 {
            receive(&mut b, 100 + id, &rig.mr);
        }
        for id in 0..10 {
            send(&mut a, id, WrFlags::SIGNALED);
        }
        rig.settle();
        let first = rig.in_blocks();
        // Some are read, which unpacks the block that they are in, or nothing is.
        let read: Vec<u64> = (0..round % 8).map(|_| rig.cq.poll_one().unwrap().unwrap().wr_id).collect();
        drop((a, b));
        let [mut c, mut d] = rig.pair(32, None);
        for id in 0..5 {
            receive(&mut d, 300 + id, &rig.mr);
            send(&mut c, 200 + id, WrFlags::SIGNALED);
        }
        rig.settle();
        packed += u64::from(first > second && rig.in_blocks() > first);
        second = rig.in_blocks();
        if round % 3 == 0 {
            drop((c, d));
        }
        let rest = rig.poll();
        assert!(rest.iter().all(|wc| wc.status() == WcStatus::SUCCESS), "{rest:?}");
        let mut all: Vec<u64> = read.into_iter().chain(rest.iter().map(|wc| wc.wr_id)).collect();
        all.sort_unstable();
        let want: Vec<u64> = (0..10).chain(100..110).chain(200..205).chain(300..305).collect();
        assert_eq!(all, want, "round {round}");
    }
    assert_eq!(packed, 24, "blocks of both");
    rig.finish();
}

/// A device that waits whether more comes to be packed does not wait longer than the queue pair is there: what was completed is
/// in the ring when the command returns that ends it, or resets it.
#[test]
fn what_is_held_back_to_be_packed_comes_before_its_queue_pair_goes() {
    for reset in [false, true] {
        let mut rig = Rig::packed(63);
        let [mut a, mut b] = rig.pair(8, None);
        let mut batch = b.recv_batch();
        batch.recv(7, &[rig.mr.sge(0..4096).unwrap()]).unwrap();
        // SAFETY: see the file's argument.
        unsafe { batch.submit().unwrap() };
        let mut batch = a.send_batch();
        batch.send(1, WrFlags::NONE, &[rig.mr.sge(8192..11192).unwrap()]).unwrap();
        // SAFETY: see the file's argument.
        unsafe { batch.submit().unwrap() };
        // The message comes in, and its end does not.
        let fabric = rig.host.fabric();
        fabric.filter(|packet| match &packet.body {
            Body::Send { part, .. } if part.last => Verdict::Drop,
            _ => Verdict::Pass,
        });
        while fabric.step(fabric.now()) {}
        fabric.no_filter();
        b.modify(&QpUpdate::to(QpState::ERR)).unwrap();
        if reset {
            b.modify(&QpUpdate::to(QpState::RESET)).unwrap();
        }
        drop(a);
        drop(b);
        let [c, mut d] = rig.pair(8, None);
        receive(&mut d, 300, &rig.mr);
        rig.settle();
        let came: Vec<_> = rig.poll().iter().map(|wc| (wc.wr_id, wc.status())).collect();
        assert_eq!(came, [(7, WcStatus::WR_FLUSH_ERR)], "{}", if reset { "reset" } else { "destroyed" });
        drop((c, d));
        rig.finish();
    }
}

/// The queue gets another ring while blocks are in the old one.
#[test]
fn blocks_move_to_another_ring() {
    let mut rig = Rig::packed(63);
    let [mut a, b] = rig.pair(64, None);
    let mut id = 0;
    for round in 0..30 {
        let count = 1 + 7 * round % 50;
        writes(&mut a, &rig, id..id + count);
        rig.settle();
        let read: Vec<u64> = (0..(round % 4).min(count)).map(|_| rig.cq.poll_one().unwrap().unwrap().wr_id).collect();
        rig.cq.resize([63, 200, 120, 1000, 63][round as usize % 5]).unwrap();
        writes(&mut a, &rig, id + count..id + count + 3);
        rig.settle();
        let all: Vec<u64> = read.into_iter().chain(rig.poll().iter().map(|wc| wc.wr_id)).collect();
        assert_eq!(all, (id..id + count + 3).collect::<Vec<_>>(), "round {round}");
        id += count + 3;
    }
    assert!(rig.in_blocks() > 500, "{} completions came in blocks", rig.in_blocks());
    drop((a, b));
    rig.finish();
}
