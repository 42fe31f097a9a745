//! Event channels: where the events of ids are read.

use super::abi::{DestroyId, EventResp};
use super::bell::Bell;
use super::command::send;
use super::error::{Error, Step};
use super::event::{Event, EventType};
use super::id::{CmId, IdKey, IdShared, PortSpace};
use super::linux::LinuxCm;
use super::state::State;
use super::sys::{CmFile, CmSys};
use super::taking::Taking;
use crate::mem::numbered::{Numbered, numbered};
use crate::uverbs::errno::Errno;
use crate::uverbs::error::Verb;
use crate::uverbs::event::{Wait, wait_readable_of};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Event channel: a file of the connection manager, and the events of the ids made on it.
///
/// It never blocks by itself, so it can be handed to `poll`, `epoll` or a runtime through [`AsFd`]: it is readable when there
/// is an event. With edge-triggered readiness, [drain](Self::drain) it until it would block at each wake-up.
///
/// Cheap to clone; clones are the same channel. Ids keep their channel open. A program with an event loop has one for all of
/// its ids; [`Connector`](crate::rdma_cm::Connector) and [`Listener`](crate::rdma_cm::Listener) give each connection its own.
///
/// ```no_run
/// # fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::rdma_cm::{EventChannel, PortSpace};
/// let channel = EventChannel::open()?;
/// let id = channel.create_id(PortSpace::Tcp)?;
/// id.resolve_addr(None, "10.9.9.2:7471".parse()?, std::time::Duration::from_secs(2))?;
/// let event = channel.next(std::time::Duration::from_secs(5))?;
/// println!("{event:?}, now {}", id.state());
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    file: Arc<dyn CmFile>,
    shared: Arc<Shared>,
}

/// Of all clones of a channel.
#[derive(Default)]
struct Shared {
    taking: Taking,
    /// How many of the waits to come need not look first whether there is an event: they end at once if there is.
    calm: AtomicU8,
}

/// A wait that found no event at first makes as many more expect none: where events come one by one, looking first would be one
/// system call more for each, and where they come in crowds it is one less.
const CALM: u8 = 8;

/// How long a wait sleeps that nobody can wake.
const SLICE: Duration = Duration::from_millis(20);

/// Every id of the process, by its key: whichever channel reads an event finds its id, also when that has just moved to
/// another one.
static IDS: Mutex<Numbered<Weak<IdShared>>> = Mutex::new(numbered());

/// Keys are never used twice, so that an event that was on its way when its id was dropped finds nobody. Not zero: the kernel
/// tells nothing of ids whose key is that.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

