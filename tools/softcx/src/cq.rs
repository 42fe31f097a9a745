//! Completion queues: a ring of CQEs, its owner bits, arming, overrun, and moving to another ring.

use crate::bits::cqe::{self, Cqe};
use crate::bits::doorbell::{Arm, RECORD_ARM, RECORD_CI};
use crate::memory::{Buffer, BusError, Memory};
use crate::report::Misuse;

/// What a completion queue is made of.
#[derive(Clone, Debug)]
pub struct CqSpec {
    /// The ring: `entry_bytes << log2_size` bytes.
    pub ring: Buffer,
    /// Entries, as a power of two.
    pub log2_size: u32,
    /// 64 or 128.
    pub entry_bytes: u64,
    /// Address of the doorbell record.
    pub record: u64,
    /// The UAR page that arms it.
    pub uar_page: u32,
    /// Write on although software has not consumed.
    pub ignore_overrun: bool,
}

/// A completion queue (CQ).
#[derive(Debug)]
pub struct Cq {
    pub(crate) spec: CqSpec,
    /// Entries ever written, modulo 2^32; the ring index and the owner bit come from it.
    produced: u32,
    /// One past the last solicited entry.
    solicited: u32,
    armed: Option<Arm>,
    /// Sequence number of the arm that fired last. An arm with it is stale.
    fired: Option<u8>,
    /// The arm word that was acted on last.
    taken: Option<u32>,
    /// The arm word of the record when it was looked at last.
    record_seen: u32,
    /// Overrun: nothing is written any more.
    broken: bool,
}

/// What became of a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// It is in the ring.
    Quiet,
    /// It is in the ring, and software wanted to be told.
    Wakes,
    /// The ring was full: the queue is broken, and this is the first entry lost.
    Overrun,
    /// The queue is broken already.
    Lost,
}

impl Cq {
    pub(crate) fn new(spec: CqSpec, memory: &dyn Memory) -> Result<Self, BusError> {
        let record_seen = memory.load_be32(spec.record + RECORD_ARM)?;
        Ok(Self { spec, produced: 0, solicited: 0, armed: None, fired: None, taken: None, record_seen, broken: false })
    }

    /// Entries ever written.
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Whether the queue was overrun.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn outstanding(&self, memory: &dyn Memory) -> Result<u32, BusError> {
        let ci = memory.load_be32(self.spec.record + RECORD_CI)? & 0xff_ffff;
        Ok(self.produced.wrapping_sub(ci) & 0xff_ffff)
    }

    /// Writes an entry: its body, then the byte that gives it to software.
    pub(crate) fn post(&mut self, memory: &dyn Memory, entry: &Cqe) -> Result<Posted, BusError> {
        if self.broken {
            return Ok(Posted::Lost);
        }
        if !self.spec.ignore_overrun && self.outstanding(memory)? >= 1 << self.spec.log2_size {
            self.broken = true;
            return Ok(Posted::Overrun);
        }
        self.write(memory, entry)?;
        if entry.is_solicited() {
            self.solicited = self.produced;
        }
        let wakes = self.armed.is_some_and(|arm| !arm.solicited_only || entry.is_solicited());
        if wakes {
            self.fired = self.armed.take().map(|arm| arm.sn);
        }
        Ok(if wakes { Posted::Wakes } else { Posted::Quiet })
    }

    fn write(&mut self, memory: &dyn Memory, entry: &Cqe) -> Result<(), BusError> {
        let slot = u64::from(self.produced & ((1 << self.spec.log2_size) - 1)) * self.spec.entry_bytes;
        let body = slot + self.spec.entry_bytes - cqe::BYTES as u64;
        if let (Some(before), 128) = (&entry.before, self.spec.entry_bytes) {
            self.spec.ring.write(memory, slot, before)?;
        }
        self.spec.ring.write(memory, body, &entry.body[..cqe::OP_OWN])?;
        let owner = (self.produced >> self.spec.log2_size & 1) as u8;
        let (address, _) = self.spec.ring.locate(body + cqe::OP_OWN as u64)?;
        memory.publish(address, entry.body[cqe::OP_OWN] | owner)?;
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }

    /// An arm doorbell with `word` in its upper half, or, where `word` is `None`, a look at the record: another doorbell
    /// of the page may have hidden this queue's. `Ok(true)`: tell software at once.
    pub(crate) fn arm(&mut self, memory: &dyn Memory, word: Option<u32>) -> Result<(bool, Option<Misuse>), BusError> {
        let record = memory.load_be32(self.spec.record + RECORD_ARM)?;
        let changed = std::mem::replace(&mut self.record_seen, record) != record;
        if word.is_none() && !changed {
            return Ok((false, None));
        }
        let word = word.unwrap_or(record);
        let mismatch = (word != record).then_some(Misuse::ArmRecord { record, doorbell: word });
        if self.taken == Some(word) {
            return Ok((false, mismatch));
        }
        self.taken = Some(word);
        let arm = Arm::decode(word);
        if self.fired == Some(arm.sn) {
            return Ok((false, Some(Misuse::StaleArm { sn: arm.sn })));
        }
        let behind = |index: u32| index.wrapping_sub(arm.ci) & 0xff_ffff;
        let newest = if arm.solicited_only { self.solicited } else { self.produced };
        // Half of the 24-bit circle: an index behind `ci` is none.
        let wakes = (1..1 << 23).contains(&behind(newest));
        if wakes {
            self.fired = Some(arm.sn);
            self.armed = None;
        } else {
            self.armed = Some(arm);
        }
        Ok((wakes, mismatch))
    }

    /// Breaks the queue as an overrun does. True if it was whole.
    pub(crate) fn break_down(&mut self) -> bool {
        !std::mem::replace(&mut self.broken, true)
    }

    /// Leaves the ring for another: the last entry of the old one says so, and the next goes behind the place that it
    /// would have had in the new one. `None` if either ring is too small for what software has not consumed.
    pub(crate) fn resize(&mut self, memory: &dyn Memory, ring: Buffer, log2_size: u32) -> Result<Option<()>, BusError> {
        let outstanding = self.outstanding(memory)?;
        if outstanding >= 1 << self.spec.log2_size || outstanding + 1 > 1 << log2_size {
            return Ok(None);
        }
        self.write(memory, &Cqe::new(cqe::opcode::RESIZE, 0, 0, 0))?;
        self.spec.ring = ring;
        self.spec.log2_size = log2_size;
        Ok(Some(()))
    }
}
