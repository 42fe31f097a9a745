//! Requests and responses about shared receive queues.

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Makes a shared receive queue.
#[doc(alias = "ib_uverbs_create_srq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrq {
    pub response: u64,
    pub user_handle: u64,
    pub pd_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout!(CreateSrq, 32, user_handle @ 8, pd_handle @ 16, srq_limit @ 28);

/// Answer to [`CreateSrq`].
#[doc(alias = "ib_uverbs_create_srq_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrqResp {
    pub srq_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    /// Only of kinds that other processes name by it.
    pub srqn: u32,
}
layout!(CreateSrqResp, 16, max_wr @ 4, srqn @ 12);

/// Changes a shared receive queue's size or limit. No [`WriteCommand`](super::WriteCommand): a driver's part may name memory.
#[doc(alias = "ib_uverbs_modify_srq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct ModifySrq {
    pub srq_handle: u32,
    /// Which of the following are meant: see [`srq_attr_mask`].
    pub attr_mask: u32,
    pub max_wr: u32,
    pub srq_limit: u32,
}
layout!(ModifySrq, 16, attr_mask @ 4, srq_limit @ 12);

/// Bits of [`ModifySrq::attr_mask`] (`enum ib_srq_attr_mask`, `include/rdma/ib_verbs.h`).
pub mod srq_attr_mask {
    pub const MAX_WR: u32 = 1 << 0;
    pub const LIMIT: u32 = 1 << 1;
}

/// Asks for a shared receive queue's attributes.
#[doc(alias = "ib_uverbs_query_srq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QuerySrq {
    pub response: u64,
    pub srq_handle: u32,
    pub reserved: u32,
}
layout!(QuerySrq, 16, srq_handle @ 8);

/// Answer to [`QuerySrq`].
#[doc(alias = "ib_uverbs_query_srq_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QuerySrqResp {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
    pub reserved: u32,
}
layout!(QuerySrqResp, 16, srq_limit @ 8);

/// Destroys a shared receive queue.
#[doc(alias = "ib_uverbs_destroy_srq")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroySrq {
    pub response: u64,
    pub srq_handle: u32,
    pub reserved: u32,
}
layout!(DestroySrq, 16, srq_handle @ 8);
