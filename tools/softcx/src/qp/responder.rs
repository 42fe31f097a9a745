//! The receiving side: requests become memory, receive completions and answers.
//!
//! Answers leave in the order of their requests. READs are read when their answer leaves, so that a requester that has more
//! of them under way than this side promised to hold is found out.

use super::{Qp, QpState, psn};
use crate::bits::cqe::{self, Cqe, opcode};
use crate::event::Event;
use crate::mkey::{Access, Asker, KeyError, KeyRange};
use crate::packet::{Body, Nak, Network, Packet, Part, Remote, Route};
use crate::recv::RecvWqe;
use crate::report::Misuse;
use crate::shared::Shared;
use crate::syndrome::Syndrome;
use crate::wqe::Atomic;
use std::collections::VecDeque;
use std::time::Duration;

/// Answers that leave in one turn at most.
const TURN: usize = 64;
/// Bytes in front of a datagram's payload, where a global route header may be.
const GRH_BYTES: usize = 40;
/// Results of atomics that are kept for requests that come again.
const HISTORY: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Responder {
    expected: u32,
    /// A request out of order was refused already; the rest is ignored until the expected one comes.
    nak_sent: bool,
    /// The message that is coming in.
    message: Message,
    answers: VecDeque<Answer>,
    atomics: VecDeque<(u32, u64)>,
    /// WQEs taken for messages whose rest was lost; they serve the next.
    spare: Vec<(RecvWqe, Source)>,
    heard: bool,
}

#[derive(Debug, Default)]
enum Message {
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
enum Answer {
    Ack { psn: u32 },
    Read { psn: u32, remote: Remote, sent: u32 },
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
enum Refused {
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
            _ => return self.receive_again(packet),
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

    fn hear(&mut self, shared: &mut Shared) {
        shared.progress = true;
        if !std::mem::replace(&mut self.responder.heard, true) && self.state == QpState::Rtr {
            shared.events.push_back(Event::CommEstablished { qpn: self.qpn });
        }
    }

    /// A request that was executed before: only its answer is given again.
    fn receive_again(&mut self, packet: Packet) {
        let psn = packet.psn;
        let answer = match packet.body {
            Body::ReadRequest { remote } => Answer::Read { psn, remote, sent: 0 },
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
        let in_message = !matches!(self.responder.message, Message::None);
        match packet.body {
            Body::ReadRequest { remote } => {
                self.may_hold_another(in_message)?;
                self.may(shared, remote, Access::REMOTE_READ)?;
                let packets = remote.len.div_ceil(self.attr.mtu_bytes).max(1);
                self.responder.expected = psn::add(psn, packets);
                self.responder.answers.push_back(Answer::Read { psn, remote, sent: 0 });
                Ok(())
            }
            Body::AtomicRequest { remote, op } => {
                self.may_hold_another(in_message)?;
                let old = self.execute_atomic(shared, remote, op)?;
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

    /// Whether the other side may touch the range. No range, no key.
    fn may(&self, shared: &mut Shared, remote: Remote, need: Access) -> Result<(), Refused> {
        if !self.attr.access.allows(need) {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::RemoteAccess, Some(event)));
        }
        if remote.len == 0 {
            return Ok(());
        }
        shared.mkeys.check(self.asker(), key_range(remote), need).map_err(|e| self.no_access(shared, e))
    }

    fn no_access(&self, shared: &mut Shared, e: KeyError) -> Refused {
        self.report(shared, None, Misuse::RemoteAccess(e));
        Refused::With(Nak::RemoteAccess, Some(Event::QpAccess { qpn: self.qpn }))
    }

    fn execute_atomic(&self, shared: &mut Shared, remote: Remote, op: Atomic) -> Result<u64, Refused> {
        if !remote.address.is_multiple_of(8) {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::InvalidRequest, Some(event)));
        }
        self.may(shared, remote, Access::REMOTE_ATOMIC)?;
        let mut old = None;
        let memory = std::sync::Arc::clone(&shared.memory);
        let done = shared.mkeys.runs(self.asker(), key_range(remote), Access::REMOTE_ATOMIC, &mut |bus, _| {
            old = Some(memory.fetch_update(bus, &mut |old| op.apply(old))?);
            Ok(())
        });
        done.map_err(|e| self.no_access(shared, e))?;
        old.ok_or(Refused::With(Nak::RemoteOperation, None))
    }

