use super::*;
use crate::mlx5::cq::tests::{Fixture, UIDX};
use crate::mlx5::cqe::format;
use crate::mlx5::mailbox::Change;
use crate::mlx5::shadow::SqShared;
use crate::uverbs::wr::WcOpcode;
use proptest::prelude::*;
use std::sync::Arc;

/// The device writes a block of completions that differ in what `minis` says, by literal offsets. Other bytes of its
/// entries are left as they are, as the device leaves them.
pub fn write_block(cq: &mut Fixture, kind: u8, counter: u16, minis: &[[u8; 8]]) {
    let (first, log2) = (cq.device, cq.ring.entries().ilog2());
    let mut title = [0_u8; 64];
    title[32..36].copy_from_slice(&UIDX.to_be_bytes());
    title[44..48].copy_from_slice(&(minis.len() as u32).to_be_bytes());
    title[56..60].copy_from_slice(&0x0a12_3456_u32.to_be_bytes());
    title[60..62].copy_from_slice(&counter.to_be_bytes());
    title[63] = kind << 4 | 3 << 2 | ((first >> log2) & 1) as u8;
    for (n, eight) in minis.chunks(8).enumerate() {
        let at = if n == 0 { first.wrapping_add(1) } else { first.wrapping_add(8 * n as u32) };
        let mut bytes = [0xc3_u8; 64];
        bytes[..8 * eight.len()].copy_from_slice(eight.as_flattened());
        cq.ring.write(at, &bytes);
    }
    cq.ring.write(first, &title);
    cq.device = first.wrapping_add(minis.len() as u32);
}

pub fn received(bytes: u32) -> [u8; 8] {
    let [a, b, c, d] = bytes.to_be_bytes();
    // A hash that is of no use.
    [0x11, 0x22, 0x33, 0x44, a, b, c, d]
}

fn sent(counter: u16, sop: u8) -> [u8; 8] {
    let [a, b] = counter.to_be_bytes();
    [a, b, sop, 0, 0, 0, 0, 0]
}

#[test]
fn a_block_of_receives_is_all_its_completions() {
    for entry_bytes in [64, 128] {
        let mut cq = Fixture::new(32, entry_bytes);
        cq.compressed();
        cq.attach(UIDX);
        for n in 0..11 {
            cq.receives.note(n, 100 + u64::from(n));
        }
        let minis: Vec<_> = (0..11).map(|n| received(n * 10)).collect();
        write_block(&mut cq, 2, 0, &minis);
        let mut open = cq.cq.open();
        for n in 0..11 {
            let cqe = open.next().unwrap();
            assert_eq!((cqe.wr_id(), cqe.byte_len(), cqe.qpn()), (100 + u64::from(n), n * 10, 0x12_3456));
            assert_eq!((cqe.opcode(), cqe.status().0), (WcOpcode::RECV, 0));
        }
        assert!(open.next().is_none());
        cq.cq.end();
        assert_eq!((cq.cq.fault(), cq.record.load(crate::mlx5::dbrec::Word::CONSUMED)), (None, 11));
    }
}

#[test]
fn a_block_of_sends_names_each_element() {
    let mut cq = Fixture::new(32, 64);
    cq.compressed();
    cq.attach(UIDX);
    let blocks = [3_u16, 1, 0x1_000 + 2, 7];
    for (n, block) in blocks.iter().enumerate() {
        cq.sends.note((*block).into(), 50 + n as u64, n as u32 + 1, WcOpcode::RDMA_WRITE);
    }
    write_block(&mut cq, 0, 0, &blocks.map(|block| sent(block, 0x08)));
    assert_eq!(cq.poll(), [50, 51, 52, 53]);
    assert_eq!(cq.ring.body(2).copy()[56..62], [0x08, 0x12, 0x34, 0x56, 0x10, 0x02]);
}

