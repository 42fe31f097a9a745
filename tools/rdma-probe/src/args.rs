//! The command line.

use crate::decode::args::{Decode, NOTES as DECODE_NOTES};
use crate::failure::{EXIT_CODES, Failure, Kind};
use crate::sim::SimLink;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ironverbs::{Gid, GidWant, Mtu, PortNum, RnrTimer};
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Longest deadline that can be asked for: a day.
const MOST_SECONDS: f64 = 86_400.0;

/// Looks at RDMA devices and pings through them.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXIT_CODES, disable_help_subcommand = true, infer_subcommands = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What all commands take.
    #[command(flatten)]
    pub global: Global,
}

/// What all commands take.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Print JSON instead of text; with =FILE, write JSON there and still print text
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write every kernel command, decoded and with its time, to standard error, or with =FILE there; of a ping
    /// through an mlx5 or a simulated device also its work queue entries and completions
    #[arg(long, global = true, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub trace: Option<PathBuf>,
    /// Use a simulated adapter in place of this host's devices: a software ConnectX on RoCE, or with =ib on InfiniBand. Two
    /// pings on this machine share its network. No figure is one of hardware
    #[arg(long, global = true, value_name = "LINK", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "roce")]
    pub sim: Option<SimLink>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List every RDMA device, and why an unusable one is unusable
    #[command(after_help = EXIT_CODES)]
    List,
    /// Show all that is known of a device, or of every device
    #[command(after_help = EXIT_CODES)]
    Info(Device),
    /// Show the GID tables, mark the GID that `ping` would use, and say why
    #[command(after_help = EXIT_CODES)]
    Gids(Gids),
    /// Send messages to and fro through a device; speaks with ibv_rc_pingpong and its sisters, too
    #[command(after_help = PING_NOTES)]
    Ping(Ping),
    /// Show what kernel, driver and device offer and refuse, and who refuses, from real attempts
    #[command(after_help = CAPS_NOTES)]
    Caps(Device),
    /// Print asynchronous events of a device, or of every device, as they come
    #[command(after_help = WATCH_NOTES)]
    Watch(Watch),
    /// Tell what the bytes of mlx5 work queue entries (WQE) and completions (CQE) say, from a log, a file or standard input
    #[command(after_help = DECODE_NOTES)]
    Decode(Decode),
    /// Print the JSON schema of what --json prints
    #[command(after_help = EXIT_CODES)]
    Schema,
}

/// Which device.
#[derive(Clone, Debug, Args)]
pub struct Device {
    /// The device's name, as rxe0, or its kernel index, as 0; without it, every device
    #[arg(value_name = "DEV")]
    pub device: Option<String>,
}

/// Which GID tables, and for whom the choice is made.
#[derive(Clone, Debug, Args)]
pub struct Gids {
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// Choose for a peer with this GID or IP address
    #[arg(long, value_name = "ADDR")]
    pub peer: Option<IpAddr>,
}

impl Gids {
    /// What is known of the peer.
    pub fn want(&self) -> Option<GidWant> {
        self.peer.map(|ip| GidWant::Peer(Gid::from(ip)))
    }
}

const CAPS_NOTES: &str = concat!(
    "What can only be known by trying is tried: small objects are made in a context of this process and destroyed at\n",
    "once. Nothing is sent, nobody else's objects are touched, and nothing is left behind, so a device may be in use.\n\n",
    "no, kernel: the running kernel's core lacks it; driver: its driver for this device does; device: the device\n",
    "does; library: rdma-probe itself does; user: this user may not.\n\n",
    "Exit codes: 0 success, also where something is refused, 3 no device, 4 not permitted, 7 device, 8 output,\n",
    "9 the device was removed; see rdma-probe --help.",
);

const WATCH_NOTES: &str = concat!(
    "The state of each port is shown first. Events of ports and of the device are seen; those of queue pairs and\n",
    "completion queues go to the program that made them. Once a second watch looks by itself, so that a change of\n",
    "which no event tells is not missed, and a device that is being removed is let go of.\n\n",
    "With --sim, the port goes down for a second every three seconds, so that there is something to see.\n\n",
    "With --json, each line is one object: {\"what\": \"initial\" | \"event\" | \"change\" | \"removed\", ...}; the last line\n",
    "tells how it ended, as the other commands do.\n\n",
    "Exit codes: 0 --count or --timeout reached, 3 no device, 4 not permitted, 8 output, 9 the device was removed,\n",
    "10 fewer events than --count within --timeout, 130 interrupted; see rdma-probe --help.",
);

/// What to watch, and for how long.
#[derive(Clone, Debug, Args)]
pub struct Watch {
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// Stop after so many events
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
}

