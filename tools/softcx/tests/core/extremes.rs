//! Numbers at the ends of their types, given through safe calls: refused or cut short, and no panic.

use crate::bench::*;
use softcx::*;
use std::sync::Arc;
use std::time::Duration;

const SEND: u8 = 0x0a;
const LONGEST: Duration = Duration::MAX;

fn nop(side: &mut Side) {
    side.send(0, 0, &[]);
}

#[test]
fn time_stops_at_its_end() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    assert!(a.fabric.settle(LONGEST), "all is done long before");
    assert_eq!((a.poll().unwrap().opcode, b.poll_all().len()), (0, 1));
    a.fabric.step(LONGEST);
    let end = a.fabric.now();
    assert!(end > Duration::from_secs(1 << 62));
    a.fabric.step(LONGEST);
    assert_eq!(a.fabric.now(), end);
    // At the end of time the device still works, what must wait does not come.
    nop(&mut a);
    assert!(a.fabric.settle(LONGEST));
    assert_eq!(a.poll_all().len(), 1);
    a.send(SEND, 0, &[&inline(b"nobody has a buffer for it")]);
    assert!(!a.fabric.settle(LONGEST));
    assert_eq!(a.poll_all(), []);
    a.fabric.rest(LONGEST, LONGEST);
    let mut alone = Device::new(DeviceSpec {
        name: "alone".into(),
        memory: Arc::new(VecMemory::new(0, 0)),
        ports: vec![],
        guid: 0,
        punish: Punish::default(),
    });
    assert!(alone.work(LONGEST).is_empty());
}

#[test]
fn a_packet_can_be_on_its_way_for_ever() {
    for late in [
        Disturbance { delay: LONGEST, ..Disturbance::default() },
        Disturbance { delay: LONGEST, reordering: 1.0, jitter: LONGEST, ..Disturbance::default() },
        Disturbance { reordering: f64::INFINITY, jitter: LONGEST, ..Disturbance::default() },
    ] {
        let (mut a, mut b) = pair(QpKind::Uc);
        a.fabric.disturb(late);
        b.receive(&[(64, b.key, DATA)]);
        a.send(SEND, 0, &[&inline(b"x")]);
        assert!(!a.fabric.settle(Duration::from_secs(1)), "it is on its way");
        a.fabric.settle(LONGEST);
        a.fabric.step(LONGEST);
        a.poll_all();
        b.poll_all();
    }
    let (mut a, _b) = pair(QpKind::Rc);
    a.fabric.disturb(Disturbance { loss: f64::NAN, duplication: -1.0, reordering: f64::NAN, ..Disturbance::default() });
    nop(&mut a);
    a.settle();
}

#[test]
fn software_can_be_told_never() {
    let (mut a, _b) = pair(QpKind::Rc);
    a.fabric.step(Duration::from_secs(1));
    a.device(|d| d.moderate_cq(a.cqn, Moderation { count: u16::MAX, period: LONGEST })).unwrap();
    a.arm(0, false);
    nop(&mut a);
    assert!(!a.fabric.settle(LONGEST), "it waits");
    assert_eq!(a.events(), []);
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let (a, _b) = pair(QpKind::Rc);
    let ring = Buffer::contiguous(DATA, u64::MAX);
    let cq = CqSpec {
        ring: ring.clone(),
        log2_size: 4,
        entry_bytes: 64,
        record: u64::MAX,
        uar_page: UAR,
        ignore_overrun: false,
        compress: None,
        real_time: false,
    };
    assert!(matches!(a.device(|d| d.create_cq(cq.clone())), Err(Refusal::Memory(_))));
    for log2_size in [23, 31, 32, 63, 64, u32::MAX] {
        assert_eq!(a.device(|d| d.create_cq(CqSpec { log2_size, ..cq.clone() })), Err(Refusal::BadParam));
        assert_eq!(a.device(|d| d.resize_cq(a.cqn, ring.clone(), log2_size)), Err(Refusal::BadParam));
    }
    assert_eq!(a.device(|d| d.resize_cq(a.cqn, Buffer::contiguous(DATA, 63), 0)), Err(Refusal::BadParam), "too short");
    let spec = a.spec(Plan::of(QpKind::Rc));
    let recv = spec.recv.clone().unwrap();
    for (log2_count, log2_stride, linked) in
        [(17, 6, false), (u32::MAX, 6, false), (4, 3, false), (4, 4, true), (4, 17, false), (4, u32::MAX, true)]
    {
        let recv = RecvSpec { ring: ring.clone(), log2_count, log2_stride, linked, ..recv.clone() };
        let made = QpSpec { recv: Some(recv.clone()), ..spec.clone() };
        assert_eq!(a.device(|d| d.create_qp(made)), Err(Refusal::BadParam));
        assert_eq!(a.device(|d| d.create_srq(a.pd, recv, None, 0)), Err(Refusal::BadParam));
    }
    for log2_bbs in [17, 32, 64, u32::MAX] {
        let send = SendSpec { ring: ring.clone(), log2_bbs, record: QP_RECORD };
        assert_eq!(a.device(|d| d.create_qp(QpSpec { send: Some(send), ..spec.clone() })), Err(Refusal::BadParam));
    }
    // A record at the end of all addresses is one that cannot be reached.
    let send = SendSpec { ring: ring.clone(), log2_bbs: 4, record: u64::MAX };
    let made = QpSpec { send: Some(send), recv: Some(RecvSpec { record: u64::MAX, ..recv }), ..spec };
    let qpn = a.device(|d| d.create_qp(made)).unwrap();
    a.device(|d| d.modify_qp(qpn, |_| {}, Some(QpState::Init))).unwrap();
    a.device(|d| d.doorbell(UAR, 0x800, u64::from(qpn) << 8 | 1));
    a.settle();
    assert!(!a.fabric.take_reports().is_empty());
    Eq::new(ring, u32::MAX).has_room();
}

