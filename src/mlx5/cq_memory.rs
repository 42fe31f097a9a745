//! The ring of a completion queue: entries that the device writes and the poller reads.
//!
//! # Safety argument
//!
//! [`CqRing::new`] checks that the ring lies in its memory, which it owns; every index is masked with the number of entries,
//! so no access leaves it. An entry's last byte says whose it is and is read by atomic access; the rest is read only
//! after that byte said that the entry is ours, with a barrier between. From then on nobody but the poller writes it until it
//! is given back: so the poller reads it by ordinary access, and what it does not need is not read. Other threads look at
//! entries, too, and may look at one that was given back meanwhile: they read by atomic or volatile access, and throw away
//! what they read then. No reference to the memory is made but to atomics.
#![allow(unsafe_code)]

use super::cqe::{self, CQE_BYTES, Cqe64, OP_OWN_INVALID};
use super::layout::CqLayout;
use super::memory::pages;
use super::uidx;
use crate::mem::map::Mapping;
use crate::uverbs::errno::Errno;
use crate::uverbs::wc::InlineData;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offset of the last four bytes of a body: index of the element, signature, and whose the entry is.
const LAST: usize = offset_of!(Cqe64, wqe_counter);
const _: () = assert!(LAST == 60 && offset_of!(Cqe64, op_own) == 63);

/// A completion ring. A clone is another view of the same memory.
#[derive(Clone)]
pub struct CqRing {
    base: NonNull<u8>,
    /// The first entry's body.
    first: NonNull<u8>,
    mask: u32,
    log2_entries: u32,
    log2_entry_bytes: u32,
    memory: Arc<Mapping>,
}

// SAFETY: `base` points into the memory that moves along; see the module.
unsafe impl Send for CqRing {}
// SAFETY: what `&CqRing` gives without `unsafe` are numbers and copies, read as the module says.
unsafe impl Sync for CqRing {}

/// The place in a ring that a poller has come to, to be read without a look at where the ring is for each entry.
#[derive(Clone, Copy)]
pub struct Place {
    /// The entry's body.
    body: *mut u8,
    /// Where to stop and think: the body after the last one of this half of the ring, and its answer number.
    stop: *mut u8,
    stop_ci: u32,
    entry_bytes: usize,
    log2_entry_bytes: u32,
    /// Of entries that the device has written on this pass.
    owner: u32,
}

// SAFETY: addresses, which only `Place::body` makes anything of.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// The 64 bytes of an entry that tell of a completion, and where they are.
#[derive(Clone, Copy)]
pub struct Body<'a>(NonNull<u8>, PhantomData<&'a CqRing>);

impl CqRing {
    /// A ring of entries that are the device's to write.
    pub fn new(layout: CqLayout) -> Result<Self, Errno> {
        Self::of(pages(layout.bytes())?, 0, layout)
    }

    /// As [`new`](Self::new), at `start` of that memory.
    pub(super) fn of(memory: Mapping, start: usize, layout: CqLayout) -> Result<Self, Errno> {
        let fits = start.checked_add(layout.bytes()).is_some_and(|end| end <= memory.len_bytes());
        let base =
            NonNull::new(memory.as_ptr()).filter(|_| fits && start.is_multiple_of(CQE_BYTES)).ok_or(Errno::ENOMEM)?;
        // SAFETY: in bounds, as just checked.
        let base = unsafe { base.add(start) };
        let CqLayout { log2_entries, log2_entry_bytes } = layout;
        // SAFETY: the first entry's second half, or the whole entry: inside the ring.
        let first = unsafe { base.add((1 << log2_entry_bytes) - CQE_BYTES) };
        let mask = layout.entries() - 1;
        let ring = Self { base, first, mask, log2_entries, log2_entry_bytes, memory: Arc::new(memory) };
        for index in 0..layout.entries() {
            ring.body(index).store_op_own(OP_OWN_INVALID);
        }
        Ok(ring)
    }

