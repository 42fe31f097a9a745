//! Many connections, many at a time.

use crate::scene::{WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{Handshake, Listener, Reason};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

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
    // Those of one thread.
    let turns = |thread: usize| (thread..total).step_by(at_a_time);
    let opened = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..at_a_time {
            let (scene, listener) = (&scene, &listener);
            scope.spawn(move || {
                for _ in turns(thread) {
                    let mut end = scene.accept(listener, (1, 16), &Handshake::default()).unwrap();
                    let message = end.kit.message();
                    end.kit.send(end.connection.qp(), &message);
                    assert_eq!(end.connection.link().wait_end(WITHIN).unwrap(), Some(Reason::None));
                }
            });
            scope.spawn(move || {
                for (turn, _) in turns(thread).enumerate() {
                    let mut end = scene.connect(scene.at(7581), (1, 16), &Handshake::default()).unwrap();
                    opened.fetch_add(1, Ordering::Relaxed);
                    wait_for(opened, total.min((turn + 1) * at_a_time));
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

/// Until so many connections were opened: none of them is closed before all are open.
fn wait_for(opened: &AtomicUsize, wanted: usize) {
    let deadline = Instant::now() + WITHIN;
    while opened.load(Ordering::Relaxed) < wanted {
        assert!(Instant::now() < deadline, "{opened:?} connections were opened in time, of {wanted}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
