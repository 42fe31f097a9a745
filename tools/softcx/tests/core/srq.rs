//! Shared receive queues and XRC.

use crate::bench::*;
use softcx::*;

const SEND: u8 = 0x0a;
const RING: u64 = DATA + 0x3_0000;
const RECORD: u64 = 0x1_8080;

/// Links WQE `i` to `i + 1`, and gives each a buffer of 64 bytes at `DATA + i * 64`.
fn link(side: &Side, count: u16) {
    for i in 0..count {
        let at = RING + u64::from(i) * 64;
        side.put(at, &[0; 64]);
        side.put(at + 2, &((i + 1) % count).to_be_bytes());
        side.put(at + 16, &sge(64, side.key, DATA + u64::from(i) * 64));
        side.put(at + 32, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

fn spec() -> RecvSpec {
    RecvSpec { ring: Buffer::contiguous(RING, 8 * 64), log2_count: 3, log2_stride: 6, record: RECORD, linked: true }
}

fn with_srq(kind: QpKind, xrc: bool) -> (Side, Side, u32) {
    let fabric = Fabric::new(1);
    let plan = Plan::of(kind);
    let mut a = Side::new(&fabric, 1, plan);
    let mut b = Side::new(&fabric, 2, Plan { own_recv: false, ..plan });
    link(&b, 8);
    let xrcd = xrc.then(|| b.device(|d| d.alloc_xrcd()));
    let on = xrcd.map(|xrcd| XrcSrq { xrcd, cqn: b.cqn, user_index: 0x5_1234 });
    let srqn = b.device(|d| d.create_srq(b.pd, spec(), on, 0)).unwrap();
    let mut made = b.spec(Plan { own_recv: false, ..plan });
    if xrc {
        (made.kind, made.xrcd, made.send) = (QpKind::XrcTgt, xrcd, None);
    } else {
        made.srq = Some(srqn);
    }
    b.qpn = b.device(|d| d.create_qp(made)).unwrap();
    let kind_b = if xrc { QpKind::XrcTgt } else { kind };
    a.connect(&b, kind);
    b.connect(&a, kind_b);
    (a, b, srqn)
}

#[test]
fn messages_take_wqes_along_the_list() {
    let (mut a, mut b, _) = with_srq(QpKind::Rc, false);
    // 0 → 5 → 2.
    b.put(RING + 2, &5_u16.to_be_bytes());
    b.put(RING + 5 * 64 + 2, &2_u16.to_be_bytes());
    b.memory.store_be32(RECORD, 3).unwrap();
    for text in [b"a", b"b", b"c"] {
        a.send(SEND, 0, &[&inline(text)]);
    }
    a.settle();
    assert_eq!(b.poll_all().iter().map(Completion::wqe_counter).collect::<Vec<_>>(), [0, 5, 2]);
    assert_eq!((b.get(DATA + 320, 1), b.get(DATA + 128, 1)), (b"b".to_vec(), b"c".to_vec()));
    a.clean();
}

#[test]
fn a_low_queue_says_so_once() {
    let (mut a, b, srqn) = with_srq(QpKind::Rc, false);
    b.memory.store_be32(RECORD, 5).unwrap();
    b.device(|d| d.arm_srq(srqn, 4)).unwrap();
    assert_eq!(b.events(), []);
    a.send(SEND, 0, &[&inline(b"a")]);
    a.settle();
    assert_eq!(b.events(), [], "four are left");
    a.send(SEND, 0, &[&inline(b"b")]);
    a.send(SEND, 0, &[&inline(b"c")]);
    a.settle();
    assert_eq!(b.events(), [Event::SrqLimit { srqn }]);
    assert_eq!(b.device(|d| d.srq_limit(srqn)), Some(0));
}

#[test]
fn an_error_leaves_the_shared_queue_alone() {
    let (a, mut b, _) = with_srq(QpKind::Rc, false);
    b.memory.store_be32(RECORD, 5).unwrap();
    b.modify(|_| {}, Some(QpState::Err));
    a.settle();
    assert_eq!((b.poll(), b.events()), (None, vec![Event::LastWqe { qpn: b.qpn }]));
}

#[test]
fn xrc_delivers_to_the_queue_named_in_the_message() {
    let (mut a, mut b, srqn) = with_srq(QpKind::XrcIni, true);
    b.memory.store_be32(RECORD, 5).unwrap();
    let mut xrc = vec![0; 16];
    xrc[..4].copy_from_slice(&srqn.to_be_bytes());
    a.send(SEND, 0, &[&xrc, &inline(b"x")]);
    a.send(0x08, 0, &[&xrc, &raddr(DATA + 0x1000, b.key), &inline(b"written")]);
    a.settle();
    assert_eq!(a.poll_all().iter().map(|c| c.opcode).collect::<Vec<_>>(), [0, 0]);
    let received = b.poll().unwrap();
    assert_eq!((received.opcode, received.word(32) & 0xff_ffff, received.wqe_counter()), (2, 0x5_1234, 0));
    assert_eq!((b.get(DATA, 1), b.get(DATA + 0x1000, 7)), (b"x".to_vec(), b"written".to_vec()));
    a.clean();
    // An SRQ that is not there.
    xrc[3] ^= 0x40;
    a.send(SEND, 0, &[&xrc, &inline(b"x")]);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x12);
}
