//! The send queue: work requests written in place, told to the device by one doorbell per batch.
//!
//! An element starts on a block of 64 bytes and takes as many as it needs; indices count blocks and wrap at 2^16 for the
//! device, which a power of two of at most 2^15 blocks divides. How many elements fit is counted in work requests, each
//! taken to be as long as the longest: so the queue never runs out of blocks before it is full.
//!
//! Slots become free when their completion is *polled*: the poller notes how far the queue is done in [`SqShared`].
//!
//! # Safety argument
//!
//! The one unsafe block notes a work request in [`SqShared`], at the ring's own place of it: there is an entry for each block, as was
//! looked at when the queue was made, and those that take its place are made as long.
#![allow(unsafe_code)]

use super::bus::{Bus, Cpu};
use super::dbrec::{DoorbellRecord, Word};
use super::head::Head;
use super::home::Home;
use super::layout::SqLayout;
use super::mailbox::Change;
use super::ring::{Cursor, OpenRing, Ring};
use super::shadow::{ONE, OpenSends, Poster, SqShared};
use super::uar::SendRegister;
use super::umr::{self, Bind};
use super::wqe::{
    Atomic, Av, Chunk, Ctrl, DS_PER_BB, Data, EXTENDED_AV, MAX_DATA_BYTES, Raddr, Xrc, ctrl_flags, opcode,
};
use crate::mem::branch::aside;
use crate::mem::copy::stay_a_loop;
use crate::uverbs::types::{Qpn, Rkey};
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, SendWr, WcOpcode, WrFlags};
use std::sync::Arc;

/// Whether no queue is too narrow for it, within its limits of entries and inline bytes: a datagram queue pair, which has no remote
/// addresses, has longer addresses of its own.
#[inline(always)]
const fn is_measured(opcode: u8) -> bool {
    use opcode::{NOP, RDMA_READ, RDMA_WRITE, RDMA_WRITE_IMM, SEND, SEND_IMM, SEND_INVAL};
    matches!(opcode, SEND | SEND_IMM | SEND_INVAL | RDMA_WRITE | RDMA_WRITE_IMM | RDMA_READ | NOP)
}

/// What the work request of a NOP completes as: `IBV_WC_DRIVER1`.
pub const WC_NOP: WcOpcode = WcOpcode::DRIVER1;

/// Where the work requests of one queue pair go, if not all to the same peer.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// To the peer it is connected with.
    Connected,
    /// A datagram.
    Datagram(&'a Destination),
    /// To the peer it is connected with, into this shared receive queue of the peer's.
    Xrc {
        /// The queue's number, 24 bits.
        srqn: u32,
    },
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub struct Destination {
    /// As [`address_vector`](super::av::address_vector) makes it.
    pub av: Av,
    pub qpn: Qpn,
    pub qkey: u32,
}

/// What a send queue is made of.
pub struct SqParts {
    pub ring: Ring,
    pub layout: SqLayout,
    pub qpn: Qpn,
    /// Every work request completes, signaled or not.
    pub sig_all: bool,
    pub record: DoorbellRecord,
    pub register: SendRegister,
    pub shared: Arc<SqShared>,
    /// Where its completions are looked up; none in tests that have no such place.
    pub home: Option<Home>,
}

/// Send queue of one queue pair.
pub struct Sq<B = Cpu> {
    ring: Ring,
    /// What the device was told of.
    told: Position,
    /// What was pushed one by one, in tests.
    #[cfg(test)]
    pushed: Batch,
    limits: Limits,
    notes: Poster,
    record: DoorbellRecord,
    register: SendRegister,
    home: Option<Home>,
    bus: B,
}

/// A send queue while a batch is written: what each work request needs is here, and nothing of it is in the queue before the
/// batch is submitted. So a batch that is dropped leaves no trace.
pub struct OpenSq<'a, B = Cpu> {
    ring: OpenRing<'a>,
    notes: OpenSends<'a>,
    batch: Batch,
    /// [`Position::count`] before the batch.
    before: u32,
    // What is not used for each work request is left where it is, for want of registers.
    limits: &'a Limits,
    shared: &'a Arc<SqShared>,
    told: &'a mut Position,
    record: &'a DoorbellRecord,
    register: &'a mut SendRegister,
    bus: &'a B,
}

