//! The completion queue element: its layout, what its numbers mean, and who owns it. Formats only.
//!
//! An element is 64 bytes, all big endian. In a queue of 128-byte entries it is the *second* half; the first holds nothing
//! but inline data. Names are those of `mlx5dv.h` of rdma-core.

use crate::uverbs::abi::layout;
use crate::uverbs::wr::WcStatus;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an element without the inline half.
pub const CQE_BYTES: usize = 64;
/// What an element's last byte is before the device has ever written it: of no opcode.
pub const OP_OWN_INVALID: u8 = opcode::INVALID << 4;

/// Completion queue element.
#[doc(alias = "mlx5_cqe64")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe64 {
    /// Bytes 0 to 31 are inline data instead where the format says so: nothing of them is valid then.
    pub reserved0: [u8; 2],
    pub wqe_id: U16,
    pub reserved4: [u8; 13],
    /// Bits 6:0: low bits of the LID that was sent to.
    pub ml_path: u8,
    pub reserved18: [u8; 4],
    /// The peer's LID.
    pub slid: U16,
    /// Bits 29:28 whether a global route header is there and of which kind, 27:24 service level, 23:0 the peer's queue pair.
    pub flags_rqpn: U32,
    pub hds_ip_ext: u8,
    pub l4_hdr_type_etc: u8,
    pub vlan_info: U16,
    /// Low 24 bits: the user's index of the queue pair, or of an XRC receive queue.
    pub srqn_uidx: U32,
    /// Immediate, key that was invalidated, or index of the partition key.
    pub imm_inval_pkey: U32,
    pub app: u8,
    pub app_op: u8,
    pub app_info: U16,
    /// Bytes of the message; in the first of a compressed block the number of completions.
    pub byte_cnt: U32,
    /// The device's clock when the completion was made.
    pub timestamp: U64,
    /// Bits 31:24 opcode of the send work queue element, 23:0 own queue pair number.
    pub sop_drop_qpn: U32,
    /// Index of the work queue element's first block, or of the shared receive queue's element.
    pub wqe_counter: U16,
    pub signature: u8,
    /// Bits 7:4 [`opcode`], 3:2 [`format`], 1 solicited, 0 owner.
    pub op_own: u8,
}
layout!(
    Cqe64, 64,
    wqe_id @ 2, ml_path @ 17, slid @ 22, flags_rqpn @ 24, srqn_uidx @ 32, imm_inval_pkey @ 36, app @ 40, byte_cnt @ 44,
    timestamp @ 48, sop_drop_qpn @ 56, wqe_counter @ 60, signature @ 62, op_own @ 63,
);

/// The same element when a work request failed. The other fields are where [`Cqe64`] has them.
#[doc(alias = "mlx5_err_cqe")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrCqe {
    pub reserved0: [u8; 32],
    pub srqn_uidx: U32,
    pub reserved1: [u8; 18],
    /// The device's own reason.
    pub vendor_err_synd: u8,
    /// See [`syndrome`].
    pub syndrome: u8,
    pub s_wqe_opcode_qpn: U32,
    pub wqe_counter: U16,
    pub signature: u8,
    pub op_own: u8,
}
layout!(ErrCqe, 64, srqn_uidx @ 32, vendor_err_synd @ 54, syndrome @ 55, s_wqe_opcode_qpn @ 56, wqe_counter @ 60, op_own @ 63);

/// Kinds of elements.
#[allow(dead_code, reason = "the interface as it is, also what is not used")]
pub mod opcode {
    /// A send work request is done.
    pub const REQ: u8 = 0;
    /// Received: RDMA WRITE with immediate.
    pub const RESP_WR_IMM: u8 = 1;
    /// Received: SEND.
    pub const RESP_SEND: u8 = 2;
    /// Received: SEND with immediate.
    pub const RESP_SEND_IMM: u8 = 3;
    /// Received: SEND with invalidate.
    pub const RESP_SEND_INV: u8 = 4;
    /// The queue's ring is to be left for the new one.
    pub const RESIZE_CQ: u8 = 5;
    pub const NO_PACKET: u8 = 6;
    /// A signature did not match.
    pub const SIG_ERR: u8 = 12;
    /// A send work request failed.
    pub const REQ_ERR: u8 = 13;
    /// A receive failed.
    pub const RESP_ERR: u8 = 14;
    /// Never written by the device.
    pub const INVALID: u8 = 15;
}

/// What an element carries besides its fields (bits 3:2 of its last byte).
pub mod format {
    pub const NONE: u8 = 0;
    /// Up to 32 bytes of the message, at the element's start.
    pub const INLINE_32: u8 = 1;
    /// Up to 64 bytes of the message, in the half before the element.
    pub const INLINE_64: u8 = 2;
    /// It stands for several completions.
    pub const COMPRESSED: u8 = 3;
}

/// Why a work request failed (`MLX5_CQE_SYNDROME_…`).
pub mod syndrome {
    pub const LOCAL_LENGTH: u8 = 0x01;
    pub const LOCAL_QP_OP: u8 = 0x02;
    pub const LOCAL_PROT: u8 = 0x04;
    pub const WR_FLUSH: u8 = 0x05;
    pub const MW_BIND: u8 = 0x06;
    pub const BAD_RESP: u8 = 0x10;
    pub const LOCAL_ACCESS: u8 = 0x11;
    pub const REMOTE_INVAL_REQ: u8 = 0x12;
    pub const REMOTE_ACCESS: u8 = 0x13;
    pub const REMOTE_OP: u8 = 0x14;
    pub const TRANSPORT_RETRY_EXC: u8 = 0x15;
    pub const RNR_RETRY_EXC: u8 = 0x16;
    pub const REMOTE_ABORTED: u8 = 0x22;
}

