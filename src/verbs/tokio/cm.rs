//! Awaiting events of the connection manager.

use super::{Watched, io_error, watch};
use crate::cm::channel::EventChannel;
use crate::cm::error::{Error, Step};
use crate::cm::event::Event;
use crate::uverbs::error::Verb;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The events of ids of the [connection manager](crate::rdma_cm), awaited: for a task that is the event loop of all ids of one
/// channel. Who makes connections by [`Connector`](crate::rdma_cm::Connector) and [`Listener`](crate::rdma_cm::Listener) needs
/// none of it.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::rdma_cm::{EventChannel, EventType, PortSpace};
/// use ironverbs::tokio::AsyncEventChannel;
/// use std::time::Duration;
/// let channel = EventChannel::open()?;
/// let events = AsyncEventChannel::new(channel.clone())?;
/// let id = channel.create_id(PortSpace::Tcp)?;
/// id.resolve_addr(None, "10.9.9.2:7471".parse()?, Duration::from_secs(2))?;
/// loop {
///     let event = events.next().await?;
///     match event.event_type() {
///         EventType::ADDR_RESOLVED => id.resolve_route(Duration::from_secs(2))?,
///         EventType::ROUTE_RESOLVED => break,
///         other => println!("{other}: {}", event.reason()),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AsyncEventChannel {
    channel: EventChannel,
    fd: Watched,
}

impl AsyncEventChannel {
    /// Has the current runtime watch the channel, until this is dropped.
    ///
    /// # Panics
    ///
    /// In a runtime that was built without IO (`enable_io`, `enable_all`); outside of any runtime it is an error.
    pub fn new(channel: EventChannel) -> Result<Self, Error> {
        let duplicate = channel.as_fd().try_clone_to_owned().map_err(failed)?;
        let fd = watch(Arc::new(duplicate), Verb::GetCmEvent).map_err(Error::verbs(Step::GetEvent))?;
        Ok(Self { channel, fd })
    }

    /// The next event. Can be dropped at any time, and loses nothing. Several tasks may wait: each event goes to one of them.
    ///
    /// An id that is [moved](crate::rdma_cm::CmId::migrate) here brings its unread events along, and wakes nobody: take them with
    /// [`drain`](EventChannel::drain) then.
    pub async fn next(&self) -> Result<Event, Error> {
        loop {
            // First, because an event may be there that woke nobody.
            if let Some(event) = self.channel.try_next()? {
                return Ok(event);
            }
            let mut ready = self.fd.readable().await.map_err(failed)?;
            match self.channel.try_next()? {
                Some(event) => return Ok(event),
                // Read until it would block, just now.
                None => ready.clear_ready(),
            }
        }
    }

    /// The channel itself, on which ids are made.
    pub fn get_ref(&self) -> &EventChannel {
        &self.channel
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::verbs(Step::GetEvent)(io_error(Verb::GetCmEvent, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::abi::EventResp;
    use crate::cm::event::EventType;
    use crate::cm::fake::FakeCm;
    use crate::cm::id::PortSpace;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn told(event: EventType) -> EventResp {
        EventResp { event: event.0, ..EventResp::default() }
    }

    /// The descriptors of the process that lead to the model's file: each that a runtime watches is one of its own.
    fn descriptors(channel: &EventChannel) -> usize {
        use std::os::fd::AsRawFd;
        let entry = |fd: &str| {
            let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
            text.lines().find(|line| line.starts_with("eventfd-id:")).map(str::to_owned)
        };
        let own = entry(&channel.as_fd().as_raw_fd().to_string());
        assert!(own.is_some(), "the kernel tells which eventfd it is");
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter(|fd| fd.as_ref().is_ok_and(|fd| entry(&fd.file_name().to_string_lossy()) == own)).count()
    }

    #[test]
    fn a_channel_is_watched_once_for_all_its_waits() {
        let cm = FakeCm::default();
        let channel = EventChannel::open_on(&cm).unwrap();
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        assert!(AsyncEventChannel::new(channel.clone()).is_err(), "outside of a runtime");
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let events = AsyncEventChannel::new(channel.clone()).unwrap();
            for kind in [EventType::ADDR_RESOLVED, EventType::ROUTE_RESOLVED, EventType::CONNECT_RESPONSE] {
                // A wait that is given up loses nothing.
                let mut given_up = pin!(events.next());
                assert!(matches!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
                assert_eq!(descriptors(&channel), 2, "its own, and the one that is watched");
                let other = cm.clone();
                let later = ::tokio::spawn(async move {
                    ::tokio::task::yield_now().await;
                    other.tell(0, told(kind));
                });
                let mut next = pin!(::tokio::time::timeout(Duration::from_secs(60), events.next()));
                assert!(matches!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
                assert_eq!(descriptors(&channel), 2, "also while two wait");
                let event = next.await.unwrap().unwrap();
                assert_eq!((event.id(), event.event_type()), (id.key(), kind));
                later.await.unwrap();
            }
            assert_eq!(events.get_ref().drain(drop).unwrap(), 0);
            drop(events);
            assert_eq!(descriptors(&channel), 1);
        });
    }
}
