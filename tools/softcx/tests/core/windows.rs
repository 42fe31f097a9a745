//! Memory windows: bound, used, taken back.

use crate::bench::*;
use softcx::*;

const WRITE: u8 = 0x08;
const READ: u8 = 0x10;

fn window(side: &Side) -> u32 {
    let (access, translation) = (Access::LOCAL_READ, Translation::Keys(vec![]));
    let key = Mkey { access, translation, free: true, is_window: true, ..side.open_key(0, 0) };
    side.device(|d| d.create_mkey(key))
}

/// UMR WQE: binds `window` with new key byte `byte` to `len` bytes at `address` of `key`; mkey access bits `access`.
fn bind(side: &mut Side, window: u32, byte: u8, type2: bool, key: u32, (address, len): (u64, u64), access: u8) {
    let mut control = vec![0; 48];
    control[0] = if type2 { 0xb0 } else { 0x90 };
    control[5] = 4;
    // LEN 0, START 6, KEY 13, LW 18, RR 19, RW 20, A 21, FREE 29; QPN 14 for type 2.
    let mask = 1_u64 | 1 << 6 | 1 << 13 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 29;
    control[8..16].copy_from_slice(&(mask | if type2 { 1 << 14 } else { 0 }).to_be_bytes());
    let mut context = vec![0; 64];
    context[2] = access;
    let qpn = if type2 { side.qpn } else { 0xff_ffff };
    context[4..8].copy_from_slice(&(qpn << 8 | u32::from(byte)).to_be_bytes());
    context[16..24].copy_from_slice(&address.to_be_bytes());
    context[24..32].copy_from_slice(&len.to_be_bytes());
    let mut klm = sge(len as u32, key, address);
    klm.resize(64, 0);
    side.send(0x25, window, &[&control, &context, &klm]);
}

/// UMR WQE that frees `key`; the next WQE is fenced by a NOP.
fn invalidate(side: &mut Side, key: u32) {
    let mut control = vec![0; 48];
    control[0] = 0x88;
    control[8..16].copy_from_slice(&(1_u64 << 29 | 1 << 13 | 1 << 14).to_be_bytes());
    let mut context = vec![0; 64];
    context[0] = 0x40;
    context[4..8].copy_from_slice(&((0xff_ffff_u32) << 8 | (key & 0xff)).to_be_bytes());
    side.send(0x25, key, &[&control, &context]);
}

fn fence(side: &mut Side) {
    let nop = side.ctrl(0, 1, 0x28, 0);
    side.post(&nop);
}

#[test]
fn a_window_grants_its_range_and_rights_only() {
    for type2 in [false, true] {
        let (mut a, mut b) = pair(QpKind::Rc);
        let w = window(&b);
        let key = w & !0xff | 0x5a;
        b.put(DATA + 100, b"inside");
        let region = b.key;
        bind(&mut b, w, 0x5a, type2, region, (DATA + 100, 50), 0x10);
        fence(&mut b);
        b.settle();
        assert_eq!(b.poll_all().iter().map(|c| (c.opcode, c.send_opcode())).collect::<Vec<_>>(), [(0, 0x25), (0, 0)]);
        b.clean();
        a.send(READ, 0, &[&raddr(DATA + 100, key), &sge(6, a.key, DATA)]);
        a.settle();
        assert_eq!((a.poll().unwrap().opcode, a.get(DATA, 6)), (0, b"inside".to_vec()));
        // Not to be written, not outside, and the region cannot go.
        assert_eq!(b.device(|d| d.destroy_mkey(b.key)), Err(Refusal::Busy));
        a.send(
            if type2 { WRITE } else { READ },
            0,
            &[&raddr(DATA + if type2 { 100 } else { 145 }, key), &sge(6, a.key, DATA)],
        );
        a.settle();
        assert_eq!(a.poll().unwrap().syndrome(), 0x13);
    }
}

