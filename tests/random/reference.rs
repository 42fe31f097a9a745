//! What should be: for each queue what was posted and what has to come of it, in plain vectors.

use crate::connect::{AnyQp, AnySrq};
use crate::program::PairSpec;
use ironverbs::{Mw, QpCap, Qpn, RemoteAddr, Rkey, WcOpcode, WcStatus};
use std::collections::VecDeque;
use std::ops::Range;

/// Two queue pairs, the first of side 0.
pub struct Pair {
    pub spec: PairSpec,
    pub place: usize,
    pub ends: [End; 2],
    /// In error: all that is posted is flushed.
    pub dead: bool,
}

/// One queue pair.
pub struct End {
    /// None when it is gone.
    pub qp: Option<AnyQp>,
    /// Its numbers: of what sends, of what receives. They differ with XRC only.
    pub qpns: [Qpn; 2],
    cap: QpCap,
    pub sends: Sends,
    /// Receives of its own queue, in order.
    pub slots: VecDeque<Slot>,
    /// Messages on their way to it.
    pub messages: VecDeque<Message>,
    /// The newest receive of a shared queue that it completed.
    newest: u64,
    pub window: Option<Window>,
}

#[derive(Default)]
pub struct Sends {
    pub posted: u64,
    /// How many of those are known to be done.
    pub freed: u64,
    pub expected: VecDeque<Sent>,
    /// What READs that nothing was fenced behind read of the peer.
    pub being_read: Vec<Range<usize>>,
}

/// A completion of a send to come.
#[derive(Clone, Debug)]
pub struct Sent {
    pub wr_id: u64,
    /// Which work request of its queue it is, counted from 1.
    pub count: u64,
    pub opcode: WcOpcode,
    pub byte_len: u32,
    pub status: WcStatus,
    pub vendor_err: u32,
    /// What comes back, and where it goes, if it may come inside the completion instead.
    pub answer: Option<Answer>,
}

/// Pieces of the side's own region, and what they are to hold.
#[derive(Clone, Debug)]
pub struct Answer {
    pub pieces: Vec<Range<usize>>,
    pub data: Vec<u8>,
}

impl Answer {
    /// It came into memory.
    pub fn apply(&self, image: &mut [u8]) {
        let mut rest = self.data.as_slice();
        for piece in &self.pieces {
            let (head, tail) = rest.split_at(piece.len());
            image[piece.clone()].copy_from_slice(head);
            rest = tail;
        }
    }
}

/// A receive that was posted.
#[derive(Clone, Debug)]
pub struct Slot {
    pub wr_id: u64,
    pub at: usize,
    pub pieces: Vec<Range<usize>>,
}

/// A shared receive queue, and what is posted to it.
pub struct SharedQueue {
    pub srq: AnySrq,
    pub slots: VecDeque<Slot>,
    pub area: Area,
    /// The newest receive that completed.
    newest: u64,
}

/// A message that takes a receive.
#[derive(Clone, Debug)]
pub struct Message {
    /// The payload; none where it goes elsewhere, as that of a WRITE does.
    pub data: Option<Vec<u8>>,
    pub byte_len: usize,
    pub imm: Option<u32>,
    pub invalidates: Option<Rkey>,
}

/// A memory window, and what the peer knows of it.
pub struct Window {
    pub mw: Mw,
    pub piece: Range<usize>,
    pub remote: RemoteAddr,
    /// Number of the request that binds it or unbinds it.
    pub wr_id: u64,
}

/// A pair's part of a side's own region.
pub struct Area {
    start: usize,
    used: [usize; 2],
    free: Vec<usize>,
    shared: bool,
}

/// Bytes of an area that payload comes from, and that what is read goes to.
const SOURCE: usize = 24 * 1024;
/// Bytes of a receive, and how many there are in an area.
pub const SLOT: usize = 2048;
const SLOTS: usize = 20;
pub const AREA: usize = 2 * SOURCE + SLOTS * SLOT;
/// The longest batch takes no more.
const BATCH: usize = 12 * 1024;

