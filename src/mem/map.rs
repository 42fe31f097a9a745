//! A piece of memory shared with the kernel or a device.
//!
//! # Safety argument
//!
//! A [`Mapping`] hands out a raw pointer only, never a reference: the other side may write at any time. Whoever makes
//! one promises that the memory stays mapped until the owner it stores is dropped, and the owner is dropped last. Of a mapping
//! that was made by `mmap` the owner is that one, which is unmapped when it is dropped, and not before.
#![allow(unsafe_code)]

use super::detach::{Mappings, Watched};
use memmap2::MmapRaw;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

/// Bytes of a page of this host: 4 KiB on most, 16 or 64 KiB on some.
pub fn page_bytes() -> usize {
    use nix::unistd::{SysconfVar, sysconf};
    /// Asked for with every mapping, and always the same.
    static PAGE_BYTES: LazyLock<usize> = LazyLock::new(|| {
        // Every Linux tells.
        sysconf(SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |bytes| bytes as usize)
    });
    *PAGE_BYTES
}

/// Memory shared with the other side of a device interface, unmapped when dropped.
///
/// ```no_run
/// # fn f(cdev: &dyn ironverbs::sys::Cdev) -> Result<(), std::io::Error> {
/// let ring = cdev.map(0, 4096).map_err(std::io::Error::from)?;
/// println!("{} bytes", ring.len_bytes());
/// # Ok(()) }
/// ```
pub struct Mapping {
    ptr: NonNull<u8>,
    len_bytes: usize,
    /// Dropped with the `Mapping`, and looked at by nothing else.
    _owner: Owner,
}

/// What keeps the memory mapped.
enum Owner {
    Other {
        _owner: Box<dyn Any + Send + Sync>,
    },
    /// By far the most, and made for each queue of a connection: it is spared the box.
    File {
        _map: Watched,
    },
}

// SAFETY: the pointer is only a number here; all access goes through `unsafe` code that states its own ordering, and the
// owner is `Send`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`: `&Mapping` gives nothing but the pointer's value and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Wraps memory that someone else mapped.
    ///
    /// # Safety
    ///
    /// `ptr .. ptr + len_bytes` must be valid for reads and writes until `owner` is dropped, wherever `owner` is moved to
    /// in the meantime: at any time by volatile or atomic access, and by ordinary access to what the other side leaves
    /// alone by the protocol of the memory, as an unpublished slot of a ring. No Rust reference to the memory may exist meanwhile.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len_bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len_bytes, _owner: Owner::Other { _owner: owner } }
    }

    /// A mapping of a file, which stays mapped, though it may be cut off from the file by `list`.
    pub(crate) fn of_file(map: MmapRaw, list: &Arc<Mappings>) -> Option<Self> {
        let (ptr, len_bytes) = (NonNull::new(map.as_mut_ptr())?, map.len());
        Some(Self { ptr, len_bytes, _owner: Owner::File { _map: Mappings::watch(list, ptr, map) } })
    }

    /// The first byte. Valid as long as the `Mapping` lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping").field("ptr", &self.ptr).field("len_bytes", &self.len_bytes).finish()
    }
}
