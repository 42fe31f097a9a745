//! Hosts on which a device is there, but not as one would expect it.

use crate::Test;
use crate::own_device::{OwnDevice, must, sh};
use crate::support::{Device, Ended, Run, probe, skip};
use serde_json::Value;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("hosts::the_network_device_is_in_another_namespace", shared_namespaces),
    ("hosts::the_device_is_in_another_namespace", exclusive_namespaces),
    ("hosts::little_locked_memory", little_locked_memory),
    ("hosts::two_devices_with_one_guid", one_guid),
    ("hosts::a_device_that_comes_later", comes_later),
    ("hosts::the_chosen_gid_and_the_path_mtu", gid_and_mtu),
];

/// A network namespace, gone at the end of the test.
struct Namespace(&'static str);

impl Namespace {
    fn new(name: &'static str) -> Self {
        if !nix::unistd::geteuid().is_root() {
            skip("only root can make a network namespace");
        }
        must(&format!("ip netns add {name}"));
        Self(name)
    }

    fn probe(&self, args: &[&str]) -> Ended {
        let probe = probe();
        Run::start(Command::new("ip").args(["netns", "exec", self.0, &probe]).args(args)).end()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = sh(&format!("ip netns del {}", self.0));
    }
}

/// Sets how namespaces share devices. The kernel refuses while there is more than one, and deletes them at leisure.
fn set_netns(mode: &str) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(20) {
        if sh(&format!("rdma system set netns {mode}")).status.success() {
            return true;
        }
        sleep(Duration::from_millis(200));
    }
    false
}

struct Exclusive;

impl Drop for Exclusive {
    fn drop(&mut self) {
        assert!(set_netns("shared") || std::thread::panicking(), "network namespaces stay exclusive");
    }
}

fn shared_namespaces(device: &Device) {
    let namespace = Namespace::new("probe-shared");
    let ended = namespace.probe(&["gids", &device.name, "--json"]).expect(0);
    let json = ended.json();
    assert_eq!(json["result"]["netns_mode"], "shared");
    let entries = json["result"]["tables"][0]["entries"].as_array().unwrap();
    assert!(!entries.is_empty() && entries.iter().all(|e| e["netdev_is_here"] == false), "{json:#}");
    let text = namespace.probe(&["gids", &device.name]).expect(0);
    assert!(text.stdout.contains("another network namespace") && text.stdout.contains("rdma_cm"), "{text:#?}");
    let here = Run::probe(["gids", &device.name]).expect(0);
    assert!(!here.stdout.contains("another network namespace"), "{here:#?}");
}

fn exclusive_namespaces(device: &Device) {
    if !nix::unistd::geteuid().is_root() || !set_netns("exclusive") {
        skip("the network namespaces of devices cannot be made exclusive");
    }
    let _exclusive = Exclusive;
    let namespace = Namespace::new("probe-exclusive");
    let name = device.name.as_str();
    let elsewhere = ["belongs to another network namespace", "ip netns exec"];
    let list = namespace.probe(&["list"]).expect(0);
    assert!(list.stdout.contains(name) && elsewhere.iter().all(|w| list.stdout.contains(w)), "{list:#?}");
    for args in [&["gids", name][..], &["ping", "--loopback", "-n", "1"], &["watch", name]] {
        namespace.probe(args).expect_failure(3, &elsewhere);
    }
    let info = namespace.probe(&["info", name, "--json"]).expect(3);
    assert_eq!(info.json()["result"]["host"]["netns_mode"], "exclusive");
    // At home, everything is as it was.
    Run::probe(["ping", "--loopback", "-n", "1", "-d", name]).expect(0);
    let info = Run::probe(["info", name]).expect(0);
    assert!(info.stdout.contains("namespaces are exclusive"), "{info:#?}");
}