#[test]
fn keys_are_taken_back_from_either_side() {
    let (mut a, mut b) = pair(QpKind::Rc);
    let w = window(&b);
    let key = w & !0xff | 7;
    let region = b.key;
    bind(&mut b, w, 7, true, region, (DATA, 64), 0x20);
    fence(&mut b);
    b.settle();
    b.poll_all();
    b.receive(&[(64, b.key, DATA + 0x1000)]);
    a.send(0x01, key, &[&inline(b"bye")]);
    a.settle();
    let received = b.poll().unwrap();
    assert_eq!((a.poll().unwrap().opcode, received.opcode, received.word(36)), (0, 4, key));
    // Bound again, and taken back by its owner.
    bind(&mut b, key, 8, true, region, (DATA, 64), 0x20);
    fence(&mut b);
    invalidate(&mut b, key & !0xff | 8);
    fence(&mut b);
    b.settle();
    assert!(b.poll_all().iter().all(|c| c.opcode == 0));
    b.clean();
    a.send(WRITE, 0, &[&raddr(DATA, key & !0xff | 8), &inline(b"x")]);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x13);
}

#[test]
fn bad_binds_fail() {
    let (mut a, _b) = pair(QpKind::Rc);
    let w = window(&a);
    let region = a.key;
    bind(&mut a, w, 7, true, region, (DATA + DATA_BYTES - 8, 64), 0x20);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x06, "past the end of the region");
    let (mut a, _b) = pair(QpKind::Rc);
    let region = a.key;
    bind(&mut a, region, 7, true, region, (DATA, 64), 0x20);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x06, "not a window");
    let (mut a, _b) = pair(QpKind::Rc);
    let (w, region) = (window(&a), a.key);
    bind(&mut a, w, 7, true, region, (DATA, 64), 0x20);
    fence(&mut a);
    bind(&mut a, w & !0xff | 7, 8, true, region, (DATA, 64), 0x20);
    a.settle();
    let done: Vec<u8> = a.poll_all().iter().map(|c| if c.opcode == 0 { 0 } else { c.syndrome() }).collect();
    assert_eq!(done, [0, 0, 0x06], "bound already");
    // What peers are to write must be the binder's to write.
    for (access, syndrome) in [(0x10, None), (0x20, Some(0x06)), (0x40, Some(0x06))] {
        let (mut a, _b) = pair(QpKind::Rc);
        let (w, region) = (window(&a), a.register(DATA, 64, Access::LOCAL_READ));
        bind(&mut a, w, 7, false, region, (DATA, 64), access);
        fence(&mut a);
        a.settle();
        let done = a.poll().unwrap();
        assert_eq!((done.opcode == 13).then(|| done.syndrome()), syndrome, "access {access:#x}");
    }
}

#[test]
fn a_window_is_taken_back_by_its_queue_pair_only() {
    for own in [true, false] {
        let (mut a, _b) = pair(QpKind::Rc);
        let (w, region) = (window(&a), a.key);
        bind(&mut a, w, 7, true, region, (DATA, 64), 0x20);
        fence(&mut a);
        a.settle();
        let (key, qpn) = (w & !0xff | 7, a.qpn);
        assert_eq!(a.device(|d| d.mkey(key).unwrap().qpn), Some(qpn));
        if !own {
            a.device(|d| d.mkey(key).unwrap().qpn = Some(qpn + 1));
        }
        invalidate(&mut a, key);
        fence(&mut a);
        a.settle();
        let done: Vec<u8> = a.poll_all().iter().map(|c| if c.opcode == 0 { 0 } else { c.syndrome() }).collect();
        assert_eq!(done, if own { [0, 0, 0, 0] } else { [0, 0, 0x06, 0x05] });
    }
}

/// What peers may do by a key of `len` bytes at the start of the data, in memory that goes on behind them; of `qpn` alone, if there is one.
fn open_to(b: &Side, len: u64, qpn: Option<u32>) -> u32 {
    let translation = Translation::Bus(Buffer::contiguous(DATA, 2 * len));
    let key = Mkey { translation, qpn, ..b.open_key(DATA, len) };
    b.device(|d| d.create_mkey(key))
}

#[test]
fn a_key_ends_with_its_last_byte() {
    for opcode in [WRITE, READ] {
        let (mut a, b) = pair(QpKind::Rc);
        let key = open_to(&b, 64, None);
        for (offset, syndrome) in [(56, None), (57, Some(0x13))] {
            a.send(opcode, 0, &[&raddr(DATA + offset, key), &sge(8, a.key, DATA)]);
            a.settle();
            let done = a.poll().unwrap();
            assert_eq!((done.opcode == 13).then(|| done.syndrome()), syndrome, "8 bytes at {offset}");
        }
        let bounds = Why::Bounds { start: DATA, len: 64 };
        let told = |m: &Misuse| matches!(m, Misuse::RemoteAccess(KeyError { why, .. }) if *why == bounds);
        assert!(a.fabric.take_reports().iter().any(|report| told(&report.misuse)));
    }
}

