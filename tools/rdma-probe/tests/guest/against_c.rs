//! rdma-probe and the C pingpongs, in both roles.

use crate::Test;
use crate::itself::transports;
use crate::support::{Device, Ended, Run, fresh_port, same, skip, until_listening};

pub const TESTS: &[Test] = &[
    ("against_c::all_sizes_as_client", |d| all_sizes(d, Role::Client, &[], &[])),
    ("against_c::all_sizes_as_server", |d| all_sizes(d, Role::Server, &[], &[])),
    ("against_c::all_sizes_as_client_checked", |d| all_sizes(d, Role::Client, &["-c"], &[])),
    ("against_c::all_sizes_as_server_checked", |d| all_sizes(d, Role::Server, &["-c"], &[])),
    ("against_c::events_here", |d| both_roles(d, &["-e", "-c"], &[])),
    ("against_c::events_there", |d| both_roles(d, &["-c"], &["-e"])),
    ("against_c::events_on_both_ends", |d| both_roles(d, &["-e", "-c"], &["-e"])),
    ("against_c::both_check", |d| both_roles(d, &["-c"], &["-c"])),
    ("against_c::only_the_c_tool_checks", |d| both_roles(d, &[], &["-c"])),
    ("against_c::shallow_receive_queues", shallow_receive_queues),
    ("against_c::other_path_mtus", other_path_mtus),
    ("against_c::service_level", |d| both_roles(d, &["-c", "-l", "3"], &["-l", "3"])),
    ("against_c::rc", |d| transport(d, "rc")),
    ("against_c::uc", |d| transport(d, "uc")),
    ("against_c::ud", |d| transport(d, "ud")),
    ("against_c::srq", |d| transport(d, "srq")),
    ("against_c::srq_of_other_widths", srq_widths),
    ("against_c::xsrq", xsrq),
    ("against_c::xsrq_by_default", xsrq_by_default),
    ("against_c::xsrq_of_other_sizes", xsrq_sizes),
    ("against_c::xsrq_beyond_its_queues", xsrq_beyond_its_queues),
    ("against_c::xsrq_with_other_iterations", xsrq_with_other_iterations),
    ("against_c::by_gid_on_infiniband", by_gid_on_infiniband),
    ("against_c::many_iterations_rc", |d| many_iterations(d, "rc")),
    ("against_c::many_iterations_uc", |d| many_iterations(d, "uc")),
    ("against_c::many_iterations_ud", |d| many_iterations(d, "ud")),
    ("against_c::many_iterations_srq", |d| many_iterations(d, "srq")),
];

const SIZES: [(&str, u64); 6] = [("1", 50), ("64", 50), ("1024", 50), ("4096", 50), ("65536", 20), ("1048576", 3)];

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Client,
    Server,
}

fn all_sizes(device: &Device, role: Role, ours: &[&str], theirs: &[&str]) {
    for (size, iterations) in SIZES {
        let n = iterations.to_string();
        let common = ["-s", size, "-n", n.as_str()];
        ping(device, role, &[&common, ours].concat(), &[&common, theirs].concat(), iterations);
    }
}

fn both_roles(device: &Device, ours: &[&str], theirs: &[&str]) {
    // Three pages and a bit: the C tool checks the start of every page.
    let common = ["-s", "12345", "-n", "50"];
    for role in [Role::Client, Role::Server] {
        ping(device, role, &[&common, ours].concat(), &[&common, theirs].concat(), 50);
    }
}

fn shallow_receive_queues(device: &Device) {
    for depth in ["1", "2", "3"] {
        both_roles(device, &["-c", "-r", depth], &["-r", depth]);
    }
}

fn other_path_mtus(device: &Device) {
    for mtu in ["256", "512"] {
        both_roles(device, &["-c", "-m", mtu], &["-m", mtu]);
    }
}

/// Three times as many as the C tools' queues have places, which is 500.
fn many_iterations(device: &Device, transport: &str) {
    for role in [Role::Client, Role::Server] {
        ping_over(transport, device, role, &["-n", "1500", "-c"], &["-n", "1500"], 1500);
    }
}

/// With the peers' own sizes; then with events on one end each.
fn transport(device: &Device, transport: &str) {
    for role in [Role::Client, Role::Server] {
        ping_over(transport, device, role, &["-n", "200", "-c"], &["-n", "200"], 200);
        let n = ["-n", "100"];
        ping_over(transport, device, role, &[&n[..], &["-e", "-c"]].concat(), &[&n[..], &["-c"]].concat(), 100);
        ping_over(
            transport,
            device,
            role,
            &[&n[..], &["-c", "-s", "1"]].concat(),
            &[&n[..], &["-e", "-s", "1"]].concat(),
            100,
        );
    }
}

