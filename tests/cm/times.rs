//! How long each step of many connections takes beside `cmtime`, which is also the other side of each run.
//!
//! `IRONVERBS_CM_TIME` names the optimized `cm_time` of the examples. In a guest whose clock counts instructions the times are
//! repeatable.

use crate::harness::{skip, step};
use crate::peer::Peer;
use crate::scene::{nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

tests! {
    no_step_takes_longer_than_by_librdmacm,
}

/// Of each pair of sides. Their least is compared: what comes between in a run only ever adds to its time. Most comes between in the
/// steps of resolving, where the kernel works in a thread of its own, between the program's calls or after all of them, as it
/// happens to be scheduled, which moves a third of the one step to the other or back: both together are compared besides.
const RUNS: usize = 9;
const STEPS: [&str; 8] =
    ["create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
/// How much longer ours may take, since C's least of so many runs differs by as much from that of so many others.
const NOISE: f64 = 1.01;
/// And this many microseconds: a few interrupts more, in the time of all connections.
const INTERRUPTS: f64 = 0.2;

/// Of a clock that counts instructions, and runs ahead while nothing is to be done but to wait for this machine, as for a file.
const FOR_EVER: Duration = Duration::from_secs(600);

/// Which program is the server, and which the client.
const SIDES: [(&str, &str); 3] = [("C", "C"), ("C", "ours"), ("ours", "C")];

fn no_step_takes_longer_than_by_librdmacm(target: &Target) {
    let Ok(ours) = std::env::var("IRONVERBS_CM_TIME") else { skip("IRONVERBS_CM_TIME names no program to time") };
    let scene = scene(target);
    let before = objects(target);
    let program = |who| if who == "C" { "cmtime" } else { ours.as_str() };
    let mut times: [Vec<[f64; STEPS.len()]>; SIDES.len()] = Default::default();
    // The first of each has the guest read the programs, and while it waits for that its clock runs on.
    for run in 0..=RUNS {
        for (n, (server, client)) in SIDES.into_iter().enumerate() {
            step(format!("run {run}: client {client}, server {server}"));
            let at = scene.at((7650 + run * SIDES.len() + n) as u16);
            let took = once(program(server), program(client), at);
            if run > 0 {
                times[n].push(took);
            }
        }
    }
    let sorted = |of: &dyn Fn(&[f64; STEPS.len()]) -> f64| {
        times.each_ref().map(|runs| {
            let mut all: Vec<_> = runs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all
        })
    };
    eprintln!("µs: least (median, to most)        C              ours, to C              C, to ours");
    let mut longer = vec![];
    let mut compare = |name: &str, runs: [Vec<f64>; SIDES.len()]| {
        let told = |runs: &Vec<f64>| format!("{:>8.2} ({:.2}, to {:.2})", runs[0], runs[RUNS / 2], runs[RUNS - 1]);
        let told = runs.each_ref().map(told);
        eprintln!("{name:<16} {:>24} {:>24} {:>24}", told[0], told[1], told[2]);
        let [c, client, server] = runs.map(|runs| runs[0]);
        let mut check = |what: &str, ours: f64| {
            if ours > c * NOISE + INTERRUPTS {
                longer.push(format!("{what}: {ours:.2} µs, C {c:.2}"));
            }
        };
        check(name, client);
        // The server has a part in these only.
        if ["connect", "disconnect"].contains(&name) {
            check(&format!("{name} with our server"), server);
        }
    };
    for (step, name) in STEPS.into_iter().enumerate() {
        compare(name, sorted(&|run| run[step]));
    }
    compare("both resolved", sorted(&|run| run[2] + run[3]));
    compare("to connected", sorted(&|run| run[2..=5].iter().sum()));
    assert!(longer.is_empty(), "longer than by librdmacm: {longer:#?}");
    nothing_is_left(target, &before);
}

/// Runs both, and returns the microseconds per connection of each step.
fn once(server: &str, client: &str, at: SocketAddr) -> [f64; STEPS.len()] {
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let arguments = ["-b", &ip, "-p", &port, "-s", &ip, "-c", "100"];
    let server = Peer::start(server, &arguments[..4]);
    wait_for_listener(at.port());
    let printed = Peer::start(client, &arguments).finish_within(FOR_EVER);
    drop(server);
    STEPS.map(|step| {
        let row = printed.lines().find_map(|line| line.strip_prefix(step)?.trim_start().strip_prefix(':'));
        let per_connection = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
        per_connection.unwrap_or_else(|| panic!("{step} is missing:\n{printed}"))
    })
}

/// As `rdma resource show` tells of it.
fn wait_for_listener(port: u16) {
    let deadline = Instant::now() + FOR_EVER;
    let listens = || {
        let told = std::process::Command::new("rdma").args(["resource", "show", "cm_id"]).output().unwrap();
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        text.lines().any(|line| line.contains("state LISTEN") && line.contains(&format!(":{port} ")))
    };
    while !listens() {
        assert!(Instant::now() < deadline, "nobody listens at port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
