//! One side of a ping that is not connected yet, with its receives posted.

use crate::buffers::Buffers;
use crate::end::{End, Parts};
use crate::engine::Player;
use crate::failure::Failure;
use crate::link::Link;
use crate::payload::Role;
use crate::place::Place;
use crate::reach::Reach;
use crate::turn::Turn;
use crate::wire::Address;
use ironverbs::{Any, Cq, Endpoint, GidChoice, GidIndex, Pd, PreparedQp, QpBuilder, QpType};

/// Sends for each completion of a send, where completions are polled for.
const SIGNAL_EVERY: u32 = 16;

/// One side of a ping, not connected yet.
pub trait Half: Sized {
    /// The same side, connected.
    type End: Player;

    /// How many addresses each side sends to the other.
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
    type End = End<L>;
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

    fn connect(self, place: &Place<'_>, remote: &[Address]) -> Result<End<L>, Failure> {
        let [remote] = remote else { return Err(Failure::new(crate::failure::Kind::Peer, "the peer sent no address")) };
        place.check_gids(self.qp.endpoint().gid, remote)?;
        let (qp, peer) = L::connect(self.qp, place, &self.reach.used(*remote))?;
        self.parts.connected(qp, peer)
    }
}

/// A queue pair as `builder` makes it, with the memory and the completion queue of one end, and its receives posted.
pub fn prepare<L: Link>(
    place: &Place<'_>,
    role: Role,
    builder: impl for<'a> FnOnce(&'a Pd, &'a Cq) -> Result<QpBuilder<'a, Any, L>, Failure>,
) -> Result<(Parts, PreparedQp<Any, L>), Failure> {
    let Place { args, context, pd, .. } = place;
    let size = args.size();
    // Completions wake this end up when it sleeps; the one of its own send comes while the peer is at work.
    let signal_every = if args.events { 1 } else { SIGNAL_EVERY };
    let send_depth = Turn::send_depth(signal_every);
    place.check_rx_depth(send_depth)?;
    let buffers = Buffers::new(pd, role, (args, place.stop), L::HEADER_BYTES)?;
    let channel = if args.events { Some(context.create_comp_channel()?) } else { None };
    // If the peer goes, all sends and all receives complete before any is polled.
    let mut cq = context.cq_builder(args.rx_depth.saturating_add(send_depth));
    if let Some(channel) = &channel {
        cq = cq.channel(channel);
    }
    let cq = cq.build()?;
    let mut qp = builder(pd, &cq)?
        .max_send_wr(send_depth)
        .max_recv_wr(args.rx_depth)
        .max_inline_bytes(place.inline_bytes())
        .build()?;
    let turn = Turn::new(args.iters, args.rx_depth, signal_every, role == Role::Client);
    let is_software_device = place.is_software_device();
    let mut parts = Parts { role, cq, channel, buffers, size, is_software_device, turn };
    parts.post_first_receives(&mut qp)?;
    Ok((parts, qp))
}

/// What the peer is told of a queue pair.
pub fn address<T: QpType>(qp: &PreparedQp<Any, T>) -> Address {
    let Endpoint { lid, qpn, psn, gid, .. } = qp.endpoint();
    Address { lid, qpn, psn, gid: gid.unwrap_or_default() }
}
