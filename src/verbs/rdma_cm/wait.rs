//! Waiting for an event, blocking or not: the steps that wait are written once, as futures, and the blocking calls run them
//! with a wait that is never pending.

use crate::cm::channel::{EventChannel, deadline};
use crate::cm::error::Error;
use crate::cm::event::{Event, EventType};
use crate::cm::id::CmId;
use crate::cm::state::State;
use crate::cm::{ended, error::Step, timed_out};
use crate::uverbs::errno::Errno;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How to wait for the next event of a channel.
pub(super) trait Waiter {
    /// The next event, or `None` when the time is over.
    fn next(&self, channel: &EventChannel) -> impl Future<Output = Result<Option<Event>, Error>>;

    /// The same for one of several who may wait for `id`: `None` also when another has read an event after which it is `over`.
    fn next_unless(
        &self,
        channel: &EventChannel,
        id: &CmId,
        over: fn(State) -> bool,
    ) -> impl Future<Output = Result<Option<Event>, Error>>;

    /// How long it waits at most, for an error to tell.
    fn limit(&self) -> Duration;
}

/// Blocks the thread, until a deadline.
pub(super) struct Blocking {
    deadline: Option<Instant>,
    limit: Duration,
}

impl Blocking {
    pub(super) fn within(limit: Duration) -> Self {
        Self { deadline: deadline(limit), limit }
    }

    /// Runs a future that waits by this alone.
    pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => unreachable!("a wait that blocks is never pending"),
        }
    }
}

impl Waiter for Blocking {
    async fn next(&self, channel: &EventChannel) -> Result<Option<Event>, Error> {
        channel.next_before(self.deadline)
    }

    async fn next_unless(
        &self,
        channel: &EventChannel,
        id: &CmId,
        over: fn(State) -> bool,
    ) -> Result<Option<Event>, Error> {
        channel.next_unless(self.deadline, id, over)
    }

    fn limit(&self) -> Duration {
        self.limit
    }
}

/// Lets the task sleep; whoever wants a deadline puts one around. One future waits for one channel, which the runtime watches from
/// its first wait until the future ends.
#[cfg(feature = "tokio")]
#[derive(Default)]
pub(super) struct Async {
    watched: std::sync::OnceLock<crate::verbs::tokio::AsyncEventChannel>,
}

#[cfg(feature = "tokio")]
impl Waiter for Async {
    async fn next(&self, channel: &EventChannel) -> Result<Option<Event>, Error> {
        let watched = match self.watched.get() {
            Some(watched) => watched,
            None => {
                // A future that finds what it wants without a wait needs no runtime.
                if let Some(event) = channel.try_next()? {
                    return Ok(Some(event));
                }
                let watched = crate::verbs::tokio::AsyncEventChannel::new(channel.clone())?;
                self.watched.get_or_init(|| watched)
            }
        };
        debug_assert!(watched.get_ref().is(channel), "a future waits for one channel");
        watched.next().await.map(Some)
    }

    async fn next_unless(
        &self,
        channel: &EventChannel,
        id: &CmId,
        over: fn(State) -> bool,
    ) -> Result<Option<Event>, Error> {
        let seat = id.seat();
        let mut next = pin!(self.next(channel));
        std::future::poll_fn(|task| {
            seat.wake_by(task.waker());
            if over(id.state()) {
                return Poll::Ready(Ok(None));
            }
            next.as_mut().poll(task)
        })
        .await
    }

    fn limit(&self) -> Duration {
        Duration::MAX
    }
}

/// Waits for the event that ends the step; any other that ends it is an error that says which.
pub(super) async fn expect(
    waiter: &impl Waiter,
    channel: &EventChannel,
    id: &CmId,
    step: Step,
    wanted: EventType,
) -> Result<Event, Error> {
    loop {
        match waiter.next(channel).await? {
            None => return Err(timed_out(step, waiter.limit(), id.about())),
            Some(event) if event.event_type() == wanted => return Ok(event),
            Some(event) if is_aside(event.event_type()) => {}
            Some(event) => return Err(ended(step, event, id.about())),
        }
    }
}

/// What a refusal was about, where the peer went between its answer and this side's last word: the kernel calls that a bare
/// `EINVAL`, and the event that says why is there or about to come.
pub(super) async fn or_the_end(refusal: Error, waiter: &impl Waiter, channel: &EventChannel, id: &CmId) -> Error {
    let Error::Kernel { errno: Errno::EINVAL | Errno::ENOENT, .. } = refusal else { return refusal };
    // Who has turned the answer down himself is told nothing.
    while id.state() == State::Answered {
        match waiter.next(channel).await {
            Ok(Some(event)) if is_aside(event.event_type()) => {}
            Ok(Some(event)) => return ended(Step::Connect, event, id.about()),
            Ok(None) | Err(_) => break,
        }
    }
    refusal
}

/// Whether an event ends nothing.
pub(super) fn is_aside(event: EventType) -> bool {
    matches!(event, EventType::ADDR_CHANGE | EventType::MULTICAST_JOIN | EventType::MULTICAST_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::abi::EventResp;
    use crate::cm::fake::FakeCm;
    use crate::cm::id::PortSpace;
    use crate::cm::reason::{Reason, RejectReason};

    fn told(event: EventType, status: u32) -> EventResp {
        EventResp { event: event.0, status, ..EventResp::default() }
    }

    #[test]
    fn a_peer_that_goes_before_the_last_word_is_told_by_its_reason() {
        let cm = FakeCm::default();
        let channel = EventChannel::open_on(&cm).unwrap();
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        cm.tell(0, told(EventType::CONNECT_RESPONSE, 0));
        channel.drain(drop).unwrap();
        cm.refuse(8, Errno::EINVAL);
        let refused = || {
            let waiter = Blocking::within(Duration::from_millis(50));
            Blocking::run(or_the_end(id.establish().unwrap_err(), &waiter, &channel, &id))
        };
        assert!(matches!(refused(), Error::Kernel { step: Step::Establish, errno: Errno::EINVAL, .. }));
        cm.tell(0, told(EventType::ADDR_CHANGE, 0));
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                cm.tell(0, told(EventType::REJECTED, 28));
            });
            refused()
        });
        let Error::Failed { step: Step::Connect, reason, .. } = &error else { panic!("{error}") };
        assert_eq!(*reason, Reason::Rejected(RejectReason::CONSUMER_DEFINED));
        // It is over, and no more events are waited for.
        assert!(matches!(refused(), Error::Kernel { errno: Errno::EINVAL, .. }));
        // What is wrong with this side is told as that, whatever else there is.
        cm.refuse(8, Errno::ENOMEM);
        cm.tell(0, told(EventType::REJECTED, 28));
        assert!(matches!(refused(), Error::Kernel { errno: Errno::ENOMEM, .. }));
    }
}
