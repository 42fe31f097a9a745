//! `ping --cm`: ends that the kernel's connection manager brings together.

use crate::Test;
use crate::support::{Device, JsonFile, LIMIT, Run, at_once, fresh_port, same, skip};
use ironverbs::rdma_cm::{ConnParams, Connector, Devices, EventType, Route};
use ironverbs::{Any, PreparedQp};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

/// What lasts longest comes first.
pub const WAITING: &[Test] = &[
    ("over_cm::clients_that_come_to_nothing", come_to_nothing),
    ("over_cm::a_client_at_the_last_moment", last_moment),
    ("over_cm::a_client_that_is_heard_when_the_kernel_repeats_itself", repeated),
    ("over_cm::nobody_listens", nobody_listens),
    ("over_cm::the_client_may_be_first", client_first),
];

pub const TESTS: &[Test] = &[
    ("over_cm::both_ends_tell_the_same", both_ends),
    ("over_cm::commands_and_events_are_traced", is_traced),
    ("over_cm::over_ipv6", over_ipv6),
    ("over_cm::addresses_that_lead_to_no_device", no_device),
    ("over_cm::a_port_that_is_taken", taken_port),
    ("over_cm::options_that_say_otherwise", options),
    ("over_cm::the_peer_is_killed", peer_is_killed),
    ("over_cm::a_waiting_server_is_stopped", stopped),
];

