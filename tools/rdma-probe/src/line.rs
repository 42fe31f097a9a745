//! What an end sends and receives by, once it is connected.
//!
//! # Safety argument
//!
//! What a work request names is passed on by callers of functions that are unsafe for that reason.
#![allow(unsafe_code)]

use crate::link::Link;
use ironverbs::{Any, Payload, PostError, Qp, QpType, RecvBatch, Sge, Srq, Srqn, WrFlags, Xrc, XrcRecvQp, XrcSend};

/// What an end sends and receives by, once it is connected.
pub trait Line {
    /// Bytes that the device puts in front of each message that arrives.
    const HEADER_BYTES: u32;

    /// Whether the peer can receive by the time this end may send. If not, the first answer tells how late it was.
    const PEER_IS_READY: bool;

    /// The longest message that a send copies.
    fn max_inline_bytes(&self) -> u32;

    /// Posts a SEND.
    ///
    /// # Safety
    ///
    /// Memory that `payload` names stays registered, and nothing writes to it through a reference, until the send completes.
    unsafe fn send(&mut self, wr_id: u64, flags: WrFlags, payload: Payload<'_>) -> Result<(), PostError>;

    /// Posts `count` receives, all of them into `sge`.
    ///
    /// # Safety
    ///
    /// The memory stays registered, and no reference to it is used, until the receives complete or can do so no more.
    unsafe fn receive(&mut self, wr_id: u64, sge: Sge, count: u32) -> Result<(), PostError>;
}

/// One queue pair.
pub struct QpLine<L: Link> {
    qp: Qp<Any, L>,
    peer: L::Peer,
}

impl<L: Link> QpLine<L> {
    /// A queue pair that is connected, and what it needs to know of its peer.
    pub fn new(qp: Qp<Any, L>, peer: L::Peer) -> Self {
        Self { qp, peer }
    }
}

impl<L: Link> Line for QpLine<L> {
    const HEADER_BYTES: u32 = L::HEADER_BYTES;
    const PEER_IS_READY: bool = true;

    fn max_inline_bytes(&self) -> u32 {
        self.qp.cap().max_inline_data
    }

    #[inline]
    unsafe fn send(&mut self, wr_id: u64, flags: WrFlags, payload: Payload<'_>) -> Result<(), PostError> {
        let mut batch = self.qp.send_batch();
        L::send(&mut batch, &self.peer, wr_id, flags, payload)?;
        // SAFETY: as the caller warrants.
        unsafe { batch.submit() }
    }

    #[inline]
    unsafe fn receive(&mut self, wr_id: u64, sge: Sge, count: u32) -> Result<(), PostError> {
        // SAFETY: as the caller warrants.
        unsafe { post_receives(self.qp.recv_batch(), wr_id, sge, count) }
    }
}

/// Both ends of an extended reliable connection, one for each direction, and the queue that messages are received from.
pub struct XrcLine {
    /// What is sent goes by it.
    pub send: Qp<Any, XrcSend>,
    /// The peer's queue that it is for.
    pub to: Srqn,
    /// Receives.
    pub srq: Srq<Any, Xrc>,
    /// What is received comes by it. It has no queue, and is only to be there.
    pub _recv: XrcRecvQp,
}

impl Line for XrcLine {
    const HEADER_BYTES: u32 = 0;
    /// The server sends first, when it has told its numbers, which the client's queue pairs are connected with.
    const PEER_IS_READY: bool = false;

    fn max_inline_bytes(&self) -> u32 {
        self.send.cap().max_inline_data
    }

    #[inline]
    unsafe fn send(&mut self, wr_id: u64, flags: WrFlags, payload: Payload<'_>) -> Result<(), PostError> {
        let mut batch = self.send.send_batch();
        batch.to_srq(self.to).send(wr_id, flags, payload)?;
        // SAFETY: as the caller warrants.
        unsafe { batch.submit() }
    }

    #[inline]
    unsafe fn receive(&mut self, wr_id: u64, sge: Sge, count: u32) -> Result<(), PostError> {
        // SAFETY: as the caller warrants.
        unsafe { post_receives(self.srq.recv_batch(), wr_id, sge, count) }
    }
}

/// Adds `count` receives, all of them into `sge`, and posts them.
///
/// # Safety
///
/// As of [`Line::receive`].
#[inline]
pub unsafe fn post_receives<T: QpType>(
    mut batch: RecvBatch<'_, Any, T>,
    wr_id: u64,
    sge: Sge,
    count: u32,
) -> Result<(), PostError> {
    for _ in 0..count {
        batch.recv(wr_id, &[sge])?;
    }
    // SAFETY: as the caller warrants.
    unsafe { batch.submit() }
}
