//! What ids are made with, and what they say of themselves when they connect.

use super::abi::{self, ConnParam};
use super::data::{Message, SendData};
use super::error::{Error, Step};
use super::event::Ece;
use crate::uverbs::types::Qpn;

/// What ports mean, and which queue pairs there are (`enum rdma_ucm_port_space`).
///
/// ```
/// use ironverbs::rdma_cm::PortSpace;
/// assert!(PortSpace::Udp.is_datagram() && !PortSpace::Tcp.is_datagram());
/// ```
#[doc(alias = "rdma_port_space")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortSpace {
    /// Reliable connections, with ports like those of TCP.
    Tcp,
    /// Datagrams, with ports like those of UDP.
    Udp,
    /// Datagrams that meet those of IP over InfiniBand; multicast groups with its Q_Key. On InfiniBand only: on other links the
    /// kernel refuses to bind or resolve (`EINVAL`).
    Ipoib,
    /// Service ids of InfiniBand, for reliable connections.
    IbRc,
    /// Service ids of InfiniBand, for datagrams.
    IbUd,
}

impl PortSpace {
    /// Whether ids resolve services of datagrams, and make no connections.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Udp | Self::Ipoib | Self::IbUd)
    }

    /// The kernel's numbers, of the space and of the queue pairs.
    pub(super) const fn raw(self) -> (u16, u8) {
        use crate::uverbs::abi::verbs::qp_type;
        match self {
            Self::Tcp => (abi::port_space::TCP, qp_type::RC),
            Self::Udp => (abi::port_space::UDP, qp_type::UD),
            Self::Ipoib => (abi::port_space::IPOIB, qp_type::UD),
            Self::IbRc => (abi::port_space::IB, qp_type::RC),
            Self::IbUd => (abi::port_space::IB, qp_type::UD),
        }
    }
}

/// What this side says of its end of a connection, or of where it takes datagrams.
///
/// ```
/// use ironverbs::Qpn;
/// use ironverbs::rdma_cm::{ConnParams, SendData};
/// let mut params = ConnParams::new(Qpn::new(17)?);
/// params.private_data = SendData::counted(b"hello");
/// # Ok::<(), ironverbs::OutOfRange>(())
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnParams<'a> {
    /// This side's queue pair.
    pub qpn: Qpn,
    /// Private data. Of a connection a request takes 56 bytes and an answer 196; of datagrams 180 and 136.
    pub private_data: SendData<'a>,
    /// READs and atomics from the peer that this side answers at once. Default 1.
    pub responder_resources: u8,
    /// READs and atomics under way at once from here. Default 1.
    pub initiator_depth: u8,
    /// Whether the flow is controlled end to end. Default yes.
    pub flow_control: bool,
    /// Retries after a time-out, 0 to 7, of either side. The request's counts. Default 6: Soft-RoCE takes 7 for retries
    /// without end.
    pub retry_count: u8,
    /// Retries after receiver-not-ready that the peer is to make, 0 to 6; 7 is without end. Default 6, so that a side that
    /// never posts a receive gives its peer an error and not a hang.
    pub rnr_retry_count: u8,
    /// Whether the queue pair receives from a shared receive queue.
    pub srq: bool,
    /// What this side's adapter offers. Default nothing.
    pub ece: Ece,
}

impl ConnParams<'_> {
    /// The default ones, of that queue pair.
    pub fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            private_data: SendData::NONE,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 6,
            rnr_retry_count: 6,
            srq: false,
            ece: Ece::default(),
        }
    }

    /// Refuses what does not fit into the message of the step.
    pub(crate) fn check(&self, step: Step, message: Message, datagrams: bool) -> Result<(), Error> {
        self.raw(step, message.limit(datagrams)).map(drop)
    }

    pub(super) fn raw(&self, step: Step, limit: usize) -> Result<ConnParam, Error> {
        for (what, value) in [("retry_count", self.retry_count), ("rnr_retry_count", self.rnr_retry_count)] {
            if value > 7 {
                return Err(Error::invalid(step, what, value, "at most 7"));
            }
        }
        let mut raw = ConnParam {
            qp_num: self.qpn.get(),
            srq: self.srq.into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            valid: 1,
            ..ConnParam::default()
        };
        raw.private_data_len = self.private_data.put(step, limit, &mut raw.private_data)?;
        Ok(raw)
    }
}
