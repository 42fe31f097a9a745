//! How the poller of a completion queue learns of queue pairs that come and go on other threads, without a lock per
//! completion.
//!
//! A completion names its queue by the user's index. The poller has a table of its own by that index ([`Routes`]); whoever
//! makes, resets or destroys a queue puts a note into the completion queue's [`Mailbox`] and moves its epoch on. A note was put
//! before anything was posted to the queue that it tells of, so whoever sees a completion of that sees what came with the
//! note as well. For receives that is the epoch: the poller compares it with the one it knows *after* it has seen a completion
//! and *before* it looks its queue up. For sends, of which there are many more on most completion queues, it is that the queue
//! that had the index before is [retired](SqShared::retire): the poller looks up a queue, finds that it is retired or that there is
//! none, and only then asks for notes. A look per batch would not do: a completion that arrives during the batch, of a queue
//! made during the batch, would be taken for one of whatever queue had the index before. Where queue pairs come and go and nobody
//! asks, notes are taken once in half a ring of completions; and a queue of which nothing is in the ring leaves no more behind than the
//! last note of its index.
//!
//! **Completions of the past.** An index may be used again at once. Completions of the queue that had it before may still be
//! in the ring, but none comes after: the note is put after the kernel destroyed (or reset) that queue. So the note says how
//! far the ring was filled at that time, and the poller, when it takes the note, gives what is in the ring up to there another
//! name, under which it still finds the queue that is gone. The name is free again when the poller is past that place.
//! Finding that out is the note writer's work ([`Filled::filled_to`]), which reads the ring from another thread: an entry may
//! be overwritten only after the poller gave it back, so if the poller has not passed the place where reading stopped, nothing
//! that was read can have been overwritten meanwhile.
//!
//! However many queues go at once, each answer is looked at once by those who write notes ([`Looked`]), and once by the poller
//! that takes them ([`Pasts`]).

use super::cqe::opcode;
use super::shadow::{RqShared, SqShared, SrqShared};
use super::uidx;
use crate::mem::atomic::{AtomicU32, Ordering};
use crate::uverbs::wr::WcOpcode;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::{Mutex, PoisonError};

/// Where completions of receives are looked up.
#[derive(Clone)]
pub enum Receives {
    /// A queue pair's own queue.
    Own(Arc<RqShared>),
    /// A shared one.
    Shared(Arc<SrqShared>),
}

impl Receives {
    /// Element `counter` is done.
    #[inline(always)]
    pub fn complete(&self, counter: u32) -> u64 {
        match self {
            Self::Own(queue) => queue.complete(),
            Self::Shared(queue) => queue.complete(counter),
        }
    }
}

/// What a receive completes as.
#[inline(always)]
pub const fn received_as(kind: u8) -> WcOpcode {
    if kind == opcode::RESP_WR_IMM { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV }
}

/// A change of what a user index stands for. Both directions change independently: they may complete on different queues.
pub enum Change {
    Sends(Option<Arc<SqShared>>),
    Receives(Option<Receives>),
}

/// Whose a completion is: a user index, and whether it is of a send.
pub type Named = (u32, bool);

struct Note {
    uidx: u32,
    change: Change,
    /// Completions before this one are of the past.
    filled_to: u32,
    /// There is one among them of the queue that the index stood for until then.
    has_past: bool,
}

impl Note {
    /// Whether somebody may still see what its index stood for before it.
    fn matters(&self, consumed: u32) -> bool {
        self.has_past && is_before(consumed, self.filled_to)
    }
}

/// Notes in the order that they were put in.
#[derive(Default)]
struct Notes {
    next: u64,
    all: BTreeMap<u64, Note>,
    /// Which of them are about the same, in their order.
    about: HashMap<Named, Vec<u64>>,
}

impl Notes {
    fn last_about(&self, named: Named) -> Option<&Note> {
        self.all.get(self.about.get(&named)?.last()?)
    }

    fn put(&mut self, named: Named, note: Note) {
        self.all.insert(self.next, note);
        self.about.entry(named).or_default().push(self.next);
        self.next += 1;
    }

    /// Drops the last ones about the same, up to one that matters.
    fn forget(&mut self, named: Named, consumed: u32) {
        let Some(about) = self.about.get_mut(&named) else { return };
        while let Some(last) = about.last()
            && !self.all.get(last).is_some_and(|note| note.matters(consumed))
        {
            self.all.remove(last);
            about.pop();
        }
    }
}

/// What note writers have seen of the ring, so that they look at each answer once.
#[derive(Default)]
struct Looked {
    /// Answer number that the ring was filled to.
    to: u32,
    /// The number after that of the last answer that names it.
    last: HashMap<Named, u32>,
    /// How many of those make it worth while to look for some that are of no use any more.
    sweep_at: usize,
}

