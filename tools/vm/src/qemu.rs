//! Starts QEMU, with a socket for each thing that the guest has to say.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::args::Args;
use crate::kernel::Kernel;
use crate::softcx::Adapters;

/// A running guest.
pub struct Guest {
    /// QEMU. It dies with the thread that started it.
    pub qemu: Child,
    /// The command's standard output.
    pub out: UnixStream,
    /// The command's standard error.
    pub err: UnixStream,
    /// What became of it: see `guest/init.sh`.
    pub report: UnixStream,
    /// The kernel's console.
    pub console: UnixStream,
    /// The software ConnectX adapters, if it has any.
    pub adapters: Option<Adapters>,
}

/// Boots `kernel` with the RAM disk `initrd`.
pub fn start(args: &Args, kernel: &Kernel, initrd: &File, shares: &[PathBuf]) -> Result<Guest> {
    let (out, out_end) = UnixStream::pair()?;
    let (err, err_end) = UnixStream::pair()?;
    let (report, report_end) = UnixStream::pair()?;
    let (console, console_end) = UnixStream::pair()?;
    let ends = [&out_end, &err_end, &report_end, &console_end];
    for end in ends {
        inherit(end.as_fd())?;
    }
    inherit(initrd.as_fd())?;

    let mut adapters = Adapters::start(args)?;
    let mut words = arguments(args, &kernel.image, initrd.as_raw_fd(), ends.map(AsRawFd::as_raw_fd), shares);
    if let Some(adapters) = &adapters {
        words.extend(adapters.options()?);
    }
    if args.verbose {
        eprintln!("vm: qemu-system-x86_64 {}", words.join(OsStr::new(" ")).to_string_lossy());
    }
    // setpriv has the kernel kill QEMU when this process ends, however it ends.
    let qemu = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start setpriv")?;
    if let Some(adapters) = &mut adapters {
        adapters.given();
    }
    for stream in [&out, &err, &report, &console] {
        stream.set_nonblocking(true)?;
    }
    Ok(Guest { qemu, out, err, report, console, adapters })
}

/// Lets a program started from here have this descriptor, under the same number.
pub fn inherit(fd: BorrowedFd<'_>) -> Result<()> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot pass a descriptor on to QEMU")?;
    Ok(())
}

/// QEMU's command line.
fn arguments(
    args: &Args,
    image: &Path,
    initrd: i32,
    [out, err, report, console]: [i32; 4],
    shares: &[PathBuf],
) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: OsString| words.extend([OsString::from(name), value]);

    if args.device.adapters() == 0 {
        option("-machine", "pc,accel=tcg".into());
    } else {
        // The adapters reach the guest's memory.
        option("-object", format!("memory-backend-memfd,id=memory,size={}M,share=on", args.mem).into());
        option("-machine", "pc,accel=tcg,memory-backend=memory".into());
    }
    option("-cpu", "max".into());
    option("-smp", args.cpus().to_string().into());
    option("-m", args.mem.to_string().into());
    if args.icount {
        option("-icount", "shift=0,sleep=off".into());
    }
    option("-display", "none".into());
    option("-kernel", image.into());
    option("-initrd", format!("/proc/self/fd/{initrd}").into());
    // The kernel's self-tests of its ciphers are a quarter of the time to boot.
    let mut line = String::from("console=ttyS0 quiet loglevel=1 panic=-1 cryptomgr.notests");
    for words in &args.append {
        line += " ";
        line += words;
    }
    option("-append", line.into());

    option("-chardev", format!("socket,id=console,fd={console}").into());
    option("-serial", "chardev:console".into());
    option("-device", "virtio-serial-pci,max_ports=4".into());
    for (number, (id, fd)) in [("out", out), ("err", err), ("report", report)].into_iter().enumerate() {
        option("-chardev", format!("socket,id={id},fd={fd}").into());
        option("-device", format!("virtserialport,nr={},chardev={id},name={id}", number + 1).into());
    }

    option("-virtfs", share(Path::new("/"), "host", ",readonly=on,multidevs=remap"));
    for (index, dir) in shares.iter().enumerate() {
        option("-virtfs", share(dir, &format!("share{index}"), ",multidevs=remap"));
    }
    words.extend(["-no-user-config", "-nodefaults", "-no-reboot"].map(OsString::from));
    words.extend_from_slice(&args.qemu_arg);
    words
}

fn share(dir: &Path, tag: &str, more: &str) -> OsString {
    // A comma ends a value of QEMU's unless there are two of it.
    let path: Vec<u8> =
        dir.as_os_str().as_bytes().iter().flat_map(|byte| vec![*byte; 1 + usize::from(*byte == b',')]).collect();
    let mut option = OsString::from("local,path=");
    option.push(OsString::from_vec(path));
    option.push(format!(",mount_tag={tag},security_model=none{more}"));
    option
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn line(words: &str, shares: &[PathBuf]) -> String {
        let args = Args::try_parse_from(words.split(' ')).unwrap();
        let words = arguments(&args, Path::new("/k"), 3, [4, 5, 6, 7], shares);
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn the_arguments_reach_qemu() {
        let line = line("vm --smp 3 --mem 512 --icount --append a=b --qemu-arg=-s -- true", &[]);
        for part in [
            "-smp 3 -m 512 -icount shift=0,sleep=off ",
            "-kernel /k -initrd /proc/self/fd/3 ",
            "cryptomgr.notests a=b ",
            "socket,id=out,fd=4 -device virtserialport,nr=1,chardev=out",
            "local,path=/,mount_tag=host,security_model=none,readonly=on",
        ] {
            assert!(line.contains(part), "no `{part}` in {line}");
        }
        assert!(line.ends_with(" -s"), "{line}");
        assert!(!self::line("vm -- true", &[]).contains("icount"));
    }

    #[test]
    fn a_comma_in_a_shared_path_is_doubled() {
        let line = line("vm -- true", &["/a".into(), "/b,c".into()]);
        assert!(line.contains("local,path=/a,mount_tag=share0,"), "{line}");
        assert!(line.contains("local,path=/b,,c,mount_tag=share1,"), "{line}");
    }
}
