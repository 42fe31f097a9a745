//! Everything that can go wrong has its exit code and its message, and nothing hangs.

use crate::Test;
use crate::bad_peer::{never_receive, with_server};
use crate::itself::transports;
use crate::support::{Device, JsonFile, Run, at_once, fresh_port, probe, skip, until_listening};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// What lasts longest comes first.
pub const WAITING: &[Test] = &[
    ("failures::another_transport_at_the_peer", other_transports),
    ("failures::another_transport_at_a_c_peer", other_transport_in_c),
    ("failures::a_client_that_speaks_garbage", garbage_client),
    ("failures::nobody_listens", nobody_listens),
    ("failures::nobody_connects", nobody_connects),
    ("failures::a_server_that_speaks_garbage", garbage_server),
    ("failures::a_client_that_says_nothing", silent_client),
    ("failures::a_peer_without_a_gid", peer_without_gid),
    ("failures::a_c_server_without_a_gid", c_server_without_gid),
    ("failures::a_peer_that_nobody_has_heard_of", unreachable_gid),
    ("failures::other_sizes_at_both_ends", other_sizes),
    ("failures::more_iterations_than_the_peer", more_iterations),
];

pub const TESTS: &[Test] = &[
    ("failures::nothing_is_left_of_pings_with_such_peers", nothing_left),
    ("failures::values_that_the_device_does_not_allow", wrong_values),
    ("failures::no_device_file", no_node),
    ("failures::no_permission", no_permission),
    ("failures::the_port_is_taken", port_taken),
    ("failures::a_peer_that_never_posts_a_receive", receiver_never_ready),
    ("failures::options_that_surprise", surprising_options),
    ("failures::the_peer_is_killed", |d| peer_is_killed(d, &[])),
    ("failures::the_peer_is_killed_while_sleeping", |d| peer_is_killed(d, &["-e"])),
    ("failures::interrupted_in_the_middle", |d| interrupted(d, &[])),
    ("failures::interrupted_while_sleeping", |d| interrupted(d, &["-e"])),
    ("failures::interrupted_before_a_client_came", interrupted_early),
    ("failures::many_at_once", many_at_once),
    ("failures::a_device_without_xrc", without_xrc),
    ("failures::messages_larger_than_the_memory", huge_messages),
    ("failures::the_peer_of_each_transport_is_killed", every_peer_is_killed),
    ("failures::no_room_for_the_result", no_room),
    ("failures::a_reader_that_went_away", reader_gone),
];

fn wrong_values(device: &Device) {
    let cases: [(i32, &[&str], &[&str]); 7] = [
        (2, &["-i", "99"], &["port", "99"]),
        (2, &["-g", "200"], &["GID index", "200"]),
        (2, &["-g", "255"], &["GID index", "255"]),
        (2, &["-m", "4096"], &["--mtu", "4096"]),
        (2, &["-r", "4000000"], &["--rx-depth is 4000000", "takes 1 to"]),
        (2, &["-t", "srq", "-r", "4000000"], &["--rx-depth is 4000000", "takes 1 to"]),
        (3, &["-d", "no-such-device"], &["no-such-device"]),
    ];
    for (code, args, words) in cases {
        let named = ["-d", &device.name];
        let device: &[&str] = if args[0] == "-d" { &[] } else { &named };
        Run::probe([&["ping", "--loopback", "-n", "1"], device, args].concat()).expect_failure(code, words);
    }
    // Longer than any message: a device that takes less says so, and the command line does for those that do not.
    let info = Run::probe(["info", &device.name, "--json"]).expect(0).json();
    let most = info["result"]["devices"][0]["port_details"][0]["attributes"]["max_msg_sz"].as_u64().unwrap();
    let ended = Run::probe(["ping", "--loopback", "-d", &device.name, "-s", &(most + 1).to_string()]).expect(2);
    assert!(ended.stderr.contains(&most.to_string()), "{ended:#?}");
}

/// Runs rdma-probe where `/dev/infiniband` is what `prepare` makes of it.
fn with_device_folder(prepare: &str, args: &str) -> crate::support::Ended {
    if !nix::unistd::geteuid().is_root() {
        skip("only root can mount another /dev/infiniband");
    }
    let probe = probe();
    let script = format!("mount -t tmpfs none /dev/infiniband && {prepare} && exec {args}").replace("PROBE", &probe);
    Run::start(Command::new("unshare").args(["-m", "sh", "-c", &script])).end()
}

