//! Many connections, many at a time.

use crate::scene::{WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{Handshake, Listener, Reason};
use std::sync::atomic::{AtomicUsize, Ordering};

tests! {
    many_connections_are_opened_used_and_closed,
}

/// `IRONVERBS_TEST_ROUNDS` of them, 64 at a time; else 48, and 16 at a time.
fn many_connections_are_opened_used_and_closed(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let rounds = std::env::var("IRONVERBS_TEST_ROUNDS").map(|n| n.parse().expect("a number"));
    let (total, at_a_time): (usize, usize) = rounds.map_or((48, 16), |total| (total, 64));
    let listener = Listener::bind(scene.at(7581)).unwrap();
    let (accepted, asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let next = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::Relaxed) < total;
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while next(&accepted) {
                    let mut end = scene.accept(&listener, (1, 16), &Handshake::default()).unwrap();
                    let message = end.kit.message();
                    end.kit.send(end.connection.qp(), &message);
                    assert_eq!(end.connection.link().wait_end(WITHIN).unwrap(), Some(Reason::None));
                }
            });
            scope.spawn(|| {
                while next(&asked) {
                    let mut end = scene.connect(scene.at(7581), (1, 16), &Handshake::default()).unwrap();
                    end.kit.send(end.connection.qp(), b"hello");
                    assert_eq!(end.kit.message(), b"hello");
                    assert_eq!(end.connection.disconnect(WITHIN).unwrap(), Reason::None);
                }
            });
        }
    });
    drop(listener);
    nothing_is_left(target, &before);
}
