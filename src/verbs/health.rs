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

/// What happened to a completion queue. Marked by whoever reads the event, also after the queue was dropped.
#[derive(Default)]
pub(super) struct Health {
    /// [`WELL`], or what happened last.
    state: AtomicU8,
    /// A task that waits for the queue.
    waiting: Mutex<Option<Waker>>,
    /// Set with every mark, for who waits for the channel and not for one queue.
    alarm: Option<Arc<AtomicBool>>,
}

const WELL: u8 = 0;
/// The device reported that it lost completions.
const OVERRUN: u8 = 1;
/// The device went away, or this process gave it up.
const GONE: u8 = 2;

impl Health {
    /// Of a queue whose channel's waiters look at `alarm`.
    pub(super) fn new(alarm: Option<Arc<AtomicBool>>) -> Self {
        Self { alarm, ..Self::default() }
    }

    #[inline(always)]
    pub(super) fn is_well(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WELL
    }

    pub(super) fn mark_overrun(&self) {
        // A device that is gone is the last word.
        let _ = self.state.compare_exchange(WELL, OVERRUN, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn mark_gone(&self) {
        self.state.store(GONE, Ordering::Relaxed);
    }

    /// The error for a wait or a command, if the queue is not well.
    pub(super) fn check(&self, verb: Verb) -> Result<(), Error> {
        match self.state.load(Ordering::Relaxed) {
            WELL => Ok(()),
            OVERRUN => Err(Error::CqOverrun { verb }),
            _ => Err(Error::DeviceGone { verb }),
        }
    }

    /// Why polling a queue that is not well goes no further.
    #[inline(always)]
    pub(super) fn poll_error(&self) -> PollError {
        if self.state.load(Ordering::Relaxed) == GONE { PollError::DeviceGone } else { PollError::Overrun }
    }

    /// Has `waker` woken by the next mark. To be followed by a look at the state, since a mark may have come before.
    #[cfg(any(feature = "tokio", loom))]
    pub(super) fn wake_later(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *waiting = Some(waker.clone());
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
