//! Doorbell pages (UARs) and their registers, and who may write which.
//!
//! A page of 4 KiB has a register to arm completion queues at 0x20, and two for send queues from 0x800 on, each of two
//! halves that are used in turn, so that one doorbell is not combined with the next in the processor's buffers.
//!
//! Two kinds of owners of a send register:
//! - *exclusive*: one queue pair has both halves of a register in a write-combining page to itself, and may copy a whole
//!   small work queue element into it (BlueFlame);
//! - *shared*: any number of queue pairs write 8 bytes at a time to the first register of an uncached page. A single
//!   aligned store of 8 bytes needs no lock; nothing longer is ever stored there.
//!
//! An exclusive register is given out by [`Registers`] once at a time and cannot be copied, so no two queue pairs ever share
//! one.
//!
//! # Safety argument
//!
//! [`UarPage`] checks that the registers it gives pointers to lie in its mapping, and owns the mapping; whoever has a
//! pointer has the page. Registers are written by volatile stores only and never read.
#![allow(unsafe_code)]

use super::bus::{BLOCK_BYTES, Bus};
use super::ring::Block;
use super::wqe::DS_BYTES;
use crate::mem::copy::stay_a_loop;
use crate::mem::map::Mapping;
use crate::uverbs::error::{Error, Verb};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a doorbell page.
pub const UAR_BYTES: usize = 4096;
/// Where completion queues are armed.
#[doc(alias = "MLX5_CQ_DOORBELL")]
const CQ_DOORBELL: usize = 0x20;
/// Where the first send register is.
#[doc(alias = "MLX5_BF_OFFSET")]
const SEND_REGISTERS: usize = 0x800;
/// Send registers in a page. There is room for four, but the others are the firmware's to use.
const REGISTERS_PER_UAR: usize = 2;
/// Bytes of a register, where the device does not say: its place in the page is used all the same.
const DEFAULT_REGISTER_BYTES: u32 = 512;
/// Most pages of which registers are given out; queue pairs beyond share one.
const MAX_PAGES: usize = 256;

/// How a doorbell page is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Stores are collected, and sent as one.
    WriteCombining,
    /// Each store goes out by itself.
    Uncached,
}

/// A doorbell page of this process.
pub struct UarPage {
    base: NonNull<u8>,
    page_id: u32,
    caching: Caching,
    /// Unmapped before the object behind it is destroyed.
    _mapping: Mapping,
    /// The kernel's object.
    _object: Box<dyn Any + Send + Sync>,
}

// SAFETY: `base` points into the mapping that moves along, and is only written to by volatile stores.
unsafe impl Send for UarPage {}
// SAFETY: what `&UarPage` gives without `unsafe` are numbers.
unsafe impl Sync for UarPage {}

/// Where in the mapped system page a doorbell page is: with 64 KiB pages sixteen of them are mapped together.
pub const fn offset_in_page(page_id: u32, page_bytes: usize, log_uar_bytes: u32) -> usize {
    let uar_bytes = match log_uar_bytes {
        // Older than the field: a doorbell page is a system page.
        0 => page_bytes,
        log2 => 1 << log2,
    };
    if uar_bytes >= page_bytes { 0 } else { (page_id as usize % (page_bytes / uar_bytes)) * uar_bytes }
}

impl UarPage {
    /// The page `page_id`, at `offset` of `mapping`, which stays the kernel's until `object` is dropped.
    pub fn new(
        mapping: Mapping,
        offset: usize,
        page_id: u32,
        caching: Caching,
        object: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        let fits = offset.checked_add(UAR_BYTES).is_some_and(|end| end <= mapping.len_bytes());
        // SAFETY: in bounds of the mapping, as just checked.
        let base = NonNull::new(mapping.as_ptr()).filter(|_| fits).map(|start| unsafe { start.add(offset) });
        match base.filter(|base| base.addr().get().is_multiple_of(UAR_BYTES)) {
            Some(base) => Ok(Arc::new(Self { base, page_id, caching, _mapping: mapping, _object: object })),
            None => Err(Error::Abi {
                verb: Verb::MapQueue,
                what: "doorbell page".into(),
                need: format!("{UAR_BYTES} bytes, aligned, at offset {offset:#x}").into(),
                got: format!("{} bytes at {:p}", mapping.len_bytes(), mapping.as_ptr()).into(),
            }),
        }
    }

    /// Its index, by which queues name it to the kernel.
    pub fn page_id(&self) -> u32 {
        self.page_id
    }

    /// How it is mapped.
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Tells the device what a completion queue is armed for: `arm` and the queue's number, in one store.
    #[inline(always)]
    pub fn arm<B: Bus>(&self, bus: &B, arm: u32, cqn: u32) {
        let value = (u64::from(arm) << 32 | u64::from(cqn)).to_be_bytes();
        // SAFETY: 8 bytes inside the page of 4096, which the mapping keeps; the page is aligned.
        unsafe { bus.register(self.base.as_ptr().add(CQ_DOORBELL), value) };
    }
}

/// A send register, as one queue pair holds it.
pub struct SendRegister {
    /// The half that is next.
    next: *mut u8,
    /// Bytes of a half, by which their addresses differ; 0 where there is one half only.
    half: usize,
    /// How many lengths of work queue elements are copied, in units of 16 bytes, from 2 on; 0 none.
    blueflame_lengths: u32,
    page: Arc<UarPage>,
    /// Given back when dropped; none for a shared one.
    _lease: Option<Lease>,
}

