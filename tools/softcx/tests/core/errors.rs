//! Every syndrome that the device can find a reason for, and what follows it.

use crate::bench::*;
use softcx::*;
use std::time::Duration;

const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;
const READ: u8 = 0x10;

/// The requester's WQE 0 fails with `syndrome`, and the one behind it is flushed; both queue pairs end in `states`.
fn fails(a: &mut Side, b: &Side, syndrome: u8, states: (QpState, QpState)) {
    a.send(0, 0, &[]);
    a.settle();
    let failed = a.poll().unwrap();
    assert_eq!((failed.opcode, failed.syndrome(), failed.wqe_counter()), (13, syndrome, 0));
    let flushed = a.poll().unwrap();
    assert_eq!((flushed.opcode, flushed.syndrome()), (13, 0x05));
    assert_eq!((a.state(), b.state()), states);
}

const BOTH: (QpState, QpState) = (QpState::Err, QpState::Err);
const FIRST: (QpState, QpState) = (QpState::Err, QpState::Rts);

#[test]
fn a_message_too_long_for_the_receiver() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.put(DATA, &[0x33; 16]);
    b.receive(&[(10, b.key, DATA)]);
    b.receive(&[(10, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(&[1; 11])]);
    fails(&mut a, &b, 0x12, BOTH);
    let done = b.poll_all();
    assert_eq!(done.iter().map(|c| (c.opcode, c.syndrome())).collect::<Vec<_>>(), [(14, 0x01), (14, 0x05)]);
    assert_eq!(b.get(DATA, 16), [0x33; 16]);
}

#[test]
fn an_opcode_that_does_not_exist() {
    let (mut a, b) = pair(QpKind::Rc);
    a.send(0x7f, 0, &[]);
    fails(&mut a, &b, 0x02, FIRST);
}

#[test]
fn a_read_on_a_queue_pair_that_may_have_none() {
    let (mut a, b) = pair(QpKind::Rc);
    a.modify(|attr| attr.max_rd_atomic = 0, None);
    a.send(READ, 0, &[&raddr(DATA, b.key), &sge(8, a.key, DATA)]);
    fails(&mut a, &b, 0x02, FIRST);
}

#[test]
fn a_local_key_that_does_not_cover_the_data() {
    let (mut a, b) = pair(QpKind::Rc);
    a.send(WRITE, 0, &[&raddr(DATA, b.key), &sge(16, a.key, DATA + DATA_BYTES - 8)]);
    fails(&mut a, &b, 0x04, FIRST);
    let reports = a.fabric.take_reports();
    assert!(matches!(reports[0].misuse, Misuse::LocalAccess(KeyError { why: Why::Bounds { .. }, .. })), "{reports:?}");
    assert_eq!(reports[0].wqe.as_ref().unwrap().index, 0);
}

