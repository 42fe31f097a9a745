use super::*;
use crate::rxe::testing::{DIRTY, Kernel, ring};
use crate::uverbs::errno::Errno;
use crate::uverbs::memory_wr::{FlushLevel, FlushPlacement};
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wr::{RemoteAddr, SendWr, Sge, WrFlags};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Counts how often it rings, and refuses with what it is told.
#[derive(Clone, Default)]
pub struct Bell {
    rings: Rc<Cell<u32>>,
    refuse: Rc<RefCell<Option<Errno>>>,
}

impl Doorbell for Bell {
    fn ring(&self, unheard: &mut bool) -> Result<(), PostError> {
        self.rings.set(self.rings.get() + 1);
        *unheard = self.refuse.borrow().is_some();
        self.refuse.borrow().map_or(Ok(()), |errno| Err(PostError::Doorbell(errno)))
    }
}

pub fn queue(log2: u32, index_mask: u32, start: u32, max_sge: u32, max_inline: u32) -> (RxeSq<Bell>, Kernel, Bell) {
    let (mapping, kernel) = ring(log2, index_mask, start);
    let memory = MappedRing::new(mapping, "send queue", wqe_bytes(max_sge, max_inline)).unwrap();
    let bell = Bell::default();
    (RxeSq::new(memory, max_sge, max_inline, bell.clone()), kernel, bell)
}

pub fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge::from_raw(addr, length, Lkey(lkey))
}

fn send<'a>(wr_id: u64, payload: Payload<'a>) -> SendWr<'a> {
    SendWr { wr_id, flags: WrFlags::NONE, op: SendOp::Send, payload }
}

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x8000, rkey: Rkey(0x99) };

#[test]
#[should_panic(expected = "too small")]
fn slots_must_hold_the_largest_work_request() {
    let (mapping, _kernel) = ring(8, 3, 0);
    let memory = MappedRing::new(mapping, "send queue", 64).unwrap();
    let _ = RxeSq::new(memory, 4, 0, Bell::default());
}

#[test]
fn the_limits_are_those_of_the_slot() {
    // 208 bytes and the larger of 16 bytes an entry and the inline bytes, at least 8.
    assert_eq!(wqe_bytes(0, 0), 216, "room for an ATOMIC_WRITE");
    assert_eq!(wqe_bytes(3, 0), 256);
    assert_eq!(wqe_bytes(3, 49), 257);
    assert_eq!(wqe_bytes(32, 512), 720);
}

#[test]
fn what_cannot_be_posted_is_refused_and_leaves_the_queue_alone() {
    let four = [sge(0, 1, 0); 4];
    let three = [sge(0, 1, 0); 3];
    let cases: &[(SendOp, Payload<'_>, Result<(), PostError>)] = &[
        (SendOp::Send, Payload::Sges(&three), Ok(())),
        (SendOp::Send, Payload::Sges(&four), Err(PostError::TooManySges)),
        (SendOp::Send, Payload::Inline(&[1; 48]), Ok(())),
        (SendOp::Send, Payload::Inline(&[1; 49]), Err(PostError::InlineTooLong)),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 40], &[2; 8]]), Ok(())),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 40], &[2; 9]]), Err(PostError::InlineTooLong)),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 48], &[], &[2; 1]]), Err(PostError::InlineTooLong)),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 49]]), Err(PostError::InlineTooLong)),
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, 1 << 31, 0)]), Ok(())),
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, 1 << 31, 0), sge(0, 1, 0)]), Err(PostError::MessageTooLong)),
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, u32::MAX, 0); 2]), Err(PostError::MessageTooLong)),
        // The sum wraps 32 bits to 0.
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, 1 << 31, 0); 2]), Err(PostError::MessageTooLong)),
        (SendOp::Read(REMOTE), Payload::Sges(&three), Ok(())),
        (SendOp::Read(REMOTE), Payload::Inline(&[1; 8]), Err(PostError::InlineRead)),
        (SendOp::Read(REMOTE), Payload::InlinePieces(&[]), Err(PostError::InlineRead)),
        (fetch_add(8), Payload::Sges(&[sge(0, 8, 0)]), Ok(())),
        (fetch_add(8), Payload::Sges(&[sge(0, 4, 0), sge(64, 4, 0)]), Ok(())),
        (fetch_add(8), Payload::Sges(&[]), Err(PostError::AtomicPayload)),
        (fetch_add(8), Payload::Sges(&[sge(0, 4, 0)]), Err(PostError::AtomicPayload)),
        (fetch_add(8), Payload::Sges(&[sge(0, 16, 0)]), Err(PostError::AtomicPayload)),
        (fetch_add(8), Payload::Inline(&[0; 8]), Err(PostError::AtomicPayload)),
        (fetch_add(4), Payload::Sges(&[sge(0, 8, 0)]), Err(PostError::AtomicAlignment)),
        (compare_swap(16), Payload::Sges(&[sge(0, 8, 0)]), Ok(())),
        (compare_swap(16), Payload::Sges(&[sge(0, 7, 0)]), Err(PostError::AtomicPayload)),
        (compare_swap(17), Payload::Sges(&[sge(0, 8, 0)]), Err(PostError::AtomicAlignment)),
    ];
    for (op, payload, want) in cases {
        let (mut sq, kernel, bell) = queue(8, 3, 1, 3, 48);
        let wr = SendWr { wr_id: 5, flags: WrFlags::NONE, op: *op, payload: *payload };
        assert_eq!(sq.push(&wr), *want, "{wr:?}");
        for other in [0, 2, 3] {
            assert!(kernel.slot(other).iter().all(|&b| b == DIRTY), "{wr:?} wrote into slot {other}");
        }
        assert_eq!(sq.submit(), Ok(()));
        let posted = u32::from(want.is_ok());
        assert_eq!((kernel.producer() - 1, bell.rings.get()), (posted, posted), "{wr:?}");
        assert_eq!(sq.remaining(), 3 - posted, "{wr:?}");
    }
}

