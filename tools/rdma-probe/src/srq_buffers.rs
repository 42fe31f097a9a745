//! The memory of one end with a shared receive queue, and the check of what arrives there.
//!
//! Several messages are under way at once. `ibv_srq_pingpong` receives all of them into the one buffer that it sends from, so
//! what it sends back is only sure to be what it got if all messages are alike. So they are: the client chooses the message,
//! and the server sends back what came first. Each receive has a buffer of its own here, spoilt before it is posted, so that
//! every byte that is found right was received.

use crate::buffers::CheckOutcome;
use crate::failure::Failure;
use crate::payload::{Mismatch, Peer, Role, SPOILT, Same};
use ironverbs::{AccessFlags, Mr, Pd, Sge};

/// The memory of one end.
pub struct SrqBuffers {
    size: usize,
    depth: u32,
    /// Receives that are left when more are posted: one message for each queue pair can be under way.
    low: u32,
    posted: u32,
    /// One slot for all receives, or one for each.
    received: Mr,
    /// Slots that are not posted.
    free: Vec<u64>,
    checked: Option<Checked>,
}

struct Checked {
    same: Same,
    to_send: Mr,
    messages: u64,
    scratch: Vec<u8>,
    spoilt: Vec<u8>,
}

impl SrqBuffers {
    /// For messages of `size` bytes, one under way by each of `lanes` queue pairs, with `depth` receives.
    pub fn new(pd: &Pd, role: Role, size: u32, depth: u32, lanes: u32, check: bool) -> Result<Self, Failure> {
        // Twice as many as can be under way is enough, where each takes memory.
        let depth = if check { depth.min(2 * lanes) } else { depth };
        let bytes = size as usize;
        let slots = if check { depth as usize } else { 1 };
        // First what takes the most: a size that does not fit is told here.
        let mut received = pd.alloc_mr(bytes.saturating_mul(slots), AccessFlags::LOCAL_WRITE)?;
        let same = Same::new(role, bytes);
        received.write(0, same.message())?;
        let checked = match check {
            false => None,
            true => {
                let mut to_send = pd.alloc_mr(bytes, AccessFlags::LOCAL_READ)?;
                to_send.write(0, same.message())?;
                Some(Checked { same, to_send, messages: 0, scratch: vec![0; bytes], spoilt: vec![SPOILT; bytes] })
            }
        };
        let free = (0..depth).map(|i| if check { i.into() } else { 0 }).rev().collect();
        Ok(Self { size: bytes, depth, low: lanes, posted: 0, received, free, checked })
    }

    /// Receives that are posted at most.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether it is time to post receives.
    pub fn is_low(&self) -> bool {
        self.posted <= self.low
    }

    /// The next receive to post: its mark and its place.
    pub fn next_receive(&mut self) -> Result<Option<(u64, Sge)>, Failure> {
        let Some(slot) = self.free.pop() else { return Ok(None) };
        let at = slot as usize * self.size;
        if let Some(checked) = &self.checked {
            self.received.write(at, &checked.spoilt)?;
        }
        self.posted += 1;
        Ok(Some((slot, self.received.sge(at..at + self.size)?)))
    }

    /// What to send: what arrived last, or the message that all are checked against.
    pub fn message(&self) -> Result<Sge, Failure> {
        Ok(match &self.checked {
            None => self.received.sge(..)?,
            Some(checked) => checked.to_send.sge(..)?,
        })
    }

    /// The message of `round` arrived in `slot`: checks it, if that was asked for.
    pub fn arrived(&mut self, slot: u64, round: u64) -> Result<Result<(), Mismatch>, Failure> {
        self.posted = self.posted.saturating_sub(1);
        self.free.push(slot);
        let Some(Checked { same, to_send, messages, scratch, .. }) = &mut self.checked else { return Ok(Ok(())) };
        self.received.read(slot as usize * self.size, scratch)?;
        match same.check(round, scratch) {
            Ok(is_first) => {
                *messages += 1;
                if is_first {
                    to_send.write(0, same.message())?;
                }
                Ok(Ok(()))
            }
            Err(mismatch) => Ok(Err(mismatch)),
        }
    }

    /// How the checks went, if there were any.
    pub fn outcome(&self) -> Option<CheckOutcome> {
        let messages = self.checked.as_ref()?.messages;
        let peer = if messages == 0 { Peer::Unknown } else { Peer::Echoes };
        Some(CheckOutcome { peer, messages })
    }
}
