//! rdma-probe on a real device: against itself, against the C tools, and against everything that can go wrong.
//!
//! `IRONVERBS_TEST_DEVICE` names the device. Without it, every test says that it was skipped. The C tools are those of
//! the Debian package ibverbs-utils.

mod against_c;
mod bad_peer;
mod capable;
mod failures;
mod hosts;
mod itself;
mod over_cm;
mod own_device;
mod pairs;
mod shows;
mod support;
mod watches;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::panic::catch_unwind;
use std::process::ExitCode;
use support::{Device, Skip};

type Test = (&'static str, fn(&Device));

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Two processes at a time are enough for a guest with two processors.
    arguments.test_threads = Some(1);
    let device = Device::from_env();
    let all = [
        against_c::TESTS,
        bad_peer::TESTS,
        capable::TESTS,
        failures::TESTS,
        hosts::TESTS,
        itself::TESTS,
        over_cm::TESTS,
        pairs::TESTS,
        shows::TESTS,
        watches::TESTS,
    ];
    let trials = all.into_iter().flatten().map(|&(name, test)| trial(name, test, device.clone())).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &'static str, test: fn(&Device), device: Option<Device>) -> Trial {
    Trial::ignorable_test(name, move || {
        let Some(device) = device else {
            return Ok(Completion::ignored_with("IRONVERBS_TEST_DEVICE names no device to test"));
        };
        match catch_unwind(|| test(&device)) {
            Ok(()) => Ok(Completion::Completed),
            Err(payload) => match payload.downcast::<Skip>() {
                Ok(skip) => Ok(Completion::ignored_with(skip.0)),
                Err(payload) => Err(Failed::from(support::panic_message(&*payload))),
            },
        }
    })
}
