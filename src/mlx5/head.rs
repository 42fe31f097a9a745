//! How far a send queue is filled, as its next control segment has it.

use crate::uverbs::types::Qpn;

/// The first eight bytes of a control segment, in host order, before its element is known; all of that moved up by eight bits, so that
/// the index of the block, which has 16 bits, wraps by itself at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(u64);

/// One block.
const BLOCK: u64 = 1 << 48;

impl Head {
    /// Of the queue's first block.
    pub fn new(qpn: Qpn) -> Self {
        Self(u64::from(qpn.get()) << 16)
    }

    /// Of the first block again.
    pub fn reset(self) -> Self {
        Self(self.0 % BLOCK)
    }

    /// Number of the block: 16 bits.
    #[inline(always)]
    pub fn block(self) -> u32 {
        (self.0 / BLOCK) as u32
    }

    /// Number of the block, times `SCALE`, which is a power of two, and less than `SCALE` above that.
    #[inline(always)]
    pub fn about<const SCALE: u32>(self) -> u32 {
        const { assert!(SCALE.is_power_of_two() && SCALE <= 1 << 16) };
        (self.0 / (BLOCK / SCALE as u64)) as u32
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qpn(self) -> u32 {
        (self.0 >> 16) as u32
    }

    /// So many blocks on.
    #[inline(always)]
    pub fn past(self, blocks: u32) -> Self {
        Self(self.0.wrapping_add(u64::from(blocks).wrapping_mul(BLOCK)))
    }

    /// The bytes themselves, of an element of `ds` units: opcode modifier, index, opcode; queue pair, units.
    #[inline(always)]
    pub fn control(self, opcode: u8, ds: u32) -> [u8; 8] {
        (self.0 >> 8 | u64::from(opcode) << 32 | u64::from(ds)).to_be_bytes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_index_wraps_and_touches_nothing_else() {
        let head = Head::new(Qpn::new(0xff_ffff).unwrap());
        assert_eq!(head.control(0x0a, 3), [0, 0, 0, 0x0a, 0xff, 0xff, 0xff, 3]);
        let last = head.past(0xffff);
        assert_eq!((last.block(), last.qpn()), (0xffff, 0xff_ffff));
        assert_eq!(last.control(0x25, 63), [0, 0xff, 0xff, 0x25, 0xff, 0xff, 0xff, 63]);
        assert_eq!(last.past(1), head);
        assert_eq!(head.past(4).past(0xfffe).block(), 2);
        assert_eq!(head.past(0x1234).about::<64>() / 64, 0x1234);
    }
}
