//! Contexts, handles, events of the device, and the order in which things go.

use crate::raw::*;
use ironverbs::Errno;
use softcx::*;
use std::time::Duration;

#[test]
fn a_context_says_what_the_device_can_do() {
    let host = SimHost::new(1);
    host.add(SimDevice::roce("mlx5_0"));
    let cdev = open(&host, "mlx5_0");
    assert_eq!(invoke(&*cdev, 3, &[0; 8], 4, &[], 4).err(), Some(Errno::EINVAL), "no context yet");
    let context = get_context(&*cdev).unwrap();
    // bf_reg_size, max_send_wqebb, response_length, cqe_version, log_uar_size.
    assert_eq!((word(&context, 4), word(&context, 20), word(&context, 40)), (512, 32768, 72));
    assert_eq!((context[44], word(&context, 56), word(&context, 60)), (1, 12, 1));
    assert_eq!(get_context(&*cdev).err(), Some(Errno::EINVAL), "one per file");
    let device = invoke(&*cdev, 0x8000_0001, &[0; 8], 304, &[], 112).unwrap();
    assert_eq!((word(&device.0, 180), device.0[171], word(&device.0, 108)), (304, 1, 1));
    assert_eq!(word(&device.1, 4), 112);
}

#[test]
fn objects_go_in_order_and_handles_come_back() {
    let (_host, mut a, _b) = pair(false);
    assert_eq!(a.destroy_cq(), Err(Errno::EBUSY));
    let pd = [Attr::Object(0, a.pd.into())];
    assert_eq!(ioctl(&*a.cdev, 1, 0, &pd).err(), Some(Errno::EBUSY));
    assert_eq!(ioctl(&*a.cdev, 7, 1, &pd).err(), Some(Errno::EINVAL), "not a region");
    assert_eq!(ioctl(&*a.cdev, 1, 0, &[Attr::Object(0, 77)]).err(), Some(Errno::ENOENT));
    let uar = [Attr::Object(0x1000, a.uar.into())];
    assert_eq!(ioctl(&*a.cdev, 0x1008, 0x1001, &uar).err(), Some(Errno::EBUSY));
    assert_eq!(a.destroy_qp(), Ok(0));
    assert_eq!(a.destroy_cq(), Ok((0, 0)));
    ioctl(&*a.cdev, 7, 1, &[Attr::Object(0, a.mr.into())]).unwrap();
    ioctl(&*a.cdev, 1, 0, &pd).unwrap();
    a.unmap();
    ioctl(&*a.cdev, 0x1008, 0x1001, &uar).unwrap();
    for kind in [1, 3, 4, 7] {
        assert!(a.handles(kind).is_empty(), "{kind}");
    }
}

