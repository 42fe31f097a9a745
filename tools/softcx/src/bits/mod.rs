//! The device's own table of what is where in the structures that it shares with a driver.
//!
//! Written from the field tables of the device, and for this crate only: nothing here is shared with any driver, so that a
//! wrong offset on either side shows as a failing test instead of agreeing with itself. Every field of a queue, a doorbell
//! or an event is **big endian**; offsets are in bytes from the start of the structure, bits are counted from the least
//! significant one (bit 0). Only the contexts of firmware commands ([`context`]) count bits as their tables do, in a
//! [`Field`](field::Field).

pub mod capability;
pub mod context;
pub mod cqe;
pub mod doorbell;
pub mod eqe;
pub mod field;
pub mod firmware;
pub mod wqe;

/// The big-endian 16-bit field at byte `at`.
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The big-endian 32-bit field at byte `at`.
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// The big-endian 64-bit field at byte `at`.
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// The `N` bytes at byte `at`; bytes past the end read as zero.
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    out
}

/// Stores `value` at byte `at`; what does not fit is left out.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}
