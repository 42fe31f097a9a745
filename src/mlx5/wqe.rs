//! The segments that a work queue element is made of. Formats only, no logic.
//!
//! All fields are big endian. Every segment is a multiple of 16 bytes, the unit in which the device counts (`ds`); a send
//! work queue element starts on a block of 64 bytes. The kernel has no header for these: the names are those of
//! `mlx5dv.h` of rdma-core.

use crate::uverbs::abi::layout;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the unit that segments are counted in.
pub const DS_BYTES: u32 = 16;
/// Bytes of a basic block: send work queue elements start on one, and indices count them.
#[doc(alias = "MLX5_SEND_WQE_BB")]
pub const BB_BYTES: u32 = 64;
/// Units in a basic block.
pub const DS_PER_BB: u32 = BB_BYTES / DS_BYTES;
/// Most units of a work queue element: the field that counts them has 6 bits.
pub const MAX_DS: u32 = 63;

/// 16 bytes on their way into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct Chunk(pub [u8; 16]);

macro_rules! segment {
    ($type:ty, $chunks:literal) => {
        impl From<$type> for [Chunk; $chunks] {
            #[inline(always)]
            fn from(segment: $type) -> Self {
                zerocopy::transmute!(segment)
            }
        }
    };
}

/// Control segment: the first of every send work queue element.
#[doc(alias = "mlx5_wqe_ctrl_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ctrl {
    /// Bits 31:24 opcode modifier, 23:8 index of the element's first block, 7:0 opcode.
    pub opmod_idx_opcode: U32,
    /// Bits 31:8 own queue pair number, 5:0 units of the whole element.
    pub qpn_ds: U32,
    /// Zero without signatures.
    pub signature: u8,
    pub dci_stream: [u8; 2],
    /// See [`ctrl_flags`].
    pub fm_ce_se: u8,
    /// Immediate, key to invalidate, or key that a UMR works on.
    pub imm: U32,
}
layout!(Ctrl, 16, qpn_ds @ 4, signature @ 8, fm_ce_se @ 11, imm @ 12);

impl Ctrl {
    /// One of these: its first 8 bytes, the next 4 as they lie in memory, and the last. As two words of eight bytes, so that it is two
    /// stores.
    #[inline(always)]
    pub fn chunk(first: [u8; 8], flags: u32, imm: u32) -> Chunk {
        let ([a, b, c, d], [e, f, g, h]) = (flags.to_ne_bytes(), imm.to_be_bytes());
        zerocopy::transmute!([u64::from_ne_bytes(first), u64::from_ne_bytes([a, b, c, d, e, f, g, h])])
    }
}

/// Bits of [`Ctrl::fm_ce_se`]: fence mode, completion, solicited event.
pub mod ctrl_flags {
    /// Waits for earlier UMRs of this queue, whose effect it may use.
    #[doc(alias = "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE")]
    pub const INITIATOR_SMALL_FENCE: u8 = 1 << 5;
    /// Waits for all earlier READs and atomics, and UMRs: what a fenced work request asks for.
    #[doc(alias = "MLX5_WQE_CTRL_FENCE")]
    pub const FENCE: u8 = 4 << 5;
    /// Completes in any case; without it, only if it fails.
    #[doc(alias = "MLX5_WQE_CTRL_CQ_UPDATE")]
    pub const CQ_UPDATE: u8 = 2 << 2;
    /// Raises a solicited event at the peer.
    #[doc(alias = "MLX5_WQE_CTRL_SOLICITED")]
    pub const SOLICITED: u8 = 1 << 1;
}

/// Opcodes of send work queue elements; completions carry them, too.
#[allow(dead_code, reason = "the interface as it is, also what is not used")]
pub mod opcode {
    pub const NOP: u8 = 0x00;
    pub const SEND_INVAL: u8 = 0x01;
    pub const RDMA_WRITE: u8 = 0x08;
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    pub const SEND: u8 = 0x0a;
    pub const SEND_IMM: u8 = 0x0b;
    pub const TSO: u8 = 0x0e;
    pub const RDMA_READ: u8 = 0x10;
    pub const ATOMIC_CS: u8 = 0x11;
    pub const ATOMIC_FA: u8 = 0x12;
    pub const ATOMIC_MASKED_CS: u8 = 0x14;
    pub const ATOMIC_MASKED_FA: u8 = 0x15;
    /// Change of a memory key: binding a window, or invalidating a key.
    pub const UMR: u8 = 0x25;
}

/// Remote side of a WRITE, READ or atomic.
#[doc(alias = "mlx5_wqe_raddr_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Raddr {
    pub raddr: U64,
    pub rkey: U32,
    pub reserved: U32,
}
layout!(Raddr, 16, rkey @ 8);

