//! The table of interrupts (MSI-X): what to store where for each vector.

use super::config_space::VECTORS;

/// Bytes of an entry: address (64 bits), data (32 bits), control (32 bits; bit 0 masks), least significant byte first.
const ENTRY_BYTES: usize = 16;
/// Bytes of the table.
pub(super) const TABLE_BYTES: u64 = (VECTORS * ENTRY_BYTES) as u64;

/// A store that raises an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Bus address.
    pub address: u64,
    /// The 32 bits, in the host's byte order.
    pub data: u32,
}

#[derive(Debug)]
pub(super) struct Msix {
    table: [u8; VECTORS * ENTRY_BYTES],
    pending: u64,
}

impl Msix {
    pub fn new() -> Self {
        let mut table = [0; VECTORS * ENTRY_BYTES];
        for entry in table.chunks_mut(ENTRY_BYTES) {
            entry[12] = 1;
        }
        Self { table, pending: 0 }
    }

    pub fn read(&self, offset: usize, len: usize) -> u64 {
        super::little(self.table.get(offset..).unwrap_or_default(), len)
    }

    pub fn read_pending(&self, offset: usize, len: usize) -> u64 {
        super::little(self.pending.to_le_bytes().get(offset..).unwrap_or_default(), len)
    }

    pub fn write(&mut self, offset: usize, value: u64, len: usize) {
        for (to, byte) in self.table.iter_mut().skip(offset).zip(value.to_le_bytes()).take(len) {
            *to = byte;
        }
    }

    /// Wants vector `vector`.
    pub fn raise(&mut self, vector: usize) {
        if vector < VECTORS {
            self.pending |= 1 << vector;
        }
    }

    /// Takes out the interrupts that are wanted and not masked.
    pub fn take(&mut self) -> Vec<Interrupt> {
        let mut due = vec![];
        for (vector, entry) in self.table.chunks(ENTRY_BYTES).enumerate() {
            if self.pending >> vector & 1 == 1 && entry[12] & 1 == 0 {
                self.pending &= !(1 << vector);
                due.push(Interrupt { address: super::little(entry, 8), data: super::little(&entry[8..], 4) as u32 });
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_vector_waits_and_fires_once() {
        let mut msix = Msix::new();
        msix.write(16, 0xfee0_1000, 8);
        msix.write(24, 0x4041, 4);
        msix.raise(1);
        msix.raise(1);
        msix.raise(99);
        assert_eq!((msix.take(), msix.read_pending(0, 8)), (vec![], 2));
        msix.write(28, 0, 4);
        assert_eq!(msix.take(), [Interrupt { address: 0xfee0_1000, data: 0x4041 }]);
        assert_eq!((msix.take(), msix.read_pending(0, 8), msix.read(24, 4)), (vec![], 0, 0x4041));
    }
}
