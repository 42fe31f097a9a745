//! The sending side: WQEs become packets, answers become completions, silence becomes another try.

use super::{Qp, QpAttr, QpKind, QpState, psn};
use crate::bits::cqe::{self, Cqe};
use crate::bits::wqe::{ctrl, umr};
use crate::event::Event;
use crate::memory::BusError;
use crate::mkey::{Access, KeyError, KeyRange, Translation};
use crate::packet::{Body, Nak, Packet, Part, Remote};
use crate::port::{Path, PathGrh};
use crate::report::{Misuse, WqeImage};
use crate::shared::Shared;
use crate::syndrome::Syndrome;
use crate::wqe::{Av, Segment, SendWqe, Umr, Work};
use std::collections::VecDeque;
use std::time::Duration;

/// Packets unacknowledged at most.
const WINDOW: i32 = 256;
/// Packets sent in one turn at most.
const TURN: u32 = 64;
/// Every so many packets of a long message ask for an answer.
const ACK_EVERY: u32 = 16;
/// Longest message.
const MAX_MESSAGE_BYTES: u64 = 1 << 30;

#[derive(Debug, Default)]
pub(super) struct Requester {
    /// WQEs begun, oldest first.
    pending: VecDeque<Pending>,
    /// Oldest PSN without an answer.
    una: u32,
    /// Next PSN to send.
    cursor: u32,
    /// One past the last PSN ever sent.
    sent: u32,
    /// First PSN of the next WQE.
    end: u32,
    /// Times that it was tried again since something moved: after silence or loss, and because the receiver was not ready.
    tries: u8,
    rnr_tries: u8,
    /// Receiver not ready: silence until then.
    rnr_until: Option<Duration>,
    /// The answer to `una` is overdue then.
    timer: Option<Duration>,
    /// An answer has shown that the one to `una` was lost; said once until something moves.
    implied: bool,
    /// A WQE failed before it was sent; nothing behind it is begun.
    stopped: bool,
    /// The WQE before was a UMR.
    after_umr: bool,
    /// Software was told that the queue has drained.
    drained: bool,
}

/// A WQE begun.
#[derive(Debug)]
pub(super) struct Pending {
    pub wqe: SendWqe,
    pub image: WqeImage,
    /// Counter of its first BB.
    pub at: u16,
    first: u32,
    packets: u32,
    failed: Option<Syndrome>,
    /// What came back, if it is to go into the completion.
    inline: Vec<u8>,
    scatter: bool,
}

impl Pending {
    fn end(&self) -> u32 {
        psn::add(self.first, self.packets)
    }

    fn contains(&self, at: u32) -> bool {
        (0..self.packets as i32).contains(&psn::ahead(at, self.first))
    }
}

impl Requester {
    pub fn start(attr: &QpAttr) -> Self {
        Self { una: attr.sq_psn, cursor: attr.sq_psn, sent: attr.sq_psn, end: attr.sq_psn, ..Self::default() }
    }

    pub fn next_psn(&self) -> u32 {
        self.end
    }

    pub fn pop(&mut self) -> Option<Pending> {
        self.pending.pop_front()
    }

