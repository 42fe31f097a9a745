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

use super::access::AccessFlags;
use super::pages::Pages;
use super::pd::{Pd, PdInner};
use crate::uverbs::abi::verbs::access;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wr::{RemoteAddr, Sge};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

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
/// `as_bytes` returns the same range every time, also after `self` is moved. The range is readable and, unless
/// [`WRITABLE`](Self::WRITABLE) is `false`, writable, until `self` is dropped. While `self` is not borrowed and is not dropped,
/// no reference to it exists or can be made; to memory that is not writable, only shared ones.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Whether it can be written. A region of memory that cannot is registered for reading only.
    const WRITABLE: bool = true;

    /// The bytes: their address and their number.
    fn as_bytes(&mut self) -> NonNull<[u8]>;
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
/// way for it then fails with a protection error. As long as a memory window is bound to it, Soft-RoCE refuses to
/// deregister it, and the memory is leaked: drop or invalidate windows first.
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
    /// Freed in `Drop`, after the region was deregistered, and left with the region if that failed.
    memory: ManuallyDrop<M>,
}

/// The kernel's side of a region.
pub(super) struct Region {
    handle: Handle,
    addr: NonNull<u8>,
    len_bytes: usize,
    /// The address by which work requests name the first byte.
    iova: u64,
    access: AccessFlags,
    /// Whether the kernel pinned its pages to be written.
    pinned_writable: bool,
    lkey: Lkey,
    rkey: Rkey,
    pd: Arc<PdInner>,
}

// SAFETY: the pointer is an address; every access through it states its own exclusion.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives numbers, and reads by copy that need `&mut` on the owner to race with writes.
unsafe impl Sync for Region {}

impl Region {
    /// Registers a range, to be named by addresses from `iova` on; `None` for its own.
    ///
    /// # Safety
    ///
    /// The range is allocated, readable and writable, until [`deregister`](Self::deregister) succeeds.
    pub(super) unsafe fn new(
        pd: &Pd,
        range: NonNull<[u8]>,
        access: AccessFlags,
        iova: Option<u64>,
    ) -> Result<Self, Error> {
        let (addr, len_bytes) = (range.cast::<u8>(), range.len());
        let pd = pd.inner().clone();
        access.check_offered(Verb::RegMr, &pd.context)?;
        let start = addr.as_ptr() as u64;
        let iova = iova.unwrap_or(start);
        // SAFETY: the caller keeps the memory until the handle is destroyed.
        let (handle, lkey, rkey) =
            unsafe { pd.context.ucontext.reg_mr(&pd.handle, start, len_bytes as u64, iova, access.bits())? };
        let pinned_writable = access.bits() & access::WRITING != 0;
        Ok(Self { handle, addr, len_bytes, iova, access, pinned_writable, lkey, rkey, pd })
    }

    fn rereg(&mut self, pd: Option<&Pd>, access: Option<AccessFlags>) -> Result<(), Error> {
        let verb = Verb::ReregMr;
        let context = &self.pd.context;
        if let Some(pd) = pd
            && !Arc::ptr_eq(&pd.inner().context, context)
        {
            let limit = "it belongs to another context than the region";
            return Err(Error::invalid(verb, "protection domain", "foreign", limit));
        }
        if let Some(access) = access {
            access.check_offered(verb, context)?;
            if access.bits() & access::WRITING != 0 && !self.pinned_writable {
                // Some kernels do not look, and would let the device write pages that others read.
                let limit = "the region was registered for reading, and its pages were pinned so: register it anew";
                return Err(Error::invalid(verb, "access", access, limit));
            }
        }
        if pd.is_none() && access.is_none() {
            return Ok(());
        }
        let handle = pd.map(|pd| &pd.inner().handle);
        let (lkey, rkey) = context.ucontext.rereg_mr(&self.handle, handle, access.map(AccessFlags::bits))?;
        (self.lkey, self.rkey) = (lkey, rkey);
        self.access = access.unwrap_or(self.access);
        if let Some(pd) = pd {
            self.pd = pd.inner().clone();
        }
        Ok(())
    }

    pub(super) fn deregister(&mut self) -> Result<(), Error> {
        self.handle.destroy().map(drop)
    }

    /// Deregisters in a destructor. Returns whether the device is done with the memory.
    fn deregister_or_leak(&mut self) -> bool {
        self.handle.destroy_or_leak()
    }

    /// Leaves the memory with a region that was not deregistered.
    fn leave(&mut self, memory: impl Memory) {
        self.handle.leave(Box::new(memory));
    }

    pub(super) fn sge(&self, offset: usize, len_bytes: u32) -> Sge {
        Sge::from_raw(self.iova + offset as u64, len_bytes, self.lkey)
    }
}

