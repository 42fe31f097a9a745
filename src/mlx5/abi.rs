//! The driver's part of commands: `include/uapi/rdma/mlx5-abi.h`, `mlx5_user_ioctl_cmds.h` and `mlx5_user_ioctl_verbs.h`.
//!
//! Native byte order throughout. Reserved fields are spelled out and stay zero: the driver refuses a request in which one
//! is not. Every response is given at its full size, zeroed: the driver copies a fixed number of bytes, whatever room it
//! is told there is.

use crate::uverbs::abi::ioctl::Method;
use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the driver's interface that these structures are.
#[doc(alias = "MLX5_IB_UVERBS_ABI_VERSION")]
pub const ABI_VERSION: u32 = 1;

/// What a context is opened with.
#[doc(alias = "mlx5_ib_alloc_ucontext_req_v2")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocUcontextReq {
    /// Doorbell registers asked for at once, for [`lib_caps::DYN_UAR`] contexts none are given.
    pub total_num_bfregs: u32,
    /// Of these, registers for one queue pair each. Fewer than `total_num_bfregs`.
    pub num_low_latency_bfregs: u32,
    /// Bit 0: with a firmware context of its own (DEVX).
    pub flags: u32,
    pub comp_mask: u32,
    /// Highest completion format that is understood: 1, with the user's index.
    pub max_cqe_version: u8,
    pub reserved0: u8,
    pub reserved1: u16,
    pub reserved2: u32,
    /// See [`lib_caps`].
    pub lib_caps: u64,
}
layout!(AllocUcontextReq, 32, flags @ 8, max_cqe_version @ 16, lib_caps @ 24);

/// Bits of [`AllocUcontextReq::lib_caps`] (`enum mlx5_lib_caps`).
pub mod lib_caps {
    /// Knows doorbell pages of 4 KiB whatever the page size.
    pub const UAR_4K: u64 = 1 << 0;
    /// Makes its doorbell pages one by one, as objects.
    pub const DYN_UAR: u64 = 1 << 1;
}

/// What the device offers, as a context learns when it is opened.
#[doc(alias = "mlx5_ib_alloc_ucontext_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocUcontextResp {
    pub qp_tab_size: u32,
    /// Bytes of a doorbell register, both halves; 0 where write-combining does not work.
    pub bf_reg_size: u32,
    pub tot_bfregs: u32,
    pub cache_line_size: u32,
    /// Longest send work queue element, bytes.
    pub max_sq_desc_sz: u16,
    /// Longest receive work queue element, bytes.
    pub max_rq_desc_sz: u16,
    /// Longest send queue, in 64-byte blocks.
    pub max_send_wqebb: u32,
    pub max_recv_wr: u32,
    pub max_srq_recv_wr: u32,
    pub num_ports: u16,
    pub flow_action_flags: u16,
    /// See [`ucontext_mask`].
    pub comp_mask: u32,
    /// Bytes of this structure that the kernel filled.
    pub response_length: u32,
    /// Completion format in use.
    pub cqe_version: u8,
    /// Bit 0: QUERY_DEVICE, bit 1: CREATE_AH take the driver's part.
    pub cmds_supp_uhw: u8,
    /// Bytes of a raw packet's header that must be inline, encoded, plus one; 0 unknown.
    pub eth_min_inline: u8,
    /// Bit n: version n + 1 of the clock page can be mapped.
    pub clock_info_versions: u8,
    /// Where in its page the device's clock is.
    pub hca_core_clock_offset: u64,
    /// Log2 of a doorbell page's bytes; 0 if not told, which means a system page.
    pub log_uar_size: u32,
    /// Doorbell pages in a system page.
    pub num_uars_per_page: u32,
    pub num_dyn_bfregs: u32,
    pub dump_fill_mkey: u32,
}
layout!(
    AllocUcontextResp, 72,
    bf_reg_size @ 4, max_sq_desc_sz @ 16, max_send_wqebb @ 20, num_ports @ 32, comp_mask @ 36, response_length @ 40,
    cqe_version @ 44, clock_info_versions @ 47, hca_core_clock_offset @ 48, log_uar_size @ 56, dump_fill_mkey @ 68,
);

/// Bits of [`AllocUcontextResp::comp_mask`] (`enum mlx5_ib_alloc_ucontext_resp_mask`).
pub mod ucontext_mask {
    pub const CORE_CLOCK_OFFSET: u32 = 1 << 0;
    pub const DUMP_FILL_MKEY: u32 = 1 << 1;
    pub const ECE: u32 = 1 << 2;
    pub const SQD2RTS: u32 = 1 << 3;
    pub const REAL_TIME_TS: u32 = 1 << 4;
    pub const MKEY_UPDATE_TAG: u32 = 1 << 5;
}

