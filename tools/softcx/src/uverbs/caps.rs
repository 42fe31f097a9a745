//! What the device says it can do.

/// Queue pairs, as a power of two.
pub(super) const LOG2_MAX_QP: u32 = 17;
/// Basic blocks of a send ring, and WQEs of a receive ring, as a power of two.
pub(super) const LOG2_MAX_QP_SIZE: u32 = 15;
/// WQEs of an SRQ, as a power of two.
pub(super) const LOG2_MAX_SRQ_SIZE: u32 = 15;
/// Entries of a CQ, as a power of two.
pub(super) const LOG2_MAX_CQ_SIZE: u32 = 22;
/// Bytes of a send WQE.
pub(super) const MAX_SEND_WQE_BYTES: u16 = 1024;
/// Bytes of a receive WQE.
pub(super) const MAX_RECV_WQE_BYTES: u16 = 512;
/// READs and atomics outstanding per queue pair, as requester and responder, as a power of two.
pub(super) const LOG2_MAX_RD_ATOMIC: u32 = 4;
/// Longest message.
pub(super) const MAX_MESSAGE_BYTES: u32 = 1 << 30;
/// Completion vectors.
pub(super) const COMP_VECTORS: u32 = 4;
/// Data segments of a send WQE: (512 - control 16 - remote address 16) / 16.
pub(super) const MAX_SEND_SGE: u32 = 30;
/// Data segments of an SRQ's WQE: one unit less than of a receive ring's.
pub(super) const MAX_SRQ_SGE: u32 = 31;
/// What `max_qp_wr` says: a send ring of the largest WQE of any kind, as the driver of 6.12 computes it.
pub(super) const MAX_QP_WR: u32 = (64 << LOG2_MAX_QP_SIZE) / 256;
/// UAR pages that a file may make.
pub(super) const MAX_DYNAMIC_UARS: u32 = 1024;
/// PCI vendor.
pub(super) const VENDOR_ID: u32 = 0x2c9;
/// PCI device of a ConnectX-5.
pub(super) const PART_ID: u32 = 0x1017;
/// "16.35.4030", as the kernel packs it.
pub(super) const FIRMWARE: u64 = 16 << 32 | 35 << 16 | 4030;
/// The same in words.
pub(super) const FIRMWARE_TEXT: &str = "16.35.4030";

/// Bits of `device_cap_flags`: bad P_Key and Q_Key counters, change of physical port, port active event, system image GUID,
/// RNR NAK, memory windows, XRC, management extensions, windows of type 2B.
pub(super) const DEVICE_CAP_FLAGS: u32 =
    1 << 1 | 1 << 2 | 1 << 4 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;

/// Period of moderation of completion events, in µs.
pub(super) const MAX_MODERATION_US: u16 = (1 << 12) - 1;
