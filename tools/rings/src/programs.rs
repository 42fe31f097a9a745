//! Builds the two measured programs.

use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the one that uses this library, as a release, and returns its path.
pub fn ironverbs() -> Result<PathBuf> {
    let output = Command::new(cargo())
        .args(["build", "--profile", "measured", "--package", "rings", "--bin", "rings-ironverbs"])
        .args(["--no-default-features", "--quiet", "--message-format", "json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "the program that uses this library does not build");
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not text")?;
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's messages are not JSON")?;
        if message["target"]["name"] == "rings-ironverbs"
            && let Some(path) = message["executable"].as_str()
        {
            return Ok(path.into());
        }
    }
    bail!("cargo names no executable")
}

/// The sources of the one that uses libibverbs.
const LIBIBVERBS: &[&str] = &["main.c", "set_up.c", "posts.c", "windows.c", "polls.c", "clock.c"];

/// Builds the one that uses libibverbs, in `directory`, and returns its path.
pub fn libibverbs(directory: &Path) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/libibverbs");
    let program = directory.join("rings-libibverbs");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .args(LIBIBVERBS.iter().map(|file| sources.join(file)))
        .arg("-libverbs")
        .status();
    match built {
        Ok(status) if status.success() => Ok(program),
        Ok(_) => bail!(
            "{} does not compile: is libibverbs there with its headers (Debian package libibverbs-dev)?",
            sources.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("there is no C compiler {} (Debian package gcc; the variable CC names another)", compiler.display())
        }
        Err(error) => Err(error).context("cannot run the C compiler"),
    }
}

/// The cargo that runs this program.
pub fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// What a program says when it is asked for its version.
pub fn version(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
    text.map_or_else(|| "unknown".into(), |text| text.trim().to_owned())
}
