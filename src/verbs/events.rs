//! Asynchronous events: what happens to a device and its objects outside any work request.

use super::channel::{SLICE, deadline};
use super::cq::CqId;
use super::device::ContextInner;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::event::{self, AsyncEventType};
use crate::uverbs::types::{PortNum, Qpn};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which shared receive queue an event is about: unique within its context.
///
/// ```no_run
/// # fn f(event: ironverbs::AsyncEvent, srq: &ironverbs::Srq) -> Result<(), ironverbs::Error> {
/// if event.subject == ironverbs::Subject::Srq(srq.id()) {
///     println!("{} of ours", event.kind);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub(super) u64);

/// What an event happened to.
///
/// ```no_run
/// # fn f(event: ironverbs::AsyncEvent, cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// if event.subject == ironverbs::Subject::Cq(cq.id()) {
///     println!("{} of ours", event.kind);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// A completion queue.
    Cq(CqId),
    /// A queue pair.
    Qp(Qpn),
    /// A shared receive queue.
    Srq(SrqId),
    /// A port.
    Port(PortNum),
    /// The whole device.
    Device,
    /// An object that has been dropped since. Never told as another one that has its number now.
    Dropped,
    /// Something that this library does not know, by the kernel's number.
    Unknown(u64),
}

/// An asynchronous event.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// if let Some(event) = context.async_events().try_next()? {
///     println!("{}: {:?}", event.kind, event.subject);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventType,
    /// To what.
    pub subject: Subject,
}

/// The asynchronous events of a context. See [`Context::async_events`](crate::Context::async_events).
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// use ironverbs::{AsyncEventType, Subject};
/// let events = context.async_events();
/// while let Some(event) = events.next(std::time::Duration::from_secs(60))? {
///     match (event.kind, event.subject) {
///         (AsyncEventType::PORT_ERR, Subject::Port(port)) => println!("port {port} lost its link"),
///         (AsyncEventType::CQ_ERR, Subject::Cq(id)) => println!("{id:?} overran"),
///         (kind, subject) => println!("{kind}: {subject:?}"), // kinds that are not known print as numbers
///     }
/// }
/// # Ok(()) }
/// ```
///
/// While one exists, reading events is its owner's duty: a [`Cq::wait`](crate::Cq::wait) in another thread then learns of
/// an overrun only after the event was read here.
pub struct AsyncEvents {
    context: Arc<ContextInner>,
}

impl AsyncEvents {
    pub(super) fn new(context: &Arc<ContextInner>) -> Self {
        context.registry.add_reader();
        Self { context: context.clone() }
    }

    /// The next event that is there already. Never blocks. [`Error::DeviceGone`] after the last event that will ever
    /// come.
    #[doc(alias = "ibv_get_async_event")]
    pub fn try_next(&self) -> Result<Option<AsyncEvent>, Error> {
        self.context.registry.next(&self.context.ucontext)
    }

    #[cfg(feature = "tokio")]
    pub(super) fn context(&self) -> &Arc<ContextInner> {
        &self.context
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
            self.context.registry.heed(event::wait_readable(self.as_fd(), Some(slice), Verb::GetAsyncEvent))?;
        }
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.context.registry.remove_reader();
        // What came meanwhile was left for this reader. Whoever watches for changes only is not told of it again. An error
        // that lasts is met by the next who reads.
        let _ = self.context.registry.keep_unread_events(self.context.ucontext.async_fd());
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
