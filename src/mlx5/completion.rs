//! One completion, still in its entry. Fields are read when asked for.

use super::cq_memory::Body;
use super::cqe::{self, Cqe64, opcode};
use crate::uverbs::abi::verbs;
use crate::uverbs::wc::{GRH, InlineData, WITH_IMM, WITH_INVALIDATE, Wc};
use crate::uverbs::wr::{WcOpcode, WcStatus};
use std::mem::offset_of;

const BARE: verbs::Wc = verbs::Wc {
    wr_id: 0,
    status: 0,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    ex: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
    port_num: 0,
    reserved: 0,
};

/// A completion.
#[derive(Clone, Copy)]
pub struct Cqe<'cq> {
    body: Body<'cq>,
    kind: u8,
    /// Known to be done where the entry was read, so that nobody asks again.
    failed: bool,
    opcode: WcOpcode,
    wr_id: u64,
    inside: Option<&'cq InlineData>,
}

impl<'cq> Cqe<'cq> {
    #[inline(always)]
    pub(super) fn new(body: Body<'cq>, kind: u8, wr_id: u64, opcode: WcOpcode) -> Self {
        let failed = matches!(kind, opcode::REQ_ERR | opcode::RESP_ERR);
        Self { failed, ..Self::done(body, kind, wr_id, opcode) }
    }

    /// Of a kind that is no failure.
    #[inline(always)]
    pub(super) fn done(body: Body<'cq>, kind: u8, wr_id: u64, opcode: WcOpcode) -> Self {
        Self { body, kind, failed: false, opcode, wr_id, inside: None }
    }

    /// The same, with what came inside it.
    #[inline(always)]
    pub(super) fn with(self, inside: Option<&'cq InlineData>) -> Self {
        Self { inside, ..self }
    }

    #[inline(always)]
    fn kind(self) -> u8 {
        self.kind
    }

    /// All of it. A failure says nothing beside its request, its queue pair and why.
    #[inline(always)]
    pub fn wc(self) -> Wc {
        let bare = verbs::Wc { wr_id: self.wr_id, opcode: self.opcode.0, qp_num: self.qpn(), ..BARE };
        if self.failed {
            return Wc::from_kernel(verbs::Wc { status: self.status().0, vendor_err: self.vendor_err(), ..bare });
        }
        Wc::from_kernel(match self.kind() {
            // A send tells nothing else.
            opcode::REQ => return Wc::of_send(self.wr_id, self.opcode, self.byte_len(), self.qpn()),
            kind => {
                let word = self.imm_inval_pkey();
                let (ex, flag) = match kind {
                    opcode::RESP_WR_IMM | opcode::RESP_SEND_IMM => (word.to_be(), WITH_IMM),
                    opcode::RESP_SEND_INV => (word, WITH_INVALIDATE),
                    _ => (0, 0),
                };
                verbs::Wc {
                    byte_len: self.byte_len(),
                    ex,
                    src_qp: self.src_qp(),
                    wc_flags: flag | if self.has_grh() { GRH } else { 0 },
                    pkey_index: self.pkey_index().unwrap_or(0),
                    slid: self.slid(),
                    sl: self.sl(),
                    dlid_path_bits: self.dlid_path_bits(),
                    ..bare
                }
            }
        })
    }

    /// Of the work request. Always valid.
    #[inline(always)]
    pub fn wr_id(self) -> u64 {
        self.wr_id
    }

    /// Always valid.
    #[inline(always)]
    pub fn status(self) -> WcStatus {
        if self.failed { cqe::status(self.error_word() as u8) } else { WcStatus::SUCCESS }
    }

    /// The device's own reason for an error: low byte, what it is; above it, the syndrome that the status was made of. 0 on
    /// success. Always valid.
    #[inline(always)]
    pub fn vendor_err(self) -> u32 {
        if self.failed { self.error_word() >> 8 & 0xff } else { 0 }
    }

