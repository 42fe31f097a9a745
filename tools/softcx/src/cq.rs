//! Completion queues: a ring of CQEs, its owner bits, arming, overrun, and moving to another ring.

use crate::bits::cqe::{self, Cqe};
use crate::bits::doorbell::{Arm, RECORD_ARM, RECORD_CI};
use crate::memory::{Buffer, BusError, Memory};
use crate::mini::{self, MiniFormat};
use crate::report::Misuse;
use crate::tap::{Entry, Watch};
use std::time::Duration;

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
    /// Compress runs of completions that are alike; rings of 64-byte entries only.
    pub compress: Option<MiniFormat>,
    /// Entries carry the time, seconds in the upper and nanoseconds in the lower half, and not the clock's ticks.
    pub real_time: bool,
}

/// When software is told of completions that it waits for: after so many, or after so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions. Zero: at once.
    pub count: u16,
    /// From the first of them on. Zero: at once.
    pub period: Duration,
}

/// A completion queue (CQ).
#[derive(Debug)]
pub struct Cq {
    number: u32,
    pub(crate) spec: CqSpec,
    /// Entries ever written, modulo 2^32; the ring index and the owner bit come from it.
    produced: u32,
    /// One past the last solicited entry.
    solicited: u32,
    armed: Option<Arm>,
    /// Sequence number of the arm that fired last. An arm with it asks for nothing that software was not told of.
    fired: Option<u8>,
    /// Entries written when software was told of them last: those it knows of.
    notified: u32,
    /// The arm word that was acted on last.
    taken: Option<u32>,
    /// The arm word of the record when it was looked at last.
    record_seen: u32,
    /// Overrun: nothing is written any more.
    broken: bool,
    /// Completions that are not in the ring yet, for they may become one.
    session: Vec<Cqe>,
    /// Completions that were written as part of a block.
    pub(crate) packed: u64,
    pub(crate) moderation: Moderation,
    /// Completions that software waits for and was not told of, and when it is to be.
    held: u16,
    due: Option<Duration>,
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
    pub(crate) fn new(number: u32, spec: CqSpec, memory: &dyn Memory) -> Result<Self, BusError> {
        let record_seen = memory.load_be32(spec.record.wrapping_add(RECORD_ARM))?;
        Ok(Self {
            number,
            spec,
            produced: 0,
            solicited: 0,
            armed: None,
            fired: None,
            notified: 0,
            taken: None,
            record_seen,
            broken: false,
            session: vec![],
            packed: 0,
            moderation: Moderation::default(),
            held: 0,
            due: None,
        })
    }

    /// As if so many entries had been written, and software told of them.
    pub(crate) fn age(&mut self, entries: u32) {
        (self.produced, self.solicited, self.notified) = (entries, entries, entries);
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
        let ci = memory.load_be32(self.spec.record.wrapping_add(RECORD_CI))? & 0xff_ffff;
        Ok(self.produced.wrapping_sub(ci) & 0xff_ffff)
    }

    /// Takes an entry, and writes it at once or with those that follow. What is written is shown.
    pub(crate) fn post(
        &mut self,
        memory: &dyn Memory,
        entry: &Cqe,
        now: Duration,
        watch: &mut Watch<'_>,
    ) -> Result<Posted, BusError> {
        if self.broken {
            return Ok(Posted::Lost);
        }
        let waiting = self.session.len() as u32;
        if !self.spec.ignore_overrun && self.outstanding(memory)? + waiting >= 1 << self.spec.log2_size {
            self.broken = true;
            return Ok(Posted::Overrun);
        }
        if self.spec.compress.is_none() {
            self.write(memory, entry, watch)?;
            return Ok(self.wake(entry.is_solicited(), 1, now));
        }
        let fits = self.session.len() < mini::MAX_SESSION.min(1 << self.spec.log2_size);
        let joins = self.session.last().is_some_and(|last| fits && mini::follows(last, entry));
        let posted = if joins { Posted::Quiet } else { self.flush(memory, now, watch)? };
        self.session.push(entry.clone());
        Ok(posted)
    }

    /// Writes what was held back to be compressed.
    pub(crate) fn flush(
        &mut self,
        memory: &dyn Memory,
        now: Duration,
        watch: &mut Watch<'_>,
    ) -> Result<Posted, BusError> {
        let session = std::mem::take(&mut self.session);
        let (n, format) = (session.len() as u32, self.spec.compress.unwrap_or(MiniFormat::Hash));
        match session.as_slice() {
            [] => return Ok(Posted::Quiet),
            [one] => self.write(memory, one, watch)?,
            several => {
                let (title, arrays) = mini::compress(several, format);
                let is_send = title.opcode() == cqe::opcode::REQ;
                for ((place, array), packed) in arrays.iter().zip(several.chunks(mini::PER_ARRAY)) {
                    let at = self.produced.wrapping_add(*place);
                    self.spec.ring.write(memory, self.slot(at), array)?;
                    let bytes = &array[..packed.len() * mini::MINI_BYTES];
                    watch.show(Entry::Packed { cqn: self.number, index: self.place(at), is_send, bytes });
                }
                self.write(memory, &title, watch)?;
                self.produced = self.produced.wrapping_add(n - 1);
                self.packed += u64::from(n);
            }
        }
        Ok(self.wake(session[0].is_solicited(), n as u16, now))
    }

