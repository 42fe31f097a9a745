//! Work queue entries (WQE): what a driver writes into send and receive rings.
//!
//! A send WQE is a run of 16-byte units ("ds"), starting at a basic block (BB, 64 bytes) of the send ring: a control
//! segment, then what the opcode asks for, then data. A receive WQE is one stride of data segments.

/// Bytes of a basic block (BB), the unit in which the send ring is counted.
pub const BB_BYTES: usize = 64;
/// Bytes of a unit ("ds"), in which a send WQE's length is given.
pub const DS_BYTES: usize = 16;
/// Most units that one send WQE can have (6 bits in the control segment).
pub const MAX_DS: u8 = 63;

/// Control segment, 16 bytes, the first of every send WQE.
pub mod ctrl {
    /// Operation modifier (31:24), WQE index (23:8: BBs since the queue was reset, modulo 2^16), opcode (7:0).
    pub const OPMOD_INDEX_OPCODE: usize = 0;
    /// QP number (31:8), units of this WQE (5:0), itself included.
    pub const QPN_DS: usize = 4;
    /// WQE signature: complement of the exclusive or of all bytes, where the QP was created with signatures.
    pub const SIGNATURE: usize = 8;
    /// Fence mode (7:5), completion mode (3:2), solicited event (1).
    pub const FM_CE_SE: usize = 11;
    /// Immediate data, key to invalidate, or key that a UMR changes.
    pub const IMM: usize = 12;

    /// `FM_CE_SE`: no fence.
    pub const FENCE_NONE: u8 = 0;
    /// `FM_CE_SE` 7:5 = 1: initiator small fence, for the WQE after a UMR.
    pub const FENCE_SMALL: u8 = 1 << 5;
    /// `FM_CE_SE` 7:5.
    pub const FENCE_MASK: u8 = 7 << 5;
    /// `FM_CE_SE` 3:2 = 2: always write a completion. Any other value: only in error.
    pub const COMPLETE_ALWAYS: u8 = 2 << 2;
    /// `FM_CE_SE` 3:2.
    pub const COMPLETE_MASK: u8 = 3 << 2;
    /// `FM_CE_SE` 1: solicited event at the responder.
    pub const SOLICITED: u8 = 1 << 1;
}

/// Opcodes of send WQEs (`OPMOD_INDEX_OPCODE` 7:0).
#[allow(missing_docs, reason = "the names are the verbs'")]
pub mod opcode {
    pub const NOP: u8 = 0x00;
    pub const SEND_INVAL: u8 = 0x01;
    pub const RDMA_WRITE: u8 = 0x08;
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    pub const SEND: u8 = 0x0a;
    pub const SEND_IMM: u8 = 0x0b;
    pub const RDMA_READ: u8 = 0x10;
    pub const ATOMIC_CS: u8 = 0x11;
    pub const ATOMIC_FA: u8 = 0x12;
    pub const ATOMIC_MASKED_CS: u8 = 0x14;
    pub const ATOMIC_MASKED_FA: u8 = 0x15;
    pub const UMR: u8 = 0x25;
}

/// Remote address segment, 16 bytes.
pub mod raddr {
    /// Remote virtual address, 64 bits.
    pub const ADDR: usize = 0;
    /// Remote key, 32 bits.
    pub const RKEY: usize = 8;
}

/// Atomic segment, 16 bytes; masked form 32 bytes.
pub mod atomic {
    /// Swap value (compare and swap) or addend (fetch and add), 64 bits.
    pub const SWAP_ADD: usize = 0;
    /// Compare value, 64 bits; unused by fetch and add.
    pub const COMPARE: usize = 8;
    /// Masked form: which bits to swap; for fetch and add the boundaries at which carries stop.
    pub const SWAP_ADD_MASK: usize = 16;
    /// Masked form: which bits to compare.
    pub const COMPARE_MASK: usize = 24;
}

/// Data segment, 16 bytes.
pub mod data {
    /// Byte count (30:0); bit 31 marks an inline segment, whose data follow in place of key and address. Zero means
    /// 2^31 bytes, not none.
    pub const BYTE_COUNT: usize = 0;
    /// Local key.
    pub const LKEY: usize = 4;
    /// Virtual address, 64 bits.
    pub const ADDR: usize = 8;

    /// `BYTE_COUNT` bit 31.
    pub const INLINE: u32 = 1 << 31;
    /// Bytes of the head of an inline segment.
    pub const INLINE_HEAD_BYTES: usize = 4;
    /// What a byte count of zero stands for.
    pub const ZERO_MEANS_BYTES: u32 = 1 << 31;
    /// The key that ends a receive WQE's list early (with a byte count of zero).
    pub const TERMINATE_LKEY: u32 = 0x100;
}

