//! What the least code would be: the same stores as a work request makes, with nothing around them.
//!
//! # Safety argument
//!
//! The functions have names that begin with `floor_`, which no library uses. They write into a ring and to places of the
//! `Floor` that they are given: an index is masked by the length of an array, so no access leaves it.
#![allow(unsafe_code)]

use ironverbs::RemoteAddr;
use std::sync::atomic::{AtomicU32, Ordering};

const BLOCKS: usize = 256;

/// A send ring, its doorbell record and its register, in ordinary memory.
pub struct Floor {
    ring: Box<[[u64; 8]; BLOCKS]>,
    block: u32,
    qpn: u32,
    record: AtomicU32,
    register: u64,
}

impl Floor {
    pub fn new() -> Self {
        Self { ring: Box::new([[0; 8]; BLOCKS]), block: 0, qpn: 0x123, record: AtomicU32::new(0), register: 0 }
    }
}

/// Inline RDMA WRITEs of eight bytes, as `hot` writes them: control segment, remote address, inline data; then the barrier,
/// the doorbell record, and the register. No look whether there is room, and no note of what was posted.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn floor_write_inline_list(floor: &mut Floor, words: &[[u8; 8]], remotes: &[RemoteAddr]) {
    let Floor { ring, block, qpn, record, register } = floor;
    let mut last = 0;
    for (word, remote) in words.iter().zip(remotes) {
        let element = &mut ring[*block as usize % BLOCKS];
        last = pair((*block & 0xffff) << 8 | 0x08, *qpn << 8 | 3);
        let element = std::ptr::from_mut(element).cast::<u8>();
        // SAFETY: the block has 64 bytes; of these stores only the last one need not be aligned. They are made as they stand
        // here: nothing is combined, since those of eight bytes are the largest that take no vector register.
        unsafe {
            element.cast::<u64>().write_volatile(last);
            element.add(8).cast::<u64>().write_volatile(pair(8, 0));
            element.add(16).cast::<u64>().write_volatile(remote.addr.to_be());
            element.add(24).cast::<u64>().write_volatile(pair(remote.rkey.0, 0));
            element.add(32).cast::<u32>().write_volatile(0x8000_0008_u32.to_be());
            element.add(36).cast::<[u8; 8]>().write(*word);
        }
        *block = block.wrapping_add(1);
    }
    barriers::to_device();
    record.store((*block & 0xffff).to_be(), Ordering::Release);
    barriers::write_combining();
    // SAFETY: a place of the `Floor`.
    unsafe { std::ptr::from_mut(register).write_volatile(last) };
    barriers::write_combining();
}

/// Two words of four bytes, big endian, the first one first.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    // As the counted machines are little endian, the first is the lower half.
    u64::from(first.to_be()) | u64::from(second.to_be()) << 32
}

mod barriers {
    use std::sync::atomic::{Ordering, compiler_fence};

    #[inline(always)]
    pub fn to_device() {
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    pub fn write_combining() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a barrier.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
    }
}
