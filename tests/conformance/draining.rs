//! Draining: every work request comes back once before the queue pair goes, whatever the peer or the network does.

use crate::fixture::{
    DATAGRAM_ROOM, Kind, PATIENCE, Pair, QKEY, Setup, Side, builder, connect, patient, prepare, receives_may_be_late,
    try_recv_shared, try_send,
};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{AccessFlags, Any, Context, Cq, Error, GidIndex, Inline, Qp, QpState, QpUpdate, Rc, Uc, WrFlags};
use softcx::{Disturbance, SimHost};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

tests! {
    connected_queue_pairs,
    datagram_queue_pair,
    writes_that_nobody_answers,
    writes_while_the_network_drops_everything,
    full_queues,
    nothing_under_way,
    from_every_state,
    two_completion_queues,
    shared_receive_queue,
    completions_of_others_are_given_too,
    needs_the_completion_queues,
    pool_gets_every_slot_back,
}

/// Drains, and returns how often each number came back.
fn drain<T: ironverbs::QpType>(qp: &mut Qp<Any, T>, cqs: &mut [&mut Cq]) -> BTreeMap<u64, u32> {
    let mut back = BTreeMap::new();
    let started = Instant::now();
    qp.drain(cqs, PATIENCE, |completion| *back.entry(completion.wr_id()).or_default() += 1).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    back
}

#[track_caller]
fn assert_once(back: &BTreeMap<u64, u32>, numbers: impl IntoIterator<Item = u64>) {
    let expected: BTreeMap<u64, u32> = numbers.into_iter().map(|number| (number, 1)).collect();
    assert_eq!(*back, expected);
}

fn connected_queue_pairs(target: &Target) {
    connected::<Rc>(target);
    seen::works("RC drain");
    connected::<Uc>(target);
    seen::works("UC drain");
}

fn connected<T: Kind>(target: &Target) {
    let Pair { a, b } = Pair::<T>::of_kind(target, &Setup::default());
    for Side { mut qp, mut cq, mr, .. } in [a, b] {
        let entry = mr.sge(0..8).unwrap();
        crate::fixture::try_recv(&mut qp, |batch| (0..20).try_for_each(|id| batch.recv(id, &[entry]))).unwrap();
        let back = drain(&mut qp, &mut [&mut cq]);
        assert_once(&back, 0..20);
        crate::fixture::silent(&mut cq);
        qp.close().unwrap();
        cq.close().unwrap();
    }
}

fn datagram_queue_pair(target: &Target) {
    let setup = Setup::default();
    let mut a = Side::datagrams(target, target.open(), None, &setup);
    let entry = a.sge(0, DATAGRAM_ROOM);
    for id in 0..10 {
        a.recv(id, &[entry]);
    }
    let ah = a.qp.create_ah(&a.qp.endpoint()).unwrap();
    // One comes to itself; the others stay.
    let to = ah.to(a.qp.qpn(), QKEY);
    a.send(|batch| batch.send_to(100, WrFlags::SIGNALED, Inline(b"x"), to));
    let Side { mut qp, mut cq, .. } = a;
    let back = drain(&mut qp, &mut [&mut cq]);
    assert_once(&back, (0..10).chain([100]));
    qp.close().unwrap();
    seen::works("UD drain");
}

/// A connection whose other end is gone, with no retry ending for a long while.
fn lonely(target: &Target, setup: &Setup) -> Side {
    let Pair { a, b } = Pair::new(target, setup);
    let remote = b.remote(0);
    drop(b);
    let mut a = a;
    let entry = a.sge(0, 8);
    a.send(|batch| (0..32).try_for_each(|id| batch.write(id, WrFlags::NONE, &[entry], remote)));
    a
}

fn writes_that_nobody_answers(target: &Target) {
    let Side { mut qp, mut cq, .. } = lonely(target, &Setup { send_wr: 40, options: patient, ..Setup::default() });
    let back = drain(&mut qp, &mut [&mut cq]);
    assert_once(&back, 0..32);
    qp.close().unwrap();
    crate::fixture::silent(&mut cq);
}

/// A network that loses everything the device sends, until it is dropped.
enum Lossy {
    /// Of a network device with this name.
    Linux(String),
    Sim(SimHost),
}

