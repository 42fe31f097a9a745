//! Receive queues: the ring of a queue pair, and the linked list of a shared receive queue (SRQ).
//!
//! WQEs are fetched as soon as the doorbell record shows them, as hardware does. From then on a buffer is the device's, and
//! reads as [`POISON`] until its completion is written, so that a program that looks too early finds out.

use crate::bits::{be16, wqe};
use crate::memory::{Buffer, BusError};
use crate::mkey::{Access, Asker, KeyRange};
use crate::report::{Misuse, WqeImage};
use crate::shared::Shared;
use crate::tap::Entry;
use std::collections::VecDeque;

/// What a posted receive buffer holds until its completion.
pub const POISON: u8 = 0xb5;
/// What a consumed WQE holds.
pub const SCRIBBLE: u8 = 0xa7;
/// Bytes of a data segment that are poisoned at most.
const MAX_POISON: u64 = 1 << 16;

/// What a receive queue is made of.
#[derive(Clone, Debug)]
pub struct RecvSpec {
    /// The ring.
    pub ring: Buffer,
    /// WQEs, as a power of two.
    pub log2_count: u32,
    /// Bytes of a WQE, as a power of two.
    pub log2_stride: u32,
    /// Address of the counter in the doorbell record.
    pub record: u64,
    /// The WQEs are a linked list: a shared receive queue.
    pub linked: bool,
}

/// A piece of memory named by a data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Local key.
    pub lkey: u32,
    /// Address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

impl RecvSpec {
    /// Whether a ring can be like that, and what it is made of is long enough.
    pub(crate) fn is_sound(&self) -> bool {
        let smallest = if self.linked { wqe::srq_next::BYTES + wqe::DS_BYTES } else { wqe::DS_BYTES };
        self.log2_count <= 16
            && (smallest.ilog2()..=16).contains(&self.log2_stride)
            && self.ring.len() >= 1 << (self.log2_count + self.log2_stride)
    }
}

impl Sge {
    pub(crate) fn range(self) -> KeyRange {
        KeyRange { key: self.lkey, address: self.address, len: self.len.into() }
    }
}

/// A WQE that the device has fetched.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    /// Index for its completion: a count for a ring, a place for a list.
    pub index: u16,
    pub sges: Vec<Sge>,
    pub image: WqeImage,
    /// Where the scribbling goes.
    segments_at: u64,
    /// What the poisoned buffers held.
    saved: Vec<(Sge, Vec<u8>)>,
}

impl RecvWqe {
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.len)).sum()
    }

    /// Ends the poisoning: what is still poison behind the first `used` bytes is as it was before.
    pub fn release(&mut self, shared: &mut Shared, asker: Asker, mut used: u64) {
        for (sge, old) in std::mem::take(&mut self.saved) {
            let skip = used.min(u64::from(sge.len)).min(old.len() as u64) as usize;
            used -= used.min(sge.len.into());
            let tail = Sge { address: sge.address.wrapping_add(skip as u64), len: (old.len() - skip) as u32, ..sge };
            // Keys may be gone by now; then so is the memory.
            let Ok(now) = shared.mkeys.read(&*shared.memory, asker, tail.range(), Access::LOCAL_WRITE) else {
                continue;
            };
            if now.iter().all(|b| *b == POISON) {
                let to = (tail.lkey, tail.address);
                let _ = shared.mkeys.write(&*shared.memory, asker, to, Access::LOCAL_WRITE, &old[skip..]);
            }
        }
    }
}

/// A receive queue, shared or not.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub spec: RecvSpec,
    /// WQEs fetched so far.
    fetched: u16,
    /// Linked list: where the next WQE is.
    next: u16,
    ready: VecDeque<RecvWqe>,
}

impl RecvQueue {
    pub fn new(spec: RecvSpec) -> Self {
        Self { spec, fetched: 0, next: 0, ready: VecDeque::new() }
    }

    /// As if so many WQEs of a ring had been fetched.
    pub fn age(&mut self, fetched: u16) {
        self.fetched = fetched;
    }

