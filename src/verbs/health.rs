//! Whether a completion queue can still be relied on: what the reader of asynchronous events tells its waiters.

use crate::mem::atomic::{AtomicU8, Ordering};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::wr::PollError;
#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// What happened to a completion queue. Marked by whoever reads the event, also after the queue was dropped.
#[derive(Default)]
pub(super) struct Health {
    /// [`WELL`], or what happened.
    state: AtomicU8,
    /// When the queue was last seen full, if that was a short while ago.
    seen_full: Mutex<Option<Instant>>,
    /// A task that waits for the queue.
    waiting: Mutex<Option<Waker>>,
    /// Set with every mark, for who waits for the channel and not for one queue.
    alarm: Option<Arc<AtomicBool>>,
    /// Completion events of it that were received.
    comp_events: std::sync::atomic::AtomicU32,
}

/// Every bit of the state is something that is wrong.
const WELL: u8 = 0;
/// It was seen full a short while ago, so that the device may have lost completions and be about to say so.
const SUSPECT: u8 = 1 << 0;
/// Its ring could not be mapped after it was resized.
const UNMAPPED: u8 = 1 << 1;
/// The device reported that it lost completions.
const OVERRUN: u8 = 1 << 2;
/// The device went away, or this process gave it up.
const GONE: u8 = 1 << 3;

/// How long a device may take to report what it has lost.
const SUSPICION: Duration = Duration::from_secs(1);

impl Health {
    /// Of a queue whose channel's waiters look at `alarm`.
    pub(super) fn new(alarm: Option<Arc<AtomicBool>>) -> Self {
        Self { alarm, ..Self::default() }
    }

    #[inline(always)]
    pub(super) fn is_well(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WELL
    }

    /// How many completion events of it were received, in any thread.
    pub(super) fn comp_events(&self) -> u32 {
        self.comp_events.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn comp_event_received(&self) {
        self.comp_events.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    pub(super) fn mark_overrun(&self) {
        self.state.fetch_or(OVERRUN, Ordering::Relaxed);
    }

    pub(super) fn mark_gone(&self) {
        self.state.fetch_or(GONE, Ordering::Relaxed);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Relaxed) & GONE != 0
    }

    /// From now on, for a while, whoever polls looks at asynchronous events as well.
    pub(super) fn suspect(&self) {
        *self.seen_full.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.state.fetch_or(SUSPECT, Ordering::Relaxed);
    }

    /// Whether events are to be looked at: as long as the suspicion lasts, and once after that, by when the device has told.
    pub(super) fn is_suspect(&self) -> bool {
        let mut seen_full = self.seen_full.lock().unwrap_or_else(PoisonError::into_inner);
        let suspect = seen_full.is_some();
        if seen_full.is_some_and(|at| at.elapsed() > SUSPICION) {
            *seen_full = None;
            self.state.fetch_and(!SUSPECT, Ordering::Relaxed);
        }
        suspect
    }

    pub(super) fn set_mapped(&self, mapped: bool) {
        if mapped {
            self.state.fetch_and(!UNMAPPED, Ordering::Relaxed);
        } else {
            self.state.fetch_or(UNMAPPED, Ordering::Relaxed);
        }
    }

    /// The error for a wait or a command, if the queue is not well.
    pub(super) fn check(&self, verb: Verb) -> Result<(), Error> {
        self.poll_error().map_or(Ok(()), |error| Err(error.during(verb)))
    }

    /// Why polling goes no further, if the queue is not well.
    #[inline(always)]
    pub(super) fn poll_error(&self) -> Option<PollError> {
        let state = self.state.load(Ordering::Relaxed);
        // A device that is gone is the last word.
        if state & GONE != 0 {
            Some(PollError::DeviceGone)
        } else if state & OVERRUN != 0 {
            Some(PollError::Overrun)
        } else {
            (state & UNMAPPED != 0).then_some(PollError::Unmapped)
        }
    }

    /// Has `waker` woken by the next mark. To be followed by a look at the state, since a mark may have come before.
    #[cfg(any(feature = "tokio", loom))]
    pub(super) fn wake_later(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.as_ref().is_some_and(|old| old.will_wake(waker)) {
            let old = waiting.replace(waker.clone());
            // Without the lock: with the last waker goes a task, with what it owns.
            drop(waiting);
            drop(old);
        }
    }

    /// Wakes whoever waits, after a mark.
    pub(super) fn wake(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.store(true, Ordering::Relaxed);
        }
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn suspicion_ends_with_a_last_look() {
        let health = Health::default();
        assert!(health.is_well() && !health.is_suspect());
        health.suspect();
        assert!(health.is_suspect() && !health.is_well());
        std::thread::sleep(SUSPICION + Duration::from_millis(10));
        assert!(health.is_suspect(), "the device may have told since the last look");
        assert!(!health.is_suspect() && health.is_well());
    }
}