fn no_node(device: &Device) {
    let name = &device.name;
    with_device_folder("true", &format!("PROBE ping --loopback -d {name}"))
        .expect_failure(3, &[name, "does not exist"]);
    let info = with_device_folder("true", &format!("PROBE info {name}")).expect(3);
    assert!(info.stdout.contains("node_guid"), "what is known without opening it is shown: {info:#?}");
    let list = with_device_folder("true", "PROBE list").expect(0);
    assert!(list.stdout.contains(name) && list.stdout.contains("does not exist"), "{list:#?}");
}

fn no_permission(device: &Device) {
    let name = &device.name;
    let list = Run::probe(["list", "--json"]).expect(0).json();
    let devices = list["result"]["devices"].as_array().unwrap().clone();
    let node = devices.iter().find(|d| d["name"] == **name).and_then(|d| d["node"].as_str()).unwrap().to_owned();
    let number = |flag: &str| {
        let stat = Run::start(Command::new("stat").args(["-c", flag, &node])).end().expect(0).stdout;
        u32::from_str_radix(stat.trim(), 16).unwrap()
    };
    let (major, minor) = (number("%t"), number("%T"));
    let prepare = format!("mknod -m 600 {node} c {major} {minor}");
    let as_nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all";
    with_device_folder(&prepare, &format!("{as_nobody} PROBE ping --loopback -d {name}")).expect_failure(4, &[&node]);
    let list = with_device_folder(&prepare, &format!("{as_nobody} PROBE list")).expect(0);
    assert!(list.stdout.contains("cannot be used: no permission"), "{list:#?}");
    with_device_folder(&prepare, &format!("{as_nobody} PROBE info {name}")).expect(4);
    let list = with_device_folder(&prepare, &format!("{as_nobody} PROBE list")).expect(0);
    assert!(list.stdout.contains("no permission"), "{list:#?}");
}

fn nobody_listens(device: &Device) {
    let port = fresh_port();
    Run::probe(["ping", "-d", &device.name, "-p", &port, "127.0.0.1"]).expect_failure(5, &["refused", &port]);
}

fn nobody_connects(device: &Device) {
    let port = fresh_port();
    let ended = Run::probe(["ping", "-d", &device.name, "-p", &port, "--connect-timeout", "0.3"]);
    ended.expect_failure(5, &["no client", &port]);
}

fn port_taken(device: &Device) {
    let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    Run::probe(["ping", "-d", &device.name, "-p", &port]).expect_failure(2, &["cannot listen", &port, "--port"]);
}

