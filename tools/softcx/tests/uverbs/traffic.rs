//! Messages between two devices, in steps and on a thread.

use crate::raw::*;
use softcx::*;
use std::time::{Duration, Instant};

#[test]
fn a_message_crosses_either_link_layer() {
    for infiniband in [false, true] {
        let (host, mut a, mut b) = pair(infiniband);
        b.receive(64, DATA);
        a.send(b"across");
        assert!(host.fabric().settle(Duration::from_secs(1)));
        let sent = a.poll().unwrap();
        assert_eq!((sent[63] >> 4, sent[56], &sent[33..36]), (0, 0x0a, [0, 0, 0x12].as_slice()));
        let received = b.poll().unwrap();
        assert_eq!((received[63] >> 4, received[47], b.memory.get(DATA, 6)), (2, 6, b"across".to_vec()));
        assert_eq!(host.fabric().take_reports(), []);
    }
}

#[test]
fn no_doorbell_no_step() {
    let (host, mut a, _b) = pair(false);
    host.fabric().settle(Duration::from_secs(1));
    assert_eq!(a.poll(), None);
}

/// The next completion, of a fabric that runs on a thread.
fn wait(rig: &mut Rig) -> Vec<u8> {
    let start = Instant::now();
    loop {
        if let Some(entry) = rig.poll() {
            return entry;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nothing comes");
        std::thread::yield_now();
    }
}

#[test]
fn a_ping_pong_on_a_thread() {
    let (host, mut a, mut b) = pair(false);
    let _engine = host.fabric().spawn();
    for i in 0..200_u8 {
        b.receive(64, DATA);
        a.receive(64, DATA);
        a.send(&[i; 20]);
        wait(&mut a);
        assert_eq!(wait(&mut b)[63] >> 4, 2);
        assert_eq!(b.memory.get(DATA, 20), [i; 20]);
        b.send(&[!i; 20]);
        wait(&mut b);
        assert_eq!(wait(&mut a)[63] >> 4, 2);
        assert_eq!(a.memory.get(DATA, 20), [!i; 20]);
    }
    assert_eq!(host.fabric().take_reports(), []);
}

#[test]
fn a_completion_event_comes_through_its_channel() {
    let (host, mut a, mut b) = pair(false);
    b.receive(64, DATA);
    b.arm(0);
    host.fabric().step(Duration::ZERO);
    assert_eq!(read(&b.channel, 8), None);
    a.send(b"wake");
    host.fabric().settle(Duration::from_secs(1));
    assert_eq!(read(&b.channel, 8), Some(CQ_HANDLE.to_ne_bytes().to_vec()));
    assert_eq!(read(&b.channel, 8), None, "once");
    b.poll().unwrap();
    b.arm(1);
    b.receive(64, DATA);
    a.send(b"wake");
    host.fabric().settle(Duration::from_secs(1));
    // Left unread: the destroyed queue takes it back, and counts it.
    b.destroy_qp().unwrap();
    assert_eq!(b.destroy_cq(), Ok((2, 0)));
    assert_eq!(read(&b.channel, 8), None);
}

#[test]
fn a_lost_packet_and_a_refused_access() {
    let (host, mut a, mut b) = pair(true);
    let mut first = true;
    host.fabric().filter(move |_| if std::mem::take(&mut first) { Verdict::Drop } else { Verdict::Pass });
    b.receive(64, DATA);
    a.send(b"again");
    assert!(host.fabric().settle(Duration::from_secs(1)));
    assert_eq!((host.fabric().lost(), a.poll().unwrap()[63] >> 4), (1, 0));
    assert_eq!(b.poll().unwrap()[47], 5);
    // A buffer that is not registered.
    b.receive(64, CQ);
    a.send(b"x");
    assert!(host.fabric().settle(Duration::from_secs(1)));
    let (failed, refused) = (a.poll().unwrap(), b.poll().unwrap());
    assert_eq!((failed[63] >> 4, failed[55], refused[63] >> 4, refused[55]), (13, 0x14, 14, 0x04));
    let reports = host.fabric().take_reports();
    assert!(reports.iter().any(|r| matches!(r.misuse, Misuse::LocalAccess(_))), "{reports:#?}");
}

#[test]
fn a_file_without_write_combining_has_no_blue_flame() {
    let host = SimHost::new(1);
    host.add(SimDevice::roce("mlx5_0").write_combining(false));
    let cdev = open(&host, "mlx5_0");
    let context = get_context(&*cdev).unwrap();
    assert_eq!(word(&context, 4), 0, "bf_reg_size");
    let alloc = |kind| {
        let attrs = [
            Attr::New(0x1000),
            Attr::Number(0x1001, kind),
            Attr::Out(0x1002, 8),
            Attr::Out(0x1003, 4),
            Attr::Out(0x1004, 4),
        ];
        ioctl(&*cdev, 0x1008, 0x1000, &attrs).map(drop)
    };
    assert_eq!((alloc(0), alloc(1)), (Err(ironverbs::Errno::EOPNOTSUPP), Ok(())));
}

#[test]
fn a_blue_flame_copy_must_be_the_wqe() {
    let (host, mut a, mut b) = pair(false);
    for spoil in [0, 1] {
        b.receive(64, DATA);
        a.send_blue_flame(b"bluefire", spoil);
        assert!(host.fabric().settle(Duration::from_secs(1)));
        assert_eq!((a.poll().unwrap()[63] >> 4, b.poll().unwrap()[47]), (0, 8));
        assert_eq!(b.memory.get(DATA, 8), b"bluefire", "the ring is what counts");
        let misuses: Vec<Misuse> = host.fabric().take_reports().into_iter().map(|r| r.misuse).collect();
        assert_eq!(misuses, vec![Misuse::BlueFlameImage; spoil.into()]);
    }
}

/// A thread may look between the stores of a copy. What is left of it then comes with the next doorbell.
#[test]
fn half_a_copy_is_no_misuse() {
    let (host, mut a, mut b) = pair(false);
    (0..3).for_each(|_| b.receive(64, DATA));
    let engine = host.fabric().spawn();
    let (head, wqe) = a.write_send(&[1; 44]);
    a.doorbell(0x900, head);
    wait(&mut a);
    for (i, word) in wqe.chunks(8).enumerate().skip(1) {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        a.doorbell(0x900 + 8 * i, u64::from_be_bytes(whole));
    }
    let (head, _) = a.write_send(b"no copy of this one");
    a.doorbell(0x900, head);
    wait(&mut a);
    drop(engine);
    // Steps that the program makes see nothing half done, but what the thread has left.
    for spoil in [0, 1] {
        b.receive(64, DATA);
        a.send_blue_flame(b"bluefire", spoil);
        assert!(host.fabric().settle(Duration::from_secs(1)));
        let misuses: Vec<Misuse> = host.fabric().take_reports().into_iter().map(|r| r.misuse).collect();
        assert_eq!(misuses, vec![Misuse::BlueFlameImage; spoil.into()]);
    }
}

/// Between two looks of the device a register may get a copy, and then the first 8 bytes of a later WQE.
#[test]
fn a_doorbell_may_hide_the_copy_before_it() {
    let (host, mut a, mut b) = pair(false);
    for spoil in [0, 1] {
        (0..3).for_each(|_| b.receive(64, DATA));
        a.send_blue_flame(b"bluefire", spoil);
        a.write_send(b"by the next doorbell");
        let (head, _) = a.write_send(b"plain");
        a.doorbell(0x900, head);
        assert!(host.fabric().settle(Duration::from_secs(1)));
        assert_eq!([(); 3].map(|()| b.poll().unwrap()[47]), [8, 20, 5]);
        let misuses: Vec<Misuse> = host.fabric().take_reports().into_iter().map(|r| r.misuse).collect();
        assert_eq!(misuses, vec![Misuse::BlueFlameImage; spoil.into()]);
    }
}

#[test]
fn two_hosts_share_a_fabric_and_keep_their_events() {
    let fabric = Fabric::new(1);
    let (one, two) = (SimHost::on(fabric.clone()), SimHost::on(fabric));
    one.add(SimDevice::infiniband("mlx5_0"));
    two.add(SimDevice::infiniband("mlx5_0"));
    let (mut a, mut b) = (Rig::new(&one, "mlx5_0"), Rig::new(&two, "mlx5_0"));
    a.connect(&b);
    b.connect(&a);
    b.receive(64, DATA);
    b.arm(0);
    a.send(b"hello");
    assert!(one.fabric().settle(Duration::from_secs(1)));
    assert_eq!(b.poll().unwrap()[47], 5);
    assert!(read(&b.channel, 8).is_some());
}

#[test]
fn two_fabrics_are_joined_by_a_socket() {
    let (one, two) = (SimHost::new(1), SimHost::new(2).first_place(100));
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    one.fabric().bridge(near).unwrap();
    two.fabric().bridge(far).unwrap();
    for infiniband in [false, true] {
        let name = if infiniband { "mlx5_1" } else { "mlx5_0" };
        for host in [&one, &two] {
            host.add(if infiniband { SimDevice::infiniband(name) } else { SimDevice::roce(name) });
            host.fabric().step(Duration::ZERO);
        }
        one.fabric().step(Duration::ZERO);
        let (mut a, mut b) = (Rig::new(&one, name), Rig::new(&two, name));
        a.connect(&b);
        b.connect(&a);
        b.receive(64, DATA);
        a.send(b"over the bridge");
        for _ in 0..20 {
            one.fabric().step(Duration::ZERO);
            two.fabric().step(Duration::ZERO);
        }
        assert_eq!((a.poll().unwrap()[63] >> 4, b.poll().unwrap()[47]), (0, 15));
        assert_eq!(b.memory.get(DATA, 15), b"over the bridge");
    }
    assert_eq!(one.fabric().take_reports(), []);
}
