//! Programs: what is made at the start, and then one step after the other. Anything that makes no sense where it stands, such
//! as a READ on a datagram queue pair, is taken for the nearest thing that does, so that every program runs.

use ironverbs::Mtu;
use proptest::prelude::*;
use std::fmt;

/// One program.
#[derive(Clone, Debug)]
pub struct Program {
    /// What the network does, and payload, are made from it.
    pub seed: u64,
    pub infiniband: bool,
    pub network: Network,
    /// Completion queues of each side.
    pub cqs: usize,
    /// Where receives of XRC complete: on which of those, or on one of their own if there is no such.
    pub xrc_cq: usize,
    pub pairs: Vec<PairSpec>,
    pub steps: Vec<Step>,
}

/// A line for each pair and each step.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, infiniband, network, cqs, xrc_cq, pairs, steps } = self;
        writeln!(
            f,
            "seed {seed}, infiniband {infiniband}, {cqs} completion queues a side, XRC on {xrc_cq}, {network:?}"
        )?;
        pairs.iter().enumerate().try_for_each(|(n, pair)| writeln!(f, "pair {n}: {pair:?}"))?;
        steps.iter().enumerate().try_for_each(|(n, step)| writeln!(f, "step {n}: {step:?}"))
    }
}

/// Chances of what happens to a packet, in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
}

/// Two queue pairs, connected to each other; of XRC two on each side, one for each direction.
#[derive(Clone, Debug)]
pub struct PairSpec {
    pub kind: Kind,
    /// Receives come from the side's shared receive queue. Those of XRC always come from that of XRC.
    pub shared: bool,
    /// Work requests that each queue is asked to hold.
    pub depth: u32,
    pub signal_all: bool,
    /// What comes in may come inside the completion; of RC and UC only.
    pub inside: bool,
    pub mtu: Mtu,
    pub psn: u32,
    /// Which completion queues: of sends, of receives.
    pub cqs: [usize; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rc,
    Uc,
    Ud,
    Xrc,
}

/// A side's shared receive queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    Basic,
    Xrc,
}

impl PairSpec {
    /// Which shared receive queue its receives come from; none if from its own.
    pub fn queue(&self) -> Option<Shared> {
        match self.kind {
            Kind::Xrc => Some(Shared::Xrc),
            Kind::Rc | Kind::Uc | Kind::Ud => self.shared.then_some(Shared::Basic),
        }
    }
}

impl Kind {
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    /// One batch; posted, or dropped.
    Post { pair: usize, from: usize, works: Vec<Work>, dropped: bool },
    /// Receives in one batch, each of so many entries.
    Receives { pair: usize, at: usize, entries: Vec<usize> },
    /// The network runs for so many steps of a microsecond.
    Run { steps: u32 },
    /// Polls at most so many completions.
    Poll { side: usize, cq: usize, most: usize, how: Poll },
    /// Everything comes to rest, is polled, and all memory is compared.
    Settle,
    /// A window of either type, of the queue pair at that side, is bound to a piece of what its peer may reach.
    Bind { pair: usize, at: usize, type_2: bool, start: usize, len: usize },
    /// The window is unbound, by a request of its own side or by the peer.
    Unbind { pair: usize, at: usize, by_peer: bool },
    /// A completion queue gets room for so many times what it needs, with whatever is in it.
    Resize { side: usize, cq: usize, times: u32 },
    /// Both queue pairs are destroyed with their completions unread, and others take their place.
    Replace { pair: usize },
    /// The first of these fails on the device.
    Break { pair: usize, from: usize, syndrome: usize, works: Vec<Work> },
}

#[derive(Clone, Copy, Debug)]
pub enum Poll {
    One,
    Lent,
    Into,
}

#[derive(Clone, Debug)]
pub struct Work {
    pub op: Op,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub from: From,
    /// Through the peer's window, if one is bound there.
    pub window: bool,
}

/// Where the payload is.
#[derive(Clone, Copy, Debug)]
pub enum From {
    /// In so many entries of the side's region.
    Entries(usize),
    Inline,
    /// Inline, of so many pieces.
    Pieces(usize),
}

#[derive(Clone, Debug)]
pub enum Op {
    Send { len: usize, imm: bool },
    Write { at: usize, len: usize, imm: bool },
    Read { at: usize, len: usize },
    Add { at: usize, by: u64 },
    Swap { at: usize, hit: bool, with: u64 },
}

/// Bytes of a pair's area that its peer may reach.
pub const EXPOSED: usize = 8192;
/// Longest message.
pub const LONGEST: usize = 1500;
/// Longest inline payload.
pub const INLINE: usize = 200;
/// Most entries of a work request.
pub const ENTRIES: usize = 5;

