use super::*;
use crate::mlx5::bus::record::{Event, Recorder};
use crate::mlx5::dbrec::DoorbellPages;
use crate::mlx5::testing::{Golden, compare, dirty_ring, guarded_ring, sge};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

struct Receives {
    srq: Srq<Recorder>,
    bus: Recorder,
    shared: Arc<SrqShared>,
    record: DoorbellRecord,
    /// The device's side: the element it takes next, and how many it took.
    at: u16,
    taken: u32,
}

/// A shared receive queue in dirty memory, of `elements` elements for three entries each.
fn receives(elements: u32) -> Receives {
    let layout = SrqLayout { elements, log2_stride: 6, max_sge: 3 };
    let (bus, shared) = (Recorder::default(), Arc::new(SrqShared::new(elements)));
    let record = DoorbellPages::default().alloc().unwrap();
    let srq = Srq::with_bus(dirty_ring(layout.bytes()), layout, record.clone(), shared.clone(), bus.clone());
    Receives { srq, bus, shared, record, at: 0, taken: 0 }
}

impl Receives {
    /// What the device does when a message arrives: takes the next element that was posted, follows its link, and
    /// returns the element's index and the address of its first entry.
    fn take(&mut self) -> Option<(u16, u64)> {
        if self.record.load(Word::Receive) == self.taken & 0xffff {
            return None;
        }
        let element = self.srq.list.ring.peek(usize::from(self.at) * 64, 64);
        let index = self.at;
        self.at = u16::from_be_bytes([element[2], element[3]]);
        self.taken = self.taken.wrapping_add(1);
        Some((index, u64::from_be_bytes(element[24..32].try_into().unwrap())))
    }
}

#[test]
fn an_element_is_as_the_device_reads_it() {
    let golden = Golden::read("wqe.txt");
    let name = "shared receive of one entry where three fit";
    let mut queue = receives(4);
    queue.srq.push(1, &[sge(0x7f00_dead_beef_0010, 0x1000, 0x5c01)]).unwrap();
    compare(name, &queue.srq.list.ring.peek(0, 64), golden.get(name));
    golden.all_used(&["shared"]);
}

/// Lists of every length in elements of every size, in all of the ring, with pages around it that nobody may touch.
#[test]
fn lists_of_every_length_in_every_element() {
    const BYTES: usize = 4096;
    for log2_stride in 5..=9 {
        let (elements, stride) = (BYTES >> log2_stride, 1 << log2_stride);
        let most = stride / 16 - 1;
        let list: Vec<_> = (0..most as u64).map(|i| sge(0x1000 * i, 16 + i as u32, i as u32)).collect();
        let layout = SrqLayout { elements: elements as u32, log2_stride, max_sge: most as u32 };
        for entries in 0..=most {
            let record = DoorbellPages::default().alloc().unwrap();
            let shared = Arc::new(SrqShared::new(layout.elements));
            let bus = Recorder::default();
            let mut srq = Srq::with_bus(guarded_ring(BYTES), layout, record, shared.clone(), bus);
            let mut used = std::collections::HashSet::new();
            for round in 0..2 * elements {
                let index = usize::from(srq.head);
                let at = index * stride;
                used.insert(index);
                srq.push(round as u64, &list[..entries]).unwrap();
                srq.submit();
                let got = srq.list.ring.peek(at, stride);
                assert_eq!(got[..2], [0, 0], "element {round} of {stride} bytes");
                assert_eq!(u16::from_be_bytes([got[2], got[3]]), srq.head, "the element that comes after it");
                for (i, entry) in got[16..].chunks_exact(16).take(entries).enumerate() {
                    let (i, [a, b, c, d]) = (i as u64, (16 + i as u32).to_be_bytes());
                    let mut want = vec![a, b, c, d];
                    want.extend((i as u32).to_be_bytes());
                    want.extend((0x1000 * i).to_be_bytes());
                    assert_eq!(entry, want, "entry {i} of element {round}");
                }
                if entries < most {
                    assert_eq!(got[16 + 16 * entries + 4..][..4], [0, 0, 1, 0], "the list's end");
                }
                assert_eq!(shared.complete(index as u32), round as u64);
            }
            assert_eq!(used.len(), elements);
        }
    }
}

#[test]
fn a_new_queue_is_a_list_of_all_elements() {
    let queue = receives(8);
    let next: Vec<u8> = (0..8).map(|i| queue.srq.list.ring.peek(i * 64 + 2, 2)[1]).collect();
    assert_eq!(next, [1, 2, 3, 4, 5, 6, 7, 0]);
    assert_eq!((queue.srq.capacity(), queue.srq.max_sge()), (7, 3));
}

