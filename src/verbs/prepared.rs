//! From nothing to a connected queue pair: builder, prepared queue pair, connect.

use super::access::AccessFlags;
use super::attr::QpUpdate;
use super::batch::RecvBatch;
use super::cq::Cq;
use super::cq_depth::CqLoad;
use super::endpoint::{ConnectOptions, Endpoint};
use super::gid::{GidChoice, GidWant};
use super::pd::Pd;
use super::provider::sealed::SendOps;
use super::provider::{Any, Provider};
use super::qp::Qp;
use super::qp_core::{Asked, QpCore};
use super::qp_type::{Connectable, Connected, QpType, Rc, Receives, Uc, Ud, XrcSend};
use super::reach::{Address, Local, Place};
use super::srq::Srq;
use super::transition::Transport;
use crate::uverbs::attr::{ModifyQp, QpCap, QpState, qp_attr_mask};
use crate::uverbs::device::DeviceInfo;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::types::{GidIndex, Lid, Mtu, PortNum, Psn, QKey, Qpn};
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

/// Settings of a queue pair to be made.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// use ironverbs::{AccessFlags, QpBuilder};
/// let prepared = QpBuilder::rc(pd, cq, cq).max_send_wr(64).access(AccessFlags::REMOTE_WRITE).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct QpBuilder<'a, P: Provider = Any, T: QpType = Rc> {
    pd: &'a Pd,
    send_cq: &'a Cq<P>,
    recv_cq: &'a Cq<P>,
    srq: Option<&'a Srq<P>>,
    cap: QpCap,
    signal_all: bool,
    data_in_completions: bool,
    place: Place,
    pkey_index: u16,
    access: AccessFlags,
    qkey: QKey,
    kind: PhantomData<T>,
}

impl<'a, P: Provider> QpBuilder<'a, P, Rc> {
    /// A queue pair for a reliable connection, on port 1, with the GID that fits best.
    pub fn rc(pd: &'a Pd, send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        Self::new(pd, send_cq, recv_cq)
    }
}

impl<'a, P: Provider> QpBuilder<'a, P, Uc> {
    /// A queue pair for an unreliable connection, on port 1, with the GID that fits best.
    pub fn uc(pd: &'a Pd, send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        Self::new(pd, send_cq, recv_cq)
    }
}

impl<'a, P: Provider> QpBuilder<'a, P, Ud> {
    /// A queue pair for unreliable datagrams, on port 1, with the GID that fits best and a Q_Key of zero.
    pub fn ud(pd: &'a Pd, send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        Self::new(pd, send_cq, recv_cq)
    }

    /// The key that a datagram must carry to be taken. Default 0. A [controlled](QKey::is_controlled) one needs
    /// `CAP_NET_RAW`.
    pub fn qkey(mut self, qkey: QKey) -> Self {
        self.qkey = qkey;
        self
    }
}

impl<'a, P: Provider> QpBuilder<'a, P, XrcSend> {
    /// The sending end of an extended reliable connection, on port 1, with the GID that fits best. It has no receive queue.
    pub fn xrc_send(pd: &'a Pd, send_cq: &'a Cq<P>) -> Self {
        let mut builder = Self::new(pd, send_cq, send_cq);
        (builder.cap.max_recv_wr, builder.cap.max_recv_sge) = (0, 0);
        builder
    }
}

impl<'a, P: Provider, T: Connectable> QpBuilder<'a, P, T> {
    /// What the peer may do to memory through this queue pair; the memory region must allow it too. Default: nothing, so
    /// that the peer's first WRITE, READ or atomic fails there with `REM_INV_REQ_ERR` or `REM_ACCESS_ERR`.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.access = access;
        self
    }
}

