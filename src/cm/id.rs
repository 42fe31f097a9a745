//! Ids: one end of a connection in the making, of a service, or of a multicast group.

use super::abi::{self, Accept, BindIp, Command, ConnParam, CreateId, DestroyId, EventsReported, ResolveIp, Storage};
use super::address;
use super::channel::{EventChannel, next_key, register, unregister};
use super::command::send;
use super::data::{Message, SendData};
use super::error::{About, Error, Step};
use super::event::{Ece, Event, EventType};
use super::explain;
use super::state::State;
use crate::uverbs::device::DeviceIndex;
use crate::uverbs::errno::Errno;
use crate::uverbs::types::{PortNum, Qpn};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use zerocopy::FromZeros;

/// Which id an event is about.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId, event: &ironverbs::rdma_cm::Event) {
/// assert_eq!(event.id(), id.key());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(pub(super) u64);

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
    const fn raw(self) -> (u16, u8) {
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

    fn raw(&self, step: Step, limit: usize) -> Result<ConnParam, Error> {
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

/// An id of the connection manager: one end of a connection in the making.
///
/// Its steps return at once; what comes of them is told by events of its [channel](EventChannel). An id can be bound and
/// resolved before any device is opened: [`addresses`](Self::addresses) tells which device it is on by then.
///
/// Dropped at any time, also while one of its events is being handled, it is gone: a connection is ended, a peer that asks is
/// turned away, and what events were on their way are nobody's. The drop is one command, and returns when the kernel has
/// done it, which may take it a minute where a peer does not confirm the end: a task had better drop on another thread. All
/// its methods take `&self`, from any thread.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::rdma_cm::{EventChannel, PortSpace};
/// let channel = EventChannel::open()?;
/// let listener = channel.create_id(PortSpace::Tcp)?;
/// listener.bind("10.9.9.1:7471".parse()?)?;
/// listener.listen(16)?;
/// let request = channel.next(std::time::Duration::from_secs(60))?.and_then(|mut event| event.take_request());
/// if let Some(request) = request {
///     println!("{:?} asks", request.addresses()?.peer);
///     request.reject(ironverbs::rdma_cm::SendData::NONE)?;
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_cm_id")]
pub struct CmId {
    shared: Arc<IdShared>,
}

/// What an id is, and what is known of it.
pub(super) struct IdShared {
    key: IdKey,
    number: u32,
    space: PortSpace,
    /// Whether the kernel still has it.
    alive: Mutex<bool>,
    /// The channel it is on. Held for each command, so that the id does not move meanwhile.
    home: RwLock<EventChannel>,
    track: Mutex<Track>,
}

#[derive(Clone, Debug)]
struct Track {
    state: State,
    last_event: Option<EventType>,
    /// As given, until the kernel is asked.
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
    /// Once the kernel was asked.
    place: Option<Place>,
}

/// The port that an id is on, and the device's index where the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub port: PortNum,
    pub device: DeviceIndex,
}

impl EventChannel {
    /// Makes an id.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self, space: PortSpace) -> Result<CmId, Error> {
        let key = next_key();
        let (ps, qp_type) = space.raw();
        let request = CreateId { uid: key.0, response: 0, ps, qp_type, reserved: [0; 5] };
        let made = send(self.file(), request).map_err(|errno| self.refused(Step::CreateId, errno))?;
        Ok(CmId::new(self, key, made.id, space, State::Idle))
    }
}

impl CmId {
    fn new(channel: &EventChannel, key: IdKey, number: u32, space: PortSpace, state: State) -> Self {
        let shared = Arc::new(IdShared {
            key,
            number,
            space,
            alive: Mutex::new(true),
            home: RwLock::new(channel.clone()),
            track: Mutex::new(Track { state, last_event: None, from: None, to: None, place: None }),
        });
        register(key, &shared);
        Self { shared }
    }

    /// The id of a connection request on `channel`. Its key is the kernel's from when it is accepted.
    pub(super) fn requested(channel: &EventChannel, number: u32, space: PortSpace) -> Self {
        Self::new(channel, next_key(), number, space, State::Requested)
    }

