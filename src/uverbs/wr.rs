//! Work requests and completions as the verbs define them, before a provider turns them into its own bytes.

use super::errno::Errno;
use super::error::{Error, Verb};
use super::memory_wr::{FlushLevel, FlushPlacement, MwBinding};
use super::types::{Lkey, Rkey};
use std::fmt;

/// Scatter/gather entry: a piece of registered local memory.
///
/// A plain copy of three numbers. It keeps nothing alive: that the memory is registered and unaliased until the
/// completion is promised where the batch is submitted.
///
/// ```no_run
/// # fn f(mr: &ironverbs::Mr) -> Result<(), ironverbs::Error> {
/// let entries = [mr.sge(0..64)?, mr.sge(4096..4160)?];
/// # let _ = entries;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: Lkey,
}

impl Sge {
    /// From raw numbers, as another library or process gave them.
    pub const fn from_raw(addr: u64, length: u32, lkey: Lkey) -> Self {
        Self { addr, length, lkey }
    }

    /// First byte's address, in the region's own address space (its `iova`).
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub const fn length(self) -> u32 {
        self.length
    }

    /// The region's local key.
    pub const fn lkey(self) -> Lkey {
        self.lkey
    }
}

/// A piece of a peer's registered memory.
///
/// ```no_run
/// # fn f(mr: &ironverbs::Mr) -> Result<(), ironverbs::Error> {
/// let theirs = mr.remote(4096)?; // told to the peer: an address and a key
/// println!("{} {}", theirs.addr, theirs.rkey.0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address in the peer region's own address space (its `iova`).
    pub addr: u64,
    /// The peer region's remote key.
    pub rkey: Rkey,
}

/// Flags of a send work request (`enum ib_send_flags` of the kernel's `include/rdma/ib_verbs.h`; `IBV_SEND_*` in C).
///
/// Signal at least one work request in every queue depth. On hardware, only a completion gives back the slot of its work
/// request, and with it those of the unsignaled ones before it; a queue of unsignaled ones is full for ever. Soft-RoCE gives
/// slots back as it works, so that a program which never signals seems to run there.
///
/// ```
/// use ironverbs::WrFlags;
/// let flags = WrFlags::SIGNALED | WrFlags::FENCE;
/// assert_eq!(flags.bits(), 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct WrFlags(u32);

impl WrFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Start only after all earlier READs and atomics have completed.
    pub const FENCE: Self = Self(1);
    /// Give a completion on success. Without it only an error gives one, and the slot stays taken until a later signaled
    /// one completes.
    pub const SIGNALED: Self = Self(2);
    /// Ask the peer's device to raise a solicited event when the message arrives.
    pub const SOLICITED: Self = Self(4);

    /// The raw bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets of flags.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for WrFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Debug for WrFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrFlags({:#x})", self.0)
    }
}

/// What a send work request does. Immediates are in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm(u32),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE with immediate.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ.
    Read(RemoteAddr),
    /// Atomic compare and swap of eight bytes.
    CompareSwap {
        /// The eight bytes at the peer.
        remote: RemoteAddr,
        /// Swap only if they hold this.
        compare: u64,
        /// What they then hold.
        swap: u64,
    },
    /// Atomic fetch and add of eight bytes.
    FetchAdd {
        /// The eight bytes at the peer.
        remote: RemoteAddr,
        /// What is added.
        add: u64,
    },
    /// SEND that also invalidates a key of the peer's.
    SendInvalidate(Rkey),
    /// Local invalidate of a memory window's key.
    LocalInvalidate(Rkey),
    /// Bind of a memory window.
    Bind(MwBinding),
    /// Atomic write of eight bytes.
    AtomicWrite(RemoteAddr, u64),
    /// RDMA FLUSH.
    Flush(RemoteAddr, FlushPlacement, FlushLevel),
}

