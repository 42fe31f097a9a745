//! The completion queue: completions read in place.
//!
//! # Safety argument
//!
//! A completion is read from its slot only between the snapshot that showed it and [`RxeCq::end`], which gives the slot
//! back. [`RxeCqe`] borrows the queue, so it cannot outlive that.
#![allow(unsafe_code)]

use super::queue::Consumer;
use super::ring_memory::{MappedRing, RingMemory};
use crate::uverbs::abi::verbs::Wc;
use crate::uverbs::wr::{WcOpcode, WcStatus};
use std::marker::PhantomData;
use std::mem::size_of;

/// Bytes of a completion queue's slot that are used.
pub const CQE_BYTES: usize = size_of::<Wc>();

/// `IB_WC_WITH_IMM` (`include/rdma/ib_verbs.h`).
const WITH_IMM: u32 = 2;

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

    /// Ends the batch: gives the slots of all completions read so far back to the kernel.
    #[inline(always)]
    pub fn end(&mut self) {
        self.ring.end();
    }
}

/// A completion, still in its slot. Fields are read when asked for.
#[derive(Clone, Copy)]
pub struct RxeCqe<'cq> {
    slot: *const Wc,
    _queue: PhantomData<&'cq ()>,
}

macro_rules! field {
    ($cqe:ident . $field:ident) => {
        // SAFETY: made by `RxeCq::next` only, from a slot that the kernel has filled, that is aligned and large enough
        // for a `Wc` (checked in `RxeCq::new`), and that is not given back while the queue is borrowed. No reference to
        // the slot is made. Every bit pattern is a valid integer.
        unsafe { (&raw const (*$cqe.slot).$field).read() }
    };
}

impl RxeCqe<'_> {
    /// Of the work request. Always valid.
    #[inline(always)]
    pub fn wr_id(self) -> u64 {
        field!(self.wr_id)
    }

    /// Always valid.
    #[inline(always)]
    pub fn status(self) -> WcStatus {
        WcStatus(field!(self.status))
    }

    /// Always valid; rxe leaves it 0.
    #[inline(always)]
    pub fn vendor_err(self) -> u32 {
        field!(self.vendor_err)
    }

    /// Own queue pair. Always valid.
    #[inline(always)]
    pub fn qpn(self) -> u32 {
        field!(self.qp_num)
    }

    /// Valid on success only, as are all that follow.
    #[inline(always)]
    pub fn opcode(self) -> WcOpcode {
        WcOpcode(field!(self.opcode))
    }

    /// Bytes of the message. On a datagram queue pair's receive it counts the 40 bytes of the GRH.
    #[inline(always)]
    pub fn byte_len(self) -> u32 {
        field!(self.byte_len)
    }

    /// Immediate data in host order, of a receive that has any. The flag is set on the sender's completion as well, where
    /// it says nothing.
    #[inline(always)]
    pub fn imm(self) -> Option<u32> {
        let has_imm = self.wc_flags() & WITH_IMM != 0 && self.opcode().is_recv();
        has_imm.then(|| u32::from_be(field!(self.ex)))
    }

    /// Peer's queue pair.
    #[inline(always)]
    pub fn src_qp(self) -> u32 {
        field!(self.src_qp)
    }

    /// `enum ib_wc_flags`: GRH 1, WITH_IMM 2, WITH_INVALIDATE 4. rxe sets GRH on connected queue pairs too, where no
    /// GRH is in the buffer, and WITH_IMM on the sender's completion as well.
    #[inline(always)]
    pub fn wc_flags(self) -> u32 {
        field!(self.wc_flags)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
