//! Debian's packages: which programs are missing, and how to come by them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;

/// A program and the package it comes from.
pub type Program = (&'static str, &'static str);

/// Starts the guest.
pub const FOR_EVERY_RUN: &[Program] =
    &[("qemu-system-x86_64", "qemu-system-x86"), ("setpriv", "util-linux"), ("bash", "bash")];
/// The guest itself runs these, from this machine's root.
pub const FOR_DEVICES: &[Program] = &[("rdma", "iproute2"), ("ip", "iproute2"), ("modprobe", "kmod")];
/// Unpacks a kernel.
pub const FOR_KERNELS: &[Program] = &[("depmod", "kmod"), ("xz", "xz-utils"), ("zstd", "zstd")];

/// Sees that these programs are there, and installs them where this process may. Takes the cache's lock for that.
pub fn ensure(cache: &Cache, programs: &[Program]) -> Result<()> {
    let missing = missing(programs);
    if missing.is_empty() {
        return Ok(());
    }
    if !may_install() {
        bail!("{}", explanation(&missing));
    }
    let _lock = cache.lock()?;
    let packages = packages(&missing);
    eprintln!("vm: installing {}", packages.join(" "));
    with_fresh_lists(|| {
        apt("apt-get")
            .args([
                "install",
                "-qqy",
                "--no-install-recommends",
                "-o",
                "DPkg::Lock::Timeout=300",
                "-o",
                "Dpkg::Use-Pty=0",
            ])
            .args(&packages)
            .run()
    })
    .with_context(|| explanation(&missing))?;
    let missing = self::missing(programs);
    if !missing.is_empty() {
        bail!("{}", explanation(&missing));
    }
    Ok(())
}

/// Where `program` is, if it is installed. The folders of system programs count though a user's PATH may lack them.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Downloads `package` and unpacks it into `dir`. Needs no privilege where the package lists are there.
pub fn unpack(package: &str, dir: &Path) -> Result<()> {
    eprintln!("vm: fetching {package}");
    let download = tempfile::tempdir().context("cannot create a temporary directory")?;
    with_fresh_lists(|| {
        let mut command = apt("apt-get");
        if is_root() {
            // Its usual unprivileged user may have no access to the directory.
            command.args(["-o", "APT::Sandbox::User=root"]);
        }
        command.args(["download", "-q", package]).current_dir(download.path()).run()
    })
    .with_context(|| format!("cannot download the Debian package {package}"))?;
    let deb = std::fs::read_dir(download.path())?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get download {package} left no package"))?;
    Command::new("dpkg-deb").arg("-x").arg(deb).arg(dir).run()?;
    Ok(())
}

/// The package whose name starts with `prefix` that one of the meta packages `metas` stands for.
pub fn behind(metas: &[&str], prefix: &str) -> Result<String> {
    if find("apt-cache").is_none() {
        bail!("kernels are fetched as Debian packages, and this machine has no apt");
    }
    with_fresh_lists(|| {
        for meta in metas {
            // It fails for a name it does not know.
            let text = apt("apt-cache").args(["depends", meta]).run().unwrap_or_default();
            if let Some(package) = first_dependency(&text, prefix) {
                return Ok(package.to_owned());
            }
        }
        bail!("no Debian package {prefix}* behind {}", metas.join(" or "))
    })
}

fn first_dependency<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).find(|package| package.starts_with(prefix))
}

fn missing(programs: &[Program]) -> Vec<Program> {
    programs.iter().copied().filter(|(program, _)| find(program).is_none()).collect()
}

fn packages(programs: &[Program]) -> Vec<&'static str> {
    let mut packages: Vec<_> = programs.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn explanation(missing: &[Program]) -> String {
    let programs: Vec<_> = missing.iter().map(|(program, package)| format!("{program} (package {package})")).collect();
    format!(
        "missing on this machine: {}. As root: apt-get update && apt-get install --no-install-recommends {}",
        programs.join(", "),
        packages(missing).join(" ")
    )
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn may_install() -> bool {
    is_root() && find("apt-get").is_some()
}

/// Does `work`, and once more with new package lists if it fails and this process may fetch them.
fn with_fresh_lists<T>(work: impl Fn() -> Result<T>) -> Result<T> {
    work().or_else(|error| {
        if !may_install() {
            return Err(error.context("as root, `apt-get update` may help"));
        }
        eprintln!("vm: updating the package lists");
        apt("apt-get").args(["update", "-q"]).run()?;
        work()
    })
}

fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command
}

/// Runs a command to its end.
pub trait Run {
    /// What it wrote to standard output; an error with all it wrote if it fails.
    fn run(&mut self) -> Result<String>;
}

impl Run for Command {
    fn run(&mut self) -> Result<String> {
        let name = self.get_program().to_string_lossy().into_owned();
        let output = self.stdin(std::process::Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{name} failed ({}): {}", output.status, format!("{} {}", text.trim(), errors.trim()).trim());
        }
        Ok(text.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_image_behind_a_meta_package_counts() {
        let text =
            "linux-image-amd64\n  Depends: linux-base\n  Depends: linux-image-6.1.0-9-amd64\n  Suggests: linux-doc\n";
        assert_eq!(first_dependency(text, "linux-image-6.1."), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(first_dependency(text, "linux-image-6.12."), None);
        assert_eq!(first_dependency("linux-image-amd64\n", "linux-image-"), None);
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_installs_it() {
        let text = explanation(&[("rdma", "iproute2"), ("ip", "iproute2"), ("xz", "xz-utils")]);
        assert!(text.contains("rdma (package iproute2), ip (package iproute2), xz (package xz-utils)"), "{text}");
        assert!(text.ends_with("apt-get install --no-install-recommends iproute2 xz-utils"), "{text}");
    }

    #[test]
    fn a_failing_command_shows_what_it_said() {
        let error = Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).run().unwrap_err().to_string();
        assert!(error.contains("out err") && error.contains("exit status: 3"), "{error}");
    }
}
