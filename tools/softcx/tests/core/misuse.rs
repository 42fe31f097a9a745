//! What a program does wrong is said, and hurts.

use crate::bench::*;
use softcx::*;
use std::time::Duration;

const SEND: u8 = 0x0a;

fn misuses(side: &Side) -> Vec<Misuse> {
    side.fabric.take_reports().into_iter().map(|r| r.misuse).collect()
}

#[test]
fn a_doorbell_that_overtakes_its_record() {
    let (mut a, _b) = pair(QpKind::Rc);
    let wqe = a.ctrl(0, 1, 0x08, 0);
    a.write_wqe(&wqe);
    a.ring_only(&wqe);
    a.settle();
    assert_eq!(misuses(&a), [Misuse::DoorbellBeforeRecord { record: 0, doorbell: 1 }]);
    assert_eq!(a.poll(), None, "the record is what counts");
}

#[test]
fn no_doorbell_no_progress() {
    let (mut a, _b) = pair(QpKind::Rc);
    let wqe = a.ctrl(0, 1, 0x08, 0);
    a.write_wqe(&wqe);
    a.memory.store_be32(QP_RECORD + 4, 1).unwrap();
    a.settle();
    assert_eq!(a.poll(), None);
}

#[test]
fn a_record_ahead_of_its_ring() {
    let (a, _b) = pair(QpKind::Rc);
    a.memory.store_be32(QP_RECORD + 4, 65).unwrap();
    a.ring_only(&a.ctrl(0, 1, 0x08, 0));
    assert_eq!(misuses(&a), [Misuse::RingOverflow { ahead: 65, size: 64 }]);
    a.memory.store_be32(QP_RECORD, 17).unwrap();
    a.fabric.step(Duration::ZERO);
    assert_eq!(misuses(&a), [Misuse::RingOverflow { ahead: 17, size: 16 }]);
}

#[test]
fn a_wrong_index_in_the_control_segment() {
    let (mut a, _b) = pair(QpKind::Rc);
    let mut wqe = a.ctrl(0, 1, 0x08, 0);
    wqe[2] = 9;
    a.write_wqe(&wqe);
    a.ring(&a.ctrl(0, 1, 0x08, 0).clone());
    a.settle();
    assert!(misuses(&a).contains(&Misuse::WqeIndex { found: 9, expected: 0 }));
}

#[test]
fn a_doorbell_for_nobody() {
    let (a, _b) = pair(QpKind::Rc);
    let value = 0x0000_0000_1234_5601;
    a.device(|d| d.doorbell(7, 0x800, value));
    assert_eq!(misuses(&a), [Misuse::UnknownDoorbell { value }]);
}

/// A kernel ends queues whose programs do not know yet.
#[test]
fn a_doorbell_of_a_queue_that_was_ended_is_none() {
    let (a, _b) = pair(QpKind::Rc);
    let doorbells = [(0x800, u64::from(a.qpn << 8 | 1)), (0x20, u64::from(a.cqn))];
    a.device(|d| {
        d.destroy_qp(a.qpn).unwrap();
        d.destroy_cq(a.cqn).unwrap();
        doorbells.into_iter().for_each(|(at, value)| d.doorbell(UAR, at, value));
    });
    assert_eq!(misuses(&a), []);
    a.device(|d| doorbells.into_iter().for_each(|(at, value)| d.doorbell(UAR + 1, at, value)));
    assert_eq!(misuses(&a), doorbells.map(|(_, value)| Misuse::UnknownDoorbell { value }), "not of that page");
}

