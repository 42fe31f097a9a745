//! A list of requests in words, which both sides read, so that neither has the other's idea of them. A line each:
//!
//! ```text
//! region BYTES
//! queue NAME RC|UC|UD|XRC SIGNAL_ALL SEND_WR SEND_SGE INLINE_BYTES RECV_WR RECV_SGE
//! address NAME SERVICE_LEVEL RATE GLOBAL TRAFFIC_CLASS HOP_LIMIT FLOW_LABEL
//! window NAME QUEUE TYPE
//! receive QUEUE OFFSET:LENGTH…
//! send QUEUE OPERATION FLAGS IMMEDIATE REMOTE A B TARGET inline|entries OFFSET:LENGTH…
//! bind QUEUE WINDOW FLAGS OFFSET LENGTH ACCESS
//! unbind QUEUE WINDOW FLAGS
//! invalidate QUEUE WINDOW FLAGS
//! submit QUEUE SENDS RECEIVES
//! ```
//!
//! The region is registered with an address of its own, [`IOVA`], so that both sides call its bytes by the same addresses; it
//! starts out holding `7 i + i / 256` at byte `i`. A queue is a queue pair connected with itself; an XRC one has a receiving end
//! and a shared receive queue beside it. Flags are letters: `s` signaled, `e` solicited (an event), `f` fence, `-` for none.
//! `A` and `B` are compare value or addend, and swap value. The target is the address of a datagram, or the window that a
//! SEND_INV ends, or `-`. Receives are posted at once, all others with the queue's next `submit`, which rings once and waits
//! until so many sends and receives have completed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// Address of the region's first byte.
pub const IOVA: u64 = 0x5eed_0000_0000;
/// Bytes of the region.
pub const REGION: usize = 256 << 10;

/// What a byte of the region holds in the beginning.
pub fn pattern(at: usize) -> u8 {
    (at * 7 + (at >> 8)) as u8
}

/// The list.
#[derive(Default)]
pub struct List {
    pub text: String,
    pub cases: Vec<Case>,
    pub queues: BTreeMap<&'static str, Queue>,
}

/// What of each queue belongs together: where it begins and ends.
pub struct Case {
    pub name: &'static str,
    pub sends: BTreeMap<&'static str, Range<usize>>,
    pub receives: BTreeMap<&'static str, Range<usize>>,
}

/// What was asked of a queue so far.
pub struct Queue {
    pub kind: Kind,
    signal_all: bool,
    pub recv_wr: usize,
    sends: usize,
    receives: usize,
    /// Of what was not submitted: requests, completions of sends, and receives that are used up.
    batch: (usize, usize, usize),
}

/// The kinds of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rc,
    Uc,
    Ud,
    Xrc,
}

/// What a queue is asked to hold.
#[derive(Clone, Copy)]
pub struct Size {
    pub send_wr: usize,
    pub send_sge: usize,
    pub inline: usize,
    pub recv_wr: usize,
    pub recv_sge: usize,
}

/// A work request other than about windows.
#[derive(Clone)]
pub struct Wr {
    pub op: &'static str,
    pub flags: &'static str,
    pub imm: u32,
    pub remote: usize,
    pub a: u64,
    pub b: u64,
    pub target: &'static str,
    pub inline: bool,
    pub pieces: Vec<(usize, usize)>,
}

impl Wr {
    /// A signaled one, without payload.
    pub fn new(op: &'static str) -> Self {
        Self { op, flags: "s", imm: 0, remote: REMOTE, a: 0, b: 0, target: "-", inline: false, pieces: vec![] }
    }

    pub fn flags(mut self, flags: &'static str) -> Self {
        self.flags = flags;
        self
    }

    pub fn to(mut self, target: &'static str) -> Self {
        self.target = target;
        self
    }

    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = imm;
        self
    }

    pub fn operands(mut self, a: u64, b: u64) -> Self {
        (self.a, self.b) = (a, b);
        self
    }

    pub fn entries(mut self, pieces: &[(usize, usize)]) -> Self {
        (self.inline, self.pieces) = (false, pieces.to_vec());
        self
    }

    pub fn inline(mut self, pieces: &[(usize, usize)]) -> Self {
        (self.inline, self.pieces) = (true, pieces.to_vec());
        self
    }

    pub fn takes_a_receive(&self) -> bool {
        matches!(self.op, "SEND" | "SEND_IMM" | "SEND_INV" | "WRITE_IMM")
    }
}

/// Where what is sent comes from: nothing is written there. What is written by the peer goes to [`REMOTE`], what is received to
/// [`ROOM`], and what is read to [`RESULT`].
pub const REMOTE: usize = 64 << 10;
pub const ROOM: usize = 128 << 10;
pub const RESULT: usize = 192 << 10;

impl List {
    pub fn line(&mut self, words: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{words}").expect("a string takes everything");
    }

