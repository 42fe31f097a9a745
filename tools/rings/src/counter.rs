//! Counts the user-space instructions that a program runs between two marks, exactly.
//!
//! A mark is the breakpoint instruction. At the first one the register rdi points to the operation's name; from there on the
//! program is run one instruction at a time (`PTRACE_SINGLESTEP`) until the next breakpoint, and each step is one
//! instruction. What the kernel does in a system call is not seen; the `syscall` instruction itself counts as one. So the
//! count depends on nothing but the program: not on caches, interrupts, or what else the machine does.
//!
//! # Safety argument
//!
//! The one unsafe block lets a child ask to be traced between `fork` and `exec`.
#![allow(unsafe_code)]

use crate::table::Counts;
use anyhow::{Context, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `si_code` of a breakpoint (`SI_KERNEL`); that of a step is `TRAP_TRACE`.
const BREAKPOINT: i32 = 0x80;
/// More instructions than any operation has.
const LIMIT: u64 = 1_000_000;

/// Runs a program to its end, and counts the operations of those names; all, where none is given.
pub fn count(program: &[String], only: &[String]) -> Result<Counts> {
    let (name, args) = program.split_first().context("no program to count")?;
    let mut command = Command::new(name);
    command.args(args);
    // SAFETY: the closure runs between fork and exec and makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    let child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let counts = trace(pid, |name| only.is_empty() || only.iter().any(|only| only == name));
    if counts.is_err() {
        let _ = ptrace::kill(pid);
        let _ = waitpid(pid, None);
    }
    counts.with_context(|| format!("counting {}", program.join(" ")))
}

fn trace(pid: Pid, is_wanted: impl Fn(&str) -> bool) -> Result<Counts> {
    let mut counts = Counts::new();
    // A traced child stops once at exec.
    waitpid(pid, None)?;
    let mut signal = None;
    // Between the marks of an operation that is not wanted.
    let mut passing = false;
    loop {
        ptrace::cont(pid, signal.take())?;
        match waitpid(pid, None)? {
            WaitStatus::Exited(_, 0) => return Ok(counts),
            WaitStatus::Exited(_, status) => bail!("it ended with exit status {status}"),
            WaitStatus::Signaled(_, signal, _) => bail!("it was ended by {signal}"),
            WaitStatus::Stopped(_, Signal::SIGTRAP) if at_breakpoint(pid)? => {
                let name = if passing { None } else { Some(name(pid)?) };
                passing = name.as_ref().is_some_and(|name| !is_wanted(name));
                let Some(name) = name.filter(|_| !passing) else { continue };
                let steps = steps(pid).with_context(|| format!("in {name}"))?;
                counts.entry(name).or_default().push(steps);
            }
            WaitStatus::Stopped(_, other) => signal = Some(other),
            other => bail!("it stopped for an unknown reason: {other:?}"),
        }
    }
}

/// Steps to the next breakpoint.
fn steps(pid: Pid) -> Result<u64> {
    for steps in 0..LIMIT {
        ptrace::step(pid, None)?;
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) if at_breakpoint(pid)? => return Ok(steps),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => bail!("the program did not reach the second mark: {other:?}"),
        }
    }
    bail!("no second mark within {LIMIT} instructions")
}

fn at_breakpoint(pid: Pid) -> Result<bool> {
    Ok(ptrace::getsiginfo(pid)?.si_code == BREAKPOINT)
}

/// The operation's name, where rdi points.
fn name(pid: Pid) -> Result<String> {
    let mut address = ptrace::getregs(pid)?.rdi;
    let mut name = Vec::new();
    loop {
        for byte in ptrace::read(pid, address as ptrace::AddressType)?.to_ne_bytes() {
            if byte == 0 {
                return String::from_utf8(name).context("the mark has no readable name");
            }
            name.push(byte);
        }
        ensure!(name.len() < 64, "the mark has no name");
        address += 8;
    }
}
