//! Carries the guest's output to this process's own streams, until the command has ended or has to.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::qemu::Guest;
use crate::softcx::Adapters;

/// How a run ended.
pub struct Ended {
    /// What became of the command.
    pub outcome: Outcome,
    /// The last of what the guest's kernel printed.
    pub console: String,
    /// Whether the guest got as far as starting the command.
    pub begun: bool,
    /// Whether the guest's driver left nothing behind on its adapters, if it had any.
    pub clean: bool,
}

/// What became of the command.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended with this status.
    Exited(u8),
    /// The guest could not be set up, for this reason.
    Failed(String),
    /// The deadline came first.
    TimedOut,
    /// This process was told to stop.
    Interrupted(u8),
    /// The guest ended and left no word.
    Vanished,
}

/// A pipe takes this much without blocking when it says that it takes anything (PIPE_BUF).
const CHUNK: usize = 4096;
/// The console's lines that are kept.
const CONSOLE: usize = 8192;
/// How long the last output may wait for its reader once the deadline is past.
const GRACE: Duration = Duration::from_secs(1);

/// Runs until the command's outcome is known and its output delivered. The guest is gone when this returns.
pub fn run(mut guest: Guest, deadline: Instant, verbose: bool) -> Result<Ended> {
    let signals = stop_signals().context("cannot watch for signals")?;
    let result = carry(&mut guest, &signals, deadline, verbose);
    // Both fail only if it has ended already.
    let _ = guest.qemu.kill();
    let _ = guest.qemu.wait();
    let clean = guest.adapters.map_or(Ok(true), Adapters::end)?;
    result.map(|ended| Ended { clean, ..ended })
}

/// A descriptor that reads the signals which end this process, and no longer do so by themselves.
fn stop_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn carry(guest: &mut Guest, signals: &SignalFd, mut deadline: Instant, verbose: bool) -> Result<Ended> {
    let mut out = Stream::new(&guest.out, std::io::stdout().as_fd())?;
    let mut err = Stream::new(&guest.err, std::io::stderr().as_fd())?;
    let mut report = Text::new(&guest.report);
    let mut console = Text::new(&guest.console);
    let mut outcome = None;

    while outcome.is_none() || !out.is_done() || !err.is_done() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            if outcome.is_some() {
                break;
            }
            outcome = Some(Outcome::TimedOut);
            guest.qemu.kill()?;
            deadline = Instant::now() + GRACE;
            continue;
        }
        let mut waits = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        waits.extend([out.wait(), err.wait(), report.wait(), console.wait()].into_iter().flatten());
        match poll(&mut waits, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for the guest"),
        }

        if let Some(signal) = signals.read_signal()? {
            outcome = Some(Outcome::Interrupted(signal.ssi_signo as u8));
            break;
        }
        match out.carry().and_then(|()| err.carry()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                outcome = Some(Outcome::Interrupted(Signal::SIGPIPE as u8));
                break;
            }
            result => result.context("cannot pass the command's output on")?,
        }
        let printed = console.read()?;
        if verbose {
            eprint!("{}", String::from_utf8_lossy(printed).replace('\r', ""));
        }
        console.keep_last(CONSOLE);
        report.read()?;
        if outcome.is_none() {
            outcome = outcome_of(&report.bytes, report.open);
            if outcome.is_some() {
                // The command's output has left the guest by now: it is in the sockets.
                guest.qemu.kill()?;
            }
        }
    }
    let console = String::from_utf8_lossy(&console.bytes).replace('\r', "");
    let begun = without_begin(&report.bytes).is_some();
    Ok(Ended { outcome: outcome.expect("the loop ends with an outcome"), console, begun, clean: true })
}

/// The line that the guest reports before it starts the command.
const BEGIN: &[u8] = b"begin\n";

fn without_begin(report: &[u8]) -> Option<&[u8]> {
    report.strip_prefix(BEGIN)
}

/// What the guest's report says, if it is complete.
fn outcome_of(report: &[u8], open: bool) -> Option<Outcome> {
    let text = String::from_utf8_lossy(without_begin(report).unwrap_or(report));
    if let Some(status) = text.strip_prefix("exit ").and_then(|rest| rest.strip_suffix('\n')) {
        return Some(status.parse().map_or(Outcome::Vanished, Outcome::Exited));
    }
    match text.strip_prefix("fail\n") {
        _ if open => None,
        Some(reason) => Some(Outcome::Failed(reason.trim_end().to_owned())),
        None => Some(Outcome::Vanished),
    }
}

/// One of the command's output streams, on its way to the same one of this process.
struct Stream<'a> {
    from: &'a UnixStream,
    to: File,
    /// Read but not written yet.
    pending: Vec<u8>,
    open: bool,
}

