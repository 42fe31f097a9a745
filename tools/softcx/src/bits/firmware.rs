//! The firmware's interface: the initialization segment, the command queue and its mailboxes, commands and their statuses.
#![allow(missing_docs, reason = "the names are the field tables'")]

/// The initialization segment, at the start of the BAR; big-endian 32-bit registers.
pub mod segment {
    /// Minor (31:16) and major (15:0) firmware revision.
    pub const FW_REV: u64 = 0x0;
    /// Revision of the command interface (31:16), subminor firmware revision (15:0).
    pub const CMDIF_REV_FW_SUB: u64 = 0x4;
    /// Bus address of the command queue, high half.
    pub const CMDQ_ADDR_HIGH: u64 = 0x10;
    /// Low half (31:12); state of the driver's interface (10:8); log of the entries (7:4) and of the bytes from one to the
    /// next (3:0).
    pub const CMDQ_ADDR_LOW: u64 = 0x14;
    /// A bit for each entry of the command queue that is the firmware's.
    pub const CMD_DOORBELL: u64 = 0x18;
    /// Firmware is not ready (31).
    pub const INITIALIZING: u64 = 0x1fc;
    /// Health buffer, 64 bytes.
    pub const HEALTH: u64 = 0x200;
    /// Free-running clock, 64 bits.
    pub const TIMER_HIGH: u64 = 0x1000;
    pub const TIMER_LOW: u64 = 0x1004;
    /// Counts while the firmware lives.
    pub const HEALTH_COUNTER: u64 = 0x1010;
    /// End of the last register that there is.
    pub const END: u64 = 0x3000;

    /// Offsets in the health buffer.
    pub mod health {
        pub const FW_VERSION: u64 = 0x30;
        pub const HW_ID: u64 = 0x34;
        /// The driver has to reset the function (7), severity (2:0).
        pub const RFR_SEVERITY: u64 = 0x38;
        pub const SYNDROME: u64 = 0x3d;
    }
}

/// Doorbells of event queues, 4 bytes, in a UAR page: number (31:24), consumer index (23:0).
pub mod eq_doorbell {
    /// Interrupt when there is more.
    pub const ARM: usize = 0x40;
    pub const NO_ARM: usize = 0x48;
}

/// An entry of the command queue, 64 bytes.
pub mod entry {
    pub const BYTES: usize = 64;
    pub const TYPE: usize = 0;
    /// Commands through this queue.
    pub const TYPE_PCI: u8 = 7;
    pub const IN_LEN: usize = 4;
    pub const IN_PTR: usize = 8;
    /// First 16 bytes of the input.
    pub const IN: usize = 16;
    /// First 16 bytes of the output.
    pub const OUT: usize = 32;
    /// Bytes of input and output in the entry itself.
    pub const INLINE_BYTES: usize = 16;
    pub const OUT_PTR: usize = 48;
    pub const OUT_LEN: usize = 56;
    pub const TOKEN: usize = 60;
    /// Makes the exclusive or of all bytes 0xff.
    pub const SIGNATURE: usize = 61;
    /// Delivery status (7:1), ownership (0; 1 is the firmware's).
    pub const STATUS_OWN: usize = 63;
}

/// A block of a mailbox, 576 bytes.
pub mod block {
    pub const BYTES: usize = 576;
    pub const DATA_BYTES: usize = 512;
    /// Blocks begin at multiples of this.
    pub const ALIGN: u64 = 512;
    /// Bus address of the next block.
    pub const NEXT: usize = 560;
    pub const NUMBER: usize = 568;
    pub const TOKEN: usize = 573;
    /// Makes the exclusive or of the bytes behind the data, the last left out, 0xff.
    pub const CONTROL_SIGNATURE: usize = 574;
    /// Makes the exclusive or of all bytes 0xff.
    pub const SIGNATURE: usize = 575;
}

/// Delivery statuses.
pub mod delivery {
    pub const OK: u8 = 0x0;
    pub const SIGNATURE: u8 = 0x1;
    pub const TOKEN: u8 = 0x2;
    pub const BLOCK_NUMBER: u8 = 0x3;
    pub const OUT_ALIGN: u8 = 0x4;
    pub const IN_ALIGN: u8 = 0x5;
    pub const FIRMWARE: u8 = 0x6;
    pub const IN_LEN: u8 = 0x7;
    pub const OUT_LEN: u8 = 0x8;
    pub const TYPE: u8 = 0x10;
}