#[test]
fn a_receive_buffer_that_is_not_registered() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key ^ 0x100_0000, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    fails(&mut a, &b, 0x14, BOTH);
    assert_eq!(b.poll().unwrap().syndrome(), 0x04);
    // All of it must be, also where the message needs less.
    let (mut a, mut b) = pair(QpKind::Rc);
    let half = b.register(DATA, 32, Access::LOCAL_WRITE);
    b.receive(&[(64, half, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    fails(&mut a, &b, 0x14, BOTH);
    assert_eq!(b.poll().unwrap().syndrome(), 0x04);
}

/// A packet that is not a message's last is as long as there may be.
#[test]
fn sides_that_do_not_agree_on_the_length_of_packets() {
    for opcode in [SEND, WRITE] {
        let (mut a, mut b) = pair(QpKind::Rc);
        a.modify(|attr| attr.mtu_bytes = 512, None);
        b.modify(|attr| attr.mtu_bytes = 1024, None);
        b.receive(&[(1024, b.key, DATA)]);
        let to = raddr(DATA, b.key);
        let data = sge(600, a.key, DATA);
        let segments: &[&[u8]] = if opcode == WRITE { &[&to, &data] } else { &[&data] };
        a.send(opcode, 0, segments);
        fails(&mut a, &b, 0x12, BOTH);
    }
}

#[test]
fn remote_keys_are_checked_for_everything() {
    type Target = fn(&Side) -> (u64, u32);
    let checks: [(&str, Target); 4] = [
        ("no such key", |b| (DATA, b.key ^ 0xff)),
        ("out of bounds", |b| (DATA + DATA_BYTES - 4, b.key)),
        ("forbidden", |b| (DATA, b.register(DATA, 64, Access::LOCAL_WRITE))),
        ("another protection domain", |b| {
            (DATA, {
                let pd = b.device(|d| d.alloc_pd());
                let key = Mkey { pd, ..b.open_key(DATA, 64) };
                b.device(|d| d.create_mkey(key))
            })
        }),
    ];
    for (what, target) in checks {
        for opcode in [WRITE, READ] {
            let (mut a, b) = pair(QpKind::Rc);
            let (address, key) = target(&b);
            a.send(opcode, 0, &[&raddr(address, key), &sge(8, a.key, DATA)]);
            fails(&mut a, &b, 0x13, BOTH);
            assert!(b.events().contains(&Event::QpAccess { qpn: b.qpn }), "{what}");
            let reports = a.fabric.take_reports();
            let of = |misuse: fn(&Misuse) -> bool| reports.iter().find(|r| misuse(&r.misuse)).expect(what);
            assert_eq!(of(|m| matches!(m, Misuse::RemoteAccess(_))).number, b.qpn);
            let refused = of(|m| *m == Misuse::Refused(Syndrome::REMOTE_ACCESS));
            assert_eq!((refused.number, refused.wqe.as_ref().map(|w| w.bytes[3])), (a.qpn, Some(opcode)));
        }
    }
}

#[test]
fn a_queue_pair_that_allows_no_writes() {
    let (mut a, b) = pair(QpKind::Rc);
    b.modify(|attr| attr.access = Access::REMOTE_READ, None);
    a.send(WRITE, 0, &[&raddr(DATA, b.key), &sge(8, a.key, DATA)]);
    fails(&mut a, &b, 0x12, BOTH);
}

#[test]
fn an_atomic_on_an_odd_address() {
    let (mut a, b) = pair(QpKind::Rc);
    a.send(0x12, 0, &[&raddr(DATA + 4, b.key), &atomic(1, 0), &sge(8, a.key, DATA)]);
    fails(&mut a, &b, 0x12, BOTH);
    assert_eq!(b.events(), [Event::QpInvalidRequest { qpn: b.qpn }]);
}

#[test]
fn more_reads_than_the_responder_promised() {
    let (mut a, b) = pair(QpKind::Rc);
    b.modify(|attr| attr.max_dest_rd_atomic = 1, None);
    for _ in 0..3 {
        let wqe = [a.ctrl(READ, 3, 0x08, 0), raddr(DATA, b.key), sge(4096, a.key, DATA)].concat();
        a.write_wqe(&wqe);
        a.ring(&wqe);
    }
    a.settle();
    let done = a.poll_all();
    assert!(done.iter().any(|c| c.opcode == 13 && c.syndrome() == 0x12), "{done:?}");
}

#[test]
fn nobody_there() {
    let (mut a, b) = pair(QpKind::Rc);
    b.modify(|_| {}, Some(QpState::Reset));
    a.send(SEND, 0, &[&inline(b"x")]);
    fails(&mut a, &b, 0x15, (QpState::Err, QpState::Reset));
    // First try and 7 more, 4.194304 ms each.
    let took = a.fabric.now();
    assert!((Duration::from_micros(33_554)..Duration::from_micros(33_560)).contains(&took), "{took:?}");
}

#[test]
fn a_receiver_that_is_never_ready() {
    let (mut a, b) = pair(QpKind::Rc);
    a.modify(|attr| attr.rnr_retry = 3, None);
    a.send(SEND, 0, &[&inline(b"x")]);
    // Given up only after four refusals.
    fails(&mut a, &b, 0x16, FIRST);
    assert_eq!(a.fabric.now(), Duration::from_micros(3 * 60));
}

#[test]
fn a_receiver_that_is_ready_late() {
    let (mut a, mut b) = pair(QpKind::Rc);
    a.send(SEND, 0, &[&inline(b"patience")]);
    assert!(!a.fabric.settle(Duration::from_millis(50)), "seven: for ever");
    assert_eq!(a.poll(), None);
    b.receive(&[(64, b.key, DATA)]);
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().opcode), (0, 2));
    assert_eq!(b.get(DATA, 8), b"patience");
}

