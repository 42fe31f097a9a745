use super::*;
use crate::mlx5::bus::record::{Event, Recorder};
use crate::mlx5::shadow::ONE;
use crate::mlx5::testing::{Sends, blueflame_register, peek_page, sends, sends_on, sge, shared_register};
use crate::mlx5::umr::{WindowAccess, WindowType};
use crate::uverbs::types::Lkey;
use crate::uverbs::wr::{Inline, Sge};
use proptest::prelude::*;

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x8000, rkey: Rkey(0x99) };

fn wr<'a>(wr_id: u64, op: SendOp, payload: impl Into<Payload<'a>>) -> SendWr<'a> {
    SendWr { wr_id, flags: WrFlags::NONE, op, payload: payload.into() }
}

fn send(wr_id: u64) -> SendWr<'static> {
    wr(wr_id, SendOp::Send, &[])
}

/// The control segment's flags of the element at a block.
fn flags_at(sq: &Sq<Recorder>, block: u32) -> u8 {
    sq.ring.peek(block as usize * 64 + 11, 1)[0]
}

fn index_of(control: &[u8; 8]) -> u16 {
    u16::from_be_bytes([control[1], control[2]])
}

const LAYOUT: SqLayout = SqLayout { blocks: 16, max_wr: 4, max_ds: 16, max_sge: 8, max_inline: 200 };

#[test]
fn segments_then_barrier_then_record_then_register() {
    let (register, page) = blueflame_register();
    let Sends { mut sq, bus, .. } = sends_on(LAYOUT, register);
    sq.rollback();
    sq.push(&wr(1, SendOp::Write(REMOTE), &[sge(1, 2, 3)])).unwrap();
    sq.push(&wr(2, SendOp::Write(REMOTE), Inline(&[7; 30]))).unwrap();
    let pushed = bus.take();
    assert!(pushed.iter().all(|e| matches!(e, Event::Segment { .. } | Event::Inline { .. })), "{pushed:?}");
    let Some(Event::Segment { bytes: control, .. }) = pushed.last() else { panic!("{pushed:?}") };
    assert_eq!(control[..8], [0, 0, 1, 8, 0x12, 0x34, 0x56, 5], "the control segment comes last");
    sq.submit();
    assert_eq!(
        bus.take(),
        [
            Event::ToDevice,
            // One block, then two.
            Event::Record { word: Word::Send, value: 3 },
            Event::WcStart,
            // The first 8 bytes of the last element.
            Event::Register { at: page + 0x800, value: control[..8].try_into().unwrap() },
            Event::WcFlush,
        ]
    );
    sq.submit();
    assert_eq!(bus.take(), [], "nothing new, no doorbell");
}