impl<M: Memory> Mr<M> {
    /// Registers `memory`, all of it.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(pd: &Pd, memory: M, access: AccessFlags) -> Result<Self, Error> {
        Self::register_as(pd, memory, access, None)
    }

    /// As [`register`](Self::register), with the address by which work requests, one's own and peers', name the first byte.
    /// It lies as far into its page as the memory does into its own.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn register_at(pd: &Pd, memory: M, access: AccessFlags, iova: u64) -> Result<Self, Error> {
        Self::register_as(pd, memory, access, Some(iova))
    }

    fn register_as(pd: &Pd, memory: M, access: AccessFlags, iova: Option<u64>) -> Result<Self, Error> {
        if !M::WRITABLE && access.bits() & access::WRITING != 0 {
            let limit = "the memory is read-only: it can be registered for local and remote reads";
            return Err(Error::invalid(Verb::RegMr, "access", access, limit));
        }
        let mut memory = ManuallyDrop::new(memory);
        let range = memory.as_bytes();
        // SAFETY: `memory` keeps the range by the promise of `Memory`; it is dropped below if nothing was registered, and
        // otherwise only after `deregister` has succeeded.
        match unsafe { Region::new(pd, range, access, iova) } {
            Ok(region) => Ok(Self { region, memory }),
            Err(error) => {
                drop(ManuallyDrop::into_inner(memory));
                Err(error)
            }
        }
    }

    /// Changes the access, the protection domain, or both, without registering anew. `None` leaves it as it is.
    ///
    /// Keys may change: tell peers the new [`rkey`](Self::rkey). Work requests under way that the change forbids fail with
    /// a protection error. The memory stays the region's own throughout, whatever the outcome, until it is deregistered.
    ///
    /// | error | the region |
    /// | --- | --- |
    /// | [`Error::Invalid`], [`Error::Unsupported`] (`IBV_REREG_MR_ERR_INPUT`) | is as before |
    /// | any other (`IBV_REREG_MR_ERR_CMD`) | may have lost its keys: do not use it, drop it |
    ///
    /// A memory window that is bound to the region keeps the access of its binding: a peer goes on writing by it, also
    /// when the region no longer allows writing. Invalidate or drop windows first.
    ///
    /// A region that was registered for reading only cannot be changed to be written. Soft-RoCE can do the rest since Linux
    /// 6.4; before, the driver has no such verb. The memory itself is not changed in place: register another region.
    ///
    /// ```no_run
    /// # fn f(mr: &mut ironverbs::Mr) -> Result<(), ironverbs::Error> {
    /// // No peer may touch it from now on.
    /// mr.rereg(None, Some(ironverbs::AccessFlags::LOCAL_WRITE))
    /// # }
    /// ```
    #[doc(alias = "ibv_rereg_mr")]
    pub fn rereg(&mut self, pd: Option<&Pd>, access: Option<AccessFlags>) -> Result<(), Error> {
        self.region.rereg(pd, access)
    }

    /// Address of the first byte in this program.
    pub fn addr(&self) -> u64 {
        self.region.addr.as_ptr() as u64
    }

    /// Address by which work requests, one's own and peers', name the first byte. The same as [`addr`](Self::addr) unless
    /// another one was asked for.
    pub fn iova(&self) -> u64 {
        self.region.iova
    }

    /// What it may be used for.
    pub fn access(&self) -> AccessFlags {
        self.region.access
    }

    pub(super) fn pd(&self) -> &Arc<PdInner> {
        &self.region.pd
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
        let length = u32::try_from(len).map_err(|_| Error::invalid(Verb::UseMr, "entry length", len, limit))?;
        Ok(self.region.sge(start, length))
    }

    /// What a peer needs to reach the byte at `offset` and those after it.
    pub fn remote(&self, offset: usize) -> Result<RemoteAddr, Error> {
        if offset > self.region.len_bytes {
            let limit = format!("the region has bytes 0..{}", self.region.len_bytes);
            return Err(Error::invalid(Verb::UseMr, "offset", offset, limit));
        }
        Ok(RemoteAddr { addr: self.region.iova + offset as u64, rkey: self.region.rkey })
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
        if !M::WRITABLE {
            return Err(Error::invalid(
                Verb::UseMr,
                "memory",
                "read-only",
                "only memory that can be written takes bytes",
            ));
        }
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
    /// No device, on its own or a peer's behalf, reads or writes the region while the slice lives. The memory is writable
    /// ([`Memory::WRITABLE`]).
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

    pub(super) fn check(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize), Error> {
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
            return Err(Error::invalid(Verb::UseMr, "range", format_args!("{start}..{end}"), limit));
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
        let is_gone = self.region.deregister_or_leak();
        // SAFETY: taken here only, once, where nothing uses it any more.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if !is_gone {
            self.region.leave(memory);
        }
    }
}

impl<M: Memory> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &self.region.addr)
            .field("iova", &format_args!("{:#x}", self.region.iova))
            .field("access", &self.region.access)
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
    pub error: Error,
    /// The object, as usable as before.
    pub object: T,
}

impl<T> CloseError<T> {
    /// How closing ended: with `object` gone, if it was destroyed.
    pub(super) fn unless<D>(destroyed: Result<D, Error>, object: T) -> Result<(), Self> {
        match destroyed {
            Ok(_) => Ok(()),
            Err(error) => Err(Self { error, object }),
        }
    }
}

impl<T> fmt::Debug for CloseError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseError").field("error", &self.error).finish_non_exhaustive()
    }
}
