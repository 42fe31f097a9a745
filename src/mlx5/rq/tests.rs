use super::*;
use crate::mlx5::bus::record::{Event, Recorder};
use crate::mlx5::dbrec::DoorbellPages;
use crate::mlx5::testing::{Golden, compare, dirty_ring, guarded_ring, sge};
use proptest::prelude::*;

struct Queue {
    rq: Rq<Recorder>,
    bus: Recorder,
    shared: Arc<RqShared>,
    record: DoorbellRecord,
}

/// A receive queue in dirty memory, of `elements` elements of `1 << log2_stride` bytes.
fn receives(elements: u32, log2_stride: u32) -> Queue {
    receives_in(dirty_ring((elements << log2_stride) as usize), elements, log2_stride)
}

/// As [`receives`], in the ring given.
fn receives_in(ring: Ring, elements: u32, log2_stride: u32) -> Queue {
    let layout = RqLayout { elements, log2_stride, max_sge: (1 << log2_stride) / 16 };
    let (bus, shared) = (Recorder::default(), Arc::new(RqShared::new(elements)));
    let record = DoorbellPages::default().alloc().unwrap();
    let parts = RqParts { ring, layout, record: record.clone(), shared: shared.clone(), home: None };
    let rq = Rq::with_bus(parts, bus.clone());
    Queue { rq, bus, shared, record }
}

const ENTRY: (u64, u32, u32) = (0x7f00_dead_beef_0010, 0x1000, 0x5c01);

#[test]
fn elements_are_as_the_device_reads_them() {
    let golden = Golden::read("wqe.txt");
    let first = sge(ENTRY.0, ENTRY.1, ENTRY.2);
    for (name, log2_stride, sges) in [
        ("receive of one entry where four fit", 6, vec![first]),
        ("receive of as many entries as fit", 5, vec![first, sge(0x1000, 0x10, 0x11)]),
        ("receive of no entry", 5, vec![]),
        ("receive of no entry", 5, vec![sge(0x1000, 0, 0x11)]),
    ] {
        let mut queue = receives(4, log2_stride);
        queue.rq.push(1, &sges).unwrap();
        compare(name, &queue.rq.ring.peek(0, 1 << log2_stride), golden.get(name));
    }
    golden.all_used(&["receive"]);
}

