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
//! 4. [`qemu`] starts the machine or the two of a pair, with [`softcx`] for their adapters, [`relay`] carries their output and learns how
//!    the commands ended.

mod args;
mod cache;
mod end;
mod initrd;
mod job;
mod kernel;
mod modules;
mod packages;
mod pair;
mod qemu;
mod relay;
mod report;
mod softcx;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};

use args::{Args, Device};
use cache::Cache;
use job::Job;
use qemu::Machine;
use relay::Ended;
use report::Outcome;
use softcx_pci::Verdict;

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
    let machines = args.guests().into_iter().map(|(seat, words)| {
        let job = Job::new(args, &kernel, seat, words)?;
        Ok(Machine { seat, initrd: initrd::build(&cache, &kernel, &job)?, shares: job.shares })
    });
    let machines = machines.collect::<anyhow::Result<Vec<_>>>()?;
    let mut boot = 1;
    let run = loop {
        let (guests, adapters) = qemu::start(args, &kernel, &machines)?;
        let deadline = Instant::now() + Duration::from_secs(args.timeout);
        let run = relay::run(guests, adapters, deadline, args.verbose)?;
        let vanished = run.ended.iter().any(|ended| ended.outcome == Outcome::Vanished);
        if !vanished || run.ended.iter().any(|ended| ended.begun) || boot == BOOTS {
            break run;
        }
        boot += 1;
        for ended in run.ended.iter().filter(|ended| ended.outcome == Outcome::Vanished) {
            eprintln!("vm: {}", end::of_guest(&whose(ended), ended.qemu));
        }
        eprintln!("vm: that was while it booted; starting anew ({boot} of {BOOTS})");
    };
    if let end::Adapters::Died(how) = &run.adapters {
        eprintln!("vm: {how}");
    }
    let statuses: Vec<_> = run.ended.iter().map(|ended| status(args, ended)).collect();
    match statuses.into_iter().flatten().find(|status| *status != 0) {
        Some(status) => Ok(status),
        None => Ok(match run.adapters {
            end::Adapters::Ended(verdict) if !condemn(verdict) => 0,
            _ => NO_ANSWER,
        }),
    }
}

/// Whether the adapters have something to say against a run whose commands succeeded, with a word about it.
fn condemn(verdict: Verdict) -> bool {
    let Verdict { left_behind, misused } = verdict;
    if left_behind {
        eprintln!("vm: the command succeeded, but the driver left objects behind on its adapters");
    }
    if misused {
        eprintln!(
            "vm: the command succeeded, but the adapters were misused, as `softcx: misuse` tells above; \
             --allow-misuse TEXT lets reports pass that hold that text"
        );
    }
    left_behind || misused
}

fn whose(ended: &Ended) -> String {
    ended.seat.name().map(|name| format!("{name}'s ")).unwrap_or_default()
}

/// What a guest's end means for this process, with a word about it if it is not the command's own. `None`: the other one of its
/// pair decides.
fn status(args: &Args, ended: &Ended) -> Option<u8> {
    let whose = whose(ended);
    Some(match &ended.outcome {
        Outcome::Exited(status) => *status,
        Outcome::Failed(reason) => {
            eprintln!("vm: {whose}{reason}");
            NO_ANSWER
        }
        Outcome::TimedOut => {
            eprintln!("vm: time-out: the {whose}guest was stopped after {} s (--timeout)", args.timeout);
            show_console(&ended.console);
            TIMED_OUT
        }
        Outcome::Interrupted(signal) => 128 + signal,
        Outcome::Stopped => {
            eprintln!("vm: the {whose}command was stopped, because the other one had failed");
            return None;
        }
        Outcome::Vanished => {
            eprintln!("vm: {}", end::of_guest(&whose, ended.qemu));
            show_console(&ended.console);
            NO_ANSWER
        }
        Outcome::Unplugged => {
            eprintln!("vm: the {whose}guest was stopped, because its adapters were gone");
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
