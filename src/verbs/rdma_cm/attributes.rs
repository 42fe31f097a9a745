//! What the kernel's connection manager wants a queue pair to be, and queue pairs made so.

use crate::cm::error::{Error, Step};
use crate::cm::event::DatagramPeer;
use crate::cm::id::{CmId, Place};
use crate::uverbs::attr::{ModifyQp, QpState, qp_attr_mask as mask};
use crate::uverbs::device::DeviceInfo;
use crate::uverbs::types::{GidIndex, OutOfRange, PortNum, Psn};
use crate::verbs::attr::{Grh, Path, QpUpdate, RnrTimer, StaticRate};
use crate::verbs::prepared::{PreparedQp, QpBuilder};
use crate::verbs::provider::Provider;
use crate::verbs::qp::Qp;
use crate::verbs::qp_type::{QpType, Rc};

impl CmId {
    /// The attributes that bring the id's queue pair into that state, as the kernel hands them out: for
    /// [`Qp::modify`](crate::Qp::modify), which passes on all of them, known here or not. Of a connection, those for RTR and
    /// RTS are there when both sides have said who they are: from [`CONNECT_RESPONSE`](crate::rdma_cm::EventType), or with a
    /// request.
    ///
    /// The kernel leaves the receiver-not-ready timer at zero, the longest there is; here it is
    /// [`RnrTimer::DEFAULT`].
    ///
    /// ```no_run
    /// # fn f(id: &ironverbs::rdma_cm::CmId, qp: &mut ironverbs::Qp) -> Result<(), Box<dyn std::error::Error>> {
    /// use ironverbs::QpState;
    /// for state in [QpState::RTR, QpState::RTS] {
    ///     qp.modify(&id.qp_update(state)?)?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn qp_update(&self, state: QpState) -> Result<QpUpdate, Error> {
        match state {
            // The kernel answers as if it was asked for INIT.
            QpState::RTR if self.is_datagram() => return Ok(QpUpdate::to(state)),
            QpState::RTS if self.is_datagram() => return Ok(QpUpdate::to(state).sq_psn(Psn::default())),
            _ => {}
        }
        let mut raw = self.qp_attributes(state)?;
        if raw.attr_mask & mask::MIN_RNR_TIMER != 0 && raw.min_rnr_timer == 0 {
            raw.min_rnr_timer = RnrTimer::DEFAULT.code();
        }
        Ok(QpUpdate::by_kernel(raw))
    }

    /// Connects the queue pair of a connection as the kernel wants it: ready to send, so that the id can be
    /// [established](Self::establish) or [accepted](Self::accept). Receives that were posted stay.
    pub fn bring_up<P: Provider>(&self, prepared: PreparedQp<P, Rc>) -> Result<Qp<P, Rc>, Error> {
        self.bring_up_with(prepared, RnrTimer::DEFAULT)
    }

    pub(super) fn bring_up_with<P: Provider>(
        &self,
        prepared: PreparedQp<P, Rc>,
        timer: RnrTimer,
    ) -> Result<Qp<P, Rc>, Error> {
        self.port_on(prepared.core.context().info())?;
        let rtr = self.qp_update(QpState::RTR)?.min_rnr_timer(timer);
        let rts = self.qp_update(QpState::RTS)?;
        prepared.bring_up(&rtr, &rts, self.gid_ip()).map_err(Error::verbs(Step::ModifyQp))
    }

    /// The id's port, if `device` is the one that it is on. A queue pair of another device would be connected without an error,
    /// to a peer that answers some other queue pair.
    pub(super) fn port_on(&self, device: &DeviceInfo) -> Result<PortNum, Error> {
        let Some(Place { port, device: wanted, .. }) = self.place()? else {
            let limit = "bind it to an address of a device, or resolve it, first; kernels before Linux 5.7 tell none";
            return Err(Error::invalid(Step::PrepareQp, "the id's device", "none", limit));
        };
        if let Some(given) = device.index
            && wanted != given
        {
            let limit = format!(
                "the protection domain is of {}, which has index {}; open the id's own device (Devices does)",
                device.shown_name(),
                given.0
            );
            return Err(Error::invalid(Step::PrepareQp, "the id's device index", wanted.0, limit));
        }
        Ok(port)
    }
}

impl<P: Provider, T: QpType> QpBuilder<'_, P, T> {
    /// Make the queue pair where the connection manager's `id` is: on the same port, in the same partition, and of datagrams
    /// with the Q_Key of its port space. The id is resolved, bound or a request by then; the protection domain must be of its
    /// device, as [`Devices`](crate::rdma_cm::Devices) opens it. Of a connection, the kernel chooses the GID, and
    /// [`endpoint`](crate::Qp::endpoint) has none until it is [brought up](CmId::bring_up).
    ///
    /// ```no_run
    /// # fn f(id: &ironverbs::rdma_cm::CmId, pd: &ironverbs::Pd, cq: &ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// let qp = ironverbs::QpBuilder::ud(pd, cq, cq).on_id(id)?.build()?.activate()?;
    /// # drop(qp);
    /// # Ok(()) }
    /// ```
    pub fn on_id(self, id: &CmId) -> Result<Self, Error> {
        let port = id.port_on(self.device())?;
        // What the kernel would say (`cma_ib_init_qp_attr` in `drivers/infiniband/core/cma.c`) is then the index of that partition, the
        // first, and to ask takes as long as to make the change.
        let init = match self.is_in_only_partition(port) {
            true => ModifyQp { attr_mask: mask::PKEY_INDEX, pkey_index: 0, ..ModifyQp::default() },
            false => id.qp_attributes(QpState::INIT)?,
        };
        Ok(self.at(port, &init))
    }
}

impl DatagramPeer {
    /// The way to it, for an [`AddressHandle`](crate::AddressHandle) ([`Pd::create_ah`](crate::Pd::create_ah)).
    ///
    /// ```no_run
    /// # fn f(peer: &ironverbs::rdma_cm::DatagramPeer, pd: &ironverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
    /// let ah = pd.create_ah(&peer.path()?)?;
    /// let destination = ah.to(ironverbs::Qpn::new(peer.qpn)?, peer.qkey);
    /// # let _ = destination;
    /// # Ok(()) }
    /// ```
    pub fn path(&self) -> Result<Path, OutOfRange> {
        let to = &self.address;
        let grh = to.is_global.then_some(Grh {
            dgid: to.dgid,
            sgid_index: GidIndex(to.sgid_index),
            hop_limit: to.hop_limit,
            traffic_class: to.traffic_class,
            flow_label: to.flow_label,
        });
        let port = PortNum::new(to.port_num)?;
        Ok(Path { port, dlid: to.dlid, sl: to.sl, static_rate: StaticRate(to.static_rate), grh })
    }
}