    /// Bytes 52 to 55 of a failure: reserved, reserved, vendor's syndrome, syndrome.
    #[inline(always)]
    fn error_word(self) -> u32 {
        self.body.word::<52>()
    }

    /// Own queue pair. Always valid.
    #[inline(always)]
    pub fn qpn(self) -> u32 {
        Self::qpn_of(self.body)
    }

    /// Own queue pair of an entry.
    #[inline(always)]
    pub(super) fn qpn_of(body: Body<'_>) -> u32 {
        body.word::<{ offset_of!(Cqe64, sop_drop_qpn) }>() & 0xff_ffff
    }

    /// Always valid: a failure keeps what was asked for.
    #[inline(always)]
    pub fn opcode(self) -> WcOpcode {
        self.opcode
    }

    /// Bytes that arrived: of a receive the message, for a datagram with the 40 bytes of the global route header; of a READ
    /// or an atomic what came back. 0 of all others. Valid on success only, as are all that follow.
    #[inline(always)]
    pub fn byte_len(self) -> u32 {
        match self.opcode {
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => 8,
            WcOpcode::RDMA_READ | WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM => self.body.byte_cnt(),
            _ => 0,
        }
    }

    #[inline(always)]
    fn imm_inval_pkey(self) -> u32 {
        self.body.word::<{ offset_of!(Cqe64, imm_inval_pkey) }>()
    }

    /// Immediate data in host order, of a receive that has any.
    #[inline(always)]
    pub fn imm(self) -> Option<u32> {
        matches!(self.kind(), opcode::RESP_WR_IMM | opcode::RESP_SEND_IMM).then(|| self.imm_inval_pkey())
    }

    /// The key that the message took the meaning of, of a SEND with invalidate.
    #[inline(always)]
    pub fn invalidated_rkey(self) -> Option<u32> {
        (self.kind() == opcode::RESP_SEND_INV).then(|| self.imm_inval_pkey())
    }

    /// Index of the partition key, of a datagram without immediate.
    #[inline(always)]
    pub fn pkey_index(self) -> Option<u16> {
        (self.kind() == opcode::RESP_SEND).then(|| self.imm_inval_pkey() as u16)
    }

    #[inline(always)]
    fn flags_rqpn(self) -> u32 {
        self.body.word::<{ offset_of!(Cqe64, flags_rqpn) }>()
    }

    /// Peer's queue pair, of a datagram.
    #[inline(always)]
    pub fn src_qp(self) -> u32 {
        self.flags_rqpn() & 0xff_ffff
    }

    /// Service level, of a datagram.
    #[inline(always)]
    pub fn sl(self) -> u8 {
        (self.flags_rqpn() >> 24) as u8 & 0xf
    }

    /// Whether the first 40 bytes of the buffer are a global route header, of a datagram.
    #[inline(always)]
    pub fn has_grh(self) -> bool {
        self.flags_rqpn() >> 28 & 3 != 0
    }

    /// The peer's LID, of a datagram on InfiniBand.
    #[inline(always)]
    pub fn slid(self) -> u16 {
        self.body.word::<20>() as u16
    }

    /// Low bits of the LID that was sent to, of a datagram on InfiniBand.
    #[inline(always)]
    pub fn dlid_path_bits(self) -> u8 {
        (self.body.word::<16>() >> 16) as u8 & 0x7f
    }

    /// Whether the sender asked for an event.
    #[inline(always)]
    pub fn is_solicited(self) -> bool {
        self.body.op_own() & 2 != 0
    }

    /// The device's clock when the completion was made: ticks, or with real-time stamps seconds in the upper and nanoseconds
    /// in the lower half.
    #[inline(always)]
    pub fn timestamp(self) -> u64 {
        u64::from(self.body.word::<48>()) << 32 | u64::from(self.body.word::<52>())
    }

    /// What came inside the completion, of a queue pair that asked for that; else it is in the memory that the work request
    /// named. An entry says nothing of where a message came from if it carries the message.
    #[inline(always)]
    pub fn inline_data(self) -> Option<&'cq InlineData> {
        self.inside
    }
}
