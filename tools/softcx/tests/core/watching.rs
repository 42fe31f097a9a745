//! What is shown of a completion queue is what was written into its ring, where, and no more.

use crate::bench::*;
use softcx::*;
use std::sync::{Arc, Mutex};

/// Place and bytes of what was shown, in its order; whether it was packed, and of sends.
type Shown = Arc<Mutex<Vec<(u32, Vec<u8>, Option<bool>)>>>;

fn watch(side: &Side) -> Shown {
    let shown = Shown::default();
    let seen = Arc::clone(&shown);
    side.device(|d| {
        d.control().tap(move |tapped| {
            let entry = match tapped.entry {
                Entry::Completion { index, bytes, .. } => (index, bytes.to_vec(), None),
                Entry::Packed { index, bytes, is_send, .. } => (index, bytes.to_vec(), Some(is_send)),
                _ => return,
            };
            seen.lock().unwrap().push(entry);
        });
    });
    shown
}

fn nop(side: &mut Side) {
    side.send(0, 0, &[]);
    side.settle();
}

fn in_ring(side: &Side, (index, bytes, _): &(u32, Vec<u8>, Option<bool>)) -> bool {
    side.get(CQ_RING + u64::from(*index) * 64, bytes.len()) == bytes[..]
}

#[test]
fn entries_have_their_place_and_owner_bit() {
    let (mut a, _b) = pair(QpKind::Rc);
    let shown = watch(&a);
    // Three passes of the ring, and a bit.
    for n in 0..100 {
        nop(&mut a);
        let entry = shown.lock().unwrap().pop().expect("it is shown");
        assert_eq!(entry.0, n % 32);
        assert_eq!(u32::from(entry.1[63] & 1), n / 32 % 2);
        assert!(in_ring(&a, &entry));
        a.poll().unwrap();
    }
    // So has the entry that says that the ring is left.
    let ring = DATA + 0x2_0000;
    a.device(|d| d.resize_cq(a.cqn, Buffer::contiguous(ring, 64 * 64), 6)).unwrap();
    let entry = shown.lock().unwrap().pop().expect("it is shown");
    assert_eq!((entry.0, entry.1[63]), (100 % 32, 0x51));
    assert!(in_ring(&a, &entry));
    nop(&mut a);
    let entry = shown.lock().unwrap().pop().expect("it is shown");
    assert_eq!(entry.0, 101 % 64);
    assert_eq!(a.get(ring + 101 % 64 * 64, 64), entry.1);
    assert!(shown.lock().unwrap().is_empty());
}

#[test]
fn what_there_is_no_room_for_is_not_shown() {
    let (mut a, _b) = pair(QpKind::Rc);
    let shown = watch(&a);
    for _ in 0..33 {
        nop(&mut a);
    }
    assert_eq!(a.fabric.take_reports()[0].misuse, Misuse::CqOverrun);
    assert_eq!(shown.lock().unwrap().len(), 32);
}

#[test]
fn packed_completions_are_shown_as_they_are_packed() {
    let plan = Plan { compress: Some(MiniFormat::ChecksumStride), ..Plan::of(QpKind::Rc) };
    let (mut a, mut b) = pair_of(plan, 1);
    let (sends, receives) = (watch(&a), watch(&b));
    for i in 0..13_u32 {
        b.receive(&[(64, b.key, DATA + u64::from(i) * 64)]);
    }
    for _ in 0..13 {
        let wqe = [a.ctrl(0x0a, 2, 0x08, 0), inline(b"packed").to_vec()].concat();
        a.write_wqe(&wqe);
        a.ring(&wqe);
    }
    a.settle();
    for (side, shown, is_send) in [(&a, sends, true), (&b, receives, false)] {
        let shown = shown.lock().unwrap();
        let outline: Vec<_> = shown.iter().map(|(index, bytes, packed)| (*index, bytes.len(), *packed)).collect();
        assert_eq!(outline, [(1, 64, Some(is_send)), (8, 40, Some(is_send)), (0, 64, None)], "the title comes last");
        assert!(shown.iter().all(|entry| in_ring(side, entry)));
    }
}
