//! Every opcode on every transport that has it.

use crate::bench::*;
use softcx::*;

const SEND: u8 = 0x0a;
const SEND_IMM: u8 = 0x0b;
const WRITE: u8 = 0x08;
const WRITE_IMM: u8 = 0x09;
const READ: u8 = 0x10;

#[test]
fn a_send_of_several_packets_fills_the_receive_list() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let (mut a, mut b) = pair(kind);
        let data = pattern(1000, 3);
        a.put(DATA, &data);
        b.put(DATA, &[0x11; 2048]);
        b.receive(&[(600, b.key, DATA), (600, b.key, DATA + 1024)]);
        a.send(SEND, 0, &[&sge(700, a.key, DATA), &sge(300, a.key, DATA + 700)]);
        a.settle();
        let sent = a.poll().unwrap();
        assert_eq!((sent.opcode, sent.send_opcode(), sent.wqe_counter()), (0, SEND, 0), "{kind:?}");
        assert_eq!((sent.word(32) & 0xff_ffff, sent.word(56) & 0xff_ffff), (USER_INDEX, a.qpn));
        let received = b.poll().unwrap();
        assert_eq!((received.opcode, received.byte_count(), received.wqe_counter()), (2, 1000, 0));
        assert_eq!(received.word(24) & 0xff_ffff, a.qpn, "remote queue pair");
        assert_eq!(b.get(DATA, 600), data[..600]);
        assert_eq!(b.get(DATA + 1024, 400), data[600..]);
        // What the message did not reach is as it was.
        assert_eq!(b.get(DATA + 1424, 200), [0x11; 200]);
        assert_eq!((a.poll(), b.poll()), (None, None));
        a.clean();
    }
}

#[test]
fn immediates_and_solicited_events_arrive() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    b.receive(&[(64, b.key, DATA)]);
    let wqe = [a.ctrl(SEND_IMM, 2, 0x0a, 0x1122_3344), inline(b"hello")].concat();
    a.post(&wqe);
    a.send(WRITE_IMM, 0x5566_7788, &[&raddr(DATA + 100, b.key), &inline(b"world")]);
    a.settle();
    let first = b.poll().unwrap();
    assert_eq!((first.opcode, first.word(36), first.byte_count(), first.bytes[63] & 2), (3, 0x1122_3344, 5, 2));
    let second = b.poll().unwrap();
    assert_eq!((second.opcode, second.word(36), second.byte_count(), second.bytes[63] & 2), (1, 0x5566_7788, 5, 0));
    assert_eq!((b.get(DATA, 5), b.get(DATA + 100, 5)), (b"hello".to_vec(), b"world".to_vec()));
    let codes: Vec<u8> = a.poll_all().iter().map(Completion::send_opcode).collect();
    assert_eq!(codes, [SEND_IMM, WRITE_IMM]);
    a.clean();
}

#[test]
fn write_and_read_of_many_packets_move_every_byte() {
    let (mut a, mut b) = pair(QpKind::Rc);
    let data = pattern(20_000, 9);
    a.put(DATA, &data);
    a.send(WRITE, 0, &[&raddr(DATA + 0x10000, b.key), &sge(20_000, a.key, DATA)]);
    a.send(READ, 0, &[&raddr(DATA + 0x10000, b.key), &sge(20_000, a.key, DATA + 0x20000)]);
    a.settle();
    assert_eq!(b.get(DATA + 0x10000, 20_000), data);
    assert_eq!(a.get(DATA + 0x20000, 20_000), data);
    let done = a.poll_all();
    assert_eq!((done[0].send_opcode(), done[1].send_opcode(), done[1].byte_count()), (WRITE, READ, 20_000));
    assert_eq!(b.poll(), None, "nothing is said at the other side");
    a.clean();
}

#[test]
fn atomics_return_the_old_value_in_host_order() {
    let (mut a, b) = pair(QpKind::Rc);
    let at = DATA + 0x100;
    b.put(at, &77_u64.to_ne_bytes());
    a.send(0x11, 0, &[&raddr(at, b.key), &atomic(100, 77), &sge(8, a.key, DATA)]);
    a.send(0x11, 0, &[&raddr(at, b.key), &atomic(5, 77), &sge(8, a.key, DATA + 8)]);
    a.send(0x12, 0, &[&raddr(at, b.key), &atomic(23, 0), &sge(8, a.key, DATA + 16)]);
    a.settle();
    let old: Vec<u64> = (0..3).map(|i| u64::from_ne_bytes(a.get(DATA + 8 * i, 8).try_into().unwrap())).collect();
    assert_eq!(old, [77, 100, 100], "the second compare fails");
    assert_eq!(b.get(at, 8), 123_u64.to_ne_bytes());
    let done = a.poll_all();
    assert_eq!(done.iter().map(Completion::send_opcode).collect::<Vec<_>>(), [0x11, 0x11, 0x12]);
    assert_eq!(done[2].byte_count(), 8);
    a.clean();
}

