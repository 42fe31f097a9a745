//! The completion queue: completions read in place, in batches.
//!
//! There is no index word to look at: each entry says itself whether the device has written it. `open`, `next`, `end` make a
//! batch; the device gets its entries back at `end`, with one store to the doorbell record, and in the course of batches that
//! are longer than half the ring.
//!
//! # Safety argument
//!
//! The unsafe blocks, as those of [`open`], read an entry at the queue's place. It is always one of its ring: whenever the ring is
//! replaced, the place is asked for anew.
#![allow(unsafe_code)]

use super::bus::{Bus, Cpu};
use super::compressed;
use super::cq_memory::{Body, CqRing, Last, Place};
use super::cqe::{self, format, opcode};
use super::dbrec::{DoorbellRecord, Word};
use super::mailbox::{Filled, Mailbox, Named, Pasts, Routes, received_as};
use super::uar::UarPage;
use crate::mem::barrier;
use crate::uverbs::wc::InlineData;
use crate::uverbs::wr::WcOpcode;
use std::sync::Arc;

/// What note writers see of a ring.
impl Filled for CqRing {
    fn span(&self, ci: u32) -> Option<u32> {
        let op_own = self.ready(ci)?;
        barrier::from_device_barrier();
        Some(match cqe::format_of(op_own) {
            format::COMPRESSED => self.body(ci).byte_cnt_of_others().clamp(1, self.entries()),
            _ => 1,
        })
    }

    fn names(&self, ci: u32) -> Named {
        let body = self.body(ci);
        (body.uidx_of_others(), is_of_send(body.op_own()))
    }
}

/// Whether an entry whose last byte is `op_own` tells of a send.
fn is_of_send(op_own: u8) -> bool {
    matches!(cqe::opcode_of(op_own), opcode::REQ | opcode::REQ_ERR)
}

/// Why polling cannot go on: the device wrote what this queue was not made for. Nothing after it can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqFault {
    /// An entry of a kind that is not known.
    #[error("completion entry {ci} is of unknown kind {kind:#x}")]
    UnknownKind { ci: u32, kind: u8 },
    /// A block of compressed entries on a queue that did not ask for them.
    #[error("completion entry {ci} is compressed, which this queue did not ask for")]
    Compressed { ci: u32 },
    /// A block of compressed entries that is longer than the queue.
    #[error("completion entry {ci} stands for {count} completions, more than the queue has")]
    BadBlock { ci: u32, count: u32 },
    /// Inline data that no queue pair here asked for.
    #[error("completion entry {ci} carries inline data, which no queue pair asked for")]
    InlineData { ci: u32 },
    /// The entry that ends a ring after it was resized, although it was not.
    #[error("completion entry {ci} ends the ring, which was not resized")]
    Resize { ci: u32 },
}

/// What a completion queue is made of.
pub struct CqParts {
    pub ring: CqRing,
    /// The device's number of it.
    pub cqn: u32,
    pub record: DoorbellRecord,
    /// Where it is armed.
    pub uar: Arc<UarPage>,
    /// Whether it asked for compressed entries.
    pub compressed: bool,
    pub mailbox: Arc<Mailbox<CqRing>>,
}

/// The polling end of one completion queue.
pub struct Cq<B = Cpu> {
    pub(super) ring: CqRing,
    /// Where to read next.
    place: Place,
    /// Completions given back, from the queue's start.
    given_back: u32,
    /// The owner bit of the entry to read next while the device has not written it. [`FULL`] since the ring was found full, until
    /// what was read of it is given back.
    unwritten: u8,
    /// How far the device was seen to have written, on a queue that asked for compressed entries. It may be behind what was read.
    pub(super) written: u32,
    pub(super) routes: Routes<CqRing>,
    pub(super) compressed: bool,
    /// What the last completion carried inside that carried anything.
    inside: InlineData,
    fault: Option<CqFault>,
    /// [`CqFault::entry`] of it, made where the fault is found: the same made by whoever polls is a table of jumps there.
    bad_entry: Option<(u32, u8)>,
    /// Completions of queues that are gone.
    disowned: u64,
    cqn: u32,
    record: DoorbellRecord,
    uar: Arc<UarPage>,
    bus: B,
}

/// In place of an owner bit: none.
const FULL: u8 = 2;

impl Cq<Cpu> {
    pub fn new(parts: CqParts) -> Self {
        Self::with_bus(parts, Cpu)
    }
}

