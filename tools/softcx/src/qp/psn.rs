//! Packet sequence numbers: 24 bits, compared on a circle.

/// `psn + n`.
pub fn add(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & 0xff_ffff
}

/// How far `a` is ahead of `b`; negative if it is behind.
pub fn ahead(a: u32, b: u32) -> i32 {
    // The sign of the 24-bit difference, moved to where `i32` has it.
    (a.wrapping_sub(b) << 8).cast_signed() >> 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(add(0xff_ffff, 2), 1);
        assert_eq!((ahead(1, 0xff_ffff), ahead(0xff_ffff, 1), ahead(5, 5)), (2, -2, 0));
    }
}