    /// A packet of a SEND or WRITE in its turn, of any connected transport.
    fn deliver(&mut self, packet: Packet, shared: &mut Shared) -> Result<(), Refused> {
        let invalid = || Refused::With(Nak::InvalidRequest, Some(Event::QpInvalidRequest { qpn: self.qpn }));
        let (part, is_send) = match &packet.body {
            Body::Send { part, .. } => (*part, true),
            Body::Write { part, .. } => (*part, false),
            _ => return Err(invalid()),
        };
        let fits = match &self.responder.message {
            Message::None | Message::Ignored => part.first,
            Message::Send { .. } => !part.first && is_send,
            Message::Write { .. } => !part.first && !is_send,
        };
        let payload_len = match &packet.body {
            Body::Send { payload, .. } | Body::Write { payload, .. } => payload.len(),
            _ => 0,
        };
        let full = payload_len == self.attr.mtu_bytes as usize;
        if !fits || !part.last && !full || payload_len > self.attr.mtu_bytes as usize {
            return Err(invalid());
        }
        if is_send { self.deliver_send(packet, part, shared) } else { self.deliver_write(packet, part, shared) }
    }

    fn deliver_send(&mut self, packet: Packet, part: Part, shared: &mut Shared) -> Result<(), Refused> {
        let Body::Send { payload, imm, invalidate, .. } = packet.body else { return Ok(()) };
        if part.first {
            let (wqe, source) = self.take_receive(shared, packet.xrc_srqn)?;
            self.responder.message = Message::Send { wqe, source, data: vec![] };
        }
        let Message::Send { wqe, source, mut data } = std::mem::take(&mut self.responder.message) else {
            return Ok(());
        };
        data.extend_from_slice(&payload);
        if data.len() as u64 > wqe.capacity() {
            return Err(self.fail_receive(shared, wqe, source, Syndrome::LOCAL_LENGTH, Nak::InvalidRequest));
        }
        if !part.last {
            self.responder.message = Message::Send { wqe, source, data };
            return Ok(());
        }
        if let Some(key) = invalidate
            && let Err(why) = self.invalidate(shared, key)
        {
            self.report(shared, Some(&wqe.image), Misuse::RemoteAccess(why));
            return Err(self.fail_receive(shared, wqe, source, Syndrome::LOCAL_ACCESS, Nak::RemoteAccess));
        }
        let op = match (imm, invalidate) {
            (Some(_), _) => opcode::RESP_SEND_IMM,
            (_, Some(_)) => opcode::RESP_SEND_INV,
            _ => opcode::RESP_SEND,
        };
        let mut entry = Cqe::new(op, self.qpn, source.user_index, wqe.index);
        entry.put(cqe::IMM_INVAL_PKEY, &imm.or(invalidate.map(u32::to_be_bytes)).unwrap_or_default());
        let grh = packet.route.grh.is_some();
        describe_route(
            &mut entry,
            &packet.route,
            self.attr.dest_qpn,
            grh && packet.route.network != Network::InfiniBand,
        );
        if packet.solicited {
            entry.body[cqe::OP_OWN] |= cqe::SOLICITED;
        }
        self.complete_receive(shared, wqe, source, entry, &data)
    }