impl From<Raddr> for [Chunk; 1] {
    /// As two words of eight bytes, so that it is two stores.
    #[inline(always)]
    fn from(Raddr { raddr, rkey, reserved: _ }: Raddr) -> Self {
        let [a, b, c, d] = rkey.to_bytes();
        let words = [u64::from_ne_bytes(raddr.to_bytes()), u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])];
        [zerocopy::transmute!(words)]
    }
}

/// Operands of an atomic.
#[doc(alias = "mlx5_wqe_atomic_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Atomic {
    /// What to store if equal, or what to add.
    pub swap_add: U64,
    /// What to compare with; zero for an addition.
    pub compare: U64,
}
layout!(Atomic, 16, compare @ 8);
segment!(Atomic, 1);

/// A piece of registered memory.
#[doc(alias = "mlx5_wqe_data_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Data {
    /// 1 to 2^31 - 1 bytes; 0 means 2^31. Bit 31 would make it an inline segment.
    pub byte_count: U32,
    pub lkey: U32,
    pub addr: U64,
}
layout!(Data, 16, lkey @ 4, addr @ 8);
segment!(Data, 1);

/// Longest piece that a [`Data`] segment can name: 2^31 bytes.
pub const MAX_DATA_BYTES: u64 = 1 << 31;

/// Key of a data segment that ends a list shorter than its receive element.
#[doc(alias = "MLX5_INVALID_LKEY")]
pub const TERMINATE_LKEY: u32 = 0x100;

impl Data {
    /// A piece of 1 to 2^31 bytes.
    #[inline(always)]
    pub const fn new(addr: u64, length: u32, lkey: u32) -> Self {
        // 2^31 becomes 0, as the device has it.
        Self { byte_count: U32::new(length & !INLINE), lkey: U32::new(lkey), addr: U64::new(addr) }
    }

    /// Ends the list of a receive element.
    pub const TERMINATOR: Self = Self { byte_count: U32::new(0), lkey: U32::new(TERMINATE_LKEY), addr: U64::new(0) };
}

/// Set in the byte count of an inline segment: the bytes follow at once, padded to 16 with these four.
#[doc(alias = "MLX5_INLINE_SEG")]
pub const INLINE: u32 = 1 << 31;

/// Head of an inline segment.
#[doc(alias = "mlx5_wqe_inl_data_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InlineHead {
    /// [`INLINE`] and the count.
    pub byte_count: U32,
}
layout!(InlineHead, 4);

/// Where a datagram goes.
#[doc(alias = "mlx5_wqe_av")]
#[doc(alias = "mlx5_wqe_datagram_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Av {
    pub qkey: U32,
    pub reserved: U32,
    /// Remote queue pair number, with [`EXTENDED_AV`].
    pub dqp_dct: U32,
    /// Bits 7:4 static rate; 3:0 service level, on Ethernet 3:1 priority.
    pub stat_rate_sl: u8,
    /// Bit 7 force loopback, 6:0 low bits of the own LID.
    pub fl_mlid: u8,
    /// The peer's LID; on RoCE v2 the UDP source port.
    pub rlid: U16,
    pub reserved0: [u8; 4],
    /// The next hop's Ethernet address, on RoCE.
    pub rmac: [u8; 6],
    pub tclass: u8,
    pub hop_limit: u8,
    /// Bit 30 global route, 27:20 own GID's index, 19:0 flow label.
    pub grh_gid_fl: U32,
    pub rgid: [u8; 16],
}
layout!(
    Av, 48,
    dqp_dct @ 8, stat_rate_sl @ 12, fl_mlid @ 13, rlid @ 14, rmac @ 20, tclass @ 26, hop_limit @ 27, grh_gid_fl @ 28,
    rgid @ 32,
);
segment!(Av, 3);

/// Set in [`Av::dqp_dct`]: all 48 bytes are there.
#[doc(alias = "MLX5_EXTENDED_UD_AV")]
pub const EXTENDED_AV: u32 = 1 << 31;
/// Set in [`Av::grh_gid_fl`]: packets carry a global route header.
pub const AV_GRH: u32 = 1 << 30;

/// The peer's shared receive queue, for an XRC initiator.
#[doc(alias = "mlx5_wqe_xrc_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Xrc {
    pub xrc_srqn: U32,
    pub reserved: [u8; 12],
}
layout!(Xrc, 16);
segment!(Xrc, 1);

