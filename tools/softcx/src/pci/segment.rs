//! The initialization segment: what the driver reads before there are commands, and whether the firmware is well.

use crate::bits::firmware::segment as at;
use crate::device::CLOCK_KHZ;
use std::time::Duration;

/// Firmware revision 16.35.4030.
const MAJOR: u32 = 16;
const MINOR: u32 = 35;
const SUBMINOR: u32 = 4030;
/// Revision of the command interface.
const CMDIF_REV: u32 = 5;
/// 32 entries of the command queue, 64 bytes each.
const LOG_ENTRIES: u32 = 5;
const LOG_STRIDE: u32 = 6;

/// Why a firmware is not well.
#[derive(Clone, Copy, Debug)]
pub(super) enum Syndrome {
    Assertion = 0x01,
    EventQueue = 0x0d,
}

#[derive(Debug, Default)]
pub(super) struct Segment {
    queue_high: u32,
    /// As it was written: address and interface state.
    queue_low: u32,
    health_counter: u32,
    /// Why the firmware is not well; zero: it is.
    syndrome: u8,
    /// The firmware does nothing any more.
    pub stopped: bool,
    /// It has stopped, and waits for a driver to begin anew.
    restarted: bool,
}

impl Segment {
    /// Bus address of an entry of the command queue.
    pub fn entry(&self, index: u32) -> u64 {
        let queue = u64::from(self.queue_high) << 32 | u64::from(self.queue_low & !0xfff);
        queue + (u64::from(index) << LOG_STRIDE)
    }

    /// The register of 32 bits at a multiple of 4.
    pub fn read(&mut self, offset: u64, now: Duration) -> u32 {
        let clock = (now.as_nanos() * u128::from(CLOCK_KHZ) / 1_000_000) as u64;
        match offset {
            at::FW_REV => MINOR << 16 | MAJOR,
            at::CMDIF_REV_FW_SUB => CMDIF_REV << 16 | SUBMINOR,
            at::CMDQ_ADDR_HIGH => self.queue_high,
            at::CMDQ_ADDR_LOW => self.queue_low & !0xff | LOG_ENTRIES << 4 | LOG_STRIDE,
            at::TIMER_HIGH => (clock >> 32) as u32,
            at::TIMER_LOW => clock as u32,
            at::HEALTH_COUNTER => {
                if !self.stopped || self.restarted {
                    self.health_counter = self.health_counter.wrapping_add(1);
                }
                self.health_counter
            }
            _ if (at::HEALTH..at::HEALTH + 64).contains(&offset) => self.health(offset - at::HEALTH),
            _ => 0,
        }
    }

    fn health(&self, offset: u64) -> u32 {
        /// Where in its word a byte is, and the driver is to reset the function.
        const SYNDROME_SHIFT: u32 = 16;
        const RESET_WANTED: u32 = 1 << 31;
        match offset {
            at::health::FW_VERSION => MAJOR << 24 | MINOR << 16 | SUBMINOR,
            at::health::RFR_SEVERITY if self.syndrome != 0 => RESET_WANTED,
            0x3c => u32::from(self.syndrome) << SYNDROME_SHIFT,
            _ => 0,
        }
    }

    /// True if this gives a firmware that has failed a command queue: it is to begin anew.
    pub fn write(&mut self, offset: u64, value: u32) -> bool {
        match offset {
            at::CMDQ_ADDR_HIGH => self.queue_high = value,
            at::CMDQ_ADDR_LOW => {
                /// State of the driver's interface: whole.
                const FULL_DRIVER: u32 = 0;
                self.queue_low = value;
                let revives = self.stopped && value >> 8 & 7 == FULL_DRIVER;
                if revives {
                    (self.stopped, self.restarted, self.syndrome) = (false, false, 0);
                }
                return revives;
            }
            _ => {}
        }
        false
    }

    /// The firmware fails, for that reason.
    pub fn fail(&mut self, syndrome: Syndrome) {
        /// State of the driver's interface: disabled.
        const NO_DRIVER: u32 = 1;
        (self.stopped, self.restarted, self.syndrome) = (true, false, syndrome as u8);
        // It has no driver any more.
        self.queue_low = self.queue_low & !(7 << 8) | NO_DRIVER << 8;
    }

    /// The function is set up anew: a firmware that failed starts.
    pub fn restart(&mut self) {
        if self.stopped {
            (self.restarted, self.syndrome) = (true, 0);
        }
    }
}
