use super::*;
use crate::rxe::ring_memory::MappedRing;
use crate::rxe::testing::{Kernel, ring};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::ptr::NonNull;

/// An entry of one number.
struct Number(u64);

impl Entry for Number {
    unsafe fn write_to(self, slot: NonNull<u8>) -> Result<(), PostError> {
        // SAFETY: the caller gives an aligned slot of at least 64 bytes.
        unsafe { slot.cast::<u64>().write(self.0) };
        Ok(())
    }
}

/// An entry that writes and then fails.
struct Fails;

impl Entry for Fails {
    unsafe fn write_to(self, slot: NonNull<u8>) -> Result<(), PostError> {
        // SAFETY: as above.
        unsafe { slot.cast::<u64>().write(0xbad) };
        Err(PostError::TooManySges)
    }
}

fn stage(producer: &mut Producer<MappedRing>, number: u64) -> Result<(), PostError> {
    // SAFETY: slots have 64 bytes, the number needs 8.
    unsafe { producer.stage(Number(number)) }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().unwrap())
}

fn read(slot: *const u8) -> u64 {
    // SAFETY: slots are aligned, and the kernel's end wrote at least 8 bytes.
    unsafe { slot.cast::<u64>().read() }
}

fn producer(index_mask: u32, start: u32) -> (Producer<MappedRing>, Kernel) {
    let (mapping, kernel) = ring(6, index_mask, start);
    (Producer::new(MappedRing::new(mapping, "queue", 8).unwrap()), kernel)
}

fn consumer(index_mask: u32, start: u32) -> (Consumer<MappedRing>, Kernel) {
    let (mapping, kernel) = ring(6, index_mask, start);
    (Consumer::new(MappedRing::new(mapping, "queue", 8).unwrap()), kernel)
}

#[test]
fn a_ring_of_one_slot_is_always_full() {
    let (mut producer, kernel) = producer(0, 0);
    assert_eq!((producer.capacity(), producer.remaining()), (0, 0));
    assert_eq!(stage(&mut producer, 1), Err(PostError::QueueFull));
    assert!(!producer.publish());
    assert_eq!(kernel.take(), None);
}

#[test]
fn holds_exactly_its_capacity_and_overwrites_nothing() {
    for start in 0..8 {
        let (mut producer, kernel) = producer(7, start);
        for n in 0..7 {
            assert_eq!(stage(&mut producer, n), Ok(()), "start {start}");
        }
        producer.publish();
        assert_eq!(stage(&mut producer, 99), Err(PostError::QueueFull));
        assert!(!producer.publish());
        for n in 0..7 {
            assert_eq!(number(&kernel.take().unwrap()), n, "start {start}");
        }
        assert_eq!(kernel.take(), None);
    }
}

#[test]
fn an_entry_that_fails_is_not_staged() {
    let (mut producer, kernel) = producer(3, 2);
    stage(&mut producer, 1).unwrap();
    // SAFETY: as in `stage`.
    assert_eq!(unsafe { producer.stage(Fails) }, Err(PostError::TooManySges));
    stage(&mut producer, 2).unwrap();
    producer.publish();
    assert_eq!(kernel.take().map(|b| number(&b)), Some(1));
    assert_eq!(kernel.take().map(|b| number(&b)), Some(2));
    assert_eq!(kernel.take(), None);
}

#[test]
fn resync_goes_on_where_a_reset_left_the_indices() {
    for start in 0..4 {
        let (mut producer, kernel) = producer(3, start);
        for round in 0..10 {
            stage(&mut producer, 100 + round).unwrap();
            producer.publish();
            stage(&mut producer, 200).unwrap();
            kernel.reset();
            producer.resync();
            assert_eq!(producer.remaining(), 3);
            assert!(!producer.publish(), "staged entries do not survive");
            stage(&mut producer, round).unwrap();
            producer.publish();
            assert_eq!(kernel.take().map(|b| number(&b)), Some(round));
            assert_eq!(kernel.take(), None);
        }
    }
}

#[test]
fn one_completion_is_seen_once() {
    for start in 0..4 {
        let (mut consumer, kernel) = consumer(3, start);
        assert!(kernel.give(&7_u64.to_ne_bytes()));
        consumer.begin();
        assert_eq!(consumer.next().map(read), Some(7));
        assert_eq!(consumer.next(), None);
        assert_eq!(consumer.next(), None);
        consumer.give_back();
        consumer.begin();
        assert_eq!(consumer.next(), None);
        consumer.give_back();
        assert_eq!(kernel.consumer(), kernel.producer());
    }
}

/// What was read and not given back still takes its place.
#[test]
fn a_queue_is_full_until_slots_are_given_back() {
    for start in 0..4 {
        let (mut consumer, kernel) = consumer(3, start);
        for n in 0..3_u64 {
            assert!(!consumer.is_full(), "start {start}, {n} in it");
            assert!(kernel.give(&n.to_ne_bytes()));
        }
        assert!(consumer.is_full());
        consumer.begin();
        assert_eq!(consumer.next().map(read), Some(0));
        assert!(consumer.is_full() && !consumer.end() && consumer.is_full());
        consumer.give_back();
        assert!(!consumer.is_full());
    }
}

