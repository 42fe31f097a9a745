//! Every state transition of every transport: with what it needs the kernel takes it, without any part of that the library
//! names what is missing and asks nobody.

use crate::fixture::{Kind, Setup, Side, eventually, prepare_kind};
use crate::harness::step;
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{
    AccessFlags, AckTimeout, Any, Cq, Endpoint, Error, GidIndex, Mtu, Path, Pd, PortNum, Psn, QKey, Qp, QpState,
    QpType, QpUpdate, Rc, RnrTimer, Uc, Ud,
};

tests! {
    reliable_connection,
    unreliable_connection,
    datagrams,
    every_attribute_is_told,
}

/// A transition, and the attributes that it needs (IB spec, table 91).
type Step = (QpState, QpState, &'static [&'static str]);

const RC: &[Step] = &[
    (QpState::RESET, QpState::INIT, &["pkey_index", "port", "access"]),
    (QpState::INIT, QpState::INIT, &[]),
    (QpState::INIT, QpState::RTR, &["path", "path_mtu", "dest_qpn", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"]),
    (QpState::RTR, QpState::RTS, &["timeout", "retry_count", "rnr_retry", "sq_psn", "max_rd_atomic"]),
    (QpState::RTS, QpState::RTS, &[]),
    (QpState::RTS, QpState::SQD, &[]),
    (QpState::SQD, QpState::SQD, &[]),
    (QpState::SQD, QpState::RTS, &[]),
    (QpState::RTS, QpState::ERR, &[]),
    (QpState::ERR, QpState::ERR, &[]),
    (QpState::ERR, QpState::RESET, &[]),
    (QpState::RESET, QpState::RESET, &[]),
];

const UC: &[Step] = &[
    (QpState::RESET, QpState::INIT, &["pkey_index", "port", "access"]),
    (QpState::INIT, QpState::INIT, &[]),
    (QpState::INIT, QpState::RTR, &["path", "path_mtu", "dest_qpn", "rq_psn"]),
    (QpState::RTR, QpState::RTS, &["sq_psn"]),
    (QpState::RTS, QpState::RTS, &[]),
    (QpState::RTS, QpState::SQD, &[]),
    (QpState::SQD, QpState::SQD, &[]),
    (QpState::SQD, QpState::RTS, &[]),
    (QpState::RTS, QpState::ERR, &[]),
    (QpState::ERR, QpState::RESET, &[]),
];

const UD: &[Step] = &[
    (QpState::RESET, QpState::INIT, &["pkey_index", "port", "qkey"]),
    (QpState::INIT, QpState::INIT, &[]),
    (QpState::INIT, QpState::RTR, &[]),
    (QpState::RTR, QpState::RTS, &["sq_psn"]),
    (QpState::RTS, QpState::RTS, &[]),
    (QpState::RTS, QpState::SQD, &[]),
    (QpState::SQD, QpState::SQD, &[]),
    (QpState::SQD, QpState::RTS, &[]),
    (QpState::RTS, QpState::ERR, &[]),
    (QpState::ERR, QpState::RESET, &[]),
];

/// States that a transport can be put into, and what it can go to from there: everything else does not exist.
const STATES: [QpState; 6] = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];

/// Attributes that no transition of this suite needs where they are not listed.
const ALL: &[&str] = &[
    "pkey_index",
    "port",
    "access",
    "qkey",
    "path",
    "path_mtu",
    "dest_qpn",
    "rq_psn",
    "sq_psn",
    "timeout",
    "retry_count",
    "rnr_retry",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "en_sqd_async_notify",
];

/// Where a queue pair is connected to: itself.
#[derive(Clone, Copy)]
struct Here {
    port: PortNum,
    gid_index: Option<GidIndex>,
    end: Endpoint,
}

impl Here {
    fn set(&self, update: QpUpdate, name: &str) -> QpUpdate {
        let path = match self.end.gid.zip(self.gid_index) {
            Some((dgid, index)) => Path::to_gid(self.port, index, dgid),
            None => Path { port: self.port, dlid: self.end.lid, sl: 0, static_rate: Default::default(), grh: None },
        };
        match name {
            "pkey_index" => update.pkey_index(0),
            "port" => update.port(self.port),
            "access" => update.access(AccessFlags::ALL),
            "qkey" => update.qkey(QKey(0x1111_1111)),
            "path" => update.path(&path),
            "path_mtu" => update.path_mtu(self.end.mtu.unwrap_or(Mtu::B256)),
            "dest_qpn" => update.dest_qpn(self.end.qpn),
            "rq_psn" => update.rq_psn(self.end.psn),
            "sq_psn" => update.sq_psn(self.end.psn),
            "timeout" => update.timeout(AckTimeout::DEFAULT),
            "retry_count" => update.retry_count(6),
            "rnr_retry" => update.rnr_retry(6),
            "max_rd_atomic" => update.max_rd_atomic(1),
            "max_dest_rd_atomic" => update.max_dest_rd_atomic(1),
            "min_rnr_timer" => update.min_rnr_timer(RnrTimer::DEFAULT),
            "en_sqd_async_notify" => update.en_sqd_async_notify(true),
            other => panic!("{other}"),
        }
    }

    fn update<'n>(&self, to: QpState, names: impl IntoIterator<Item = &'n &'static str>) -> QpUpdate {
        names.into_iter().fold(QpUpdate::to(to), |update, name| self.set(update, name))
    }
}

