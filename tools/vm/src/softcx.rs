//! The process that is the guest's software ConnectX adapters, and its sockets to QEMU.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, Result};

use crate::args::Args;
use crate::end;
use crate::qemu::inherit;

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

    /// Waits for the end of the process, which comes when QEMU is gone.
    pub fn end(mut self) -> Result<end::Adapters> {
        self.ends.clear();
        let status = self.process.wait().context("cannot wait for the adapters' process")?;
        Ok(end::Adapters::of(status, self.log.as_deref()))
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
