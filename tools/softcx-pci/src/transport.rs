//! What a guest asks of its adapter, whoever carries it.

use softcx::pci::{Interrupt, Region};
use std::io;
use std::os::fd::BorrowedFd;

/// What a guest asks.
#[derive(Debug)]
pub enum Request {
    /// Read the configuration space; the answer is the value.
    ConfigRead {
        /// First byte.
        offset: usize,
        /// 1, 2 or 4 bytes.
        len: usize,
    },
    /// Write it.
    ConfigWrite {
        /// First byte.
        offset: usize,
        /// Least significant byte first.
        value: u32,
        /// 1, 2 or 4 bytes.
        len: usize,
    },
    /// Read the BAR; the answer is the value.
    BarRead {
        /// Guest-physical address.
        address: u64,
        /// 1, 2, 4 or 8 bytes.
        len: usize,
    },
    /// Write it.
    BarWrite {
        /// Guest-physical address.
        address: u64,
        /// Least significant byte first.
        value: u64,
        /// 1, 2, 4 or 8 bytes.
        len: usize,
    },
    /// The guest's memory is this from now on. Not answered.
    Memory(Vec<Region>),
    /// The function is reset.
    Reset,
    /// Something that the adapter does not need to know. Not answered.
    Other,
}

/// How a guest reaches its adapter, and the adapter its guest.
pub trait Transport {
    /// What becomes readable when the guest asks for something.
    fn waits_on(&self) -> BorrowedFd<'_>;

    /// Takes what the guest asks for next, waiting for it. `None`: the guest is gone.
    fn request(&mut self) -> io::Result<Option<Request>>;

    /// Answers the last request. The guest's processor waits for it.
    fn answer(&mut self, value: u64) -> io::Result<()>;

    /// Raises an interrupt.
    fn interrupt(&mut self, interrupt: Interrupt) -> io::Result<()>;
}