impl Lossy {
    fn new(target: &Target, context: &Context, index: Option<GidIndex>) -> Self {
        if let Some(host) = target.host.simulated() {
            host.fabric().disturb(Disturbance { loss: 1.0, ..Disturbance::default() });
            return Self::Sim(host.clone());
        }
        let table = context.gid_table().unwrap();
        let entry = table.iter().find(|entry| index == Some(GidIndex(entry.index as u8)));
        let Some(netdev) = entry.and_then(|entry| entry.netdev_ifindex) else {
            skip("the device has no network device")
        };
        let name = nix::net::if_::if_indextoname(netdev).unwrap().into_string().unwrap();
        match Command::new("tc").args(["qdisc", "add", "dev", &name, "root", "netem", "loss", "100%"]).output() {
            Ok(done) if done.status.success() => Self::Linux(name),
            Ok(done) => skip(format!("tc: {}", String::from_utf8_lossy(&done.stderr).trim())),
            Err(error) => skip(format!("tc: {error}")),
        }
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        let name = match self {
            Self::Linux(name) => name,
            Self::Sim(host) => return host.fabric().disturb(Disturbance::default()),
        };
        let removed = Command::new("tc").args(["qdisc", "del", "dev", name, "root"]).status();
        assert!(std::thread::panicking() || removed.is_ok_and(|status| status.success()), "the network stays lossy");
    }
}

/// Reports of buffers used after their queue pair was destroyed while writes were still on their way.
fn writes_while_the_network_drops_everything(target: &Target) {
    if target.device == target.peer {
        skip("what a device sends to itself does not go by the network; a second device is needed");
    }
    let setup = Setup { send_wr: 40, options: patient, ..Setup::default() };
    let Pair { mut a, b } = Pair::new(target, &setup);
    let lossy = Lossy::new(target, &a.context, a.gid_index);
    let (entry, remote) = (a.sge(0, 8), b.remote(0));
    a.send(|batch| (0..32).try_for_each(|id| batch.write(id, WrFlags::NONE, &[entry], remote)));
    let Side { mut qp, mut cq, .. } = a;
    let back = drain(&mut qp, &mut [&mut cq]);
    drop(lossy);
    assert_once(&back, 0..32);
    qp.close().unwrap();
    crate::fixture::silent(&mut cq);
    seen::works("RC drain without a network");
}

/// There is no room for anything before the device has flushed something.
fn full_queues(target: &Target) {
    let setup = Setup { options: receives_may_be_late, ..Setup::default() };
    let Pair { mut a, b: _b } = Pair::new(target, &setup);
    let (sends, receives) = (u64::from(a.qp.cap().max_send_wr), u64::from(a.qp.cap().max_recv_wr));
    let entry = a.sge(0, 8);
    a.try_recv(|batch| (0..receives).try_for_each(|id| batch.recv(1000 + id, &[entry]))).unwrap();
    // The peer has no receive: they stay.
    a.send(|batch| (0..sends).try_for_each(|id| batch.send(id, WrFlags::SIGNALED, &[entry])));
    assert_eq!(a.qp.recv_batch().remaining(), 0);
    let Side { mut qp, mut cq, .. } = a;
    let back = drain(&mut qp, &mut [&mut cq]);
    assert_once(&back, (0..sends).chain((0..receives).map(|id| 1000 + id)));
    assert_once(&drain(&mut qp, &mut [&mut cq]), []);
    qp.close().unwrap();
}

fn nothing_under_way(target: &Target) {
    let Pair { a, b: _b } = Pair::new(target, &Setup::default());
    let Side { mut qp, mut cq, .. } = a;
    assert_once(&drain(&mut qp, &mut [&mut cq]), []);
    assert_eq!(qp.state(), QpState::ERR);
    // And it can be used again.
    qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    assert_once(&drain(&mut qp, &mut [&mut cq]), []);
    assert_eq!(qp.state(), QpState::RESET);
}

fn from_every_state(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap();
    let mut cq = context.create_cq(64).unwrap();
    let mut qp = prepare(target, &pd, &cq, &cq, &Setup::default()).into_unconnected();
    let entry = mr.sge(..).unwrap();
    crate::fixture::try_recv(&mut qp, |batch| (0..3).try_for_each(|id| batch.recv(id, &[entry]))).unwrap();
    step("in INIT, with receives");
    assert_once(&drain(&mut qp, &mut [&mut cq]), 0..3);
    step("in ERR, with what was posted there");
    crate::fixture::try_recv(&mut qp, |batch| batch.recv(7, &[entry])).unwrap();
    try_send(&mut qp, |batch| batch.send(8, WrFlags::NONE, Inline(b"x"))).unwrap();
    assert_once(&drain(&mut qp, &mut [&mut cq]), [7, 8]);
}

