//! Events: what happened to an id.

use super::abi::{ConnParam, Ece as RawEce, EventResp, UdParam};
use super::data::PrivateData;
use super::id::{CmId, IdKey};
use super::reason::Reason;
use crate::uverbs::attr::AddressVector;
use crate::uverbs::types::QKey;
use std::fmt;

/// What happened (`enum rdma_cm_event_type`). Unknown numbers are kept.
///
/// ```
/// use ironverbs::rdma_cm::EventType;
/// assert_eq!(EventType::ESTABLISHED.to_string(), "ESTABLISHED");
/// assert_eq!(EventType(99).to_string(), "event 99"); // unknown numbers are kept
/// ```
#[doc(alias = "rdma_cm_event_type")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventType(pub u32);

macro_rules! event_types {
    ($($(#[$doc:meta])* $name:ident = $raw:literal,)*) => {
        impl EventType {
            $($(#[$doc])* pub const $name: Self = Self($raw);)*

            /// The C name without its prefix, for known values.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($raw => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

event_types! {
    /// The peer's address is resolved: it is known which device leads there.
    ADDR_RESOLVED = 0,
    /// It could not be.
    ADDR_ERROR = 1,
    /// The route is resolved: the id can be connected.
    ROUTE_RESOLVED = 2,
    /// It could not be.
    ROUTE_ERROR = 3,
    /// A peer asks for a connection: [`Event::take_request`].
    CONNECT_REQUEST = 4,
    /// The peer accepted. Bring the queue pair up, then [`CmId::establish`].
    CONNECT_RESPONSE = 5,
    /// The connection failed on this side.
    CONNECT_ERROR = 6,
    /// The peer did not answer; of datagrams, or answered that there is no such service.
    UNREACHABLE = 7,
    /// The peer rejected.
    REJECTED = 8,
    /// The connection is established; of datagrams, the peer's queue pair is known.
    ESTABLISHED = 9,
    /// The connection ended.
    DISCONNECTED = 10,
    /// The device goes away: drop what is on it.
    DEVICE_REMOVAL = 11,
    /// A multicast group was joined.
    MULTICAST_JOIN = 12,
    /// It could not be, or was lost.
    MULTICAST_ERROR = 13,
    /// The network interface has another link address now.
    ADDR_CHANGE = 14,
    /// Late packets of the connection are gone: its queue pair's number can be used again.
    TIMEWAIT_EXIT = 15,
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "event {}", self.0),
        }
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventType({self})")
    }
}

/// An event, with all that it told. It owns its data; there is nothing to acknowledge, and its id may be dropped meanwhile.
///
/// ```no_run
/// # fn f(channel: &ironverbs::rdma_cm::EventChannel) -> Result<(), ironverbs::rdma_cm::Error> {
/// channel.drain(|event| println!("{:?}: {}, {}", event.id(), event.event_type(), event.reason()))?;
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
pub struct Event {
    id: IdKey,
    event_type: EventType,
    status: i32,
    details: Details,
    ece: Ece,
    request: Option<CmId>,
    group: Option<u32>,
}

/// What the other side said, in the form of the id's kind.
#[derive(Debug)]
enum Details {
    Connection(PeerParams),
    Datagrams(DatagramPeer),
}

impl Event {
    /// From the kernel's record, about `id`, which is of datagrams or not; with the new id of a request.
    pub(super) fn new(record: &EventResp, id: IdKey, datagrams: bool, request: Option<CmId>) -> Self {
        let event_type = EventType(record.event);
        let details = match datagrams {
            true => Details::Datagrams(DatagramPeer::new(&record.param.ud())),
            false => Details::Connection(PeerParams::new(&record.param.conn())),
        };
        let group = matches!(event_type, EventType::MULTICAST_JOIN | EventType::MULTICAST_ERROR).then_some(record.id);
        let ece = Ece::new(&record.ece);
        Self { id, event_type, status: record.status as i32, details, ece, request, group }
    }

    /// Which id it is about; of a request, the one that listens.
    pub fn id(&self) -> IdKey {
        self.id
    }

    /// What happened.
    pub fn event_type(&self) -> EventType {
        self.event_type
    }

    /// The kernel's number, which means another thing in each event.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// The status, decoded.
    pub fn reason(&self) -> Reason {
        Reason::decode(self.event_type, self.status)
    }

    /// What the peer said of its end of a connection: of a request, an answer or a rejection. Zeros in other events, and
    /// `None` of datagrams.
    pub fn peer(&self) -> Option<&PeerParams> {
        match &self.details {
            Details::Connection(peer) => Some(peer),
            Details::Datagrams(_) => None,
        }
    }

    /// Where the peer takes datagrams, or where those of a group go. `None` of connections.
    pub fn datagram_peer(&self) -> Option<&DatagramPeer> {
        match &self.details {
            Details::Connection(_) => None,
            Details::Datagrams(peer) => Some(peer),
        }
    }

    /// The private data that came with it.
    pub fn private_data(&self) -> &PrivateData {
        match &self.details {
            Details::Connection(peer) => &peer.private_data,
            Details::Datagrams(peer) => &peer.private_data,
        }
    }

    /// What the peer's adapter offers for this connection beyond the ordinary; zeros for nothing.
    pub fn ece(&self) -> Ece {
        self.ece
    }

    /// The id of a request, once: whoever takes it accepts or rejects. Dropped with the event, it turns the peer away.
    pub fn take_request(&mut self) -> Option<CmId> {
        self.request.take()
    }

    /// The number that [`CmId::join_multicast`] gave, of events of a group.
    pub(super) fn group(&self) -> Option<u32> {
        self.group
    }

    pub(crate) fn into_private_data(self) -> PrivateData {
        match self.details {
            Details::Connection(peer) => peer.private_data,
            Details::Datagrams(peer) => peer.private_data,
        }
    }
}

/// What a peer says of its end of a connection.
///
/// ```no_run
/// # fn f(event: &ironverbs::rdma_cm::Event) {
/// if let Some(peer) = event.peer() {
///     println!("{} READs at once, {:?}", peer.responder_resources, peer.private_data);
/// }
/// # }
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerParams {
    /// Private data.
    pub private_data: PrivateData,
    /// READs and atomics from the peer that this side is to answer at once: in the peer's words its initiator depth.
    pub responder_resources: u8,
    /// READs and atomics under way at once that the peer answers: in its words its responder resources.
    pub initiator_depth: u8,
    /// Whether it controls the flow end to end.
    pub flow_control: bool,
    /// Retries after a time-out that it asks for.
    pub retry_count: u8,
    /// Retries after receiver-not-ready that it asks for; 7 is without end.
    pub rnr_retry_count: u8,
    /// Whether it receives from a shared receive queue.
    pub srq: bool,
    /// Its queue pair's number; zero in rejections.
    pub qpn: u32,
}

impl PeerParams {
    fn new(raw: &ConnParam) -> Self {
        Self {
            private_data: PrivateData::new(&raw.private_data, raw.private_data_len),
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            flow_control: raw.flow_control != 0,
            retry_count: raw.retry_count,
            rnr_retry_count: raw.rnr_retry_count,
            srq: raw.srq != 0,
            qpn: raw.qp_num,
        }
    }
}

/// Where a peer takes datagrams.
///
/// ```no_run
/// # fn f(event: &ironverbs::rdma_cm::Event) {
/// if let Some(peer) = event.datagram_peer() {
///     println!("queue pair {:#08x} with {}", peer.qpn, peer.qkey);
/// }
/// # }
/// ```
#[doc(alias = "rdma_ud_param")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramPeer {
    /// Private data.
    pub private_data: PrivateData,
    /// Its queue pair's number, or [`Qpn::MULTICAST`](crate::Qpn::MULTICAST)'s of a group.
    pub qpn: u32,
    /// The Q_Key that it takes.
    pub qkey: QKey,
    /// The way there.
    pub address: AddressVector,
}

impl DatagramPeer {
    fn new(raw: &UdParam) -> Self {
        Self {
            private_data: PrivateData::new(&raw.private_data, raw.private_data_len),
            qpn: raw.qp_num,
            qkey: QKey(raw.qkey),
            address: AddressVector::from(&raw.ah_attr),
        }
    }
}

/// Enhanced connection establishment (ECE): what two adapters of one vendor agree on for a connection. The connection manager
/// carries it unread.
///
/// ```
/// use ironverbs::rdma_cm::Ece;
/// assert_eq!(Ece::default(), Ece { vendor_id: 0, attr_mod: 0 });
/// ```
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Whose options they are; zero for none.
    pub vendor_id: u32,
    /// The options.
    pub attr_mod: u32,
}

impl Ece {
    fn new(raw: &RawEce) -> Self {
        Self { vendor_id: raw.vendor_id, attr_mod: raw.attr_mod }
    }

    pub(super) fn raw(self) -> RawEce {
        RawEce { vendor_id: self.vendor_id, attr_mod: self.attr_mod }
    }
}