/// The driver's answer to making a protection domain. Not optional: without room for it the command fails.
#[doc(alias = "mlx5_ib_alloc_pd_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocPdResp {
    /// The device's number of it.
    pub pdn: u32,
}
layout!(AllocPdResp, 4);

/// A completion queue's memory.
#[doc(alias = "mlx5_ib_create_cq")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCq {
    /// The ring, page-aligned.
    pub buf_addr: u64,
    /// The doorbell record.
    pub db_addr: u64,
    /// Bytes of an entry: 64 or 128.
    pub cqe_size: u32,
    pub cqe_comp_en: u8,
    /// What compressed entries carry: one of [`cqe_comp_format`].
    pub cqe_comp_res_format: u8,
    /// See [`create_cq_flags`].
    pub flags: u16,
    /// Index of the doorbell page that the queue is armed through.
    pub uar_page_index: u16,
    pub reserved0: u16,
    pub reserved1: u32,
}
layout!(CreateCq, 32, db_addr @ 8, cqe_size @ 16, cqe_comp_en @ 20, flags @ 22, uar_page_index @ 24, reserved1 @ 28);

/// Bits of [`CreateCq::flags`] (`enum mlx5_ib_create_cq_flags`).
pub mod create_cq_flags {
    pub const CQE_128B_PAD: u16 = 1 << 0;
    pub const UAR_PAGE_INDEX: u16 = 1 << 1;
    pub const REAL_TIME_TS: u16 = 1 << 2;
}

/// What [`CreateCq::cqe_comp_res_format`] can be (`enum mlx5_ib_cqe_comp_res_format`).
pub mod cqe_comp_format {
    pub const HASH: u8 = 1 << 0;
    pub const CSUM: u8 = 1 << 1;
    pub const CSUM_STRIDX: u8 = 1 << 2;
}

/// The driver's answer to making a completion queue.
#[doc(alias = "mlx5_ib_create_cq_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCqResp {
    /// The device's number of it, 24 bits.
    pub cqn: u32,
    pub reserved: u32,
}
layout!(CreateCqResp, 8);

/// A completion queue's new memory.
#[doc(alias = "mlx5_ib_resize_cq")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCq {
    pub buf_addr: u64,
    /// As the queue has it already.
    pub cqe_size: u16,
    pub reserved0: u16,
    pub reserved1: u32,
}
layout!(ResizeCq, 16, cqe_size @ 8);

/// A shared receive queue's memory.
#[doc(alias = "mlx5_ib_create_srq")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrq {
    pub buf_addr: u64,
    pub db_addr: u64,
    /// Bit 0: with signatures.
    pub flags: u32,
    pub reserved0: u32,
    /// The user's index, which completions of an XRC queue carry.
    pub uidx: u32,
    pub reserved1: u32,
}
layout!(CreateSrq, 32, flags @ 16, uidx @ 24);

/// The driver's answer to making a shared receive queue.
#[doc(alias = "mlx5_ib_create_srq_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrqResp {
    pub srqn: u32,
    pub reserved: u32,
}
layout!(CreateSrqResp, 8);

/// A queue pair's memory.
#[doc(alias = "mlx5_ib_create_qp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQp {
    /// Receive ring, then send ring.
    pub buf_addr: u64,
    pub db_addr: u64,
    /// 64-byte blocks of the send ring, a power of two.
    pub sq_wqe_count: u32,
    /// Elements of the receive ring, a power of two; 0 without one.
    pub rq_wqe_count: u32,
    /// Log2 of their bytes; 0 without a receive ring.
    pub rq_wqe_shift: u32,
    /// See [`create_qp_flags`].
    pub flags: u32,
    /// The user's index, which completions carry: 24 bits.
    pub uidx: u32,
    /// Index of the doorbell page.
    pub bfreg_index: u32,
    /// A raw packet queue pair's send ring; 0 for all others.
    pub sq_buf_addr: u64,
    pub ece_options: u32,
    /// Stream counts of a dynamically connected initiator; 0 for all others.
    pub dci_streams: [u8; 2],
    pub reserved: u16,
}
layout!(
    CreateQp, 56,
    db_addr @ 8, sq_wqe_count @ 16, rq_wqe_count @ 20, rq_wqe_shift @ 24, flags @ 28, uidx @ 32, bfreg_index @ 36,
    sq_buf_addr @ 40, ece_options @ 48, dci_streams @ 52,
);

