//! The payload part of a work queue element: scatter/gather entries or inline bytes, and their sum.
//!
//! # Safety argument
//!
//! Each function is told where the payload goes and how much room there is, and checks before every store that it fits.
#![allow(unsafe_code)]

use super::abi::{DmaInfo, RxeSge};
use crate::mem::copy::{copy_short, stay_a_loop};
use crate::uverbs::wr::{PostError, Sge};

/// Longest message: 2^31 bytes (IB spec 9.4.1, `max_msg_sz`).
const MAX_MESSAGE_BYTES: u64 = 1 << 31;

impl DmaInfo {
    /// A payload of which nothing is done yet.
    #[inline(always)]
    pub const fn new(length: u32, num_sge: u32) -> Self {
        Self { length, resid: length, cur_sge: 0, num_sge, sge_offset: 0, reserved: 0 }
    }
}

/// Writes a scatter/gather list.
///
/// # Safety
///
/// `dst` is aligned for [`RxeSge`] and valid for ordinary writes of `max_sge` entries.
#[inline(always)]
pub unsafe fn write_sges(dst: *mut u8, max_sge: u32, sges: &[Sge]) -> Result<DmaInfo, PostError> {
    if sges.len() > max_sge as usize {
        return Err(PostError::TooManySges);
    }
    let mut length = 0_u64;
    for (i, sge) in sges.iter().enumerate() {
        let entry = RxeSge { addr: sge.addr, length: sge.length, lkey: sge.lkey.0 };
        // SAFETY: `i < sges.len() <= max_sge`, so the entry is inside what the caller lets us write, and aligned since
        // `dst` is.
        unsafe { dst.cast::<RxeSge>().add(i).write(entry) };
        // At most 2^32 entries of less than 2^32 bytes: no overflow.
        length = length.wrapping_add(u64::from(sge.length));
        stay_a_loop();
    }
    if length > MAX_MESSAGE_BYTES {
        return Err(PostError::MessageTooLong);
    }
    Ok(DmaInfo::new(length as u32, sges.len() as u32))
}

/// Writes inline data, one piece after the other.
///
/// # Safety
///
/// `dst` is valid for ordinary writes of `max_inline` bytes, none of which is in `pieces`.
#[inline(always)]
pub unsafe fn write_inline(dst: *mut u8, max_inline: u32, pieces: &[&[u8]]) -> Result<DmaInfo, PostError> {
    let mut used = 0_usize;
    for piece in pieces {
        // `used <= max_inline` always: no wrap.
        if piece.len() > (max_inline as usize).wrapping_sub(used) {
            return Err(PostError::InlineTooLong);
        }
        // SAFETY: `used + piece.len() <= max_inline` was just checked, so the bytes are the caller's to give, and the
        // caller keeps them apart from the piece.
        unsafe { copy_short(dst.add(used), piece) };
        used = used.wrapping_add(piece.len());
    }
    // At most `max_inline`, a `u32`.
    Ok(DmaInfo::new(used as u32, 0))
}
