//! The memory that a device reads and writes.

use std::fmt;

/// An address that the device could not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusError {
    /// The address.
    pub address: u64,
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {:#x} is not there", self.address)
    }
}

impl std::error::Error for BusError {}

/// Memory as a device sees it: by bus address. A process, a guest, or a vector of bytes.
///
/// Plain accesses may be torn between units of 8 aligned bytes; `load_be32`, `store_be32`, `publish` and `fetch_update` may
/// not. A load orders what is read after it, a store and `publish` what was written before.
pub trait Memory: Send + Sync {
    /// Reads `to.len()` bytes.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), BusError>;

    /// Writes `from`.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError>;

    /// Reads a big-endian word of a doorbell record, before everything read later.
    fn load_be32(&self, address: u64) -> Result<u32, BusError>;

    /// Writes a big-endian word, after everything written earlier.
    fn store_be32(&self, address: u64, value: u32) -> Result<(), BusError>;

    /// Writes one byte, after everything written earlier: the byte that gives a ring entry to software.
    fn publish(&self, address: u64, value: u8) -> Result<(), BusError>;

    /// Replaces the 8 bytes at an aligned address, as a number in the host's byte order, at once. Returns the old number.
    fn fetch_update(&self, address: u64, update: &mut dyn FnMut(u64) -> u64) -> Result<u64, BusError>;
}

/// A piece of memory that a ring or a region occupies: pages in bus order, or one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pages: Vec<u64>,
    log2_page: u32,
    offset: u64,
    len: u64,
}

impl Buffer {
    /// `len` bytes from `address` on.
    pub fn contiguous(address: u64, len: u64) -> Self {
        Self { pages: vec![address], log2_page: 63, offset: 0, len }
    }

    /// `len` bytes that start `offset` bytes into the first of `pages`, each of `1 << log2_page` bytes. The list must be
    /// long enough; bytes past it are not there.
    pub fn paged(pages: Vec<u64>, log2_page: u32, offset: u64, len: u64) -> Self {
        Self { pages, log2_page: log2_page.min(63), offset, len }
    }

    /// `len` bytes from byte `at` on.
    pub fn part(&self, at: u64, len: u64) -> Self {
        Self { offset: self.offset.saturating_add(at), len: len.min(self.len.saturating_sub(at)), ..self.clone() }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bus address of byte `at`, and how many bytes follow it in one run.
    pub fn locate(&self, at: u64) -> Result<(u64, u64), BusError> {
        let missing = BusError { address: at };
        if at >= self.len {
            return Err(missing);
        }
        let byte = self.offset.checked_add(at).ok_or(missing)?;
        let page = self.pages.get((byte >> self.log2_page) as usize).ok_or(missing)?;
        let within = byte & ((1 << self.log2_page) - 1);
        Ok((page.wrapping_add(within), ((1 << self.log2_page) - within).min(self.len - at)))
    }

    /// Calls `each` with the runs that bytes `at .. at + len` consist of: bus address, and range of `0..len`.
    pub fn runs(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), BusError>,
    ) -> Result<(), BusError> {
        let mut done = 0;
        while done < len {
            let (address, room) = self.locate(at.checked_add(done as u64).ok_or(BusError { address: at })?)?;
            let n = (len - done).min(usize::try_from(room).unwrap_or(usize::MAX));
            each(address, done..done + n)?;
            done += n;
        }
        Ok(())
    }

    /// Reads bytes `at ..` of the buffer.
    pub fn read(&self, memory: &dyn Memory, at: u64, to: &mut [u8]) -> Result<(), BusError> {
        let len = to.len();
        self.runs(at, len, |address, range| memory.read(address, &mut to[range]))
    }

    /// Writes bytes `at ..` of the buffer.
    pub fn write(&self, memory: &dyn Memory, at: u64, from: &[u8]) -> Result<(), BusError> {
        self.runs(at, from.len(), |address, range| memory.write(address, &from[range]))
    }
}

/// Memory of its own, for tests of a device alone: bytes from address `base` on.
///
/// ```
/// use softcx::{BusError, Memory, VecMemory};
/// let memory = VecMemory::new(0x1000, 16);
/// memory.store_be32(0x1008, 7)?;
/// assert_eq!(memory.load_be32(0x1008)?, 7);
/// assert_eq!(memory.load_be32(0x2000), Err(BusError { address: 0x2000 }));
/// # Ok::<(), BusError>(())
/// ```
#[derive(Debug)]
pub struct VecMemory {
    base: u64,
    bytes: std::sync::Mutex<Vec<u8>>,
}

impl VecMemory {
    /// `len` zero bytes from address `base` on.
    pub fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: std::sync::Mutex::new(vec![0; len]) }
    }

    fn with<T>(&self, address: u64, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> Result<T, BusError> {
        let missing = BusError { address };
        let start = usize::try_from(address.checked_sub(self.base).ok_or(missing)?).map_err(|_| missing)?;
        let mut bytes = self.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let end = start.checked_add(len).ok_or(missing)?;
        bytes.get_mut(start..end).map(f).ok_or(missing)
    }
}

impl Memory for VecMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), BusError> {
        self.with(address, to.len(), |bytes| to.copy_from_slice(bytes))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        self.with(address, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn load_be32(&self, address: u64) -> Result<u32, BusError> {
        self.with(address, 4, |bytes| crate::bits::be32(bytes, 0))
    }

    fn store_be32(&self, address: u64, value: u32) -> Result<(), BusError> {
        self.write(address, &value.to_be_bytes())
    }

    fn publish(&self, address: u64, value: u8) -> Result<(), BusError> {
        self.write(address, &[value])
    }

    fn fetch_update(&self, address: u64, update: &mut dyn FnMut(u64) -> u64) -> Result<u64, BusError> {
        self.with(address, 8, |bytes| {
            let old = u64::from_ne_bytes(crate::bits::array(bytes, 0));
            bytes.copy_from_slice(&update(old).to_ne_bytes());
            old
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_any_order_are_one_buffer() {
        let memory = VecMemory::new(0x1000, 0x4000);
        // Pages of 4 KiB, the first used from its byte 64 on.
        let buffer = Buffer::paged(vec![0x3000, 0x1000], 12, 64, 5000);
        let data: Vec<u8> = (0..5000).map(|i| (i % 251) as u8).collect();
        buffer.write(&memory, 0, &data).unwrap();
        let (mut head, mut tail, mut back) = ([0; 4032], [0; 968], vec![0; 5000]);
        memory.read(0x3040, &mut head).unwrap();
        memory.read(0x1000, &mut tail).unwrap();
        assert_eq!((&head[..], &tail[..]), data.split_at(4032));
        buffer.read(&memory, 0, &mut back).unwrap();
        assert_eq!(back, data);
        assert_eq!(buffer.locate(4999), Ok((0x1000 + 967, 1)));
        assert!(buffer.locate(5000).is_err());
        assert!(buffer.read(&memory, 4990, &mut [0; 20]).is_err());
        assert!(Buffer::paged(vec![0x3000], 12, 0, 5000).read(&memory, 0, &mut back).is_err(), "the list is too short");
    }
}
