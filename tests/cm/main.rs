//! The connection manager: what the library promises of it, on a real device, and that it gets on with the unmodified programs
//! of rdmacm-utils.
//!
//! `IRONVERBS_TEST_DEVICE` names the device (as `rxe0`), which needs an IP address; without it every test is reported as
//! ignored. With `IRONVERBS_TEST_NETWORK` set, tests also change the machine's network: for a guest of one's own.

#[path = "../conformance/harness.rs"]
mod harness;
#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "../conformance/target.rs"]
mod target;

mod cmatose;
mod connections;
mod crowd;
mod datagrams;
mod ends;
mod failures;
mod killed;
mod lost;
mod mckey;
mod options;
mod ours_killed;
mod peer;
mod places;
mod removed;
mod rping;
mod scene;
#[cfg(feature = "tokio")]
mod tasks;
mod times;
mod udaddy;
mod victim;

fn main() -> std::process::ExitCode {
    if let Some(status) = victim::main_of_one() {
        return status;
    }
    harness::main(&[
        connections::TESTS,
        ends::TESTS,
        failures::TESTS,
        places::TESTS,
        options::TESTS,
        lost::TESTS,
        datagrams::TESTS,
        rping::TESTS,
        cmatose::TESTS,
        udaddy::TESTS,
        mckey::TESTS,
        killed::TESTS,
        ours_killed::TESTS,
        removed::TESTS,
        crowd::TESTS,
        times::TESTS,
        #[cfg(feature = "tokio")]
        tasks::TESTS,
    ])
}
