//! Tables of what goes by a number that this library has counted up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// By a number. Who counts the numbers up himself need not fear that they were chosen to collide.
pub type Numbered<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// None yet.
pub const fn numbered<T>() -> Numbered<T> {
    HashMap::with_hasher(BuildHasherDefault::new())
}

/// Spreads numbers that follow each other over all bits: the table looks at some of the highest and some of the lowest.
#[derive(Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        /// 2^64 by the golden ratio, which is odd.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = number.wrapping_mul(STEP);
    }

    /// For keys that are no numbers: slow, and right.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_differ_at_both_ends() {
        let hash = |number: u64| {
            let mut hasher = Spread::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        let places: std::collections::HashSet<_> = (1..=128).map(|n| hash(n) & 127).collect();
        let tags: std::collections::HashSet<_> = (1..=128).map(|n| hash(n) >> 57).collect();
        assert_eq!(places.len(), 128);
        assert!(tags.len() > 100, "{}", tags.len());
    }
}
