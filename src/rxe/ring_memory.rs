//! Where a ring's index words and slots are: in a mapping shared with the kernel, or in a model.
//!
//! # Safety argument
//!
//! [`MappedRing`] reads the geometry from the shared header once, checks it against the length of the mapping, and uses
//! only its own copy from then on. The mapping is owned, so every pointer made from it lives as long as the ring. No
//! Rust reference to the memory is made, except to the two index words, and those are atomics.
#![allow(unsafe_code)]

use super::abi::QueueBuf;
use crate::mem::atomic::AtomicU32;
use crate::mem::map::Mapping;
use crate::mem::ring::RingMask;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::wr::PostError;
use std::cell::UnsafeCell;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

/// Alignment of every slot: the slots start at a multiple of it and their distance is one.
pub const SLOT_ALIGN: usize = 64;

/// What can write itself into a slot.
///
/// A trait and not a closure, since a closure cannot be made to inline.
pub trait Entry {
    /// Writes the entry, or says why it cannot be written.
    ///
    /// # Safety
    ///
    /// `slot` is aligned to [`SLOT_ALIGN`], valid for ordinary writes of the ring's [`RingMemory::slot_bytes`], and
    /// nobody else touches it meanwhile. That this is enough for the entry is for its maker to know.
    unsafe fn write_to(self, slot: NonNull<u8>) -> Result<(), PostError>;
}

/// The two index words and the slots of one ring.
///
/// # Safety
///
/// *Implementer*: `producer` and `consumer` give the same words each time. The pointer that `read_slot` returns or
/// `write_slot` passes on is aligned to [`SLOT_ALIGN`] and valid for ordinary reads (and writes) of `slot_bytes` bytes as
/// long as the ring lives; two slots do not overlap each other or an index word. Nobody touches a slot but the two ends
/// of the ring, in turn, as the index words tell.
pub unsafe trait RingMemory {
    /// The index of the slot that is filled next.
    fn producer(&self) -> &AtomicU32;

    /// The index of the slot that is consumed next.
    fn consumer(&self) -> &AtomicU32;

    /// The geometry. Never changes.
    fn mask(&self) -> RingMask;

    /// Usable bytes of a slot. Never changes.
    fn slot_bytes(&self) -> usize;

    /// A slot to read from, until it is given back.
    ///
    /// # Safety
    ///
    /// `index` is masked, and the slot is the caller's to read by the rules of the ring.
    unsafe fn read_slot(&self, index: u32) -> *const u8;

    /// Writes `entry` into a slot.
    ///
    /// # Safety
    ///
    /// `index` is masked, the slot is the caller's to write by the rules of the ring, and `slot_bytes` are enough for
    /// the entry.
    unsafe fn write_slot(&self, index: u32, entry: impl Entry) -> Result<(), PostError>;
}

/// Room for a ring of one slot, which holds nothing. Nobody writes to it: nothing can be put in, and nothing is there to be
/// taken out.
#[repr(C, align(64))]
struct NoQueue(UnsafeCell<[u8; size_of::<QueueBuf>() + SLOT_ALIGN]>);

// SAFETY: as `MappedRing`: raw memory, whose index words both sides touch by atomic access only.
unsafe impl Sync for NoQueue {}

static NO_QUEUE: NoQueue = NoQueue(UnsafeCell::new([0; size_of::<QueueBuf>() + SLOT_ALIGN]));

/// A ring in memory shared with the kernel.
#[derive(Debug)]
pub struct MappedRing {
    /// Start of the mapping: a [`QueueBuf`], then the slots.
    base: NonNull<u8>,
    log2_elem_size: u32,
    mask: RingMask,
    /// Owns the memory at `base`.
    _mapping: Mapping,
}

// SAFETY: `base` points into the mapping that moves along, and the mapping is `Send`.
unsafe impl Send for MappedRing {}
// SAFETY: what `&MappedRing` gives away without `unsafe` is the index words, which are atomics, and plain copies.
unsafe impl Sync for MappedRing {}

