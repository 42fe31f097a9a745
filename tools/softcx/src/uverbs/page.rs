//! A page that device and driver share: a file in memory, mapped twice.
//!
//! # Safety argument
//!
//! The two mappings are at two addresses, so that neither side can hold a Rust reference to what the other writes. Each is
//! unmapped by its owner's drop and used nowhere else: the device's by [`Page`], which touches it by atomics only, the
//! driver's by the [`Mapping`] that owns its `Unmap`.
#![allow(unsafe_code)]

use crate::bits::doorbell::UAR_BYTES;
use crate::device::UarPage;
use ironverbs::Errno;
use ironverbs::sys::Mapping;
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a doorbell register holds that nobody rang: no doorbell looks like it.
const QUIET: u64 = u64::MAX;

/// The device's side of a shared page.
#[derive(Debug)]
pub(super) struct Page {
    file: File,
    ours: Unmap,
}

/// A mapped page, unmapped when dropped.
#[derive(Debug)]
struct Unmap(NonNull<u8>);

// SAFETY: the pointer is a number here; access to the page is atomic.
unsafe impl Send for Unmap {}
// SAFETY: as for `Send`.
unsafe impl Sync for Unmap {}

impl Drop for Unmap {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this value, and goes with it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), UAR_BYTES) };
    }
}

fn last_errno() -> Errno {
    Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

impl Page {
    /// A zero page.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: the name is a C string; the kernel checks the rest.
        let fd = unsafe { libc::memfd_create(c"softcx".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(UAR_BYTES as u64).map_err(|_| last_errno())?;
        let ours = map(&file)?;
        Ok(Self { file, ours })
    }

    /// A page of doorbell registers.
    pub fn registers() -> Result<Self, Errno> {
        let page = Self::new()?;
        (0..UAR_BYTES / 8).for_each(|i| page.cell(i * 8).store(QUIET, Ordering::Relaxed));
        Ok(page)
    }

    /// The driver's side. `keep` lives as long as the mapping.
    pub fn map(&self, keep: impl Any + Send + Sync) -> Result<Mapping, Errno> {
        let theirs = map(&self.file)?;
        let pointer = theirs.0;
        // SAFETY: the page is mapped, readable and writable, until `theirs`, which becomes the owner, is dropped. Nobody has
        // a reference to it.
        Ok(unsafe { Mapping::from_raw(pointer, UAR_BYTES, Box::new((theirs, keep))) })
    }

    /// The 8 bytes at `offset`, a multiple of 8 within the page.
    pub fn cell(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < UAR_BYTES);
        // SAFETY: within the page, aligned, mapped as long as `self`.
        unsafe { AtomicU64::from_ptr(self.ours.0.as_ptr().add(offset).cast()) }
    }
}

fn map(file: &File) -> Result<Unmap, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no other.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            UAR_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(last_errno());
    }
    NonNull::new(address.cast()).map(Unmap).ok_or(Errno::ENOMEM)
}

/// The device looks at the registers of a page, and makes them quiet again.
pub(super) struct Registers(pub Arc<Page>);

impl UarPage for Registers {
    fn take(&mut self, offset: usize) -> Option<u64> {
        let cell = self.0.cell(offset);
        // A look first: a swap on each turn would take the cache line from the driver. Acquire: what the driver wrote before
        // the doorbell is there.
        if cell.load(Ordering::Relaxed) == QUIET {
            return None;
        }
        let raw = cell.swap(QUIET, Ordering::Acquire);
        (raw != QUIET).then(|| u64::from_be(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_on_one_side_is_a_doorbell_on_the_other() {
        let page = Arc::new(Page::registers().unwrap());
        let theirs = page.map(()).unwrap();
        let mut registers = Registers(Arc::clone(&page));
        assert_eq!(registers.take(0x800), None);
        // SAFETY: the mapping is live, and the offset aligned and within it.
        unsafe { theirs.as_ptr().add(0x800).cast::<u64>().write_volatile(0x0102_0304_0506_0708_u64.to_be()) };
        assert_eq!(registers.take(0x800), Some(0x0102_0304_0506_0708));
        assert_eq!(registers.take(0x800), None, "taken");
        drop((registers, page));
        // SAFETY: as above; the mapping outlives the device's side.
        assert_eq!(unsafe { theirs.as_ptr().add(0x800).cast::<u64>().read_volatile() }, QUIET);
    }
}
