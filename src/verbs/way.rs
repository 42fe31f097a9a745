//! Where one work request goes, as far as its queue pair leaves that open.

use super::ah::Destination;
use super::provider::sealed::OpenSends;
use crate::uverbs::types::Srqn;
use crate::uverbs::wr::{PostError, SendWr};

/// Where a work request goes.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// To the one peer.
    Peer,
    /// To any peer, as a datagram.
    Datagram(Destination<'a>),
    /// To the one peer, for one of its XRC shared receive queues.
    Srq(Srqn),
}

impl Way<'_> {
    /// Pushes a work request on its way.
    #[inline(always)]
    pub(super) fn push(self, sq: &mut impl OpenSends, wr: &SendWr<'_>) -> Result<(), PostError> {
        match self {
            Self::Peer => sq.push(wr),
            Self::Datagram(to) => sq.push_to(wr, to),
            Self::Srq(srqn) => sq.push_xrc(wr, srqn),
        }
    }
}
