//! Every reason of a failure, from the device to the completion.

use crate::rig::{Rig, receive, send};
use ironverbs::{WcStatus, WrFlags};
use softcx::Syndrome;

const STATUSES: &[(Syndrome, WcStatus)] = &[
    (Syndrome::LOCAL_LENGTH, WcStatus::LOC_LEN_ERR),
    (Syndrome::LOCAL_QP_OP, WcStatus::LOC_QP_OP_ERR),
    (Syndrome::LOCAL_PROTECTION, WcStatus::LOC_PROT_ERR),
    (Syndrome::FLUSH, WcStatus::WR_FLUSH_ERR),
    (Syndrome::MW_BIND, WcStatus::MW_BIND_ERR),
    (Syndrome::BAD_RESPONSE, WcStatus::BAD_RESP_ERR),
    (Syndrome::LOCAL_ACCESS, WcStatus::LOC_ACCESS_ERR),
    (Syndrome::REMOTE_INVALID_REQUEST, WcStatus::REM_INV_REQ_ERR),
    (Syndrome::REMOTE_ACCESS, WcStatus::REM_ACCESS_ERR),
    (Syndrome::REMOTE_OPERATION, WcStatus::REM_OP_ERR),
    (Syndrome::RETRY_EXCEEDED, WcStatus::RETRY_EXC_ERR),
    (Syndrome::RNR_RETRY_EXCEEDED, WcStatus::RNR_RETRY_EXC_ERR),
    (Syndrome::REMOTE_ABORTED, WcStatus::REM_ABORT_ERR),
    // Of the future: no name, no vendor's byte.
    (Syndrome(0x77), WcStatus::GENERAL_ERR),
];

#[test]
fn every_syndrome_is_a_status_with_the_vendors_byte_on_either_side() {
    assert_eq!(STATUSES.len(), Syndrome::ALL.len() + 1, "a syndrome that this test does not know");
    for (syndrome, status) in STATUSES {
        for on_receive in [false, true] {
            let mut rig = Rig::new(64);
            let [mut a, mut b] = rig.pair(8, None);
            for wr_id in [1, 2] {
                receive(&mut b, wr_id, &rig.mr);
            }
            let qpn = if on_receive { b.qpn() } else { a.qpn() }.get();
            rig.host
                .with(rig.device, |device| {
                    let fail =
                        if on_receive { softcx::Control::fail_next_receive } else { softcx::Control::fail_next_send };
                    fail(device, qpn, *syndrome).unwrap();
                })
                .unwrap();
            // The first is not signaled: a failure completes all the same, and so does what comes after it.
            send(&mut a, 11, WrFlags::NONE);
            send(&mut a, 12, WrFlags::NONE);
            rig.settle();
            let all = rig.poll();
            let number = if on_receive { 1 } else { 11 };
            let failed = all.iter().find(|wc| wc.wr_id == number).unwrap_or_else(|| panic!("{syndrome}: {all:?}"));
            let error = failed.outcome().unwrap_err();
            assert_eq!((failed.qpn(), error.status), (qpn, *status), "{syndrome}");
            assert_eq!(error.vendor_err, u32::from(syndrome.vendor()), "{syndrome}");
            let next = all.iter().find(|wc| wc.wr_id == number + 1).unwrap_or_else(|| panic!("{syndrome}: {all:?}"));
            assert_eq!(next.status(), WcStatus::WR_FLUSH_ERR, "what comes after {syndrome}");
            assert_eq!(next.outcome().unwrap_err().vendor_err, u32::from(Syndrome::FLUSH.vendor()));
            rig.host.fabric().take_reports();
            drop((a, b));
            rig.finish();
        }
    }
}
