//! The barriers of the rings, each named for its purpose.
//!
//! **Rings with index words** (rxe). A ring has two index words in shared memory. Whoever owns an index is the only one to
//! store it, and the store hands over everything the owner did before: entries it filled (producer), or entries it is done
//! with (consumer). The other side loads the index and only then touches those entries. The kernel's half of the pair is
//! `smp_store_release` and `smp_load_acquire` on the same words (`drivers/infiniband/sw/rxe/rxe_queue.h`).
//!
//! **Rings of a PCI device** (mlx5). The other side is no thread but a device that reads and writes memory over the bus, and a
//! register that is written with write-combining. The language's fences order threads only, so these barriers are the
//! processor's own instructions, as `udma_barrier.h` of rdma-core has them.
//!
//! # Safety argument
//!
//! The one kind of unsafe code here is an instruction that orders memory accesses and touches neither registers, stack nor
//! memory. That the compiler may not move memory accesses over it either follows from `nomem` not being promised.
#![allow(unsafe_code)]

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

macro_rules! barrier {
    ($(#[$doc:meta])* $name:ident: x86_64 $x86_64:literal, aarch64 $aarch64:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: nothing, or `sfence`: see the module.
            unsafe {
                std::arch::asm!($x86_64, options(nostack, preserves_flags))
            };
            #[cfg(target_arch = "aarch64")]
            // SAFETY: a barrier instruction: see the module.
            unsafe {
                std::arch::asm!($aarch64, options(nostack, preserves_flags))
            };
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    };
}

barrier! {
    /// What was read and written before is done before the device can see anything written after. Goes between the entries
    /// of a ring and the word in memory that tells of them.
    ///
    /// x86 keeps stores to ordinary memory in order, and never moves them before earlier loads: only the compiler is held.
    to_device_barrier: x86_64 "", aarch64 "dmb osh"
}

barrier! {
    /// What is read after is not read before what was read before. Goes between the word by which a device tells that an
    /// entry is there and the rest of the entry.
    from_device_barrier: x86_64 "", aarch64 "dmb oshld"
}

barrier! {
    /// Ordinary stores before it are done before a store to a write-combining register after it. Goes before a doorbell.
    wc_start: x86_64 "sfence", aarch64 "dsb st"
}

barrier! {
    /// Stores to write-combining memory are on their way to the device before any store after it. Goes after a doorbell, so
    /// that the next one, perhaps of another thread, cannot overtake it or be combined with it.
    wc_flush: x86_64 "sfence", aarch64 "dsb st"
}
