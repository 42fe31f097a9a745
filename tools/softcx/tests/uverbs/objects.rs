//! The objects that need more than one command: regions, windows, shared receive queues, XRC, datagrams, resized rings.

use crate::raw::*;
use ironverbs::Errno;
use softcx::{SimDevice, SimHost, WrongDevice};
use std::os::fd::AsRawFd;
use std::time::Duration;

fn settle(host: &SimHost) {
    assert!(host.fabric().settle(Duration::from_secs(1)));
}

#[test]
fn a_region_registered_anew_has_new_keys() {
    let (_host, a, _b) = pair(false);
    let query = || {
        ioctl(
            &*a.cdev,
            7,
            3,
            &[Attr::Object(0, a.mr.into()), Attr::Out(1, 4), Attr::Out(2, 4), Attr::Out(3, 8), Attr::Out(4, 8)],
        )
        .unwrap()
    };
    let before = query();
    assert_eq!(
        (word(&before[1], 0), long(&before[3], 0), long(&before[4], 0)),
        (a.key, 0x4000, a.memory.address() + DATA)
    );
    // TRANSLATION and ACCESS.
    let mut request = words(48, &[(8, a.mr), (12, 5), (44, 1)]);
    put64(&mut request, 16, a.memory.address() + DATA);
    put64(&mut request, 24, 0x1000);
    put64(&mut request, 32, 0x10_0000);
    let keys = invoke(&*a.cdev, 11, &request, 8, &[], 0).unwrap().0;
    assert_ne!(word(&keys, 0), a.key);
    let after = query();
    assert_eq!((word(&after[2], 0), long(&after[3], 0), long(&after[4], 0)), (word(&keys, 4), 0x1000, 0x10_0000));
}

#[test]
fn a_window_is_made_free() {
    let (host, a, _b) = pair(false);
    let mut request = words(16, &[(8, a.pd)]);
    request[12] = 2;
    let id = host.id("mlx5_0").unwrap();
    let before = host.with(id, |d| d.mkeys()).unwrap();
    let (core, _) = invoke(&*a.cdev, 14, &request, 8, &[0; 8], 8).unwrap();
    assert_eq!(host.with(id, |d| d.mkeys()).unwrap(), before + 1);
    request[12] = 3;
    assert_eq!(invoke(&*a.cdev, 14, &request, 8, &[], 0).err(), Some(Errno::EINVAL), "type 3");
    ioctl(&*a.cdev, 8, 0, &[Attr::Object(0, word(&core, 0).into())]).unwrap();
    assert_eq!(host.with(id, |d| d.mkeys()).unwrap(), before);
}