const PING_NOTES: &str = concat!(
    "Without HOST, ping is the server and waits for a client; with HOST, it is the client. Either end may be\n",
    "ibv_rc_pingpong, or with --transport its sister of that name. Nothing is negotiated: both ends need the same\n",
    "--transport, --size, --iters, --mtu and --sl.\n\n",
    "With --sim, both ends are simulated: rdma-probe ping --sim, and rdma-probe ping --sim localhost beside it, as the same\n",
    "user. The times are those of a simulation: they say nothing of any hardware.\n\n",
    "With --cm, both ends are rdma-probe: the kernel's connection manager brings them together, without any TCP. It connects\n",
    "--transport rc only, and leads to device, port, GID, MTU and service level itself: -d, -i, -g, -m and -l are refused.\n\n",
    "With --check, every byte of every message is verified, in both roles and with either kind of peer; the peer may do\n",
    "without.\n\n",
    "UC and UD do not send again what is lost: one lost message ends the ping with exit code 5.\n\n",
    "With --transport xsrq, which takes a device with XRC (mlx5), the server sends first, and has one client: an\n",
    "ibv_xsrq_pingpong there is to be started without --clients.\n\n",
    "Exit codes: 0 success, 2 usage, 3 no device, 4 not permitted, 5 peer, 6 data mismatch, 7 device, 8 output,\n",
    "9 the device was removed, 130 interrupted; see rdma-probe --help.",
);

/// How to ping.
#[derive(Clone, Debug, Args)]
pub struct Ping {
    /// The server's name or address; without it, be the server
    #[arg(value_name = "HOST", conflicts_with = "loopback", value_parser = NonEmptyStringValueParser::new())]
    pub host: Option<String>,
    /// Be both ends, in this process, on one device
    #[arg(long)]
    pub loopback: bool,
    /// Connect through the kernel's connection manager (rdma_cm), by IP address; both ends need it. RC only. The device, its
    /// port and its GID are those of the address, so -d, -i and -g are refused, as -m and -l are; --port is a port of the
    /// connection manager
    #[arg(long, conflicts_with_all = ["loopback", "device", "ib_port", "gid_index", "mtu", "sl"])]
    pub cm: bool,
    /// Transport service; both ends need the same
    #[arg(short = 't', long, value_enum, default_value = "rc")]
    pub transport: Transport,
    /// Device, by name or kernel index [default: the first usable one with an active port]
    #[arg(short, long, value_name = "DEV", visible_alias = "ib-dev")]
    pub device: Option<String>,
    /// TCP port of the server
    #[arg(short, long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Port of the device
    #[arg(short, long, value_name = "PORT", default_value = "1", value_parser = port_num)]
    pub ib_port: PortNum,
    /// Index into the port's GID table [default: chosen, and the reason shown; on InfiniBand none, unless the client has one]
    #[arg(short, long, value_name = "INDEX", visible_alias = "gid-idx")]
    pub gid_index: Option<u8>,
    /// Bytes of a message; k, M and G stand for powers of 1024 [default: 4096; for datagrams 1024]
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    pub size: Option<u32>,
    /// Messages each way [default: 1000; with --transport xsrq 5]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iters: Option<u64>,
    /// Receives kept posted
    #[arg(short, long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub rx_depth: u32,
    /// Queue pairs, with --transport srq; the iterations are those of all together [default: 16]
    #[arg(short = 'q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub num_qp: Option<u32>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096 [default: 1024, or less where the port has less; with --loopback the port's own]
    #[arg(short, long, value_name = "BYTES", value_parser = mtu)]
    pub mtu: Option<Mtu>,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub sl: u8,
    /// How long the peer waits after it found no receive posted here, as a code: 1 is 0.01 ms, 12 is 0.64 ms, 31 is
    /// 491.52 ms, and 0 is 655.36 ms, the longest
    #[arg(long, value_name = "CODE", default_value = "12", value_parser = rnr_timer, hide_default_value = true)]
    pub min_rnr_timer: RnrTimer,
    /// Retries when the peer has no receive posted, 0 to 6; 7 retries without end
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub rnr_retry: u8,
    /// Sleep until a completion comes, instead of polling
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub events: bool,
    /// Verify every byte of every message
    #[arg(short, long, visible_alias = "chk", action = ArgAction::SetTrue)]
    pub check: bool,
    /// Give up when the peer has been silent for so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub timeout: Duration,
    /// Give up when no connection has come about in so many seconds. Where nobody listens, a client tries again for a tenth of
    /// them, and for 3 s at least
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub connect_timeout: Duration,
    /// Address on which the server listens; a link-local one with its link, as fe80::1%eth0 [default: all]
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["host", "loopback"], value_parser = bind_address)]
    pub bind: Option<SocketAddr>,
}

/// Transport service of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection, as ibv_rc_pingpong
    Rc,
    /// Unreliable connection, as ibv_uc_pingpong
    Uc,
    /// Unreliable datagrams, as ibv_ud_pingpong
    Ud,
    /// Reliable connections on a shared receive queue, as ibv_srq_pingpong
    Srq,
    /// Extended reliable connections (XRC) to a shared receive queue, as ibv_xsrq_pingpong
    Xsrq,
}

