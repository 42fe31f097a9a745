//! Extended reliable connections (XRC): domains, and the receiving ends of connections. The sending ends are queue pairs
//! ([`Qp`](crate::Qp) of [`XrcSend`](crate::XrcSend)), and what is received goes into shared receive queues
//! ([`Srq`](crate::Srq) of [`Xrc`](crate::Xrc)).

use super::access::AccessFlags;
use super::attr::QpUpdate;
use super::device::{Context, ContextInner};
use super::endpoint::{ConnectOptions, Endpoint};
use super::gid::GidWant;
use super::mr::CloseError;
use super::provider::Provider;
use super::qp_control::QpControl;
use super::reach::{Address, Local, Place};
use super::registry::{Registered, Source};
use super::transition::Transport;
use crate::uverbs::attr::{QpAttr, QpState};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{GidIndex, PortNum, Psn, Qpn};
use crate::uverbs::xrc::XrcdOpen;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

/// XRC domain (XRCD): the shared receive queues and the receiving ends that work together, of one process or of several.
///
/// Processes that open the domain of the same file share it: what one of them connected, the others' shared receive queues
/// are reached by. Cheap to clone. Every object made in it keeps it open.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, pd: &ironverbs::Pd, cq: &ironverbs::Cq, peer: &ironverbs::Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::XrcdOpen;
/// let file = std::fs::File::create("/run/server.xrc")?;
/// let xrcd = context.open_xrcd(&file, XrcdOpen::OrCreate)?;
/// let srq = context.srq_builder(pd, 256).xrc(&xrcd, cq).build()?;
/// let prepared = xrcd.recv_qp().build()?;
/// println!("tell the peer: {} and {}", prepared.endpoint(), srq.number());
/// let connection = prepared.connect(peer)?;
/// println!("tell the other processes: {}", connection.qpn());
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_xrcd")]
#[derive(Clone)]
pub struct Xrcd {
    inner: Arc<XrcdInner>,
}

pub(super) struct XrcdInner {
    pub(super) handle: Handle,
    pub(super) context: Arc<ContextInner>,
}

impl<P: Provider> Context<P> {
    /// Makes an XRC domain that no other process can open.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn create_xrcd(&self) -> Result<Xrcd, Error> {
        Xrcd::new(self.inner(), |context| context.ucontext.open_xrcd(None))
    }

    /// Opens the XRC domain that a file stands for: one for each inode and device. The file's content does not matter, and it
    /// may be closed at once.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self, file: &impl AsFd, how: XrcdOpen) -> Result<Xrcd, Error> {
        Xrcd::new(self.inner(), |context| context.ucontext.open_xrcd(Some((file.as_fd(), how))))
    }
}

impl Xrcd {
    fn new(
        context: &Arc<ContextInner>,
        open: impl FnOnce(&ContextInner) -> Result<Handle, Error>,
    ) -> Result<Self, Error> {
        context.check_xrc(Verb::OpenXrcd)?;
        let handle = open(context)?;
        Ok(Self { inner: Arc::new(XrcdInner { handle, context: context.clone() }) })
    }

    /// The receiving end of a connection, to be made.
    pub fn recv_qp(&self) -> XrcRecvBuilder<'_> {
        XrcRecvBuilder { xrcd: self, place: Place::default(), pkey_index: 0, access: AccessFlags::LOCAL_READ }
    }

    /// Opens a receiving end that was made in this domain, by this process or by another that has the same domain open. It
    /// stays until everyone has dropped it. The kernel tells its events to nobody but who made it.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_recv_qp(&self, qpn: Qpn) -> Result<XrcRecvQp, Error> {
        let XrcdInner { handle, context } = &*self.inner;
        let user_handle = context.ucontext.next_user_handle();
        let handle = context.ucontext.open_qp(handle, qpn, user_handle)?;
        let qp = XrcRecvQp::new(handle, qpn, user_handle, self);
        let state = qp.query()?.qp_state;
        qp.control.set_state(state);
        Ok(qp)
    }

    /// Closes it; or gives it back with the reason, as long as anything of this context is in it.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        let closed = match Arc::get_mut(&mut self.inner) {
            Some(alone) => alone.handle.destroy().map(drop),
            None => Err(Error::invalid(
                Verb::CloseXrcd,
                "XRC domain",
                "in use",
                "drop its clones, its shared receive queues and its receiving ends first",
            )),
        };
        CloseError::unless(closed, self)
    }

    pub(super) fn inner(&self) -> &Arc<XrcdInner> {
        &self.inner
    }
}

