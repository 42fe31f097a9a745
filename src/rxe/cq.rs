//! The completion queue: completions read in place.
//!
//! # Safety argument
//!
//! A completion is read from its slot only between the snapshot that showed it and [`RxeCq::end`], which gives the slot
//! back. [`RxeCqe`] borrows the queue, so it cannot outlive that.
#![allow(unsafe_code)]

use super::queue::Consumer;
use super::ring_memory::{MappedRing, RingMemory};
use crate::uverbs::abi::verbs::Wc as Cqe;
use crate::uverbs::wc::Wc;
use std::marker::PhantomData;
use std::mem::size_of;

/// Bytes of a completion queue's slot that are used.
pub const CQE_BYTES: usize = size_of::<Cqe>();

/// The polling end of one completion queue.
pub struct RxeCq<M = MappedRing> {
    ring: Consumer<M>,
}

impl<M: RingMemory> RxeCq<M> {
    /// A queue over a ring whose slots have at least [`CQE_BYTES`] bytes.
    ///
    /// # Panics
    ///
    /// If they have not.
    pub fn new(memory: M) -> Self {
        assert!(memory.slot_bytes() >= CQE_BYTES, "completion queue slots are too small");
        Self { ring: Consumer::new(memory) }
    }

    /// Completions that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Whether there is a completion that was not read yet.
    #[inline(always)]
    pub fn has_entry(&self) -> bool {
        self.ring.has_entry()
    }

    /// Starts a batch: looks once at how many completions there are.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.ring.begin();
    }

    /// The next completion of the batch. Those that came after [`begin`](Self::begin) are for the next batch.
    #[inline(always)]
    pub fn next(&mut self) -> Option<RxeCqe<'_>> {
        let slot = self.ring.next()?;
        Some(RxeCqe { slot: slot.cast(), _queue: PhantomData })
    }

    /// Whether every completion of the batch was read.
    #[inline(always)]
    pub fn is_drained(&self) -> bool {
        self.ring.is_drained()
    }

    /// Ends the batch: gives the slots of all completions read so far back to the kernel. If the queue is full, so that the
    /// kernel may have lost completions, gives none back and says `false`.
    #[inline(always)]
    pub fn end(&mut self) -> bool {
        self.ring.end()
    }

    /// As [`end`](Self::end), and also if the queue is full.
    pub fn give_back(&mut self) {
        self.ring.give_back();
    }

    /// Whether there are completions that were read, and whose slots were not given back.
    #[inline(always)]
    pub fn holds_slots(&self) -> bool {
        self.ring.holds_slots()
    }
}

impl RxeCq {
    /// The kernel has made another ring, and put into it what was not given back; or that one is out of reach.
    pub fn replace(&mut self, ring: Option<MappedRing>) {
        self.ring = Consumer::new(ring.unwrap_or_else(MappedRing::none));
    }
}

/// A completion, still in its slot.
#[derive(Clone, Copy)]
pub struct RxeCqe<'cq> {
    slot: *const Cqe,
    _queue: PhantomData<&'cq ()>,
}

impl RxeCqe<'_> {
    /// All of it. rxe leaves what a failed completion does not define at zero, the vendor's code always, sets the flag GRH on
    /// connected queue pairs too, where no GRH is in the buffer, and WITH_IMM on the sender's completion as well.
    #[inline(always)]
    pub fn wc(self) -> Wc {
        // SAFETY: made by `RxeCq::next` only, from a slot that the kernel has filled, that is aligned and large enough
        // for a `Cqe` (checked in `RxeCq::new`), and that is not given back while the queue is borrowed. No reference to
        // the slot is made. Every bit pattern is a valid integer.
        Wc::from_kernel(unsafe { self.slot.read() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