/// One queue pair, many, as many as iterations; and both ends with another number, which is told. With more queue pairs than
/// iterations the C client sends messages beyond the last, and fails if its peer has ended before them.
fn srq_widths(device: &Device) {
    for role in [Role::Client, Role::Server] {
        for (width, iterations, n) in [("1", "50", 50), ("3", "50", 50), ("64", "500", 500), ("16", "16", 16)] {
            let args = ["-q", width, "-n", iterations];
            ping_over("srq", device, role, &[&args[..], &["-c"]].concat(), &args, n);
            ping_over("srq", device, role, &args, &args, n);
        }
    }
    let port = fresh_port();
    let mut c = Run::start_c("srq", [&device.for_c()[..], &["-p", &port, "-q", "4"]].concat());
    until_listening(&port);
    Run::probe(["ping", "-t", "srq", "-d", &device.name, "-p", &port, "127.0.0.1"])
        .expect_failure(5, &["the peer has 4 queue pairs, this end 16", "--num-qp"]);
    c.kill();
    c.end();
}

/// With events on neither end, either or both, with the receive that the C tool has and many.
fn xsrq(device: &Device) {
    device.needs_xrc();
    for role in [Role::Client, Role::Server] {
        for (ours, theirs) in [(&[][..], &[][..]), (&["-e"], &[]), (&[], &["-e"]), (&["-e"], &["-e"])] {
            let n = ["-n", "100"];
            ping_over("xsrq", device, role, &[&n[..], ours].concat(), &[&n[..], theirs].concat(), 100);
            ping_over(
                "xsrq",
                device,
                role,
                &[&n[..], &["-c", "-r", "1"], ours].concat(),
                &[&n[..], theirs].concat(),
                100,
            );
        }
        let options = ["-n", "20", "-l", "3", "-m", "512"];
        ping_over("xsrq", device, role, &[&options[..], &["-c"]].concat(), &options, 20);
    }
}

/// With nothing said on either end that need not be.
fn xsrq_by_default(device: &Device) {
    device.needs_xrc();
    for role in [Role::Client, Role::Server] {
        ping_over("xsrq", device, role, &[], &[], 5);
    }
}

fn xsrq_sizes(device: &Device) {
    device.needs_xrc();
    for role in [Role::Client, Role::Server] {
        for (size, iterations) in SIZES {
            let n = iterations.to_string();
            let common = ["-s", size, "-n", n.as_str()];
            ping_over("xsrq", device, role, &[&common[..], &["-c"]].concat(), &common, iterations);
        }
    }
}

/// Several times as many as there are receives here.
fn xsrq_beyond_its_queues(device: &Device) {
    device.needs_xrc();
    for role in [Role::Client, Role::Server] {
        ping_over("xsrq", device, role, &["-n", "1500", "-c"], &["-n", "1500"], 1500);
    }
}

/// The C tool says that it has done all, or never does.
fn xsrq_with_other_iterations(device: &Device) {
    device.needs_xrc();
    let port = fresh_port();
    let common = ["ping", "-d", &device.name, "-p", &port, "-t", "xsrq", "--timeout", "3"];
    let here = |n| [&common[..], &["-n", n]].concat();
    let there = [&device.for_c()[..], &["-p", &port, "-n", "20"]].concat();
    // Its client has done all, and this end expects more.
    let probe = Run::start_probe(here("30"));
    until_listening(&port);
    let mut c = Run::start_c("xsrq", [&there[..], &["127.0.0.1"]].concat());
    let probe = probe.end().expect_failure(5, &["has ended the connection", "--iters"]);
    assert!(probe.stdout.contains("stopped before the other 10 iters"), "{probe:#?}");
    c.kill();
    c.end();
    // Its server expects more than this end has to send.
    let port = fresh_port();
    let there = [&device.for_c()[..], &["-p", &port, "-n", "20"]].concat();
    let mut c = Run::start_c("xsrq", there);
    until_listening(&port);
    let here = ["ping", "-d", &device.name, "-p", &port, "-t", "xsrq", "--timeout", "3", "-n", "10", "127.0.0.1"];
    Run::probe(here).expect_failure(5, &["END", "--iters"]);
    c.kill();
    c.end();
}

