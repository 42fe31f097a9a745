//! SIGINT and SIGTERM, or another reason to stop, turned into something that loops can look at and waits can end on.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells whether the process was asked to stop.
pub struct Stop {
    asked: Arc<AtomicBool>,
    /// Becomes readable when the process is asked to stop, and is never read: a level, not an event.
    wake: UnixStream,
    /// What makes `wake` readable.
    other_end: UnixStream,
}

impl Stop {
    /// Takes over SIGINT and SIGTERM. The first of them asks to stop; a second one ends the process at once.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::never()?;
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds `asked` still false, the second one finds it true.
            signal_hook::flag::register_conditional_shutdown(signal, 130, stop.asked.clone())?;
            signal_hook::flag::register(signal, stop.asked.clone())?;
            signal_hook::low_level::pipe::register(signal, stop.other_end.try_clone()?)?;
        }
        Ok(stop)
    }

    /// Listens to no signal.
    pub fn never() -> io::Result<Self> {
        let (wake, other_end) = UnixStream::pair()?;
        other_end.set_nonblocking(true)?;
        Ok(Self { asked: Arc::default(), wake, other_end })
    }

    /// Something to ask with.
    pub fn asker(&self) -> io::Result<Asker> {
        Ok(Asker { asked: Arc::clone(&self.asked), wake: self.other_end.try_clone()? })
    }

    /// Whether the process was asked to stop. One load.
    #[inline]
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// Asks for a stop, from any thread.
pub struct Asker {
    asked: Arc<AtomicBool>,
    wake: UnixStream,
}

impl Asker {
    /// As a signal would.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        // It does not block, and where its buffer is full there is something to be read already.
        let _ = (&self.wake).write(&[0]);
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{Deadline, Ready, wait};
    use nix::poll::PollFlags;
    use std::time::Duration;

    #[test]
    fn a_signal_ends_a_wait_and_stays_known() {
        let stop = Stop::on_signals().unwrap();
        assert!(!stop.asked());
        let (silent, _peer) = UnixStream::pair().unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        for _ in 0..2 {
            let deadline = Deadline::after(Duration::from_secs(5));
            assert_eq!(wait((silent.as_fd(), None), PollFlags::POLLIN, &deadline, &stop).unwrap(), Ready::Stopped);
            assert!(stop.asked());
        }
    }
}