// SAFETY: the pointer points into the page that moves along; only `&mut self` writes through it.
unsafe impl Send for SendRegister {}
// SAFETY: `&SendRegister` gives numbers only.
unsafe impl Sync for SendRegister {}

impl SendRegister {
    /// The register that everybody shares: one store of 8 bytes at a time.
    pub fn shared(page: Arc<UarPage>) -> Self {
        // SAFETY: inside the page of 4096 bytes.
        let next = unsafe { page.base.add(SEND_REGISTERS) }.as_ptr();
        Self { next, half: 0, blueflame_lengths: 0, page, _lease: None }
    }

    /// The page, for the kernel.
    pub fn page_id(&self) -> u32 {
        self.page.page_id
    }

    /// Whether work queue elements may be copied into it.
    pub fn has_blueflame(&self) -> bool {
        self.blueflame_lengths > 0
    }

    /// Whether an element of `ds` units may be copied. One of a control segment alone gains nothing.
    #[inline(always)]
    pub fn takes_whole(&self, ds: u32) -> bool {
        ds.wrapping_sub(2) < self.blueflame_lengths
    }

    /// Rings with the first 8 bytes of the last element.
    #[inline(always)]
    pub fn ring<B: Bus>(&mut self, bus: &B, first: [u8; 8]) {
        // SAFETY: one half or the other, which were checked to be inside the page; aligned to 64.
        unsafe { bus.register(self.next, first) };
    }

    /// Copies an element of that many blocks into the register. Blocks that [`takes_whole`](Self::takes_whole) did not admit
    /// land on those that it did.
    #[inline(always)]
    pub fn copy<'r, B: Bus>(&mut self, bus: &B, blocks: u32, block: impl Fn(u32) -> Block<'r>) {
        let half = self.half;
        if half == 0 {
            return;
        }
        let start = self.next;
        let mut number = 0;
        while number < blocks {
            // A half is a power of two of blocks (checked when the register was made).
            let offset = (number * BLOCK_BYTES) as usize & (half - 1);
            // SAFETY: a half is inside the page; `offset` is below `half` and a multiple of 64; a `Block` is aligned and valid for volatile reads.
            unsafe { bus.block(start.add(offset), block(number).as_ptr()) };
            number += 1;
            stay_a_loop();
        }
    }

    /// Turns to the other half, after a doorbell.
    #[inline(always)]
    pub fn turn(&mut self) {
        // The first half is aligned to both: see where a register is made.
        self.next = self.next.map_addr(|at| at ^ self.half);
    }
}

/// The exclusive registers of one context.
#[derive(Default)]
pub struct Registers {
    pages: Arc<Mutex<Vec<Leased>>>,
}

struct Leased {
    page: Arc<UarPage>,
    taken: [bool; REGISTERS_PER_UAR],
}

struct Lease {
    pages: Arc<Mutex<Vec<Leased>>>,
    page_id: u32,
    index: usize,
}

impl Registers {
    /// A register of one's own, in a page that has one or in a new one that `new_page` makes. `None` when there are no more
    /// pages to be had.
    ///
    /// `register_bytes` is the size of a register; `blueflame` says whether whole elements may be copied into it.
    pub fn exclusive(
        &self,
        register_bytes: u32,
        blueflame: bool,
        new_page: impl FnOnce() -> Result<Arc<UarPage>, Error>,
    ) -> Option<SendRegister> {
        let register_bytes = match register_bytes {
            0 => DEFAULT_REGISTER_BYTES,
            told => told,
        };
        let half = register_bytes / 2;
        if !half.is_power_of_two()
            || half < BLOCK_BYTES
            || 2 * half as usize * REGISTERS_PER_UAR > UAR_BYTES - SEND_REGISTERS
        {
            return None;
        }
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match pages.iter().position(|leased| leased.taken.contains(&false)) {
            Some(at) => at,
            None if pages.len() >= MAX_PAGES => return None,
            None => {
                pages.push(Leased { page: new_page().ok()?, taken: [false; REGISTERS_PER_UAR] });
                pages.len() - 1
            }
        };
        let Leased { page, taken } = &mut pages[at];
        let index = taken.iter().position(|taken| !taken)?;
        taken[index] = true;
        let page = Arc::clone(page);
        // SAFETY: both halves of both registers are inside the page, as just checked.
        let next = unsafe { page.base.add(SEND_REGISTERS + index * 2 * half as usize) }.as_ptr();
        // Page and registers start at multiples of what they are long.
        debug_assert!(next.addr().is_multiple_of(2 * half as usize));
        let blueflame = blueflame && page.caching == Caching::WriteCombining;
        let lease = Lease { pages: Arc::clone(&self.pages), page_id: page.page_id, index };
        Some(SendRegister {
            next,
            half: half as usize,
            blueflame_lengths: if blueflame { half / DS_BYTES - 1 } else { 0 },
            page,
            _lease: Some(lease),
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = pages.iter().position(|leased| leased.page.page_id == self.page_id) {
            pages[at].taken[self.index] = false;
            if pages[at].taken == [false; REGISTERS_PER_UAR] {
                pages.swap_remove(at);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