/// The C tool of either role with a GID, and with none; this one told a GID, and not.
fn by_gid_on_infiniband(device: &Device) {
    if !device.is_infiniband {
        skip("on Ethernet there is no other way than by GID");
    }
    let gid = ["-g", device.gid_index.as_str()];
    let n = ["-n", "100"];
    for transport in transports(device) {
        ping_over(transport, device, Role::Client, &[&n[..], &gid].concat(), &[&n[..], &gid].concat(), 100);
        ping_over(transport, device, Role::Client, &n, &[&n[..], &gid].concat(), 100);
        ping_over(transport, device, Role::Server, &n, &[&n[..], &gid].concat(), 100);
        ping_over(transport, device, Role::Server, &[&n[..], &gid].concat(), &n, 100);
    }
}

fn ping(device: &Device, role: Role, ours: &[&str], theirs: &[&str], iterations: u64) {
    ping_over("rc", device, role, ours, theirs, iterations);
}

/// One ping between both; ours must report what it did, and the C tool must be content.
fn ping_over(transport: &str, device: &Device, role: Role, ours: &[&str], theirs: &[&str], iterations: u64) {
    let port = fresh_port();
    let here = ["ping", "--json", "-d", &device.name, "-p", &port, "--transport", transport];
    let there = [&device.for_c()[..], &["-p", &port]].concat();
    let (probe, c) = match role {
        Role::Client => {
            let c = Run::start_c(transport, [&there[..], theirs].concat());
            until_listening(&port);
            let probe = Run::probe([&here[..], ours, &["127.0.0.1"]].concat());
            (probe, c.end())
        }
        Role::Server => {
            let probe = Run::start_probe([&here[..], ours].concat());
            until_listening(&port);
            let c = Run::start_c(transport, [&there[..], theirs, &["127.0.0.1"]].concat()).end();
            (probe.end(), c)
        }
    };
    assert!(probe.status.success() && c.status.success(), "{probe:#?}\n{c:#?}");
    assert!(!c.stdout.contains("invalid data"), "{c:#?}");
    check_report(&probe, role, ours.contains(&"-c"), iterations);
    agree(&probe, &c);
}

fn check_report(probe: &Ended, role: Role, checked: bool, iterations: u64) {
    let json = probe.json();
    let result = &json["result"];
    let server = role == Role::Server;
    same(result["role"].as_str(), Some(if server { "server" } else { "client" }), probe);
    same(result["completed_iterations"].as_u64(), Some(iterations), probe);
    // The first message that a server gets by each queue pair is no sample, and a C peer may send some more at the end. Over XRC
    // neither end knows whether the other one was there from the beginning.
    let samples = result["latency"]["samples"].as_u64().unwrap_or_default();
    if result["transport"] == "srq" {
        let width = result["queue_pairs"].as_u64().unwrap();
        assert!(samples + width >= iterations && samples <= iterations + width, "{probe:#?}");
    } else {
        same(samples, iterations - u64::from(server || result["transport"] == "xsrq"), probe);
    }
    let check = &result["check"];
    if checked {
        same(check["peer"].as_str(), Some("echoes"), probe);
        let messages = check["messages"].as_u64().unwrap();
        assert!(messages >= iterations && (messages == iterations || result["transport"] == "srq"), "{probe:#?}");
    } else {
        assert!(check.is_null(), "{probe:#?}");
    }
    if samples == 0 {
        return;
    }
    let ns = |name: &str| result["latency"][name].as_u64().unwrap();
    assert!(ns("min_ns") <= ns("median_ns") && ns("median_ns") <= ns("p99_ns") && ns("p99_ns") <= ns("max_ns"));
}

/// What one end calls local, the other one calls remote.
fn agree(probe: &Ended, c: &Ended) {
    let json = probe.json();
    let ours = |which: &str| {
        let a = &json["result"][which];
        let number = |field: &str| a[field].as_u64().unwrap();
        let (lid, qpn, psn) = (number("lid"), number("qpn"), number("psn"));
        let gid = a["gid"].as_str().unwrap();
        if json["result"]["transport"] == "xsrq" {
            let (send, srqn) = (number("send_qpn"), number("srqn"));
            return format!(
                "LID {lid:04x}, QPN RECV {qpn:06x} SEND {send:06x}, PSN {psn:06x}, SRQN {srqn:06x}, GID {gid}"
            );
        }
        format!("LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}")
    };
    let theirs = |which: &str| {
        let words = [format!("{which} address:"), format!("{which}:")];
        let of = |line: &str| words.iter().find_map(|words| line.trim().strip_prefix(words)).map(str::to_owned);
        let line = c.stdout.lines().find_map(of).unwrap_or_else(|| panic!("{c:#?}"));
        // The tool for datagrams has a colon where the others have a comma.
        line.trim().replace(": GID", ", GID")
    };
    assert_eq!(ours("local"), theirs("remote"));
    assert_eq!(ours("remote"), theirs("local"));
}