/// What a UMR changes of a memory key.
#[doc(alias = "mlx5_wqe_umr_ctrl_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UmrCtrl {
    /// See [`umr_flags`].
    pub flags: u8,
    pub reserved: [u8; 3],
    /// Units of translation entries that follow inline.
    pub klm_octowords: U16,
    pub translation_offset: U16,
    /// Which parts of [`Mkey`] count: see [`mkey_mask`].
    pub mkey_mask: U64,
    pub reserved1: [u8; 32],
}
layout!(UmrCtrl, 48, klm_octowords @ 4, translation_offset @ 6, mkey_mask @ 8);
segment!(UmrCtrl, 3);

/// Bits of [`UmrCtrl::flags`].
pub mod umr_flags {
    #[doc(alias = "MLX5_WQE_UMR_CTRL_FLAG_INLINE")]
    pub const INLINE: u8 = 1 << 7;
    /// Fails unless the key is free.
    #[doc(alias = "MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE")]
    pub const CHECK_FREE: u8 = 1 << 5;
    #[doc(alias = "MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET")]
    pub const TRANSLATION_OFFSET: u8 = 1 << 4;
    /// Fails unless the key belongs to this queue pair.
    #[doc(alias = "MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN")]
    pub const CHECK_QPN: u8 = 1 << 3;
}

/// Bits of [`UmrCtrl::mkey_mask`].
pub mod mkey_mask {
    pub const LEN: u64 = 1 << 0;
    pub const START_ADDR: u64 = 1 << 6;
    /// The key's low byte.
    pub const MKEY: u64 = 1 << 13;
    pub const QPN: u64 = 1 << 14;
    pub const ACCESS_LOCAL_WRITE: u64 = 1 << 18;
    pub const ACCESS_REMOTE_READ: u64 = 1 << 19;
    pub const ACCESS_REMOTE_WRITE: u64 = 1 << 20;
    pub const ACCESS_ATOMIC: u64 = 1 << 21;
    pub const FREE: u64 = 1 << 29;
}

/// A memory key as a UMR leaves it.
#[doc(alias = "mlx5_wqe_mkey_context_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Mkey {
    /// [`MKEY_FREE`], or 0.
    pub free: u8,
    pub reserved1: u8,
    /// See [`mkey_access`].
    pub access_flags: u8,
    pub sf: u8,
    /// Bits 31:8 the queue pair that may use it, all ones for any; 7:0 the key's low byte.
    pub qpn_mkey: U32,
    pub reserved2: U32,
    pub flags_pd: U32,
    pub start_addr: U64,
    pub len: U64,
    pub bsf_octword_size: U32,
    pub reserved3: [u8; 16],
    pub translations_octword_size: U32,
    pub reserved4: [u8; 3],
    pub log_page_size: u8,
    pub reserved5: U32,
}
layout!(
    Mkey, 64,
    access_flags @ 2, qpn_mkey @ 4, flags_pd @ 12, start_addr @ 16, len @ 24, translations_octword_size @ 52,
    log_page_size @ 59,
);
segment!(Mkey, 4);

/// Set in [`Mkey::free`]: the key names nothing.
#[doc(alias = "MLX5_WQE_MKEY_CONTEXT_FREE")]
pub const MKEY_FREE: u8 = 1 << 6;

/// Bits of [`Mkey::access_flags`].
#[allow(dead_code, reason = "the interface as it is, also what is not used")]
pub mod mkey_access {
    pub const LOCAL_READ: u8 = 1 << 2;
    pub const LOCAL_WRITE: u8 = 1 << 3;
    pub const REMOTE_READ: u8 = 1 << 4;
    pub const REMOTE_WRITE: u8 = 1 << 5;
    pub const ATOMIC: u8 = 1 << 6;
}

/// Inline translation entry of a UMR: the memory behind the key.
#[doc(alias = "mlx5_wqe_umr_klm_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Klm {
    pub byte_count: U32,
    pub mkey: U32,
    pub address: U64,
}
layout!(Klm, 16, mkey @ 4, address @ 8);
segment!(Klm, 1);

/// Head of a shared receive queue's element; [`Data`] segments follow.
#[doc(alias = "mlx5_wqe_srq_next_seg")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqNext {
    pub reserved0: [u8; 2],
    /// The element that the device takes after this one.
    pub next_wqe_index: U16,
    pub signature: u8,
    pub reserved1: [u8; 11],
}
layout!(SrqNext, 16, next_wqe_index @ 2, signature @ 4);
segment!(SrqNext, 1);

impl SrqNext {
    /// Followed by element `next`.
    #[inline(always)]
    pub const fn new(next: u16) -> Self {
        Self { reserved0: [0; 2], next_wqe_index: U16::new(next), signature: 0, reserved1: [0; 11] }
    }
}

#[cfg(all(test, not(loom)))]
mod check;
