//! The test bed: runs one command under a stock kernel, in QEMU, with RDMA devices made for it.
//!
//! The guest's root is this machine's own root file system, shared read-only over 9p with a layer of memory on top, so
//! every program here runs there as it is and nothing it writes comes back, save under `--share`. QEMU emulates in
//! software: no KVM, and no privilege, is needed once the packages are there.
//!
//! From the arguments to the exit status:
//!
//! 1. [`args`] parses the command line.
//! 2. [`kernel`] finds the kernel and its modules, with [`packages`] fetching what is missing into the [`cache`].
//! 3. [`job`] turns the arguments into the files that the guest's `guest/init.sh` reads, and [`initrd`] packs those with
//!    busybox and the first [`modules`].
//! 4. [`qemu`] starts the machine, with [`softcx`] for its adapters, [`relay`] carries its output and learns how the command ended.

mod args;
mod cache;
mod initrd;
mod job;
mod kernel;
mod modules;
mod packages;
mod qemu;
mod relay;
mod softcx;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};

use args::{Args, Device};
use cache::Cache;
use job::Job;
use relay::Outcome;

/// What the tool exits with when the command did not run to its end.
const TIMED_OUT: u8 = 124;
const NO_ANSWER: u8 = 125;

/// An emulated processor can trip over the kernel's patching of its own code while it boots. As long as the command has
/// not begun, starting the guest anew loses nothing.
const BOOTS: u32 = 3;

fn main() -> ExitCode {
    if let Some(code) = softcx::run_if_asked() {
        return code;
    }
    let args = Args::parse();
    if let Some(conflict) = args.conflict() {
        Args::command().error(clap::error::ErrorKind::ArgumentConflict, conflict).exit();
    }
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("vm: {error:#}");
            ExitCode::from(NO_ANSWER)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<u8> {
    let cache = Cache::open()?;
    packages::ensure(&cache, packages::FOR_EVERY_RUN)?;
    if args.device != Device::None {
        packages::ensure(&cache, packages::FOR_DEVICES)?;
    }
    let kernel = kernel::find(&cache, args)?;
    let job = Job::new(args, &kernel)?;
    let initrd = initrd::build(&cache, &kernel, &job)?;
    let mut boot = 1;
    let ended = loop {
        let guest = qemu::start(args, &kernel, &initrd, &job.shares)?;
        let deadline = Instant::now() + Duration::from_secs(args.timeout);
        let ended = relay::run(guest, deadline, args.verbose)?;
        if ended.outcome != Outcome::Vanished || ended.begun || boot == BOOTS {
            break ended;
        }
        boot += 1;
        eprintln!("vm: the guest stopped while it booted; starting it again ({boot} of {BOOTS})");
    };
    Ok(match ended.outcome {
        Outcome::Exited(0) if !ended.clean => {
            eprintln!("vm: the command succeeded, but the driver left objects behind on its adapters");
            NO_ANSWER
        }
        Outcome::Exited(status) => status,
        Outcome::Failed(reason) => {
            eprintln!("vm: {reason}");
            NO_ANSWER
        }
        Outcome::TimedOut => {
            eprintln!("vm: time-out: the guest was stopped after {} s (--timeout)", args.timeout);
            show_console(&ended.console);
            TIMED_OUT
        }
        Outcome::Interrupted(signal) => 128 + signal,
        Outcome::Vanished => {
            eprintln!("vm: the guest stopped without an answer (a kernel panic, or the command powered it off)");
            show_console(&ended.console);
            NO_ANSWER
        }
    })
}

fn show_console(console: &str) {
    if !console.trim().is_empty() {
        eprintln!("vm: the last lines of its console:\n{}", console.trim_end());
    }
}
