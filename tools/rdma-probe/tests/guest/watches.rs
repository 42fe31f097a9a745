//! `rdma-probe watch`: events of a link that goes down and up, of addresses that come and go, and of a device that is removed.

use crate::Test;
use crate::own_device::{A_MOMENT, OwnDevice, must};
use crate::support::{Device, Ended, Run, fresh_port, probe};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("watches::a_link_that_goes_down_and_up", link_down_and_up),
    ("watches::a_link_that_is_down_at_the_start", down_at_the_start),
    ("watches::addresses_that_come_and_go", addresses),
    ("watches::a_change_without_an_event", change_without_event),
    ("watches::a_device_that_is_removed", removed),
    ("watches::a_device_that_is_removed_under_a_ping", removed_under_a_ping),
    ("watches::a_device_of_several_that_is_removed", one_of_several_removed),
    ("watches::no_longer_than_asked_for", limits),
    ("watches::what_cannot_be_watched", cannot_be_watched),
    ("watches::no_reader_and_no_room", no_reader),
];

fn start(device: &OwnDevice, more: &[&str]) -> Run {
    let mut run = Run::start_probe([&["watch", &device.name, "--json"], more].concat());
    run.until_says("\"initial\"");
    run
}

fn lines(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))).collect()
}

fn link_down_and_up(_: &Device) {
    let device = OwnDevice::new("wrxe1", 1);
    let netdev = &device.netdev;
    let mut run = start(&device, &[]);
    must(&format!("ip link set {netdev} down"));
    run.until_says("PORT_ERR");
    must(&format!("ip link set {netdev} up"));
    run.until_says("PORT_ACTIVE");
    kill(Pid::from_raw(run.id()), Signal::SIGINT).unwrap();
    let ended = run.end().expect_failure(130, &["signal"]);
    let lines = lines(&ended);
    let (last, lines) = lines.split_last().unwrap();
    assert_eq!(lines[0]["what"], "initial");
    assert_eq!(lines[0]["port_state"]["state"], "ACTIVE");
    let event = |name: &str| lines.iter().find(|l| l["event"] == name).unwrap_or_else(|| panic!("{ended:#?}"));
    let (down, up) = (event("PORT_ERR"), event("PORT_ACTIVE"));
    for (line, number, state) in [(down, 10, "DOWN"), (up, 9, "ACTIVE")] {
        assert_eq!(line["event_number"], number);
        assert_eq!(line["device"], *device.name);
        assert_eq!(line["object"], serde_json::json!({"kind": "port", "port": 1}));
        assert_eq!(line["port_state"]["state"], state, "{line:#}");
    }
    assert!(down["time"].as_str().unwrap() < up["time"].as_str().unwrap());
    assert_eq!(last["exit_code"], 130);
    assert_eq!(last["result"]["events"], lines.len() - 1);
}

/// A port that is down when watch starts never sends the event for it: the state is shown in any case.
fn down_at_the_start(_: &Device) {
    let device = OwnDevice::new("wrxe2", 2);
    must(&format!("ip link set {} down", device.netdev));
    let ended = Run::probe(["watch", &device.name, "--json", "--timeout", "1.5"]).expect(0);
    let lines = lines(&ended);
    assert_eq!(lines[0]["what"], "initial");
    assert_eq!(lines[0]["port_state"]["state"], "DOWN");
    let text = Run::probe(["watch", &device.name, "--timeout", "0.2"]).expect(0);
    assert!(text.stdout.contains("wrxe2 port 1: at the start, DOWN"), "{text:#?}");
}

fn addresses(_: &Device) {
    let device = OwnDevice::new("wrxe3", 3);
    let netdev = &device.netdev;
    let mut run = start(&device, &[]);
    must(&format!("ip addr add 10.77.33.1/24 dev {netdev}"));
    run.until_says("10.77.33.1");
    must(&format!("ip addr del 10.77.33.1/24 dev {netdev}"));
    run.until_says("\"gids_removed\":[{");
    kill(Pid::from_raw(run.id()), Signal::SIGTERM).unwrap();
    let ended = run.end().expect(130);
    let lines = lines(&ended);
    let with = |field: &str| {
        let has = |l: &&Value| l["what"] == "event" && l[field].as_array().is_some_and(|gids| !gids.is_empty());
        lines.iter().find(has).unwrap_or_else(|| panic!("{ended:#?}"))
    };
    for field in ["gids_added", "gids_removed"] {
        let line = with(field);
        assert_eq!(line["event"], "GID_CHANGE");
        assert_eq!(line[field][0]["gid"], "::ffff:10.77.33.1", "{line:#}");
    }
}