    /// Where it is, for the kernel. Page-aligned.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub fn entries(&self) -> u32 {
        self.mask + 1
    }

    pub fn log2_entries(&self) -> u32 {
        self.log2_entries
    }

    /// Bytes of an entry: 64 or 128.
    pub fn entry_bytes(&self) -> u32 {
        1 << self.log2_entry_bytes
    }

    /// The memory, which must stay until the kernel's object is destroyed.
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Entry number `ci`: its second half, if it has two.
    #[inline(always)]
    pub fn body(&self, ci: u32) -> Body<'_> {
        let offset = ((ci & self.mask) as usize) << self.log2_entry_bytes;
        // SAFETY: the masked entry is inside the ring, and so is its body, at the same place in it as the first one's.
        Body(unsafe { self.first.add(offset) }, PhantomData)
    }

    /// The place of entry number `ci`.
    #[inline(always)]
    pub fn place(&self, ci: u32) -> Place {
        let last_of_half = self.mask >> 1;
        let Body(body, _) = self.body(ci);
        let body = body.as_ptr();
        let left = last_of_half - (ci & last_of_half) + 1;
        // Behind the ring's memory, maybe, where nothing is read.
        let stop = body.wrapping_add((left as usize) << self.log2_entry_bytes);
        Place {
            body,
            stop,
            stop_ci: ci.wrapping_add(left),
            entry_bytes: 1 << self.log2_entry_bytes,
            log2_entry_bytes: self.log2_entry_bytes,
            owner: cqe::owner_of_pass(ci, self.log2_entries).into(),
        }
    }

    /// The last byte of entry `ci` if the device wrote it as answer number `ci`.
    #[inline(always)]
    pub fn ready(&self, ci: u32) -> Option<u8> {
        let op_own = self.body(ci).op_own();
        cqe::is_ready(op_own, ci, self.log2_entries).then_some(op_own)
    }

    /// Takes out what entry `ci` carries inside: in its body's first 32 bytes, which are zero then, or in the 64 `before` it,
    /// which an entry of 128 has. `None` if there are none. The entry is ours.
    pub fn take_inside(&self, ci: u32, before: bool) -> Option<InlineData> {
        let body = self.body(ci);
        let len = body.byte_cnt() as usize;
        if before && self.entry_bytes() as usize != 2 * CQE_BYTES {
            return None;
        }
        let (back, room) = if before { (CQE_BYTES, CQE_BYTES) } else { (0, 32) };
        let mut bytes = [0; CQE_BYTES];
        for (i, byte) in bytes.iter_mut().take(room).enumerate() {
            // SAFETY: in the first 32 bytes of the body, or in the 64 before it, which are the entry's first half: it has
            // 128 bytes, as just checked.
            unsafe {
                let at = body.0.as_ptr().sub(back).add(i);
                *byte = at.read_volatile();
                if !before {
                    at.write_volatile(0);
                }
            }
        }
        Some(InlineData::new(&bytes[..room], len))
    }

    /// Copies entry `ci` of `from` to entry `to` of this ring, as this ring's answer number `to`.
    pub fn adopt(&self, to: u32, from: &Self, ci: u32) {
        let bytes = self.entry_bytes().min(from.entry_bytes()) as usize;
        let (target, source) = (self.body(to), from.body(ci));
        let op_own = source.op_own() & !1 | cqe::owner_of_pass(to, self.log2_entries);
        for word in (0..bytes).step_by(8) {
            // SAFETY: an entry of `bytes` bytes ends 64 bytes behind its body's start, in both rings; all are multiples of 8.
            // The source is ours, and the target not yet the device's.
            unsafe {
                let source = source.0.as_ptr().add(CQE_BYTES).sub(bytes).add(word).cast::<u64>();
                let target = target.0.as_ptr().add(CQE_BYTES).sub(bytes).add(word).cast::<u64>();
                target.write_volatile(source.read_volatile());
            }
        }
        target.store_op_own(op_own);
    }

    /// Copies `bytes` into entry `ci`, as the device would, for tests.
    #[cfg(test)]
    pub fn write(&self, ci: u32, bytes: &[u8]) {
        assert!(bytes.len() <= self.entry_bytes() as usize);
        let body = self.body(ci);
        let (before, last) = bytes.split_last_chunk::<4>().expect("an entry's last four bytes are written");
        for (i, byte) in before.iter().rev().enumerate().rev() {
            // SAFETY: in the entry, which ends 64 bytes behind its body's start.
            unsafe { body.0.as_ptr().add(LAST).sub(1 + i).write_volatile(*byte) };
        }
        body.last_word().store(u32::from_ne_bytes(*last), Ordering::Release);
    }
}

