//! The program: adapters for one QEMU, until it ends.

use crate::Server;
use crate::inherited;
use crate::misuse::Misuses;
use crate::qemu::{Interrupts, ProxyDevice};
use crate::recorder::Recorder;
use anyhow::{Context, Result};
use clap::Parser;
use softcx::{DeviceSpec, Fabric, Port, Punish};
use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Software ConnectX adapters for guests of QEMU, one behind each `-device x-pci-proxy-dev`, until every QEMU ends.
///
/// Exit status: 0, or 3 if a guest's driver left objects behind, 4 if adapters were misused, 5 for both, or 1 if something failed. What
/// programs hear of by themselves, by a completion in error or an event, is no misuse here.
#[derive(Debug, Parser)]
#[command(name = "softcx-pci", version)]
struct Args {
    /// An inherited socket whose other end is a proxy device's. Once for each adapter: first those of the first guest.
    #[arg(long, value_name = "FD", required = true)]
    device: Vec<RawFd>,

    /// An inherited socket whose other end is QEMU's test interface. Once for each guest, all of which have as many adapters.
    #[arg(long, value_name = "FD", required = true)]
    interrupts: Vec<RawFd>,

    /// Let the adapters have BlueFlame: a small work request goes into a register whole.
    #[arg(long)]
    blue_flame: bool,

    /// How much more slowly than real time the adapters' time goes by: their time-outs, and their clocks.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slowdown: u32,

    /// Seed of all chance.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Where to write each command, and all that the driver or a program did wrong.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Let misuse pass whose report holds this text. May be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    allow_misuse: Vec<String>,

    /// Where to write each work queue entry that an adapter takes and each completion that it writes: a line each, with its bytes in
    /// hexadecimal and what they say.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// What can be said against a run that came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// A guest's driver left objects behind.
    pub left_behind: bool,
    /// Adapters were misused.
    pub misused: bool,
}

impl Verdict {
    const ALL: [(Self, u8); 4] = [
        (Self { left_behind: false, misused: false }, 0),
        (Self { left_behind: true, misused: false }, 3),
        (Self { left_behind: false, misused: true }, 4),
        (Self { left_behind: true, misused: true }, 5),
    ];

    /// From the program's exit status; `None` if that says that it failed.
    pub fn of_status(status: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, number)| i32::from(*number) == status).map(|(verdict, _)| verdict)
    }

    fn status(self) -> u8 {
        Self::ALL.into_iter().find(|(verdict, _)| *verdict == self).map_or(1, |(_, number)| number)
    }
}

/// Runs the program with these arguments, the first of which is its name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    match serve(&args) {
        Ok(verdict) => ExitCode::from(verdict.status()),
        Err(error) => {
            eprintln!("softcx: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<Verdict> {
    let log = args.log.as_ref().map(File::create).transpose().context("cannot create the log")?;
    let log = log.map(|file| Arc::new(Mutex::new(file)));
    let fabric = Fabric::new(args.seed);
    let mut server = Server::new(&fabric);
    let (guests, adapters) = (args.interrupts.len(), args.device.len());
    anyhow::ensure!(adapters.is_multiple_of(guests), "{adapters} adapters cannot be shared out to {guests} guests");
    let each = adapters / guests;
    let interrupts = args.interrupts.iter().map(|fd| Ok(Interrupts::new(inherited::socket(*fd)?)));
    let interrupts = interrupts.collect::<Result<Vec<_>>>()?;
    let name = |index: usize| match guests {
        1 => format!("mlx5_{index}"),
        _ => format!("guest {}'s mlx5_{}", index / each + 1, index % each),
    };
    for (index, (device, number)) in args.device.iter().zip(1_u16..).enumerate() {
        let guid = 0x0200_5eff_fe00_0000 | u64::from(number);
        let transport = ProxyDevice::new(inherited::socket(*device)?, interrupts[index / each].clone());
        server.add(transport, |memory| DeviceSpec {
            name: name(index),
            memory,
            ports: vec![Port::infiniband(number, guid)],
            guid,
            // The C library reads consumed work requests again, and programs receive into what they send from.
            punish: Punish { poison: false, scribble: false, reorder: true },
        });
    }
    server.set_slowdown(args.slowdown);
    server.functions().for_each(|function| function.set_blue_flame(args.blue_flame));
    let now = server.clock();
    if let Some(log) = &log {
        let _ = writeln!(log.lock().unwrap_or_else(PoisonError::into_inner), "{}", time_unit(args.slowdown));
        for (index, function) in server.functions().enumerate() {
            let (log, name) = (Arc::clone(log), name(index));
            function.set_log(move |what| write(&log, now(), format_args!("{name}: {what}")));
        }
    }
    let misuses = Rc::new(RefCell::new(Misuses::new(args.allow_misuse.clone())));
    let heard = Rc::clone(&misuses);
    server.set_reports(move |report| {
        heard.borrow_mut().take(now(), report);
        if let Some(log) = &log {
            write(log, now(), format_args!("{report}"));
        }
    });
    let recorder = args
        .record
        .as_ref()
        .map(|path| Recorder::create(path, args.slowdown))
        .transpose()
        .context("cannot create the record")?;
    if let Some(recorder) = &recorder {
        server.functions().try_for_each(|function| recorder.watch(&fabric, function.device()))?;
    }
    server.serve().context("the connection to QEMU is broken")?;
    if let Some(recorder) = &recorder {
        recorder.finish().context("cannot write the record")?;
    }
    let misuses = misuses.borrow();
    misuses.lines().for_each(|line| eprintln!("softcx: {line}"));
    let mut verdict = Verdict { left_behind: false, misused: !misuses.is_empty() };
    for (index, function) in server.functions().enumerate() {
        let live = function.live();
        let list: Vec<String> = live.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        verdict.left_behind |= !live.is_empty();
        let words = if live.is_empty() { "no objects".to_owned() } else { list.join(", ") };
        eprintln!("softcx: {}: {words} left", name(index));
    }
    Ok(verdict)
}

/// What the numbers are in front of the lines of log and record.
pub(crate) fn time_unit(slowdown: u32) -> String {
    format!("# seconds of the adapters' time: each takes {slowdown} of real time")
}

fn write(log: &Mutex<File>, now: Duration, what: std::fmt::Arguments<'_>) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    // A log that cannot be written is none; the guest goes on.
    let _ = writeln!(log, "{:10.6} {what}", now.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_comes_back_from_the_status() {
        for (verdict, status) in Verdict::ALL {
            assert_eq!((verdict.status(), Verdict::of_status(status.into())), (status, Some(verdict)));
        }
        assert_eq!([1, 2, 101].map(Verdict::of_status), [None; 3], "a program that failed has none");
    }
}
