//! The fault sweep: every command that the library gives to the kernel fails in turn, on a real device, and nothing comes
//! of it but an error that says so.
//!
//! `IRONVERBS_TEST_DEVICE` names the device (as `rxe0`), as for the conformance suite; without it every test is reported as
//! ignored.

#[path = "../conformance/harness.rs"]
mod harness;
#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "../conformance/target.rs"]
mod target;

mod commands;
mod destroy;
mod scene;
mod setup;
mod shutdown;

fn main() -> std::process::ExitCode {
    harness::main(&[setup::TESTS, commands::TESTS, shutdown::TESTS, destroy::TESTS])
}
