//! The barriers of the rings, each named for its purpose.
//!
//! A ring has two index words in shared memory. Whoever owns an index is the only one to store it, and the store hands
//! over everything the owner did before: entries it filled (producer), or entries it is done with (consumer). The other
//! side loads the index and only then touches those entries. The kernel's half of the pair is `smp_store_release` and
//! `smp_load_acquire` on the same words (`drivers/infiniband/sw/rxe/rxe_queue.h`).

use super::atomic::{AtomicU32, Ordering};

/// Hands over to the other side: all reads and writes of entries that come before are done before it can see `index`.
#[inline(always)]
pub fn to_device(word: &AtomicU32, index: u32) {
    word.store(index, Ordering::Release);
}

/// Takes over from the other side: no read or write of an entry that comes after happens before this load.
#[inline(always)]
pub fn from_device(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}