/// What queue pairs of connections have besides.
impl<'a, P: Provider, T: Connected> QpBuilder<'a, P, T> {
    /// Let the device put what comes in into the completion itself, and not into the memory that the work request names: of a
    /// message up to 32 bytes, or 64 on a completion queue with [entries of 128](crate::CqBuilder::entry_bytes); and, of queue
    /// pairs that [signal all](Self::signal_all), the answers of READs and atomics up to 32. One transfer less for each, in the
    /// place that is read anyway. Default off; ConnectX adapters only, and it is the device's choice what it puts there.
    ///
    /// With it [`Completion::inline_data`](crate::Completion::inline_data) has to be looked at; a [`Wc`](crate::Wc) holds no
    /// data. [`Pool::reclaim`](crate::Pool::reclaim) does that, and copies them into the slot: with a pool nothing changes. A
    /// [`scope`](crate::Qp::scope) is refused.
    ///
    /// ```no_run
    /// # fn f(pd: &ironverbs::Pd, cq: &mut ironverbs::Cq, room: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// let prepared = ironverbs::QpBuilder::rc(pd, cq, cq).data_in_completions(true).build()?;
    /// // … connected, and a receive into `room` was posted …
    /// while let Some(completion) = cq.poll()?.next() {
    ///     match completion.inline_data() {
    ///         Some(data) => println!("{:?}", &data[..]),
    ///         None => println!("{:?}", &room[..completion.outcome()?.byte_len as usize]),
    ///     }
    /// }
    /// # drop(prepared);
    /// # Ok(()) }
    /// ```
    #[doc(alias("MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE", "MLX5_QP_FLAG_SCATTER_CQE"))]
    pub fn data_in_completions(mut self, on: bool) -> Self {
        self.data_in_completions = on;
        self
    }
}

/// What queue pairs that receive have besides.
impl<'a, P: Provider, T: Receives> QpBuilder<'a, P, T> {
    /// Receives that fit at once. Default 16.
    pub fn max_recv_wr(mut self, n: u32) -> Self {
        self.cap.max_recv_wr = n;
        self
    }

    /// Take receives from `srq`, as other queue pairs do too. [`max_recv_wr`](Self::max_recv_wr) and
    /// [`max_recv_sge`](Self::max_recv_sge) then mean nothing, and receives are posted to `srq` only. Their completions
    /// still go to this queue pair's receive completion queue.
    pub fn srq(mut self, srq: &'a Srq<P>) -> Self {
        self.srq = Some(srq);
        self
    }

    /// Scatter/gather entries of one receive. Default 1.
    pub fn max_recv_sge(mut self, n: u32) -> Self {
        self.cap.max_recv_sge = n;
        self
    }
}