impl<'a> Stream<'a> {
    fn new(from: &'a UnixStream, to: BorrowedFd<'_>) -> Result<Stream<'a>> {
        // A descriptor without the standard library's buffer.
        let to = File::from(to.try_clone_to_owned().context("cannot use this process's output")?);
        Ok(Stream { from, to, pending: Vec::new(), open: true })
    }

    fn is_done(&self) -> bool {
        !self.open && self.pending.is_empty()
    }

    /// What must happen before `carry` can do anything.
    fn wait(&self) -> Option<PollFd<'_>> {
        if !self.pending.is_empty() {
            Some(PollFd::new(self.to.as_fd(), PollFlags::POLLOUT))
        } else if self.open {
            Some(PollFd::new(self.from.as_fd(), PollFlags::POLLIN))
        } else {
            None
        }
    }

    /// Passes at most one chunk on, without waiting: a slow reader must not keep a signal or the deadline from being seen.
    fn carry(&mut self) -> io::Result<()> {
        if self.pending.is_empty() && self.open {
            self.open = read_available(self.from, &mut self.pending, CHUNK)?;
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut writable = [PollFd::new(self.to.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut writable, PollTimeout::ZERO)? == 0 {
            return Ok(());
        }
        let written = self.to.write(&self.pending)?;
        self.pending.drain(..written);
        Ok(())
    }
}

/// Text from the guest that this process keeps.
struct Text<'a> {
    from: &'a UnixStream,
    bytes: Vec<u8>,
    open: bool,
}

impl<'a> Text<'a> {
    fn new(from: &'a UnixStream) -> Text<'a> {
        Text { from, bytes: Vec::new(), open: true }
    }

    fn wait(&self) -> Option<PollFd<'_>> {
        self.open.then(|| PollFd::new(self.from.as_fd(), PollFlags::POLLIN))
    }

    /// Reads what is there, and returns it.
    fn read(&mut self) -> io::Result<&[u8]> {
        let before = self.bytes.len();
        if self.open {
            self.open = read_available(self.from, &mut self.bytes, CHUNK)?;
        }
        Ok(&self.bytes[before..])
    }

    fn keep_last(&mut self, count: usize) {
        self.bytes.drain(..self.bytes.len().saturating_sub(count));
    }
}

/// Appends at most `limit` bytes to `to`. False at the end of the stream.
fn read_available(mut from: &UnixStream, to: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    let start = to.len();
    to.resize(start + limit, 0);
    let result = from.read(&mut to[start..]);
    to.truncate(start + *result.as_ref().unwrap_or(&0));
    match result {
        Ok(count) => Ok(count > 0),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_when_it_is_complete() {
        assert_eq!(outcome_of(b"", true), None);
        assert_eq!(outcome_of(b"exit 1", true), None);
        assert_eq!(outcome_of(b"begin\nexit 12\n", true), Some(Outcome::Exited(12)));
        assert_eq!(outcome_of(b"begin\n", true), None);
        assert_eq!(outcome_of(b"begin\n", false), Some(Outcome::Vanished));
        assert_eq!(outcome_of(b"begin\nfail\nit hangs\n", false), Some(Outcome::Failed("it hangs".to_owned())));
        assert_eq!(outcome_of(b"fail\nno link", true), None);
        assert_eq!(outcome_of(b"fail\nno link\n", false), Some(Outcome::Failed("no link".to_owned())));
        assert_eq!(outcome_of(b"", false), Some(Outcome::Vanished));
        assert_eq!(outcome_of(b"exit 1", false), Some(Outcome::Vanished));
    }

    #[test]
    fn a_stream_passes_bytes_and_its_end_on_and_never_waits_for_its_reader() {
        let (mut guest, from) = UnixStream::pair().unwrap();
        let (mut reader, to) = std::io::pipe().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut stream = Stream::new(&from, to.as_fd()).unwrap();
        drop(to);
        let sent: Vec<u8> = (0..100_000_u32).map(|n| (n * 7) as u8).collect();
        guest.write_all(&sent).unwrap();
        drop(guest);
        // A pipe holds 64 KiB: the rest stays pending.
        (0..100).for_each(|_| stream.carry().unwrap());
        assert!(!stream.is_done() && !stream.pending.is_empty());
        let mut received = vec![0; 50_000];
        reader.read_exact(&mut received).unwrap();
        (0..100).for_each(|_| stream.carry().unwrap());
        assert!(stream.is_done());
        drop(stream);
        reader.read_to_end(&mut received).unwrap();
        assert!(received == sent);
    }
}
