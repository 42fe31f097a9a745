//! What the driver of the kernel refuses, with its error numbers.

use crate::raw::*;
use ironverbs::Errno;
use softcx::*;

const EINVAL: Option<Errno> = Some(Errno::EINVAL);

#[test]
fn framing_is_checked() {
    let (_host, a, _b) = pair(false);
    let c = &*a.cdev;
    assert_eq!(ioctl(c, 0, 99, &[]).err(), Some(Errno::EPROTONOSUPPORT));
    assert_eq!(ioctl(c, 2, 0, &[]).err(), Some(Errno::EPROTONOSUPPORT), "channels are not made this way");
    assert_eq!(ioctl(c, 0, 2, &[Attr::Number(0, 1)]).err(), EINVAL, "the answer is missing");
    assert_eq!(ioctl(c, 0, 2, &[Attr::Number(0, 1), Attr::Out(1, 47)]).err(), EINVAL);
    assert_eq!(ioctl(c, 0, 2, &[Attr::Number(0, 2), Attr::Out(1, 48)]).err(), EINVAL, "no such port");
    assert_eq!(ioctl(c, 0, 2, &[Attr::In(0, vec![1, 0, 0, 0]), Attr::Out(1, 48)]).err(), EINVAL);
    let unknown = [Attr::Number(0, 1), Attr::Out(1, 48), Attr::Number(77, 0)];
    assert_eq!(ioctl(c, 0, 2, &unknown).err(), Some(Errno::EPROTONOSUPPORT));
    let twice = [Attr::Number(0, 1), Attr::Out(1, 48), Attr::Number(0, 1)];
    assert_eq!(ioctl(c, 0, 2, &twice).err(), EINVAL);
    let no_flags = [Attr::Number(0, 1), Attr::Number(1, 9), Attr::In(2, vec![0; 4]), Attr::Out(3, 32)];
    assert_eq!(ioctl(c, 0, 6, &no_flags).err(), Some(Errno::ENODATA));
    assert_eq!(invoke(c, 3, &[0; 4], 4, &[], 4).err(), Some(Errno::ENOSPC));
    assert_eq!(invoke(c, 3, &[0; 8], 2, &[], 4).err(), Some(Errno::ENOSPC));
    assert_eq!(invoke(c, 3, &[0; 8], 4, &[], 0).err(), Some(Errno::EFAULT), "the driver's answer has no place");
    assert_eq!(invoke(c, 21, &[0; 16], 4, &[], 0).err(), Some(Errno::EOPNOTSUPP), "POLL_CQ");
    assert_eq!(invoke(c, 23, &[0; 8], 0, &[], 0).err(), Some(Errno::EOPNOTSUPP), "REQ_NOTIFY_CQ");
}

#[test]
fn contexts_are_checked() {
    let host = SimHost::new(1);
    host.add(SimDevice::roce("mlx5_0"));
    let cdev = open(&host, "mlx5_0");
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut request = words(32, &[(0, 16), (4, 4)]);
        request[16] = 1;
        put64(&mut request, 24, 3);
        change(&mut request);
        ioctl(&*cdev, 0, 3, &[Attr::In(0x1000, request), Attr::Out(0x1001, 72)]).err()
    };
    assert_eq!(refused(&|r| r[8] = 1), EINVAL, "no DEVX");
    assert_eq!(refused(&|r| r[8] = 2), EINVAL, "a flag that nobody knows");
    assert_eq!(refused(&|r| r[12] = 1), Some(Errno::EOPNOTSUPP));
    assert_eq!(refused(&|r| r[20] = 1), Some(Errno::EOPNOTSUPP));
    assert_eq!(refused(&|r| r[4] = 16), EINVAL);
    assert_eq!(refused(&|r| r.truncate(12)), EINVAL);
    assert_eq!(refused(&|_| {}), None);
}

