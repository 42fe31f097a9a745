//! Fields of firmware structures, which the field tables count in bits.

/// A field: its first bit, counted from the most significant bit of byte 0, and its bits. Numbers are big endian.
///
/// ```
/// use softcx::bits::field::Field;
/// const PD: Field = Field::new(0x28, 24);
/// let mut bytes = [0; 8];
/// PD.set(&mut bytes, 0x123456);
/// assert_eq!((bytes, PD.get(&bytes)), ([0, 0, 0, 0, 0, 0x12, 0x34, 0x56], 0x123456));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    bit: usize,
    width: usize,
}

impl Field {
    /// The field of `width` bits (1 to 64) from bit `bit` on.
    pub const fn new(bit: usize, width: usize) -> Self {
        assert!(width >= 1 && width <= 64);
        Self { bit, width }
    }

    /// First byte of a field that starts at a byte.
    pub const fn byte(self) -> usize {
        assert!(self.bit.is_multiple_of(8));
        self.bit / 8
    }

    /// The number in `bytes`; bits past the end read as zero.
    pub fn get(self, bytes: &[u8]) -> u64 {
        let (first, last) = self.bytes();
        let all = (first..=last).fold(0_u128, |n, at| n << 8 | u128::from(bytes.get(at).copied().unwrap_or(0)));
        (all >> self.shift() & self.mask()) as u64
    }

    /// [`get`](Self::get), of a field of at most 32 bits.
    pub fn get32(self, bytes: &[u8]) -> u32 {
        self.get(bytes) as u32
    }

    /// Whether the number in `bytes` is not zero.
    pub fn is_set(self, bytes: &[u8]) -> bool {
        self.get(bytes) != 0
    }

    /// Stores the low bits of `value`; bits past the end of `bytes` are left out.
    pub fn set(self, bytes: &mut [u8], value: u64) {
        let (first, last) = self.bytes();
        let (value, mask) = ((u128::from(value) & self.mask()) << self.shift(), self.mask() << self.shift());
        for at in first..=last {
            let shift = 8 * (last - at);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = *byte & !((mask >> shift) as u8) | (value >> shift) as u8;
            }
        }
    }

    fn bytes(self) -> (usize, usize) {
        (self.bit / 8, (self.bit + self.width - 1) / 8)
    }

    fn shift(self) -> usize {
        7 - (self.bit + self.width - 1) % 8
    }

    fn mask(self) -> u128 {
        (1 << self.width) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_any_place_and_width_keep_their_neighbours() {
        for width in 1..=64 {
            for bit in 0..70 {
                let field = Field::new(bit, width);
                let value = 0xa5c3_f00f_1234_9876_u64 >> (64 - width);
                let mut bytes = [0xff; 20];
                field.set(&mut bytes, 0);
                assert_eq!(bytes.iter().map(|b| b.count_zeros()).sum::<u32>() as usize, width);
                field.set(&mut bytes, value);
                assert_eq!(field.get(&bytes), value, "{width} bits at {bit}");
                let mut clear = [0; 20];
                field.set(&mut clear, u64::MAX);
                assert_eq!(clear.iter().map(|b| b.count_ones()).sum::<u32>() as usize, width);
            }
        }
        assert_eq!(Field::new(8, 16).get(&[1, 2]), 0x200, "past the end is zero");
    }
}
