//! Many messages in a row, each with bytes of its own, none lost, doubled or out of order.
//!
//! `IRONVERBS_TEST_MESSAGES` tells how many of each kind (default 500). Meant for a link that loses packets, too: the
//! connection then sends again after 67 ms, without end on Soft-RoCE.

use crate::fixture::{Pair, Patience, Setup, assert_sent};
use crate::harness::step;
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{AckTimeout, ConnectOptions, WcOpcode, WrFlags};

tests! {
    sends_arrive_once_and_in_order,
    writes_arrive_and_stay,
}

/// Messages under way at once, and slots of each side's region.
const WINDOW: u64 = 8;
/// Bytes of a slot: three packets and a bit at the smallest MTU that a link is likely to have.
const SLOT: usize = 3500;
/// Where the slots of outgoing messages start; incoming ones start at zero.
const OUT: usize = WINDOW as usize * SLOT;

fn setup() -> Setup {
    fn retry_soon(options: &mut ConnectOptions) {
        options.timeout = AckTimeout::DEFAULT;
        options.retry_count = 7;
        options.rnr_retry = 7;
    }
    Setup { mr_bytes: 2 * OUT, options: retry_soon, ..Setup::default() }
}

fn messages() -> u64 {
    let number = std::env::var("IRONVERBS_TEST_MESSAGES").ok();
    number.map_or(500, |n| n.parse().expect("IRONVERBS_TEST_MESSAGES is a number"))
}

/// The bytes of message `n`: its length is as random as they are.
fn payload(n: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(n);
    let mut bytes = vec![0; rng.usize(1..=SLOT)];
    rng.fill(&mut bytes);
    bytes
}

fn slot(n: u64) -> usize {
    (n % WINDOW) as usize * SLOT
}

fn sends_arrive_once_and_in_order(target: &Target) {
    let total = messages();
    let mut pair = Pair::new(target, &setup());
    let (mut posted, mut sent, mut done, mut received) = (0, 0, 0, 0);
    let mut patience = Patience::new();
    while done < total || received < total {
        step(format!("{received} of {total} received, {done} of {sent} sends complete"));
        while posted < total && posted - received < WINDOW {
            let sge = pair.b.sge(slot(posted), SLOT);
            pair.b.recv(posted, &[sge]);
            posted += 1;
        }
        while sent < posted && sent - done < WINDOW {
            let bytes = payload(sent);
            pair.a.put(OUT + slot(sent), &bytes);
            let sge = pair.a.sge(OUT + slot(sent), bytes.len());
            pair.a.send(|batch| batch.send(sent, WrFlags::SIGNALED, &[sge]));
            sent += 1;
        }
        let before = (done, received);
        while let Some(wc) = pair.a.cq.poll_one().unwrap() {
            assert_sent(&wc, done, &pair.a.qp, WcOpcode::SEND);
            done += 1;
        }
        while let Some(wc) = pair.b.cq.poll_one().unwrap() {
            let (bytes, got) = (payload(received), wc.outcome().unwrap_or_else(|error| panic!("{wc:?}: {error}")));
            assert_eq!((wc.wr_id, got.byte_len as usize), (received, bytes.len()), "{wc:?}");
            assert!(pair.b.bytes(slot(received), bytes.len()) == bytes, "message {received} has other bytes");
            pair.b.expect(slot(received), &bytes);
            received += 1;
        }
        if (done, received) == before {
            patience.check("a completion");
        } else {
            patience = Patience::new();
        }
    }
    pair.a.silent();
    pair.b.silent();
    pair.check();
}

fn writes_arrive_and_stay(target: &Target) {
    let total = messages();
    let mut pair = Pair::new(target, &setup());
    let (mut sent, mut done) = (0, 0);
    let mut patience = Patience::new();
    while done < total {
        step(format!("{done} of {sent} writes complete, of {total}"));
        while sent < total && sent - done < WINDOW {
            let bytes = payload(sent);
            // What the last write put here is still here, whatever was sent again since.
            let old = pair.b.image[slot(sent)..slot(sent) + SLOT].to_vec();
            assert!(pair.b.bytes(slot(sent), SLOT) == old, "something wrote over message {sent} - {WINDOW}");
            pair.a.put(OUT + slot(sent), &bytes);
            let (sge, remote) = (pair.a.sge(OUT + slot(sent), bytes.len()), pair.b.remote(slot(sent)));
            pair.a.send(|batch| batch.write(sent, WrFlags::SIGNALED, &[sge], remote));
            sent += 1;
        }
        let before = done;
        while let Some(wc) = pair.a.cq.poll_one().unwrap() {
            assert_sent(&wc, done, &pair.a.qp, WcOpcode::RDMA_WRITE);
            let bytes = payload(done);
            assert!(pair.b.bytes(slot(done), bytes.len()) == bytes, "message {done} has other bytes");
            pair.b.expect(slot(done), &bytes);
            done += 1;
        }
        if done == before {
            patience.check("a completion");
        } else {
            patience = Patience::new();
        }
    }
    pair.a.silent();
    pair.b.silent();
    pair.check();
}
