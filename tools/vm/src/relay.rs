//! Carries the guests' output to this process's own streams, until their commands have ended or have to.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use softcx_pci::Verdict;

use crate::args::Seat;
use crate::end;
use crate::pair;
use crate::qemu::Guest;
use crate::report::{Outcome, Report};
use crate::softcx::Adapters;

/// How a run ended.
pub struct Run {
    /// Each guest, in the order given.
    pub ended: Vec<Ended>,
    /// What became of their adapters, if they had any.
    pub adapters: end::Adapters,
}

/// How one guest ended.
pub struct Ended {
    /// Which one.
    pub seat: Seat,
    /// What became of its command.
    pub outcome: Outcome,
    /// The last of what its kernel printed.
    pub console: String,
    /// Whether it got as far as starting the command.
    pub begun: bool,
    /// How QEMU ended, if it did so by itself.
    pub qemu: Option<ExitStatus>,
}

/// A pipe takes this much without blocking when it says that it takes anything (PIPE_BUF).
const CHUNK: usize = 4096;
/// The console's lines that are kept.
const CONSOLE: usize = 8192;
/// How long the last output may wait for its reader once the deadline is past.
const GRACE: Duration = Duration::from_secs(1);
/// How long a process may take from the end of its descriptors to its own.
const DYING: Duration = Duration::from_secs(2);

/// Runs until every command's outcome is known and its output delivered. The guests are gone when this returns.
pub fn run(mut guests: Vec<Guest>, adapters: Option<Adapters>, deadline: Instant, verbose: bool) -> Result<Run> {
    let signals = stop_signals().context("cannot watch for signals")?;
    let result = carry(&mut guests, adapters.as_ref(), &signals, deadline, verbose);
    for guest in &mut guests {
        // Both fail only if it has ended already.
        let _ = guest.qemu.kill();
        let _ = guest.qemu.wait();
    }
    let (adapters, interrupted) = match adapters {
        Some(adapters) => adapters.end(&signals)?,
        None => (end::Adapters::Ended(Verdict::default()), None),
    };
    let mut ended = result?;
    if let Some(signal) = interrupted {
        for guest in &mut ended {
            guest.outcome = Outcome::Interrupted(signal);
        }
    }
    Ok(Run { ended, adapters })
}

/// A descriptor that reads the signals which end this process, and no longer do so by themselves.
pub fn stop_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn carry(
    guests: &mut [Guest],
    adapters: Option<&Adapters>,
    signals: &SignalFd,
    mut deadline: Instant,
    verbose: bool,
) -> Result<Vec<Ended>> {
    let mut all = guests.iter_mut().map(Carried::new).collect::<Result<Vec<_>>>()?;
    while !all.iter().all(Carried::is_done) {
        let now = Instant::now();
        let mut look_again = deadline;
        if now >= deadline {
            if all.iter().all(|guest| guest.outcome.is_some()) {
                break;
            }
            for guest in &mut all {
                guest.stop(Outcome::TimedOut)?;
            }
            deadline = now + GRACE;
            continue;
        }
        if let [server, client] = &mut all[..] {
            look_again = pair::conduct(server, client, now)?.map_or(deadline, |due| due.min(deadline));
        }
        let mut waits = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        // Once every outcome is known, they end as they should.
        let adapters = adapters.filter(|_| all.iter().any(|guest| guest.outcome.is_none()));
        waits.extend(adapters.map(|adapters| PollFd::new(adapters.life(), PollFlags::POLLIN)));
        for guest in &all {
            let Carried { out, err, report, console, .. } = guest;
            waits.extend([out.wait(), err.wait(), report.wait(), console.wait()].into_iter().flatten());
        }
        let left = look_again.saturating_duration_since(now);
        match poll(&mut waits, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for the guest"),
        }
        let unplugged = adapters.is_some() && waits[1].any().unwrap_or(false);

        let mut interrupted = signals.read_signal()?.map(|signal| signal.ssi_signo as u8);
        for guest in &mut all {
            match guest.carry(verbose) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    interrupted = interrupted.or(Some(Signal::SIGPIPE as u8));
                }
                result => result.context("cannot pass the command's output on")?,
            }
        }
        for guest in all.iter_mut().filter(|_| unplugged) {
            guest.unplug()?;
        }
        if let Some(signal) = interrupted {
            for guest in &mut all {
                guest.outcome = Some(Outcome::Interrupted(signal));
            }
            break;
        }
    }
    Ok(all.into_iter().map(Carried::ended).collect())
}

