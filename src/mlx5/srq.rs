//! The shared receive queue: a linked list in a ring, filled by one poster and emptied in any order.
//!
//! Each element names the one that the device takes after it. The poster fills elements from the head of the list on; those
//! that completions gave back are linked in behind its last element, which is never posted itself, so that the list always
//! goes on. An element's link is written when its successor becomes known, which is before the element can be posted.

use super::bus::{Bus, Cpu};
use super::dbrec::{DoorbellRecord, Word};
use super::layout::SrqLayout;
use super::ring::Ring;
use super::rq::put_list;
use super::shadow::SrqShared;
use super::wqe::SrqNext;
use crate::mem::copy::stay_a_loop;
use crate::uverbs::wr::{PostError, Sge};
use std::sync::Arc;

/// Shared receive queue.
pub struct Srq<B = Cpu> {
    list: List,
    capacity: u32,
    max_sge: u32,
    /// Element that is filled next; the same when the batch began.
    head: u16,
    told_head: u16,
    /// Last element of the list.
    tail: u16,
    /// Receives pushed, from the queue's start, and what of that the device was told.
    pushed: u32,
    told: u32,
    shared: Arc<SrqShared>,
    record: DoorbellRecord,
    bus: B,
}

impl Srq<Cpu> {
    /// # Panics
    ///
    /// If ring and layout do not fit each other.
    pub fn new(ring: Ring, layout: SrqLayout, record: DoorbellRecord, shared: Arc<SrqShared>) -> Self {
        Self::with_bus(ring, layout, record, shared, Cpu)
    }
}

impl<B: Bus> Srq<B> {
    /// As [`Srq::new`], on another bus.
    pub fn with_bus(ring: Ring, layout: SrqLayout, record: DoorbellRecord, shared: Arc<SrqShared>, bus: B) -> Self {
        assert_eq!(ring.bytes(), layout.bytes(), "the ring is as long as the layout says");
        assert!(layout.elements.is_power_of_two() && layout.elements <= 1 << 16, "indices have 16 bits");
        let SrqLayout { elements, log2_stride, max_sge } = layout;
        let mut queue = Self {
            list: List { ring, log2_stride, next: vec![0; elements as usize].into() },
            capacity: elements - 1,
            max_sge,
            head: 0,
            told_head: 0,
            tail: (elements - 1) as u16,
            pushed: 0,
            told: 0,
            shared,
            record,
            bus,
        };
        for index in 0..elements - 1 {
            queue.list.link(&queue.bus, index as u16, index as u16 + 1);
        }
        queue.list.link(&queue.bus, queue.tail, 0);
        queue
    }

    /// Receives that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Scatter/gather entries that a receive takes at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Receives that can be pushed now. Walks the list.
    pub fn remaining(&mut self) -> u32 {
        self.collect();
        let mut free = 0;
        let mut at = self.head;
        while at != self.tail && free < self.capacity {
            at = self.list.after(at);
            free += 1;
        }
        free
    }

    /// Starts a batch: what an earlier one pushed but never submitted is dropped.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.rollback();
    }

    /// Drops what was pushed and not submitted. The links stay as they are.
    #[inline(always)]
    pub fn rollback(&mut self) {
        self.pushed = self.told;
        self.head = self.told_head;
    }

    /// Writes a receive. On an error nothing was pushed.
    #[inline(always)]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.head == self.tail {
            // Full as far as we know: only now look at what came back.
            self.collect();
            if self.head == self.tail {
                return Err(PostError::QueueFull);
            }
        }
        let mut cursor = self.list.ring.cursor(usize::from(self.head) << self.list.log2_stride);
        // The head is written already: see `List::link`.
        cursor.skip();
        put_list(&mut cursor, &self.bus, self.max_sge, sges)?;
        self.shared.note(self.head.into(), wr_id);
        self.head = self.list.after(self.head);
        self.pushed = self.pushed.wrapping_add(1);
        Ok(())
    }

    /// Tells the device of everything pushed.
    #[inline(always)]
    pub fn submit(&mut self) {
        if self.pushed == self.told {
            return;
        }
        self.bus.to_device();
        self.bus.record(&self.record, Word::Receive, self.pushed & 0xffff);
        self.told = self.pushed;
        self.told_head = self.head;
    }

    /// Links what came back in behind the list's end.
    #[inline(always)]
    fn collect(&mut self) {
        let Self { list, tail, shared, bus, .. } = self;
        for index in shared.take() {
            list.link(bus, *tail, index as u16);
            *tail = index as u16;
            stay_a_loop();
        }
    }
}

/// The elements, and which follows which.
struct List {
    ring: Ring,
    log2_stride: u32,
    /// For each element, the one after it: what the ring says, which is never read back.
    next: Box<[u16]>,
}

impl List {
    /// Lets `next` follow `index`, in the ring and in our own notes.
    #[inline(always)]
    fn link<B: Bus>(&mut self, bus: &B, index: u16, next: u16) {
        self.ring.cursor(usize::from(index) << self.log2_stride).put(bus, SrqNext::new(next));
        let mask = self.next.len().wrapping_sub(1);
        if let Some(slot) = self.next.get_mut(usize::from(index) & mask) {
            *slot = next;
        }
    }

    #[inline(always)]
    fn after(&self, index: u16) -> u16 {
        let mask = self.next.len().wrapping_sub(1);
        self.next.get(usize::from(index) & mask).copied().unwrap_or(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
