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
    /// A CQE, before it is written: its owner bit is clear.
    Completion {
        /// The completion queue.
        cqn: u32,
        /// Its 64 bytes.
        bytes: &'a [u8],
        /// What the 64 bytes in front of it are to hold, in a ring of 128-byte entries.
        before: Option<&'a [u8]>,
    },
}

/// Who is shown the entries.
pub(crate) type Tap = Box<dyn FnMut(&Tapped<'_>) + Send>;
