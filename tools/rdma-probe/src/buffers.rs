//! The memory of one end, and what goes into each message.

use crate::args::Ping;
use crate::failure::Failure;
use crate::payload::{Check, Mismatch, Peer, Role, initial_echo_buffer};
use crate::stop::Stop;
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

/// Bytes that are filled between two looks at whether to go on: whole pages, which all start alike.
const PIECE: usize = 1 << 20;

impl Buffers {
    /// For the messages that `args` ask for. They arrive with `header` bytes in front.
    ///
    /// Memory that nobody has used yet takes long to fill where it is much, so a signal ends that.
    pub fn new(pd: &Pd, role: Role, (args, stop): (&Ping, &Stop), header: u32) -> Result<Self, Failure> {
        let (bytes, header, check) = (args.size() as usize, header as usize, args.check);
        let mut received = pd.alloc_mr(header + bytes, AccessFlags::LOCAL_WRITE)?;
        let mut piece = vec![0; bytes.min(PIECE)];
        initial_echo_buffer(&mut piece);
        for at in (0..bytes).step_by(PIECE) {
            if stop.asked() {
                return Err(Failure::interrupted());
            }
            received.write(header + at, &piece[..PIECE.min(bytes - at)])?;
        }
        let checked = match check {
            false => None,
            true => Some(Checked {
                to_send: pd.alloc_mr(bytes, AccessFlags::LOCAL_READ)?,
                check: Check::new(role, bytes, args.iters(), args.transport),
                scratch: vec![0; bytes],
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
