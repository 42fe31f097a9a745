//! Queue pairs of all transports, and shared receive queues: how they are made and connected.

use crate::program::{ENTRIES, INLINE, Kind, PairSpec, Shared};
use crate::reference::{End, Pair};
use crate::world::{Side, World};
use ironverbs::{
    AccessFlags, AckTimeout, AddressHandle, Any, ConnectOptions, Connected, Endpoint, Error, PreparedQp,
    PreparedXrcRecv, Psn, QKey, Qp, QpBuilder, QpCap, QpState, QpType, QpUpdate, Qpn, Rc, Receives, RecvBatch, Srq,
    Srqn, Uc, Ud, Xrc, XrcRecvQp, XrcSend, Xrcd,
};

/// A queue pair of any transport.
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
pub enum AnyQp {
    Rc(Qp<Any, Rc>),
    Uc(Qp<Any, Uc>),
    Ud(Qp<Any, Ud>, AddressHandle),
    /// What sends, and what the peer's sends reach.
    Xrc(Qp<Any, XrcSend>, XrcRecvQp),
}

/// A shared receive queue of either kind.
pub enum AnySrq {
    Basic(Srq),
    Xrc(Srq<Any, Xrc>, Xrcd),
}

pub const QKEY: QKey = QKey(0x1357_9bdf);

impl AnyQp {
    /// Of what sends, of what receives.
    pub fn numbers(&self) -> [Qpn; 2] {
        match self {
            Self::Rc(qp) => [qp.qpn(); 2],
            Self::Uc(qp) => [qp.qpn(); 2],
            Self::Ud(qp, _) => [qp.qpn(); 2],
            Self::Xrc(qp, recv) => [qp.qpn(), recv.qpn()],
        }
    }

    pub fn cap(&self) -> QpCap {
        match self {
            Self::Rc(qp) => qp.cap(),
            Self::Uc(qp) => qp.cap(),
            Self::Ud(qp, _) => qp.cap(),
            Self::Xrc(qp, _) => qp.cap(),
        }
    }

    pub fn enter_error(&mut self) -> Result<(), Error> {
        match self {
            Self::Rc(qp) => qp.to_error(),
            Self::Uc(qp) => qp.to_error(),
            Self::Ud(qp, _) => qp.to_error(),
            Self::Xrc(qp, recv) => {
                qp.to_error()?;
                recv.modify(&QpUpdate::to(QpState::ERR))
            }
        }
    }
}

impl AnySrq {
    pub fn recv_batch(&mut self) -> RecvBatch<'_, Any> {
        match self {
            Self::Basic(srq) => srq.recv_batch(),
            Self::Xrc(srq, _) => srq.recv_batch(),
        }
    }

    pub fn capacity(&self) -> u32 {
        match self {
            Self::Basic(srq) => srq.capacity(),
            Self::Xrc(srq, _) => srq.capacity(),
        }
    }
}

impl World {
    /// A new pair in that place.
    pub fn connect(&self, spec: &PairSpec, place: usize) -> Pair {
        let [send_cq, recv_cq] = spec.cqs;
        let queues = |side: usize| {
            let side = &self.sides[side];
            (&side.pd, &side.cqs[send_cq], &side.cqs[recv_cq])
        };
        let qps = match spec.kind {
            Kind::Rc => {
                let [a, b] = [0, 1].map(|side| {
                    let (pd, send, recv) = queues(side);
                    let builder = QpBuilder::rc(pd, send, recv).access(AccessFlags::ALL);
                    self.prepare(spec, side, builder.data_in_completions(spec.inside))
                });
                join(spec, a, b).map(AnyQp::Rc)
            }
            Kind::Uc => {
                let [a, b] = [0, 1].map(|side| {
                    let (pd, send, recv) = queues(side);
                    let builder = QpBuilder::uc(pd, send, recv).access(AccessFlags::ALL);
                    self.prepare(spec, side, builder.data_in_completions(spec.inside))
                });
                join(spec, a, b).map(AnyQp::Uc)
            }
            Kind::Ud => {
                let [a, b] = [0, 1].map(|side| {
                    let (pd, send, recv) = queues(side);
                    self.prepare(spec, side, QpBuilder::ud(pd, send, recv).qkey(QKEY)).activate().unwrap()
                });
                let (to_a, to_b) = (b.create_ah(&a.endpoint()).unwrap(), a.create_ah(&b.endpoint()).unwrap());
                [AnyQp::Ud(a, to_b), AnyQp::Ud(b, to_a)]
            }
            Kind::Xrc => {
                let [a, b] = [0, 1].map(|side| {
                    let (pd, send, _) = queues(side);
                    let send = sends(spec, QpBuilder::xrc_send(pd, send)).build().unwrap();
                    let recv = self.sides[side].xrcd().recv_qp().access(AccessFlags::ALL).psn(psn(spec));
                    (send, recv.build().unwrap())
                });
                join_xrc(spec, a, b)
            }
        };
        Pair::new(spec.clone(), place, qps.map(End::new))
    }

