//! The memory of a guest: files in memory that its emulator shares, mapped here.
//!
//! # Safety argument
//!
//! A region is mapped for this value, at an address of the kernel's choice, and unmapped when it is replaced or dropped, which
//! takes the lock that every access holds. Nobody else knows the addresses, and no reference to the memory is ever made:
//! accesses go through [`HostMemory`], by atomics. That the guest writes there meanwhile, in another process, is the point. A
//! file shorter than its region is refused when it is mapped; an emulator that shortens it later ends this process by SIGBUS,
//! which is a fault, but no undefined behaviour.
#![allow(unsafe_code)]

use crate::host_memory::HostMemory;
use crate::memory::{BusError, Memory};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

/// A piece of a guest's memory: bytes of a file.
#[derive(Debug)]
pub struct Region {
    /// Guest-physical address of its first byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The file.
    pub file: OwnedFd,
    /// Where in the file it begins: a multiple of the page size.
    pub offset: u64,
}

/// A guest's memory, by guest-physical address, as a device on its bus sees it.
///
/// ```
/// use softcx::Memory;
/// use softcx::pci::GuestMemory;
/// let memory = GuestMemory::default();
/// assert!(memory.load_be32(0x1000).is_err(), "the guest has none yet");
/// ```
#[derive(Debug)]
pub struct GuestMemory {
    regions: RwLock<Vec<Mapped>>,
    host: HostMemory,
}

#[derive(Debug)]
struct Mapped {
    address: u64,
    len: u64,
    at: NonNull<libc::c_void>,
}

// SAFETY: the pointer is a number here; access to the memory is atomic.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped for this value, and goes with it.
        unsafe { libc::munmap(self.at.as_ptr(), self.len as usize) };
    }
}

impl Default for GuestMemory {
    fn default() -> Self {
        // SAFETY: `locate` gives it addresses within live mappings only, which the lock keeps meanwhile; there are no
        // references to them.
        Self { regions: RwLock::default(), host: unsafe { HostMemory::new() } }
    }
}

impl GuestMemory {
    /// Lets the guest's memory be these regions, and nothing else.
    pub fn replace(&self, regions: Vec<Region>) -> io::Result<()> {
        let mapped = regions.into_iter().map(map).collect::<io::Result<Vec<_>>>()?;
        *self.regions.write().unwrap_or_else(PoisonError::into_inner) = mapped;
        Ok(())
    }

    /// Calls `access` with the address in this process of `len` bytes at `address`.
    fn at<T>(
        &self,
        address: u64,
        len: usize,
        access: impl FnOnce(&HostMemory, u64) -> Result<T, BusError>,
    ) -> Result<T, BusError> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let within =
            |r: &&Mapped| address.checked_sub(r.address).is_some_and(|skip| skip < r.len && len as u64 <= r.len - skip);
        let region = regions.iter().find(within).ok_or(BusError { address })?;
        let base = region.at.as_ptr().expose_provenance() as u64;
        access(&self.host, base + (address - region.address)).map_err(|_| BusError { address })
    }
}

fn map(region: Region) -> io::Result<Mapped> {
    let Region { address, len, file, offset } = region;
    let file = File::from(file);
    let too_short = || io::Error::new(io::ErrorKind::InvalidInput, "a region of guest memory is longer than its file");
    let end = offset.checked_add(len).ok_or_else(too_short)?;
    if len == 0 || file.metadata()?.len() < end {
        return Err(too_short());
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches no other.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let at = NonNull::new(at).ok_or_else(|| io::Error::other("memory was mapped at address zero"))?;
    Ok(Mapped { address, len, at })
}

impl Memory for GuestMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), BusError> {
        self.at(address, to.len(), |host, at| host.read(at, to))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        self.at(address, from.len(), |host, at| host.write(at, from))
    }

    fn load_be32(&self, address: u64) -> Result<u32, BusError> {
        self.at(address, 4, HostMemory::load_be32)
    }

    fn store_be32(&self, address: u64, value: u32) -> Result<(), BusError> {
        self.at(address, 4, |host, at| host.store_be32(at, value))
    }

    fn publish(&self, address: u64, value: u8) -> Result<(), BusError> {
        self.at(address, 1, |host, at| host.publish(at, value))
    }

    fn fetch_update(&self, address: u64, update: &mut dyn FnMut(u64) -> u64) -> Result<u64, BusError> {
        self.at(address, 8, |host, at| host.fetch_update(at, update))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    fn file(bytes: &[u8]) -> File {
        // SAFETY: the name is a C string; the kernel checks the rest.
        let fd = unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is new and nobody else's.
        let mut file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_is_written_by_guest_address_is_in_the_file() {
        let mut file = file(&[0; 0x3000]);
        let region = |address, len, offset| Region { address, len, file: file.try_clone().unwrap().into(), offset };
        let memory = GuestMemory::default();
        memory.replace(vec![region(0x10_0000, 0x1000, 0x2000), region(0, 0x2000, 0)]).unwrap();
        memory.write(0x10_0ffc, &[1, 2, 3, 4]).unwrap();
        memory.store_be32(0x1000, 0x0506_0708).unwrap();
        assert_eq!(memory.load_be32(0x10_0ffc), Ok(0x0102_0304));
        assert_eq!(memory.write(0x10_0ffd, &[0; 4]), Err(BusError { address: 0x10_0ffd }), "past the end");
        assert_eq!(memory.read(0x1ffe, &mut [0; 4]), Err(BusError { address: 0x1ffe }));
        assert!(memory.load_be32(0x1001).is_err(), "not aligned");
        let mut bytes = vec![];
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!((&bytes[0x2ffc..], &bytes[0x1000..0x1004]), (&[1, 2, 3, 4][..], &[5, 6, 7, 8][..]));

        memory.replace(vec![]).unwrap();
        assert!(memory.load_be32(0x1000).is_err(), "it is gone");
    }

    #[test]
    fn a_region_longer_than_its_file_is_refused() {
        let memory = GuestMemory::default();
        for (len, offset) in [(0x2000, 0), (0x1000, 0x1000), (u64::MAX, 0x1000), (0, 0)] {
            let region = Region { address: 0, len, file: file(&[0; 0x1000]).into(), offset };
            assert!(memory.replace(vec![region]).is_err());
        }
    }
}