pub(super) fn next_key() -> IdKey {
    IdKey(NEXT_KEY.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn register(key: IdKey, id: &Arc<IdShared>) {
    ids().insert(key.0, Arc::downgrade(id));
}

pub(super) fn unregister(key: IdKey) {
    ids().remove(&key.0);
}

fn ids() -> MutexGuard<'static, Numbered<Weak<IdShared>>> {
    IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(key: u64) -> Option<Arc<IdShared>> {
    ids().get(&key)?.upgrade()
}

impl EventChannel {
    /// Opens the host's connection manager.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn open() -> Result<Self, Error> {
        Self::open_on(&LinuxCm::new())
    }

    /// Opens the connection manager of `sys`: the host's, or a model of one.
    pub fn open_on(sys: &dyn CmSys) -> Result<Self, Error> {
        Ok(Self { file: sys.open()?, shared: Arc::default() })
    }

    /// Takes the next event, if there is one. Never blocks.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_next(&self) -> Result<Option<Event>, Error> {
        loop {
            let record = match self.shared.taking.take(&*self.file) {
                Ok(record) => record,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(self.refused(Step::GetEvent, errno)),
            };
            // An event of an id that was dropped meanwhile is nobody's.
            if let Some(event) = self.receive(&record) {
                return Ok(Some(event));
            }
        }
    }

    /// The next event, however long it takes. `None` if the file cannot wait by itself.
    fn wait(&self) -> Result<Option<Event>, Error> {
        loop {
            match self.shared.taking.wait(&*self.file) {
                Ok(record) => {
                    if let Some(event) = self.receive(&record) {
                        return Ok(Some(event));
                    }
                }
                Err(Errno::EOPNOTSUPP) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.refused(Step::GetEvent, errno)),
            }
        }
    }

    /// Takes every event that is there, and calls `each` with it. Never blocks. Returns how many there were.
    pub fn drain(&self, mut each: impl FnMut(Event)) -> Result<usize, Error> {
        let mut n_events = 0;
        while let Some(event) = self.try_next()? {
            each(event);
            n_events += 1;
        }
        Ok(n_events)
    }

    /// Blocks until there is an event; `None` if none came within `timeout`.
    pub fn next(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        self.next_before(deadline(timeout))
    }

    pub(crate) fn next_before(&self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        if deadline.is_none()
            && let Some(event) = self.wait()?
        {
            return Ok(Some(event));
        }
        self.poll_before(deadline, None, || false)
    }

    /// As [`next_before`](Self::next_before), for one of several who may wait for `id`: also ends, with `None`, when another has read an
    /// event after which the id is `over`.
    pub(crate) fn next_unless(
        &self,
        deadline: Option<Instant>,
        id: &CmId,
        over: fn(State) -> bool,
    ) -> Result<Option<Event>, Error> {
        // To look needs no bell.
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return self.try_next();
        }
        let Some(bell) = Bell::of_this_thread() else { return self.next_in_slices(deadline, id, over) };
        let seat = id.seat();
        seat.wake_by(&bell.waker());
        self.poll_before(deadline, Some(&bell), || over(id.state()))
    }

    /// The same without a bell, where the process may open no more files: looks at the id now and then.
    pub(super) fn next_in_slices(
        &self,
        deadline: Option<Instant>,
        id: &CmId,
        over: fn(State) -> bool,
    ) -> Result<Option<Event>, Error> {
        while !over(id.state()) {
            let slice = Instant::now() + SLICE;
            let event = self.next_before(Some(deadline.map_or(slice, |deadline| deadline.min(slice))))?;
            if event.is_some() || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Polls for the next event, until the deadline, or until it is `over`, of which the bell tells.
    fn poll_before(
        &self,
        deadline: Option<Instant>,
        bell: Option<&Bell>,
        over: impl Fn() -> bool,
    ) -> Result<Option<Event>, Error> {
        let mut look = !self.expects_none();
        while !over() {
            if look {
                if let Some(event) = self.try_next()? {
                    return Ok(Some(event));
                }
                self.shared.calm.store(CALM, Ordering::Relaxed);
            }
            let file = self.file.as_fd();
            let waited = match bell {
                Some(bell) => wait_readable_of([file, bell.as_fd()], deadline, Verb::GetCmEvent),
                None => wait_readable_of([file], deadline, Verb::GetCmEvent),
            };
            match waited.map_err(Error::verbs(Step::GetEvent))? {
                Wait::Ready => {
                    if let Some(event) = self.try_next()? {
                        return Ok(Some(event));
                    }
                    // Before the state is looked at, so that who changes it then rings again.
                    if let Some(bell) = bell {
                        bell.silence();
                    }
                    look = false;
                }
                Wait::Interrupted if deadline.is_none_or(|deadline| Instant::now() < deadline) => look = false,
                // What came at the last moment counts.
                Wait::TimedOut | Wait::Interrupted => return self.try_next(),
            }
        }
        Ok(None)
    }

    /// Whether to wait without looking first. Only how fast it is hangs on that: an event that is there ends the wait at once.
    fn expects_none(&self) -> bool {
        let left = self.shared.calm.load(Ordering::Relaxed);
        self.shared.calm.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// What the record tells, after its id has taken note of it.
    fn receive(&self, record: &EventResp) -> Option<Event> {
        let id = find(record.uid);
        if EventType(record.event) == EventType::CONNECT_REQUEST {
            // The new id is somebody's from here on: if nobody listens any more it is dropped at once, and the peer turned away.
            let space = id.as_ref().map_or(PortSpace::Tcp, |id| id.space());
            let request = CmId::requested(self, record.id, space);
            let id = id?;
            return Some(Event::new(record, id.key(), id.is_datagram(), Some(request)));
        }
        let id = id?;
        let event = Event::new(record, id.key(), id.is_datagram(), None);
        id.note(&event);
        Some(event)
    }

    pub(super) fn file(&self) -> &dyn CmFile {
        &*self.file
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }

    /// What it means that the kernel refused `step`.
    pub(super) fn refused(&self, step: Step, errno: Errno) -> Error {
        if errno == Errno::EACCES && self.is_locked_out() {
            return Error::OtherCredentials { step };
        }
        Error::kernel(step, errno)
    }

    /// Whether the kernel takes no command at all from this process: then it refuses even one that can do nothing.
    fn is_locked_out(&self) -> bool {
        let nobody = DestroyId { response: 0, id: u32::MAX, reserved: 0 };
        send(&*self.file, nobody).err() == Some(Errno::EACCES)
    }
}

/// When a wait that starts now ends. A century is as good as for ever, and more is beyond what the clock can tell.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    (timeout < CENTURY).then(|| Instant::now() + timeout)
}

/// Readable when there is an event: take all with [`drain`](EventChannel::drain).
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("fd", &self.as_fd()).finish()
    }
}
