//! One end of a ping-pong between two queue pairs.
//!
//! # Safety argument
//!
//! Work requests name two kinds of memory: the buffers of [`Buffers`], which are registered regions that the end owns and
//! to whose bytes no Rust reference is ever made, and inline bytes, which are copied when the request is written. A region
//! deregisters before its memory goes, so it does not matter in which order an end is taken apart.
#![allow(unsafe_code)]

use crate::buffers::{Buffers, CheckOutcome, Message};
use crate::engine::{self, Player};
use crate::failure::{Failure, Kind};
use crate::link::Link;
use crate::payload::Role;
use crate::stats::{Latency, LatencySummary};
use crate::turn::Turn;
use ironverbs::{Any, CompChannel, Cq, Inline, Notify, PostError, PreparedQp, Qp, RecvBatch, Sge, WrFlags};
use std::thread::yield_now;
use std::time::Instant;

const RECV: u64 = 1;
const SEND: u64 = 2;

/// One end of a ping-pong, connected.
pub struct End<L: Link> {
    role: Role,
    qp: Qp<Any, L>,
    peer: L::Peer,
    cq: Cq,
    channel: Option<CompChannel>,
    armed: bool,
    buffers: Buffers,
    receive_sge: Sge,
    size: u32,
    yields_after_send: bool,
    turn: Turn,
    latency: Latency,
    last_arrival: Option<Instant>,
}

/// What an end is made of, besides its queue pair.
pub struct Parts {
    /// Sends first, or answers.
    pub role: Role,
    /// Where all its completions go.
    pub cq: Cq,
    /// How to sleep until one comes; without it the queue is polled.
    pub channel: Option<CompChannel>,
    /// Its memory.
    pub buffers: Buffers,
    /// Bytes of a message.
    pub size: u32,
    /// The device is a kernel thread, which gets to work the sooner if this one steps aside for it.
    pub is_software_device: bool,
    /// Its accounts.
    pub turn: Turn,
}

impl Parts {
    /// Posts the first receives. To be done before the peer knows of the queue pair.
    pub fn post_first_receives<L: Link>(&mut self, qp: &mut PreparedQp<Any, L>) -> Result<(), Failure> {
        let sge = self.buffers.receive_sge()?;
        post_receives(qp.recv_batch(), self.turn.receives_due(), sge)?;
        self.turn.receives_posted();
        Ok(())
    }

    /// Adds the connected queue pair, and what it needs to know of its peer.
    pub fn connected<L: Link>(mut self, qp: Qp<Any, L>, peer: L::Peer) -> Result<End<L>, Failure> {
        if self.size <= qp.cap().max_inline_data {
            self.buffers.send_inline();
        }
        let receive_sge = self.buffers.receive_sge()?;
        let Self { role, cq, channel, buffers, size, is_software_device, turn } = self;
        let yields_after_send = is_software_device && channel.is_none();
        Ok(End {
            role,
            qp,
            peer,
            cq,
            channel,
            armed: false,
            buffers,
            receive_sge,
            size,
            yields_after_send,
            turn,
            latency: Latency::new(),
            last_arrival: None,
        })
    }
}

fn post_receives<L: Link>(mut batch: RecvBatch<'_, Any, L>, count: u32, sge: Sge) -> Result<(), PostError> {
    for _ in 0..count {
        batch.recv(RECV, &[sge])?;
    }
    // SAFETY: `sge` names the whole receive buffer of the end that owns the queue pair. It stays registered until the end
    // is dropped, and only volatile copies look at its bytes (see the module).
    unsafe { batch.submit() }
}

