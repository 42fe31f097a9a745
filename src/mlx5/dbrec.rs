//! Doorbell records: words in memory that tell the device how far a queue was filled or emptied.
//!
//! A record is 8 bytes, aligned to 8, and lies in one page, which the kernel pins for all records in it. Each owner has a
//! cache line of its own.
//!
//! # Safety argument
//!
//! A page lives as long as the last record in it, and a record's place is given out once at a time, so its two words are
//! its owner's alone on this side. The device only reads them. They are touched by atomic access only.
#![allow(unsafe_code)]

use super::memory::pages;
use crate::mem::map::{Mapping, page_bytes};
use crate::uverbs::errno::Errno;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Distance of two records: the largest cache line of the hosts there are, and twice that of most.
const STRIDE: usize = 128;

/// A record's word. Which is which depends on its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Receives posted; of a completion queue, completions consumed.
    Receive = 0,
    /// Blocks of sends posted; of a completion queue, what it is armed for.
    Send = 1,
}

impl Word {
    /// A completion queue's word of what was consumed.
    pub const CONSUMED: Self = Self::Receive;
    /// A completion queue's word of what it is armed for.
    pub const ARM: Self = Self::Send;
}

/// The pages of one context.
#[derive(Default)]
pub struct DoorbellPages {
    pages: Mutex<Vec<Arc<Page>>>,
}

struct Page {
    memory: Mapping,
    /// One for each place that is taken.
    taken: Mutex<Box<[bool]>>,
}

/// One record. Clones are the same one, which is given back when the last of them is dropped.
#[derive(Clone)]
pub struct DoorbellRecord {
    /// Both words.
    words: NonNull<u8>,
    _place: Arc<Place>,
}

/// A place in a page, given back when dropped.
struct Place {
    page: Arc<Page>,
    number: usize,
}

// SAFETY: `words` points into the page that `_place` keeps, and is only touched by atomic access.
unsafe impl Send for DoorbellRecord {}
// SAFETY: as above.
unsafe impl Sync for DoorbellRecord {}

impl DoorbellPages {
    /// A record that nobody else has, zeroed.
    pub fn alloc(&self) -> Result<DoorbellRecord, Errno> {
        let mut all = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = all.iter().find_map(DoorbellRecord::in_page) {
            return Ok(record);
        }
        // Pages that no record is left in are given back.
        all.retain(|page| Arc::strong_count(page) > 1);
        let memory = pages(page_bytes())?;
        let places = memory.len_bytes() / STRIDE;
        let page = Arc::new(Page { memory, taken: Mutex::new(vec![false; places].into()) });
        let record = DoorbellRecord::in_page(&page).ok_or(Errno::ENOMEM)?;
        all.push(page);
        Ok(record)
    }
}

impl DoorbellRecord {
    fn in_page(page: &Arc<Page>) -> Option<Self> {
        let mut taken = page.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let place = taken.iter().position(|taken| !taken)?;
        taken[place] = true;
        // SAFETY: `place` is below the number of places, so the record's 8 bytes are inside the page.
        let words = NonNull::new(unsafe { page.memory.as_ptr().add(place * STRIDE) })?;
        let record = Self { words, _place: Arc::new(Place { page: Arc::clone(page), number: place }) };
        record.store(Word::Receive, 0);
        record.store(Word::Send, 0);
        Some(record)
    }

    /// Where it is, for the kernel.
    pub fn addr(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    /// Stores a number, which the device reads as big endian.
    ///
    /// What it hands over must have been ordered before, by `to_device_barrier`.
    #[inline(always)]
    pub fn store(&self, word: Word, value: u32) {
        self.word(word).store(value.to_be(), Ordering::Release);
    }

    /// What was stored last.
    pub fn load(&self, word: Word) -> u32 {
        u32::from_be(self.word(word).load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn word(&self, word: Word) -> &AtomicU32 {
        // SAFETY: one of the record's words, inside the page, which lives as long as `self`; a page and the stride are
        // multiples of 4. Nobody touches the words but by atomic access.
        unsafe { AtomicU32::from_ptr(self.words.as_ptr().add(4 * word as usize).cast()) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.page.taken.lock().unwrap_or_else(PoisonError::into_inner)[self.number] = false;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn records_are_apart_aligned_and_in_one_page_each() {
        let pages = DoorbellPages::default();
        let records: Vec<_> = (0..300).map(|_| pages.alloc().unwrap()).collect();
        let places: HashSet<u64> = records.iter().map(|r| r.addr()).collect();
        assert_eq!(places.len(), records.len(), "no place is given twice");
        for addr in &places {
            assert_eq!(addr % STRIDE as u64, 0);
        }
        let per_page = page_bytes() / STRIDE;
        assert_eq!(pages.pages.lock().unwrap().len(), records.len().div_ceil(per_page));
    }

    #[test]
    fn words_are_big_endian_and_apart() {
        let pages = DoorbellPages::default();
        let record = pages.alloc().unwrap();
        record.store(Word::Receive, 0x0102_0304);
        record.store(Word::Send, 0xa1a2_a3a4);
        let at: *const [u8; 8] = std::ptr::with_exposed_provenance(record.addr() as usize);
        // SAFETY: the record is 8 bytes, alive, and this thread alone has it.
        assert_eq!(unsafe { at.read_volatile() }, [1, 2, 3, 4, 0xa1, 0xa2, 0xa3, 0xa4]);
        assert_eq!((record.load(Word::Receive), record.load(Word::Send)), (0x0102_0304, 0xa1a2_a3a4));
    }

    #[test]
    fn a_record_is_given_again_after_it_is_dropped_and_then_zero() {
        let pages = DoorbellPages::default();
        let first = pages.alloc().unwrap();
        let second = pages.alloc().unwrap();
        first.store(Word::Send, 7);
        let addr = first.addr();
        drop(first);
        let again = pages.alloc().unwrap();
        assert_eq!((again.addr(), again.load(Word::Send)), (addr, 0));
        assert_ne!(second.addr(), addr);
    }

    #[test]
    fn clones_are_one_record() {
        let pages = DoorbellPages::default();
        let record = pages.alloc().unwrap();
        let clone = record.clone();
        drop(record);
        clone.store(Word::Send, 9);
        assert_ne!(pages.alloc().unwrap().addr(), clone.addr(), "it is still taken");
    }

    #[test]
    fn a_record_outlives_its_pages() {
        let pages = DoorbellPages::default();
        let record = pages.alloc().unwrap();
        drop(pages);
        record.store(Word::Receive, 1);
        assert_eq!(record.load(Word::Receive), 1);
    }
}
