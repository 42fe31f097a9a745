//! Completion channels: how a thread sleeps until a completion comes. The loop is told at [`CompChannel`].

use super::cq::CqId;
use super::device::{Context, ContextInner};
use super::health::Health;
use super::provider::Provider;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::event;
use nix::errno::Errno as NixErrno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest single sleep: how soon it is noticed that another thread read what was waited for.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// Completion channel: a descriptor that becomes readable when an armed completion queue gets a completion.
///
/// One channel can serve many completion queues. It never blocks by itself, so it can be handed to `poll`, `epoll` or an
/// async runtime through [`AsFd`].
///
/// # The loop that loses no wake-up
///
/// 1. [Poll](crate::Cq::poll) the completion queue until it is empty.
/// 2. [Arm](crate::Cq::arm) it.
/// 3. Poll once more: a completion that came before the arm raises no event.
/// 4. If there was nothing, wait until the channel is readable.
/// 5. [Drain](Self::drain) the channel *until it would block*, and start again.
///
/// Step 5 is the trap with edge-triggered readiness (`EPOLLET`, as runtimes use it): an event left in the channel raises no
/// new edge, and the next wait never ends. `drain` takes every event there is, so call it once per wake-up and do not stop
/// early. [`Cq::wait`](crate::Cq::wait) and [`Cq::spin_then_wait`](crate::Cq::spin_then_wait) do all five for a channel with one
/// queue; `ironverbs::tokio::AsyncCq` (feature `tokio`) does them for a task.
///
/// ```no_run
/// # fn f(channel: &ironverbs::CompChannel, cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::Notify;
/// let mut armed = false;
/// loop {
///     let mut found = false;
///     while let Some(wc) = cq.poll_one()? {
///         println!("{}: {:?}", wc.wr_id, wc.outcome()?);
///         found = true;
///     }
///     if found {
///         armed = false;
///     } else if !armed {
///         cq.arm(Notify::Any)?;
///         armed = true; // and once more round: look again before the wait
///     } else {
///         channel.wait(std::time::Duration::from_secs(60))?; // or epoll, with others
///         channel.drain(|id| println!("{id:?}"))?;
///         armed = false;
///     }
/// }
/// # }
/// ```
#[doc(alias = "ibv_comp_channel")]
#[derive(Clone)]
pub struct CompChannel {
    inner: Arc<ChannelInner>,
}

pub(super) struct ChannelInner {
    fd: Arc<OwnedFd>,
    pub(super) context: Arc<ContextInner>,
    /// Completion queues that it serves.
    pub(super) attached: AtomicU32,
    /// One of them is not well any more.
    pub(super) alarm: Arc<AtomicBool>,
}

impl<P: Provider> Context<P> {
    /// Makes a completion channel.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        let context = self.inner().clone();
        let fd = context.ucontext.create_comp_channel()?;
        Ok(CompChannel {
            inner: Arc::new(ChannelInner { fd, context, attached: AtomicU32::new(0), alarm: Arc::default() }),
        })
    }
}

impl CompChannel {
    /// Takes every event that is there, and calls `each` with the completion queue it is about. Never blocks.
    ///
    /// An event can be about a completion queue that was dropped since. There is nothing to acknowledge.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn drain(&self, each: impl FnMut(CqId)) -> Result<usize, Error> {
        self.inner.drain(each)
    }

    /// Blocks until there is an event to drain, or one of its completion queues gives an error when it is polled (it
    /// overran, or the device is gone); `false` if nothing of this came within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        let deadline = deadline(timeout);
        loop {
            // In slices: another thread may read the asynchronous event that raises the alarm.
            let slice = deadline.min(Instant::now() + SLICE);
            let ready = self.inner.wait_readable(slice, &Health::default())?;
            if self.inner.alarm.swap(false, Ordering::Relaxed) || ready {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    pub(super) fn inner(&self) -> &Arc<ChannelInner> {
        &self.inner
    }
}

impl ChannelInner {
    /// A second descriptor, for a runtime to watch.
    #[cfg(feature = "tokio")]
    pub(super) fn duplicate(&self) -> Result<Arc<OwnedFd>, Error> {
        self.context.ucontext.duplicate(self.fd.as_fd(), Verb::GetCqEvent)
    }

    pub(super) fn drain(&self, mut each: impl FnMut(CqId)) -> Result<usize, Error> {
        let drained = event::read_comp_events(self.fd.as_fd(), |user_handle| {
            self.context.registry.comp_event(user_handle);
            each(CqId(user_handle));
        });
        self.context.registry.heed(drained)
    }

    /// Whether the channel becomes readable before `deadline`. Reads the context's asynchronous events meanwhile, if
    /// nobody else does, and fails as soon as `health` is bad.
    pub(super) fn wait_readable(&self, deadline: Instant, health: &Health) -> Result<bool, Error> {
        let context = &*self.context;
        loop {
            health.check(Verb::GetCqEvent)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let watch_async = !context.registry.has_reader();
            let events = watch_async.then(|| context.ucontext.async_fd());
            let (ready, events) = context.registry.heed(wait_for(self.fd.as_fd(), events, left.min(SLICE)))?;
            if ready {
                return Ok(true);
            }
            if events {
                context.registry.keep_unread_events(context.ucontext.async_fd())?;
            } else if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

/// Waits for either descriptor. An error or hang-up, with nothing left to read before it, means that the device is gone.
fn wait_for(fd: BorrowedFd<'_>, events: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<(bool, bool), Error> {
    let interest = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = [interest(fd), interest(events.unwrap_or(fd))];
    match poll(&mut fds, poll_timeout(timeout)) {
        Ok(_) => {}
        Err(NixErrno::EINTR) => return Ok((false, false)),
        Err(e) => return Err(Error::kernel(Verb::GetCqEvent, e.into())),
    }
    let [first, second] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
    let ready = [first, second].map(|got| got.contains(PollFlags::POLLIN));
    // An error stays, a hang-up too: whoever went on waiting would not sleep.
    if (first | second).intersects(PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL)
        && !ready[0]
        && !ready[1]
    {
        return Err(Error::DeviceGone { verb: Verb::GetCqEvent });
    }
    Ok((ready[0], events.is_some() && ready[1]))
}

/// When a wait that starts now ends. A time-out beyond what the clock can tell is as good as none.
pub(super) fn deadline(timeout: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + timeout.min(CENTURY)
}

/// Milliseconds, rounded up so that a short wait is not a busy one.
fn poll_timeout(timeout: Duration) -> PollTimeout {
    let ms = timeout.as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompChannel").field("fd", &self.inner.fd).finish()
    }
}
