use super::*;
use crate::rxe::testing::{Kernel, hex, ring};
use crate::uverbs::wr::{WcOpcode, WcStatus};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Slots of 128 bytes, as the kernel makes them on x86-64.
fn queue(index_mask: u32, start: u32) -> (RxeCq, Kernel) {
    let (mapping, kernel) = ring(7, index_mask, start);
    (RxeCq::new(MappedRing::new(mapping, "completion queue", CQE_BYTES).unwrap()), kernel)
}

#[cfg(target_endian = "little")]
#[test]
fn a_receive_with_immediate() {
    let (mut cq, kernel) = queue(3, 3);
    assert!(kernel.give(&hex("
        8877665544332211    #  0 wr_id
        00000000            #  8 status: SUCCESS
        81000000            # 12 opcode: RECV_RDMA_WITH_IMM
        efbeadde            # 16 vendor_err
        00100000            # 20 byte_len
        11223344            # 24 ex.imm_data, big endian
        12000000            # 28 qp_num
        56341200            # 32 src_qp
        03000000            # 36 wc_flags: GRH, WITH_IMM
        0000 0000 00 00 01 00 # 40 pkey_index, slid, sl, dlid_path_bits, port_num, reserved
        ",)));
    cq.begin();
    let wc = cq.next().unwrap().wc();
    assert_eq!((wc.wr_id, wc.status(), wc.qpn()), (0x1122_3344_5566_7788, WcStatus::SUCCESS, 0x12));
    let done = wc.outcome().unwrap();
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 0x1000));
    assert_eq!(done.imm, Some(0x1122_3344));
}

#[test]
fn unknown_values_are_kept() {
    let (mut cq, kernel) = queue(3, 0);
    for (status, opcode) in [(0xfeed_u32, 0_u32), (0, 0xf00d)] {
        let words = [1_u32, 0, status, opcode, 0xdead, 0, 0, 0, 0, 0xffff_fffd, 0, 0];
        assert!(kernel.give(&words.map(u32::to_ne_bytes).concat()));
        cq.begin();
        let wc = cq.next().unwrap().wc();
        assert_eq!((wc.wr_id, wc.status()), (id(1), WcStatus(status)));
        match wc.outcome() {
            Ok(done) => assert_eq!(done.opcode, WcOpcode(opcode)),
            Err(error) => assert_eq!((error.status, error.vendor_err), (WcStatus(0xfeed), 0xdead)),
        }
        cq.give_back();
    }
}

/// A `wr_id` whose first word in memory is `n`.
fn id(n: u32) -> u64 {
    u64::from_ne_bytes([n.to_ne_bytes(), [0; 4]].concat().try_into().unwrap())
}

fn cqe(wr_id: u64) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[..8].copy_from_slice(&wr_id.to_ne_bytes());
    bytes
}

#[test]
fn one_completion_and_an_early_end_leave_no_phantom() {
    for start in 0..4 {
        let (mut cq, kernel) = queue(3, start);
        for round in 0..9 {
            assert!(kernel.give(&cqe(round)));
            cq.begin();
            assert_eq!(cq.next().map(|c| c.wc().wr_id), Some(round));
            assert!(cq.next().is_none());
            assert!(cq.next().is_none());
            cq.give_back();
            cq.give_back();
            cq.begin();
            assert!(cq.next().is_none(), "start {start}, round {round}");
            cq.give_back();
            assert_eq!(kernel.consumer(), kernel.producer());
        }
    }
}

#[test]
fn a_batch_ends_where_it_began_to_look() {
    let (mut cq, kernel) = queue(7, 6);
    kernel.give(&cqe(1));
    cq.begin();
    kernel.give(&cqe(2));
    assert_eq!(cq.next().map(|c| c.wc().wr_id), Some(1));
    assert!(cq.next().is_none(), "came after begin");
    cq.give_back();
    cq.begin();
    assert_eq!(cq.next().map(|c| c.wc().wr_id), Some(2));
    assert!(cq.next().is_none());
}

#[test]
fn slots_are_given_back_at_the_end_of_the_batch() {
    let (mut cq, kernel) = queue(3, 0);
    for n in 0..3 {
        assert!(kernel.give(&cqe(n)));
    }
    assert!(!kernel.give(&cqe(3)), "full");
    cq.begin();
    cq.next();
    cq.next();
    assert!(!kernel.give(&cqe(3)), "still ours");
    cq.give_back();
    assert!(kernel.give(&cqe(4)) && kernel.give(&cqe(5)));
    assert!(!kernel.give(&cqe(6)));
    cq.begin();
    let ids: Vec<u64> = std::iter::from_fn(|| cq.next().map(|c| c.wc().wr_id)).collect();
    assert_eq!(ids, [2, 4, 5]);
}

proptest! {
    /// Bursts of any size, batches cut short anywhere: N completions that fit give exactly N items, in order.
    #[test]
    fn every_completion_is_seen_once(
        log2_slots in 1_u32..6,
        start: u32,
        rounds in prop::collection::vec((0_usize..40, 0_usize..40, any::<bool>()), 0..60),
    ) {
        let capacity = (1_usize << log2_slots) - 1;
        let (mut cq, kernel) = queue(capacity as u32, start);
        let mut unread = VecDeque::new();
        let mut held = 0;
        let mut wr_id = 0;
        for (burst, most, end) in rounds {
            for _ in 0..burst {
                wr_id += 1;
                let fits = unread.len() + held < capacity;
                prop_assert_eq!(kernel.give(&cqe(wr_id)), fits);
                if fits {
                    unread.push_back(wr_id);
                }
            }
            cq.begin();
            for _ in 0..most {
                let got = cq.next().map(|c| c.wc().wr_id);
                prop_assert_eq!(got, unread.pop_front());
                held += usize::from(got.is_some());
            }
            if end {
                cq.give_back();
                held = 0;
            }
        }
    }
}
