//! Stores into the device's registers: who rang, and whether it was right to.

use crate::bits::doorbell;
use crate::bits::wqe::DS_BYTES;
use crate::device::Device;
use crate::event::Event;
use crate::memory::BusError;
use crate::qp::SendRing;
use crate::report::Misuse;

/// The registers of a UAR page, where they are memory that has to be looked at.
pub trait UarPage: Send {
    /// Takes what was written into the 8-byte register at `offset` since the last call, most significant byte first.
    fn take(&mut self, offset: usize) -> Option<u64>;

    /// The rest of a BlueFlame copy behind the register at `offset`: bytes from `offset + 8` to `offset + 256`, if
    /// anything was written there since the last call.
    fn take_image(&mut self, offset: usize) -> Option<Vec<u8>>;
}

impl Device {
    /// A store of 8 bytes into a UAR page, `value` as the bytes are in memory, first byte most significant.
    pub fn doorbell(&mut self, page: u32, offset: usize, value: u64) {
        if self.dead {
            return;
        }
        self.shared.progress = true;
        let is_cq = offset == doorbell::CQ;
        let number = if is_cq { value as u32 & 0xff_ffff } else { SendRing::names(value) };
        let known = if is_cq {
            self.shared.cqs.get(&number).is_some_and(|c| c.spec.uar_page == page)
        } else {
            self.qps.get(&number).is_some_and(|q| q.spec.uar_page == page)
        };
        if !known && !self.has_ended(number, page) {
            self.shared.report(number, None, Misuse::UnknownDoorbell { value });
        }
        if is_cq {
            let of_page: Vec<u32> =
                self.shared.cqs.iter().filter(|(_, c)| c.spec.uar_page == page).map(|(n, _)| *n).collect();
            for cqn in of_page {
                self.arm_cq(cqn, (cqn == number).then_some((value >> 32) as u32));
            }
        } else {
            // A register holds the last doorbell only: the others of the page may have rung before it.
            for qp in self.qps.values_mut().filter(|q| q.spec.uar_page == page) {
                qp.ring(&mut self.shared, (qp.qpn == number).then_some(value));
            }
        }
    }

    /// A BlueFlame store: a whole WQE goes into a send register, its first 8 bytes in place of the doorbell. The device takes
    /// that WQE from the copy, and reports a copy that is not what the ring holds. Less than a WQE's first 16 bytes is a doorbell.
    pub fn blue_flame(&mut self, page: u32, offset: usize, copy: &[u8]) {
        let value = crate::bits::be64(copy, 0);
        self.doorbell(page, offset, value);
        if self.dead || copy.len() < DS_BYTES {
            return;
        }
        if let Some(qp) = self.qps.get_mut(&SendRing::names(value)) {
            qp.take_copy(&mut self.shared, copy);
        }
    }

    pub(crate) fn arm_cq(&mut self, cqn: u32, word: Option<u32>) {
        let Some(cq) = self.shared.cqs.get_mut(&cqn) else { return };
        let misuse = match cq.arm(&*self.shared.memory, word) {
            Ok((wakes, misuse)) => {
                if wakes {
                    self.shared.events.push_back(Event::Completion { cqn });
                }
                misuse
            }
            Err(BusError { address }) => Some(Misuse::RingMemory { address, event: false }),
        };
        if let Some(misuse) = misuse {
            self.shared.report(cqn, None, misuse);
        }
    }

    pub(crate) fn poll_uars(&mut self) {
        let mut rung = vec![];
        for (page, registers) in &mut self.uars {
            let sends = (0..doorbell::SEND_COUNT).map(|i| doorbell::SEND + i * doorbell::SEND_STRIDE);
            for offset in sends.chain([doorbell::CQ]) {
                let Some(value) = registers.take(offset) else { continue };
                let image = if offset == doorbell::CQ { None } else { registers.take_image(offset) };
                rung.push((*page, offset, value, image));
            }
        }
        for (page, offset, value, image) in rung {
            self.doorbell(page, offset, value);
            if self.looks_beside {
                // What is there may be the half of a copy that is being made, or of one before, or of both: it proves nothing.
                self.torn.insert((page, offset));
                continue;
            }
            let Some(image) = image else { continue };
            // The copy may still be being made. What comes of it later, perhaps with the next doorbell, is of no WQE then.
            let whole = !is_torn(value, &image);
            let was_whole = if whole { !self.torn.remove(&(page, offset)) } else { self.torn.insert((page, offset)) };
            if whole && was_whole {
                self.check_image(value, &image);
            }
        }
    }

    /// A whole WQE came with a doorbell: it must be the one in the ring. The WQE is fetched from the ring all the same.
    pub(crate) fn check_image(&mut self, value: u64, image: &[u8]) {
        let copy = [value.to_be_bytes().as_slice(), image].concat();
        if let Some(qp) = self.qps.get(&SendRing::names(value)) {
            qp.check_image(&mut self.shared, &copy);
        }
    }
}

/// Whether a part of the WQE's copy is not there yet: all ones is what a register holds before the store.
fn is_torn(value: u64, image: &[u8]) -> bool {
    let len = ((value & 0x3f) as usize * DS_BYTES).saturating_sub(8).min(image.len());
    image[..len].chunks(8).any(|word| word.iter().all(|b| *b == 0xff))
}
