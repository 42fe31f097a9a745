//! A ring of send or receive work queue elements, and the cursor that writes one.
//!
//! # Safety argument
//!
//! [`Ring::new`] checks that the ring, a power of two of bytes aligned to a block, lies in its memory, and keeps the memory.
//! Every offset is masked before use, so no access leaves the ring, whatever the indices are. Nobody else in this process
//! touches the memory, the device only reads it, and no reference to it is ever made.
#![allow(unsafe_code)]

use super::bus::Bus;
use super::head::Head;
use super::wqe::{BB_BYTES, Chunk, DS_BYTES, INLINE, InlineHead};
use crate::mem::map::Mapping;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A ring in memory that the device reads.
pub struct Ring {
    base: NonNull<u8>,
    /// Bytes minus one.
    mask: usize,
    /// Offset of the last block.
    last: u32,
    _memory: Arc<Mapping>,
}

// SAFETY: `base` points into the memory that moves along; see the module.
unsafe impl Send for Ring {}
// SAFETY: `&Ring` gives addresses; writing takes `&mut`.
unsafe impl Sync for Ring {}

impl Ring {
    /// The ring of `bytes` bytes at `offset` of `memory`.
    ///
    /// # Panics
    ///
    /// If it is not inside, not aligned to a block, or its length is not a power of two of at least a block.
    pub fn new(memory: Arc<Mapping>, offset: usize, bytes: usize) -> Self {
        assert!(bytes.is_power_of_two() && bytes >= BB_BYTES as usize, "a ring is a power of two of bytes");
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= memory.len_bytes()), "a ring lies in its memory");
        // SAFETY: in bounds, as just checked.
        let base = NonNull::new(unsafe { memory.as_ptr().add(offset) }).expect("memory is not at address 0");
        assert!(base.addr().get().is_multiple_of(BB_BYTES as usize), "a ring starts on a block");
        Self { base, mask: bytes - 1, last: (bytes - BB_BYTES as usize) as u32, _memory: memory }
    }

    /// Bytes of the ring.
    pub fn bytes(&self) -> usize {
        self.mask + 1
    }

    /// A cursor on the byte that `offset`, a multiple of 16, stands for.
    #[inline(always)]
    pub fn cursor(&mut self, offset: usize) -> Cursor<'_> {
        let ring = self.open();
        Cursor { start: offset & ring.mask() & !(DS_BYTES as usize - 1), ds: 0, starts_block: false, ring }
    }

    /// Number of the last block: a mask of block numbers.
    pub fn last_block(&self) -> u32 {
        self.last / BB_BYTES
    }

    /// The ring, to be written without a look at where it is for each element.
    #[inline(always)]
    pub fn open(&mut self) -> OpenRing<'_> {
        OpenRing { base: self.base, last: self.last, _ring: PhantomData }
    }

    /// The block that starts at `offset`, a multiple of 64.
    #[inline(always)]
    pub fn block(&self, offset: usize) -> Block<'_> {
        // SAFETY: masked, so in bounds; ring and block are multiples of 64, so the whole block is.
        let at = unsafe { self.base.as_ptr().add(offset & self.mask & !(BB_BYTES as usize - 1)) };
        Block { at, _ring: PhantomData }
    }

    /// Copies a piece of the ring out, for tests.
    #[cfg(test)]
    pub fn peek(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(len <= self.bytes());
        let (at, mut piece) = (offset & self.mask, vec![0; len]);
        let (to_end, behind) = piece.split_at_mut(len.min(self.bytes() - at));
        // SAFETY: up to the ring's end, and no more than the ring from its start; this thread has the ring.
        unsafe {
            self.base.as_ptr().add(at).copy_to_nonoverlapping(to_end.as_mut_ptr(), to_end.len());
            self.base.as_ptr().copy_to_nonoverlapping(behind.as_mut_ptr(), behind.len());
        }
        piece
    }

    /// Fills the ring with one byte, for tests.
    #[cfg(test)]
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: in bounds; this thread has the ring.
        unsafe { self.base.as_ptr().write_bytes(byte, self.bytes()) };
    }
}

/// Where a block is in a ring.
#[derive(Clone, Copy)]
pub struct BlockPlace(u32);

impl BlockPlace {
    /// In bytes: a multiple of a block's.
    #[inline(always)]
    pub fn offset(self) -> usize {
        self.0 as usize
    }
}

/// A ring that is being written.
pub struct OpenRing<'a> {
    base: NonNull<u8>,
    /// Offset of the last block.
    last: u32,
    _ring: PhantomData<&'a mut Ring>,
}