#[test]
fn a_closed_file_leaves_nothing_behind() {
    let (host, mut a, b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    assert_eq!(host.with(id, |d| d.numbers().0.len()).unwrap(), 1);
    let Rig { cdev, .. } = &mut a;
    let page = cdev.map(9 << 8 << 12, 4096).unwrap();
    drop(a);
    assert_eq!(host.with(id, |d| d.numbers().0.len()).unwrap(), 1, "a mapping keeps the file");
    drop(page);
    assert_eq!(host.with(id, |d| d.numbers()).unwrap(), (vec![], vec![], vec![]));
    drop(b);
}

#[test]
fn events_of_objects_ports_and_the_device_arrive() {
    let (host, a, b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    let event =
        |element: u64, kind: u32| [element.to_ne_bytes().to_vec(), kind.to_ne_bytes().to_vec(), vec![0; 4]].concat();
    host.with(id, |d| d.kill_qp(a.qpn)).unwrap().unwrap();
    assert_eq!(read(&a.async_fd, 16), Some(event(QP_HANDLE, 1)));
    host.with(id, |d| d.overrun_cq(a.cqn)).unwrap().unwrap();
    assert_eq!(read(&a.async_fd, 16), Some(event(CQ_HANDLE, 0)));
    host.with(id, |d| d.set_port_active(1, false)).unwrap().unwrap();
    assert_eq!(read(&a.async_fd, 16), Some(event(1, 10)));
    host.with(id, |d| d.set_port_active(1, true)).unwrap().unwrap();
    assert_eq!(read(&a.async_fd, 16), Some(event(1, 9)));
    host.with(id, |d| d.die()).unwrap();
    assert_eq!(read(&a.async_fd, 16), Some(event(0, 8)));
    assert_eq!(read(&b.async_fd, 16), None);
    // A dead device refuses everything but destruction.
    assert_eq!(a.to_init(), Err(Errno::EIO));
    assert_eq!(a.destroy_qp(), Ok(1));
    assert_eq!(a.destroy_cq(), Ok((0, 1)));
}

#[test]
fn the_nth_command_is_refused() {
    let (host, a, _b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    host.refuse_command(id, 2, Errno::ENOMEM);
    let before = host.commands(id);
    let alloc = || invoke(&*a.cdev, 3, &[0; 8], 4, &[], 4).map(drop);
    assert_eq!((alloc(), alloc(), alloc()), (Ok(()), Err(Errno::ENOMEM), Ok(())));
    assert_eq!(host.commands(id) - before, 3);
    assert_eq!(a.handles(1).len(), 3 * 4, "refused without effect");
}

#[test]
fn the_clock_page_shows_the_time_of_the_fabric() {
    let (host, a, _b) = pair(false);
    let clock = a.cdev.map(5 << 8 << 12, 4096).unwrap();
    let info = a.cdev.map(7 << 8 << 12, 4096).unwrap();
    host.fabric().step(Duration::from_millis(3));
    let read = |page: &ironverbs::sys::Mapping, at| long(&bytes(page, at, 8), 0);
    let ticks = u64::from_be(read(&clock, 0));
    assert_eq!(ticks, 3 * CLOCK_KHZ);
    // ns = nsec + ((ticks - cycles) × mult + frac) >> shift, sign even.
    assert_eq!((read(&info, 8), read(&info, 16), read(&info, 0) & 1), (3_000_000, ticks, 0));
    let (mult, shift) = (read(&info, 32) & 0xffff_ffff, read(&info, 32) >> 32);
    assert_eq!((CLOCK_KHZ * mult) >> shift, 999_999);
}

#[test]
fn a_region_is_given_back_before_its_memory() {
    let (host, mut a, mut b) = pair(true);
    ioctl(&*b.cdev, 7, 1, &[Attr::Object(0, b.mr.into())]).unwrap();
    b.receive(64, DATA);
    a.send(b"x");
    host.fabric().settle(Duration::from_secs(1));
    assert_eq!(b.poll().unwrap()[55], 0x04, "the key is gone");
    assert_eq!(b.memory.get(DATA, 64), [0; 64]);
}

#[test]
fn a_file_given_up_ends_at_once_and_leaves_its_mappings() {
    let (host, a, _b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    let page = a.cdev.map(9 << 8 << 12, 4096).unwrap();
    a.destroy_qp().unwrap();
    a.cdev.close().unwrap();
    assert_eq!(host.with(id, |d| d.numbers()).unwrap(), (vec![], vec![], vec![]));
    assert_eq!(bytes(&page, 0x800, 8), [0xff; 8], "the memory is still there");
    assert_eq!(a.to_init(), Err(Errno::ENOTTY));
    assert!(a.cdev.map(9 << 8 << 12, 4096).is_err());
}

#[test]
fn commands_can_be_written() {
    let host = SimHost::new(1);
    host.add(SimDevice::roce("mlx5_0"));
    let cdev = open(&host, "mlx5_0");
    let c = &*cdev;
    let mut request = words(40, &[(8, 16), (12, 4)]);
    request[24] = 1;
    put64(&mut request, 32, 3);
    let context = write(c, 0, request, 80).unwrap();
    assert_eq!((word(&context, 4), context[8 + 44], word(&context, 8 + 20)), (4, 1, 32768));
    let pd = write(c, 3, vec![0; 8], 8).unwrap();
    assert_ne!(word(&pd, 4), 0, "pdn behind the handle");
    assert_eq!(write(c, 3, vec![0; 8], 0).err(), Some(Errno::ENOSPC));
    assert_eq!(write(c, 0x4000_0003, vec![0; 8], 8).err(), Some(Errno::EINVAL));
    let device = write(c, 0x8000_0001, vec![0; 8], 304).unwrap();
    assert_eq!((word(&device, 180), device[171]), (304, 1));
    let mut long = vec![0; 16];
    long[15] = 1;
    assert_eq!(write(c, 0x8000_0001, long, 304).err(), Some(Errno::EOPNOTSUPP), "a tail that is not known");
    let mut port = vec![0; 16];
    port[8] = 1;
    let port = write(c, 2, port, 40).unwrap();
    assert_eq!((port[26], port[37], word(&port, 16)), (4, 2, 256));
}

#[test]
fn commands_pass_a_busy_engine() {
    let host = SimHost::new(1);
    for n in 0..3 {
        host.add(SimDevice::roce(format!("mlx5_{n}")));
    }
    let _engine = host.fabric().spawn();
    std::thread::scope(|scope| {
        for n in 0..3 {
            let host = &host;
            scope.spawn(move || {
                let rig = Rig::new(host, &format!("mlx5_{n}"));
                for _ in 0..100 {
                    let (handle, _) = rig.create_qp(|_| {}).unwrap();
                    ioctl(&*rig.cdev, 4, 1, &[Attr::Object(0, handle.into()), Attr::Out(1, 4)]).unwrap();
                }
            });
        }
    });
    assert_eq!(host.fabric().take_reports(), []);
}

#[test]
fn no_event_is_lost_however_late_it_is_read() {
    let (host, a, _b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    for i in 0..3000 {
        host.with(id, |d| d.set_port_active(1, i % 2 == 1)).unwrap().unwrap();
    }
    for i in 0..3000 {
        host.fabric().step(Duration::ZERO);
        let event = read(&a.async_fd, 16).unwrap();
        assert_eq!(word(&event, 8), if i % 2 == 1 { 9 } else { 10 }, "{i}");
    }
    assert_eq!(read(&a.async_fd, 16), None);
}

#[test]
fn ten_thousand_queue_pairs_come_and_go() {
    let (host, a, _b) = pair(false);
    let id = host.id("mlx5_0").unwrap();
    for _ in 0..10_000 {
        a.create_qp(|_| {}).unwrap();
    }
    assert_eq!(host.with(id, |d| d.numbers().0.len()).unwrap(), 10_001);
    host.fabric().step(Duration::ZERO);
    drop(a);
    assert!(host.with(id, |d| d.numbers().0.is_empty()).unwrap());
}

/// A thousand descriptors of the other tests, which run at the same time, are not to be mistaken for one that is kept.
#[test]
fn event_files_that_the_program_closed_cost_no_descriptor() {
    let (_host, a, _b) = pair(false);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..2000 {
        drop(new_channel(&*a.cdev));
        drop(new_async_file(&*a.cdev));
    }
    assert!(open() < before + 1000, "{} descriptors, {before} before", open());
    // What is still open is known, by whatever number.
    let channel = new_channel(&*a.cdev);
    let copy = channel.try_clone().unwrap();
    drop(channel);
    drop(new_channel(&*a.cdev));
    assert_eq!(a.create_cq_on(&copy), Ok(()));
}