impl<L: Link> End<L> {
    /// Handles the completions that are there, and sends if it is this end's turn. False if there was nothing to do.
    #[inline]
    fn advance(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        let mut completions = self.cq.poll()?;
        while let Some(completion) = completions.next() {
            moved = true;
            let done = match completion.outcome() {
                Ok(done) => done,
                Err(error) => {
                    let first = (completion.wr_id(), error);
                    drop(completions);
                    return Err(engine::cause(&mut self.cq, first, SEND));
                }
            };
            match completion.wr_id() {
                SEND => self.turn.send_completed(),
                _ => {
                    let now = Instant::now();
                    if let Some(last) = self.last_arrival {
                        self.latency.record(now - last);
                    }
                    self.last_arrival = Some(now);
                    if done.byte_len != self.size + L::HEADER_BYTES {
                        return Err(wrong_size(done.byte_len.saturating_sub(L::HEADER_BYTES), self.size));
                    }
                    let round = self.turn.received();
                    if let Err(mismatch) = self.buffers.arrived(round)? {
                        return Err(Failure::new(Kind::Data, format!("payload mismatch in {mismatch}")));
                    }
                    self.turn.message_arrived();
                }
            }
        }
        drop(completions);
        if moved || self.turn.send_due() {
            self.post()?;
        }
        Ok(moved)
    }

    /// Sends if it is this end's turn, and posts receives if they run out. The peer waits for the message, so it goes
    /// first where a receive is left for its answer.
    #[inline]
    fn post(&mut self) -> Result<(), Failure> {
        if self.turn.is_out_of_receives() {
            self.post_receives()?;
        }
        let sends = self.turn.send_due();
        if sends {
            self.post_send()?;
        }
        if self.turn.receives_due() > 0 {
            self.post_receives()?;
        }
        if sends && self.yields_after_send {
            yield_now();
        }
        Ok(())
    }

    #[inline]
    fn post_send(&mut self) -> Result<(), Failure> {
        let mut batch = self.qp.send_batch();
        let flags = if self.turn.send_is_signaled() { WrFlags::SIGNALED } else { WrFlags::NONE };
        match self.buffers.message(self.turn.sends_posted())? {
            Message::Registered(sge) => L::send(&mut batch, &self.peer, SEND, flags, (&[sge]).into())?,
            Message::Inline(bytes) => L::send(&mut batch, &self.peer, SEND, flags, Inline(bytes).into())?,
        }
        // SAFETY: a registered message lies in a buffer of this end, which stays registered until the end is dropped, and
        // only volatile copies look at its bytes (see the module).
        unsafe { batch.submit() }?;
        self.turn.send_posted();
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        post_receives(self.qp.recv_batch(), self.turn.receives_due(), self.receive_sge)?;
        self.turn.receives_posted();
        Ok(())
    }
}

impl<L: Link> Player for End<L> {
    fn begin(&mut self, now: Instant) {
        // A server's first message would tell how late the client came.
        self.last_arrival = (self.role == Role::Client).then_some(now);
    }

    #[inline]
    fn step(&mut self) -> Result<bool, Failure> {
        self.advance()
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.turn.done()
    }

    /// Asks for an event, once. To be followed by another [`step`](Self::step) before waiting for it.
    fn arm(&mut self) -> Result<(), Failure> {
        if !self.armed {
            self.cq.arm(Notify::Any)?;
            self.armed = true;
        }
        Ok(())
    }

    fn drain_events(&mut self) -> Result<(), Failure> {
        if let Some(channel) = &self.channel
            && channel.drain(|_| ())? > 0
        {
            self.armed = false;
        }
        Ok(())
    }

    fn channel(&self) -> Option<&CompChannel> {
        self.channel.as_ref()
    }

    fn iterations(&self) -> u64 {
        self.turn.iterations()
    }

    fn completed(&self) -> u64 {
        self.turn.completed()
    }

    fn last_arrival(&self) -> Option<Instant> {
        self.last_arrival
    }

    fn latency(&self) -> Option<LatencySummary> {
        self.latency.summary()
    }

    fn check_outcome(&self) -> Option<CheckOutcome> {
        self.buffers.outcome()
    }
}

/// The peer was started with another size.
#[cold]
pub fn wrong_size(found: u32, expected: u32) -> Failure {
    Failure::new(Kind::Peer, format!("the peer sends messages of {found} bytes, not {expected}"))
        .hint("start both ends with the same --size")
}
