//! What is told of a device besides what its commands answer: details of the host, and entries as they pass.

use super::raw::{DATA, Rig};
use ironverbs::sys::Sys;
use ironverbs::{LinkLayer, PortState};
use softcx::{Entry, Link, QpKind, SimDevice, SimHost};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn a_host_knows_what_its_devices_are() {
    let host = SimHost::new(1);
    let id = host.add(SimDevice::roce("mlx5_0"));
    host.add(SimDevice::infiniband("mlx5_1"));
    host.with(id, |device| device.set_port_active(1, false)).unwrap().unwrap();
    let all: Vec<_> = host.devices().unwrap().iter().map(|device| host.details(device)).collect();
    let ports: Vec<_> = all.iter().map(|d| (d.ports[0].state, d.ports[0].link_layer, d.ports[0].gids.len())).collect();
    assert_eq!(
        ports,
        [
            (Some(PortState::DOWN), Some(LinkLayer::Ethernet), 4),
            (Some(PortState::ACTIVE), Some(LinkLayer::InfiniBand), 1)
        ]
    );
    assert_eq!(all[1].protocol.as_deref(), Some("ib"));
    assert_eq!(all[0].ports[0].gids[3].entry.index, 3);
}

#[test]
fn every_entry_is_shown_once() {
    let host = SimHost::new(1);
    let ids = [host.add(SimDevice::roce("mlx5_0")), host.add(SimDevice::roce("mlx5_1"))];
    let seen = Arc::new(Mutex::new(vec![]));
    for id in ids {
        let seen = Arc::clone(&seen);
        host.with(id, |device| {
            device.tap(move |tapped| {
                let what = match tapped.entry {
                    Entry::Send { kind, bytes, .. } => ("send", kind == QpKind::Rc && bytes[3] == 0x0a),
                    Entry::Receive { linked, .. } => ("receive", !linked),
                    Entry::Completion { bytes, before, .. } => ("completion", bytes[63] & 1 == 0 && before.is_none()),
                    _ => ("other", false),
                };
                seen.lock().unwrap().push((tapped.device.to_owned(), what.0, what.1));
            });
        })
        .unwrap();
    }
    let (mut a, mut b) = (Rig::new(&host, "mlx5_0"), Rig::new(&host, "mlx5_1"));
    a.connect(&b);
    b.connect(&a);
    b.receive(64, DATA);
    a.send(b"seen");
    host.fabric().settle(Duration::from_secs(1));
    let mut all = seen.lock().unwrap().clone();
    all.sort();
    let of = |device: &str, what| (device.to_owned(), what, true);
    assert_eq!(
        all,
        [of("mlx5_0", "completion"), of("mlx5_0", "send"), of("mlx5_1", "completion"), of("mlx5_1", "receive")]
    );
    seen.lock().unwrap().clear();
    host.with(ids[0], |device| device.no_tap()).unwrap();
    b.receive(64, DATA);
    a.send(b"less is seen");
    host.fabric().settle(Duration::from_secs(1));
    assert!(seen.lock().unwrap().iter().all(|(device, ..)| device == "mlx5_1"));
}

#[test]
fn the_last_place_has_addresses_of_its_own_too() {
    let host = SimHost::new(1).first_place(u16::MAX);
    let ids = ["a", "b"].map(|name| host.add(SimDevice::roce(name)));
    let [a, b] = ids.map(|id| host.with(id, |device| device.ports()[0].clone()).unwrap());
    assert_ne!(a.link, b.link);
    assert_ne!(a.gids, b.gids);
    let lids: Vec<Link> = ["c", "d", "e"]
        .map(|name| host.with(host.add(SimDevice::infiniband(name)), |device| device.ports()[0].link).unwrap())
        .to_vec();
    assert!(lids.windows(2).all(|pair| pair[0] != pair[1]), "{lids:?}");
    assert!(lids.iter().all(|link| matches!(link, Link::InfiniBand { lid: 1..0xc000 })), "{lids:?}");
}

#[test]
fn a_rest_ends_when_something_comes_or_time_is_over() {
    let (one, two) = (SimHost::new(1), SimHost::new(2).first_place(100));
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    one.fabric().bridge(near).unwrap();
    one.fabric().step(Duration::ZERO);
    let begin = Instant::now();
    one.fabric().rest(Duration::ZERO, Duration::from_millis(30));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    // The other end tells its addresses.
    two.add(SimDevice::roce("mlx5_0"));
    two.fabric().bridge(far).unwrap();
    let begin = Instant::now();
    one.fabric().rest(Duration::ZERO, Duration::from_secs(100));
    assert!(begin.elapsed() < Duration::from_secs(50));
    assert_eq!(one.fabric().bridges(), 1);
    drop(two);
    // What it said is read first, then that it is gone.
    for _ in 0..3 {
        one.fabric().step(Duration::ZERO);
    }
    assert_eq!(one.fabric().bridges(), 0);
}