/// Where the payload of a send work request is. Made from `&[Sge]`, [`Inline`] or [`InlinePieces`].
///
/// ```
/// use ironverbs::{Inline, InlinePieces, Payload};
/// let whole: Payload<'_> = Inline(b"header, body").into();
/// let pieces: Payload<'_> = InlinePieces(&[b"header, ", b"body"]).into();
/// # let _ = (whole, pieces);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, read or written by the device later.
    Sges(&'a [Sge]),
    /// Copied into the work request now.
    Inline(&'a [u8]),
    /// Copied into the work request now, one piece after the other.
    InlinePieces(&'a [&'a [u8]]),
}

/// Payload that is copied into the work request: its memory need not be registered, and is free again at once.
///
/// ```no_run
/// # fn f(batch: &mut ironverbs::SendBatch<'_>) -> Result<(), ironverbs::PostError> {
/// batch.send(1, ironverbs::WrFlags::NONE, ironverbs::Inline(b"hello"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// As [`Inline`], gathered from several pieces.
///
/// ```no_run
/// # fn f(batch: &mut ironverbs::SendBatch<'_>) -> Result<(), ironverbs::PostError> {
/// batch.send(1, ironverbs::WrFlags::NONE, ironverbs::InlinePieces(&[b"hello, ", b"world"]))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct InlinePieces<'a>(pub &'a [&'a [u8]]);

impl<'a> From<&'a [Sge]> for Payload<'a> {
    #[inline(always)]
    fn from(sges: &'a [Sge]) -> Self {
        Self::Sges(sges)
    }
}

impl<'a, const N: usize> From<&'a [Sge; N]> for Payload<'a> {
    #[inline(always)]
    fn from(sges: &'a [Sge; N]) -> Self {
        Self::Sges(sges)
    }
}

impl<'a> From<Inline<'a>> for Payload<'a> {
    #[inline(always)]
    fn from(inline: Inline<'a>) -> Self {
        Self::Inline(inline.0)
    }
}

impl<'a> From<InlinePieces<'a>> for Payload<'a> {
    #[inline(always)]
    fn from(pieces: InlinePieces<'a>) -> Self {
        Self::InlinePieces(pieces.0)
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Flags.
    pub flags: WrFlags,
    /// The operation.
    pub op: SendOp,
    /// The payload.
    pub payload: Payload<'a>,
}