    /// What follows belongs to this case.
    pub fn case(&mut self, name: &'static str) {
        self.cases.push(Case { name, sends: BTreeMap::new(), receives: BTreeMap::new() });
    }

    pub fn queue(&mut self, name: &'static str, kind: Kind, signal_all: bool, size: Size) {
        let Size { send_wr, send_sge, inline, recv_wr, recv_sge } = size;
        let word = match kind {
            Kind::Rc => "RC",
            Kind::Uc => "UC",
            Kind::Ud => "UD",
            Kind::Xrc => "XRC",
        };
        let all = u8::from(signal_all);
        self.line(format_args!("queue {name} {word} {all} {send_wr} {send_sge} {inline} {recv_wr} {recv_sge}"));
        let queue = Queue { kind, signal_all, recv_wr, sends: 0, receives: 0, batch: (0, 0, 0) };
        assert!(self.queues.insert(name, queue).is_none(), "{name} has one queue");
    }

    pub fn receive(&mut self, queue: &'static str, pieces: &[(usize, usize)]) {
        self.line(format_args!("receive {queue}{}", words(pieces)));
        let state = self.queues.get_mut(queue).expect("a queue of the list");
        count(&mut self.cases.last_mut().expect("a case").receives, queue, &mut state.receives);
    }

    pub fn send(&mut self, queue: &'static str, send: &Wr) {
        let Wr { op, flags, imm, remote, a, b, target, inline, pieces } = send;
        let how = if *inline { "inline" } else { "entries" };
        let flags_word = if flags.is_empty() { "-" } else { flags };
        self.line(format_args!(
            "send {queue} {op} {flags_word} {imm:#x} {remote} {a:#x} {b:#x} {target} {how}{}",
            words(pieces)
        ));
        self.request(queue, flags.contains('s'), send.takes_a_receive());
    }

    pub fn bind(&mut self, queue: &'static str, window: &str, flags: &str, range: (usize, usize), access: u32) {
        let (offset, length) = range;
        self.line(format_args!("bind {queue} {window} {flags} {offset} {length} {access:#x}"));
        self.request(queue, true, false);
    }

    pub fn unbind(&mut self, queue: &'static str, window: &str, flags: &str) {
        self.line(format_args!("unbind {queue} {window} {flags}"));
        self.request(queue, true, false);
    }

    pub fn invalidate(&mut self, queue: &'static str, window: &str, flags: &str) {
        self.line(format_args!("invalidate {queue} {window} {flags}"));
        self.request(queue, true, false);
    }

    /// Rings for what the queue was given. The last request must be signaled, so that all are done then.
    pub fn submit(&mut self, queue: &'static str) {
        let state = self.queues.get_mut(queue).expect("a queue of the list");
        let (requests, sends, mut receives) = std::mem::take(&mut state.batch);
        assert!(requests != 0, "{queue} has something to submit");
        if state.kind == Kind::Ud && state.receives == 0 {
            // Nobody is told of a datagram that finds no receive.
            receives = 0;
        }
        self.line(format_args!("submit {queue} {sends} {receives}"));
    }

    /// Requests on their own, each rung for by itself.
    pub fn one_by_one(&mut self, queue: &'static str, sends: impl IntoIterator<Item = Wr>) {
        for send in sends {
            self.send(queue, &send);
            self.submit(queue);
        }
    }

    /// Requests in batches of so many, of which the last is signaled and the others are not.
    pub fn in_batches(&mut self, queue: &'static str, of: usize, sends: impl IntoIterator<Item = Wr>) {
        let mut sends = sends.into_iter().peekable();
        let mut pushed = 0;
        while let Some(send) = sends.next() {
            pushed += 1;
            let last = pushed == of || sends.peek().is_none();
            self.send(queue, &send.flags(if last { "s" } else { "" }));
            if last {
                self.submit(queue);
                pushed = 0;
            }
        }
    }

    fn request(&mut self, queue: &'static str, signaled: bool, receives: bool) {
        let state = self.queues.get_mut(queue).expect("a queue of the list");
        count(&mut self.cases.last_mut().expect("a case").sends, queue, &mut state.sends);
        let (requests, completions, received) = &mut state.batch;
        *requests += 1;
        *completions += usize::from(signaled || state.signal_all);
        *received += usize::from(receives);
    }

    /// All that was asked of a queue: sends and receives.
    pub fn total(&self, queue: &str) -> (usize, usize) {
        let queue = &self.queues[queue];
        (queue.sends, queue.receives)
    }
}

fn count(ranges: &mut BTreeMap<&'static str, Range<usize>>, queue: &'static str, at: &mut usize) {
    let range = ranges.entry(queue).or_insert(*at..*at);
    *at += 1;
    range.end = *at;
}

fn words(pieces: &[(usize, usize)]) -> String {
    pieces.iter().map(|(offset, length)| format!(" {offset}:{length}")).collect()
}
