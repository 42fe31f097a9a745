//! What happens to WQEs of a queue pair in error: each completes with [`Syndrome::FLUSH`], in order, those posted later too.

use super::Qp;
use crate::bits::cqe::opcode;
use crate::event::Event;
use crate::shared::Shared;
use crate::syndrome::Syndrome;

impl Qp {
    /// Flushes what is in the send ring, from the oldest WQE that is not done.
    pub(super) fn flush_sends(&mut self, shared: &mut Shared) {
        while let Some(pending) = self.requester.pop() {
            self.flush_send(shared, pending.at, pending.wqe.bbs(), pending.wqe.opcode());
        }
        while let Some(send) = &self.send {
            let Ok(Some(image)) = send.fetch(shared) else { break };
            let at = image.index;
            self.show_send(shared, send, &image);
            let (bbs, op) = (((image.bytes.len() / 16) as u16).div_ceil(4), image.bytes[3]);
            if let Some(send) = &mut self.send {
                // Never past what was rung, whatever the WQE says of its length.
                let left = send.rung.wrapping_sub(at);
                send.next = at.wrapping_add(bbs.min(left));
            }
            self.flush_send(shared, at, bbs, op);
        }
    }

    fn flush_send(&mut self, shared: &mut Shared, at: u16, bbs: u16, send_opcode: u8) {
        if let Some(send) = &mut self.send {
            send.release(shared, at, bbs);
        }
        let to = (self.spec.send_cq, opcode::REQ_ERR, self.spec.user_index.unwrap_or(0));
        self.complete_error(shared, to, (Syndrome::FLUSH, at, send_opcode));
    }

    /// Flushes the receive ring.
    pub(super) fn flush_receives(&mut self, shared: &mut Shared) {
        let asker = self.asker();
        let to = (self.spec.recv_cq, opcode::RESP_ERR, self.spec.user_index.unwrap_or(0));
        while let Some(mut wqe) = self.recv.as_mut().and_then(|r| r.take(shared)) {
            wqe.release(shared, asker, 0);
            self.complete_error(shared, to, (Syndrome::FLUSH, wqe.index, 0));
        }
    }

    /// On the way into error: the WQE of a message that was coming in is flushed, and no more are taken from an SRQ.
    pub(super) fn give_up_receiving(&mut self, shared: &mut Shared) {
        while let Some((mut wqe, source)) = self.responder.take_incoming() {
            wqe.release(shared, source.asker, 0);
            let to = (source.cqn, opcode::RESP_ERR, source.user_index);
            self.complete_error(shared, to, (Syndrome::FLUSH, wqe.index, 0));
        }
        if self.spec.srq.is_some() {
            shared.events.push_back(Event::LastWqe { qpn: self.qpn });
        }
    }
}