    /// What its events name it by.
    pub fn key(&self) -> IdKey {
        self.shared.key
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.shared.space
    }

    /// What it is at, as far as its channel was read.
    pub fn state(&self) -> State {
        self.shared.track().state
    }

    /// The channel that it is on.
    pub fn channel(&self) -> EventChannel {
        self.shared.home().clone()
    }

    /// Gives it an address of its own. An unspecified one (`0.0.0.0`, `::`) is that of every device, and of port 0 the kernel
    /// chooses one. Of a link-local IPv6 address the scope must be given.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.shared.track().from = Some(address);
        let (addr, addr_size) = address::storage(address);
        let request = abi::Bind { id: self.number(), addr_size, reserved: 0, addr };
        let older = || BindIp { response: 0, addr: address::sockaddr_in6(address), id: self.number() };
        self.command_or(Step::Bind, request, older).map(drop)
    }

    /// Begins to find out which device leads to `to`: [`ADDR_RESOLVED`](EventType::ADDR_RESOLVED) or
    /// [`ADDR_ERROR`](EventType::ADDR_ERROR) will tell, within about `timeout`. That there is no route at all is told at once.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(&self, from: Option<SocketAddr>, to: SocketAddr, timeout: Duration) -> Result<(), Error> {
        let mut track = self.shared.track();
        track.from = from.or(track.from);
        track.to = Some(to);
        drop(track);
        // Zeros, family and all, for none: only then does the kernel take the link from the scope of `to` (`cma_bind_addr`).
        let (src_addr, src_size) = from.map_or((Storage::new_zeroed(), 0), address::storage);
        let (dst_addr, dst_size) = address::storage(to);
        let (id, timeout_ms) = (self.number(), milliseconds(timeout));
        let request = abi::ResolveAddr { id, timeout_ms, src_size, dst_size, reserved: 0, src_addr, dst_addr };
        let older = || ResolveIp {
            src_addr: from.map(address::sockaddr_in6).unwrap_or_default(),
            dst_addr: address::sockaddr_in6(to),
            id,
            timeout_ms,
        };
        self.command_or(Step::ResolveAddr, request, older).map(drop)
    }

    /// Begins to resolve the route: [`ROUTE_RESOLVED`](EventType::ROUTE_RESOLVED) or [`ROUTE_ERROR`](EventType::ROUTE_ERROR)
    /// will tell. On InfiniBand the subnet manager is asked.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        let request = abi::ResolveRoute { id: self.number(), timeout_ms: milliseconds(timeout) };
        self.command(Step::ResolveRoute, request).map(drop)
    }

    /// Lets peers ask for connections: each does with a [`CONNECT_REQUEST`](EventType::CONNECT_REQUEST). As many as
    /// `backlog` wait to be read; others get no answer, and their kernel asks again some seconds later. 0 for as many as the
    /// kernel allows.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.command(Step::Listen, abi::Listen { id: self.number(), backlog }).map(drop)
    }

    /// Asks the peer for a connection, or where it takes datagrams. Of a connection
    /// [`CONNECT_RESPONSE`](EventType::CONNECT_RESPONSE) tells that the peer accepted; of datagrams,
    /// [`ESTABLISHED`](EventType::ESTABLISHED).
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, params: &ConnParams<'_>) -> Result<(), Error> {
        let conn_param = params.raw(Step::Connect, Message::Request.limit(self.is_datagram()))?;
        let request = abi::Connect { conn_param, id: self.number(), reserved: 0, ece: params.ece.raw() };
        self.command(Step::Connect, request).map(drop)
    }

    /// Accepts a peer's request. Of a connection the queue pair must be ready to send by then, and
    /// [`ESTABLISHED`](EventType::ESTABLISHED) tells that the peer's is too.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, params: &ConnParams<'_>) -> Result<(), Error> {
        let conn_param = params.raw(Step::Accept, Message::Reply.limit(self.is_datagram()))?;
        let (uid, id) = (self.shared.key.0, self.number());
        self.command(Step::Accept, Accept { uid, conn_param, id, reserved: 0, ece: params.ece.raw() }).map(drop)
    }

    /// The last word of the handshake, on the side that asked: tells the peer that this side's queue pair is ready to send, as
    /// it must be by then. No event follows on this side.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), Error> {
        let request = Accept { uid: self.shared.key.0, id: self.number(), ..Accept::default() };
        self.command(Step::Establish, request).map(drop)
    }

    /// Turns a peer away, with up to 148 bytes for it to read (136 of datagrams). The side that asked may do so too, when
    /// the answer does not suit it.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: SendData<'_>) -> Result<(), Error> {
        self.reject_with(private_data, 0)
    }

    /// As [`reject`](Self::reject), because the peer's [`Ece`] does not suit this side's adapter.
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&self, private_data: SendData<'_>) -> Result<(), Error> {
        self.reject_with(private_data, super::reason::RejectReason::VENDOR_OPTION_NOT_SUPPORTED.0 as u8)
    }

    fn reject_with(&self, data: SendData<'_>, reason: u8) -> Result<(), Error> {
        let mut field = [0; abi::MAX_PRIVATE_DATA];
        let private_data_len = data.put(Step::Reject, Message::Reject.limit(self.is_datagram()), &mut field)?;
        let id = self.number();
        let request = abi::Reject { id, private_data_len, reason, reserved: [0; 2], private_data: field };
        self.command(Step::Reject, request).map(drop)
    }

    /// Ends the connection, or agrees to the end that the peer has announced. Either side is told by
    /// [`DISCONNECTED`](EventType::DISCONNECTED).
    ///
    /// There is nothing to end before the connection is established: the kernel takes the step, tells nobody, and the connection comes
    /// about all the same. [Reject](Self::reject) the peer then, or drop the id.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), Error> {
        self.command(Step::Disconnect, abi::Disconnect { id: self.number() }).map(drop)
    }

    /// Tells the kernel that the queue pair has received something
    /// ([`COMM_EST`](crate::AsyncEventType::COMM_EST)): the connection is then established although the peer's last word was
    /// lost.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, event: crate::uverbs::event::AsyncEventType) -> Result<(), Error> {
        self.command(Step::Notify, abi::Notify { id: self.number(), event: event.0 }).map(drop)
    }

    /// Moves it to another channel, with the events that were not read yet. They wake nobody who waits for that channel already, nor
    /// an event loop that is told of changes only: [drain](EventChannel::drain) `to` afterwards. Move an id that listens before it does:
    /// requests that wait then would belong to the old channel, where the new one's reader could do nothing with them.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        use std::os::fd::{AsFd, AsRawFd};
        let mut home = self.shared.home.write().unwrap_or_else(PoisonError::into_inner);
        if home.is(to) {
            return Ok(());
        }
        let fd = home.as_fd().as_raw_fd() as u32;
        let request = abi::MigrateId { response: 0, id: self.number(), fd };
        send(to.file(), request).map_err(|errno| self.shared.refused(to, Step::Migrate, errno))?;
        *home = to.clone();
        Ok(())
    }

    /// Destroys it, or gives it back with the kernel's reason. To drop it does the same, without a word.
    #[doc(alias = "rdma_destroy_id")]
    pub fn close(self) -> Result<(), (Error, Self)> {
        match self.shared.destroy() {
            Ok(_) => Ok(()),
            Err(error) => Err((error, self)),
        }
    }

    /// What the kernel told: addresses, for errors to tell, and where it is.
    pub(super) fn learn(&self, from: Option<SocketAddr>, to: Option<SocketAddr>, place: Option<Place>) {
        let mut track = self.shared.track();
        track.from = from.or(track.from);
        track.to = to.or(track.to);
        track.place = place;
    }

    /// Where it is, if it is on a device. The kernel is asked once: an id stays on its device.
    pub(crate) fn place(&self) -> Result<Option<Place>, Error> {
        let known = self.shared.track().place;
        match known {
            Some(place) => Ok(Some(place)),
            None => self.addresses().map(|_| self.shared.track().place),
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.shared.number
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.shared.is_datagram()
    }

    /// What to say of it in an error.
    pub(crate) fn about(&self) -> About {
        self.shared.about()
    }

    /// Sends a command of the step.
    pub(super) fn command<C: Command>(&self, step: Step, request: C) -> Result<C::Response, Error> {
        self.step(step, |channel| send(channel.file(), request))
    }

    /// Sends a command of the step, or where the kernel does not know that, an older one. A kernel answers both kinds of
    /// refusal with `EINVAL`; an older command that is refused too is what was wrong with the newer one.
    pub(super) fn command_or<C: Command, D: Command>(
        &self,
        step: Step,
        request: C,
        older: impl FnOnce() -> D,
    ) -> Result<(), Error> {
        self.step(step, |channel| match send(channel.file(), request) {
            Err(Errno::EINVAL) => send(channel.file(), older()).map(drop),
            answer => answer.map(drop),
        })
    }

    /// Runs the step on the channel that the id is on, and takes note of it.
    pub(super) fn step<T>(&self, step: Step, run: impl FnOnce(&EventChannel) -> Result<T, Errno>) -> Result<T, Error> {
        let home = self.shared.home();
        // Before the step: what comes of it may be read by another thread while this one still returns from the kernel.
        let (before, during) = self.shared.track().begin(step);
        run(&home).map_err(|errno| {
            self.shared.track().take_back(before, during);
            self.shared.refused(&home, step, errno)
        })
    }
}