/// Of every kind of work request, on either register, alone and with another behind it: its segments, whatever their number,
/// with the control segment last; then, on [`submit`](Sq::submit), the rest in its one order.
#[test]
fn every_kind_of_work_request_is_stored_in_that_order() {
    type Push = fn(&mut Sq<Recorder>) -> Result<(), PostError>;
    fn remote() -> RemoteAddr {
        REMOTE
    }
    let kinds: &[(u8, Push)] = &[
        (0x0a, |sq| sq.push(&wr(1, SendOp::Send, &[sge(1, 2, 3), sge(4, 5, 6)]))),
        (0x0a, |sq| sq.push(&wr(1, SendOp::Send, Inline(&[7; 40])))),
        (0x0b, |sq| sq.push(&wr(1, SendOp::SendImm(9), &[sge(1, 2, 3)]))),
        (0x01, |sq| sq.push(&wr(1, SendOp::SendInvalidate(Rkey(9)), &[sge(1, 2, 3)]))),
        (0x08, |sq| sq.push(&wr(1, SendOp::Write(remote()), Inline(&[7; 8])))),
        (0x09, |sq| sq.push(&wr(1, SendOp::WriteImm(remote(), 9), &[sge(1, 2, 3); 8]))),
        (0x10, |sq| sq.push(&wr(1, SendOp::Read(remote()), &[sge(1, 2, 3)]))),
        (0x11, |sq| sq.push(&wr(1, SendOp::CompareSwap { remote: remote(), compare: 1, swap: 2 }, &[sge(8, 8, 3)]))),
        (0x12, |sq| sq.push(&wr(1, SendOp::FetchAdd { remote: remote(), add: 1 }, &[sge(8, 8, 3)]))),
        (0x25, |sq| sq.push(&wr(1, SendOp::LocalInvalidate(Rkey(9)), &[]))),
        (0x25, |sq| {
            let (window, access) = (WindowType::One, WindowAccess::default());
            let (rkey, new_rkey, lkey) = (Rkey(0x100), Rkey(0x101), Lkey(1));
            sq.push_bind(
                1,
                WrFlags::NONE,
                &Bind { zero_based: false, window, rkey, new_rkey, lkey, addr: 0, length: 8, access },
            )
        }),
        (0x00, |sq| sq.push_nop(1, WrFlags::NONE)),
        (0x0a, |sq| {
            let av = crate::mlx5::av::address_vector(&Default::default(), crate::mlx5::av::Link::InfiniBand);
            let to = Destination { av, qpn: Qpn::new(5).unwrap(), qkey: 6 };
            sq.push_to(&wr(1, SendOp::Send, &[sge(1, 2, 3)]), Target::Datagram(&to))
        }),
        (0x08, |sq| sq.push_to(&wr(1, SendOp::Write(remote()), &[sge(1, 2, 3)]), Target::Xrc { srqn: 5 })),
    ];
    for (opcode, push) in kinds {
        for (own_register, count) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
            let register = if own_register { blueflame_register().0 } else { shared_register() };
            let Sends { mut sq, bus, .. } = sends_on(LAYOUT, register);
            let mut control = [0; 16];
            for _ in 0..count {
                push(&mut sq).unwrap();
                let pushed = bus.take();
                assert!(pushed.iter().all(|e| matches!(e, Event::Segment { .. } | Event::Inline { .. })), "{pushed:?}");
                let Some(Event::Segment { at, bytes }) = pushed.last() else { panic!("{opcode:#x}: {pushed:?}") };
                assert_eq!((bytes[3], at % 64), (*opcode, 0), "the control segment comes last");
                control = *bytes;
            }
            let ds = u32::from(control[7]);
            sq.submit();
            let events = bus.take();
            let [first @ .., Event::WcFlush] = events.as_slice() else { panic!("{opcode:#x}: {events:?}") };
            let (head, rung) = first.split_at(3);
            let record = Event::Record { word: Word::Send, value: sq.told.head.block() };
            assert_eq!(head, [Event::ToDevice, record, Event::WcStart], "{opcode:#x}");
            let whole = own_register && count == 1 && (2..=16).contains(&ds);
            let want = if whole { ds.div_ceil(4) as usize } else { 1 };
            let is_right = |e: &Event| match e {
                Event::Block { .. } => whole,
                Event::Register { value, .. } => !whole && *value == control[..8],
                _ => false,
            };
            assert!(rung.len() == want && rung.iter().all(is_right), "{opcode:#x} of {ds} units: {events:?}");
        }
    }
}

#[test]
fn one_small_element_is_copied_whole_and_a_batch_is_not() {
    let (register, page) = blueflame_register();
    let Sends { mut sq, bus, .. } = sends_on(LAYOUT, register);
    let ring = sq.ring.block(0).as_ptr().addr();
    // Which half of the register is next, and which block.
    let (mut half, mut block) = (0, 0);
    for inline in [1, 12, 13, 28, 60, 124, 188, 200] {
        sq.push(&wr(1, SendOp::Send, Inline(&vec![5; inline]))).unwrap();
        let blocks: usize = (16 + (4 + inline).next_multiple_of(16)).div_ceil(64);
        bus.take();
        sq.submit();
        let mut want =
            vec![Event::ToDevice, Event::Record { word: Word::Send, value: (block + blocks) as u32 }, Event::WcStart];
        want.extend(
            (0..blocks)
                .map(|i| Event::Block { at: page + 0x800 + half + 64 * i, from: ring + 64 * ((block + i) % 16) }),
        );
        want.push(Event::WcFlush);
        assert_eq!(bus.take(), want, "{inline} bytes");
        sq.notes.shared().complete((block % 16) as u32);
        (half, block) = (half ^ 0x100, block + blocks);
    }
    // A control segment alone, and one of more than 256 bytes.
    let big: Vec<Sge> = vec![sge(1, 1, 1); 8];
    for (push, wrs) in [(vec![], 1), (big.clone(), 1), (vec![], 2)] {
        for _ in 0..wrs {
            sq.push(&wr(1, SendOp::Send, push.as_slice())).unwrap();
        }
        let copies = push.len() == 8;
        bus.take();
        sq.submit();
        let blocks = bus.take().iter().filter(|e| matches!(e, Event::Block { .. })).count();
        assert_eq!(blocks, if copies { 3 } else { 0 });
        let done = sq.pushed.at.count / ONE;
        sq.notes.shared().note(0, 0, done, WcOpcode::SEND);
        sq.notes.shared().complete(0);
    }
}

