//! Awaiting asynchronous events.

use super::{Watched, io_error, watch};
use crate::uverbs::error::{Error, Verb};
use crate::verbs::events::{AsyncEvent, AsyncEvents};
use std::future::poll_fn;
use std::task::{Context, Poll};

/// The asynchronous events of a context, awaited.
///
/// ```no_run
/// # async fn f(context: ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let mut events = ironverbs::tokio::EventStream::new(context.async_events())?;
/// loop {
///     let event = events.next().await?;
///     println!("{}: {:?}", event.kind, event.subject);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct EventStream {
    events: AsyncEvents,
    fd: Watched,
    /// By which the registry knows the task that waits here.
    id: u64,
}

impl EventStream {
    /// Has the current runtime watch for events.
    ///
    /// # Panics
    ///
    /// In a runtime that was built without IO (`enable_io`, `enable_all`); outside of any runtime it is an error.
    pub fn new(events: AsyncEvents) -> Result<Self, Error> {
        let ucontext = &events.context().ucontext;
        let fd = watch(ucontext.duplicate(ucontext.async_fd(), Verb::GetAsyncEvent)?, Verb::GetAsyncEvent)?;
        let id = ucontext.next_user_handle();
        Ok(Self { events, fd, id })
    }

    /// The next event; [`Error::DeviceGone`] after the last one that will ever come. Can be dropped at any time, and loses
    /// nothing.
    pub async fn next(&mut self) -> Result<AsyncEvent, Error> {
        poll_fn(|task| self.poll_next(task)).await
    }

    fn poll_next(&mut self, task: &mut Context<'_>) -> Poll<Result<AsyncEvent, Error>> {
        // Another thread may read the event and keep it.
        self.events.context().registry.wake_later(self.id, task.waker());
        loop {
            let ready = match self.fd.poll_read_ready(task) {
                Poll::Ready(ready) => Some(ready.map_err(|e| io_error(Verb::GetAsyncEvent, &e))?),
                Poll::Pending => None,
            };
            if let Some(event) = self.events.try_next()? {
                return Poll::Ready(Ok(event));
            }
            match ready {
                // Read until it would block, just now.
                Some(mut ready) => ready.clear_ready(),
                None => return Poll::Pending,
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.events.context().registry.forget_task(self.id);
    }
}
