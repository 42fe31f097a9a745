//! Event queues: which events each is for, and events that wait for room.

use super::command::{CONTEXT, Command, PAGES, Status, paged_ring};
use super::completion_queues::CompletionQueues;
use super::config_space::VECTORS;
use crate::bits::be64;
use crate::bits::context::eqc;
use crate::bits::eqe::{self, DATA, TYPE};
use crate::bits::field::Field;
use crate::bits::firmware::{event as kind, status};
use crate::event::{Eq, Event};
use crate::memory::{BusError, Memory};
use std::collections::{BTreeMap, VecDeque};

/// Number of an event queue.
const EQN: Field = Field::new(0x58, 8);
/// Where CREATE_EQ says which events the queue is for: a bit for each type.
const EVENT_MASK: usize = 0x58;
const MAX_LOG_SIZE: u32 = 22;

/// Why an event is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untold {
    /// The queue cannot be reached.
    Bus(BusError),
    /// So many wait for room in the queue of that number that no more can.
    Overflow(u8),
}

impl From<BusError> for Untold {
    fn from(error: BusError) -> Self {
        Self::Bus(error)
    }
}

#[derive(Debug, Default)]
pub(super) struct EventQueues(BTreeMap<u8, EventQueue>);

#[derive(Debug)]
struct EventQueue {
    eq: Eq,
    context: [u8; eqc::BYTES],
    vector: usize,
    mask: u64,
    /// As many as the ring has entries, at most.
    waiting: VecDeque<[u8; eqe::BYTES]>,
}

impl EventQueue {
    /// Writes what waits, as far as there is room. True: raise the interrupt.
    fn flush(&mut self, memory: &dyn Memory) -> Result<bool, BusError> {
        let mut wakes = false;
        while self.eq.has_room()
            && let Some(entry) = self.waiting.pop_front()
        {
            wakes |= self.eq.post_entry(memory, &entry)?;
        }
        Ok(wakes)
    }
}

impl EventQueues {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn has(&self, number: u32) -> bool {
        u8::try_from(number).is_ok_and(|n| self.0.contains_key(&n))
    }

    pub fn create(&mut self, c: &mut Command<'_>) -> Result<(), Status> {
        let context = c.context(CONTEXT, eqc::BYTES)?;
        let (log_size, vector) = (eqc::LOG_SIZE.get32(context), eqc::INTR.get(context) as usize);
        if log_size > MAX_LOG_SIZE || vector >= VECTORS {
            return Err(Status(status::BAD_PARAM));
        }
        let free = (1..=u8::MAX).find(|n| !self.0.contains_key(n)).ok_or(Status(status::NO_RESOURCES))?;
        let ring = paged_ring(
            c.from(PAGES),
            eqc::LOG_PAGE_SIZE.get32(context),
            eqc::PAGE_OFFSET.get(context),
            (eqe::BYTES as u64) << log_size,
        )?;
        let queue = EventQueue {
            eq: Eq::new(ring, log_size),
            context: crate::bits::array(context, 0),
            vector,
            mask: be64(c.input, EVENT_MASK),
            waiting: VecDeque::new(),
        };
        self.0.insert(free, queue);
        c.put(EQN, free);
        Ok(())
    }

    pub fn destroy(&mut self, cqs: &CompletionQueues, c: &Command<'_>) -> Result<(), Status> {
        let number = EQN.get(c.input) as u8;
        if cqs.use_event_queue(number) {
            return Err(Status(status::RESOURCE_BUSY));
        }
        self.0.remove(&number).map(drop).ok_or(Status(status::BAD_RESOURCE))
    }

    pub fn query(&self, c: &mut Command<'_>) -> Result<(), Status> {
        let queue = self.0.get(&(EQN.get(c.input) as u8)).ok_or(Status(status::BAD_RESOURCE))?;
        let mut context = queue.context;
        eqc::CONSUMER.set(&mut context, queue.eq.consumed().into());
        eqc::PRODUCER.set(&mut context, queue.eq.produced().into());
        c.output(CONTEXT, eqc::BYTES).copy_from_slice(&context);
        Ok(())
    }

    /// A doorbell of an event queue: its number in 31:24, consumer index in 23:0. Returns the vectors to raise.
    pub fn ring(&mut self, memory: &dyn Memory, value: u32, arm: bool) -> Vec<usize> {
        let Some(queue) = self.0.get_mut(&((value >> 24) as u8)) else { return vec![] };
        let mut wakes = queue.eq.ring_doorbell(value & 0xff_ffff, arm);
        // What there was no room for may go in now. A queue that cannot be reached says so when the next event comes.
        wakes |= queue.flush(memory).unwrap_or(false);
        if wakes { vec![queue.vector] } else { vec![] }
    }

    /// Whether commands are told of by events.
    pub fn tells_of_commands(&self) -> bool {
        self.for_type(kind::COMMAND).is_some()
    }

    /// The commands in the entries of `vector` are done.
    pub fn command_done(&mut self, memory: &dyn Memory, vector: u32) -> Result<Vec<usize>, Untold> {
        let mut entry = [0; eqe::BYTES];
        entry[TYPE] = kind::COMMAND;
        entry[DATA..DATA + 4].copy_from_slice(&vector.to_be_bytes());
        match self.for_type(kind::COMMAND) {
            Some(number) => self.post(memory, number, entry),
            None => Ok(vec![]),
        }
    }

    /// An event, for queue `number` or the one that is for its type. Events that nobody wants are lost.
    pub fn tell(&mut self, memory: &dyn Memory, number: Option<u8>, event: Event) -> Result<Vec<usize>, Untold> {
        let entry = event.encode();
        let is_completion = matches!(event, Event::Completion { .. });
        match number.or_else(|| if is_completion { None } else { self.for_type(entry[TYPE]) }) {
            Some(number) => self.post(memory, number, entry),
            None => Ok(vec![]),
        }
    }

    fn for_type(&self, kind: u8) -> Option<u8> {
        self.0.iter().find(|(_, queue)| queue.mask.checked_shr(kind.into()).unwrap_or(0) & 1 == 1).map(|(n, _)| *n)
    }

    fn post(&mut self, memory: &dyn Memory, number: u8, entry: [u8; eqe::BYTES]) -> Result<Vec<usize>, Untold> {
        let Some(queue) = self.0.get_mut(&number) else { return Ok(vec![]) };
        if queue.waiting.len() >= 1 << eqc::LOG_SIZE.get32(&queue.context) {
            return Err(Untold::Overflow(number));
        }
        queue.waiting.push_back(entry);
        Ok(if queue.flush(memory)? { vec![queue.vector] } else { vec![] })
    }
}
