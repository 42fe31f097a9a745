//! Protection domains.

use super::device::ContextInner;
use super::mr::{AccessFlags, Mr, Pages};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use std::fmt;
use std::sync::Arc;

/// Protection domain (PD): what holds queue pairs and the memory they may use together.
///
/// Cheap to clone. Every object made in it keeps it allocated.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// use ironverbs::AccessFlags;
/// let pd = context.alloc_pd()?;
/// let mr = pd.alloc_mr(1 << 20, AccessFlags::LOCAL_WRITE)?;
/// # drop(mr);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

pub(super) struct PdInner {
    pub(super) handle: Handle,
    pub(super) context: Arc<ContextInner>,
}

impl Pd {
    pub(super) fn new(context: &Arc<ContextInner>) -> Result<Self, Error> {
        let handle = context.ucontext.alloc_pd(&mut [])?;
        Ok(Self { inner: Arc::new(PdInner { handle, context: context.clone() }) })
    }

    /// Allocates `len_bytes` of zeroed memory, whole pages of its own, and registers it.
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_mr(&self, len_bytes: usize, access: AccessFlags) -> Result<Mr<Pages>, Error> {
        if len_bytes == 0 {
            return Err(Error::invalid(Verb::RegMr, "length", 0, "a region has at least one byte"));
        }
        Mr::register(self, Pages::new(len_bytes)?, access)
    }

    pub(super) fn from_inner(inner: Arc<PdInner>) -> Self {
        Self { inner }
    }

    pub(super) fn inner(&self) -> &Arc<PdInner> {
        &self.inner
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("handle", &self.inner.handle.id()).finish()
    }
}