#[test]
fn masked_atomics_touch_only_the_masked_bits() {
    let (mut a, b) = pair(QpKind::Rc);
    b.put(DATA, &0xff00_u64.to_ne_bytes());
    // Compare the low byte (0), swap the low byte.
    let seg = [0xab_u64, 0, 0xff, 0xff].iter().flat_map(|v| v.to_be_bytes()).collect::<Vec<_>>();
    a.send(0x14, 0, &[&raddr(DATA, b.key), &seg, &sge(8, a.key, DATA)]);
    a.settle();
    assert_eq!(b.get(DATA, 8), 0xffab_u64.to_ne_bytes());
    // Two counters of 8 bits: the carry stops between them.
    b.put(DATA, &0x00ff_u64.to_ne_bytes());
    let seg = [0x0101_u64, 0, 0x0080, 0].iter().flat_map(|v| v.to_be_bytes()).collect::<Vec<_>>();
    a.send(0x15, 0, &[&raddr(DATA, b.key), &seg, &sge(8, a.key, DATA)]);
    a.settle();
    assert_eq!(b.get(DATA, 8), 0x0100_u64.to_ne_bytes());
}

#[test]
fn a_nop_completes_in_its_turn() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.send(0, 0, &[]);
    a.settle();
    let order: Vec<(u8, u16)> = a.poll_all().iter().map(|c| (c.send_opcode(), c.wqe_counter())).collect();
    assert_eq!(order, [(SEND, 0), (0, 1)]);
}

#[test]
fn unsignaled_sends_complete_silently() {
    let (mut a, mut b) = pair(QpKind::Rc);
    for _ in 0..4 {
        b.receive(&[(64, b.key, DATA)]);
    }
    for i in 0..4 {
        let wqe = [a.ctrl(SEND, 2, if i == 3 { 0x08 } else { 0 }, 0), inline(b"x")].concat();
        a.post(&wqe);
    }
    a.settle();
    assert_eq!(a.poll_all().iter().map(Completion::wqe_counter).collect::<Vec<_>>(), [3]);
    assert_eq!(b.poll_all().len(), 4);
}

#[test]
fn every_length_of_inline_data_arrives_through_the_end_of_the_ring() {
    let (mut a, mut b) = pair(QpKind::Rc);
    for len in 1..=900_usize {
        let data = pattern(len, len as u8);
        b.receive(&[(1024, b.key, DATA)]);
        a.send(SEND, 0, &[&inline(&data)]);
        a.settle();
        assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().byte_count()), (0, len as u32));
        assert_eq!(b.get(DATA, len), data);
    }
    a.clean();
}

#[test]
fn a_fence_waits_for_the_read_before_it() {
    let (mut a, b) = pair(QpKind::Rc);
    b.put(DATA, b"secret");
    let read = [a.ctrl(READ, 3, 0x08, 0), raddr(DATA, b.key), sge(6, a.key, DATA)].concat();
    a.write_wqe(&read);
    // Flags 0x80: fence; 0x08: completion. Sends back what the READ brings.
    let write = [a.ctrl(WRITE, 3, 0x88, 0), raddr(DATA + 64, b.key), sge(6, a.key, DATA)].concat();
    a.write_wqe(&write);
    a.ring(&write);
    a.settle();
    assert_eq!(b.get(DATA + 64, 6), b"secret");
    assert_eq!(a.poll_all().len(), 2);
}

#[test]
fn a_datagram_has_forty_bytes_in_front() {
    let (mut a, mut b) = pair(QpKind::Ud);
    b.receive(&[(100, b.key, DATA)]);
    let mut av = vec![0; 48];
    av[..4].copy_from_slice(&0x1111_1111_u32.to_be_bytes());
    av[8..12].copy_from_slice(&(b.qpn | 0x8000_0000).to_be_bytes());
    av[12] = 3;
    av[14..16].copy_from_slice(&2_u16.to_be_bytes());
    a.send(SEND, 0, &[&av, &inline(b"datagram")]);
    a.settle();
    let received = b.poll().unwrap();
    assert_eq!((received.opcode, received.byte_count(), received.word(24)), (2, 48, 3 << 24 | a.qpn));
    assert_eq!(received.bytes[22..24], 1_u16.to_be_bytes(), "source LID");
    assert_eq!(b.get(DATA + 40, 8), b"datagram");
    assert_eq!(a.poll().unwrap().send_opcode(), SEND);
    // Another Q_Key is not heard.
    av[3] = 0;
    a.send(SEND, 0, &[&av, &inline(b"datagram")]);
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.poll()), (0, None));
}

#[test]
fn small_messages_come_inside_the_completion() {
    for (entry_bytes, len) in [(64, 32), (128, 64), (128, 1)] {
        let plan = Plan { entry_bytes, scatter: true, ..Plan::of(QpKind::Rc) };
        let (mut a, mut b) = pair_of(plan, 1);
        let data = pattern(len, 5);
        b.put(DATA, &[0x22; 64]);
        b.receive(&[(64, b.key, DATA)]);
        a.send(SEND, 0, &[&inline(&data)]);
        a.settle();
        let received = b.poll().unwrap();
        assert_eq!(received.byte_count(), len as u32);
        let (format, at) = if entry_bytes == 64 { (1, &received.bytes) } else { (2, &b.before_last()) };
        assert_eq!((received.bytes[63] >> 2 & 3, &at[..len]), (format, &data[..]));
        assert_eq!(b.get(DATA, 64), [0x22; 64], "the buffer is left as it was");
    }
}

#[test]
fn counters_pass_sixteen_bits() {
    let (mut a, _b) = pair(QpKind::Rc);
    for i in 0..70_000_u32 {
        a.send(0, 0, &[]);
        a.fabric.step(std::time::Duration::ZERO);
        assert_eq!(a.poll().map(|c| c.wqe_counter()), Some(i as u16));
    }
    a.clean();
}
