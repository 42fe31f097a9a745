//! The process that is the guest's software ConnectX adapters, and its sockets to QEMU.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode};

use anyhow::{Context, Result};

use crate::args::Args;
use crate::qemu::inherit;

/// First argument of this program's own executable when it is that process.
const PROCESS: &str = "softcx-pci";

/// Is that process, if this one was started as it.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1).peekable();
    (args.peek()? == PROCESS).then(|| softcx_pci::run(args))
}

/// The adapters of a guest.
pub struct Adapters {
    process: Child,
    /// QEMU's ends: one for each adapter, and the one for interrupts.
    ends: Option<(Vec<UnixStream>, UnixStream)>,
}

impl Adapters {
    /// Starts the adapters that the arguments want; `None` if they want none.
    pub fn start(args: &Args) -> Result<Option<Adapters>> {
        let count = args.device.adapters();
        if count == 0 {
            return Ok(None);
        }
        let pairs = (0..=count).map(|_| UnixStream::pair()).collect::<Result<Vec<_>, _>>()?;
        let (mut ours, mut ends): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let interrupts = ours.pop().context("there is a socket for interrupts")?;
        let interrupts_end = ends.pop().context("there is a socket for interrupts")?;
        let mut words: Vec<OsString> = vec![PROCESS.into(), "--interrupts".into()];
        words.push(interrupts.as_raw_fd().to_string().into());
        for stream in &ours {
            words.extend(["--device".into(), stream.as_raw_fd().to_string().into()]);
        }
        for (option, path) in [("--log", &args.device_log), ("--record", &args.device_record)] {
            words.extend(path.iter().flat_map(|path| [option.into(), path.into()]));
        }
        if args.blue_flame {
            words.push("--blue-flame".into());
        }
        for stream in ours.iter().chain([&interrupts]) {
            inherit(stream.as_fd())?;
        }
        let executable = std::env::current_exe().context("cannot find this program's own file")?;
        let process = Command::new(executable).args(words).spawn().context("cannot start the adapters' process")?;
        Ok(Some(Adapters { process, ends: Some((ends, interrupts_end)) }))
    }

    /// QEMU's options for the adapters. Its ends of the sockets are inherited by what is started next.
    pub fn options(&self) -> Result<Vec<OsString>> {
        let (ends, interrupts) = self.ends.as_ref().context("QEMU has been started already")?;
        let mut words: Vec<OsString> = vec![];
        for (number, end) in ends.iter().enumerate() {
            inherit(end.as_fd())?;
            let option = format!("x-pci-proxy-dev,fd={},id=softcx{number}", end.as_raw_fd());
            words.extend(["-device".into(), option.into()]);
        }
        inherit(interrupts.as_fd())?;
        words.extend(["-chardev".into(), format!("socket,id=interrupts,fd={}", interrupts.as_raw_fd()).into()]);
        words.extend(["-object", "qtest,id=qtest,chardev=interrupts,log=none"].map(OsString::from));
        Ok(words)
    }

    /// QEMU has its ends. Without this the adapters would not see that it is gone.
    pub fn given(&mut self) {
        self.ends = None;
    }

    /// Waits for the end of the process, which comes when QEMU is gone. True if the driver left nothing behind.
    pub fn end(mut self) -> Result<bool> {
        self.ends = None;
        let status = self.process.wait().context("cannot wait for the adapters' process")?;
        Ok(status.success())
    }
}