impl<'a, P: Provider, T: QpType> QpBuilder<'a, P, T> {
    fn new(pd: &'a Pd, send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        Self {
            pd,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            signal_all: false,
            data_in_completions: false,
            place: Place::default(),
            pkey_index: 0,
            access: AccessFlags::LOCAL_READ,
            qkey: QKey(0),
            kind: PhantomData,
        }
    }

    /// Send work requests that fit at once. Default 16. Of each so many, at least one must be
    /// [`SIGNALED`](crate::WrFlags::SIGNALED): completions are what gives slots back.
    pub fn max_send_wr(mut self, n: u32) -> Self {
        self.cap.max_send_wr = n;
        self
    }

    /// Scatter/gather entries of one send. Default 1.
    pub fn max_send_sge(mut self, n: u32) -> Self {
        self.cap.max_send_sge = n;
        self
    }

    /// Bytes of inline payload of one send. Default 0.
    pub fn max_inline_bytes(mut self, n: u32) -> Self {
        self.cap.max_inline_data = n;
        self
    }

    /// Give a completion for every send, as if each were [`SIGNALED`](crate::WrFlags::SIGNALED).
    pub fn signal_all(mut self, on: bool) -> Self {
        self.signal_all = on;
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

    /// First packet sequence number sent. Default: random.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.place.psn = Some(psn);
        self
    }

    /// Makes the queue pair and puts it in state INIT: it takes receives, and can be connected.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(mut self) -> Result<PreparedQp<P, T>, Error> {
        if self.srq.is_some() {
            (self.cap.max_recv_wr, self.cap.max_recv_sge) = (0, 0);
        }
        let context = &self.pd.inner().context;
        self.check_caps()?;
        let address = Address::find(context, self.place)?;
        let mut core = QpCore::<P>::create(
            self.pd,
            self.send_cq.shared(),
            self.recv_cq.shared(),
            self.srq.map(Srq::shared),
            T::TRANSPORT,
            Asked { cap: self.cap, signal_all: self.signal_all, data_in_completions: self.data_in_completions },
        )?;
        if let (Transport::Ud, Some(mtu)) = (T::TRANSPORT, address.mtu) {
            core.send.sq.set_max_datagram(mtu.bytes());
        }
        let (local, gid_choice) = address.of(core.shared().qpn);
        let init = Init { port: local.port, pkey_index: self.pkey_index, access: self.access, qkey: self.qkey };
        core.modify(&init.update(T::TRANSPORT))?;
        Ok(PreparedQp { core, local, gid_choice: gid_choice.map(Box::new), init, kind: PhantomData })
    }

    /// The device that its protection domain is of.
    pub(super) fn device(&self) -> &DeviceInfo {
        self.pd.inner().context.info()
    }

    /// Whether it is of a connection over Ethernet, as far as can be told. Such a port has one partition.
    pub(super) fn is_in_only_partition(&self, port: PortNum) -> bool {
        let context = &self.pd.inner().context;
        T::TRANSPORT == Transport::Rc && context.is_ethernet(port).is_ok_and(|ethernet| ethernet)
    }

    /// Takes the place that the kernel's connection manager has for it. To find an address of its own would take longer than
    /// all the rest of making a queue pair, and that of a connection is the kernel's choice.
    pub(super) fn at(mut self, port: PortNum, init: &ModifyQp) -> Self {
        self.place.port = port;
        self.place.told_later = matches!(T::TRANSPORT, Transport::Rc) && self.place.gid_index.is_none();
        if init.attr_mask & qp_attr_mask::PKEY_INDEX != 0 {
            self.pkey_index = init.pkey_index;
        }
        if init.attr_mask & qp_attr_mask::QKEY != 0 {
            self.qkey = QKey(init.qkey);
        }
        self
    }

    fn check_caps(&self) -> Result<(), Error> {
        let attr = &self.pd.inner().context.attr;
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data: _ } = self.cap;
        let limits = [
            ("max_send_wr", max_send_wr, 1, attr.max_qp_wr),
            ("max_recv_wr", max_recv_wr, 0, attr.max_qp_wr),
            ("max_send_sge", max_send_sge, 0, attr.max_sge),
            ("max_recv_sge", max_recv_sge, 0, attr.max_sge),
        ];
        for (what, value, min, max) in limits {
            if value < min || value > max {
                return Err(Error::invalid(Verb::CreateQp, what, value, format!("the device takes {min} to {max}")));
            }
        }
        Ok(())
    }
}

/// A queue pair that takes receives and waits for its peer's [`Endpoint`].
///
/// Post receives before the peer is told of this side: a message that finds none is sent again only after a pause.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq, pool: &ironverbs::Pool, remote: &ironverbs::Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let mut prepared = ironverbs::QpBuilder::rc(pd, cq, cq).build()?;
/// prepared.recv_slot(pool.take().ok_or("no slot")?)?; // before the peer can send
/// let qp = prepared.connect(remote)?;
/// # drop(qp);
/// # Ok(()) }
/// ```
pub struct PreparedQp<P: Provider = Any, T: QpType = Rc> {
    pub(super) core: QpCore<P>,
    local: Local,
    /// Why its GID, if it was chosen and not named.
    gid_choice: Option<Box<GidChoice>>,
    init: Init,
    kind: PhantomData<T>,
}

/// What it is given with state INIT.
struct Init {
    port: PortNum,
    pkey_index: u16,
    access: AccessFlags,
    qkey: QKey,
}

