//! `rdma-probe caps`: what this kernel, this driver and this device offer and refuse, each with its reason.

mod attempts;
mod verdict;

use crate::failure::Failure;
use crate::info::{has_no_provider, open};
use crate::machine::Machine;
use crate::output;
use crate::shown;
use crate::table::{Table, or_dash};
use ironverbs::sys::{CommandForm, Record, Recorded};
use ironverbs::{Context, DeviceInfo, DriverId};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use verdict::Verdict;

/// Result of `rdma-probe caps`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CapsReport {
    /// The devices asked for, as far as they could be opened.
    pub devices: Vec<DeviceCaps>,
}

/// What is offered and refused on one device.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceCaps {
    /// The device's name.
    pub device: String,
    /// The kernel's index of the device.
    pub device_index: Option<u32>,
    /// The kernel driver's short name, if it is a known one.
    pub driver: Option<String>,
    /// Release of the running kernel; `simulated` where none was asked.
    pub kernel: String,
    /// What is offered and what is refused.
    pub verdicts: Vec<Verdict>,
    /// The commands that the attempts came to, and how each reached the kernel.
    pub commands: Vec<CommandForms>,
    /// Objects that the kernel would not destroy; it does when the process ends. Always empty, or the driver has a fault.
    pub leaks: Vec<String>,
}

/// How a command reached the kernel.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CommandForms {
    /// The command.
    pub command: String,
    /// By which way.
    pub form: Form,
    /// ok, or the kernel's error of the first time.
    pub answer: String,
    /// How often.
    pub times: u32,
}

/// A way to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A method of the ioctl interface.
    Ioctl,
    /// A command of the write() interface, carried by an ioctl.
    InvokeWrite,
    /// write().
    Write,
}

/// Looks at each of `devices`. The failure tells of the first one that cannot be opened, unless it is rdma-probe that has
/// no provider for it.
pub fn look(machine: &Machine, devices: &[DeviceInfo]) -> (CapsReport, Result<(), Failure>) {
    let mut first_failure = Ok(());
    let mut reports = Vec::new();
    for device in devices {
        let record = Record::new();
        let looked = open(&*record.wrap_sys(Arc::clone(machine.sys())), device)
            .and_then(|context| DeviceCaps::of(machine, device, &context, &record))
            .map_err(|failure| failure.during(format_args!("cannot try {}", device.name)));
        match looked {
            Ok(report) => reports.push(report),
            Err(failure) if first_failure.is_ok() && (devices.len() == 1 || !has_no_provider(device)) => {
                first_failure = Err(failure);
            }
            Err(failure) => output::complain(&failure),
        }
    }
    (CapsReport { devices: reports }, first_failure)
}

impl DeviceCaps {
    fn of(machine: &Machine, device: &DeviceInfo, context: &Context, record: &Record) -> Result<Self, Failure> {
        let verdicts = attempts::run(&**machine.sys(), device, context)?;
        Ok(Self {
            device: device.name.clone(),
            device_index: device.index.map(|index| index.0),
            driver: device.driver.and_then(DriverId::name).map(str::to_owned),
            kernel: if machine.is_simulated() { SIMULATED.to_owned() } else { kernel_release() },
            verdicts,
            commands: forms(&record.take()),
            leaks: context.leaks().iter().map(|leak| format!("{leak:?}")).collect(),
        })
    }
}

/// Stands for the kernel of a simulated device, whose answers are those of the mlx5 driver of Linux.
const SIMULATED: &str = "simulated";

fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Each command once for each way it took, in the order of the first time.
fn forms(recorded: &[Recorded]) -> Vec<CommandForms> {
    let mut all: Vec<CommandForms> = Vec::new();
    for one in recorded {
        let (command, form) = match (one.form, one.name.strip_prefix("INVOKE_WRITE ")) {
            (CommandForm::Ioctl, Some(name)) => (name, Form::InvokeWrite),
            (CommandForm::Ioctl, None) => (one.name.as_str(), Form::Ioctl),
            (CommandForm::Write, _) => (one.name.strip_prefix("write ").unwrap_or(&one.name), Form::Write),
            _ => continue,
        };
        match all.iter_mut().find(|known| known.command == command && known.form == form) {
            Some(known) => known.times += 1,
            None => all.push(CommandForms {
                command: command.to_owned(),
                form,
                answer: one.result.map_or_else(|errno| errno.to_string(), |()| "ok".to_owned()),
                times: 1,
            }),
        }
    }
    all
}

impl fmt::Display for CapsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, device) in self.devices.iter().enumerate() {
            write!(f, "{}{device}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceCaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = match self.kernel.as_str() {
            SIMULATED => SIMULATED.to_owned(),
            release => format!("Linux {release}"),
        };
        writeln!(f, "{}: driver {}, {kernel}", shown::line(&self.device), or_dash(self.driver.as_ref()))?;
        let mut table = Table::new(["", "", "", "WHY"]);
        let mut group = None;
        for verdict in &self.verdicts {
            if group != Some(verdict.group) {
                group = Some(verdict.group);
                table.row([verdict.group.to_string(), String::new(), String::new(), String::new()]);
            }
            table.row([format!("  {}", verdict.name), verdict.answer(), verdict.how(), verdict.reason.clone()]);
        }
        table.fmt(f)?;
        let mut table = Table::new(["COMMAND", "WAY", "ANSWER"]);
        for CommandForms { command, form, answer, .. } in &self.commands {
            let way = match form {
                Form::Ioctl => "ioctl",
                Form::InvokeWrite => "write command in an ioctl",
                Form::Write => "write()",
            };
            table.row([command.clone(), way.to_owned(), answer.clone()]);
        }
        write!(f, "\n{table}")?;
        self.leaks.iter().try_for_each(|leak| writeln!(f, "the kernel would not destroy {leak}"))
    }
}