/// What a queue was made with.
#[derive(Clone, Copy)]
struct Limits {
    /// In work requests, times [`ONE`].
    max_count: u32,
    max_ds: u32,
    max_sge: u32,
    max_inline: usize,
    /// Every work request completes.
    sig_all: bool,
}

/// How far a queue is filled.
#[derive(Clone, Copy)]
struct Position {
    /// In blocks.
    head: Head,
    /// In work requests, from the queue's start, times [`ONE`].
    count: u32,
    /// The count with which it is full, as far as known. In the queue it is never older than in a batch.
    full_at: u32,
    /// What the next element must wait for, earlier UMRs or nothing, as [`flags_word`] has it.
    fence: u32,
}

/// What is pushed and not submitted.
#[derive(Clone, Copy)]
struct Batch {
    /// How far it fills the queue.
    at: Position,
    /// Of the last element: the first 8 bytes of its control segment, and its units.
    last: [u8; 8],
    last_ds: u32,
}

impl Position {
    /// Of an empty queue.
    fn start(qpn: Qpn) -> Self {
        Self { head: Head::new(qpn), count: 0, full_at: 0, fence: 0 }
    }
}

impl Batch {
    /// One with nothing in it.
    #[inline(always)]
    fn at(at: Position) -> Self {
        Self { at, last: [0; 8], last_ds: 0 }
    }
}

/// What an element is finished with.
struct Finish {
    wr_id: u64,
    flags: WrFlags,
    opcode: u8,
    imm: u32,
    completes_as: WcOpcode,
    ds: u32,
}

impl Sq<Cpu> {
    /// # Panics
    ///
    /// If ring and layout do not fit each other.
    pub fn new(parts: SqParts) -> Self {
        Self::with_bus(parts, Cpu)
    }
}

impl<B: Bus> Sq<B> {
    /// As [`Sq::new`], on another bus.
    pub fn with_bus(parts: SqParts, bus: B) -> Self {
        let SqParts { ring, layout, qpn, sig_all, record, register, shared, home } = parts;
        assert_eq!(ring.bytes(), layout.bytes(), "the ring is as long as the layout says");
        assert!(shared.blocks() > ring.last_block(), "each block has an entry");
        assert!((layout.max_inline as usize) < ring.bytes(), "inline data fits the ring");
        Self {
            ring,
            told: Position::start(qpn),
            #[cfg(test)]
            pushed: Batch::at(Position::start(qpn)),
            limits: Limits {
                // A ring has at most 2^15 blocks.
                max_count: layout.max_wr * ONE,
                max_ds: layout.max_ds,
                max_sge: layout.max_sge,
                max_inline: layout.max_inline as usize,
                sig_all,
            },
            notes: Poster::new(shared),
            record,
            register,
            home,
            bus,
        }
    }

    /// Work requests that the queue holds at most.
    pub fn capacity(&self) -> u32 {
        self.limits.max_count / ONE
    }

    /// Work requests that can be pushed now.
    pub fn remaining(&mut self) -> u32 {
        self.open().remaining()
    }

    /// Opens a batch. What an earlier one pushed and never submitted is forgotten.
    #[inline(always)]
    pub fn open(&mut self) -> OpenSq<'_, B> {
        let Self { ring, told, limits, notes, record, register, bus, .. } = self;
        OpenSq {
            ring: ring.open(),
            notes: notes.open(),
            batch: Batch::at(*told),
            before: told.count,
            limits,
            shared: notes.shared(),
            told,
            record,
            register,
            bus,
        }
    }

    /// Starts anew, after the queue pair was modified to RESET. What completed before and was not polled is dropped: it
    /// counts in the shadow that is left behind.
    pub fn resync(&mut self) {
        self.told = Position { head: self.told.head.reset(), count: 0, full_at: 0, fence: 0 };
        #[cfg(test)]
        self.rollback();
        let shared = Arc::new(SqShared::new(self.ring.last_block() + 1));
        self.notes = Poster::new(Arc::clone(&shared));
        self.record.store(Word::Send, 0);
        if let Some(home) = &self.home {
            home.announce(Change::Sends(Some(shared)));
        }
    }
}