/// The last four bytes of an entry, read at once: the device writes no part of a word of memory before another.
#[derive(Clone, Copy)]
pub struct Last(u32);

impl Last {
    /// Whether the device has not written the entry, once the owner bit was [taken off](Self::less).
    #[inline(always)]
    pub fn is_missing(self) -> bool {
        self.0 & 1 != 0 || cqe::opcode_of(self.op_own()) == cqe::opcode::INVALID
    }

    /// With 0 in place of the owner bit where it is `owner`.
    #[inline(always)]
    pub fn less(self, owner: u32) -> Self {
        Self(self.0 ^ owner)
    }

    /// The owner bit.
    #[inline(always)]
    pub fn owner(self) -> u8 {
        self.op_own() & 1
    }

    /// Whose the entry is, and what it is.
    #[inline(always)]
    pub fn op_own(self) -> u8 {
        self.0 as u8
    }

    /// All four bytes: the upper two are the index of the work queue element.
    #[inline(always)]
    pub fn word(self) -> u32 {
        self.0
    }

    /// Index of the work queue element.
    #[inline(always)]
    pub fn wqe_counter(self) -> u32 {
        self.0 >> 16
    }
}

impl Place {
    /// The entry there.
    ///
    /// # Safety
    ///
    /// The ring lives as long as what is returned, and [`pass`](Self::pass) never said `false`.
    #[inline(always)]
    pub unsafe fn body<'a>(&self) -> Body<'a> {
        // SAFETY: a place of the ring, as the caller promises, so not null.
        Body(unsafe { NonNull::new_unchecked(self.body) }, PhantomData)
    }

    /// The owner bit of entries that the device has written.
    #[inline(always)]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The owner bit of the entry there while the device has not written it. In the first pass it may be the other one.
    #[inline(always)]
    pub fn unwritten(&self) -> u8 {
        self.owner as u8 ^ 1
    }

    /// Number of the answer that belongs there.
    #[inline(always)]
    pub fn ci(&self) -> u32 {
        // At most half a ring.
        self.stop_ci.wrapping_sub(self.left() as u32)
    }

    /// Entries of this half of the ring from here on: at least one, until the last one is passed.
    #[inline(always)]
    pub fn left(&self) -> usize {
        (self.stop.addr() - self.body.addr()) >> self.log2_entry_bytes
    }

    /// How many entries it is beyond another place in the same half of the ring.
    #[inline(always)]
    pub fn beyond(&self, other: &Self) -> usize {
        (self.body.addr() - other.body.addr()) >> other.log2_entry_bytes
    }

    /// Goes on to the next entry. `false` at the end of each half of the ring: then the place must be asked for again.
    #[inline(always)]
    pub fn pass(&mut self) -> bool {
        self.body = self.body.wrapping_add(self.entry_bytes);
        self.body != self.stop
    }

    /// Goes back to the entry that was passed last.
    #[inline(always)]
    pub fn back(&mut self) {
        self.body = self.body.wrapping_sub(self.entry_bytes);
    }

    /// Goes where another place is, in the same half of the ring.
    #[inline(always)]
    pub fn follow(&mut self, other: &Self) {
        self.body = other.body;
    }
}