    fn prepare<T: Receives>(&self, spec: &PairSpec, side: usize, builder: QpBuilder<'_, Any, T>) -> PreparedQp<Any, T> {
        let mut builder = sends(spec, builder).max_recv_wr(spec.depth).max_recv_sge(ENTRIES as u32);
        if spec.shared {
            builder = builder.srq(self.sides[side].basic_srq());
        }
        builder.build().unwrap()
    }
}

fn psn(spec: &PairSpec) -> Psn {
    Psn::new(spec.psn).unwrap()
}

fn sends<'a, T: QpType>(spec: &PairSpec, builder: QpBuilder<'a, Any, T>) -> QpBuilder<'a, Any, T> {
    builder
        .max_send_wr(spec.depth)
        .max_send_sge(ENTRIES as u32)
        .max_inline_bytes(INLINE as u32)
        .signal_all(spec.signal_all)
        .psn(psn(spec))
}

fn options(spec: &PairSpec, mut options: ConnectOptions) -> ConnectOptions {
    options.path_mtu = Some(spec.mtu);
    options.rnr_retry = 7;
    options.retry_count = 7;
    // About a millisecond.
    options.timeout = AckTimeout::from_code(8).unwrap();
    options
}

fn join<T: Connected>(spec: &PairSpec, a: PreparedQp<Any, T>, b: PreparedQp<Any, T>) -> [Qp<Any, T>; 2] {
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let options = options(spec, a.connect_options());
    [a.connect_with(&b_end, &options).unwrap(), b.connect_with(&a_end, &options).unwrap()]
}

/// What sends, and what the peer's sends will reach.
type XrcEnd = (PreparedQp<Any, XrcSend>, PreparedXrcRecv);

fn join_xrc(spec: &PairSpec, a: XrcEnd, b: XrcEnd) -> [AnyQp; 2] {
    let options = options(spec, a.0.connect_options());
    let ends = |(send, recv): &XrcEnd| (send.endpoint(), recv.endpoint());
    let connect = |(send, recv): XrcEnd, (peer_send, peer_recv): (Endpoint, Endpoint)| {
        let recv = recv.connect_with(&peer_send, &options).unwrap();
        AnyQp::Xrc(send.connect_with(&peer_recv, &options).unwrap(), recv)
    };
    let (a_ends, b_ends) = (ends(&a), ends(&b));
    [connect(a, b_ends), connect(b, a_ends)]
}

impl Side {
    fn basic_srq(&self) -> &Srq {
        match self.shared(Shared::Basic).map(|queue| &queue.srq) {
            Some(AnySrq::Basic(srq)) => srq,
            _ => unreachable!("a pair uses it"),
        }
    }

    fn xrc(&self) -> (&Srq<Any, Xrc>, &Xrcd) {
        match self.shared(Shared::Xrc).map(|queue| &queue.srq) {
            Some(AnySrq::Xrc(srq, xrcd)) => (srq, xrcd),
            _ => unreachable!("a pair uses it"),
        }
    }

    fn xrcd(&self) -> &Xrcd {
        self.xrc().1
    }

    /// What peers name the shared receive queue of XRC by.
    pub fn srqn(&self) -> Srqn {
        self.xrc().0.number()
    }
}
