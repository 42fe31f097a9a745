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
/// What two runs of one program differ by.
const NOISE: f64 = 1.1;

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
    let medians = times.map(|runs| {
        std::array::from_fn::<_, { STEPS.len() }, _>(|step| {
            let mut all: Vec<_> = runs.iter().map(|run| run[step]).collect();
            all.sort_by(f64::total_cmp);
            all[RUNS / 2]
        })
    });
    eprintln!("µs per connection       C    ours, to C    C, to ours");
    for (step, name) in STEPS.iter().enumerate() {
        eprintln!("{name:<16} {:>8.2} {:>13.2} {:>13.2}", medians[0][step], medians[1][step], medians[2][step]);
    }
    let [c, client, server] = medians;
    for (step, name) in STEPS.iter().enumerate() {
        assert!(client[step] <= c[step] * NOISE, "{name} takes longer by our client");
        // The server has a part in these only.
        if matches!(*name, "connect" | "disconnect") {
            assert!(server[step] <= c[step] * NOISE, "{name} takes longer with our server");
        }
    }
    let to_connected = |steps: &[f64]| steps[2..=5].iter().sum::<f64>();
    assert!(to_connected(&client) <= to_connected(&c) * NOISE, "a connection takes longer in all");
    nothing_is_left(target, &before);
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
