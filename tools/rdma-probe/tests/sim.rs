//! rdma-probe with simulated devices: on any machine, without privileges.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No command of these takes this long, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn probe<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-probe"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A TCP port that no other test uses.
fn fresh_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the ports that the kernel gives to clients. Two runs of the tests at once are unlikely to meet.
    let base = 20000 + (std::process::id() % 200) as u16 * 50;
    (base + NEXT.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// A program that runs, and is ended if the test is.
struct Run(Option<Child>);

impl Run {
    fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn end(mut self) -> Output {
        // A pipe that nobody reads fills up.
        let out = self.child().stdout.take().map(read_all);
        let err = self.child().stderr.take().map(read_all);
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child().try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < LIMIT, "it hangs");
            std::thread::sleep(Duration::from_millis(5));
        };
        self.0 = None;
        let text = |reader: Option<JoinHandle<Vec<u8>>>| reader.map(|r| r.join().unwrap()).unwrap_or_default();
        Output { status, stdout: text(out), stderr: text(err) }
    }

    /// Waits for the line that says that a server waits, and returns the rest of its text.
    fn until_it_waits(&mut self) -> BufReader<ChildStdout> {
        let mut text = BufReader::new(self.child().stdout.take().unwrap());
        let mut line = String::new();
        while text.read_line(&mut line).unwrap() > 0 {
            if line.contains("waiting for a client") {
                return text;
            }
            line.clear();
        }
        panic!("the server ended");
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run<'a>(args: impl IntoIterator<Item = &'a str>) -> Output {
    Run::start(&mut probe(args)).end()
}

#[track_caller]
fn expect(output: Output, code: i32) -> (String, String) {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    (stdout, stderr)
}

#[track_caller]
fn json(output: Output) -> Value {
    let (stdout, _) = expect(output, 0);
    serde_json::from_str(&stdout).unwrap()
}

/// A server and a client of a ping, with the same options; the server's report and the client's.
#[track_caller]
fn pair(options: &[&str]) -> (Value, Value) {
    let port = fresh_port();
    let both = || ["ping", "--json", "-p", &port].into_iter().chain(options.iter().copied());
    let server = Run::start(&mut probe(both()));
    let client = json(Run::start(&mut probe(both().chain(["127.0.0.1"]))).end());
    (json(server.end()), client)
}

#[test]
fn every_command_has_a_simulated_device_and_says_so() {
    for (link, layer) in [("--sim", "Ethernet"), ("--sim=roce", "Ethernet"), ("--sim=ib", "InfiniBand")] {
        for command in ["list", "info", "gids", "caps"] {
            let (text, errors) = expect(run([command, link]), 0);
            assert!(text.starts_with("simulated: "), "{command}: {text}");
            assert!(text.contains("sim0") && errors.is_empty(), "{command}: {text}{errors}");
            let json = json(run([command, link, "--json"]));
            assert_eq!(json["simulated"], true, "{command}");
        }
        let list = json(run(["list", link, "--json"]));
        let device = &list["result"]["devices"][0];
        assert_eq!((&device["name"], &device["usable"]), (&"sim0".into(), &true.into()));
        assert_eq!(device["ports"][0]["link_layer"], layer);
    }
    // By name, by index, and under another name.
    expect(run(["info", "--sim", "sim0"]), 0);
    expect(run(["gids", "--sim", "0", "--peer", "198.18.0.9"]), 0);
    let (_, errors) = expect(run(["info", "--sim", "rxe0"]), 3);
    assert!(errors.contains("there is sim0"), "{errors}");
    for unknown in ["--sim=opa", "--sim=", "--sim=ROCE\u{fffd}"] {
        let (_, errors) = expect(run(["list", unknown]), 2);
        assert!(errors.contains("roce"), "{errors}");
    }
    let plain = run(["schema", "--sim"]);
    assert!(expect(plain, 0).0.starts_with('{'), "a schema is no result of a simulation");
}