    fn deliver_write(&mut self, packet: Packet, part: Part, shared: &mut Shared) -> Result<(), Refused> {
        let Body::Write { remote, payload, imm, .. } = packet.body else { return Ok(()) };
        if part.first {
            self.may(shared, remote, Access::REMOTE_WRITE)?;
        }
        let (remote, done) = match &self.responder.message {
            Message::Write { remote, done } => (*remote, *done),
            _ => (remote, 0),
        };
        let after = done + payload.len() as u32;
        if after > remote.len || part.last && after != remote.len {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::InvalidRequest, Some(event)));
        }
        // A message with immediate data needs a receive WQE at its end; without one, its last packet comes again.
        let receive = if imm.is_some() { Some(self.take_receive(shared, packet.xrc_srqn)?) } else { None };
        if !payload.is_empty() {
            let to = (remote.rkey, remote.address.wrapping_add(done.into()));
            shared
                .mkeys
                .write(&*shared.memory, self.asker(), to, Access::REMOTE_WRITE, &payload)
                .map_err(|e| self.no_access(shared, e))?;
        }
        self.responder.message = if part.last { Message::None } else { Message::Write { remote, done: after } };
        let (Some((mut wqe, source)), Some(imm)) = (receive, imm) else { return Ok(()) };
        wqe.release(shared, source.asker, 0);
        let mut entry = Cqe::new(opcode::RESP_WRITE_IMM, self.qpn, source.user_index, wqe.index);
        entry.put(cqe::IMM_INVAL_PKEY, &imm).put(cqe::BYTE_CNT, &remote.len.to_be_bytes());
        let grh = packet.route.grh.is_some() && packet.route.network != Network::InfiniBand;
        describe_route(&mut entry, &packet.route, self.attr.dest_qpn, grh);
        if packet.solicited {
            entry.body[cqe::OP_OWN] |= cqe::SOLICITED;
        }
        self.write_completion(shared, source.cqn, entry)
    }

    /// Takes a receive WQE, from wherever this message has to take it.
    fn take_receive(&mut self, shared: &mut Shared, xrc_srqn: u32) -> Result<(RecvWqe, Source), Refused> {
        if let Some(spare) = self.responder.spare.pop() {
            return Ok(spare);
        }
        let is_xrc = self.spec.xrcd.is_some();
        let from_srq = if is_xrc { Some(xrc_srqn) } else { self.spec.srq };
        let own = Source { asker: self.asker(), cqn: self.spec.recv_cq, user_index: self.spec.user_index.unwrap_or(0) };
        let Some(srqn) = from_srq else {
            let asker = self.asker();
            let recv = self.recv.as_mut().ok_or(Refused::NotReady)?;
            recv.refresh(shared, self.qpn, asker);
            return recv.take(shared).map(|wqe| (wqe, own)).ok_or(Refused::NotReady);
        };
        // Out of the map while the rest of the device is used.
        let invalid = Refused::With(Nak::InvalidRequest, Some(Event::QpInvalidRequest { qpn: self.qpn }));
        let Some(mut srq) = shared.srqs.remove(&srqn) else { return Err(invalid) };
        let source = match srq.xrc {
            Some(xrc) if is_xrc => {
                Source { asker: Asker { pd: srq.pd, qpn: self.qpn }, cqn: xrc.cqn, user_index: xrc.user_index }
            }
            // Without user indexes, a completion says which SRQ its WQE is of.
            _ => Source {
                asker: Asker { pd: srq.pd, qpn: self.qpn },
                user_index: self.spec.user_index.unwrap_or(srqn),
                ..own
            },
        };
        let same_domain = !is_xrc || srq.xrc.map(|x| x.xrcd) == self.spec.xrcd;
        let taken = if same_domain {
            srq.queue.refresh(shared, srqn, source.asker);
            srq.queue.take(shared).map(|wqe| (wqe, source)).ok_or(Refused::NotReady)
        } else {
            Err(invalid)
        };
        if taken.is_ok() && srq.queue.ready() < usize::from(srq.limit) {
            srq.limit = 0;
            shared.events.push_back(Event::SrqLimit { srqn });
        }
        shared.srqs.insert(srqn, srq);
        taken
    }

