//! Short copies into shared memory that never become a call of `memcpy`.
//!
//! # Safety argument
//!
//! All writes are inside `dst .. dst + src.len()`, which the caller promises to own; reads are inside the slice.
#![allow(unsafe_code)]

use std::sync::atomic::{Ordering, compiler_fence};

/// Copies `src` to `dst`, both of any alignment, in chunks of at most 16 bytes.
///
/// For a few hundred bytes at most: beyond that, `memcpy` is faster.
///
/// # Safety
///
/// `dst` is valid for writes of `src.len()` bytes, by ordinary access, and does not overlap `src`.
#[inline(always)]
pub unsafe fn copy_short(dst: *mut u8, src: &[u8]) {
    let n = src.len();
    let from = src.as_ptr();
    // SAFETY: each chunk of N bytes at `at` has `at + N <= n` by the condition it stands under, so it lies inside both
    // `src` and the `n` bytes the caller owns at `dst`. The caller keeps the two from overlapping.
    unsafe {
        if n >= 16 {
            let last = n - 16;
            let mut at = 0;
            while at < last {
                chunk::<16>(dst, from, at);
                at += 16;
                stay_a_loop();
            }
            // The last 16 bytes, which may overlap the chunk before.
            chunk::<16>(dst, from, last);
        } else if n >= 8 {
            chunk::<8>(dst, from, 0);
            chunk::<8>(dst, from, n - 8);
        } else if n >= 4 {
            chunk::<4>(dst, from, 0);
            chunk::<4>(dst, from, n - 4);
        } else if n > 0 {
            // One to three bytes: first, middle and last cover all of them.
            chunk::<1>(dst, from, 0);
            chunk::<1>(dst, from, n / 2);
            chunk::<1>(dst, from, n - 1);
        }
    }
}

/// Put in the body of a copying loop: keeps the compiler from replacing the loop by a call of `memcpy`. Emits nothing.
#[inline(always)]
pub fn stay_a_loop() {
    compiler_fence(Ordering::AcqRel);
}

/// Copies `N` bytes at offset `at`. With constant `N` this is one load and one store.
///
/// # Safety
///
/// `at .. at + N` is inside what `dst` may write and `src` may read, and the two do not overlap.
#[inline(always)]
unsafe fn chunk<const N: usize>(dst: *mut u8, src: *const u8, at: usize) {
    // SAFETY: passed on to the caller, word for word. A byte array needs no alignment.
    unsafe { dst.add(at).cast::<[u8; N]>().write(src.add(at).cast::<[u8; N]>().read()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_at_every_alignment_and_nothing_more() {
        let source: Vec<u8> = (0..600u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in 0..=520 {
            for offset in 0..16 {
                let mut target = vec![0xff_u8; 16 + 520 + 16];
                let src = &source[offset..offset + len];
                // SAFETY: `offset + len` is at most 15 + 520, inside `target`; the two are separate allocations.
                unsafe { copy_short(target.as_mut_ptr().add(offset), src) };
                assert!(target[..offset].iter().all(|&b| b == 0xff), "wrote before the start: length {len}");
                assert_eq!(&target[offset..offset + len], src, "length {len}, offset {offset}");
                assert!(target[offset + len..].iter().all(|&b| b == 0xff), "wrote past the end: length {len}");
            }
        }
    }
}