pub fn programs() -> impl Strategy<Value = Program> {
    let network =
        (0..40_u32, 0..100_u32, 0..100_u32, any::<bool>()).prop_map(|(loss, duplication, reordering, good)| {
            if good {
                Network { loss: 0, duplication: 0, reordering: 0 }
            } else {
                Network { loss, duplication, reordering }
            }
        });
    let pairs = prop::collection::vec(pair(), 1..4);
    let steps = prop::collection::vec(step(), 1..40);
    (any::<u64>(), any::<bool>(), network, 1..3_usize, 0..3_usize, pairs, steps).prop_map(
        |(seed, infiniband, network, cqs, xrc_cq, pairs, steps)| Program {
            seed,
            infiniband,
            network,
            cqs,
            xrc_cq: xrc_cq.min(cqs),
            pairs,
            steps,
        },
    )
}

fn pair() -> impl Strategy<Value = PairSpec> {
    let kind = prop_oneof![3 => Just(Kind::Rc), 1 => Just(Kind::Uc), 1 => Just(Kind::Ud), 2 => Just(Kind::Xrc)];
    let mtu = prop_oneof![Just(Mtu::B256), Just(Mtu::B512), Just(Mtu::B1024)];
    // Packet numbers have 24 bits; half of the pairs are close to the end of them.
    let psn = prop_oneof![0..1_u32 << 24, (1_u32 << 24) - 40..1 << 24];
    let cqs = [0..2_usize, 0..2_usize];
    (kind, any::<bool>(), 1..20_u32, any::<bool>(), any::<bool>(), mtu, psn, cqs).prop_map(
        |(kind, shared, depth, signal_all, inside, mtu, psn, cqs)| PairSpec {
            kind,
            shared,
            depth,
            signal_all,
            inside: inside && matches!(kind, Kind::Rc | Kind::Uc),
            mtu,
            psn,
            cqs,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || 0..3_usize;
    let side = || 0..2_usize;
    let cq = || 0..3_usize;
    let works = || prop::collection::vec(work(), 1..7);
    let poll = prop_oneof![Just(Poll::One), Just(Poll::Lent), Just(Poll::Into)];
    prop_oneof![
        12 => (pair(), side(), works(), prop::bool::weighted(0.1))
            .prop_map(|(pair, from, works, dropped)| Step::Post { pair, from, works, dropped }),
        5 => (pair(), side(), prop::collection::vec(1..=ENTRIES, 1..8))
            .prop_map(|(pair, at, entries)| Step::Receives { pair, at, entries }),
        5 => (1..60_u32).prop_map(|steps| Step::Run { steps }),
        5 => (side(), cq(), 1..20_usize, poll)
            .prop_map(|(side, cq, most, how)| Step::Poll { side, cq, most, how }),
        2 => Just(Step::Settle),
        2 => (pair(), side(), any::<bool>(), 0..EXPOSED / 2, 64..EXPOSED / 2)
            .prop_map(|(pair, at, type_2, start, len)| Step::Bind { pair, at, type_2, start, len }),
        1 => (pair(), side(), any::<bool>()).prop_map(|(pair, at, by_peer)| Step::Unbind { pair, at, by_peer }),
        1 => (side(), cq(), 1..5_u32).prop_map(|(side, cq, times)| Step::Resize { side, cq, times }),
        1 => pair().prop_map(|pair| Step::Replace { pair }),
        1 => (pair(), side(), 0..13_usize, works())
            .prop_map(|(pair, from, syndrome, works)| Step::Break { pair, from, syndrome, works }),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    let at = || 0..EXPOSED - LONGEST;
    let len = || prop_oneof![1 => Just(0_usize), 2 => 1..=70_usize, 3 => 0..INLINE, 3 => 0..=LONGEST];
    let op = prop_oneof![
        4 => (len(), any::<bool>()).prop_map(|(len, imm)| Op::Send { len, imm }),
        4 => (at(), len(), prop::bool::weighted(0.2)).prop_map(|(at, len, imm)| Op::Write { at, len, imm }),
        2 => (at(), len()).prop_map(|(at, len)| Op::Read { at, len }),
        1 => (at(), any::<u64>()).prop_map(|(at, by)| Op::Add { at: at & !7, by }),
        1 => (at(), any::<bool>(), any::<u64>()).prop_map(|(at, hit, with)| Op::Swap { at: at & !7, hit, with }),
    ];
    let from =
        prop_oneof![(0..=ENTRIES).prop_map(From::Entries), Just(From::Inline), (1..5_usize).prop_map(From::Pieces)];
    (op, any::<bool>(), prop::bool::weighted(0.1), any::<bool>(), from, any::<bool>()).prop_map(
        |(op, signaled, fence, solicited, from, window)| Work { op, signaled, fence, solicited, from, window },
    )
}