/// A guest, while it runs.
pub struct Carried<'a> {
    seat: Seat,
    qemu: &'a mut Child,
    out: Stream<'a>,
    err: Stream<'a>,
    report: Text<'a>,
    console: Text<'a>,
    outcome: Option<Outcome>,
    /// When it ended, if its command did not succeed.
    failed: Option<Instant>,
    /// When it was told to start its command, if it is one of a pair.
    told: Option<Instant>,
    /// How QEMU ended, if it did so by itself.
    qemu_end: Option<ExitStatus>,
}

impl<'a> Carried<'a> {
    fn new(guest: &'a mut Guest) -> Result<Self> {
        let Guest { qemu, out, err, report, console, seat } = guest;
        Ok(Carried {
            seat: *seat,
            qemu,
            out: Stream::new(out, std::io::stdout().as_fd(), seat.name())?,
            err: Stream::new(err, std::io::stderr().as_fd(), seat.name())?,
            report: Text::new(report),
            console: Text::new(console),
            outcome: None,
            failed: None,
            told: None,
            qemu_end: None,
        })
    }

    fn is_done(&self) -> bool {
        self.outcome.is_some() && self.out.is_done() && self.err.is_done()
    }

    fn ended(self) -> Ended {
        let Carried { seat, report, console, outcome, qemu_end, .. } = self;
        let console = String::from_utf8_lossy(&console.bytes).replace('\r', "");
        let begun = Report::read(&report.bytes).begun;
        // Only an error ends the loop before there is one, and then nobody asks.
        Ended { seat, outcome: outcome.unwrap_or(Outcome::Vanished), console, begun, qemu: qemu_end }
    }

    /// What it has reported so far.
    pub fn report(&self) -> Report<'_> {
        Report::read(&self.report.bytes)
    }

    /// What became of its command, once that is known.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// When its command did not succeed, if so.
    pub fn failed(&self) -> Option<Instant> {
        self.failed
    }

    /// When it was told to start its command, if it is one of a pair.
    pub fn begun(&self) -> Option<Instant> {
        self.told
    }

    /// Tells it, one of a pair, to start its command, unless it has been told or has ended.
    pub fn begin(&mut self, now: Instant) {
        if self.told.is_none() && self.outcome.is_none() {
            self.told = Some(now);
            // If it is gone, the end of its report says so.
            let _ = self.report.from().write_all(b"\n");
        }
    }

    /// Ends it, if it has not ended.
    pub fn stop(&mut self, outcome: Outcome) -> io::Result<()> {
        if self.outcome.is_none() {
            self.failed = (outcome != Outcome::Exited(0)).then(Instant::now);
            if outcome == Outcome::Vanished {
                self.qemu_end = own_end(self.qemu)?;
            }
            self.outcome = Some(outcome);
            self.qemu.kill()?;
        }
        Ok(())
    }

    /// Ends it if it goes on without its adapters. Where QEMU has ended, too, its report has an end, which tells more.
    fn unplug(&mut self) -> io::Result<()> {
        if self.outcome.is_none() && own_end(self.qemu)?.is_none() {
            self.stop(Outcome::Unplugged)?;
        }
        Ok(())
    }

    /// Passes on what is there, without waiting.
    fn carry(&mut self, verbose: bool) -> io::Result<()> {
        self.out.carry()?;
        self.err.carry()?;
        let printed = self.console.read()?;
        if verbose {
            eprint!("{}", String::from_utf8_lossy(printed).replace('\r', ""));
        }
        self.console.keep_last(CONSOLE);
        self.report.read()?;
        if let Some(outcome) = self.report().outcome(self.report.open) {
            // The command's output has left the guest by now: it is in the sockets.
            self.stop(outcome)?;
        }
        Ok(())
    }
}

/// How a process ended whose descriptors are closed already; `None` if it goes on.
fn own_end(process: &mut Child) -> io::Result<Option<ExitStatus>> {
    let latest = Instant::now() + DYING;
    loop {
        match process.try_wait()? {
            None if Instant::now() < latest => std::thread::sleep(Duration::from_millis(5)),
            ended => return Ok(ended),
        }
    }
}

/// One of the command's output streams, on its way to the same one of this process.
struct Stream<'a> {
    from: &'a UnixStream,
    to: File,
    /// What to begin each line with.
    label: Option<&'static str>,
    /// The beginning of a line that is to have a label, and has no end yet.
    line: Vec<u8>,
    /// Read but not written yet.
    pending: Vec<u8>,
    open: bool,
}