#[test]
fn a_copy_that_differs_from_its_wqe() {
    let (mut a, b) = pair(QpKind::Rc);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let copies = std::sync::Arc::clone(&seen);
    a.device(|d| {
        d.control().tap(move |tapped| {
            if let Entry::Send { copied, bytes, .. } = tapped.entry {
                copies.lock().unwrap().push((copied, bytes.to_vec()));
            }
        });
    });
    // A byte of the first eight, of the rest, and behind the WQE, which is padding.
    for (spoiled, differs) in [(None, false), (Some(3), true), (Some(12), true), (Some(40), true), (Some(63), false)] {
        let body = [raddr(DATA, b.key).to_vec(), inline(b"hot").to_vec()].concat();
        let wqe = [a.ctrl(0x08, 1 + (body.len() / 16) as u8, 0x08, 0), body].concat();
        assert_eq!(wqe.len(), 48);
        a.write_wqe(&wqe);
        a.memory.store_be32(QP_RECORD + 4, (wqe[1..3].iter().fold(0, |n, b| n << 8 | u32::from(*b))) + 1).unwrap();
        let mut copy = [wqe.clone(), vec![0; 16]].concat();
        if let Some(at) = spoiled {
            copy[at] ^= 1;
        }
        a.device(|d| d.blue_flame(UAR, 0x800, &copy));
        let reports = a.fabric.take_reports();
        assert_eq!(reports.len(), usize::from(differs), "{spoiled:?}: {reports:?}");
        for report in reports {
            assert_eq!(report.misuse, Misuse::BlueFlameImage);
            assert!(report.wqe.is_some_and(|wqe| wqe.copied && wqe.bytes == copy[..48]));
        }
        if !differs {
            a.settle();
            assert_eq!(seen.lock().unwrap().pop(), Some((true, wqe)));
        } else {
            // The ring's is as good as ever: the next doorbell takes the copy's place.
            a.ring(&wqe);
            a.settle();
            assert_eq!(seen.lock().unwrap().pop(), Some((false, wqe)));
        }
        assert!(a.poll().is_some());
    }
    a.clean();
}

/// A copy that a provider forgot to make anew, whether its WQE is done by then or not.
#[test]
fn a_copy_of_the_wqe_before() {
    for is_done in [true, false] {
        let (mut a, _b) = pair(QpKind::Rc);
        let post = |a: &mut Side, count: u32| {
            let wqe = [a.ctrl(0, 1, 0x08, 0), vec![0; 48]].concat();
            a.write_wqe(&wqe);
            a.memory.store_be32(QP_RECORD + 4, count).unwrap();
            wqe
        };
        let copied = |a: &Side, wqe: &[u8]| {
            a.device(|d| d.blue_flame(UAR, 0x800, wqe));
            a.fabric.take_reports()
        };
        let first = post(&mut a, 1);
        assert_eq!(copied(&a, &first), []);
        if is_done {
            a.settle();
        }
        post(&mut a, 2);
        let reports = copied(&a, &first);
        assert!(matches!(&reports[..], [report] if report.misuse == Misuse::BlueFlameImage), "{reports:?}");
        assert!(reports[0].wqe.as_ref().is_some_and(|wqe| wqe.copied && wqe.index == 0), "{reports:?}");
        let third = post(&mut a, 3);
        assert_eq!(copied(&a, &third), []);
        a.settle();
        assert_eq!(a.poll_all().iter().map(Completion::wqe_counter).collect::<Vec<_>>(), [0, 1, 2]);

        // Nor is it wrong if its WQE was taken from the ring before, for the record told of it when another queue pair rang.
        let other = a.make_qp(Plan::of(QpKind::Rc));
        let fourth = post(&mut a, 4);
        a.device(|d| d.doorbell(UAR, 0x800, u64::from(other << 8 | 1)));
        a.settle();
        assert_eq!(a.poll().unwrap().wqe_counter(), 3);
        assert_eq!(copied(&a, &fourth), []);
        // Of a queue pair in reset, nothing is.
        a.modify(|_| {}, Some(QpState::Reset));
        assert_eq!(copied(&a, &fourth), []);
    }
}

/// Whoever hears of it by a completion or an event needs no report.
#[test]
fn what_a_program_hears_of_by_itself() {
    /// Below the memory.
    const NOWHERE: u64 = 0x100;
    let (mut a, _b) = pair(QpKind::Rc);
    a.send(0x7f, 0, &[]);
    a.settle();
    let seen = misuses(&a);
    assert!(matches!(&seen[..], [Misuse::BadWqe(_)]) && seen[0].is_told(), "{seen:?}");
    assert_eq!(a.poll().unwrap().syndrome(), 0x02);

    type Spoil = fn(&Side, &mut QpSpec);
    let rings: [(Spoil, bool); 4] = [
        (|_, spec| spec.send.as_mut().unwrap().ring = Buffer::contiguous(NOWHERE, 64 << LOG2_SQ), true),
        (|a, spec| spec.send_cq = a.make_cq_at(NOWHERE, CQ_RECORD, None), true),
        (|_, spec| spec.send.as_mut().unwrap().record = NOWHERE, false),
        (|_, spec| spec.recv.as_mut().unwrap().record = NOWHERE, false),
    ];
    for (n, (spoil, is_told)) in rings.into_iter().enumerate() {
        let (mut a, b) = pair(QpKind::Rc);
        let mut spec = a.spec(Plan::of(QpKind::Rc));
        spoil(&a, &mut spec);
        a.qpn = a.device(|d| {
            d.destroy_qp(a.qpn).unwrap();
            d.create_qp(spec).unwrap()
        });
        a.connect(&b, QpKind::Rc);
        a.send(0, 0, &[]);
        a.settle();
        let seen = misuses(&a);
        assert!(!seen.is_empty() && seen.iter().all(|m| matches!(m, Misuse::RingMemory { .. })), "{n}: {seen:?}");
        assert!(seen.iter().all(|misuse| misuse.is_told() == is_told), "{n}: {seen:?}");
        assert_eq!(a.events().contains(&Event::QpFatal { qpn: a.qpn }), is_told, "{n}");
    }
}