#[test]
fn a_key_of_one_queue_pair_is_no_others() {
    for (own, syndrome) in [(true, None), (false, Some(0x13))] {
        let (mut a, b) = pair(QpKind::Rc);
        let key = open_to(&b, 64, Some(if own { b.qpn } else { b.qpn + 1 }));
        a.send(WRITE, 0, &[&raddr(DATA, key), &inline(b"x")]);
        a.settle();
        let done = a.poll().unwrap();
        assert_eq!((done.opcode == 13).then(|| done.syndrome()), syndrome);
    }
}

#[test]
fn windows_are_of_regions_only() {
    for of_itself in [false, true] {
        let (mut a, _b) = pair(QpKind::Rc);
        let (first, second, region) = (window(&a), window(&a), a.key);
        bind(&mut a, first, 1, false, region, (DATA, 64), 0x10);
        fence(&mut a);
        let bound = first & !0xff | 1;
        bind(&mut a, if of_itself { bound } else { second }, 1, false, bound, (DATA, 64), 0x10);
        a.settle();
        let done: Vec<u8> = a.poll_all().iter().map(|c| if c.opcode == 0 { 0 } else { c.syndrome() }).collect();
        assert_eq!(done, [0, 0, 0x06]);
        assert!(matches!(a.fabric.take_reports()[0].misuse, Misuse::LocalAccess(KeyError { why: Why::Indirect, .. })));
    }
}

#[test]
fn a_key_that_leads_in_a_circle_leads_nowhere() {
    let (mut a, _b) = pair(QpKind::Rc);
    let pd = a.pd;
    let leads_to = |key: u32| Mkey {
        variant: 1,
        pd,
        access: Access::ALL,
        start: DATA,
        len: 64,
        translation: Translation::Keys(vec![KeyRange { key, address: DATA, len: 64 }]),
        free: false,
        qpn: None,
        is_window: true,
        umr: false,
    };
    let direct = a.device(|d| d.create_mkey_as(leads_to(a.key)));
    let chain = a.device(|d| d.create_mkey_as(leads_to(direct)));
    let circle = a.device(|d| d.create_mkey_as(leads_to(0)));
    a.device(|d| d.mkey(circle).unwrap().translation = leads_to(circle).translation);
    a.send(0x0a, 0, &[&sge(64, chain, DATA)]);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x04, "a chain");
    let mut own = a;
    own.modify(|_| {}, Some(QpState::Reset));
    own.forget_rings();
    let (id, qpn) = (own.id, own.qpn);
    own.connect_to(id, qpn, QpKind::Rc);
    own.fabric.take_reports();
    own.send(0x0a, 0, &[&sge(64, circle, DATA)]);
    own.settle();
    assert_eq!(own.poll().unwrap().syndrome(), 0x04, "a circle");
    let why = own.fabric.take_reports().remove(0).misuse.to_string();
    assert!(why.ends_with("the key leads to other keys, and not to memory"), "{why}");
}

#[test]
fn the_wqe_after_a_bind_must_be_fenced() {
    let (mut a, _b) = pair(QpKind::Rc);
    let w = window(&a);
    let region = a.key;
    bind(&mut a, w, 7, true, region, (DATA, 64), 0x20);
    a.send(0, 0, &[]);
    a.settle();
    assert_eq!(a.fabric.take_reports()[0].misuse, Misuse::UmrNotFenced);
}

/// Eight bytes that a key has in two places: they cannot be changed at once, and neither place has eight.
#[test]
fn an_atomic_stays_within_its_key() {
    let (mut a, b) = pair(QpKind::Rc);
    let part = |address| KeyRange { key: b.key, address, len: 4 };
    let translation = Translation::Keys(vec![part(DATA), part(DATA + 0x100)]);
    let key = Mkey { translation, ..b.open_key(0x1000, 8) };
    let key = b.device(|d| d.create_mkey(key));
    let before = b.get(DATA, 0x200);
    let operands = [5_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
    a.send(0x12, 0, &[&raddr(0x1000, key), &operands, &sge(8, a.key, DATA)]);
    a.settle();
    let wc = a.poll().unwrap();
    assert_eq!((wc.opcode, wc.syndrome()), (13, Syndrome::REMOTE_ACCESS.0), "{wc:?}");
    assert_eq!(b.get(DATA, 0x200), before);
}
