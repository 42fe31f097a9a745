//! Counts the instructions of post and poll, beside those of libibverbs with its rxe provider.

mod adapter;
mod args;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_counter.rs")]
mod counter;
mod programs;
mod table;

use anyhow::{Context, Result, bail, ensure};
use args::{Args, Internal};
use clap::Parser;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use table::{Columns, Counts, Table};

/// The device in the guest.
const DEVICE: &str = "rxe0";

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Internal::Count { program }) = &args.command {
        println!("{}", serde_json::to_string(&counter::count(program)?)?);
        return Ok(());
    }
    ensure!(cfg!(target_arch = "x86_64"), "only instructions of x86-64 can be counted");
    if args.mlx5 {
        return adapter::run(&args);
    }
    let ours = programs::ironverbs("")?;
    let directory = ours.parent().context("the program lies in no directory")?;
    let theirs = programs::librxe(directory)?;
    let (kernel, columns) = count_in_guest(args.kernel.version(), &ours, &theirs)?;
    let libibverbs = programs::version("pkg-config", &["--modversion", "libibverbs"]);
    let table = Table::new(kernel, libibverbs, programs::version("rustc", &["--version"]), &columns)?;
    let missing = table.missing();
    ensure!(missing.is_empty(), "not counted: {}", missing.join(", "));
    if let Some(file) = &args.write {
        std::fs::write(file, table.markdown()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    } else {
        print!("{}", table.markdown());
    }
    Ok(())
}

/// Runs both programs, each in both ways, in one guest. Returns the kernel's release and the counts.
fn count_in_guest(kernel: &str, ours: &Path, theirs: &Path) -> Result<(String, Columns)> {
    let me = env::current_exe().context("cannot find this program")?;
    let count = |program: &Path, way: &str| -> Result<String> {
        Ok(format!("{} count {} {DEVICE} {way}", quoted(&me)?, quoted(program)?))
    };
    let commands =
        ["uname -r".into(), count(ours, "rxe")?, count(ours, "any")?, count(theirs, "post")?, count(theirs, "wr")?];
    // One processor: both programs sleep while the kernel works, and kernel 6.1 was seen not to start on two with --icount.
    let output = Command::new(programs::cargo())
        .args(["run", "--quiet", "--package", "vm", "--", "--kernel", kernel, "--device", "rxe", "--icount"])
        .args(["--smp", "1", "--timeout", "900", "--", &commands.join(" && ")])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo vm")?;
    ensure!(output.status.success(), "the programs did not run in the guest ({})", output.status);
    let text = String::from_utf8(output.stdout).context("the guest's answer is not text")?;
    let mut lines = text.lines();
    let mut line = || lines.next().context("the guest's answer is short");
    let release = line()?.to_owned();
    let mut counts = || -> Result<Counts> {
        let line = line()?;
        serde_json::from_str(line).with_context(|| format!("the guest's answer is not understood: {line}"))
    };
    Ok((release, Columns { rxe: counts()?, any: counts()?, post: counts()?, wr: counts()? }))
}

/// A path as one word of the shell.
fn quoted(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(path) if !path.contains('\'') => Ok(format!("'{path}'")),
        _ => bail!("the path {} cannot be given to a shell", path.display()),
    }
}