#[test]
fn regions_are_checked() {
    let (_host, a, _b) = pair(false);
    let base = a.memory.address() + DATA;
    let refused = |start: u64, len: u64, iova: u64, access: u32| {
        let mut request = words(40, &[(32, a.pd), (36, access)]);
        put64(&mut request, 8, start);
        put64(&mut request, 16, len);
        put64(&mut request, 24, iova);
        invoke(&*a.cdev, 9, &request, 12, &[], 0).err()
    };
    assert_eq!(refused(base, 4096, base + 8, 1), EINVAL, "offset in the page");
    assert_eq!(refused(base, 4096, 0x7000_0000, 1), None, "another address under the key");
    assert_eq!(refused(base, 0, base, 1), EINVAL);
    assert_eq!(refused(base, 4096, base, 2), EINVAL, "remote write without local write");
    assert_eq!(refused(base, 4096, base, 1 << 15), EINVAL);
    assert_eq!(refused(base, 4096, base, 1 | 1 << 20 | 1 << 25), None, "hints");
    assert_eq!(refused(base, 4096, base, 1 | 1 << 6), Some(Errno::EOPNOTSUPP), "on demand");
    assert_eq!(refused(0x1000, 4096, 0x1000, 1), Some(Errno::EFAULT));
}

#[test]
fn queue_pairs_are_checked() {
    let (_host, a, _b) = pair(false);
    let refused = |change: &dyn Fn(&mut Vec<u8>)| a.create_qp(|d| change(d)).err();
    assert_eq!(refused(&|d| d[16] = 31), EINVAL, "send ring not a power of two");
    assert_eq!(refused(&|d| d[20] = 0), EINVAL, "no receive ring");
    assert_eq!(refused(&|d| d[24] = 3), EINVAL);
    assert_eq!(refused(&|d| d[29] = 0), EINVAL, "no UAR page");
    assert_eq!(refused(&|d| d[36] = 0xee), EINVAL, "a page of nobody");
    assert_eq!(refused(&|d| d[35] = 1), EINVAL, "user index of 25 bits");
    assert_eq!(refused(&|d| d[54] = 1), EINVAL);
    assert_eq!(refused(&|d| d[31] = 0x80), EINVAL, "unknown flag");
    assert_eq!(refused(&|d| d.truncate(47)), EINVAL);
    assert_eq!(refused(&|d| put64(d, 0, 0x1000)), Some(Errno::EFAULT));
    assert_eq!(refused(&|_| {}), None);
}

#[test]
fn completion_queues_are_checked() {
    let (_host, a, _b) = pair(false);
    let refused = |cqe: u32, vector: u32, change: &dyn Fn(&mut Vec<u8>)| {
        let mut driver = words(32, &[(16, 64), (24, a.uar_page)]);
        put64(&mut driver, 0, a.memory.address());
        put64(&mut driver, 8, a.memory.address() + 0x3000);
        driver[22] = 2;
        change(&mut driver);
        let attrs = [
            Attr::New(0),
            Attr::In(1, cqe.to_ne_bytes().to_vec()),
            Attr::In(2, vec![0; 8]),
            Attr::In(4, vector.to_ne_bytes().to_vec()),
            Attr::Out(6, 4),
            Attr::In(0x1000, driver),
            Attr::Out(0x1001, 8),
        ];
        ioctl(&*a.cdev, 3, 0, &attrs).err()
    };
    let as_is = |_: &mut Vec<u8>| {};
    assert_eq!(refused(63, 0, &as_is), None);
    assert_eq!(refused(0, 0, &as_is), None, "one entry");
    assert_eq!(refused(1 << 22, 0, &as_is), EINVAL);
    assert_eq!(refused(63, 99, &as_is), EINVAL, "no such vector");
    assert_eq!(refused(63, 0, &|d| d[0] = 64), EINVAL, "not at the start of a page");
    assert_eq!(refused(63, 0, &|d| d[16] = 32), EINVAL);
    assert_eq!(refused(63, 0, &|d| d[28] = 1), EINVAL);
    assert_eq!(refused(63, 0, &|d| d[22] = 0), EINVAL, "no UAR page");
    assert_eq!(refused(63, 0, &|d| d[20] = 1), Some(Errno::EOPNOTSUPP), "compression without a format");
    assert_eq!(refused(63, 0, &|d| (d[20], d[21]) = (1, 4)), None);
    assert_eq!(refused(63, 0, &|d| (d[16], d[20], d[21]) = (128, 1, 4)), Some(Errno::EOPNOTSUPP));
    assert_eq!(refused(63, 0, &|d| d.truncate(21)), EINVAL);
}

