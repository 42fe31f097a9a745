//! Asynchronous events: what happens to a device and its objects outside any work request.

use super::channel::{SLICE, deadline};
use super::cq::{CqHealth, CqId};
use super::device::ContextInner;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::event::{self, AsyncEventType};
use crate::uverbs::types::{PortNum, Qpn};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an event happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// A completion queue.
    Cq(CqId),
    /// A queue pair.
    Qp(Qpn),
    /// A port.
    Port(PortNum),
    /// The whole device.
    Device,
    /// An object that was dropped since, or that this library does not know.
    Unknown(u64),
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventType,
    /// To what.
    pub subject: Subject,
}

/// The asynchronous events of a context. See [`Context::async_events`](crate::Context::async_events).
///
/// While one exists, reading events is its owner's duty: a [`Cq::wait`](crate::Cq::wait) in another thread then learns of
/// an overrun only after the event was read here.
pub struct AsyncEvents {
    context: Arc<ContextInner>,
}

impl AsyncEvents {
    pub(super) fn new(context: &Arc<ContextInner>) -> Self {
        context.registry.lock().readers += 1;
        Self { context: context.clone() }
    }

    /// The next event that is there already. Never blocks.
    pub fn try_next(&self) -> Result<Option<AsyncEvent>, Error> {
        let registry = &self.context.registry;
        if registry.lock().kept.is_empty() {
            registry.keep_events(self.context.ucontext.async_fd())?;
        }
        Ok(registry.lock().kept.pop_front())
    }

    /// Blocks until there is an event; `None` if none came within `timeout`.
    ///
    /// The kernel does not end this wait when the context is closed, so it always has an end of its own.
    pub fn next(&self, timeout: Duration) -> Result<Option<AsyncEvent>, Error> {
        let deadline = deadline(timeout);
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            // In slices: another thread may read the event and keep it for whoever asks first.
            let slice = deadline.min(Instant::now() + SLICE);
            event::wait_readable(self.as_fd(), Some(slice), Verb::GetAsyncEvent)?;
        }
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.context.registry.lock().readers -= 1;
    }
}

/// Readable when the kernel has an event. Read with [`try_next`](AsyncEvents::try_next) until it gives `None`, once
/// before the first wait too: events that came before this value was made are kept in memory.
impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.ucontext.async_fd()
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("fd", &self.as_fd()).finish()
    }
}

/// Which object each user handle in an event stands for, and events that were read but not yet given to anyone.
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: HashMap<u64, Source>,
    /// How many [`AsyncEvents`] there are.
    readers: u32,
    kept: VecDeque<AsyncEvent>,
}

/// Kept events at most; the oldest go first. A program that never asks for events must not grow.
const MAX_KEPT: usize = 1024;

pub(super) enum Source {
    Cq(Arc<CqHealth>),
    Qp(Qpn),
}

impl Registry {
    pub(super) fn insert(&self, user_handle: u64, source: Source) {
        self.lock().sources.insert(user_handle, source);
    }

    pub(super) fn remove(&self, user_handle: u64) {
        self.lock().sources.remove(&user_handle);
    }

    pub(super) fn has_reader(&self) -> bool {
        self.lock().readers != 0
    }

    /// As [`keep_events`](Self::keep_events), but leaves them to an [`AsyncEvents`] if there is one by now.
    pub(super) fn keep_unread_events(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let mut state = self.lock();
        if state.readers != 0 {
            return Ok(());
        }
        state.read(fd)
    }

    /// Reads every event there is, marks what it is about, and keeps it for an [`AsyncEvents`].
    pub(super) fn keep_events(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        self.lock().read(fd)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn read(&mut self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let Self { sources, kept, readers: _ } = self;
        event::read_async_events(fd, |raw| {
            if kept.len() == MAX_KEPT {
                kept.pop_front();
            }
            kept.push_back(understand(raw, sources));
        })?;
        Ok(())
    }
}

fn understand(raw: event::AsyncEvent, sources: &HashMap<u64, Source>) -> AsyncEvent {
    let kind = raw.event_type;
    let subject = match raw.subject {
        event::Subject::Device => Subject::Device,
        event::Subject::Port(number) => {
            let port = u8::try_from(number).ok().and_then(|n| PortNum::new(n).ok());
            port.map_or(Subject::Unknown(number), Subject::Port)
        }
        event::Subject::Object(user_handle) => match sources.get(&user_handle) {
            Some(Source::Cq(health)) => {
                if kind == AsyncEventType::CQ_ERR {
                    health.overrun.store(true, Ordering::Relaxed);
                }
                Subject::Cq(CqId(user_handle))
            }
            Some(Source::Qp(qpn)) => Subject::Qp(*qpn),
            None => Subject::Unknown(user_handle),
        },
    };
    AsyncEvent { kind, subject }
}