/// Lists of every length in elements of every size, from every element of the ring, with pages around it that nobody may touch.
#[test]
fn lists_of_every_length_from_every_element() {
    const BYTES: u32 = 4096;
    for log2_stride in 4..=9 {
        let (elements, stride) = (BYTES >> log2_stride, 1 << log2_stride);
        let most = stride / 16;
        let list: Vec<_> = (0..most as u64).map(|i| sge(0x1000 * i, 16 + i as u32, i as u32)).collect();
        for entries in 0..=most {
            let mut queue = receives_in(guarded_ring(BYTES as usize), elements, log2_stride);
            for index in 0..2 * elements {
                queue.rq.ring.fill(0xff);
                queue.rq.push(index.into(), &list[..entries]).unwrap();
                queue.rq.submit();
                let got = queue.rq.ring.peek(index as usize * stride, BYTES as usize);
                let mut want = vec![0xff; BYTES as usize];
                for (i, at) in (0..entries).map(|i| (i as u64, 16 * i)) {
                    want[at..at + 4].copy_from_slice(&(16 + i as u32).to_be_bytes());
                    want[at + 4..at + 8].copy_from_slice(&(i as u32).to_be_bytes());
                    want[at + 8..at + 16].copy_from_slice(&(0x1000 * i).to_be_bytes());
                }
                if entries < most {
                    want[16 * entries..16 * entries + 16]
                        .copy_from_slice(&[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                }
                assert_eq!(got, want, "{entries} entries in element {index} of {stride} bytes");
                assert_eq!(queue.shared.complete(), u64::from(index));
            }
        }
    }
}

#[test]
fn a_shorter_list_is_ended_after_a_longer_one() {
    let mut queue = receives(2, 6);
    let four: Vec<_> = (0..4).map(|i| sge(0x1000 * i, 16, 7)).collect();
    for index in 0..2 {
        queue.rq.push(index, &four).unwrap();
    }
    queue.rq.submit();
    queue.shared.complete();
    queue.rq.push(2, &four[..1]).unwrap();
    let element = queue.rq.ring.peek(0, 64);
    assert_eq!(
        element[16..32],
        [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "or the device reads the old entries"
    );
}

#[test]
fn what_cannot_be_posted_is_refused() {
    let mut queue = receives(4, 5);
    assert_eq!(queue.rq.push(1, &[sge(0, 1, 0); 3]), Err(PostError::TooManySges));
    assert_eq!(queue.rq.push(1, &[sge(0, u32::MAX, 0)]), Err(PostError::MessageTooLong));
    assert_eq!(queue.rq.push(1, &[sge(0, 1 << 31, 0), sge(0, 1, 0)]), Err(PostError::MessageTooLong));
    assert_eq!(queue.rq.remaining(), 4);
    for id in 0..4 {
        queue.rq.push(id, &[]).unwrap();
    }
    assert_eq!((queue.rq.push(4, &[]), queue.rq.remaining()), (Err(PostError::QueueFull), 0));
}

#[test]
fn segments_then_barrier_then_record() {
    let mut queue = receives(4, 5);
    queue.rq.begin();
    queue.rq.push(1, &[sge(1, 1, 1)]).unwrap();
    queue.rq.push(2, &[sge(2, 2, 2)]).unwrap();
    assert!(queue.bus.take().iter().all(|e| matches!(e, Event::Segment { .. })));
    queue.rq.submit();
    assert_eq!(queue.bus.take(), [Event::ToDevice, Event::Record { word: Word::Receive, value: 2 }]);
    queue.rq.submit();
    assert_eq!(queue.bus.take(), [], "nothing new, nothing told");
    queue.rq.push(3, &[]).unwrap();
    queue.rq.rollback();
    queue.bus.take();
    queue.rq.submit();
    assert_eq!((queue.bus.take(), queue.record.load(Word::Receive)), (vec![], 2));
}

#[test]
fn counters_wrap() {
    for start in [0xffff_u32, 0xff_ffff, 0x7fff_ffff, 0xffff_ffff] {
        let mut queue = receives(4, 5);
        queue.rq.start_at(start - 1);
        queue.rq.shared = Arc::new(RqShared::at(4, start - 1));
        for step in 0..8_u32 {
            let index = (start - 1).wrapping_add(step);
            queue.rq.push(u64::from(index), &[sge(u64::from(index), 4, 1)]).unwrap();
            queue.rq.submit();
            assert_eq!(queue.record.load(Word::Receive), index.wrapping_add(1) & 0xffff);
            let element = queue.rq.ring.peek((index as usize % 4) * 32, 16);
            assert_eq!(element[8..], u64::from(index).to_be_bytes());
            if step >= 3 {
                assert_eq!(queue.rq.push(0, &[]), Err(PostError::QueueFull));
                assert_eq!(queue.rq.shared.complete(), u64::from(index.wrapping_sub(3)));
            }
        }
    }
}

#[test]
fn reset_starts_anew() {
    let mut queue = receives(4, 5);
    queue.rq.push(1, &[]).unwrap();
    queue.rq.submit();
    queue.rq.resync();
    assert_eq!((queue.record.load(Word::Receive), queue.rq.remaining()), (0, 4));
    queue.shared.complete();
    assert_eq!(queue.rq.remaining(), 4, "a completion of the past does not count");
    queue.rq.push(2, &[]).unwrap();
    assert_eq!(queue.rq.shared.complete(), 2);
}

proptest! {
    /// Any order of pushes, submits, rollbacks and completions: numbers come back in order, and never more than fit.
    #[test]
    fn agrees_with_a_queue(steps in prop::collection::vec(0..4_u8, 1..300)) {
        let mut queue = receives(8, 4);
        let (mut staged, mut posted, mut next) = (vec![], std::collections::VecDeque::new(), 0_u64);
        for step in steps {
            match step {
                0 => {
                    let full = staged.len() + posted.len() == 8;
                    let answer = queue.rq.push(next, &[sge(next, 1, 0)]);
                    prop_assert_eq!(answer, if full { Err(PostError::QueueFull) } else { Ok(()) });
                    if !full {
                        staged.push(next);
                        next += 1;
                    }
                }
                1 => {
                    queue.rq.submit();
                    posted.extend(staged.drain(..));
                }
                2 => {
                    queue.rq.rollback();
                    staged.clear();
                }
                _ => {
                    if let Some(want) = posted.pop_front() {
                        prop_assert_eq!(queue.shared.complete(), want);
                    }
                }
            }
            prop_assert_eq!(queue.rq.remaining() as usize, 8 - staged.len() - posted.len());
        }
    }
}
