//! A task that waits for a completion queue while another thread reads that it overran: it is always woken.

use super::*;
use loom::sync::Arc as LoomArc;
use loom::sync::Notify;
use loom::thread;
use std::task::Wake;

struct Task(LoomArc<Notify>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

#[test]
fn loom_no_wake_up_is_lost() {
    for gone in [false, true] {
        loom::model(move || {
            let health = LoomArc::new(Health::default());
            let marked = health.clone();
            let marker = thread::spawn(move || {
                if gone {
                    marked.mark_gone();
                } else {
                    marked.mark_overrun();
                }
                marked.wake();
            });
            let notify = LoomArc::new(Notify::new());
            let waker = Waker::from(Arc::new(Task(notify.clone())));
            // Sleeps for ever, which loom reports, if the mark falls between the look and the sleep and wakes nobody.
            loop {
                health.wake_later(&waker);
                if health.check(Verb::PollCq).is_err() {
                    break;
                }
                notify.wait();
            }
            marker.join().unwrap();
        });
    }
}