#[test]
fn transitions_are_checked() {
    let host = SimHost::new(1);
    host.add(SimDevice::roce("mlx5_0"));
    host.add(SimDevice::roce("mlx5_1"));
    let (a, b) = (Rig::new(&host, "mlx5_0"), Rig::new(&host, "mlx5_1"));
    assert_eq!(a.to_rtr(&b).err(), EINVAL, "from RESET");
    assert_eq!(a.modify(1, 0x31, |r| r[104] = 1).err(), EINVAL, "no access flags");
    assert_eq!(a.modify(1, 0x79, |r| r[104] = 1).err(), EINVAL, "a Q_Key");
    assert_eq!(a.modify(1, 0x39, |_| {}).err(), EINVAL, "port 0");
    assert_eq!(a.modify(1, 0x39 | 1 << 25, |r| r[104] = 1).err(), Some(Errno::EOPNOTSUPP));
    a.to_init().unwrap();
    let rtr = |change: &dyn Fn(&mut Vec<u8>)| {
        a.modify(2, 0x12_9181, |r| {
            r[..16].copy_from_slice(&b.gid);
            (r[24], r[30], r[31], r[98]) = (1, 1, 1, 3);
            change(r);
        })
        .err()
    };
    assert_eq!(rtr(&|r| r[31] = 0), EINVAL, "port of the path");
    assert_eq!(rtr(&|r| r[30] = 0), EINVAL, "RoCE needs a GID");
    assert_eq!(rtr(&|r| r[24] = 9), Some(Errno::ENODATA), "an empty place");
    assert_eq!(rtr(&|r| r[98] = 6), EINVAL);
    assert_eq!(rtr(&|r| r[102] = 17), EINVAL);
    assert_eq!(rtr(&|r| r[15] ^= 0x55), Some(Errno::ETIMEDOUT), "nobody has the address");
    assert_eq!(rtr(&|_| {}), None);
    a.to_rts().unwrap();
    assert_eq!(a.modify(4, 1, |_| {}).err(), EINVAL, "to SQD the driver never goes");
    let state = invoke(&*a.cdev, 25, &words(16, &[(8, a.qp), (12, 0x1f_ffff)]), 128, &[], 0).unwrap().0;
    assert_eq!((state[108], state[110], &state[..16]), (3, 3, b.gid.as_slice()));
}

#[test]
fn address_handles_find_the_ethernet_address() {
    let (_host, a, b) = pair(false);
    let ah = |gid: [u8; 16]| {
        let mut request = words(56, &[(16, a.pd)]);
        request[24..40].copy_from_slice(&gid);
        (request[44], request[53], request[54]) = (1, 1, 1);
        invoke(&*a.cdev, 5, &request, 4, &[], 16).map(|(_, driver)| driver[4..10].to_vec())
    };
    assert_eq!(ah(b.gid), Ok(vec![0x02, 0, 0x5e, 0, 0, 2]));
    let mut group = [0; 16];
    group[0] = 0xff;
    group[12..].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(ah(group), Ok(vec![0x33, 0x33, 1, 2, 3, 4]));
}

#[test]
fn a_controlled_key_takes_a_privilege() {
    for (privileged, answer) in [(false, Err(Errno::EPERM)), (true, Ok(()))] {
        let host = SimHost::new(1).net_raw(privileged);
        host.add(SimDevice::infiniband("mlx5_0"));
        let rig = Rig::new(&host, "mlx5_0");
        let ud = rig.create_ud();
        let set = |key: u32| {
            let mut request = words(112, &[(64, ud), (68, 0x71), (72, key)]);
            (request[96], request[104]) = (1, 1);
            invoke(&*rig.cdev, 26, &request, 0, &[], 0).map(drop)
        };
        assert_eq!((set(0x8000_0001), set(0x7fff_ffff)), (answer, Ok(())));
    }
}