/// Its last entry holds what was there before, or what is packed: of a ring that it fills it does not tell.
#[test]
fn a_ring_that_a_block_fills_is_full() {
    for (plain, packed) in [(10, 6), (14, 2), (1, 15)] {
        for read in [1, plain] {
            let mut cq = Fixture::new(16, 64);
            cq.compressed();
            cq.start_at(32);
            cq.attach(UIDX);
            (0..plain).for_each(|_| cq.answer(opcode::RESP_SEND, UIDX, 0));
            write_block(&mut cq, opcode::RESP_SEND, 0, &vec![received(2); packed]);
            let mut open = cq.cq.open();
            (0..read).for_each(|_| assert!(open.next().is_some()));
            let what = format!("{read} read of {plain} and a block of {packed}");
            assert!(!open.end() && !open.queue().end() && open.holds_slots(), "{what}");
            open.queue().give_back();
            assert!(open.next().is_some());
            assert!(open.end() || open.queue().end(), "{what}: some are free");
        }
    }
}

/// What a block's entries held is nothing on the next pass, whatever it was.
#[test]
fn nothing_of_a_block_is_taken_for_a_completion_later() {
    for start in [0, 3, 9, 15, 16, u32::MAX - 5] {
        let mut cq = Fixture::new(16, 64);
        cq.compressed();
        cq.start_at(start);
        cq.attach(UIDX);
        for _ in 0..40 {
            write_block(&mut cq, 2, 0, &[received(1); 10]);
            assert_eq!(cq.poll().len(), 10, "start {start}");
            assert_eq!(cq.poll().len(), 0);
            cq.answer(2, UIDX, 0);
            assert_eq!((cq.poll().len(), cq.cq.fault()), (1, None));
        }
    }
}

#[test]
fn a_block_that_cannot_be_is_a_fault() {
    for count in [0, 16, 17, u32::MAX] {
        let mut cq = Fixture::new(16, 64);
        cq.compressed();
        cq.attach(UIDX);
        write_block(&mut cq, 2, 0, &[received(1); 2]);
        let mut title = cq.ring.body(0).copy();
        title[44..48].copy_from_slice(&count.to_be_bytes());
        cq.ring.body(0).write(title);
        assert_eq!((cq.poll(), cq.cq.fault()), (vec![], Some(CqFault::BadBlock { ci: 0, count })));
    }
}

/// A block that is still packed when its queue pair goes is renamed whole, and what follows it is found.
#[test]
fn a_block_of_the_past_is_the_old_queues() {
    let mut cq = Fixture::new(32, 64);
    cq.compressed();
    cq.attach(UIDX);
    cq.sends.note(0, 5, 1, WcOpcode::SEND);
    write_block(&mut cq, 0, 0, &[sent(0, 0x0a); 9]);
    cq.answer(0, UIDX, 0);
    cq.detach(UIDX);
    let other = Arc::new(SqShared::new(16));
    other.note(0, 77, 1, WcOpcode::SEND);
    cq.cq.mailbox().put(UIDX, Change::Sends(Some(other)));
    cq.answer(0, UIDX, 0);
    let got = cq.poll();
    assert_eq!((got.len(), &got[..10], got[10]), (11, &[5; 10][..], 77));
    assert_eq!((cq.cq.disowned(), cq.cq.fault()), (0, None));
}

proptest! {
    /// Blocks of any length between plain completions, from any place: the same as if nothing had been packed.
    #[test]
    fn packing_changes_nothing(start in any::<u32>(), lengths in prop::collection::vec(0..=15_usize, 1..60)) {
        let mut cq = Fixture::new(16, 64);
        cq.compressed();
        cq.start_at(start);
        let receives = Arc::new(crate::mlx5::shadow::RqShared::at(16, 0));
        cq.cq.mailbox().put(UIDX, Change::Receives(Some(crate::mlx5::mailbox::Receives::Own(receives.clone()))));
        let mut posted = 0_u32;
        for length in lengths {
            let count = length.max(1) as u32;
            for n in 0..count {
                receives.note(posted + n, u64::from(posted + n));
            }
            match length {
                // A block has at least two; zero and one stand for a plain completion.
                0 | 1 => cq.answer(2, UIDX, 0),
                _ => write_block(&mut cq, 2, 0, &vec![received(9); length]),
            }
            let want: Vec<u64> = (posted..posted + count).map(u64::from).collect();
            prop_assert_eq!(cq.poll(), want);
            posted += count;
        }
        prop_assert_eq!(cq.cq.fault(), None);
        prop_assert_eq!(format::COMPRESSED, 3);
    }
}
