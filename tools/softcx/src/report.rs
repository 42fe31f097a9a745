//! What the device saw a program do wrong. Hardware would do something about it, or nothing; it would never say so.

use crate::mkey::KeyError;
use crate::syndrome::Syndrome;
use std::fmt;

/// One misuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the device that saw it.
    pub device: String,
    /// The queue pair (or CQ, where the misuse is a CQ's) it was seen on.
    pub number: u32,
    /// The WQE at fault, where there is one.
    pub wqe: Option<WqeImage>,
    /// What is wrong.
    pub misuse: Misuse,
}

/// A WQE as it was in memory.
#[derive(Clone, PartialEq, Eq)]
pub struct WqeImage {
    /// Its index, in the unit that its ring counts in.
    pub index: u16,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// They came with the doorbell (BlueFlame), and not from the ring.
    pub copied: bool,
}

/// What a program did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// A local buffer is not what its key covers.
    LocalAccess(KeyError),
    /// A request from outside names memory that its key does not cover. The report is the responder's; the requester's,
    /// with the WQE, is [`Refused`](Self::Refused).
    RemoteAccess(KeyError),
    /// The other side refused what the WQE asks for.
    Refused(Syndrome),
    /// A WQE makes no sense.
    BadWqe(&'static str),
    /// The index in the control segment is not the WQE's place in the ring.
    WqeIndex {
        /// Index found.
        found: u16,
        /// Index of its place.
        expected: u16,
    },
    /// A send doorbell rang before the doorbell record said that its WQE is there.
    DoorbellBeforeRecord {
        /// Counter in the record.
        record: u16,
        /// Counter that the doorbell's WQE ends at.
        doorbell: u16,
    },
    /// A doorbell record is further ahead than its ring is long.
    RingOverflow {
        /// Entries that the record adds.
        ahead: u16,
        /// Entries of the ring.
        size: u32,
    },
    /// A CQ's doorbell and its record do not hold the same arm word.
    ArmRecord {
        /// Word in the record.
        record: u32,
        /// Word in the doorbell.
        doorbell: u32,
    },
    /// A consumer index went past what the device has written, or backwards.
    ConsumerIndex {
        /// Index in the record.
        found: u32,
        /// Producer index of the device.
        produced: u32,
    },
    /// A CQ was full when the device had an entry for it.
    CqOverrun,
    /// A doorbell names a QP or CQ that does not exist, or is not of that UAR page.
    UnknownDoorbell {
        /// The 8 bytes.
        value: u64,
    },
    /// The WQE after a UMR has no fence.
    UmrNotFenced,
    /// A BlueFlame copy differs from the WQE in the ring, or is of one that a doorbell was for already. In a process of its own
    /// memory this is told only where the program steps the fabric: a [thread](crate::Fabric::spawn) may see half a copy.
    BlueFlameImage,
    /// A ring or doorbell record cannot be reached.
    RingMemory {
        /// The address.
        address: u64,
        /// An event says that the queue pair or CQ is in error. Otherwise nothing but this tells.
        event: bool,
    },
}

impl Misuse {
    /// Whether the program hears of it by itself, by a completion in error or an event. Of anything else nobody but a report tells.
    ///
    /// ```
    /// use softcx::{Misuse, Syndrome};
    /// assert!(Misuse::Refused(Syndrome::REMOTE_ACCESS).is_told());
    /// assert!(!Misuse::UmrNotFenced.is_told());
    /// ```
    pub fn is_told(&self) -> bool {
        match self {
            Self::LocalAccess(_) | Self::RemoteAccess(_) | Self::Refused(_) | Self::BadWqe(_) | Self::CqOverrun => true,
            Self::RingMemory { event, .. } => *event,
            _ => false,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:#x}: {}", self.device, self.number, self.misuse)?;
        match &self.wqe {
            Some(wqe) => write!(f, "; {wqe}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalAccess(e) => write!(f, "local access: {e}"),
            Self::RemoteAccess(e) => write!(f, "remote access: {e}"),
            Self::Refused(syndrome) => write!(f, "refused by the other side: {syndrome}"),
            Self::BadWqe(what) => write!(f, "bad WQE: {what}"),
            Self::WqeIndex { found, expected } => write!(f, "WQE index {found} where {expected} should be"),
            Self::DoorbellBeforeRecord { record, doorbell } => {
                write!(f, "doorbell for counter {doorbell} rang while the doorbell record was at {record}")
            }
            Self::RingOverflow { ahead, size } => {
                write!(f, "the doorbell record adds {ahead} entries to a ring of {size}")
            }
            Self::ArmRecord { record, doorbell } => {
                write!(f, "arm doorbell {doorbell:#010x}, but the record holds {record:#010x}")
            }
            Self::ConsumerIndex { found, produced } => {
                write!(f, "consumer index {found:#x} while {produced:#x} entries were produced")
            }
            Self::CqOverrun => f.write_str("completion queue overrun"),
            Self::UnknownDoorbell { value } => write!(f, "doorbell {value:#018x} names nothing of its page"),
            Self::UmrNotFenced => f.write_str("the WQE after a UMR carries no small fence"),
            Self::BlueFlameImage => {
                f.write_str("the BlueFlame copy differs from the WQE in the ring, or is of an earlier one")
            }
            Self::RingMemory { address, .. } => write!(f, "ring or doorbell record at {address:#x} cannot be reached"),
        }
    }
}

impl fmt::Display for WqeImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WQE {}{}:", self.index, if self.copied { " from a copy" } else { "" })?;
        for (i, byte) in self.bytes.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i % 16 == 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for WqeImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
