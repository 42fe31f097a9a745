//! Requests and responses about memory beyond its first registration: changes to a region, and memory windows.

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Changes a memory region. No [`WriteCommand`](super::WriteCommand): it can hand other memory to the device.
#[doc(alias = "ib_uverbs_rereg_mr")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReregMr {
    pub response: u64,
    pub mr_handle: u32,
    /// See [`rereg`]: which of the other fields count.
    pub flags: u32,
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd_handle: u32,
    pub access_flags: u32,
}
layout!(ReregMr, 48, mr_handle @ 8, start @ 16, hca_va @ 32, pd_handle @ 40, access_flags @ 44);

/// Answer to [`ReregMr`]: the keys from now on.
#[doc(alias = "ib_uverbs_rereg_mr_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
// Aligned as in C, where the driver's part of the answer belongs to the structure.
#[repr(C, align(8))]
pub struct ReregMrResp {
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ReregMrResp, 8, rkey @ 4);

/// What a [`ReregMr`] changes (`enum ib_mr_rereg_flags`, `include/rdma/ib_verbs.h`).
pub mod rereg {
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub const PD: u32 = 1 << 1;
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub const ACCESS: u32 = 1 << 2;
}

/// Makes a memory window.
#[doc(alias = "ib_uverbs_alloc_mw")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocMw {
    pub response: u64,
    pub pd_handle: u32,
    /// `enum ib_uverbs_mw_type`: 1 or 2.
    pub mw_type: u8,
    pub reserved: [u8; 3],
}
layout!(AllocMw, 16, pd_handle @ 8, mw_type @ 12);

/// Answer to [`AllocMw`].
#[doc(alias = "ib_uverbs_alloc_mw_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
// Aligned as in C, where the driver's part of the answer belongs to the structure.
#[repr(C, align(8))]
pub struct AllocMwResp {
    pub mw_handle: u32,
    pub rkey: u32,
}
layout!(AllocMwResp, 8, rkey @ 4);

/// Destroys a memory window.
#[doc(alias = "ib_uverbs_dealloc_mw")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeallocMw {
    pub mw_handle: u32,
}
layout!(DeallocMw, 4);
