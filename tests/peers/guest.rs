//! Both sides in one guest, under the kernel's own driver, on a software adapter that records what it fetches.

use crate::list::List;
use crate::record::{Numbers, Record};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What came of it.
pub struct Outcome {
    pub sides: BTreeMap<String, Numbers>,
    pub record: Record,
}

/// Seconds that the guest has at most. `IRONVERBS_TEST_SECONDS` gives more.
fn seconds() -> u64 {
    let wanted = env::var("IRONVERBS_TEST_SECONDS").ok();
    wanted.map_or(0, |n| n.parse().expect("IRONVERBS_TEST_SECONDS is a number")).max(900)
}

/// Runs the list by libibverbs in its two ways, `classic` and `extended`, and then by this library, `ours`, under that kernel.
pub fn run(kernel: &str, list: &List) -> Result<Outcome, String> {
    let place = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("peers-{kernel}-{name}"));
    let (requests, recorded) = (place("requests.txt"), place("record.txt"));
    fs::write(&requests, &list.text).map_err(|error| format!("{}: {error}", requests.display()))?;
    let theirs = build(&place("libibverbs"))?;
    let ours = env::current_exe().map_err(|error| format!("this program's own file: {error}"))?;
    let script = format!(
        "for side in classic extended; do echo side $side; '{}' $side mlx5_0 '{requests}' || exit; done
         echo side ours; '{}' --issue mlx5_0 '{requests}'",
        theirs.display(),
        ours.display(),
        requests = requests.display(),
    );
    let output = vm()
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "--kernel",
            kernel,
            "--device",
            "softcx",
            "--blue-flame",
            "--timeout",
            &seconds().to_string(),
            "--device-record",
        ])
        .arg(&recorded)
        .args(["--", &script])
        .output()
        .map_err(|error| format!("cargo vm: {error}"))?;
    let [told, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    if !output.status.success() {
        return Err(format!("cargo vm: {}\n{told}\n{said}", output.status));
    }
    let text = fs::read_to_string(&recorded).map_err(|error| format!("{}: {error}", recorded.display()))?;
    Ok(Outcome { sides: Numbers::of_sides(&told)?, record: Record::parse(&text)? })
}

/// The program that boots guests.
fn vm() -> Command {
    if let Some(program) = env::var_os("IRONVERBS_VM") {
        return Command::new(program);
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("vm");
    cargo
}

/// Builds the program that uses libibverbs.
fn build(program: &Path) -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/c");
    let compiler = env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(program)
        .args(["main.c", "queues.c", "classic.c", "extended.c"].map(|file| sources.join(file)))
        .args(["-libverbs", "-lmlx5"])
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(program.to_owned()),
        Ok(output) => Err(format!(
            "{} does not compile; it takes the Debian package libibverbs-dev\n{}",
            sources.display(),
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("there is no C compiler {} (Debian package gcc)", compiler.display()))
        }
        Err(error) => Err(format!("{}: {error}", compiler.display())),
    }
}
