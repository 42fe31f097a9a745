//! Capabilities (HCA_CAP): what the firmware says that the device can do.
//!
//! Bits are counted from the most significant one of byte 0 ([`Field`]).
#![allow(missing_docs, reason = "the names are the field tables'")]

use super::field::Field;

/// Bytes of the capabilities of one type that have a meaning.
pub const BYTES: usize = 0x100;
/// Bytes that a query answers.
pub const AREA_BYTES: usize = 0x1000;

/// Types of capabilities.
pub mod kind {
    pub const GENERAL: u16 = 0x0;
    pub const ATOMIC: u16 = 0x3;
}

/// Atomic capabilities.
pub mod atomic {
    use super::Field;
    /// 1: results in the host's byte order.
    pub const HOST_ORDER: Field = Field::new(0x40, 2);
    pub const HOST_ORDER_SUPPORTED: Field = Field::new(0x46, 1);
    /// Compare and swap (0), fetch and add (1), their masked forms (2, 3).
    pub const OPERATIONS: Field = Field::new(0x90, 16);
    /// Bit n: operands of 2^n bytes.
    pub const SIZES: Field = Field::new(0xb0, 16);
}

macro_rules! fields {
    ($($name:ident $bit:literal $width:literal,)*) => {
        /// General capabilities.
        pub mod general {
            use super::Field;
            $(pub const $name: Field = Field::new($bit, $width);)*
        }
    };
}

fields! {
    LOG_MAX_SRQ_SZ 0x80 8,
    LOG_MAX_QP_SZ 0x88 8,
    LOG_MAX_QP 0x9b 5,
    LOG_MAX_SRQ 0xab 5,
    LOG_MAX_CQ_SZ 0xc8 8,
    LOG_MAX_CQ 0xdb 5,
    LOG_MAX_EQ_SZ 0xe0 8,
    LOG_MAX_MKEY 0xea 6,
    LOG_MAX_EQ 0xfc 4,
    MAX_INDIRECTION 0x100 8,
    FIXED_BUFFER_SIZE 0x108 1,
    LOG_MAX_MRW_SZ 0x109 7,
    LOG_MAX_KLM_LIST_SIZE 0x11a 6,
    LOG_MAX_RA_REQ_QP 0x14a 6,
    LOG_MAX_RA_RES_QP 0x15a 6,
    GID_TABLE_SIZE 0x170 16,
    RETRANSMISSION_Q_COUNTERS 0x182 1,
    MAX_QP_CNT 0x186 10,
    PKEY_TABLE_SIZE 0x190 16,
    VPORT_GROUP_MANAGER 0x1a0 1,
    IB_VIRT 0x1a2 1,
    LOCAL_CA_ACK_DELAY 0x1ab 5,
    PORT_TYPE 0x1b6 2,
    NUM_PORTS 0x1b8 8,
    LOG_MAX_MSG 0x1c3 5,
    STAT_RATE_SUPPORT 0x1e0 16,
    CQE_VERSION 0x1fc 4,
    UMR_MODIFY_ENTITY_SIZE_DISABLED 0x207 1,
    UMR_INDIRECT_MKEY_DISABLED 0x209 1,
    UMR_FENCE 0x20a 2,
    SCTR_DATA_CQE 0x215 1,
    ATOMIC 0x21e 1,
    CQ_OI 0x220 1,
    CQ_RESIZE 0x221 1,
    CQ_MODERATION 0x222 1,
    BLOCK_LB_MC 0x228 1,
    SCQE_BREAK_MODERATION 0x22a 1,
    UMR_PTR_RLKY 0x230 1,
    IMAICL 0x231 1,
    QKV 0x236 1,
    PKV 0x237 1,
    XRC 0x23c 1,
    UD 0x23d 1,
    UC 0x23e 1,
    RC 0x23f 1,
    UAR_4K 0x240 1,
    UAR_SZ 0x24a 6,
    LOG_PG_SZ 0x258 8,
    BF 0x260 1,
    DRIVER_VERSION 0x261 1,
    LOG_BF_REG_SIZE 0x26b 5,
    MAX_WQE_SZ_SQ 0x290 16,
    MAX_WQE_SZ_RQ 0x2b0 16,
    MAX_WQE_SZ_SQ_DC 0x2d0 16,
    MAX_QP_MCG 0x2e7 25,
    LOG_MAX_MCG 0x318 8,
    LOG_MAX_TRANSPORT_DOMAIN 0x323 5,
    LOG_MAX_PD 0x32b 5,
    LOG_MAX_XRCD 0x33b 5,
    LOG_MAX_SQ 0x36b 5,
    MAX_NUM_EQS 0x470 16,
    DEVICE_FREQUENCY_MHZ 0x4c0 32,
    DEVICE_FREQUENCY_KHZ 0x4e0 32,
    NUM_OF_UARS_PER_PAGE 0x520 32,
    MINI_CQE_RESP_STRIDE_INDEX 0x5bc 1,
    CQE_COMPRESSION 0x5bf 1,
    CQE_COMPRESSION_MAX_NUM 0x5d0 16,
}
