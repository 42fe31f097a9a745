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

const RUNS: usize = 5;
const STEPS: [&str; 8] =
    ["create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
/// How much longer a step may take than in C's run, unless runs of C differ by more among themselves.
const NOISE: f64 = 1.02;
/// How much longer those steps may take that take longer: it is in the program's own instructions and how its threads wait, since
/// there are no more system calls but as said here.
const LONGER: [(&str, f64); 4] = [
    // A queue pair is made for any provider: more is allocated and moved than rxe needs. Besides, each mapping is known to
    // its file, so that it can be cut off, and each queue pair to its context, so that events find it.
    ("create qp", 1.11),
    // The file never blocks, so that an event that is waited for takes `poll` besides. Queues are kept, and moved, until the
    // queue pair is gone.
    ("disconnect", 1.06),
    // Of six microseconds, less than C's own runs may differ by.
    ("destroy", 1.1),
    // Events that are waited for, again; and the GID is asked for when it is known which one the connection has.
    ("connect with our server", 1.06),
];

/// Which program is the server, and which the client.
const SIDES: [(&str, &str); 3] = [("C", "C"), ("C", "ours"), ("ours", "C")];

fn no_step_takes_longer_than_by_librdmacm(target: &Target) {
    let Ok(ours) = std::env::var("IRONVERBS_CM_TIME") else { skip("IRONVERBS_CM_TIME names no program to time") };
    let scene = scene(target);
    let before = objects(target);
    let program = |who| if who == "C" { "cmtime" } else { ours.as_str() };
    let mut times: [Vec<[f64; STEPS.len()]>; SIDES.len()] = Default::default();
    for run in 0..RUNS {
        for (n, (server, client)) in SIDES.into_iter().enumerate() {
            step(format!("run {run}: client {client}, server {server}"));
            let at = scene.at((7650 + run * SIDES.len() + n) as u16);
            times[n].push(once(program(server), program(client), at));
        }
    }
    let sorted = |of: &dyn Fn(&[f64; STEPS.len()]) -> f64| {
        times.each_ref().map(|runs| {
            let mut all: Vec<_> = runs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all
        })
    };
    eprintln!("µs per connection                  C              ours, to C              C, to ours");
    let mut longer = vec![];
    let allowed = |what: &str| LONGER.iter().find(|(name, _)| *name == what).map_or(NOISE, |(_, allowed)| *allowed);
    let mut compare = |name: &str, [c, client, server]: [Vec<f64>; SIDES.len()]| {
        let [c, client, server] = [c, client, server].map(|runs| [runs[judged(name)], runs[0], runs[RUNS - 1]]);
        let told = [c, client, server].map(|[judged, least, most]| format!("{judged:>8.2} ({least:.2} to {most:.2})"));
        eprintln!("{name:<16} {:>24} {:>24} {:>24}", told[0], told[1], told[2]);
        let [of_c, _, most] = c;
        let mut check = |what: &str, allowed: f64, ours: f64| {
            if ours > (of_c * allowed).max(most) {
                longer.push(format!("{what}: {ours:.2} µs, C {of_c:.2}"));
            }
        };
        check(name, allowed(name), client[0]);
        // The server has a part in these only.
        match name {
            "connect" => check("connect with our server", allowed("connect with our server"), server[0]),
            "disconnect" => check("disconnect with our server", allowed("disconnect"), server[0]),
            _ => {}
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

/// Which of the sorted runs is compared: the median. The kernel resolves in a thread of its own, between the program's calls or after
/// all of them, as it happens to be scheduled, which moves a third of one such step to the other or back: of each only the least
/// run has nothing of it, and both together are compared besides.
fn judged(step: &str) -> usize {
    if ["resolve addr", "resolve route"].contains(&step) { 0 } else { RUNS / 2 }
}

/// Runs both, and returns the microseconds per connection of each step.
fn once(server: &str, client: &str, at: SocketAddr) -> [f64; STEPS.len()] {
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let arguments = ["-b", &ip, "-p", &port, "-s", &ip, "-c", "100"];
    let server = Peer::start(server, &arguments[..4]);
    wait_for_listener(at.port());
    let printed = Peer::start(client, &arguments).finish();
    drop(server);
    STEPS.map(|step| {
        let row = printed.lines().find_map(|line| line.strip_prefix(step)?.trim_start().strip_prefix(':'));
        let per_connection = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
        per_connection.unwrap_or_else(|| panic!("{step} is missing:\n{printed}"))
    })
}

/// As `rdma resource show` tells of it.
fn wait_for_listener(port: u16) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let listens = || {
        let told = std::process::Command::new("rdma").args(["resource", "show", "cm_id"]).output().unwrap();
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        text.lines().any(|line| line.contains("state LISTEN") && line.contains(&format!(":{port} ")))
    };
    while !listens() {
        assert!(Instant::now() < deadline, "nobody listens at port {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
