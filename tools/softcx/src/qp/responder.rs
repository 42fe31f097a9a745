//! The receiving side: requests become memory, receive completions and answers.
//!
//! Answers leave in the order of their requests. READs are read when their answer leaves, so that a requester that has more
//! of them under way than this side promised to hold is found out.

use super::{Qp, QpState, psn};
use crate::event::Event;
use crate::memory::BusError;
use crate::mkey::{Access, Asker, KeyError, KeyRange};
use crate::packet::{Body, Nak, Packet, Remote};
use crate::recv::RecvWqe;
use crate::report::Misuse;
use crate::shared::Shared;
use crate::wqe::Atomic;
use std::collections::VecDeque;
use std::time::Duration;

/// Answers that leave in one turn at most.
const TURN: usize = 64;
/// Results of atomics that are kept for requests that come again.
const HISTORY: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Responder {
    pub(super) expected: u32,
    /// A request out of order was refused already; the rest is ignored until the expected one comes.
    pub(super) nak_sent: bool,
    /// The message that is coming in.
    pub(super) message: Message,
    pub(super) answers: VecDeque<Answer>,
    pub(super) atomics: VecDeque<(u32, u64)>,
    /// WQEs taken for messages whose rest was lost; they serve the next.
    pub(super) spare: Vec<(RecvWqe, Source)>,
    pub(super) heard: bool,
}

#[derive(Debug, Default)]
pub(super) enum Message {
    #[default]
    None,
    Send {
        wqe: RecvWqe,
        source: Source,
        data: Vec<u8>,
    },
    Write {
        remote: Remote,
        done: u32,
    },
    /// UC: a packet was lost; the rest of the message is ignored.
    Ignored,
}

/// Where a receive WQE came from: who it belongs to, and where its completion goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub asker: Asker,
    pub cqn: u32,
    pub user_index: u32,
}

#[derive(Debug)]
pub(super) enum Answer {
    Ack { psn: u32 },
    Read { psn: u32, asker: Asker, remote: Remote, sent: u32 },
    Atomic { psn: u32, old: u64 },
    Rnr { psn: u32 },
    Nak { psn: u32, nak: Nak },
}

impl Answer {
    fn psn(&self) -> u32 {
        match self {
            Self::Ack { psn }
            | Self::Read { psn, .. }
            | Self::Atomic { psn, .. }
            | Self::Rnr { psn }
            | Self::Nak { psn, .. } => *psn,
        }
    }
}

/// Why a request is refused.
pub(super) enum Refused {
    /// No receive WQE: again later.
    NotReady,
    /// Never.
    With(Nak, Option<Event>),
}

impl Responder {
    pub fn start(psn: u32) -> Self {
        Self { expected: psn, ..Self::default() }
    }

    pub fn expected_psn(&self) -> u32 {
        self.expected
    }

    pub fn abandon(&mut self) {
        self.answers.clear();
    }

    pub fn take_incoming(&mut self) -> Option<(RecvWqe, Source)> {
        match std::mem::take(&mut self.message) {
            Message::Send { wqe, source, .. } => Some((wqe, source)),
            _ => self.spare.pop(),
        }
    }
}

/// How long a coded receiver-not-ready timer is (InfiniBand specification, table of RNR NAK timer values), in µs.
pub(super) fn rnr_delay(timer: u8) -> Duration {
    const TENS_OF_MICROSECONDS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(TENS_OF_MICROSECONDS[usize::from(timer & 0x1f)]) * 10)
}

