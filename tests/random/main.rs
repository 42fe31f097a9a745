//! Random programs on two simulated adapters, against plain vectors.
//!
//! Each program makes some pairs of queue pairs of any transport, and does with them what programs do, over a network that
//! loses, doubles and reorders packets. A reference keeps what memory and completions should be: all memory and every
//! completion must be so, and the adapters must find nothing wrong with how they were used. What unreliable transports may
//! lose is allowed to be missing, and nothing else.
//!
//! A run has 100 programs, `IRONVERBS_TEST_PROGRAMS` another number. The seed is printed; `IRONVERBS_TEST_SEED` makes a
//! run start with that one. Program n of a run is program 0 of the run whose seed is larger by n.

mod connect;
mod post;
mod program;
mod push;
mod reference;
mod settle;
mod world;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn memory_and_completions_are_as_in_the_reference() {
    let programs: u64 = variable("PROGRAMS").unwrap_or(100);
    let seed: u64 = variable("SEED").unwrap_or_else(|| {
        // The lower half, so that it is a number that one can type.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    // Past the test harness, which shows the output of failed tests only.
    let _ = writeln!(std::io::stderr(), "{programs} random programs, seed {seed}");
    let quiet = Quiet::new();
    for n in 0..programs {
        let seed = seed.wrapping_add(n);
        if let Err(failure) = run(seed) {
            drop(quiet);
            panic!("IRONVERBS_TEST_SEED={seed} IRONVERBS_TEST_PROGRAMS=1 does it again\n{failure}");
        }
    }
    let packed = world::PACKED.load(std::sync::atomic::Ordering::Relaxed);
    assert!(packed > 0 || programs < 100, "no completion came in a block");
    let inside = world::INSIDE.each_ref().map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
    assert!(inside.iter().all(|n| *n > 0) || programs < 100, "nothing came inside completions: {inside:?}");
    let xrc = world::XRC.each_ref().map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
    assert!(xrc[..3].iter().all(|n| *n > 0) || programs < 100, "nothing went over XRC: {xrc:?}");
    // There are few of these.
    assert!(xrc[3] > 0 || programs < 1000, "no message was read after its pair was gone: {xrc:?}");
}

/// Makes the program of a seed and runs it. A failure tells the smallest program that was found to fail.
fn run(seed: u64) -> Result<(), String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { failure_persistence: None, max_shrink_iters: 1000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tree = program::programs().new_tree(&mut runner).map_err(|why| why.to_string())?;
    let first = tree.current();
    match runner.run_one(tree, |program| {
        world::run(&program);
        Ok(())
    }) {
        Ok(_) => Ok(()),
        Err(TestError::Abort(why)) => Err(why.to_string()),
        Err(TestError::Fail(why, least)) => {
            let mut text = format!("{why}");
            LAST_PANIC.with_borrow(|at| write!(text, "\n{at}")).unwrap();
            write!(text, "\nthe program, of {} steps, made shorter:\n{least}", first.steps.len()).unwrap();
            Err(text)
        }
    }
}

fn variable<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> Option<T> {
    std::env::var(format!("IRONVERBS_TEST_{name}")).ok().map(|text| text.parse().unwrap())
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

type Hook = Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Sync + Send>;

/// While it is there, panics of programs are noted and not printed: making a failed program shorter takes hundreds.
struct Quiet(Option<Hook>);

impl Quiet {
    fn new() -> Self {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|info| LAST_PANIC.with_borrow_mut(|at| *at = info.to_string())));
        Self(Some(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            std::panic::set_hook(before);
        }
    }
}

/// A note that goes with the failure that unwinds.
pub fn add_to_failure(text: &str) {
    LAST_PANIC.with_borrow_mut(|at| write!(at, "\n{text}").unwrap());
}
