//! Nothing outside the ring is touched: it lies between pages that nobody may touch.

use super::tests::{Fixture, UIDX};
use super::*;
use crate::mlx5::compressed::tests::{received, write_block};
use crate::mlx5::layout::CqLayout;
use crate::mlx5::testing::guarded;

const BYTES: usize = 4096;

/// A ring of a whole page, dirty but for its owners.
fn ring(entry_bytes: u32) -> CqRing {
    let layout = CqLayout { log2_entries: (BYTES as u32 / entry_bytes).ilog2(), log2_entry_bytes: entry_bytes.ilog2() };
    let (memory, start) = guarded(BYTES);
    let ring = CqRing::of(memory, start, layout).unwrap();
    for ci in 0..ring.entries() {
        let mut dirty = vec![0xff; entry_bytes as usize];
        dirty[entry_bytes as usize - 1] = cqe::OP_OWN_INVALID;
        ring.write(ci, &dirty);
    }
    ring
}

/// The device answers with a message inside the entry, of `bytes`.
fn answer_inside(cq: &mut Fixture, bytes: &[u8]) {
    let before = cq.ring.entry_bytes() == 128;
    let format = if before { format::INLINE_64 } else { format::INLINE_32 };
    let mut entry = vec![0; cq.ring.entry_bytes() as usize];
    entry[..bytes.len()].copy_from_slice(bytes);
    let body = entry.len() - 64;
    entry[body + 32..body + 36].copy_from_slice(&UIDX.to_be_bytes());
    entry[body + 44..body + 48].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
    entry[body + 63] = opcode::RESP_SEND << 4 | format << 2 | cqe::owner_of_pass(cq.device, cq.ring.log2_entries());
    cq.ring.write(cq.device, &entry);
    cq.device = cq.device.wrapping_add(1);
}

/// Every kind of entry in every place, over several passes.
#[test]
fn polling_stays_inside_the_ring() {
    for entry_bytes in [64, 128] {
        let mut cq = Fixture::on(ring(entry_bytes));
        cq.compressed();
        cq.inline_data();
        cq.attach(UIDX);
        let entries = cq.ring.entries();
        let inside: Vec<u8> = (0..entry_bytes as u8 / 2).collect();
        for round in 0..3 * entries {
            match round % 4 {
                0 => cq.answer(opcode::RESP_SEND, UIDX, 0),
                1 => answer_inside(&mut cq, &inside),
                2 => write_block(&mut cq, opcode::RESP_SEND, 0, &vec![received(5); 2 + round as usize % 20]),
                _ => cq.answer(opcode::REQ_ERR, UIDX, 0),
            }
            while let Some(completion) = cq.cq.open().next() {
                let data = completion.inline_data().map(|data| data.to_vec());
                assert_eq!(data, (round % 4 == 1).then(|| inside.clone()), "round {round}");
                let _ = (completion.wc(), completion.timestamp());
            }
            cq.cq.end();
            assert!(!cq.cq.is_full() && !cq.cq.has_entry() && cq.cq.fault().is_none());
        }
    }
}

/// Every entry of one ring to every place of another.
#[test]
fn entries_move_from_ring_to_ring() {
    for entry_bytes in [64, 128] {
        let (old, new) = (ring(entry_bytes), ring(entry_bytes));
        for ci in 0..2 * old.entries() {
            let bytes: Vec<u8> = (0..entry_bytes).map(|i| (i ^ ci) as u8 & 0xfe).collect();
            old.write(ci, &bytes);
            new.adopt(ci.wrapping_mul(7), &old, ci);
            let body = &bytes[bytes.len() - 64..];
            let owner = cqe::owner_of_pass(ci.wrapping_mul(7), new.log2_entries());
            let got = new.body(ci.wrapping_mul(7)).copy();
            assert_eq!((&got[..63], got[63]), (&body[..63], body[63] | owner), "entry {ci}");
        }
    }
}
