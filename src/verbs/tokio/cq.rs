//! Awaiting a completion queue.

use super::{Watched, io_error, watch};
use crate::uverbs::error::{Error, Verb};
use crate::verbs::cq::{Cq, Notify};
use crate::verbs::poll::Completions;
use crate::verbs::provider::sealed::CompOps;
use crate::verbs::provider::{Any, Provider};
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// A completion queue that is waited for with `.await`, one task at a time.
///
/// ```no_run
/// # async fn f(context: ironverbs::Context) -> Result<(), Box<dyn std::error::Error>> {
/// let channel = context.create_comp_channel()?;
/// let cq = context.cq_builder(64).channel(&channel).build()?;
/// let mut cq = ironverbs::tokio::AsyncCq::new(cq)?;
/// loop {
///     let mut completions = cq.completions().await?;
///     while let Some(completion) = completions.next() {
///         println!("{}: {:?}", completion.wr_id(), completion.outcome()?);
///     }
/// }
/// # }
/// ```
pub struct AsyncCq<P: Provider = Any> {
    cq: Cq<P>,
    completions: Watched,
    /// Asynchronous events, for those that end the wait.
    events: Watched,
    /// How often in a row a wait ended at once.
    streak: u32,
}

/// A task that always finds completions lets others run after so many times.
const MAX_STREAK: u32 = 32;

impl<P: Provider> AsyncCq<P> {
    /// Has the current runtime watch the queue's channel, which must serve no other queue.
    ///
    /// # Panics
    ///
    /// In a runtime that was built without IO (`enable_io`, `enable_all`); outside of any runtime it is an error.
    pub fn new(cq: Cq<P>) -> Result<Self, Error> {
        let channel = cq.own_channel()?;
        let completions = watch(channel.duplicate()?, Verb::GetCqEvent)?;
        let ucontext = &channel.context.ucontext;
        let events = ucontext.duplicate(ucontext.async_fd(), Verb::GetAsyncEvent)?;
        let events = watch(events, Verb::GetAsyncEvent)?;
        Ok(Self { cq, completions, events, streak: 0 })
    }

    /// Waits until there is a completion to poll. An error if there never will be one: the queue overran, or the device is
    /// gone.
    ///
    /// Can be dropped at any time, and loses nothing.
    pub async fn ready(&mut self) -> Result<(), Error> {
        poll_fn(|task| self.poll_ready(task)).await
    }

    /// Waits until there are completions, and polls them.
    pub async fn completions(&mut self) -> Result<Completions<'_, P>, Error> {
        self.ready().await?;
        self.cq.poll().map_err(|error| error.during(Verb::PollCq))
    }

    /// The queue itself.
    pub fn get_ref(&self) -> &Cq<P> {
        &self.cq
    }

    /// The queue itself, to be polled.
    pub fn get_mut(&mut self) -> &mut Cq<P> {
        &mut self.cq
    }

    /// The queue, which the runtime watches no longer.
    pub fn into_inner(self) -> Cq<P> {
        self.cq
    }

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.streak == MAX_STREAK {
            self.streak = 0;
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        let ready = self.poll_wait(task);
        self.streak = if ready.is_ready() { self.streak + 1 } else { 0 };
        ready
    }

    /// The loop of the channel's documentation: look, arm, look, wait, drain until it would block.
    fn poll_wait(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let shared = self.cq.shared();
        let (health, registry) = (&shared.health, &shared.context.registry);
        let channel = self.cq.own_channel()?;
        loop {
            health.wake_later(task.waker());
            // What is there can be polled, also when nothing more will come.
            if self.cq.poller.has_entry() {
                return Poll::Ready(Ok(()));
            }
            health.check(Verb::GetCqEvent)?;
            self.cq.arm(Notify::Any)?;
            if self.cq.poller.has_entry() {
                return Poll::Ready(Ok(()));
            }
            let mut woken = false;
            // Both are asked each time, so that both wake this task. Each is read until it would block before its
            // readiness is cleared: the runtime is told of new events only.
            if let Poll::Ready(ready) = self.completions.poll_read_ready(task) {
                let mut ready = ready.map_err(|e| io_error(Verb::GetCqEvent, &e))?;
                channel.drain(|_| ())?;
                ready.clear_ready();
                woken = true;
            }
            if let Poll::Ready(ready) = self.events.poll_read_ready(task) {
                let mut ready = ready.map_err(|e| io_error(Verb::GetAsyncEvent, &e))?;
                registry.keep_unread_events(shared.context.ucontext.async_fd())?;
                ready.clear_ready();
                woken = true;
            }
            if !woken {
                return Poll::Pending;
            }
        }
    }
}

impl<P: Provider> fmt::Debug for AsyncCq<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncCq").field(&self.cq).finish()
    }
}
