//! The rings under loom: every interleaving of the user's end with a model of the kernel's.
//!
//! The user's end is the product's code, on loom's atomics. Slots are loom's cells: an access that the index words do not
//! order before or after the other side's is a failure, whatever the values. The kernel's end is written from what the
//! kernel does (`drivers/infiniband/sw/rxe/rxe_queue.h`, `rxe_cq.c`): a private index, `smp_load_acquire` of the other's
//! index, `smp_store_release` of its own, and completions posted under the queue's lock.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ironverbs --lib loom`.

use super::*;
use crate::mem::atomic::{AtomicU32, Ordering};
use crate::rxe::cq::RxeCq;
use crate::rxe::rq::RxeRq;
use crate::rxe::sq::{Doorbell, RxeSq};
use crate::uverbs::types::Lkey;
use crate::uverbs::wr::{Payload, SendOp, SendWr, Sge, WrFlags};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::ptr::NonNull;

#[derive(Clone)]
#[repr(C, align(64))]
struct Slot([u64; 32]);

struct Shared {
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: Vec<UnsafeCell<Slot>>,
    /// Where each slot is: asking its cell counts as an access.
    addresses: Vec<usize>,
    mask: RingMask,
}

/// The memory of a ring.
#[derive(Clone)]
struct Model(Arc<Shared>);

impl Model {
    /// Empty, with both indices on the last slot, so that the first entry wraps.
    fn new(index_mask: u32) -> Self {
        let mask = RingMask::new(index_mask).unwrap();
        let slots: Vec<_> = (0..mask.slots()).map(|_| UnsafeCell::new(Slot([!0; 32]))).collect();
        let addresses = slots.iter().map(|cell| cell.with(|p| p.addr())).collect();
        Self(Arc::new(Shared {
            producer: AtomicU32::new(index_mask),
            consumer: AtomicU32::new(index_mask),
            slots,
            addresses,
            mask,
        }))
    }

    /// Reads the first number of a slot that the ring lent, in loom's sight.
    fn read(&self, slot: *const u8) -> u64 {
        let index = self.0.addresses.iter().position(|&a| a == slot.addr()).expect("a slot of this ring");
        // SAFETY: loom fails the test if another thread may write the slot meanwhile.
        self.0.slots[index].with(|p| unsafe { (*p).0[0] })
    }
}

// SAFETY: the words and cells live in the `Arc`. Loom watches who touches a slot.
unsafe impl RingMemory for Model {
    fn producer(&self) -> &AtomicU32 {
        &self.0.producer
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.0.consumer
    }

    fn mask(&self) -> RingMask {
        self.0.mask
    }

    fn slot_bytes(&self) -> usize {
        size_of::<Slot>()
    }

    unsafe fn read_slot(&self, index: u32) -> *const u8 {
        self.0.slots[index as usize].with(|p| p.cast())
    }

    unsafe fn write_slot(&self, index: u32, entry: impl Entry) -> Result<(), PostError> {
        // SAFETY: a slot is aligned to 64 and as long as `slot_bytes`; the caller vouches for the rest.
        self.0.slots[index as usize].with_mut(|p| unsafe { entry.write_to(NonNull::new(p.cast()).unwrap()) })
    }
}

/// The kernel's end. `publish` is `Release` but where a test shows that the model notices otherwise.
struct Kernel {
    ring: Arc<Shared>,
    index: u32,
    publish: Ordering,
}

impl Kernel {
    fn new(model: &Model) -> Self {
        Self { ring: model.0.clone(), index: model.0.mask.capacity(), publish: Ordering::Release }
    }

    /// Consumes an entry of a work queue: the first number of its slot.
    fn take(&mut self) -> Option<u64> {
        if self.ring.producer.load(Ordering::Acquire) == self.index {
            return None;
        }
        // SAFETY: loom fails the test if another thread may write the slot meanwhile.
        let number = self.ring.slots[self.index as usize].with(|p| unsafe { (*p).0[0] });
        self.index = self.ring.mask.after(self.index);
        self.ring.consumer.store(self.index, self.publish);
        Some(number)
    }

