//! What a queue's poster must remember for the poller of its completion queue: the device gives an index back, not the work
//! request's number.
//!
//! Poster and poller may be different threads. Each array has one writer and one reader per entry at a time: the poster
//! writes an entry and hands the element to the device; the device answers on the completion queue; the poller reads the
//! entry and gives it back by storing how far the queue is free. The first edge runs through the device, which the
//! language does not know: atomic access keeps both sides defined, and the barriers of the doorbell and of the completion
//! queue keep them in order. The way back is a release store and an acquire load.
//!
//! # Safety argument
//!
//! Arrays are indexed without a bounds check, by indices masked with their length (a power of two, checked when made)
//! minus one, or by offsets masked with that times the size of an entry. [`OpenSends::note`] masks nothing, and has its caller
//! promise instead. Whoever keeps where entries are has the queue borrowed, or reads it from the queue itself.
#![allow(unsafe_code)]

use super::ring::BlockPlace;
use super::wqe::BB_BYTES;
use crate::mem::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::uverbs::wr::WcOpcode;
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

/// A power of two of entries, reached by masked indices.
struct Masked<T> {
    /// A box, but for its claim that nobody else keeps where they are.
    entries: NonNull<[T]>,
    mask: u32,
}

// SAFETY: it owns its entries, as a box of them does.
unsafe impl<T: Send> Send for Masked<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Masked<T> {}

impl<T> Drop for Masked<T> {
    fn drop(&mut self) {
        // SAFETY: made of a box in `new`, and not used again.
        drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
    }
}

impl<T> Masked<T> {
    /// # Panics
    ///
    /// If `len` is not a power of two.
    fn new(len: u32, entry: impl Fn(u32) -> T) -> Self {
        assert!(len.is_power_of_two(), "{len} entries are not a power of two");
        let entries: Box<[T]> = (0..len).map(entry).collect();
        Self { entries: NonNull::from(Box::leak(entries)), mask: len - 1 }
    }

    /// The entry that any number stands for.
    #[inline(always)]
    fn get(&self, index: u32) -> &T {
        // SAFETY: masked by the length minus one, a power of two: below the length. The entries live as long as `self`.
        unsafe { self.entries.cast::<T>().add((index & self.mask) as usize).as_ref() }
    }
}

/// Of a send queue, as its poster keeps it: where the entries are is known without a look at who has them.
pub struct Poster {
    first: NonNull<Sent>,
    shared: Arc<SqShared>,
}

// SAFETY: `first` points to what `shared`, which moves along, has for all threads.
unsafe impl Send for Poster {}
// SAFETY: as above.
unsafe impl Sync for Poster {}

impl Poster {
    pub fn new(shared: Arc<SqShared>) -> Self {
        Self { first: shared.entries.entries.cast(), shared }
    }

    /// What the poller has, too.
    #[inline(always)]
    pub fn shared(&self) -> &Arc<SqShared> {
        &self.shared
    }

    /// A batch begins.
    #[inline(always)]
    pub fn open(&self) -> OpenSends<'_> {
        OpenSends { first: self.first, _queue: PhantomData }
    }
}

/// Of a send queue, for the poster of a batch.
#[derive(Clone, Copy)]
pub struct OpenSends<'a> {
    first: NonNull<Sent>,
    _queue: PhantomData<&'a SqShared>,
}

impl OpenSends<'_> {
    /// Notes the work request whose element starts at `place`, of which there were `count` before it, times [`ONE`].
    ///
    /// # Safety
    ///
    /// The place is one of a ring that has no more blocks than there are entries.
    #[inline(always)]
    pub unsafe fn note(&self, place: BlockPlace, wr_id: u64, count: u32, opcode: WcOpcode) {
        // SAFETY: a place is a multiple of a block's size, which an entry's size divides, so this is the offset of an entry; of
        // one that is there, as the caller promises.
        let entry = unsafe { self.first.byte_add(place.offset() / (BB_BYTES / SENT_BYTES) as usize).as_ref() };
        entry.wr_id.store(wr_id, Ordering::Relaxed);
        // The lower 8 bits of a count are zero: a sum is less work than putting bits together.
        entry.count_and_opcode.store(count.wrapping_add(opcode.0), Ordering::Relaxed);
    }
}

