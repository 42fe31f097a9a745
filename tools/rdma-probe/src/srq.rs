//! A ping with many queue pairs on one shared receive queue, as `ibv_srq_pingpong` plays it.
//!
//! Each queue pair plays its own game with one of the peer's: it sends when a message has come by it since its last send.
//! The iterations are those of all together. A C peer may send a few messages more than that, one for each queue pair.
//!
//! # Safety argument
//!
//! Work requests name registered regions that the end owns and to whose bytes no Rust reference is ever made. A region
//! deregisters before its memory goes, so it does not matter in which order an end is taken apart.
#![allow(unsafe_code)]

use crate::buffers::CheckOutcome;
use crate::end::wrong_size;
use crate::engine::{self, Player};
use crate::failure::{Failure, Kind};
use crate::half::{Half, address};
use crate::link::{Link, connect};
use crate::payload::Role;
use crate::place::Place;
use crate::reach::Reach;
use crate::srq_buffers::SrqBuffers;
use crate::stats::{Latency, LatencySummary};
use crate::wire::Address;
use ironverbs::{CompChannel, Cq, GidChoice, GidIndex, Notify, PreparedQp, Qp, Rc, Srq, WrFlags};
use std::collections::HashMap;
use std::thread::yield_now;
use std::time::Instant;

/// Marks the completion of a send; the others are receives, marked with their slot.
const SEND: u64 = u32::MAX as u64;

/// Addresses that each side sends, whatever the number of queue pairs.
pub const MAX_QPS: usize = 256;

/// One side, not connected yet.
pub struct SrqHalf {
    parts: Parts,
    qps: Vec<PreparedQp>,
    reach: Reach,
}

/// What a side is made of, besides its queue pairs.
struct Parts {
    role: Role,
    cq: Cq,
    channel: Option<CompChannel>,
    srq: Srq,
    buffers: SrqBuffers,
    size: u32,
    iterations: u64,
    yields_after_send: bool,
}

impl Half for SrqHalf {
    type End = SrqEnd;
    const RECORDS: usize = MAX_QPS;

    fn new(place: &Place<'_>, role: Role, reach: Reach) -> Result<Self, Failure> {
        let Place { args, context, pd, .. } = place;
        let (size, lanes) = (args.size(), args.num_qp());
        place.check_rx_depth(lanes)?;
        let buffers = SrqBuffers::new(pd, role, size, args.rx_depth, lanes, args.check)?;
        let channel = if args.events { Some(context.create_comp_channel()?) } else { None };
        let mut cq = context.cq_builder(buffers.depth().saturating_add(lanes));
        if let Some(channel) = &channel {
            cq = cq.channel(channel);
        }
        let cq = cq.build()?;
        let srq = context.create_srq(pd, buffers.depth())?;
        let qp = || place.aim(Rc::builder(pd, &cq).srq(&srq).max_send_wr(1), reach).build();
        let qps = (0..lanes).map(|_| qp()).collect::<Result<Vec<_>, _>>()?;
        let yields_after_send = place.is_software_device() && channel.is_none();
        let mut parts = Parts { role, cq, channel, srq, buffers, size, iterations: args.iters(), yields_after_send };
        post_receives(&mut parts.srq, &mut parts.buffers)?;
        Ok(Self { parts, qps, reach })
    }

    fn addresses(&self) -> Vec<Address> {
        self.qps.iter().map(|qp| self.reach.used(address(qp))).collect()
    }

    fn gid(&self) -> (Option<GidIndex>, Option<&GidChoice>) {
        let first = self.qps.first();
        self.reach.gid(first.and_then(PreparedQp::gid_index), first.and_then(PreparedQp::gid_choice))
    }

    fn connect(self, place: &Place<'_>, remote: &[Address]) -> Result<SrqEnd, Failure> {
        let Self { parts, qps, reach } = self;
        let theirs = remote.iter().filter(|remote| **remote != Address::default()).count();
        if theirs != qps.len() {
            let text = format!("the peer has {theirs} queue pairs, this end {}", qps.len());
            return Err(Failure::new(Kind::Peer, text).hint("start both ends with the same --num-qp"));
        }
        let mut lanes = Vec::new();
        for (qp, remote) in qps.into_iter().zip(remote) {
            place.check_gids(qp.endpoint().gid, remote)?;
            let awaiting = parts.role == Role::Server;
            let qp = connect(qp, place, &reach.used(*remote))?;
            lanes.push(Lane { qp, awaiting, sending: false, last_arrival: None });
        }
        let lane_of = lanes.iter().enumerate().map(|(i, lane)| (lane.qp.qpn().get(), i)).collect();
        Ok(SrqEnd {
            parts,
            lanes,
            lane_of,
            armed: false,
            sends_posted: 0,
            sends_completed: 0,
            received: 0,
            latency: Latency::new(),
            last_arrival: None,
        })
    }
}

