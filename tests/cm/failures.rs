//! Steps that fail, and what they say.

use crate::harness::skip;
use crate::scene::{WITHIN, address_of, change_network, link_of, own_network, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::Errno;
use ironverbs::rdma_cm::{Connector, Error, EventChannel, Listener, PortSpace, Step};
use ironverbs::sys::LinuxCm;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

tests! {
    loopback_has_no_device,
    what_has_no_route_is_told_at_once,
    an_interface_that_is_down,
    the_own_address_is_reached,
    addresses_that_do_not_go_together,
    nobody_answers_for_an_address,
    an_address_of_another_host_cannot_be_bound,
    a_port_is_taken_once,
    a_privileged_port_of_a_plain_user,
    other_credentials_than_those_that_opened_it,
    without_a_connection_manager,
    a_step_in_the_wrong_state,
}

fn resolve(to: &str) -> Error {
    let to: SocketAddr = to.parse().unwrap();
    let error = Connector::to(to).resolve(WITHIN).unwrap_err();
    // The kernel may find out one step later.
    assert!(matches!(error.step(), Some(Step::ResolveAddr | Step::ResolveRoute)), "{error}");
    eprintln!("{error}");
    error
}

fn loopback_has_no_device(target: &Target) {
    scene(target);
    let error = resolve("127.0.0.1:7471");
    assert_eq!(error.errno(), Some(Errno::ENODEV), "{error}");
    let text = error.to_string();
    assert!(text.contains(" to 127.0.0.1:7471 (via lo): "), "{text}");
    assert!(text.contains("no RDMA device for 127.0.0.1 (via lo)"), "{text}");
}

fn what_has_no_route_is_told_at_once(target: &Target) {
    scene(target);
    if std::net::UdpSocket::bind("0.0.0.0:0").unwrap().connect("203.0.113.9:9").is_ok() {
        skip("this host has a route to everywhere");
    }
    let error = resolve("203.0.113.9:7471");
    assert!(matches!(error, Error::Kernel { errno: Errno::ENETUNREACH, .. }), "{error}");
    assert!(error.to_string().ends_with("no route to 203.0.113.9 (ip route get)"), "{error}");
}

/// Runs `ip` with these words.
fn ip(words: &str) {
    change_network("ip", words);
}

fn an_interface_that_is_down(target: &Target) {
    scene(target);
    ip("link add down0 type dummy");
    let _gone_after = LinkOfTest("down0");
    ip("addr add 10.77.0.1/24 dev down0");
    let error = resolve("10.77.0.2:7471");
    assert_eq!(error.errno(), Some(Errno::ENETUNREACH), "{error}");
    // Its own address is there, and so is a route to that; a device is not.
    let error = resolve("10.77.0.1:7471");
    assert!(error.to_string().contains("no RDMA device for 10.77.0.1 (via down0)"), "{error}");
    let bind = Listener::bind("10.77.0.1:7471".parse().unwrap()).unwrap_err();
    assert!(bind.to_string().starts_with("rdma_bind_addr from 10.77.0.1:7471 (via down0): ENODEV"), "{bind}");
}

/// Deleted with the test, however that ends.
struct LinkOfTest(&'static str);

impl Drop for LinkOfTest {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip").args(["link", "del", self.0]).status();
    }
}

fn the_own_address_is_reached(target: &Target) {
    let scene = scene(target);
    let route = Connector::to(scene.at(7521)).resolve(WITHIN).unwrap();
    assert_eq!(route.addresses().local.map(|local| local.ip()), Some(scene.ip));
    assert_eq!(scene.devices.context_of(route.id()).unwrap().info().name, target.device);
}

/// The kernel answers with a bare `EINVAL`, or that there is no route.
fn addresses_that_do_not_go_together(target: &Target) {
    let scene = scene(target);
    let Some(local) = address_of(target, &target.device, |gid| gid.is_link_local()) else {
        skip("the port has no link-local IPv6 address")
    };
    let Some(scope) = local.netdev_ifindex else { skip("the kernel does not tell the network device") };
    let link_local = |scope| SocketAddr::from(SocketAddrV6::new(local.gid.0.into(), 0, 0, scope));
    let between = |from, to| Connector::to(to).from(from).resolve(WITHIN).unwrap_err().to_string();
    for (from, to) in [(scene.at(0), link_local(scope)), (link_local(scope), scene.at(0))] {
        let error = between(from, to);
        assert!(error.contains("one is an IPv4 address and the other an IPv6 one"), "{error}");
    }
    let error = between(link_local(0), link_local(scope));
    assert!(error.contains("is a link-local address: say on which link"), "{error}");
    let std::net::IpAddr::V4(own) = scene.ip else { unreachable!() };
    let mapped = SocketAddr::new(own.to_ipv6_mapped().into(), 7525);
    let hint = format!("give it as {own}");
    let error = Connector::to(mapped).resolve(WITHIN).unwrap_err().to_string();
    assert!(error.ends_with(&hint), "{error}");
    let error = Listener::bind(mapped).unwrap_err().to_string();
    assert!(error.ends_with(&hint), "{error}");
}

/// In a network of the tests' own, where it is known whose addresses there are.
fn nobody_answers_for_an_address(target: &Target) {
    let scene = scene(target);
    own_network();
    let std::net::IpAddr::V4(own) = scene.ip else { unreachable!() };
    let [a, b, c, _] = own.octets();
    let entry = address_of(target, &target.device, |gid| gid.to_ipv4().is_some()).unwrap();
    let Some(link) = entry.netdev_ifindex.map(link_of) else { skip("the kernel does not tell the network device") };
    let started = Instant::now();
    let error = resolve(&format!("{a}.{b}.{c}.77:7471"));
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(error.to_string().contains(&format!("is nobody's address on its network (via {link})")), "{error}");
}

fn an_address_of_another_host_cannot_be_bound(target: &Target) {
    scene(target);
    let error = Listener::bind("203.0.113.9:7471".parse().unwrap()).unwrap_err();
    assert!(error.to_string().ends_with("this host has no address 203.0.113.9"), "{error}");
}

fn a_port_is_taken_once(target: &Target) {
    let scene = scene(target);
    let first = Listener::bind(scene.at(7522)).unwrap();
    let error = Listener::bind(scene.at(7522)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EADDRINUSE), "{error}");
    assert!(error.to_string().contains("port 7522 is taken in this port space"), "{error}");
    // Another port space has ports of its own.
    let datagrams = EventChannel::open().unwrap().create_id(PortSpace::Udp).unwrap();
    datagrams.bind(scene.at(7522)).unwrap();
    drop(first);
    Listener::bind(scene.at(7522)).unwrap();
}

