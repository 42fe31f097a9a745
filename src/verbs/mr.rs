//! Memory regions.
//!
//! # Safety argument
//!
//! The root invariant of the whole API: *an [`Mr`] owns its memory, and deregisters before it frees; if the kernel
//! refuses to deregister, the memory is leaked.* So no order of drops lets a device touch freed memory, even with work in
//! flight: a successful deregistration is the kernel's word that the device is done with the region.
//!
//! What is left is aliasing. A device may write registered memory at any time, so the safe functions here never make a
//! Rust reference to it: they copy in and out through raw pointers, bounds checked, writes with `&mut self` so that no
//! other thread reads at the same time. References are given by `unsafe` functions only.
#![allow(unsafe_code)]

use super::pd::{Pd, PdInner};
use crate::uverbs::abi::verbs::access;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wr::{RemoteAddr, Sge};
use memmap2::MmapMut;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a memory region may be used for (`enum ib_uverbs_access_flags`).
///
/// ```
/// use ironverbs::AccessFlags;
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
/// assert!(access.contains(AccessFlags::REMOTE_READ));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessFlags(u32);

impl AccessFlags {
    /// The device may read it, as the source of sends.
    pub const LOCAL_READ: Self = Self(0);
    /// The device may write it, as the target of receives and READs.
    pub const LOCAL_WRITE: Self = Self(access::LOCAL_WRITE);
    /// Peers may write it. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_WRITE: Self = Self(access::REMOTE_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(access::REMOTE_READ);
    /// Peers may run atomics on it. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_ATOMIC: Self = Self(access::REMOTE_ATOMIC);
    /// All of the above.
    pub const ALL: Self = Self(0xf);

    /// The raw bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// From raw bits, which the kernel checks.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for AccessFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(0, "LOCAL_WRITE"), (1, "REMOTE_WRITE"), (2, "REMOTE_READ"), (3, "REMOTE_ATOMIC")];
        let set: Vec<_> = names.iter().filter(|(bit, _)| self.0 >> bit & 1 == 1).map(|(_, name)| *name).collect();
        write!(f, "AccessFlags({}", if set.is_empty() { "LOCAL_READ".into() } else { set.join(" | ") })?;
        if self.0 >> 4 != 0 { write!(f, " | {:#x})", self.0 >> 4 << 4) } else { f.write_str(")") }
    }
}

/// Memory that can be registered: it stays where it is, and nothing else refers to it.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd) -> Result<(), ironverbs::Error> {
/// use ironverbs::{AccessFlags, Mr};
/// let mr = Mr::register(pd, vec![0_u8; 4096], AccessFlags::LOCAL_WRITE)?; // a vector is memory that can be registered
/// let bytes: Vec<u8> = mr.close().map_err(|refused| refused.error)?;
/// # drop(bytes);
/// # Ok(()) }
/// ```
///
/// # Safety
///
/// `as_bytes` returns the same range every time, also after `self` is moved. The range is readable and writable, and no
/// reference to it can exist or be made while `self` is not borrowed and is not dropped.
pub unsafe trait Memory: Send + Sync + 'static {
    /// The bytes: their address and their number.
    fn as_bytes(&mut self) -> NonNull<[u8]>;
}

/// Anonymous zeroed memory in whole pages.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd) -> Result<(), ironverbs::Error> {
/// use ironverbs::{AccessFlags, Mr, Pages};
/// let mr = Mr::register(pd, Pages::new(1 << 20)?, AccessFlags::LOCAL_WRITE)?; // the same as Pd::alloc_mr
/// # drop(mr);
/// # Ok(()) }
/// ```
pub struct Pages {
    map: MmapMut,
    len_bytes: usize,
}

impl Pages {
    /// Maps enough pages for `len_bytes`.
    pub fn new(len_bytes: usize) -> Result<Self, Error> {
        let refused =
            |e: std::io::Error| Error::kernel(Verb::RegMr, Errno::from_raw(e.raw_os_error().unwrap_or(libc::ENOMEM)));
        Ok(Self { map: MmapMut::map_anon(len_bytes).map_err(refused)?, len_bytes })
    }
}

// SAFETY: the mapping belongs to `self` alone, does not move with it, and is readable and writable; `MmapMut` keeps a raw
// pointer to it.
unsafe impl Memory for Pages {
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(
            NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            self.len_bytes,
        )
    }
}