    /// WQEs that are ready.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Fetches what the doorbell record shows.
    pub fn refresh(&mut self, shared: &mut Shared, number: u32, asker: Asker) {
        let fetched = shared.memory.load_be32(self.spec.record).and_then(|counter| {
            let ahead = (counter as u16).wrapping_sub(self.fetched);
            let size = 1_u32 << self.spec.log2_count;
            if usize::from(ahead) + self.ready.len() > size as usize {
                shared.report(number, None, Misuse::RingOverflow { ahead, size });
                return Ok(());
            }
            (0..ahead).try_for_each(|_| self.fetch(shared, number, asker))
        });
        if let Err(BusError { address }) = fetched {
            shared.report(number, None, Misuse::RingMemory { address, event: false });
        }
    }

    fn fetch(&mut self, shared: &mut Shared, number: u32, asker: Asker) -> Result<(), BusError> {
        let mask = (1_u32 << self.spec.log2_count) - 1;
        let place = if self.spec.linked { self.next } else { (u32::from(self.fetched) & mask) as u16 };
        let at = u64::from(place) << self.spec.log2_stride;
        let mut bytes = vec![0; 1 << self.spec.log2_stride];
        self.spec.ring.read(&*shared.memory, at, &mut bytes)?;
        let head = if self.spec.linked { wqe::srq_next::BYTES } else { 0 };
        if self.spec.linked {
            self.next = (u32::from(be16(&bytes, wqe::srq_next::NEXT_INDEX)) & mask) as u16;
        }
        let sges = crate::wqe::scatter_list(&bytes[head..]);
        let saved = if shared.punish.poison { poison(shared, asker, &sges) } else { vec![] };
        let index = if self.spec.linked { place } else { self.fetched };
        shared.show(Entry::Receive { number, linked: self.spec.linked, index, bytes: &bytes });
        let image = WqeImage { index, bytes, copied: false };
        self.ready.push_back(RecvWqe { index, sges, image, segments_at: at + head as u64, saved });
        self.fetched = self.fetched.wrapping_add(1);
        Ok(())
    }

    /// Ends the poisoning of everything that is ready: the queue goes.
    pub fn give_back(&mut self, shared: &mut Shared, asker: Asker) {
        for mut wqe in self.ready.drain(..) {
            wqe.release(shared, asker, 0);
        }
    }

    /// Takes the oldest WQE out, and scribbles over its segments: software may not count on them any more.
    pub fn take(&mut self, shared: &mut Shared) -> Option<RecvWqe> {
        let wqe = self.ready.pop_front()?;
        if shared.punish.scribble {
            let segments = (1 << self.spec.log2_stride) - if self.spec.linked { wqe::srq_next::BYTES } else { 0 };
            // It was read from there, so it can be written.
            let _ = self.spec.ring.write(&*shared.memory, wqe.segments_at, &vec![SCRIBBLE; segments]);
        }
        Some(wqe)
    }
}

/// Fills the buffers with [`POISON`] and returns what they held. Buffers that the keys do not cover are left alone.
fn poison(shared: &mut Shared, asker: Asker, sges: &[Sge]) -> Vec<(Sge, Vec<u8>)> {
    let mut saved = vec![];
    for sge in sges {
        let part = KeyRange { len: u64::from(sge.len).min(MAX_POISON), ..sge.range() };
        if shared.mkeys.check(asker, sge.range(), Access::LOCAL_WRITE).is_err() {
            continue;
        }
        let Ok(old) = shared.mkeys.read(&*shared.memory, asker, part, Access::LOCAL_WRITE) else { continue };
        let pattern = vec![POISON; old.len()];
        let to = (sge.lkey, sge.address);
        if shared.mkeys.write(&*shared.memory, asker, to, Access::LOCAL_WRITE, &pattern).is_ok() {
            saved.push((*sge, old));
        }
    }
    saved
}

/// A shared receive queue (SRQ).
#[derive(Debug)]
pub(crate) struct Srq {
    pub queue: RecvQueue,
    pub pd: u32,
    /// XRC: the domain, where completions go, and the user index in them.
    pub xrc: Option<XrcSrq>,
    /// Tell software when fewer WQEs than this are left; zero: do not.
    pub limit: u16,
}

/// What an SRQ for XRC has besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrq {
    /// XRC domain.
    pub xrcd: u32,
    /// Completion queue of what it receives.
    pub cqn: u32,
    /// User index in its completions. [`NO_USER_INDEX`](crate::NO_USER_INDEX): they carry the SRQ's number.
    pub user_index: u32,
}
