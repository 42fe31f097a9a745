//! The end of a conversation that stays open beside the ping, as `ibv_xsrq_pingpong` holds it: who has received and sent all
//! says so, and is there until the other one has, too.

use super::{Conversation, ExchangeError, Result};
use crate::payload::Role;
use crate::wire::{self, END};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// What is due at the end.
const LAST_WORD: &str = "\"END\\0\"";

/// A conversation of which only the end is left.
pub struct Farewell<'a>(pub(super) Conversation<'a>);

impl Farewell<'_> {
    /// Whether the peer has said its last word, or has gone without.
    pub fn has_begun(&self) -> bool {
        poll(&mut [PollFd::new(self.0.stream.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)
            .is_ok_and(|ready| ready > 0)
    }

    /// This end has received and sent all. Returns when the peer has, too: the client speaks first.
    pub fn exchange(mut self, role: Role) -> Result<()> {
        let parted = match role {
            Role::Client => self.0.send(END).and_then(|()| self.hear()),
            Role::Server => self.hear().and_then(|()| self.0.send(END)),
        };
        parted.map_err(|e| ExchangeError::Farewell(Box::new(e)))
    }

    fn hear(&mut self) -> Result<()> {
        let mut word = [0; END.len()];
        self.0.receive(&mut word, LAST_WORD, |_| Ok(()))?;
        match &word == END {
            true => Ok(()),
            false => {
                Err(ExchangeError::Unexpected { peer: self.0.peer, excerpt: wire::excerpt(&word), due: LAST_WORD })
            }
        }
    }
}
