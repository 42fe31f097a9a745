//! Requests and responses about extended reliable connections (XRC).

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Makes an XRC domain, or opens the one that a file stands for.
#[doc(alias = "ib_uverbs_open_xrcd")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenXrcd {
    pub response: u64,
    /// File descriptor; -1 for a domain of one's own.
    pub fd: i32,
    /// `O_CREAT` and `O_EXCL`, as of open(2).
    pub oflags: u32,
}
layout!(OpenXrcd, 16, fd @ 8, oflags @ 12);

/// Answer to [`OpenXrcd`].
#[doc(alias = "ib_uverbs_open_xrcd_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenXrcdResp {
    pub xrcd_handle: u32,
}
layout!(OpenXrcdResp, 4);

/// Gives an XRC domain up.
#[doc(alias = "ib_uverbs_close_xrcd")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CloseXrcd {
    pub xrcd_handle: u32,
}
layout!(CloseXrcd, 4);

/// Makes a shared receive queue of any kind. Answered as [`CreateSrq`](super::CreateSrq).
#[doc(alias = "ib_uverbs_create_xsrq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateXsrq {
    pub response: u64,
    pub user_handle: u64,
    /// `enum ib_uverbs_srq_type`.
    pub srq_type: u32,
    pub pd_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
    pub max_num_tags: u32,
    pub xrcd_handle: u32,
    pub cq_handle: u32,
}
layout!(CreateXsrq, 48, user_handle @ 8, srq_type @ 16, pd_handle @ 20, max_num_tags @ 36, xrcd_handle @ 40, cq_handle @ 44);

/// Opens the receiving end of XRC that somebody made in a domain. Answered as [`CreateQp`](super::CreateQp).
#[doc(alias = "ib_uverbs_open_qp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenQp {
    pub response: u64,
    pub user_handle: u64,
    /// The XRC domain.
    pub pd_handle: u32,
    pub qpn: u32,
    pub qp_type: u8,
    pub reserved: [u8; 7],
}
layout!(OpenQp, 32, user_handle @ 8, pd_handle @ 16, qpn @ 20, qp_type @ 24);
