//! Looks at RDMA devices and pings through them.

mod args;
mod attributes;
mod buffers;
mod caps;
mod choose;
mod defaults;
mod end;
mod engine;
mod exchange;
mod failure;
mod gids;
mod half;
mod host;
mod info;
mod link;
mod list;
mod output;
mod payload;
mod ping;
mod ping_report;
mod place;
mod progress;
mod srq;
mod srq_buffers;
mod stats;
mod stop;
mod table;
mod time;
mod turn;
mod wait;
mod watch;
mod watch_line;
mod wire;

#[cfg(test)]
mod schema;

use args::{Cli, Command};
use clap::Parser;
use failure::{Failure, Kind};
use ironverbs::DeviceInfo;
use ironverbs::sys::{Linux, Sys, Trace};
use output::Output;
use serde::Serialize;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use stop::Stop;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

fn run(Cli { command, global }: Cli) -> Result<(), Failure> {
    let mut output = Output::open(global.json.as_deref())?;
    let linux = Linux::new();
    let sys = traced(&linux, global.trace.as_deref())?;
    match command {
        Command::Schema => output.schema(),
        Command::List => finish(&mut output, list_devices(&linux).map(|devices| list::ListReport::of(&devices))),
        Command::Info(args) => match asked_for(&linux, args.device.as_deref()) {
            Err(failure) => end(&mut output, None::<info::InfoReport>, Err(failure)),
            Ok(devices) => {
                let (report, result) = info::look(&linux, &*sys, &devices);
                output.text(&report)?;
                end(&mut output, Some(report), result)
            }
        },
        Command::Gids(args) => {
            let devices = asked_for(&linux, args.device.device.as_deref());
            finish(&mut output, devices.and_then(|devices| gids::look(&linux, &devices, args.want())))
        }
        Command::Caps(args) => match asked_for(&linux, args.device.as_deref()) {
            Err(failure) => end(&mut output, None::<caps::CapsReport>, Err(failure)),
            Ok(devices) => {
                let (report, result) = caps::look(&linux, sys, &devices);
                output.text(&report)?;
                end(&mut output, Some(report), result)
            }
        },
        Command::Watch(args) => {
            let stop = stop_on_signals()?;
            output.as_lines();
            let (report, result) = match asked_for(&linux, args.device.device.as_deref()) {
                Ok(devices) => watch::watch(&linux, &*sys, &devices, &args, &mut output, &stop),
                Err(failure) => (None, Err(failure)),
            };
            end(&mut output, report, result)
        }
        Command::Ping(args) => {
            let stop = stop_on_signals()?;
            let (report, result) = match list_devices(&linux) {
                Ok(devices) => ping::ping(&*sys, &devices, &args, &mut output, &stop),
                Err(failure) => (None, Err(failure)),
            };
            end(&mut output, report, result)
        }
    }
}

fn stop_on_signals() -> Result<Stop, Failure> {
    Stop::on_signals().map_err(|e| Failure::new(Kind::Device, format!("cannot catch signals: {e}")))
}

/// The host, or the host with every command of its devices written to `to`.
fn traced(linux: &Linux, to: Option<&Path>) -> Result<Arc<dyn Sys>, Failure> {
    let sys = Arc::new(linux.clone());
    let trace = match to {
        None => return Ok(sys),
        Some(path) if path == Path::new("-") => Trace::to_writer(io::stderr()),
        Some(path) => Trace::to_writer(File::create(path).map_err(|e| output::cannot_write(path.display(), &e))?),
    };
    Ok(trace.wrap_sys(sys))
}

/// All devices. That there is none is a failure.
fn list_devices(linux: &Linux) -> Result<Vec<DeviceInfo>, Failure> {
    let devices = linux.devices()?;
    if devices.is_empty() {
        return Err(Failure::new(Kind::NoDevice, "this host has no RDMA device").hint(linux.why_none()));
    }
    Ok(devices)
}

/// The device of that name or index, or all of them.
fn asked_for(linux: &Linux, wanted: Option<&str>) -> Result<Vec<DeviceInfo>, Failure> {
    let devices = list_devices(linux)?;
    match wanted {
        None => Ok(devices),
        Some(wanted) => Ok(vec![choose::named(&devices, wanted)?.clone()]),
    }
}

/// Prints a report, as text and as JSON, or a failure.
fn finish<R: Serialize + Display>(output: &mut Output, outcome: Result<R, Failure>) -> Result<(), Failure> {
    match outcome {
        Ok(report) => {
            output.text(&report)?;
            end(output, Some(report), Ok(()))
        }
        Err(failure) => end(output, None::<R>, Err(failure)),
    }
}

/// Writes the JSON, and passes the command's own result on.
fn end<R: Serialize>(output: &mut Output, report: Option<R>, result: Result<(), Failure>) -> Result<(), Failure> {
    let written = output.json(report, result.as_ref().err());
    // What the command found weighs more than that it could not be written; both are told.
    match (result, written) {
        (Err(failure), Err(unwritten)) => {
            output::complain(&unwritten);
            Err(failure)
        }
        (result, written) => result.and(written),
    }
}
