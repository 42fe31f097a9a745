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
use std::any::Any;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::RwLock;
use support::{Device, Skip};

type Test = (&'static str, fn(&Device));

/// Tests that mostly wait run so many at a time. Where this process is the peer, which must answer in time, a test runs alone.
const AT_ONCE: usize = 3;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(AT_ONCE);
    let device = Device::from_env();
    let waiting = [failures::WAITING, over_cm::WAITING];
    // Two processes at a time are enough for a guest with two processors.
    let alone = [
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
    // Those that wait are readers of it.
    let turn: &'static RwLock<()> = Box::leak(Box::default());
    let beside = waiting.into_iter().flatten().map(|&test| trial(test, &device, || Box::new(turn.read().unwrap())));
    let alone = alone.into_iter().flatten().map(|&test| trial(test, &device, || Box::new(turn.write().unwrap())));
    libtest_mimic::run(&arguments, beside.chain(alone).collect()).exit_code()
}

/// The test, which waits for its turn.
fn trial((name, test): Test, device: &Option<Device>, turn: impl FnOnce() -> Box<dyn Any> + Send + 'static) -> Trial {
    let device = device.clone();
    Trial::ignorable_test(name, move || {
        let Some(device) = device else {
            return Ok(Completion::ignored_with("IRONVERBS_TEST_DEVICE names no device to test"));
        };
        let _turn = turn();
        match catch_unwind(|| test(&device)) {
            Ok(()) => Ok(Completion::Completed),
            Err(payload) => match payload.downcast::<Skip>() {
                Ok(skip) => Ok(Completion::ignored_with(skip.0)),
                Err(payload) => Err(Failed::from(support::panic_message(&*payload))),
            },
        }
    })
}