#[test]
fn addresses_for_a_programs_device_are_not_made_up() {
    let (host, _a, _b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    assert_eq!(host.fabric().with(id, |d| d.alloc_pd()), Err(WrongDevice::OfProgram(id)));
}

#[test]
fn an_id_of_another_host_is_refused() {
    let (host, other) = (SimHost::new(1), SimHost::new(1));
    let own = host.add(SimDevice::roce("mlx5_0"));
    // The same place of another fabric, and another host's on the same one.
    let neighbour = SimHost::on(host.fabric().clone());
    for id in [other.add(SimDevice::roce("mlx5_0")), neighbour.add(SimDevice::roce("mlx5_1"))] {
        assert_eq!(host.with(id, |d| d.is_dead()), Err(WrongDevice::Elsewhere(id)));
    }
    assert_eq!(host.with(own, |d| d.is_dead()), Ok(false));
    assert_eq!(other.fabric().with(own, |d| d.alloc_pd()), Err(WrongDevice::Elsewhere(own)));
}

/// CREATE_SRQ of 7 WQEs with 2 segments: stride 64, 8 places. `ring` and `record` are offsets.
fn create_srq(rig: &Rig, ring: u64, record: u64) -> Result<(u32, u32), Errno> {
    let mut request = words(32, &[(16, rig.pd), (20, 7), (24, 2)]);
    put64(&mut request, 8, 0x5f5f);
    let mut driver = words(32, &[(24, 0x77)]);
    put64(&mut driver, 0, rig.memory.address() + ring);
    put64(&mut driver, 8, rig.memory.address() + record);
    let (core, answer) = invoke(&*rig.cdev, 32, &request, 16, &driver, 8)?;
    assert_eq!((word(&core, 4), word(&core, 12)), (7, word(&answer, 0)));
    Ok((word(&core, 0), word(&core, 12)))
}

#[test]
fn a_shared_receive_queue_serves_and_says_when_it_is_low() {
    let host = SimHost::new(1);
    host.add(SimDevice::infiniband("mlx5_0"));
    host.add(SimDevice::infiniband("mlx5_1"));
    let (mut a, mut b) = (Rig::new(&host, "mlx5_0"), Rig::new(&host, "mlx5_1"));
    let (ring, record) = (0x1800, 0x3080);
    let (srq, _) = create_srq(&b, ring, record).unwrap();
    for i in 0..8_u16 {
        let at = ring + u64::from(i) * 64;
        b.memory.put(at + 2, &((i + 1) % 8).to_be_bytes());
        let mut segment = [64_u32.to_be_bytes(), b.key.to_be_bytes()].concat();
        segment.extend((b.memory.address() + DATA + u64::from(i) * 64).to_be_bytes());
        segment.extend([0, 0, 0, 0, 0, 0, 1, 0]);
        b.memory.put(at + 16, &segment);
    }
    b.destroy_qp().unwrap();
    let mut driver = words(56, &[(16, 32), (28, 0x400), (32, USER_INDEX), (36, b.uar_page)]);
    put64(&mut driver, 0, b.memory.address() + RQ);
    put64(&mut driver, 8, b.memory.address() + 0x30c0);
    let mut request = words(56, &[(16, b.pd), (20, b.cq), (24, b.cq), (28, srq), (32, 32), (40, 2)]);
    (request[53], request[54]) = (2, 1);
    let made = invoke(&*b.cdev, 24, &request, 32, &driver, 40).unwrap().0;
    (b.qp, b.qpn) = (word(&made, 0), word(&made, 4));
    a.connect(&b);
    b.connect(&a);
    let destroy = [Attr::Object(0, srq.into()), Attr::Out(1, 4)];
    assert_eq!(ioctl(&*b.cdev, 5, 1, &destroy).err(), Some(Errno::EBUSY));
    b.memory.store_be32(record, 5);
    let limit = |n| invoke(&*b.cdev, 33, &words(16, &[(0, srq), (4, 2), (12, n)]), 0, &[], 0).map(drop);
    assert_eq!((limit(8), limit(4)), (Err(Errno::EINVAL), Ok(())));
    a.send(b"one");
    settle(&host);
    assert_eq!(read(&b.async_fd, 16), None, "COMM_EST is for QPs in RTR; four WQEs are left");
    a.send(b"two");
    settle(&host);
    let event = read(&b.async_fd, 16).unwrap();
    assert_eq!((long(&event, 0), word(&event, 8)), (0x5f5f, 15));
    let (first, second) = (b.poll().unwrap(), b.poll().unwrap());
    assert_eq!((first[33..36].to_vec(), &second[60..62]), (vec![0, 0, 0x12], [0, 1].as_slice()), "index of the QP");
    assert_eq!(b.memory.get(DATA + 64, 3), b"two");
    let state = invoke(&*b.cdev, 34, &words(16, &[(8, srq)]), 16, &[], 0).unwrap().0;
    assert_eq!((word(&state, 0), word(&state, 8)), (7, 0));
    b.destroy_qp().unwrap();
    assert_eq!(word(&ioctl(&*b.cdev, 5, 1, &destroy).unwrap()[1], 0), 1);
}

#[test]
fn a_ring_is_left_for_a_larger_one() {
    let (host, mut a, mut b) = pair(false);
    b.receive(64, DATA);
    a.send(b"before");
    settle(&host);
    let larger = Memory::new(2);
    for i in 0..128 {
        larger.put(i * 64 + 63, &[0xf0]);
    }
    let mut driver = words(16, &[(8, 64)]);
    put64(&mut driver, 0, larger.address());
    let same = words(16, &[(8, b.cq), (12, 63)]);
    assert_eq!(word(&invoke(&*b.cdev, 19, &same, 8, &driver, 0).unwrap().0, 0), 63, "nothing to do");
    let request = words(16, &[(8, b.cq), (12, 127)]);
    let answer = invoke(&*b.cdev, 19, &request, 8, &driver, 0).unwrap().0;
    assert_eq!(word(&answer, 0), 127);
    assert_eq!((b.poll().unwrap()[63] >> 4, b.poll().unwrap()[63] >> 4), (2, 5), "the last entry says so");
    b.receive(64, DATA);
    a.send(b"after");
    settle(&host);
    assert_eq!(larger.get(2 * 64 + 47, 1), [5], "third place of the new ring");
    drop(b);
}

#[test]
fn domains_of_xrc_are_shared_by_file() {
    let (_host, a, b) = pair(false);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let open = |rig: &Rig, fd: i32, flags: i32| {
        invoke(&*rig.cdev, 37, &words(16, &[(8, fd as u32), (12, flags as u32)]), 4, &[], 0)
            .map(|(core, _)| word(&core, 0))
    };
    assert_eq!(open(&a, file.as_raw_fd(), 0), Err(Errno::EAGAIN), "nobody made one");
    let first = open(&a, file.as_raw_fd(), libc::O_CREAT).unwrap();
    let second = open(&a, file.as_raw_fd(), 0).unwrap();
    assert_eq!(open(&a, file.as_raw_fd(), libc::O_EXCL), Err(Errno::EINVAL));
    assert_eq!(open(&b, file.as_raw_fd(), 0), Err(Errno::EAGAIN), "another device");
    open(&a, -1, libc::O_CREAT).unwrap();
    assert_eq!(open(&a, 9999, 0), Err(Errno::EBADF));
    // A receiving end in the domain, opened twice.
    let mut request = words(56, &[(16, first)]);
    request[53] = 10;
    let made = invoke(&*a.cdev, 24, &request, 32, &[0; 56], 40).unwrap().0;
    let mut again = words(32, &[(16, second), (20, word(&made, 4))]);
    again[24] = 10;
    let opened = invoke(&*a.cdev, 40, &again, 32, &[], 0).unwrap().0;
    assert_eq!(word(&opened, 4), word(&made, 4));
    let destroy = |handle: u32| ioctl(&*a.cdev, 4, 1, &[Attr::Object(0, handle.into()), Attr::Out(1, 4)]).map(drop);
    let close = |handle: u32| ioctl(&*a.cdev, 10, 0, &[Attr::Object(0, handle.into())]).map(drop);
    assert_eq!(close(first), Err(Errno::EBUSY));
    assert_eq!((destroy(word(&made, 0)), destroy(word(&opened, 0))), (Ok(()), Ok(())));
    assert_eq!((close(first), close(second)), (Ok(()), Ok(())));
    assert_eq!(open(&a, file.as_raw_fd(), 0), Err(Errno::EAGAIN), "gone with its last handle");
}

#[test]
fn moderation_is_set_by_command() {
    let (host, mut a, mut b) = pair(false);
    let set = |count: u32, period: u32| {
        invoke(&*b.cdev, 0x8000_0000 | 57, &words(16, &[(0, b.cq), (4, 1), (8, count | period << 16)]), 0, &[], 0)
            .map(drop)
    };
    assert_eq!((set(2, 0x1000), set(2, 1000)), (Err(Errno::EINVAL), Ok(())));
    b.arm(0);
    b.receive(64, DATA);
    b.receive(64, DATA);
    a.send(b"one");
    host.fabric().step(Duration::ZERO);
    host.fabric().step(Duration::ZERO);
    host.fabric().step(Duration::ZERO);
    assert!(b.poll().is_some() && read(&b.channel, 8).is_none());
    a.send(b"two");
    settle(&host);
    assert!(read(&b.channel, 8).is_some());
}

#[test]
fn a_queue_pair_in_a_group_stays() {
    let (_host, a, _b) = pair(false);
    let ud = a.create_ud();
    let group = |qp: u32, number: u32| {
        let mut request = words(24, &[(16, qp)]);
        request[0] = 0xff;
        invoke(&*a.cdev, number, &request, 0, &[], 0).map(drop)
    };
    assert_eq!(group(a.qp, 30), Err(Errno::EINVAL), "not a datagram queue pair");
    assert_eq!(group(ud, 30), Ok(()));
    let destroy = || ioctl(&*a.cdev, 4, 1, &[Attr::Object(0, ud.into()), Attr::Out(1, 4)]).map(drop);
    assert_eq!((destroy(), group(ud, 31), destroy()), (Err(Errno::EBUSY), Ok(()), Ok(())));
}