    /// Whether software is to be told of the `n` entries written last.
    fn wake(&mut self, solicited: bool, n: u16, now: Duration) -> Posted {
        if solicited {
            self.solicited = self.produced;
        }
        if !self.armed.is_some_and(|arm| !arm.solicited_only || solicited) {
            return Posted::Quiet;
        }
        let Moderation { count, period } = self.moderation;
        self.held = self.held.saturating_add(n);
        if self.held < count && !period.is_zero() {
            self.due.get_or_insert(now.saturating_add(period));
            return Posted::Quiet;
        }
        self.fire();
        Posted::Wakes
    }

    fn fire(&mut self) {
        self.fired = self.armed.take().map(|arm| arm.sn);
        self.notified = self.produced;
        (self.held, self.due) = (0, None);
    }

    /// When software is to be told of completions that were held back.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// True if that is now.
    pub(crate) fn tick(&mut self, now: Duration) -> bool {
        let fires = self.due.is_some_and(|due| due <= now) && self.armed.is_some();
        if fires {
            self.fire();
        }
        fires
    }

    /// Place in the ring of the entry that so many were written before.
    fn place(&self, index: u32) -> u32 {
        index & ((1 << self.spec.log2_size) - 1)
    }

    /// Where in the ring its bytes begin.
    fn slot(&self, index: u32) -> u64 {
        u64::from(self.place(index)) * self.spec.entry_bytes
    }

    fn write(&mut self, memory: &dyn Memory, entry: &Cqe, watch: &mut Watch<'_>) -> Result<(), BusError> {
        let slot = self.slot(self.produced);
        let body = slot + self.spec.entry_bytes - cqe::BYTES as u64;
        if let (Some(before), 128) = (&entry.before, self.spec.entry_bytes) {
            self.spec.ring.write(memory, slot, before)?;
        }
        // Four bytes come last, together: drivers read the owner and the index before it at once.
        let last = cqe::OP_OWN - 3;
        self.spec.ring.write(memory, body, &entry.body[..last])?;
        let mut bytes = entry.body;
        bytes[cqe::OP_OWN] |= (self.produced >> self.spec.log2_size & 1) as u8;
        let (address, _) = self.spec.ring.locate(body + last as u64)?;
        memory.store_be32(address, u32::from_be_bytes(crate::bits::array(&bytes, last)))?;
        let before = entry.before.as_ref().filter(|_| self.spec.entry_bytes == 128).map(|before| &before[..]);
        let index = self.place(self.produced);
        watch.show(Entry::Completion { cqn: self.number, index, bytes: &bytes, before });
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }

    /// An arm doorbell with `word` in its upper half, or, where `word` is `None`, a look at the record: another doorbell
    /// of the page may have hidden this queue's. `Ok(true)`: tell software at once.
    pub(crate) fn arm(&mut self, memory: &dyn Memory, word: Option<u32>) -> Result<(bool, Option<Misuse>), BusError> {
        let record = memory.load_be32(self.spec.record.wrapping_add(RECORD_ARM))?;
        let changed = std::mem::replace(&mut self.record_seen, record) != record;
        if word.is_none() && !changed {
            return Ok((false, None));
        }
        let word = word.unwrap_or(record);
        let may_be = word == record || Arm::decode(word).may_come_before(Arm::decode(record));
        let mismatch = (!may_be).then_some(Misuse::ArmRecord { record, doorbell: word });
        if self.taken == Some(word) {
            return Ok((false, mismatch));
        }
        self.taken = Some(word);
        let mut arm = Arm::decode(word);
        // Drivers count an event when software takes it, so that who arms again before then uses its number once more. Its
        // event is still to be had: there is nothing to do, and nothing wrong.
        if self.fired == Some(arm.sn) {
            return Ok((false, mismatch));
        }
        // Who waits for any completion goes on to do so.
        arm.solicited_only &= self.armed.is_none_or(|before| before.solicited_only);
        let behind = |index: u32| index.wrapping_sub(arm.ci) & 0xff_ffff;
        let newest = if arm.solicited_only { self.solicited } else { self.produced };
        // Half of the 24-bit circle: an index behind `ci` is none. Nor is one that software was told of: who arms before it
        // polls is not to be told of the same entries twice.
        let news = newest.wrapping_sub(self.notified) & 0xff_ffff;
        let wakes = (1..1 << 23).contains(&behind(newest)) && (1..1 << 23).contains(&news);
        (self.held, self.due) = (0, None);
        if wakes {
            self.fired = Some(arm.sn);
            self.notified = self.produced;
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
    pub(crate) fn resize(
        &mut self,
        memory: &dyn Memory,
        ring: Buffer,
        log2_size: u32,
        watch: &mut Watch<'_>,
    ) -> Result<Option<()>, BusError> {
        self.flush(memory, Duration::ZERO, watch)?;
        let outstanding = self.outstanding(memory)?;
        if outstanding >= 1 << self.spec.log2_size || outstanding + 1 > 1 << log2_size {
            return Ok(None);
        }
        self.write(memory, &Cqe::new(cqe::opcode::RESIZE, 0, 0, 0), watch)?;
        self.spec.ring = ring;
        self.spec.log2_size = log2_size;
        Ok(Some(()))
    }
}
