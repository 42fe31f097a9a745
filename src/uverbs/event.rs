//! Events: records read from the files of completion channels and contexts.

use super::abi::verbs::{AsyncEventDesc, CompEventDesc};
use super::errno::Errno;
use super::error::{Error, Verb};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What happened (`enum ib_event_type`). Unknown numbers are kept.
///
/// ```
/// use ironverbs::AsyncEventType;
/// assert_eq!(AsyncEventType::PORT_ERR.to_string(), "PORT_ERR");
/// assert_eq!(AsyncEventType(99).name(), None); // unknown numbers are kept
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEventType(pub u32);

macro_rules! event_types {
    ($($name:ident = $raw:literal;)*) => {
        #[allow(missing_docs, reason = "each constant is the C constant of the same name")]
        impl AsyncEventType {
            $(pub const $name: Self = Self($raw);)*
        }
        impl AsyncEventType {
            /// The C name without its prefix, for known values.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($raw => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

event_types! {
    CQ_ERR = 0;
    QP_FATAL = 1;
    QP_REQ_ERR = 2;
    QP_ACCESS_ERR = 3;
    COMM_EST = 4;
    SQ_DRAINED = 5;
    PATH_MIG = 6;
    PATH_MIG_ERR = 7;
    DEVICE_FATAL = 8;
    PORT_ACTIVE = 9;
    PORT_ERR = 10;
    LID_CHANGE = 11;
    PKEY_CHANGE = 12;
    SM_CHANGE = 13;
    SRQ_ERR = 14;
    SRQ_LIMIT_REACHED = 15;
    QP_LAST_WQE_REACHED = 16;
    CLIENT_REREGISTER = 17;
    GID_CHANGE = 18;
    WQ_FATAL = 19;
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The object with this user handle.
    Object(u64),
    /// The port with this number.
    Port(u64),
    /// The device as a whole.
    Device,
}

impl AsyncEventType {
    /// Whether an event's element is a port number: the port events of IB spec 11.6.3.
    const fn is_port_event(self) -> bool {
        matches!(self.0, 9..=13 | 17 | 18)
    }
}

impl fmt::Display for AsyncEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "event {}", self.0),
        }
    }
}

impl fmt::Debug for AsyncEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEventType({self})")
    }
}

/// One asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    pub event_type: AsyncEventType,
    pub subject: Subject,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// There is something to read.
    Ready,
    /// The time is over.
    TimedOut,
    /// A signal came. Whether to go on waiting is the caller's choice.
    Interrupted,
}

/// Reads all completion events that are there, without waiting, and passes on the user handle of each one's completion
/// queue. Returns how many there were.
pub fn read_comp_events(fd: BorrowedFd<'_>, mut each: impl FnMut(u64)) -> Result<usize, Error> {
    read_records(fd, Verb::GetCqEvent, |record: CompEventDesc| each(record.cq_handle))
}

/// Reads all asynchronous events that are there, without waiting. Returns how many there were.
pub fn read_async_events(fd: BorrowedFd<'_>, mut each: impl FnMut(AsyncEvent)) -> Result<usize, Error> {
    read_records(fd, Verb::GetAsyncEvent, |record: AsyncEventDesc| {
        let event_type = AsyncEventType(record.event_type);
        let subject = match event_type {
            AsyncEventType::DEVICE_FATAL => Subject::Device,
            port if port.is_port_event() => Subject::Port(record.element),
            _ => Subject::Object(record.element),
        };
        each(AsyncEvent { event_type, subject });
    })
}

/// Waits until `fd` can be read, at most until `deadline`. `verb` names the wait in errors.
pub fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>, verb: Verb) -> Result<Wait, Error> {
    wait_readable_of([fd], deadline, verb)
}

/// The same for one of several.
pub fn wait_readable_of<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    deadline: Option<Instant>,
    verb: Verb,
) -> Result<Wait, Error> {
    let timeout = match deadline {
        None => PollTimeout::NONE,
        Some(deadline) => round_up(deadline.saturating_duration_since(Instant::now())),
    };
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut fds, timeout) {
        Ok(0) => Ok(Wait::TimedOut),
        Ok(_) if fds.iter().any(|fd| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLIN))) => {
            Ok(Wait::Ready)
        }
        // The kernel reports an error once the file's context is gone.
        Ok(_) => Err(Error::DeviceGone { verb }),
        Err(nix::errno::Errno::EINTR) => Ok(Wait::Interrupted),
        Err(errno) => Err(Error::kernel(verb, errno.into())),
    }
}

/// Milliseconds, rounded up so that a wait never ends before its deadline; at most what poll() takes. Years are no time-out at
/// all, which spares the kernel a timer.
fn round_up(wait: Duration) -> PollTimeout {
    if wait > Duration::from_secs(366 * 24 * 3600) {
        return PollTimeout::NONE;
    }
    let ms = wait.as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
}

