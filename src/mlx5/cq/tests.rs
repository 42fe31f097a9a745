use super::*;
use crate::mlx5::bus::record::{Event, Recorder};
use crate::mlx5::dbrec::DoorbellPages;
use crate::mlx5::layout::CqLayout;
use crate::mlx5::mailbox::{Change, Receives};
use crate::mlx5::memory::pages;
use crate::mlx5::shadow::{ONE, RqShared, SqShared, SrqShared};
use crate::mlx5::uar::{Caching, UAR_BYTES};
use proptest::prelude::*;

pub const UIDX: u32 = 5;

/// A completion queue, and the device's side of it.
pub struct Fixture {
    pub cq: Cq<Recorder>,
    pub ring: CqRing,
    pub bus: Recorder,
    pub record: DoorbellRecord,
    pub sends: Arc<SqShared>,
    pub receives: Arc<RqShared>,
    pub uar_at: usize,
    /// Answers given by the device.
    pub device: u32,
}

impl Fixture {
    /// A queue of `entries` entries.
    pub fn new(entries: u32, entry_bytes: u32) -> Self {
        let layout = CqLayout { log2_entries: entries.ilog2(), log2_entry_bytes: entry_bytes.ilog2() };
        Self::on(CqRing::new(layout).unwrap())
    }

    /// A queue in that ring.
    pub fn on(ring: CqRing) -> Self {
        let memory = pages(UAR_BYTES).unwrap();
        let uar_at = memory.as_ptr().addr();
        let uar = UarPage::new(memory, 0, 3, Caching::Uncached, Box::new(())).unwrap();
        let record = DoorbellPages::default().alloc().unwrap();
        let bus = Recorder::default();
        let parts = CqParts {
            ring: ring.clone(),
            cqn: 0x00ab_cdef,
            record: record.clone(),
            uar,
            compressed: false,
            mailbox: Arc::new(Mailbox::new(ring.clone())),
        };
        Self {
            cq: Cq::with_bus(parts, bus.clone()),
            ring,
            bus,
            record,
            sends: Arc::new(SqShared::new(16)),
            receives: Arc::new(RqShared::new(16)),
            uar_at,
            device: 0,
        }
    }

    pub fn inline_data(&mut self) {
        self.cq.mailbox().expect_data();
    }

    pub fn compressed(&mut self) {
        self.cq.compressed = true;
    }

    /// Both queues of a queue pair complete here.
    pub fn attach(&self, uidx: u32) {
        self.cq.mailbox().put(uidx, Change::Sends(Some(self.sends.clone())));
        self.cq.mailbox().put(uidx, Change::Receives(Some(Receives::Own(self.receives.clone()))));
    }

    pub fn detach(&self, uidx: u32) {
        self.cq.mailbox().put(uidx, Change::Sends(None));
        self.cq.mailbox().put(uidx, Change::Receives(None));
    }

    /// Starts at answer number `ci`, in a ring that looks as it would by then.
    pub fn start_at(&mut self, ci: u32) {
        self.cq.set_ci(ci);
        (self.cq.given_back, self.cq.written, self.device) = (ci, ci, ci);
        self.cq.mailbox().give_back(ci);
        if ci >= self.ring.entries() {
            for back in 1..=self.ring.entries() {
                let at = ci.wrapping_sub(back);
                self.ring.body(at).store_op_own(cqe::owner_of_pass(at, self.ring.log2_entries()));
            }
        }
    }

    /// The device answers: a completion of this kind, user index and element.
    pub fn answer(&mut self, kind: u8, uidx: u32, counter: u16) {
        assert!(self.device.wrapping_sub(self.cq.given_back) < self.ring.entries(), "overrun");
        answer(&self.ring, self.device, kind, uidx, counter);
        self.device = self.device.wrapping_add(1);
    }

    /// Polls one batch: the numbers that came.
    pub fn poll(&mut self) -> Vec<u64> {
        let mut open = self.cq.open();
        let mut got = vec![];
        while let Some(cqe) = open.next() {
            got.push(cqe.wr_id());
        }
        self.cq.end();
        got
    }
}

/// The device writes answer number `at`.
fn answer(ring: &CqRing, at: u32, kind: u8, uidx: u32, counter: u16) {
    let mut bytes = [0_u8; 64];
    bytes[32..36].copy_from_slice(&uidx.to_be_bytes());
    bytes[44..48].copy_from_slice(&7_u32.to_be_bytes());
    bytes[56..60].copy_from_slice(&0x0a12_3456_u32.to_be_bytes());
    bytes[60..62].copy_from_slice(&counter.to_be_bytes());
    bytes[63] = kind << 4 | cqe::owner_of_pass(at, ring.log2_entries());
    ring.write(at, &bytes);
}

