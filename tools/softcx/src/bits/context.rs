//! Contexts: what firmware commands say of event queues, completion queues, queue pairs, receive queues, memory keys and ports.
//!
//! Bits are counted from the most significant one of byte 0 ([`Field`]).
#![allow(missing_docs, reason = "the names are the field tables'")]

use super::field::Field;

const fn at(bit: usize, width: usize) -> Field {
    Field::new(bit, width)
}

/// Log of a page's size minus 12 is what contexts say; the unit of a page offset is the page by this.
pub const PAGE_OFFSET_UNITS: u64 = 64;

/// Event queue context (EQC), 64 bytes.
pub mod eqc {
    use super::{Field, at};
    pub const BYTES: usize = 0x40;
    pub const PAGE_OFFSET: Field = at(0x54, 6);
    pub const LOG_SIZE: Field = at(0x63, 5);
    pub const UAR_PAGE: Field = at(0x68, 24);
    /// Vector of the interrupt.
    pub const INTR: Field = at(0xb4, 12);
    pub const LOG_PAGE_SIZE: Field = at(0xc3, 5);
    pub const CONSUMER: Field = at(0x148, 24);
    pub const PRODUCER: Field = at(0x168, 24);
}

/// Completion queue context (CQC), 64 bytes.
pub mod cqc {
    use super::{Field, at};
    pub const BYTES: usize = 0x40;
    pub const STATUS: Field = at(0x00, 4);
    /// 0: 64 bytes; 1: 128 bytes; 2: 64 bytes in 128.
    pub const ENTRY_SIZE: Field = at(0x08, 3);
    pub const IGNORE_OVERRUN: Field = at(0x0e, 1);
    pub const COMPRESS: Field = at(0x11, 1);
    /// 0: hash; 1: checksum; 3: checksum and stride index.
    pub const MINI_FORMAT: Field = at(0x12, 2);
    pub const PAGE_OFFSET: Field = at(0x54, 6);
    pub const LOG_SIZE: Field = at(0x63, 5);
    pub const UAR_PAGE: Field = at(0x68, 24);
    /// Moderation, in microseconds.
    pub const PERIOD: Field = at(0x84, 12);
    pub const MAX_COUNT: Field = at(0x90, 16);
    pub const EQN: Field = at(0xa0, 32);
    pub const LOG_PAGE_SIZE: Field = at(0xc3, 5);
    pub const PRODUCER: Field = at(0x168, 24);
    /// Bus address of the doorbell record.
    pub const RECORD: Field = at(0x1c0, 64);
}

/// Queue pair context (QPC), 232 bytes.
pub mod qpc {
    use super::{Field, at};
    pub const BYTES: usize = 0xe8;
    pub const STATE: Field = at(0x00, 4);
    pub const SERVICE_TYPE: Field = at(0x08, 8);
    pub const PM_STATE: Field = at(0x13, 2);
    pub const BLOCK_LOOPBACK: Field = at(0x21, 1);
    pub const PD: Field = at(0x28, 24);
    pub const MTU: Field = at(0x40, 3);
    pub const LOG_RQ_SIZE: Field = at(0x49, 4);
    /// Log of the bytes of a WQE, minus 4.
    pub const LOG_RQ_STRIDE: Field = at(0x4d, 3);
    pub const NO_SQ: Field = at(0x50, 1);
    pub const LOG_SQ_SIZE: Field = at(0x51, 4);
    pub const UAR_PAGE: Field = at(0x68, 24);
    pub const USER_INDEX: Field = at(0x88, 24);
    pub const LOG_PAGE_SIZE: Field = at(0xa3, 5);
    pub const REMOTE_QPN: Field = at(0xa8, 24);
    /// Byte of the primary address path ([`ads`](super::ads)).
    pub const PRIMARY_PATH: usize = 0x18;
    pub const LOG_SRA_MAX: Field = at(0x388, 3);
    pub const RETRY_COUNT: Field = at(0x38d, 3);
    pub const RNR_RETRY: Field = at(0x390, 3);
    pub const NEXT_SEND_PSN: Field = at(0x3c8, 24);
    pub const CQN_SEND: Field = at(0x3e8, 24);
    pub const LOG_RRA_MAX: Field = at(0x488, 3);
    pub const REMOTE_READ: Field = at(0x490, 1);
    pub const REMOTE_WRITE: Field = at(0x491, 1);
    pub const REMOTE_ATOMIC: Field = at(0x492, 1);
    pub const PAGE_OFFSET: Field = at(0x494, 6);
    pub const MIN_RNR_NAK: Field = at(0x4a3, 5);
    pub const NEXT_RECV_PSN: Field = at(0x4a8, 24);
    pub const XRCD: Field = at(0x4c8, 24);
    pub const CQN_RECV: Field = at(0x4e8, 24);
    pub const RECORD: Field = at(0x500, 64);
    pub const QKEY: Field = at(0x540, 32);
    /// 0: a ring of its own; 1: a shared one; 3: none.
    pub const RQ_TYPE: Field = at(0x565, 3);
    pub const SRQN: Field = at(0x568, 24);
    pub const HW_SQ_COUNTER: Field = at(0x5a0, 16);
    pub const SW_SQ_COUNTER: Field = at(0x5b0, 16);
    /// What a READ's completion may carry; zero: nothing.
    pub const CS_REQ: Field = at(0x630, 8);
    /// What a receive completion may carry; zero: nothing.
    pub const CS_RES: Field = at(0x638, 8);

