//! From ticks of the device's clock to the host's time.
//!
//! The kernel keeps a page with the relation of the two, and writes it anew every so often; a reader takes a copy and looks
//! whether it was written meanwhile.
//!
//! # Safety argument
//!
//! The page is read by volatile and atomic access inside the mapping, whose length was checked. The kernel may write it at
//! any time; a copy that was torn is thrown away.
#![allow(unsafe_code)]

use super::abi::ClockInfo;
use super::context::Mlx5Context;
use crate::mem::barrier;
use crate::mem::map::{Mapping, page_bytes};
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::explain;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::IntoBytes;

/// Pages that hold a clock, as page numbers of the device file (`enum mlx5_ib_mmap_cmd`, shifted as the driver has it).
const CORE_CLOCK_PAGE: u64 = 5 << 8;
const CLOCK_INFO_PAGE: u64 = 7 << 8;

/// The device's clock, and what turns its ticks into the host's time.
pub struct Clock {
    page: ClockPage,
    /// The clock itself, and where in its page it is. Not all drivers tell.
    core: Option<(Mapping, usize)>,
}

impl Clock {
    /// Maps what the driver shows of it.
    pub fn map(context: &Mlx5Context) -> Result<Self, Error> {
        let caps = context.caps();
        if !caps.has_clock_page {
            let what = "the page that relates the device's clock to the host's".into();
            return Err(Error::Unsupported { verb: Verb::QueryDevice, what, by: Lacking::Driver });
        }
        let page_bytes = page_bytes();
        let map = |page: u64| {
            let mapped = context.ucontext().cdev().map_read_only(page * page_bytes as u64, page_bytes);
            mapped.map_err(|errno| {
                explain::mapping(Error::kernel(Verb::MapQueue, errno), "the device's clock", page_bytes)
            })
        };
        let page = ClockPage::new(map(CLOCK_INFO_PAGE)?)?;
        let core = match caps.core_clock_offset {
            None => None,
            // Of two words, in the page.
            Some(offset) => {
                let at = offset as usize & (page_bytes - 1) & !7;
                Some((map(CORE_CLOCK_PAGE)?, at))
            }
        };
        Ok(Self { page, core })
    }

    /// The clock now, in ticks.
    pub fn now(&self) -> Option<u64> {
        let (mapping, at) = self.core.as_ref()?;
        let half = |offset: usize| {
            // SAFETY: `at` is a multiple of 8 inside the mapped page. Volatile: the device changes it.
            u32::from_be(unsafe { mapping.as_ptr().add(at + offset).cast::<u32>().read_volatile() })
        };
        for _ in 0..TRIES {
            let (high, low) = (half(0), half(4));
            // The upper half changed between the two: once more.
            if half(0) == high {
                return Some(u64::from(high) << 32 | u64::from(low));
            }
        }
        None
    }

    /// Nanoseconds since 1970 on the host's clock, when the device's stood at `ticks`.
    pub fn nanoseconds(&self, ticks: u64) -> Option<u64> {
        Some(self.page.read()?.nanoseconds(ticks))
    }
}

/// How often a copy is tried while the kernel writes, before giving up.
const TRIES: u32 = 1 << 20;

/// The page that relates the device's clock to the host's.
pub struct ClockPage(Mapping);

impl ClockPage {
    /// The mapped page.
    pub fn new(mapping: Mapping) -> Result<Self, Error> {
        let fits = mapping.len_bytes() >= size_of::<ClockInfo>();
        if !fits || !mapping.as_ptr().addr().is_multiple_of(align_of::<ClockInfo>()) {
            return Err(Error::Abi {
                verb: Verb::MapQueue,
                what: "clock page".into(),
                need: format!("{} bytes, aligned", size_of::<ClockInfo>()).into(),
                got: format!("{} bytes at {:p}", mapping.len_bytes(), mapping.as_ptr()).into(),
            });
        }
        Ok(Self(mapping))
    }

    /// A copy that was not written meanwhile. `None` if the kernel does not come to an end of writing.
    pub fn read(&self) -> Option<ClockInfo> {
        for _ in 0..TRIES {
            let before = self.sign();
            barrier::from_device_barrier();
            let mut info = ClockInfo::default();
            for (i, word) in info.as_mut_bytes().chunks_exact_mut(8).enumerate() {
                // SAFETY: inside the page, which holds a whole structure, and aligned as it is.
                let value = unsafe { self.0.as_ptr().cast::<u64>().add(i).read_volatile() };
                word.copy_from_slice(&value.to_ne_bytes());
            }
            barrier::from_device_barrier();
            std::sync::atomic::fence(Ordering::Acquire);
            if before & 1 == 0 && self.sign() == before {
                return Some(info);
            }
            std::hint::spin_loop();
        }
        None
    }

    fn sign(&self) -> u32 {
        // SAFETY: as in `read`.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(offset_of!(ClockInfo, sign)).cast()) }.load(Ordering::Acquire)
    }
}

impl ClockInfo {
    /// The host's time (`CLOCK_REALTIME`, nanoseconds) when the device's clock stood at `ticks`, not long before or after the
    /// copy was written.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let forth = ticks.wrapping_sub(self.cycles) & self.mask;
        // Of the two ways around, the shorter is meant.
        if forth <= self.mask / 2 {
            let scaled = u128::from(forth) * u128::from(self.mult) + u128::from(self.frac);
            self.nsec.wrapping_add((scaled >> (self.shift & 127)) as u64)
        } else {
            let back = self.cycles.wrapping_sub(ticks) & self.mask;
            let scaled = (u128::from(back) * u128::from(self.mult)).saturating_sub(self.frac.into());
            self.nsec.wrapping_sub((scaled >> (self.shift & 127)) as u64)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
