//! Memory regions in memory of the library's own, with all there is to choose.

use super::access::AccessFlags;
use super::mr::Mr;
use super::pages::{PageKind, Pages};
use super::pd::Pd;
use crate::uverbs::error::{Error, Verb};

/// A memory region to be made. See [`Pd::mr_builder`].
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd) -> Result<(), ironverbs::Error> {
/// use ironverbs::{AccessFlags, PageKind};
/// // 3 MiB in two huge pages, which work requests name by addresses from 4 GiB on.
/// let mr = pd
///     .mr_builder(3 << 20)
///     .pages(PageKind::Huge2M)
///     .iova(0x1_0000_0000)
///     .access(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)
///     .build()?;
/// # let _ = mr;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
pub struct MrBuilder<'a> {
    pd: &'a Pd,
    len_bytes: usize,
    offset: usize,
    kind: PageKind,
    access: AccessFlags,
    iova: Option<u64>,
}

impl<'a> MrBuilder<'a> {
    pub(super) fn new(pd: &'a Pd, len_bytes: usize) -> Self {
        Self { pd, len_bytes, offset: 0, kind: PageKind::Ordinary, access: AccessFlags::LOCAL_WRITE, iova: None }
    }

    /// What it may be used for. Default [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE).
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// Which pages it is made of. Default: ordinary ones.
    pub fn pages(mut self, kind: PageKind) -> Self {
        self.kind = kind;
        self
    }

    /// Leaves that many bytes of the first page unregistered. Default 0.
    pub fn offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// The address by which work requests, one's own and peers', name the first byte. Default: its address in this
    /// program. It must lie as far into its page as the region starts into its own: as far as [`offset`](Self::offset).
    pub fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }

    /// Allocates and registers it.
    pub fn build(self) -> Result<Mr<Pages>, Error> {
        if self.len_bytes == 0 {
            return Err(Error::invalid(Verb::RegMr, "length", 0, "a region has at least one byte"));
        }
        let pages = Pages::with(self.len_bytes, self.kind, self.offset)?;
        match self.iova {
            Some(iova) => Mr::register_at(self.pd, pages, self.access, iova),
            None => Mr::register(self.pd, pages, self.access),
        }
    }
}