impl Init {
    fn update(&self, transport: Transport) -> QpUpdate {
        let init = QpUpdate::to(QpState::INIT).port(self.port).pkey_index(self.pkey_index);
        match transport {
            Transport::Ud => init.qkey(self.qkey),
            _ => init.access(self.access),
        }
    }
}

impl<P: Provider, T: QpType> PreparedQp<P, T> {
    /// What the peer needs to know.
    pub fn endpoint(&self) -> Endpoint {
        self.local.endpoint
    }

    /// Index of the GID it uses.
    pub fn gid_index(&self) -> Option<GidIndex> {
        self.local.gid_index
    }

    /// Why that GID, if it was chosen and not named.
    pub fn gid_choice(&self) -> Option<&GidChoice> {
        self.gid_choice.as_deref()
    }

    /// The queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.core.shared().qpn
    }

    /// The sizes of its queues, as the provider made them: at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.core.shared().cap
    }

    /// The completion queue of its that is too small for all its queue pairs, this one included, if there is one: completions
    /// may be lost. A program that knows how much it has under way at once may ignore it.
    ///
    /// ```no_run
    /// # fn f(prepared: &ironverbs::PreparedQp) {
    /// if let Some(load) = prepared.short_cq() {
    ///     eprintln!("{load}");
    /// }
    /// # }
    /// ```
    pub fn short_cq(&self) -> Option<CqLoad> {
        let shared = self.core.shared();
        [&shared.send_cq, &shared.recv_cq].map(|cq| cq.load()).into_iter().find(CqLoad::is_short)
    }

    /// Gives up the help with connecting: the queue pair stays in INIT, and [`Qp::modify`] takes it further.
    pub fn into_unconnected(self) -> Qp<P, T> {
        Qp::new(self.core, self.local)
    }

    /// Back to INIT from wherever a failed try left it.
    fn return_to_init(&mut self) -> Result<(), Error> {
        if self.core.shared().state() != QpState::INIT {
            self.core.modify(&QpUpdate::to(QpState::RESET))?;
            self.core.modify(&self.init.update(T::TRANSPORT))?;
        }
        Ok(())
    }
}

impl<P: Provider, T: Receives> PreparedQp<P, T> {
    /// Opens a batch of receives.
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, P, T> {
        self.core.recv.batch()
    }
}

impl<P: Provider> PreparedQp<P, Ud> {
    /// Lets it receive and send. There is no peer to connect to: each send names its own.
    ///
    /// On error the queue pair comes back and can be tried again.
    pub fn activate(mut self) -> Result<Qp<P, Ud>, ConnectError<P, Ud>> {
        match self.try_activate() {
            Ok(()) => Ok(Qp::new(self.core, self.local)),
            Err(error) => Err(ConnectError { error, prepared: self }),
        }
    }

    fn try_activate(&mut self) -> Result<(), Error> {
        self.return_to_init()?;
        self.core.modify(&QpUpdate::to(QpState::RTR))?;
        self.core.modify(&QpUpdate::to(QpState::RTS).sq_psn(self.local.endpoint.psn))
    }
}

impl<P: Provider> PreparedQp<P, Rc> {
    /// Connects with the attributes that the kernel's connection manager wants for each of both steps. `ip` is its own address, if
    /// packets carry one that the kernel took as it is.
    pub(super) fn bring_up(mut self, rtr: &QpUpdate, rts: &QpUpdate, ip: Option<IpAddr>) -> Result<Qp<P, Rc>, Error> {
        self.return_to_init()?;
        self.core.modify(rtr)?;
        self.core.modify(rts)?;
        let (endpoint, dest) = (&mut self.local.endpoint, &rtr.raw.dest);
        endpoint.psn = Psn::default().advance(rts.raw.sq_psn);
        endpoint.mtu = Mtu::from_raw(rtr.raw.path_mtu);
        let (context, port) = (self.core.context(), self.local.port);
        if dest.is_global {
            let index = GidIndex(dest.sgid_index);
            self.local.gid_index = Some(index);
            endpoint.gid = match ip {
                // A LID means InfiniBand, whose GIDs are no addresses of IP.
                Some(ip) if dest.dlid == Lid(0) => Some(ip.into()),
                _ => context.query_gid(port, index)?.map(|entry| entry.gid),
            };
        } else {
            endpoint.lid = context.query_port(port)?.lid;
        }
        Ok(Qp::new(self.core, self.local))
    }

