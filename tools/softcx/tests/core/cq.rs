//! Completion queues: owner bits, arming, overrun, resize.

use crate::bench::*;
use softcx::*;

fn nop(side: &mut Side) {
    side.send(0, 0, &[]);
    side.settle();
}

#[test]
fn an_armed_queue_tells_once_per_sequence_number() {
    let (mut a, _b) = pair(QpKind::Rc);
    let told = [Event::Completion { cqn: a.cqn }];
    nop(&mut a);
    assert_eq!(a.events(), [], "not armed");
    a.poll_all();
    for sn in 0..10 {
        a.arm(sn, false);
        a.arm(sn, false);
        assert_eq!(a.events(), []);
        nop(&mut a);
        nop(&mut a);
        assert_eq!(a.events(), told);
        a.poll_all();
        if sn == 3 {
            // The same number again: that event was had.
            a.arm(sn, false);
            nop(&mut a);
            assert_eq!(a.events(), []);
            assert!(matches!(a.fabric.take_reports()[0].misuse, Misuse::StaleArm { sn: 3 }));
            a.poll_all();
        }
    }
}

#[test]
fn arming_behind_a_completion_tells_at_once() {
    let (mut a, _b) = pair(QpKind::Rc);
    nop(&mut a);
    a.arm(0, false);
    assert_eq!(a.events(), [Event::Completion { cqn: a.cqn }]);
    a.arm(1, true);
    assert_eq!(a.events(), [], "nothing solicited there");
}

#[test]
fn solicited_only_waits_for_solicited_or_error() {
    let (mut a, mut b) = pair(QpKind::Rc);
    for _ in 0..3 {
        b.receive(&[(64, b.key, DATA)]);
    }
    b.arm(0, true);
    a.send(0x0a, 0, &[&inline(b"x")]);
    a.settle();
    assert_eq!(b.events(), []);
    let wqe = [a.ctrl(0x0a, 2, 0x0a, 0), inline(b"x")].concat();
    a.post(&wqe);
    a.settle();
    assert_eq!(b.events(), [Event::Completion { cqn: b.cqn }]);
    b.poll_all();
    b.arm(1, true);
    b.modify(|_| {}, Some(QpState::Err));
    b.settle();
    assert!(b.events().contains(&Event::Completion { cqn: b.cqn }));
}

#[test]
fn a_queue_that_is_not_emptied_breaks() {
    let (mut a, _b) = pair(QpKind::Rc);
    for _ in 0..32 {
        nop(&mut a);
    }
    assert_eq!(a.events(), []);
    nop(&mut a);
    assert_eq!(a.events(), [Event::CqError { cqn: a.cqn }, Event::QpFatal { qpn: a.qpn }]);
    assert_eq!(a.state(), QpState::Err);
    assert_eq!(a.poll_all().len(), 32, "what is there stays");
    assert_eq!(a.fabric.take_reports()[0].misuse, Misuse::CqOverrun);
}

#[test]
fn a_resized_queue_goes_on_in_the_new_ring() {
    let (mut a, _b) = pair(QpKind::Rc);
    nop(&mut a);
    nop(&mut a);
    let ring = DATA + 0x2_0000;
    for i in 0..64 {
        a.put(ring + i * 64 + 63, &[0xf0]);
    }
    a.device(|d| d.resize_cq(a.cqn, Buffer::contiguous(ring, 64 * 64), 6)).unwrap();
    nop(&mut a);
    let old: Vec<u8> = a.poll_all().iter().map(|c| c.opcode).collect();
    assert_eq!(old, [0, 0, 5], "two, then the sign that the ring is left");
    // The third entry of the queue has place 3: the sign counts as one.
    let entry = a.get(ring + 3 * 64, 64);
    assert_eq!((entry[63], &entry[60..62]), (0, [0, 2].as_slice()));
    assert_eq!(a.get(ring + 2 * 64 + 63, 1), [0xf0]);
}

#[test]
fn completions_carry_the_clock() {
    let (mut a, _b) = pair(QpKind::Rc);
    a.fabric.step(std::time::Duration::from_millis(2));
    nop(&mut a);
    let stamp = a.poll().unwrap().bytes[48..56].try_into().map(u64::from_be_bytes).unwrap();
    assert_eq!(stamp, 2 * CLOCK_KHZ);
}