impl<B: Bus> OpenSq<'_, B> {
    /// Writes a work request for the connected peer. On an error nothing was pushed.
    #[inline(always)]
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.push_to(wr, Target::Connected)
    }

    /// Writes a work request. On an error nothing was pushed.
    #[inline(always)]
    pub fn push_to(&mut self, wr: &SendWr<'_>, target: Target<'_>) -> Result<(), PostError> {
        match wr.op {
            SendOp::SendInvalidate(rkey) => {
                return self.push_send_inv(wr.wr_id, wr.flags, rkey, &wr.payload, target);
            }
            SendOp::LocalInvalidate(rkey) => return self.push_local_inv(wr.wr_id, wr.flags, rkey),
            SendOp::Bind(binding) => return self.push_bind(wr.wr_id, wr.flags, &Bind::planned(&binding)),
            _ => {}
        }
        self.room()?;
        let Self { ring, bus, batch: Batch { at, .. }, limits, .. } = self;
        let mut cursor = open(ring, at.head, target, *bus);
        let (opcode, imm, completes_as) = match wr.op {
            SendOp::Send => (opcode::SEND, 0, WcOpcode::SEND),
            SendOp::SendImm(imm) => (opcode::SEND_IMM, imm, WcOpcode::SEND),
            SendOp::Write(remote) => {
                cursor.put(*bus, raddr(remote));
                (opcode::RDMA_WRITE, 0, WcOpcode::RDMA_WRITE)
            }
            SendOp::WriteImm(remote, imm) => {
                cursor.put(*bus, raddr(remote));
                (opcode::RDMA_WRITE_IMM, imm, WcOpcode::RDMA_WRITE)
            }
            SendOp::Read(remote) => {
                let Payload::Sges(_) = wr.payload else { return Err(PostError::InlineRead) };
                cursor.put(*bus, raddr(remote));
                (opcode::RDMA_READ, 0, WcOpcode::RDMA_READ)
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                check_atomic(remote, &wr.payload)?;
                cursor.put(*bus, raddr(remote));
                cursor.put(*bus, Atomic { swap_add: swap.into(), compare: compare.into() });
                (opcode::ATOMIC_CS, 0, WcOpcode::COMP_SWAP)
            }
            SendOp::FetchAdd { remote, add } => {
                check_atomic(remote, &wr.payload)?;
                cursor.put(*bus, raddr(remote));
                cursor.put(*bus, Atomic { swap_add: add.into(), compare: 0.into() });
                (opcode::ATOMIC_FA, 0, WcOpcode::FETCH_ADD)
            }
            // The device has neither.
            SendOp::AtomicWrite(..) => return Err(PostError::NoAtomicWrite),
            SendOp::Flush(..) => return Err(PostError::NoFlush),
            // Written elsewhere.
            SendOp::SendInvalidate(_) | SendOp::LocalInvalidate(_) | SendOp::Bind(_) => {
                return Err(PostError::NotOffered);
            }
        };
        let element = Finish { wr_id: wr.wr_id, flags: wr.flags, opcode, imm, completes_as, ds: 0 };
        if let Payload::Inline(bytes) = wr.payload
            && let Ok(word) = <&[u8; 8]>::try_from(bytes)
        {
            // What is sent inline is a word more often than not: all that follows from its length is then known to the compiler.
            payload(&mut cursor, *bus, limits, &Payload::Inline(word))?;
            let ds = cursor.ds();
            return self.finish(Finish { ds, ..element });
        }
        payload(&mut cursor, *bus, limits, &wr.payload)?;
        let ds = cursor.ds();
        self.finish(Finish { ds, ..element })
    }

    /// Writes a SEND that takes away the meaning of one of the peer's keys.
    #[inline(always)]
    pub fn push_send_inv(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        rkey: Rkey,
        data: &Payload<'_>,
        target: Target<'_>,
    ) -> Result<(), PostError> {
        self.room()?;
        let Self { ring, bus, batch: Batch { at, .. }, limits, .. } = self;
        let mut cursor = open(ring, at.head, target, *bus);
        payload(&mut cursor, *bus, limits, data)?;
        let ds = cursor.ds();
        let completes_as = WcOpcode::SEND;
        self.finish(Finish { wr_id, flags, opcode: opcode::SEND_INVAL, imm: rkey.0, completes_as, ds })
    }

    /// Takes away the meaning of one of this queue pair's own keys.
    #[inline(always)]
    pub fn push_local_inv(&mut self, wr_id: u64, flags: WrFlags, rkey: Rkey) -> Result<(), PostError> {
        self.room()?;
        let Self { ring, bus, batch: Batch { at, .. }, .. } = self;
        let mut cursor = open(ring, at.head, Target::Connected, *bus);
        let (control, key) = umr::invalidate();
        cursor.put(*bus, control);
        cursor.put(*bus, key);
        let ds = cursor.ds();
        let completes_as = WcOpcode::LOCAL_INV;
        self.finish(Finish { wr_id, flags, opcode: opcode::UMR, imm: rkey.0, completes_as, ds })
    }

    /// Binds a memory window.
    #[inline(always)]
    pub fn push_bind(&mut self, wr_id: u64, flags: WrFlags, bind: &Bind) -> Result<(), PostError> {
        self.room()?;
        if bind.length > MAX_DATA_BYTES {
            return Err(PostError::MessageTooLong);
        }
        let Self { ring, bus, batch: Batch { at, .. }, .. } = self;
        let mut cursor = open(ring, at.head, Target::Connected, *bus);
        let umr::Binding { control, key, entry } = bind.segments(at.head.qpn());
        cursor.put(*bus, control);
        cursor.put(*bus, key);
        if let Some(entry) = entry {
            cursor.put(*bus, entry);
            // The list is padded to a block.
            cursor.put(*bus, [Chunk([0; 16]); 3]);
        }
        let ds = cursor.ds();
        let (imm, completes_as) = (bind.rkey.0, WcOpcode::BIND_MW);
        self.finish(Finish { wr_id, flags, opcode: opcode::UMR, imm, completes_as, ds })
    }

    /// Does nothing, in order.
    #[inline(always)]
    pub fn push_nop(&mut self, wr_id: u64, flags: WrFlags) -> Result<(), PostError> {
        self.room()?;
        self.finish(Finish { wr_id, flags, opcode: opcode::NOP, imm: 0, completes_as: WC_NOP, ds: 1 })
    }

    /// Tells the device of everything pushed, and rings once. Does nothing if nothing was pushed.
    #[inline(always)]
    pub fn submit(&mut self) {
        let Self { ring, bus, batch: Batch { at, last, last_ds }, before, told, record, register, .. } = self;
        let pushed = at.count.wrapping_sub(*before);
        if pushed == 0 {
            return;
        }
        bus.to_device();
        bus.record(record, Word::Send, at.head.block());
        bus.wc_start();
        if pushed == ONE && register.takes_whole(*last_ds) {
            aside();
            register.copy(*bus, blocks(*last_ds), |n| ring.block(told.head.past(n)));
        } else {
            register.ring(*bus, *last);
        }
        bus.wc_flush();
        register.turn();
        (told.head, told.count, told.fence) = (at.head, at.count, at.fence);
    }

    /// Work requests that can be pushed now.
    pub fn remaining(&mut self) -> u32 {
        self.refresh();
        let Position { count, full_at, .. } = self.batch.at;
        // No more, whatever the device answered.
        full_at.wrapping_sub(count).min(self.limits.max_count) / ONE
    }

    /// Whether there is room for one more.
    #[inline(always)]
    fn room(&mut self) -> Result<(), PostError> {
        if self.batch.at.count == self.batch.at.full_at {
            // Full as far as we know: only now look at the poller's cache line.
            self.refresh();
            if self.batch.at.count == self.batch.at.full_at {
                return refuse(PostError::QueueFull);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn refresh(&mut self) {
        let full_at = self.shared.done().wrapping_add(self.limits.max_count);
        (self.batch.at.full_at, self.told.full_at) = (full_at, full_at);
    }

    /// Writes the control segment, last, and passes the element.
    #[inline(always)]
    fn finish(&mut self, element: Finish) -> Result<(), PostError> {
        let Finish { wr_id, flags: wr_flags, opcode, imm, completes_as, ds } = element;
        if !is_measured(opcode) && ds > self.limits.max_ds {
            // Of a kind that this transport does not have: the queue was not measured for it, and passing it could run into
            // elements that the device has yet to read.
            return refuse(PostError::NotOffered);
        }
        let Position { head, count, full_at, fence } = self.batch.at;
        let fenced = wr_flags.contains(WrFlags::FENCE);
        let asked = if fenced { ctrl_flags::FENCE } else { 0 }
            | if wr_flags.contains(WrFlags::SIGNALED) || self.limits.sig_all { ctrl_flags::CQ_UPDATE } else { 0 }
            | if wr_flags.contains(WrFlags::SOLICITED) { ctrl_flags::SOLICITED } else { 0 };
        let flags = if fenced { 0 } else { fence } | flags_word(asked);
        let last = head.control(opcode, ds);
        let place = self.ring.place(head);
        self.ring.element(place).put(self.bus, [Ctrl::chunk(last, flags, imm)]);
        // SAFETY: the queue was made with an entry for each of the ring's blocks.
        unsafe { self.notes.note(place, wr_id, count, completes_as) };
        let at = Position {
            head: head.past(blocks(ds)),
            count: count.wrapping_add(ONE),
            full_at,
            // What a UMR did is there for the next element only if that one waits for it.
            fence: flags_word(if opcode == opcode::UMR { ctrl_flags::INITIATOR_SMALL_FENCE } else { 0 }),
        };
        self.batch = Batch { at, last, last_ds: ds };
        Ok(())
    }
}

/// An error that is returned.
#[inline(always)]
fn refuse<T>(error: PostError) -> Result<T, PostError> {
    aside();
    Err(error)
}

/// Bytes 8 to 11 of a control segment, as they lie in memory, with those bits of [`ctrl_flags`].
#[inline(always)]
const fn flags_word(fm_ce_se: u8) -> u32 {
    u32::from_ne_bytes([0, 0, 0, fm_ce_se])
}

/// Blocks that an element of `ds` units takes.
#[inline(always)]
const fn blocks(ds: u32) -> u32 {
    // Less work than to divide and look at the rest. No element has 2^32 units.
    ds.wrapping_add(DS_PER_BB - 1) / DS_PER_BB
}

/// A cursor behind the control segment and what the target needs.
#[inline(always)]
fn open<'r, B: Bus>(ring: &'r mut OpenRing<'_>, head: Head, target: Target<'_>, bus: &B) -> Cursor<'r> {
    let mut cursor = ring.element(ring.place(head));
    cursor.skip();
    match target {
        Target::Connected => {}
        Target::Datagram(to) => {
            cursor.put(bus, Av { qkey: to.qkey.into(), dqp_dct: (to.qpn.get() | EXTENDED_AV).into(), ..to.av });
        }
        Target::Xrc { srqn } => cursor.put(bus, Xrc { xrc_srqn: srqn.into(), reserved: [0; 12] }),
    }
    cursor
}

