//! The side that is asked for connections.

use super::connection::{Connection, Link};
use super::handshake::Handshake;
use super::wait::{Blocking, Waiter, expect, is_aside};
use crate::cm::channel::EventChannel;
use crate::cm::data::{Message, PrivateData, SendData};
use crate::cm::error::{Error, Step};
use crate::cm::event::{Ece, EventType, PeerParams};
use crate::cm::id::{CmId, PortSpace};
use crate::cm::state::State;
use crate::cm::sys::CmSys;
use crate::cm::{IdAddress, LinuxCm, ended, removed};
use crate::uverbs::errno::Errno;
use crate::verbs::cq::Cq;
use crate::verbs::pd::Pd;
use crate::verbs::prepared::{PreparedQp, QpBuilder};
use crate::verbs::provider::Provider;
use crate::verbs::qp_type::Rc;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A place where peers ask for connections.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::rdma_cm::{Devices, Handshake, Listener};
/// use std::time::Duration;
/// let within = Duration::from_secs(5);
/// let devices = Devices::new();
///
/// let listener = Listener::bind("0.0.0.0:7471".parse()?)?;
/// while let Some(request) = listener.request(Duration::from_secs(60))? {
///     let context = devices.context_of(request.id())?;
///     let pd = context.alloc_pd()?;
///     let cq = context.create_cq(64)?;
///     let prepared = request.qp_builder(&pd, &cq, &cq)?.build()?;
///     // … post receives …
///     let connection = request.accept(prepared, &Handshake::default(), within)?;
///     println!("{:?} is here", connection.link().addresses().peer);
/// }
/// # Ok(()) }
/// ```
pub struct Listener {
    sys: Arc<dyn CmSys>,
    id: CmId,
    channel: EventChannel,
    /// For the next peer that asks: without one, as when the process has too many files, nobody is taken out of the queue.
    spare: Mutex<Option<EventChannel>>,
}

