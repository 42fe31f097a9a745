//! A device that goes while ids are on it, and comes back; and one that another device is taken for.

use crate::harness::step;
use crate::scene::{Scene, WITHIN, change_network, link_of, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::Context;
use ironverbs::rdma_cm::{CmId, Devices, Error, EventChannel, EventType, Handshake, Listener, PortSpace, State};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

tests! {
    ids_of_a_device_that_goes,
    two_devices_of_one_guid,
    a_queue_pair_of_another_device,
}

/// From when the program that takes the device away is started to when it is told.
const SOON: Duration = Duration::from_secs(30);

/// A network link of the test's own, which leads nowhere, and a Soft-RoCE device on it.
struct OwnDevice {
    name: &'static str,
    link: &'static str,
    ip: IpAddr,
}

impl OwnDevice {
    /// With that link-layer address, which its node GUID is made of.
    fn new(name: &'static str, link: &'static str, mac: &str, ip: &str) -> Self {
        change_network("ip", &format!("link add {link} address {mac} type dummy"));
        let own = Self { name, link, ip: ip.parse().unwrap() };
        change_network("ip", &format!("addr add {ip}/24 dev {link}"));
        change_network("ip", &format!("link set {link} up"));
        own.add();
        own
    }

    fn add(&self) {
        let Self { name, link, .. } = self;
        change_network("rdma", &format!("link add {name} type rxe netdev {link}"));
        let deadline = Instant::now() + WITHIN;
        // Workers of the kernel fill in its GIDs, and make its port active.
        while Listener::bind(SocketAddr::new(self.ip, 7640)).is_err() {
            assert!(Instant::now() < deadline, "{name} does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Begins to delete it: that ends when nobody has it open any more.
    fn delete(&self) -> Deletion {
        Deletion(Command::new("rdma").args(["link", "delete", self.name]).spawn().unwrap())
    }

    fn scene(&self) -> Scene {
        Scene { devices: Devices::new(), ip: self.ip }
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        // Which deletes the device, too, if it is still there.
        let _ = Command::new("ip").args(["link", "delete", self.link]).status();
    }
}

struct Deletion(Child);

impl Deletion {
    fn ends(mut self) {
        let deadline = Instant::now() + SOON;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "somebody has the device open still");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(self.0.wait().unwrap().success());
    }
}

fn ids_of_a_device_that_goes(target: &Target) {
    scene(target);
    let own = OwnDevice::new("rxe_gone", "gone0", "02:00:00:09:0a:01", "10.79.0.1");
    let scene = own.scene();
    let everywhere = Listener::bind("0.0.0.0:7641".parse().unwrap()).unwrap();
    for round in 0..2 {
        step(format!("round {round}"));
        let before = objects(target);
        let bound = EventChannel::open().unwrap().create_id(PortSpace::Tcp).unwrap();
        bound.bind(scene.at(0)).unwrap();
        let listener = Listener::bind(scene.at(7642)).unwrap();
        let (route, prepared) = scene.route(scene.at(7642));
        let (client, server) = scene.pair(7643);
        let asking = scene.route(scene.at(7642));
        asking.0.id().connect(&ironverbs::rdma_cm::ConnParams::new(asking.1.qpn())).unwrap();
        let request = listener.request(WITHIN).unwrap().expect("it asks");

        let deletion = own.delete();
        std::thread::scope(|scope| {
            // Whoever waits is woken, also where another has read the event.
            let mut waits = vec![];
            for time in [SOON, Duration::MAX, SOON, Duration::MAX] {
                let (link, listener) = (client.connection.link(), &listener);
                waits.push(scope.spawn(move || link.wait_end(time).map(drop)));
                waits.push(scope.spawn(move || listener.request(time).map(drop)));
            }
            for wait in waits {
                let error = wait.join().unwrap().unwrap_err();
                assert!(matches!(error, Error::Unexpected { event: EventType::DEVICE_REMOVAL, .. }), "{error}");
            }
        });
        for id in [&bound, route.id(), asking.0.id(), server.connection.link().id()] {
            removed(id);
        }
        // Asked again, it says so again, and at once.
        let started = Instant::now();
        let error = client.connection.link().wait_end(SOON).unwrap_err();
        assert!(matches!(error, Error::Unexpected { event: EventType::DEVICE_REMOVAL, .. }), "{error}");
        assert_eq!(client.connection.link().id().state(), State::DeviceRemoved);
        let steps = [bound.listen(1), route.id().resolve_route(SOON), server.connection.link().id().disconnect()];
        for error in steps.map(Result::unwrap_err) {
            assert!(error.errno().is_some() && error.to_string().contains("the device has been removed"), "{error}");
        }
        // A request of which nobody heard since can only be dropped.
        let error = scene.accept_request(request, (1, 64), &Handshake::default()).err().expect("no device");
        assert!(!matches!(error, Error::Timeout { .. }), "{error}");
        assert!(started.elapsed() < SOON);
        let device = client.connection.link().addresses().device.unwrap();
        drop((bound, listener, route, prepared, client, server, asking));
        // Soft-RoCE waits for who has it open.
        drop(scene.devices.forget(device).expect("it is open"));
        deletion.ends();
        nothing_is_left(target, &before);

        own.add();
        // The listener everywhere listens there again.
        let (back, prepared) = scene.route(scene.at(7641));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(everywhere.request(WITHIN).unwrap().expect("a peer asks")));
            let error = back.connect(prepared, &Handshake::default(), WITHIN).unwrap_err();
            assert!(matches!(error, Error::Failed { event: EventType::REJECTED, .. }), "{error}");
        });
    }
}