impl Transport {
    /// In capitals, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Srq => "RC with SRQ",
            Self::Xsrq => "XRC",
        }
    }

    /// Whether what is lost is sent again.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Srq | Self::Xsrq)
    }

    /// Whether a message is one packet.
    pub fn is_datagram(self) -> bool {
        self == Self::Ud
    }

    /// What the C tools send unless told otherwise.
    fn default_size(self) -> u32 {
        if self.is_datagram() { 1024 } else { 4096 }
    }

    /// How often they do.
    fn default_iters(self) -> u64 {
        if self == Self::Xsrq { 5 } else { 1000 }
    }
}

/// As on the command line, and in the names of the C tools.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
            Self::Xsrq => "xsrq",
        })
    }
}

impl Ping {
    /// Bytes of a message.
    pub fn size(&self) -> u32 {
        self.size.unwrap_or_else(|| self.transport.default_size())
    }

    /// Messages each way.
    pub fn iters(&self) -> u64 {
        self.iters.unwrap_or_else(|| self.transport.default_iters())
    }

    /// Queue pairs of each end.
    pub fn num_qp(&self) -> u32 {
        match self.transport {
            Transport::Srq => self.num_qp.unwrap_or(16),
            _ => 1,
        }
    }

    /// Options that do not go together.
    pub fn check_options(&self) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::new(Kind::Usage, text));
        match self.transport {
            other if self.cm && other != Transport::Rc => {
                wrong(format!("--cm connects queue pairs of --transport rc, not {other}"))
            }
            Transport::Srq if self.rx_depth < self.num_qp() => wrong(format!(
                "--rx-depth is {}; with {} queue pairs, as many messages can be under way: at least so many receives",
                self.rx_depth,
                self.num_qp()
            )),
            Transport::Srq => Ok(()),
            Transport::Ud if self.mtu.is_some() => wrong(
                "--mtu is for connections: a datagram is one packet, as large as the port's MTU allows".to_owned(),
            ),
            other if self.num_qp.is_some() => {
                wrong(format!("--num-qp is for --transport srq; {other} has one queue pair"))
            }
            _ => Ok(()),
        }
    }

    /// What about the options may surprise.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let timer = self.min_rnr_timer;
        if timer.wait() > LONG_RNR_WAIT {
            notes.push(format!(
                "--min-rnr-timer {} stands for {:?}: so long does the peer wait each time it finds no receive here; 12 is \
                 0.64 ms",
                timer.code(),
                timer.wait()
            ));
        }
        if self.rnr_retry == ENDLESS_RNR_RETRIES {
            notes.push(
                "--rnr-retry 7 is without end: a peer that posts no receive is found out by --timeout alone".to_owned(),
            );
        }
        notes
    }
}

/// A longer wait for a receive is felt.
const LONG_RNR_WAIT: Duration = Duration::from_millis(50);

/// `rnr_retry` without end (IB spec 9.7.5.2.8).
pub const ENDLESS_RNR_RETRIES: u8 = 7;

/// An IP address, with port 0. No name: to ask for that one's may take long, and no signal ends it.
fn bind_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, 0).into());
    }
    let is_linked = text.split_once('%').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    if !is_linked {
        return Err("no IP address, as 192.0.2.1, 2001:db8::1 or fe80::1%eth0".to_owned());
    }
    // Who reads names knows links, too; for such an address nobody else is asked.
    let mut found = (text, 0).to_socket_addrs().map_err(|e| e.to_string())?;
    found.next().ok_or_else(|| "it has no address".to_owned())
}

fn rnr_timer(text: &str) -> Result<RnrTimer, String> {
    let code: u8 = text.parse().map_err(|_| "a code from 0 to 31".to_owned())?;
    RnrTimer::from_code(code).map_err(|e| e.to_string())
}

fn port_num(text: &str) -> Result<PortNum, String> {
    let number: u8 = text.parse().map_err(|_| "ports are numbered from 1 to 255".to_owned())?;
    PortNum::new(number).map_err(|e| e.to_string())
}

fn mtu(text: &str) -> Result<Mtu, String> {
    text.parse().ok().and_then(Mtu::from_bytes).ok_or_else(|| "one of 256, 512, 1024, 2048, 4096".to_owned())
}

/// Longest message of any queue pair (IB spec 9.7.7: 2^31 bytes). A device may take less.
const MOST_BYTES: u64 = 1 << 31;

fn size(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "a number of bytes, as 64, 4k or 1M".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(bytes @ 1..=MOST_BYTES) => Ok(bytes as u32),
        _ => Err(format!("a message has 1 to {MOST_BYTES} bytes")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= MOST_SECONDS => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("a number of seconds, more than 0 and at most {MOST_SECONDS}")),
    }
}

#[cfg(test)]
mod tests;
