//! Everything of a device that its queue pairs use in common.

use crate::bits::cqe::{self, Cqe};
use crate::cq::{Cq, Posted};
use crate::event::Event;
use crate::memory::{BusError, Memory};
use crate::mkey::Mkeys;
use crate::packet::Packet;
use crate::port::Port;
use crate::recv::Srq;
use crate::report::{Misuse, Report, WqeImage};
use crate::tap::{Entry, Tap, Watch};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Which misuses are made to hurt. All, unless a test turns one off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Punish {
    /// Receive buffers hold poison from post to completion.
    pub poison: bool,
    /// Consumed WQEs are overwritten.
    pub scribble: bool,
    /// Queue pairs take turns in changing order, so that completions of different ones come in changing order.
    pub reorder: bool,
}

impl Default for Punish {
    fn default() -> Self {
        Self { poison: true, scribble: true, reorder: true }
    }
}

/// Misuses kept at most; later ones are counted only.
const MAX_REPORTS: usize = 1000;

pub(crate) struct Shared {
    pub name: String,
    pub memory: Arc<dyn Memory>,
    pub mkeys: Mkeys,
    pub cqs: BTreeMap<u32, Cq>,
    pub srqs: BTreeMap<u32, Srq>,
    pub ports: Vec<Port>,
    pub events: VecDeque<Event>,
    pub reports: Vec<Report>,
    pub out: Vec<Packet>,
    pub now: Duration,
    pub clock_khz: u64,
    pub punish: Punish,
    /// Completion queues can have the time instead of the clock's ticks.
    pub keeps_time: bool,
    /// Results of atomics come back most significant byte first.
    pub big_endian_atomics: bool,
    /// Something happened since the flag was cleared.
    pub progress: bool,
    /// Who wants to see what passes.
    pub tap: Option<Tap>,
}

impl Shared {
    pub fn report(&mut self, number: u32, wqe: Option<&WqeImage>, misuse: Misuse) {
        if self.reports.len() < MAX_REPORTS {
            self.reports.push(Report { device: self.name.clone(), number, wqe: wqe.cloned(), misuse });
        }
    }

    /// Shows an entry to whoever wants to see it.
    pub fn show(&mut self, entry: Entry<'_>) {
        self.queues().1.show(entry);
    }

    /// The completion queues, and who is shown what is written into them.
    pub fn queues(&mut self) -> (&mut BTreeMap<u32, Cq>, Watch<'_>) {
        let Self { cqs, tap, name, now, .. } = self;
        (cqs, Watch { tap, device: name, at: *now })
    }

    /// Writes an entry into a CQ, with the time. False if the queue is broken, gone or cannot be reached: whoever
    /// completes into it cannot go on.
    pub fn complete(&mut self, cqn: u32, mut entry: Cqe) -> bool {
        self.progress = true;
        // An entry in error has its syndrome where others have the time.
        if !matches!(entry.opcode(), cqe::opcode::REQ_ERR | cqe::opcode::RESP_ERR) {
            let real_time = self.cqs.get(&cqn).is_some_and(|cq| cq.spec.real_time);
            let stamp = if real_time {
                self.now.as_secs() << 32 | u64::from(self.now.subsec_nanos())
            } else {
                (self.now.as_nanos() * u128::from(self.clock_khz) / 1_000_000) as u64
            };
            entry.put(cqe::TIMESTAMP, &stamp.to_be_bytes());
        }
        let (memory, now) = (Arc::clone(&self.memory), self.now);
        let (cqs, mut watch) = self.queues();
        let Some(cq) = cqs.get_mut(&cqn) else { return false };
        let posted = cq.post(&*memory, &entry, now, &mut watch);
        self.posted(cqn, posted)
    }

    /// Ends the turn of the completion queues: what was held back to be compressed is written, and who has waited long
    /// enough is told.
    pub fn end_turn(&mut self) {
        let (memory, now) = (Arc::clone(&self.memory), self.now);
        let mut done = vec![];
        let (cqs, mut watch) = self.queues();
        for (cqn, cq) in cqs {
            match cq.flush(&*memory, now, &mut watch) {
                Ok(Posted::Quiet) => {}
                posted => done.push((*cqn, posted)),
            }
            if cq.tick(now) {
                done.push((*cqn, Ok(Posted::Wakes)));
            }
        }
        for (cqn, posted) in done {
            self.progress = true;
            self.posted(cqn, posted);
        }
    }

    fn posted(&mut self, cqn: u32, posted: Result<Posted, BusError>) -> bool {
        match posted {
            Ok(Posted::Quiet) => true,
            Ok(Posted::Wakes) => {
                self.events.push_back(Event::Completion { cqn });
                true
            }
            Ok(Posted::Overrun) => {
                self.report(cqn, None, Misuse::CqOverrun);
                self.events.push_back(Event::CqError { cqn });
                false
            }
            Ok(Posted::Lost) => false,
            Err(BusError { address }) => {
                self.report(cqn, None, Misuse::RingMemory { address, event: true });
                if self.cqs.get_mut(&cqn).is_some_and(Cq::break_down) {
                    self.events.push_back(Event::CqError { cqn });
                }
                false
            }
        }
    }
}
