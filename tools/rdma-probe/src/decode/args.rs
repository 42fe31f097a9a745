//! The command line of `rdma-probe decode`.

use super::{Kind, Layout};
use clap::{Args, ValueEnum};

/// What the help says in the end.
pub const NOTES: &str = concat!(
    "Dumps are found in any text: lines of a kernel log (\"dump error cqe\"), of libmlx5 (\"got completion with error\"), of xxd,\n",
    "hexdump -C and od -t x1, or plain digits. Bytes are in the order of memory; numbers in entries are big endian.\n",
    "What an entry is, and of which type of queue pair, is guessed from its bytes where nobody says so: a receive without\n",
    "an end of its list cannot be told from a send.\n\n",
    "    rdma-probe decode --cqe '00*52' 00008813 08006214 0000f6d2\n",
    "    dmesg | rdma-probe decode\n\n",
    "Exit codes: 0 success, 2 usage, also where there is nothing to decode, 6 an entry is damaged or cut off, 8 output; see\n",
    "rdma-probe --help.",
);

/// What to decode.
#[derive(Clone, Debug, Default, Args)]
pub struct Decode {
    /// Hexadecimal digits, or the name of a file, or - for standard input [default: -]
    #[arg(value_name = "HEX|FILE")]
    pub input: Vec<String>,
    /// The entries are send work queue entries
    #[arg(long, group = "what", visible_alias = "send-wqe")]
    pub wqe: bool,
    /// The entries are receives of a queue pair
    #[arg(long, group = "what")]
    pub recv_wqe: bool,
    /// The entries are receives of a shared receive queue
    #[arg(long, group = "what")]
    pub srq_wqe: bool,
    /// The entries are completions
    #[arg(long, group = "what")]
    pub cqe: bool,
    /// Type of the queue pair, which shapes its sends
    #[arg(long, value_enum)]
    pub qp: Option<QpLayout>,
    /// Bytes of an entry of the completion queue: 64 or 128
    #[arg(long, value_name = "BYTES", value_parser = cqe_size)]
    pub cqe_size: Option<u8>,
}

impl Decode {
    /// What the entries are, if it was said.
    pub fn kind(&self) -> Option<Kind> {
        let said = [
            (self.wqe, Kind::SendWqe),
            (self.recv_wqe, Kind::RecvWqe),
            (self.srq_wqe, Kind::SrqWqe),
            (self.cqe, Kind::Cqe),
        ];
        said.into_iter().find(|(said, _)| *said).map(|(_, kind)| kind)
    }
}

fn cqe_size(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|size| matches!(size, 64 | 128)).ok_or_else(|| "64 or 128".to_owned())
}

/// Type of a queue pair, as far as it shapes its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QpLayout {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
    /// Initiator of an extended reliable connection
    Xrc,
}

impl From<QpLayout> for Layout {
    fn from(qp: QpLayout) -> Self {
        match qp {
            QpLayout::Rc | QpLayout::Uc => Self::Connected,
            QpLayout::Ud => Self::Datagram,
            QpLayout::Xrc => Self::Xrc,
        }
    }
}