#[test]
fn packets_have_a_size() {
    let (mut a, mut b) = pair(QpKind::Rc);
    for mtu_bytes in [0, 4097, u32::MAX] {
        let set = a.device(|d| d.modify_qp(a.qpn, |attr| attr.mtu_bytes = mtu_bytes, None));
        assert_eq!(set, Err(Refusal::BadParam), "{mtu_bytes}");
    }
    // Every number else may be the largest.
    a.device(|d| {
        let all = |attr: &mut QpAttr| {
            (attr.timeout, attr.retry_count, attr.rnr_retry, attr.min_rnr_timer) = (u8::MAX, u8::MAX, u8::MAX, u8::MAX);
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (u32::MAX, u32::MAX);
        };
        d.modify_qp(a.qpn, all, None)
    })
    .unwrap();
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    assert_eq!((a.poll_all().len(), b.poll_all().len()), (1, 1));
    a.device(|d| d.modify_qp(a.qpn, |attr| (attr.port, attr.pkey_index) = (u8::MAX, u16::MAX), None)).unwrap();
    nop(&mut a);
    a.send(SEND, 0, &[&inline(b"y")]);
    a.fabric.settle(Duration::from_secs(1));
    let port = Port { mtu_bytes: 0, ..Port::infiniband(u16::MAX, u64::MAX) };
    let fabric = Fabric::new(1);
    let mut ud = Side::on(&fabric, 1, Plan::of(QpKind::Ud), port);
    ud.connect_to(ud.id, 5, QpKind::Ud);
    let mut av = vec![0; 48];
    av[8..12].copy_from_slice(&5_u32.to_be_bytes());
    ud.send(SEND, 0, &[&av]);
    ud.settle();
    assert_eq!(ud.poll_all().len(), 1);
}

#[test]
fn memory_ends_where_addresses_do() {
    let buffer = Buffer::paged(vec![u64::MAX], 12, u64::MAX, u64::MAX);
    assert!(buffer.locate(2).is_err());
    assert!(buffer.part(u64::MAX, u64::MAX).locate(0).is_err());
    assert!(buffer.read(&VecMemory::new(u64::MAX, 8), u64::MAX, &mut [0; 4]).is_err());
    let (mut a, _b) = pair(QpKind::Rc);
    // A region whose addresses go around: 0x80 bytes in front of the end, and as many behind it.
    let (start, pd) = (0_u64.wrapping_sub(0x80), a.pd);
    let translation = Translation::Bus(Buffer::contiguous(DATA, 0x100));
    let key = a.device(|d| {
        d.create_mkey(Mkey {
            variant: 0,
            pd,
            access: Access::ALL,
            start,
            len: 0x100,
            translation,
            free: false,
            qpn: None,
            is_window: false,
            umr: false,
        })
    });
    a.receive(&[(0x100, key, start)]);
    a.modify(|_| {}, Some(QpState::Err));
    a.settle();
    assert_eq!(a.poll_all().len(), 1);
    let (mut a, mut b) = pair(QpKind::Rc);
    let wrapping = |side: &Side| Mkey {
        variant: 0,
        pd: side.pd,
        access: Access::ALL,
        start,
        len: 0x1000,
        translation: Translation::Bus(Buffer::contiguous(DATA, 0x1000)),
        free: false,
        qpn: None,
        is_window: false,
        umr: false,
    };
    let (from, to) = (a.device(|d| d.create_mkey(wrapping(&a))), b.device(|d| d.create_mkey(wrapping(&b))));
    a.put(DATA, &pattern(0x1000, 1));
    a.send(0x08, 0, &[&raddr(start, to), &sge(0x1000, from, start)]);
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.get(DATA, 0x1000)), (0, pattern(0x1000, 1)));
    a.send(0x10, 0, &[&raddr(start, to), &sge(0x1000, from, start)]);
    a.settle();
    assert_eq!(a.poll().unwrap().opcode, 0);
    b.poll_all();
}

#[test]
fn numbers_of_doorbells_and_commands_may_be_any() {
    let (a, _b) = pair(QpKind::Rc);
    for number in [0, 1, u32::MAX] {
        a.device(|d| {
            d.doorbell(number, usize::MAX, u64::MAX);
            d.blue_flame(number, usize::MAX, &[]);
            d.blue_flame(number, 0x800, &[0xff; 7]);
            d.remove_uar(number).unwrap_err();
            d.destroy_mkey(number).unwrap_err();
            d.set_well_known(number, number).unwrap_err();
            d.arm_srq(number, u16::MAX).unwrap_err();
            let mut control = d.control();
            control.set_port_active(number as u8, true).ok();
            control.set_gid(number as u8, usize::MAX, None).unwrap_err();
            control.raise(Event::Port { port: number as u8, change: PortChange::Lid });
        });
    }
    for event in a.events() {
        event.encode();
    }
    for bytes in [&[][..], &[0xff; 3], &[0xff; 64], &[0xff; 1024]] {
        for kind in [QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::XrcIni, QpKind::XrcTgt] {
            let _ = SendWqe::decode(bytes, kind);
        }
        scatter_list(bytes);
    }
    a.settle();
}
