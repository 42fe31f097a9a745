//! Answers of the responder: what they acknowledge, what they bring, and what they refuse.

use super::{Qp, psn};
use crate::packet::{Body, Nak, Packet};
use crate::report::Misuse;
use crate::shared::Shared;
use crate::syndrome::Syndrome;

impl Qp {
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
            Body::AtomicResponse { old } => {
                let bytes = if shared.big_endian_atomics { old.to_be_bytes() } else { old.to_ne_bytes() };
                self.receive_data(shared, at, &bytes)
            }
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
                    Nak::InvalidRequest => self.refused(shared, Syndrome::REMOTE_INVALID_REQUEST),
                    Nak::RemoteAccess => self.refused(shared, Syndrome::REMOTE_ACCESS),
                    Nak::RemoteOperation => self.refused(shared, Syndrome::REMOTE_OPERATION),
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

    /// The other side refused the oldest request that it has not answered.
    fn refused(&mut self, shared: &mut Shared, syndrome: Syndrome) {
        let una = self.requester.una;
        if let Some(pending) = self.requester.pending.iter().find(|p| p.contains(una)) {
            self.report(shared, Some(&pending.image), Misuse::Refused(syndrome));
        }
        self.fail_oldest(syndrome);
    }

    /// The other side has no receive WQE: it is left alone for the time that it asked for.
    pub(super) fn receiver_not_ready(&mut self, shared: &Shared, timer: u8) {
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
    pub(super) fn receive_data(&mut self, shared: &mut Shared, at: u32, bytes: &[u8]) -> bool {
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
}
