//! The conformance suite: what the library promises, on a real device.
//!
//! `IRONVERBS_TEST_DEVICE` names the device (as `rxe0`); without it every test is reported as ignored.
//! `IRONVERBS_TEST_PEER` names a second device of this host for the other side of each connection (default: the same one),
//! `IRONVERBS_TEST_PORT` the port (default 1) and `IRONVERBS_TEST_GID_INDEX` the GID index (default: chosen by the
//! library) of both.

mod adapter;
mod capacity;
mod completion_queues;
mod cq_options;
mod cycles;
mod datagrams;
mod device_events;
mod draining;
mod errors;
mod events;
mod fixture;
mod harness;
mod inline_address;
mod lifetime;
mod limits;
mod memory;
mod multicast;
mod opcodes;
mod persist;
mod polling;
mod pool;
mod qp_events;
mod rings;
mod scope;
mod seen;
mod srq;
mod srq_transports;
mod states;
mod target;
mod threads;
mod transitions;
mod volume;
mod windows;
mod xrc;

fn main() -> std::process::ExitCode {
    let code = harness::main(&[
        opcodes::TESTS,
        capacity::TESTS,
        rings::TESTS,
        polling::TESTS,
        datagrams::TESTS,
        inline_address::TESTS,
        completion_queues::TESTS,
        cq_options::TESTS,
        multicast::TESTS,
        errors::TESTS,
        states::TESTS,
        transitions::TESTS,
        draining::TESTS,
        events::TESTS,
        device_events::TESTS,
        qp_events::TESTS,
        lifetime::TESTS,
        cycles::TESTS,
        pool::TESTS,
        scope::TESTS,
        srq::TESTS,
        srq_transports::TESTS,
        limits::TESTS,
        memory::TESTS,
        windows::TESTS,
        xrc::TESTS,
        adapter::TESTS,
        persist::TESTS,
        threads::TESTS,
        volume::TESTS,
    ]);
    if let Err(error) = seen::write() {
        eprintln!("cannot write what was seen: {error}");
        return std::process::ExitCode::FAILURE;
    }
    code
}