/// A producer that finds no slot free loses what it has, and only the consumer can tell: before it makes room.
#[test]
fn a_full_ring_is_not_given_back_unasked() {
    for start in 0..4 {
        let (mut consumer, kernel) = consumer(3, start);
        let give = |n: u64| kernel.give(&n.to_ne_bytes());
        assert!(give(1) && give(2));
        consumer.begin();
        assert_eq!(consumer.next().map(read), Some(1));
        assert!(consumer.holds_slots());
        assert!(give(3) && !give(4), "full since the batch began");
        assert!(!consumer.end() && !consumer.end());
        assert!(!give(4), "nothing was given back");
        assert_eq!(consumer.next().map(read), Some(2));
        consumer.give_back();
        assert!(!consumer.holds_slots());
        assert!(give(4) && give(5) && !give(6));
        consumer.begin();
        assert_eq!(std::iter::from_fn(|| consumer.next().map(read)).collect::<Vec<_>>(), [3, 4, 5]);
        assert!(!consumer.end());
        consumer.give_back();
        assert!(give(6));
        consumer.begin();
        assert_eq!(consumer.next().map(read), Some(6));
        assert!(consumer.end() && !consumer.holds_slots(), "it was not full");
    }
}

#[test]
fn a_scribbled_index_never_leads_out_of_the_ring() {
    for value in [0, 1, 7, 8, 0xdead_beef, u32::MAX] {
        let (mut consumer, kernel) = consumer(7, 3);
        kernel.scribble_producer(value);
        consumer.begin();
        let count = std::iter::from_fn(|| consumer.next()).count();
        assert!(count <= 7, "{value:#x}: {count}");
        consumer.give_back();
        assert!(kernel.consumer() <= 7);

        let (mut producer, kernel) = producer(7, 3);
        kernel.scribble_consumer(value);
        producer.resync();
        let count = std::iter::from_fn(|| stage(&mut producer, 0).ok()).count();
        assert!(count <= 7, "{value:#x}: {count}");
        producer.publish();
        assert!(kernel.producer() <= 7);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Stage,
    Fail,
    Publish,
    Rollback,
    Take,
    Remaining,
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Stage),
        1 => Just(Step::Fail),
        4 => Just(Step::Publish),
        1 => Just(Step::Rollback),
        8 => Just(Step::Take),
        1 => Just(Step::Remaining),
        1 => Just(Step::Reset),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Poll {
    Give,
    Begin,
    Next,
    End,
}

fn poll() -> impl Strategy<Value = Poll> {
    prop_oneof![6 => Just(Poll::Give), 2 => Just(Poll::Begin), 8 => Just(Poll::Next), 2 => Just(Poll::End)]
}

proptest! {
    /// The producer's end against two queues: what is staged and what the kernel can see.
    #[test]
    fn producer_agrees_with_a_queue(log2 in 0_u32..5, start: u32, steps in prop::collection::vec(step(), 0..300)) {
        let capacity = (1_usize << log2) - 1;
        let (mut producer, kernel) = producer(capacity as u32, start);
        let (mut staged, mut visible) = (VecDeque::new(), VecDeque::new());
        let mut next = 0;
        for step in steps {
            match step {
                Step::Stage => {
                    let full = staged.len() + visible.len() == capacity;
                    let want = if full { Err(PostError::QueueFull) } else { Ok(()) };
                    prop_assert_eq!(stage(&mut producer, next), want);
                    if !full {
                        staged.push_back(next);
                    }
                    next += 1;
                }
                Step::Fail => {
                    // SAFETY: as in `stage`.
                    let staged = unsafe { producer.stage(Fails) };
                    prop_assert!(staged.is_err());
                }
                Step::Publish => {
                    prop_assert_eq!(producer.publish(), !staged.is_empty());
                    visible.append(&mut staged);
                }
                Step::Rollback => {
                    producer.rollback();
                    staged.clear();
                }
                Step::Take => prop_assert_eq!(kernel.take().map(|b| number(&b)), visible.pop_front()),
                Step::Remaining => {
                    prop_assert_eq!(producer.remaining() as usize, capacity - staged.len() - visible.len());
                }
                Step::Reset => {
                    kernel.reset();
                    producer.resync();
                    staged.clear();
                    visible.clear();
                }
            }
        }
    }

    /// The consumer's end against a queue and a snapshot: never past the snapshot, each entry once, in order, and a slot
    /// is free for the kernel exactly when its batch has ended.
    #[test]
    fn consumer_agrees_with_a_queue(log2 in 0_u32..5, start: u32, steps in prop::collection::vec(poll(), 0..300)) {
        let capacity = (1_usize << log2) - 1;
        let (mut consumer, kernel) = consumer(capacity as u32, start);
        let mut unread = VecDeque::new();
        let (mut in_snapshot, mut not_given_back) = (0, 0);
        let mut next = 0_u64;
        for step in steps {
            match step {
                Poll::Give => {
                    let room = unread.len() + not_given_back < capacity;
                    prop_assert_eq!(kernel.give(&next.to_ne_bytes()), room);
                    if room {
                        unread.push_back(next);
                    }
                    next += 1;
                }
                Poll::Begin => {
                    consumer.begin();
                    in_snapshot = unread.len();
                }
                Poll::Next if in_snapshot == 0 => prop_assert_eq!(consumer.next(), None),
                Poll::Next => {
                    prop_assert_eq!(consumer.next().map(read), unread.pop_front());
                    in_snapshot -= 1;
                    not_given_back += 1;
                }
                Poll::End => {
                    consumer.give_back();
                    not_given_back = 0;
                }
            }
        }
    }
}
