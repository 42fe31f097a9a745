//! `rdma-probe caps`: what it finds is what the kernel and its driver are known to do, and it leaves nothing.

use crate::Test;
use crate::failures::nothing_left;
use crate::support::{Device, Run, same};
use serde_json::Value;

pub const TESTS: &[Test] = &[
    ("capable::what_soft_roce_is_known_for", known),
    ("capable::text_and_json_alike", text_and_json),
    ("capable::a_device_in_use", in_use),
    ("capable::a_device_that_is_not_there", not_there),
];

fn verdict<'a>(json: &'a Value, name: &str) -> &'a Value {
    let all = json["result"]["devices"][0]["verdicts"].as_array().unwrap();
    all.iter().find(|v| v["name"] == name).unwrap_or_else(|| panic!("nothing is said of {name}: {json:#}"))
}

fn known(device: &Device) {
    let ended = Run::probe(["caps", &device.name, "--json"]).expect(0);
    let json = ended.json();
    let caps = &json["result"]["devices"][0];
    if caps["driver"] != "rxe" {
        crate::support::skip("the device is not Soft-RoCE");
    }
    for name in YES {
        same(&verdict(&json, name)["offered"], &Value::Bool(true), &ended);
    }
    for (name, by) in NO {
        let verdict = verdict(&json, name);
        same(&verdict["offered"], &Value::Bool(false), &ended);
        same(&verdict["refused_by"], &Value::from(*by), &ended);
        assert!(!verdict["reason"].as_str().unwrap().is_empty());
    }
    let is_new = !caps["kernel"].as_str().unwrap().starts_with("6.1.");
    for name in NEWER {
        same(&verdict(&json, name)["offered"], &Value::Bool(is_new), &ended);
    }
    same(&caps["leaks"], &Value::Array(vec![]), &ended);
    // Regions are registered by a command that has no method of its own on these kernels; queue pairs are made by one.
    let form = |command: &str| {
        let all = caps["commands"].as_array().unwrap();
        let good = all.iter().find(|c| c["command"] == command && c["answer"] == "ok");
        good.unwrap_or_else(|| panic!("no {command}: {caps:#}"))["form"].as_str().unwrap().to_owned()
    };
    assert_eq!(form("REG_MR"), "invoke_write");
    assert_eq!(form("QP.CREATE"), "ioctl");
    nothing_left(device);
}

const YES: &[&str] = &[
    "RC",
    "UC",
    "UD",
    "atomics",
    "local access",
    "remote READ and WRITE",
    "remote atomics",
    "events of all completions",
    "events of solicited completions",
    "SRQ",
    "SRQ limit event",
    "SRQ resize",
    "RC on an SRQ",
    "memory window type 1",
    "memory window type 2",
    "another address than its own",
    "relaxed ordering",
    "address handle",
    "multicast",
];

const NO: &[(&str, &str)] = &[
    ("XRC", "driver"),
    ("time stamps", "driver"),
    ("moderation", "driver"),
    ("tag matching", "device"),
    ("dma-buf", "driver"),
    ("on-demand paging", "device"),
    ("device memory", "driver"),
];

/// Since Linux 6.2, or 6.3 for changing a region.
const NEWER: &[&str] = &["ATOMIC_WRITE", "FLUSH to visibility", "FLUSH to persistence", "changing a region"];

fn text_and_json(device: &Device) {
    let text = Run::probe(["caps", &device.name]).expect(0).stdout;
    let json = Run::probe(["caps", &device.name, "--json"]).expect(0).json();
    for verdict in json["result"]["devices"][0]["verdicts"].as_array().unwrap() {
        let (name, reason) = (verdict["name"].as_str().unwrap(), verdict["reason"].as_str().unwrap());
        let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{name}  "))).unwrap_or_default();
        assert!(line.contains(reason), "{name}: no {reason:?} in {line:?}");
        let word = match verdict["offered"].as_bool() {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        assert!(line.contains(&format!("  {word}")), "{name}: no {word:?} in {line:?}");
    }
}

/// A ping goes on undisturbed.
fn in_use(device: &Device) {
    let name = device.name.as_str();
    let mut ping = Run::start_probe(["ping", "--loopback", "-d", name, "-c", "-s", "64", "-n", "100000000"]);
    ping.until_says("remote address");
    for _ in 0..3 {
        Run::probe(["caps", name]).expect(0);
    }
    assert!(ping.is_running());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(ping.id()), nix::sys::signal::Signal::SIGINT).unwrap();
    ping.end().expect(130);
}

fn not_there(_: &Device) {
    Run::probe(["caps", "no-such-device"]).expect_failure(3, &["no-such-device"]);
}
