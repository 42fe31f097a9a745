//! Whatever is done with a queue: what the end of a batch answers, and what it gives back, is what the device's count says.

use super::tests::{Fixture, UIDX};
use super::*;
use crate::mlx5::compressed::tests::{received, write_block};
use crate::mlx5::layout::CqLayout;
use crate::mlx5::resize::tests::resize;
use crate::uverbs::wc::Wc;
use proptest::prelude::*;
use std::mem::MaybeUninit;

/// What happens to a queue, or is done with it.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The device answers so often, with what is read quickly, slowly, or passed over; as far as entries are free.
    Answer(u32, Kind),
    /// The device answers with so many compressed into a block, if the queue asked for that and as many entries are free.
    Block(u32),
    /// As many are polled, one by one or at once, and the batch ends so.
    Poll(usize, By, End),
    Resize(u32),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Receive,
    Failure,
    Nobody,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Next,
    Fill,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// As [`OpenCq::end`] ends it; or as the queue itself does where that cannot tell.
    Open,
    /// As the queue itself ends it.
    Queue,
    /// Whether the ring was full or not.
    GiveBack,
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![Just(Kind::Send), Just(Kind::Receive), Just(Kind::Failure), Just(Kind::Nobody)];
    let by = prop_oneof![Just(By::Next), Just(By::Fill)];
    let end =
        prop_oneof![4 => Just(End::Open), 1 => Just(End::Queue), 1 => Just(End::GiveBack), 2 => Just(End::Forget)];
    let step = prop_oneof![
        6 => (1..20_u32, kind).prop_map(|(count, kind)| Step::Answer(count, kind)),
        2 => (2..12_u32).prop_map(Step::Block),
        8 => (0..20_usize, by, end).prop_map(|(most, by, end)| Step::Poll(most, by, end)),
        1 => (1..20_u32).prop_map(Step::Resize),
    ];
    prop::collection::vec(step, 1..60)
}

/// A queue, and what is known of it without a look at its ring.
struct Model {
    cq: Fixture,
    /// Completions read, and those given back.
    read: u32,
    given_back: u32,
}

impl Model {
    fn new(entries: u32, entry_bytes: u32, start: u32, compressed: bool) -> Self {
        let mut cq = Fixture::new(entries, entry_bytes);
        if compressed {
            cq.compressed();
        }
        cq.start_at(start);
        cq.record.store(Word::CONSUMED, start & 0xff_ffff);
        cq.attach(UIDX);
        Self { cq, read: start, given_back: start }
    }

    /// Entries that the device may write.
    fn free(&self) -> u32 {
        self.cq.ring.entries() - self.cq.device.wrapping_sub(self.given_back)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Answer(count, kind) => {
                for _ in 0..count.min(self.free()) {
                    match kind {
                        Kind::Send => self.cq.answer(opcode::REQ, UIDX, 0),
                        Kind::Receive => self.cq.answer(opcode::RESP_SEND, UIDX, 0),
                        Kind::Failure => self.cq.answer(opcode::REQ_ERR, UIDX, 0),
                        Kind::Nobody => self.cq.answer(opcode::REQ, 6, 0),
                    }
                }
            }
            Step::Block(count) => {
                if self.cq.cq.compressed && count <= self.free() && count < self.cq.ring.entries() {
                    // A length whose last bit is that of the one owner or the other.
                    write_block(&mut self.cq, opcode::RESP_SEND, 0, &vec![received(count); count as usize]);
                }
            }
            Step::Poll(most, by, end) => self.poll(most, by, end),
            Step::Resize(cqe) => self.resize(cqe),
        }
        let consumed = self.cq.record.load(Word::CONSUMED);
        assert_eq!((self.cq.cq.given_back, consumed), (self.given_back, self.given_back & 0xff_ffff));
        assert_eq!((self.cq.cq.ci(), self.cq.cq.fault()), (self.read, None));
    }

    fn poll(&mut self, most: usize, by: By, end: End) {
        let was_full = self.free() == 0;
        let disowned = self.cq.cq.disowned();
        let mut open = self.cq.cq.open();
        let got = match by {
            By::Next => (0..most).take_while(|_| open.next().is_some()).count(),
            By::Fill => open.fill(&mut vec![MaybeUninit::<Wc>::uninit(); most]),
        };
        self.read = self.read.wrapping_add(got as u32 + (open.cq().disowned() - disowned) as u32);
        // In the course of it some may have been given back: of a ring that was not full, and so many that it cannot fill meanwhile.
        let given_back = open.cq().given_back;
        assert!(given_back == self.given_back || !was_full, "given back of a full ring");
        assert!(self.read.wrapping_sub(given_back) <= self.read.wrapping_sub(self.given_back), "not read yet");
        self.given_back = given_back;
        let (done, is_full) = match end {
            End::Open => {
                let done = open.end() || open.cq().compressed && open.queue().end();
                (done, was_full && self.read != given_back)
            }
            End::Queue => (self.cq.cq.end(), was_full),
            End::GiveBack => {
                self.cq.cq.give_back();
                (true, false)
            }
            // Nobody but its owner ends a batch.
            End::Forget => return,
        };
        assert_eq!(done, !is_full, "{} of {} entries free", self.free(), self.cq.ring.entries());
        if done {
            self.given_back = self.read;
        }
    }

    fn resize(&mut self, cqe: u32) {
        let entries = CqLayout::new(cqe, self.cq.ring.entry_bytes()).unwrap().entries();
        let unread = self.cq.device.wrapping_sub(self.read);
        // There must be an entry for the one that ends the ring, in both rings.
        if entries == self.cq.ring.entries() || unread >= self.cq.ring.entries() || cqe < unread || entries <= unread {
            return;
        }
        resize(&mut self.cq, cqe).unwrap();
        self.read = self.read.wrapping_add(1);
        self.given_back = self.read;
    }
}

proptest! {
    #[test]
    fn the_end_of_a_batch_answers_what_the_device_knows(
        log2_entries in 1..5_u32,
        entry_bytes in prop_oneof![Just(64_u32), Just(128)],
        compressed: bool,
        start in prop_oneof![Just(0), 1..40_u32, (u32::MAX - 40)..=u32::MAX],
        steps in steps(),
    ) {
        let mut model = Model::new(1 << log2_entries, entry_bytes, start, compressed);
        for step in steps {
            model.take(step);
        }
    }
}