#[inline(always)]
fn raddr(remote: RemoteAddr) -> Raddr {
    Raddr { raddr: remote.addr.into(), rkey: remote.rkey.0.into(), reserved: 0.into() }
}

/// Writes the payload.
#[inline(always)]
fn payload<B: Bus>(
    cursor: &mut Cursor<'_>,
    bus: &B,
    &Limits { max_sge, max_inline, .. }: &Limits,
    payload: &Payload<'_>,
) -> Result<(), PostError> {
    match payload {
        Payload::Sges(sges) => {
            if sges.len() > max_sge as usize {
                return Err(PostError::TooManySges);
            }
            let mut length = 0_u64;
            for sge in *sges {
                // The device would take a length of 0 for 2^31.
                if sge.length != 0 {
                    cursor.put(bus, Data::new(sge.addr, sge.length, sge.lkey.0));
                    // At most `max_sge` entries of less than 2^32 bytes: no overflow.
                    length = length.wrapping_add(u64::from(sge.length));
                }
                stay_a_loop();
            }
            if length > MAX_DATA_BYTES {
                return Err(PostError::MessageTooLong);
            }
            Some(())
        }
        Payload::Inline(bytes) => cursor.inline(bus, max_inline, &[bytes]),
        Payload::InlinePieces(pieces) => cursor.inline(bus, max_inline, pieces),
    }
    .map_or_else(|| refuse(PostError::InlineTooLong), Ok)
}

/// An atomic works on one aligned 64-bit word, and puts its old value into registered memory (IB spec 9.4.5).
#[inline(always)]
fn check_atomic(remote: RemoteAddr, payload: &Payload<'_>) -> Result<(), PostError> {
    let Payload::Sges(sges) = payload else { return Err(PostError::AtomicPayload) };
    let mut length = 0_u64;
    for sge in *sges {
        length = length.wrapping_add(u64::from(sge.length));
        stay_a_loop();
    }
    if length != 8 {
        return Err(PostError::AtomicPayload);
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment);
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod golden;
#[cfg(test)]
mod one_by_one;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod wrap;
