#![allow(unsafe_code)]

use super::*;
use crate::mlx5::compressed::tests::{received, write_block};
use crate::mlx5::cq::CqFault;
use crate::mlx5::cq::tests::{Fixture, UIDX};
use crate::mlx5::cqe::opcode::{REQ, RESIZE_CQ, RESP_SEND};
use crate::mlx5::dbrec::Word;
use crate::mlx5::mailbox::Change;
use crate::mlx5::shadow::SqShared;
use crate::mlx5::testing::Golden;
use crate::uverbs::errno::Errno;
use crate::uverbs::wr::WcOpcode;
use std::sync::Arc;

/// Resizes as the device does it: an entry ends the old ring, and counts.
pub fn resize(cq: &mut Fixture, cqe: u32) -> Result<(), Error> {
    let end = cq.device;
    let log2 = cq.ring.log2_entries();
    let ring = cq.ring.clone();
    cq.device = cq.device.wrapping_add(1);
    cq.cq.resize(cqe, |entries, request| {
        assert_eq!(request.buf_addr % 4096, 0);
        assert_eq!((u32::from(request.cqe_size), request.reserved0, request.reserved1), (ring.entry_bytes(), 0, 0));
        assert!((entries + 1).is_power_of_two() && entries >= cqe);
        let mut last = Golden::read("cqe.txt").get("the end of a ring that was resized").to_vec();
        last[63] |= ((end >> log2) & 1) as u8;
        assert_eq!(last[63] >> 4, RESIZE_CQ);
        ring.write(end, &last);
        Ok(())
    })?;
    cq.ring = cq.cq.ring.clone();
    Ok(())
}

/// A queue pair goes, and its index goes to another, while the device moves from one ring to the next: what it had completed by
/// then, in the new ring, is still its own. So no note can be written meanwhile.
#[test]
fn an_index_that_changes_hands_during_a_resize() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.sends.note(0, 7, 1, WcOpcode::SEND);
    let other = Arc::new(SqShared::new(16));
    other.note(0, 77, 1, WcOpcode::SEND);
    let (mailbox, next) = (cq.cq.mailbox().clone(), other.clone());
    let (old, mut changes) = (cq.ring.clone(), None);
    cq.cq
        .resize(16, |_, request| {
            let mut end = Golden::read("cqe.txt").get("the end of a ring that was resized").to_vec();
            end[63] &= !1;
            old.write(0, &end);
            let mut done = [0_u8; 64];
            done[32..36].copy_from_slice(&UIDX.to_be_bytes());
            // Answer number 1, on the first pass of the new ring, where no `CqRing` is yet.
            let at = std::ptr::with_exposed_provenance_mut::<u8>(request.buf_addr as usize + 64);
            // SAFETY: the second entry of the ring that the request names, which nobody else touches until this returns.
            unsafe { at.copy_from_nonoverlapping(done.as_ptr(), 64) };
            let thread = std::thread::spawn(move || {
                mailbox.put(UIDX, Change::Sends(None));
                mailbox.put(UIDX, Change::Sends(Some(next)));
            });
            // Time enough to do so, if it could.
            std::thread::sleep(std::time::Duration::from_millis(100));
            changes = Some(thread);
            Ok(())
        })
        .unwrap();
    changes.unwrap().join().unwrap();
    assert_eq!(cq.poll(), [7]);
    (cq.ring, cq.device) = (cq.cq.ring.clone(), 2);
    cq.answer(REQ, UIDX, 0);
    assert_eq!((cq.poll(), cq.cq.disowned()), (vec![77], 0));
}

