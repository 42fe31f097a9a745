//! What the transport services differ in, as far as a ping-pong is concerned.

use crate::failure::Failure;
use crate::place::Place;
use crate::wire::Address;
use ironverbs::{
    AddressHandle, Any, Connectable, Cq, Endpoint, Error, Path, Payload, Pd, PostError, PreparedQp, QKey, Qp,
    QpBuilder, Qpn, Rc, Receives, SendBatch, Uc, Ud, WrFlags,
};
use std::net::Ipv6Addr;

/// How one queue pair reaches one other.
pub trait Link: Receives + Sized {
    /// What each send has to say of the peer.
    type Peer;

    /// Bytes that the device puts in front of each message that arrives.
    const HEADER_BYTES: u32;

    /// Settings of a queue pair.
    fn builder<'a>(pd: &'a Pd, cq: &'a Cq) -> QpBuilder<'a, Any, Self>;

    /// Makes the queue pair ready to send to `remote`, and to receive.
    fn connect(
        qp: PreparedQp<Any, Self>,
        place: &Place<'_>,
        remote: &Address,
    ) -> Result<(Qp<Any, Self>, Self::Peer), Failure>;

    /// Adds a SEND to `batch`.
    fn send(
        batch: &mut SendBatch<'_, Any, Self>,
        peer: &Self::Peer,
        wr_id: u64,
        flags: WrFlags,
        payload: Payload<'_>,
    ) -> Result<(), PostError>;
}

macro_rules! connected {
    ($transport:ident, $builder:ident) => {
        impl Link for $transport {
            type Peer = ();
            const HEADER_BYTES: u32 = 0;

            fn builder<'a>(pd: &'a Pd, cq: &'a Cq) -> QpBuilder<'a, Any, Self> {
                QpBuilder::$builder(pd, cq, cq)
            }

            fn connect(
                qp: PreparedQp<Any, Self>,
                place: &Place<'_>,
                remote: &Address,
            ) -> Result<(Qp<Any, Self>, ()), Failure> {
                Ok((connect(qp, place, remote)?, ()))
            }

            #[inline]
            fn send(
                batch: &mut SendBatch<'_, Any, Self>,
                _: &(),
                wr_id: u64,
                flags: WrFlags,
                payload: Payload<'_>,
            ) -> Result<(), PostError> {
                batch.send(wr_id, flags, payload)
            }
        }
    };
}

connected!(Rc, rc);
connected!(Uc, uc);

/// What `ibv_ud_pingpong` uses on both ends.
const QKEY: QKey = QKey(0x1111_1111);

/// The global route header in front of each datagram, or room for it (IB spec 8.3).
const GRH_BYTES: u32 = 40;

impl Link for Ud {
    type Peer = (AddressHandle, Qpn);
    const HEADER_BYTES: u32 = GRH_BYTES;

    fn builder<'a>(pd: &'a Pd, cq: &'a Cq) -> QpBuilder<'a, Any, Self> {
        QpBuilder::ud(pd, cq, cq).qkey(QKEY)
    }

    fn connect(
        qp: PreparedQp<Any, Self>,
        place: &Place<'_>,
        remote: &Address,
    ) -> Result<(Qp<Any, Self>, Self::Peer), Failure> {
        let global = qp.gid_index().zip(remote.endpoint().gid);
        let grh = global.and_then(|(index, gid)| Path::to_gid(place.port_num, index, gid).grh);
        let path =
            Path { port: place.port_num, dlid: remote.lid, sl: place.args.sl, static_rate: Default::default(), grh };
        let ah = place.pd.create_ah(&path).map_err(|e| remote.cannot_be_reached(e))?;
        let qp = qp.activate().map_err(|e| remote.cannot_be_reached(e.error))?;
        Ok((qp, (ah, remote.qpn)))
    }

    #[inline]
    fn send(
        batch: &mut SendBatch<'_, Any, Self>,
        (ah, qpn): &Self::Peer,
        wr_id: u64,
        flags: WrFlags,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        batch.send_to(wr_id, flags, payload, ah.to(*qpn, QKEY))
    }
}

/// Connects one queue pair to one other.
pub fn connect<T: Connectable>(
    qp: PreparedQp<Any, T>,
    place: &Place<'_>,
    remote: &Address,
) -> Result<Qp<Any, T>, Failure> {
    let options = place.connect_options(qp.connect_options());
    qp.connect_with(&remote.endpoint(), &options).map_err(|e| remote.cannot_be_reached(e.error))
}

impl Address {
    /// As the library takes it.
    pub fn endpoint(&self) -> Endpoint {
        let Self { lid, qpn, psn, gid, xrc: _ } = *self;
        Endpoint { lid, qpn, psn, gid: (!gid.is_zero()).then_some(gid), mtu: None }
    }

    /// Nothing connects to it.
    pub fn cannot_be_reached(&self, error: Error) -> Failure {
        let (qpn, ip) = (self.qpn, Ipv6Addr::from(self.gid.0));
        Failure::from(error).during(format_args!("cannot connect to QPN {qpn} at {ip}"))
    }
}
