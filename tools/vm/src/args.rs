//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Runs a command under a stock kernel in QEMU, with RDMA devices made for it.
///
/// The guest sees this machine's root file system, and the command runs in the current directory. What it writes stays in
/// the guest's memory, except under --share. Its standard output and error come back byte for byte, each on its own
/// stream; its standard input is empty.
#[derive(Debug, Parser)]
#[command(name = "vm", bin_name = "cargo vm", version, after_long_help = AFTER_HELP)]
pub struct Args {
    /// Which of Debian's kernels to boot.
    #[arg(long, value_enum, default_value = "6.12", value_name = "VERSION")]
    pub kernel: Stock,

    /// A kernel of your own (bzImage, or vmlinux with a PVH entry), with --modules.
    #[arg(long, value_name = "FILE", requires = "modules", conflicts_with = "kernel")]
    pub kernel_image: Option<PathBuf>,

    /// The modules of --kernel-image: the directory that holds modules.dep, or one under which lib/modules/VERSION does.
    #[arg(long, value_name = "DIR", requires = "kernel_image")]
    pub modules: Option<PathBuf>,

    /// The RDMA devices to create: none, rxe, rxe-pair, softcx or softcx:N.
    #[arg(long, value_name = "KIND", value_parser = Device::parse, default_value = "none")]
    pub device: Device,

    /// Boot two guests, with one command each: `-- SERVER'S -- CLIENT'S`. Their software adapters are on one fabric, and a network
    /// link is between them.
    #[arg(long)]
    pub pair: bool,

    /// Let software ConnectX adapters have BlueFlame: a small work request goes into a register whole.
    #[arg(long)]
    pub blue_flame: bool,

    /// A file for what the software ConnectX adapters have to say: each firmware command, and misuse.
    #[arg(long, value_name = "FILE")]
    pub device_log: Option<PathBuf>,

    /// MTU of the devices' links, in bytes (an RDMA MTU of 4096 needs 4200). By default that of the link type, 1500.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: Option<u32>,

    /// A file for each work queue entry that the adapters take and each completion that they write, in hexadecimal and in words.
    #[arg(long, value_name = "FILE")]
    pub device_record: Option<PathBuf>,

    /// Virtual CPUs. By default 2, or 1 with --icount; always 1 with softcx.
    ///
    /// On one, a program that polls starves rxe's kernel workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub smp: Option<u32>,

    /// Memory, in MiB. Half of it can hold files written.
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..))]
    pub mem: u32,

    /// Seconds after which the guest is stopped, counted from its start.
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub timeout: u64,

    /// Let the guest's clock and time-stamp counter count instructions, one per nanosecond, so that they are repeatable.
    ///
    /// With softcx only while the guest works: when it waits, both go on with this machine's time, in which the adapters live.
    ///
    /// All virtual CPUs then share one thread of this machine, and QEMU before 8.1 does not share it fairly: with --smp 2,
    /// Linux 6.1 hangs where it waits for its second CPU, and 6.12 may be very slow.
    #[arg(long)]
    pub icount: bool,

    /// Run the command as this user and group, with no other groups and an empty home directory of its own.
    #[arg(long, value_name = "UID", default_value_t = 0)]
    pub user: u32,

    /// Limit of locked memory (RLIMIT_MEMLOCK) of the command, in KiB. By default the kernel's own, 8192.
    #[arg(long, value_name = "KIB")]
    pub memlock: Option<u64>,

    /// A directory of this machine to mount read-write in the guest, at the same path. May be repeated.
    #[arg(long, value_name = "DIR")]
    pub share: Vec<PathBuf>,

    /// A variable for the command's environment, beside the caller's PATH, IRONVERBS_* and RUST_*. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub env: Vec<(String, String)>,

    /// Lines of the guest's kernel log that must not fail the run, as an extended regular expression: what a test of faults provokes.
    /// May be repeated.
    ///
    /// Only runs with software ConnectX adapters look at that log: for warnings and bugs of the whole kernel, and for whatever their
    /// driver and the RDMA core warn of.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub allow_log: Vec<String>,

    /// Misuse of the software ConnectX adapters that must not fail the run: whose report holds this text. May be repeated.
    ///
    /// What programs hear of by themselves, by a completion in error or an event, never does.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub allow_misuse: Vec<String>,

    /// Words to add to the kernel's command line. May be repeated.
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub append: Vec<String>,

    /// One more argument for QEMU. May be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,

    /// Show QEMU's command line and the guest's console on standard error.
    #[arg(long, short)]
    pub verbose: bool,

    /// A command line for the guest's shell if it is one word; otherwise a program and its arguments. With --pair, two of them,
    /// with `--` in between.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Which of a run's guests one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// The only one.
    Alone,
    /// The first of a pair.
    Server,
    /// The second of a pair, whose command begins when the first one's listens.
    Client,
}

