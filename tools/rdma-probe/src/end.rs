//! One end of a ping-pong in which one message is under way.
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
use crate::half::{send_depth, signal_every};
use crate::line::{Line, post_receives};
use crate::payload::Role;
use crate::place::Place;
use crate::stats::{Latency, LatencySummary};
use crate::turn::Turn;
use ironverbs::{Any, CompChannel, Cq, Inline, Notify, QpType, RecvBatch, Sge, WrFlags};
use std::thread::yield_now;
use std::time::Instant;

const RECV: u64 = 1;
const SEND: u64 = 2;

/// One end of a ping-pong, connected.
pub struct End<L: Line> {
    role: Role,
    line: L,
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

/// What an end is made of, besides what it sends and receives by.
pub struct Parts {
    /// Sends first as a client, or answers.
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
    /// Makes them, for messages that arrive with `header` bytes in front.
    pub fn new(place: &Place<'_>, role: Role, header: u32) -> Result<Self, Failure> {
        let Place { args, context, pd, .. } = place;
        let send_depth = send_depth(args);
        place.check_rx_depth(send_depth)?;
        let buffers = Buffers::new(pd, role, (args, place.stop), header)?;
        let channel = if args.events { Some(context.create_comp_channel()?) } else { None };
        // If the peer goes, all sends and all receives complete before any is polled.
        let mut cq = context.cq_builder(args.rx_depth.saturating_add(send_depth));
        if let Some(channel) = &channel {
            cq = cq.channel(channel);
        }
        let cq = cq.build()?;
        let turn = Turn::new(args.iters(), args.rx_depth, signal_every(args), role == Role::Client);
        let is_software_device = place.is_software_device();
        Ok(Self { role, cq, channel, buffers, size: args.size(), is_software_device, turn })
    }

    /// Posts the first receives. To be done before the peer knows of this end.
    pub fn post_first_receives<T: QpType>(&mut self, batch: RecvBatch<'_, Any, T>) -> Result<(), Failure> {
        let sge = self.buffers.receive_sge()?;
        // SAFETY: `sge` names the whole receive buffer of the end. It stays registered until the end is dropped, and only volatile
        // copies look at its bytes (see the module).
        unsafe { post_receives(batch, RECV, sge, self.turn.receives_due()) }?;
        self.turn.receives_posted();
        Ok(())
    }

    /// Adds what it sends and receives by, connected.
    pub fn connected<L: Line>(mut self, line: L) -> Result<End<L>, Failure> {
        if self.size <= line.max_inline_bytes() {
            self.buffers.send_inline();
        }
        let receive_sge = self.buffers.receive_sge()?;
        let Self { role, cq, channel, buffers, size, is_software_device, turn } = self;
        let yields_after_send = is_software_device && channel.is_none();
        Ok(End {
            role,
            line,
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

impl<L: Line> End<L> {
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
        let flags = if self.turn.send_is_signaled() { WrFlags::SIGNALED } else { WrFlags::NONE };
        let message = self.buffers.message(self.turn.sends_posted())?;
        // SAFETY: a registered message lies in a buffer of this end, which stays registered until the end is dropped, and
        // only volatile copies look at its bytes (see the module).
        unsafe {
            match message {
                Message::Registered(sge) => self.line.send(SEND, flags, (&[sge]).into()),
                Message::Inline(bytes) => self.line.send(SEND, flags, Inline(bytes).into()),
            }
        }?;
        self.turn.send_posted();
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        // SAFETY: this names the whole receive buffer of this end, which stays registered until the end is dropped, and only
        // volatile copies look at its bytes (see the module).
        unsafe { self.line.receive(RECV, self.receive_sge, self.turn.receives_due()) }?;
        self.turn.receives_posted();
        Ok(())
    }
}

impl<L: Line> Player for End<L> {
    fn begin(&mut self, now: Instant) {
        // The first message would tell how late the peer came, unless it answers one of this end's at once.
        self.last_arrival = (self.role == Role::Client && L::PEER_IS_READY).then_some(now);
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