impl MappedRing {
    /// Reads and checks the geometry of a mapped queue whose elements need `need_bytes` each.
    pub fn new(mapping: Mapping, queue: &'static str, need_bytes: usize) -> Result<Self, Error> {
        let len_bytes = mapping.len_bytes();
        let base = NonNull::new(mapping.as_ptr()).filter(|p| p.addr().get() % SLOT_ALIGN == 0);
        let (Some(base), true) = (base, len_bytes >= size_of::<QueueBuf>()) else {
            return Err(Error::Abi {
                verb: Verb::MapQueue,
                what: queue.into(),
                need: format!("at least {} bytes, aligned to {SLOT_ALIGN}", size_of::<QueueBuf>()).into(),
                got: format!("{len_bytes} bytes at {:p}", mapping.as_ptr()).into(),
            });
        };
        // SAFETY: both words are inside the mapping, whose length was just checked, and aligned since `base` is. The
        // kernel wrote them before it let the queue be mapped, and a `Mapping` is valid for volatile reads.
        let (log2_elem_size, index_mask) = unsafe {
            (
                base.add(offset_of!(QueueBuf, log2_elem_size)).cast::<u32>().read_volatile(),
                base.add(offset_of!(QueueBuf, index_mask)).cast::<u32>().read_volatile(),
            )
        };
        // The kernel tells a mapping's length in 32 bits.
        let room = (len_bytes - size_of::<QueueBuf>()).min(u32::MAX as usize);
        let mask = RingMask::new(index_mask).filter(|mask| {
            let stride = 1_u64.checked_shl(log2_elem_size).unwrap_or(0);
            let slots = u64::from(mask.slots());
            stride >= need_bytes.max(SLOT_ALIGN) as u64
                && slots.checked_mul(stride).is_some_and(|bytes| bytes <= room as u64)
        });
        let Some(mask) = mask else {
            return Err(Error::Abi {
                verb: Verb::MapQueue,
                what: queue.into(),
                need: format!("elements of {need_bytes} bytes or more, a power of two of them, in {room} bytes").into(),
                got: format!("log2_elem_size {log2_elem_size}, index_mask {index_mask:#x}").into(),
            });
        };
        Ok(Self { base, log2_elem_size, mask, _mapping: mapping })
    }

    /// A ring that is always empty and always full, for a queue that is not there.
    pub fn none() -> Self {
        let base = NonNull::from(&NO_QUEUE.0).cast::<u8>();
        // SAFETY: a static lives for ever, may be written to since it is an `UnsafeCell`, and is referred to by nothing else.
        let mapping = unsafe { Mapping::from_raw(base, size_of::<NoQueue>(), Box::new(())) };
        Self { base, log2_elem_size: SLOT_ALIGN.trailing_zeros(), mask: RingMask::ONE_SLOT, _mapping: mapping }
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // loom's atomics are objects of its own, not words in memory; models bring their own `RingMemory`.
        #[cfg(loom)]
        unreachable!("a mapped ring cannot be modelled: offset {offset}");
        #[cfg(not(loom))]
        // SAFETY: both offsets that are passed in are multiples of 4 inside the header, and the mapping, which lives as
        // long as `self`, covers the header. Both sides touch an index word only by atomic access from now on.
        unsafe {
            AtomicU32::from_ptr(self.base.add(offset).cast().as_ptr())
        }
    }

    /// # Safety
    ///
    /// `index` is masked.
    #[inline(always)]
    unsafe fn slot(&self, index: u32) -> NonNull<u8> {
        // As 32 bits: widened before the shift, it would cost an instruction.
        let offset = (index << self.log2_elem_size) as usize;
        // SAFETY: `new` checked that the slots have less than 2^32 bytes, which fit the mapping after the header, and the
        // caller masked `index`: nothing was shifted out, and the slot is inside.
        unsafe { self.base.add(size_of::<QueueBuf>() + offset) }
    }
}

// SAFETY: the words are at fixed offsets of one mapping. A slot lies inside the mapping, as `slot` shows; it is aligned,
// since `base`, the header's size and the stride (a power of two of at least `SLOT_ALIGN`) are multiples of
// `SLOT_ALIGN`; it is `1 << log2_elem_size` bytes long, its distance to the next. The mapping comes from a `Cdev`, whose
// implementer answers for the other side.
unsafe impl RingMemory for MappedRing {
    #[inline(always)]
    fn producer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, producer_index))
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU32 {
        self.word(offset_of!(QueueBuf, consumer_index))
    }

    #[inline(always)]
    fn mask(&self) -> RingMask {
        self.mask
    }

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        1 << self.log2_elem_size
    }

    #[inline(always)]
    unsafe fn read_slot(&self, index: u32) -> *const u8 {
        // SAFETY: passed on to the caller.
        unsafe { self.slot(index) }.as_ptr()
    }

    #[inline(always)]
    unsafe fn write_slot(&self, index: u32, entry: impl Entry) -> Result<(), PostError> {
        // SAFETY: the caller vouches for the index and the entry; the slot is aligned and as long as `slot_bytes` says.
        unsafe { entry.write_to(self.slot(index)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
