//! Asynchronous events of ports and devices, and giving a device up: on a device of the test's own.

use crate::fixture::{Half, PATIENCE, Pair, Patience, SHORT, Setup, eventually};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::{Target, open_descriptors};
use crate::tests;
use ironverbs::{
    AsyncEvent, AsyncEventType, AsyncEvents, Context, Errno, Error, PollError, PortNum, PortState, PostError, Subject,
};
use softcx::{DeviceId, GidEntry, Network, SimHost};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

tests! {
    port_events_follow_the_link,
    gid_event_follows_the_addresses,
    shutdown_lets_the_device_be_removed,
    shutdown_can_be_repeated_and_fails_what_comes_after,
}

/// A device whose link and addresses are the test's to change.
enum OwnDevice {
    /// A Soft-RoCE device on a link of its own, removed when dropped.
    Linux,
    /// The simulated one, which no other test uses meanwhile.
    Sim(SimHost, DeviceId),
}

const LINK: &str = "ownnet0";
const DEVICE: &str = "ownrxe0";

impl OwnDevice {
    /// Skips the test where links must not be made: anywhere but in a guest.
    fn new(target: &Target) -> (Self, Target) {
        if let Some(host) = target.host.simulated() {
            let id = host.id(&target.device).unwrap();
            return (Self::Sim(host.clone(), id), target.clone());
        }
        if !target.kind.is_rxe() || !Path::new("/run/vm/command").exists() {
            skip("it makes a link and a device of its own, in a guest of `cargo vm` only");
        }
        run(&["ip", "link", "add", LINK, "address", "02:00:00:09:08:01", "type", "dummy"]);
        let own = Self::Linux;
        run(&["ip", "link", "set", LINK, "up"]);
        run(&["ip", "addr", "add", "10.9.8.1/24", "dev", LINK]);
        run(&["rdma", "link", "add", DEVICE, "type", "rxe", "netdev", LINK]);
        let target = Target {
            device: DEVICE.into(),
            peer: DEVICE.into(),
            gid_index: None,
            host: target.host.clone(),
            ..*target
        };
        eventually("the device is ready", || {
            let Ok(context) = Context::open(DEVICE) else { return false };
            context.query_port(PortNum::ONE).is_ok_and(|port| port.state == PortState::ACTIVE)
                && context.choose_gid(PortNum::ONE, None).is_ok_and(|gid| gid.index.0 > 0)
        });
        (own, target)
    }

    fn set_link(&self, up: bool) {
        match self {
            Self::Linux => run(&["ip", "link", "set", LINK, if up { "up" } else { "down" }]),
            Self::Sim(host, id) => host.with(*id, |device| device.set_port_active(1, up)).unwrap().unwrap(),
        }
    }

    /// Adds another address, or takes it away.
    fn set_address(&self, there: bool) {
        match self {
            Self::Linux => run(&["ip", "addr", if there { "add" } else { "del" }, "10.9.7.1/24", "dev", LINK]),
            Self::Sim(host, id) => host
                .with(*id, |device| {
                    let place = device.ports()[0].gids.len() - 1;
                    let gid = Ipv4Addr::new(10, 9, 7, 1).to_ipv6_mapped().octets();
                    device.set_gid(1, place, there.then_some(GidEntry { gid, network: Network::RoceV2 })).unwrap();
                })
                .unwrap(),
        }
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        let Self::Linux = self else { return };
        for args in [["rdma", "link", "del", DEVICE], ["ip", "link", "del", LINK]] {
            let _ = Command::new(args[0]).args(&args[1..]).stderr(Stdio::null()).status();
        }
    }
}