#[test]
fn what_is_copied_is_what_the_ring_holds() {
    let (register, page) = blueflame_register();
    let Sends { mut sq, .. } = sends_on(LAYOUT, register);
    sq.start_at(15, 0);
    sq.push(&wr(1, SendOp::Write(REMOTE), Inline(&(0..150).collect::<Vec<u8>>()))).unwrap();
    sq.submit();
    // Three blocks, around the ring's end.
    assert_eq!(peek_page(page + 0x800, 192), sq.ring.peek(15 * 64, 192));
    assert_eq!(peek_page(page + 0x800 + 36, 150), (0..150).collect::<Vec<u8>>());
}

/// A shared register never sees more than 8 bytes, whatever is posted.
#[test]
fn without_a_register_of_its_own_a_queue_rings_with_eight_bytes() {
    let Sends { mut sq, bus, .. } = sends_on(LAYOUT, shared_register());
    for inline in [0, 8, 60, 200] {
        sq.push(&wr(1, SendOp::Send, Inline(&vec![5; inline]))).unwrap();
        sq.submit();
        sq.notes.shared().complete(sq.told.head.block());
        let done = sq.pushed.at.count / ONE;
        sq.notes.shared().note(0, 0, done, WcOpcode::SEND);
        sq.notes.shared().complete(0);
    }
    let rings: Vec<_> =
        bus.take().into_iter().filter(|e| matches!(e, Event::Register { .. } | Event::Block { .. })).collect();
    assert!(rings.iter().all(|e| matches!(e, Event::Register { .. })));
    assert_eq!(rings.len(), 4);
}

#[test]
fn what_cannot_be_posted_is_refused_and_leaves_the_queue_alone() {
    let nine = [sge(0, 1, 0); 9];
    let eight = [sge(0, 1, 0); 8];
    let fetch_add = |addr| SendOp::FetchAdd { remote: RemoteAddr { addr, rkey: Rkey(0) }, add: 1 };
    let swap = |addr| SendOp::CompareSwap { remote: RemoteAddr { addr, rkey: Rkey(0) }, compare: 1, swap: 2 };
    let cases: &[(SendOp, Payload<'_>, Result<(), PostError>)] = &[
        (SendOp::Send, Payload::Sges(&eight), Ok(())),
        (SendOp::Send, Payload::Sges(&nine), Err(PostError::TooManySges)),
        (SendOp::Send, Payload::Inline(&[1; 200]), Ok(())),
        (SendOp::Send, Payload::Inline(&[1; 201]), Err(PostError::InlineTooLong)),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 199], &[2; 1]]), Ok(())),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 199], &[2; 2]]), Err(PostError::InlineTooLong)),
        (SendOp::Send, Payload::InlinePieces(&[&[1; 200], &[], &[2; 1]]), Err(PostError::InlineTooLong)),
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, 1 << 31, 0)]), Ok(())),
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, (1 << 31) + 1, 0)]), Err(PostError::MessageTooLong)),
        (SendOp::Write(REMOTE), Payload::Sges(&[sge(0, 1 << 31, 0); 2]), Err(PostError::MessageTooLong)),
        (SendOp::Read(REMOTE), Payload::Sges(&eight), Ok(())),
        (SendOp::Read(REMOTE), Payload::Inline(&[1; 8]), Err(PostError::InlineRead)),
        (SendOp::Read(REMOTE), Payload::InlinePieces(&[]), Err(PostError::InlineRead)),
        (fetch_add(8), Payload::Sges(&[sge(0, 8, 0)]), Ok(())),
        (fetch_add(8), Payload::Sges(&[sge(0, 4, 0), sge(64, 4, 0)]), Ok(())),
        (fetch_add(8), Payload::Sges(&[]), Err(PostError::AtomicPayload)),
        (fetch_add(8), Payload::Sges(&[sge(0, 16, 0)]), Err(PostError::AtomicPayload)),
        (fetch_add(8), Payload::Inline(&[0; 8]), Err(PostError::AtomicPayload)),
        (fetch_add(4), Payload::Sges(&[sge(0, 8, 0)]), Err(PostError::AtomicAlignment)),
        (swap(16), Payload::Sges(&[sge(0, 8, 0)]), Ok(())),
        (swap(16), Payload::Sges(&[sge(0, 7, 0)]), Err(PostError::AtomicPayload)),
        (swap(17), Payload::Sges(&[sge(0, 8, 0)]), Err(PostError::AtomicAlignment)),
    ];
    for (op, payload, want) in cases {
        let Sends { mut sq, bus, record, .. } = sends(16);
        let wr = SendWr { wr_id: 5, flags: WrFlags::SIGNALED, op: *op, payload: *payload };
        assert_eq!(sq.push(&wr), *want, "{wr:?}");
        assert_eq!(sq.left(), 4 - u32::from(want.is_ok()), "{wr:?}");
        bus.take();
        sq.submit();
        assert_eq!(bus.take().is_empty(), want.is_err(), "{wr:?}");
        assert_eq!(record.load(Word::Send) > 0, want.is_ok(), "{wr:?}");
    }
}

