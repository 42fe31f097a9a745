//! The ping-pong itself.
//!
//! # Safety argument
//!
//! Work requests name two kinds of memory: the buffers of [`Buffers`], which are registered regions that the end owns and
//! to whose bytes no Rust reference is ever made, and inline bytes, which are copied when the request is written. A region
//! deregisters before its memory goes, so it does not matter in which order an end is taken apart.
#![allow(unsafe_code)]

use crate::buffers::{Buffers, CheckOutcome, Message};
use crate::failure::{Failure, Kind};
use crate::payload::Role;
use crate::progress::Progress;
use crate::stats::{Latency, LatencySummary};
use crate::stop::Stop;
use crate::turn::Turn;
use crate::wait::{Deadline, Ready, wait};
use ironverbs::{CompChannel, Cq, Inline, Notify, PostError, PreparedQp, Qp, RecvBatch, Sge, WcStatus, WrFlags};
use nix::poll::PollFlags;
use std::os::fd::AsFd;
use std::thread::yield_now;
use std::time::{Duration, Instant};

const RECV: u64 = 1;
const SEND: u64 = 2;

/// Empty polls before the processor is offered to others: a software device needs one for its own work, and the scheduler
/// may leave it waiting behind a process that only polls. Between polls there is no pause instruction: an emulated
/// processor takes long over one, and a real one no shorter to see the entry.
const SPINS_BEFORE_YIELD: u32 = 500;

/// Yields between two looks at the clock.
const YIELDS_BEFORE_CLOCK: u32 = 64;

/// One end of a ping-pong, connected.
pub struct End {
    role: Role,
    qp: Qp,
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
    pub fn post_first_receives(&mut self, qp: &mut PreparedQp) -> Result<(), Failure> {
        let sge = self.buffers.receive_sge()?;
        post_receives(qp.recv_batch(), self.turn.receives_due(), sge)?;
        self.turn.receives_posted();
        Ok(())
    }

