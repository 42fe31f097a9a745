//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Counts the user-space instructions of post and poll, beside those of libibverbs with its provider for the device.
///
/// Builds one program for each, and runs both in a guest with a Soft-RoCE device (see `cargo vm --help`), where they are run
/// instruction by instruction. Needs a C compiler and the Debian packages libibverbs-dev and ibverbs-providers.
#[derive(Debug, Parser)]
#[command(name = "rings", bin_name = "cargo rings", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Which of Debian's kernels to boot.
    #[arg(long, value_enum, default_value = "6.12", value_name = "VERSION")]
    pub kernel: Kernel,

    /// Print JSON instead of the table: {"kernel", "libibverbs", "rustc", "operations": [{"id", "title", "requests",
    /// "ironverbs": {"own", "any"}, "libibverbs": {"post", "wr"}, "ratio"}]}, where each of the four is null or
    /// {"median", "min", "max"} in instructions per request, and the ratio is that of "any" to the lower of the other two.
    #[arg(long, verbatim_doc_comment)]
    pub json: bool,

    /// Count on a software ConnectX under the kernel's own mlx5 driver instead. The JSON also has "held": {"operations": [{"id", "title",
    /// "limit", "tracer": {"own", "any", "libmlx5"}}], "clock": [{"id", "title", "clock": {"own", "any", "libmlx5"}}]}, per request.
    #[arg(long)]
    pub mlx5_driver: bool,

    /// With --mlx5-driver: count only those posts and polls that have a limit, which takes a third of the time, and fail unless they
    /// take at most the share of libmlx5's instructions that they may.
    #[arg(long, requires = "mlx5_driver", conflicts_with_all = ["json", "write"])]
    pub limits: bool,

    /// Count posts and polls of an mlx5 device instead, without C: on the software ConnectX, in this machine, beside the bare stores of
    /// the same bytes. The JSON is {"rustc", "operations": [{"id", "title", "requests", "mlx5", "any", "floor"}]}, in
    /// instructions per request.
    #[arg(long, conflicts_with = "mlx5_driver")]
    pub mlx5: bool,

    /// With --mlx5: fail if an operation takes over 2 % more than in this table, made by --mlx5 --json; or if what holds for
    /// all tables does not: posts take at most 1.5 times the bare stores, and the same with 10 000 queue pairs as with one.
    #[arg(long, value_name = "FILE", requires = "mlx5")]
    pub check: Option<PathBuf>,

    /// Also write the table to a file.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    #[command(subcommand)]
    pub command: Option<Internal>,
}

#[derive(Debug, Subcommand)]
pub enum Internal {
    /// Counts one program's marked operations, and prints them as one line of JSON. Runs in the guest.
    #[command(hide = true)]
    Count {
        /// Count only operations of these names.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kernel {
    /// Debian 12's.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's.
    #[value(name = "6.12")]
    V6_12,
}

impl Kernel {
    pub fn version(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }
}