/// The device's addresses, the one that it would choose first.
fn addresses(device: &Device) -> Vec<IpAddr> {
    if !Path::new("/dev/infiniband/rdma_cm").exists() {
        skip("there is no /dev/infiniband/rdma_cm (modprobe rdma_ucm)");
    }
    let gids = Run::probe(["gids", &device.name, "--json"]).json();
    let table = &gids["result"]["tables"][0];
    let gid = |entry: &serde_json::Value| entry["gid"].as_str().unwrap().parse::<Ipv6Addr>().unwrap();
    let (first, rest): (Vec<_>, Vec<_>) = table["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| !gid(entry).is_unicast_link_local())
        .partition(|entry| entry["index"] == table["chosen_index"]);
    first.into_iter().chain(rest).map(|entry| IpAddr::from(gid(entry)).to_canonical()).collect()
}

fn address(device: &Device) -> String {
    match addresses(device).first() {
        Some(address) => address.to_string(),
        None => skip("the device has no IP address"),
    }
}

fn meets(device: &Device, address: &str, more: &[&str]) {
    let port = fresh_port();
    let common = ["ping", "--cm", "-p", &port, "-n", "300", "-c"];
    let file = JsonFile::new();
    let mut server = Run::start_probe([&common, more, &[&file.option()]].concat());
    server.until_says("waiting for a client");
    let client = Run::probe([&common, more, &["--json", address]].concat()).expect(0);
    let server = server.end().expect(0);
    let (client_json, server_json) = (client.json(), file.read());
    let (at_client, at_server) = (&client_json["result"], &server_json["result"]);
    for (end, result) in [(&client, at_client), (&server, at_server)] {
        same(result["device"].as_str(), Some(device.name.as_str()), end);
        same(result["completed_iterations"].as_u64(), Some(300), end);
        same(result["check"]["messages"].as_u64(), Some(300), end);
        same(result["peer_tcp"].is_null(), true, end);
        assert!(result["connection"]["seconds"].as_f64().unwrap() > 0.0, "{end:#?}");
    }
    for (one, other) in [("local", "remote"), ("remote", "local")] {
        for field in ["qpn", "gid"] {
            same(&at_client[one][field], &at_server[other][field], &client);
        }
    }
    for (one, other) in [("local", "peer"), ("peer", "local")] {
        same(&at_client["connection"][one], &at_server["connection"][other], &client);
    }
    let to = at_client["connection"]["peer"].as_str().unwrap();
    assert!(to.contains(address) && to.ends_with(&format!(":{port}")), "{client:#?}");
}

fn both_ends(device: &Device) {
    let address = address(device);
    meets(device, &address, &[]);
    meets(device, &address, &["-e", "-s", "100"]);
}

fn is_traced(device: &Device) {
    let (address, port) = (address(device), fresh_port());
    let common = ["ping", "--cm", "-p", &port, "-n", "5", "--trace"];
    let mut server = Run::start_probe(common);
    server.until_says("waiting for a client");
    let client = Run::probe([&common[..], &[&address]].concat()).expect(0);
    let server = server.end().expect(0);
    let shows = |end: &crate::support::Ended, lines: &[&str]| {
        lines.iter().for_each(|line| assert!(end.stderr.contains(&format!("rdma_cm {line}")), "{line}: {end:#?}"));
    };
    shows(&client, &["open = ok", "RESOLVE_ADDR = ok", "GET_EVENT = event ADDR_RESOLVED", "CONNECT = ok"]);
    shows(
        &server,
        &["LISTEN = ok", "GET_EVENT = event CONNECT_REQUEST", "ACCEPT = ok", "GET_EVENT = event ESTABLISHED"],
    );
}

fn over_ipv6(device: &Device) {
    match addresses(device).iter().find(|address| address.is_ipv6()) {
        Some(address) => meets(device, &address.to_string(), &[]),
        None => skip("the device has no global IPv6 address"),
    }
}

/// It asks again for a while, as it does over TCP.
fn client_first(device: &Device) {
    let (address, port) = (address(device), fresh_port());
    // It does so for a tenth of its time, which has to do for a server that starts on a busy host.
    let mut client = Run::start_probe(["ping", "--cm", "--connect-timeout", "600", "-n", "10", "-p", &port, &address]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(client.is_running());
    let server = Run::probe(["ping", "--cm", "-n", "10", "-p", &port]);
    server.expect(0);
    client.end().expect(0);
}

/// Somebody who can ask the server for a connection, and takes no further step by itself.
struct Asker {
    route: Route,
    prepared: PreparedQp<Any>,
}

impl Asker {
    /// Ready to ask, also before there is a server: one that waits for a short time is asked at once.
    fn ready(address: &str, port: &str) -> Self {
        let to = (address.parse::<IpAddr>().unwrap(), port.parse::<u16>().unwrap()).into();
        let route = Connector::to(to).resolve(LIMIT).unwrap();
        let context = Devices::new().context_of(route.id()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let prepared = route.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap();
        Self { route, prepared }
    }

    fn new(address: &str, port: &str) -> Self {
        Self::ready(address, port).asks()
    }

    fn asks(self) -> Self {
        self.route.id().connect(&ConnParams::new(self.prepared.qpn())).unwrap();
        self
    }

    /// Waits until the server has accepted.
    fn answered(self) -> Self {
        let event = self.route.id().channel().next(LIMIT).unwrap().expect("the server answers");
        assert_eq!(event.event_type(), EventType::CONNECT_RESPONSE, "{event:?}");
        self
    }
}

/// They go before the answer or after it, or stay and say nothing. The server waits on, for one who connects, and then not for its time-out.
fn come_to_nothing(device: &Device) {
    let (address, port) = (address(device), fresh_port());
    let common = ["ping", "--cm", "-n", "10", "-p", &port, "--timeout", "600", "--connect-timeout", "90"];
    let mut server = Run::start_probe(common);
    server.until_says("waiting for a client");
    drop(Asker::new(&address, &port).answered());
    drop(Asker::new(&address, &port));
    let silent = Asker::new(&address, &port).answered();
    Run::probe([&common[..], &[&address]].concat()).expect(0);
    server.end().expect(0);
    drop(silent);

    // If none comes, what became of the last is told.
    let port = fresh_port();
    let silent = Asker::ready(&address, &port);
    let mut server = Run::start_probe(["ping", "--cm", "-p", &port, "--timeout", "1", "--connect-timeout", "8"]);
    server.until_says("waiting for a client");
    let silent = silent.asks().answered();
    server.end().expect_failure(5, &["no client came within 8s", "of the last one: rdma_accept", "within 1 s"]);
    drop(silent);
}

/// Where one of its messages is lost, its handshake takes four seconds, and it keeps its turn though another one waits.
fn repeated(device: &Device) {
    let (address, port) = (address(device), fresh_port());
    let mut server = Run::start_probe(["ping", "--cm", "-p", &port, "--timeout", "60"]);
    server.until_says("waiting for a client");
    let Asker { route, prepared } = Asker::new(&address, &port).answered();
    let next = Run::start_probe(["ping", "--cm", "-p", &port, &address]);
    std::thread::sleep(Duration::from_millis(4500));
    let qpn = prepared.qpn().get();
    let qp = route.id().bring_up(prepared).unwrap();
    route.id().establish().unwrap();
    server.until_says(&format!("QPN {qpn:#08x}"));
    drop((qp, next));
}

/// The handshake has a time of its own.
fn last_moment(device: &Device) {
    let (address, port) = (address(device), fresh_port());
    let asker = Asker::ready(&address, &port);
    let mut server = Run::start_probe(["ping", "--cm", "-p", &port, "--connect-timeout", "8", "--timeout", "60"]);
    server.until_says("waiting for a client");
    let Asker { route, prepared } = asker.asks().answered();
    std::thread::sleep(Duration::from_secs(9));
    let qp = route.id().bring_up(prepared).unwrap();
    route.id().establish().unwrap();
    server.until_says("connection:");
    drop(qp);
}

fn nobody_listens(device: &Device) {
    let (address, port) = (address(device), fresh_port());
    let ended = Run::probe(["ping", "--cm", "-p", &port, &address]);
    let ended = ended.expect_failure(5, &["nobody listens there", "start the server", &format!("{address}:{port}")]);
    assert!(ended.took < Duration::from_secs(30), "{ended:#?}");
    // However the tries and the time fall together.
    at_once(["2.7", "3", "3.5"], |limit| {
        let ended = Run::probe(["ping", "--cm", "-n", "1", "--connect-timeout", limit, "-p", &port, &address]);
        ended.expect_failure(5, &["nobody listens there"]);
    });
}

fn no_device(device: &Device) {
    address(device);
    let words = ["no RDMA device for 127.0.0.1 (via lo)", "network interface"];
    Run::probe(["ping", "--cm", "127.0.0.1"]).expect_failure(3, &words);
    Run::probe(["ping", "--cm", "203.0.113.1"]).expect_failure(5, &["203.0.113.1", "no route"]);
    Run::probe(["ping", "--cm", "--bind", "203.0.113.1"]).expect_failure(2, &["this host has no address 203.0.113.1"]);
    Run::probe(["ping", "--cm", "--bind", "fe80::1"])
        .expect_failure(2, &["fe80::1 is a link-local address: say on which link"]);
}

fn taken_port(device: &Device) {
    address(device);
    let port = fresh_port();
    let mut first = Run::start_probe(["ping", "--cm", "-p", &port]);
    first.until_says("waiting for a client");
    Run::probe(["ping", "--cm", "-p", &port]).expect_failure(2, &[&port, "is taken"]);
}

fn options(_: &Device) {
    for wrong in [&["-d", "rxe0"][..], &["-g", "1"], &["-i", "1"], &["-m", "1024"], &["-l", "1"], &["--loopback"]] {
        let ended = Run::probe([&["ping", "--cm"], wrong].concat()).expect(2);
        assert!(ended.stderr.contains("cannot be used with"), "{ended:#?}");
    }
    Run::probe(["ping", "--cm", "-t", "ud"]).expect_failure(2, &["--cm", "rc", "ud"]);
    Run::probe(["ping", "--cm", "--sim"]).expect_failure(2, &["--cm", "--sim"]);
}

/// What silence would tell only after the time-out, the connection manager tells at once.
fn peer_is_killed(device: &Device) {
    let address = address(device);
    for (kill_server, more) in [(false, &[][..]), (true, &[]), (true, &["-e"])] {
        let port = fresh_port();
        let common = [&["ping", "--cm", "-p", &port, "-n", "100000000", "--timeout", "100"], more].concat();
        let mut server = Run::start_probe(common.clone());
        server.until_says("waiting for a client");
        let mut client = Run::start_probe([&common[..], &[&address]].concat());
        client.until_says("connection:");
        std::thread::sleep(Duration::from_millis(300));
        let (mut killed, left) = if kill_server { (server, client) } else { (client, server) };
        killed.kill();
        let begin = std::time::Instant::now();
        let ended = left.end().expect_failure(5, &["the peer has ended the connection"]);
        assert!(begin.elapsed() < Duration::from_secs(20), "{kill_server} {more:?}: {ended:#?}");
    }
}

fn stopped(device: &Device) {
    address(device);
    let mut server = Run::start_probe(["ping", "--cm", "-p", &fresh_port()]);
    server.until_says("waiting for a client");
    kill(Pid::from_raw(server.id()), Signal::SIGINT).unwrap();
    let ended = server.end().expect(130);
    assert!(ended.took < Duration::from_secs(20), "{ended:#?}");
}