/// Settings of the receiving end of an extended reliable connection to be made.
///
/// ```no_run
/// # fn f(xrcd: &ironverbs::Xrcd) -> Result<(), ironverbs::Error> {
/// let prepared = xrcd.recv_qp().access(ironverbs::AccessFlags::REMOTE_WRITE).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct XrcRecvBuilder<'a> {
    xrcd: &'a Xrcd,
    place: Place,
    pkey_index: u16,
    access: AccessFlags,
}

impl XrcRecvBuilder<'_> {
    /// What the peer may do to memory through it; the memory region must allow it too, and be in the protection domain of the
    /// shared receive queue that the work request names. Default: nothing.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }

    /// Local port. Default 1.
    pub fn port(mut self, port: PortNum) -> Self {
        self.place.port = port;
        self
    }

    /// Use the GID at this index, instead of the one that fits best.
    pub fn gid_index(mut self, index: GidIndex) -> Self {
        self.place.gid_index = Some(index);
        self
    }

    /// What the peer's address looks like, for the choice of one's own GID.
    pub fn gid_want(mut self, want: GidWant) -> Self {
        self.place.want = Some(want);
        self
    }

    /// Index into the port's P_Key table. Default 0.
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.pkey_index = index;
        self
    }

    /// First packet sequence number. Default: random.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.place.psn = Some(psn);
        self
    }

    /// Makes it and puts it in state INIT: it can be connected.
    #[doc(alias("ibv_create_qp", "IBV_QPT_XRC_RECV", "IB_QPT_XRC_TGT"))]
    pub fn build(self) -> Result<PreparedXrcRecv, Error> {
        let Self { xrcd, place, pkey_index, access } = self;
        let XrcdInner { handle, context } = &*xrcd.inner;
        let address = Address::find(context, place)?;
        let user_handle = context.ucontext.next_user_handle();
        let (handle, qpn) = super::any::create_xrc_recv(&context.opened, handle, user_handle)?;
        let qp = XrcRecvQp::new(handle, qpn, user_handle, xrcd);
        let (local, _) = address.of(qpn);
        let prepared = PreparedXrcRecv { qp, local, pkey_index, access };
        prepared.reach_init()?;
        Ok(prepared)
    }
}

/// The receiving end of an extended reliable connection, which waits for its peer's [`Endpoint`].
///
/// ```no_run
/// # fn f(xrcd: &ironverbs::Xrcd, peer: &ironverbs::Endpoint) -> Result<(), ironverbs::Error> {
/// let prepared = xrcd.recv_qp().build()?;
/// println!("tell the peer: {}", prepared.endpoint());
/// let connection = prepared.connect(peer)?;
/// # drop(connection);
/// # Ok(()) }
/// ```
pub struct PreparedXrcRecv {
    qp: XrcRecvQp,
    local: Local,
    pkey_index: u16,
    access: AccessFlags,
}

impl PreparedXrcRecv {
    /// What the peer needs to know: its sending end connects to it. It needs the number of a shared receive queue as well.
    pub fn endpoint(&self) -> Endpoint {
        self.local.endpoint
    }

    /// Default options, within the device's limits.
    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::within(&self.qp.context().attr)
    }

    /// Connects to `remote`, a sending end, which must do the same with this side's [`endpoint`](Self::endpoint).
    pub fn connect(self, remote: &Endpoint) -> Result<XrcRecvQp, ConnectXrcError> {
        let options = self.connect_options();
        self.connect_with(remote, &options)
    }

    /// As [`connect`](Self::connect), with other options than the default ones. On error it comes back and can be tried again.
    pub fn connect_with(self, remote: &Endpoint, options: &ConnectOptions) -> Result<XrcRecvQp, ConnectXrcError> {
        match self.try_connect(remote, options) {
            Ok(()) => Ok(self.qp),
            Err(error) => Err(ConnectXrcError { error, prepared: self }),
        }
    }

    fn try_connect(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        let Self { qp, local, .. } = self;
        let path_mtu = local.path_mtu(remote, options.path_mtu)?;
        let path = local.path(qp.context(), remote, options)?;
        if qp.state() != QpState::INIT {
            // Wherever a failed try left it.
            qp.modify(&QpUpdate::to(QpState::RESET))?;
            self.reach_init()?;
        }
        let to = QpUpdate::to(QpState::RTR).path(&path).path_mtu(path_mtu).dest_qpn(remote.qpn).rq_psn(remote.psn);
        qp.modify(&to.max_dest_rd_atomic(options.max_dest_rd_atomic).min_rnr_timer(options.min_rnr_timer))?;
        qp.modify(&QpUpdate::to(QpState::RTS).sq_psn(local.endpoint.psn).timeout(options.timeout))
    }

    fn reach_init(&self) -> Result<(), Error> {
        let to = QpUpdate::to(QpState::INIT).port(self.local.port).pkey_index(self.pkey_index);
        self.qp.modify(&to.access(self.access))
    }
}

