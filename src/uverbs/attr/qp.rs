//! Queue pairs: what they are asked to be, and what they are.

use crate::uverbs::object::Handle;
use crate::uverbs::types::{Gid, Lid, Mtu, Qpn};
use std::fmt;

/// State of a queue pair (`enum ib_qp_state`). Unknown numbers are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QpState(pub u8);

#[allow(missing_docs, reason = "each constant is the C constant of the same name")]
impl QpState {
    pub const RESET: Self = Self(0);
    pub const INIT: Self = Self(1);
    pub const RTR: Self = Self(2);
    pub const RTS: Self = Self(3);
    pub const SQD: Self = Self(4);
    pub const SQE: Self = Self(5);
    pub const ERR: Self = Self(6);
}

impl QpState {
    /// The C name without its prefix, for known values.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::RESET => "RESET",
            Self::INIT => "INIT",
            Self::RTR => "RTR",
            Self::RTS => "RTS",
            Self::SQD => "SQD",
            Self::SQE => "SQE",
            Self::ERR => "ERR",
            _ => return None,
        })
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "state {}", self.0),
        }
    }
}

impl fmt::Debug for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpState({self})")
    }
}

/// Capacities of a queue pair, as asked for or as given.
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Work requests that the send queue holds.
    pub max_send_wr: u32,
    /// Work requests that the receive queue holds.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send work request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive work request.
    pub max_recv_sge: u32,
    /// Bytes that a send work request can carry itself.
    pub max_inline_data: u32,
}

/// What a queue pair is to be.
pub(crate) struct CreateQp<'a> {
    pub pd: &'a Handle,
    pub send_cq: &'a Handle,
    pub recv_cq: &'a Handle,
    /// `enum ib_uverbs_qp_type`.
    pub qp_type: u8,
    /// Every send work request completes, signaled or not.
    pub sq_sig_all: bool,
    pub cap: QpCap,
    /// Comes back in events.
    pub user_handle: u64,
}

/// A queue pair that was made.
pub(crate) struct CreatedQp {
    pub handle: Handle,
    pub qpn: Qpn,
    /// As the kernel returned it. Not every driver returns what its rings really hold.
    pub cap: QpCap,
}

/// Where a queue pair sends (`struct ib_uverbs_qp_dest`).
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID; counts if `is_global`.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The peer's LID; zero on Ethernet.
    pub dlid: Lid,
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Hop limit (time to live).
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Low bits of the own LID.
    pub src_path_bits: u8,
    /// Rate limit (`enum ib_rate`), 0 for none.
    pub static_rate: u8,
    /// Whether packets carry a global route header; always on Ethernet.
    pub is_global: bool,
    /// The port to send from; counts from 1.
    pub port_num: u8,
}

/// Bits that say which fields of [`ModifyQp`] are meant (`enum ib_qp_attr_mask`).
#[allow(missing_docs, reason = "each constant is the C constant of the same name")]
pub(crate) mod qp_attr_mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// A change to a queue pair (`struct ib_uverbs_modify_qp`); only the fields that `attr_mask` names count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ModifyQp {
    pub attr_mask: u32,
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    /// `enum ib_mtu`: see [`Mtu::raw`].
    pub path_mtu: u8,
    pub path_mig_state: u8,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub dest: AddressVector,
    pub alt_dest: AddressVector,
}

/// A queue pair's attributes (`struct ib_uverbs_query_qp_resp`), by the kernel's names.
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// State.
    pub qp_state: QpState,
    /// State that the caller believed it to be in; drivers return the state itself.
    pub cur_qp_state: QpState,
    /// Path MTU, if the kernel's number is one; none before RTR.
    pub path_mtu: Option<Mtu>,
    /// Path migration state (`enum ib_mig_state`).
    pub path_mig_state: u8,
    /// Queue key.
    pub qkey: u32,
    /// Packet sequence number expected next.
    pub rq_psn: u32,
    /// Packet sequence number sent next.
    pub sq_psn: u32,
    /// The peer's queue pair number.
    pub dest_qp_num: u32,
    /// What a peer may do (`enum ib_uverbs_access_flags`).
    pub qp_access_flags: u32,
    /// Capacities, as the driver tells them.
    pub cap: QpCap,
    /// Where it sends.
    pub dest: AddressVector,
    /// Where it would send after a migration.
    pub alt_dest: AddressVector,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the partition key after a migration.
    pub alt_pkey_index: u16,
    /// Whether the send queue is draining.
    pub sq_draining: bool,
    /// READs and atomics outstanding at once.
    pub max_rd_atomic: u8,
    /// READs and atomics answered at once.
    pub max_dest_rd_atomic: u8,
    /// Receiver-not-ready timer, encoded (IB spec 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// Port.
    pub port_num: u8,
    /// Acknowledgement time-out: 4.096 µs × 2^n, 0 for none.
    pub timeout: u8,
    /// Retries after a time-out.
    pub retry_cnt: u8,
    /// Retries after receiver-not-ready; 7 is without end.
    pub rnr_retry: u8,
    /// Port after a migration.
    pub alt_port_num: u8,
    /// Time-out after a migration.
    pub alt_timeout: u8,
    /// Whether every send work request completes.
    pub sq_sig_all: bool,
}
