//! Work completions as values, in one form for all providers.

use super::abi::verbs;
use super::types::{Lid, Qpn, Rkey};
use super::wr::{WcOpcode, WcStatus};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Work completion (WC), as a value of its own.
///
/// A failed completion tells only its work request, its queue pair and why it failed: the device leaves every other
/// field undefined, so there is no way to read them.
///
/// Kept as the device gave it, so that taking one out of the queue is a short copy; [`outcome`](Self::outcome) decodes it.
///
/// ```no_run
/// # fn f(cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(wc) = cq.poll_one()? {
///     let done = wc.outcome()?;
///     println!("work request {}: {:?} of {} bytes", wc.wr_id, done.opcode, done.byte_len);
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Wc {
    /// The number given with the work request. Those of 2^32 and more are a pool's or a scope's.
    pub wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    /// Immediate data (big endian), or the key that the peer invalidated.
    ex: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
    port_num: u8,
    reserved: u8,
}

/// `IB_WC_GRH` (`include/rdma/ib_verbs.h`).
pub(crate) const GRH: u32 = 1;
/// `IB_WC_WITH_IMM` (`include/rdma/ib_verbs.h`).
pub(crate) const WITH_IMM: u32 = 2;
/// `IB_WC_WITH_INVALIDATE`.
pub(crate) const WITH_INVALIDATE: u32 = 4;

/// Bytes that the device put into a completion instead of into memory: a short message, or the answer of a short READ or an
/// atomic. Derefs to them.
///
/// ```no_run
/// # fn f(cq: &mut ironverbs::Cq) -> Result<(), ironverbs::PollError> {
/// while let Some(completion) = cq.poll()?.next() {
///     if let Some(data) = completion.inline_data() {
///         println!("{}: {:02x?}", completion.wr_id(), &data[..]);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InlineData {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl InlineData {
    /// More than this no completion holds.
    pub const MAX: usize = 64;

    pub(crate) const EMPTY: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// The first `len` of `bytes`, or all.
    pub(crate) fn new(bytes: &[u8], len: usize) -> Self {
        let mut all = Self::EMPTY;
        let mut n = 0;
        for (to, from) in all.bytes.iter_mut().zip(bytes).take(len) {
            *to = *from;
            n += 1;
        }
        all.len = n;
        all
    }
}

impl std::ops::Deref for InlineData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&self.bytes)
    }
}

impl fmt::Debug for InlineData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &self[..])
    }
}

/// What a successful work request did.
///
/// ```no_run
/// # fn f(wc: ironverbs::Wc) -> Result<(), ironverbs::WcError> {
/// let done = wc.outcome()?;
/// println!("{:?}: {} bytes, immediate {:?}", done.opcode, done.byte_len, done.imm);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes transferred: of a receive those of the message (of a datagram with the 40 before it), of an RDMA WRITE with
    /// immediate at the receiver those written, of a READ or an atomic those that came back.
    ///
    /// Of a SEND or WRITE it means nothing, as the standard has it (IB spec 11.4.2.1): ConnectX adapters leave it 0, Soft-RoCE
    /// gives the length. Keep the length with the work request.
    pub byte_len: u32,
    /// Immediate data in host order, of a receive that has any.
    pub imm: Option<u32>,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// The sender's queue pair number.
    pub qpn: Qpn,
    /// The sender's LID; zero on Ethernet.
    pub lid: Lid,
    /// Service level that it came with; zero on Ethernet, where completions of mlx5 devices do not tell it.
    pub sl: u8,
    /// On a datagram queue pair: whether the first 40 bytes of the buffer hold a GRH. On a connected one it says nothing.
    pub grh: bool,
}

/// Why a work request failed.
///
/// ```no_run
/// # fn f(wc: ironverbs::Wc) -> Result<(), ironverbs::WcError> {
/// if let Err(error) = wc.outcome() {
///     println!("work request {} failed: {error}", wc.wr_id);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}{}", Vendor(*vendor_err))]
#[non_exhaustive]
pub struct WcError {
    /// The status.
    pub status: WcStatus,
    /// The device's own code, zero if it has none.
    pub vendor_err: u32,
}

struct Vendor(u32);

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", vendor error {:#x}", self.0) }
    }
}

impl Wc {
    /// From the kernel's structure, whose layout it has.
    #[inline(always)]
    pub(crate) fn from_kernel(wc: verbs::Wc) -> Self {
        zerocopy::transmute!(wc)
    }

    /// Of a send that is done. Words of eight bytes: half as many stores as by fields.
    #[inline(always)]
    pub(crate) fn of_send(wr_id: u64, opcode: WcOpcode, byte_len: u32, qp_num: u32) -> Self {
        // The second of two words of four bytes, after a zero.
        let second = |word: u32| u64::from(word) << if cfg!(target_endian = "little") { 32 } else { 0 };
        zerocopy::transmute!([wr_id, second(opcode.0), second(byte_len), second(qp_num), 0, 0])
    }