#[test]
fn a_fresh_queue_is_empty() {
    for entry_bytes in [64, 128] {
        let mut cq = Fixture::new(8, entry_bytes);
        assert!(!cq.cq.has_entry());
        assert_eq!((cq.poll(), cq.cq.capacity()), (vec![], 7));
        assert_eq!(cq.bus.take(), [], "an empty batch stores nothing");
    }
}

/// Many times around, on both entry sizes, across all the counters' wraps.
#[test]
fn completions_come_once_and_in_order_on_every_pass() {
    for entry_bytes in [64, 128] {
        for start in [0, (1 << 16) - 5, (1 << 24) - 5, (1 << 31) - 5, u32::MAX - 4] {
            let mut cq = Fixture::new(8, entry_bytes);
            cq.start_at(start);
            cq.attach(UIDX);
            let mut next = 0;
            for batch in 0..40 {
                let count = batch % 8;
                for n in 0..count {
                    cq.receives.note(next + n, u64::from(next + n));
                    cq.answer(opcode::RESP_SEND, UIDX, 0);
                }
                assert_eq!(cq.cq.has_entry(), count > 0);
                let want: Vec<u64> = (next..next + count).map(u64::from).collect();
                assert_eq!(cq.poll(), want, "start {start:#x}, batch {batch}");
                next += count;
                let told = if next == 0 { 0 } else { cq.device & 0xff_ffff };
                assert_eq!(cq.record.load(Word::CONSUMED), told, "24 bits");
            }
        }
    }
}

#[test]
fn a_batch_gives_back_once_after_a_barrier() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    for _ in 0..3 {
        cq.answer(opcode::RESP_SEND, UIDX, 0);
    }
    cq.poll();
    assert_eq!(cq.bus.take(), [Event::ToDevice, Event::Record { word: Word::CONSUMED, value: 3 }]);
}

#[test]
fn arming_tells_the_consumer_index_and_the_event_number() {
    let mut cq = Fixture::new(8, 64);
    cq.start_at(0x0512_3456);
    let register = |word: u32| {
        let [a, b, c, d] = word.to_be_bytes();
        [a, b, c, d, 0x00, 0xab, 0xcd, 0xef]
    };
    let armed = |uar_at, word| {
        [
            Event::ToDevice,
            Event::Record { word: Word::ARM, value: word },
            Event::WcStart,
            Event::Register { at: uar_at + 0x20, value: register(word) },
            Event::WcFlush,
        ]
    };
    cq.cq.arm(0, false);
    assert_eq!(cq.bus.take(), armed(cq.uar_at, 0x0012_3456));
    cq.cq.arm(0, false);
    assert_eq!(cq.bus.take(), armed(cq.uar_at, 0x0012_3456), "arming twice is arming once");
    // The number moves with each event, not with each arming, and has two bits.
    for (events, solicited, word) in
        [(1, true, 0x1112_3456), (2, false, 0x2012_3456), (3, true, 0x3112_3456), (4, false, 0x0012_3456)]
    {
        cq.cq.arm(events, solicited);
        assert_eq!(cq.bus.take(), armed(cq.uar_at, word), "{events} events");
    }
}

/// What is told of the consumer index are its low 24 bits, and it is that of what was read, given back or not.
#[test]
fn arming_follows_the_consumer_index_across_its_wraps() {
    for around in [1_u64 << 16, 1 << 24, 1 << 31, 1 << 32] {
        let mut cq = Fixture::new(8, 64);
        cq.start_at((around - 3) as u32);
        cq.attach(UIDX);
        for n in 0..6 {
            cq.answer(opcode::RESP_SEND, UIDX, 0);
            assert!(cq.cq.open().next().is_some());
            cq.bus.take();
            cq.cq.arm(n, n % 2 == 1);
            let ci = ((around - 2 + u64::from(n)) & 0xff_ffff) as u32;
            let word = (n & 3) << 28 | (n & 1) << 24 | ci;
            assert!(cq.bus.take().contains(&Event::Record { word: Word::ARM, value: word }), "{around:#x}, {n}");
            if n % 3 == 2 {
                cq.cq.end();
            }
        }
    }
}