fn little_locked_memory(device: &Device) {
    if !nix::unistd::geteuid().is_root() {
        skip("only root can become another user");
    }
    let (probe, name) = (probe(), &device.name);
    let plain = "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all";
    let script = format!("ulimit -l 64; exec {plain} {probe} info {name} --json");
    let ended = Run::start(Command::new("sh").args(["-c", &script])).end();
    let host = &ended.json()["result"]["host"];
    assert_eq!(host["memlock_soft_bytes"], 65536, "{ended:#?}");
    let note = host["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("64 KiB") && note.contains("ulimit -l") && note.contains("CAP_IPC_LOCK"), "{ended:#?}");
    // Root is not bound by it, and not warned.
    let script = format!("ulimit -l 64; exec {probe} info {name} --json");
    let ended = Run::start(Command::new("sh").args(["-c", &script])).end().expect(0);
    let host = &ended.json()["result"]["host"];
    assert_eq!((&host["memlock_exempt"], &host["notes"]), (&true.into(), &Value::Array(vec![])), "{ended:#?}");
}

/// A device is told from others by the kernel's index, never by its GUID.
fn one_guid(_: &Device) {
    let mac = "02:00:00:77:00:aa";
    let twins = [OwnDevice::with_mac("twin1", 11, mac), OwnDevice::with_mac("twin2", 12, mac)];
    let list = Run::probe(["list", "--json"]).expect(0).json();
    let of =
        |name: &str| list["result"]["devices"].as_array().unwrap().iter().find(|d| d["name"] == name).cloned().unwrap();
    let [one, two] = twins.each_ref().map(|twin| of(&twin.name));
    assert_eq!(one["node_guid"], two["node_guid"]);
    for (device, twin) in [(&one, &twins[0]), (&two, &twins[1])] {
        let index = device["index"].to_string();
        let info = Run::probe(["info", &index, "--json"]).expect(0).json();
        let found = &info["result"]["devices"][0];
        assert_eq!(found["name"], *twin.name);
        assert_eq!(found["port_details"][0]["netdev"], *twin.netdev);
        let ping = Run::probe(["ping", "--loopback", "-n", "3", "-d", &index, "--json"]).expect(0).json();
        assert_eq!((&ping["result"]["device"], &ping["result"]["device_index"]), (&device["name"], &device["index"]));
        let gid = ping["result"]["local"]["gid"].as_str().unwrap().to_owned();
        assert!(gid.contains(if twin.name == "twin1" { "10.77.11.1" } else { "10.77.12.1" }), "{gid}");
    }
}

/// Nothing of an earlier look is kept, and a list prints nothing but the list.
fn comes_later(_: &Device) {
    let there = || ironverbs::devices().unwrap().iter().any(|d| d.name == "late1");
    assert!(!there());
    let before = Run::probe(["info", "late1"]).expect(3);
    assert!(before.stderr.contains("there is no RDMA device late1"), "{before:#?}");
    let late = OwnDevice::new("late1", 13);
    assert!(there());
    let list = Run::probe(["list"]).expect(0);
    assert!(list.stdout.contains("late1") && list.stderr.is_empty(), "{list:#?}");
    drop(late);
    assert!(!there());
}

fn gid_and_mtu(_: &Device) {
    let own = OwnDevice::new("mtu1", 14);
    let info = Run::probe(["info", "mtu1", "--json"]).expect(0).json();
    let port = &info["result"]["devices"][0]["port_details"][0];
    let gids = Run::probe(["gids", "mtu1", "--json"]).expect(0).json();
    let table = &gids["result"]["tables"][0];
    assert_eq!(port["chosen_gid_index"], table["chosen_index"]);
    assert_eq!(port["gid_reason"], table["reason"]);
    assert_eq!((&port["netdev_mtu"], &port["max_path_mtu"]), (&1500.into(), &1024.into()));
    let text = Run::probe(["info", "mtu1"]).expect(0).stdout;
    for words in [
        "12 = 0.64 ms",
        "0 = 655.36 ms",
        "chosen gid:",
        "a routable address",
        "at most 1024: the lower active_mtu of both ends",
        "mtu 4200",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    must(&format!("ip link set {} mtu 4200", own.netdev));
    let text = Run::probe(["info", "mtu1"]).expect(0).stdout;
    assert!(text.contains("at most 4096") && !text.contains("ip link set"), "{text}");
}