/// Of a send queue: one entry for each block, used by the element that starts there.
///
/// It stands for one user index of one completion queue, until it is [retired](Self::retire).
pub struct SqShared {
    /// The entries, until it is retired; then null.
    current: AtomicPtr<Sent>,
    /// A mask of their offsets, for the lower 16 bits of a block.
    offsets: u32,
    entries: Masked<Sent>,
    /// What the last completion's entry says: [`Sent::count_and_opcode`].
    done: CachePadded<AtomicU32>,
}

#[repr(align(16))]
struct Sent {
    wr_id: AtomicU64,
    /// Bits 31:8 work requests posted before this one, 7:0 what it completes as.
    count_and_opcode: AtomicU32,
}

const SENT_BYTES: u32 = size_of::<Sent>() as u32;
const _: () = assert!(SENT_BYTES.is_power_of_two() && SENT_BYTES <= 1 << 16);

/// One work request, where counts of them have the upper 24 bits of a word: more than any queue holds.
pub const ONE: u32 = 1 << 8;

impl SqShared {
    /// For a ring of `blocks` blocks.
    pub fn new(blocks: u32) -> Self {
        let entry = |_| Sent { wr_id: AtomicU64::new(0), count_and_opcode: AtomicU32::new(0) };
        let entries = Masked::new(blocks, entry);
        Self {
            current: AtomicPtr::new(entries.entries.as_ptr().cast()),
            offsets: (entries.mask & 0xffff) * SENT_BYTES,
            entries,
            // The one before the first.
            done: CachePadded::new(AtomicU32::new(0_u32.wrapping_sub(ONE))),
        }
    }

    /// Of no queue at all.
    pub fn nobody() -> Self {
        let shared = Self::new(1);
        shared.retire();
        shared
    }

    /// Its user index stands for something else from now on. Before anything else is posted under that index, so that whoever
    /// sees a completion of something else sees this as well.
    pub fn retire(&self) {
        self.current.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// How many blocks it has entries for.
    pub fn blocks(&self) -> u32 {
        self.entries.mask + 1
    }

    /// As [`OpenSends::note`], by numbers of block and request, from 1 on, for tests.
    #[cfg(test)]
    pub fn note(&self, block: u32, wr_id: u64, number: u32, opcode: WcOpcode) {
        let entry = self.entries.get(block);
        entry.wr_id.store(wr_id, Ordering::Relaxed);
        entry
            .count_and_opcode
            .store(number.wrapping_sub(1).wrapping_mul(ONE).wrapping_add(opcode.0), Ordering::Relaxed);
    }

    /// Poster: how many work requests are done, counted from the queue's start, times [`ONE`].
    #[inline(always)]
    pub fn done(&self) -> u32 {
        (self.done.load(Ordering::Acquire) & !(ONE - 1)).wrapping_add(ONE)
    }

    /// How many of `posted` work requests are not done, in the same terms.
    #[cfg(test)]
    pub fn outstanding(&self, posted: u32) -> u32 {
        posted.wrapping_sub(self.done()) / ONE
    }

    /// Poller: several completions of this queue, one after the other.
    #[inline(always)]
    pub fn run(&self) -> Run<'_> {
        Run { queue: self, first: self.entries.entries.cast(), offsets: self.offsets }
    }

    /// Poller: the element that starts at `block` is done, and with it all before, signaled or not.
    #[inline(always)]
    pub fn complete(&self, block: u32) -> (u64, WcOpcode) {
        self.take(self.entries.get(block))
    }

    /// As [`complete`](Self::complete), with the block in the upper 16 bits of a word, whose lower ones do not matter. `None`,
    /// and nothing done, if it is retired.
    #[inline(always)]
    pub fn complete_current(&self, word: u32) -> Option<(u64, WcOpcode)> {
        // One shift makes an offset of it.
        let offset = (word >> (16 - SENT_BYTES.ilog2()) & self.offsets) as usize;
        let first = NonNull::new(self.current.load(Ordering::Relaxed))?;
        // SAFETY: what is stored there, but null, is where the entries are, which live as long as `self`; `offsets` is at most
        // their number minus one, a mask, times their size: so the offset is that of an entry.
        Some(self.take(unsafe { first.byte_add(offset).as_ref() }))
    }

