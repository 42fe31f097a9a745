//! rdma-probe against itself.

use crate::Test;
use crate::support::{Device, LIMIT, Run, fresh_port, same, until_listening};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("itself::loopback", |d| loopback(d, &[])),
    ("itself::loopback_with_events", |d| loopback(d, &["-e"])),
    ("itself::loopback_checked", |d| loopback(d, &["-c", "-s", "5000"])),
    ("itself::loopback_of_one_byte", |d| loopback(d, &["-c", "-s", "1", "-r", "1"])),
    ("itself::one_iteration", one_iteration),
    ("itself::every_transport", every_transport),
    ("itself::two_processes_check_each_other", two_processes_check_each_other),
    ("itself::a_server_follows_the_address_family_of_its_client", follows_the_family),
    ("itself::long_runs_do_not_grow", long_runs_do_not_grow),
];

fn loopback(device: &Device, more: &[&str]) {
    let fixed = ["ping", "--loopback", "--json", "-d", &device.name, "-n", "200"];
    let ended = Run::probe([&fixed, more].concat()).expect(0);
    let json = ended.json();
    same(json["result"]["completed_iterations"].as_u64(), Some(200), &ended);
    // Over XRC, the first message is not the answer to one of the client's.
    let samples = if more.contains(&"xsrq") { 199 } else { 200 };
    same(json["result"]["latency"]["samples"].as_u64(), Some(samples), &ended);
    if more.contains(&"-c") {
        same(json["result"]["check"]["messages"].as_u64(), Some(400), &ended);
    }
}

/// The transports that ping knows, as its help lists them, and the device has.
pub fn transports(device: &Device) -> Vec<&'static str> {
    ["rc", "uc", "ud", "srq", "xsrq"].into_iter().filter(|transport| *transport != "xsrq" || device.has_xrc).collect()
}

fn every_transport(device: &Device) {
    for transport in transports(device) {
        loopback(device, &["-t", transport, "-c"]);
        loopback(device, &["-t", transport, "-c", "-e", "-s", "77"]);
        let port = fresh_port();
        let common = ["ping", "--json", "-d", &device.name, "-p", &port, "-t", transport, "-n", "300", "-c"];
        let server = Run::start_probe(common);
        until_listening(&port);
        let client = Run::probe([&common[..], &["127.0.0.1"]].concat()).expect(0);
        for end in [client, server.end().expect(0)] {
            let json = end.json();
            same(json["result"]["transport"].as_str(), Some(transport), &end);
            same(json["result"]["completed_iterations"].as_u64(), Some(300), &end);
            same(json["result"]["check"]["messages"].as_u64(), Some(300), &end);
        }
    }
}

fn one_iteration(device: &Device) {
    for check in [&[][..], &["-c"]] {
        for size in ["1", "4096"] {
            let port = fresh_port();
            let common = ["ping", "-d", &device.name, "-p", &port, "-n", "1", "-s", size];
            let server = Run::start_probe([&common, check].concat());
            until_listening(&port);
            Run::probe([&common, check, &["127.0.0.1"]].concat()).expect(0);
            server.end().expect(0);
        }
    }
}

fn two_processes_check_each_other(device: &Device) {
    let port = fresh_port();
    let common = ["ping", "--json", "-d", &device.name, "-p", &port, "-n", "100", "-s", "9000", "-c"];
    let server = Run::start_probe(common);
    until_listening(&port);
    let client = Run::probe([&common[..], &["127.0.0.1"]].concat()).expect(0);
    let server = server.end().expect(0);
    for end in [&client, &server] {
        let check = &end.json()["result"]["check"];
        same(check["peer"].as_str(), Some("makes"), end);
        same(check["messages"].as_u64(), Some(100), end);
        same(check["bytes"].as_u64(), Some(900_000), end);
    }
}

/// The client is told to use an IPv6 GID; the server, which is told nothing, must not stay with an IPv4 one.
fn follows_the_family(device: &Device) {
    let gids = Run::probe(["gids", &device.name, "--json"]).expect(0).json();
    let entries = gids["result"]["tables"][0]["entries"].as_array().unwrap().clone();
    let is_v4 = |gid: &str| gid.starts_with("::ffff:");
    let v6 = entries.iter().find(|e| {
        let gid = e["gid"].as_str().unwrap();
        !is_v4(gid) && !gid.starts_with("fe80") && e["type"] == "RoCE v2"
    });
    let chosen = entries.iter().find(|e| e["chosen"] == true).and_then(|e| e["gid"].as_str()).unwrap();
    let Some(v6) = v6.filter(|_| is_v4(chosen)) else {
        crate::support::skip("the device has not both an IPv4 and a routable IPv6 GID")
    };
    let port = fresh_port();
    let common = ["ping", "--json", "-d", &device.name, "-p", &port, "-n", "20", "-c"];
    let server = Run::start_probe(common);
    until_listening(&port);
    let index = v6["index"].to_string();
    Run::probe([&common[..], &["-g", &index, "127.0.0.1"]].concat()).expect(0);
    let server = server.end().expect(0);
    assert!(!is_v4(server.json()["result"]["local"]["gid"].as_str().unwrap()), "{server:#?}");
}

/// Watches a ping without end for a while.
fn long_runs_do_not_grow(device: &Device) {
    let mut run = Run::start_probe(["ping", "--loopback", "-d", &device.name, "-s", "64", "-n", "1000000000"]);
    run.until_says("remote address");
    // What it sets up after that line is still to come.
    let deadline = Instant::now() + LIMIT;
    let mut first = usage(run.id());
    loop {
        let next = usage(run.id());
        if (next.descriptors, next.resident_kib) == (first.descriptors, first.resident_kib) {
            break;
        }
        assert!(Instant::now() < deadline, "never steady: {next:?} after {first:?}");
        first = next;
    }
    for _ in 0..8 {
        let now = usage(run.id());
        assert_eq!(now.descriptors, first.descriptors);
        assert!(now.resident_kib <= first.resident_kib + 256, "{now:?} after {first:?}");
    }
    kill(Pid::from_raw(run.id()), Signal::SIGINT).unwrap();
    run.end().expect(130);
}

#[derive(Debug)]
struct Usage {
    resident_kib: u64,
    descriptors: usize,
    /// Of a processor.
    ticks: u64,
}

/// The least that it uses in half a second or more, in which it goes on. The least, for once a second it looks whether its device is
/// still there, with a descriptor of which nothing is left.
fn usage(pid: i32) -> Usage {
    let first = usage_now(pid);
    let mut least = usage_now(pid);
    for look in 0.. {
        sleep(Duration::from_millis(25));
        let now = usage_now(pid);
        least.resident_kib = least.resident_kib.min(now.resident_kib);
        least.descriptors = least.descriptors.min(now.descriptors);
        least.ticks = now.ticks;
        if look >= 20 && now.ticks >= first.ticks + 10 {
            break;
        }
    }
    least
}

fn usage_now(pid: i32) -> Usage {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The 14th and 15th field, behind the name in brackets, which is the second.
    let of_processor = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
    let ticks = of_processor.map(|field| field.parse::<u64>().unwrap()).sum();
    Usage { resident_kib: resident.parse().unwrap(), descriptors, ticks }
}
