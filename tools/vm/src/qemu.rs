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

use crate::args::{Args, Seat};
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
    /// Which of the run's guests it is.
    pub seat: Seat,
}

/// What a guest is made from.
pub struct Machine {
    /// Which of the run's guests it is.
    pub seat: Seat,
    /// Its RAM disk.
    pub initrd: File,
    /// Directories to share with it.
    pub shares: Vec<PathBuf>,
}

/// Boots the machines, of which there is one, or a pair with a link between them. Their adapters' process comes with them.
pub fn start(args: &Args, kernel: &Kernel, machines: &[Machine]) -> Result<(Vec<Guest>, Option<Adapters>)> {
    let mut adapters = Adapters::start(args, machines.len())?;
    let mut links = vec![];
    if machines.len() == 2 {
        let (one, other) = UnixStream::pair()?;
        links = vec![other, one];
    }
    let mut guests = vec![];
    for machine in machines {
        guests.push(boot(args, kernel, machine, adapters.as_mut(), links.pop())?);
    }
    Ok((guests, adapters))
}

/// Boots one, with its end of the link.
fn boot(
    args: &Args,
    kernel: &Kernel,
    machine: &Machine,
    mut adapters: Option<&mut Adapters>,
    link: Option<UnixStream>,
) -> Result<Guest> {
    let Machine { seat, initrd, shares } = machine;
    let (out, out_end) = UnixStream::pair()?;
    let (err, err_end) = UnixStream::pair()?;
    let (report, report_end) = UnixStream::pair()?;
    let (console, console_end) = UnixStream::pair()?;
    let ends = [&out_end, &err_end, &report_end, &console_end];
    for end in ends {
        inherit(end.as_fd())?;
    }
    inherit(initrd.as_fd())?;

    let mut words = arguments(args, &kernel.image, initrd.as_raw_fd(), ends.map(AsRawFd::as_raw_fd), shares);
    // Until QEMU has them: without this the adapters would not see that it is gone, nor one guest that the other is.
    let mut theirs = None;
    if let Some(adapters) = &mut adapters {
        let ends = adapters.next_guest()?;
        words.extend(ends.options()?);
        theirs = Some(ends);
    }
    if let Some(link) = &link {
        inherit(link.as_fd())?;
        let number = if *seat == Seat::Server { 1 } else { 2 };
        words.extend(["-netdev".into(), format!("socket,id=link,fd={}", link.as_raw_fd()).into()]);
        let card = format!("virtio-net-pci,netdev=link,mac=52:54:00:09:0a:0{number},romfile=");
        words.extend(["-device".into(), card.into()]);
    }
    if args.verbose {
        eprintln!("vm: qemu-system-x86_64 {}", words.join(OsStr::new(" ")).to_string_lossy());
    }
    let qemu = dies_with(std::process::id(), "qemu-system-x86_64")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start setpriv")?;
    drop((theirs, link));
    for stream in [&out, &err, &report, &console] {
        stream.set_nonblocking(true)?;
    }
    Ok(Guest { qemu, out, err, report, console, seat: *seat })
}

/// A command that runs `program` as a child of process `parent`, and which the kernel kills when that ends, however it ends.
fn dies_with(parent: u32, program: &str) -> Command {
    // setpriv asks the kernel for that. Of a parent that ended before then, nobody tells: but the child has another one by now.
    const UNLESS_IT_HAS: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", UNLESS_IT_HAS, &parent.to_string(), program]);
    command
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
    // Emulated, "rep movsb" copies byte by byte, and each stac and clac ends a block of code: without the features that make the kernel
    // use these, and without its defences against other guests' speculation, the same work takes a third less time. What counts
    // instructions has the whole processor, for the C library picks its copying functions by it.
    option("-cpu", if args.icount { "max" } else { "max,-smap,-erms,-fsrm" }.into());
    option("-smp", args.cpus().to_string().into());
    option("-m", args.mem.to_string().into());
    if args.icount {
        // Adapters live in this machine's time, so that what waits for them must wait in that.
        let sleep = if args.device.adapters() == 0 { "off" } else { "on" };
        option("-icount", format!("shift=0,sleep={sleep}").into());
    }
    option("-display", "none".into());
    option("-kernel", image.into());
    option("-initrd", format!("/proc/self/fd/{initrd}").into());
    // The kernel's self-tests of its ciphers are a quarter of the time to boot.
    let mut line =
        String::from("console=ttyS0 quiet loglevel=1 panic=-1 cryptomgr.notests mitigations=off init_on_alloc=0");
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
            "cryptomgr.notests mitigations=off init_on_alloc=0 a=b ",
            "socket,id=out,fd=4 -device virtserialport,nr=1,chardev=out",
            "local,path=/,mount_tag=host,security_model=none,readonly=on",
        ] {
            assert!(line.contains(part), "no `{part}` in {line}");
        }
        assert!(line.ends_with(" -s"), "{line}");
        assert!(line.contains("-cpu max -smp"), "{line}");
        let plain = self::line("vm -- true", &[]);
        assert!(!plain.contains("icount") && plain.contains("-cpu max,-smap,"), "{plain}");
    }

    #[test]
    fn a_program_runs_only_as_the_child_of_the_process_with_which_it_dies() {
        let runs = |parent| dies_with(parent, "echo").arg("two  words").output().unwrap().stdout;
        assert_eq!(runs(std::process::id()), b"two  words\n");
        assert_eq!(runs(std::os::unix::process::parent_id()), b"");
    }

    #[test]
    fn a_comma_in_a_shared_path_is_doubled() {
        let line = line("vm -- true", &["/a".into(), "/b,c".into()]);
        assert!(line.contains("local,path=/a,mount_tag=share0,"), "{line}");
        assert!(line.contains("local,path=/b,,c,mount_tag=share1,"), "{line}");
    }
}
