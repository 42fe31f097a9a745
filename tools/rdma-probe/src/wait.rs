//! Waiting for a file descriptor, never longer than to a deadline, and never past a signal to stop.

use crate::stop::Stop;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A moment up to which something may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { end: Instant::now() + limit, limit }
    }

    /// How long it was in all.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How long there still is.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether it is past.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A descriptor is ready, or has an error that the next operation on it will tell.
    Yes,
    /// The deadline passed first.
    TimedOut,
    /// The process was asked to stop.
    Stopped,
}

/// Waits until one or both of `fds` are ready for `events`.
pub fn wait(
    fds: (BorrowedFd<'_>, Option<BorrowedFd<'_>>),
    events: PollFlags,
    deadline: &Deadline,
    stop: &Stop,
) -> io::Result<Ready> {
    let first = PollFd::new(fds.0, events);
    let second = PollFd::new(fds.1.unwrap_or(fds.0), events);
    wait_on(&mut [PollFd::new(stop.as_fd(), PollFlags::POLLIN), first, second], deadline, stop)
}

/// Waits until any of `fds` can be read, or tells of an error.
pub fn wait_for_any(fds: &[BorrowedFd<'_>], deadline: &Deadline, stop: &Stop) -> io::Result<Ready> {
    let first = PollFd::new(stop.as_fd(), PollFlags::POLLIN);
    let mut set: Vec<_> = [first].into_iter().chain(fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN))).collect();
    wait_on(&mut set, deadline, stop)
}

/// Waits until any of `fds` can be read, or tells of an error, or `output` tells that its reader is gone.
pub fn wait_any(fds: &[BorrowedFd<'_>], output: BorrowedFd<'_>, deadline: &Deadline, stop: &Stop) -> io::Result<Ready> {
    let mut set = vec![PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(output, PollFlags::empty())];
    set.extend(fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
    wait_on(&mut set, deadline, stop)
}

/// The first of `set` is the one of `stop`.
fn wait_on(set: &mut [PollFd<'_>], deadline: &Deadline, stop: &Stop) -> io::Result<Ready> {
    loop {
        // Rounded up, so that the last millisecond is slept and not spun.
        let timeout = PollTimeout::try_from(deadline.left().as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(set, timeout) {
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) if is_ready(&set[0]) || stop.asked() => return Ok(Ready::Stopped),
            Ok(_) if set[1..].iter().any(is_ready) => return Ok(Ready::Yes),
            Ok(_) if deadline.passed() => return Ok(Ready::TimedOut),
            Ok(_) => {}
        }
    }
}

fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.any().unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_silent_descriptor_times_out() {
        let (silent, _peer) = UnixStream::pair().unwrap();
        let begin = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(30));
        let ready = wait((silent.as_fd(), None), PollFlags::POLLIN, &deadline, &Stop::never().unwrap()).unwrap();
        assert_eq!(ready, Ready::TimedOut);
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn the_second_descriptor_counts() {
        let (one, _peer) = UnixStream::pair().unwrap();
        let (two, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"x").unwrap();
        let deadline = Deadline::after(Duration::from_secs(5));
        let fds = (one.as_fd(), Some(two.as_fd()));
        assert_eq!(wait(fds, PollFlags::POLLIN, &deadline, &Stop::never().unwrap()).unwrap(), Ready::Yes);
    }
}