impl Qp {
    /// A request of a reliable transport.
    pub(super) fn receive_request(&mut self, packet: Packet, shared: &mut Shared) {
        self.hear(shared);
        match psn::ahead(packet.psn, self.responder.expected) {
            0 => {}
            1.. => {
                if !std::mem::replace(&mut self.responder.nak_sent, true) {
                    let psn = self.responder.expected;
                    self.responder.answers.push_back(Answer::Nak { psn, nak: Nak::SequenceError });
                }
                return;
            }
            _ => return self.receive_again(packet, shared),
        }
        self.responder.nak_sent = false;
        let psn = packet.psn;
        match self.execute(packet, shared) {
            Ok(()) => {}
            Err(Refused::NotReady) => {
                // What follows is out of order until this packet comes again.
                self.responder.nak_sent = true;
                self.responder.answers.push_back(Answer::Rnr { psn });
            }
            Err(Refused::With(nak, event)) => {
                // The refusal leaves behind what is due before it, at once: there is no later turn.
                self.responder.answers.push_back(Answer::Nak { psn, nak });
                while !self.responder.answers.is_empty() && self.state != QpState::Err {
                    self.respond(shared);
                }
                self.fail(shared, event);
            }
        }
    }

    pub(super) fn hear(&mut self, shared: &mut Shared) {
        shared.progress = true;
        if !std::mem::replace(&mut self.responder.heard, true) && self.state == QpState::Rtr {
            shared.events.push_back(Event::CommEstablished { qpn: self.qpn });
        }
    }

    /// A request that was executed before: only its answer is given again.
    fn receive_again(&mut self, packet: Packet, shared: &Shared) {
        let psn = packet.psn;
        let Ok(asker) = self.remote_asker(shared, packet.xrc_srqn) else { return };
        let answer = match packet.body {
            Body::ReadRequest { remote } => Answer::Read { psn, asker, remote, sent: 0 },
            Body::AtomicRequest { .. } => match self.responder.atomics.iter().find(|(at, _)| *at == psn) {
                Some((_, old)) => Answer::Atomic { psn, old: *old },
                None => return,
            },
            _ if packet.ack_req => Answer::Ack { psn },
            _ => return,
        };
        // The requester has gone back: what is due for later requests will be asked for again.
        self.responder.answers.retain(|a| psn::ahead(a.psn(), psn) < 0);
        self.responder.answers.push_back(answer);
    }

    fn execute(&mut self, packet: Packet, shared: &mut Shared) -> Result<(), Refused> {
        let (psn, ack_req) = (packet.psn, packet.ack_req);
        let asker = self.remote_asker(shared, packet.xrc_srqn)?;
        let in_message = !matches!(self.responder.message, Message::None);
        match packet.body {
            Body::ReadRequest { remote } => {
                self.may_hold_another(in_message)?;
                self.may(shared, asker, remote, Access::REMOTE_READ)?;
                let packets = remote.len.div_ceil(self.mtu(shared)).max(1);
                self.responder.expected = psn::add(psn, packets);
                self.responder.answers.push_back(Answer::Read { psn, asker, remote, sent: 0 });
                Ok(())
            }
            Body::AtomicRequest { remote, op } => {
                self.may_hold_another(in_message)?;
                let old = self.execute_atomic(shared, asker, remote, op)?;
                self.responder.expected = psn::add(psn, 1);
                self.responder.atomics.push_back((psn, old));
                if self.responder.atomics.len() > HISTORY {
                    self.responder.atomics.pop_front();
                }
                self.responder.answers.push_back(Answer::Atomic { psn, old });
                Ok(())
            }
            _ => {
                self.deliver(packet, shared)?;
                self.responder.expected = psn::add(psn, 1);
                if ack_req {
                    self.responder.answers.push_back(Answer::Ack { psn });
                }
                Ok(())
            }
        }
    }

