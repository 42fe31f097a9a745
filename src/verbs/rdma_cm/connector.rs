//! The side that asks for a connection.

use super::connection::{Connection, Link};
use super::handshake::Handshake;
use super::wait::{Blocking, Waiter, expect, or_the_end};
use crate::cm::channel::EventChannel;
use crate::cm::data::Message;
use crate::cm::error::{Error, Step};
use crate::cm::event::EventType;
use crate::cm::id::{CmId, PortSpace};
use crate::cm::sys::CmSys;
use crate::cm::{IdAddress, LinuxCm};
use crate::verbs::attr::AckTimeout;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::prepared::{PreparedQp, QpBuilder};
use crate::verbs::provider::Provider;
use crate::verbs::qp_type::Rc;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Where to connect to, and how to get there.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::rdma_cm::{Connector, Devices, Handshake};
/// use std::time::Duration;
/// let within = Duration::from_secs(5);
/// let devices = Devices::new();
///
/// let route = Connector::to("10.9.9.2:7471".parse()?).resolve(within)?;
/// let context = devices.context_of(route.id())?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(64)?;
/// let prepared = route.qp_builder(&pd, &cq, &cq)?.build()?;
/// // … post receives …
/// let connection = route.connect(prepared, &Handshake::default(), within)?;
/// println!("the peer says {:?}", connection.peer_data());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Connector {
    sys: Arc<dyn CmSys>,
    to: SocketAddr,
    from: Option<SocketAddr>,
    type_of_service: Option<u8>,
    ack_timeout: Option<AckTimeout>,
    resolve_timeout: Duration,
}

impl Connector {
    /// To that address and port. Of a link-local IPv6 address the scope must be given.
    pub fn to(address: SocketAddr) -> Self {
        Self {
            sys: Arc::new(LinuxCm::new()),
            to: address,
            from: None,
            type_of_service: None,
            ack_timeout: None,
            resolve_timeout: Duration::from_secs(2),
        }
    }

    /// By the connection manager of `sys`, instead of this host's.
    pub fn on(mut self, sys: Arc<dyn CmSys>) -> Self {
        self.sys = sys;
        self
    }

    /// From that address of this host, instead of the one that the route there gives; with port 0 from any port.
    pub fn from(mut self, address: SocketAddr) -> Self {
        self.from = Some(address);
        self
    }

    /// The traffic class of the connection's packets: on RoCE the DSCP and ECN byte.
    pub fn type_of_service(mut self, tos: u8) -> Self {
        self.type_of_service = Some(tos);
        self
    }

    /// How long this side waits for an acknowledgement before it sends again, instead of what the kernel chooses.
    pub fn ack_timeout(mut self, timeout: AckTimeout) -> Self {
        self.ack_timeout = Some(timeout);
        self
    }

    /// How long the kernel tries to resolve the address, and the route. Default 2 s each.
    pub fn resolve_timeout(mut self, timeout: Duration) -> Self {
        self.resolve_timeout = timeout;
        self
    }

    /// Resolves address and route. Blocks, for at most `timeout`.
    pub fn resolve(&self, timeout: Duration) -> Result<Route, Error> {
        Blocking::run(self.resolve_by(&Blocking::within(timeout)))
    }

    /// As [`resolve`](Self::resolve), for a task. The future can be dropped at any time: that ends it.
    #[cfg(feature = "tokio")]
    pub async fn resolve_async(&self) -> Result<Route, Error> {
        self.resolve_by(&super::wait::Async::default()).await
    }