#[test]
fn segments_then_barrier_then_record() {
    let mut queue = receives(4);
    queue.bus.take();
    queue.srq.begin();
    queue.srq.push(1, &[sge(1, 1, 1)]).unwrap();
    queue.srq.push(2, &[sge(2, 2, 2); 3]).unwrap();
    assert!(queue.bus.take().iter().all(|e| matches!(e, Event::Segment { .. })));
    queue.srq.submit();
    assert_eq!(queue.bus.take(), [Event::ToDevice, Event::Record { word: Word::Receive, value: 2 }]);
    queue.srq.submit();
    assert_eq!(queue.bus.take(), []);
}

#[test]
fn what_cannot_be_posted_is_refused() {
    let mut queue = receives(4);
    assert_eq!(queue.srq.push(1, &[sge(0, 1, 0); 4]), Err(PostError::TooManySges));
    assert_eq!(queue.srq.push(1, &[sge(0, 1 << 31, 0), sge(0, 1, 0)]), Err(PostError::MessageTooLong));
    assert_eq!(queue.srq.remaining(), 3);
    for id in 0..3 {
        queue.srq.push(id, &[]).unwrap();
    }
    assert_eq!((queue.srq.push(3, &[]), queue.srq.remaining()), (Err(PostError::QueueFull), 0));
    queue.srq.rollback();
    assert_eq!(queue.srq.remaining(), 3);
}

/// The device completes in any order; the list stays a list.
#[test]
fn elements_that_come_back_are_linked_in_behind() {
    let mut queue = receives(4);
    for id in 0..3 {
        queue.srq.push(id, &[sge(id + 100, 1, 0)]).unwrap();
    }
    queue.srq.submit();
    let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
    assert_eq!(taken, [(0, 100), (1, 101), (2, 102)]);
    assert_eq!((queue.shared.complete(2), queue.shared.complete(0)), (2, 0));
    assert_eq!(queue.srq.remaining(), 2);
    for id in 3..5 {
        queue.srq.push(id, &[sge(id + 100, 1, 0)]).unwrap();
    }
    assert_eq!(queue.srq.push(9, &[]), Err(PostError::QueueFull), "element 1 is still out");
    queue.srq.submit();
    // The element that was the list's end comes first, then those that came back, the last of them being the end.
    assert_eq!((queue.take(), queue.take(), queue.take()), (Some((3, 103)), Some((0, 104)), None));
    assert_eq!((queue.shared.complete(0), queue.shared.complete(3)), (4, 3));
}

#[test]
fn the_counter_wraps() {
    let mut queue = receives(4);
    for start in [0xfffe_u32, 0xff_fffe, 0x7fff_fffe, 0xffff_fffe] {
        (queue.srq.pushed, queue.srq.told, queue.taken) = (start, start, start);
        for step in 0..4_u64 {
            queue.srq.push(step, &[sge(step, 1, 0)]).unwrap();
            queue.srq.submit();
            assert_eq!(
                queue.record.load(Word::Receive),
                (start + step as u32 % 2).wrapping_add(1 + step as u32 / 2 * 2) & 0xffff
            );
            let (index, addr) = queue.take().unwrap();
            assert_eq!((addr, queue.shared.complete(index.into())), (step, step));
        }
    }
}

proptest! {
    /// Any order of pushes, submits, rollbacks, arrivals and completions: the device finds each receive where the link
    /// leads, and each number comes back once.
    #[test]
    fn agrees_with_a_model(steps in prop::collection::vec((0..5_u8, any::<prop::sample::Index>()), 1..400)) {
        let mut queue = receives(8);
        let (mut staged, mut posted) = (vec![], VecDeque::new());
        let mut out: HashMap<u16, u64> = HashMap::new();
        let mut next = 1_u64;
        for (step, pick) in steps {
            match step {
                0 => {
                    let full = staged.len() + posted.len() + out.len() == 7;
                    let answer = queue.srq.push(next, &[sge(next, 1, 0)]);
                    prop_assert_eq!(answer, if full { Err(PostError::QueueFull) } else { Ok(()) });
                    if !full {
                        staged.push(next);
                        next += 1;
                    }
                }
                1 => {
                    queue.srq.submit();
                    posted.extend(staged.drain(..));
                }
                2 => {
                    queue.srq.rollback();
                    staged.clear();
                }
                3 => {
                    let want = posted.pop_front();
                    let got = queue.take();
                    prop_assert_eq!(got.map(|(_, addr)| addr), want);
                    if let Some((index, addr)) = got {
                        prop_assert!(out.insert(index, addr).is_none(), "element {} is out twice", index);
                    }
                }
                _ => {
                    let mut indices: Vec<u16> = out.keys().copied().collect();
                    indices.sort_unstable();
                    if !indices.is_empty() {
                        let index = indices[pick.index(indices.len())];
                        prop_assert_eq!(Some(queue.shared.complete(index.into())), out.remove(&index));
                    }
                }
            }
            prop_assert_eq!(queue.srq.remaining() as usize, 7 - staged.len() - posted.len() - out.len());
        }
    }
}