impl Looked {
    /// Looks on, from where the poller or the last look was, whichever is further. Where the ring is filled to.
    fn look(&mut self, ring: &impl Filled, consumed: &AtomicU32) -> u32 {
        let Self { to, last, sweep_at } = self;
        let now = consumed.load(Ordering::Acquire);
        if is_before(*to, now) {
            *to = now;
        }
        *to = ring.filled_to(*to, consumed, |at, span| {
            last.insert(ring.names(at), at.wrapping_add(span));
        });
        if last.len() >= *sweep_at {
            last.retain(|_, end| is_before(now, *end));
            *sweep_at = 64 + 2 * last.len();
        }
        *to
    }
}

/// What can be told of a completion ring from outside.
pub trait Filled {
    /// How many answers the entry stands for that the device wrote as answer number `ci`: more than one for a block of
    /// compressed ones. `None` if it has not written it.
    fn span(&self, ci: u32) -> Option<u32>;

    /// Whose answer number `ci` is, which has a span. Means nothing if the poller gave it back meanwhile.
    fn names(&self, ci: u32) -> Named;

    /// Answer number that the ring is filled to, which is at least `from`, and of which the poller has given back all before
    /// `consumed`. Shows each from there on to `look`, with its span, and maybe some that the poller has given back meanwhile.
    fn filled_to(&self, from: u32, consumed: &AtomicU32, mut look: impl FnMut(u32, u32)) -> u32 {
        let mut at = from;
        loop {
            if let Some(span) = self.span(at) {
                look(at, span);
                at = at.wrapping_add(span);
                continue;
            }
            let now = consumed.load(Ordering::Acquire);
            if now.wrapping_sub(at) as i32 <= 0 {
                return at;
            }
            // The poller is past it, so it was ready and is overwritten: go on where the poller is.
            at = now;
        }
    }
}

/// Notes for the poller of one completion queue.
pub struct Mailbox<F> {
    /// Counts notes. Stored under the lock, loaded without.
    epoch: AtomicU32,
    /// Completions that the poller gave back, from the queue's start.
    consumed: AtomicU32,
    /// Not 0 once a queue pair was made that lets the device put data into completions.
    data: AtomicU32,
    /// 0 if what note writers have seen of the ring counts no more.
    has_looked: AtomicU32,
    inner: Mutex<Inner<F>>,
}

struct Inner<F> {
    notes: Notes,
    looked: Looked,
    /// The send queues that indices stand for, as of the last note.
    sends: Vec<Option<Arc<SqShared>>>,
    ring: F,
}

impl<F: Filled> Mailbox<F> {
    pub fn new(ring: F) -> Self {
        Self {
            epoch: AtomicU32::new(0),
            consumed: AtomicU32::new(0),
            data: AtomicU32::new(0),
            has_looked: AtomicU32::new(0),
            inner: Mutex::new(Inner { notes: Notes::default(), looked: Looked::default(), sends: Vec::new(), ring }),
        }
    }

    /// Puts a note: from now on `uidx` stands for what `change` says. Before a queue is used for the first time; after the
    /// kernel has reset or destroyed it.
    pub fn put(&self, uidx: u32, change: Change) {
        self.with(|inner| {
            if let Change::Sends(queue) = &change
                && let Some(before) = set(&mut inner.sends, uidx, queue.clone())
            {
                before.retire();
            }
            let Inner { notes, looked, ring, .. } = inner;
            let consumed = self.consumed.load(Ordering::Acquire);
            if self.has_looked.swap(1, Ordering::Acquire) == 0 {
                *looked = Looked { to: consumed, ..Looked::default() };
            }
            let named = (uidx, matches!(change, Change::Sends(_)));
            let filled_to = looked.look(ring, &self.consumed);
            // What is before the last note of this index is of those that had it earlier.
            let known_to = notes.last_about(named).map_or(consumed, |note| later(consumed, note.filled_to));
            let has_past = looked.last.get(&named).is_some_and(|end| is_before(known_to, *end));
            if !has_past {
                // Nobody can see any more what the index stood for since the last one of which there is something to read.
                notes.forget(named, consumed);
            }
            notes.put(named, Note { uidx, change, filled_to, has_past });
            let epoch = self.epoch.load(Ordering::Relaxed).wrapping_add(1);
            self.epoch.store(epoch, Ordering::Release);
        });
    }

    /// Completions may carry data from now on: before a queue is used for the first time.
    pub fn expect_data(&self) {
        self.data.store(1, Ordering::Release);
    }

    /// Poller: whether completions may carry data.
    pub fn expects_data(&self) -> bool {
        self.data.load(Ordering::Acquire) != 0
    }

