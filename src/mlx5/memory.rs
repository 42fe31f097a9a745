//! Memory that a queue lives in: the program's own pages, which the kernel pins and the device reads and writes.
//!
//! The pages hold one queue and nothing else, so they can stay as they are when the process forks: since Linux 5.12 the
//! kernel gives the child copies of pinned pages, and before that only the child's own access could have moved them.
//!
//! # Safety argument
//!
//! The mapping is made here, owned by the [`Mapping`] that is returned, and no reference to it is ever made.
#![allow(unsafe_code)]

use crate::mem::map::{Mapping, page_bytes};
use crate::uverbs::errno::Errno;
use memmap2::{MmapMut, MmapRaw};
use std::ptr::NonNull;

/// Zeroed pages, page-aligned, of at least `len_bytes` bytes.
pub fn pages(len_bytes: usize) -> Result<Mapping, Errno> {
    let len = len_bytes.max(1).next_multiple_of(page_bytes());
    let map = MmapMut::map_anon(len).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(libc::ENOMEM)))?;
    let map = MmapRaw::from(map);
    let ptr = NonNull::new(map.as_mut_ptr()).ok_or(Errno::ENOMEM)?;
    // SAFETY: `len` bytes are mapped, readable and writable, from `ptr` on until `map`, the owner, is dropped; moving it
    // does not move them. A `MmapRaw` makes no reference.
    Ok(unsafe { Mapping::from_raw(ptr, len, Box::new(map)) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_aligned_and_zero() {
        for len in [0, 1, 4096, 4097, 1 << 20] {
            let pages = pages(len).unwrap();
            assert!(pages.len_bytes() >= len.max(1) && pages.len_bytes().is_multiple_of(page_bytes()));
            assert_eq!(pages.as_ptr().addr() % page_bytes(), 0);
            for at in (0..pages.len_bytes()).step_by(61) {
                // SAFETY: in bounds, and nobody else knows the memory.
                assert_eq!(unsafe { pages.as_ptr().add(at).read_volatile() }, 0);
            }
        }
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert_eq!(pages(usize::MAX / 2).unwrap_err(), Errno::ENOMEM);
    }
}
