//! Arrival on unreliable transports, where what is lost is lost, and nobody is told.

use super::responder::{Message, Refused};
use super::route_header::{describe_route, route_header};
use super::{Qp, psn};
use crate::bits::cqe::{self, Cqe, opcode};
use crate::packet::{Body, MULTICAST_LIDS, Nak, Packet};
use crate::shared::Shared;
use crate::syndrome::Syndrome;

impl Qp {
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
    pub(super) fn drop_message(&mut self) {
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
        if packet.route.dlid >= MULTICAST_LIDS {
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
