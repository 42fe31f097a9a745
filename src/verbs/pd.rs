//! Protection domains.

use super::access::AccessFlags;
use super::device::ContextInner;
use super::mr::Mr;
use super::mr_builder::MrBuilder;
use super::pages::Pages;
use crate::uverbs::error::Error;
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

impl PdInner {
    /// Tells it apart from all other domains that there are.
    #[inline(always)]
    pub(super) fn identity(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

impl Pd {
    pub(super) fn new(context: &Arc<ContextInner>) -> Result<Self, Error> {
        let handle = context.opened.alloc_pd()?;
        Ok(Self { inner: Arc::new(PdInner { handle, context: context.clone() }) })
    }

    /// Allocates `len_bytes` of zeroed memory, whole pages of its own, and registers it.
    ///
    /// ```no_run
    /// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
    /// let pd = context.alloc_pd()?;
    /// let mr = pd.alloc_mr(1 << 20, ironverbs::AccessFlags::LOCAL_WRITE)?;
    /// # let _ = mr;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_mr(&self, len_bytes: usize, access: AccessFlags) -> Result<Mr<Pages>, Error> {
        self.mr_builder(len_bytes).access(access).build()
    }

    /// As [`alloc_mr`](Self::alloc_mr), with more to choose.
    pub fn mr_builder(&self, len_bytes: usize) -> MrBuilder<'_> {
        MrBuilder::new(self, len_bytes)
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
