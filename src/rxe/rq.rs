//! The receive queue, a queue pair's own or shared: buffers handed to the kernel without a system call.
//!
//! # Safety argument
//!
//! As for the send queue: `new` checks that a slot holds the largest element, and `RecvEntry` stays inside the slot.
#![allow(unsafe_code)]

use super::abi::{RecvWqe, RxeSge};
use super::dma::write_sges;
use super::queue::Producer;
use super::ring_memory::{Entry, MappedRing, RingMemory};
use crate::uverbs::wr::{PostError, Sge};
use std::mem::size_of;
use std::ptr::NonNull;

/// Bytes of a receive queue's slot for this limit.
pub const fn wqe_bytes(max_sge: u32) -> usize {
    size_of::<RecvWqe>() + max_sge as usize * size_of::<RxeSge>()
}

/// Receive queue of one queue pair, or shared by several.
///
/// The kernel looks at the ring by itself when a message arrives: submitting is one store.
pub struct RxeRq<M = MappedRing> {
    ring: Producer<M>,
    max_sge: u32,
    /// What it means that nothing fits.
    full: PostError,
}

impl<M: RingMemory> RxeRq<M> {
    /// A queue over a ring whose slots have at least [`wqe_bytes`] bytes.
    ///
    /// # Panics
    ///
    /// If they have not.
    pub fn new(memory: M, max_sge: u32) -> Self {
        assert!(memory.slot_bytes() >= wqe_bytes(max_sge), "receive queue slots are too small");
        Self { ring: Producer::new(memory), max_sge, full: PostError::QueueFull }
    }

    /// Receives that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Scatter/gather entries that a receive takes at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Starts a batch: what an earlier one pushed but never submitted is dropped.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.ring.rollback();
    }

    /// Receives that can be pushed now. Reads the kernel's index; `push` itself does so only when it must.
    pub fn remaining(&mut self) -> u32 {
        self.ring.remaining()
    }

    /// Writes a receive into the next slot. On an error nothing was pushed.
    #[inline(always)]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let entry = RecvEntry { wr_id, sges, max_sge: self.max_sge };
        // SAFETY: `new` checked that slots have room for an entry with this limit.
        match unsafe { self.ring.stage(entry) } {
            Err(PostError::QueueFull) => Err(self.full),
            staged => staged,
        }
    }

    /// Why a receive does not fit when none is left.
    pub fn full(&self) -> PostError {
        self.full
    }

    /// Hands everything pushed to the kernel. No system call.
    #[inline(always)]
    pub fn submit(&mut self) {
        self.ring.publish();
    }

    /// Drops what was pushed and not submitted.
    #[inline(always)]
    pub fn rollback(&mut self) {
        self.ring.rollback();
    }

    /// Takes up the ring's indices anew, after the queue pair was modified to RESET.
    pub fn resync(&mut self) {
        self.ring.resync();
    }
}

impl RxeRq {
    /// A queue that is not there: it takes nothing, and says `why`.
    pub fn none(why: PostError) -> Self {
        Self { ring: Producer::new(MappedRing::none()), max_sge: 0, full: why }
    }

    /// The kernel has made another ring, and put into it what was posted; or that one is out of reach.
    pub fn replace(&mut self, ring: Option<MappedRing>) {
        *self = match ring {
            Some(ring) => Self::new(ring, self.max_sge),
            None => Self { max_sge: self.max_sge, ..Self::none(PostError::Unmapped) },
        };
    }
}

/// A receive on its way into a slot of at least [`wqe_bytes`]`(max_sge)` bytes.
struct RecvEntry<'a> {
    wr_id: u64,
    sges: &'a [Sge],
    max_sge: u32,
}

impl Entry for RecvEntry<'_> {
    /// Writes every byte of the header, and the list.
    #[inline(always)]
    unsafe fn write_to(self, slot: NonNull<u8>) -> Result<(), PostError> {
        let slot = slot.as_ptr();
        // SAFETY: the slot is aligned for `RecvWqe`, and has room for it and `max_sge` entries after it, at a multiple
        // of 8 bytes, their alignment.
        unsafe {
            let dma = write_sges(slot.add(size_of::<RecvWqe>()), self.max_sge, self.sges)?;
            slot.cast::<RecvWqe>().write(RecvWqe { wr_id: self.wr_id, reserved: 0, padding: 0, dma });
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
