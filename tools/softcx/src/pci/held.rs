//! The beginning of a BlueFlame copy. A copy comes in several stores, and the first of them may as well be a doorbell by itself: so it
//! is held until the rest is there, until something else is stored or read, or until nothing has followed for long enough.

use crate::bits::doorbell::SEND_STRIDE;
use crate::bits::wqe::{BB_BYTES, DS_BYTES, ctrl};
use std::time::Duration;

/// How long a store waits for the next, in real time. An emulated processor takes some tens of microseconds from one to the next, on a
/// busy machine more.
const LONGEST: Duration = Duration::from_millis(1);

/// Stores into a send register that may not be all of a copy.
#[derive(Debug)]
pub(super) struct Held {
    pub page: u32,
    pub offset: usize,
    pub bytes: Vec<u8>,
    /// Nothing that comes later is part of it.
    pub until: Duration,
}

impl Held {
    /// Begins with a store of that time, which goes by so much more slowly than real time.
    pub fn new(page: u32, offset: usize, bytes: &[u8], now: Duration, slowdown: u32) -> Self {
        Self { page, offset, bytes: bytes.to_vec(), until: now.saturating_add(LONGEST / slowdown) }
    }

    /// Takes a store if it follows those before.
    pub fn takes(&mut self, page: u32, offset: usize, bytes: &[u8], now: Duration, slowdown: u32) -> bool {
        let follows = (self.page, self.offset + self.bytes.len()) == (page, offset);
        if follows {
            self.bytes.extend_from_slice(bytes);
            self.until = now.saturating_add(LONGEST / slowdown);
        }
        follows
    }

    /// Whether all of the copy is there: the blocks of the WQE that the first 8 bytes are of.
    pub fn is_whole(&self) -> bool {
        let units = (crate::bits::be32(&self.bytes, ctrl::QPN_DS) & 0x3f) as usize;
        self.bytes.len() >= (units * DS_BYTES).next_multiple_of(BB_BYTES).min(SEND_STRIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_when_its_blocks_are_there() {
        let at = Duration::from_millis;
        // Five units of 16 bytes: two blocks.
        let mut held = Held::new(3, 0x800, &[0, 0, 0, 0, 0, 0, 1, 5], at(10), 2);
        assert_eq!(held.until, Duration::from_micros(10_500));
        assert!(!held.takes(3, 0x810, &[0; 8], at(11), 2) && !held.takes(4, 0x808, &[0; 8], at(11), 2));
        for n in 1..16 {
            assert!(!held.is_whole());
            assert!(held.takes(3, 0x800 + 8 * n, &[0; 8], at(11), 2));
        }
        assert!(held.is_whole());
        assert_eq!(held.until, Duration::from_micros(11_500));
    }
}