#[test]
fn a_shared_receive_queue_completes_by_index() {
    let mut cq = Fixture::new(8, 64);
    let shared = Arc::new(SrqShared::new(8));
    cq.cq.mailbox().put(UIDX, Change::Receives(Some(Receives::Shared(shared.clone()))));
    for index in 0..8 {
        shared.note(index, 100 + u64::from(index));
    }
    for index in [6, 2, 4] {
        cq.answer(opcode::RESP_SEND, UIDX, index);
    }
    assert_eq!(cq.poll(), [106, 102, 104]);
    assert_eq!(shared.take().collect::<Vec<_>>(), [4, 2, 6]);
}

/// The bit above the path bits says that a datagram was sent to a group.
#[test]
fn a_group_is_no_path_bit() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.answer(opcode::RESP_SEND, UIDX, 0);
    let mut bytes = cq.ring.body(0).copy();
    bytes[17] = 0x85;
    cq.ring.write(0, &bytes);
    assert_eq!(cq.cq.open().next().unwrap().dlid_path_bits(), 5);
}

#[test]
fn completions_of_nobody_are_passed_over_and_counted() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.sends.note(1, 11, 1, WcOpcode::SEND);
    cq.answer(opcode::REQ, 6, 1);
    cq.answer(opcode::REQ, 0xff_ffff, 1);
    cq.answer(opcode::REQ, UIDX, 1);
    cq.answer(opcode::RESP_SEND, 0xff_fffe, 1);
    assert_eq!(cq.poll(), [11]);
    assert_eq!((cq.cq.disowned(), cq.cq.fault()), (3, None));
    assert_eq!(cq.record.load(Word::CONSUMED), 4);
}

/// A queue pair is destroyed between its completions, in the middle of a batch; its index goes to another at once.
#[test]
fn completions_of_the_past_are_not_taken_for_the_next_owners() {
    let starts = [0, (1 << 16) - 4, (1 << 24) - 4, (1 << 31) - 4, u32::MAX - 3];
    for (index_at_once, start) in [true, false].into_iter().flat_map(|at_once| starts.map(|start| (at_once, start))) {
        let mut cq = Fixture::new(16, 64);
        cq.start_at(start);
        cq.attach(UIDX);
        for block in 0..6 {
            cq.sends.note(block, 10 + u64::from(block), block + 1, WcOpcode::SEND);
            cq.receives.note(block, 20 + u64::from(block));
        }
        for block in 0..3 {
            cq.answer(opcode::REQ, UIDX, block);
            cq.answer(opcode::RESP_SEND, UIDX, 0);
            cq.answer(opcode::REQ_ERR, 6, 0);
        }
        let mailbox = cq.cq.mailbox().clone();
        let mut open = cq.cq.open();
        assert_eq!(open.next().map(|c| c.wr_id()), Some(10));
        mailbox.put(UIDX, Change::Sends(None));
        mailbox.put(UIDX, Change::Receives(None));
        let mut rest = vec![];
        if !index_at_once {
            rest.extend(std::iter::from_fn(|| open.next().map(|c| c.wr_id())));
        }
        let other = Arc::new(SqShared::new(16));
        other.note(0, 77, 1, WcOpcode::RDMA_WRITE);
        mailbox.put(UIDX, Change::Sends(Some(other.clone())));
        answer(&cq.ring, cq.device, opcode::REQ, UIDX, 0);
        rest.extend(std::iter::from_fn(|| open.next().map(|c| c.wr_id())));
        cq.cq.end();
        assert_eq!(rest, [20, 11, 21, 12, 22, 77]);
        assert_eq!((other.outstanding(ONE), cq.sends.outstanding(6 * ONE), cq.receives.done()), (0, 3, 3));
        assert_eq!(cq.cq.disowned(), 3);
    }
}

/// A program that takes completions as fast as they come never ends its batch: the device must get entries back even so.
#[test]
fn a_batch_may_be_longer_than_the_ring() {
    for (kind, entries) in [(opcode::REQ, 8), (opcode::RESP_SEND, 8), (opcode::REQ, 4), (opcode::RESP_SEND, 4)] {
        let mut cq = Fixture::new(entries, 64);
        cq.attach(UIDX);
        let mut open = cq.cq.open();
        for at in 0..5 * entries {
            let given_back = cq.record.load(Word::CONSUMED);
            assert!(at - given_back < entries - 1, "entry {at} is not free: the device has {given_back}");
            answer(&cq.ring, at, kind, UIDX, 0);
            assert!(open.next().is_some());
            // What is lent is not given back.
            assert!(cq.record.load(Word::CONSUMED) <= at);
            assert!(open.next().is_none());
        }
        assert!(cq.cq.end());
        assert_eq!(cq.record.load(Word::CONSUMED), 5 * entries);
    }
}