impl Track {
    /// The states before the step and during it.
    fn begin(&mut self, step: Step) -> (State, State) {
        let before = self.state;
        self.state = before.after_step(step);
        (before, self.state)
    }

    /// The step was refused. An event that came meanwhile knows better.
    fn take_back(&mut self, before: State, during: State) {
        if self.state == during {
            self.state = before;
        }
    }
}

impl IdShared {
    pub(super) fn key(&self) -> IdKey {
        self.key
    }

    pub(super) fn space(&self) -> PortSpace {
        self.space
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.space.is_datagram()
    }

    fn track(&self) -> MutexGuard<'_, Track> {
        self.track.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn home(&self) -> RwLockReadGuard<'_, EventChannel> {
        self.home.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an event.
    pub(super) fn note(&self, event: &Event) {
        let mut track = self.track();
        track.state = track.state.after_event(event.event_type());
        track.last_event = Some(event.event_type());
    }

    fn about(&self) -> About {
        let Track { state, last_event, from, to, .. } = self.track().clone();
        About { from, to, interface: None, state: Some(state), last_event }
    }

    fn refused(&self, channel: &EventChannel, step: Step, errno: Errno) -> Error {
        match channel.refused(step, errno) {
            Error::Kernel { .. } => explain::refused(step, errno, self.about()),
            other => other,
        }
    }

    fn destroy(&self) -> Result<EventsReported, Error> {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return Ok(EventsReported::default());
        }
        let home = self.home();
        let request = DestroyId { response: 0, id: self.number, reserved: 0 };
        let reported = send(home.file(), request).map_err(|errno| self.refused(&home, Step::DestroyId, errno))?;
        *alive = false;
        Ok(reported)
    }
}

/// An id that the kernel refuses to destroy, as after a change of credentials, lasts until its channel is closed.
impl Drop for CmId {
    fn drop(&mut self) {
        unregister(self.shared.key);
        let _ = self.shared.destroy();
    }
}

/// Milliseconds, not zero, which the kernel refuses.
fn milliseconds(timeout: Duration) -> u32 {
    // The kernel counts in signed numbers.
    timeout.as_millis().clamp(1, i32::MAX as u128) as u32
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Track { state, last_event, from, to, .. } = self.shared.track().clone();
        f.debug_struct("CmId")
            .field("number", &self.shared.number)
            .field("space", &self.shared.space)
            .field("state", &state)
            .field("last_event", &last_event)
            .field("from", &from)
            .field("to", &to)
            .finish()
    }
}