/// Kind of an element, from its last byte.
#[inline(always)]
pub const fn opcode_of(op_own: u8) -> u8 {
    op_own >> 4
}

/// Format of an element, from its last byte.
#[inline(always)]
pub const fn format_of(op_own: u8) -> u8 {
    (op_own >> 2) & 3
}

/// Whether an element is the device's answer number `ci`, from its last byte.
///
/// The device writes the owner bit as 0 on its first pass over the ring of `1 << log2_entries` entries, as 1 on its second,
/// and so on; `ci` counts answers from the queue's start.
#[inline(always)]
pub const fn is_ready(op_own: u8, ci: u32, log2_entries: u32) -> bool {
    opcode_of(op_own) != opcode::INVALID && op_own & 1 == owner_of_pass(ci, log2_entries)
}

/// The owner bit that answer number `ci` has.
#[inline(always)]
pub const fn owner_of_pass(ci: u32, log2_entries: u32) -> u8 {
    ((ci >> log2_entries) & 1) as u8
}

/// The verbs' name for a syndrome.
#[inline(always)]
pub const fn status(syndrome: u8) -> WcStatus {
    // One lookup, no branches: the table covers all syndromes that mean something but one.
    const TABLE: [u8; 0x23] = {
        let mut table = [WcStatus::GENERAL_ERR.0 as u8; 0x23];
        table[syndrome::LOCAL_LENGTH as usize] = WcStatus::LOC_LEN_ERR.0 as u8;
        table[syndrome::LOCAL_QP_OP as usize] = WcStatus::LOC_QP_OP_ERR.0 as u8;
        table[syndrome::LOCAL_PROT as usize] = WcStatus::LOC_PROT_ERR.0 as u8;
        table[syndrome::WR_FLUSH as usize] = WcStatus::WR_FLUSH_ERR.0 as u8;
        table[syndrome::MW_BIND as usize] = WcStatus::MW_BIND_ERR.0 as u8;
        table[syndrome::BAD_RESP as usize] = WcStatus::BAD_RESP_ERR.0 as u8;
        table[syndrome::LOCAL_ACCESS as usize] = WcStatus::LOC_ACCESS_ERR.0 as u8;
        table[syndrome::REMOTE_INVAL_REQ as usize] = WcStatus::REM_INV_REQ_ERR.0 as u8;
        table[syndrome::REMOTE_ACCESS as usize] = WcStatus::REM_ACCESS_ERR.0 as u8;
        table[syndrome::REMOTE_OP as usize] = WcStatus::REM_OP_ERR.0 as u8;
        table[syndrome::TRANSPORT_RETRY_EXC as usize] = WcStatus::RETRY_EXC_ERR.0 as u8;
        table[syndrome::RNR_RETRY_EXC as usize] = WcStatus::RNR_RETRY_EXC_ERR.0 as u8;
        table[syndrome::REMOTE_ABORTED as usize] = WcStatus::REM_ABORT_ERR.0 as u8;
        table
    };
    if (syndrome as usize) < TABLE.len() { WcStatus(TABLE[syndrome as usize] as u32) } else { WcStatus::GENERAL_ERR }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_has_its_status() {
        let known = [
            (0x01, 1),
            (0x02, 2),
            (0x04, 4),
            (0x05, 5),
            (0x06, 6),
            (0x10, 7),
            (0x11, 8),
            (0x12, 9),
            (0x13, 10),
            (0x14, 11),
            (0x15, 12),
            (0x16, 13),
            (0x22, 16),
        ];
        for syndrome in 0..=255 {
            let want = known.iter().find(|(s, _)| *s == syndrome).map_or(21, |(_, status)| *status);
            assert_eq!(status(syndrome).0, want, "{syndrome:#x}");
        }
    }

    /// Against the definition: pass number is `ci / entries`, and its parity the owner bit.
    #[test]
    fn the_owner_bit_is_the_parity_of_the_pass() {
        for log2 in 0..=22 {
            let n = 1_u64 << log2;
            for around in [0, n, 2 * n, 1 << 16, 1 << 24, 1 << 31, (1_u64 << 32) - 2] {
                for ci in around.saturating_sub(3)..(around + 3).min(1 << 32) {
                    let owner = ((ci / n) % 2) as u8;
                    assert_eq!(owner_of_pass(ci as u32, log2), owner);
                    for opcode in 0..15 {
                        assert!(is_ready(opcode << 4 | owner, ci as u32, log2));
                        assert!(!is_ready(opcode << 4 | (owner ^ 1), ci as u32, log2));
                    }
                    assert!(!is_ready(0xf0, ci as u32, log2) && !is_ready(0xf1, ci as u32, log2));
                }
            }
        }
    }

    /// A fresh ring of zeros or ones would be taken for completions: it must be made invalid first.
    #[test]
    fn what_a_new_entry_holds_is_not_ready_on_any_pass() {
        for ci in [0, 63, 64, u32::MAX] {
            assert!(!is_ready(OP_OWN_INVALID, ci, 6));
        }
    }
}
