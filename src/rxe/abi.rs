//! The bytes that rxe shares with its users: `include/uapi/rdma/rdma_user_rxe.h`. A completion is
//! [`Wc`](crate::uverbs::abi::verbs::Wc).
//!
//! All integers are in native byte order, except an immediate, which is big endian. Every struct is free of padding
//! (zerocopy refuses it otherwise).

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Start of a mapped queue; the slots follow. Each index has a cache line pair of its own.
#[doc(alias = "rxe_queue_buf")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueBuf {
    /// Distance of two slots, as a power of two in bytes.
    pub log2_elem_size: u32,
    /// Slots minus one; slots are a power of two.
    pub index_mask: u32,
    pub pad_1: [u32; 30],
    /// Slot that is filled next, already masked. Written by the producer only.
    pub producer_index: u32,
    pub pad_2: [u32; 31],
    /// Slot that is consumed next, already masked. Written by the consumer only.
    pub consumer_index: u32,
    pub pad_3: [u32; 31],
}
layout!(QueueBuf, 384, log2_elem_size @ 0, index_mask @ 4, producer_index @ 128, consumer_index @ 256);

/// What a send work request asks for, common to all opcodes. First 24 bytes of [`SendWqe`].
#[doc(alias = "rxe_send_wr")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    pub reserved: u32,
    /// See [`opcode`].
    pub opcode: u32,
    /// See [`send_flags`].
    pub send_flags: u32,
    /// Immediate data in big endian (`imm_data`), or the key to invalidate (`invalidate_rkey`).
    pub ex: u32,
}
layout!(SendWr, 24, wr_id @ 0, opcode @ 12, send_flags @ 16, ex @ 20);

/// Remote side of a WRITE or READ, at offset 24 of [`SendWqe`].
#[doc(alias = "rdma")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
    pub reserved: u32,
}
layout!(WrRdma, 16, rkey @ 8);

/// Remote side and operands of an atomic, at offset 24 of [`SendWqe`].
#[doc(alias = "atomic")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrAtomic {
    /// A multiple of 8.
    pub remote_addr: u64,
    /// What to compare with (CMP_AND_SWP), or what to add (FETCH_AND_ADD).
    pub compare_add: u64,
    /// What to store if equal (CMP_AND_SWP only).
    pub swap: u64,
    pub rkey: u32,
    pub reserved: u32,
}
layout!(WrAtomic, 32, compare_add @ 8, swap @ 16, rkey @ 24);

/// Destination of a datagram, at offset 24 of [`SendWqe`], up to its address vector.
#[doc(alias = "ud")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrUd {
    pub remote_qpn: u32,
    pub remote_qkey: u32,
    /// Of the special queue pairs only.
    pub pkey_index: u16,
    pub reserved: u16,
    /// The address handle's number. Zero: the address vector that follows counts.
    pub ah_num: u32,
    pub pad: [u32; 4],
}
layout!(WrUd, 32, remote_qkey @ 4, pkey_index @ 8, ah_num @ 12, pad @ 16);

/// An address as older kernels want it in each work request, at offset 56 of [`SendWqe`].
#[doc(alias = "rxe_av")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct RxeAv {
    pub port_num: u8,
    /// See [`network_type`].
    pub network_type: u8,
    pub dmac: [u8; 6],
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub padding: u8,
    /// A `struct sockaddr_in` or `sockaddr_in6`.
    pub sgid_addr: [u8; 28],
    pub dgid_addr: [u8; 28],
}
layout!(RxeAv, 88, dmac @ 2, dgid @ 8, flow_label @ 24, sgid_index @ 28, traffic_class @ 30, sgid_addr @ 32, dgid_addr @ 60);

/// What carries a datagram (`RXE_NETWORK_TYPE_...`).
pub mod network_type {
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
}

/// A bind, at offset 24 of [`SendWqe`].
#[doc(alias = "mw")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrMw {
    pub addr: u64,
    pub length: u64,
    pub mr_lkey: u32,
    /// The window's key until now.
    pub mw_rkey: u32,
    /// Its key from then on; only the low 8 bits may differ.
    pub rkey: u32,
    /// `enum ib_uverbs_access_flags`.
    pub access: u32,
}
layout!(WrMw, 32, length @ 8, mr_lkey @ 16, mw_rkey @ 20, rkey @ 24, access @ 28);

/// Remote side of a FLUSH, at offset 24 of [`SendWqe`]. Since Linux 6.2.
#[doc(alias = "flush")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WrFlush {
    pub remote_addr: u64,
    pub length: u32,
    pub rkey: u32,
    /// Placement: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity: 0 range, 1 region.
    pub level: u8,
    pub pad: [u8; 6],
}
layout!(WrFlush, 24, length @ 8, rkey @ 12, placement @ 16, level @ 17);

