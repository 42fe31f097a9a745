//! Runs the measured programs in a guest.

use crate::args::Kernel;
use crate::programs;
use crate::table::{Columns, Counts};
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The device in the guest, and what it is called there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Soft-RoCE.
    Rxe,
    /// A software ConnectX under the kernel's own driver.
    Mlx5,
}

/// What came of it.
pub struct Counted {
    /// The kernel's release.
    pub kernel: String,
    /// By the tracer.
    pub steps: Columns,
    /// By the guest's clock: of an mlx5 device, and where nothing was left out.
    pub ticks: Option<Columns>,
}

/// Builds both programs, and runs each in both ways. Of all operations, or of those of the names alone.
pub fn count(device: Device, kernel: Kernel, only: &[String]) -> Result<Counted> {
    let ours = programs::ironverbs()?;
    let theirs = programs::libibverbs(ours.parent().context("the program lies in no directory")?)?;
    let me = env::current_exe().context("cannot find this program")?;
    let (name, own, kind) = match device {
        Device::Rxe => ("rxe0", "rxe", "rxe"),
        Device::Mlx5 => ("mlx5_0", "mlx5", "softcx"),
    };
    let ways: [(&PathBuf, &str); 4] = [(&ours, own), (&ours, "any"), (&theirs, "post"), (&theirs, "wr")];
    let mut commands = vec!["uname -r".to_owned()];
    let clocked = device == Device::Mlx5 && only.is_empty();
    let only = if only.is_empty() { String::new() } else { format!(" --only {} --", only.join(",")) };
    for (program, way) in ways {
        commands.push(format!("{} count{only} {} {name} {way}", quoted(&me)?, quoted(program)?));
    }
    for (program, way) in ways.iter().filter(|_| clocked) {
        commands.push(format!("{} {name} {way} clock", quoted(program)?));
    }
    let mut answer = run(kernel.version(), kind, &commands.join(" && "))?.into_iter();
    let mut line = || answer.next().context("the guest's answer is short");
    let kernel = line()?;
    let mut columns = || -> Result<Columns> {
        let mut counts = || -> Result<Counts> {
            let line = line()?;
            serde_json::from_str(&line).with_context(|| format!("the guest's answer is not understood: {line}"))
        };
        Ok(Columns { own: counts()?, any: counts()?, post: counts()?, wr: counts()? })
    };
    let steps = columns()?;
    steps.check_calibration()?;
    Ok(Counted { kernel, steps, ticks: clocked.then(columns).transpose()? })
}

/// Runs a command in a guest whose clock counts instructions, and returns the lines that it prints.
fn run(kernel: &str, kind: &str, command: &str) -> Result<Vec<String>> {
    // One processor: the programs sleep while the device works, and kernel 6.1 was seen not to start on two with --icount.
    let mut vm = match env::var_os("IRONVERBS_VM") {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = Command::new(programs::cargo());
            cargo.args(["run", "--quiet", "--package", "vm", "--"]);
            cargo
        }
    };
    let output = vm
        .args(["--kernel", kernel, "--device", kind, "--icount"])
        .args(["--smp", "1", "--timeout", "900", "--", command])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo vm")?;
    ensure!(output.status.success(), "the programs did not run in the guest ({})", output.status);
    let text = String::from_utf8(output.stdout).context("the guest's answer is not text")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// A path as one word of the shell.
fn quoted(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(path) if !path.contains('\'') => Ok(format!("'{path}'")),
        _ => bail!("the path {} cannot be given to a shell", path.display()),
    }
}
