//! The tokio adapters on a real device, which `IRONVERBS_TEST_DEVICE` names as for the conformance suite.

#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "../conformance/fixture.rs"]
mod fixture;
#[path = "../conformance/harness.rs"]
mod harness;
#[allow(dead_code, reason = "shared with the conformance suite")]
#[path = "../conformance/target.rs"]
mod target;

mod alloc;
mod cancel;
mod waiting;

fn main() -> std::process::ExitCode {
    harness::main(&[waiting::TESTS, alloc::TESTS, cancel::TESTS])
}

/// A runtime of this thread alone.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Waits for as long as patience lasts.
async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(fixture::PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {:?}: {what}", fixture::PATIENCE),
    }
}
