//! What a side brings to a handshake, besides its queue pair.

use crate::cm::data::{Message, SendData};
use crate::cm::error::{Error, Step};
use crate::cm::event::{Ece, PeerParams};
use crate::cm::id::ConnParams;
use crate::uverbs::attr::DeviceAttr;
use crate::uverbs::types::Qpn;
use crate::verbs::attr::RnrTimer;

/// What this side brings to a connection: private data, and how it is to behave.
///
/// ```
/// use ironverbs::rdma_cm::{Handshake, SendData};
/// let mut handshake = Handshake::default();
/// handshake.private_data = SendData::counted(b"hello");
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Handshake<'a> {
    /// Private data: up to 56 bytes of who asks, up to 196 of who accepts.
    pub private_data: SendData<'a>,
    /// READs and atomics from the peer that this side answers at once. `None` for 16, or what the device can.
    pub responder_resources: Option<u8>,
    /// READs and atomics under way at once from here. `None` for 16, or what the device and the peer can.
    pub initiator_depth: Option<u8>,
    /// Retries after a time-out, 0 to 7, of both sides; who asks decides. Default 6: Soft-RoCE takes 7 for retries without
    /// end.
    pub retry_count: u8,
    /// Retries after receiver-not-ready that the peer is to make, 0 to 6; 7 is without end. Default 6.
    pub rnr_retry_count: u8,
    /// How long the peer waits after it found no receive posted here. Default 0.64 ms.
    pub min_rnr_timer: RnrTimer,
    /// What this side's adapter offers beyond the ordinary. Default nothing.
    pub ece: Ece,
}

impl Default for Handshake<'_> {
    fn default() -> Self {
        Self {
            private_data: SendData::NONE,
            responder_resources: None,
            initiator_depth: None,
            retry_count: 6,
            rnr_retry_count: 6,
            min_rnr_timer: RnrTimer::DEFAULT,
            ece: Ece::default(),
        }
    }
}

impl<'a> Handshake<'a> {
    /// Refuses what does not fit into the message of the step.
    pub(super) fn check(&self, step: Step, message: Message) -> Result<(), Error> {
        self.words(Qpn::default()).check(step, message, false)
    }

    /// What hangs on neither device nor peer.
    fn words(&self, qpn: Qpn) -> ConnParams<'a> {
        let mut params = ConnParams::new(qpn);
        params.private_data = self.private_data;
        params.retry_count = self.retry_count;
        params.rnr_retry_count = self.rnr_retry_count;
        params.ece = self.ece;
        params
    }

    /// In the connection manager's words, for a queue pair of a device; to answer a `peer`, no more than it can.
    pub(super) fn params(&self, attr: &DeviceAttr, qpn: Qpn, srq: bool, peer: Option<&PeerParams>) -> ConnParams<'a> {
        let at_most = |device: u32, peer: Option<u8>| (device.min(16) as u8).min(peer.unwrap_or(u8::MAX));
        let answered = at_most(attr.max_qp_rd_atom, peer.map(|peer| peer.responder_resources));
        let asked = at_most(attr.max_qp_init_rd_atom, peer.map(|peer| peer.initiator_depth));
        let mut params = self.words(qpn);
        params.responder_resources = self.responder_resources.unwrap_or(answered);
        params.initiator_depth = self.initiator_depth.unwrap_or(asked);
        params.srq = srq;
        params
    }
}