/// The event comes, and the state stays.
fn removed(id: &CmId) {
    let deadline = Instant::now() + SOON;
    while id.state() != State::DeviceRemoved {
        assert!(Instant::now() < deadline, "{id:?} is not told");
        id.channel().next(Duration::from_millis(100)).unwrap();
    }
}

/// A node GUID is made of a link-layer address, and two links can have the same.
fn two_devices_of_one_guid(target: &Target) {
    let here = scene(target);
    let entry = crate::scene::address_of(target, &target.device, |gid| gid.to_ipv4().is_some()).unwrap();
    let link = link_of(entry.netdev_ifindex.expect("the kernel tells the network device"));
    let mac = std::fs::read_to_string(format!("/sys/class/net/{link}/address")).unwrap();
    let own = OwnDevice::new("rxe_same", "same0", mac.trim(), "10.78.0.1");
    let opened = [&target.device, own.name].map(|name| Context::open(name).unwrap());
    assert_eq!(opened[0].attr().node_guid, opened[1].attr().node_guid, "which this test is about");
    // With both open already, in either order.
    for order in [[0, 1], [1, 0]] {
        let devices = Devices::new();
        for which in order {
            devices.add(opened[which].clone());
        }
        for (ip, name) in [(here.ip, target.device.as_str()), (own.ip, own.name)] {
            let id = EventChannel::open().unwrap().create_id(PortSpace::Tcp).unwrap();
            id.bind(SocketAddr::new(ip, 0)).unwrap();
            assert_eq!(id.addresses().unwrap().node_guid, opened[0].attr().node_guid);
            assert_eq!(devices.context_of(&id).unwrap().info().name, name);
            assert_eq!(Devices::new().context_of(&id).unwrap().info().name, name, "opened for it");
        }
    }
    drop(opened);
    let (client, server) = own.scene().pair(7644);
    for end in [&client, &server] {
        assert_eq!(end.connection.link().addresses().local.map(|local| local.ip()), Some(own.ip));
    }
}

/// A queue pair that was prepared for one id and is given to another: the peer would be told a number that belongs to somebody
/// else on the id's device.
fn a_queue_pair_of_another_device(target: &Target) {
    let here = scene(target);
    let own = OwnDevice::new("rxe_other", "other0", "02:00:00:00:7a:01", "10.79.0.1");
    let there = own.scene();
    let listeners = [&here, &there].map(|scene| Listener::bind(scene.at(7646)).unwrap());
    let [(route, _unused), (_other, foreign)] = [&here, &there].map(|scene| scene.route(scene.at(7646)));
    let error = route.connect(foreign, &Handshake::default(), WITHIN).unwrap_err().to_string();
    assert!(error.contains("is of rxe_other") && error.contains("open the id's own device"), "{error}");
    assert!(listeners[0].request(Duration::from_millis(100)).unwrap().is_none(), "the peer has heard of it");

    let (_client, _unused) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (route, prepared) = here.route(here.at(7646));
            route.connect(prepared, &Handshake::default(), WITHIN).unwrap_err()
        });
        let request = listeners[0].request(WITHIN).unwrap().expect("a peer asks in time");
        let (route, foreign) = there.route(there.at(7646));
        let error = request.accept(foreign, &Handshake::default(), WITHIN).unwrap_err().to_string();
        assert!(error.contains("is of rxe_other"), "{error}");
        (client.join().unwrap(), route)
    });
}
