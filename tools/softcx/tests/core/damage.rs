//! Nothing that a program can leave in memory makes the device panic.

use crate::bench::*;
use proptest::prelude::*;
use softcx::*;
use std::time::Duration;

/// A WQE with an opcode that exists, any flags, and segments of which some make sense.
fn wqe() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop::sample::select(vec![0, 1, 8, 9, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x14, 0x15, 0x25, 0x28, 0x7f]);
    (opcode, 0..64_u8, any::<u8>(), prop::collection::vec(any::<u8>(), 1008), any::<bool>()).prop_map(
        |(opcode, ds, flags, mut body, small)| {
            body[3] = opcode;
            body[7] = ds;
            body[11] = flags;
            if small {
                // Lengths and addresses near those that exist.
                for segment in body[16..].chunks_mut(16) {
                    segment[..3].fill(0);
                    segment[8..13].fill(0);
                }
            }
            body
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_send_wqe(mut wqe in wqe(), kind in prop::sample::select(vec![QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::XrcIni]), index: bool) {
        let (mut a, mut b) = pair(kind);
        b.receive(&[(64, b.key, DATA)]);
        wqe[4..7].copy_from_slice(&a.qpn.to_be_bytes()[1..]);
        if index {
            wqe[1..3].fill(0);
        }
        // Some of the keys exist.
        for segment in wqe[16..].chunks_mut(16).step_by(2) {
            segment[4..8].copy_from_slice(&a.key.to_be_bytes());
        }
        a.put(0x2_0000, &wqe);
        a.memory.store_be32(QP_RECORD + 4, 16).unwrap();
        a.ring_only(&wqe);
        a.fabric.settle(Duration::from_secs(2));
        a.poll_all();
        prop_assert!(a.state() >= QpState::Rts);
    }

    #[test]
    fn any_receive_wqe(bytes in prop::collection::vec(any::<u8>(), 64), keys: bool, short: bool) {
        let (mut a, b) = pair(QpKind::Rc);
        let mut wqe = bytes;
        for segment in wqe.chunks_mut(16) {
            if keys {
                segment[4..8].copy_from_slice(&b.key.to_be_bytes());
            }
            if short {
                segment[..2].fill(0);
            }
        }
        b.put(0x3_0000, &wqe);
        b.memory.store_be32(QP_RECORD, 1).unwrap();
        a.send(0x0a, 0, &[&inline(&[7; 100])]);
        a.fabric.settle(Duration::from_secs(2));
        a.poll_all();
    }

    #[test]
    fn any_doorbell(values in prop::collection::vec((any::<u64>(), any::<bool>(), any::<u32>(), any::<u32>()), 1..8)) {
        let (a, _b) = pair(QpKind::Rc);
        for (value, ours, record, ci) in values {
            a.memory.store_be32(QP_RECORD + 4, record).unwrap();
            a.memory.store_be32(QP_RECORD, ci).unwrap();
            a.memory.store_be32(0x1_8000, ci).unwrap();
            let value = if ours { value & !0xffff_ff00 | u64::from(a.qpn) << 8 } else { value };
            a.device(|d| d.doorbell(7, 0x800, value));
            a.device(|d| d.doorbell(7, 0x20, value & !0xff_ffff | u64::from(a.cqn)));
            a.fabric.step(Duration::ZERO);
        }
        a.fabric.settle(Duration::from_secs(2));
    }
}
