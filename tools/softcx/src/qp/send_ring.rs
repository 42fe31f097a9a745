//! The send ring: basic blocks in memory, and how far doorbells have said that they hold WQEs.

use crate::bits::doorbell::RECORD_SEND;
use crate::bits::wqe::{BB_BYTES, DS_BYTES, ctrl, opcode};
use crate::bits::{array, be32};
use crate::memory::{Buffer, BusError};
use crate::recv::SCRIBBLE;
use crate::report::{Misuse, WqeImage};
use crate::shared::Shared;

/// What a send ring is made of.
#[derive(Clone, Debug)]
pub struct SendSpec {
    /// The ring.
    pub ring: Buffer,
    /// Basic blocks of 64 bytes, as a power of two.
    pub log2_bbs: u32,
    /// Address of the doorbell record.
    pub record: u64,
}

impl SendSpec {
    /// Whether a ring can be like that, and what it is made of is long enough.
    pub(crate) fn is_sound(&self) -> bool {
        self.log2_bbs <= 16 && self.ring.len() >= (BB_BYTES as u64) << self.log2_bbs
    }
}

/// Whether a copy is that of a NOP that asks for a completion where the one in the ring does not: so Linux finds out whether
/// stores are combined.
fn probes(wqe: &[u8], copy: &[u8]) -> bool {
    let is_nop = be32(wqe, ctrl::OPMOD_INDEX_OPCODE) as u8 == opcode::NOP;
    let but_completion = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[ctrl::FM_CE_SE] &= !ctrl::COMPLETE_MASK;
        bytes
    };
    is_nop && wqe.len() > ctrl::FM_CE_SE && but_completion(wqe)[8..] == but_completion(copy)[8..]
}

#[derive(Debug)]
pub(crate) struct SendRing {
    spec: SendSpec,
    /// Counter of the next BB to fetch.
    pub next: u16,
    /// Counter that a doorbell vouched for.
    pub rung: u16,
    /// Counter of the first BB whose WQE is not done.
    done: u16,
    /// Counters at which the WQEs of the last two doorbells end, the last one's second.
    named: [u16; 2],
    /// What came with the last doorbell: a WQE's counter, and its bytes.
    copy: Option<(u16, Vec<u8>)>,
}

impl SendRing {
    pub fn new(spec: SendSpec) -> Self {
        Self { spec, next: 0, rung: 0, done: 0, named: [0; 2], copy: None }
    }

    /// As if so many blocks had been done.
    pub fn age(&mut self, blocks: u16) {
        (self.next, self.rung, self.done, self.named) = (blocks, blocks, blocks, [blocks; 2]);
    }

    /// Blocks that it has.
    pub fn blocks(&self) -> u32 {
        1 << self.spec.log2_bbs
    }

    /// A doorbell, with its 8 bytes, or a look because another doorbell of the page may have hidden this ring's.
    pub fn ring(&mut self, shared: &mut Shared, qpn: u32, doorbell: Option<u64>) {
        let record = match shared.memory.load_be32(self.spec.record.wrapping_add(RECORD_SEND)) {
            Ok(record) => record as u16,
            Err(BusError { address }) => {
                return shared.report(qpn, None, Misuse::RingMemory { address, event: false });
            }
        };
        let ahead = record.wrapping_sub(self.done);
        if u32::from(ahead) > 1 << self.spec.log2_bbs {
            // A record that went back is nothing to say if the doorbell is only a second look.
            if doorbell.is_some() {
                shared.report(qpn, None, Misuse::RingOverflow { ahead, size: 1 << self.spec.log2_bbs });
            }
            return;
        }
        if let Some(value) = doorbell {
            self.copy = None;
            let bytes = value.to_be_bytes();
            let index = (be32(&bytes, ctrl::OPMOD_INDEX_OPCODE) >> 8) as u16;
            let bbs = ((be32(&bytes, ctrl::QPN_DS) & 0x3f) as u16).div_ceil(4);
            let end = index.wrapping_add(bbs);
            self.named = [self.named[1], end];
            if (record.wrapping_sub(end) as i16) < 0 {
                shared.report(qpn, None, Misuse::DoorbellBeforeRecord { record, doorbell: end });
            }
        }
        shared.progress |= self.rung != record;
        self.rung = record;
    }

