//! Shows what passes between the rings of a program and the device, while it passes.

use crate::qp::QpKind;
use std::time::Duration;

/// An entry of a ring that the device has just read or written; see [`Control::tap`](crate::Control::tap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tapped<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// When, on the clock of the fabric.
    pub at: Duration,
    /// The entry.
    pub entry: Entry<'a>,
}

/// An entry of a ring, with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry<'a> {
    /// A send WQE, as the device begins with it or flushes it.
    Send {
        /// The queue pair.
        qpn: u32,
        /// Its kind, which decides what segments there are.
        kind: QpKind,
        /// The counter of the WQE's first block.
        index: u16,
        /// Blocks of the ring.
        blocks: u32,
        /// The bytes came with the doorbell (BlueFlame), and not from the ring.
        copied: bool,
        /// As many units as it says to have.
        bytes: &'a [u8],
    },
    /// A receive WQE of a queue pair or, with `linked`, of a shared receive queue, as the device fetches it.
    Receive {
        /// Number of the queue.
        number: u32,
        /// Whether it is shared: then its first unit is the link to the next.
        linked: bool,
        /// The place that its completion names.
        index: u16,
        /// The whole stride.
        bytes: &'a [u8],
    },
    /// A CQE, as it is written: one that stands for itself, the one that stands for a packed block, which comes behind what it stands
    /// for, or the one that says that the ring is left for another.
    Completion {
        /// The completion queue.
        cqn: u32,
        /// Its place in the ring.
        index: u32,
        /// Its 64 bytes, with the owner bit.
        bytes: &'a [u8],
        /// What the 64 bytes in front of it hold, in a ring of 128-byte entries.
        before: Option<&'a [u8]>,
    },
    /// Completions that are packed into the place of one, as they are written.
    Packed {
        /// The completion queue.
        cqn: u32,
        /// The place in the ring.
        index: u32,
        /// They are of sends, not of receives.
        is_send: bool,
        /// 8 bytes for each. What of the 64 bytes of the place is behind them is zero.
        bytes: &'a [u8],
    },
}

/// Who is shown the entries.
pub(crate) type Tap = Box<dyn FnMut(&Tapped<'_>) + Send>;

/// Who is shown what, as long as the device does one thing.
pub(crate) struct Watch<'a> {
    pub tap: &'a mut Option<Tap>,
    pub device: &'a str,
    pub at: Duration,
}

impl Watch<'_> {
    /// Shows an entry to whoever wants to see it.
    pub fn show(&mut self, entry: Entry<'_>) {
        if let Some(tap) = self.tap {
            tap(&Tapped { device: self.device, at: self.at, entry });
        }
    }
}