    /// Puts the data in their place and completes.
    fn complete_receive(
        &mut self,
        shared: &mut Shared,
        mut wqe: RecvWqe,
        source: Source,
        mut entry: Cqe,
        data: &[u8],
    ) -> Result<(), Refused> {
        if let Some(syndrome) = self.inject_recv.take() {
            return Err(self.fail_receive(shared, wqe, source, syndrome, Nak::RemoteOperation));
        }
        entry.put(cqe::BYTE_CNT, &(data.len() as u32).to_be_bytes());
        let entry_bytes = shared.cqs.get(&source.cqn).map_or(64, |cq| cq.spec.entry_bytes);
        let mut done = 0;
        if self.spec.scatter_responder && !data.is_empty() && data.len() <= 32 && entry_bytes == 64 {
            entry.put(0, data);
            entry.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_32;
        } else if self.spec.scatter_responder && !data.is_empty() && data.len() <= 64 && entry_bytes == 128 {
            let mut before = [0; 64];
            before[..data.len()].copy_from_slice(data);
            entry.before = Some(before);
            entry.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_64;
        } else {
            for sge in &wqe.sges {
                let n = (data.len() - done).min(sge.len as usize);
                if n == 0 {
                    break;
                }
                let part = &data[done..done + n];
                let to = (sge.lkey, sge.address);
                // The whole buffer must be there, not only what this message needs of it.
                let written = shared
                    .mkeys
                    .check(source.asker, sge.range(), Access::LOCAL_WRITE)
                    .and_then(|()| shared.mkeys.write(&*shared.memory, source.asker, to, Access::LOCAL_WRITE, part));
                if let Err(e) = written {
                    self.report(shared, Some(&wqe.image), Misuse::LocalAccess(e));
                    return Err(self.fail_receive(
                        shared,
                        wqe,
                        source,
                        Syndrome::LOCAL_PROTECTION,
                        Nak::RemoteOperation,
                    ));
                }
                done += n;
            }
        }
        wqe.release(shared, source.asker, done as u64);
        self.write_completion(shared, source.cqn, entry)
    }

    fn write_completion(&mut self, shared: &mut Shared, cqn: u32, entry: Cqe) -> Result<(), Refused> {
        if shared.complete(cqn, entry) {
            return Ok(());
        }
        Err(Refused::With(Nak::RemoteOperation, Some(Event::QpFatal { qpn: self.qpn })))
    }

    /// Completes a receive WQE in error; the answer to the other side is the caller's to give.
    fn fail_receive(
        &mut self,
        shared: &mut Shared,
        mut wqe: RecvWqe,
        source: Source,
        syndrome: Syndrome,
        nak: Nak,
    ) -> Refused {
        wqe.release(shared, source.asker, 0);
        let to = (source.cqn, opcode::RESP_ERR, source.user_index);
        self.complete_error(shared, to, (syndrome, wqe.index, 0));
        Refused::With(nak, None)
    }