    /// Bytes of the WQE at `next`, if a doorbell vouched for it: as many as its control segment says.
    pub fn fetch(&self, shared: &Shared) -> Result<Option<WqeImage>, BusError> {
        if self.next == self.rung {
            return Ok(None);
        }
        let units = |head: &[u8]| (be32(head, ctrl::QPN_DS) & 0x3f) as usize;
        if let Some((at, copy)) = &self.copy
            && *at == self.next
            && let Some(bytes) = copy.get(..(units(copy) * DS_BYTES).max(DS_BYTES))
        {
            return Ok(Some(WqeImage { index: self.next, bytes: bytes.to_vec(), copied: true }));
        }
        let head = self.read(shared, self.next, DS_BYTES)?;
        let ds = units(&head);
        let bytes = self.read(shared, self.next, (ds * DS_BYTES).max(DS_BYTES))?;
        Ok(Some(WqeImage { index: self.next, bytes, copied: false }))
    }

    /// A BlueFlame copy takes the place of its WQE in the ring, until the next doorbell. The last doorbell was its first 8 bytes.
    /// Returns it if the two differ, or if a doorbell before was for that WQE or a later one.
    pub fn take_copy(&mut self, shared: &Shared, copy: &[u8]) -> Option<WqeImage> {
        let index = (be32(copy, ctrl::OPMOD_INDEX_OPCODE) >> 8) as u16;
        self.copy = Some((index, copy.to_vec()));
        let [before, end] = self.named;
        // Where the record does not have it, the doorbell was reported.
        let is_there = (self.rung.wrapping_sub(end) as i16) >= 0;
        let is_stale = is_there && !(1..=self.rung.wrapping_sub(before)).contains(&end.wrapping_sub(before));
        // One that was taken from the ring before its copy came is past comparing.
        let waits = index.wrapping_sub(self.next) < self.rung.wrapping_sub(self.next);
        let units = (be32(copy, ctrl::QPN_DS) & 0x3f) as usize;
        let copy = &copy[..(units * DS_BYTES).clamp(DS_BYTES, copy.len())];
        let is_like = |wqe: Vec<u8>| wqe == copy || probes(&wqe, copy);
        let differs = waits && !self.read(shared, index, copy.len()).is_ok_and(is_like);
        (differs || is_stale).then(|| WqeImage { index, bytes: copy.to_vec(), copied: true })
    }

    fn read(&self, shared: &Shared, from: u16, len: usize) -> Result<Vec<u8>, BusError> {
        let mut bytes = vec![0; len];
        for (i, unit) in bytes.chunks_mut(BB_BYTES).enumerate() {
            self.spec.ring.read(&*shared.memory, self.offset(from.wrapping_add(i as u16)), unit)?;
        }
        Ok(bytes)
    }

    /// Whether a BlueFlame copy, its control segment first, differs from the WQE in the ring that it says it is; false if
    /// that WQE is not there any more.
    ///
    /// A later doorbell may have replaced the first 8 bytes: then the rest is of a WQE before it.
    pub fn differs(&self, shared: &Shared, copy: &[u8]) -> bool {
        let index = (be32(copy, ctrl::OPMOD_INDEX_OPCODE) >> 8) as u16;
        let waiting = self.rung.wrapping_sub(self.next);
        if index.wrapping_sub(self.next) >= waiting {
            return false;
        }
        let mut ahead = 0;
        while ahead < waiting {
            let at = self.next.wrapping_add(ahead);
            let Ok(head) = self.read(shared, at, DS_BYTES) else { return false };
            let ds = (be32(&head, ctrl::QPN_DS) & 0x3f).max(1);
            let len = (ds as usize * DS_BYTES).min(copy.len());
            match self.read(shared, at, len) {
                Ok(wqe) if wqe[8..] != copy[8..len] && !probes(&wqe, &copy[..len]) => {}
                _ => return false,
            }
            ahead = ahead.saturating_add((ds as u16).div_ceil(4));
        }
        true
    }

    fn offset(&self, counter: u16) -> u64 {
        (u64::from(counter) & ((1 << self.spec.log2_bbs) - 1)) * BB_BYTES as u64
    }

    /// Software may use these BBs again as soon as it sees the completion. They are scribbled over before.
    pub fn release(&mut self, shared: &Shared, from: u16, bbs: u16) {
        self.done = from.wrapping_add(bbs);
        if shared.punish.scribble {
            for i in 0..bbs {
                // It was read from there, so it can be written.
                let _ = self.spec.ring.write(&*shared.memory, self.offset(from.wrapping_add(i)), &[SCRIBBLE; BB_BYTES]);
            }
        }
    }

    /// Whether the 8 bytes are those of a WQE's control segment that a doorbell may carry.
    pub fn names(value: u64) -> u32 {
        be32(&array::<8>(&value.to_be_bytes(), 0), ctrl::QPN_DS) >> 8
    }
}
