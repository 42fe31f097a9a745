//! Memory of the device itself.

use super::device::{Context, ContextInner};
use super::mr::CloseError;
use super::provider::Provider;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use std::fmt;
use std::sync::Arc;

/// Device memory (DM): bytes on the device that work requests reach without the host's memory.
///
/// No device that this library drives today has any; asking tells who lacks it. Made by [`Context::alloc_dm`].
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    handle: Handle,
    len_bytes: u64,
    _context: Arc<ContextInner>,
}

impl<P: Provider> Context<P> {
    /// Allocates `len_bytes` of the device's own memory, aligned to 2^`log2_align` bytes. At most
    /// [`max_dm_size`](crate::DeviceAttr::max_dm_size) in all.
    ///
    /// ```no_run
    /// # fn f(context: &ironverbs::Context) {
    /// match context.alloc_dm(4096, 6) {
    ///     Ok(memory) => println!("{} bytes on the device", memory.len_bytes()),
    ///     Err(ironverbs::Error::Unsupported { by, .. }) => println!("{by} has none"),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, len_bytes: u64, log2_align: u32) -> Result<DeviceMemory, Error> {
        if len_bytes == 0 {
            return Err(Error::invalid(Verb::AllocDm, "length", 0, "at least 1 byte"));
        }
        let context = self.inner().clone();
        let handle = context.ucontext.alloc_dm(len_bytes, log2_align)?;
        Ok(DeviceMemory { handle, len_bytes, _context: context })
    }
}

impl DeviceMemory {
    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Frees it, or gives it back with the kernel's reason.
    #[doc(alias = "ibv_free_dm")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        CloseError::unless(self.handle.destroy(), self)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("len_bytes", &self.len_bytes).finish()
    }
}
