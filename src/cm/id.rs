//! Ids: one end of a connection in the making, of a service, or of a multicast group.

use super::abi::{self, Accept, BindIp, Command, CreateId, ResolveIp, Storage};
use super::address;
use super::channel::{EventChannel, next_key, register, unregister};
use super::command::send;
use super::data::{Message, SendData};
use super::error::{About, Error, Step};
use super::reason::Reason;
use super::shared::Track;
use super::state::State;
use super::waiting::Seat;
use crate::uverbs::errno::Errno;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromZeros;

pub use super::params::{ConnParams, PortSpace};
pub(super) use super::shared::IdShared;
pub(crate) use super::shared::Place;

/// Which id an event is about.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId, event: &ironverbs::rdma_cm::Event) {
/// assert_eq!(event.id(), id.key());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(pub(super) u64);

/// An id of the connection manager: one end of a connection in the making.
///
/// Its steps return at once; what comes of them is told by events of its [channel](EventChannel). An id can be bound and
/// resolved before any device is opened: [`addresses`](Self::addresses) tells which device it is on by then.
///
/// Dropped at any time, also while one of its events is being handled, it is gone: a connection is ended, a peer that asks is
/// turned away, and what events were on their way are nobody's. The drop is one command, and returns when the kernel has
/// done it, which may take it a minute or two where a peer does not answer: a task had better drop on another thread. All its
/// methods take `&self`, from any thread.
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
        let shared = Arc::new(IdShared::new(channel, key, number, space, state));
        register(key, &shared);
        Self { shared }
    }

    /// The id of a connection request on `channel`. Its key is the kernel's from when it is accepted.
    pub(super) fn requested(channel: &EventChannel, number: u32, space: PortSpace) -> Self {
        Self::new(channel, next_key(), number, space, State::Requested)
    }

    /// What its events name it by.
    pub fn key(&self) -> IdKey {
        self.shared.key()
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.shared.space()
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

    /// Begins to find out which device leads to `to`: [`ADDR_RESOLVED`](super::event::EventType::ADDR_RESOLVED) or
    /// [`ADDR_ERROR`](super::event::EventType::ADDR_ERROR) will tell, within about `timeout`. That there is no route at all is
    /// told at once.
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

    /// Begins to resolve the route: [`ROUTE_RESOLVED`](super::event::EventType::ROUTE_RESOLVED) or
    /// [`ROUTE_ERROR`](super::event::EventType::ROUTE_ERROR) will tell. On InfiniBand the subnet manager is asked.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        let request = abi::ResolveRoute { id: self.number(), timeout_ms: milliseconds(timeout) };
        self.command(Step::ResolveRoute, request).map(drop)
    }

    /// Lets peers ask for connections: each does with a [`CONNECT_REQUEST`](super::event::EventType::CONNECT_REQUEST). As
    /// many as `backlog` wait to be read; others get no answer, and their kernel asks again some seconds later. 0 for as many as
    /// the kernel allows.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.command(Step::Listen, abi::Listen { id: self.number(), backlog }).map(drop)
    }

    /// Asks the peer for a connection, or where it takes datagrams. Of a connection
    /// [`CONNECT_RESPONSE`](super::event::EventType::CONNECT_RESPONSE) tells that the peer accepted; of datagrams,
    /// [`ESTABLISHED`](super::event::EventType::ESTABLISHED).
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, params: &ConnParams<'_>) -> Result<(), Error> {
        let conn_param = params.raw(Step::Connect, Message::Request.limit(self.is_datagram()))?;
        let request = abi::Connect { conn_param, id: self.number(), reserved: 0, ece: params.ece.raw() };
        self.command(Step::Connect, request).map(drop)
    }

    /// Accepts a peer's request. Of a connection the queue pair must be ready to send by then, and
    /// [`ESTABLISHED`](super::event::EventType::ESTABLISHED) tells that the peer's is too.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, params: &ConnParams<'_>) -> Result<(), Error> {
        let conn_param = params.raw(Step::Accept, Message::Reply.limit(self.is_datagram()))?;
        let (uid, id) = (self.key().0, self.number());
        self.command(Step::Accept, Accept { uid, conn_param, id, reserved: 0, ece: params.ece.raw() }).map(drop)
    }

    /// The last word of the handshake, on the side that asked: tells the peer that this side's queue pair is ready to send, as
    /// it must be by then. No event follows on this side.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), Error> {
        let request = Accept { uid: self.key().0, id: self.number(), ..Accept::default() };
        self.command(Step::Establish, request).map(drop)
    }

    /// Turns a peer away, with up to 148 bytes for it to read (136 of datagrams). The side that asked may do so too, when
    /// the answer does not suit it.
    ///
    /// Who has accepted and thinks better of it had better drop the id, which turns the peer away as well. After a rejection the kernel
    /// goes on repeating the acceptance, and the drop waits until it gives up: 70 s in Linux 6.1 and 6.12.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: SendData<'_>) -> Result<(), Error> {
        self.reject_with(private_data, 0)
    }

    /// As [`reject`](Self::reject), because the peer's [`Ece`](super::event::Ece) does not suit this side's adapter.
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
    /// [`DISCONNECTED`](super::event::EventType::DISCONNECTED).
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
        let mut home = self.shared.home_to_change();
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

    /// The IP address that the GID of its port is on RoCE: the kernel looks that one up (`cma_acquire_dev_by_src_ip` and
    /// `cma_ib_acquire_dev` in `drivers/infiniband/core/cma.c`), but for the loopback's, where it takes any if it takes one at all.
    /// `None` until the kernel has told its [place](Self::place).
    pub(crate) fn gid_ip(&self) -> Option<IpAddr> {
        let place = self.shared.track().place;
        place.and_then(|place| place.ip).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
    }

    /// What it is at, and if it is over, why: as the event told, whoever has read it.
    pub(crate) fn state_and_end(&self) -> (State, Reason) {
        let track = self.shared.track();
        (track.state, track.end)
    }

    /// For one who waits for its events, to be woken when it is over and another has read so.
    pub(crate) fn seat(&self) -> Seat<'_> {
        self.shared.waiting.seat()
    }

    pub(super) fn number(&self) -> u32 {
        self.shared.number()
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

/// An id that the kernel refuses to destroy, as after a change of credentials, lasts until its channel is closed.
impl Drop for CmId {
    fn drop(&mut self) {
        unregister(self.shared.key());
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
            .field("number", &self.shared.number())
            .field("space", &self.shared.space())
            .field("state", &state)
            .field("last_event", &last_event)
            .field("from", &from)
            .field("to", &to)
            .finish()
    }
}