#[test]
fn a_receive_buffer_is_poison_until_its_completion() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.put(DATA, &[0x44; 32]);
    b.receive(&[(32, b.key, DATA)]);
    b.fabric.step(Duration::ZERO);
    assert_eq!(b.get(DATA, 32), [POISON; 32]);
    a.send(SEND, 0, &[&inline(b"now")]);
    a.settle();
    assert_eq!(b.poll().unwrap().byte_count(), 3);
    assert_eq!(b.get(DATA, 4), [b'n', b'o', b'w', 0x44]);
    assert_eq!(b.get(DATA + 4, 28), [0x44; 28]);
}

#[test]
fn consumed_wqes_are_scribbled_over() {
    let (mut a, _b) = pair(QpKind::Rc);
    a.send(0, 0, &[]);
    a.settle();
    assert_eq!(a.get(0x2_0000, 64), [SCRIBBLE; 64]);
    a.send(0, 0, &[]);
    a.device(|d| d.control().set_punish(Punish { scribble: false, ..Punish::default() }));
    a.settle();
    assert_eq!(a.get(0x2_0040, 4), [0, 0, 1, 0]);
}

#[test]
fn consumed_receive_wqes_are_scribbled_over() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(32, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    assert_eq!(b.get(0x3_0000, 64), [SCRIBBLE; 64]);
}

#[test]
fn an_arm_doorbell_without_its_record() {
    let (a, _b) = pair(QpKind::Rc);
    a.device(|d| d.doorbell(7, 0x20, 0x1000_0000 << 32 | u64::from(a.cqn)));
    assert_eq!(misuses(&a), [Misuse::ArmRecord { record: 0, doorbell: 0x1000_0000 }]);
}

/// Who armed again before the doorbell was carried out has done nothing wrong; who rang before storing the record has.
#[test]
fn an_arm_doorbell_and_a_newer_record() {
    const SOLICITED: u32 = 1 << 24;
    for (record, rung, wrong) in [
        // More consumed, and around the circle.
        (5, 4, false),
        (4, 5, true),
        (0, 0xff_ffff, false),
        (0xff_ffff, 0, true),
        // An event was had, or two; the one before it was not.
        (0x1000_0005, 5, false),
        (0x2000_0005, 5, false),
        (0x0000_0005, 0x3000_0005, false),
        (5, 0x1000_0005, true),
        (0x3000_0005, 5, true),
        // It waits for more.
        (5, 5 | SOLICITED, false),
        (4, 5 | SOLICITED, true),
    ] {
        let (a, _b) = pair(QpKind::Rc);
        a.put(CQ_RECORD + 4, &u32::to_be_bytes(record));
        a.device(|d| d.doorbell(7, 0x20, u64::from(rung) << 32 | u64::from(a.cqn)));
        let expected = wrong.then_some(Misuse::ArmRecord { record, doorbell: rung });
        assert_eq!(misuses(&a), Vec::from_iter(expected), "{record} {rung}");
    }
}

#[test]
fn reports_read_as_text() {
    let (mut a, b) = pair(QpKind::Rc);
    a.send(0x08, 0, &[&raddr(DATA, b.key), &sge(8, 0x77, DATA)]);
    a.settle();
    let text = a.fabric.take_reports()[0].to_string();
    assert!(text.starts_with("cx1: 0x"), "{text}");
    assert!(
        text.contains("local access: key 0x77, 8 bytes at 0x50000: there is no such key; WQE 0: 00000008"),
        "{text}"
    );
}