impl Seat {
    /// What it is called in its pair: its host name, and the label of its output.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Seat::Alone => None,
            Seat::Server => Some("server"),
            Seat::Client => Some("client"),
        }
    }
}

/// What comes between the two commands of a pair.
const BETWEEN: &str = "--";

impl Args {
    /// The guests, and the command of each.
    pub fn guests(&self) -> Vec<(Seat, &[OsString])> {
        match self.command.iter().position(|word| word == BETWEEN).filter(|_| self.pair) {
            Some(at) => vec![(Seat::Server, &self.command[..at]), (Seat::Client, &self.command[at + 1..])],
            None => vec![(Seat::Alone, &self.command)],
        }
    }

    /// How many virtual CPUs the guest gets.
    pub fn cpus(&self) -> u32 {
        self.smp.unwrap_or(if self.icount || self.device.adapters() != 0 { 1 } else { 2 })
    }

    /// Why the arguments do not go together, if they do not.
    pub fn conflict(&self) -> Option<String> {
        let guests = self.guests();
        if self.device.adapters() != 0 && self.cpus() != 1 {
            Some(
                "softcx takes --smp 1: QEMU loses accesses to a proxy device that come from two processors at once"
                    .into(),
            )
        } else if self.pair && (guests.len() != 2 || guests.iter().any(|(_, command)| command.is_empty())) {
            Some("--pair takes two commands: -- SERVER'S COMMAND -- CLIENT'S COMMAND".into())
        } else if self.pair && matches!(self.device, Device::Rxe | Device::RxePair) {
            Some("--pair takes --device softcx, or none: Soft-RoCE devices are on a link of one guest's own".into())
        } else if let (0, Some(option)) = (self.device.adapters(), self.about_adapters()) {
            Some(format!(
                "{option} is about software ConnectX adapters, and this run has none: it takes --device softcx"
            ))
        } else {
            None
        }
    }

    /// An option that means nothing without software ConnectX adapters.
    fn about_adapters(&self) -> Option<&'static str> {
        [
            (self.blue_flame, "--blue-flame"),
            (self.device_log.is_some(), "--device-log"),
            (self.device_record.is_some(), "--device-record"),
            (!self.allow_log.is_empty(), "--allow-log"),
            (!self.allow_misuse.is_empty(), "--allow-misuse"),
        ]
        .into_iter()
        .find_map(|(given, option)| given.then_some(option))
    }
}

const AFTER_HELP: &str = "\
Devices:
  none      no RDMA device
  rxe       rxe0 on a dummy link net0: 10.9.9.1/24, fd00:9:9::1/64
  rxe-pair  rxe0 and rxe1 on the ends net0 and net1 of a veth pair: 10.9.9.1 and 10.9.9.2, fd00:9:9::1 and ::2.
            Packets between the two cross the link, so that `tc qdisc add dev net0 root netem loss 2%` loses some.
  softcx    mlx5_0, a software ConnectX with an InfiniBand port, under the kernel's own mlx5 driver; softcx:N has mlx5_0 to
            mlx5_N-1 on one fabric, LIDs 1 to N. At the end the driver is unloaded, which has to leave nothing behind.
            With --pair each guest has N, and LIDs go on in the second.
  GID index 0 is the link-local address, 1 the IPv4 address, 2 the IPv6 address. All but link-local ones are routable.