fn fetch_add(addr: u64) -> SendOp {
    SendOp::FetchAdd { remote: RemoteAddr { addr, rkey: Rkey(0) }, add: 1 }
}

fn compare_swap(addr: u64) -> SendOp {
    SendOp::CompareSwap { remote: RemoteAddr { addr, rkey: Rkey(0) }, compare: 1, swap: 2 }
}

#[test]
fn a_batch_becomes_visible_at_once_and_rings_once() {
    let (mut sq, kernel, bell) = queue(8, 7, 5, 3, 0);
    sq.begin();
    for n in 0..5 {
        sq.push(&send(n, Payload::Sges(&[]))).unwrap();
    }
    assert_eq!((kernel.producer(), bell.rings.get()), (5, 0), "nothing is visible before submit");
    sq.submit().unwrap();
    assert_eq!((kernel.producer(), bell.rings.get()), ((5 + 5) & 7, 1));
    sq.begin();
    sq.submit().unwrap();
    assert_eq!(bell.rings.get(), 1, "an empty batch does not ring");
}

#[test]
fn what_is_not_submitted_is_dropped() {
    let (mut sq, kernel, bell) = queue(8, 7, 0, 3, 0);
    for drop_by_begin in [true, false] {
        sq.push(&send(1, Payload::Sges(&[]))).unwrap();
        sq.push(&send(2, Payload::Sges(&[]))).unwrap();
        if drop_by_begin {
            sq.begin()
        } else {
            sq.rollback()
        }
        sq.submit().unwrap();
        assert_eq!((kernel.producer(), bell.rings.get(), sq.remaining()), (0, 0, 7));
    }
}

#[test]
fn a_refused_doorbell_leaves_the_entries_in_the_queue() {
    let (mut sq, kernel, bell) = queue(8, 7, 0, 3, 0);
    bell.refuse.replace(Some(Errno::EINVAL));
    sq.push(&send(1, Payload::Sges(&[]))).unwrap();
    assert_eq!(sq.submit(), Err(PostError::Doorbell(Errno::EINVAL)));
    assert_eq!((kernel.producer(), bell.rings.get()), (1, 1));
    assert_eq!(sq.submit(), Err(PostError::Doorbell(Errno::EINVAL)), "an empty batch rings again");
    bell.refuse.replace(None);
    assert_eq!(sq.submit(), Ok(()));
    assert_eq!((kernel.producer(), bell.rings.get()), (1, 3));
}

