//! The completion queue: completions read in place, in batches.
//!
//! There is no index word to look at: each entry says itself whether the device has written it. `begin`, `next`, `end` make a
//! batch; the device gets its entries back at `end`, with one store to the doorbell record.

use super::bus::{Bus, Cpu};
use super::completion::Cqe;
use super::compressed;
use super::cq_memory::{Body, CqRing};
use super::cqe::{self, format, opcode};
use super::dbrec::{DoorbellRecord, Word};
use super::mailbox::{Filled, Mailbox, Past, Receives, Routes};
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
    pub record: Arc<DoorbellRecord>,
    /// Where it is armed.
    pub uar: Arc<UarPage>,
    /// Whether it asked for compressed entries.
    pub compressed: bool,
    pub mailbox: Arc<Mailbox<CqRing>>,
}

/// The polling end of one completion queue.
pub struct Cq<B = Cpu> {
    pub(super) ring: CqRing,
    /// Completions read, from the queue's start, and what of that was given back.
    pub(super) ci: u32,
    given_back: u32,
    pub(super) routes: Routes<CqRing>,
    pub(super) compressed: bool,
    /// What the last completion carried inside that carried anything.
    inside: InlineData,
    fault: Option<CqFault>,
    /// Completions of queues that are gone.
    disowned: u64,
    cqn: u32,
    record: Arc<DoorbellRecord>,
    uar: Arc<UarPage>,
    bus: B,
}

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
        Self {
            ring,
            ci: 0,
            given_back: 0,
            routes: Routes::new(mailbox),
            compressed,
            inside: InlineData::EMPTY,
            fault: None,
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
        self.fault.is_some()
    }

    /// Why there are no completions any more, if that is so.
    #[cold]
    #[inline(never)]
    #[allow(
        improper_ctypes_definitions,
        reason = "of Rust's own callers; the convention is there so that nothing unwinds"
    )]
    pub extern "C" fn fault(&self) -> Option<CqFault> {
        self.fault
    }

    /// Completions that belonged to no queue any more, and were passed over.
    pub fn disowned(&self) -> u64 {
        self.disowned
    }

    /// Whether there is a completion that was not read yet.
    #[inline(always)]
    pub fn has_entry(&self) -> bool {
        self.ring.ready(self.ci).is_some()
    }

    /// Whether the device may have found no entry free, since some were last given back.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.ring.ready(self.given_back.wrapping_add(self.ring.entries() - 1)).is_some()
    }

    /// Whether there is nothing to read, or nothing that can be.
    #[inline(always)]
    pub fn is_drained(&self) -> bool {
        self.has_fault() || !self.has_entry()
    }

    /// Starts a batch.
    #[inline(always)]
    pub fn begin(&mut self) {}

    /// The next completion.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Cqe<'_>> {
        loop {
            let ci = self.ci;
            let body = self.ring.body(ci);
            let op_own = body.op_own();
            // By far the most: a send that is done, and nothing else in the entry.
            if is_done_send(op_own, cqe::owner_of_pass(ci, self.ring.log2_entries())) {
                barrier::from_device_barrier();
                if !self.routes.has_mail() {
                    self.ci = ci.wrapping_add(1);
                    match resolve_send(&self.routes, body) {
                        Some((wr_id, completed)) => return Some(Cqe::new(body, opcode::REQ, wr_id, completed)),
                        None => {
                            self.disowned += 1;
                            continue;
                        }
                    }
                }
            }
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
                        self.fault = Some(fault);
                        return None;
                    }
                }
            }
            self.ci = ci.wrapping_add(1);
            match resolve(&self.routes, body, op_own) {
                Some((wr_id, opcode)) => {
                    let inside = if is_special { Some(&self.inside) } else { None };
                    return Some(Cqe::new(body, cqe::opcode_of(op_own), wr_id, opcode).with(inside));
                }
                None => self.disowned += 1,
            }
        }
    }

    /// Ends the batch: gives the entries of all completions read so far back to the device.
    #[inline(always)]
    pub fn end(&mut self) {
        if self.holds_slots() {
            self.routes.mailbox().give_back(self.ci);
            self.bus.to_device();
            self.bus.record(&self.record, Word::CONSUMED, self.ci & 0xff_ffff);
            self.given_back = self.ci;
        }
    }

    /// Whether there are completions that were read, and whose entries were not given back.
    #[inline(always)]
    pub fn holds_slots(&self) -> bool {
        self.ci != self.given_back
    }

    /// Asks for an event when the next completion arrives, or is there already; with `solicited_only` when one arrives whose
    /// sender asked for it, or that failed. No system call.
    ///
    /// `events` is how many events of this queue were received: the device answers each number with one event at most.
    pub fn arm(&self, events: u32, solicited_only: bool) {
        let word = (events & 3) << 28 | u32::from(solicited_only) << 24 | self.ci & 0xff_ffff;
        self.bus.to_device();
        self.bus.record(&self.record, Word::ARM, word);
        self.bus.wc_start();
        self.uar.arm(&self.bus, word, self.cqn);
        self.bus.wc_flush();
    }
}

/// Set in an entry's last byte where the sender asked for an event.
const SOLICITED: u8 = 1 << 1;

/// Whether an entry is the device's word on this pass that a send is done, and carries nothing else.
#[inline(always)]
const fn is_done_send(op_own: u8, owner: u8) -> bool {
    (op_own ^ owner) & !SOLICITED == opcode::REQ << 4
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
#[allow(improper_ctypes_definitions, reason = "of Rust's own callers; the convention is there so that nothing unwinds")]
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
            let unpacked = routes.take_mail_and(|past| disown(ring, ci, past), |ring| compressed::unpack(ring, ci));
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
    routes.take_mail(|past| disown(ring, ci, past));
}

/// Lets completions of the past, which are still in the ring from `ci` on, name the queue by what it is called now.
pub(super) fn disown(ring: &CqRing, ci: u32, past: Past) {
    let mut at = ci;
    while (past.filled_to.wrapping_sub(at) as i32) > 0
        && let Some(span) = ring.span(at)
    {
        let body = ring.body(at);
        let sends = matches!(cqe::opcode_of(body.op_own()), opcode::REQ | opcode::REQ_ERR);
        if body.uidx() == past.uidx && sends == past.sends {
            body.rename(past.name);
        }
        at = at.wrapping_add(span);
    }
}

/// The number of a send work request, and what it was posted as.
#[inline(always)]
fn resolve_send(routes: &Routes<CqRing>, body: Body<'_>) -> Option<(u64, WcOpcode)> {
    let queue = match routes.send_queue(body.uidx_word()) {
        Some(queue) => queue,
        None => routes.sends(body.uidx())?,
    };
    Some(queue.complete(body.wqe_counter()))
}

/// The number of a work request, and what it was posted as.
#[inline(always)]
fn resolve(routes: &Routes<CqRing>, body: Body<'_>, op_own: u8) -> Option<(u64, WcOpcode)> {
    let kind = cqe::opcode_of(op_own);
    if matches!(kind, opcode::REQ | opcode::REQ_ERR) {
        return resolve_send(routes, body);
    }
    let wr_id = match routes.receives(body.uidx())? {
        Receives::Own(queue) => queue.complete(),
        Receives::Shared(queue) => queue.complete(body.wqe_counter()),
    };
    Some((wr_id, if kind == opcode::RESP_WR_IMM { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV }))
}

#[cfg(all(test, not(loom)))]
mod golden;
#[cfg(all(test, not(loom)))]
mod guards;
#[cfg(all(test, not(loom)))]
pub mod tests;