Pairs:
  The guests are called server, 10.9.10.1, and client, 10.9.10.2, and know each other by these names. The client's command begins
  when the server's listens on a TCP port, has ended, or has run for 20 s. Every line of output begins with its guest's name. When
  one command fails, the other has 10 s to end. The exit status is the server's, or the client's if that is 0 or it had to be stopped.

Exit status:
  the command's own, 128+N if signal N ended it, or
  2         wrong usage of this tool
  124       time-out
  125       no answer from the guest, or the guest could not be started or set up; or, though the command succeeded, software
            ConnectX adapters failed the run: by a line of the kernel's log, by objects that the driver left behind, by misuse,
            or by their process's end. The reason is on standard error
  128+N     this tool was stopped by signal N (1, 2, 13 or 15), and stopped the guest

Kernels and tools:
  As root on Debian, missing packages are installed (qemu-system-x86, kmod, xz-utils, zstd, iproute2). Kernel images are
  unpacked without installing them into $IRONVERBS_VM_CACHE, else $XDG_CACHE_HOME/ironverbs-vm, else
  ~/.cache/ironverbs-vm. Remove that directory to fetch Debian's current ones again.

Examples:
  cargo vm --device rxe -- ibv_devinfo -v
  cargo vm --kernel 6.1 --device rxe-pair --mtu 4200 -- 'ibv_rc_pingpong -d rxe0 -g 1 & sleep 1; ibv_rc_pingpong -d rxe1 -g 1 10.9.9.1'
  cargo vm --pair --device softcx -- ibv_rc_pingpong -d mlx5_0 -- ibv_rc_pingpong -d mlx5_0 server";

/// A kernel that Debian packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stock {
    /// Debian 12's.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's, and Debian 12's newer choice.
    #[value(name = "6.12")]
    V6_12,
}

impl Stock {
    /// The version as the packages' names have it.
    pub fn version(self) -> &'static str {
        match self {
            Stock::V6_1 => "6.1",
            Stock::V6_12 => "6.12",
        }
    }
}

/// The RDMA devices to create in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// None.
    None,
    /// One, on a dummy link.
    Rxe,
    /// Two, on a veth pair.
    RxePair,
    /// So many software ConnectX adapters.
    Softcx(u32),
}

/// Adapters that fit on a bus beside what else is there.
const MAX_ADAPTERS: u32 = 16;