    async fn resolve_by(&self, waiter: &impl Waiter) -> Result<Route, Error> {
        let channel = EventChannel::open_on(&*self.sys)?;
        let id = channel.create_id(PortSpace::Tcp)?;
        if let Some(tos) = self.type_of_service {
            id.set_type_of_service(tos)?;
        }
        if let Some(timeout) = self.ack_timeout {
            id.set_ack_timeout(timeout.code())?;
        }
        id.resolve_addr(self.from, self.to, self.resolve_timeout)?;
        expect(waiter, &channel, &id, Step::ResolveAddr, EventType::ADDR_RESOLVED).await?;
        id.resolve_route(self.resolve_timeout)?;
        expect(waiter, &channel, &id, Step::ResolveRoute, EventType::ROUTE_RESOLVED).await?;
        let addresses = id.addresses()?;
        Ok(Route { id, channel, addresses })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("to", &self.to).field("from", &self.from).finish_non_exhaustive()
    }
}

/// A way to a peer: it is known which device leads there. Dropped, it is given up.
///
/// ```no_run
/// # fn f(route: &ironverbs::rdma_cm::Route) {
/// let addresses = route.addresses();
/// println!("from {:?}, by device {:?}", addresses.local, addresses.device);
/// # }
/// ```
#[derive(Debug)]
pub struct Route {
    id: CmId,
    channel: EventChannel,
    addresses: IdAddress,
}

impl Route {
    /// The id: for [`Devices::context_of`](super::Devices::context_of).
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Addresses and device.
    pub fn addresses(&self) -> &IdAddress {
        &self.addresses
    }

    /// A queue pair for the connection, on the right port. The protection domain must be of the device that leads there.
    pub fn qp_builder<'a, P: Provider>(
        &self,
        pd: &'a Pd,
        send_cq: &'a Cq<P>,
        recv_cq: &'a Cq<P>,
    ) -> Result<QpBuilder<'a, P, Rc>, Error> {
        QpBuilder::rc(pd, send_cq, recv_cq).on_id(&self.id)
    }

    /// Looks whether `handshake` is one to connect with: private data of more than 56 bytes, or a count beyond its field, is
    /// refused. [`connect`](Self::connect) does so first, but whatever it refuses, the route and the queue pair are gone.
    pub fn check(&self, handshake: &Handshake<'_>) -> Result<(), Error> {
        handshake.check(Step::Connect, Message::Request)
    }

    /// Connects the queue pair. Blocks until the peer has answered and this side can send, for at most `timeout`. The peer can
    /// send, too, a moment later: it may have to wait for this side's last word.
    pub fn connect<P: Provider>(
        self,
        prepared: PreparedQp<P, Rc>,
        handshake: &Handshake<'_>,
        timeout: Duration,
    ) -> Result<Connection<P>, Error> {
        Blocking::run(self.connect_by(prepared, handshake, &Blocking::within(timeout)))
    }

    /// As [`connect`](Self::connect), for a task. The future can be dropped at any time: that ends the connection.
    #[cfg(feature = "tokio")]
    pub async fn connect_async<P: Provider>(
        self,
        prepared: PreparedQp<P, Rc>,
        handshake: &Handshake<'_>,
    ) -> Result<Connection<P>, Error> {
        self.connect_by(prepared, handshake, &super::wait::Async::default()).await
    }

    async fn connect_by<P: Provider>(
        self,
        prepared: PreparedQp<P, Rc>,
        handshake: &Handshake<'_>,
        waiter: &impl Waiter,
    ) -> Result<Connection<P>, Error> {
        // Before the peer hears of it.
        self.check(handshake)?;
        let Self { id, channel, addresses } = self;
        id.port_on(prepared.core.context().info())?;
        let attr = &prepared.core.context().attr;
        id.connect(&handshake.params(attr, prepared.qpn(), prepared.has_srq(), None))?;
        let answer = expect(waiter, &channel, &id, Step::Connect, EventType::CONNECT_RESPONSE).await?;
        let done = id.bring_up_with(prepared, handshake.min_rnr_timer).and_then(|qp| id.establish().map(|()| qp));
        let qp = match done {
            Ok(qp) => qp,
            Err(refusal) => return Err(or_the_end(refusal, waiter, &channel, &id).await),
        };
        Ok(Connection::new(qp, Link::new(id, channel, addresses), answer.into_private_data()))
    }
}