impl Body<'_> {
    /// The last four bytes. Everything else of the entry may be read only after they said that the entry is ours, and a barrier.
    #[inline(always)]
    pub fn last(self) -> Last {
        Last(u32::from_be(self.last_word().load(Ordering::Acquire)))
    }

    /// The last byte of it.
    #[inline(always)]
    pub fn op_own(self) -> u8 {
        self.last().op_own()
    }

    /// Changes whose the entry is.
    pub fn store_op_own(self, op_own: u8) {
        let [a, b, c, _] = self.last_word().load(Ordering::Relaxed).to_ne_bytes();
        self.last_word().store(u32::from_ne_bytes([a, b, c, op_own]), Ordering::Release);
    }

    #[inline(always)]
    fn last_word(&self) -> &AtomicU32 {
        // SAFETY: inside the body, which is borrowed from its ring, and aligned; only touched atomically.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(LAST).cast()) }
    }

    /// Four bytes at `offset`, a multiple of 4 below 64, in host order.
    #[inline(always)]
    pub fn word<const OFFSET: usize>(self) -> u32 {
        const { assert!(OFFSET.is_multiple_of(4) && OFFSET < CQE_BYTES) };
        // SAFETY: in the body and aligned, since the body is. The entry is ours: see the module.
        u32::from_be(unsafe { self.0.as_ptr().add(OFFSET).cast::<u32>().read() })
    }

    /// As [`byte_cnt`](Self::byte_cnt), for those who are not the poller: the entry may be written meanwhile, and then the number
    /// means nothing.
    pub fn byte_cnt_of_others(self) -> u32 {
        let at = offset_of!(Cqe64, byte_cnt);
        // SAFETY: in the body and aligned. Volatile, since the device may write the entry.
        u32::from_be(unsafe { self.0.as_ptr().add(at).cast::<u32>().read_volatile() })
    }

    /// As [`uidx`](Self::uidx), for those who are not the poller.
    pub fn uidx_of_others(self) -> u32 {
        let at = offset_of!(Cqe64, srqn_uidx);
        // SAFETY: in the body and aligned. Volatile, since the device may write the entry.
        u32::from_be(unsafe { self.0.as_ptr().add(at).cast::<u32>().read_volatile() }) & uidx::NONE
    }

    /// All bytes, in memory order.
    pub fn copy(self) -> [u8; CQE_BYTES] {
        let mut bytes = [0; CQE_BYTES];
        for (i, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            // SAFETY: in the body, aligned to 8.
            let word = unsafe { self.0.as_ptr().add(8 * i).cast::<u64>().read_volatile() };
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Those same bytes as they lie in memory.
    #[inline(always)]
    pub fn uidx_be(self) -> u32 {
        self.uidx_word().to_be()
    }

    /// The user index that it names, with whatever is in the 8 bits beside it: mostly nothing.
    #[inline(always)]
    pub fn uidx_word(self) -> u32 {
        self.word::<{ offset_of!(Cqe64, srqn_uidx) }>()
    }

    /// The user index that it names.
    #[inline(always)]
    pub fn uidx(self) -> u32 {
        self.word::<{ offset_of!(Cqe64, srqn_uidx) }>() & uidx::NONE
    }

    /// Bytes of the message, or what else the field means.
    #[inline(always)]
    pub fn byte_cnt(self) -> u32 {
        self.word::<{ offset_of!(Cqe64, byte_cnt) }>()
    }

    /// Writes all bytes, the last four last.
    pub fn write(self, bytes: [u8; CQE_BYTES]) {
        let [first @ .., a, b, c, d] = bytes;
        for (i, byte) in first.iter().enumerate() {
            // SAFETY: in the body. The entry is ours until it is given back; other threads only look at its last bytes.
            unsafe { self.0.as_ptr().add(i).write_volatile(*byte) };
        }
        self.last_word().store(u32::from_ne_bytes([a, b, c, d]), Ordering::Release);
    }

    /// Lets it name another queue.
    pub fn rename(self, uidx: u32) {
        // SAFETY: in the body and aligned. The entry is ours until it is given back; nobody else writes it, and other
        // threads look at this field only while they hold the mailbox, which is held here.
        let word = unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(offset_of!(Cqe64, srqn_uidx)).cast()) };
        word.store(uidx.to_be(), Ordering::Relaxed);
    }
}