/// Why a work request was not posted. The queue is as it was before the call, unless the variant says otherwise.
/// [`Qp::explain`](crate::Qp::explain) adds the verb and the limit that was met.
///
/// ```no_run
/// # fn f(batch: &mut ironverbs::SendBatch<'_>) -> Result<(), ironverbs::PostError> {
/// use ironverbs::{Inline, PostError, WrFlags};
/// match batch.send(1, WrFlags::NONE, Inline(b"hello")) {
///     Err(PostError::QueueFull) => println!("poll first, then post again"),
///     other => other?,
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// Every slot of the queue is taken. Poll for completions, then try again; or make the queue deeper
    /// ([`QpBuilder::max_send_wr`](crate::QpBuilder::max_send_wr)). Unsignaled requests free their slots only with a later
    /// signaled one.
    #[error(
        "the queue is full: poll completions first (each signaled send gives back its slot and those before it, so signal \
         some), or ask for a deeper queue"
    )]
    QueueFull,
    /// More scatter/gather entries than the queue was made for. Gather the payload in fewer pieces, or ask for more
    /// ([`QpBuilder::max_send_sge`](crate::QpBuilder::max_send_sge)).
    #[error(
        "more scatter/gather entries than the queue pair was made for: use fewer, or ask for more when it is built"
    )]
    TooManySges,
    /// More inline bytes than the queue was made for. Send from registered memory, or ask for more
    /// ([`QpBuilder::max_inline_bytes`](crate::QpBuilder::max_inline_bytes)).
    #[error(
        "more inline bytes than the queue pair was made for: send registered memory, or ask for more when it is built"
    )]
    InlineTooLong,
    /// More bytes than the pool slot has. Send less, or make the [`Pool`](crate::Pool) with larger slots.
    #[error("more bytes than the pool slot has: send less, or make the pool with larger slots")]
    BeyondSlot,
    /// The slot belongs to another pool than the one that was to take note of it. Give it one of its own slots.
    #[error("the slot belongs to another pool: give one of the pool's own")]
    ForeignSlot,
    /// The slot's pool, the memory window or the address handle is of another protection domain than the queue pair. Make
    /// it in the queue pair's own.
    #[error("it belongs to another protection domain than the queue pair: make it in the queue pair's own")]
    ForeignPd,
    /// Nobody holds the slot's pool any more, so nobody could take the slot back. Keep a [`Pool`](crate::Pool) as long as
    /// its slots are posted.
    #[error("the slot's pool was dropped, so its completion could give it back to nobody: keep the pool")]
    PoolGone,
    /// The scatter/gather entries add up to more than a message can hold (2^31 bytes). Split it.
    #[error("the message is longer than 2^31 bytes: split it")]
    MessageTooLong,
    /// A datagram of more bytes than one packet of the port can carry.
    #[error("the datagram is longer than the port's MTU: it is one packet, so split the message")]
    DatagramTooLong,
    /// A receive for datagrams has no room for the 40 bytes that are put before each payload.
    #[error("a receive for datagrams needs 40 bytes more than the longest payload, for the GRH that comes first")]
    NoRoomForGrh,
    /// A READ was given inline data. Give it registered memory, into which the peer's bytes come.
    #[error("a READ takes no inline data: its payload comes back into registered memory")]
    InlineRead,
    /// The payload of an atomic is not 8 bytes of registered memory. Give it exactly that.
    #[error("an atomic needs exactly 8 bytes of registered memory for the value that comes back")]
    AtomicPayload,
    /// The remote address of an atomic is not a multiple of 8. Align what the peer offers.
    #[error("the remote address of an atomic must be a multiple of 8")]
    AtomicAlignment,
    /// The device has no ATOMIC_WRITE: its capability bit (`IB_UVERBS_DEVICE_ATOMIC_WRITE`) is not set. Use a WRITE, or a
    /// compare and swap. Soft-RoCE has it since Linux 6.2.
    #[error("the device has no ATOMIC_WRITE (Soft-RoCE: since Linux 6.2): use a WRITE or a compare and swap")]
    NoAtomicWrite,
    /// The device has no FLUSH to that placement: its capability bit (`IB_UVERBS_DEVICE_FLUSH_GLOBAL` or `…_PERSISTENT`) is
    /// not set. A READ of the last byte written shows that it has arrived. Soft-RoCE has it since Linux 6.2.
    #[error(
        "the device has no FLUSH to that placement (Soft-RoCE: since Linux 6.2): read back what was written instead"
    )]
    NoFlush,
    /// A memory window of type 2 belongs to another queue pair. Use it there, or make one on this queue pair.
    #[error("the memory window belongs to another queue pair: make one on this queue pair")]
    ForeignWindow,
    /// The device, or the queue pair's transport, has no such operation.
    #[error("the device has no such operation on a queue pair of this transport")]
    NotOffered,
    /// An earlier bind or invalidate of the window has not completed. Poll for it, and show it to
    /// [`Mw::observe`](crate::Mw::observe).
    #[error("an earlier request about the memory window has not completed: poll for it and let the window observe it")]
    WindowBusy,
    /// An earlier bind or invalidate of the window failed or was given up, so that nobody knows whether it was carried out.
    /// Drop the window and make another one.
    #[error("whether the memory window is bound is not known, since a request about it failed: make another window")]
    WindowUnknown,
    /// The binding was planned for another window, or before the window was bound or rotated. Plan it anew.
    #[error("the binding was planned for another key than the memory window's present one: plan it anew")]
    StaleBinding,
    /// A memory window of type 2 is bound already. Invalidate it first.
    #[error("the memory window is bound already: invalidate it first")]
    WindowBound,
    /// Only a memory window of type 2 that is known to be bound can be invalidated. Unbind one of type 1 by binding it to
    /// nothing; drop one of which nothing is known.
    #[error("the memory window is not of type 2, or not known to be bound: there is nothing to invalidate")]
    NotBound,
    /// The queue pair is in a state that takes no such work request. Bring it to RTS for sends, to INIT or further for
    /// receives.
    #[error(
        "the queue pair is in a state that takes no such work request: sends need RTS (connect it first), receives INIT or \
         a later state"
    )]
    BadState,
    /// The queue pair takes its receives from a shared receive queue: post to that one.
    #[error("the queue pair takes its receives from a shared receive queue: post to that one")]
    SharedReceives,
    /// The shared receive queue was resized, but its new ring could not be mapped. Resizing it once more mends that.
    #[error("the shared receive queue could not be mapped after it was resized: resize it once more")]
    Unmapped,
    /// The doorbell was refused by the kernel. The work requests are in the queue; they go out with the next doorbell, which
    /// an empty batch rings too. Do not post them again.
    #[error("the doorbell was refused: {0}; the requests are in the queue, an empty batch rings again")]
    Doorbell(Errno),
}