/// What differs between the link layers is not what rdma-probe tries.
#[test]
fn caps_finds_the_same_on_either_link_layer() {
    let offered = |link| {
        let json = json(run(["caps", link, "--json"]));
        let verdicts = json["result"]["devices"][0]["verdicts"].as_array().unwrap().clone();
        assert!(verdicts.iter().all(|v| v["errno"] != "EINVAL"), "{link}: what was tried is wrong: {verdicts:#?}");
        verdicts.iter().map(|v| format!("{}: {}", v["name"], v["offered"])).collect::<Vec<_>>()
    };
    let roce = offered("--sim=roce");
    assert_eq!(roce, offered("--sim=ib"));
    assert!(roce.iter().any(|v| v == "\"multicast\": true"), "{roce:?}");
}

/// An end without --check sends back what it received, as the C tools do, and the other end knows that.
#[test]
fn one_end_may_check_and_the_other_not() {
    for transport in ["rc", "ud", "xsrq"] {
        for checks in [true, false] {
            let port = fresh_port();
            // More iterations than receives, so that these are posted again under the message that is sent.
            let args = ["ping", "--sim", "--json", "-n", "90", "-r", "20", "-s", "1000", "-t", transport, "-p", &port];
            let with = |check: bool| args.into_iter().chain(check.then_some("--check"));
            let server = Run::start(&mut probe(with(checks)));
            let client = json(Run::start(&mut probe(with(!checks).chain(["127.0.0.1"]))).end());
            let server = json(server.end());
            let checked = if checks { server } else { client };
            assert_eq!(checked["result"]["check"]["messages"], 90, "{transport} {checks}");
            assert_eq!(checked["result"]["check"]["peer"], "echoes");
        }
    }
}

/// The wait for what never came is no time of what did.
#[test]
fn the_rate_of_a_ping_that_ends_early_is_that_of_its_iterations() {
    let port = fresh_port();
    let args = |n| ["ping", "--sim", "--json", "-p", &port, "-n", n].map(str::to_owned);
    let server = Run::start(&mut probe(args("10").iter().map(String::as_str)));
    let output = Run::start(&mut probe(args("50").iter().map(String::as_str).chain(["127.0.0.1"]))).end();
    let (text, _) = expect(output, 5);
    let result = &serde_json::from_str::<Value>(&text).unwrap()["result"];
    assert_eq!(result["completed_iterations"], 10);
    let (mean, max) = (result["rate"]["usec_per_iteration"].as_f64(), result["latency"]["max_ns"].as_f64());
    // Its end takes a third of a second to be noticed: 30 ms for each iteration.
    assert!(mean.unwrap() <= max.unwrap() / 1000.0 + 1000.0, "{result:#}");
    expect(server.end(), 0);
}

/// On a machine that has a device, the plain command is not asked.
#[test]
fn without_a_device_the_plain_commands_point_at_the_simulation() {
    if ironverbs::devices().is_ok_and(|devices| !devices.is_empty()) {
        println!("skipped: this machine has an RDMA device");
        return;
    }
    for args in [&["list"][..], &["info"], &["gids"], &["caps"], &["watch"], &["ping", "--loopback"], &["ping", "h"]] {
        let (text, errors) = expect(run(args.iter().copied()), 3);
        assert!(text.is_empty() && errors.lines().count() == 1 && errors.contains("--sim"), "{args:?}: {text}{errors}");
    }
}

#[test]
fn a_simulated_port_goes_down_and_comes_back_while_it_is_watched() {
    let (text, _) = expect(run(["watch", "--sim", "-n", "2", "--json"]), 0);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["simulated"] == true), "{text}");
    let events: Vec<_> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(events, ["PORT_ERR", "PORT_ACTIVE"]);
    let begin = Instant::now();
    expect(run(["watch", "--sim=ib", "--timeout", "0.2"]), 0);
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn loopback_on_every_transport_polling_and_sleeping() {
    for transport in ["rc", "uc", "ud", "srq", "xsrq"] {
        for link in ["--sim", "--sim=ib"] {
            for sleeping in [None, Some("--events")] {
                let args = ["ping", link, "--loopback", "-n", "40", "-r", "32", "--check", "--json", "-t", transport];
                let json = json(run(args.into_iter().chain(sleeping)));
                let result = &json["result"];
                assert_eq!((&json["simulated"], &result["simulated"]), (&true.into(), &true.into()));
                assert_eq!(result["completed_iterations"], 40, "{transport} {link} {sleeping:?}");
                assert_eq!(result["check"]["messages"], 80);
            }
        }
    }
    let (text, _) = expect(run(["ping", "--sim", "--loopback", "-n", "10", "-s", "70000"]), 0);
    for figure in text.lines().filter(|line| line.contains("sec")) {
        assert!(figure.ends_with("[simulated]"), "{figure}");
    }
}