impl Area {
    pub fn new(place: usize) -> Self {
        let start = place * AREA;
        let free = (0..SLOTS).map(|n| start + 2 * SOURCE + n * SLOT).collect();
        Self { start, used: [0, 0], free, shared: false }
    }

    /// The receives of a shared queue, behind the areas of all pairs.
    pub fn shared(start: usize, slots: usize) -> Self {
        Self { start, used: [0, 0], free: (0..slots).map(|n| start + n * SLOT).collect(), shared: true }
    }

    pub fn end(&self) -> usize {
        self.start + if self.shared { self.free.len() * SLOT } else { AREA }
    }

    /// Whether a batch may not fit any more.
    pub fn is_short(&self) -> bool {
        self.used.iter().any(|used| used + BATCH > SOURCE)
    }

    /// Room for payload.
    pub fn source(&mut self, len: usize) -> usize {
        self.take(0, len)
    }

    /// Room for what comes back.
    pub fn sink(&mut self, len: usize) -> usize {
        self.take(1, len)
    }

    fn take(&mut self, which: usize, len: usize) -> usize {
        let at = self.start + which * SOURCE + self.used[which];
        // Odd gaps between all that is used.
        self.used[which] += len + 3;
        assert!(self.used[which] <= SOURCE, "the area is too small for the program");
        at
    }

    pub fn take_slot(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub fn give_slot(&mut self, at: usize) {
        self.free.push(at);
    }

    /// Nothing is under way any more.
    pub fn reset(&mut self) {
        self.used = [0, 0];
    }
}

impl Pair {
    pub fn new(spec: PairSpec, place: usize, ends: [End; 2]) -> Self {
        Self { spec, place, ends, dead: false }
    }

    pub fn is_gone(&self) -> bool {
        self.ends[0].qp.is_none()
    }

    /// Nothing that was posted can complete any more.
    pub fn is_silent(&self) -> bool {
        self.ends.iter().all(|end| end.sends.expected.is_empty() && end.slots.is_empty())
    }

    pub fn is_reliable(&self) -> bool {
        self.spec.kind.is_reliable()
    }

    /// Destroys both queue pairs. What they completed is still to be polled.
    pub fn destroy(&mut self) {
        for end in &mut self.ends {
            end.window = None;
            end.qp = None;
        }
    }
}

impl End {
    pub fn new(qp: AnyQp) -> Self {
        Self {
            qpns: qp.numbers(),
            cap: qp.cap(),
            qp: Some(qp),
            sends: Sends::default(),
            slots: VecDeque::new(),
            messages: VecDeque::new(),
            newest: 0,
            window: None,
        }
    }

    pub fn send_capacity(&self) -> u32 {
        self.cap.max_send_wr
    }

    pub fn recv_capacity(&self) -> u32 {
        self.cap.max_recv_wr
    }

    /// Work requests that can be posted now.
    pub fn send_room(&self) -> u64 {
        u64::from(self.cap.max_send_wr) - (self.sends.posted - self.sends.freed)
    }

    /// It completed a receive of a shared queue. Whatever others took meanwhile, it took its own in the order they were posted.
    pub fn took(&mut self, slot: &Slot) {
        assert!(slot.wr_id > self.newest, "receive {} completes after {}", slot.wr_id, self.newest);
        self.newest = slot.wr_id;
    }
}

impl SharedQueue {
    pub fn new(srq: AnySrq, area: Area) -> Self {
        Self { srq, slots: VecDeque::new(), area, newest: 0 }
    }

    /// Where among those that are posted a receive is.
    pub fn position(&self, wr_id: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.wr_id == wr_id)
    }

    /// A receive completes.
    pub fn remove(&mut self, at: usize) -> Slot {
        let slot = self.slots.remove(at).unwrap();
        self.newest = self.newest.max(slot.wr_id);
        slot
    }

    /// Messages took the receives that were posted first, and no message is under way.
    pub fn check_taken_in_order(&self) {
        let older = self.slots.iter().find(|slot| slot.wr_id < self.newest);
        assert!(older.is_none(), "{older:?} was passed over; {} was taken", self.newest);
    }
}