/// Makes reads return at once.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Reads records of type `T` until there are no more. The kernel returns one per read, and refuses a buffer that is
/// shorter.
fn read_records<T>(fd: BorrowedFd<'_>, verb: Verb, mut each: impl FnMut(T)) -> Result<usize, Error>
where
    T: FromBytes + IntoBytes + FromZeros,
{
    let mut n_records = 0;
    loop {
        let mut record = T::new_zeroed();
        match nix::unistd::read(fd, record.as_mut_bytes()) {
            Ok(n) if n == size_of::<T>() => {
                each(record);
                n_records += 1;
            }
            // End of file: nobody writes any more.
            Ok(0) => return Err(Error::DeviceGone { verb }),
            Ok(n) => {
                return Err(Error::Abi {
                    verb,
                    what: "event record".into(),
                    need: format!("{} bytes", size_of::<T>()).into(),
                    got: format!("{n} bytes").into(),
                });
            }
            Err(nix::errno::Errno::EAGAIN) => return Ok(n_records),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Error::kernel(verb, errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn channel() -> (UnixStream, UnixStream) {
        let (kernel, ours) = UnixStream::pair().unwrap();
        set_nonblocking(ours.as_fd()).unwrap();
        (kernel, ours)
    }

    fn comp_events(fd: &UnixStream) -> Result<Vec<u64>, Error> {
        let mut events = vec![];
        let n = read_comp_events(fd.as_fd(), |handle| events.push(handle))?;
        assert_eq!(n, events.len());
        Ok(events)
    }

    #[test]
    fn drains_until_nothing_is_left() {
        let (mut kernel, ours) = channel();
        assert_eq!(comp_events(&ours).unwrap(), vec![]);
        kernel.write_all([1_u64, u64::MAX, 3].as_bytes()).unwrap();
        assert_eq!(comp_events(&ours).unwrap(), vec![1, u64::MAX, 3]);
        assert_eq!(comp_events(&ours).unwrap(), vec![]);
    }

    #[test]
    fn tells_what_an_asynchronous_event_is_about() {
        let (mut kernel, ours) = channel();
        for (element, event_type) in [(77_u64, 1_u32), (2, 9), (0, 8), (1, 18), (5, 42)] {
            let record = AsyncEventDesc { element, event_type, reserved: 0 };
            kernel.write_all(record.as_bytes()).unwrap();
        }
        let mut events = vec![];
        read_async_events(ours.as_fd(), |event| events.push(event)).unwrap();
        assert_eq!(
            events,
            [
                AsyncEvent { event_type: AsyncEventType::QP_FATAL, subject: Subject::Object(77) },
                AsyncEvent { event_type: AsyncEventType::PORT_ACTIVE, subject: Subject::Port(2) },
                AsyncEvent { event_type: AsyncEventType::DEVICE_FATAL, subject: Subject::Device },
                AsyncEvent { event_type: AsyncEventType::GID_CHANGE, subject: Subject::Port(1) },
                AsyncEvent { event_type: AsyncEventType(42), subject: Subject::Object(5) },
            ]
        );
        assert_eq!(events[0].event_type.to_string(), "QP_FATAL");
        assert_eq!(events[4].event_type.to_string(), "event 42");
    }

    #[test]
    fn a_short_record_is_an_error() {
        let (mut kernel, ours) = channel();
        kernel.write_all(&[1, 2, 3]).unwrap();
        let error = comp_events(&ours).unwrap_err();
        assert!(matches!(error, Error::Abi { verb: Verb::GetCqEvent, .. }), "{error}");
    }

    #[test]
    fn an_end_of_file_is_a_device_that_is_gone() {
        let (kernel, ours) = channel();
        drop(kernel);
        let error = comp_events(&ours).unwrap_err();
        assert!(matches!(error, Error::DeviceGone { verb: Verb::GetCqEvent }), "{error}");
    }

    #[test]
    fn a_wait_ends_with_its_deadline_and_not_before() {
        let (mut kernel, ours) = channel();
        let start = Instant::now();
        let deadline = start + Duration::from_micros(2500);
        assert_eq!(wait_readable(ours.as_fd(), Some(deadline), Verb::GetCqEvent).unwrap(), Wait::TimedOut);
        assert!(start.elapsed() >= Duration::from_micros(2500), "{:?}", start.elapsed());
        kernel.write_all(&[0; 8]).unwrap();
        assert_eq!(wait_readable(ours.as_fd(), Some(deadline), Verb::GetCqEvent).unwrap(), Wait::Ready);
        assert_eq!(wait_readable(ours.as_fd(), None, Verb::GetCqEvent).unwrap(), Wait::Ready);
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        assert_eq!(round_up(Duration::ZERO), PollTimeout::ZERO);
        assert_eq!(round_up(Duration::from_nanos(1)), PollTimeout::from(1_u8));
        assert_eq!(round_up(Duration::from_millis(7)), PollTimeout::from(7_u8));
        assert_eq!(round_up(Duration::from_secs(1 << 22)), PollTimeout::MAX);
        assert_eq!(round_up(Duration::from_secs(1 << 40)), PollTimeout::NONE);
    }
}