impl<'a> Stream<'a> {
    fn new(from: &'a UnixStream, to: BorrowedFd<'_>, label: Option<&'static str>) -> Result<Stream<'a>> {
        // A descriptor without the standard library's buffer.
        let to = File::from(to.try_clone_to_owned().context("cannot use this process's output")?);
        Ok(Stream { from, to, label, line: Vec::new(), pending: Vec::new(), open: true })
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
            let to = if self.label.is_none() { &mut self.pending } else { &mut self.line };
            self.open = read_available(self.from, to, CHUNK)?;
            if let Some(label) = self.label {
                label_lines(label, &mut self.line, &mut self.pending, !self.open);
            }
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut writable = [PollFd::new(self.to.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut writable, PollTimeout::ZERO)? == 0 {
            return Ok(());
        }
        let mut chunk = &self.pending[..self.pending.len().min(CHUNK)];
        if let (Some(_), Some(end)) = (self.label, chunk.iter().rposition(|byte| *byte == b'\n')) {
            // Another guest's lines may come next.
            chunk = &chunk[..=end];
        }
        let written = self.to.write(chunk)?;
        self.pending.drain(..written);
        Ok(())
    }
}

/// Moves whole lines, each with its label; at the end of the stream, and if one is too long, also what is left.
fn label_lines(label: &str, line: &mut Vec<u8>, to: &mut Vec<u8>, ended: bool) {
    let whole = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let rest = line.split_off(if ended || line.len() > 4 * CHUNK { line.len() } else { whole });
    for line in line.split_inclusive(|byte| *byte == b'\n') {
        to.extend([label.as_bytes(), b": ", line].concat());
        if !line.ends_with(b"\n") {
            to.push(b'\n');
        }
    }
    *line = rest;
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

    fn from(&self) -> &'a UnixStream {
        self.from
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
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stream_passes_bytes_and_its_end_on_and_never_waits_for_its_reader() {
        let (mut guest, from) = UnixStream::pair().unwrap();
        let (mut reader, to) = std::io::pipe().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut stream = Stream::new(&from, to.as_fd(), None).unwrap();
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

    #[test]
    fn lines_with_labels_stay_whole() {
        let (mut guest, from) = UnixStream::pair().unwrap();
        let (mut reader, to) = std::io::pipe().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut stream = Stream::new(&from, to.as_fd(), Some("server")).unwrap();
        drop(to);
        guest.write_all(b"one\ntw").unwrap();
        stream.carry().unwrap();
        let mut first = [0; 12];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"server: one\n");
        guest.write_all(b"o\n\nthree").unwrap();
        drop(guest);
        (0..10).for_each(|_| stream.carry().unwrap());
        assert!(stream.is_done());
        drop(stream);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "server: two\nserver: \nserver: three\n");
    }

    /// A guest whose QEMU is `program`, and which has reported `report` and ended.
    fn ended_guest(program: &mut Command, report: &str) -> Guest {
        let [out, err, console] = [(); 3].map(|()| UnixStream::pair().unwrap().0);
        let (mut reports, from) = UnixStream::pair().unwrap();
        reports.write_all(report.as_bytes()).unwrap();
        from.set_nonblocking(true).unwrap();
        Guest { qemu: program.spawn().unwrap(), out, err, report: from, console, seat: Seat::Alone }
    }

    #[test]
    fn a_report_that_is_read_after_the_adapters_end_counts() {
        let reason = "the kernel said so\n".repeat(1000);
        let after = |program: &mut Command, report: &str| {
            let mut guest = ended_guest(program, report);
            let mut carried = Carried::new(&mut guest).unwrap();
            carried.carry(false).unwrap();
            while carried.outcome.is_none() {
                carried.unplug().unwrap();
                carried.carry(false).unwrap();
            }
            let (outcome, how) = (carried.outcome.take().unwrap(), carried.qemu_end);
            // It may have ended already.
            let _ = guest.qemu.kill();
            guest.qemu.wait().unwrap();
            (outcome, how.and_then(|how| how.code()))
        };
        let failed = after(&mut Command::new("true"), &format!("begin\nfail\n{reason}"));
        assert_eq!(failed, (Outcome::Failed(reason.trim_end().to_owned()), None));
        let ended = after(Command::new("sh").args(["-c", "exit 3"]), &format!("begin\n{reason}"));
        assert_eq!(ended, (Outcome::Vanished, Some(3)));
        let goes_on = after(Command::new("sleep").arg("1000"), &format!("begin\n{reason}"));
        assert_eq!(goes_on, (Outcome::Unplugged, None));
    }
}