/// Of every length, and of a word as well, for which there is a way of its own.
#[test]
fn inline_bytes_of_more_than_the_limit_are_refused() {
    for max in 0..=16_usize {
        let Sends { mut sq, .. } = sends_on(SqLayout { max_inline: max as u32, ..LAYOUT }, shared_register());
        let bytes: Vec<u8> = (1..=max as u8 + 1).collect();
        assert_eq!(sq.push(&wr(1, SendOp::Send, Inline(&bytes))), Err(PostError::InlineTooLong), "{max} at most");
        sq.push(&wr(1, SendOp::Send, Inline(&bytes[..max]))).unwrap();
        assert_eq!(sq.ring.peek(20, max), bytes[..max]);
    }
}

/// The device takes a length of 0 for another one in some segments: there is none.
#[test]
fn a_payload_of_no_bytes_has_no_segment() {
    let empty = [sge(1, 0, 2); 2];
    for payload in [
        Payload::Sges(&[]),
        Payload::Sges(&empty),
        Payload::Inline(&[]),
        Payload::InlinePieces(&[]),
        Payload::InlinePieces(&[&[]]),
        Payload::InlinePieces(&[&[], &[]]),
    ] {
        let Sends { mut sq, .. } = sends(16);
        sq.push(&wr(1, SendOp::Write(REMOTE), payload)).unwrap();
        assert_eq!(sq.ring.peek(7, 1), [2], "control segment and remote address: {payload:?}");
    }
}

#[test]
fn a_window_of_more_than_a_message_is_refused() {
    let bind = Bind {
        zero_based: false,
        window: WindowType::Two,
        rkey: Rkey(1),
        new_rkey: Rkey(2),
        lkey: Lkey(3),
        addr: 0,
        length: (1 << 31) + 1,
        access: WindowAccess::default(),
    };
    let Sends { mut sq, .. } = sends(16);
    assert_eq!(sq.push_bind(1, WrFlags::NONE, &bind), Err(PostError::MessageTooLong));
    assert_eq!(sq.left(), 4);
    sq.push_bind(1, WrFlags::NONE, &Bind { length: 1 << 31, ..bind }).unwrap();
}

/// A queue of a transport without windows is not measured for them: nothing may run into the elements around.
#[test]
fn what_is_longer_than_the_queue_was_measured_for_is_refused() {
    let layout = SqLayout { blocks: 4, max_wr: 4, max_ds: 4, max_sge: 1, max_inline: 0 };
    let Sends { mut sq, .. } = sends_on(layout, shared_register());
    assert_eq!(sq.push_local_inv(1, WrFlags::NONE, Rkey(1)), Err(PostError::NotOffered));
    for n in 0..4 {
        sq.push(&wr(n, SendOp::Write(REMOTE), &[sge(1, 1, 1)])).unwrap();
    }
    assert_eq!(sq.push_nop(4, WrFlags::NONE), Err(PostError::QueueFull));
}