/// Why polling cannot go on.
///
/// ```no_run
/// # fn f(cq: &mut ironverbs::Cq) -> Result<(), ironverbs::PollError> {
/// match cq.poll_one() {
///     Err(ironverbs::PollError::Overrun) => println!("too small a queue: make a larger one, and connect anew"),
///     other => println!("{:?}", other?),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The device found the completion queue full and lost completions. Those that were there have been polled. Nothing
    /// more can be relied on: destroy the queue pairs on it, and make a larger one.
    #[error("the completion queue overran: completions are lost; make it larger and connect anew")]
    Overrun,
    /// The device went away, or [`Context::shutdown`](crate::Context::shutdown) gave it up. Completions that were there have
    /// been polled; no other comes. The objects are lost as well: drop them.
    #[error("the device is gone, and with it the completion queue")]
    DeviceGone,
    /// The queue was [resized](crate::Cq::resize), but its new ring could not be mapped. Nothing is lost: resize it once
    /// more.
    #[error("the completion queue could not be mapped after it was resized: resize it once more")]
    Unmapped,
    /// The device wrote a completion of a kind that this queue was not made for. Nothing more can be relied on: destroy the
    /// queue pairs on it, and connect anew.
    #[error(
        "the device wrote completion {index}, which is of a kind that the queue was not made for (entry's kind {kind:#x})"
    )]
    BadEntry {
        /// How many completions came before, modulo 2^32.
        index: u32,
        /// Upper half: format, lower half: opcode, as far as they tell.
        kind: u8,
    },
}

impl PollError {
    /// The same as an error of `verb`.
    pub(crate) fn during(self, verb: Verb) -> Error {
        match self {
            Self::Overrun => Error::CqOverrun { verb },
            Self::DeviceGone => Error::DeviceGone { verb },
            Self::BadEntry { .. } => Error::Abi {
                verb,
                what: "completion".into(),
                need: "a kind that the queue was made for".into(),
                got: self.to_string().into(),
            },
            Self::Unmapped => Error::invalid(verb, "completion queue", "not mapped", "resize it once more"),
        }
    }
}

/// Completion status (`enum ib_wc_status`). Unknown values are kept and print in hex.
///
/// ```
/// use ironverbs::WcStatus;
/// assert_ne!(WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR);
/// println!("{}", WcStatus::RNR_RETRY_EXC_ERR);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