/// Datagram segment: address vector, 48 bytes, of every UD send WQE.
pub mod av {
    /// Q_Key, 32 bits.
    pub const QKEY: usize = 0;
    /// Extended vector (31), destination QP number (23:0).
    pub const DQP: usize = 8;
    /// Static rate (7:4), service level (3:0); on Ethernet the priority in 3:1.
    pub const RATE_SL: usize = 12;
    /// Source path bits (6:0).
    pub const FL_MLID: usize = 13;
    /// Remote LID; on Ethernet the UDP source port.
    pub const RLID: usize = 14;
    /// Destination MAC address, 6 bytes; Ethernet only.
    pub const RMAC: usize = 20;
    /// Traffic class.
    pub const TCLASS: usize = 26;
    /// Hop limit.
    pub const HOP_LIMIT: usize = 27;
    /// GRH present (30), source GID index (27:20), flow label (19:0).
    pub const GRH_GID_FL: usize = 28;
    /// Destination GID, 16 bytes.
    pub const RGID: usize = 32;
    /// Bytes of the segment.
    pub const BYTES: usize = 48;

    /// `DQP` bit 31.
    pub const EXTENDED: u32 = 1 << 31;
    /// `GRH_GID_FL` bit 30.
    pub const GRH: u32 = 1 << 30;
}

/// XRC segment, 16 bytes, of every XRC send WQE.
pub mod xrc {
    /// Remote SRQ number (23:0).
    pub const SRQN: usize = 0;
}

/// UMR control segment, 48 bytes.
pub mod umr {
    /// Flags.
    pub const FLAGS: usize = 0;
    /// Units of the inline translation list.
    pub const KLM_OCTOWORDS: usize = 4;
    /// Which fields of the memory key change, 64 bits.
    pub const MKEY_MASK: usize = 8;
    /// Bytes of the segment.
    pub const BYTES: usize = 48;

    /// `FLAGS`: the translation list is inline.
    pub const INLINE: u8 = 0x80;
    /// `FLAGS`: fail if the key is free.
    pub const FAIL_IF_FREE: u8 = 0x40;
    /// `FLAGS`: fail if the key is not free.
    pub const FAIL_IF_NOT_FREE: u8 = 0x20;
    /// `FLAGS`: fail if the key is bound to another QP.
    pub const CHECK_QPN: u8 = 0x08;

    /// `MKEY_MASK`: length.
    pub const MASK_LEN: u64 = 1 << 0;
    /// `MKEY_MASK`: start address.
    pub const MASK_START: u64 = 1 << 6;
    /// `MKEY_MASK`: protection domain.
    pub const MASK_PD: u64 = 1 << 7;
    /// `MKEY_MASK`: key byte.
    pub const MASK_KEY: u64 = 1 << 13;
    /// `MKEY_MASK`: QP number.
    pub const MASK_QPN: u64 = 1 << 14;
    /// `MKEY_MASK`: local write.
    pub const MASK_LW: u64 = 1 << 18;
    /// `MKEY_MASK`: remote read.
    pub const MASK_RR: u64 = 1 << 19;
    /// `MKEY_MASK`: remote write.
    pub const MASK_RW: u64 = 1 << 20;
    /// `MKEY_MASK`: remote atomic.
    pub const MASK_A: u64 = 1 << 21;
    /// `MKEY_MASK`: free.
    pub const MASK_FREE: u64 = 1 << 29;
}

/// Memory key context segment, 64 bytes, of a UMR.
pub mod mkey {
    /// Free (bit 6).
    pub const FREE: usize = 0;
    /// Atomic (6), remote write (5), remote read (4), local write (3), local read (2).
    pub const ACCESS: usize = 2;
    /// QP number (31:8; all ones: any), key byte (7:0).
    pub const QPN_MKEY: usize = 4;
    /// Protection domain (23:0).
    pub const FLAGS_PD: usize = 12;
    /// Start address, 64 bits.
    pub const START_ADDR: usize = 16;
    /// Length, 64 bits.
    pub const LEN: usize = 24;
    /// Bytes of the segment.
    pub const BYTES: usize = 64;

    /// `FREE` bit 6.
    pub const FREE_BIT: u8 = 0x40;
    /// `ACCESS` bit 6.
    pub const A: u8 = 0x40;
    /// `ACCESS` bit 5.
    pub const RW: u8 = 0x20;
    /// `ACCESS` bit 4.
    pub const RR: u8 = 0x10;
    /// `ACCESS` bit 3.
    pub const LW: u8 = 0x08;
}

/// Entry of an inline translation list of a UMR (KLM), 16 bytes.
pub mod klm {
    /// Byte count, 32 bits.
    pub const BYTE_COUNT: usize = 0;
    /// Memory key that the bytes belong to.
    pub const MKEY: usize = 4;
    /// Address under that key, 64 bits.
    pub const ADDR: usize = 8;
    /// Bytes of an entry.
    pub const BYTES: usize = 16;
}

/// Head of a shared receive queue's WQE, 16 bytes; data segments follow.
pub mod srq_next {
    /// Index of the WQE to be used after this one, 16 bits.
    pub const NEXT_INDEX: usize = 2;
    /// Bytes of the head.
    pub const BYTES: usize = 16;
}