    /// Produces a completion, unless the ring is full.
    fn give(&mut self, number: u64) -> bool {
        let after = self.ring.mask.after(self.index);
        if self.ring.consumer.load(Ordering::Acquire) == after {
            return false;
        }
        // SAFETY: as in `take`, for reads too.
        self.ring.slots[self.index as usize].with_mut(|p| unsafe { (*p).0[0] = number });
        self.index = after;
        self.ring.producer.store(after, self.publish);
        true
    }
}

struct Number(u64);

impl Entry for Number {
    unsafe fn write_to(self, slot: NonNull<u8>) -> Result<(), PostError> {
        // SAFETY: the caller gives an aligned slot of at least 64 bytes.
        unsafe { slot.cast::<u64>().write(self.0) };
        Ok(())
    }
}

/// The user pushes 1, 2, 3, each as soon as there is room; the kernel takes them.
fn work_queue(index_mask: u32, publish: Ordering) {
    loom::model(move || {
        let model = Model::new(index_mask);
        let mut kernel = Kernel { publish, ..Kernel::new(&model) };
        let peer = thread::spawn(move || {
            for want in 1..=3 {
                let got = loop {
                    match kernel.take() {
                        Some(number) => break number,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(got, want);
            }
        });
        let mut producer = Producer::new(model);
        for number in 1..=3 {
            // SAFETY: a slot has 256 bytes, a number 8.
            while unsafe { producer.stage(Number(number)) } == Err(PostError::QueueFull) {
                thread::yield_now();
            }
            assert!(producer.publish());
        }
        peer.join().unwrap();
    });
}

/// The kernel gives 1, 2, 3, each as soon as there is room; the user polls in batches.
fn completion_queue(index_mask: u32, publish: Ordering) {
    loom::model(move || {
        let model = Model::new(index_mask);
        let mut kernel = Kernel { publish, ..Kernel::new(&model) };
        let peer = thread::spawn(move || {
            for number in 1..=3 {
                while !kernel.give(number) {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(model.clone());
        let mut seen = 0;
        while seen < 3 {
            seen = drain(&mut consumer, &model, seen);
            thread::yield_now();
        }
        consumer.begin();
        assert!(consumer.next().is_none());
        peer.join().unwrap();
    });
}

/// Polls one batch, and checks that it goes on with the number after `seen`. The last number seen.
fn drain(consumer: &mut Consumer<Model>, model: &Model, mut seen: u64) -> u64 {
    consumer.begin();
    while let Some(slot) = consumer.next() {
        seen += 1;
        assert_eq!(model.read(slot), seen);
    }
    if consumer.holds_slots() && !consumer.end() {
        consumer.give_back();
    }
    seen
}

#[test]
fn loom_work_queue_of_one() {
    work_queue(1, Ordering::Release);
}

#[test]
fn loom_work_queue_of_three() {
    work_queue(3, Ordering::Release);
}

#[test]
fn loom_completion_queue_of_one() {
    completion_queue(1, Ordering::Release);
}

#[test]
fn loom_completion_queue_of_three() {
    completion_queue(3, Ordering::Release);
}

/// Not a rule of the product: shows that a missing release on the other side would be seen.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_notices_a_kernel_that_gives_slots_back_unordered() {
    work_queue(1, Ordering::Relaxed);
}

/// As above.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_notices_a_kernel_that_publishes_unordered() {
    completion_queue(3, Ordering::Relaxed);
}

/// A doorbell as the kernel has it: wakes a worker, which then looks at the ring until it is empty.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn is_rung(&self) -> bool {
        *self.0.0.lock().unwrap()
    }

    fn wait(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Doorbell for Bell {
    fn ring(&self, unheard: &mut bool) -> Result<(), PostError> {
        *unheard = false;
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
        Ok(())
    }
}

/// A whole batch is there when its doorbell is heard; a kernel that only acts on doorbells misses nothing.
#[test]
fn loom_send_queue_with_doorbell() {
    loom::model(|| {
        let model = Model::new(3);
        let mut kernel = Kernel::new(&model);
        let bell = Bell::new();
        let heard = bell.clone();
        let peer = thread::spawn(move || {
            let mut seen = 0;
            while seen < 3 {
                heard.wait();
                while let Some(number) = kernel.take() {
                    seen += 1;
                    assert_eq!(number, seen);
                }
                assert_ne!(seen, 1, "a batch is seen whole");
            }
        });
        let mut sq = RxeSq::new(model, 3, 48, bell);
        let mut push = |wr_id| {
            sq.push(&SendWr { wr_id, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Inline(b"x") }).unwrap();
            if wr_id > 1 {
                sq.submit().unwrap();
            }
        };
        push(1);
        push(2);
        push(3);
        peer.join().unwrap();
    });
}

/// The receive queue needs no doorbell: a batch is visible whole or not at all.
#[test]
fn loom_receive_queue() {
    loom::model(|| {
        let model = Model::new(3);
        let mut kernel = Kernel::new(&model);
        let peer = thread::spawn(move || {
            let first = kernel.take();
            match first {
                None => {}
                Some(number) => assert_eq!((number, kernel.take()), (1, Some(2)), "a batch is seen whole"),
            }
        });
        let mut rq = RxeRq::new(model, 2);
        let sge = Sge::from_raw(0x1000, 8, Lkey(1));
        rq.push(1, &[sge]).unwrap();
        rq.push(2, &[sge, sge]).unwrap();
        rq.submit();
        peer.join().unwrap();
    });
}

/// The completion queue's own type, on the same rules.
#[test]
fn loom_completion_queue_type() {
    loom::model(|| {
        let model = Model::new(1);
        let mut kernel = Kernel::new(&model);
        let peer = thread::spawn(move || {
            for number in 1..=2 {
                while !kernel.give(number) {
                    thread::yield_now();
                }
            }
        });
        let mut cq = RxeCq::new(model);
        let mut seen = 0;
        while seen < 2 {
            cq.begin();
            while let Some(cqe) = cq.next() {
                seen += 1;
                assert_eq!(cqe.wc().wr_id, seen);
            }
            if cq.holds_slots() && !cq.end() {
                cq.give_back();
            }
            thread::yield_now();
        }
        peer.join().unwrap();
    });
}

/// Whether a completion raises an event, as the kernel keeps it under the completion queue's lock.
struct Notify {
    armed: Mutex<bool>,
    event: Bell,
}

impl Notify {
    /// REQ_NOTIFY_CQ: the next completion raises an event. One that is there already raises none.
    fn arm(&self) {
        *self.armed.lock().unwrap() = true;
    }

    fn post(&self, kernel: &mut Kernel, number: u64) {
        let mut armed = self.armed.lock().unwrap();
        assert!(kernel.give(number), "the queue is large enough");
        if std::mem::take(&mut *armed) {
            self.event.ring(&mut false).unwrap();
        }
    }
}

/// A queue to wait on, and a kernel that posts 1 and 2 to it.
fn two_completions() -> (Consumer<Model>, Model, Arc<Notify>, thread::JoinHandle<()>) {
    let model = Model::new(3);
    let mut kernel = Kernel::new(&model);
    let notify = Arc::new(Notify { armed: Mutex::new(false), event: Bell::new() });
    let posting = notify.clone();
    let peer = thread::spawn(move || {
        posting.post(&mut kernel, 1);
        posting.post(&mut kernel, 2);
    });
    (Consumer::new(model.clone()), model, notify, peer)
}

/// Drain, arm, drain again, wait. A lost wake-up is a deadlock here, and loom ends the test program at one.
#[test]
fn loom_wait_loses_no_wakeup() {
    loom::model(|| {
        let (mut consumer, model, notify, peer) = two_completions();
        let mut seen = 0;
        while seen < 2 {
            seen = drain(&mut consumer, &model, seen);
            notify.arm();
            seen = drain(&mut consumer, &model, seen);
            if seen < 2 {
                notify.event.wait();
            }
        }
        peer.join().unwrap();
    });
}

/// Why the loop drains again after arming: without it, a completion between drain and arm is slept over.
#[test]
#[should_panic(expected = "slept over a completion")]
fn loom_notices_a_wait_without_second_drain() {
    loom::model(|| {
        let (mut consumer, model, notify, peer) = two_completions();
        let seen = drain(&mut consumer, &model, 0);
        notify.arm();
        peer.join().unwrap();
        assert!(seen == 2 || notify.event.is_rung(), "slept over a completion");
    });
}