/// Statuses of commands, the first byte of the output.
pub mod status {
    pub const OK: u8 = 0x00;
    pub const INTERNAL: u8 = 0x01;
    pub const BAD_OPCODE: u8 = 0x02;
    pub const BAD_PARAM: u8 = 0x03;
    pub const BAD_SYSTEM_STATE: u8 = 0x04;
    pub const BAD_RESOURCE: u8 = 0x05;
    pub const RESOURCE_BUSY: u8 = 0x06;
    pub const LIMIT: u8 = 0x08;
    pub const BAD_RESOURCE_STATE: u8 = 0x09;
    pub const BAD_INDEX: u8 = 0x0a;
    pub const NO_RESOURCES: u8 = 0x0f;
    pub const BAD_QP_STATE: u8 = 0x10;
    pub const BAD_INPUT_LEN: u8 = 0x50;
    pub const BAD_OUTPUT_LEN: u8 = 0x51;
}

/// Event types that only firmware commands are about.
pub mod event {
    pub const COMMAND: u8 = 0x0a;
}

/// Registers that ACCESS_REG reads and writes.
pub mod register {
    pub const PMTU: u16 = 0x5003;
    pub const PTYS: u16 = 0x5004;
    pub const PVLC: u16 = 0x500f;
    pub const NODE_DESCRIPTION: u16 = 0x6001;
    pub const HOST_ENDIANNESS: u16 = 0x7004;
}

macro_rules! opcodes {
    ($($name:ident $code:literal,)*) => {
        /// Opcodes, the first 16 bits of the input.
        pub mod opcode {
            $(pub const $name: u16 = $code;)*

            /// The name of an opcode that this device knows.
            pub fn name(opcode: u16) -> Option<&'static str> {
                match opcode {
                    $($name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    QUERY_HCA_CAP 0x100,
    QUERY_ADAPTER 0x101,
    INIT_HCA 0x102,
    TEARDOWN_HCA 0x103,
    ENABLE_HCA 0x104,
    DISABLE_HCA 0x105,
    QUERY_PAGES 0x107,
    MANAGE_PAGES 0x108,
    SET_HCA_CAP 0x109,
    QUERY_ISSI 0x10a,
    SET_ISSI 0x10b,
    SET_DRIVER_VERSION 0x10d,
    CREATE_MKEY 0x200,
    QUERY_MKEY 0x201,
    DESTROY_MKEY 0x202,
    QUERY_SPECIAL_CONTEXTS 0x203,
    CREATE_EQ 0x301,
    DESTROY_EQ 0x302,
    QUERY_EQ 0x303,
    CREATE_CQ 0x400,
    DESTROY_CQ 0x401,
    QUERY_CQ 0x402,
    MODIFY_CQ 0x403,
    CREATE_QP 0x500,
    DESTROY_QP 0x501,
    RST2INIT_QP 0x502,
    INIT2RTR_QP 0x503,
    RTR2RTS_QP 0x504,
    RTS2RTS_QP 0x505,
    SQERR2RTS_QP 0x506,
    TO_ERR_QP 0x507,
    TO_RST_QP 0x50a,
    QUERY_QP 0x50b,
    SQD_RTS_QP 0x50c,
    MAD_IFC 0x50d,
    INIT2INIT_QP 0x50e,
    CREATE_XRC_SRQ 0x705,
    DESTROY_XRC_SRQ 0x706,
    QUERY_XRC_SRQ 0x707,
    ARM_XRC_SRQ 0x708,
    QUERY_HCA_VPORT_CONTEXT 0x762,
    MODIFY_HCA_VPORT_CONTEXT 0x763,
    QUERY_HCA_VPORT_GID 0x764,
    QUERY_HCA_VPORT_PKEY 0x765,
    ALLOC_Q_COUNTER 0x771,
    DEALLOC_Q_COUNTER 0x772,
    QUERY_Q_COUNTER 0x773,
    ALLOC_PD 0x800,
    DEALLOC_PD 0x801,
    ALLOC_UAR 0x802,
    DEALLOC_UAR 0x803,
    ACCESS_REG 0x805,
    ATTACH_TO_MCG 0x806,
    DETACH_FROM_MCG 0x807,
    NOP 0x80d,
    ALLOC_XRCD 0x80e,
    DEALLOC_XRCD 0x80f,
    ALLOC_TRANSPORT_DOMAIN 0x816,
    DEALLOC_TRANSPORT_DOMAIN 0x817,
    CREATE_SQ 0x904,
    MODIFY_SQ 0x905,
    DESTROY_SQ 0x906,
    CREATE_RMP 0x90c,
    MODIFY_RMP 0x90d,
    DESTROY_RMP 0x90e,
    QUERY_RMP 0x90f,
}