fn two_completion_queues(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap();
    let (mut send_cq, mut recv_cq) = (context.create_cq(64).unwrap(), context.create_cq(64).unwrap());
    let mut qp = prepare(target, &pd, &send_cq, &recv_cq, &Setup::default()).into_unconnected();
    let entry = mr.sge(..).unwrap();
    crate::fixture::try_recv(&mut qp, |batch| (0..3).try_for_each(|id| batch.recv(id, &[entry]))).unwrap();
    assert_once(&drain(&mut qp, &mut [&mut send_cq, &mut recv_cq]), 0..3);
}

/// Teardown must not wait for an event that some drivers never raise, nor take receives that are others'.
fn shared_receive_queue(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(64, AccessFlags::LOCAL_WRITE).unwrap();
    let mut cq = context.create_cq(64).unwrap();
    let mut srq = match context.create_srq(&pd, 16) {
        Ok(srq) => srq,
        Err(error @ Error::Unsupported { .. }) => skip(error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let setup = Setup::default();
    let prepared = builder::<Rc>(target, &pd, &cq, &cq, &setup).srq(&srq).build().unwrap();
    let own = prepared.endpoint();
    let mut qp = connect(prepared, &own, &setup);
    let entry = mr.sge(..).unwrap();
    try_recv_shared(&mut srq, |batch| (0..5).try_for_each(|id| batch.recv(id, &[entry]))).unwrap();
    let started = Instant::now();
    assert_once(&drain(&mut qp, &mut [&mut cq]), []);
    assert!(started.elapsed() < Duration::from_secs(1));
    qp.close().unwrap();
    crate::fixture::silent(&mut cq);
}

fn completions_of_others_are_given_too(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(64).unwrap();
    let setup = Setup::default();
    let mut other = prepare(target, &pd, &cq, &cq, &setup).into_unconnected();
    let mut qp = prepare(target, &pd, &cq, &cq, &setup).into_unconnected();
    crate::fixture::try_recv(&mut other, |batch| batch.recv(50, &[])).unwrap();
    crate::fixture::try_recv(&mut qp, |batch| batch.recv(60, &[])).unwrap();
    other.to_error().unwrap();
    let mut back = vec![];
    let is_there = crate::target::fast_forward(Duration::from_secs(1));
    qp.drain(&mut [&mut cq], PATIENCE, |completion| back.push((completion.wr_id(), completion.qpn()))).unwrap();
    assert!(back.len() == 2 || !is_there, "the other's was in the queue, and was not given: {back:?}");
    // Two queue pairs have no order among each other: the other's may come later.
    let deadline = Instant::now() + PATIENCE;
    while back.len() < 2 && Instant::now() < deadline {
        let mut completions = cq.poll().unwrap();
        while let Some(completion) = completions.next() {
            back.push((completion.wr_id(), completion.qpn()));
        }
    }
    back.sort_unstable();
    assert_eq!(back, [(50, other.qpn().get()), (60, qp.qpn().get())]);
}

fn needs_the_completion_queues(target: &Target) {
    let Pair { a, b } = Pair::new(target, &Setup::default());
    let (mut qp, mut wrong) = (a.qp, b.cq);
    let error = qp.drain(&mut [&mut wrong], PATIENCE, |_| ()).unwrap_err();
    let text = "drain_qp: send completion queue is missing; it must be among those that are polled";
    assert_eq!(error.to_string(), text);
    assert_eq!(qp.state(), QpState::RTS, "nothing was done");
}

fn pool_gets_every_slot_back(target: &Target) {
    let Pair { a, b } = Pair::new(target, &Setup { options: receives_may_be_late, ..Setup::default() });
    let pool = ironverbs::Pool::new(&a.pd, 12, 64).unwrap();
    let Side { mut qp, mut cq, .. } = a;
    for n in 0..12 {
        let slot = pool.take().unwrap();
        let posted = if n % 2 == 0 { qp.recv_slot(slot) } else { qp.send_slot(slot, 8) };
        posted.unwrap();
    }
    assert!(pool.take().is_none());
    qp.drain(&mut [&mut cq], PATIENCE, |completion| drop(pool.reclaim(completion))).unwrap();
    let slots: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(slots.len(), 12);
    drop(b);
}
