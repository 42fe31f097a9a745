//! The process that is the guest's software ConnectX adapters, and its sockets to QEMU.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;

use crate::args::Args;
use crate::end;
use crate::qemu::inherit;

/// How long the process may take from the end of its guests to its own: it looks for what the driver left, and writes its files.
const ENDING: Duration = Duration::from_secs(20);

/// First argument of this program's own executable when it is that process.
const PROCESS: &str = "softcx-pci";

/// Is that process, if this one was started as it.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1).peekable();
    (args.peek()? == PROCESS).then(|| softcx_pci::run(args))
}

/// The adapters of a run's guests, all on one fabric.
pub struct Adapters {
    process: Child,
    /// The process has the other end, so that it ends with it.
    life: UnixStream,
    /// What it writes.
    log: Option<PathBuf>,
    /// Of the guests that are not started yet, the next one last.
    ends: Vec<Ends>,
}

/// QEMU's ends of one guest's sockets: one for each adapter, and the one for interrupts.
pub struct Ends {
    devices: Vec<UnixStream>,
    interrupts: UnixStream,
}

impl Adapters {
    /// Starts the adapters that the arguments want, for each guest; `None` if they want none.
    pub fn start(args: &Args, guests: usize) -> Result<Option<Adapters>> {
        let count = args.device.adapters();
        if count == 0 {
            return Ok(None);
        }
        let mut words: Vec<OsString> = vec![PROCESS.into()];
        let mut ours = vec![];
        let mut socket = |option: &str| -> Result<UnixStream> {
            let (one, other) = UnixStream::pair()?;
            inherit(one.as_fd())?;
            words.extend([option.into(), one.as_raw_fd().to_string().into()]);
            ours.push(one);
            Ok(other)
        };
        let mut ends = vec![];
        for _ in 0..guests {
            let devices = (0..count).map(|_| socket("--device")).collect::<Result<_>>()?;
            ends.push(Ends { devices, interrupts: socket("--interrupts")? });
        }
        ends.reverse();
        for (option, path) in [("--log", &args.device_log), ("--record", &args.device_record)] {
            words.extend(path.iter().flat_map(|path| [option.into(), path.into()]));
        }
        words.extend(args.allow_misuse.iter().flat_map(|text| ["--allow-misuse".into(), text.into()]));
        if args.blue_flame {
            words.push("--blue-flame".into());
        }
        let (life, of_process) = UnixStream::pair()?;
        inherit(of_process.as_fd())?;
        let executable = std::env::current_exe().context("cannot find this program's own file")?;
        let process = Command::new(executable).args(words).spawn().context("cannot start the adapters' process")?;
        Ok(Some(Adapters { process, life, log: args.device_log.clone(), ends }))
    }

    /// QEMU's ends of the next guest.
    pub fn next_guest(&mut self) -> Result<Ends> {
        self.ends.pop().context("there are adapters for fewer guests")
    }

    /// Readable when the process is gone.
    pub fn life(&self) -> BorrowedFd<'_> {
        self.life.as_fd()
    }

    /// Waits for the end of the process, which comes when QEMU is gone, and says how it ended. One that does not end, or not before a
    /// signal comes, is killed; the signal is returned.
    pub fn end(self, signals: &SignalFd) -> Result<(end::Adapters, Option<u8>)> {
        self.end_within(ENDING, signals)
    }

    fn end_within(mut self, limit: Duration, signals: &SignalFd) -> Result<(end::Adapters, Option<u8>)> {
        self.ends.clear();
        let deadline = Instant::now() + limit;
        let mut signal = None;
        let ended = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut waits =
                [PollFd::new(signals.as_fd(), PollFlags::POLLIN), PollFd::new(self.life.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if left.is_zero() => break false,
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error).context("cannot wait for the adapters' process"),
            }
            if waits[1].any().unwrap_or(false) {
                break true;
            }
            signal = signals.read_signal()?.map(|signal| signal.ssi_signo as u8);
            if signal.is_some() {
                break false;
            }
        };
        if !ended {
            // That fails only if it has ended after all.
            let _ = self.process.kill();
        }
        let status = self.process.wait().context("cannot wait for the adapters' process")?;
        let log = self.log.as_deref();
        Ok((if ended { end::Adapters::of(status, log) } else { end::Adapters::stuck(limit, log) }, signal))
    }
}

impl Ends {
    /// QEMU's options for the adapters. The ends are inherited by what is started next.
    pub fn options(&self) -> Result<Vec<OsString>> {
        let Ends { devices, interrupts } = self;
        let mut words: Vec<OsString> = vec![];
        for (number, end) in devices.iter().enumerate() {
            inherit(end.as_fd())?;
            let option = format!("x-pci-proxy-dev,fd={},id=softcx{number}", end.as_raw_fd());
            words.extend(["-device".into(), option.into()]);
        }
        inherit(interrupts.as_fd())?;
        words.extend(["-chardev".into(), format!("socket,id=interrupts,fd={}", interrupts.as_raw_fd()).into()]);
        words.extend(["-object", "qtest,id=qtest,chardev=interrupts,log=none"].map(OsString::from));
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::stop_signals;
    use nix::sys::signal::{Signal, raise};

    /// Adapters whose process is that program.
    fn adapters(program: &[&str]) -> Adapters {
        let (life, of_process) = UnixStream::pair().unwrap();
        inherit(of_process.as_fd()).unwrap();
        let process = Command::new(program[0]).args(&program[1..]).spawn().unwrap();
        Adapters { process, life, log: None, ends: vec![] }
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_and_said_to_be() {
        let signals = stop_signals().unwrap();
        let (end, signal) = adapters(&["sleep", "1000"]).end_within(Duration::from_millis(100), &signals).unwrap();
        let end::Adapters::Died(words) = end else { panic!("{end:?}") };
        assert!(words.contains("went on for 0.1 s after its guests, and was killed"), "{words}");
        assert_eq!(signal, None);
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_process() {
        let signals = stop_signals().unwrap();
        raise(Signal::SIGTERM).unwrap();
        let begin = Instant::now();
        let (_, signal) = adapters(&["sleep", "1000"]).end(&signals).unwrap();
        assert_eq!(signal, Some(Signal::SIGTERM as u8));
        assert!(begin.elapsed() < ENDING / 2);
    }

    #[test]
    fn a_process_that_ends_is_waited_for() {
        let signals = stop_signals().unwrap();
        let (end, signal) = adapters(&["sleep", "0.2"]).end(&signals).unwrap();
        assert_eq!((end, signal), (end::Adapters::Ended(softcx_pci::Verdict::default()), None));
    }
}