#[test]
fn two_processes_share_a_network() {
    for transport in ["rc", "uc", "ud", "srq", "xsrq"] {
        for options in [&["--sim"][..], &["--sim", "--events", "--check"], &["--sim=ib", "--check"]] {
            let options: Vec<_> = options.iter().copied().chain(["-n", "60", "-r", "32", "-t", transport]).collect();
            let (server, client) = pair(&options);
            for end in [&server, &client] {
                assert_eq!((&end["simulated"], &end["result"]["completed_iterations"]), (&true.into(), &60.into()));
            }
            assert_eq!((&server["result"]["role"], &client["result"]["role"]), (&"server".into(), &"client".into()));
            assert_eq!(server["result"]["local"], client["result"]["remote"], "{options:?}");
            assert_eq!(server["result"]["remote"], client["result"]["local"], "{options:?}");
        }
    }
}

#[test]
fn a_thousand_iterations_take_seconds() {
    let begin = Instant::now();
    let (server, client) = pair(&["--sim"]);
    assert_eq!(server["result"]["completed_iterations"], 1000);
    assert_eq!(client["result"]["completed_iterations"], 1000);
    // Alone on its machine, a debug build takes one.
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
}

/// The client may be first, as without simulation.
#[test]
fn either_end_may_be_started_first() {
    let port = fresh_port();
    // It tries again for a tenth of its time.
    let patient = ["ping", "--sim", "-n", "10", "-r", "8", "-p", &port, "--connect-timeout", "300", "localhost"];
    let client = Run::start(&mut probe(patient));
    std::thread::sleep(Duration::from_millis(300));
    let server = Run::start(&mut probe(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port]));
    expect(client.end(), 0);
    expect(server.end(), 0);
    // The same port again, at once.
    let server = Run::start(&mut probe(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port]));
    expect(run(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port, "::1"]), 0);
    expect(server.end(), 0);
}

#[test]
fn several_pings_at_once_do_not_meet() {
    let pairs: Vec<_> = (0..3)
        .map(|_| {
            let port = fresh_port();
            let args = ["ping", "--sim", "--check", "-n", "50", "-r", "32", "-p", &port];
            let server = Run::start(&mut probe(args));
            (server, Run::start(&mut probe(args.into_iter().chain(["127.0.0.1"]))))
        })
        .collect();
    for (server, client) in pairs {
        expect(client.end(), 0);
        expect(server.end(), 0);
    }
}

#[test]
fn an_address_that_is_not_here_is_a_wrong_option() {
    let (_, errors) = expect(run(["ping", "--sim", "--bind", "203.0.113.1"]), 2);
    assert!(errors.contains("203.0.113.1") && errors.contains("no such address"), "{errors}");
}

/// Which MTU is wrong only the peer can know, so both ends are of one mind.
#[test]
fn ends_with_different_mtus_end_alike() {
    for (server, client) in [("512", "1024"), ("1024", "512")] {
        let port = fresh_port();
        let args = |mtu| ["ping", "--sim", "-p", &port, "-m", mtu].map(str::to_owned);
        let server = Run::start(&mut probe(args(server).iter().map(String::as_str)));
        let client = Run::start(&mut probe(args(client).iter().map(String::as_str).chain(["127.0.0.1"])));
        for end in [client, server] {
            let (_, errors) = expect(end.end(), 5);
            assert!(errors.contains("--mtu"), "{errors}");
        }
    }
}

