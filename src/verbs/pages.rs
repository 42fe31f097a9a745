//! Memory of the library's own for regions: whole pages, ordinary or huge.
//!
//! # Safety argument
//!
//! A [`Pages`] owns its mapping, which does not move, and nothing else refers to it; the range it gives lies inside, which
//! is checked where it is made.
#![allow(unsafe_code)]

use super::fork::ForkPolicy;
use super::mr::Memory;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::explain;
use memmap2::{MmapMut, MmapOptions};
use std::ptr::NonNull;
use std::{fmt, fs};

/// Which pages memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageKind {
    /// The kernel's ordinary ones.
    #[default]
    Ordinary,
    /// Huge pages of 2 MiB (hugetlb). The host must have reserved enough of them, or making the memory fails with an error
    /// that says how to reserve more.
    Huge2M,
}

/// Size of [`PageKind::Huge2M`] as a power of two.
const HUGE_LOG2: u8 = 21;
const HUGE_BYTES: usize = 1 << HUGE_LOG2;

/// Anonymous zeroed memory in whole pages of its own.
///
/// Its length need not be a multiple of a page's: what is left of the last page belongs to it and is not used. See
/// [`ForkPolicy`] for what becomes of it when the process forks.
pub struct Pages {
    map: MmapMut,
    offset: usize,
    len_bytes: usize,
}

impl Pages {
    /// Maps enough pages for `len_bytes`.
    pub fn new(len_bytes: usize) -> Result<Self, Error> {
        Self::with(len_bytes, PageKind::Ordinary, 0)
    }

    /// Maps enough pages of a kind for `len_bytes` that begin `offset` bytes into the first one.
    pub fn with(len_bytes: usize, kind: PageKind, offset: usize) -> Result<Self, Error> {
        let too_long = || Error::invalid(Verb::RegMr, "length", len_bytes, "it does not fit the address space");
        let mapped = offset.checked_add(len_bytes).ok_or_else(too_long)?;
        let map = match kind {
            PageKind::Ordinary => MmapMut::map_anon(mapped),
            PageKind::Huge2M => {
                let mapped = mapped.checked_next_multiple_of(HUGE_BYTES).ok_or_else(too_long)?;
                MmapOptions::new().len(mapped).huge(Some(HUGE_LOG2)).map_anon()
            }
        };
        let refused = |error: std::io::Error| {
            let error = Error::kernel(Verb::RegMr, Errno::from_raw(error.raw_os_error().unwrap_or(libc::ENOMEM)));
            match kind {
                PageKind::Ordinary => explain::mapping(error, "memory", mapped),
                PageKind::Huge2M => error.with_hint(no_huge_pages(mapped)),
            }
        };
        let map = map.map_err(refused)?;
        ForkPolicy::get().ready(&map).map_err(refused)?;
        Ok(Self { map, offset, len_bytes })
    }
}

/// How many huge pages there are, and how there would be more.
fn no_huge_pages(mapped: usize) -> String {
    let count = |file: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}");
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    let need = mapped.div_ceil(HUGE_BYTES);
    match (count("nr_hugepages"), count("free_hugepages"), count("resv_hugepages")) {
        (Some(all), Some(free), reserved) => format!(
            "it takes {need} huge pages of 2 MiB; the host has {all}, of which {} are free: reserve more (sysctl \
             vm.nr_hugepages={}), or use ordinary pages",
            free.saturating_sub(reserved.unwrap_or(0)),
            all + need as u64
        ),
        _ => format!("it takes {need} huge pages of 2 MiB, which this kernel does not have: use ordinary pages"),
    }
}

// SAFETY: the mapping belongs to `self` alone, does not move with it, and is readable and writable; `MmapMut` keeps a raw
// pointer to it. Offset and length were mapped together, so that the range lies inside.
unsafe impl Memory for Pages {
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        let start = NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: `with` mapped `offset + len_bytes` bytes or more.
        let first = unsafe { start.add(self.offset) };
        NonNull::slice_from_raw_parts(first, self.len_bytes)
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("len_bytes", &self.len_bytes).field("offset", &self.offset).finish()
    }
}
