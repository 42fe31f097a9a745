//! The receive queue of one queue pair: buffers handed to the device by a doorbell record alone.

use super::bus::{Bus, Cpu};
use super::dbrec::{DoorbellRecord, Word};
use super::home::Home;
use super::layout::RqLayout;
use super::mailbox::{Change, Receives};
use super::ring::{Cursor, Ring};
use super::shadow::RqShared;
use super::wqe::{Data, MAX_DATA_BYTES};
use crate::mem::copy::stay_a_loop;
use crate::uverbs::wr::{PostError, Sge};
use std::sync::Arc;

/// Receive queue of one queue pair.
pub struct Rq<B = Cpu> {
    ring: Ring,
    log2_stride: u32,
    capacity: u32,
    max_sge: u32,
    /// Receives pushed, from the queue's start, and what of that the device was told.
    pushed: u32,
    told: u32,
    /// Receives that were done when it was last looked at.
    done: u32,
    shared: Arc<RqShared>,
    record: DoorbellRecord,
    home: Option<Home>,
    bus: B,
}

/// What a receive queue is made of.
pub struct RqParts {
    pub ring: Ring,
    pub layout: RqLayout,
    pub record: DoorbellRecord,
    pub shared: Arc<RqShared>,
    /// Where its completions are looked up; none in tests that have no such place.
    pub home: Option<Home>,
}

impl Rq<Cpu> {
    /// # Panics
    ///
    /// If ring and layout do not fit each other.
    pub fn new(parts: RqParts) -> Self {
        Self::with_bus(parts, Cpu)
    }
}

impl<B: Bus> Rq<B> {
    /// As [`Rq::new`], on another bus.
    pub fn with_bus(parts: RqParts, bus: B) -> Self {
        let RqParts { ring, layout, record, shared, home } = parts;
        assert_eq!(ring.bytes(), layout.bytes(), "the ring is as long as the layout says");
        let RqLayout { elements: capacity, log2_stride, max_sge } = layout;
        Self { ring, log2_stride, capacity, max_sge, pushed: 0, told: 0, done: 0, shared, record, home, bus }
    }

    /// As if so many receives were done already, for tests.
    #[cfg(test)]
    pub fn start_at(&mut self, done: u32) {
        (self.pushed, self.told, self.done) = (done, done, done);
    }

    /// Receives that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Scatter/gather entries that a receive takes at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Receives that can be pushed now.
    pub fn remaining(&mut self) -> u32 {
        self.done = self.shared.done();
        self.capacity.saturating_sub(self.pushed.wrapping_sub(self.done))
    }

    /// Starts a batch: what an earlier one pushed but never submitted is dropped.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.rollback();
    }

    /// Drops what was pushed and not submitted.
    #[inline(always)]
    pub fn rollback(&mut self) {
        self.pushed = self.told;
    }

    /// Starts anew, after the queue pair was modified to RESET; see [`Sq::resync`](super::sq::Sq::resync).
    pub fn resync(&mut self) {
        (self.pushed, self.told, self.done) = (0, 0, 0);
        self.shared = Arc::new(RqShared::new(self.capacity));
        self.record.store(Word::Receive, 0);
        if let Some(home) = &self.home {
            home.announce(Change::Receives(Some(Receives::Own(Arc::clone(&self.shared)))));
        }
    }

    /// Writes a receive. On an error nothing was pushed.
    #[inline(always)]
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.pushed.wrapping_sub(self.done) >= self.capacity {
            // Full as far as we know: only now look at the poller's cache line.
            self.done = self.shared.done();
            if self.pushed.wrapping_sub(self.done) >= self.capacity {
                return Err(PostError::QueueFull);
            }
        }
        let mut cursor = self.ring.cursor((self.pushed as usize) << self.log2_stride);
        put_list(&mut cursor, &self.bus, self.max_sge, sges)?;
        self.shared.note(self.pushed, wr_id);
        self.pushed = self.pushed.wrapping_add(1);
        Ok(())
    }

    /// Tells the device of everything pushed. It looks at the record by itself when a message arrives.
    #[inline(always)]
    pub fn submit(&mut self) {
        if self.pushed == self.told {
            return;
        }
        self.bus.to_device();
        self.bus.record(&self.record, Word::Receive, self.pushed & 0xffff);
        self.told = self.pushed;
    }
}

/// Writes the list of a receive element, and what ends it if it is shorter than the element.
#[inline(always)]
pub fn put_list<B: Bus>(cursor: &mut Cursor<'_>, bus: &B, max_sge: u32, sges: &[Sge]) -> Result<(), PostError> {
    if sges.len() > max_sge as usize {
        return Err(PostError::TooManySges);
    }
    let start = cursor.ds();
    let mut length = 0_u64;
    for sge in sges {
        // The device would take a length of 0 for 2^31.
        if sge.length != 0 {
            cursor.put(bus, Data::new(sge.addr, sge.length, sge.lkey.0));
            // At most `max_sge` entries of less than 2^32 bytes: no overflow.
            length = length.wrapping_add(u64::from(sge.length));
        }
        stay_a_loop();
    }
    if length > MAX_DATA_BYTES {
        return Err(PostError::MessageTooLong);
    }
    if cursor.ds() - start < max_sge {
        // Without it the device would go on with what the element's last use left.
        cursor.put(bus, Data::TERMINATOR);
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