    /// The status, also of a success.
    #[inline(always)]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.status)
    }

    /// The local queue pair's number. That of one that was destroyed is given to another some day, so it tells the queue pair
    /// only as long as the program has polled what earlier ones left behind.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.qp_num
    }

    /// What was done, or why it failed.
    #[inline(always)]
    pub fn outcome(&self) -> Result<Done, WcError> {
        match self.status() {
            WcStatus::SUCCESS => Ok(Done { opcode: WcOpcode(self.opcode), byte_len: self.byte_len, imm: self.imm() }),
            status => Err(WcError { status, vendor_err: self.vendor_err }),
        }
    }

    /// Where it came from. Only a receive that succeeded came from somewhere.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        let received = self.status() == WcStatus::SUCCESS && WcOpcode(self.opcode).is_recv();
        let qpn = Qpn::new(self.src_qp).ok()?;
        // Every sender on InfiniBand has a LID. On Ethernet mlx5 devices have the kind of packet where the service level is.
        let sl = if self.slid == 0 { 0 } else { self.sl };
        received.then_some(Source { qpn, lid: Lid(self.slid), sl, grh: self.wc_flags & GRH != 0 })
    }

    /// The key that the peer invalidated with its message: of a successful receive of a SEND with invalidate.
    #[inline(always)]
    pub fn invalidated_rkey(&self) -> Option<Rkey> {
        let invalidates = self.wc_flags & WITH_INVALIDATE != 0 && WcOpcode(self.opcode).is_recv();
        (self.status() == WcStatus::SUCCESS && invalidates).then_some(Rkey(self.ex))
    }

    /// Immediate data. Only a receive's: some devices set the flag on the sender's completion as well, where it says
    /// nothing.
    #[inline(always)]
    fn imm(&self) -> Option<u32> {
        let has_imm = self.wc_flags & WITH_IMM != 0 && WcOpcode(self.opcode).is_recv();
        has_imm.then(|| u32::from_be(self.ex))
    }
}

/// Fields that a failed completion leaves undefined do not count.
impl PartialEq for Wc {
    fn eq(&self, other: &Self) -> bool {
        (self.wr_id, self.qpn(), self.outcome()) == (other.wr_id, other.qpn(), other.outcome())
    }
}

impl Eq for Wc {}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wc")
            .field("wr_id", &self.wr_id)
            .field("qpn", &format_args!("{:#08x}", self.qpn()))
            .field("outcome", &self.outcome())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wc(status: u32) -> Wc {
        Wc::from_kernel(verbs::Wc {
            wr_id: 0x1122_3344_5566_7788,
            status,
            opcode: 129,
            vendor_err: 0xdead,
            byte_len: 77,
            ex: 0x0a0b_0c0d_u32.to_be(),
            qp_num: 0x12,
            src_qp: 0x34,
            wc_flags: 3,
            pkey_index: 5,
            slid: 6,
            sl: 7,
            dlid_path_bits: 8,
            port_num: 1,
            reserved: 0,
        })
    }

    #[test]
    fn every_field_is_at_the_kernels_place() {
        let wc = wc(0);
        assert_eq!((wc.wr_id, wc.qpn(), wc.status()), (0x1122_3344_5566_7788, 0x12, WcStatus::SUCCESS));
        let done = wc.outcome().unwrap();
        assert_eq!((done.opcode, done.byte_len, done.imm), (WcOpcode::RECV_RDMA_WITH_IMM, 77, Some(0x0a0b_0c0d)));
        assert_eq!((wc.src_qp, wc.wc_flags, wc.pkey_index, wc.slid), (0x34, 3, 5, 6));
        assert_eq!((wc.sl, wc.dlid_path_bits, wc.port_num), (7, 8, 1));
    }

    #[test]
    fn a_failed_completion_tells_why_and_nothing_else() {
        let failed = wc(12);
        assert_eq!(failed.outcome(), Err(WcError { status: WcStatus::RETRY_EXC_ERR, vendor_err: 0xdead }));
        let mut other = failed;
        (other.opcode, other.byte_len, other.ex, other.src_qp) = (1, 2, 3, 4);
        assert_eq!(failed, other, "what is undefined makes no difference");
        assert_eq!(format!("{failed:?}"), format!("{other:?}"));
        assert!(format!("{failed:?}").contains("RETRY_EXC_ERR"), "{failed:?}");
        other.vendor_err = 0;
        assert_ne!(failed, other);
    }

    /// The key is in host order, and not to be read from a failure or from the sender's own completion.
    #[test]
    fn an_invalidated_key_is_a_receives() {
        assert_eq!(wc(0).invalidated_rkey(), None);
        let mut invalidated = wc(0);
        (invalidated.opcode, invalidated.wc_flags, invalidated.ex) = (128, 5, 0x1234_5678);
        assert_eq!(invalidated.invalidated_rkey(), Some(Rkey(0x1234_5678)));
        assert_eq!(invalidated.outcome().unwrap().imm, None);
        (invalidated.status, invalidated.opcode) = (5, 128);
        assert_eq!(invalidated.invalidated_rkey(), None);
        (invalidated.status, invalidated.opcode) = (0, 0);
        assert_eq!(invalidated.invalidated_rkey(), None);
    }

    #[test]
    fn only_a_receive_that_succeeded_has_a_source() {
        let mut received = wc(0);
        assert_eq!(received.source(), Some(Source { qpn: Qpn::new(0x34).unwrap(), lid: Lid(6), sl: 7, grh: true }));
        received.wc_flags = 2;
        assert!(!received.source().unwrap().grh);
        received.slid = 0;
        assert_eq!(received.source().unwrap().sl, 0, "on Ethernet the bits are the kind of packet");
        assert_eq!(wc(5).source(), None);
        received.opcode = WcOpcode::SEND.0;
        assert_eq!(received.source(), None);
    }

    #[test]
    fn a_senders_completion_has_no_immediate() {
        let mut sent = wc(0);
        sent.opcode = WcOpcode::SEND.0;
        assert_eq!(sent.outcome().unwrap().imm, None);
    }
}
