//! What every object of a context is known by in events, and the events that were read but not yet given to anyone.
//!
//! Any thread that waits may read asynchronous events, so each event is *heeded* where it is read (a completion queue
//! that overran is marked at once), and *understood* where it is given to the program: an object that was dropped in
//! between is then told as dropped, although its queue pair number may belong to another one by now.

use super::cq::CqId;
use super::device::ContextInner;
use super::events::{AsyncEvent, SrqId, Subject};
use super::health::Health;
use crate::mem::numbered::Numbered;
use crate::uverbs::context::Ucontext;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::event::{self, AsyncEventType};
use crate::uverbs::types::{PortNum, Qpn};
#[cfg(feature = "tokio")]
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
#[cfg(feature = "tokio")]
use std::task::Waker;

/// Shared by all objects of a context.
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: Numbered<Source>,
    /// How many [`AsyncEvents`](super::AsyncEvents) there are.
    readers: u32,
    kept: VecDeque<event::AsyncEvent>,
    /// Nothing comes from the device any more.
    gone: bool,
    /// The device has said that it fails.
    fatal: bool,
    /// Tasks that wait for an event, by the number of what they wait with.
    #[cfg(feature = "tokio")]
    waiting: BTreeMap<u64, Waker>,
}

/// Kept events at most; the oldest go first. A program that never asks for events must not grow.
const MAX_KEPT: usize = 1024;

/// What a user handle stands for.
pub(super) enum Source {
    Cq(Arc<Health>),
    Qp(Qpn),
    Srq,
}

/// An object's entry, which goes with this. It may be left with an object that the kernel does not destroy, and does not keep the
/// context open.
pub(super) struct Registered {
    context: Weak<ContextInner>,
    user_handle: u64,
}

impl Registered {
    pub(super) fn of(context: &Arc<ContextInner>, user_handle: u64) -> Self {
        Self { context: Arc::downgrade(context), user_handle }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(context) = self.context.upgrade() {
            context.registry.remove(self.user_handle);
        }
    }
}

/// Who has to be woken once the lock is released: a waker is free to come back here.
#[derive(Default)]
struct Alarmed {
    queues: Vec<Arc<Health>>,
    #[cfg(feature = "tokio")]
    tasks: Vec<Waker>,
}

impl Alarmed {
    fn wake(self) {
        for health in self.queues {
            health.wake();
        }
        #[cfg(feature = "tokio")]
        for task in self.tasks {
            task.wake();
        }
    }
}

impl Registry {
    pub(super) fn insert(&self, user_handle: u64, source: Source) {
        let mut state = self.lock();
        if let (true, Source::Cq(health)) = (state.gone, &source) {
            health.mark_gone();
        }
        state.sources.insert(user_handle, source);
    }

    pub(super) fn remove(&self, user_handle: u64) {
        self.lock().sources.remove(&user_handle);
    }

    /// A completion event was received.
    pub(super) fn comp_event(&self, user_handle: u64) {
        if let Some(Source::Cq(health)) = self.lock().sources.get(&user_handle) {
            health.comp_event_received();
        }
    }

    pub(super) fn add_reader(&self) {
        self.lock().readers += 1;
    }

    pub(super) fn remove_reader(&self) {
        self.lock().readers -= 1;
    }

    pub(super) fn has_reader(&self) -> bool {
        self.lock().readers != 0
    }

    /// The next event, read from the kernel if none is kept. Those that came before the device went away are given before
    /// the error that says so.
    pub(super) fn next(&self, ucontext: &Ucontext) -> Result<Option<AsyncEvent>, Error> {
        let mut alarmed = Alarmed::default();
        let mut state = self.lock();
        let read = if state.kept.is_empty() { state.read(ucontext.async_fd(), &mut alarmed) } else { Ok(()) };
        let next = state.kept.pop_front().map(|raw| state.understand(raw, ucontext));
        let (gone, fatal) = (state.gone, state.fatal);
        drop(state);
        alarmed.wake();
        match next {
            Some(event) => Ok(Some(event)),
            None if gone => Err(Error::DeviceGone { verb: Verb::GetAsyncEvent }),
            // The kernel tells of a device that it takes away by this event, and leaves the file as it is: only commands fail.
            None if fatal && ucontext.is_disconnected() => {
                self.device_is_gone();
                Err(Error::DeviceGone { verb: Verb::GetAsyncEvent })
            }
            None => read.map(|()| None),
        }
    }

