//! Memory regions over dma-bufs: memory of another device, as a GPU's.

use super::access::AccessFlags;
use super::mr::CloseError;
use super::pd::{Pd, PdInner};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wr::{RemoteAddr, Sge};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A memory region over part of a dma-buf. The kernel keeps the buffer as long as it is registered, also if its file is
/// closed.
///
/// This program may have the buffer mapped or not; the region neither knows nor reads it. Made by
/// [`Pd::reg_dmabuf_mr`].
#[doc(alias = "ibv_mr")]
pub struct DmabufMr {
    handle: Handle,
    iova: u64,
    len_bytes: u64,
    lkey: Lkey,
    rkey: Rkey,
    _pd: Arc<PdInner>,
}

impl Pd {
    /// Registers `len_bytes` of the dma-buf behind `fd`, from byte `offset` on. Work requests, one's own and peers', name
    /// the first byte by the address `iova`, which must lie as far into its page as `offset` does.
    ///
    /// Needs Linux 5.12, and a driver that can: Soft-RoCE cannot up to Linux 6.12, which is
    /// [`Error::Unsupported`] by the driver.
    ///
    /// ```no_run
    /// # fn f(pd: &ironverbs::Pd, gpu: std::os::fd::BorrowedFd<'_>) -> Result<(), ironverbs::Error> {
    /// use ironverbs::AccessFlags;
    /// let mr = pd.reg_dmabuf_mr(gpu, 0, 1 << 20, 0x1000_0000, AccessFlags::LOCAL_WRITE)?;
    /// let entry = mr.sge(0, 4096)?;
    /// # let _ = entry;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len_bytes: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<DmabufMr, Error> {
        let pd = self.inner().clone();
        access.check_offered(Verb::RegDmabufMr, &pd.context)?;
        let ucontext = &pd.context.ucontext;
        let (handle, lkey, rkey) = ucontext.reg_dmabuf_mr(&pd.handle, fd, offset, len_bytes, iova, access.bits())?;
        Ok(DmabufMr { handle, iova, len_bytes, lkey, rkey, _pd: pd })
    }
}

impl DmabufMr {
    /// Address by which work requests name the first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// The remote key.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// A scatter/gather entry for `length` bytes from `offset` on.
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge, Error> {
        self.check(offset, length.into())?;
        Ok(Sge::from_raw(self.iova + offset, length, self.lkey))
    }

    /// What a peer needs to reach the byte at `offset` and those after it.
    pub fn remote(&self, offset: u64) -> Result<RemoteAddr, Error> {
        self.check(offset, 0)?;
        Ok(RemoteAddr { addr: self.iova + offset, rkey: self.rkey })
    }

    /// Deregisters it, or gives it back with the kernel's reason.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        CloseError::unless(self.handle.destroy(), self)
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.len_bytes => Ok(()),
            _ => {
                let limit = format!("the region has {} bytes", self.len_bytes);
                Err(Error::invalid(Verb::UseMr, "range", format_args!("{length} bytes at {offset}"), limit))
            }
        }
    }
}

impl fmt::Debug for DmabufMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmabufMr")
            .field("iova", &format_args!("{:#x}", self.iova))
            .field("len_bytes", &self.len_bytes)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish()
    }
}