    #[inline(always)]
    fn take(&self, entry: &Sent) -> (u64, WcOpcode) {
        let wr_id = entry.wr_id.load(Ordering::Relaxed);
        let count_and_opcode = entry.count_and_opcode.load(Ordering::Relaxed);
        self.done.store(count_and_opcode, Ordering::Release);
        (wr_id, WcOpcode(count_and_opcode & 0xff))
    }
}

/// Completions of one send queue: see [`SqShared::run`].
pub struct Run<'a> {
    queue: &'a SqShared,
    first: NonNull<Sent>,
    offsets: u32,
}

/// What was noted of an element.
pub struct Noted {
    wr_id: u64,
    /// As [`Sent`] has it.
    count_and_opcode: u32,
}

impl Noted {
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// What it completes as.
    #[inline(always)]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode(self.count_and_opcode & 0xff)
    }
}

impl Run<'_> {
    /// What was noted of an element, which is given as to [`SqShared::complete_current`]. `None` if the queue is retired.
    #[inline(always)]
    pub fn current(&self, word: u32) -> Option<Noted> {
        if self.queue.current.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let offset = (word >> (16 - SENT_BYTES.ilog2()) & self.offsets) as usize;
        // SAFETY: the queue's own entries and mask of offsets, so that this is one of them; they live as long as the queue, which is
        // borrowed.
        let entry = unsafe { self.first.byte_add(offset).as_ref() };
        let wr_id = entry.wr_id.load(Ordering::Relaxed);
        Some(Noted { wr_id, count_and_opcode: entry.count_and_opcode.load(Ordering::Relaxed) })
    }

    /// That element is done, and with it all before, signaled or not.
    #[inline(always)]
    pub fn complete(&self, noted: Noted) {
        self.queue.done.store(noted.count_and_opcode, Ordering::Release);
    }
}

/// Of a queue pair's own receive queue, which completes in order.
pub struct RqShared {
    wr_ids: Masked<AtomicU64>,
    /// Receives that are done, counted from the queue's start. Stored by the poller only.
    done: CachePadded<AtomicU32>,
}

impl RqShared {
    /// For a ring of `elements` elements.
    pub fn new(elements: u32) -> Self {
        let done = CachePadded::new(AtomicU32::new(0));
        Self { wr_ids: Masked::new(elements, |_| AtomicU64::new(0)), done }
    }

    /// As if `done` receives were done already, for tests.
    #[cfg(test)]
    pub fn at(elements: u32, done: u32) -> Self {
        let shared = Self::new(elements);
        shared.done.store(done, Ordering::Relaxed);
        shared
    }

    /// Poster: notes receive number `index` from the queue's start.
    #[inline(always)]
    pub fn note(&self, index: u32, wr_id: u64) {
        self.wr_ids.get(index).store(wr_id, Ordering::Relaxed);
    }

    /// Poster: how many receives are done.
    #[inline(always)]
    pub fn done(&self) -> u32 {
        self.done.load(Ordering::Acquire)
    }

    /// Poller: the next receive is done.
    #[inline(always)]
    pub fn complete(&self) -> u64 {
        let index = self.done.load(Ordering::Relaxed);
        let wr_id = self.wr_ids.get(index).load(Ordering::Relaxed);
        self.done.store(index.wrapping_add(1), Ordering::Release);
        wr_id
    }
}

/// No element.
const NONE: u32 = u32::MAX;

/// Of a shared receive queue, whose elements complete in any order, on any number of completion queues.
///
/// Elements that are done lie on a stack: pollers push, each by a compare-and-swap; the one poster takes the whole stack at
/// once, so that no element can come back while a push still looks at it.
pub struct SrqShared {
    elements: Masked<Received>,
    returned: CachePadded<AtomicU32>,
}

struct Received {
    wr_id: AtomicU64,
    /// The element below on the stack.
    below: AtomicU32,
}

impl SrqShared {
    /// For a ring of `elements` elements.
    pub fn new(elements: u32) -> Self {
        let element = |_| Received { wr_id: AtomicU64::new(0), below: AtomicU32::new(NONE) };
        Self { elements: Masked::new(elements, element), returned: CachePadded::new(AtomicU32::new(NONE)) }
    }