#[test]
fn what_is_not_submitted_is_dropped_with_its_fence() {
    let Sends { mut sq, bus, record, shared } = sends(16);
    let mut batch = sq.open();
    batch.push(&send(1)).unwrap();
    batch.push_local_inv(2, WrFlags::NONE, Rkey(1)).unwrap();
    bus.take();
    sq.open().submit();
    assert_eq!((bus.take().len(), record.load(Word::Send), sq.left()), (0, 0, 4));
    sq.push(&send(7)).unwrap();
    assert_eq!(flags_at(&sq, 0), 0, "the UMR that was dropped needs no fence");
    sq.submit();
    assert_eq!(shared.complete(0), (7, WcOpcode::SEND));
}

/// What a UMR changed is there for the next element, and that one only needs to wait.
#[test]
fn the_element_after_a_umr_waits_for_it() {
    let Sends { mut sq, .. } = sends_on(SqLayout { blocks: 32, max_wr: 10, ..LAYOUT }, shared_register());
    sq.push_local_inv(1, WrFlags::NONE, Rkey(1)).unwrap();
    sq.submit();
    sq.push(&send(2)).unwrap();
    sq.push(&send(3)).unwrap();
    sq.push_local_inv(4, WrFlags::SIGNALED, Rkey(2)).unwrap();
    sq.push_local_inv(5, WrFlags::NONE, Rkey(3)).unwrap();
    sq.push(&SendWr { flags: WrFlags::FENCE, ..send(6) }).unwrap();
    sq.push(&send(7)).unwrap();
    let flags: Vec<u8> = [0, 2, 3, 4, 6, 8, 9].iter().map(|block| flags_at(&sq, *block)).collect();
    assert_eq!(flags, [0, 0x20, 0, 0x08, 0x20, 0x80, 0]);
}

#[test]
fn a_queue_that_signals_all_does() {
    let Sends { mut sq, .. } = sends(16);
    sq.limits.sig_all = true;
    sq.push(&send(1)).unwrap();
    assert_eq!(flags_at(&sq, 0), 0x08);
}

/// Only every eighth is signaled; each completion frees all before it.
#[test]
fn unsignaled_work_requests_are_retired_by_the_next_completion() {
    let Sends { mut sq, shared, .. } = sends_on(SqLayout { blocks: 16, max_wr: 16, ..LAYOUT }, shared_register());
    for round in 0..1000_u64 {
        for n in 0..8 {
            sq.push(&send(round * 8 + n)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        sq.submit();
        let last = sq.told.head.block().wrapping_sub(1);
        assert_eq!(shared.complete(last).0, round * 8 + 7);
    }
}

/// Counters of blocks across 2^16, 2^24, 2^31 and 2^32, with elements of one to four blocks.
#[test]
fn counters_wrap() {
    for around in [1_u64 << 16, 1 << 24, 1 << 31, 1 << 32] {
        let Sends { mut sq, bus, shared, record } = sends(16);
        let start = (around - 7) as u32;
        sq.start_at(start, start.wrapping_mul(ONE));
        shared.note(0, 0, start, WcOpcode::SEND);
        shared.complete(0);
        let mut block = around - 7;
        for n in 0..12_u64 {
            let bytes = [10, 60, 130, 190][(n % 4) as usize];
            sq.push(&SendWr { flags: WrFlags::SIGNALED, ..wr(n, SendOp::Send, Inline(&vec![n as u8; bytes])) })
                .unwrap();
            bus.take();
            sq.submit();
            let blocks = (16 + (4 + bytes).next_multiple_of(16)).div_ceil(64) as u64;
            let events = bus.take();
            let Some(Event::Register { value, .. }) = events.iter().find(|e| matches!(e, Event::Register { .. }))
            else {
                panic!("{events:?}")
            };
            assert_eq!(index_of(value), block as u16);
            assert_eq!(record.load(Word::Send), ((block + blocks) & 0xffff) as u32);
            let data = sq.ring.peek((block as usize % 16) * 64 + 20, bytes);
            assert!(data.iter().all(|b| *b == n as u8));
            // The device gives back 16 bits of the index.
            assert_eq!(shared.complete((block & 0xffff) as u32).0, n);
            assert_eq!(sq.left(), 4);
            block += blocks;
        }
        assert!(block > around);
    }
}

#[test]
fn reset_starts_anew() {
    let Sends { mut sq, shared, record, .. } = sends(16);
    sq.push_local_inv(1, WrFlags::NONE, Rkey(1)).unwrap();
    sq.submit();
    sq.resync();
    assert_eq!((record.load(Word::Send), sq.left()), (0, 4));
    shared.complete(0);
    assert_eq!(sq.left(), 4, "a completion of the past does not count");
    sq.push(&send(2)).unwrap();
    assert_eq!((sq.notes.shared().complete(0).0, flags_at(&sq, 0)), (2, 0));
    assert_eq!(sq.ring.peek(0, 4), [0, 0, 0, 0x0a], "index 0");
}

#[derive(Clone, Debug)]
enum Step {
    Push { inline: usize, entries: usize, signaled: bool },
    LocalInv,
    Submit,
    Rollback,
    Complete,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..=200_usize, 0..=8_usize, any::<bool>())
            .prop_map(|(inline, entries, signaled)| Step::Push { inline, entries, signaled }),
        1 => Just(Step::LocalInv),
        3 => Just(Step::Submit),
        1 => Just(Step::Rollback),
        5 => Just(Step::Complete),
    ]
}