/// The driver tells nobody of another MTU.
fn change_without_event(_: &Device) {
    let device = OwnDevice::new("wrxe4", 4);
    let mut run = start(&device, &["--count", "1"]);
    must(&format!("ip link set {} mtu 4200", device.netdev));
    run.until_says("4096");
    let ended = run.end().expect(0);
    let line = &lines(&ended)[1];
    assert_eq!((&line["what"], &line["port_state"]["active_mtu"]), (&"change".into(), &4096.into()), "{line:#}");
}

/// rxe cannot go while a program has it open: its removal would wait for ever if watch did not let go.
fn removed(_: &Device) {
    for json in [true, false] {
        let device = OwnDevice::new("wrxe5", 5);
        let mut run = Run::start_probe(["watch", &device.name].into_iter().chain(json.then_some("--json")));
        run.until_says("ACTIVE");
        let begin = Instant::now();
        must(&format!("rdma link del {}", device.name));
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        let ended = run.end().expect_failure(9, &["removed"]);
        if json {
            let lines = lines(&ended);
            assert!(lines.iter().any(|l| l["what"] == "removed" && l["object"]["kind"] == "device"), "{ended:#?}");
            let last = lines.last().unwrap();
            assert_eq!((&last["exit_code"], &last["error"]["kind"]), (&9.into(), &"removed".into()));
        } else {
            assert!(ended.stdout.contains("wrxe5: the device was removed"), "{ended:#?}");
        }
    }
}

/// A ping lets go, too, whatever it is about.
fn removed_under_a_ping(_: &Device) {
    const FOR_EVER: &str = "100000000";
    for options in
        [&["--loopback", "-n", FOR_EVER][..], &["--loopback", "-n", FOR_EVER, "--events"], &[], &["-t", "srq"]]
    {
        let device = OwnDevice::new("wrxe7", 7);
        let port = fresh_port();
        let mut run =
            Run::start_probe(["ping", "-d", &device.name, "-p", &port].into_iter().chain(options.iter().copied()));
        run.until_says(if options.contains(&"--loopback") { "remote address" } else { "waiting for a client" });
        let begin = Instant::now();
        must(&format!("rdma link del {}", device.name));
        assert!(begin.elapsed() < Duration::from_secs(60), "{options:?}: {:?}", begin.elapsed());
        run.end().expect_failure(9, &["wrxe7 was removed while it was in use"]);
    }
}

fn one_of_several_removed(device: &Device) {
    let own = OwnDevice::new("wrxe6", 6);
    let mut run = Run::start_probe(["watch"]);
    run.until_says(&format!("{} port 1", own.name));
    run.until_says(&format!("{} port 1", device.name));
    must(&format!("rdma link del {}", own.name));
    run.until_says("wrxe6: the device was removed");
    sleep(A_MOMENT);
    assert!(run.is_running(), "the other device is still there");
    kill(Pid::from_raw(run.id()), Signal::SIGINT).unwrap();
    run.end().expect(130);
}

fn limits(device: &Device) {
    let name = device.name.as_str();
    let ended = Run::probe(["watch", name, "--timeout", "0.5"]).expect(0);
    assert!(ended.took >= Duration::from_millis(500) && ended.took < Duration::from_secs(30), "{ended:#?}");
    let ended = Run::probe(["watch", name, "--timeout", "0.5", "--count", "3", "--json"]);
    let ended = ended.expect_failure(10, &["0 of 3 events"]);
    assert_eq!(lines(&ended).last().unwrap()["error"]["kind"], "timed_out");
}

fn cannot_be_watched(_: &Device) {
    let ended = Run::probe(["watch", "no-such-device", "--json"]).expect_failure(3, &["no-such-device"]);
    assert_eq!(lines(&ended).len(), 1);
    Run::probe(["watch", "--count", "0"]).expect(2);
    Run::probe(["watch", "--timeout", "-1"]).expect(2);
}

fn no_reader(device: &Device) {
    let (probe, name) = (probe(), &device.name);
    // `head` ends after the first line, and watch need not see an event to notice.
    let begin = Instant::now();
    let script = format!("{{ {probe} watch {name}; echo \"exit $?\" >&2; }} | head -1");
    let ended = Run::start(Command::new("sh").args(["-c", &script])).end();
    assert_eq!(ended.stderr.trim(), "exit 0", "{ended:#?}");
    assert!(begin.elapsed() < Duration::from_secs(60));
    Run::probe(["watch", name, "--json=/dev/full", "--timeout", "5"]).expect_failure(8, &["/dev/full"]);
    let script = format!("{probe} watch {name} --timeout 5 >/dev/full; echo \"exit $?\"");
    let ended = Run::start(Command::new("sh").args(["-c", &script])).end();
    assert!(ended.stdout.contains("exit 8"), "{ended:#?}");
}