#[test]
fn completions_in_flight_move_over_in_order() {
    for entry_bytes in [64, 128] {
        for (from, to) in [(8, 16), (8, 63), (16, 7), (8, 8), (4, 1000)] {
            for start in [0, 3, 7, 8, 13, (1 << 16) - 2, (1 << 24) - 2, (1 << 31) - 2, u32::MAX - 2] {
                let mut cq = Fixture::new(from, entry_bytes);
                cq.start_at(start);
                cq.attach(UIDX);
                for n in 0..16 {
                    cq.receives.note(n, u64::from(n));
                }
                // Two are read, and two are not.
                for _ in 0..2 {
                    cq.answer(RESP_SEND, UIDX, 0);
                }
                assert_eq!(cq.poll(), [0, 1]);
                for _ in 0..2 {
                    cq.answer(RESP_SEND, UIDX, 0);
                }
                // One entry is left for the one that ends the ring.
                resize(&mut cq, to).unwrap();
                assert!(cq.cq.capacity() >= to);
                assert_eq!(cq.poll(), [2, 3], "{from} to {to}, from {start}");
                for _ in 0..3 {
                    cq.answer(RESP_SEND, UIDX, 0);
                }
                assert_eq!(cq.poll(), [4, 5, 6]);
                assert_eq!((cq.cq.fault(), cq.record.load(Word::CONSUMED)), (None, cq.device & 0xff_ffff));
            }
        }
    }
}

/// Blocks that are still packed, whose places but the first hold what is no completion, before, between and after plain ones.
#[test]
fn packed_completions_move_over_too() {
    for (from, to) in [(32, 64), (64, 31), (32, 500)] {
        for start in [0, 20, 31, 50, (1 << 16) - 3, (1 << 24) - 9, (1 << 31) - 5, u32::MAX - 7] {
            let mut cq = Fixture::new(from, 64);
            cq.compressed();
            cq.start_at(start);
            let receives = Arc::new(crate::mlx5::shadow::RqShared::at(64, 0));
            let own = crate::mlx5::mailbox::Receives::Own(receives.clone());
            cq.cq.mailbox().put(UIDX, Change::Receives(Some(own)));
            for n in 0..64 {
                receives.note(n, u64::from(n));
            }
            cq.answer(RESP_SEND, UIDX, 0);
            assert_eq!(cq.poll(), [0]);
            // Lengths, whose last bits are where others have their owner's, of both kinds.
            write_block(&mut cq, RESP_SEND, 0, &[7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17].map(received));
            cq.answer(RESP_SEND, UIDX, 0);
            write_block(&mut cq, RESP_SEND, 0, &[1, 2].map(received));
            resize(&mut cq, to).unwrap();
            let mut lengths = vec![];
            let mut open = cq.cq.open();
            while let Some(cqe) = open.next() {
                lengths.push((cqe.wr_id(), cqe.byte_len()));
            }
            cq.cq.end();
            let want = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 7, 1, 2];
            let want: Vec<(u64, u32)> = want.iter().zip(1..).map(|(length, n)| (n, *length)).collect();
            assert_eq!(lengths, want, "{from} to {to}, from {start:#x}");
            write_block(&mut cq, RESP_SEND, 0, &[3; 9].map(received));
            assert_eq!(cq.poll(), (15..24).collect::<Vec<u64>>());
            assert_eq!((cq.cq.fault(), cq.record.load(Word::CONSUMED)), (None, cq.device & 0xff_ffff));
        }
    }
}

#[test]
fn a_refused_resize_changes_nothing() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.receives.note(0, 5);
    cq.answer(RESP_SEND, UIDX, 0);
    let error = cq.cq.resize(100, |_, _| Err(Error::kernel(Verb::CreateCq, Errno::ENOSYS))).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENOSYS));
    assert_eq!((cq.poll(), cq.cq.capacity()), (vec![5], 7));
}

#[test]
fn a_ring_too_small_for_what_is_there_is_refused_before_any_command() {
    let mut cq = Fixture::new(16, 64);
    cq.attach(UIDX);
    for _ in 0..4 {
        cq.answer(RESP_SEND, UIDX, 0);
    }
    for cqe in [0, 1, 3, 1 << 22] {
        let error = cq.cq.resize(cqe, |_, _| panic!("no command")).unwrap_err();
        assert!(matches!(error, Error::Invalid { what: "cqe", .. }), "{error}");
    }
    assert_eq!(cq.poll().len(), 4);
}