/// An element as the device's side of the test sees it: found by walking the ring, by literal offsets.
fn parse(ring: &Ring, block: u32) -> (u16, u8, u32, u32) {
    let control = ring.peek(block as usize * 64, 16);
    let word = |at: usize| u32::from_be_bytes(control[at..at + 4].try_into().unwrap());
    let ds = word(4) & 0x3f;
    ((word(0) >> 8) as u16, control[11], word(4) >> 8, ds)
}

proptest! {
    /// Any order of pushes, submits, rollbacks and completions: the device finds exactly what was submitted, each element
    /// where the one before ends and with its own index, and completions bring the numbers back.
    #[test]
    fn agrees_with_a_queue(start in any::<u32>(), steps in prop::collection::vec(step(), 1..200)) {
        let Sends { mut sq, shared, record, .. } = sends(64);
        sq.start_at(start, start.wrapping_mul(ONE));
        shared.note(0, 0, start, WcOpcode::SEND);
        shared.complete(0);
        let (mut staged, mut posted) = (vec![], std::collections::VecDeque::new());
        let (mut next_id, mut device) = (0_u64, start);
        for step in steps {
            let full = staged.len() + posted.len() == 16;
            let refused = if full { Err(PostError::QueueFull) } else { Ok(()) };
            match step {
                Step::Push { inline, entries, signaled } => {
                    let list = vec![sge(1, 1, 1); entries];
                    let bytes = vec![3; inline];
                    let payload = if entries > 0 { Payload::Sges(&list) } else { Payload::Inline(&bytes) };
                    let flags = if signaled { WrFlags::SIGNALED } else { WrFlags::NONE };
                    let wr = SendWr { wr_id: next_id, flags, op: SendOp::Send, payload };
                    prop_assert_eq!(sq.push(&wr), refused);
                    if !full {
                        staged.push((next_id, WcOpcode::SEND));
                        next_id += 1;
                    }
                }
                Step::LocalInv => {
                    prop_assert_eq!(sq.push_local_inv(next_id, WrFlags::NONE, Rkey(1)), refused);
                    if !full {
                        staged.push((next_id, WcOpcode::LOCAL_INV));
                        next_id += 1;
                    }
                }
                Step::Submit => {
                    sq.submit();
                    for (id, opcode) in staged.drain(..) {
                        let (index, _, qpn, ds) = parse(&sq.ring, device);
                        prop_assert_eq!((index, qpn), (device as u16, 0x12_3456));
                        prop_assert!((1..=63).contains(&ds));
                        posted.push_back((device, id, opcode));
                        device = device.wrapping_add(ds.div_ceil(4));
                    }
                    if next_id > 0 && sq.told.head.block() != start & 0xffff {
                        prop_assert_eq!(record.load(Word::Send), device & 0xffff);
                    }
                }
                Step::Rollback => {
                    sq.rollback();
                    staged.clear();
                }
                // Completes one or two at once.
                Step::Complete => {
                    if posted.len() > 2 {
                        posted.pop_front();
                    }
                    if let Some((block, id, opcode)) = posted.pop_front() {
                        prop_assert_eq!(shared.complete(block & 0xffff), (id, opcode));
                    }
                }
            }
            prop_assert_eq!(sq.left() as usize, 16 - staged.len() - posted.len());
        }
    }
}