impl Listener {
    /// Listens at that address; an unspecified one (`0.0.0.0`, `::`) is that of every device, and of port 0 the kernel chooses
    /// one ([`local_addr`](Self::local_addr)). As many peers may wait as the kernel allows.
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        Self::bind_on(Arc::new(LinuxCm::new()), address, 0, |_| Ok(()))
    }

    /// As [`bind`](Self::bind), by the connection manager of `sys`, where as many as `backlog` peers may wait (0 for as many
    /// as it allows; see [`CmId::listen`]), and with options that `prepare` sets.
    ///
    /// ```no_run
    /// # fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironverbs::{rdma_cm::Listener, sys::LinuxCm};
    /// use std::sync::Arc;
    /// let listener = Listener::bind_on(Arc::new(LinuxCm::new()), "[::]:7471".parse()?, 16, |id| id.set_ipv6_only(true))?;
    /// # drop(listener);
    /// # Ok(()) }
    /// ```
    pub fn bind_on(
        sys: Arc<dyn CmSys>,
        address: SocketAddr,
        backlog: u32,
        prepare: impl FnOnce(&CmId) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let channel = EventChannel::open_on(&*sys)?;
        let id = channel.create_id(PortSpace::Tcp)?;
        prepare(&id)?;
        id.bind(address)?;
        id.listen(backlog)?;
        Ok(Self { sys, id, channel, spare: Mutex::new(None) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Result<Option<SocketAddr>, Error> {
        self.id.local_addr()
    }

    /// The next peer that asks; `None` if none came within `timeout`. Blocks. Where the process may open no more files, that is an
    /// error, and the peer waits on. When the device that it listens on goes, that is an error each time
    /// ([`Error::Unexpected`], `DEVICE_REMOVAL`), of everybody who waits: drop the listener. Several threads and tasks may wait; each peer
    /// goes to one of them.
    #[doc(alias = "rdma_get_request")]
    pub fn request(&self, timeout: Duration) -> Result<Option<Request>, Error> {
        Blocking::run(self.request_by(&Blocking::within(timeout)))
    }

    /// As [`request`](Self::request), for a task. The future can be dropped at any time, and loses nothing.
    #[cfg(feature = "tokio")]
    pub async fn request_async(&self) -> Result<Request, Error> {
        loop {
            if let Some(request) = self.request_by(&super::wait::Async::default()).await? {
                return Ok(request);
            }
        }
    }

    fn spare(&self) -> MutexGuard<'_, Option<EventChannel>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error once its device has gone: the event that told so is read, by whomever, and no other will come.
    fn check_device(&self) -> Result<(), Error> {
        if is_without_device(self.id.state()) {
            return Err(removed(Step::GetRequest, self.id.about()));
        }
        Ok(())
    }

    async fn request_by(&self, waiter: &impl Waiter) -> Result<Option<Request>, Error> {
        self.check_device()?;
        // A channel of its own, so that whoever waits for its events takes nobody else's.
        let spare = self.spare().take();
        let channel = spare.map_or_else(|| EventChannel::open_on(&*self.sys), Ok)?;
        loop {
            let event = waiter.next_unless(&self.channel, &self.id, is_without_device).await?;
            let Some(mut event) = event else {
                *self.spare() = Some(channel);
                return self.check_device().map(|()| None);
            };
            if let Some(id) = event.take_request() {
                match id.migrate(&channel).and_then(|()| id.addresses()) {
                    Ok(addresses) => {
                        let peer = event.peer().cloned().unwrap_or_default();
                        return Ok(Some(Request { id, channel, addresses, peer, ece: event.ece() }));
                    }
                    // It has gone meanwhile, as with its device, and the next may be better.
                    Err(error) if has_gone(&error) => continue,
                    Err(error) => return Err(error),
                }
            }
            if !is_aside(event.event_type()) {
                return Err(ended(Step::GetRequest, event, self.id.about()));
            }
        }
    }
}

fn is_without_device(state: State) -> bool {
    state == State::DeviceRemoved
}

/// Whether the kernel has no such id any more, or none that is good for anything.
fn has_gone(error: &Error) -> bool {
    let errno = error.errno().filter(|_| matches!(error, Error::Kernel { .. }));
    matches!(errno, Some(Errno::EINVAL | Errno::ENOENT | Errno::ENXIO | Errno::EIO | Errno::ENODEV))
}

/// Readable when a peer asks: then [`request`](Listener::request) with a time-out of zero gives it.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A peer that asks for a connection. Dropped, it is turned away.
///
/// ```no_run
/// # fn f(request: ironverbs::rdma_cm::Request) -> Result<(), ironverbs::rdma_cm::Error> {
/// use ironverbs::rdma_cm::SendData;
/// println!("{:?} asks", request.addresses().peer);
/// request.reject(SendData::counted(b"not today"))?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Request {
    id: CmId,
    channel: EventChannel,
    addresses: IdAddress,
    peer: PeerParams,
    ece: Ece,
}

impl Request {
    /// The id: for [`Devices::context_of`](super::Devices::context_of).
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Addresses and device.
    pub fn addresses(&self) -> &IdAddress {
        &self.addresses
    }

    /// What the peer said of its end.
    pub fn peer(&self) -> &PeerParams {
        &self.peer
    }

    /// The private data of the peer: the whole field of 56 bytes, see [`PrivateData`].
    pub fn peer_data(&self) -> &PrivateData {
        &self.peer.private_data
    }

    /// What the peer's adapter offers beyond the ordinary.
    pub fn ece(&self) -> Ece {
        self.ece
    }

    /// A queue pair for the connection, on the right port. The protection domain must be of the device that the request came
    /// by.
    pub fn qp_builder<'a, P: Provider>(
        &self,
        pd: &'a Pd,
        send_cq: &'a Cq<P>,
        recv_cq: &'a Cq<P>,
    ) -> Result<QpBuilder<'a, P, Rc>, Error> {
        QpBuilder::rc(pd, send_cq, recv_cq).on_id(&self.id)
    }

    /// Turns the peer away, with up to 148 bytes for it to read.
    pub fn reject(self, private_data: SendData<'_>) -> Result<(), Error> {
        self.id.reject(private_data)
    }

    /// Looks whether `handshake` is one to accept with: private data of more than 196 bytes, or a count beyond its field, is
    /// refused. [`accept`](Self::accept) does so first, but whatever it refuses, the request and the queue pair are gone, and the peer is
    /// turned away for it.
    ///
    /// ```no_run
    /// # fn f(request: &ironverbs::rdma_cm::Request, about_the_weather: &[u8]) {
    /// use ironverbs::rdma_cm::{Handshake, SendData};
    /// let mut handshake = Handshake::default();
    /// handshake.private_data = SendData::raw(about_the_weather);
    /// if request.check(&handshake).is_err() {
    ///     handshake.private_data = SendData::NONE;
    /// }
    /// # }
    /// ```
    pub fn check(&self, handshake: &Handshake<'_>) -> Result<(), Error> {
        handshake.check(Step::Accept, Message::Reply)
    }

    /// Accepts the peer, with that queue pair. Blocks until both sides can send, for at most `timeout`.
    pub fn accept<P: Provider>(
        self,
        prepared: PreparedQp<P, Rc>,
        handshake: &Handshake<'_>,
        timeout: Duration,
    ) -> Result<Connection<P>, Error> {
        Blocking::run(self.accept_by(prepared, handshake, &Blocking::within(timeout)))
    }

    /// As [`accept`](Self::accept), for a task. The future can be dropped at any time: that ends the connection.
    #[cfg(feature = "tokio")]
    pub async fn accept_async<P: Provider>(
        self,
        prepared: PreparedQp<P, Rc>,
        handshake: &Handshake<'_>,
    ) -> Result<Connection<P>, Error> {
        self.accept_by(prepared, handshake, &super::wait::Async::default()).await
    }

    async fn accept_by<P: Provider>(
        self,
        prepared: PreparedQp<P, Rc>,
        handshake: &Handshake<'_>,
        waiter: &impl Waiter,
    ) -> Result<Connection<P>, Error> {
        self.check(handshake)?;
        let Self { id, channel, addresses, peer, ece: _ } = self;
        let attr = &prepared.core.context().attr;
        let params = handshake.params(attr, prepared.qpn(), prepared.has_srq(), Some(&peer));
        let qp = id.bring_up_with(prepared, handshake.min_rnr_timer)?;
        id.accept(&params)?;
        expect(waiter, &channel, &id, Step::Accept, EventType::ESTABLISHED).await?;
        Ok(Connection::new(qp, Link::new(id, channel, addresses), peer.private_data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::abi::EventResp;
    use crate::cm::fake::FakeCm;

    fn listening() -> (FakeCm, Listener) {
        let cm = FakeCm::default();
        let listener = Listener::bind_on(Arc::new(cm.clone()), "10.9.9.1:7471".parse().unwrap(), 4, |_| Ok(()));
        (cm, listener.unwrap())
    }

    #[test]
    fn a_request_that_has_gone_is_passed_over() {
        // MIGRATE_ID, QUERY.
        for command in [18, 19] {
            for errno in [Errno::ENXIO, Errno::EIO, Errno::ENOENT] {
                let (cm, listener) = listening();
                cm.ask(0, EventResp::default());
                cm.ask(0, EventResp::default());
                cm.refuse_once(command, errno);
                let request = listener.request(Duration::ZERO).unwrap().expect("the second one");
                assert_eq!(cm.ids(), [0, 2], "the first one is dropped");
                drop(request);
                // What is wrong with the process is not the request's.
                cm.ask(0, EventResp::default());
                cm.refuse_once(command, Errno::ENOMEM);
                assert_eq!(listener.request(Duration::ZERO).unwrap_err().errno(), Some(Errno::ENOMEM));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_while_the_request_waits() {
        let (cm, listener) = listening();
        cm.ask(0, EventResp::default());
        let request = listener.request(Duration::ZERO).unwrap().unwrap();
        cm.take_log();
        let bytes = [0; 197];
        let mut handshake = Handshake { private_data: SendData::raw(&bytes), ..Handshake::default() };
        assert!(matches!(request.check(&handshake), Err(Error::Invalid { step: Step::Accept, .. })));
        handshake.private_data = SendData::raw(&bytes[..196]);
        request.check(&handshake).unwrap();
        handshake.retry_count = 8;
        assert!(matches!(request.check(&handshake), Err(Error::Invalid { what: "retry_count", .. })));
        assert_eq!((cm.take_log(), cm.ids()), (vec![], vec![0, 1]), "nobody has heard of it");
    }

    #[test]
    fn a_device_that_has_gone_is_told_each_time() {
        let (cm, listener) = listening();
        cm.tell(0, EventResp { event: EventType::DEVICE_REMOVAL.0, ..EventResp::default() });
        for _ in 0..3 {
            let error = listener.request(Duration::ZERO).unwrap_err();
            assert!(matches!(error, Error::Unexpected { event: EventType::DEVICE_REMOVAL, .. }), "{error}");
            assert!(error.to_string().contains("Devices::forget"), "{error}");
        }
    }

    #[test]
    fn a_peer_waits_on_while_no_more_files_can_be_opened() {
        let (cm, listener) = listening();
        cm.ask(0, EventResp::default());
        cm.files_at_most(1);
        listener.request(Duration::ZERO).unwrap_err();
        assert_eq!(cm.ids(), [0, 1], "the peer has been turned away");
        cm.files_at_most(2);
        assert!(listener.request(Duration::ZERO).unwrap().is_some());
        assert!(listener.request(Duration::ZERO).unwrap().is_none());
    }
}