/// Over XRC both ends talk until the end, so that one which has done less than the other expects is noticed at once.
#[test]
fn an_end_of_xrc_with_fewer_iterations_is_told() {
    let port = fresh_port();
    let args = |n| ["ping", "--sim", "--json", "-p", &port, "-t", "xsrq", "-n", n].map(str::to_owned);
    let begin = Instant::now();
    let server = Run::start(&mut probe(args("50").iter().map(String::as_str)));
    let client = Run::start(&mut probe(args("10").iter().map(String::as_str).chain(["127.0.0.1"]))).end();
    for (end, who) in [(server.end(), "server"), (client, "client")] {
        let (text, errors) = expect(end, 5);
        assert!(errors.contains("--iters"), "{who}: {errors}");
        let result = &serde_json::from_str::<Value>(&text).unwrap()["result"];
        assert_eq!(result["completed_iterations"], 10, "{who}");
    }
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

/// An end's numbers are three where the others' are one, and are shown as `ibv_xsrq_pingpong` shows them.
#[test]
fn all_numbers_of_an_end_of_xrc_are_told() {
    let port = fresh_port();
    let common = ["ping", "--sim=ib", "-t", "xsrq", "-p", &port];
    let server = Run::start(&mut probe(common.into_iter().chain(["--json"])));
    let (text, _) = expect(run(common.into_iter().chain(["127.0.0.1"])), 0);
    let server = &json(server.end())["result"];
    // As many as ibv_xsrq_pingpong, where nothing else is asked for.
    assert_eq!((&server["iterations"], &server["completed_iterations"]), (&5.into(), &5.into()));
    // What the peer sent late says nothing of the way.
    assert_eq!(server["latency"]["samples"], 4);
    for (line, address) in [("remote address:", &server["local"]), ("local address: ", &server["remote"])] {
        let number = |name: &str| address[name].as_u64().unwrap();
        let (lid, qpn, send) = (number("lid"), number("qpn"), number("send_qpn"));
        let (psn, srqn) = (number("psn"), number("srqn"));
        let expected = format!(
            "  {line} LID {lid:#06x}, QPN RECV {qpn:#08x} SEND {send:#08x}, PSN {psn:#08x}, SRQN {srqn:#08x}, GID ::\n"
        );
        assert!(text.contains(&expected), "{expected}{text}");
    }
}

#[test]
fn a_port_is_for_one_server() {
    let port = fresh_port();
    let mut first = Run::start(&mut probe(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port]));
    let rest = first.until_it_waits();
    let (_, errors) = expect(run(["ping", "--sim", "-p", &port]), 2);
    assert!(errors.contains(&port) && errors.contains("--port"), "{errors}");
    // Even where TCP alone would let both listen.
    let (_, errors) = expect(run(["ping", "--sim", "-p", &port, "--bind", "127.0.0.2"]), 2);
    assert!(errors.contains(&port), "{errors}");
    expect(run(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port, "127.0.0.1"]), 0);
    drop(rest);
    expect(first.end(), 0);
}

/// Nothing of a user's home or session is needed.
#[test]
fn an_empty_environment_will_do() {
    let port = fresh_port();
    let server = Run::start(probe(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port]).env_clear());
    let client = Run::start(
        probe(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port, "127.0.0.1"]).env_clear().current_dir("/"),
    );
    expect(client.end(), 0);
    expect(server.end(), 0);
}

#[test]
fn a_killed_peer_is_noticed_in_either_role() {
    for options in [&["-t", "rc"][..], &["-t", "rc", "--events"], &["-t", "ud"], &["-t", "srq"], &["-t", "xsrq"]] {
        for kill_server in [true, false] {
            let port = fresh_port();
            let args = ["ping", "--sim", "-n", "100000000", "-r", "32", "-p", &port]
                .into_iter()
                .chain(options.iter().copied());
            let mut server = Run::start(&mut probe(args.clone()));
            let mut rest = server.until_it_waits();
            let client = Run::start(&mut probe(args.chain(["127.0.0.1"])));
            let mut line = String::new();
            rest.read_line(&mut line).unwrap();
            assert!(line.contains("remote address"), "{line}");
            std::thread::sleep(Duration::from_millis(200));
            let (mut killed, left) = if kill_server { (server, client) } else { (client, server) };
            killed.child().kill().unwrap();
            let begin = Instant::now();
            let (_, errors) = expect(left.end(), 5);
            assert!(begin.elapsed() < Duration::from_secs(10), "{options:?}: {:?}", begin.elapsed());
            assert!(errors.starts_with("rdma-probe: "), "{errors}");
        }
    }
}

