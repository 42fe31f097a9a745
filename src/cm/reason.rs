//! Why a step failed, as an event's status tells: what the number is depends on the event.

use super::event::EventType;
use crate::uverbs::errno::Errno;
use crate::uverbs::named::names;
use std::fmt;

/// What an event's status means.
///
/// ```
/// use ironverbs::rdma_cm::{Reason, RejectReason};
/// assert_eq!(Reason::Rejected(RejectReason::CONSUMER_DEFINED).to_string(), "rejected by the peer's program (reason 28)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing went wrong.
    None,
    /// An error number of this host's kernel.
    Errno(Errno),
    /// The peer, or its kernel, rejected the connection.
    Rejected(RejectReason),
    /// The peer, or its kernel, did not resolve a service of datagrams.
    Unresolved(SidrStatus),
    /// A number that belongs to no known event.
    Other(i32),
}

impl Reason {
    /// Decodes the `status` of an event.
    pub(super) fn decode(event: EventType, status: i32) -> Self {
        match (event, status) {
            (_, 0) => Self::None,
            (_, negative @ ..0) => Self::Errno(Errno::from_raw(negative.saturating_neg())),
            (EventType::REJECTED, reason) => Self::Rejected(RejectReason(reason as u32)),
            (EventType::UNREACHABLE, status) => Self::Unresolved(SidrStatus(status as u32)),
            (_, other) => Self::Other(other),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no error"),
            Self::Errno(errno) => errno.fmt(f),
            Self::Rejected(reason) => reason.fmt(f),
            Self::Unresolved(status) => status.fmt(f),
            Self::Other(status) => write!(f, "status {status}"),
        }
    }
}

/// The number is told beside the name: it is what the specification and the peer's own log speak of.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident, $word:literal { $($constants:tt)* }) => {
        names! { $(#[$doc])* $name(u32) { $($constants)* } }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, concat!("{} (", $word, " {})"), name, self.0),
                    None => write!(f, concat!($word, " {}"), self.0),
                }
            }
        }
    };
}

numbers! {
    /// Why a connection was rejected (IB spec 12.6.7.2). Unknown numbers are kept.
    ///
    /// ```
    /// use ironverbs::rdma_cm::RejectReason;
    /// assert_eq!(RejectReason::INVALID_SERVICE_ID.to_string(), "nobody listens there (reason 8)");
    /// assert_eq!(RejectReason(99).to_string(), "reason 99"); // unknown numbers are kept
    /// ```
    #[doc(alias = "ib_cm_rej_reason")]
    RejectReason, "reason" {
        NO_QP = 1 "the peer has no queue pair for it",
        NO_EEC = 2 "the peer has no end-to-end context for it",
        NO_RESOURCES = 3 "the peer has no resources for it",
        TIMEOUT = 4 "the peer waited in vain for the rest of the handshake",
        UNSUPPORTED = 5 "the peer does not support what was asked",
        INVALID_COMM_ID = 6 "the peer knows no such connection",
        INVALID_COMM_INSTANCE = 7 "the peer knows no such instance of the connection",
        INVALID_SERVICE_ID = 8 "nobody listens there",
        INVALID_TRANSPORT_TYPE = 9 "the peer serves another transport",
        STALE_CONN = 10 "the peer still holds an earlier connection of this queue pair number",
        RDC_NOT_EXIST = 11 "the peer has no reliable datagram channel",
        INVALID_GID = 12 "the peer does not have that GID",
        INVALID_LID = 13 "the peer does not have that LID",
        INVALID_SL = 14 "the service level is not valid there",
        INVALID_TRAFFIC_CLASS = 15 "the traffic class is not valid there",
        INVALID_HOP_LIMIT = 16 "the hop limit is not valid there",
        INVALID_PACKET_RATE = 17 "the packet rate is not valid there",
        INVALID_ALT_GID = 18 "the peer does not have that alternate GID",
        INVALID_ALT_LID = 19 "the peer does not have that alternate LID",
        INVALID_ALT_SL = 20 "the alternate service level is not valid there",
        INVALID_ALT_TRAFFIC_CLASS = 21 "the alternate traffic class is not valid there",
        INVALID_ALT_HOP_LIMIT = 22 "the alternate hop limit is not valid there",
        INVALID_ALT_PACKET_RATE = 23 "the alternate packet rate is not valid there",
        PORT_CM_REDIRECT = 24 "the peer sends to another port's connection manager",
        PORT_REDIRECT = 25 "the peer sends to another port",
        INVALID_MTU = 26 "the path MTU is above what the peer can",
        INSUFFICIENT_RESP_RESOURCES = 27 "the peer has too few responder resources",
        CONSUMER_DEFINED = 28 "rejected by the peer's program",
        INVALID_RNR_RETRY = 29 "the receiver-not-ready retry count is not valid there",
        DUPLICATE_LOCAL_COMM_ID = 30 "the peer has a connection of that number already",
        INVALID_CLASS_VERSION = 31 "the peer speaks another version",
        INVALID_FLOW_LABEL = 32 "the flow label is not valid there",
        INVALID_ALT_FLOW_LABEL = 33 "the alternate flow label is not valid there",
        VENDOR_OPTION_NOT_SUPPORTED = 35 "the peer does not know the vendor's option",
    }
}

numbers! {
    /// Why a service of datagrams was not resolved (IB spec 12.11.2). Unknown numbers are kept.
    ///
    /// ```
    /// use ironverbs::rdma_cm::SidrStatus;
    /// assert_eq!(SidrStatus::REJECT.to_string(), "rejected by the peer's program (status 2)");
    /// ```
    #[doc(alias = "ib_cm_sidr_status")]
    SidrStatus, "status" {
        UNSUPPORTED = 1 "nobody listens there",
        REJECT = 2 "rejected by the peer's program",
        NO_QP = 3 "the peer has no queue pair for it",
        REDIRECT = 4 "the peer sends to another place",
        UNSUPPORTED_VERSION = 5 "the peer speaks another version",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Unknown error -1": the same number means another thing in another event.
    #[test]
    fn a_status_is_decoded_by_its_event() {
        let text = |event, status| Reason::decode(event, status).to_string();
        assert_eq!(text(EventType::ADDR_ERROR, -19), "ENODEV (No such device)");
        assert_eq!(text(EventType::UNREACHABLE, -110), "ETIMEDOUT (Connection timed out)");
        assert_eq!(text(EventType::REJECTED, 28), "rejected by the peer's program (reason 28)");
        assert_eq!(text(EventType::REJECTED, 8), "nobody listens there (reason 8)");
        assert_eq!(text(EventType::UNREACHABLE, 1), "nobody listens there (status 1)");
        assert_eq!(text(EventType::REJECTED, -111), "ECONNREFUSED (Connection refused)");
        assert_eq!(text(EventType::ROUTE_ERROR, 7), "status 7");
        assert_eq!(text(EventType::DISCONNECTED, 0), "no error");
        assert_eq!(text(EventType(77), i32::MIN), "error 2147483647");
    }

    #[test]
    fn every_known_reason_says_something_of_its_own() {
        let texts: std::collections::BTreeSet<_> = (0..64).filter_map(|raw| RejectReason(raw).name()).collect();
        assert_eq!(texts.len(), 34);
    }
}
