//! Memory that this process has mapped, as a device sees it: that of a program in the process, or that of a guest.
//!
//! # Safety argument
//!
//! Who makes a [`HostMemory`] promises that every address used is that of memory which is allocated meanwhile, and to which
//! there is no reference.
//!
//! For a program in the process: the device reaches only what the program named to it, rings and doorbell
//! records in create commands, regions in REG_MR; commands of any other origin are kept from such a device
//! ([`Fabric::with`](crate::Fabric::with)). Who issues those commands promises, as the caller of
//! [`Cdev`](ironverbs::sys::Cdev), that such memory stays allocated until it is taken back; and the device forgets an address
//! in the command that takes it back, under the lock that it works under. The driver makes no reference to memory that it has
//! given to the device, so none is aliased here; both sides use raw pointers.
//!
//! For a guest: see [`GuestMemory`](crate::pci::GuestMemory).
//!
//! Every access is atomic: relaxed, in units of 8 aligned bytes where there are any, else bytes. Two sides that touch the
//! same bytes at once, as remote access allows, therefore get old or new bytes, and no undefined behaviour from this side.
//! Order comes from the release store of a CQE's last four bytes and the acquire load of a doorbell record.
#![allow(unsafe_code)]

use crate::memory::{BusError, Memory};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// The memory of this process.
#[derive(Debug)]
pub(crate) struct HostMemory(());

impl HostMemory {
    /// # Safety
    ///
    /// Every address that is read or written through it is that of memory which is allocated meanwhile, and to which no
    /// reference exists that the access would violate.
    pub unsafe fn new() -> Self {
        Self(())
    }
}

fn pointer<T>(address: u64) -> Result<*mut T, BusError> {
    let pointer: *mut T = std::ptr::with_exposed_provenance_mut(address as usize);
    if pointer.is_null() || !pointer.is_aligned() { Err(BusError { address }) } else { Ok(pointer) }
}

fn byte(address: u64) -> Result<&'static AtomicU8, BusError> {
    // SAFETY: allocated by the contract of `new`; not null, and bytes are always aligned. The reference is used within the
    // one access only.
    Ok(unsafe { AtomicU8::from_ptr(pointer(address)?) })
}

fn word(address: u64) -> Result<&'static AtomicU32, BusError> {
    // SAFETY: as in `byte`; `pointer` refuses what is not aligned.
    Ok(unsafe { AtomicU32::from_ptr(pointer(address)?) })
}

fn double_word(address: u64) -> Result<&'static AtomicU64, BusError> {
    // SAFETY: as in `word`.
    Ok(unsafe { AtomicU64::from_ptr(pointer(address)?) })
}

/// Bytes up to the next multiple of 8.
fn unaligned(address: u64, len: usize) -> usize {
    len.min((address.wrapping_neg() & 7) as usize)
}

impl Memory for HostMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), BusError> {
        let (head, rest) = to.split_at_mut(unaligned(address, to.len()));
        let mut at = address;
        for b in head {
            *b = byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        let mut chunks = rest.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&double_word(at)?.load(Ordering::Relaxed).to_ne_bytes());
            at += 8;
        }
        for b in chunks.into_remainder() {
            *b = byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        let (head, rest) = from.split_at(unaligned(address, from.len()));
        let mut at = address;
        for b in head {
            byte(at)?.store(*b, Ordering::Relaxed);
            at += 1;
        }
        let chunks = rest.chunks_exact(8);
        let tail = chunks.remainder();
        for chunk in chunks {
            double_word(at)?.store(u64::from_ne_bytes(crate::bits::array(chunk, 0)), Ordering::Relaxed);
            at += 8;
        }
        for b in tail {
            byte(at)?.store(*b, Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    fn load_be32(&self, address: u64) -> Result<u32, BusError> {
        Ok(u32::from_be(word(address)?.load(Ordering::Acquire)))
    }

    fn store_be32(&self, address: u64, value: u32) -> Result<(), BusError> {
        word(address)?.store(value.to_be(), Ordering::Release);
        Ok(())
    }

    fn publish(&self, address: u64, value: u8) -> Result<(), BusError> {
        // Everything written before it, by whatever width, is seen by who sees the byte.
        fence(Ordering::Release);
        byte(address)?.store(value, Ordering::Release);
        Ok(())
    }

    fn fetch_update(&self, address: u64, update: &mut dyn FnMut(u64) -> u64) -> Result<u64, BusError> {
        let cell = double_word(address)?;
        let mut old = cell.load(Ordering::Relaxed);
        loop {
            match cell.compare_exchange_weak(old, update(old), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(old) => return Ok(old),
                Err(now) => old = now,
            }
        }
    }
}

/// Whether this process has `len` bytes mapped at `address`.
pub(crate) fn is_mapped(address: u64, len: u64) -> bool {
    const PAGE_BYTES: u64 = 4096;
    let start = address & !(PAGE_BYTES - 1);
    let Some(bytes) = address.checked_add(len).map(|end| end - start) else { return false };
    let mut resident = vec![0_u8; bytes.div_ceil(PAGE_BYTES) as usize];
    // SAFETY: the kernel writes a byte per page into the vector, which has one for each, and touches nothing else.
    let answer = unsafe { libc::mincore(start as *mut libc::c_void, bytes as usize, resident.as_mut_ptr()) };
    answer == 0
}

/// Whether this process can read `len` bytes at `address`, and write them if `write` is set.
pub(crate) fn is_accessible(address: u64, len: u64, write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return is_mapped(address, len) };
    let Some(end) = address.checked_add(len) else { return false };
    let mut at = address;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else { continue };
        if from > at {
            return false;
        }
        if at < to {
            if !rights.starts_with('r') || write && rights.as_bytes().get(1) != Some(&b'w') {
                return false;
            }
            at = to;
        }
        if at >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_round_trips() {
        let mut buffer = [0_u8; 64];
        let base = buffer.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the test touches `buffer` only, which has no reference meanwhile.
        let memory = unsafe { HostMemory::new() };
        for start in 0..9 {
            for len in 0..40 {
                let data: Vec<u8> = (0..len).map(|i| i as u8 ^ start as u8).collect();
                memory.write(base + start, &data).unwrap();
                let mut back = vec![0; len];
                memory.read(base + start, &mut back).unwrap();
                assert_eq!(back, data);
            }
        }
        assert_eq!(memory.load_be32(0), Err(BusError { address: 0 }));
        assert!(memory.fetch_update(base | 1, &mut |v| v).is_err());
    }

    #[test]
    fn mappings_of_the_process_are_known() {
        let heap = vec![0_u8; 100_000];
        let at = heap.as_ptr() as u64;
        assert!(is_accessible(at, 100_000, true) && is_mapped(at, 100_000));
        assert!(!is_accessible(8, 8, false) && !is_mapped(8, 8));
        let text = "constant";
        assert!(is_accessible(text.as_ptr() as u64, 8, false));
        assert!(!is_accessible(text.as_ptr() as u64, 8, true), "read-only data");
    }
}