/// A device that finds no entry free loses completions, and the last entry that it wrote tells: in whatever way the batch came to
/// its end, and also if the ring fills while the batch is held.
#[test]
fn a_ring_that_was_full_is_told_at_the_end_of_any_batch() {
    for kind in [opcode::REQ, opcode::RESP_SEND] {
        for before in [0, 3] {
            let mut cq = Fixture::new(8, 64);
            cq.attach(UIDX);
            for at in 0..before {
                answer(&cq.ring, at, kind, UIDX, 0);
            }
            let mut open = cq.cq.open();
            while open.next().is_some() {}
            for at in before..8 {
                answer(&cq.ring, at, kind, UIDX, 0);
            }
            if before == 0 {
                while open.next().is_some() {}
            }
            assert_eq!((open.end(), open.holds_slots()), (false, true), "{before} read before");
        }
    }
}

/// Queue pairs that come and go and complete nothing leave notes, which hold on to them: they are taken though nothing asks for
/// them.
#[test]
fn notes_do_not_pile_up() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.answer(opcode::REQ, UIDX, 0);
    assert!(!cq.poll().is_empty());
    let idle = Arc::new(SqShared::new(16));
    cq.cq.mailbox().put(6, Change::Sends(Some(idle.clone())));
    cq.cq.mailbox().put(6, Change::Sends(None));
    assert_eq!(Arc::strong_count(&idle), 1, "the second note takes the place of the first in an empty ring");
    cq.answer(opcode::REQ, UIDX, 0);
    cq.cq.mailbox().put(6, Change::Sends(Some(idle.clone())));
    cq.cq.mailbox().put(6, Change::Sends(None));
    assert_eq!(Arc::strong_count(&idle), 1, "and where there are only completions of others");
    assert!(cq.cq.routes.has_mail());
    for _ in 0..4 {
        cq.answer(opcode::REQ, UIDX, 0);
        assert!(!cq.poll().is_empty());
    }
    assert!(!cq.cq.routes.has_mail());
}

/// A completion of the one that had the index first is no reason to remember all who had it since.
#[test]
fn many_queues_after_one_with_a_completion() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.sends.note(0, 5, 1, WcOpcode::SEND);
    cq.answer(opcode::REQ, UIDX, 0);
    let idle = Arc::new(SqShared::new(16));
    for _ in 0..100_000 {
        cq.cq.mailbox().put(UIDX, Change::Sends(None));
        cq.cq.mailbox().put(UIDX, Change::Sends(Some(idle.clone())));
    }
    let last = Arc::new(SqShared::new(16));
    cq.cq.mailbox().put(UIDX, Change::Sends(Some(last.clone())));
    assert_eq!(Arc::strong_count(&idle), 1);
    last.note(0, 6, 1, WcOpcode::SEND);
    cq.answer(opcode::REQ, UIDX, 0);
    assert_eq!(cq.poll(), [5, 6]);
    assert_eq!(cq.cq.disowned(), 0);
}

/// RESET: what completed before keeps its number.
#[test]
fn completions_from_before_a_reset_are_not_taken_for_those_after() {
    let mut cq = Fixture::new(16, 64);
    cq.attach(UIDX);
    cq.sends.note(0, 0, 1, WcOpcode::SEND);
    cq.answer(opcode::REQ_ERR, UIDX, 0);
    cq.answer(opcode::RESP_ERR, UIDX, 0);
    let (sends, receives) = (Arc::new(SqShared::new(16)), Arc::new(RqShared::new(16)));
    cq.cq.mailbox().put(UIDX, Change::Sends(Some(sends.clone())));
    cq.cq.mailbox().put(UIDX, Change::Receives(Some(Receives::Own(receives.clone()))));
    sends.note(0, 7, 1, WcOpcode::SEND);
    receives.note(0, 8);
    cq.answer(opcode::REQ, UIDX, 0);
    cq.answer(opcode::RESP_SEND, UIDX, 0);
    assert_eq!(cq.poll(), [0, 0, 7, 8]);
    assert_eq!((sends.outstanding(ONE), receives.done(), cq.sends.outstanding(ONE), cq.receives.done()), (0, 1, 0, 1));
}