#[test]
fn an_end_that_is_not_simulated_is_told() {
    // A server without simulation answers on TCP only; here somebody in its place.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (_, errors) = expect(run(["ping", "--sim", "-p", &port, "127.0.0.1"]), 5);
    assert!(errors.contains("--sim"), "{errors}");
    // A client without it sends its record on TCP at once, as ibv_rc_pingpong does.
    let port = fresh_port();
    let mut server = Run::start(&mut probe(["ping", "--sim", "-p", &port]));
    let _rest = server.until_it_waits();
    let mut client = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    client.write_all(b"0000:000011:abcdef:00000000000000000000ffff0a090901\0").unwrap();
    let (_, errors) = expect(server.end(), 5);
    assert!(errors.contains("--sim"), "{errors}");
    // Another link layer.
    let port = fresh_port();
    let server = Run::start(&mut probe(["ping", "--sim=roce", "-p", &port]));
    let (_, errors) = expect(run(["ping", "--sim=ib", "-p", &port, "127.0.0.1"]), 5);
    assert!(errors.contains("--sim") && !errors.contains("ibv_rc_pingpong"), "{errors}");
    let (_, errors) = expect(server.end(), 5);
    assert!(errors.contains("InfiniBand"), "{errors}");
}

#[test]
fn garbage_on_the_socket_of_the_network_is_passed_over() {
    use std::os::unix::net::UnixStream;
    let port = fresh_port();
    let mut server = Run::start(&mut probe(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port]));
    let _rest = server.until_it_waits();
    let address = meeting(&port);
    let silent = UnixStream::connect_addr(&address).unwrap();
    for garbage in [&b""[..], b"rdma-sim v1\n", &[0xff; 100_000], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        // All of it need not fit.
        let _ = stream.write(garbage).unwrap();
    }
    expect(run(["ping", "--sim", "-n", "10", "-r", "8", "-p", &port, "127.0.0.1"]), 0);
    expect(server.end(), 0);
    drop(silent);
}

/// The name of the socket at which the networks of two pings meet.
fn meeting(port: &str) -> std::os::unix::net::SocketAddr {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("rdma-probe/sim/{}/{port}", nix::unistd::geteuid());
    std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap()
}

/// Copies bytes, some of them damaged, until either end closes.
fn relay(mut from: impl Read, mut to: impl Write, mut damage: impl FnMut(&mut [u8])) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        damage(&mut bytes[..n]);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
}

/// Stands between the client of port `a` and the server of port `b`, and damages every `every`th byte of their network.
fn stand_between(a: &str, b: &str, seed: u32, every: u32) -> JoinHandle<()> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let tcp = std::net::TcpListener::bind(format!("127.0.0.1:{a}")).unwrap();
    let unix = UnixListener::bind_addr(&meeting(a)).unwrap();
    let b = b.to_owned();
    std::thread::spawn(move || {
        let client = tcp.accept().unwrap().0;
        let mut network = unix.accept().unwrap().0;
        // Says hello to the server in the client's place.
        let server = TcpStream::connect(("127.0.0.1", b.parse().unwrap())).unwrap();
        let mut hello = [0; 47];
        network.read_exact(&mut hello).unwrap();
        hello[45..].copy_from_slice(&server.local_addr().unwrap().port().to_be_bytes());
        let mut other = UnixStream::connect_addr(&meeting(&b)).unwrap();
        other.write_all(&hello).unwrap();
        let mut state = seed;
        let damage = move |bytes: &mut [u8]| {
            for byte in bytes {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if (state >> 8).is_multiple_of(every) {
                    *byte ^= (state >> 24) as u8;
                }
            }
        };
        let damage_back = damage; // a copy: the other way is damaged alike
        std::thread::scope(|scope| {
            scope.spawn(|| relay(&client, &server, |_| ()));
            scope.spawn(|| relay(&server, &client, |_| ()));
            scope.spawn(|| {
                relay(&network, &other, damage_back);
                let _ = other.shutdown(std::net::Shutdown::Both);
            });
            relay(&other, &network, damage);
            let _ = network.shutdown(std::net::Shutdown::Both);
        });
    })
}

