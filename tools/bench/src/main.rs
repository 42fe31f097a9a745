//! Counts the instructions of post and poll under callgrind, and compares them with the counter of `cargo rings`.
//!
//! Callgrind simulates the program, the counter steps through it: two ways that share no code. Callgrind counts from a
//! function's first instruction to its last, the counter what prepares the call, too.

use anyhow::{Context, Result, bail, ensure};
use bench::{OPERATIONS, Operation, Rig};
use clap::{Parser, Subcommand};
use std::env;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// How often an operation is run in one program: callgrind adds up.
const TIMES: usize = 10;
/// By how much the ways may differ per call: arguments, the call itself, and what looks at the answer.
const CALL: f64 = 25.0;
/// And by which part of the count besides, since they are two programs, whose loops the compiler may turn out differently.
const COMPILER: f64 = 0.08;

/// Compares callgrind's counts with those of `cargo rings --mlx5`.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Counts each operation under callgrind, and compares.
    Callgrind,
    /// Runs one operation: what callgrind looks at.
    #[command(hide = true)]
    Run { operation: String },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Subcommands::Callgrind => callgrind(),
        Subcommands::Run { operation } => run(&operation),
    }
}

fn run(name: &str) -> Result<()> {
    let operation = Operation::named(name).with_context(|| format!("no operation {name}"))?;
    let mut rig = Rig::new(1).map_err(|error| anyhow::anyhow!("{error}"))?;
    // The first poll learns of the queue pair, and is none of the measured ones.
    Operation::named("poll").context("nothing polls")?.before(&mut rig, 1);
    rig.drain();
    for _ in 0..TIMES {
        operation.before(&mut rig, 1);
        operation.run(&mut rig);
        rig.drain();
    }
    Ok(())
}

fn callgrind() -> Result<()> {
    match Command::new("valgrind").arg("--version").stdout(Stdio::null()).status() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: there is no valgrind (package valgrind)");
            return Ok(());
        }
        other => ensure!(other?.success(), "valgrind does not run"),
    }
    let program = build()?;
    let counted = counted()?;
    let mut faults = vec![];
    println!("{:24}{:>12}{:>12}", "instructions per call", "callgrind", "cargo rings");
    for operation in OPERATIONS {
        let ours = simulated(&program, operation)?;
        let rows = counted["operations"].as_array().context("the table has no operations")?;
        let row = rows.iter().find(|row| row["id"] == operation.name);
        let per_request = row.and_then(|row| row["mlx5"].as_f64());
        let theirs = per_request.with_context(|| format!("cargo rings does not count {}", operation.name))?
            * operation.requests as f64;
        println!("{:24}{ours:>12.1}{theirs:>12.1}", operation.name);
        if (theirs - ours).abs() > CALL + COMPILER * theirs {
            faults.push(operation.name);
        }
    }
    ensure!(faults.is_empty(), "the two ways differ by more than a call: {}", faults.join(", "));
    Ok(())
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// This program as a release that keeps the names of its functions.
fn build() -> Result<PathBuf> {
    let output = cargo()
        .args(["build", "--profile", "measured", "--package", "bench", "--bin", "bench"])
        .args(["--quiet", "--message-format", "json", "--target-dir", "target/callgrind"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the program does not build");
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if let (Some("bench"), Some(path)) = (message["target"]["name"].as_str(), message["executable"].as_str()) {
            return Ok(path.into());
        }
    }
    bail!("cargo names no executable")
}

/// The table of `cargo rings`.
fn counted() -> Result<serde_json::Value> {
    let output = cargo()
        .args(["run", "--quiet", "--package", "rings", "--", "--mlx5", "--json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo rings")?;
    ensure!(output.status.success(), "cargo rings failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Instructions of one call under callgrind.
fn simulated(program: &PathBuf, operation: &Operation) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={}", operation.function))
        .arg(program)
        .args(["run", operation.name])
        .output()
        .context("cannot run valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind: {text}");
    // "==123== Collected : 4567"
    let total = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<u64>().ok());
    let total = total.filter(|total| *total > 0).with_context(|| format!("callgrind counted nothing: {text}"))?;
    Ok(total as f64 / TIMES as f64)
}