    /// Adds the connected queue pair.
    pub fn connected(mut self, qp: Qp) -> Result<End, Failure> {
        if self.size <= qp.cap().max_inline_data {
            self.buffers.send_inline();
        }
        let receive_sge = self.buffers.receive_sge()?;
        let Self { role, cq, channel, buffers, size, is_software_device, turn } = self;
        let yields_after_send = is_software_device && channel.is_none();
        Ok(End {
            role,
            qp,
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

fn post_receives(mut batch: RecvBatch<'_>, count: u32, sge: Sge) -> Result<(), PostError> {
    for _ in 0..count {
        batch.recv(RECV, &[sge])?;
    }
    // SAFETY: `sge` names the whole receive buffer of the end that owns the queue pair. It stays registered until the end
    // is dropped, and only volatile copies look at its bytes (see the module).
    unsafe { batch.submit() }
}

impl End {
    /// Iterations that are complete.
    pub fn completed(&self) -> u64 {
        self.turn.completed()
    }

    /// What the latency samples come to.
    pub fn latency(&self) -> Option<LatencySummary> {
        self.latency.summary()
    }

    /// How the payload checks went, if there were any.
    pub fn check_outcome(&self) -> Option<CheckOutcome> {
        self.buffers.outcome()
    }

    fn begin(&mut self, now: Instant) {
        // A server's first message would tell how late the client came.
        self.last_arrival = (self.role == Role::Client).then_some(now);
    }

    /// Handles the completions that are there, and sends if it is this end's turn. False if there was nothing to do.
    #[inline]
    fn step(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        let mut completions = self.cq.poll()?;
        while let Some(completion) = completions.next() {
            moved = true;
            let done = match completion.outcome() {
                Ok(done) => done,
                Err(error) => {
                    // A flush is the consequence of an error, whose own completion may be right behind.
                    let mut worst = (completion.wr_id(), error);
                    while worst.1.status == WcStatus::WR_FLUSH_ERR
                        && let Some(next) = completions.next()
                    {
                        if let Err(error) = next.outcome() {
                            worst = (next.wr_id(), error);
                        }
                    }
                    return Err(Failure::completion(worst.0 == SEND, worst.1));
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
                    if done.byte_len != self.size {
                        return Err(wrong_size(done.byte_len, self.size));
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
            Message::Registered(sge) => batch.send(SEND, flags, &[sge])?,
            Message::Inline(bytes) => batch.send(SEND, flags, Inline(bytes))?,
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
}

#[cold]
fn wrong_size(found: u32, expected: u32) -> Failure {
    Failure::new(Kind::Peer, format!("the peer sends messages of {found} bytes, not {expected}"))
        .hint("start both ends with the same --size")
}

/// Runs one end, or both ends of a loopback, until all iterations are complete. On an error, what the ends counted and
/// measured until then stays.
pub fn run(ends: &mut [End], silence: Duration, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    ends.iter_mut().for_each(|end| end.begin(begin));
    match ends.iter().all(|end| end.channel.is_some()) {
        true => run_sleeping(ends, silence, stop),
        false => run_polling(ends, silence, stop),
    }
}

fn run_polling(ends: &mut [End], silence: Duration, stop: &Stop) -> Result<(), Failure> {
    let mut progress = progress(ends);
    let mut quiet = Quiet::new(silence);
    while !all_done(ends) {
        if step_all(ends, &mut progress)? {
            quiet.ended();
        } else {
            quiet.goes_on()?;
        }
        if stop.asked() {
            return Err(Failure::interrupted());
        }
    }
    Ok(())
}

/// Empty polls in a row: first they spin, then they yield, and in the end they give up.
struct Quiet {
    limit: Duration,
    since: Option<Instant>,
    spins: u32,
    yields: u32,
}

impl Quiet {
    fn new(limit: Duration) -> Self {
        Self { limit, since: None, spins: 0, yields: 0 }
    }

    #[inline]
    fn ended(&mut self) {
        self.spins = 0;
        self.yields = 0;
        self.since = None;
    }

    #[inline]
    fn goes_on(&mut self) -> Result<(), Failure> {
        self.spins += 1;
        if self.spins < SPINS_BEFORE_YIELD {
            return Ok(());
        }
        self.spins = 0;
        self.yields += 1;
        yield_now();
        if self.yields.is_multiple_of(YIELDS_BEFORE_CLOCK) { self.look_at_clock() } else { Ok(()) }
    }

    #[cold]
    fn look_at_clock(&mut self) -> Result<(), Failure> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.limit { Err(silent(self.limit)) } else { Ok(()) }
    }
}

fn run_sleeping(ends: &mut [End], silence: Duration, stop: &Stop) -> Result<(), Failure> {
    let mut progress = progress(ends);
    let mut deadline = Deadline::after(silence);
    while !all_done(ends) {
        ends.iter_mut().try_for_each(End::arm)?;
        if stop.asked() {
            return Err(Failure::interrupted());
        }
        // A completion before the arm is found here; one after it raises an event.
        if step_all(ends, &mut progress)? {
            deadline = Deadline::after(silence);
            continue;
        }
        let mut channels = ends.iter().filter_map(|end| end.channel.as_ref()).map(AsFd::as_fd);
        let Some(first) = channels.next() else { return Ok(()) };
        let ready = wait((first, channels.next()), PollFlags::POLLIN, &deadline, stop)
            .map_err(|e| Failure::new(Kind::Device, format!("cannot wait for a completion: {e}")))?;
        match ready {
            Ready::Yes => ends.iter_mut().try_for_each(End::drain_events)?,
            Ready::TimedOut => return Err(silent(silence)),
            Ready::Stopped => return Err(Failure::interrupted()),
        }
    }
    Ok(())
}

#[inline]
fn step_all(ends: &mut [End], progress: &mut Progress) -> Result<bool, Failure> {
    let mut moved = false;
    for end in ends.iter_mut() {
        if end.step()? {
            moved = true;
            if let Some(now) = end.last_arrival {
                progress.update(now, end.turn.completed());
            }
        }
    }
    Ok(moved)
}

#[inline]
fn all_done(ends: &[End]) -> bool {
    ends.iter().all(|end| end.turn.done())
}

fn progress(ends: &[End]) -> Progress {
    Progress::new(ends.iter().map(|end| end.turn.iterations()).max().unwrap_or(0))
}

#[cold]
fn silent(limit: Duration) -> Failure {
    Failure::new(Kind::Peer, format!("no completion came for {limit:?}"))
        .hint("did the peer end, or was it started with another --iters? --timeout waits longer")
}
