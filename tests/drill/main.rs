//! What a program sees when its device fails, goes and comes back: on a software ConnectX under the kernel's own mlx5 driver, in a
//! guest of `cargo vm --device softcx`.
//!
//! `IRONVERBS_TEST_DEVICE` names the device, as for the conformance suite; without it every test is reported as ignored, and on
//! any other device, too: no test here touches a driver that is not the guest's own.

#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "../conformance/fixture.rs"]
mod fixture;
#[path = "../conformance/harness.rs"]
mod harness;
#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "../conformance/target.rs"]
mod target;

mod adapter;
mod gone;
mod port;
mod traffic;

fn main() -> std::process::ExitCode {
    harness::main(&[port::TESTS, gone::TESTS, traffic::TESTS])
}
