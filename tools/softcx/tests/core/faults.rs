//! Faults on request, and the network's.

use crate::bench::*;
use softcx::*;
use std::time::{Duration, Instant};

const SEND: u8 = 0x0a;

#[test]
fn one_lost_packet_is_sent_again() {
    let (mut a, mut b) = pair(QpKind::Rc);
    let mut left = 1;
    a.fabric.filter(move |p| match &p.body {
        Body::Send { .. } if left > 0 => {
            left -= 1;
            Verdict::Drop
        }
        _ => Verdict::Pass,
    });
    b.receive(&[(2000, b.key, DATA)]);
    a.put(DATA, &pattern(2000, 1));
    a.send(SEND, 0, &[&sge(2000, a.key, DATA)]);
    a.settle();
    assert_eq!((a.fabric.lost(), a.poll().unwrap().opcode, b.poll().unwrap().byte_count()), (1, 0, 2000));
    assert_eq!(b.get(DATA, 2000), pattern(2000, 1));
    assert!(a.fabric.now() < Duration::from_millis(4), "the responder asked for it; no timer ran out");
}

#[test]
fn a_lost_packet_of_an_unreliable_connection_costs_its_message_only() {
    let (mut a, mut b) = pair(QpKind::Uc);
    let mut count = 0;
    a.fabric.filter(move |_| {
        count += 1;
        if count == 2 { Verdict::Drop } else { Verdict::Pass }
    });
    b.receive(&[(2000, b.key, DATA)]);
    a.send(SEND, 0, &[&sge(1000, a.key, DATA)]);
    a.send(SEND, 0, &[&sge(500, a.key, DATA)]);
    a.settle();
    assert_eq!(a.poll_all().len(), 2, "both were sent");
    assert_eq!(b.poll_all().iter().map(|c| (c.byte_count(), c.wqe_counter())).collect::<Vec<_>>(), [(500, 0)]);
}

#[test]
fn a_stuck_queue_pair_goes_on_when_told() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.device(|d| d.control().set_stuck(a.qpn, true)).unwrap();
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    assert_eq!((a.poll(), b.poll()), (None, None));
    a.device(|d| d.control().set_stuck(a.qpn, false)).unwrap();
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().opcode), (0, 2));
}

#[test]
fn a_port_that_goes_down_and_comes_back() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    b.device(|d| d.control().set_port_active(1, false)).unwrap();
    assert_eq!(b.events(), [Event::Port { port: 1, change: PortChange::Down }]);
    a.send(SEND, 0, &[&inline(b"x")]);
    assert!(!a.fabric.settle(Duration::from_millis(10)));
    b.device(|d| d.control().set_port_active(1, true)).unwrap();
    a.settle();
    assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().opcode), (0, 2));
    assert_eq!(b.events(), [Event::Port { port: 1, change: PortChange::Active }]);
}

/// Who waits for something late need not wait as long, and what starts after that ends in time, too.
#[test]
fn time_goes_on_from_where_it_was_moved_to() {
    let (mut a, b) = pair(QpKind::Rc);
    b.device(|d| d.control().die());
    let engine = a.fabric.spawn();
    let started = Instant::now();
    while a.fabric.now() == Duration::ZERO {
        std::thread::yield_now();
    }
    a.modify(|attr| attr.timeout = 18, None);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    assert!(a.fabric.now() > Duration::from_secs(7), "8 time-outs of a second");
    assert_eq!(a.poll().unwrap().syndrome(), 0x15);
    let now = a.fabric.now();
    while a.fabric.now() < now + Duration::from_millis(5) {
        assert!(started.elapsed() < Duration::from_secs(7), "time stands still");
        std::thread::yield_now();
    }
    drop(engine);
}

#[test]
fn a_dead_device_is_silent() {
    let (mut a, b) = pair(QpKind::Rc);
    b.device(|d| d.control().die());
    assert_eq!(b.events(), [Event::Fatal]);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.settle();
    assert_eq!(a.poll().unwrap().syndrome(), 0x15);
    a.clean();
}

#[test]
fn queues_break_on_request() {
    let (mut a, _b) = pair(QpKind::Rc);
    a.device(|d| d.control().kill_qp(a.qpn)).unwrap();
    assert_eq!((a.events(), a.state()), (vec![Event::QpFatal { qpn: a.qpn }], QpState::Err));
    a.device(|d| d.control().overrun_cq(a.cqn)).unwrap();
    assert_eq!(a.events(), [Event::CqError { cqn: a.cqn }]);
    a.send(0, 0, &[]);
    a.settle();
    assert_eq!(a.poll(), None);
}

#[test]
fn a_drained_send_queue_says_so() {
    let (mut a, mut b) = pair(QpKind::Rc);
    b.receive(&[(64, b.key, DATA)]);
    a.send(SEND, 0, &[&inline(b"x")]);
    a.fabric.step(Duration::ZERO);
    a.modify(|_| {}, Some(QpState::Sqd));
    a.send(0, 0, &[]);
    a.settle();
    assert_eq!(a.poll_all().len(), 1, "nothing new is begun");
    assert_eq!(a.events(), [Event::SqDrained { qpn: a.qpn }]);
    a.modify(|_| {}, Some(QpState::Rts));
    a.settle();
    assert_eq!(a.poll_all().len(), 1);
}