    pub fn deadline(&self) -> Option<Duration> {
        match (self.rnr_until, self.timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Everything before `target` has been answered, unless a READ or atomic in between has not.
    fn advance(&mut self, target: u32) -> Result<(), Lost> {
        if psn::ahead(target, self.sent) > 0 {
            return Ok(());
        }
        for pending in &self.pending {
            if psn::ahead(pending.end(), self.una) <= 0 {
                continue;
            }
            if psn::ahead(target, self.una) <= 0 {
                break;
            }
            if pending.wqe.is_read() {
                return if psn::ahead(target, pending.first) > 0 { Err(Lost) } else { Ok(()) };
            }
            self.una = if psn::ahead(target, pending.end()) < 0 { target } else { pending.end() };
        }
        Ok(())
    }

    fn go_back(&mut self) {
        self.cursor = self.una;
    }
}

/// An answer that must have come has not.
struct Lost;

impl Qp {
    /// Begins WQEs, sends packets, completes.
    pub(super) fn request(&mut self, shared: &mut Shared) {
        self.watch_time(shared);
        for _ in 0..TURN {
            if self.requester.rnr_until.is_some() || self.state != QpState::Rts {
                break;
            }
            let room = psn::ahead(self.requester.cursor, self.requester.una) < WINDOW;
            let resend = self.requester.cursor != self.requester.end;
            if !(if resend { room && self.send_next(shared) } else { room && self.begin(shared) }) {
                break;
            }
        }
        self.retire(shared);
    }

    /// Send queue drain: what was begun goes on, nothing new is begun.
    pub(super) fn drain(&mut self, shared: &mut Shared) {
        self.watch_time(shared);
        while self.requester.cursor != self.requester.end
            && self.requester.rnr_until.is_none()
            && self.send_next(shared)
        {}
        self.retire(shared);
        let drained = self.requester.pending.is_empty() && self.state == QpState::Sqd;
        if drained && !std::mem::replace(&mut self.requester.drained, true) {
            shared.events.push_back(Event::SqDrained { qpn: self.qpn });
        }
    }

    fn watch_time(&mut self, shared: &mut Shared) {
        if self.requester.rnr_until.is_some_and(|at| at <= shared.now) {
            self.requester.rnr_until = None;
            self.requester.go_back();
            self.restart_timer(shared);
        }
        if self.requester.rnr_until.is_none() && self.requester.timer.is_some_and(|at| at <= shared.now) {
            self.requester.timer = None;
            self.requester.implied = false;
            self.try_again(shared);
        }
    }

    fn restart_timer(&mut self, shared: &Shared) {
        let requester = &mut self.requester;
        let waits = self.spec.kind.is_reliable() && requester.una != requester.sent && self.attr.timeout != 0;
        requester.timer = waits.then(|| shared.now + Duration::from_nanos(4096 << self.attr.timeout.min(31)));
    }

    /// Goes back to the oldest packet without an answer, if there is a try left.
    fn try_again(&mut self, shared: &mut Shared) {
        if self.requester.tries >= self.attr.retry_count {
            return self.fail_oldest(Syndrome::RETRY_EXCEEDED);
        }
        self.requester.tries += 1;
        self.requester.go_back();
        self.restart_timer(shared);
        shared.progress = true;
    }

    fn fail_oldest(&mut self, syndrome: Syndrome) {
        let una = self.requester.una;
        let oldest = self.requester.pending.iter_mut().find(|p| psn::ahead(p.end(), una) > 0);
        if let Some(pending) = oldest {
            pending.failed.get_or_insert(syndrome);
        }
        self.requester.stopped = true;
        self.requester.timer = None;
    }

    /// Begins the next WQE of the ring. False if there is none, or it has to wait.
    fn begin(&mut self, shared: &mut Shared) -> bool {
        if self.requester.stopped {
            return false;
        }
        let Some(send) = &self.send else { return false };
        let image = match send.fetch(shared) {
            Ok(Some(image)) => image,
            Ok(None) => return false,
            Err(BusError { address }) => {
                self.report(shared, None, Misuse::RingMemory { address });
                self.fail(shared, Some(Event::QpFatal { qpn: self.qpn }));
                return false;
            }
        };
        let at = image.index;
        let decoded = SendWqe::decode(&image.bytes, self.spec.kind);
        if decoded.as_ref().is_ok_and(|wqe| self.must_wait(wqe)) {
            return false;
        }
        let wqe = match decoded {
            Ok(wqe) => wqe,
            Err(what) => {
                self.report(shared, Some(&image), Misuse::BadWqe(what));
                let stub = SendWqe {
                    index: at,
                    ds: (image.bytes.len() / 16) as u8,
                    work: Work::Nop,
                    remote: None,
                    data: vec![],
                    av: None,
                    xrc_srqn: None,
                    signaled: true,
                    solicited: false,
                    fence: 0,
                };
                self.push(stub, image, 0, Some(Syndrome::LOCAL_QP_OP));
                return true;
            }
        };
        let failed = self.inject_send.take().or_else(|| self.inspect(shared, &wqe, &image));
        let failed = failed.or_else(|| match &wqe.work {
            Work::Umr(change) => self.change_key(shared, change, &image).err(),
            _ => None,
        });
        self.requester.drained = false;
        self.requester.after_umr = matches!(wqe.work, Work::Umr(_));
        let packets = match wqe.work {
            _ if failed.is_some() => 0,
            Work::Nop | Work::Umr(_) => 0,
            Work::Atomic(_) => 1,
            _ => (wqe.len_bytes().div_ceil(self.mtu(shared).into()) as u32).max(1),
        };
        self.push(wqe, image, packets, failed);
        shared.progress = true;
        true
    }

    fn push(&mut self, wqe: SendWqe, image: WqeImage, packets: u32, failed: Option<Syndrome>) {
        let at = image.index;
        if let Some(send) = &mut self.send {
            let left = send.rung.wrapping_sub(at);
            send.next = at.wrapping_add(wqe.bbs().min(left));
        }
        let requester = &mut self.requester;
        requester.stopped |= failed.is_some();
        let scatter = self.spec.scatter_requester && wqe.is_read() && wqe.len_bytes() <= 32;
        let first = requester.end;
        requester.end = psn::add(first, packets);
        requester.pending.push_back(Pending { wqe, image, at, first, packets, failed, inline: vec![], scatter });
    }

    /// Whether the WQE waits for earlier ones.
    fn must_wait(&self, wqe: &SendWqe) -> bool {
        let reads = self.requester.pending.iter().filter(|p| p.wqe.is_read()).count();
        let fenced = !matches!(wqe.fence, ctrl::FENCE_NONE | ctrl::FENCE_SMALL) && reads > 0;
        fenced || wqe.is_read() && reads > 0 && reads >= self.attr.max_rd_atomic as usize
    }

    /// What is wrong with a WQE before it is begun.
    fn inspect(&self, shared: &mut Shared, wqe: &SendWqe, image: &WqeImage) -> Option<Syndrome> {
        if wqe.index != image.index {
            self.report(shared, Some(image), Misuse::WqeIndex { found: wqe.index, expected: image.index });
        }
        if self.requester.after_umr && wqe.fence == ctrl::FENCE_NONE {
            self.report(shared, Some(image), Misuse::UmrNotFenced);
        }
        if wqe.is_read() && self.attr.max_rd_atomic == 0 {
            return Some(Syndrome::LOCAL_QP_OP);
        }
        let longest = if self.spec.kind == QpKind::Ud { self.mtu(shared).into() } else { MAX_MESSAGE_BYTES };
        let need = if wqe.is_read() { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        for segment in &wqe.data {
            if let Segment::Sge(sge) = segment
                && let Err(e) = shared.mkeys.check(self.asker(), sge.range(), need)
            {
                self.report(shared, Some(image), Misuse::LocalAccess(e));
                return Some(Syndrome::LOCAL_PROTECTION);
            }
        }
        (wqe.len_bytes() > longest).then_some(Syndrome::LOCAL_LENGTH)
    }

    fn mtu(&self, shared: &Shared) -> u32 {
        match self.spec.kind {
            QpKind::Ud => shared.ports.get(usize::from(self.attr.port).wrapping_sub(1)).map_or(256, |p| p.mtu_bytes),
            _ => self.attr.mtu_bytes,
        }
    }

    /// Sends the packet at the cursor. False if nothing more can be sent.
    fn send_next(&mut self, shared: &mut Shared) -> bool {
        let cursor = self.requester.cursor;
        let Some(place) = self.requester.pending.iter().position(|p| p.contains(cursor)) else {
            self.requester.cursor = self.requester.end;
            return true;
        };
        let pending = &self.requester.pending[place];
        if pending.failed.is_some() {
            return false;
        }
        let next = if pending.wqe.is_read() { pending.end() } else { psn::add(cursor, 1) };
        match self.packet(shared, pending, cursor) {
            Ok(Some(packet)) => {
                shared.progress = true;
                shared.out.push(packet);
            }
            // The port has no such address: the packet goes nowhere.
            Ok(None) => {}
            Err(e) => {
                self.report(shared, Some(&pending.image), Misuse::LocalAccess(e));
                self.requester.pending[place].failed = Some(Syndrome::LOCAL_PROTECTION);
                self.requester.stopped = true;
                return false;
            }
        }
        let requester = &mut self.requester;
        requester.cursor = next;
        if psn::ahead(next, requester.sent) > 0 {
            requester.sent = next;
        }
        if !self.spec.kind.is_reliable() {
            requester.una = next;
        } else if requester.timer.is_none() {
            self.restart_timer(shared);
        }
        true
    }

    /// The packet with number `at` of a WQE.
    fn packet(&self, shared: &Shared, pending: &Pending, at: u32) -> Result<Option<Packet>, KeyError> {
        let wqe = &pending.wqe;
        let n = psn::ahead(at, pending.first) as u32;
        let part = Part { first: n == 0, last: n + 1 == pending.packets };
        let offset = u64::from(n) * u64::from(self.mtu(shared));
        let left = wqe.len_bytes() - offset.min(wqe.len_bytes());
        let range = offset..offset + left.min(self.mtu(shared).into());
        let (address, rkey) = wqe.remote.unwrap_or_default();
        let len = wqe.len_bytes() as u32;
        let at_last = |imm: Option<[u8; 4]>| imm.filter(|_| part.last);
        let body = match &wqe.work {
            Work::Send { imm, invalidate } => Body::Send {
                part,
                payload: self.gather(shared, &wqe.data, range)?,
                imm: at_last(*imm),
                invalidate: invalidate.filter(|_| part.last),
            },
            Work::Write { imm } => Body::Write {
                part,
                remote: Remote { address, rkey, len },
                payload: self.gather(shared, &wqe.data, range)?,
                imm: at_last(*imm),
            },
            Work::Read => {
                Body::ReadRequest { remote: Remote { address: address.wrapping_add(offset), rkey, len: left as u32 } }
            }
            Work::Atomic(op) => Body::AtomicRequest { remote: Remote { address, rkey, len: 8 }, op: *op },
            Work::Nop | Work::Umr(_) => return Ok(None),
        };
        let ack_req = part.last || (n + 1).is_multiple_of(ACK_EVERY);
        let Some(mut packet) = (match &wqe.av {
            None => self.address(shared, at, ack_req, wqe.solicited && part.last, body),
            Some(av) => self.address_datagram(shared, at, wqe.solicited, av, body),
        }) else {
            return Ok(None);
        };
        packet.xrc_srqn = wqe.xrc_srqn.unwrap_or(0);
        Ok(Some(packet))
    }

    fn address_datagram(&self, shared: &Shared, at: u32, solicited: bool, av: &Av, body: Body) -> Option<Packet> {
        let path = Path {
            dlid: av.rlid,
            sl: av.sl,
            src_path_bits: av.src_path_bits,
            dmac: av.rmac,
            udp_sport: av.rlid,
            grh: av.grh.then_some(PathGrh {
                sgid_index: av.sgid_index,
                dgid: av.rgid,
                flow_label: av.flow_label,
                tclass: av.tclass,
                hop_limit: av.hop_limit,
            }),
        };
        let port = shared.ports.get(usize::from(self.attr.port).wrapping_sub(1))?;
        // A Q_Key with the top bit set stands for the queue pair's own.
        let qkey = if av.qkey & 1 << 31 != 0 { self.attr.qkey } else { av.qkey };
        Some(Packet {
            route: port.route(&path)?,
            pkey: port.pkeys.get(usize::from(self.attr.pkey_index)).copied()?,
            transport: self.spec.kind.transport(),
            dest_qpn: av.dqpn,
            src_qpn: self.qpn,
            psn: at,
            ack_req: false,
            solicited,
            qkey,
            xrc_srqn: 0,
            body,
        })
    }

    /// Bytes `range` of a message.
    fn gather(&self, shared: &Shared, data: &[Segment], range: std::ops::Range<u64>) -> Result<Vec<u8>, KeyError> {
        let mut out = Vec::with_capacity((range.end - range.start) as usize);
        let mut base = 0;
        for segment in data {
            let len = match segment {
                Segment::Inline(bytes) => bytes.len() as u64,
                Segment::Sge(sge) => sge.len.into(),
            };
            let from = range.start.clamp(base, base + len) - base;
            let to = range.end.clamp(base, base + len) - base;
            base += len;
            match segment {
                _ if from == to => {}
                Segment::Inline(bytes) => out.extend_from_slice(&bytes[from as usize..to as usize]),
                Segment::Sge(sge) => {
                    let part = KeyRange { key: sge.lkey, address: sge.address + from, len: to - from };
                    out.extend(shared.mkeys.read(&*shared.memory, self.asker(), part, Access::LOCAL_READ)?);
                }
            }
        }
        Ok(out)
    }

    /// Puts `bytes` at `offset` of where a message's answer goes.
    fn scatter(&self, shared: &Shared, data: &[Segment], offset: u64, bytes: &[u8]) -> Result<(), KeyError> {
        let (mut base, end) = (0, offset + bytes.len() as u64);
        for segment in data {
            let Segment::Sge(sge) = segment else { continue };
            let len = u64::from(sge.len);
            let from = offset.clamp(base, base + len);
            let to = end.clamp(base, base + len);
            if from != to {
                let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                let at = (sge.lkey, sge.address + (from - base));
                shared.mkeys.write(&*shared.memory, self.asker(), at, Access::LOCAL_WRITE, part)?;
            }
            base += len;
        }
        Ok(())
    }

    /// An answer from the responder.
    pub(super) fn receive_response(&mut self, packet: Packet, shared: &mut Shared) {
        let at = packet.psn;
        if psn::ahead(at, self.requester.una) < 0 || psn::ahead(at, self.requester.sent) >= 0 {
            return;
        }
        let before = self.requester.una;
        let mut refused = false;
        let lost = match packet.body {
            Body::Ack => self.requester.advance(psn::add(at, 1)).is_err(),
            Body::ReadResponse { payload } => self.receive_data(shared, at, &payload),
            // In the host's byte order, as the requester is told to deliver.
            Body::AtomicResponse { old } => self.receive_data(shared, at, &old.to_ne_bytes()),
            Body::RnrNak { timer } => {
                let lost = self.requester.advance(at).is_err();
                if !lost && self.requester.rnr_until.is_none() {
                    self.receiver_not_ready(shared, timer);
                }
                lost
            }
            Body::Nak(nak) => {
                let lost = self.requester.advance(at).is_err();
                match nak {
                    _ if lost => {}
                    // Heard once; a copy of the answer says nothing new.
                    Nak::SequenceError if self.requester.implied && self.requester.una == before => {}
                    Nak::SequenceError => {
                        self.try_again(shared);
                        refused = true;
                    }
                    Nak::InvalidRequest => self.fail_oldest(Syndrome::REMOTE_INVALID_REQUEST),
                    Nak::RemoteAccess => self.fail_oldest(Syndrome::REMOTE_ACCESS),
                    Nak::RemoteOperation => self.fail_oldest(Syndrome::REMOTE_OPERATION),
                }
                lost
            }
            _ => false,
        };
        if self.requester.una != before {
            (self.requester.tries, self.requester.rnr_tries) = (0, 0);
            self.requester.implied = false;
            if psn::ahead(self.requester.una, self.requester.cursor) > 0 {
                self.requester.cursor = self.requester.una;
            }
            self.restart_timer(shared);
        }
        if refused {
            self.requester.implied = true;
        }
        if lost && !std::mem::replace(&mut self.requester.implied, true) {
            self.try_again(shared);
        }
        self.retire(shared);
    }

    /// The other side has no receive WQE: it is left alone for the time that it asked for.
    fn receiver_not_ready(&mut self, shared: &Shared, timer: u8) {
        const FOR_EVER: u8 = 7;
        if self.attr.rnr_retry != FOR_EVER {
            if self.requester.rnr_tries >= self.attr.rnr_retry {
                return self.fail_oldest(Syndrome::RNR_RETRY_EXCEEDED);
            }
            self.requester.rnr_tries += 1;
        }
        self.requester.rnr_until = Some(shared.now + super::responder::rnr_delay(timer));
        self.requester.timer = None;
    }

    /// Bytes that a READ or atomic brought. True if an earlier answer must have been lost.
    fn receive_data(&mut self, shared: &mut Shared, at: u32, bytes: &[u8]) -> bool {
        if self.requester.advance(at).is_err() || self.requester.una != at {
            return true;
        }
        let mtu = u64::from(self.attr.mtu_bytes);
        let Some(place) = self.requester.pending.iter().position(|p| p.contains(at)) else { return false };
        let pending = &self.requester.pending[place];
        let offset = psn::ahead(at, pending.first) as u64 * mtu;
        let expected = mtu.min(pending.wqe.len_bytes().saturating_sub(offset));
        let failed = if !pending.wqe.is_read() || expected != bytes.len() as u64 {
            Some(Syndrome::BAD_RESPONSE)
        } else if pending.scatter {
            None
        } else {
            self.scatter(shared, &pending.wqe.data, offset, bytes).err().map(|e| {
                self.report(shared, Some(&pending.image), Misuse::LocalAccess(e));
                Syndrome::LOCAL_PROTECTION
            })
        };
        let pending = &mut self.requester.pending[place];
        if pending.scatter {
            pending.inline.extend_from_slice(bytes);
        }
        match failed {
            None => self.requester.una = psn::add(at, 1),
            Some(syndrome) => {
                pending.failed = Some(syndrome);
                self.requester.stopped = true;
            }
        }
        false
    }

    /// Completes WQEs from the oldest on, as far as they are done.
    fn retire(&mut self, shared: &mut Shared) {
        while matches!(self.state, QpState::Rts | QpState::Sqd) {
            let una = self.requester.una;
            let Some(oldest) = self.requester.pending.front() else { break };
            let done = psn::ahead(oldest.end(), una) <= 0;
            if oldest.failed.is_none() && !done {
                break;
            }
            let Some(pending) = self.requester.pop() else { break };
            if let Some(send) = &mut self.send {
                send.release(shared, pending.at, pending.wqe.bbs());
            }
            let written = match pending.failed {
                Some(syndrome) => {
                    let to = (self.spec.send_cq, cqe::opcode::REQ_ERR, self.spec.user_index.unwrap_or(0));
                    let written = self.complete_error(
                        shared,
                        to,
                        (syndrome, pending.at, *pending.image.bytes.get(3).unwrap_or(&0)),
                    );
                    if written {
                        self.stop_sending(shared);
                    }
                    written
                }
                None if pending.wqe.signaled => shared.complete(self.spec.send_cq, self.success(&pending)),
                None => true,
            };
            shared.progress = true;
            if !written {
                self.fail(shared, Some(Event::QpFatal { qpn: self.qpn }));
            }
        }
    }

    fn success(&self, pending: &Pending) -> Cqe {
        let mut entry = Cqe::new(cqe::opcode::REQ, self.qpn, self.spec.user_index.unwrap_or(0), pending.at);
        entry.put(cqe::SOP_QPN, &[pending.wqe.opcode()]);
        if pending.wqe.is_read() {
            entry.put(cqe::BYTE_CNT, &(pending.wqe.len_bytes() as u32).to_be_bytes());
        }
        if pending.scatter {
            entry.put(0, &pending.inline);
            entry.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_32;
        }
        entry
    }

    /// A WQE failed: connected reliable transports go to error, the others only stop sending.
    fn stop_sending(&mut self, shared: &mut Shared) {
        let state = if self.spec.kind.is_reliable() { QpState::Err } else { QpState::Sqe };
        self.enter(state, shared);
        self.requester.timer = None;
        self.requester.rnr_until = None;
        self.flush_sends(shared);
        if state == QpState::Err {
            self.flush_receives(shared);
        }
    }

    /// After a send error that did not end the receiving: begins anew with the next WQE posted.
    pub(crate) fn resume_sending(&mut self) {
        let end = self.requester.end;
        let attr = QpAttr { sq_psn: end, ..self.attr.clone() };
        self.requester = Requester::start(&attr);
    }

    /// Binds a window or takes a key back.
    fn change_key(&self, shared: &mut Shared, change: &Umr, image: &WqeImage) -> Result<(), Syndrome> {
        const FAILED: Syndrome = Syndrome::MW_BIND;
        let klm = |&(bytes, key, address): &(u32, u32, u64)| {
            let len = if bytes == 0 { 1 << 31 } else { u64::from(bytes) };
            KeyRange { key, address, len }
        };
        let ranges: Vec<KeyRange> = change.klms.iter().map(klm).collect();
        let covered = |mask: u64| change.mask & mask != 0;
        // Binding to a range that is not the binder's.
        if !change.free || !covered(umr::MASK_FREE) {
            let need = if change.access.allows(Access::REMOTE_WRITE) || change.access.allows(Access::REMOTE_ATOMIC) {
                Access::LOCAL_WRITE
            } else {
                Access::LOCAL_READ
            };
            for range in ranges.iter().filter(|_| change.len != 0) {
                if let Err(e) = shared.mkeys.check(self.asker(), *range, need) {
                    self.report(shared, Some(image), Misuse::LocalAccess(e));
                    return Err(FAILED);
                }
            }
        }
        let (pd, qpn) = (self.spec.pd, self.qpn);
        let mkey = shared.mkeys.entry(change.key).filter(|m| m.is_window && m.pd == pd).ok_or(FAILED)?;
        let bound_elsewhere = mkey.qpn.is_some_and(|owner| owner != qpn);
        if change.flags & umr::FAIL_IF_FREE != 0 && mkey.free
            || change.flags & umr::FAIL_IF_NOT_FREE != 0 && !mkey.free
            || change.flags & umr::CHECK_QPN != 0 && bound_elsewhere
            || !mkey.free && mkey.variant != change.key as u8
        {
            return Err(FAILED);
        }
        if covered(umr::MASK_FREE) {
            mkey.free = change.free;
        }
        if covered(umr::MASK_KEY) {
            mkey.variant = change.variant;
        }
        if covered(umr::MASK_QPN) {
            mkey.qpn = (change.qpn != 0xff_ffff && !change.free).then_some(change.qpn);
        }
        if covered(umr::MASK_START) {
            mkey.start = change.start;
        }
        if covered(umr::MASK_LEN) {
            mkey.len = change.len;
            // A window of no length grants nothing.
            mkey.free |= change.len == 0;
        }
        for (mask, right) in [
            (umr::MASK_LW, Access::LOCAL_WRITE),
            (umr::MASK_RR, Access::REMOTE_READ),
            (umr::MASK_RW, Access::REMOTE_WRITE),
            (umr::MASK_A, Access::REMOTE_ATOMIC),
        ] {
            if covered(mask) {
                mkey.access = Access(mkey.access.0 & !right.0 | change.access.0 & right.0);
            }
        }
        if !ranges.is_empty() {
            mkey.translation = Translation::Keys(ranges);
        }
        Ok(())
    }
}
