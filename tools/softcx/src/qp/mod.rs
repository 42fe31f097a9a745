//! Queue pairs: what they are made of, their states, and the turn that each gets in a step of the device.

mod answers;
mod deliver;
mod flush;
mod key_change;
mod outgoing;
mod psn;
mod requester;
mod responder;
mod route_header;
mod send_ring;
mod unreliable;

use crate::bits::cqe::{self, Cqe};
use crate::event::Event;
use crate::mkey::{Access, Asker};
use crate::packet::{Body, Packet, Transport};
use crate::port::Path;
use crate::recv::{RecvQueue, RecvSpec};
use crate::report::{Misuse, WqeImage};
use crate::shared::Shared;
use crate::syndrome::Syndrome;
use requester::Requester;
use responder::Responder;
use std::time::Duration;

pub(crate) use send_ring::SendRing;
pub use send_ring::SendSpec;

/// Kind of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Sending end of an extended reliable connection.
    XrcIni,
    /// Receiving end of an extended reliable connection.
    XrcTgt,
}

impl QpKind {
    /// Whether lost packets are sent again.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
            Self::XrcIni | Self::XrcTgt => Transport::Xrc,
        }
    }
}

/// State of a queue pair, numbered as the verbs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

/// What a queue pair is made of; it never changes.
#[derive(Clone, Debug)]
pub struct QpSpec {
    /// Kind.
    pub kind: QpKind,
    /// Protection domain.
    pub pd: u32,
    /// CQ of what it sends.
    pub send_cq: u32,
    /// CQ of what it receives.
    pub recv_cq: u32,
    /// The SRQ it receives from, instead of a ring of its own.
    pub srq: Option<u32>,
    /// XRC domain.
    pub xrcd: Option<u32>,
    /// Send ring.
    pub send: Option<SendSpec>,
    /// Receive ring.
    pub recv: Option<RecvSpec>,
    /// UAR page that its doorbell rings on.
    pub uar_page: u32,
    /// User index for its completions (CQE version 1).
    pub user_index: Option<u32>,
    /// What it reads may come inside the completion.
    pub scatter_requester: bool,
    /// What it receives may come inside the completion.
    pub scatter_responder: bool,
    /// Do not deliver its own multicast messages to it.
    pub block_multicast_loopback: bool,
}

/// What modifying a queue pair sets. Each state uses some of it.
#[derive(Clone, Debug)]
pub struct QpAttr {
    /// Port, from 1.
    pub port: u8,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Where it sends to (RC, UC, XRC).
    pub path: Path,
    /// Queue pair at the other side.
    pub dest_qpn: u32,
    /// Path MTU.
    pub mtu_bytes: u32,
    /// Next PSN to receive.
    pub rq_psn: u32,
    /// Next PSN to send.
    pub sq_psn: u32,
    /// Local ack timeout: 4.096 µs × 2^timeout; 0: never.
    pub timeout: u8,
    /// How often to try again.
    pub retry_count: u8,
    /// How often to try again when the receiver is not ready; 7: for ever.
    pub rnr_retry: u8,
    /// What its receiver-not-ready answers ask for, coded.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding at most, as requester.
    pub max_rd_atomic: u32,
    /// READs and atomics outstanding at most, as responder.
    pub max_dest_rd_atomic: u32,
    /// What the other side may do.
    pub access: Access,
    /// UD: Q_Key.
    pub qkey: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            port: 1,
            pkey_index: 0,
            path: Path::default(),
            dest_qpn: 0,
            mtu_bytes: 1024,
            rq_psn: 0,
            sq_psn: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            access: Access::default(),
            qkey: 0,
        }
    }
}

