//! The kernel's side of a ring, for tests. Knows the layout by its own offsets, not by the product's structs.
//!
//! # Safety argument
//!
//! The ring's memory is owned by an `Arc` that both sides hold. All offsets are computed from the geometry the memory
//! was allocated for. Tests run both sides on one thread, so plain accesses to slots never race.
#![allow(unsafe_code)]

use crate::mem::map::Mapping;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const PRODUCER: usize = 128;
const CONSUMER: usize = 256;
const SLOTS: usize = 384;

/// What unused bytes of a test ring hold.
pub const DIRTY: u8 = 0xff;

struct Memory {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a plain allocation, owned.
unsafe impl Send for Memory {}
// SAFETY: `&Memory` gives only the address.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this layout.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

fn allocate(len: usize) -> Arc<Memory> {
    let layout = Layout::from_size_align(len, 4096).unwrap();
    // SAFETY: every caller asks for at least one byte.
    let ptr = NonNull::new(unsafe { alloc(layout) }).unwrap();
    // SAFETY: `len` bytes were just allocated.
    unsafe { ptr.write_bytes(DIRTY, len) };
    Arc::new(Memory { ptr, layout })
}

fn map(memory: &Arc<Memory>, at: usize, len: usize) -> Mapping {
    assert!(at + len <= memory.layout.size());
    // SAFETY: in bounds, and valid until the `Arc`, which goes into the mapping, is dropped.
    unsafe { Mapping::from_raw(memory.ptr.add(at), len, Box::new(memory.clone())) }
}

/// A mapping of `len` bytes at `at` of a page, whose geometry words are as given. For refusals only.
pub fn raw_mapping(at: usize, len: usize, log2_elem_size: u32, index_mask: u32) -> Mapping {
    let memory = allocate(4096 + len);
    let header: Vec<u8> = [log2_elem_size.to_ne_bytes(), index_mask.to_ne_bytes()].concat();
    // SAFETY: eight bytes inside the allocation.
    unsafe { memory.ptr.add(at).as_ptr().copy_from_nonoverlapping(header.as_ptr(), 8) };
    map(&memory, at, len)
}

/// The kernel's end of a ring: consumer of a work queue, or producer of a completion queue.
pub struct Kernel {
    memory: Arc<Memory>,
    log2_elem_size: u32,
    index_mask: u32,
    /// The kernel's private copy of the index it owns.
    index: Cell<u32>,
}

/// A ring full of dirty bytes whose indices both stand at `start`, and the kernel's end of it.
pub fn ring(log2_elem_size: u32, index_mask: u32, start: u32) -> (Mapping, Kernel) {
    let len = SLOTS + ((index_mask as usize + 1) << log2_elem_size);
    let memory = allocate(len);
    let kernel = Kernel { memory, log2_elem_size, index_mask, index: Cell::new(start & index_mask) };
    kernel.poke(0, log2_elem_size);
    kernel.poke(4, index_mask);
    kernel.poke(PRODUCER, kernel.index.get());
    kernel.poke(CONSUMER, kernel.index.get());
    (map(&kernel.memory, 0, len), kernel)
}

impl Kernel {
    /// Consumes one work queue entry, as bytes, and scribbles over the slot before giving it back.
    pub fn take(&self) -> Option<Vec<u8>> {
        let index = self.index.get();
        if index == self.peek(PRODUCER) {
            return None;
        }
        let bytes = self.slot(index);
        self.write_slot(index, &vec![0xa5; bytes.len()]);
        self.index.set((index + 1) & self.index_mask);
        self.poke(CONSUMER, self.index.get());
        Some(bytes)
    }

    /// Produces one completion. `false` if the ring is full and the completion is lost.
    pub fn give(&self, bytes: &[u8]) -> bool {
        let index = self.index.get();
        let after = (index + 1) & self.index_mask;
        if after == self.peek(CONSUMER) {
            return false;
        }
        self.write_slot(index, bytes);
        self.index.set(after);
        self.poke(PRODUCER, after);
        true
    }

    /// What modifying the queue pair to RESET does to a work queue: it is empty afterwards, at the producer's index.
    pub fn reset(&self) {
        while self.take().is_some() {}
    }

    pub fn producer(&self) -> u32 {
        self.peek(PRODUCER)
    }

    pub fn consumer(&self) -> u32 {
        self.peek(CONSUMER)
    }

    /// Stores any value in the producer's index word.
    pub fn scribble_producer(&self, value: u32) {
        self.poke(PRODUCER, value);
    }

    /// Stores any value in the consumer's index word.
    pub fn scribble_consumer(&self, value: u32) {
        self.poke(CONSUMER, value);
    }

    /// A copy of a slot.
    pub fn slot(&self, index: u32) -> Vec<u8> {
        let len = 1 << self.log2_elem_size;
        let mut bytes = vec![0; len];
        // SAFETY: `slot_ptr` is in bounds for `len` bytes, and no reference to the ring exists.
        unsafe { self.slot_ptr(index).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    fn write_slot(&self, index: u32, bytes: &[u8]) {
        assert!(bytes.len() <= 1 << self.log2_elem_size);
        // SAFETY: `slot_ptr` is in bounds for a whole slot, and no reference to the ring exists.
        unsafe { self.slot_ptr(index).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn slot_ptr(&self, index: u32) -> *mut u8 {
        assert!(index <= self.index_mask);
        // SAFETY: `ring` allocated header and slots for this geometry.
        unsafe { self.memory.ptr.add(SLOTS + ((index as usize) << self.log2_elem_size)).as_ptr() }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: all offsets used are multiples of 4 in the header.
        unsafe { AtomicU32::from_ptr(self.memory.ptr.add(offset).cast().as_ptr()) }
    }

    fn peek(&self, offset: usize) -> u32 {
        self.word(offset).load(SeqCst)
    }

    fn poke(&self, offset: usize, value: u32) {
        self.word(offset).store(value, SeqCst);
    }
}

/// Bytes from text: hex bytes in any grouping, `xx*n` for repetition, `#` starts a comment.
pub fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.lines().flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace()) {
        let (digits, count) = match word.split_once('*') {
            Some((digits, count)) => (digits, count.parse().unwrap()),
            None => (word, 1),
        };
        assert!(digits.len() % 2 == 0, "odd number of digits in {word}");
        for _ in 0..count {
            bytes.extend((0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()));
        }
    }
    bytes
}
