//! What the transport services differ in, as far as a ping-pong is concerned.

use crate::failure::Failure;
use crate::place::Place;
use crate::wire::Address;
use ironverbs::{
    Any, Connected, Cq, Endpoint, Error, Payload, Pd, PostError, PreparedQp, Qp, QpBuilder, QpType, Rc, SendBatch, Uc,
    WrFlags,
};
use std::net::Ipv6Addr;

/// How one queue pair reaches one other.
pub trait Link: QpType + Sized {
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

/// Connects one queue pair to one other.
pub fn connect<T: Connected>(
    qp: PreparedQp<Any, T>,
    place: &Place<'_>,
    remote: &Address,
) -> Result<Qp<Any, T>, Failure> {
    let options = place.connect_options(&qp);
    qp.connect_with(&endpoint(remote), &options).map_err(|e| cannot_reach(e.error, remote))
}

fn endpoint(remote: &Address) -> Endpoint {
    Endpoint {
        lid: remote.lid,
        qpn: remote.qpn,
        psn: remote.psn,
        gid: (!remote.gid.is_zero()).then_some(remote.gid),
        mtu: None,
    }
}

fn cannot_reach(error: Error, remote: &Address) -> Failure {
    Failure::from(error).during(format_args!(
        "cannot connect to QPN {} at {}",
        remote.qpn,
        Ipv6Addr::from(remote.gid.0)
    ))
}