/// What a user without privileges may do: runs `body` in a thread of that user.
#[allow(unsafe_code)]
fn as_another_user(body: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        skip("only root becomes another user");
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: plain numbers. The system call changes this thread alone, and the thread ends with the test.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(changed, 0);
            body();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn a_privileged_port_of_a_plain_user(target: &Target) {
    let scene = scene(target);
    as_another_user(|| {
        let error = Listener::bind(scene.at(7)).unwrap_err();
        assert!(
            error.to_string().contains("port 7 is a privileged one: give the process CAP_NET_BIND_SERVICE"),
            "{error}"
        );
        Listener::bind(scene.at(7523)).unwrap();
    });
}

fn other_credentials_than_those_that_opened_it(target: &Target) {
    let scene = scene(target);
    let channel = EventChannel::open().unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    as_another_user(|| {
        for error in [
            channel.create_id(PortSpace::Tcp).unwrap_err(),
            id.bind(scene.at(7524)).unwrap_err(),
            channel.try_next().unwrap_err(),
        ] {
            assert!(matches!(error, Error::OtherCredentials { .. }), "{error}");
            assert!(error.to_string().contains("has changed its credentials since it opened"), "{error}");
        }
    });
    id.bind(scene.at(7524)).unwrap();
}

fn without_a_connection_manager(target: &Target) {
    scene(target);
    let error = EventChannel::open_on(&LinuxCm::at("/dev/infiniband/rdma_cm_of_nobody")).unwrap_err();
    assert!(matches!(error, Error::NoService { .. }), "{error}");
    assert!(error.to_string().contains("modprobe rdma_ucm"), "{error}");
}

fn a_step_in_the_wrong_state(target: &Target) {
    let scene = scene(target);
    let channel = EventChannel::open().unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    let error = id.resolve_route(WITHIN).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    assert!(error.to_string().contains("the id is idle"), "{error}");
    let none = scene.devices.context_of(&id).unwrap_err();
    assert!(none.to_string().contains("the id's device is none; bind it"), "{none}");
    id.bind(scene.at(0)).unwrap();
    let again = id.bind(scene.at(0)).unwrap_err();
    assert!(again.to_string().contains("the id is bound"), "{again}");
}