macro_rules! statuses {
    ($($name:ident = $raw:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "each constant is the C constant of the same name")]
        impl WcStatus {
            $(pub const $name: Self = Self($raw);)*
        }
        impl WcStatus {
            /// The C name without its prefix, for known values.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($raw => Some(stringify!($name)),)* _ => None }
            }
            /// What it means, for known values.
            pub const fn meaning(self) -> Option<&'static str> {
                match self.0 { $($raw => Some($text),)* _ => None }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, "success";
    LOC_LEN_ERR = 1, "local length error: the message is longer than the receive posted for it, or than the port can send";
    LOC_QP_OP_ERR = 2, "local queue pair operation error: usually a message longer than the receive posted for it, a \
        work request that names memory without LOCAL_WRITE or no longer registered, or a network device that is down";
    LOC_EEC_OP_ERR = 3, "local end-to-end context operation error";
    LOC_PROT_ERR = 4, "local protection error: a local key or range is not valid for the access: is the memory still \
        registered, with LOCAL_WRITE if it is written, and in the queue pair's protection domain?";
    WR_FLUSH_ERR = 5, "flushed: the queue pair was in the error state: because an earlier work request failed, as its \
        completion tells, because the program put it there, or because the network device is down";
    MW_BIND_ERR = 6, "memory window bind error";
    BAD_RESP_ERR = 7, "bad response from the peer";
    LOC_ACCESS_ERR = 8, "local access error while receiving an RDMA WRITE with immediate";
    REM_INV_REQ_ERR = 9, "the peer refused an invalid request: its queue pair does not allow the WRITE, READ or atomic \
        (QpBuilder::access there, by default nothing), the message is longer than its receive, or an atomic is not aligned";
    REM_ACCESS_ERR = 10, "remote access error: at the peer the remote key is not valid (any more), the range is outside \
        its region, the region does not allow the access (AccessFlags), or the queue pair does not (QpBuilder::access)";
    REM_OP_ERR = 11, "remote operation error: the peer could not complete it: usually the message is longer than the \
        receive posted there, or that receive names memory without LOCAL_WRITE or no longer registered";
    RETRY_EXC_ERR = 12, "transport retries exceeded: the peer does not answer: its queue pair is gone, in error or not \
        connected to this one, or packets do not pass (for RoCE, UDP port 4791)";
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded: the peer has no receive posted";
    LOC_RDD_VIOL_ERR = 14, "local RDD violation";
    REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
    REM_ABORT_ERR = 16, "the peer aborted the operation";
    INV_EECN_ERR = 17, "invalid end-to-end context number";
    INV_EEC_STATE_ERR = 18, "invalid end-to-end context state";
    FATAL_ERR = 19, "fatal error";
    RESP_TIMEOUT_ERR = 20, "response timeout";
    GENERAL_ERR = 21, "general error";
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.meaning()) {
            (Some(name), Some(text)) => write!(f, "{name} ({text})"),
            _ => write!(f, "status {:#x}", self.0),
        }
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "WcStatus({:#x})", self.0),
        }
    }
}

/// What a completed work request did (`enum ib_wc_opcode`). Unknown values are kept.
///
/// ```
/// use ironverbs::WcOpcode;
/// assert!(WcOpcode::RECV.is_recv());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcOpcode(pub u32);

#[allow(missing_docs, reason = "each constant is the C constant of the same name")]
impl WcOpcode {
    pub const SEND: Self = Self(0);
    pub const RDMA_WRITE: Self = Self(1);
    pub const RDMA_READ: Self = Self(2);
    pub const COMP_SWAP: Self = Self(3);
    pub const FETCH_ADD: Self = Self(4);
    pub const BIND_MW: Self = Self(5);
    pub const LOCAL_INV: Self = Self(6);
    pub const FLUSH: Self = Self(8);
    pub const ATOMIC_WRITE: Self = Self(9);
    pub const RECV: Self = Self(128);
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);
    /// What has no name among the verbs: a NOP.
    #[doc(alias = "IBV_WC_DRIVER1")]
    pub const DRIVER1: Self = Self(135);
}

impl WcOpcode {
    /// Whether it is a receive.
    pub const fn is_recv(self) -> bool {
        // What is a driver's own has the bit of receives, too.
        self.0 & 128 != 0 && !matches!(self.0, 135..=137)
    }
}

impl fmt::Debug for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::SEND => "SEND",
            Self::RDMA_WRITE => "RDMA_WRITE",
            Self::RDMA_READ => "RDMA_READ",
            Self::DRIVER1 => "DRIVER1",
            Self::COMP_SWAP => "COMP_SWAP",
            Self::FETCH_ADD => "FETCH_ADD",
            Self::BIND_MW => "BIND_MW",
            Self::LOCAL_INV => "LOCAL_INV",
            Self::FLUSH => "FLUSH",
            Self::ATOMIC_WRITE => "ATOMIC_WRITE",
            Self::RECV => "RECV",
            Self::RECV_RDMA_WITH_IMM => "RECV_RDMA_WITH_IMM",
            Self(raw) => return write!(f, "WcOpcode({raw})"),
        })
    }
}