impl CqFault {
    /// The entry's number, and what is known of its kind.
    pub fn entry(self) -> (u32, u8) {
        match self {
            Self::UnknownKind { ci, kind } => (ci, kind),
            Self::Compressed { ci } | Self::BadBlock { ci, .. } => (ci, format::COMPRESSED << 4),
            Self::InlineData { ci } => (ci, format::INLINE_32 << 4),
            Self::Resize { ci } => (ci, opcode::RESIZE_CQ),
        }
    }
}

impl<B: Bus> Cq<B> {
    /// As [`Cq::new`], on another bus.
    pub fn with_bus(parts: CqParts, bus: B) -> Self {
        let CqParts { ring, cqn, record, uar, compressed, mailbox } = parts;
        let place = ring.place(0);
        Self {
            ring,
            place,
            given_back: 0,
            unwritten: place.unwritten(),
            written: 0,
            routes: Routes::new(mailbox),
            compressed,
            inside: InlineData::EMPTY,
            fault: None,
            bad_entry: None,
            disowned: 0,
            cqn,
            record,
            uar,
            bus,
        }
    }

    /// Completions that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.ring.entries() - 1
    }

    /// Where queue pairs are announced, and taken leave of.
    pub fn mailbox(&self) -> &Arc<Mailbox<CqRing>> {
        self.routes.mailbox()
    }

    /// Whether there are no completions any more.
    #[inline(always)]
    pub fn has_fault(&self) -> bool {
        self.bad_entry.is_some()
    }

    /// Number of the entry after which there are no completions any more, if that is so, and what is known of its kind.
    #[inline(always)]
    pub fn bad_entry(&self) -> Option<(u32, u8)> {
        self.bad_entry
    }

    /// Why there are no completions any more, if that is so.
    pub fn fault(&self) -> Option<CqFault> {
        self.fault
    }

    /// Completions that belonged to no queue any more, and were passed over.
    pub fn disowned(&self) -> u64 {
        self.disowned
    }

    /// Whether there is a completion that was not read yet.
    #[inline(always)]
    pub fn has_entry(&self) -> bool {
        // SAFETY: a place of the queue's ring: see the module.
        !unsafe { self.place.body() }.last().less(self.place.owner()).is_missing()
    }

    /// Whether the device may have found no entry free, since some were last given back.
    #[inline(always)]
    pub fn is_full(&mut self) -> bool {
        if self.compressed { self.is_full_with_blocks() } else { self.is_last_written() }
    }

    /// Whether the device has written the last entry that it was free to, where each tells of itself.
    #[inline(always)]
    fn is_last_written(&self) -> bool {
        self.ring.ready(self.given_back.wrapping_add(self.ring.entries() - 1)).is_some()
    }

    /// Where the last entry may be one of a block, which holds anything until it is unpacked: from block to block, on from where the
    /// last look ended.
    #[cold]
    #[inline(never)]
    extern "C" fn is_full_with_blocks(&mut self) -> bool {
        let (ci, entries) = (self.ci(), self.ring.entries());
        if self.written.wrapping_sub(ci) > entries {
            self.written = ci;
        }
        // A ring's worth at most, whatever is in the entries.
        while self.written.wrapping_sub(ci) < entries
            && let Some(span) = self.ring.span(self.written)
        {
            self.written = self.written.wrapping_add(span);
        }
        self.written.wrapping_sub(self.given_back) >= entries
    }

    /// Starts a batch.
    #[inline(always)]
    pub fn open(&mut self) -> OpenCq<'_, B> {
        OpenCq { place: self.place, cq: self }
    }

    /// Completions read, from the queue's start.
    #[inline(always)]
    pub(super) fn ci(&self) -> u32 {
        self.place.ci()
    }

    /// As if so many completions were read, of the ring as it is.
    pub(super) fn set_ci(&mut self, ci: u32) {
        self.place = self.ring.place(ci);
        if self.unwritten != FULL {
            self.unwritten = self.place.unwritten();
        }
    }

    /// Gives the entries of all completions read so far back to the device.
    #[inline(always)]
    pub fn give_back(&mut self) {
        let ci = self.ci();
        if ci != self.given_back {
            self.consume(ci);
        }
        self.unwritten = self.place.unwritten();
    }

    /// Tells note writers and the device that all completions before number `ci` are done with.
    #[inline(always)]
    fn consume(&mut self, ci: u32) {
        self.routes.mailbox().give_back(ci);
        self.bus.to_device();
        self.bus.record(&self.record, Word::CONSUMED, ci & 0xff_ffff);
        self.given_back = ci;
    }

    /// Ends a batch, as [`give_back`](Self::give_back) does; `false`, and nothing given back, if the device may have found no
    /// entry free.
    #[inline(always)]
    pub fn end(&mut self) -> bool {
        let full = self.is_full();
        if full {
            self.unwritten = FULL;
        } else {
            self.give_back();
        }
        !full
    }

    /// As [`end`](Self::end), of a batch that knows how far it was read. `false` also where only that can tell, so that this calls
    /// nothing: of compressed entries, while there are some to be read.
    #[inline(always)]
    pub fn end_at(&mut self, ci: u32) -> bool {
        if ci == self.given_back {
            return true;
        }
        // The device writes entries in their order: while the next one is missing, so is the last that was free. Unless the next one
        // is the first again, since the whole ring was read: that was found full on the way, at the end of each half.
        // SAFETY: a place of the queue's ring: see the module.
        let next = unsafe { self.place.body() }.last();
        if next.owner() != self.unwritten && (self.compressed || self.is_last_written()) {
            return false;
        }
        self.consume(ci);
        true
    }

    /// Takes all that is there as read, and gives it back: elements of shared receive queues are free again by that.
    pub fn settle(&mut self) {
        // A ring's worth at most: while queue pairs are at work there may always be more.
        for _ in 0..self.ring.entries() {
            if self.read().is_none() {
                break;
            }
        }
        self.give_back();
    }

    /// Whether there are completions that were read, and whose entries were not given back.
    #[inline(always)]
    pub fn holds_slots(&self) -> bool {
        self.ci() != self.given_back
    }

    /// At the end of each half of the ring: gives back what was read, since a batch may be longer than the ring; and takes notes,
    /// which would pile up where queue pairs come and go without a completion. The place behind the entry that is being read.
    #[cold]
    #[inline(never)]
    #[allow(
        improper_ctypes_definitions,
        reason = "of Rust's own callers; the convention is there so that nothing unwinds"
    )]
    extern "C" fn turn(&mut self) -> Place {
        self.end();
        let ci = self.ci().wrapping_add(1);
        self.set_ci(ci);
        self.routes.mailbox().turned();
        if self.routes.has_mail() {
            take_mail(&mut self.routes, &self.ring, ci);
        }
        self.place
    }

    /// Reads the next completion, of whatever kind.
    #[cold]
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "as above")]
    extern "C" fn read(&mut self) -> Option<Read> {
        loop {
            let ci = self.ci();
            let body = self.ring.body(ci);
            let last = body.last();
            let op_own = last.op_own();
            if !cqe::is_ready(op_own, ci, self.ring.log2_entries()) {
                return None;
            }
            barrier::from_device_barrier();
            if self.routes.has_mail() {
                take_mail(&mut self.routes, &self.ring, ci);
            }
            let is_special = is_special(op_own);
            if is_special {
                match admit(&mut self.routes, &self.ring, ci, op_own, self.compressed, &mut self.inside) {
                    Ok(Admitted::WithData) => {}
                    Ok(Admitted::Unpacked) => continue,
                    Err(fault) => {
                        (self.fault, self.bad_entry) = (Some(fault), Some(fault.entry()));
                        return None;
                    }
                }
            }
            let resolved = resolve(&self.routes, body, last);
            if ci.wrapping_sub(self.given_back) >= self.ring.entries() / 2 {
                self.end();
            }
            self.set_ci(ci.wrapping_add(1));
            if self.ci().is_multiple_of(self.ring.entries() / 2) {
                self.routes.mailbox().turned();
            }
            match resolved {
                Some((wr_id, completed)) => {
                    return Some(Read { ci, kind: cqe::opcode_of(op_own), wr_id, completed, carries_data: is_special });
                }
                None => self.disowned += 1,
            }
        }
    }

    /// Asks for an event when the next completion arrives, or is there already; with `solicited_only` when one arrives whose
    /// sender asked for it, or that failed. No system call.
    ///
    /// `events` is how many events of this queue were received: the device answers each number with one event at most.
    pub fn arm(&self, events: u32, solicited_only: bool) {
        let word = (events & 3) << 28 | u32::from(solicited_only) << 24 | self.ci() & 0xff_ffff;
        self.bus.to_device();
        self.bus.record(&self.record, Word::ARM, word);
        self.bus.wc_start();
        self.uar.arm(&self.bus, word, self.cqn);
        self.bus.wc_flush();
    }
}