    /// Poller: all completions before number `ci` are done with. Comes before the device is told so.
    #[inline(always)]
    pub fn give_back(&self, ci: u32) {
        self.consumed.store(ci, Ordering::Release);
    }

    /// Poller: has come to the end of a half of the ring, or to another ring. Answers are numbered in 32 bits: what was seen long ago
    /// would be taken for what is to come.
    pub fn turned(&self) {
        self.has_looked.store(0, Ordering::Release);
    }

    /// Poller: takes all notes, and the ring's place with them: `change` may put another ring there.
    fn take<T>(&self, change: impl FnOnce(Notes, &mut F) -> T) -> (u32, T) {
        self.with(|inner| {
            let notes = std::mem::take(&mut inner.notes);
            // What a note tells of has another name from now on.
            inner
                .looked
                .last
                .retain(|named, end| notes.last_about(*named).is_none_or(|note| is_before(note.filled_to, *end)));
            (self.epoch.load(Ordering::Relaxed), change(notes, &mut inner.ring))
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner<F>) -> T) -> T {
        #[cfg(loom)]
        let mut inner = self.inner.lock().unwrap();
        // Nothing that can panic leaves the notes half done.
        #[cfg(not(loom))]
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut inner)
    }
}

/// What completions of a direction to rename: of this user index, before that answer number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    pub uidx: u32,
    pub sends: bool,
    pub filled_to: u32,
    /// What they name from now on; [`uidx::NONE`] for no queue at all.
    pub name: u32,
}

impl Past {
    fn named(&self) -> Named {
        (self.uidx, self.sends)
    }
}

/// All that is to be renamed.
#[derive(Default)]
pub struct Pasts {
    /// In the order of their places.
    by_name: HashMap<Named, VecDeque<Past>>,
    /// What is beyond keeps its name.
    filled_to: Option<u32>,
}

impl Pasts {
    fn put(&mut self, past: Past) {
        self.filled_to = Some(self.filled_to.map_or(past.filled_to, |to| later(to, past.filled_to)));
        self.by_name.entry(past.named()).or_default().push_back(past);
    }

    /// Whether answer number `at`, or one after it, may be among them.
    pub fn go_beyond(&self, at: u32) -> bool {
        self.filled_to.is_some_and(|to| is_before(at, to))
    }

    /// What answer number `at` names from now on, if not the same. To be asked in the order of answers.
    pub fn new_name(&mut self, at: u32, names: Named) -> Option<u32> {
        let pasts = self.by_name.get_mut(&names)?;
        while pasts.front().is_some_and(|past| !is_before(at, past.filled_to)) {
            pasts.pop_front();
        }
        pasts.front().map(|past| past.name)
    }

    /// For tests.
    #[cfg(test)]
    pub fn all(self) -> Vec<Past> {
        let mut all: Vec<_> = self.by_name.into_values().flatten().collect();
        all.sort_by_key(|past| past.filled_to);
        all
    }
}

/// A queue that is gone, or was reset, and the answer number that its last completion is before.
struct Gone {
    queue: Change,
    filled_to: u32,
}

/// The poller's table of what user indices stand for.
pub struct Routes<F> {
    mailbox: Arc<Mailbox<F>>,
    /// Epoch of the last note that was taken.
    seen: u32,
    /// [`nobody`](SqShared::nobody) where there is none: the quick way asks only whether what it found is retired.
    sends: Vec<Arc<SqShared>>,
    nobody: Arc<SqShared>,
    receives: Vec<Option<Receives>>,
    /// By distance from [`uidx::FIRST_NAME`].
    gone: Vec<Option<Gone>>,
}

impl<F: Filled> Routes<F> {
    pub fn new(mailbox: Arc<Mailbox<F>>) -> Self {
        let nobody = Arc::new(SqShared::nobody());
        Self { mailbox, seen: 0, sends: Vec::new(), nobody, receives: Vec::new(), gone: Vec::new() }
    }

    pub fn mailbox(&self) -> &Arc<Mailbox<F>> {
        &self.mailbox
    }

    /// Whether there are notes. Asked after a completion was seen and before its queue is looked up; and now and then, so that they
    /// do not pile up.
    #[inline(always)]
    pub fn has_mail(&self) -> bool {
        self.mailbox.epoch.load(Ordering::Acquire) != self.seen
    }

    /// Takes all notes. `disown` is told what to disown of the ring before the next look-up.
    #[cold]
    #[inline(never)]
    pub fn take_mail(&mut self, disown: impl FnOnce(Pasts)) {
        self.take_mail_and(disown, |_| ());
    }

