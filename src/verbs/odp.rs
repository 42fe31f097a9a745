//! On-demand paging: regions whose pages are brought in when they are used, and advice about them.
//!
//! # Safety argument
//!
//! A region of the whole address space gives the device every byte of the program, for as long as it lives; so making one
//! is unsafe, and its caller answers for what work requests then name.
#![allow(unsafe_code)]

use super::access::{AccessFlags, odp};
use super::pd::{Pd, PdInner};
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wr::Sge;
use std::fmt;
use std::sync::Arc;

/// What is about to happen to parts of regions (`enum ib_uverbs_advise_mr_advice`).
#[doc(alias = "ibv_advise_mr_advice")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// They will be read: bring their pages in.
    Prefetch = 0,
    /// They will be written: bring their pages in, writable.
    PrefetchWrite = 1,
    /// Tell the device of those of their pages that are in memory.
    PrefetchNoFault = 2,
}

/// A region of the whole address space, with on-demand paging. Made by [`Pd::reg_implicit_odp_mr`].
pub struct ImplicitMr {
    lkey: Lkey,
    rkey: Rkey,
    _handle: Handle,
    _pd: Arc<PdInner>,
}

impl Pd {
    /// Registers every address of this program, now and later, without pinning anything.
    ///
    /// Refused with [`Error::Unsupported`] before any system call, unless the device says that it can
    /// (`IBV_ODP_SUPPORT_IMPLICIT`): attempts on others have brought kernels down. Soft-RoCE cannot.
    ///
    /// # Safety
    ///
    /// What work requests name by its keys, one's own and peers', is the caller's to keep allocated and unaliased; a peer
    /// that has its remote key can reach everything that `access` allows.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_implicit_odp_mr(&self, access: AccessFlags) -> Result<ImplicitMr, Error> {
        let pd = self.inner().clone();
        if pd.context.attr.odp_caps.general & odp::IMPLICIT == 0 {
            let what = "a region of the whole address space, which needs IBV_ODP_SUPPORT_IMPLICIT in odp_caps,";
            return Err(Error::Unsupported { verb: Verb::RegMr, what: what.into(), by: Lacking::Device });
        }
        let access = access | AccessFlags::ON_DEMAND;
        access.check_offered(Verb::RegMr, &pd.context)?;
        // SAFETY: nothing is pinned, and the caller answers for what is named.
        let (handle, lkey, rkey) = unsafe { pd.context.ucontext.reg_mr(&pd.handle, 0, u64::MAX, 0, access.bits())? };
        Ok(ImplicitMr { lkey, rkey, _handle: handle, _pd: pd })
    }

    /// Tells the device what will soon happen to parts of regions of this domain. With `now`, waits until it is done.
    ///
    /// For regions with on-demand paging, and drivers that have it; without, [`Error::Unsupported`] says who lacks it.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr(&self, advice: Advice, now: bool, sges: &[Sge]) -> Result<(), Error> {
        self.inner().context.ucontext.advise_mr(&self.inner().handle, advice as u32, now, sges)
    }
}

impl ImplicitMr {
    /// The local key, for any address of this program.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// The remote key, for any address of this program.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }
}

impl fmt::Debug for ImplicitMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImplicitMr").field("lkey", &self.lkey).field("rkey", &self.rkey).finish()
    }
}
