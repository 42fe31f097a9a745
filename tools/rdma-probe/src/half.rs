//! One side of a ping that is not connected yet, with its receives posted.

use crate::args::Ping;
use crate::end::{End, Parts};
use crate::engine::Player;
use crate::failure::Failure;
use crate::line::QpLine;
use crate::link::Link;
use crate::payload::Role;
use crate::place::Place;
use crate::reach::Reach;
use crate::turn::Turn;
use crate::wire::{Address, Record};
use ironverbs::{Any, Cq, Endpoint, GidChoice, GidIndex, Pd, PreparedQp, QpBuilder, QpType};

/// Sends for each completion of a send, where completions are polled for.
const SIGNAL_EVERY: u32 = 16;

/// One side of a ping, not connected yet.
pub trait Half: Sized {
    /// The same side, connected.
    type End: Player;

    /// In which records each side tells its addresses to the other.
    const RECORD: Record = Record::Plain;

    /// How many addresses that are.
    const RECORDS: usize;

    /// Makes it.
    fn new(place: &Place<'_>, role: Role, reach: Reach) -> Result<Self, Failure>;

    /// Where its queue pairs are.
    fn addresses(&self) -> Vec<Address>;

    /// Index of the GID that it uses, if any, and why that one if it was chosen.
    fn gid(&self) -> (Option<GidIndex>, Option<&GidChoice>);

    /// Connects its queue pairs to those at `remote`, of which there are [`RECORDS`](Self::RECORDS).
    fn connect(self, place: &Place<'_>, remote: &[Address]) -> Result<Self::End, Failure>;
}

/// One queue pair, for one of the peer's.
pub struct OneQp<L: Link> {
    parts: Parts,
    qp: PreparedQp<Any, L>,
    reach: Reach,
}

impl<L: Link> Half for OneQp<L> {
    type End = End<QpLine<L>>;
    const RECORDS: usize = 1;

    fn new(place: &Place<'_>, role: Role, reach: Reach) -> Result<Self, Failure> {
        let (parts, qp) = prepare(place, role, |pd, cq| Ok(place.aim(L::builder(pd, cq), reach)))?;
        Ok(Self { parts, qp, reach })
    }

    fn addresses(&self) -> Vec<Address> {
        vec![self.reach.used(address(&self.qp))]
    }

    fn gid(&self) -> (Option<GidIndex>, Option<&GidChoice>) {
        self.reach.gid(self.qp.gid_index(), self.qp.gid_choice())
    }

    fn connect(self, place: &Place<'_>, remote: &[Address]) -> Result<End<QpLine<L>>, Failure> {
        let [remote] = remote else { return Err(Failure::new(crate::failure::Kind::Peer, "the peer sent no address")) };
        place.check_gids(self.qp.endpoint().gid, remote)?;
        let (qp, peer) = L::connect(self.qp, place, &self.reach.used(*remote))?;
        self.parts.connected(QpLine::new(qp, peer))
    }
}

/// A queue pair as `builder` makes it, with the memory and the completion queue of one end, and its receives posted.
pub fn prepare<L: Link>(
    place: &Place<'_>,
    role: Role,
    builder: impl for<'a> FnOnce(&'a Pd, &'a Cq) -> Result<QpBuilder<'a, Any, L>, Failure>,
) -> Result<(Parts, PreparedQp<Any, L>), Failure> {
    let mut parts = Parts::new(place, role, L::HEADER_BYTES)?;
    let mut qp = builder(&place.pd, &parts.cq)?
        .max_send_wr(send_depth(place.args))
        .max_recv_wr(place.args.rx_depth)
        .max_inline_bytes(place.inline_bytes())
        .build()?;
    parts.post_first_receives(qp.recv_batch())?;
    Ok((parts, qp))
}

/// How many sends ask for one completion.
pub fn signal_every(args: &Ping) -> u32 {
    // Completions wake this end up when it sleeps; the one of its own send comes while the peer is at work.
    if args.events { 1 } else { SIGNAL_EVERY }
}

/// How many sends an end has under way at most.
pub fn send_depth(args: &Ping) -> u32 {
    Turn::send_depth(signal_every(args))
}

/// What the peer is told of a queue pair.
pub fn address<T: QpType>(qp: &PreparedQp<Any, T>) -> Address {
    let Endpoint { lid, qpn, psn, gid, .. } = qp.endpoint();
    Address { lid, qpn, psn, gid: gid.unwrap_or_default(), xrc: None }
}