fn post_receives(srq: &mut Srq, buffers: &mut SrqBuffers) -> Result<(), Failure> {
    let mut batch = srq.recv_batch();
    while let Some((slot, sge)) = buffers.next_receive()? {
        batch.recv(slot, &[sge])?;
    }
    // SAFETY: each entry names a slot of the end's receive buffer, which stays registered until the end is dropped, and only
    // volatile copies look at its bytes (see the module).
    unsafe { batch.submit() }?;
    Ok(())
}

/// One side, connected.
pub struct SrqEnd {
    parts: Parts,
    lanes: Vec<Lane>,
    /// Which lane a queue pair number belongs to.
    lane_of: HashMap<u32, usize>,
    armed: bool,
    sends_posted: u64,
    sends_completed: u64,
    received: u64,
    latency: Latency,
    last_arrival: Option<Instant>,
}

/// One queue pair and its game.
struct Lane {
    qp: Qp,
    /// A message is due before the next send.
    awaiting: bool,
    /// A send has not completed yet.
    sending: bool,
    last_arrival: Option<Instant>,
}

impl SrqEnd {
    fn advance(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        let mut completions = self.parts.cq.poll()?;
        while let Some(completion) = completions.next() {
            moved = true;
            let wr_id = completion.wr_id();
            let done = match completion.outcome() {
                Ok(done) => done,
                Err(error) => {
                    drop(completions);
                    return Err(engine::cause(&mut self.parts.cq, (wr_id, error), SEND));
                }
            };
            let Some(lane) = self.lane_of.get(&completion.qpn()).and_then(|&i| self.lanes.get_mut(i)) else {
                let text =
                    format!("a completion came for queue pair {:#08x}, which is not this end's", completion.qpn());
                return Err(Failure::new(Kind::Device, text));
            };
            if wr_id == SEND {
                lane.sending = false;
                self.sends_completed += 1;
                continue;
            }
            let now = Instant::now();
            if let Some(last) = lane.last_arrival.replace(now) {
                self.latency.record(now - last);
            }
            self.last_arrival = Some(now);
            if done.byte_len != self.parts.size {
                return Err(wrong_size(done.byte_len, self.parts.size));
            }
            if let Err(mismatch) = self.parts.buffers.arrived(wr_id, self.received)? {
                return Err(Failure::new(Kind::Data, format!("payload mismatch in {mismatch}")));
            }
            lane.awaiting = false;
            self.received += 1;
        }
        drop(completions);
        if moved || self.sends_posted == 0 {
            self.post()?;
        }
        Ok(moved)
    }

    fn post(&mut self) -> Result<(), Failure> {
        let Self { parts, lanes, sends_posted, .. } = self;
        if parts.buffers.is_low() {
            post_receives(&mut parts.srq, &mut parts.buffers)?;
        }
        let before = *sends_posted;
        for lane in lanes.iter_mut().filter(|lane| !lane.awaiting && !lane.sending) {
            if *sends_posted >= parts.iterations {
                break;
            }
            let mut batch = lane.qp.send_batch();
            batch.send(SEND, WrFlags::SIGNALED, &[parts.buffers.message()?])?;
            // SAFETY: the message lies in a region of this end, which stays registered until the end is dropped, and only
            // volatile copies look at its bytes (see the module).
            unsafe { batch.submit() }?;
            lane.sending = true;
            lane.awaiting = true;
            *sends_posted += 1;
        }
        if *sends_posted > before && parts.yields_after_send {
            yield_now();
        }
        Ok(())
    }
}

impl Player for SrqEnd {
    fn begin(&mut self, now: Instant) {
        if self.parts.role == Role::Client {
            self.lanes.iter_mut().for_each(|lane| lane.last_arrival = Some(now));
        }
    }

    fn step(&mut self) -> Result<bool, Failure> {
        self.advance()
    }

    fn is_done(&self) -> bool {
        // The last answer proves that the client's last message arrived (see `Turn::done`).
        let is_client = self.parts.role == Role::Client;
        self.received >= self.parts.iterations && (is_client || self.sends_completed >= self.parts.iterations)
    }

    fn arm(&mut self) -> Result<(), Failure> {
        if !self.armed {
            self.parts.cq.arm(Notify::Any)?;
            self.armed = true;
        }
        Ok(())
    }

    fn drain_events(&mut self) -> Result<(), Failure> {
        if let Some(channel) = &self.parts.channel
            && channel.drain(|_| ())? > 0
        {
            self.armed = false;
        }
        Ok(())
    }

    fn channel(&self) -> Option<&CompChannel> {
        self.parts.channel.as_ref()
    }

    fn iterations(&self) -> u64 {
        self.parts.iterations
    }

    fn completed(&self) -> u64 {
        self.sends_posted.min(self.received)
    }

    fn last_arrival(&self) -> Option<Instant> {
        self.last_arrival
    }

    fn latency(&self) -> Option<LatencySummary> {
        self.latency.summary()
    }

    fn check_outcome(&self) -> Option<CheckOutcome> {
        self.parts.buffers.outcome()
    }
}
