//! Connections that are up, and their end.

use super::wait::{Blocking, Waiter, is_aside};
use crate::cm::channel::EventChannel;
use crate::cm::data::PrivateData;
use crate::cm::error::{Error, Step};
use crate::cm::event::{Event, EventType};
use crate::cm::id::CmId;
use crate::cm::reason::Reason;
use crate::cm::state::State;
use crate::cm::{IdAddress, ended, removed, timed_out};
use crate::uverbs::errno::Errno;
use crate::verbs::provider::{Any, Provider};
use crate::verbs::qp::Qp;
use crate::verbs::qp_type::Rc;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A connection: a queue pair that can send, and the link by which either side ends it. Dropped, it is ended.
///
/// ```no_run
/// # fn f(mut connection: ironverbs::rdma_cm::Connection, slot: ironverbs::Slot) -> Result<(), Box<dyn std::error::Error>> {
/// connection.qp().send_slot(slot, 5)?;
/// // …
/// connection.disconnect(std::time::Duration::from_secs(5))?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Connection<P: Provider = Any> {
    // Dropped before the queue pair, so that the peer hears of the end before it can notice.
    link: Link,
    qp: Qp<P, Rc>,
    peer_data: PrivateData,
}

impl<P: Provider> Connection<P> {
    pub(super) fn new(qp: Qp<P, Rc>, link: Link, peer_data: PrivateData) -> Self {
        Self { link, qp, peer_data }
    }

    /// The queue pair.
    pub fn qp(&mut self) -> &mut Qp<P, Rc> {
        &mut self.qp
    }

    /// The link: addresses, and how it ends.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The private data that the peer sent: the whole field, see [`PrivateData`].
    pub fn peer_data(&self) -> &PrivateData {
        &self.peer_data
    }

    /// Queue pair and link apart, as for two threads. Keep the link: dropped, it ends the connection.
    pub fn into_parts(self) -> (Qp<P, Rc>, Link) {
        (self.qp, self.link)
    }

    /// Ends the connection: work requests that are not completed are flushed, and the peer is told. Blocks until it has
    /// confirmed, for at most `timeout`. What came of it is in the reason: [`Reason::None`], or `ETIMEDOUT` from a peer that
    /// did not confirm to the kernel's own tries. A peer confirms when its program does, as [`Link::wait_end`] does.
    ///
    /// What was posted and must still arrive is completed before: [`Qp::drain`](crate::Qp::drain) does that only from this
    /// side's view, a message of the program's own tells the peer.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, timeout: Duration) -> Result<Reason, Error> {
        self.flush()?;
        self.link.disconnect(timeout)
    }

    /// As [`disconnect`](Self::disconnect), for a task.
    #[cfg(feature = "tokio")]
    pub async fn disconnect_async(&mut self) -> Result<Reason, Error> {
        self.flush()?;
        self.link.disconnect_async().await
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.qp.to_error().map_err(Error::verbs(Step::Disconnect))
    }
}

/// The connection manager's side of a connection: it tells when the peer ends it.
///
/// Several threads and tasks may wait for the end, or ask for it, at once: each is told as soon as one of them has read of it.
///
/// ```no_run
/// # fn f(link: &ironverbs::rdma_cm::Link) -> Result<(), ironverbs::rdma_cm::Error> {
/// while link.wait_end(std::time::Duration::from_secs(1))?.is_none() {
///     println!("still connected");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Link {
    id: CmId,
    channel: EventChannel,
    addresses: IdAddress,
}

impl Link {
    pub(super) fn new(id: CmId, channel: EventChannel, addresses: IdAddress) -> Self {
        Self { id, channel, addresses }
    }

    /// Addresses and device.
    pub fn addresses(&self) -> &IdAddress {
        &self.addresses
    }

    /// The id.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Blocks until the connection ends, from either side; `None` if it has not within `timeout`. With a time-out of zero it
    /// only looks. The peer's end is confirmed here. Work requests that are still posted complete when the queue pair is moved
    /// to the error state ([`Qp::to_error`](crate::Qp::to_error)).
    pub fn wait_end(&self, timeout: Duration) -> Result<Option<Reason>, Error> {
        Blocking::run(self.end_by(&Blocking::within(timeout)))
    }

    /// As [`wait_end`](Self::wait_end), for a task. The future can be dropped at any time, and loses nothing.
    #[cfg(feature = "tokio")]
    pub async fn ended(&self) -> Result<Reason, Error> {
        self.end_by(&super::wait::Async::default()).await.map(|reason| reason.unwrap_or(Reason::None))
    }

    /// Ends the connection, without a word to its queue pair; see [`Connection::disconnect`].
    pub fn disconnect(&self, timeout: Duration) -> Result<Reason, Error> {
        self.begin_end()?;
        let waiter = Blocking::within(timeout);
        let ended = Blocking::run(self.end_by(&waiter))?;
        ended.ok_or_else(|| timed_out(Step::Disconnect, waiter.limit(), self.id.about()))
    }

    /// As [`disconnect`](Self::disconnect), for a task.
    #[cfg(feature = "tokio")]
    pub async fn disconnect_async(&self) -> Result<Reason, Error> {
        self.begin_end()?;
        self.ended().await
    }

    fn begin_end(&self) -> Result<(), Error> {
        if self.id.state().is_over() {
            return Ok(());
        }
        match self.id.disconnect() {
            // The peer was first; its event waits.
            Err(error) if error.errno() == Some(Errno::EINVAL) => Ok(()),
            done => done,
        }
    }

    async fn end_by(&self, waiter: &impl Waiter) -> Result<Option<Reason>, Error> {
        loop {
            if let Some(reason) = self.end()? {
                return Ok(Some(reason));
            }
            let event = waiter.next_unless(&self.channel, &self.id, State::is_over).await?;
            let Some(event) = event else { return self.end() };
            match event.event_type() {
                EventType::DISCONNECTED => return Ok(Some(self.confirm(&event))),
                // A peer that went before it heard this side's last word turns the connection down.
                EventType::REJECTED | EventType::UNREACHABLE | EventType::CONNECT_ERROR => {
                    return Ok(Some(event.reason()));
                }
                other if is_aside(other) || other == EventType::ESTABLISHED => {}
                EventType::TIMEWAIT_EXIT => {}
                _ => return Err(ended(Step::Disconnect, event, self.id.about())),
            }
        }
    }

    /// How it has ended, if somebody has read so.
    fn end(&self) -> Result<Option<Reason>, Error> {
        match self.id.state_and_end() {
            (State::DeviceRemoved, _) => Err(removed(Step::Disconnect, self.id.about())),
            (state, reason) => Ok(state.is_over().then_some(reason)),
        }
    }

    /// Answers the peer's end. It does not matter whether that still finds it.
    fn confirm(&self, event: &Event) -> Reason {
        let _ = self.id.disconnect();
        event.reason()
    }
}

/// Readable when there may be news of the connection's end: then [`wait_end`](Link::wait_end) with a time-out of zero tells. What
/// another thread or task has read meanwhile is told so, too, but the descriptor is not readable any more.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