fn reliable_connection(target: &Target) {
    connected::<Rc>(target, RC);
    seen::works("RC every transition");
}

fn unreliable_connection(target: &Target) {
    connected::<Uc>(target, UC);
    seen::works("UC every transition");
}

fn connected<T: Kind>(target: &Target, steps: &[Step]) {
    let context = target.open();
    let (pd, cq): (Pd, Cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let prepared = prepare_kind::<T>(target, &pd, &cq, &cq, &Setup::default());
    let here = Here { port: target.port, gid_index: prepared.gid_index(), end: prepared.endpoint() };
    walk(target, prepared.into_unconnected(), here, steps);
}

fn datagrams(target: &Target) {
    let Side { qp, gid_index, port, cq: _cq, .. } =
        Side::<Ud>::datagrams(target, target.open(), None, &Setup::default());
    let here = Here { port, gid_index, end: qp.endpoint() };
    walk(target, qp, here, UD);
    seen::works("UD every transition");
}

/// Takes every step, twice round, after refusing each way to get it wrong.
fn walk<T: QpType>(target: &Target, mut qp: Qp<Any, T>, here: Here, steps: &[Step]) {
    qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    // Whether the driver has the way to SQD.
    let mut drains = true;
    for round in 0..2 {
        for (from, to, required) in steps {
            step(format!("round {round}: {from} to {to}"));
            if *from == QpState::SQD && !drains {
                continue;
            }
            assert_eq!(qp.state(), *from);
            for missing in *required {
                let update = here.update(*to, required.iter().filter(|name| *name != missing));
                let Err(Error::Transition(told)) = qp.modify(&update) else { panic!("without {missing}") };
                assert_eq!((told.missing, told.extra, told.exists), (vec![*missing], vec![], true));
            }
            for other in STATES {
                let exists = steps.iter().any(|(a, b, _)| (a, *b) == (from, other))
                    || matches!(other, QpState::RESET)
                    || (other == QpState::ERR && *from != QpState::RESET);
                if !exists {
                    let Err(Error::Transition(told)) = qp.modify(&QpUpdate::to(other)) else {
                        panic!("{from} to {other}");
                    };
                    assert!(!told.exists, "{from} to {other}");
                }
            }
            // No attribute belongs to a transition that ends the queue pair's life.
            if matches!(*to, QpState::ERR | QpState::RESET) {
                for extra in ALL {
                    let Err(Error::Transition(told)) = qp.modify(&here.update(*to, [extra])) else { panic!("{extra}") };
                    assert_eq!((told.missing, told.extra), (vec![], vec![*extra]));
                }
            }
            assert_eq!(qp.query().unwrap().qp_state, *from, "refused, and so not done");
            if *from == QpState::SQD {
                eventually("the send queue is drained", || !qp.query().unwrap().sq_draining);
            }
            let done = qp.modify(&here.update(*to, *required));
            if let (QpState::RTS, QpState::SQD, false, Err(error)) = (*from, *to, target.kind.is_rxe(), &done) {
                seen::refused("RTS to SQD", error);
                drains = false;
                continue;
            }
            done.unwrap();
            assert_eq!(qp.query().unwrap().qp_state, *to);
        }
    }
}

/// What is put in comes out of a query.
fn every_attribute_is_told(target: &Target) {
    let Side { mut qp, port, cq: _cq, .. } = Side::<Ud>::datagrams(target, target.open(), None, &Setup::default());
    let attr = qp.query().unwrap();
    assert_eq!((attr.qp_state, attr.qkey, attr.port_num), (QpState::RTS, crate::fixture::QKEY.0, port.get()));
    assert_eq!(attr.sq_psn, qp.endpoint().psn.get());
    qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    qp.modify(&QpUpdate::to(QpState::INIT).port(port).pkey_index(0).qkey(QKey(5))).unwrap();
    qp.modify(&QpUpdate::to(QpState::RTR)).unwrap();
    let psn = Psn::new(0xff_fff0).unwrap();
    qp.modify(&QpUpdate::to(QpState::RTS).sq_psn(psn).qkey(QKey(6))).unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.qkey, attr.sq_psn, attr.pkey_index), (6, psn.get(), 0));
    assert!(attr.cap.max_send_wr >= 32 && !attr.sq_sig_all);
    seen::works("QP query");
}
