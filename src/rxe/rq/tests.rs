use super::*;
use crate::rxe::testing::{DIRTY, Kernel, hex, ring};
use crate::uverbs::types::Lkey;
use proptest::prelude::*;
use std::collections::VecDeque;

fn queue(log2: u32, index_mask: u32, start: u32, max_sge: u32) -> (RxeRq, Kernel) {
    let (mapping, kernel) = ring(log2, index_mask, start);
    let memory = MappedRing::new(mapping, "receive queue", wqe_bytes(max_sge)).unwrap();
    (RxeRq::new(memory, max_sge), kernel)
}

fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge::from_raw(addr, length, Lkey(lkey))
}

#[cfg(target_endian = "little")]
#[track_caller]
fn check(wr_id: u64, sges: &[Sge], golden: &str) {
    let mut golden = hex(golden);
    golden.resize(128, DIRTY);
    let (mut rq, kernel) = queue(7, 3, 3, 5);
    rq.push(wr_id, sges).unwrap();
    rq.submit();
    assert_eq!(kernel.take().unwrap(), golden);
}

#[cfg(target_endian = "little")]
#[test]
fn receive_into_one_entry() {
    check(
        0x1122_3344_5566_7788,
        &[sge(0x7f00_dead_beef_0010, 0x1000, 0x0000_5c01)],
        "
        8877665544332211                    #  0 wr_id
        00000000 00000000                   #  8 reserved, padding
        00100000 00100000                   # 16 dma.length, resid
        00000000 01000000                   # 24 dma.cur_sge, num_sge
        00000000 00000000                   # 32 dma.sge_offset, reserved
        1000efbeadde007f 00100000 015c0000  # 40 sge[0]: addr, length, lkey
        ",
    );
}

#[cfg(target_endian = "little")]
#[test]
fn receive_into_the_most_entries() {
    check(
        1,
        &[sge(1, 1, 0x10), sge(2, 2, 0x20), sge(3, 0, 0x30), sge(4, 0x7fff_0000, 0x40), sge(5, 0xfffd, 0x50)],
        "
        0100000000000000                    #  0 wr_id
        00000000 00000000                   #  8 reserved, padding
        00000080 00000080                   # 16 dma.length, resid: 2^31
        00000000 05000000                   # 24 dma.cur_sge, num_sge
        00000000 00000000                   # 32 dma.sge_offset, reserved
        0100000000000000 01000000 10000000  # 40 sge[0]
        0200000000000000 02000000 20000000  # 56 sge[1]
        0300000000000000 00000000 30000000  # 72 sge[2]
        0400000000000000 0000ff7f 40000000  # 88 sge[3]
        0500000000000000 fdff0000 50000000  # 104 sge[4]
        ",
    );
}

#[cfg(target_endian = "little")]
#[test]
fn receive_into_nothing() {
    check(
        0xffff_ffff_ffff_ffff,
        &[],
        "
        ffffffffffffffff                    #  0 wr_id
        00000000 00000000                   #  8 reserved, padding
        00000000 00000000                   # 16 dma.length, resid
        00000000 00000000                   # 24 dma.cur_sge, num_sge
        00000000 00000000                   # 32 dma.sge_offset, reserved
        ",
    );
}

#[test]
#[should_panic(expected = "too small")]
fn slots_must_hold_the_largest_receive() {
    let (mapping, _kernel) = ring(6, 3, 0);
    let memory = MappedRing::new(mapping, "receive queue", 40).unwrap();
    let _ = RxeRq::new(memory, 2);
}

#[test]
fn what_cannot_be_posted_is_refused_and_leaves_the_queue_alone() {
    for (sges, want) in [
        (vec![sge(0, 1, 0); 2], Err(PostError::TooManySges)),
        (vec![sge(0, (1 << 31) + 1, 0)], Err(PostError::MessageTooLong)),
        (vec![sge(0, 1 << 31, 0)], Ok(())),
    ] {
        let (mut rq, kernel) = queue(6, 3, 0, 1);
        assert_eq!(rq.push(1, &sges), want);
        assert!(kernel.slot(1).iter().all(|&b| b == DIRTY));
        rq.submit();
        assert_eq!(kernel.producer(), u32::from(want.is_ok()));
    }
}

#[test]
fn receives_are_visible_only_when_submitted() {
    let (mut rq, kernel) = queue(6, 7, 6, 1);
    rq.push(1, &[]).unwrap();
    rq.push(2, &[]).unwrap();
    assert_eq!(kernel.producer(), 6);
    rq.begin();
    rq.push(3, &[]).unwrap();
    rq.submit();
    assert_eq!(kernel.producer(), 7);
    assert_eq!(kernel.take().unwrap()[0], 3);
    assert_eq!(kernel.take(), None);
    assert_eq!(rq.remaining(), 7);
}

proptest! {
    /// Wraps of the ring from any start: all receives arrive whole, in order, and no more than fit.
    #[test]
    fn the_kernel_sees_what_was_submitted(
        log2_slots in 1_u32..4,
        start: u32,
        steps in prop::collection::vec((0_usize..=3, 0_usize..6, 0_usize..6), 0..60),
    ) {
        let capacity = (1_usize << log2_slots) - 1;
        let (mut rq, kernel) = queue(7, capacity as u32, start, 3);
        let mut queued = VecDeque::new();
        let mut wr_id = 0_u64;
        for (num_sge, pushes, takes) in steps {
            for _ in 0..pushes {
                wr_id += 1;
                let sges: Vec<Sge> = (0..num_sge).map(|i| sge(wr_id << 8, 10 + i as u32, i as u32)).collect();
                let want = if queued.len() == capacity { Err(PostError::QueueFull) } else { Ok(()) };
                prop_assert_eq!(rq.push(wr_id, &sges), want);
                if want.is_ok() {
                    queued.push_back((wr_id, sges));
                }
            }
            rq.submit();
            for _ in 0..takes {
                let slot = kernel.take();
                prop_assert_eq!(slot.is_some(), !queued.is_empty());
                let (Some(slot), Some((wr_id, sges))) = (slot, queued.pop_front()) else { break };
                let word = |at: usize| u32::from_ne_bytes(slot[at..at + 4].try_into().unwrap());
                let long = |at: usize| u64::from_ne_bytes(slot[at..at + 8].try_into().unwrap());
                let length: u32 = sges.iter().map(|s| s.length()).sum();
                prop_assert_eq!((long(0), word(16), word(20)), (wr_id, length, length));
                prop_assert_eq!((word(24), word(28), word(32)), (0, sges.len() as u32, 0));
                for (i, s) in sges.iter().enumerate() {
                    let at = 40 + 16 * i;
                    prop_assert_eq!((long(at), word(at + 8), word(at + 12)), (s.addr(), s.length(), s.lkey().0));
                }
            }
        }
    }
}