/// A completion that was read: what is not in its entry.
struct Read {
    ci: u32,
    kind: u8,
    wr_id: u64,
    completed: WcOpcode,
    /// In the queue's `inside`.
    carries_data: bool,
}

/// Whether an entry needs a closer look: it carries more than itself, or is neither a completion nor a failure.
#[inline(always)]
const fn is_special(op_own: u8) -> bool {
    const PLAIN: u16 = 1 << opcode::REQ
        | 1 << opcode::RESP_WR_IMM
        | 1 << opcode::RESP_SEND
        | 1 << opcode::RESP_SEND_IMM
        | 1 << opcode::RESP_SEND_INV
        | 1 << opcode::REQ_ERR
        | 1 << opcode::RESP_ERR;
    cqe::format_of(op_own) != format::NONE || PLAIN >> cqe::opcode_of(op_own) & 1 == 0
}

/// What came of a closer look.
enum Admitted {
    /// It is a completion that carries data, which were taken out.
    WithData,
    /// It was a block of compressed entries, and is now the first of several completions.
    Unpacked,
}

/// Looks closer: unpacks a block of compressed entries, takes out what an entry carries, or says why polling ends here.
#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions, reason = "as above")]
extern "C" fn admit(
    routes: &mut Routes<CqRing>,
    ring: &CqRing,
    ci: u32,
    op_own: u8,
    compressed: bool,
    inside: &mut InlineData,
) -> Result<Admitted, CqFault> {
    match (cqe::format_of(op_own), cqe::opcode_of(op_own)) {
        (format::COMPRESSED, _) if !compressed => Err(CqFault::Compressed { ci }),
        (format::COMPRESSED, _) => {
            // Under the lock, since note writers must see the block either packed or unpacked.
            let unpacked = routes.take_mail_and(|pasts| disown(ring, ci, pasts), |ring| compressed::unpack(ring, ci));
            unpacked.map(|()| Admitted::Unpacked)
        }
        (_, opcode::RESIZE_CQ) => Err(CqFault::Resize { ci }),
        (_, kind) if is_special(kind << 4) => Err(CqFault::UnknownKind { ci, kind }),
        (_, opcode::REQ_ERR | opcode::RESP_ERR) => Err(CqFault::InlineData { ci }),
        (carries, _) => {
            let expected = routes.mailbox().expects_data();
            let taken = if expected { ring.take_inside(ci, carries == format::INLINE_64) } else { None };
            *inside = taken.ok_or(CqFault::InlineData { ci })?;
            Ok(Admitted::WithData)
        }
    }
}