#[test]
fn a_device_that_does_not_end_the_old_ring_is_an_error() {
    let mut cq = Fixture::new(8, 64);
    let error = cq.cq.resize(100, |_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("an entry that ends the old ring"), "{error}");
}

/// Sends 4 and 5 of one queue pair have their completions in the ring.
fn two_sends_done() -> Fixture {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    cq.sends.note(0, 4, 1, WcOpcode::SEND);
    cq.sends.note(1, 5, 2, WcOpcode::SEND);
    cq.answer(REQ, UIDX, 0);
    cq.answer(REQ, UIDX, 1);
    cq
}

/// A queue pair that goes after the queue was resized, and one that went before.
#[test]
fn completions_of_the_past_are_found_in_either_ring() {
    for detach_first in [true, false] {
        let mut cq = two_sends_done();
        if detach_first {
            cq.detach(UIDX);
            resize(&mut cq, 30).unwrap();
        } else {
            resize(&mut cq, 30).unwrap();
            cq.detach(UIDX);
        }
        let other = Arc::new(SqShared::new(16));
        other.note(0, 77, 1, WcOpcode::SEND);
        cq.cq.mailbox().put(UIDX, Change::Sends(Some(other)));
        cq.answer(REQ, UIDX, 0);
        assert_eq!(cq.poll(), [4, 5, 77]);
        assert_eq!(cq.cq.disowned(), 0);
    }
}

/// Its completions are one place on in the new ring: it is known as long, though others go meanwhile.
#[test]
fn a_queue_that_is_gone_is_known_to_its_last_completion_in_the_new_ring() {
    let mut cq = two_sends_done();
    cq.detach(UIDX);
    resize(&mut cq, 30).unwrap();
    let mut open = cq.cq.open();
    assert_eq!(open.next().map(|cqe| cqe.wr_id()), Some(4));
    assert!(open.end());
    let other = Arc::new(SqShared::new(16));
    other.note(0, 77, 1, WcOpcode::SEND);
    other.note(1, 78, 2, WcOpcode::SEND);
    cq.cq.mailbox().put(UIDX, Change::Sends(Some(other)));
    cq.answer(REQ, UIDX, 0);
    cq.cq.mailbox().put(UIDX, Change::Sends(None));
    assert_eq!((cq.poll(), cq.cq.disowned()), (vec![5, 77], 0));
}

/// What note writers have seen of the old ring is one place on in the new one.
#[test]
fn what_was_seen_of_the_old_ring_does_not_count_in_the_new_one() {
    let mut cq = Fixture::new(8, 64);
    cq.attach(UIDX);
    let other = Arc::new(SqShared::new(16));
    cq.cq.mailbox().put(UIDX + 1, Change::Sends(Some(other.clone())));
    cq.sends.note(0, 4, 1, WcOpcode::SEND);
    other.note(0, 6, 1, WcOpcode::SEND);
    cq.answer(REQ, UIDX, 0);
    cq.answer(REQ, UIDX + 1, 0);
    // Whoever writes this sees both.
    cq.cq.mailbox().put(UIDX + 2, Change::Sends(None));
    resize(&mut cq, 30).unwrap();
    cq.detach(UIDX);
    assert_eq!((cq.poll(), cq.cq.disowned()), (vec![4, 6], 0));
}

#[test]
fn the_end_of_a_ring_that_was_not_resized_is_a_fault() {
    let mut cq = Fixture::new(8, 64);
    cq.ring.write(0, Golden::read("cqe.txt").get("the end of a ring that was resized"));
    assert_eq!((cq.poll(), cq.cq.fault()), (vec![], Some(CqFault::Resize { ci: 0 })));
}