/// A queue pair (QP).
#[derive(Debug)]
pub struct Qp {
    pub(crate) qpn: u32,
    pub(crate) spec: QpSpec,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) send: Option<SendRing>,
    pub(crate) recv: Option<RecvQueue>,
    requester: Requester,
    responder: Responder,
    /// Does nothing at all while set.
    pub(crate) stuck: bool,
    /// The driver's own, which may change any key.
    pub(crate) privileged: bool,
    /// The next send WQE fails with it.
    pub(crate) inject_send: Option<Syndrome>,
    /// The next receive WQE used fails with it.
    pub(crate) inject_recv: Option<Syndrome>,
}

impl Qp {
    pub(crate) fn new(qpn: u32, spec: QpSpec) -> Self {
        let send = spec.send.clone().map(SendRing::new);
        let recv = spec.recv.clone().map(RecvQueue::new);
        Self {
            qpn,
            spec,
            state: QpState::Reset,
            attr: QpAttr::default(),
            send,
            recv,
            requester: Requester::default(),
            responder: Responder::default(),
            stuck: false,
            privileged: false,
            inject_send: None,
            inject_recv: None,
        }
    }

    /// The next PSNs to send and to receive.
    pub(crate) fn psns(&self) -> (u32, u32) {
        (self.requester.next_psn(), self.responder.expected_psn())
    }

    fn asker(&self) -> Asker {
        Asker { pd: self.spec.pd, qpn: self.qpn }
    }

    /// Goes to another state; attributes were set before. Forgets, starts or gives up what the state asks for.
    pub(crate) fn enter(&mut self, state: QpState, shared: &mut Shared) {
        let from = std::mem::replace(&mut self.state, state);
        match state {
            QpState::Reset => {
                self.give_back(shared);
                let fresh = Self::new(self.qpn, self.spec.clone());
                let (stuck, privileged) = (self.stuck, self.privileged);
                *self = Self { attr: std::mem::take(&mut self.attr), stuck, privileged, ..fresh };
            }
            QpState::Rtr => self.responder = Responder::start(self.attr.rq_psn),
            QpState::Rts if from == QpState::Rtr => self.requester = Requester::start(&self.attr),
            QpState::Rts if from == QpState::Sqe => self.resume_sending(),
            QpState::Err if from != QpState::Err => {
                self.responder.abandon();
                self.give_up_receiving(shared);
            }
            _ => {}
        }
        shared.progress = true;
    }

    /// Ends the poisoning of all receive buffers, before the queue forgets them.
    pub(crate) fn give_back(&mut self, shared: &mut Shared) {
        let asker = self.asker();
        if let Some(recv) = &mut self.recv {
            recv.give_back(shared, asker);
        }
        while let Some((mut wqe, source)) = self.responder.take_incoming() {
            wqe.release(shared, source.asker, 0);
        }
    }

    /// Goes to error because of something that happened, and says so where software could not know.
    fn fail(&mut self, shared: &mut Shared, event: Option<Event>) {
        shared.events.extend(event);
        if self.state != QpState::Err {
            self.enter(QpState::Err, shared);
        }
    }

    /// Software rang: the send ring may hold WQEs up to what the doorbell record says. Not so in the reset state: until software
    /// has set it back, the record is what it was before.
    pub(crate) fn ring(&mut self, shared: &mut Shared, doorbell: Option<u64>) {
        if self.state != QpState::Reset
            && let Some(send) = &mut self.send
        {
            send.ring(shared, self.qpn, doorbell);
        }
    }

    /// A BlueFlame copy, which is whole, and whose doorbell rang, takes the place of its WQE in the ring. It must be the same.
    pub(crate) fn take_copy(&mut self, shared: &mut Shared, copy: &[u8]) {
        if self.state != QpState::Reset
            && let Some(wrong) = self.send.as_mut().and_then(|send| send.take_copy(shared, copy))
        {
            self.report(shared, Some(&wrong), Misuse::BlueFlameImage);
        }
    }

    /// Compares what was found behind a doorbell, and may be a BlueFlame copy, with the WQE in the ring.
    pub(crate) fn check_image(&self, shared: &mut Shared, copy: &[u8]) {
        if let Some(send) = &self.send
            && send.differs(shared, copy)
        {
            shared.report(self.qpn, None, Misuse::BlueFlameImage);
        }
    }