// SAFETY: a vector owns its heap memory alone, and moving the vector neither moves it nor claims it anew, as moving a box
// would. The vector is kept in a `ManuallyDrop` that no code looks into while the region is registered, so that it is not
// grown and its length does not change.
unsafe impl Memory for Vec<u8> {
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        // `as_mut_ptr` makes no reference to the bytes that would end when the vector is used again.
        NonNull::slice_from_raw_parts(NonNull::new(self.as_mut_ptr()).unwrap_or(NonNull::dangling()), self.len())
    }
}

/// Memory region (MR): registered memory, and the keys by which work requests name it.
///
/// Owns its memory `M`. When it is dropped it is deregistered first; what a peer or one's own queue pair still had under
/// way for it then fails with a protection error.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd) -> Result<(), ironverbs::Error> {
/// use ironverbs::AccessFlags;
/// let mut mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
/// mr.write(0, b"for the peer to read")?;
/// let there = mr.remote(0)?; // what the peer needs to know
/// # let _ = there;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_mr")]
pub struct Mr<M: Memory = Pages> {
    region: Region,
    /// Freed in `Drop`, after the region was deregistered, and not at all if that failed.
    memory: ManuallyDrop<M>,
}

/// The kernel's side of a region.
pub(super) struct Region {
    handle: Handle,
    addr: NonNull<u8>,
    len_bytes: usize,
    lkey: Lkey,
    rkey: Rkey,
    _pd: Arc<PdInner>,
}

// SAFETY: the pointer is an address; every access through it states its own exclusion.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives numbers, and reads by copy that need `&mut` on the owner to race with writes.
unsafe impl Sync for Region {}

impl Region {
    /// Registers a range.
    ///
    /// # Safety
    ///
    /// The range is allocated, readable and writable, until [`deregister`](Self::deregister) succeeds.
    pub(super) unsafe fn new(pd: &Pd, range: NonNull<[u8]>, access: AccessFlags) -> Result<Self, Error> {
        let (addr, len_bytes) = (range.cast::<u8>(), range.len());
        let pd = pd.inner().clone();
        let start = addr.as_ptr() as u64;
        // SAFETY: the caller keeps the memory until the handle is destroyed.
        let (handle, lkey, rkey) =
            unsafe { pd.context.ucontext.reg_mr(&pd.handle, start, len_bytes as u64, start, access.bits())? };
        Ok(Self { handle, addr, len_bytes, lkey, rkey, _pd: pd })
    }

    pub(super) fn deregister(&mut self) -> Result<(), Error> {
        self.handle.destroy().map(drop)
    }

    /// Deregisters in a destructor. Returns whether the device is done with the memory.
    fn deregister_or_leak(&mut self) -> bool {
        self.handle.destroy_or_leak()
    }

    pub(super) fn sge(&self, offset: usize, len_bytes: u32) -> Sge {
        Sge::from_raw(self.addr.as_ptr() as u64 + offset as u64, len_bytes, self.lkey)
    }
}

impl<M: Memory> Mr<M> {
    /// Registers `memory`, all of it.
    pub fn register(pd: &Pd, memory: M, access: AccessFlags) -> Result<Self, Error> {
        let mut memory = ManuallyDrop::new(memory);
        let range = memory.as_bytes();
        // SAFETY: `memory` keeps the range by the promise of `Memory`; it is dropped below if nothing was registered, and
        // otherwise only after `deregister` has succeeded.
        match unsafe { Region::new(pd, range, access) } {
            Ok(region) => Ok(Self { region, memory }),
            Err(error) => {
                drop(ManuallyDrop::into_inner(memory));
                Err(error)
            }
        }
    }

    /// Address of the first byte, which peers use too.
    pub fn addr(&self) -> u64 {
        self.region.addr.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.region.len_bytes
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        self.region.lkey
    }

    /// The remote key.
    pub fn rkey(&self) -> Rkey {
        self.region.rkey
    }