    /// Values of [`SERVICE_TYPE`].
    pub mod service {
        pub const RC: u32 = 0x0;
        pub const UC: u32 = 0x1;
        pub const UD: u32 = 0x2;
        pub const XRC: u32 = 0x3;
        pub const QP0: u32 = 0x7;
        pub const QP1: u32 = 0x8;
        pub const REG_UMR: u32 = 0xc;
    }

    /// Values of [`STATE`].
    pub mod state {
        pub const RESET: u64 = 0;
        pub const INIT: u64 = 1;
        pub const RTR: u64 = 2;
        pub const RTS: u64 = 3;
        pub const SQ_ERROR: u64 = 4;
        pub const SQ_DRAINED: u64 = 5;
        pub const ERROR: u64 = 6;
    }

    /// Values of [`PM_STATE`].
    pub const MIGRATED: u64 = 3;

    /// Bits of the mask that says which fields of a transition count besides those that it needs.
    pub mod optional {
        pub const REMOTE_READ: u32 = 1 << 1;
        pub const REMOTE_ATOMIC: u32 = 1 << 2;
        pub const REMOTE_WRITE: u32 = 1 << 3;
        pub const PKEY_INDEX: u32 = 1 << 4;
        pub const QKEY: u32 = 1 << 5;
        pub const RNR_TIMEOUT: u32 = 1 << 6;
        pub const PRIMARY_PORT: u32 = 1 << 16;
    }
}

/// Address path (ADS), 44 bytes.
pub mod ads {
    use super::{Field, at};
    pub const BYTES: usize = 0x2c;
    pub const PKEY_INDEX: Field = at(0x10, 16);
    pub const GRH: Field = at(0x28, 1);
    /// Source path bits.
    pub const MLID: Field = at(0x29, 7);
    pub const RLID: Field = at(0x30, 16);
    pub const ACK_TIMEOUT: Field = at(0x40, 5);
    pub const SRC_ADDR_INDEX: Field = at(0x48, 8);
    pub const STAT_RATE: Field = at(0x54, 4);
    pub const HOP_LIMIT: Field = at(0x58, 8);
    pub const TCLASS: Field = at(0x64, 8);
    pub const FLOW_LABEL: Field = at(0x6c, 20);
    /// Byte of the destination's GID.
    pub const RGID: usize = 0x10;
    pub const UDP_SPORT: Field = at(0x110, 16);
    pub const SL: Field = at(0x124, 4);
    pub const PORT: Field = at(0x128, 8);
    /// Byte of the destination's Ethernet address.
    pub const RMAC: usize = 0x26;
}