#[test]
fn a_reused_slot_shows_nothing_of_its_last_use() {
    let thirty = [sge(0xaaaa_0000, 0x1000, 0xaa); 30];
    let last = SendWr {
        wr_id: 1,
        flags: WrFlags::SIGNALED,
        op: SendOp::Send,
        payload: Payload::Sges(&[sge(0x1000, 7, 0x11)]),
    };
    let (mut fresh, fresh_kernel, _) = queue(10, 3, 0, 32, 512);
    fresh.push(&last).unwrap();
    fresh.submit().unwrap();
    let fresh = fresh_kernel.take().unwrap();

    let (mut sq, kernel, _) = queue(10, 3, 0, 32, 512);
    for round in 0..3 {
        for big in [
            SendWr { wr_id: 2, flags: WrFlags::FENCE, op: SendOp::Write(REMOTE), payload: Payload::Sges(&thirty) },
            SendWr { wr_id: 3, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Inline(&[0xbb; 512]) },
            SendWr { wr_id: 4, flags: WrFlags::NONE, op: compare_swap(8), payload: Payload::Sges(&[sge(0, 8, 1)]) },
            SendWr { wr_id: 5, flags: WrFlags::NONE, op: SendOp::Read(REMOTE), payload: Payload::Sges(&thirty) },
        ] {
            sq.push(&big).unwrap();
            sq.submit().unwrap();
            kernel.take().unwrap();
        }
        for _ in 0..4 {
            sq.push(&last).unwrap();
            sq.submit().unwrap();
            let slot = kernel.take().unwrap();
            assert_eq!(slot[..24], fresh[..24], "round {round}");
            assert_eq!(slot[144..208 + 16], fresh[144..208 + 16], "round {round}");
        }
    }
}

/// A work request that owns its payload.
#[derive(Clone, Debug)]
struct Owned {
    wr_id: u64,
    flags: u32,
    sges: Vec<(u64, u32, u32)>,
    inline: Option<Vec<Vec<u8>>>,
}

fn owned() -> impl Strategy<Value = Owned> {
    let sges = prop::collection::vec((any::<u64>(), 0_u32..0x1000, any::<u32>()), 0..=6);
    let pieces = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4);
    (any::<u64>(), 0_u32..8, sges, prop::option::of(pieces)).prop_map(|(wr_id, flags, sges, inline)| Owned {
        wr_id,
        flags,
        sges,
        inline,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Push(Owned),
    Submit,
    Rollback,
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => owned().prop_map(Step::Push),
        2 => Just(Step::Submit),
        1 => Just(Step::Rollback),
        5 => Just(Step::Take),
    ]
}

fn flags(bits: u32) -> WrFlags {
    [WrFlags::FENCE, WrFlags::SIGNALED, WrFlags::SOLICITED]
        .into_iter()
        .filter(|f| bits & f.bits() != 0)
        .fold(WrFlags::NONE, WrFlags::union)
}

/// Decodes an element by the offsets of the header file, and compares it with what was asked for.
fn check_slot(slot: &[u8], wr: &Owned) -> Result<(), TestCaseError> {
    let word = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
    prop_assert_eq!(long(0), wr.wr_id);
    prop_assert_eq!(word(12), 2);
    for zero in (144..184).step_by(4).chain([8, 20, 192, 200, 204]) {
        prop_assert_eq!(word(zero), 0, "offset {}", zero);
    }
    prop_assert_eq!(word(184), word(188));
    if let Some(pieces) = &wr.inline {
        let bytes = pieces.concat();
        prop_assert_eq!(word(16), wr.flags | 8);
        prop_assert_eq!((word(184) as usize, word(196)), (bytes.len(), 0));
        prop_assert_eq!(&slot[208..208 + bytes.len()], &bytes[..]);
    } else {
        prop_assert_eq!(word(16), wr.flags);
        prop_assert_eq!(word(184), wr.sges.iter().map(|s| s.1).sum::<u32>());
        prop_assert_eq!(word(196) as usize, wr.sges.len());
        for (i, &sge) in wr.sges.iter().enumerate() {
            let at = 208 + 16 * i;
            prop_assert_eq!((long(at), word(at + 8), word(at + 12)), sge);
        }
    }
    Ok(())
}

