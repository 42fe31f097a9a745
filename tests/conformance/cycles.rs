//! Everything that a program can make comes and goes, again and again: nothing is left in the process, in the kernel or on the
//! device.

use crate::fixture::{QKEY, Setup, builder, connect, try_recv, try_send};
use crate::harness::step;
use crate::target::{Target, open_descriptors};
use crate::tests;
use ironverbs::{
    AccessFlags, AddressHandle, Any, AsyncEvents, CompChannel, Context, Cq, DeviceMemory, Error, Gid, Lid, LinkLayer,
    Mr, Mw, Notify, Path, Pd, Qp, QpBuilder, QpState, Rc, Srq, Uc, Ud, WrFlags, Xrc, XrcRecvQp, XrcSend, Xrcd,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

tests! {
    everything_comes_and_goes,
}

/// A run of the whole suite does some; `IRONVERBS_TEST_ROUNDS` says how many.
const ROUNDS: u64 = 20;
/// After so many rounds the first of everything has come and gone, in every order, and nothing may grow any more.
const WARM: u64 = 10;
/// How much more memory a process may hold after any number of rounds: what an allocator makes of other orders.
const GROWTH_KIB: u64 = 1024;

/// Whatever a program can hold.
#[expect(dead_code, reason = "held, then dropped")]
enum Held {
    Context(Context),
    Events(AsyncEvents),
    Channel(CompChannel),
    Pd(Pd),
    Mr(Mr),
    Mw(Mw),
    Cq(Cq),
    Srq(Srq),
    Rc(Box<Qp<Any, Rc>>),
    Uc(Box<Qp<Any, Uc>>),
    Ud(Box<Qp<Any, Ud>>),
    Ah(AddressHandle),
    Xrcd(Xrcd),
    XrcSrq(Srq<Any, Xrc>),
    XrcSend(Box<Qp<Any, XrcSend>>),
    XrcRecv(XrcRecvQp),
    Memory(DeviceMemory),
}

fn everything_comes_and_goes(target: &Target) {
    let rounds = std::env::var("IRONVERBS_TEST_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("a number"));
    let descriptors = open_descriptors();
    let (mut objects, mut warm) = (None, None);
    for round in 0..rounds {
        step(format!("round {round}"));
        let context = target.open();
        let mut held = everything(target, &context);
        match round % 3 {
            0 => {}
            1 => held.reverse(),
            // A closed context ends what is in it.
            _ => held.rotate_left(round as usize % 7),
        }
        held.into_iter().for_each(drop);
        assert!(context.leaks().is_empty(), "{:?}", context.leaks());
        drop(context);
        if round % 50 == 0 || round + 1 == rounds {
            // A driver may make objects of its own for the first of some kind, and keep them.
            let now = target.objects();
            assert_eq!(objects.get_or_insert_with(|| now.clone()), &now, "the kernel's objects, in round {round}");
            assert_eq!(open_descriptors(), descriptors, "in round {round}");
        }
        if round + 1 == WARM {
            warm = Some(resident_kib());
        }
    }
    if let Some(warm) = warm {
        let now = resident_kib();
        assert!(now <= warm + GROWTH_KIB, "{now} KiB resident, {warm} after {WARM} rounds");
    }
}

/// One of each, as far as the device has it: the queue pairs ready to send, with work posted.
fn everything(target: &Target, context: &Context) -> Vec<Held> {
    let ethernet = context.query_port(target.port).unwrap().link_layer == LinkLayer::Ethernet;
    let (events, channel) = (context.async_events(), context.create_comp_channel().unwrap());
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let mut cq = context.cq_builder(50).channel(&channel).build().unwrap();
    cq.resize(200).unwrap();
    cq.arm(Notify::Any).unwrap();
    let mut srq = context.create_srq(&pd, 16).unwrap();
    srq.arm_limit(1).unwrap();

    let setup = Setup { send_wr: 8, recv_wr: 8, ..Setup::default() };
    let entry = mr.sge(..64).unwrap();
    let rc = builder::<Rc>(target, &pd, &cq, &cq, &setup).srq(&srq).build().unwrap();
    let end = rc.endpoint();
    // Each is its own peer.
    let mut rc = connect(rc, &end, &setup);
    try_send(&mut rc, |batch| batch.write(1, WrFlags::NONE, &[entry], mr.remote(0).unwrap())).unwrap();
    let uc = builder::<Uc>(target, &pd, &cq, &cq, &setup).build().unwrap();
    let end = uc.endpoint();
    let mut uc = connect(uc, &end, &setup);
    try_recv(&mut uc, |batch| batch.recv(2, &[entry])).unwrap();

    let mut ud = QpBuilder::ud(&pd, &cq, &cq).port(target.port).qkey(QKEY);
    if let Some(index) = target.gid_index {
        ud = ud.gid_index(index);
    }
    let ud = ud.build().unwrap();
    let (end, index) = (ud.endpoint(), ud.gid_index());
    let ud = ud.activate().unwrap();
    assert_eq!([rc.state(), uc.state(), ud.state()], [QpState::RTS; 3]);
    let path = match (index, end.gid) {
        (Some(index), Some(gid)) => Path { dlid: end.lid, ..Path::to_gid(target.port, index, gid) },
        _ => Path { port: target.port, dlid: end.lid, sl: 0, static_rate: Default::default(), grh: None },
    };
    let ah = pd.create_ah(&path).unwrap();
    // One group is left here, the other when the queue pair goes.
    let [(group, lid), (other, _)] = [1, 2].map(|n| group(ethernet, n));
    ud.attach_mcast(group, lid).unwrap();
    ud.attach_mcast(other, lid).unwrap();
    ud.detach_mcast(group, lid).unwrap();

    let windows = [offered(pd.alloc_mw()), offered(rc.alloc_mw())];
    let memory = offered(context.alloc_dm(4096, 6));
    let xrc = offered(context.create_xrcd()).map(|xrcd| {
        let srq = context.srq_builder(&pd, 16).xrc(&xrcd, &cq).build().unwrap();
        let mut send = QpBuilder::xrc_send(&pd, &cq).port(target.port);
        let mut recv = xrcd.recv_qp().port(target.port);
        if let Some(index) = target.gid_index {
            (send, recv) = (send.gid_index(index), recv.gid_index(index));
        }
        let (send, recv) = (send.build().unwrap(), recv.build().unwrap());
        let (send_end, recv_end) = (send.endpoint(), recv.endpoint());
        let recv = recv.connect(&send_end).unwrap();
        let send = send.connect(&recv_end).unwrap();
        assert_eq!([send.state(), recv.state()], [QpState::RTS, QpState::RTS]);
        [Held::Xrcd(xrcd), Held::XrcSrq(srq), Held::XrcSend(Box::new(send)), Held::XrcRecv(recv)]
    });

    let mut held = vec![
        Held::Context(context.clone()),
        Held::Events(events),
        Held::Channel(channel),
        Held::Pd(pd),
        Held::Mr(mr),
        Held::Cq(cq),
        Held::Srq(srq),
        Held::Rc(Box::new(rc)),
        Held::Uc(Box::new(uc)),
        Held::Ud(Box::new(ud)),
        Held::Ah(ah),
    ];
    held.extend(windows.into_iter().flatten().map(Held::Mw));
    held.extend(memory.map(Held::Memory));
    held.extend(xrc.into_iter().flatten());
    held
}

/// A multicast group that nobody else uses, and its LID on InfiniBand.
fn group(ethernet: bool, n: u8) -> (Gid, Lid) {
    if ethernet {
        (Gid::from(IpAddr::from(Ipv4Addr::new(239, 1, 2, n))), Lid(0))
    } else {
        (Gid::from(IpAddr::from(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 1, 2, n.into()))), Lid(0xc000 + u16::from(n)))
    }
}

/// What was made, unless the device or its driver has no such thing.
fn offered<T>(made: Result<T, Error>) -> Option<T> {
    match made {
        Err(Error::Unsupported { .. }) => None,
        made => Some(made.unwrap()),
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