    /// Whether it receives from a shared receive queue.
    pub(super) fn has_srq(&self) -> bool {
        self.core.shared().srq.is_some()
    }
}

impl<P: Provider, T: Connectable> PreparedQp<P, T> {
    /// Default options, within the device's limits.
    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::within(&self.core.context().attr)
    }

    /// Connects to `remote`, whose side must do the same with this side's [`endpoint`](Self::endpoint).
    pub fn connect(self, remote: &Endpoint) -> Result<Qp<P, T>, ConnectError<P, T>> {
        let options = self.connect_options();
        self.connect_with(remote, &options)
    }

    /// As [`connect`](Self::connect), with other options than the default ones.
    ///
    /// On error the queue pair comes back and can be tried again; receives that were posted are lost if the error came
    /// after the peer's address was accepted.
    pub fn connect_with(mut self, remote: &Endpoint, options: &ConnectOptions) -> Result<Qp<P, T>, ConnectError<P, T>> {
        match self.try_connect(remote, options) {
            Ok(()) => Ok(Qp::new(self.core, self.local)),
            Err(error) => Err(ConnectError { error, prepared: self }),
        }
    }

    fn try_connect(&mut self, remote: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        let path_mtu = self.local.path_mtu(remote, options.path_mtu)?;
        let path = self.local.path(self.core.context(), remote, options)?;
        self.return_to_init()?;
        let mut rtr = QpUpdate::to(QpState::RTR).path(&path).path_mtu(path_mtu).dest_qpn(remote.qpn).rq_psn(remote.psn);
        let mut rts = QpUpdate::to(QpState::RTS).sq_psn(self.local.endpoint.psn);
        if T::TRANSPORT == Transport::Rc {
            rtr = rtr.max_dest_rd_atomic(options.max_dest_rd_atomic).min_rnr_timer(options.min_rnr_timer);
        }
        if matches!(T::TRANSPORT, Transport::Rc | Transport::XrcSend) {
            rts = rts
                .timeout(options.timeout)
                .retry_count(options.retry_count)
                .rnr_retry(options.rnr_retry)
                .max_rd_atomic(options.max_rd_atomic);
        }
        self.core.modify(&rtr)?;
        self.core.modify(&rts)
    }
}

/// A connection that could not be made.
///
/// ```no_run
/// # fn f(prepared: ironverbs::PreparedQp, remote: ironverbs::Endpoint) -> Result<(), ironverbs::Error> {
/// let qp = match prepared.connect(&remote) {
///     Ok(qp) => qp,
///     Err(refused) => {
///         eprintln!("{}; once more", refused.error);
///         refused.prepared.connect(&remote)?
///     }
/// };
/// # drop(qp);
/// # Ok(()) }
/// ```
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct ConnectError<P: Provider = Any, T: QpType = Rc> {
    /// Why.
    pub error: Error,
    /// The queue pair, for another try.
    pub prepared: PreparedQp<P, T>,
}

impl<P: Provider, T: QpType> From<ConnectError<P, T>> for Error {
    /// Keeps the reason, and drops the queue pair.
    fn from(e: ConnectError<P, T>) -> Self {
        e.error
    }
}

impl<P: Provider, T: QpType> fmt::Debug for ConnectError<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<P: Provider, T: QpType> fmt::Debug for PreparedQp<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedQp").field("local", &self.local.endpoint).finish_non_exhaustive()
    }
}