fn run(args: &[&str]) {
    let output = Command::new(args[0]).args(&args[1..]).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for an event of that kind; others may come before.
fn expect(events: &AsyncEvents, kind: AsyncEventType) -> AsyncEvent {
    let patience = Patience::new();
    loop {
        patience.check(&format!("{kind}"));
        if let Some(event) = events.next(SHORT).unwrap()
            && event.kind == kind
        {
            return event;
        }
    }
}

fn drain(events: &AsyncEvents) {
    while events.next(SHORT).unwrap().is_some() {}
}

fn port_events_follow_the_link(target: &Target) {
    let (own, target) = OwnDevice::new(target);
    let context = target.open();
    let events = context.async_events();
    drain(&events);
    for _ in 0..3 {
        own.set_link(false);
        let port = Subject::Port(PortNum::ONE);
        assert_eq!(expect(&events, AsyncEventType::PORT_ERR).subject, port);
        own.set_link(true);
        assert_eq!(expect(&events, AsyncEventType::PORT_ACTIVE).subject, port);
    }
    seen::works("event port");
}

fn gid_event_follows_the_addresses(target: &Target) {
    let (own, target) = OwnDevice::new(target);
    let context = target.open();
    let events = context.async_events();
    for there in [true, false] {
        step(format!("the address is there: {there}"));
        drain(&events);
        own.set_address(there);
        let event = expect(&events, AsyncEventType::GID_CHANGE);
        assert_eq!(event.subject, Subject::Port(PortNum::ONE));
    }
    seen::works("event GID change");
}

/// Reports of a removal that hung because a program did not let go, and of programs that crashed when they did.
fn shutdown_lets_the_device_be_removed(target: &Target) {
    if target.host.simulated().is_some() {
        skip("simulated devices stay as long as their host");
    }
    let (own, target) = OwnDevice::new(target);
    let mut pair = Pair::new(&target, &Setup { channel: true, ..Setup::default() });
    let idle = Half::new(&target, pair.a.context.clone(), &Setup { channel: true, ..Setup::default() });
    let entry = pair.a.sge(0, 64);
    pair.a.recv(1, &[entry]);
    pair.b.context.shutdown().unwrap();
    assert!(device_files().iter().any(|fd| fd.contains("uverbs")), "the other context is untouched");

    let removal = thread::spawn(|| {
        let status = Command::new("rdma").args(["link", "del", DEVICE]).status().unwrap();
        assert!(status.success());
        Instant::now()
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!removal.is_finished(), "the kernel removes the device under an open file, and this test shows nothing");

    let (told, tell) = channel();
    let mut waiters = vec![];
    let (events, mut idle_cq, idle_channel) = (pair.a.context.async_events(), idle.cq, idle.channel.unwrap());
    let tell_events = told.clone();
    waiters.push(thread::spawn(move || {
        while let Ok(event) = events.next(PATIENCE) {
            assert!(event.is_some(), "nobody told the reader of events");
        }
        tell_events.send("events").unwrap();
    }));
    waiters.push(thread::spawn(move || {
        let error = idle_cq.wait(PATIENCE).unwrap_err();
        assert!(matches!(error, Error::DeviceGone { .. }), "{error}");
        assert_eq!(idle_cq.poll_one().unwrap_err(), PollError::DeviceGone);
        told.send("queue").unwrap();
    }));
    thread::sleep(SHORT);
    let started = Instant::now();
    pair.a.context.shutdown().unwrap();
    let removed = removal.join().unwrap();
    assert!(removed.saturating_duration_since(started) < Duration::from_secs(2), "{:?}", removed - started);
    assert_eq!(device_files(), Vec::<String>::new());
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert_eq!(tell.iter().count(), 2);
    drop(own);

    step("objects of the device that is gone");
    let refused = pair.a.try_send(|batch| batch.send(2, ironverbs::WrFlags::SIGNALED, &[entry]));
    assert_eq!(refused, Err(PostError::Doorbell(Errno::EIO)));
    assert!(matches!(pair.a.cq.wait(PATIENCE).unwrap_err(), Error::DeviceGone { .. }));
    assert!(matches!(pair.a.context.alloc_pd().unwrap_err(), Error::DeviceGone { .. }));
    assert!(matches!(idle_channel.drain(|_| ()).unwrap_err(), Error::DeviceGone { .. }));
    let contexts = [pair.a.context.clone(), pair.b.context.clone()];
    drop((pair, idle.mr, idle.prepared, idle.pd));
    for context in contexts {
        assert!(context.leaks().is_empty(), "{:?}", context.leaks());
    }
    seen::works("device shutdown");
}

/// Descriptors and mappings of verbs devices in this process.
fn device_files() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("uverbs") || line.contains("infiniband")).map(String::from);
    let of_device = |fd: &String| fd.contains("uverbs") || fd.contains("infiniband");
    open_descriptors().into_iter().filter(of_device).chain(mapped).collect()
}

fn shutdown_can_be_repeated_and_fails_what_comes_after(target: &Target) {
    let mut pair = Pair::new(target, &Setup { channel: true, ..Setup::default() });
    let events = pair.a.context.async_events();
    let others = [pair.a.context.clone(), pair.a.context.clone()];
    thread::scope(|scope| {
        for context in &others {
            scope.spawn(|| context.shutdown().unwrap());
        }
    });
    pair.a.context.shutdown().unwrap();
    assert!(matches!(events.try_next().unwrap_err(), Error::DeviceGone { .. }));
    assert!(matches!(pair.a.qp.query().unwrap_err(), Error::DeviceGone { .. }));
    assert!(matches!(pair.a.context.create_cq(4).unwrap_err(), Error::DeviceGone { .. }));
    step("the other side lives");
    assert_eq!(pair.b.cq.poll_one().unwrap(), None);
    pair.b.qp.query().unwrap();
    let context = pair.a.context.clone();
    drop(pair);
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
    drop(events);
}