    /// Poster: notes what element `index` was posted for.
    #[inline(always)]
    pub fn note(&self, index: u32, wr_id: u64) {
        self.elements.get(index).wr_id.store(wr_id, Ordering::Relaxed);
    }

    /// Poller: element `index` is done.
    #[inline(always)]
    pub fn complete(&self, index: u32) -> u64 {
        let index = index & self.elements.mask;
        let element = self.elements.get(index);
        let wr_id = element.wr_id.load(Ordering::Relaxed);
        let mut top = self.returned.load(Ordering::Relaxed);
        loop {
            element.below.store(top, Ordering::Relaxed);
            // Release: whoever takes the stack sees `below`, and writes the element anew only after `wr_id` was read.
            match self.returned.compare_exchange_weak(top, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return wr_id,
                Err(now) => top = now,
            }
        }
    }

    /// Poster: takes all elements that are done, the last one first.
    #[inline(always)]
    pub fn take(&self) -> Taken<'_> {
        Taken { queue: self, next: self.returned.swap(NONE, Ordering::Acquire), left: self.elements.mask }
    }
}

/// Elements taken by [`SrqShared::take`].
pub struct Taken<'a> {
    queue: &'a SrqShared,
    next: u32,
    /// A device that completes an element twice makes a circle of them: it is left after one round.
    left: u32,
}

impl Iterator for Taken<'_> {
    type Item = u32;

    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        if self.next == NONE || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let index = self.next;
        self.next = self.queue.elements.get(index).below.load(Ordering::Relaxed);
        Some(index)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn outstanding(shared: &SqShared, posted: u32) -> u32 {
        shared.outstanding(posted.wrapping_mul(ONE))
    }

    #[test]
    fn a_completion_retires_all_before_it() {
        let shared = SqShared::new(4);
        shared.note(0, 10, 1, WcOpcode::SEND);
        shared.note(1, 11, 2, WcOpcode::RDMA_WRITE);
        shared.note(2, 12, 3, WcOpcode::LOCAL_INV);
        assert_eq!(outstanding(&shared, 3), 3);
        assert_eq!(shared.complete(1), (11, WcOpcode::RDMA_WRITE));
        assert_eq!(outstanding(&shared, 3), 1);
        assert_eq!((shared.complete(2), outstanding(&shared, 3)), ((12, WcOpcode::LOCAL_INV), 0));
        shared.note(0x1_0003, 13, 4, WcOpcode::SEND);
        assert_eq!((shared.complete(3), outstanding(&shared, 4)), ((13, WcOpcode::SEND), 0), "indices are masked");
    }

    #[test]
    fn counts_wrap() {
        let shared = SqShared::new(4);
        for around in [1_u64 << 24, 1 << 31, 1 << 32] {
            for back in [2, 1, 0] {
                let count = (around - back) as u32;
                shared.note(0, 1, count, WcOpcode(135));
                assert_eq!(shared.complete(0), (1, WcOpcode(135)));
                assert_eq!((outstanding(&shared, count), outstanding(&shared, count.wrapping_add(3))), (0, 3));
            }
        }
    }

    #[test]
    fn receives_complete_in_order_across_the_wrap() {
        let shared = RqShared::new(2);
        shared.done.store(u32::MAX, Ordering::Relaxed);
        shared.note(u32::MAX, 1);
        shared.note(0, 2);
        assert_eq!((shared.complete(), shared.complete(), shared.done()), (1, 2, 1));
    }

    #[test]
    fn shared_elements_come_back_in_any_order() {
        let shared = SrqShared::new(8);
        for index in 0..8 {
            shared.note(index, 100 + u64::from(index));
        }
        for index in [5, 1, 6 + 8] {
            assert_eq!(shared.complete(index), 100 + u64::from(index & 7));
        }
        assert_eq!(shared.take().collect::<Vec<_>>(), [6, 1, 5]);
        assert_eq!(shared.take().count(), 0);
    }

    #[test]
    fn an_element_that_comes_twice_hangs_nobody() {
        let shared = SrqShared::new(8);
        shared.complete(3);
        shared.complete(3);
        assert!(shared.take().count() <= 8);
        assert_eq!(shared.take().count(), 0);
    }

    #[test]
    #[should_panic(expected = "not a power of two")]
    fn lengths_are_powers_of_two() {
        SqShared::new(6);
    }
}
