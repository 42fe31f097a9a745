//! See the crate's library.

fn main() -> std::process::ExitCode {
    softcx_pci::run(std::env::args_os())
}