    /// As [`take_mail`](Self::take_mail), and lets `change` put another ring in the place that note writers look at.
    pub fn take_mail_and<T>(&mut self, disown: impl FnOnce(Pasts), change: impl FnOnce(&mut F) -> T) -> T {
        let Self { sends, nobody, receives, gone, mailbox, .. } = self;
        let consumed = mailbox.consumed.load(Ordering::Relaxed);
        for place in gone.iter_mut() {
            place.take_if(|gone| !is_before(consumed, gone.filled_to));
        }
        let mut free = 0;
        let (seen, changed) = mailbox.take(|notes, ring| {
            let mut pasts = Pasts::default();
            for Note { uidx, change, filled_to, has_past } in notes.all.into_values() {
                let is_sends = matches!(change, Change::Sends(_));
                let before = match change {
                    Change::Sends(queue) => {
                        let at = uidx as usize;
                        if sends.len() <= at {
                            sends.resize(at + 1, Arc::clone(nobody));
                        }
                        let before = std::mem::replace(&mut sends[at], queue.unwrap_or_else(|| Arc::clone(nobody)));
                        (!Arc::ptr_eq(&before, nobody)).then_some(Change::Sends(Some(before)))
                    }
                    Change::Receives(queue) => set(receives, uidx, queue).map(|queue| Change::Receives(Some(queue))),
                };
                if has_past && is_before(consumed, filled_to) {
                    let name = before.map_or(uidx::NONE, |queue| name(gone, &mut free, Gone { queue, filled_to }));
                    pasts.put(Past { uidx, sends: is_sends, filled_to, name });
                }
            }
            disown(pasts);
            change(ring)
        });
        self.seen = seen;
        changed
    }

    /// The send queue that `uidx` stood for when the last note was taken, if there was any: the quick way. Whether it still does
    /// is known to [`SqShared::complete_current`].
    #[inline(always)]
    pub fn send_queue(&self, uidx: u32) -> Option<&SqShared> {
        self.sends.get(uidx as usize).map(|queue| &**queue)
    }

    /// The receive queue that `uidx` stands for, if it is in the table: the quick way.
    #[inline(always)]
    pub fn receive_queue(&self, uidx: u32) -> Option<&Receives> {
        self.receives.get(uidx as usize)?.as_ref()
    }

    /// The send queue that `uidx` stands for.
    #[cold]
    #[inline(never)]
    #[allow(
        improper_ctypes_definitions,
        reason = "of Rust's own callers; the convention is there so that nothing unwinds"
    )]
    pub extern "C" fn sends(&self, uidx: u32) -> Option<&SqShared> {
        match self.sends.get(uidx as usize) {
            Some(queue) if Arc::ptr_eq(queue, &self.nobody) => None,
            Some(queue) => Some(queue),
            None => match self.gone(uidx)? {
                Change::Sends(queue) => queue.as_deref(),
                Change::Receives(_) => None,
            },
        }
    }

    /// The receive queue that `uidx` stands for.
    #[inline(always)]
    pub fn receives(&self, uidx: u32) -> Option<&Receives> {
        match self.receives.get(uidx as usize) {
            Some(queue) => queue.as_ref(),
            None => match self.gone(uidx)? {
                Change::Receives(queue) => queue.as_ref(),
                Change::Sends(_) => None,
            },
        }
    }

    /// The queue that is gone and has this name.
    #[cold]
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "as above")]
    extern "C" fn gone(&self, name: u32) -> Option<&Change> {
        let at = name.checked_sub(uidx::FIRST_NAME)?;
        Some(&self.gone.get(at as usize)?.as_ref()?.queue)
    }

    /// All completions that were not read have moved on by one place.
    pub fn moved_on(&mut self) {
        for gone in self.gone.iter_mut().flatten() {
            gone.filled_to = gone.filled_to.wrapping_add(1);
        }
    }
}

/// Whether answer number `a` comes before `b`.
const fn is_before(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) as i32 > 0
}

/// The answer number of the two that comes later.
const fn later(a: u32, b: u32) -> u32 {
    if is_before(a, b) { b } else { a }
}

/// Gives a queue that is gone the first name from `free` on that no completion has; [`uidx::NONE`] if there is none.
fn name(all: &mut Vec<Option<Gone>>, free: &mut usize, queue: Gone) -> u32 {
    while all.get(*free).is_some_and(Option::is_some) {
        *free += 1;
    }
    let at = *free;
    if at >= uidx::NAMES {
        return uidx::NONE;
    }
    if at == all.len() {
        all.push(None);
    }
    all[at] = Some(queue);
    uidx::FIRST_NAME + at as u32
}

/// Puts an entry into a table, which grows to have it, and gives back what was there.
fn set<T>(table: &mut Vec<Option<T>>, uidx: u32, entry: Option<T>) -> Option<T> {
    let at = uidx as usize;
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    std::mem::replace(&mut table[at], entry)
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
