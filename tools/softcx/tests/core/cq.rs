//! Completion queues: owner bits, arming, overrun, resize.

use crate::bench::*;
use softcx::*;
use std::time::Duration;

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
            // The same number again: that event is software's to take first.
            a.arm(sn, false);
            nop(&mut a);
            assert_eq!(a.events(), []);
            a.poll_all();
        }
    }
}

#[test]
fn a_loop_that_arms_again_before_it_takes_the_event_is_right() {
    let (mut a, _b) = pair(QpKind::Rc);
    let told = [Event::Completion { cqn: a.cqn }];
    for sn in 0..10 {
        // Arm, and find a completion that has fired it; so again, although its event was not taken: there is work.
        for n in 0..3 {
            a.arm(sn, false);
            nop(&mut a);
            assert_eq!(a.events().len(), usize::from(n == 0), "one event for number {sn}");
            assert_eq!(a.poll_all().len(), 1);
        }
        // Nothing is left to do: it takes the event, and the next number is news.
        a.arm(sn, false);
        nop(&mut a);
        assert_eq!(a.events(), [], "software has not counted yet");
        a.arm(sn + 1, false);
        assert_eq!(a.events(), told, "of what came meanwhile");
        a.poll_all();
        a.arm(sn + 2, false);
        nop(&mut a);
        assert_eq!(a.events(), told);
        a.poll_all();
    }
    a.clean();
}

#[test]
fn who_waits_for_any_completion_is_not_made_to_wait_for_a_solicited_one() {
    let (mut a, _b) = pair(QpKind::Rc);
    a.arm(0, false);
    a.arm(0, true);
    nop(&mut a);
    assert_eq!(a.events(), [Event::Completion { cqn: a.cqn }]);
    a.poll_all();
    a.arm(1, true);
    nop(&mut a);
    assert_eq!(a.events(), [], "that was had");
    a.poll_all();
    a.arm(1, false);
    nop(&mut a);
    assert_eq!(a.events(), [Event::Completion { cqn: a.cqn }], "more was asked for");
    a.clean();
}

#[test]
fn who_arms_before_polling_is_not_told_of_the_same_completion_twice() {
    let (mut a, _b) = pair(QpKind::Rc);
    a.arm(0, false);
    nop(&mut a);
    assert_eq!(a.events(), [Event::Completion { cqn: a.cqn }]);
    // As perftest does in event mode: the completion is still there.
    a.arm(1, false);
    assert_eq!(a.events(), []);
    assert!(a.poll().is_some());
    nop(&mut a);
    assert_eq!(a.events(), [Event::Completion { cqn: a.cqn }], "it was armed all the time");
    // One that came after the event is news.
    nop(&mut a);
    a.arm(2, false);
    assert_eq!(a.events(), [Event::Completion { cqn: a.cqn }]);
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
    a.fabric.step(Duration::from_millis(2));
    nop(&mut a);
    let stamp = a.poll().unwrap().bytes[48..56].try_into().map(u64::from_be_bytes).unwrap();
    assert_eq!(stamp, 2 * CLOCK_KHZ);
}

#[test]
fn moderated_events_wait_for_a_number_or_a_time() {
    let (mut a, _b) = pair(QpKind::Rc);
    let told = [Event::Completion { cqn: a.cqn }];
    let period = Duration::from_micros(100);
    a.device(|d| d.moderate_cq(a.cqn, Moderation { count: 3, period })).unwrap();
    a.arm(0, false);
    for i in 0..3 {
        assert_eq!(a.events(), [], "{i}");
        a.send(0, 0, &[]);
        a.fabric.step(Duration::ZERO);
    }
    assert_eq!(a.events(), told);
    a.poll_all();
    a.arm(1, false);
    a.send(0, 0, &[]);
    a.settle();
    assert_eq!((a.events(), a.fabric.now()), (told.to_vec(), period), "one, and the time has come");
}

/// Takes a session apart as software does: title, and minis of eight bytes.
fn expand(side: &Side) -> (Vec<u8>, Vec<Vec<u8>>) {
    let title = side.peek(0);
    assert_eq!(title[63] >> 2 & 3, 3, "compressed");
    let n = u32::from_be_bytes(title[44..48].try_into().unwrap());
    let mini = |i: u32| {
        let array = side.peek(if i < 8 { 1 } else { i & !7 });
        array[(i % 8) as usize * 8..][..8].to_vec()
    };
    (title, (0..n).map(mini).collect())
}

#[test]
fn completions_that_are_alike_are_compressed() {
    let plan = Plan { compress: Some(MiniFormat::ChecksumStride), ..Plan::of(QpKind::Rc) };
    let (mut a, mut b) = pair_of(plan, 1);
    for round in 0..5_u16 {
        for i in 0..13_u32 {
            b.receive(&[(64, b.key, DATA + u64::from(i) * 64)]);
        }
        for i in 0..13_u8 {
            let wqe = [a.ctrl(0x0a, 2, 0x08, 0), inline(&[i; 4][..(i % 4) as usize + 1])].concat();
            a.write_wqe(&wqe);
            a.ring(&wqe);
        }
        a.settle();
        let first = round * 13;
        let (title, minis) = expand(&b);
        assert_eq!((title[63] >> 4, &title[60..62], minis.len()), (2, first.to_be_bytes().as_slice(), 13));
        assert_eq!(u32::from(title[63] & 1), u32::from(first) >> LOG2_CQ & 1, "owner");
        for (i, mini) in minis.iter().enumerate() {
            let index = (first + i as u16).to_be_bytes();
            assert_eq!(mini[..], [0, 0, index[0], index[1], 0, 0, 0, i as u8 % 4 + 1]);
        }
        b.skip(13);
        let (title, minis) = expand(&a);
        assert_eq!((title[63] >> 4, minis.len()), (0, 13));
        for (i, mini) in minis.iter().enumerate() {
            let index = (first + i as u16).to_be_bytes();
            assert_eq!(mini[..4], [index[0], index[1], 0x0a, 0]);
        }
        a.skip(13);
    }
    a.clean();
}

#[test]
fn what_differs_is_not_compressed() {
    let plan = Plan { compress: Some(MiniFormat::Hash), ..Plan::of(QpKind::Rc) };
    let (mut a, mut b) = pair_of(plan, 1);
    b.receive(&[(64, b.key, DATA)]);
    b.receive(&[(64, b.key, DATA)]);
    a.send(0x0b, 1, &[&inline(b"x")]);
    a.send(0x0b, 2, &[&inline(b"y")]);
    a.settle();
    assert_eq!(
        b.poll_all().iter().map(|c| (c.opcode, c.word(36), c.byte_count())).collect::<Vec<_>>(),
        [(3, 1, 1), (3, 2, 1)]
    );
}
