//! Whose each slot of a pool is: nobody's, a holder's, or the device's. Shared by all threads that use the pool.

use crate::mem::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The owner of each slot, by its index.
pub(super) struct Owners {
    /// Whether the device has it.
    posted: Box<[AtomicBool]>,
    free: FreeList,
}

impl Owners {
    /// All slots are free.
    pub(super) fn new(count: u32) -> Self {
        Self { posted: (0..count).map(|_| AtomicBool::new(false)).collect(), free: FreeList::full(count) }
    }

    pub(super) fn count(&self) -> u32 {
        self.posted.len() as u32
    }

    /// Free → the caller's, if there is one. What its last holder did with it happened before.
    #[inline(always)]
    pub(super) fn take(&self) -> Option<u32> {
        self.free.pop()
    }

    /// The caller's → free.
    #[inline(always)]
    pub(super) fn give_back(&self, index: u32) {
        self.free.push(index);
    }

    /// The caller's → the device's. To be called before the device sees it.
    #[inline(always)]
    pub(super) fn post(&self, index: u32) {
        if let Some(posted) = self.posted.get(index as usize) {
            posted.store(true, Ordering::Release);
        }
    }

    /// The device's → the caller's; `false` if the device does not have it.
    #[inline(always)]
    pub(super) fn reclaim(&self, index: u32) -> bool {
        self.posted.get(index as usize).is_some_and(|posted| posted.swap(false, Ordering::Acquire))
    }
}

/// Indexes that are free: a stack without a lock, after R. K. Treiber. The head carries a count that changes with every
/// operation, so that a head seen again is the same one.
struct FreeList {
    /// Low half: index of the first plus one, zero for none. High half: the count.
    head: AtomicU64,
    /// For each index, the next one plus one.
    next: Box<[AtomicU32]>,
}

impl FreeList {
    fn full(count: u32) -> Self {
        let next = (0..count).map(|i| AtomicU32::new(if i + 1 < count { i + 2 } else { 0 })).collect();
        Self { head: AtomicU64::new(1), next }
    }

    #[inline(always)]
    fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = self.next.get(index as usize)?.load(Ordering::Relaxed);
            let new = Self::bump(head, next);
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(seen) => head = seen,
            }
        }
    }

    #[inline(always)]
    fn push(&self, index: u32) {
        let Some(next) = self.next.get(index as usize) else { return };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            next.store(head as u32, Ordering::Relaxed);
            let new = Self::bump(head, index + 1);
            match self.head.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    #[inline(always)]
    fn bump(old: u64, first: u32) -> u64 {
        (old >> 32).wrapping_add(1) << 32 | u64::from(first)
    }
}

#[cfg(all(test, loom))]
mod loom_model;