    fn may_hold_another(&self, in_message: bool) -> Result<(), Refused> {
        let held = self.responder.answers.iter().filter(|a| matches!(a, Answer::Read { .. } | Answer::Atomic { .. }));
        if in_message || held.count() >= self.attr.max_dest_rd_atomic as usize {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::InvalidRequest, Some(event)));
        }
        Ok(())
    }

    /// Whose memory a request may touch: that of the queue pair's protection domain; with XRC that of the shared receive queue's
    /// which the request names.
    pub(super) fn remote_asker(&self, shared: &Shared, xrc_srqn: u32) -> Result<Asker, Refused> {
        if self.spec.xrcd.is_none() {
            return Ok(self.asker());
        }
        match shared.srqs.get(&xrc_srqn).filter(|srq| srq.xrc.map(|x| x.xrcd) == self.spec.xrcd) {
            Some(srq) => Ok(Asker { pd: srq.pd, qpn: self.qpn }),
            None => Err(Refused::With(Nak::InvalidRequest, Some(Event::QpInvalidRequest { qpn: self.qpn }))),
        }
    }

    /// Whether the other side may touch the range. No range, no key.
    pub(super) fn may(&self, shared: &mut Shared, asker: Asker, remote: Remote, need: Access) -> Result<(), Refused> {
        if !self.attr.access.allows(need) {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::InvalidRequest, Some(event)));
        }
        if remote.len == 0 {
            return Ok(());
        }
        shared.mkeys.check(asker, key_range(remote), need).map_err(|e| self.no_access(shared, e))
    }

    pub(super) fn no_access(&self, shared: &mut Shared, e: KeyError) -> Refused {
        self.report(shared, None, Misuse::RemoteAccess(e));
        Refused::With(Nak::RemoteAccess, Some(Event::QpAccess { qpn: self.qpn }))
    }

    fn execute_atomic(&self, shared: &mut Shared, asker: Asker, remote: Remote, op: Atomic) -> Result<u64, Refused> {
        if !remote.address.is_multiple_of(8) {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::InvalidRequest, Some(event)));
        }
        self.may(shared, asker, remote, Access::REMOTE_ATOMIC)?;
        let mut old = None;
        let memory = std::sync::Arc::clone(&shared.memory);
        let done = shared.mkeys.runs(asker, key_range(remote), Access::REMOTE_ATOMIC, &mut |bus, run| {
            // What is in two places cannot be changed at once, and behind the first there is memory of others.
            if run.len() != 8 {
                return Err(BusError { address: bus });
            }
            old = Some(memory.fetch_update(bus, &mut |old| op.apply(old))?);
            Ok(())
        });
        done.map_err(|e| self.no_access(shared, e))?;
        old.ok_or(Refused::With(Nak::RemoteOperation, None))
    }

    /// Sends answers.
    pub(super) fn respond(&mut self, shared: &mut Shared) {
        for _ in 0..TURN {
            let Some(answer) = self.responder.answers.pop_front() else { return };
            match answer {
                Answer::Ack { psn } => self.emit(shared, psn, false, false, Body::Ack),
                Answer::Atomic { psn, old } => self.emit(shared, psn, false, false, Body::AtomicResponse { old }),
                Answer::Rnr { psn } => {
                    let timer = self.attr.min_rnr_timer;
                    self.emit(shared, psn, false, false, Body::RnrNak { timer });
                }
                Answer::Nak { psn, nak } => self.emit(shared, psn, false, false, Body::Nak(nak)),
                Answer::Read { psn, asker, remote, sent } => {
                    let n = (remote.len - sent).min(self.mtu(shared));
                    let range =
                        KeyRange { key: remote.rkey, address: remote.address.wrapping_add(sent.into()), len: n.into() };
                    let payload = if n == 0 {
                        Ok(vec![])
                    } else {
                        shared.mkeys.read(&*shared.memory, asker, range, Access::REMOTE_READ)
                    };
                    match payload {
                        Ok(payload) => {
                            self.emit(shared, psn, false, false, Body::ReadResponse { payload });
                            let sent = sent + n;
                            if sent < remote.len {
                                let rest = Answer::Read { psn: psn::add(psn, 1), asker, remote, sent };
                                self.responder.answers.push_front(rest);
                            }
                        }
                        Err(e) => {
                            self.report(shared, None, Misuse::RemoteAccess(e));
                            self.emit(shared, psn, false, false, Body::Nak(Nak::RemoteAccess));
                            return self.fail(shared, Some(Event::QpAccess { qpn: self.qpn }));
                        }
                    }
                }
            }
        }
    }
}

fn key_range(remote: Remote) -> KeyRange {
    KeyRange { key: remote.rkey, address: remote.address, len: remote.len.into() }
}
