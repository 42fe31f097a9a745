//! Event queue entries (EQE), 64 bytes.

use super::put;

/// Bytes of an entry.
pub const BYTES: usize = 64;
/// Event type.
pub const TYPE: usize = 1;
/// Event subtype.
pub const SUBTYPE: usize = 3;
/// Event data, 28 bytes.
pub const DATA: usize = 32;
/// Owner bit: pass number of the ring, 0 in the first.
pub const OWNER: usize = 63;

/// `TYPE`.
#[allow(missing_docs, reason = "the names are the device's")]
pub mod kind {
    pub const COMPLETION: u8 = 0x00;
    pub const PATH_MIG: u8 = 0x01;
    pub const COMM_EST: u8 = 0x02;
    pub const SQ_DRAINED: u8 = 0x03;
    pub const CQ_ERROR: u8 = 0x04;
    pub const WQ_CATAS_ERROR: u8 = 0x05;
    pub const INTERNAL_ERROR: u8 = 0x08;
    pub const PORT_CHANGE: u8 = 0x09;
    pub const WQ_INVAL_REQ_ERROR: u8 = 0x10;
    pub const WQ_ACCESS_ERROR: u8 = 0x11;
    pub const SRQ_CATAS_ERROR: u8 = 0x12;
    pub const SRQ_LAST_WQE: u8 = 0x13;
    pub const SRQ_RQ_LIMIT: u8 = 0x14;
}

/// `SUBTYPE` of a port change.
#[allow(missing_docs, reason = "the names are the device's")]
pub mod port {
    pub const DOWN: u8 = 1;
    pub const ACTIVE: u8 = 4;
    pub const LID: u8 = 6;
    pub const PKEY: u8 = 7;
    pub const GUID: u8 = 8;
    pub const CLIENT_REREGISTER: u8 = 9;
}

/// An entry with a 24-bit object number at byte 24 of its data (completion, QP and SRQ events).
pub fn of_object(kind: u8, number: u32) -> [u8; BYTES] {
    let mut eqe = [0; BYTES];
    eqe[TYPE] = kind;
    put(&mut eqe, DATA + 24, &number.to_be_bytes());
    eqe
}

/// A CQ error: number at byte 0 of the data, syndrome (1: overrun) at byte 11.
pub fn of_cq_error(cqn: u32, syndrome: u8) -> [u8; BYTES] {
    let mut eqe = [0; BYTES];
    eqe[TYPE] = kind::CQ_ERROR;
    put(&mut eqe, DATA, &cqn.to_be_bytes());
    eqe[DATA + 11] = syndrome;
    eqe
}

/// A port change: port number in the high half of byte 8 of the data.
pub fn of_port(subtype: u8, port: u8) -> [u8; BYTES] {
    let mut eqe = [0; BYTES];
    eqe[TYPE] = kind::PORT_CHANGE;
    eqe[SUBTYPE] = subtype;
    eqe[DATA + 8] = port << 4;
    eqe
}