/// Memory key context (MKC), 64 bytes.
pub mod mkc {
    use super::{Field, at};
    pub const BYTES: usize = 0x40;
    pub const FREE: Field = at(0x01, 1);
    pub const ACCESS_MODE_HIGH: Field = at(0x03, 3);
    pub const UMR_ENABLE: Field = at(0x10, 1);
    pub const ATOMIC: Field = at(0x11, 1);
    pub const REMOTE_WRITE: Field = at(0x12, 1);
    pub const REMOTE_READ: Field = at(0x13, 1);
    pub const LOCAL_WRITE: Field = at(0x14, 1);
    pub const LOCAL_READ: Field = at(0x15, 1);
    pub const ACCESS_MODE_LOW: Field = at(0x16, 2);
    pub const QPN: Field = at(0x20, 24);
    /// Low byte of the key.
    pub const VARIANT: Field = at(0x38, 8);
    /// The length is 2^64.
    pub const LENGTH_64: Field = at(0x60, 1);
    pub const PD: Field = at(0x68, 24);
    pub const START: Field = at(0x80, 64);
    pub const LEN: Field = at(0xc0, 64);
    /// Entries of the translation list, in units of 16 bytes.
    pub const OCTOWORDS: Field = at(0x1a0, 32);
    pub const LOG_PAGE_SIZE: Field = at(0x1da, 6);

    /// Access modes.
    pub mod mode {
        /// Bus addresses as they are.
        pub const PHYSICAL: u64 = 0;
        /// A list of pages.
        pub const PAGES: u64 = 1;
        /// A list of ranges of other keys.
        pub const KEYS: u64 = 2;
    }
}

/// XRC shared receive queue context (XRC_SRQC), 64 bytes.
pub mod xrc_srqc {
    use super::{Field, at};
    pub const BYTES: usize = 0x40;
    pub const STATE: Field = at(0x00, 4);
    pub const LOG_SIZE: Field = at(0x04, 4);
    /// Log of the bytes of a WQE, minus 4.
    pub const LOG_STRIDE: Field = at(0x25, 3);
    pub const XRCD: Field = at(0x28, 24);
    pub const PAGE_OFFSET: Field = at(0x40, 6);
    pub const CQN: Field = at(0x48, 24);
    pub const LOG_PAGE_SIZE: Field = at(0x82, 6);
    pub const USER_INDEX: Field = at(0x88, 24);
    pub const PD: Field = at(0xc8, 24);
    pub const LIMIT: Field = at(0xe0, 16);
    pub const RECORD: Field = at(0x140, 64);
}

/// Work queue (WQ) of a receive memory pool context (RMPC), which it follows at byte 48; page list at byte 192.
pub mod wq {
    use super::{Field, at};
    /// Byte of the work queue in the receive memory pool context and in the send queue context.
    pub const IN_RMPC: usize = 0x30;
    /// Byte of the page list.
    pub const PAGES: usize = 0xc0;
    pub const PAGE_OFFSET: Field = at(0x2b, 5);
    pub const LIMIT: Field = at(0x30, 16);
    pub const PD: Field = at(0x48, 24);
    pub const UAR_PAGE: Field = at(0x68, 24);
    pub const RECORD: Field = at(0x80, 64);
    /// Log of the bytes of a WQE.
    pub const LOG_STRIDE: Field = at(0x10c, 4);
    pub const LOG_PAGE_SIZE: Field = at(0x113, 5);
    pub const LOG_SIZE: Field = at(0x11b, 5);
}

/// Send queue context (SQC), of send queues by themselves; its work queue ([`wq`]) follows at byte 48.
pub mod sqc {
    use super::{Field, at};
    /// 0: reset; 1: ready; 3: error.
    pub const STATE: Field = at(0x08, 4);
    pub const USER_INDEX: Field = at(0x28, 24);
    pub const CQN: Field = at(0x48, 24);
    pub const READY: u64 = 1;
}

/// State of a receive memory pool (RMPC): 1 is ready.
pub const RMP_STATE: Field = at(0x08, 4);

/// Virtual port context of an InfiniBand port, 512 bytes.
pub mod vport {
    use super::{Field, at};
    pub const BYTES: usize = 0x200;
    pub const PHYSICAL_STATE: Field = at(0x110, 4);
    pub const PORT_STATE: Field = at(0x118, 4);
    pub const STATE: Field = at(0x11c, 4);
    pub const SYSTEM_GUID: Field = at(0x140, 64);
    pub const PORT_GUID: Field = at(0x180, 64);
    pub const NODE_GUID: Field = at(0x1c0, 64);
    pub const CAPABILITIES: Field = at(0x200, 32);
    /// Those that can be changed; of a change, those that it is about.
    pub const CAPABILITIES_SELECT: Field = at(0x220, 32);
    pub const LID: Field = at(0x300, 16);
    pub const SUBNET_TIMEOUT: Field = at(0x31b, 5);
    pub const SM_LID: Field = at(0x320, 16);
}