impl Device {
    /// The name on the command line and in the guest's scripts.
    pub fn name(self) -> &'static str {
        match self {
            Device::None => "none",
            Device::Rxe => "rxe",
            Device::RxePair => "rxe-pair",
            Device::Softcx(_) => "softcx",
        }
    }

    /// How many software ConnectX adapters there are.
    pub fn adapters(self) -> u32 {
        if let Device::Softcx(count) = self { count } else { 0 }
    }

    fn parse(text: &str) -> Result<Device, String> {
        let count = |text: &str| text.parse().ok().filter(|count| (1..=MAX_ADAPTERS).contains(count));
        match text {
            "none" => Ok(Device::None),
            "rxe" => Ok(Device::Rxe),
            "rxe-pair" => Ok(Device::RxePair),
            "softcx" => Ok(Device::Softcx(1)),
            _ => match text.strip_prefix("softcx:").map(count) {
                Some(Some(count)) => Ok(Device::Softcx(count)),
                Some(None) => Err(format!("softcx:N takes N from 1 to {MAX_ADAPTERS}")),
                None => Err("the kinds are none, rxe, rxe-pair, softcx and softcx:N".to_owned()),
            },
        }
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty()
        || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        || name.as_bytes()[0].is_ascii_digit()
    {
        return Err(format!("`{name}` is no name of an environment variable"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("vm").chain(words.split(' ')))
    }

    #[test]
    fn defaults_are_two_cpus_of_6_12_without_a_device() {
        let args = parse("-- true").unwrap();
        assert_eq!((args.kernel, args.device, args.cpus(), args.user), (Stock::V6_12, Device::None, 2, 0));
        assert_eq!(args.command, ["true"]);
    }

    #[test]
    fn counting_instructions_takes_one_cpu_unless_told() {
        assert_eq!(parse("--icount -- true").unwrap().cpus(), 1);
        assert_eq!(parse("--icount --smp 2 -- true").unwrap().cpus(), 2);
    }

    #[test]
    fn everything_after_the_dashes_is_the_command() {
        let args = parse("--kernel 6.1 --device rxe-pair --mtu 4200 --env A=b=c -- ls -l --device").unwrap();
        assert_eq!((args.kernel, args.device, args.mtu), (Stock::V6_1, Device::RxePair, Some(4200)));
        assert_eq!(args.env, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(args.command, ["ls", "-l", "--device"]);
    }

    #[test]
    fn adapters_take_one_cpu() {
        let args = parse("--device softcx -- true").unwrap();
        assert_eq!((args.device, args.cpus(), args.conflict()), (Device::Softcx(1), 1, None));
        assert_eq!(parse("--device softcx:3 -- true").unwrap().device, Device::Softcx(3));
        assert!(parse("--device softcx --smp 2 -- true").unwrap().conflict().is_some());
        assert!(parse("--device rxe --smp 2 -- true").unwrap().conflict().is_none());
    }

    #[test]
    fn options_about_adapters_take_adapters() {
        for option in ["--blue-flame", "--device-log log", "--device-record file", "--allow-log a", "--allow-misuse b"]
        {
            for device in ["none", "rxe", "rxe-pair"] {
                let conflict = parse(&format!("{option} --device {device} -- true")).unwrap().conflict();
                let name = option.split(' ').next().unwrap();
                let conflict = conflict.unwrap_or_else(|| panic!("{option} with {device}"));
                assert!(conflict.starts_with(&format!("{name} is about software ConnectX adapters")), "{conflict}");
            }
            assert_eq!(parse(&format!("{option} --device softcx -- true")).unwrap().conflict(), None, "{option}");
        }
    }

    #[test]
    fn a_pair_has_two_commands() {
        let args = parse("--pair --device softcx -- ls -l -- cat -- file").unwrap();
        let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        let (server, client) = (words(&["ls", "-l"]), words(&["cat", "--", "file"]));
        assert_eq!(args.guests(), [(Seat::Server, &server[..]), (Seat::Client, &client[..])]);
        assert_eq!(args.conflict(), None);
        for words in ["--pair -- ls", "--pair -- ls --", "--pair -- -- ls", "--pair --device rxe -- ls -- ls"] {
            assert!(parse(words).unwrap().conflict().is_some(), "{words}");
        }
        let alone = parse("-- cat -- file").unwrap();
        assert_eq!(alone.guests(), [(Seat::Alone, &words(&["cat", "--", "file"])[..])]);
    }

    #[test]
    fn patterns_of_the_log_may_be_repeated() {
        assert_eq!(parse("--allow-log a|b --allow-log -c -- true").unwrap().allow_log, ["a|b", "-c"]);
        for option in ["--allow-log", "--allow-misuse"] {
            assert!(Args::try_parse_from(["vm", option, "", "--", "true"]).is_err(), "it would allow everything");
        }
    }

    #[test]
    fn wrong_usage_exits_with_2() {
        for words in [
            "--device rxe",
            "true",
            "--kernel 5.10 -- true",
            "--device mlx5 -- true",
            "--device softcx:0 -- true",
            "--device softcx:17 -- true",
            "--device softcx: -- true",
            "--smp 0 -- true",
            "--timeout 0 -- true",
            "--mtu 100 -- true",
            "--env 1A=b -- true",
            "--env A -- true",
            "--kernel-image vmlinux -- true",
            "--modules dir -- true",
            "--kernel-image vmlinux --modules dir --kernel 6.1 -- true",
        ] {
            let error = parse(words).expect_err(words);
            assert_eq!(error.exit_code(), 2, "{words}: {error}");
        }
    }
}