/// The kernel's progress on a send work request, at offset 144 of [`SendWqe`].
///
/// The kernel works on the slot in place and leaves its state there, so all of it is written anew with each use.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendState {
    /// Completion status; starts at 0.
    pub status: u32,
    /// Posted (0), processing, pending, done, error; starts at 0.
    pub state: u32,
    /// Remote address that the kernel works on. Must equal `remote_addr` where there is one.
    pub iova: u64,
    /// Computed by the kernel, as the next three are.
    pub mask: u32,
    pub first_psn: u32,
    pub last_psn: u32,
    pub ack_length: u32,
    /// Not used by the kernel.
    pub ssn: u32,
    /// Whether it counts as an outstanding READ or atomic; starts at 0.
    pub has_rd_atomic: u32,
    pub dma: DmaInfo,
}
layout!(SendState, 64, iova @ 8, mask @ 16, ssn @ 32, has_rd_atomic @ 36, dma @ 40);

/// Where the payload of a work request is, and how much of it is done. Scatter/gather entries or inline data follow.
#[doc(alias = "rxe_dma_info")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
// Aligned as in C, where scatter/gather entries belong to the structure.
#[repr(C, align(8))]
pub struct DmaInfo {
    /// Bytes in all.
    pub length: u32,
    /// Bytes still to do; starts at `length`.
    pub resid: u32,
    /// Entry that is worked on; starts at 0.
    pub cur_sge: u32,
    /// Scatter/gather entries that follow; 0 with inline data.
    pub num_sge: u32,
    /// Offset in the entry, or in the inline data; starts at 0.
    pub sge_offset: u32,
    pub reserved: u32,
}
layout!(DmaInfo, 24, resid @ 4, cur_sge @ 8, num_sge @ 12, sge_offset @ 16);

/// Scatter/gather entry.
#[doc(alias = "rxe_sge")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RxeSge {
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    pub lkey: u32,
}
layout!(RxeSge, 16, length @ 8, lkey @ 12);

/// Send work queue element. Written in parts, never as a whole.
#[doc(alias = "rxe_send_wqe")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendWqe {
    pub wr: SendWr,
    /// A union by opcode: [`WrRdma`], [`WrAtomic`], [`WrUd`] and [`RxeAv`], [`WrMw`], [`WrFlush`], or nothing for a SEND on a
    /// connected queue pair.
    pub op: [u8; 120],
    pub state: SendState,
}
layout!(SendWqe, 208, op @ 24, state @ 144);

/// Receive work queue element.
#[doc(alias = "rxe_recv_wqe")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecvWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    pub reserved: u32,
    pub padding: u32,
    pub dma: DmaInfo,
}
layout!(RecvWqe, 40, wr_id @ 0, dma @ 16);

/// Where to map a queue from.
#[doc(alias = "mminfo")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MmapInfo {
    /// Offset for `mmap`, good for one mapping.
    pub offset: u64,
    /// Bytes, a multiple of the page size.
    pub size: u32,
    pub pad: u32,
}
layout!(MmapInfo, 16, size @ 8);

/// The driver's answer to creating a completion queue.
#[doc(alias = "rxe_create_cq_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCqResp {
    pub mi: MmapInfo,
}
layout!(CreateCqResp, 16, mi @ 0);

/// The driver's answer to creating a queue pair.
#[doc(alias = "rxe_create_qp_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQpResp {
    pub rq_mi: MmapInfo,
    pub sq_mi: MmapInfo,
}
layout!(CreateQpResp, 32, rq_mi @ 0, sq_mi @ 16);

/// The driver's answer to creating a shared receive queue.
#[doc(alias = "rxe_create_srq_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrqResp {
    pub mi: MmapInfo,
    pub srq_num: u32,
    pub reserved: u32,
}
layout!(CreateSrqResp, 24, mi @ 0, srq_num @ 16);

/// The driver's answer to resizing a completion queue.
#[doc(alias = "rxe_resize_cq_resp")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCqResp {
    pub mi: MmapInfo,
}
layout!(ResizeCqResp, 16, mi @ 0);

/// The driver's part of a change to a shared receive queue. It is read with every change, also with one that has no use
/// for it.
#[doc(alias = "rxe_modify_srq_cmd")]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifySrqCmd {
    /// Address of an [`MmapInfo`] that the kernel fills when it makes a new ring.
    pub mmap_info_addr: u64,
}
layout!(ModifySrqCmd, 8, mmap_info_addr @ 0);

/// `enum ib_uverbs_wr_opcode`, those that are written here.
pub mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    /// Since Linux 6.2, as is the next one: older kernels do not look whether they know a number.
    pub const FLUSH: u32 = 14;
    pub const ATOMIC_WRITE: u32 = 15;
}

/// `enum ib_send_flags` (`include/rdma/ib_verbs.h`), beyond those of `WrFlags`.
pub mod send_flags {
    /// The payload is in the work queue element itself.
    pub const INLINE: u32 = 8;
}

#[cfg(all(test, not(loom)))]
mod check;
