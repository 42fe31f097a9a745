//! A page that device and driver share: a file in memory, mapped twice.
//!
//! # Safety argument
//!
//! A page is part of one file in memory. The two mappings are at two addresses, so that neither side can hold a Rust reference to what the other writes. Each is
//! unmapped by its owner's drop and used nowhere else: the device's by [`Page`], which touches it by atomics only, the
//! driver's by the [`Mapping`] that owns its `Unmap`.
#![allow(unsafe_code)]

use crate::bits::doorbell::{SEND_STRIDE, UAR_BYTES};
use crate::registers::UarPage;
use ironverbs::Errno;
use ironverbs::sys::Mapping;
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a doorbell register holds that nobody rang: no doorbell looks like it.
const QUIET: u64 = u64::MAX;

/// Where shared pages come from: one file in memory, so that a thousand of them are one descriptor.
#[derive(Debug, Default)]
pub(super) struct PagePool(Mutex<Pool>);

#[derive(Debug, Default)]
struct Pool {
    file: Option<Arc<File>>,
    /// Pages that the file has, and those of them that are free.
    count: u64,
    free: Vec<u64>,
}

/// The device's side of a shared page.
#[derive(Debug)]
pub(super) struct Page {
    pool: Arc<PagePool>,
    file: Arc<File>,
    index: u64,
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

fn memory_file() -> Result<File, Errno> {
    // SAFETY: the name is a C string; the kernel checks the rest.
    let fd = unsafe { libc::memfd_create(c"softcx".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

impl PagePool {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn take(&mut self) -> Result<(Arc<File>, u64), Errno> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(self.file.insert(Arc::new(memory_file()?))),
        };
        if let Some(index) = self.free.pop() {
            return Ok((file, index));
        }
        file.set_len((self.count + 1) * UAR_BYTES as u64).map_err(|_| last_errno())?;
        self.count += 1;
        Ok((file, self.count - 1))
    }
}

impl Drop for Page {
    /// Mappings of the driver keep the page: by now there is none.
    fn drop(&mut self) {
        self.pool.pool().free.push(self.index);
    }
}

impl Page {
    /// A zero page.
    pub fn new(pool: &Arc<PagePool>) -> Result<Self, Errno> {
        let (file, index) = pool.pool().take()?;
        let page = match map(&file, index) {
            Ok(ours) => Self { pool: Arc::clone(pool), file, index, ours },
            Err(e) => {
                pool.pool().free.push(index);
                return Err(e);
            }
        };
        page.fill(0);
        Ok(page)
    }

    /// A page of doorbell registers.
    pub fn registers(pool: &Arc<PagePool>) -> Result<Self, Errno> {
        let page = Self::new(pool)?;
        page.fill(QUIET);
        Ok(page)
    }

    fn fill(&self, value: u64) {
        (0..UAR_BYTES / 8).for_each(|i| self.cell(i * 8).store(value, Ordering::Relaxed));
    }

    /// The driver's side. `keep` lives as long as the mapping.
    pub fn map(self: &Arc<Self>, keep: impl Any + Send + Sync) -> Result<Mapping, Errno> {
        let theirs = map(&self.file, self.index)?;
        let pointer = theirs.0;
        // SAFETY: the page is mapped, readable and writable, until `theirs`, which becomes the owner, is dropped. Nobody has
        // a reference to it.
        Ok(unsafe { Mapping::from_raw(pointer, UAR_BYTES, Box::new((theirs, Arc::clone(self), keep))) })
    }

    /// The 8 bytes at `offset`, a multiple of 8 within the page.
    pub fn cell(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < UAR_BYTES);
        // SAFETY: within the page, aligned, mapped as long as `self`.
        unsafe { AtomicU64::from_ptr(self.ours.0.as_ptr().add(offset).cast()) }
    }
}

fn map(file: &File, index: u64) -> Result<Unmap, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no other.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            UAR_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            (index as usize * UAR_BYTES) as libc::off_t,
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

    fn take_image(&mut self, offset: usize) -> Option<Vec<u8>> {
        let rest: Vec<u64> = (offset + 8..offset + SEND_STRIDE)
            .step_by(8)
            .map(|at| self.0.cell(at).swap(QUIET, Ordering::Acquire))
            .collect();
        // The driver writes the first 8 bytes of a copy first: if they are there again, the rest may be the next copy's.
        let is_next = self.0.cell(offset).load(Ordering::Acquire) != QUIET;
        // The second double word of a control segment is never all ones.
        (*rest.first()? != QUIET && !is_next).then(|| rest.iter().flat_map(|raw| raw.to_ne_bytes()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_on_one_side_is_a_doorbell_on_the_other() {
        let page = Arc::new(Page::registers(&Arc::default()).unwrap());
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
