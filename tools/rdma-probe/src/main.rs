//! Looks at RDMA devices and pings through them.

mod args;
mod attributes;
mod buffers;
mod caps;
mod choose;
mod decode;
mod defaults;
mod end;
mod engine;
mod exchange;
mod failure;
mod gids;
mod half;
mod host;
mod info;
mod line;
mod link;
mod list;
mod machine;
mod output;
mod payload;
mod ping;
mod ping_cm;
mod ping_report;
mod place;
mod presence;
mod progress;
mod reach;
mod rendezvous;
mod shown;
mod sim;
mod srq;
mod srq_buffers;
mod stats;
mod stop;
mod table;
mod time;
mod trace;
mod turn;
mod wait;
mod watch;
mod watch_line;
mod wire;
mod xsrq;

#[cfg(test)]
mod schema;

use args::{Cli, Command};
use clap::Parser;
use failure::{Failure, Kind};
use machine::Machine;
use output::Output;
use serde::Serialize;
use std::fmt::Display;
use std::io::ErrorKind;
use std::process::ExitCode;
use stop::Stop;
use trace::Lines;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(instead) => return answer(&instead),
    };
    let trace = cli.global.trace.as_deref().map(Lines::open).transpose();
    let result = trace.and_then(|trace| {
        let result = run(cli, trace.as_ref());
        // What came after the result was written belongs to the trace, too.
        result.and_then(|()| trace.map_or(Ok(()), |trace| trace.result()))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

/// What was printed in place of a command: help, the version, or what is wrong with the command line.
fn answer(instead: &clap::Error) -> ExitCode {
    match instead.print() {
        // A reader that has seen enough, or a complaint that nobody hears, changes nothing.
        Err(e) if e.kind() != ErrorKind::BrokenPipe && !instead.use_stderr() => {
            output::complain(&output::cannot_write("standard output", &e));
            ExitCode::from(Kind::Output.exit_code())
        }
        _ => u8::try_from(instead.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

fn run(Cli { command, global }: Cli, trace: Option<&Lines>) -> Result<(), Failure> {
    let simulated = global.sim.is_some() && !matches!(command, Command::Schema | Command::Decode(_));
    let mut output = Output::open(global.json.as_deref(), simulated)?;
    if let Some(lines) = trace {
        output.trace(lines.clone());
    }
    match &command {
        Command::Schema => return output.schema(),
        Command::Decode(args) => {
            let (report, result) = decode::decode(args, &mut output);
            return end(&mut output, report, result);
        }
        _ => {}
    }
    let machine = match global.sim {
        Some(link) => Machine::simulated(link, place_of(&command)),
        None => Machine::real(),
    };
    let machine = match trace {
        Some(lines) if machine.is_simulated() => machine.traced(lines),
        Some(lines) => machine.with_rings(lines).traced(lines),
        None => machine,
    };
    match command {
        Command::Schema | Command::Decode(_) => Ok(()),
        Command::List => finish(&mut output, machine.devices().map(|devices| list::ListReport::of(&devices))),
        Command::Info(args) => match machine.asked_for(args.device.as_deref()) {
            Err(failure) => end(&mut output, None::<info::InfoReport>, Err(failure)),
            Ok(devices) => {
                let (report, result) = info::look(&machine, &devices);
                show(&mut output, report, result)
            }
        },
        Command::Gids(args) => {
            let devices = machine.asked_for(args.device.device.as_deref());
            finish(&mut output, devices.and_then(|devices| gids::look(&**machine.sys(), &devices, args.want())))
        }
        Command::Caps(args) => match machine.asked_for(args.device.as_deref()) {
            Err(failure) => end(&mut output, None::<caps::CapsReport>, Err(failure)),
            Ok(devices) => {
                let (report, result) = caps::look(&machine, &devices);
                show(&mut output, report, result)
            }
        },
        Command::Watch(args) => {
            let stop = stop_on_signals()?;
            output.as_lines();
            let (report, result) = match machine.asked_for(args.device.device.as_deref()) {
                Ok(devices) => watch::watch(&machine, &devices, &args, &mut output, &stop),
                Err(failure) => (None, Err(failure)),
            };
            end(&mut output, report, result)
        }
        Command::Ping(args) => {
            let stop = stop_on_signals()?;
            let (report, result) = match machine.devices() {
                Ok(devices) => ping::ping(&machine, &devices, &args, &mut output, &stop),
                Err(failure) => (None, Err(failure)),
            };
            end(&mut output, report, result)
        }
    }
}

/// Where in the simulated network the device is. A client is at another place than its server.
fn place_of(command: &Command) -> u16 {
    match command {
        Command::Ping(args) if args.host.is_some() => 1,
        _ => 0,
    }
}

fn stop_on_signals() -> Result<Stop, Failure> {
    Stop::on_signals().map_err(|e| Failure::new(Kind::Device, format!("cannot catch signals: {e}")))
}

/// Prints a report, as text and as JSON, or a failure.
fn finish<R: Serialize + Display>(output: &mut Output, outcome: Result<R, Failure>) -> Result<(), Failure> {
    match outcome {
        Ok(report) => show(output, report, Ok(())),
        Err(failure) => end(output, None::<R>, Err(failure)),
    }
}

/// Prints a report, as text and as JSON, and passes the command's own result on.
fn show<R: Serialize + Display>(output: &mut Output, report: R, result: Result<(), Failure>) -> Result<(), Failure> {
    let shown = output.text(&report);
    end(output, Some(report), both(result, shown))
}

/// What the command found weighs more than that it could not be written; both are told.
fn both(result: Result<(), Failure>, written: Result<(), Failure>) -> Result<(), Failure> {
    match (result, written) {
        (Err(failure), Err(unwritten)) if failure != unwritten => {
            output::complain(&unwritten);
            Err(failure)
        }
        (result, written) => result.and(written),
    }
}

/// Writes the JSON, and passes the command's own result on.
fn end<R: Serialize>(output: &mut Output, report: Option<R>, result: Result<(), Failure>) -> Result<(), Failure> {
    let result = both(result, output.trace_result());
    let written = output.json(report, result.as_ref().err());
    both(result, written)
}
