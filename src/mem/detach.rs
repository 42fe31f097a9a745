//! Mappings that can be cut off from their file while they are in use.
//!
//! # Safety argument
//!
//! A mapping is cut off by mapping a private copy of its bytes over it, which the kernel does in one step: the addresses
//! are valid memory at any time, before and after. The copy is made by the kernel too. What happens to the bytes meanwhile is
//! no more than what the other side of a shared mapping may do. A store that falls between copy and mapping is lost; no
//! one would read it: the device works no longer, and a ring's owner never reads back what it wrote.
//!
//! An entry of the list is a mapping that exists: it is taken out under the list's lock before it is unmapped.
#![allow(unsafe_code)]

use super::map::page_bytes;
use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The mappings of one file that exist.
#[derive(Default)]
pub struct Mappings {
    all: Mutex<Table>,
}

/// A mapping knows its place, so that of thousands one is found at once when it goes.
#[derive(Default)]
struct Table {
    places: Vec<Option<Pages>>,
    /// Places that nobody has.
    free: Vec<usize>,
}

/// Address and length of a mapping.
#[derive(Clone, Copy)]
struct Pages {
    address: NonZero<usize>,
    len_bytes: usize,
}

/// A mapping in the list.
pub struct Watched {
    map: Option<MmapRaw>,
    place: usize,
    list: Arc<Mappings>,
}

impl Table {
    fn add(&mut self, pages: Pages) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(pages);
                place
            }
            None => {
                self.places.push(Some(pages));
                self.places.len() - 1
            }
        }
    }

    fn remove(&mut self, place: usize) {
        self.places[place] = None;
        self.free.push(place);
    }
}

impl Mappings {
    /// Keeps an eye on `map`, which is at `ptr`, as long as the returned owner lives.
    pub fn watch(list: &Arc<Self>, ptr: NonNull<u8>, map: MmapRaw) -> Watched {
        let place = list.lock().add(Pages { address: ptr.addr(), len_bytes: map.len() });
        Watched { map: Some(map), place, list: list.clone() }
    }

    /// Cuts every mapping off from its file. After an error some are cut off and some are not.
    pub fn detach(&self) -> Result<(), Errno> {
        for place in &mut self.lock().places {
            if let Some(pages) = *place {
                replace(pages)?;
                // A private copy is no mapping of the file any more.
                *place = None;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(map) = self.map.take() else { return };
        let mut all = self.list.lock();
        all.remove(self.place);
        // Unmapped under the lock: a list that is being worked on names nothing that another mapping may have taken.
        drop(map);
    }
}

fn replace(Pages { address, len_bytes }: Pages) -> Result<(), Errno> {
    // Whole pages.
    let (begin, end) = (address.get() & !(page_bytes() - 1), address.get() + len_bytes);
    let (address, len_bytes) = (begin, (end - begin).next_multiple_of(page_bytes()));
    let copy = memfd_create(c"detached", MFdFlags::MFD_CLOEXEC)?;
    copy_into(&copy, address, len_bytes)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let address: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the pages are a mapping of this list, so that nothing else is replaced; the module's argument says why
    // that one may be.
    let mapped = unsafe { libc::mmap(address, len_bytes, protection, flags, copy.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(()) }
}

/// Has the kernel write those bytes of this process into the file.
fn copy_into(file: &OwnedFd, address: usize, len_bytes: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < len_bytes {
        let from: *const libc::c_void = std::ptr::with_exposed_provenance(address + done);
        // SAFETY: the bytes are mapped, and only the kernel reads them.
        let written = unsafe { libc::write(file.as_raw_fd(), from, len_bytes - done) };
        match usize::try_from(written) {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => done += n,
            Err(_) if Errno::last() == Errno::EINTR => {}
            Err(_) => return Err(Errno::last()),
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use memmap2::MmapOptions;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_mapping_keeps_its_bytes_and_its_address_but_not_its_file() {
        let mut file = File::from(memfd_create(c"ring of a device", MFdFlags::MFD_CLOEXEC).unwrap());
        file.write_all(&[7; 9000]).unwrap();
        let list = Arc::new(Mappings::default());
        let [first, second] = [0, 4096].map(|offset| {
            let map = MmapOptions::new().offset(offset).len(4000).map_raw(&file).unwrap();
            let ptr = NonNull::new(map.as_mut_ptr()).unwrap();
            (ptr, Mappings::watch(&list, ptr, map))
        });
        drop(first.1);
        list.detach().unwrap();
        list.detach().unwrap();
        // SAFETY: mapped until the owner is dropped.
        unsafe {
            assert_eq!(second.0.add(3999).read_volatile(), 7);
            second.0.write_volatile(8);
            assert_eq!(second.0.read_volatile(), 8);
        }
        let mut bytes = vec![];
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 9000], "the file has a byte that was written after the detachment");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("/memfd:ring of a device"));
        assert!(maps.contains(&format!("{:x}-", second.0.addr())));
        drop(second.1);
    }
}
