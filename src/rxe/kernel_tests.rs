//! The queues against the running kernel: two RC queue pairs of one device, connected to each other.
//!
//! Each test is ignored unless asked for, and then needs `IRONVERBS_TEST_DEVICE`, the name of an rxe device:
//! `cargo vm --device rxe -- 'IRONVERBS_TEST_DEVICE=rxe0 TEST_BINARY rxe::kernel_tests --ignored --test-threads 1'`.

mod pair;

use super::*;
use crate::uverbs::attr::QpState;
use crate::uverbs::event::read_comp_events;
use crate::uverbs::types::Rkey;
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, SendWr, Sge, WcOpcode, WcStatus, WrFlags};
use pair::{PATIENCE, Pair, open};
use std::os::fd::AsFd;
use std::time::Instant;

fn cap(wr: u32, sge: u32, inline: u32) -> QpCap {
    QpCap { max_send_wr: wr, max_recv_wr: wr, max_send_sge: sge, max_recv_sge: sge, max_inline_data: inline }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn every_opcode_moves_the_right_bytes() {
    let mut pair = Pair::new(cap(3, 4, 64), 15);
    let max_sge = pair.a.sq.max_sge() as usize;
    const TARGET: usize = 0x80000;
    let mut seed = 0;
    // Several rounds, so that each opcode comes to lie in each slot after each other.
    for _ in 0..5 {
        for sizes in [vec![1], vec![100], vec![5000], vec![0], vec![], vec![1, 0, 77, 4097], vec![300; max_sge]] {
            let len: usize = sizes.iter().sum();
            let mut at = 7;
            let sges: Vec<Sge> = sizes
                .iter()
                .map(|&size| {
                    at += 1000 + size;
                    pair.sge(at - size, size)
                })
                .collect();
            let (mut data, spread) = (Vec::new(), sges.clone());
            seed += 1;
            for sge in &spread {
                let piece = pattern(sge.length() as usize, seed + data.len() as u8);
                pair.write((sge.addr() - pair.memory.addr() as u64) as usize, &piece);
                data.extend(piece);
            }
            let remote = pair.remote(TARGET);
            let receive = [pair.sge(TARGET, len.max(1))];
            let check = |pair: &Pair, what: &str| {
                assert_eq!(pair.read(TARGET, len), data, "{what} of {sizes:?}");
                assert!(pair.read(TARGET + len, 64).iter().all(|&b| b == 0xee), "{what} of {sizes:?} wrote too much");
                pair.write(TARGET, &vec![0xee; len]);
            };
            pair.write(TARGET, &vec![0xee; len + 64]);

            let (sent, received) = pair.send(SendOp::Send, Payload::Sges(&sges), Some(&receive));
            assert_eq!((sent.opcode, received.unwrap().opcode), (WcOpcode::SEND, WcOpcode::RECV));
            assert_eq!((received.unwrap().byte_len, received.unwrap().imm), (len as u32, None));
            check(&pair, "SEND");

            let (_, received) = pair.send(SendOp::SendImm(0x1122_3344), Payload::Sges(&sges), Some(&receive));
            assert_eq!(received.unwrap().imm, Some(0x1122_3344));
            check(&pair, "SEND_WITH_IMM");

            let (sent, _) = pair.send(SendOp::Write(remote), Payload::Sges(&sges), None);
            assert_eq!(sent.opcode, WcOpcode::RDMA_WRITE);
            check(&pair, "RDMA_WRITE");

            let (_, received) = pair.send(SendOp::WriteImm(remote, 0x8000_0001), Payload::Sges(&sges), Some(&[]));
            let received = received.unwrap();
            assert_eq!((received.opcode, received.imm), (WcOpcode::RECV_RDMA_WITH_IMM, Some(0x8000_0001)));
            assert_eq!(received.byte_len, len as u32);
            check(&pair, "RDMA_WRITE_WITH_IMM");

            // The other way: remote memory into the list.
            let data = pattern(len, seed ^ 0x55);
            pair.write(TARGET, &data);
            let (sent, _) = pair.send(SendOp::Read(remote), Payload::Sges(&sges), None);
            assert_eq!(sent.opcode, WcOpcode::RDMA_READ);
            let got: Vec<u8> = spread
                .iter()
                .flat_map(|sge| pair.read((sge.addr() - pair.memory.addr() as u64) as usize, sge.length() as usize))
                .collect();
            assert_eq!(got, data, "RDMA_READ of {sizes:?}");
        }

        for len in [0, 1, 7, 8, 15, 16, 17, 63, 64] {
            let data = pattern(len, len as u8);
            let receive = [pair.sge(TARGET, 100)];
            pair.write(TARGET, &[0xee; 100]);
            pair.send(SendOp::Send, Payload::Inline(&data), Some(&receive));
            assert_eq!((pair.read(TARGET, len), pair.read(TARGET + len, 1)), (data.clone(), vec![0xee]));
            pair.write(TARGET, &[0xee; 100]);
            let remote = pair.remote(TARGET);
            let pieces = [&data[..len / 3], &data[len / 3..len / 2], &[], &data[len / 2..]];
            pair.send(SendOp::Write(remote), Payload::InlinePieces(&pieces), None);
            assert_eq!((pair.read(TARGET, len), pair.read(TARGET + len, 1)), (data, vec![0xee]));
        }

        pair.write(TARGET, &100_u64.to_ne_bytes());
        let (remote, old) = (pair.remote(TARGET), pair.sge(64, 8));
        let add = SendOp::FetchAdd { remote, add: 23 };
        let (sent, _) = pair.send(add, Payload::Sges(&[old]), None);
        assert_eq!(sent.opcode, WcOpcode::FETCH_ADD);
        assert_eq!((pair.read_u64(64), pair.read_u64(TARGET)), (100, 123));
        let swap = SendOp::CompareSwap { remote, compare: 123, swap: 0xfeed_0000_0000_beef };
        let (sent, _) = pair.send(swap, Payload::Sges(&[old]), None);
        assert_eq!(sent.opcode, WcOpcode::COMP_SWAP);
        assert_eq!((pair.read_u64(64), pair.read_u64(TARGET)), (123, 0xfeed_0000_0000_beef));
        let (_, _) = pair.send(swap, Payload::Sges(&[old]), None);
        assert_eq!((pair.read_u64(64), pair.read_u64(TARGET)), (0xfeed_0000_0000_beef, 0xfeed_0000_0000_beef));
    }
    pair.close();
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn batches_to_exactly_the_capacity_with_one_doorbell_around_the_ring() {
    // An awkward depth: the ring is larger than asked for, and no batch divides it.
    let mut pair = Pair::new(cap(12, 2, 0), 100);
    let capacity = pair.a.sq.capacity();
    assert_eq!(capacity, 15, "a power of two less one");
    assert_eq!((pair.a.cap.max_send_wr, pair.a.cap.max_recv_wr), (15, 15));
    assert_eq!(pair.cq.capacity(), 127);
    let mut seen = Vec::new();
    for round in 0..40_u64 {
        let n = if round % 2 == 0 { capacity } else { 1 + (round as u32 * 5) % capacity };
        pair.b.rq.begin();
        for i in 0..n as u64 {
            pair.b.rq.push(round << 8 | i, &[pair.sge(0x10000 + 512 * i as usize, 512)]).unwrap();
        }
        if n == capacity {
            assert_eq!(pair.b.rq.push(0, &[]), Err(PostError::QueueFull));
        }
        pair.b.rq.submit();
        pair.a.sq.begin();
        assert_eq!(pair.a.sq.remaining(), capacity);
        for i in 0..u64::from(n) {
            let data = pattern(300, (round + i) as u8);
            pair.write(512 * i as usize, &data);
            let (sge, flags) = (
                [pair.sge(512 * i as usize, 100), pair.sge(512 * i as usize + 100, 200)],
                if i + 1 == u64::from(n) { WrFlags::SIGNALED } else { WrFlags::NONE },
            );
            pair.a
                .sq
                .push(&SendWr { wr_id: 1000 + round, flags, op: SendOp::Send, payload: Payload::Sges(&sge) })
                .unwrap();
        }
        if n == capacity {
            let more = SendWr { wr_id: 0, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Sges(&[]) };
            assert_eq!(pair.a.sq.push(&more), Err(PostError::QueueFull));
        }
        seen.clear();
        pair.poll_now(&mut seen);
        assert_eq!(seen, [], "nothing moves before the doorbell");
        pair.a.sq.submit().unwrap();
        let seen = pair.poll(n as usize + 1);
        assert!(seen.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{seen:?}");
        let received: Vec<u64> = seen.iter().filter(|wc| wc.opcode == WcOpcode::RECV).map(|wc| wc.wr_id).collect();
        assert_eq!(received, (0..u64::from(n)).map(|i| round << 8 | i).collect::<Vec<_>>());
        let sent: Vec<u64> = seen.iter().filter(|wc| wc.opcode == WcOpcode::SEND).map(|wc| wc.wr_id).collect();
        assert_eq!(sent, [1000 + round]);
        for i in 0..u64::from(n) {
            assert_eq!(pair.read(0x10000 + 512 * i as usize, 300), pattern(300, (round + i) as u8), "message {i}");
        }
    }
    pair.close();
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn thirty_entries_and_one_entry_take_turns_in_the_same_slots() {
    let mut pair = Pair::new(cap(1, 30, 0), 7);
    assert_eq!(pair.a.sq.capacity(), 1);
    for round in 0..12 {
        let sizes = if round % 2 == 0 { vec![33; 30] } else { vec![150] };
        let len: usize = sizes.iter().sum();
        let data = pattern(len, round);
        pair.write(0, &data);
        let mut at = 0;
        let sges: Vec<Sge> = sizes.iter().map(|&n| (pair.sge(at, n), at += n).0).collect();
        let target: Vec<Sge> = sges.iter().map(|s| Sge::from_raw(s.addr() + 0x8000, s.length(), s.lkey())).collect();
        pair.send(SendOp::Send, Payload::Sges(&sges), Some(&target));
        assert_eq!(pair.read(0x8000, len), data, "round {round}");
    }
    pair.close();
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn traffic_goes_on_after_reset() {
    let mut pair = Pair::new(cap(7, 1, 0), 31);
    for round in 0..5_u64 {
        for i in 0..3 + round {
            pair.write(0, &pattern(100, (round * 16 + i) as u8));
            let (source, target) = ([pair.sge(0, 100)], [pair.sge(4096, 100)]);
            pair.send(SendOp::Send, Payload::Sges(&source), Some(&target));
            assert_eq!(pair.read(4096, 100), pattern(100, (round * 16 + i) as u8));
        }
        // Receives that never complete, and sends that are never kicked.
        pair.b.rq.begin();
        pair.b.rq.push(99, &[]).unwrap();
        pair.b.rq.submit();
        pair.modify_both(QpState::RESET);
        for qp in [&mut pair.a, &mut pair.b] {
            qp.sq.resync();
            qp.rq.resync();
            assert_eq!((qp.sq.remaining(), qp.rq.remaining()), (7, 7), "round {round}");
        }
        pair.psn = 1000 * round as u32;
        pair.connect();
    }
    pair.close();
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn a_bad_remote_key_completes_with_its_status_and_the_rest_is_flushed() {
    let mut pair = Pair::new(cap(7, 1, 0), 31);
    let bad = RemoteAddr { rkey: Rkey(pair.rkey.0 ^ 0xff), ..pair.remote(0) };
    pair.a.sq.begin();
    for wr_id in 0..5 {
        let op = SendOp::Write(if wr_id == 0 { pair.remote(0) } else { bad });
        pair.a
            .sq
            .push(&SendWr { wr_id, flags: WrFlags::NONE, op, payload: Payload::Sges(&[pair.sge(64, 64)]) })
            .unwrap();
    }
    pair.a.sq.submit().unwrap();
    let seen = pair.poll(4);
    assert_eq!((seen[0].wr_id, seen[0].status), (1, WcStatus::REM_ACCESS_ERR), "{seen:?}");
    for (wc, wr_id) in seen[1..].iter().zip(2..) {
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WR_FLUSH_ERR), "{seen:?}");
    }
    pair.close();
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn an_armed_queue_wakes_the_waiter() {
    let mut pair = Pair::new(cap(7, 1, 0), 31);
    let mut seen = Vec::new();
    for round in 0..50 {
        pair.a.sq.begin();
        let wr = SendWr {
            wr_id: round,
            flags: WrFlags::SIGNALED,
            op: SendOp::Write(pair.remote(0)),
            payload: Payload::Sges(&[pair.sge(64, 64)]),
        };
        pair.a.sq.push(&wr).unwrap();
        pair.a.sq.submit().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            pair.poll_now(&mut seen);
            pair.ctx().req_notify_cq(&pair.cq_handle, false).unwrap();
            pair.poll_now(&mut seen);
            if seen.len() > round as usize {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [nix::poll::PollFd::new(pair.channel.as_fd(), nix::poll::PollFlags::POLLIN)];
            let ready = nix::poll::poll(&mut fds, nix::poll::PollTimeout::try_from(left).unwrap()).unwrap();
            assert_ne!(ready, 0, "slept over completion {round}");
            read_comp_events(pair.channel.as_fd(), |_| ()).unwrap();
        }
        assert_eq!(seen.last().unwrap().wr_id, round);
    }
    pair.close();
}

#[test]
#[ignore = "needs a kernel rxe device: IRONVERBS_TEST_DEVICE"]
fn limits_are_refused_before_the_kernel_is_asked() {
    let ctx = open();
    let pd = ctx.alloc_pd(&mut []).unwrap();
    for cqe in [0, 32768, u32::MAX] {
        let error = create_cq(&ctx, cqe, 1, None, 0).err().unwrap();
        assert!(matches!(error, Error::Invalid { verb: Verb::CreateCq, what: "cqe", .. }), "{error}");
    }
    let (handle, cq) = create_cq(&ctx, 32767, 1, None, 0).unwrap();
    assert_eq!(cq.capacity(), 32767);
    let create = |cap| {
        let (send_cq, recv_cq) = (&handle, &handle);
        create_qp(&ctx, &CreateQp { pd: &pd, send_cq, recv_cq, qp_type: 2, sq_sig_all: false, cap, user_handle: 1 })
    };
    for (bad, field) in [
        (cap(1 << 21, 1, 0), "max_send_wr"),
        (cap(1, 33, 0), "max_send_sge"),
        (QpCap { max_recv_sge: 33, ..cap(1, 1, 0) }, "max_recv_sge"),
        (QpCap { max_recv_wr: u32::MAX, ..cap(1, 1, 0) }, "max_recv_wr"),
    ] {
        let error = create(bad).err().unwrap();
        assert!(matches!(error, Error::Invalid { verb: Verb::CreateQp, what, .. } if what == field), "{error}");
    }
    let error = create(cap(1, 1, 513)).err().unwrap();
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    assert!(error.to_string().contains("513 inline bytes"), "{error}");

    let mut most = create(cap(1, 32, 512)).unwrap();
    assert_eq!((most.sq.max_sge(), most.sq.max_inline(), most.rq.max_sge()), (32, 512, 32));
    let mut none = create(cap(0, 0, 0)).unwrap();
    assert_eq!((none.sq.capacity(), none.rq.capacity()), (0, 0));
    let nothing = SendWr { wr_id: 0, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Sges(&[]) };
    assert_eq!(none.sq.push(&nothing), Err(PostError::QueueFull));
    assert_eq!(none.rq.push(0, &[]), Err(PostError::QueueFull));
    // A queue pair in RESET takes no doorbell.
    most.sq.push(&nothing).unwrap();
    assert_eq!(most.sq.submit(), Err(PostError::Doorbell(Errno::EINVAL)));
}