/// The receiving end of an extended reliable connection. It has no queue: what arrives goes into the shared receive queue of
/// its domain that the sender names.
///
/// Whoever has its domain open can have a handle of it ([`Xrcd::open_recv_qp`]); it goes with the last one.
///
/// ```no_run
/// # fn f(xrcd: &ironverbs::Xrcd, qpn: ironverbs::Qpn) -> Result<(), ironverbs::Error> {
/// let connection = xrcd.open_recv_qp(qpn)?; // another process made it
/// println!("{:?}", connection.query()?.qp_state);
/// # Ok(()) }
/// ```
pub struct XrcRecvQp {
    control: QpControl,
    qpn: Qpn,
    user_handle: u64,
    /// Goes after the kernel's queue pair.
    xrcd: Xrcd,
}

impl XrcRecvQp {
    fn new(handle: Handle, qpn: Qpn, user_handle: u64, xrcd: &Xrcd) -> Self {
        let context = &xrcd.inner.context;
        context.registry.insert(user_handle, Source::Qp(qpn));
        let control = QpControl::new(handle, Transport::XrcRecv, context.clone());
        Self { control, qpn, user_handle, xrcd: xrcd.clone() }
    }

    fn context(&self) -> &ContextInner {
        &self.xrcd.inner.context
    }

    /// Its number: what the peer's sending end connects to, and what others open it by.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The domain that it is in.
    pub fn xrcd(&self) -> &Xrcd {
        &self.xrcd
    }

    /// The state that it was last put in by this handle, or was in when this handle was opened.
    pub fn state(&self) -> QpState {
        self.control.state()
    }

    /// Changes state or attributes, as [`Qp::modify`](crate::Qp::modify).
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, update: &QpUpdate) -> Result<(), Error> {
        self.control.modify(update)
    }

    /// Asks the kernel for state and attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.control.query()
    }

    /// Gives this handle up, and destroys the queue pair if it was the last one. On error it comes back.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        CloseError::unless(self.control.handle.destroy().map(drop), self)
    }
}

impl Drop for XrcRecvQp {
    fn drop(&mut self) {
        let registered = Registered::of(&self.xrcd.inner.context, self.user_handle);
        if !self.control.handle.destroy_or_leak() {
            self.control.handle.leave(Box::new(registered));
        }
    }
}

/// A connection that could not be made.
///
/// ```no_run
/// # fn f(prepared: ironverbs::PreparedXrcRecv, peer: ironverbs::Endpoint) -> Result<(), ironverbs::Error> {
/// let connection = match prepared.connect(&peer) {
///     Ok(connection) => connection,
///     Err(refused) => {
///         eprintln!("{}; once more", refused.error);
///         refused.prepared.connect(&peer)?
///     }
/// };
/// # drop(connection);
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConnectXrcError {
    /// Why.
    pub error: Error,
    /// The receiving end, for another try.
    pub prepared: PreparedXrcRecv,
}

impl From<ConnectXrcError> for Error {
    /// Keeps the reason, and drops the receiving end.
    fn from(e: ConnectXrcError) -> Self {
        e.error
    }
}

impl fmt::Debug for Xrcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xrcd").field("handle", &self.inner.handle.id()).finish()
    }
}

impl fmt::Debug for PreparedXrcRecv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedXrcRecv").field("local", &self.local.endpoint).finish_non_exhaustive()
    }
}

impl fmt::Debug for XrcRecvQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcRecvQp").field("qpn", &self.qpn).field("state", &self.state()).finish()
    }
}