/// Sends and receives of a queue pair may complete on different queues; taking leave of one leaves the other alone.
#[test]
fn directions_come_and_go_by_themselves() {
    let mut cq = Fixture::new(16, 64);
    cq.attach(UIDX);
    cq.receives.note(0, 8);
    cq.answer(opcode::REQ, UIDX, 0);
    cq.answer(opcode::RESP_SEND, UIDX, 0);
    cq.cq.mailbox().put(UIDX, Change::Sends(None));
    cq.sends.note(0, 9, 1, WcOpcode::SEND);
    assert_eq!(cq.poll(), [9, 8]);
}

#[test]
fn what_the_queue_was_not_made_for_is_a_fault_that_stays() {
    let faults: &[(u8, CqFault)] = &[
        (opcode::RESP_SEND << 4 | format::COMPRESSED << 2, CqFault::Compressed { ci: 1 }),
        (opcode::REQ << 4 | format::COMPRESSED << 2, CqFault::Compressed { ci: 1 }),
        (opcode::RESP_SEND << 4 | format::INLINE_32 << 2, CqFault::InlineData { ci: 1 }),
        (opcode::RESP_SEND << 4 | format::INLINE_64 << 2, CqFault::InlineData { ci: 1 }),
        (opcode::RESIZE_CQ << 4, CqFault::Resize { ci: 1 }),
        (opcode::NO_PACKET << 4, CqFault::UnknownKind { ci: 1, kind: 6 }),
        (opcode::SIG_ERR << 4, CqFault::UnknownKind { ci: 1, kind: 12 }),
        (7 << 4, CqFault::UnknownKind { ci: 1, kind: 7 }),
        (11 << 4, CqFault::UnknownKind { ci: 1, kind: 11 }),
    ];
    for (op_own, fault) in faults {
        let mut cq = Fixture::new(8, 64);
        cq.attach(UIDX);
        cq.receives.note(0, 8);
        cq.answer(opcode::RESP_SEND, UIDX, 0);
        cq.answer(opcode::RESP_SEND, UIDX, 0);
        cq.ring.body(1).store_op_own(*op_own);
        assert_eq!(cq.poll(), [8], "{fault}");
        assert_eq!((cq.cq.fault(), cq.record.load(Word::CONSUMED)), (Some(*fault), 1));
        assert_eq!((cq.poll(), cq.receives.done()), (vec![], 1), "nothing after it is believed");
    }
}

/// A receive queue, the numbers that were answered and not polled, and how many were posted.
type Live = (Arc<RqShared>, std::collections::VecDeque<u64>, u32);

proptest! {
    /// Any mix of queue pairs that come and go while the device answers: each number comes back at most once, from its
    /// own queue pair, also if that is gone.
    #[test]
    fn agrees_with_a_model(steps in prop::collection::vec((0..4_u8, 0..3_u32), 1..300)) {
        let mut cq = Fixture::new(16, 64);
        // By user index.
        let mut live: [Option<Live>; 3] = [None, None, None];
        let mut orphans = vec![];
        let mut number = 0_u64;
        let mut in_ring = 0;
        for (step, uidx) in steps {
            let slot = &mut live[uidx as usize];
            match step {
                0 => {
                    let shared = Arc::new(RqShared::new(16));
                    cq.cq.mailbox().put(uidx, Change::Receives(Some(Receives::Own(shared.clone()))));
                    orphans.extend(slot.replace((shared, Default::default(), 0)).into_iter().flat_map(|old| old.1));
                }
                1 => {
                    cq.cq.mailbox().put(uidx, Change::Receives(None));
                    orphans.extend(slot.take().into_iter().flat_map(|old| old.1));
                }
                2 if in_ring < 15 => {
                    if let Some((shared, pending, next)) = slot {
                        shared.note(*next, number);
                        pending.push_back(number);
                        *next += 1;
                        number += 1;
                        cq.answer(opcode::RESP_SEND, uidx, 0);
                        in_ring += 1;
                    }
                }
                _ => {
                    let mut got = cq.poll();
                    in_ring = 0;
                    let pending = live.iter_mut().flatten().flat_map(|slot| slot.1.drain(..));
                    for want in pending.chain(orphans.drain(..)) {
                        let at = got.iter().position(|n| *n == want);
                        prop_assert!(at.is_some(), "{} did not come", want);
                        got.remove(at.unwrap());
                    }
                    prop_assert!(got.is_empty(), "{:?} came and should not", got);
                }
            }
        }
    }
}