/// Whatever comes from the other end: it ends the ping, or does not matter.
#[test]
fn damage_between_the_processes_is_an_error_at_most() {
    let runs: Vec<_> = [(1, 50), (2, 300), (3, 2000), (4, 20_000), (5, 100_000)]
        .into_iter()
        .map(|(seed, every)| {
            let (a, b) = (fresh_port(), fresh_port());
            let transport = if seed % 2 == 0 { "rc" } else { "uc" };
            let options = ["ping", "--sim", "-n", "300", "-r", "32", "--check", "--timeout", "3", "-t", transport];
            let mut server = Run::start(&mut probe(options.into_iter().chain(["-p", &b])));
            let rest = server.until_it_waits();
            let between = stand_between(&a, &b, seed, every);
            let client = Run::start(&mut probe(options.into_iter().chain(["-p", &a, "127.0.0.1"])));
            (server, rest, between, client)
        })
        .collect();
    for (server, rest, between, client) in runs {
        for end in [client, server] {
            let output = end.end();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!([0, 5, 6, 7].contains(&output.status.code().unwrap()), "{:?}: {errors}", output.status);
            assert!(!errors.contains("panicked"), "{errors}");
        }
        drop(rest);
        between.join().unwrap();
    }
}

#[test]
fn a_ping_that_is_interrupted_tells_what_it_measured() {
    let mut child = Run::start(&mut probe(["ping", "--sim", "--loopback", "-n", "100000000"]));
    std::thread::sleep(Duration::from_millis(500));
    let pid = nix::unistd::Pid::from_raw(child.child().id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let (text, _) = expect(child.end(), 130);
    // A busy machine may not have come to the first.
    assert!(text.contains("stopped before the other") || text.contains("0 of 100000000 iters"), "{text}");
}

/// Filling a gigabyte takes longer than anybody waits.
#[test]
fn a_large_ping_ends_when_it_is_asked_to_before_it_has_begun() {
    let mut child = Run::start(&mut probe(["ping", "--sim", "--loopback", "-s", "1G"]));
    std::thread::sleep(Duration::from_millis(500));
    let pid = nix::unistd::Pid::from_raw(child.child().id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let begin = Instant::now();
    expect(child.end(), 130);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[test]
fn what_the_options_ask_too_much_of_a_simulated_port_is_told() {
    for args in [&["--mtu", "4096"][..], &["--gid-index", "200"], &["--ib-port", "2"], &["-t", "ud", "-s", "1M"]] {
        let args = ["ping", "--sim", "--loopback"].into_iter().chain(args.iter().copied());
        let (_, errors) = expect(run(args.clone()), 2);
        assert!(errors.starts_with("rdma-probe: "), "{errors}");
    }
}

/// The trace of a command goes on with what it is of a real device.
#[test]
fn commands_are_traced() {
    let mut command = probe(["info", "--sim", "--trace"]);
    let mut child = command.spawn().unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    child.wait().unwrap();
    assert!(errors.lines().any(|line| line.contains("DEVICE.GET_CONTEXT")), "{errors}");
    for line in errors.lines() {
        let time = line.split_whitespace().next().unwrap();
        assert!(time.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn every_entry_of_a_ping_is_traced_with_its_time() {
    let path = std::env::temp_dir().join(format!("rdma-probe-trace-{}", fresh_port()));
    let to_file = format!("--trace={}", path.display());
    for (transport, more) in [("rc", "ctrl opcode=0xa"), ("ud", "av qkey=0x11111111"), ("srq", "next next_wqe_index=")]
    {
        expect(run(["ping", "--sim", "--loopback", "-n", "32", "-r", "64", "-t", transport, &to_file]), 0);
        let trace = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let times: Vec<f64> = trace.lines().map(|l| l.split_whitespace().next().unwrap().parse().unwrap()).collect();
        assert!(times.is_sorted(), "{trace}");
        assert!(trace.lines().next().unwrap().contains(" simulated: a software ConnectX"), "{trace}");
        let count = |what: &str| trace.lines().filter(|line| line.contains(what)).count();
        assert_eq!((count("send WQE: SEND,"), count("CQE: received SEND,")), (64, 64), "{transport}");
        assert!(count("receive WQE") >= 64 && count("CQE: send done: SEND,") >= 4, "{transport}: {trace}");
        assert!(count(more) >= 32 && count("QP.CREATE ") >= 2, "{transport}: {trace}");
    }
}

/// Callers who say nothing, on both of the ways that a client comes.
struct Crowd {
    _tcp: Vec<TcpStream>,
    _network: Vec<std::os::unix::net::UnixStream>,
}

impl Crowd {
    /// As many on each way; those on the network may have the time to be let in first.
    fn of(size: usize, port: &str, network_first: bool) -> Self {
        let (number, address) = (port.parse::<u16>().unwrap(), meeting(port));
        let network = |n| {
            let caller = std::os::unix::net::UnixStream::connect_addr(&address);
            caller.unwrap_or_else(|e| panic!("caller {n}: {e}"))
        };
        let tcp = || (0..size).map(|_| TcpStream::connect(("127.0.0.1", number)).unwrap()).collect();
        if network_first {
            let network = (0..size).map(network).collect();
            std::thread::sleep(Duration::from_millis(300));
            return Self { _tcp: tcp(), _network: network };
        }
        Self { _tcp: tcp(), _network: (0..size).map(network).collect() }
    }
}

/// More than a server listens to at once; and then more than it has descriptors for.
#[test]
fn a_crowd_of_silent_callers_does_not_keep_the_client_waiting() {
    for (descriptors, network_first) in [("1024", false), ("60", false), ("60", true)] {
        let port = fresh_port();
        let args = ["ping", "--sim", "-n", "50", "-p", &port];
        let script = format!("ulimit -n {descriptors} && exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_rdma-probe")]).args(args);
        let mut server = Run::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let text = server.until_it_waits();
        let crowd = Crowd::of(150, &port, network_first);
        let begin = Instant::now();
        expect(run(args.into_iter().chain(["127.0.0.1"])), 0);
        expect(server.end(), 0);
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        drop((crowd, text));
    }
}

/// A server that can let nobody in waits until it can, and does not spin meanwhile.
#[test]
fn a_server_without_descriptors_waits_for_some() {
    let port = fresh_port();
    let args = ["ping", "--sim", "-n", "50", "-p", &port];
    let mut server = Run::start(&mut probe(args));
    let text = server.until_it_waits();
    let pid = server.child().id();
    let is_free = |fd: &usize| !std::path::Path::new(&format!("/proc/{pid}/fd/{fd}")).exists();
    let limit = |most: usize| {
        let option = format!("--nofile={most}:");
        Command::new("prlimit").args(["--pid", &pid.to_string(), &option]).status().unwrap().success()
    };
    assert!(limit((0..).find(is_free).unwrap()));
    // Clock ticks, a hundredth of a second each.
    let busy = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    };
    let crowd = Crowd::of(3, &port, false);
    let before = busy();
    std::thread::sleep(Duration::from_secs(2));
    let spent = busy() - before;
    assert!(server.child().try_wait().unwrap().is_none(), "the server waits on");
    assert!(spent < 20, "{spent} ticks");
    assert!(limit(1000));
    expect(run(args.into_iter().chain(["127.0.0.1"])), 0);
    expect(server.end(), 0);
    drop((crowd, text));
}

/// Somebody who is no client, and alone: a look at the port, a request for a page.
#[test]
fn a_look_at_the_port_does_not_end_the_server() {
    let port = fresh_port();
    let mut server = Run::start(&mut probe(["ping", "--sim", "-n", "50", "-p", &port]));
    let text = server.until_it_waits();
    for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        stream.write_all(said).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // It is closed by the server.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    expect(run(["ping", "--sim", "-n", "50", "-p", &port, "127.0.0.1"]), 0);
    expect(server.end(), 0);
    drop(text);
}
