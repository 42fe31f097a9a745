//! Completion queue entries (CQE): what the device writes into completion rings.
//!
//! A CQE is 64 bytes. In a ring of 128-byte entries it is the *second* half; the first half carries inline data or is left
//! alone.

use super::put;

/// Bytes of the entry itself, in either size of ring.
pub const BYTES: usize = 64;

/// Source LID, 16 bits (UD, InfiniBand).
pub const SLID: usize = 22;
/// Multicast path (bit 7), destination path bits (6:0).
pub const ML_PATH: usize = 17;
/// GRH (29:28), service level (27:24; on Ethernet the L3 type in 25:24), remote QP number (23:0).
pub const FLAGS_RQPN: usize = 24;
/// Header and checksum flags; bit 0 of byte 28 set with others where the checksum was verified.
pub const HDS_IP_EXT: usize = 28;
/// User index of the QP or SRQ (23:0; CQE version 1), else the SRQ number.
pub const SRQN_UIDX: usize = 32;
/// Immediate data or invalidated key; for UD the P_Key index in bits 15:0 where there is neither.
pub const IMM_INVAL_PKEY: usize = 36;
/// Bytes received, or read.
pub const BYTE_CNT: usize = 44;
/// Time stamp, 64 bits, of the free-running core clock.
pub const TIMESTAMP: usize = 48;
/// Vendor's error syndrome (error CQE).
pub const VENDOR_ERR: usize = 54;
/// Error syndrome (error CQE).
pub const SYNDROME: usize = 55;
/// Send opcode (31:24), QP number (23:0).
pub const SOP_QPN: usize = 56;
/// Send: WQE index (BBs since reset). Receive: index of the WQE.
pub const WQE_COUNTER: usize = 60;
/// Signature byte.
pub const SIGNATURE: usize = 62;
/// Opcode (7:4), format (3:2), solicited event (1), owner (0).
pub const OP_OWN: usize = 63;

/// `OP_OWN` 1: solicited event.
pub const SOLICITED: u8 = 1 << 1;
/// `OP_OWN` 3:2 = 1: the first 32 bytes of the entry are received data.
pub const FORMAT_INLINE_32: u8 = 1 << 2;
/// `OP_OWN` 3:2 = 2: the 64 bytes before the entry are received data.
pub const FORMAT_INLINE_64: u8 = 2 << 2;

/// `OP_OWN` 7:4.
#[allow(missing_docs, reason = "the names are the device's")]
pub mod opcode {
    pub const REQ: u8 = 0;
    pub const RESP_WRITE_IMM: u8 = 1;
    pub const RESP_SEND: u8 = 2;
    pub const RESP_SEND_IMM: u8 = 3;
    pub const RESP_SEND_INV: u8 = 4;
    pub const RESIZE: u8 = 5;
    pub const REQ_ERR: u8 = 13;
    pub const RESP_ERR: u8 = 14;
    pub const INVALID: u8 = 15;
}

/// One entry in the making. The owner bit is the ring's to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// The 64 bytes, owner bit clear.
    pub body: [u8; BYTES],
    /// What goes into the 64 bytes before the body, in rings of 128-byte entries.
    pub before: Option<[u8; 64]>,
}

impl Cqe {
    /// An entry of `opcode` for `qpn`; `user_index` goes to 23:0 of `SRQN_UIDX`.
    pub fn new(opcode: u8, qpn: u32, user_index: u32, wqe_counter: u16) -> Self {
        let mut cqe = Self { body: [0; BYTES], before: None };
        cqe.put(SRQN_UIDX, &(user_index & 0xff_ffff).to_be_bytes());
        cqe.put(SOP_QPN, &(qpn & 0xff_ffff).to_be_bytes());
        cqe.put(WQE_COUNTER, &wqe_counter.to_be_bytes());
        cqe.put(OP_OWN, &[opcode << 4]);
        cqe
    }

    /// Stores a field.
    pub fn put(&mut self, at: usize, value: &[u8]) -> &mut Self {
        put(&mut self.body, at, value);
        self
    }

    /// Opcode (`OP_OWN` 7:4).
    pub fn opcode(&self) -> u8 {
        self.body[OP_OWN] >> 4
    }

    /// Whether the entry wakes a queue armed for solicited ones only: it is solicited, or an error.
    pub fn is_solicited(&self) -> bool {
        self.body[OP_OWN] & SOLICITED != 0 || matches!(self.opcode(), opcode::REQ_ERR | opcode::RESP_ERR)
    }
}
