//! The sending side: WQEs become packets, answers become completions, silence becomes another try.

use super::send_ring::SendRing;
use super::{Qp, QpAttr, QpKind, QpState, psn};
use crate::bits::cqe::{self, Cqe};
use crate::bits::wqe::ctrl;
use crate::event::Event;
use crate::memory::BusError;
use crate::mkey::Access;
use crate::report::{Misuse, WqeImage};
use crate::shared::Shared;
use crate::syndrome::Syndrome;
use crate::tap::Entry;
use crate::wqe::{Segment, SendWqe, Work};
use std::collections::VecDeque;
use std::time::Duration;

/// Packets unacknowledged at most.
const WINDOW: i32 = 256;
/// Packets sent in one turn at most.
const TURN: u32 = 64;
/// Longest message.
const MAX_MESSAGE_BYTES: u64 = 1 << 30;

#[derive(Debug, Default)]
pub(super) struct Requester {
    /// WQEs begun, oldest first.
    pub(super) pending: VecDeque<Pending>,
    /// Oldest PSN without an answer.
    pub(super) una: u32,
    /// Next PSN to send.
    pub(super) cursor: u32,
    /// One past the last PSN ever sent.
    pub(super) sent: u32,
    /// First PSN of the next WQE.
    pub(super) end: u32,
    /// Times that it was tried again since something moved: after silence or loss, and because the receiver was not ready.
    pub(super) tries: u8,
    pub(super) rnr_tries: u8,
    /// Receiver not ready: silence until then.
    pub(super) rnr_until: Option<Duration>,
    /// The answer to `una` is overdue then.
    pub(super) timer: Option<Duration>,
    /// An answer has shown that the one to `una` was lost; said once until something moves.
    pub(super) implied: bool,
    /// A WQE failed before it was sent; nothing behind it is begun.
    pub(super) stopped: bool,
    /// The WQE before was a UMR.
    pub(super) after_umr: bool,
    /// Software was told that the queue has drained.
    pub(super) drained: bool,
}

/// A WQE begun.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) wqe: SendWqe,
    pub(super) image: WqeImage,
    /// Counter of its first BB.
    pub(super) at: u16,
    pub(super) first: u32,
    pub(super) packets: u32,
    pub(super) failed: Option<Syndrome>,
    /// What came back, if it is to go into the completion.
    pub(super) inline: Vec<u8>,
    pub(super) scatter: bool,
}

impl Pending {
    pub(super) fn end(&self) -> u32 {
        psn::add(self.first, self.packets)
    }

    pub(super) fn contains(&self, at: u32) -> bool {
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
    pub(super) fn advance(&mut self, target: u32) -> Result<(), Lost> {
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

    pub(super) fn go_back(&mut self) {
        self.cursor = self.una;
    }
}

/// An answer that must have come has not.
pub(super) struct Lost;

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

    pub(super) fn restart_timer(&mut self, shared: &Shared) {
        let requester = &mut self.requester;
        let waits = self.spec.kind.is_reliable() && requester.una != requester.sent && self.attr.timeout != 0;
        requester.timer = waits.then(|| shared.now + Duration::from_nanos(4096 << self.attr.timeout.min(31)));
    }

    /// Goes back to the oldest packet without an answer, if there is a try left.
    pub(super) fn try_again(&mut self, shared: &mut Shared) {
        if self.requester.tries >= self.attr.retry_count {
            return self.fail_oldest(Syndrome::RETRY_EXCEEDED);
        }
        self.requester.tries += 1;
        self.requester.go_back();
        self.restart_timer(shared);
        shared.progress = true;
    }

    pub(super) fn fail_oldest(&mut self, syndrome: Syndrome) {
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
                self.report(shared, None, Misuse::RingMemory { address, event: true });
                self.fail(shared, Some(Event::QpFatal { qpn: self.qpn }));
                return false;
            }
        };
        let at = image.index;
        let decoded = SendWqe::decode(&image.bytes, self.spec.kind);
        if decoded.as_ref().is_ok_and(|wqe| self.must_wait(wqe)) {
            return false;
        }
        self.show_send(shared, send, &image);
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

    /// Shows a WQE that is taken from the ring.
    pub(super) fn show_send(&self, shared: &mut Shared, send: &SendRing, image: &WqeImage) {
        shared.show(Entry::Send {
            qpn: self.qpn,
            kind: self.spec.kind,
            index: image.index,
            blocks: send.blocks(),
            copied: image.copied,
            bytes: &image.bytes,
        });
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

    pub(super) fn mtu(&self, shared: &Shared) -> u32 {
        let bytes = match self.spec.kind {
            QpKind::Ud => shared.ports.get(usize::from(self.attr.port).wrapping_sub(1)).map_or(256, |p| p.mtu_bytes),
            _ => self.attr.mtu_bytes,
        };
        bytes.max(1)
    }

    /// Completes WQEs from the oldest on, as far as they are done.
    pub(super) fn retire(&mut self, shared: &mut Shared) {
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
}