/// Bits of [`CreateQp::flags`].
pub mod create_qp_flags {
    pub const SIGNATURE: u32 = 1 << 0;
    /// Short receives are delivered inside their completion.
    pub const SCATTER_CQE: u32 = 1 << 1;
    pub const BFREG_INDEX: u32 = 1 << 3;
    /// As [`SCATTER_CQE`], of READs and atomics too.
    pub const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    /// `bfreg_index` is a doorbell page's index.
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
}

/// The driver's answer to making a queue pair.
#[doc(alias = "mlx5_ib_create_qp_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQpResp {
    /// `u32::MAX` where the user brought a doorbell page.
    pub bfreg_index: u32,
    pub ece_options: u32,
    pub comp_mask: u32,
    pub tirn: u32,
    pub tisn: u32,
    pub rqn: u32,
    pub sqn: u32,
    pub reserved1: u32,
    pub tir_icm_addr: u64,
}
layout!(CreateQpResp, 40, ece_options @ 4, comp_mask @ 8, rqn @ 20, tir_icm_addr @ 32);

/// What a memory window is made for.
#[doc(alias = "mlx5_ib_alloc_mw")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocMw {
    pub comp_mask: u32,
    pub num_klms: u8,
    pub reserved1: u8,
    pub reserved2: u16,
}
layout!(AllocMw, 8, num_klms @ 4);

/// What the kernel resolved for an address handle.
#[doc(alias = "mlx5_ib_create_ah_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateAhResp {
    pub response_length: u32,
    /// The next hop's Ethernet address, on RoCE.
    pub dmac: [u8; 6],
    pub reserved: [u8; 6],
}
layout!(CreateAhResp, 16, dmac @ 4);

/// What modifying a queue pair can carry; not required.
#[doc(alias = "mlx5_ib_modify_qp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQp {
    pub comp_mask: u32,
    pub burst_info: BurstInfo,
    pub ece_options: u32,
}
layout!(ModifyQp, 16, burst_info @ 4, ece_options @ 12);

/// Packet pacing.
#[doc(alias = "mlx5_ib_burst_info")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BurstInfo {
    pub max_burst_sz: u32,
    pub typical_pkt_sz: u16,
    pub reserved: u16,
}
layout!(BurstInfo, 8, typical_pkt_sz @ 4);

/// The page in which the kernel keeps the relation of the device's clock to its own.
#[doc(alias = "mlx5_ib_clock_info")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClockInfo {
    /// Odd while the kernel writes; changes with each write.
    pub sign: u32,
    pub resv: u32,
    /// The kernel's time at `cycles`, nanoseconds.
    pub nsec: u64,
    pub cycles: u64,
    /// Fraction of a nanosecond at `cycles`, in units of 2^-shift.
    pub frac: u64,
    pub mult: u32,
    pub shift: u32,
    /// Which bits of a cycle count are valid.
    pub mask: u64,
    pub overflow_period: u64,
}
layout!(ClockInfo, 56, nsec @ 8, cycles @ 16, frac @ 24, mult @ 32, shift @ 36, mask @ 40, overflow_period @ 48);

/// The driver's own object type: a doorbell page.
pub mod uar {
    use super::Method;

    #[doc(alias = "MLX5_IB_OBJECT_UAR")]
    pub const OBJECT: u16 = 0x1008;
    #[doc(alias = "MLX5_IB_METHOD_UAR_OBJ_ALLOC")]
    pub const ALLOC: Method = Method { object: OBJECT, method: 0x1000 };
    #[doc(alias = "MLX5_IB_METHOD_UAR_OBJ_DESTROY")]
    pub const DESTROY: Method = Method { object: OBJECT, method: 0x1001 };

    /// Attributes of [`ALLOC`]; [`HANDLE`](attr::HANDLE) of [`DESTROY`], too.
    pub mod attr {
        /// New object.
        pub const HANDLE: u16 = 0x1000;
        /// Constant: see [`kind`](super::kind).
        pub const TYPE: u16 = 0x1001;
        /// `u64` out: where to map it from.
        pub const MMAP_OFFSET: u16 = 0x1002;
        /// `u32` out: bytes to map.
        pub const MMAP_LENGTH: u16 = 0x1003;
        /// `u32` out: its index, for queue pairs and completion queues.
        pub const PAGE_ID: u16 = 0x1004;
    }

    /// `enum mlx5_ib_uapi_uar_alloc_type`.
    pub mod kind {
        /// Mapped with write-combining.
        pub const BF: u64 = 0;
        /// Mapped uncached.
        pub const NC: u64 = 1;
    }
}

#[cfg(all(test, not(loom)))]
mod check;
