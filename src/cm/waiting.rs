//! Who waits for an id, to be told when nothing will come of it any more.
//!
//! Several may wait, but an event goes to one of them. Where it is the last one, whoever has read it wakes all others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Of one id.
#[derive(Default)]
pub struct Waiting {
    wakers: Mutex<Vec<(u64, Waker)>>,
}

impl Waiting {
    /// For one who waits.
    pub fn seat(&self) -> Seat<'_> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Seat { all: self, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Wakes everybody, after the state was changed.
    pub fn wake_all(&self) {
        let all: Vec<_> = self.wakers().iter().map(|(_, waker)| waker.clone()).collect();
        // Without the lock: a waker is somebody else's code.
        all.into_iter().for_each(Waker::wake);
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits, until it is dropped.
pub struct Seat<'a> {
    all: &'a Waiting,
    number: u64,
}

impl Seat<'_> {
    /// Has this one woken by `waker`. To be followed by a look at the state, which may have been changed before.
    pub fn wake_by(&self, waker: &Waker) {
        let mut wakers = self.all.wakers();
        let own = wakers.iter_mut().find(|(number, _)| *number == self.number);
        let old = match own {
            Some((_, own)) => Some(std::mem::replace(own, waker.clone())),
            None => {
                wakers.push((self.number, waker.clone()));
                None
            }
        };
        // Without the lock: with the last waker goes a task, with what it owns.
        drop(wakers);
        drop(old);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut wakers = self.all.wakers();
        let own = wakers.iter().position(|(number, _)| *number == self.number).map(|at| wakers.swap_remove(at));
        drop(wakers);
        drop(own);
    }
}
