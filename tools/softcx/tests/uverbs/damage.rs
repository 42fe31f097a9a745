//! Nothing that a program can put into a command makes the front panic.

use crate::raw::*;
use ironverbs::Errno;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_attributes_of_a_queue_pair(bytes in prop::collection::vec(any::<u8>(), 112), mask in 0..0x20_0000_u32, state in 0..8_u8) {
        let (host, a, _b) = pair(false);
        let mut request = bytes;
        request[64..68].copy_from_slice(&a.qp.to_ne_bytes());
        request[68..72].copy_from_slice(&mask.to_ne_bytes());
        request[96] = state;
        let _: Result<_, Errno> = invoke(&*a.cdev, 26, &request, 0, &[], 0);
        host.fabric().settle(std::time::Duration::from_secs(1));
    }

    #[test]
    fn any_rings(bytes in prop::collection::vec(any::<u8>(), 56), near: bool) {
        let (_host, a, _b) = pair(false);
        // The addresses are replaced: what is at others is not the test's.
        let made = a.create_qp(|driver| {
            driver[16..].copy_from_slice(&bytes[16..]);
            if near {
                driver[16..28].copy_from_slice(&[1 << (bytes[16] % 8), 0, 0, 0, 1 << (bytes[20] % 8), 0, 0, 0, bytes[24] % 12, 0, 0, 0]);
                driver[28..36].copy_from_slice(&[0, 4, 0, 0, bytes[32], 0, 0, 0]);
                driver[36..40].copy_from_slice(&a.uar_page.to_ne_bytes());
                driver[54..].fill(0);
            }
        });
        let _: Result<_, Errno> = made;
    }

    #[test]
    fn any_request_of_any_command(number in 0..64_u32, extended: bool, bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        let (_host, a, _b) = pair(false);
        // REG_MR and REREG_MR may hand memory of the test to a device that nobody uses then.
        let number = number | if extended { 1 << 31 } else { 0 };
        let _: Result<_, Errno> = invoke(&*a.cdev, number, &bytes, 304, &[], 112).map(drop);
    }

    #[test]
    fn any_method(object in 0..20_u16, method in 0..8_u16, ids in prop::collection::vec(0..16_u16, 0..8), value: u64) {
        let (_host, a, _b) = pair(true);
        let attrs: Vec<Attr> = ids.iter().enumerate().map(|(i, id)| match i % 4 {
            0 => Attr::Object(*id, value),
            1 => Attr::Number(*id, value),
            2 => Attr::Out(*id, 64),
            _ => Attr::In(*id, value.to_ne_bytes()[..4].to_vec()),
        }).collect();
        let _: Result<_, Errno> = ioctl(&*a.cdev, object, method, &attrs).map(drop);
    }
}
