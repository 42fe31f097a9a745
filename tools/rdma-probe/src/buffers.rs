//! The memory of one end, and what goes into each message.

use crate::failure::Failure;
use crate::payload::{Check, Mismatch, Peer, Role, initial_echo_buffer};
use ironverbs::{AccessFlags, Mr, Pd, Sge};

/// The memory of one end.
///
/// As in `ibv_rc_pingpong`, all receives point to one buffer: one message is under way at a time. Without checking, that
/// buffer is also what is sent, so this end sends back what it received.
pub struct Buffers {
    /// Holds what the device puts in front of a message, and the message.
    received: Mr,
    header: usize,
    /// A message of its own for each round, and the check of each message that arrives.
    checked: Option<Checked>,
    /// Holds a message that is copied into its work request.
    inline: Vec<u8>,
}

struct Checked {
    to_send: Mr,
    check: Check,
    /// Messages are made and looked at here: device memory has no references.
    scratch: Vec<u8>,
}

/// Where the next message is.
pub enum Message<'a> {
    /// In registered memory.
    Registered(Sge),
    /// To be copied into the work request.
    Inline(&'a [u8]),
}

/// How the checks went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOutcome {
    /// What the peer was found to do.
    pub peer: Peer,
    /// Messages that were right, every byte of them.
    pub messages: u64,
}

impl Buffers {
    /// For messages of `size` bytes, `rounds` of them each way. They arrive with `header` bytes in front.
    pub fn new(pd: &Pd, role: Role, size: u32, header: u32, rounds: u64, check: bool) -> Result<Self, Failure> {
        let (bytes, header) = (size as usize, header as usize);
        let mut received = pd.alloc_mr(header + bytes, AccessFlags::LOCAL_WRITE)?;
        let mut first = vec![0; bytes];
        initial_echo_buffer(&mut first);
        received.write(header, &first)?;
        let checked = match check {
            false => None,
            true => Some(Checked {
                to_send: pd.alloc_mr(bytes, AccessFlags::LOCAL_READ)?,
                check: Check::new(role, bytes, rounds),
                scratch: first,
            }),
        };
        Ok(Self { received, header, checked, inline: Vec::new() })
    }

    /// Copy messages into their work requests from now on.
    pub fn send_inline(&mut self) {
        self.inline = vec![0; self.received.len_bytes() - self.header];
    }

    /// Where each message goes that arrives.
    pub fn receive_sge(&self) -> Result<Sge, Failure> {
        Ok(self.received.sge(..)?)
    }

    /// Makes the message of `round`.
    #[inline]
    pub fn message(&mut self, round: u64) -> Result<Message<'_>, Failure> {
        let Self { received, header, checked, inline } = self;
        match checked {
            None if inline.is_empty() => Ok(Message::Registered(received.sge(*header..)?)),
            None => {
                received.read(*header, inline)?;
                Ok(Message::Inline(inline))
            }
            Some(Checked { to_send, check, scratch }) if inline.is_empty() => {
                check.make(round, scratch);
                to_send.write(0, scratch)?;
                Ok(Message::Registered(to_send.sge(..)?))
            }
            Some(Checked { check, .. }) => {
                check.make(round, inline);
                Ok(Message::Inline(inline))
            }
        }
    }

    /// The message of `round` arrived: checks it, if that was asked for.
    #[inline]
    pub fn arrived(&mut self, round: u64) -> Result<Result<(), Mismatch>, Failure> {
        match &mut self.checked {
            None => Ok(Ok(())),
            Some(Checked { check, scratch, .. }) => {
                self.received.read(self.header, scratch)?;
                Ok(check.check(round, scratch))
            }
        }
    }

    /// How the checks went, if there were any.
    pub fn outcome(&self) -> Option<CheckOutcome> {
        let check = &self.checked.as_ref()?.check;
        Some(CheckOutcome { peer: check.peer(), messages: check.checked })
    }
}
