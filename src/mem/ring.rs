//! Index arithmetic of rings whose indices are kept masked.
//!
//! A ring has a power of two of slots. An index names a slot, counts up, and wraps to 0; the stored index is always
//! below the slot count. Equal indices mean empty, so one slot always stays free, and a ring of `n` slots holds at most
//! `n - 1` entries.

/// The geometry of a ring: its index mask, slots minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMask(u32);

impl RingMask {
    /// Of a ring that holds nothing.
    pub const ONE_SLOT: Self = Self(0);

    /// From an index mask. `None` if it is not one below a power of two, or stands for more than 2^31 slots.
    pub const fn new(index_mask: u32) -> Option<Self> {
        if index_mask > u32::MAX >> 1 || !(index_mask + 1).is_power_of_two() {
            return None;
        }
        Some(Self(index_mask))
    }

    /// Number of slots, from 1 to 2^31.
    pub const fn slots(self) -> u32 {
        self.0 + 1
    }

    /// Most entries that the ring holds at once: one fewer than it has slots.
    #[inline(always)]
    pub const fn capacity(self) -> u32 {
        self.0
    }

    /// The slot that any number stands for; the identity for indices that are masked already.
    #[inline(always)]
    pub const fn wrap(self, index: u32) -> u32 {
        index & self.0
    }

    /// The index after `index`.
    #[inline(always)]
    pub const fn after(self, index: u32) -> u32 {
        self.wrap(index.wrapping_add(1))
    }

    /// Entries between the consumer's and the producer's index.
    #[inline(always)]
    pub const fn used(self, producer: u32, consumer: u32) -> u32 {
        self.wrap(producer.wrapping_sub(consumer))
    }

    /// Entries that can still be added.
    #[inline(always)]
    pub const fn free(self, producer: u32, consumer: u32) -> u32 {
        self.capacity() - self.used(producer, consumer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn masks_are_one_below_a_power_of_two() {
        for log2 in 0..=31 {
            let mask = ((1_u64 << log2) - 1) as u32;
            assert_eq!(RingMask::new(mask).map(|m| m.slots()), Some(1 << log2));
        }
        for bad in [2, 4, 5, 6, 8, 14, 0x8000_0000, 0xffff_fffe, u32::MAX] {
            assert_eq!(RingMask::new(bad), None, "{bad:#x}");
        }
    }

    #[test]
    fn a_ring_of_one_slot_holds_nothing() {
        let ring = RingMask::new(0).unwrap();
        assert_eq!((ring.capacity(), ring.after(0), ring.used(0, 0), ring.free(0, 0)), (0, 0, 0, 0));
    }

    proptest! {
        /// Against plain 64-bit counters that never wrap, from any start.
        #[test]
        fn agrees_with_unbounded_counters(log2 in 0_u32..=31, start in any::<u64>(), used in any::<u32>()) {
            let ring = RingMask::new(((1_u64 << log2) - 1) as u32).unwrap();
            let start = start >> 1;
            let used = used & ring.capacity();
            let slot = |count: u64| (count % u64::from(ring.slots())) as u32;
            let (consumer, producer) = (slot(start), slot(start + u64::from(used)));

            prop_assert_eq!(ring.wrap(start as u32), consumer);
            prop_assert_eq!(ring.after(consumer), slot(start + 1));
            prop_assert_eq!(ring.used(producer, consumer), used);
            prop_assert_eq!(ring.free(producer, consumer), ring.slots() - 1 - used);
            prop_assert_eq!(ring.free(producer, consumer) == 0, ring.after(producer) == consumer);
        }
    }
}