#[test]
fn errors_wait_for_what_was_posted_before() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"good")]);
    a.send(0x7f, 0, &[]);
    a.settle();
    let done = a.poll_all();
    assert_eq!((done[0].opcode, done[1].opcode, done[1].syndrome()), (0, 13, 0x02));
}

#[test]
fn an_unreliable_sender_stops_sending_only() {
    for kind in [QpKind::Uc, QpKind::Ud] {
        let (mut a, mut b) = pair(kind);
        a.send(0x7f, 0, &[]);
        a.send(0, 0, &[]);
        a.settle();
        assert_eq!(a.poll_all().iter().map(Completion::syndrome).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(a.state(), QpState::Sqe);
        a.modify(|_| {}, Some(QpState::Rts));
        a.send(0, 0, &[]);
        a.settle();
        assert_eq!(a.poll().unwrap().opcode, 0);
        b.receive(&[(64, b.key, DATA)]);
    }
}

#[test]
fn work_posted_in_error_is_flushed_and_reset_starts_over() {
    let (mut a, mut b) = pair(QpKind::Rc);
    a.modify(|_| {}, Some(QpState::Err));
    a.receive(&[(64, a.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    let done = a.poll_all();
    assert_eq!(done.iter().map(|c| (c.opcode, c.syndrome())).collect::<Vec<_>>(), [(13, 5), (14, 5)]);
    for side in [&mut a, &mut b] {
        side.modify(|_| {}, Some(QpState::Reset));
        side.forget_rings();
    }
    a.connect(&b, QpKind::Rc);
    b.connect(&a, QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"again")]);
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().opcode), (0, 2));
}

/// Software sets the record back after the command, and another queue pair of the page may ring before it comes to that.
#[test]
fn a_record_of_the_life_before_says_nothing() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"before")]);
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().opcode), (0, 2));
    a.modify(|_| {}, Some(QpState::Reset));
    let neighbour = a.make_qp(Plan::of(QpKind::Rc));
    a.device(|d| d.doorbell(UAR, 0x800, u64::from(neighbour << 8 | 1)));
    a.forget_rings();
    a.connect(&b, QpKind::Rc);
    a.settle();
    assert_eq!((a.poll(), b.poll()), (None, None));
}

#[test]
fn every_syndrome_can_be_asked_for() {
    for syndrome in Syndrome::ALL {
        let (mut a, mut b) = pair(QpKind::Rc);
        a.device(|d| d.control().fail_next_send(a.qpn, *syndrome)).unwrap();
        a.send(SEND, 0, &[&inline(b"x")]);
        fails(&mut a, &b, syndrome.0, FIRST);
        let (mut a, mut c) = pair(QpKind::Rc);
        c.receive(&[(64, c.key, DATA)]);
        c.device(|d| d.control().fail_next_receive(c.qpn, *syndrome)).unwrap();
        a.send(SEND, 0, &[&inline(b"x")]);
        fails(&mut a, &c, 0x14, BOTH);
        let received = c.poll().unwrap();
        assert_eq!((received.opcode, received.syndrome(), received.bytes[54]), (14, syndrome.0, syndrome.vendor()));
        b.poll();
    }
}

#[test]
fn a_message_for_another_partition_is_not_heard() {
    let fabric = Fabric::new(1);
    let plan = Plan::of(QpKind::Rc);
    let mut a = Side::new(&fabric, 1, plan);
    let mut b = Side::new(&fabric, 2, plan);
    a.connect(&b, QpKind::Rc);
    b.connect(&a, QpKind::Rc);
    b.modify(|attr| attr.pkey_index = 5, None);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x15);
}