impl OpenRing<'_> {
    /// Bytes minus one.
    #[inline(always)]
    fn mask(&self) -> usize {
        (self.last | (BB_BYTES - 1)) as usize
    }

    /// Where the block is that a queue has come to.
    #[inline(always)]
    pub fn place(&self, head: Head) -> BlockPlace {
        // What is no whole block is masked away.
        BlockPlace(head.about::<BB_BYTES>() & self.last)
    }

    /// A cursor on the block at a place of this ring.
    #[inline(always)]
    pub fn element(&mut self, place: BlockPlace) -> Cursor<'_> {
        let ring = OpenRing { base: self.base, last: self.last, _ring: PhantomData };
        // Of this ring or of another: never beyond this one.
        Cursor { start: place.offset() & self.last as usize, ds: 0, starts_block: true, ring }
    }

    /// The block that a queue has come to.
    #[inline(always)]
    pub fn block(&self, head: Head) -> Block<'_> {
        // SAFETY: masked, so in bounds; ring and block are multiples of 64, so the whole block is.
        let at = unsafe { self.base.as_ptr().add(self.place(head).offset()) };
        Block { at, _ring: PhantomData }
    }
}

/// A block of a ring: 64 bytes, aligned to 64, valid for volatile reads.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    at: *const u8,
    _ring: PhantomData<&'a Ring>,
}

impl Block<'_> {
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.at
    }
}

/// Writes the segments of one element one after the other, and goes on at the ring's start when it comes to its end.
pub struct Cursor<'a> {
    ring: OpenRing<'a>,
    /// Offset of the element: masked, a multiple of 16.
    start: usize,
    /// Units passed so far.
    ds: u32,
    /// The element starts on a block, a multiple of 64, so that its first four units lie one after the other.
    starts_block: bool,
}

impl Cursor<'_> {
    /// Units passed so far.
    #[inline(always)]
    pub fn ds(&self) -> u32 {
        self.ds
    }

    /// Leaves out a unit, to be written later.
    #[inline(always)]
    pub fn skip(&mut self) {
        self.ds += 1;
    }

    /// Offset of the next segment: below the ring's length, a multiple of 16.
    #[inline(always)]
    fn at(&self) -> usize {
        let at = self.start + self.ds as usize * DS_BYTES as usize;
        // A ring has a multiple of blocks, so what lies in an element's first block does not go around its end.
        if self.starts_block && self.ds < BB_BYTES / DS_BYTES { at } else { at & self.ring.mask() }
    }

    /// Writes a segment.
    #[inline(always)]
    pub fn put<B: Bus, const N: usize>(&mut self, bus: &B, segment: impl Into<[Chunk; N]>) {
        for chunk in segment.into() {
            // SAFETY: `at` is below the ring's length, and both it and the length are multiples of 16, as the base is.
            unsafe { bus.segment(self.ring.base.as_ptr().add(self.at()), chunk) };
            self.skip();
        }
    }

    /// Writes an inline segment of all `pieces`, one after the other; none at all for no bytes. `None`, and nothing passed,
    /// if there are more than `max_bytes`.
    #[inline(always)]
    pub fn inline<B: Bus>(&mut self, bus: &B, max_bytes: usize, pieces: &[&[u8]]) -> Option<()> {
        let (base, mask) = (self.ring.base, self.ring.mask());
        let unit = self.at();
        if let [piece] = pieces
            && piece.len() <= DS_BYTES as usize - size_of::<InlineHead>()
        {
            if piece.len() > max_bytes {
                return None;
            }
            if !piece.is_empty() {
                let head = InlineHead { byte_count: (INLINE | piece.len() as u32).into() };
                // SAFETY: head and piece fit the unit, which is inside the ring; no reference to its memory exists.
                unsafe {
                    bus.inline(base.as_ptr().add(unit + size_of::<InlineHead>()), piece);
                    bus.inline(base.as_ptr().add(unit), head.as_bytes());
                }
                self.ds += 1;
            }
            return Some(());
        }
        // Never longer than the ring, so that it goes around once at most.
        let max_bytes = max_bytes.min(mask);
        let start = unit + size_of::<InlineHead>();
        let mut used = 0_usize;
        for piece in pieces {
            // `used <= max_bytes` always: no wrap.
            if piece.len() > max_bytes.wrapping_sub(used) {
                return None;
            }
            let at = start.wrapping_add(used) & mask;
            let room = mask - at + 1;
            // SAFETY: `at` is masked and `room` bytes are from there to the end. What is left after them is at most
            // `max_bytes`, less than the ring has. No piece is in the ring, since no reference to its memory exists.
            unsafe {
                if piece.len() <= room {
                    bus.inline(base.as_ptr().add(at), piece);
                } else {
                    let (first, rest) = piece.split_at_unchecked(room);
                    bus.inline(base.as_ptr().add(at), first);
                    bus.inline(base.as_ptr(), rest);
                }
            }
            used = used.wrapping_add(piece.len());
        }
        if used == 0 {
            return Some(());
        }
        let head = InlineHead { byte_count: (INLINE | used as u32).into() };
        // SAFETY: a unit starts there, inside the ring.
        unsafe { bus.inline(base.as_ptr().add(unit), head.as_bytes()) };
        self.ds += (size_of::<InlineHead>() + used).div_ceil(DS_BYTES as usize) as u32;
        Some(())
    }
}
