//! A ping over an extended reliable connection (XRC) for each direction, as `ibv_xsrq_pingpong` plays it: messages are received
//! from a shared receive queue, whose number the peer names in each send.
//!
//! The server sends first, unlike those of the other transports, and is to be content with one client: where
//! `ibv_xsrq_pingpong` has several (`-c`), it sends to each by the connections of the others, too, which takes clients that
//! share a domain.

use crate::end::{End, Parts};
use crate::failure::{Failure, Kind};
use crate::half::{Half, address, send_depth};
use crate::line::XrcLine;
use crate::link::connect;
use crate::payload::Role;
use crate::place::Place;
use crate::reach::Reach;
use crate::wire::{Address, Record, XrcNumbers};
use ironverbs::{Any, Error, GidChoice, GidIndex, PreparedQp, PreparedXrcRecv, QpBuilder, Srq, Xrc, XrcSend};

/// One side, not connected yet.
pub struct XsrqHalf {
    parts: Parts,
    send: PreparedQp<Any, XrcSend>,
    recv: PreparedXrcRecv,
    srq: Srq<Any, Xrc>,
    reach: Reach,
}

impl Half for XsrqHalf {
    type End = End<XrcLine>;
    const RECORD: Record = Record::Xrc;
    const RECORDS: usize = 1;

    fn new(place: &Place<'_>, role: Role, reach: Reach) -> Result<Self, Failure> {
        let Place { args, context, pd, .. } = place;
        // First what the device may not have at all.
        let xrcd = context.create_xrcd().map_err(without_xrc)?;
        let mut parts = Parts::new(place, role.other(), 0)?;
        let mut srq = context.srq_builder(pd, args.rx_depth).xrc(&xrcd, &parts.cq).build()?;
        parts.post_first_receives(srq.recv_batch())?;
        let send = place
            .aim(QpBuilder::xrc_send(pd, &parts.cq), reach)
            .max_send_wr(send_depth(args))
            .max_inline_bytes(place.inline_bytes())
            .build()?;
        // One address for both: the record has room for one GID, and for one packet sequence number.
        let mut recv = xrcd.recv_qp().port(place.port_num).psn(send.endpoint().psn);
        if let Some(index) = send.gid_index() {
            recv = recv.gid_index(index);
        }
        Ok(Self { parts, send, recv: recv.build()?, srq, reach })
    }

    fn addresses(&self) -> Vec<Address> {
        let sends = address(&self.send);
        let xrc = XrcNumbers { send_qpn: sends.qpn, srqn: self.srq.number() };
        vec![self.reach.used(Address { qpn: self.recv.endpoint().qpn, xrc: Some(xrc), ..sends })]
    }

    fn gid(&self) -> (Option<GidIndex>, Option<&GidChoice>) {
        self.reach.gid(self.send.gid_index(), self.send.gid_choice())
    }

    fn connect(self, place: &Place<'_>, remote: &[Address]) -> Result<End<XrcLine>, Failure> {
        let Self { parts, send, recv, srq, reach } = self;
        let [Address { xrc: Some(XrcNumbers { send_qpn, srqn }), .. }] = *remote else {
            return Err(Failure::new(Kind::Peer, "the peer sent no number of a shared receive queue"));
        };
        let remote = reach.used(remote[0]);
        place.check_gids(send.endpoint().gid, &remote)?;
        let options = place.connect_options(recv.connect_options());
        let sender = Address { qpn: send_qpn, ..remote };
        let recv = recv.connect_with(&sender.endpoint(), &options).map_err(|e| sender.cannot_be_reached(e.error))?;
        let send = connect(send, place, &remote)?;
        parts.connected(XrcLine { send, to: srqn, srq, _recv: recv })
    }
}

/// Who lacks it is said already.
fn without_xrc(error: Error) -> Failure {
    let is_lacking = matches!(error, Error::Unsupported { .. });
    let failure = Failure::from(error);
    if is_lacking {
        failure.hint("--transport xsrq takes an mlx5 device; rdma-probe caps tells what others have")
    } else {
        failure
    }
}