proptest! {
    /// Any sequence of pushes, submits and completions: the kernel sees exactly what was submitted, whole and in order.
    #[test]
    fn the_kernel_sees_what_was_submitted(log2_slots in 1_u32..4, start: u32, steps in prop::collection::vec(step(), 0..120)) {
        const MAX_SGE: usize = 5;
        const MAX_INLINE: usize = 100;
        let capacity = (1_usize << log2_slots) - 1;
        let (mut sq, kernel, bell) = queue(9, capacity as u32, start, MAX_SGE as u32, MAX_INLINE as u32);
        let (mut pushed, mut submitted) = (VecDeque::new(), VecDeque::new());
        let mut rings = 0;
        for step in steps {
            match step {
                Step::Push(wr) => {
                    let sges: Vec<Sge> = wr.sges.iter().map(|&(a, l, k)| sge(a, l, k)).collect();
                    let pieces: Option<Vec<&[u8]>> = wr.inline.as_ref().map(|p| p.iter().map(Vec::as_slice).collect());
                    let payload = match &pieces {
                        Some(pieces) if pieces.len() == 1 => Payload::Inline(pieces[0]),
                        Some(pieces) => Payload::InlinePieces(pieces),
                        None => Payload::Sges(&sges),
                    };
                    let got = sq.push(&SendWr { wr_id: wr.wr_id, flags: flags(wr.flags), op: SendOp::Send, payload });
                    let inline_bytes = wr.inline.as_ref().map_or(0, |p| p.concat().len());
                    let want = if pushed.len() + submitted.len() == capacity {
                        Err(PostError::QueueFull)
                    } else if wr.inline.is_none() && sges.len() > MAX_SGE {
                        Err(PostError::TooManySges)
                    } else if inline_bytes > MAX_INLINE {
                        Err(PostError::InlineTooLong)
                    } else {
                        Ok(())
                    };
                    prop_assert_eq!(got, want);
                    if got.is_ok() {
                        pushed.push_back(wr);
                    }
                }
                Step::Submit => {
                    prop_assert_eq!(sq.submit(), Ok(()));
                    rings += u32::from(!pushed.is_empty());
                    prop_assert_eq!(bell.rings.get(), rings);
                    submitted.append(&mut pushed);
                }
                Step::Rollback => {
                    sq.rollback();
                    pushed.clear();
                }
                Step::Take => match (kernel.take(), submitted.pop_front()) {
                    (Some(slot), Some(wr)) => check_slot(&slot, &wr)?,
                    (slot, wr) => prop_assert!(slot.is_none() && wr.is_none(), "{:?} for {:?}", slot, wr),
                },
            }
        }
    }
}

/// A driver that does not know an opcode may not look whether it does: nothing of it may reach the ring.
#[test]
fn what_the_device_has_not_stays_out_of_the_ring() {
    let flush = |placement| SendOp::Flush(REMOTE, placement, FlushLevel::Range(8));
    let (global, persistent) = (FlushPlacement::GLOBAL_VISIBILITY, FlushPlacement::PERSISTENCE);
    for (caps, op, allowed) in [
        (0, SendOp::AtomicWrite(REMOTE, 1), Err(PostError::NoAtomicWrite)),
        (!(1 << 40), SendOp::AtomicWrite(REMOTE, 1), Err(PostError::NoAtomicWrite)),
        (1 << 40, SendOp::AtomicWrite(REMOTE, 1), Ok(())),
        (0, flush(global), Err(PostError::NoFlush)),
        (!(1 << 38), flush(global), Err(PostError::NoFlush)),
        (1 << 38, flush(global), Ok(())),
        (1 << 38, flush(persistent), Err(PostError::NoFlush)),
        (1 << 38, flush(global | persistent), Err(PostError::NoFlush)),
        (1 << 39, flush(persistent), Ok(())),
        (3 << 38, flush(global | persistent), Ok(())),
    ] {
        let (mut sq, kernel, bell) = queue(8, 3, 0, 1, 0);
        sq.set_device_caps(caps);
        let wr = SendWr { wr_id: 1, flags: WrFlags::NONE, op, payload: Payload::Sges(&[]) };
        assert_eq!(sq.push(&wr), allowed, "{op:?} with {caps:#x}");
        sq.submit().unwrap();
        assert_eq!((kernel.take().is_some(), bell.rings.get()), (allowed.is_ok(), allowed.is_ok().into()));
    }
}

#[test]
fn atomic_writes_and_flushes_need_what_the_kernel_asks_for() {
    let (mut sq, _kernel, _bell) = queue(8, 3, 0, 1, 0);
    sq.set_device_caps(u64::MAX);
    let push =
        |sq: &mut RxeSq<Bell>, op| sq.push(&SendWr { wr_id: 1, flags: WrFlags::NONE, op, payload: Payload::Sges(&[]) });
    let odd = RemoteAddr { addr: 0x8004, ..REMOTE };
    assert_eq!(push(&mut sq, SendOp::AtomicWrite(odd, 1)), Err(PostError::AtomicAlignment));
    let (mut none, _kernel, _bell) = queue(8, 3, 0, 0, 0);
    none.set_device_caps(u64::MAX);
    assert_eq!(push(&mut none, SendOp::AtomicWrite(REMOTE, 1)), Err(PostError::TooManySges));
    let flush = SendOp::Flush(REMOTE, FlushPlacement::GLOBAL_VISIBILITY, FlushLevel::Region);
    assert_eq!(push(&mut none, flush), Err(PostError::TooManySges));
}