    /// The other side takes back a key of ours: only a window bound to this queue pair.
    fn invalidate(&self, shared: &mut Shared, key: u32) -> Result<(), KeyError> {
        let (asker, fail) = (self.asker(), |why| KeyError { key, address: 0, len: 0, why });
        let mkey = shared.mkeys.entry(key).filter(|m| m.variant == key as u8 && !m.free);
        let mkey = mkey.ok_or(fail(crate::mkey::Why::NoKey))?;
        if !mkey.is_window || mkey.pd != asker.pd {
            return Err(fail(crate::mkey::Why::Forbidden));
        }
        if mkey.qpn != Some(asker.qpn) {
            return Err(fail(crate::mkey::Why::Qp));
        }
        mkey.free = true;
        Ok(())
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
                Answer::Read { psn, remote, sent } => {
                    let n = (remote.len - sent).min(self.attr.mtu_bytes);
                    let range =
                        KeyRange { key: remote.rkey, address: remote.address.wrapping_add(sent.into()), len: n.into() };
                    let payload = if n == 0 {
                        Ok(vec![])
                    } else {
                        shared.mkeys.read(&*shared.memory, self.asker(), range, Access::REMOTE_READ)
                    };
                    match payload {
                        Ok(payload) => {
                            self.emit(shared, psn, false, false, Body::ReadResponse { payload });
                            let sent = sent + n;
                            if sent < remote.len {
                                let rest = Answer::Read { psn: psn::add(psn, 1), remote, sent };
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

    /// A request of an unreliable connection: what is out of order is lost, and nobody is told.
    pub(super) fn receive_unreliable(&mut self, packet: Packet, shared: &mut Shared) {
        self.hear(shared);
        let part = match &packet.body {
            Body::Send { part, .. } | Body::Write { part, .. } => *part,
            _ => return,
        };
        let in_order = packet.psn == self.responder.expected;
        self.responder.expected = psn::add(packet.psn, 1);
        if !in_order || part.first {
            self.drop_message();
        }
        if matches!(self.responder.message, Message::None | Message::Ignored) && !part.first {
            self.responder.message = Message::Ignored;
            return;
        }
        match self.deliver(packet, shared) {
            Ok(()) => {}
            Err(Refused::NotReady) => self.responder.message = Message::Ignored,
            Err(Refused::With(_, event)) => self.fail(shared, event),
        }
    }

    /// The rest of a message is lost: its WQE serves the next one.
    fn drop_message(&mut self) {
        match std::mem::take(&mut self.responder.message) {
            Message::Send { wqe, source, .. } => {
                self.responder.spare.push((wqe, source));
            }
            _ => self.responder.message = Message::None,
        }
    }

    /// A datagram.
    pub(super) fn receive_datagram(&mut self, packet: Packet, shared: &mut Shared) {
        let Body::Send { payload, imm, .. } = packet.body else { return };
        if packet.qkey != self.attr.qkey {
            return;
        }
        self.hear(shared);
        let Ok((wqe, source)) = self.take_receive(shared, 0) else { return };
        let mut data = route_header(&packet.route, payload.len()).to_vec();
        data.extend_from_slice(&payload);
        if data.len() as u64 > wqe.capacity() {
            self.fail_receive(shared, wqe, source, Syndrome::LOCAL_LENGTH, Nak::InvalidRequest);
            return self.fail(shared, None);
        }
        let op = if imm.is_some() { opcode::RESP_SEND_IMM } else { opcode::RESP_SEND };
        let mut entry = Cqe::new(op, self.qpn, source.user_index, wqe.index);
        entry.put(cqe::IMM_INVAL_PKEY, &imm.unwrap_or_else(|| u32::from(self.attr.pkey_index).to_be_bytes()));
        entry.put(cqe::SLID, &packet.route.slid.to_be_bytes());
        if packet.route.dlid >= 0xc000 {
            entry.put(cqe::ML_PATH, &[0x80]);
        }
        describe_route(&mut entry, &packet.route, packet.src_qpn, packet.route.grh.is_some());
        if packet.solicited {
            entry.body[cqe::OP_OWN] |= cqe::SOLICITED;
        }
        if let Err(Refused::With(_, event)) = self.complete_receive(shared, wqe, source, entry, &data) {
            self.fail(shared, event);
        }
    }
}

fn key_range(remote: Remote) -> KeyRange {
    KeyRange { key: remote.rkey, address: remote.address, len: remote.len.into() }
}

/// The remote queue pair, the service level or L3 type, and whether there is a global route header.
fn describe_route(entry: &mut Cqe, route: &Route, src_qpn: u32, grh: bool) {
    let v4 = route.grh.as_ref().is_some_and(|g| g.dgid[..12] == V4_MAPPED);
    let kind = match route.network {
        Network::InfiniBand => u32::from(route.sl & 0xf),
        Network::RoceV1 => 0,
        Network::RoceV2 if v4 => 2,
        Network::RoceV2 => 1,
    };
    let flags = u32::from(grh) << 28 | kind << 24 | src_qpn & 0xff_ffff;
    entry.put(cqe::FLAGS_RQPN, &flags.to_be_bytes());
}

/// First bytes of a GID that stands for an IPv4 address.
const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The 40 bytes in front of a datagram: the global route header, an IPv6 header, an IPv4 header in the last 20 bytes, or
/// nothing.
fn route_header(route: &Route, payload: usize) -> [u8; GRH_BYTES] {
    let mut header = [0; GRH_BYTES];
    let Some(grh) = &route.grh else { return header };
    if route.network == Network::RoceV2 && grh.dgid[..12] == V4_MAPPED {
        let total = (20 + 8 + 12 + 8 + payload + 4) as u16;
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[1] = grh.tclass;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6] = 0x40;
        ip[8] = grh.hop_limit;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&grh.sgid[12..]);
        ip[16..20].copy_from_slice(&grh.dgid[12..]);
        let sum: u32 = ip.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
        return header;
    }
    let word = 6 << 28 | u32::from(grh.tclass) << 20 | grh.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&word.to_be_bytes());
    let (udp, next) = if route.network == Network::RoceV2 { (8, 17) } else { (0, 0x1b) };
    let len = (udp + 12 + 8 + payload + 4) as u16;
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6] = next;
    header[7] = grh.hop_limit;
    header[8..24].copy_from_slice(&grh.sgid);
    header[24..].copy_from_slice(&grh.dgid);
    header
}