/// Runs our server against a client made of `talk`; nobody else comes.
fn server_against(device: &Device, talk: impl FnOnce(TcpStream)) -> crate::support::Ended {
    let port = fresh_port();
    // It waits so long for a client, and where that comes to nothing, for another one.
    let limits = ["--timeout", "1", "--connect-timeout", "5"];
    let server = Run::start_probe([&["ping", "-d", &device.name, "-p", &port][..], &limits].concat());
    until_listening(&port);
    talk(TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
    server.end()
}

fn garbage_client(device: &Device) {
    let keep = |mut s: TcpStream| drop(s.read_to_end(&mut Vec::new()));
    let cases: [(&[u8], bool, &[&str]); 3] = [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", true, &["no client connected", "another protocol", "GET / HTTP"]),
        (b"0000:000011:", false, &["closed", "12 of the 52"]),
        (b"", false, &["closed"]),
    ];
    at_once(cases, |(said, stays, words)| {
        let ended = server_against(device, |mut s| {
            s.write_all(said).unwrap();
            if stays {
                keep(s);
            }
        });
        ended.expect_failure(5, words);
    });
}

fn silent_client(device: &Device) {
    server_against(device, |mut s| drop(s.read_to_end(&mut Vec::new()))).expect_failure(5, &["0 of the 52", "1s"]);
}

fn garbage_server(device: &Device) {
    let answers: [(&[u8], &str); 3] =
        [(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", "another protocol"), (b"0000:0", "closed"), (b"", "closed")];
    for (answer, words) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let server = thread::spawn(move || {
            let (mut s, _) = listener.accept().unwrap();
            s.read_exact(&mut [0; 52]).unwrap();
            let _ = s.write_all(answer);
        });
        Run::probe(["ping", "-d", &device.name, "-p", &port, "--timeout", "2", "127.0.0.1"])
            .expect_failure(5, &[words]);
        server.join().unwrap();
    }
}

fn peer_without_gid(device: &Device) {
    let record = b"0000:000011:000001:00000000000000000000000000000000\0";
    let ended = server_against(device, |mut s| {
        s.write_all(record).unwrap();
        let _ = s.read_to_end(&mut Vec::new());
    });
    ended.expect_failure(5, &["GID"]);
}

/// ibv_rc_pingpong without -g gives up when it hears of a GID, and says nothing to this end.
fn c_server_without_gid(device: &Device) {
    let port = fresh_port();
    let server = Run::start_c("rc", ["-d", &device.name, "-p", &port]);
    until_listening(&port);
    let ended = Run::probe(["ping", "-d", &device.name, "-p", &port, "--timeout", "30", "127.0.0.1"]);
    ended.expect_failure(5, &["-g INDEX"]);
    server.end();
}

/// An address of the device's own network that nobody has: the kernel finds no link address while it connects.
fn unreachable_gid(device: &Device) {
    let gids = Run::probe(["gids", &device.name, "--json"]).expect(0).json();
    let entries = gids["result"]["tables"][0]["entries"].as_array().unwrap().clone();
    let chosen = entries.iter().find(|e| e["chosen"] == true).and_then(|e| e["gid"].as_str()).unwrap().to_owned();
    let Some(v4) = chosen.strip_prefix("::ffff:") else { skip("the chosen GID is not IPv4") };
    let octets: Vec<u8> = v4.split('.').map(|o| o.parse().unwrap()).collect();
    let record =
        format!("0000:000011:000001:00000000000000000000ffff{:02x}{:02x}{:02x}fd\0", octets[0], octets[1], octets[2]);
    let ended = server_against(device, |mut s| {
        s.write_all(record.as_bytes()).unwrap();
        let _ = s.read_to_end(&mut Vec::new());
    });
    // A dummy link swallows everything and has no neighbours to ask: then it is the ping that gets no answer.
    ended.expect_failure(5, &[]);
}

fn other_sizes(device: &Device) {
    let port = fresh_port();
    let common = ["ping", "-d", &device.name, "-p", &port, "-n", "10", "--timeout", "20"];
    let server = Run::start_probe([&common[..], &["-s", "64"]].concat());
    until_listening(&port);
    Run::probe([&common[..], &["-s", "4096", "127.0.0.1"]].concat()).expect(5);
    server.end().expect_failure(5, &["--size"]);
}

fn more_iterations(device: &Device) {
    let port = fresh_port();
    let common = ["ping", "-d", &device.name, "-p", &port, "--timeout", "2"];
    let server = Run::start_probe([&common[..], &["-n", "10"]].concat());
    until_listening(&port);
    Run::probe([&common[..], &["-n", "20", "127.0.0.1"]].concat()).expect_failure(5, &[]);
    server.end().expect(0);
}

/// Both ends end within their deadlines and say what may be wrong.
fn other_transports(device: &Device) {
    at_once(transports(device), |server_speaks| {
        for client_speaks in transports(device).into_iter().filter(|t| *t != server_speaks) {
            let port = fresh_port();
            let common = ["ping", "-d", &device.name, "-p", &port, "-n", "10", "-s", "64", "--timeout", "2", "-t"];
            // One that got something else than addresses waits for another client until then. The client asks again until it listens.
            let server = Run::start_probe([&common[..], &[server_speaks, "--connect-timeout", "8"]].concat());
            let client = Run::probe([&common[..], &[client_speaks, "--connect-timeout", "600", "127.0.0.1"]].concat());
            let client = client.expect_failure(5, &["--transport"]);
            let server = server.end().expect_failure(5, &[]);
            assert!(client.took < Duration::from_secs(20) && server.took < Duration::from_secs(20), "{client:#?}");
        }
    });
}

fn other_transport_in_c(device: &Device) {
    at_once(transports(device), |ours| {
        for theirs in transports(device).into_iter().filter(|t| *t != ours) {
            let port = fresh_port();
            let mut c = Run::start_c(theirs, [&device.for_c()[..], &["-p", &port, "-s", "64"]].concat());
            until_listening(&port);
            let name = device.name.as_str();
            let probe =
                Run::probe(["ping", "-d", name, "-p", &port, "-s", "64", "--timeout", "2", "-t", ours, "127.0.0.1"]);
            probe.expect_failure(5, &["--transport"]);
            c.kill();
            c.end();
        }
    });
}

/// A server in the manner of ibv_rc_pingpong whose queue pair has no receive: the client's device asks again and again.
fn receiver_never_ready(device: &Device) {
    let ping = |retries: &str| {
        let client = ["ping", "-s", "64", "-n", "3", "--timeout", "3", "--rnr-retry", retries];
        with_server(device, &client, |listener, name, index, client| never_receive(&listener, &name, index, &client))
    };
    at_once(["0", "1", "7"], |retries| {
        if retries != "7" {
            ping(retries).expect_failure(5, &["RNR_RETRY_EXC_ERR", "posts no receives"]);
            return;
        }
        let ended = ping("7").expect_failure(5, &["--rnr-retry 7"]);
        // Linux 6.1 counts time-outs while it waits for the peer to become ready, and may have counted enough of them.
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let gave_up = kernel.starts_with("6.1.") && ended.stderr.contains("RETRY_EXC_ERR (transport");
        assert!(ended.stderr.contains("no completion came for 3s") || gave_up, "{ended:#?}");
        assert!(ended.stdout.contains("note: --rnr-retry 7 is without end"), "{ended:#?}");
    });
}

fn surprising_options(device: &Device) {
    let name = device.name.as_str();
    let common = ["ping", "--loopback", "-d", name, "-n", "3"];
    let ended = Run::probe([&common[..], &["--min-rnr-timer", "0"]].concat()).expect(0);
    assert!(ended.stdout.contains("note: --min-rnr-timer 0 stands for 655.36ms"), "{ended:#?}");
    let ended = Run::probe([&common[..], &["--min-rnr-timer", "1"]].concat()).expect(0);
    assert!(!ended.stdout.contains("note:"), "{ended:#?}");
    Run::probe([&common[..], &["--min-rnr-timer", "32"]].concat()).expect(2);
    Run::probe([&common[..], &["--rnr-retry", "8"]].concat()).expect(2);
    let refused: [(&[&str], &[&str]); 4] = [
        (&["-t", "ud", "-s", "1025"], &["--size is 1025", "one packet", "1024"]),
        (&["-t", "ud", "-m", "512"], &["--mtu", "datagram"]),
        (&["-t", "srq", "-q", "16", "-r", "15"], &["--rx-depth is 15", "16 queue pairs"]),
        (&["-t", "uc", "-q", "2"], &["--num-qp", "srq"]),
    ];
    for (options, words) in refused {
        Run::probe([&common[..], options].concat()).expect_failure(2, words);
    }
}

fn peer_is_killed(device: &Device, more: &[&str]) {
    at_once([true, false], |kill_server| kill_one_end(device, kill_server, more));
    nothing_left(device);
}

/// Kills one end in the middle. The other one ends within its deadline, and tells what it measured.
fn kill_one_end(device: &Device, kill_server: bool, more: &[&str]) {
    let port = fresh_port();
    let common = ["ping", "-d", &device.name, "-p", &port, "-s", "64", "-n", "100000000", "--timeout", "3"];
    let files = [JsonFile::new(), JsonFile::new()];
    let [server_json, client_json] = files.each_ref().map(JsonFile::option);
    let server = Run::start_probe([&common[..], more, &[&server_json]].concat());
    until_listening(&port);
    let mut client = Run::start_probe([&common[..], more, &[&client_json, "127.0.0.1"]].concat());
    client.until_says("remote address");
    client.until_under_way();
    let (mut victim, survivor, file) =
        if kill_server { (server, client, &files[1]) } else { (client, server, &files[0]) };
    victim.kill();
    victim.end();
    let survivor = survivor.end().expect_failure(5, &[]);
    let json = file.read();
    assert!(json["result"]["completed_iterations"].as_u64().unwrap() > 0, "{survivor:#?} {json:#}");
    assert!(survivor.took < Duration::from_secs(30), "{:?}", survivor.took);
}

/// No queue pair, completion queue or memory region of ours is left in the kernel.
pub fn nothing_left(device: &Device) {
    for kind in ["qp", "cq", "mr", "pd", "srq", "ctx"] {
        let ours = ours(device, kind);
        assert!(ours.is_empty(), "{kind}: {ours:?}");
    }
}

/// What the kernel lists of that kind for the program under test.
fn ours(device: &Device, kind: &str) -> Vec<String> {
    let shown = Run::start(Command::new("rdma").args(["resource", "show", kind])).end().expect(0);
    let ours = |line: &&str| line.contains("rdma-probe") && line.contains(&device.name);
    shown.stdout.lines().filter(ours).map(str::to_owned).collect()
}

fn interrupted(device: &Device, more: &[&str]) {
    at_once([Signal::SIGINT, Signal::SIGTERM], |signal| {
        let file = JsonFile::new();
        let option = file.option();
        let fixed = ["ping", "--loopback", "-d", &device.name, "-s", "64", "-n", "100000000", &option];
        let mut run = Run::start_probe([&fixed, more].concat());
        run.until_says("remote address");
        run.until_under_way();
        kill(Pid::from_raw(run.id()), signal).unwrap();
        let ended = run.end().expect_failure(130, &["signal"]);
        assert!(ended.stdout.contains("usec/iter: min"), "{ended:#?}");
        assert!(ended.took < Duration::from_secs(20), "{:?}", ended.took);
        let json = file.read();
        assert!(json["result"]["completed_iterations"].as_u64().unwrap() > 0, "{json:#}");
        assert!(json["result"]["latency"]["median_ns"].as_u64().unwrap() > 0, "{json:#}");
        assert_eq!(json["error"]["kind"], "interrupted");
    });
    nothing_left(device);
}

/// They share a device and nothing else.
fn many_at_once(device: &Device) {
    let name = device.name.as_str();
    let transports = transports(device);
    let pings = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| {
        let transport = transports[i % transports.len()];
        Run::start_probe(["ping", "--loopback", "-d", name, "-c", "-n", "50", "-s", "500", "-t", transport])
    });
    for ping in pings {
        ping.end().expect(0);
    }
    nothing_left(device);
}

/// Either end says at once who lacks it.
fn without_xrc(device: &Device) {
    if device.has_xrc {
        skip("the device has XRC");
    }
    for end in [&["--loopback"][..], &["-p", &fresh_port()]] {
        let ended = Run::probe([&["ping", "-d", &device.name, "-t", "xsrq"], end].concat());
        ended.expect_failure(
            7,
            &["extended reliable connections (XRC)", "the device's kernel driver", "rdma-probe caps"],
        );
    }
    nothing_left(device);
}

/// Refused by the port, or for want of memory: told, and not died of.
fn huge_messages(device: &Device) {
    for transport in transports(device) {
        let name = device.name.as_str();
        let ended = Run::probe(["ping", "--loopback", "-d", name, "-n", "1", "-s", "2G", "-t", transport, "-c"]);
        let code = ended.status.code();
        assert!(code == Some(2) || code == Some(7), "{ended:#?}");
        assert!(!ended.stderr.contains("panicked") && ended.stderr.starts_with("rdma-probe: "), "{ended:#?}");
    }
    nothing_left(device);
}

fn every_peer_is_killed(device: &Device) {
    let others: Vec<_> = transports(device).into_iter().filter(|transport| *transport != "rc").collect();
    for kill_server in [true, false] {
        at_once(others.iter().copied(), |transport| kill_one_end(device, kill_server, &["-t", transport]));
        nothing_left(device);
    }
}

fn interrupted_early(device: &Device) {
    let port = fresh_port();
    let server = Run::start_probe(["ping", "-d", &device.name, "-p", &port]);
    until_listening(&port);
    kill(Pid::from_raw(server.id()), Signal::SIGINT).unwrap();
    let ended = server.end().expect_failure(130, &[]);
    assert!(ended.took < Duration::from_secs(20), "{:?}", ended.took);
}

fn no_room(device: &Device) {
    for args in [&["list"][..], &["info"], &["gids"], &["ping", "--loopback", "-n", "5", "-d", &device.name]] {
        Run::probe([args, &["--json=/dev/full"]].concat()).expect_failure(8, &["/dev/full", "No space left"]);
    }
    // A file on a full file system is left empty, not half written.
    if !nix::unistd::geteuid().is_root() {
        skip("only root can mount a small file system");
    }
    let probe = probe();
    let script = format!(
        "mount -t tmpfs -o size=4k none /mnt && {probe} info --json=/mnt/out >/dev/null; echo \"exit $? size $(stat -c %s /mnt/out)\""
    );
    let ended = Run::start(Command::new("unshare").args(["-m", "sh", "-c", &script])).end();
    assert!(ended.stdout.contains("exit 8 size 0"), "{ended:#?}");
    assert!(Path::new("/mnt").exists());
}

fn reader_gone(_: &Device) {
    let probe = probe();
    for command in ["list", "info", "gids", "list --json"] {
        let script = format!("{{ {probe} {command}; echo \"exit $?\" >&2; }} | true");
        let ended = Run::start(Command::new("sh").args(["-c", &script])).end();
        assert_eq!(ended.stderr.trim(), "exit 0", "{command}");
    }
}
