//! What only adapters have of queue pairs: work that does nothing, paths of a rate, and atomics in another order of bytes.

use crate::fixture::{Pair, Setup, completions, try_send};
use crate::harness::skip;
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{
    AccessFlags, AtomicOrder, ConnectOptions, Context, Inline, Path, PostError, QpBuilder, Rc, StaticRate, WcOpcode,
    WrFlags,
};
use softcx::{SimDevice, SimHost};

tests! {
    work_that_does_nothing,
    paths_have_a_rate,
    atomics_in_the_hosts_order,
    atomics_in_the_other_order,
}

fn work_that_does_nothing(target: &Target) {
    let mut pair: Pair = Pair::new(target, &Setup::default());
    let posted = try_send(&mut pair.a.qp, |batch| batch.nop(1, WrFlags::SIGNALED));
    if target.kind.is_rxe() {
        assert_eq!(posted, Err(PostError::NotOffered));
        return;
    }
    posted.unwrap();
    try_send(&mut pair.a.qp, |batch| {
        for n in 2..20 {
            batch.nop(n, if n % 6 == 1 { WrFlags::SIGNALED | WrFlags::FENCE } else { WrFlags::NONE })?;
        }
        Ok(())
    })
    .unwrap();
    for (wc, wr_id) in completions(&mut pair.a.cq, 4).into_iter().zip([1, 7, 13, 19]) {
        assert_eq!((wc.wr_id, wc.outcome().unwrap().opcode), (wr_id, WcOpcode::DRIVER1));
    }
    seen::works("RC NOP");
}

fn paths_have_a_rate(target: &Target) {
    fn slow(options: &mut ConnectOptions) {
        crate::fixture::patient(options);
        options.static_rate = StaticRate::GBPS_10;
    }
    let mut pair: Pair<Rc> = Pair::new(target, &Setup { options: slow, ..Setup::default() });
    let entry = pair.b.sge(0, 16);
    pair.b.recv(1, &[entry]);
    pair.a.send(|batch| batch.send(2, WrFlags::SIGNALED, Inline(b"at leisure")));
    pair.a.successes(1);
    pair.b.successes(1);
    let Some(dgid) = pair.b.qp.endpoint().gid else { return };
    let path = Path::to_gid(pair.a.port, pair.a.gid_index.unwrap(), dgid);
    let error = pair.a.pd.create_ah(&Path { static_rate: StaticRate(24), ..path }).unwrap_err();
    assert_eq!(error.to_string(), "create_ah: static rate is 24; at most 23");
    pair.a.pd.create_ah(&Path { static_rate: StaticRate::GBPS_100, ..path }).unwrap();
    seen::works("static rate");
}

fn atomics_in_the_hosts_order(target: &Target) {
    let context = target.open();
    if context.attr().atomic_cap == 0 {
        skip("the device has them in the other order, or not at all");
    }
    assert_eq!(context.atomic_order(), AtomicOrder::Host);
}

/// An adapter that is set so, which is made here.
fn atomics_in_the_other_order(target: &Target) {
    if target.kind.is_rxe() {
        skip("Soft-RoCE has one order");
    }
    let host = SimHost::new(7);
    host.add(SimDevice::roce("odd").big_endian_atomics(true));
    let _engine = host.fabric().spawn();
    let info = ironverbs::sys::Sys::devices(&host).unwrap().remove(0);
    let context = Context::open_on(&host, &info).unwrap();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let mut mr = pd.alloc_mr(64, AccessFlags::ALL).unwrap();
    let build = || QpBuilder::rc(&pd, &cq, &cq).access(AccessFlags::ALL).build().unwrap();
    let (a, b) = (build(), build());
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let (mut a, _b) = (a.connect(&b_end).unwrap(), b.connect(&a_end).unwrap());
    mr.write(0, &0x0102_0304_0506_0708_u64.to_ne_bytes()).unwrap();
    let (result, remote) = (mr.sge(8..16).unwrap(), mr.remote(0).unwrap());
    try_send(&mut a, |batch| batch.fetch_add(1, WrFlags::SIGNALED, result, remote, 1)).unwrap();
    completions(&mut cq, 1)[0].outcome().unwrap();
    let mut bytes = [[0; 8]; 2];
    mr.read(0, bytes.as_flattened_mut()).unwrap();
    // In memory the number is the host's, as ever; what it was before comes back in the device's own order.
    assert_eq!(u64::from_ne_bytes(bytes[0]), 0x0102_0304_0506_0709);
    assert_eq!(bytes[1], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(context.atomic_order(), AtomicOrder::BigEndian);
    assert_eq!(context.atomic_order().value(bytes[1]), 0x0102_0304_0506_0708);
}