    /// A scatter/gather entry for part of the region.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        let (start, len) = self.check(range)?;
        let limit = "one entry names less than 4 GiB; use several";
        let length = u32::try_from(len).map_err(|_| Error::invalid(Verb::RegMr, "entry length", len, limit))?;
        Ok(self.region.sge(start, length))
    }

    /// What a peer needs to reach the byte at `offset` and those after it.
    pub fn remote(&self, offset: usize) -> Result<RemoteAddr, Error> {
        self.check(offset..)?;
        Ok(RemoteAddr { addr: self.addr() + offset as u64, rkey: self.region.rkey })
    }

    /// Copies bytes out of the region. They are what memory holds while the copy runs; a device that writes at the same
    /// time gives some old and some new bytes.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset..offset.saturating_add(out.len()))?;
        // SAFETY: the range was checked to lie in the region, whose memory lives as long as `self`. `out` is an exclusive
        // reference, so it cannot be the region's memory. No thread writes it meanwhile: that takes `&mut self`.
        unsafe { copy_volatile(self.region.addr.as_ptr().add(offset), out.as_mut_ptr(), out.len()) }
        Ok(())
    }

    /// Copies bytes into the region.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset..offset.saturating_add(bytes.len()))?;
        // SAFETY: as in `read`, with `&mut self` for exclusion among threads.
        unsafe { copy_volatile(bytes.as_ptr(), self.region.addr.as_ptr().add(offset), bytes.len()) }
        Ok(())
    }

    /// The region as a slice.
    ///
    /// # Safety
    ///
    /// No device, on its own or a peer's behalf, writes the region while the slice lives.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory lives as long as `self` and is initialised; the caller excludes writers among devices, and
        // `&self` those among threads.
        unsafe { std::slice::from_raw_parts(self.region.addr.as_ptr(), self.region.len_bytes) }
    }

    /// The region as a mutable slice.
    ///
    /// # Safety
    ///
    /// No device, on its own or a peer's behalf, reads or writes the region while the slice lives.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, with `&mut self` for exclusion among threads.
        unsafe { std::slice::from_raw_parts_mut(self.region.addr.as_ptr(), self.region.len_bytes) }
    }

    /// Deregisters, and gives the memory back; or gives the region back with the kernel's reason.
    pub fn close(mut self) -> Result<M, CloseError<Self>> {
        if let Err(error) = self.region.deregister() {
            return Err(CloseError { error, object: self });
        }
        // `deregister` has succeeded; from here on `Drop` must not run, and everything is taken out exactly once.
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used again, and its destructor does not run.
        unsafe {
            std::ptr::drop_in_place(&mut this.region);
            Ok(ManuallyDrop::take(&mut this.memory))
        }
    }

    fn check(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize), Error> {
        let size = self.region.len_bytes;
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => size,
        };
        if start > end || end > size {
            let limit = format!("the region has bytes 0..{size}");
            return Err(Error::invalid(Verb::RegMr, "range", format_args!("{start}..{end}"), limit));
        }
        Ok((start, end - start))
    }
}

/// Copies by volatile access: word by word in the middle, byte by byte at the ends.
///
/// # Safety
///
/// `from` is valid for `n` bytes of reads and `to` for `n` bytes of writes, they do not overlap, and no other thread
/// writes the one or touches the other meanwhile.
unsafe fn copy_volatile(from: *const u8, to: *mut u8, n: usize) {
    let mut i = 0;
    while i < n {
        // SAFETY: `i < n`, and a word is taken only where eight bytes are left; unaligned words are read and written as
        // arrays of bytes, which have no alignment.
        unsafe {
            if n - i >= 8 {
                to.add(i).cast::<[u8; 8]>().write_volatile(from.add(i).cast::<[u8; 8]>().read_volatile());
                i += 8;
            } else {
                to.add(i).write_volatile(from.add(i).read_volatile());
                i += 1;
            }
        }
    }
}

impl<M: Memory> Drop for Mr<M> {
    fn drop(&mut self) {
        if self.region.deregister_or_leak() {
            // SAFETY: dropped here only, once; the device is done with it.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

impl<M: Memory> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &self.region.addr)
            .field("len_bytes", &self.region.len_bytes)
            .field("lkey", &self.region.lkey)
            .field("rkey", &self.region.rkey)
            .finish()
    }
}

/// The kernel refused to destroy an object, which is given back whole.
///
/// ```no_run
/// # fn f(qp: ironverbs::Qp) -> Result<(), ironverbs::Error> {
/// if let Err(refused) = qp.close() {
///     println!("{}", refused.error);
///     let still_there = refused.object;
/// #   drop(still_there);
/// }
/// # Ok(()) }
/// ```
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct CloseError<T> {
    /// The kernel's reason.
    #[source]
    pub error: Error,
    /// The object, as usable as before.
    pub object: T,
}

impl<T> fmt::Debug for CloseError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseError").field("error", &self.error).finish_non_exhaustive()
    }
}