    /// Reads every event there is, unless that is left to an [`AsyncEvents`](super::AsyncEvents).
    pub(super) fn keep_unread_events(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let mut alarmed = Alarmed::default();
        let mut state = self.lock();
        let read = if state.readers == 0 { state.read(fd, &mut alarmed) } else { Ok(()) };
        drop(state);
        alarmed.wake();
        read
    }

    /// Passes on how a wait or read of one of the context's files ended. If that was because the device is gone, everyone
    /// who waits learns of it.
    pub(super) fn heed<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::DeviceGone { .. }) = &result {
            self.device_is_gone();
        }
        result
    }

    /// Marks every completion queue, and wakes whoever waits.
    pub(super) fn device_is_gone(&self) {
        let mut alarmed = Alarmed::default();
        self.lock().note_gone(&mut alarmed);
        alarmed.wake();
    }

    /// Has `waker` woken when the next event is kept, or the device goes away. To be followed by a look.
    #[cfg(feature = "tokio")]
    pub(super) fn wake_later(&self, id: u64, waker: &Waker) {
        // Dropped without the lock: with the last waker goes a task, with what it owns.
        let _old = self.lock().waiting.insert(id, waker.clone());
    }

    #[cfg(feature = "tokio")]
    pub(super) fn forget_task(&self, id: u64) {
        let _old = self.lock().waiting.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn read(&mut self, fd: BorrowedFd<'_>, alarmed: &mut Alarmed) -> Result<(), Error> {
        let read = event::read_async_events(fd, |raw| self.keep(raw, alarmed));
        if let Err(Error::DeviceGone { .. }) = &read {
            self.note_gone(alarmed);
        }
        read.map(drop)
    }

    /// Heeds an event and keeps it for an [`AsyncEvents`](super::AsyncEvents).
    fn keep(&mut self, raw: event::AsyncEvent, alarmed: &mut Alarmed) {
        match (raw.event_type, raw.subject) {
            (AsyncEventType::CQ_ERR, event::Subject::Object(user_handle)) => {
                if let Some(Source::Cq(health)) = self.sources.get(&user_handle) {
                    health.mark_overrun();
                    alarmed.queues.push(health.clone());
                }
            }
            // Nothing will complete any more. Commands still tell what the kernel makes of it.
            (AsyncEventType::DEVICE_FATAL, _) => {
                self.fatal = true;
                self.mark_queues(alarmed);
            }
            _ => {}
        }
        if self.kept.len() == MAX_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(raw);
        #[cfg(feature = "tokio")]
        alarmed.tasks.extend(std::mem::take(&mut self.waiting).into_values());
    }

    fn note_gone(&mut self, alarmed: &mut Alarmed) {
        self.gone = true;
        self.mark_queues(alarmed);
        #[cfg(feature = "tokio")]
        alarmed.tasks.extend(std::mem::take(&mut self.waiting).into_values());
    }

    fn mark_queues(&self, alarmed: &mut Alarmed) {
        for source in self.sources.values() {
            if let Source::Cq(health) = source {
                health.mark_gone();
                alarmed.queues.push(health.clone());
            }
        }
    }

    fn understand(&self, raw: event::AsyncEvent, ucontext: &Ucontext) -> AsyncEvent {
        let subject = match raw.subject {
            event::Subject::Device => Subject::Device,
            event::Subject::Port(number) => {
                let port = u8::try_from(number).ok().and_then(|n| PortNum::new(n).ok());
                port.map_or(Subject::Unknown(number), Subject::Port)
            }
            event::Subject::Object(user_handle) => match self.sources.get(&user_handle) {
                Some(Source::Cq(_)) => Subject::Cq(CqId(user_handle)),
                Some(Source::Qp(qpn)) => Subject::Qp(*qpn),
                Some(Source::Srq) => Subject::Srq(SrqId(user_handle)),
                None if ucontext.gave_user_handle(user_handle) => Subject::Dropped,
                None => Subject::Unknown(user_handle),
            },
        };
        AsyncEvent { kind: raw.event_type, subject }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
