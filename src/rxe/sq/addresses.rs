//! The addresses of datagrams that are in the queue.
//!
//! A work request names an address by the kernel's number, which the driver looks up when it sends the datagram: in Linux
//! 6.12 some time after the doorbell, by a worker of its own. So an address is not destroyed before its last datagram has left
//! the queue, whenever the program drops its address handle.

use std::any::Any;
use std::sync::Arc;

/// Whatever keeps an address alive.
pub type Address = Arc<dyn Any + Send + Sync>;

/// One address for each slot between where the kernel was last seen and where the queue is written.
#[derive(Default)]
pub struct Addresses {
    /// One place for each slot, or none on a queue without datagrams.
    kept: Box<[Option<Address>]>,
    /// Where the kernel was last seen.
    oldest: usize,
}

impl Addresses {
    /// For a queue of so many slots, in which the kernel has reached slot `at`.
    pub fn new(slots: usize, at: usize) -> Self {
        Self { kept: vec![None; slots].into(), oldest: at }
    }

    /// Whether the queue is one without datagrams.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps an address until the kernel has left its slot behind, for a slot that is written now.
    #[inline(always)]
    pub fn keep(&mut self, slot: usize, address: Address) {
        if let Some(place) = self.kept.get_mut(slot) {
            *place = Some(address);
        }
    }

    /// Lets go of all before slot `at`, which the kernel has reached.
    #[inline(always)]
    pub fn release_before(&mut self, at: usize) {
        while self.oldest != at {
            let Some(place) = self.kept.get_mut(self.oldest) else { return };
            *place = None;
            self.oldest = (self.oldest + 1) % self.kept.len();
        }
    }

    /// Lets go of all: the queue is empty, and goes on at slot `at`.
    pub fn clear(&mut self, at: usize) {
        self.kept.fill(None);
        self.oldest = at;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
