use super::super::tests::{Fixture, UIDX};
use super::*;
use crate::mlx5::cqe::opcode;
use crate::mlx5::mailbox::Change;
use crate::mlx5::shadow::SqShared;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Takes what is there, `room` at a time.
fn filled(cq: &mut Fixture, room: usize) -> Vec<Wc> {
    let mut all = vec![];
    loop {
        let mut out = vec![MaybeUninit::uninit(); room];
        let mut open = cq.cq.open();
        let n = open.fill(&mut out);
        assert!(open.end(), "there is always an entry free");
        // SAFETY: so many were written.
        all.extend(out[..n].iter().map(|wc| unsafe { wc.assume_init() }));
        if n < room {
            return all;
        }
    }
}

/// Takes what is there, one by one.
fn taken(cq: &mut Fixture) -> Vec<Wc> {
    let mut open = cq.cq.open();
    let all = std::iter::from_fn(|| open.next().map(|cqe| cqe.wc())).collect();
    assert!(open.end());
    all
}

fn bytes(all: &[Wc]) -> Vec<Vec<u8>> {
    all.iter().map(|wc| wc.as_bytes().to_vec()).collect()
}

/// Two send queues, one of them with receives.
fn fixture(entry_bytes: u32) -> (Fixture, Arc<SqShared>) {
    let cq = Fixture::new(16, entry_bytes);
    cq.attach(UIDX);
    let other = Arc::new(SqShared::new(16));
    cq.cq.mailbox().put(UIDX + 1, Change::Sends(Some(other.clone())));
    (cq, other)
}

/// Mixtures of everything, many times around the ring, in rooms of every size.
#[test]
fn many_at_once_are_the_same_as_one_by_one() {
    const OPCODES: [WcOpcode; 5] =
        [WcOpcode::SEND, WcOpcode::RDMA_WRITE, WcOpcode::RDMA_READ, WcOpcode::FETCH_ADD, WcOpcode::BIND_MW];
    for (entry_bytes, room) in (1..20).flat_map(|room| [(64, room), (128, room)]) {
        let (mut many, other_many) = fixture(entry_bytes);
        let (mut single, other_single) = fixture(entry_bytes);
        let mut seed = room as u32;
        let (mut number, mut received) = (0, 0);
        for _ in 0..60 {
            for _ in 0..seed % 16 {
                seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                let (pick, block) = (seed >> 16, number % 16);
                let opcode = OPCODES[(pick / 64) as usize % OPCODES.len()];
                for (cq, other) in [(&mut many, &other_many), (&mut single, &other_single)] {
                    let counter = block as u16;
                    match pick % 16 {
                        0 => {
                            cq.receives.note(received, u64::from(number));
                            cq.answer(opcode::RESP_SEND, UIDX, 0);
                        }
                        1 => {
                            cq.sends.note(block, u64::from(number), number, opcode);
                            cq.answer(opcode::REQ_ERR, UIDX, counter);
                        }
                        2..6 => {
                            other.note(block, u64::from(number), number, opcode);
                            cq.answer(opcode::REQ, UIDX + 1, counter);
                        }
                        _ => {
                            cq.sends.note(block, u64::from(number), number, opcode);
                            cq.answer(opcode::REQ, UIDX, counter);
                        }
                    }
                }
                received += u32::from(pick % 16 == 0);
                number += 1;
            }
            assert_eq!(bytes(&filled(&mut many, room)), bytes(&taken(&mut single)), "{room} at a time");
            assert_eq!((many.sends.done(), other_many.done()), (single.sends.done(), other_single.done()));
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345) >> 3;
        }
        assert!(number > 100);
    }
}

/// The index is another queue's in the course of a run: what came before is still the first one's.
#[test]
fn a_run_ends_where_its_queue_is_gone() {
    let (mut cq, other) = fixture(64);
    for block in 0..3 {
        cq.sends.note(block, 10 + u64::from(block), block + 1, WcOpcode::SEND);
        cq.answer(opcode::REQ, UIDX, block as u16);
    }
    assert_eq!(filled(&mut cq, 1).len(), 3, "the queue is known");
    for block in 3..6 {
        cq.sends.note(block, 10 + u64::from(block), block + 1, WcOpcode::SEND);
        cq.answer(opcode::REQ, UIDX, block as u16);
    }
    cq.cq.mailbox().put(UIDX, Change::Sends(Some(other.clone())));
    for block in 3..6 {
        other.note(block, 20 + u64::from(block), block + 1, WcOpcode::SEND);
        cq.answer(opcode::REQ, UIDX, block as u16);
    }
    let numbers: Vec<u64> = filled(&mut cq, 16).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(numbers, [13, 14, 15, 23, 24, 25]);
}
