//! Several who wait on one link or one listener, of whom one reads the last event: each is told, and at once.

use super::connection::Link;
use super::listener::Listener;
use crate::cm::abi::EventResp;
use crate::cm::channel::EventChannel;
use crate::cm::error::Error;
use crate::cm::event::EventType;
use crate::cm::fake::FakeCm;
use crate::cm::id::PortSpace;
use crate::cm::reason::Reason;
use crate::cm::state::State;
use crate::uverbs::errno::Errno;
use std::fmt::Debug;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Of waits that end by their deadline, which none of them may here.
const LATE: Duration = Duration::from_secs(120);
/// Everybody is told before.
const SOON: Duration = Duration::from_secs(30);

type Ended = Result<Option<Reason>, Error>;
/// Whether a peer asks.
type Asked = Result<bool, Error>;

fn event(event: EventType, status: i32) -> EventResp {
    EventResp { event: event.0, status: status as u32, ..EventResp::default() }
}

/// Of a connection that is up.
fn link() -> (FakeCm, Arc<Link>) {
    let cm = FakeCm::default();
    let channel = EventChannel::open_on(&cm).unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    cm.tell(0, event(EventType::CONNECT_RESPONSE, 0));
    channel.drain(drop).unwrap();
    id.establish().unwrap();
    let addresses = id.addresses().unwrap();
    (cm, Arc::new(Link::new(id, channel, addresses)))
}

/// Has all `waits` wait for `what`, each on a thread of its own, does `then` when they do, or while they begin to, and returns what
/// each of them was told.
fn told<W, T>(what: &Arc<W>, waits: &[fn(&W) -> T], round: u64, then: impl FnOnce()) -> Vec<T>
where
    W: Send + Sync + 'static,
    T: Send + Debug + 'static,
{
    let (tell, told) = mpsc::channel();
    for wait in waits {
        let (wait, what, tell) = (*wait, what.clone(), tell.clone());
        // Who is not told is left behind.
        std::thread::spawn(move || tell.send(wait(&what)));
    }
    std::thread::sleep(Duration::from_micros(300 * round));
    then();
    let next =
        |n| told.recv_timeout(SOON).unwrap_or_else(|_| panic!("{} of {} are not told", waits.len() - n, waits.len()));
    (0..waits.len()).map(next).collect()
}

const WAITS: &[fn(&Link) -> Ended] = &[
    |link| link.wait_end(Duration::MAX),
    |link| link.wait_end(LATE),
    |link| link.disconnect(LATE).map(Some),
    |link| link.disconnect(Duration::MAX).map(Some),
    #[cfg(feature = "tokio")]
    |link| block_on(async { tokio::join!(link.ended(), link.ended()).0.map(Some) }),
    #[cfg(feature = "tokio")]
    |link| block_on(async { tokio::join!(link.disconnect_async(), link.ended()).0.map(Some) }),
];

#[cfg(feature = "tokio")]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn everybody_is_told_that_a_connection_has_ended_and_why() {
    for (round, status) in (0..20).zip([0, -110].into_iter().cycle()) {
        let (cm, link) = link();
        let ends = told(&link, WAITS, round, || cm.tell(0, event(EventType::DISCONNECTED, status)));
        let reason = if status == 0 { Reason::None } else { Reason::Errno(Errno::ETIMEDOUT) };
        for end in ends {
            assert_eq!(end.unwrap(), Some(reason));
        }
        assert_eq!(link.wait_end(Duration::ZERO).unwrap(), Some(reason), "and who asks later");
    }
}

#[test]
fn everybody_is_told_what_another_has_read_from_the_channel() {
    for round in 0..20 {
        let (cm, link) = link();
        let ends = told(&link, WAITS, round, || {
            let channel = link.id().channel();
            cm.tell(0, event(EventType::DISCONNECTED, 0));
            channel.drain(drop).unwrap();
        });
        assert!(ends.into_iter().all(|end| end.unwrap() == Some(Reason::None)));
    }
}

#[test]
fn everybody_is_told_that_the_device_of_a_connection_has_gone() {
    for round in 0..20 {
        let (cm, link) = link();
        let ends = told(&link, WAITS, round, || cm.tell(0, event(EventType::DEVICE_REMOVAL, 0)));
        for end in ends {
            let error = end.unwrap_err();
            assert!(matches!(error, Error::Unexpected { event: EventType::DEVICE_REMOVAL, .. }), "{error}");
        }
    }
}

#[test]
fn everybody_is_told_that_the_device_of_a_listener_has_gone() {
    let waits: &[fn(&Listener) -> Asked] = &[
        |listener| listener.request(Duration::MAX).map(|request| request.is_some()),
        |listener| listener.request(Duration::MAX).map(|request| request.is_some()),
        |listener| listener.request(LATE).map(|request| request.is_some()),
        #[cfg(feature = "tokio")]
        |listener| block_on(async { tokio::join!(listener.request_async(), listener.request_async()).0.map(|_| true) }),
    ];
    for round in 0..20 {
        let cm = FakeCm::default();
        let sys = Arc::new(cm.clone());
        let listener = Listener::bind_on(sys, "10.9.9.1:7471".parse().unwrap(), 4, |_| Ok(())).unwrap();
        let outcomes = told(&Arc::new(listener), waits, round, || cm.tell(0, event(EventType::DEVICE_REMOVAL, 0)));
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Unexpected { event: EventType::DEVICE_REMOVAL, .. }), "{error}");
        }
    }
}

/// The bell of a thread may have been rung for another wait of its own.
#[test]
fn the_end_of_one_connection_is_none_of_another_ones() {
    let (ended, other) = (link(), link());
    ended.0.tell(0, event(EventType::DISCONNECTED, 0));
    assert_eq!(ended.1.wait_end(LATE).unwrap(), Some(Reason::None));
    let started = std::time::Instant::now();
    assert_eq!(other.1.wait_end(Duration::from_millis(50)).unwrap(), None);
    assert!(started.elapsed() >= Duration::from_millis(50));
    assert_eq!(other.1.id().state(), State::Established);
    assert!(matches!(other.1.disconnect(Duration::from_millis(20)), Err(Error::Timeout { .. })));
}
