//! Runs tests one at a time, each on a thread of its own with a deadline, and reports those that cannot run as ignored,
//! with the reason.

use crate::target::{Target, open_descriptors};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::any::Any;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// No test takes this long, even in an emulated guest on a busy machine: one that does hangs. `IRONVERBS_TEST_SECONDS` gives more, for
/// runs with more messages.
fn limit() -> Duration {
    let seconds = std::env::var("IRONVERBS_TEST_SECONDS").ok();
    Duration::from_secs(seconds.map_or(300, |n| n.parse().expect("IRONVERBS_TEST_SECONDS is a number")))
}

/// From here on a test's time is worth a line: the whole suite is to stay within a few minutes.
const SLOW: Duration = Duration::from_secs(5);

/// One test: a function that panics if the device or the library is wrong.
#[derive(Clone, Copy)]
pub struct Test {
    pub name: &'static str,
    pub run: fn(&Target),
}

/// The tests of a module, by name.
#[macro_export]
macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        /// Every test of this module.
        pub const TESTS: &[$crate::harness::Test] = &[
            $($crate::harness::Test { name: concat!(module_path!(), "::", stringify!($test)), run: $test },)*
        ];
    };
}

/// Ends the running test, which cannot be run here for the given reason.
#[allow(dead_code, reason = "not every test program skips by itself")]
pub fn skip(reason: impl Into<String>) -> ! {
    resume_unwind(Box::new(Skip(reason.into())))
}

struct Skip(String);

static STEP: Mutex<String> = Mutex::new(String::new());
static LEAKY: AtomicBool = AtomicBool::new(false);

/// The running test makes objects leak on purpose, and they keep their descriptors.
#[allow(dead_code, reason = "not every test program leaks")]
pub fn descriptors_may_stay() {
    LEAKY.store(true, Ordering::Relaxed);
}

/// Says what the running test is about to do; a failure names the last step.
pub fn step(what: impl Into<String>) {
    *STEP.lock().unwrap() = what.into();
}

/// Runs the tests that the command line asks for, on the device that the environment names.
pub fn main(tests: &[&[Test]]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Tests count descriptors and measure times, so they do not share the process.
    arguments.test_threads = Some(1);
    let target = match Target::from_env() {
        Ok(target) => target.map(Arc::new),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let trials = tests.iter().copied().flatten().map(|test| trial(*test, target.clone())).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(test: Test, target: Option<Arc<Target>>) -> Trial {
    let name = test.name.split_once("::").map_or(test.name, |(_, rest)| rest);
    Trial::ignorable_test(name, move || match target {
        Some(target) => run(test, target),
        None => Ok(Completion::ignored_with("IRONVERBS_TEST_DEVICE names no device to test")),
    })
}

/// Runs one test. Beside its own checks, it must end in time and give every descriptor back.
fn run(test: Test, target: Arc<Target>) -> Result<Completion, Failed> {
    step("");
    LEAKY.store(false, Ordering::Relaxed);
    let descriptors = open_descriptors();
    let started = Instant::now();
    let (tell, told) = channel::<()>();
    let host = target.host.clone();
    let thread = thread::Builder::new().name(test.name.into()).spawn(move || {
        let _tell = tell;
        (test.run)(&target);
    });
    let thread = thread.map_err(|error| format!("no thread: {error}"))?;
    let limit = limit();
    if let Err(RecvTimeoutError::Timeout) = told.recv_timeout(limit) {
        return Err(at_step(format!("still running after {limit:?}\n{}", host.reports().join("\n"))));
    }
    let ended = thread.join();
    if started.elapsed() > SLOW {
        eprintln!("{} took {:.1?}", test.name, started.elapsed());
    }
    match ended {
        Ok(()) => {}
        Err(payload) => match payload.downcast::<Skip>() {
            Ok(skip) => return Ok(Completion::ignored_with(skip.0)),
            Err(payload) => {
                let mut what = message(&*payload);
                for report in host.reports() {
                    what.push('\n');
                    what.push_str(&report);
                }
                return Err(at_step(what));
            }
        },
    }
    for report in host.reports() {
        eprintln!("{}: {report}", test.name);
    }
    let left = open_descriptors();
    if left != descriptors && !LEAKY.load(Ordering::Relaxed) {
        return Err(format!("descriptors before: {descriptors:?}, after: {left:?}").into());
    }
    Ok(Completion::Completed)
}

fn at_step(what: String) -> Failed {
    let step = STEP.lock().unwrap();
    if step.is_empty() { what.into() } else { format!("{what}\nat step: {step}").into() }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".into())
}
