//! The port goes down and comes back: events say so, and what is under way meanwhile ends as the transport has it.

use crate::adapter::{Adapter, expect, until_state, works};
use crate::fixture::{Pair, Setup};
use crate::harness::{skip, step};
use crate::target::Target;
use crate::tests;
use ironverbs::{AckTimeout, AsyncEventType, ConnectOptions, PortState, QpState, Subject, WcStatus, WrFlags};
use softcx::pci::Fault;

tests! {
    every_program_hears_of_the_port,
    sends_without_a_port_are_given_up,
    sends_wait_for_the_port,
}

fn every_program_hears_of_the_port(target: &Target) {
    let adapter = Adapter::of(target);
    let contexts = [target.open(), target.open()];
    let events = contexts.each_ref().map(|context| context.async_events());
    for round in 0..3 {
        step(format!("round {round}"));
        for (fault, kind, state) in [
            (Fault::PortDown, AsyncEventType::PORT_ERR, PortState::DOWN),
            (Fault::PortUp, AsyncEventType::PORT_ACTIVE, PortState::ACTIVE),
        ] {
            adapter.make(fault);
            for events in &events {
                assert_eq!(expect(events, kind).subject, Subject::Port(target.port));
            }
            until_state(target, state);
        }
    }
    drop(events);
    works(target);
}

fn other_device(target: &Target) {
    if target.peer == target.device {
        skip("IRONVERBS_TEST_PEER names no second device: the one whose port goes down would be both sides");
    }
}

fn impatient(options: &mut ConnectOptions) {
    options.timeout = AckTimeout::from_code(12).unwrap();
    options.retry_count = 2;
}

/// Each send comes back, the first with the reason, the others flushed; so do receives, once the queue pair has failed.
fn sends_without_a_port_are_given_up(target: &Target) {
    let adapter = Adapter::of(target);
    other_device(target);
    let mut pair: Pair = Pair::new(target, &Setup { options: impatient, ..Setup::default() });
    let (entry, remote) = (pair.a.sge(0, 64), pair.b.remote(0));
    pair.a.recv(9, &[entry]);
    let events = pair.a.context.async_events();
    adapter.make(Fault::PortDown);
    expect(&events, AsyncEventType::PORT_ERR);
    pair.a.send(|batch| (0..4).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
    let mut all = pair.a.completions(5);
    // Sends complete in order; where the receive comes in between is open.
    all.sort_by_key(|wc| wc.wr_id);
    let statuses: Vec<_> = all.iter().map(|wc| (wc.wr_id, wc.status())).collect();
    let flushed = [1, 2, 3, 9].map(|id| (id, WcStatus::WR_FLUSH_ERR));
    assert_eq!(statuses, [&[(0, WcStatus::RETRY_EXC_ERR)][..], &flushed].concat());
    assert_eq!(pair.a.qp.query().unwrap().qp_state, QpState::ERR);
    adapter.make(Fault::PortUp);
    expect(&events, AsyncEventType::PORT_ACTIVE);
    drop((events, pair));
    works(target);
}

/// A port that comes back before the retries are used up costs time, and nothing else.
fn sends_wait_for_the_port(target: &Target) {
    let adapter = Adapter::of(target);
    other_device(target);
    let mut pair: Pair = Pair::new(target, &Setup::default());
    let (entry, remote) = (pair.a.sge(0, 64), pair.b.remote(0));
    let events = pair.a.context.async_events();
    adapter.make(Fault::PortDown);
    expect(&events, AsyncEventType::PORT_ERR);
    pair.a.send(|batch| (0..4).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
    pair.a.silent();
    adapter.make(Fault::PortUp);
    expect(&events, AsyncEventType::PORT_ACTIVE);
    pair.a.successes(4);
}