#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions, reason = "as above")]
extern "C" fn take_mail(routes: &mut Routes<CqRing>, ring: &CqRing, ci: u32) {
    routes.take_mail(|pasts| disown(ring, ci, pasts));
}

/// Lets completions of the past, which are still in the ring from `ci` on, name their queues by what those are called now.
pub(super) fn disown(ring: &CqRing, ci: u32, mut pasts: Pasts) {
    let mut at = ci;
    while pasts.go_beyond(at)
        && let Some(span) = ring.span(at)
    {
        let body = ring.body(at);
        if let Some(name) = pasts.new_name(at, (body.uidx(), is_of_send(body.op_own()))) {
            body.rename(name);
        }
        at = at.wrapping_add(span);
    }
}

/// The number of a work request, and what it was posted as.
#[inline(always)]
fn resolve(routes: &Routes<CqRing>, body: Body<'_>, last: Last) -> Option<(u64, WcOpcode)> {
    let kind = cqe::opcode_of(last.op_own());
    if matches!(kind, opcode::REQ | opcode::REQ_ERR) {
        return Some(routes.sends(body.uidx())?.complete(last.wqe_counter()));
    }
    let wr_id = routes.receives(body.uidx())?.complete(last.wqe_counter());
    Some((wr_id, received_as(kind)))
}

mod open;
mod run;
pub use open::OpenCq;

#[cfg(all(test, not(loom)))]
mod ends;
#[cfg(all(test, not(loom)))]
mod golden;
#[cfg(all(test, not(loom)))]
mod guards;
#[cfg(all(test, not(loom)))]
pub mod tests;
