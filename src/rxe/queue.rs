//! The producer's and the consumer's end of a ring shared with the kernel.
//!
//! Each end owns one of the two shared index words and keeps a private copy of it, so it never reads back what it
//! stored. A producer stages entries behind its private index and publishes them all with one store; a consumer takes a
//! snapshot of the producer's index, walks up to it, and gives the slots back with one store.
//!
//! # Safety argument
//!
//! Who may touch a slot is decided by the two index words alone. The producer end touches only slots from its private
//! index up to (not including) the consumer's index; the consumer end only slots from its private index up to the
//! producer's. The other side keeps the same rule: the kernel does, and an implementer of `Cdev` promises it. Each hands
//! slots over with a release store and takes them over with an acquire load (`mem::barrier`), so no slot is touched by
//! both at once.
//!
//! An index word can be scribbled on by the other side; whatever is read from it is masked before use, so the worst that
//! follows is a wrong entry, never an access outside the ring.
#![allow(unsafe_code)]

use super::ring_memory::{Entry, RingMemory};
use crate::mem::barrier::{from_device, to_device};
use crate::mem::ring::RingMask;
use crate::uverbs::wr::PostError;

/// The user's end of a send or receive queue.
pub struct Producer<M> {
    memory: M,
    mask: RingMask,
    /// Slot that is filled next. Always masked.
    next: u32,
    /// What the shared producer index says: entries from here to `next` are staged. Always masked.
    published: u32,
    /// The consumer's index when it was last read. It may have moved on since, never back. Always masked.
    consumer: u32,
}

impl<M: RingMemory> Producer<M> {
    /// Takes up the ring where its indices stand.
    pub fn new(memory: M) -> Self {
        let mask = memory.mask();
        let mut producer = Self { memory, mask, next: 0, published: 0, consumer: 0 };
        producer.resync();
        producer
    }

    /// Reads both indices anew and drops what is staged. For when the kernel emptied the queue (RESET): it leaves the
    /// indices equal, at any value, and goes on from there.
    pub fn resync(&mut self) {
        self.published = self.mask.wrap(from_device(self.memory.producer()));
        self.next = self.published;
        self.refresh();
    }

    /// Most entries that can be in the queue at once.
    pub fn capacity(&self) -> u32 {
        self.mask.capacity()
    }

    /// Entries that can be staged now.
    pub fn remaining(&mut self) -> u32 {
        self.refresh();
        self.mask.free(self.next, self.consumer)
    }

    /// Writes `entry` into the next slot and stages it, if it can be written.
    ///
    /// # Safety
    ///
    /// [`RingMemory::slot_bytes`] of this ring are enough for the entry.
    #[inline(always)]
    pub unsafe fn stage(&mut self, entry: impl Entry) -> Result<(), PostError> {
        let after = self.mask.after(self.next);
        if after == self.consumer {
            // Full as far as we know: only now look at the kernel's cache line.
            self.refresh();
            if after == self.consumer {
                return Err(PostError::QueueFull);
            }
        }
        // SAFETY: `next` is masked. The slot is ours: it is not published, and it is not one that the kernel still
        // consumes, since `next` with its successor has not caught up with the consumer's index. The caller vouches for
        // the entry.
        unsafe { self.memory.write_slot(self.next, entry) }?;
        self.next = after;
        Ok(())
    }

    /// Hands all staged entries to the kernel with one store. Whether there were any.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        to_device(self.memory.producer(), self.next);
        self.published = self.next;
        true
    }

    /// Forgets what is staged.
    #[inline(always)]
    pub fn rollback(&mut self) {
        self.next = self.published;
    }

    #[inline(always)]
    fn refresh(&mut self) {
        self.consumer = self.mask.wrap(from_device(self.memory.consumer()));
    }
}

/// The user's end of a completion queue.
pub struct Consumer<M> {
    memory: M,
    mask: RingMask,
    /// Slot that is read next. Always masked.
    next: u32,
    /// What the shared consumer index says: slots from here to `next` are read but not given back. Always masked.
    published: u32,
    /// The producer's index at the last snapshot. Always masked.
    end: u32,
}

impl<M: RingMemory> Consumer<M> {
    /// Takes up the ring where its indices stand.
    pub fn new(memory: M) -> Self {
        let mask = memory.mask();
        let at = mask.wrap(from_device(memory.consumer()));
        Self { memory, mask, next: at, published: at, end: at }
    }

    /// Most entries that can be in the queue at once.
    pub fn capacity(&self) -> u32 {
        self.mask.capacity()
    }

    /// Takes a snapshot of what the producer has put in.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.end = self.mask.wrap(from_device(self.memory.producer()));
    }

    /// Whether there is an entry that was not read yet, in the snapshot or after it.
    #[inline(always)]
    pub fn has_entry(&self) -> bool {
        self.next != self.mask.wrap(from_device(self.memory.producer()))
    }

    /// The slot of the next entry of the snapshot, if there is one. Its [`RingMemory::slot_bytes`] bytes stay as they
    /// are, and may be read by ordinary access, until [`end`](Self::end).
    #[inline(always)]
    pub fn next(&mut self) -> Option<*const u8> {
        if self.next == self.end {
            return None;
        }
        let slot = self.next;
        self.next = self.mask.after(slot);
        // SAFETY: `slot` is masked. It was published by the producer before the snapshot, and is not given back yet.
        Some(unsafe { self.memory.read_slot(slot) })
    }

    /// Whether every entry of the snapshot was read.
    #[inline(always)]
    pub fn is_drained(&self) -> bool {
        self.next == self.end
    }

    /// Whether the producer has filled the ring up to the last slot that was given back.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.mask.after(from_device(self.memory.producer())) == self.published
    }

    /// Gives all slots that were read back to the producer, with one store; or gives back none, and says `false`.
    ///
    /// It does that if the producer has filled the ring up to the last slot: it may have had more to put in, and lost it. A
    /// ring that was full at any time since the last call still is: only this, and [`give_back`](Self::give_back), make room.
    /// (But for the few instructions between the look and the store: the look costs too much to be repeated.)
    #[inline(always)]
    pub fn end(&mut self) -> bool {
        // Taken up before the look, which no load may be moved across: after it, they would cost two instructions more.
        let (consumer, next) = (self.memory.consumer(), self.next);
        if self.is_full() {
            return false;
        }
        to_device(consumer, next);
        self.published = next;
        true
    }

    /// Gives all slots that were read back to the producer, also if the ring is full; with at most one store.
    pub fn give_back(&mut self) {
        if self.holds_slots() {
            to_device(self.memory.consumer(), self.next);
            self.published = self.next;
        }
    }

    /// Whether there are slots that were read and not given back.
    #[inline(always)]
    pub fn holds_slots(&self) -> bool {
        self.next != self.published
    }
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
