//! The way from the processor to the device: every store that a queue makes, by its purpose.
//!
//! On x86 the order of stores cannot be seen from outside, so queues make theirs through this trait: the processor is one
//! implementation, and disappears when compiled; tests have another, which writes down what came in which order.
//!
//! # Safety argument
//!
//! [`Cpu`] stores where it is told to; its callers own the memory.
#![allow(unsafe_code)]

use super::dbrec::{DoorbellRecord, Word};
use super::wqe::Chunk;
use crate::mem::barrier;
use crate::mem::copy::{copy_short, stay_a_loop};

/// Bytes that are copied into a BlueFlame register at a time.
pub const BLOCK_BYTES: u32 = 64;

/// Stores to a ring, a doorbell record and a register, and the barriers between them.
pub trait Bus {
    /// Stores a segment, or a part of one, into a ring.
    ///
    /// # Safety
    ///
    /// `at` is aligned to 16 and valid for ordinary writes of 16 bytes.
    unsafe fn segment(&self, at: *mut u8, chunk: Chunk);

    /// Copies inline data into a ring.
    ///
    /// # Safety
    ///
    /// `at` is valid for ordinary writes of `bytes.len()` bytes, none of which is in `bytes`.
    unsafe fn inline(&self, at: *mut u8, bytes: &[u8]);

    /// Between the ring and the doorbell record.
    fn to_device(&self);

    /// Stores a number into a doorbell record.
    fn record(&self, record: &DoorbellRecord, word: Word, value: u32);

    /// Between the doorbell record and the register.
    fn wc_start(&self);

    /// Stores 8 bytes, as they lie in memory, into a register: at once, never as two halves.
    ///
    /// # Safety
    ///
    /// `at` is aligned to 8 and valid for volatile writes of 8 bytes.
    unsafe fn register(&self, at: *mut u8, value: [u8; 8]);

    /// Copies a block into a BlueFlame register.
    ///
    /// # Safety
    ///
    /// Both are aligned to 8; `at` is valid for volatile writes, and `block` for volatile reads, of [`BLOCK_BYTES`] bytes.
    unsafe fn block(&self, at: *mut u8, block: *const u8);

    /// After the register.
    fn wc_flush(&self);
}

/// The processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Bus for Cpu {
    #[inline(always)]
    unsafe fn segment(&self, at: *mut u8, chunk: Chunk) {
        // SAFETY: passed on to the caller.
        unsafe { at.cast::<Chunk>().write(chunk) };
    }

    #[inline(always)]
    unsafe fn inline(&self, at: *mut u8, bytes: &[u8]) {
        // SAFETY: passed on to the caller.
        unsafe { copy_short(at, bytes) };
    }

    #[inline(always)]
    fn to_device(&self) {
        barrier::to_device_barrier();
    }

    #[inline(always)]
    fn record(&self, record: &DoorbellRecord, word: Word, value: u32) {
        record.store(word, value);
    }

    #[inline(always)]
    fn wc_start(&self) {
        barrier::wc_start();
    }

    #[inline(always)]
    unsafe fn register(&self, at: *mut u8, value: [u8; 8]) {
        // SAFETY: passed on to the caller. One aligned store of a native word on the 64-bit hosts that the provider opens on.
        unsafe { at.cast::<u64>().write_volatile(u64::from_ne_bytes(value)) };
    }

    #[inline(always)]
    unsafe fn block(&self, at: *mut u8, block: *const u8) {
        let mut offset = 0;
        while offset < BLOCK_BYTES as usize {
            // SAFETY: `offset` is a multiple of 8 below 64: both words are inside what the caller gives, and aligned.
            // Volatile, since these eight stores must stay as they are and in order to become one transfer.
            unsafe {
                let word = block.add(offset).cast::<u64>().read_volatile();
                at.add(offset).cast::<u64>().write_volatile(word);
            }
            offset += 8;
            stay_a_loop();
        }
    }

    #[inline(always)]
    fn wc_flush(&self) {
        barrier::wc_flush();
    }
}

/// A bus that does as [`Cpu`] does, and writes everything down.
#[cfg(test)]
pub mod record {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// One store, or barrier. Addresses are absolute.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Event {
        Segment { at: usize, bytes: [u8; 16] },
        Inline { at: usize, len: usize },
        ToDevice,
        Record { word: Word, value: u32 },
        WcStart,
        Register { at: usize, value: [u8; 8] },
        Block { at: usize, from: usize },
        WcFlush,
    }

    #[derive(Clone, Debug, Default)]
    pub struct Recorder(Rc<RefCell<Vec<Event>>>);

    impl Recorder {
        /// What happened since the last call.
        pub fn take(&self) -> Vec<Event> {
            self.0.take()
        }

        fn note(&self, event: Event) {
            self.0.borrow_mut().push(event);
        }
    }

    impl Bus for Recorder {
        unsafe fn segment(&self, at: *mut u8, chunk: Chunk) {
            self.note(Event::Segment { at: at.addr(), bytes: chunk.0 });
            // SAFETY: passed on to the caller.
            unsafe { Cpu.segment(at, chunk) };
        }

        unsafe fn inline(&self, at: *mut u8, bytes: &[u8]) {
            self.note(Event::Inline { at: at.addr(), len: bytes.len() });
            // SAFETY: passed on to the caller.
            unsafe { Cpu.inline(at, bytes) };
        }

        fn to_device(&self) {
            self.note(Event::ToDevice);
        }

        fn record(&self, record: &DoorbellRecord, word: Word, value: u32) {
            self.note(Event::Record { word, value });
            Cpu.record(record, word, value);
        }

        fn wc_start(&self) {
            self.note(Event::WcStart);
        }

        unsafe fn register(&self, at: *mut u8, value: [u8; 8]) {
            self.note(Event::Register { at: at.addr(), value });
            // SAFETY: passed on to the caller.
            unsafe { Cpu.register(at, value) };
        }

        unsafe fn block(&self, at: *mut u8, block: *const u8) {
            self.note(Event::Block { at: at.addr(), from: block.addr() });
            // SAFETY: passed on to the caller.
            unsafe { Cpu.block(at, block) };
        }

        fn wc_flush(&self) {
            self.note(Event::WcFlush);
        }
    }
}