    /// One turn.
    pub(crate) fn work(&mut self, shared: &mut Shared) {
        if self.stuck || self.state == QpState::Reset {
            return;
        }
        let asker = self.asker();
        if let Some(recv) = &mut self.recv {
            recv.refresh(shared, self.qpn, asker);
        }
        match self.state {
            QpState::Rts => self.request(shared),
            QpState::Sqd => self.drain(shared),
            QpState::Sqe => self.flush_sends(shared),
            QpState::Err => {
                self.flush_sends(shared);
                self.flush_receives(shared);
            }
            _ => {}
        }
        if self.state != QpState::Err {
            self.respond(shared);
        }
    }

    /// When something is due although nothing comes in.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (!self.stuck && matches!(self.state, QpState::Rts | QpState::Sqd)).then(|| self.requester.deadline()).flatten()
    }

    /// A packet for this queue pair.
    pub(crate) fn receive(&mut self, packet: Packet, shared: &mut Shared) {
        let listens = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if self.stuck || !listens || packet.transport != self.spec.kind.transport() {
            return;
        }
        let pkey = shared
            .ports
            .get(usize::from(self.attr.port).wrapping_sub(1))
            .and_then(|p| p.pkeys.get(usize::from(self.attr.pkey_index)));
        if pkey.is_none_or(|own| own & 0x7fff != packet.pkey & 0x7fff || (own | packet.pkey) & 0x8000 == 0) {
            return;
        }
        if self.spec.kind != QpKind::Ud && packet.src_qpn != self.attr.dest_qpn {
            return;
        }
        match self.spec.kind {
            _ if packet.body.is_response() => {
                if self.state != QpState::Sqe {
                    self.receive_response(packet, shared);
                }
            }
            QpKind::Ud => self.receive_datagram(packet, shared),
            QpKind::Uc => self.receive_unreliable(packet, shared),
            QpKind::Rc | QpKind::XrcTgt => self.receive_request(packet, shared),
            QpKind::XrcIni => {}
        }
    }

    /// Addresses a packet to the other side and sends it.
    fn emit(&self, shared: &mut Shared, psn: u32, ack_req: bool, solicited: bool, body: Body) {
        let Some(packet) = self.address(shared, psn, ack_req, solicited, body) else { return };
        shared.progress = true;
        shared.out.push(packet);
    }

    fn address(&self, shared: &Shared, psn: u32, ack_req: bool, solicited: bool, body: Body) -> Option<Packet> {
        let port = shared.ports.get(usize::from(self.attr.port).wrapping_sub(1))?;
        Some(Packet {
            route: port.route(&self.attr.path)?,
            pkey: port.pkeys.get(usize::from(self.attr.pkey_index)).copied()?,
            transport: self.spec.kind.transport(),
            dest_qpn: self.attr.dest_qpn,
            src_qpn: self.qpn,
            psn,
            ack_req,
            solicited,
            qkey: 0,
            xrc_srqn: 0,
            body,
        })
    }

    /// Writes the completion of a send WQE in error, flushed ones included. False if there was no place for it.
    fn complete_error(
        &self,
        shared: &mut Shared,
        (cqn, opcode, user_index): (u32, u8, u32),
        (syndrome, wqe_counter, send_opcode): (Syndrome, u16, u8),
    ) -> bool {
        let mut entry = Cqe::new(opcode, self.qpn, user_index, wqe_counter);
        entry.put(cqe::VENDOR_ERR, &[syndrome.vendor()]).put(cqe::SYNDROME, &[syndrome.0]);
        entry.put(cqe::SOP_QPN, &[send_opcode]);
        shared.complete(cqn, entry)
    }

    fn report(&self, shared: &mut Shared, wqe: Option<&WqeImage>, misuse: Misuse) {
        shared.report(self.qpn, wqe, misuse);
    }
}
