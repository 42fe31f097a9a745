//! What this run's arguments mean to the guest: the files under `/job` that `guest/init.sh` reads.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::args::{Args, Device, Seat};
use crate::kernel::Kernel;

/// The files for the guest, and the directories to share with it.
pub struct Job {
    /// Name under `/job` and contents.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// Paths from the root. The guest mounts the one at index N by the tag `shareN`.
    pub shares: Vec<PathBuf>,
    /// The devices to create.
    pub device: Device,
    /// Whose it is.
    pub seat: Seat,
}

/// The folders every command gets in its PATH, whatever the caller's.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Job {
    /// Works the job of one guest out from the arguments and this process's directory and environment.
    pub fn new(args: &Args, kernel: &Kernel, seat: Seat, words: &[OsString]) -> Result<Job> {
        let directory = std::env::current_dir().context("the current directory is gone")?;
        let shares = args.share.iter().map(|dir| share(dir)).collect::<Result<Vec<_>>>()?;
        let environment = environment(args, std::env::vars_os());
        let config = [
            ("VM_DEVICE", OsString::from(args.device.name())),
            ("VM_MTU", args.mtu.map(|mtu| mtu.to_string()).unwrap_or_default().into()),
            ("VM_ADAPTERS", args.device.adapters().to_string().into()),
            ("VM_SEAT", seat.name().unwrap_or_default().into()),
            ("VM_UID", args.user.to_string().into()),
            ("VM_MODULES", kernel.modules.clone().into()),
        ];
        let config = config.iter().map(|(name, value)| [name.as_bytes(), b"=", &quoted(value), b"\n"].concat());
        let share_lines = shares.iter().map(|share| [share.as_os_str().as_bytes(), b"\n"].concat());
        Ok(Job {
            files: vec![
                ("config", config.collect::<Vec<_>>().concat()),
                ("shares", share_lines.collect::<Vec<_>>().concat()),
                ("command", command(args, words, directory.as_os_str(), &environment)),
                ("device", include_bytes!("guest/device.sh").to_vec()),
                ("unload", include_bytes!("guest/unload.sh").to_vec()),
                ("allowed", args.allow_log.iter().flat_map(|pattern| [pattern.as_bytes(), b"\n"].concat()).collect()),
            ],
            shares,
            device: args.device,
            seat,
        })
    }
}

fn share(dir: &Path) -> Result<PathBuf> {
    let path = dir.canonicalize().with_context(|| format!("--share {}", dir.display()))?;
    if !path.is_dir() {
        bail!("--share {}: not a directory", dir.display());
    }
    if path.as_os_str().as_bytes().contains(&b'\n') {
        bail!("--share {}: a newline in the path", dir.display());
    }
    Ok(path)
}

/// The command's whole environment; of two values of one name the later holds.
fn environment(args: &Args, caller: impl Iterator<Item = (OsString, OsString)>) -> Vec<OsString> {
    let mut path = OsString::from(SYSTEM_PATH);
    let mut passed = Vec::new();
    for (name, value) in caller {
        if name == "PATH" {
            path = [value.as_bytes(), b":", SYSTEM_PATH.as_bytes()].concat().into_os_string();
        } else if name.as_bytes().starts_with(b"IRONVERBS_") || name.as_bytes().starts_with(b"RUST_") {
            passed.push(assignment(&name, &value));
        }
    }
    let home = if args.user == 0 { "/root" } else { "/run/vm/home" };
    let mut all = vec![assignment("PATH", &path), assignment("HOME", home), assignment("TERM", "dumb")];
    all.push(assignment("LANG", "C.UTF-8"));
    all.append(&mut passed);
    all.extend(args.env.iter().map(|(name, value)| assignment(name, value)));
    all
}

fn assignment(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> OsString {
    [name.as_ref().as_bytes(), b"=", value.as_ref().as_bytes()].concat().into_os_string()
}

/// The script that becomes the command.
fn command(args: &Args, command: &[OsString], directory: &OsStr, environment: &[OsString]) -> Vec<u8> {
    let mut script = b"cd ".to_vec();
    script.extend(quoted(directory));
    script.extend_from_slice(b" || exit 125\n");
    if let Some(limit) = args.memlock {
        script.extend_from_slice(format!("ulimit -l {limit} || exit 125\n").as_bytes());
    }
    let mut words: Vec<OsString> = ["exec", "env", "-i"].map(OsString::from).to_vec();
    words.extend_from_slice(environment);
    if args.user != 0 {
        let uid = args.user;
        words.extend(
            ["setpriv", &format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"].map(Into::into),
        );
    }
    match command {
        [line] => words.extend(["bash".into(), "-c".into(), line.clone()]),
        // env would take a program's name with `=` in it for a variable, so there is always a word before it.
        program => {
            words.extend(["bash", "-c", "exec \"$@\"", "bash"].map(OsString::from).into_iter().chain(program.to_vec()))
        }
    }
    for word in &words {
        script.extend(quoted(word));
        script.push(b' ');
    }
    script.push(b'\n');
    script
}

/// `text` as one word of the shell, whatever its bytes.
fn quoted(text: impl AsRef<OsStr>) -> Vec<u8> {
    let mut word = b"'".to_vec();
    for byte in text.as_ref().as_bytes() {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}

trait IntoOsString {
    fn into_os_string(self) -> OsString;
}

impl IntoOsString for Vec<u8> {
    fn into_os_string(self) -> OsString {
        OsString::from_vec(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn args(words: &[&str]) -> Args {
        Args::try_parse_from([&["vm"], words].concat()).unwrap()
    }

    /// What the shell makes of the script, given these arguments.
    fn output(words: &[&str]) -> std::process::Output {
        let args = args(words);
        let script = command(&args, &args.command, OsStr::new("/"), &environment(&args, std::env::vars_os()));
        std::process::Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap()
    }

    #[test]
    fn one_word_is_a_shell_command_line() {
        let output = output(&["--", "echo \"it's $((1 + 1))\" \"$PWD\"; exit 7"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's 2 /\n");
        assert_eq!(output.status.code(), Some(7));
    }

    #[test]
    fn several_words_reach_the_program_unchanged() {
        let output = output(&["--", "printf", "%s|", "a b", "'", "$HOME", "", "x\ny"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|'|$HOME||x\ny|");
    }

    #[test]
    fn the_environment_is_the_chosen_part_of_the_callers() {
        let caller = [("PATH", "/mine"), ("IRONVERBS_A", "1"), ("RUST_LOG", "info"), ("SECRET", "x")];
        let caller = caller.map(|(name, value)| (name.into(), value.into())).into_iter();
        let all = environment(&args(&["--env", "IRONVERBS_A=2", "--", "true"]), caller);
        assert_eq!(all[0], OsString::from(format!("PATH=/mine:{SYSTEM_PATH}")));
        assert_eq!(all[1], "HOME=/root");
        assert_eq!(all[4..], ["IRONVERBS_A=1", "RUST_LOG=info", "IRONVERBS_A=2"]);
        assert_eq!(environment(&args(&["--user", "1000", "--", "true"]), std::iter::empty())[1], "HOME=/run/vm/home");
    }

    #[test]
    fn a_share_must_be_a_directory() {
        assert!(share(Path::new("/nowhere/at/all")).is_err());
        assert!(share(Path::new("/etc/passwd")).is_err());
        assert_eq!(share(Path::new("/usr/../usr")).unwrap(), PathBuf::from("/usr"));
    }
}
