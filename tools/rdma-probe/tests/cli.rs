//! What rdma-probe does on any host, with or without RDMA devices.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn probe(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-probe"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    probe(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_tells_the_exit_codes() {
    for args in [&["--help"][..], &["list", "--help"], &["ping", "--help"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        for code in ["2", "3", "4", "5", "6", "7", "8", "9", "130"] {
            assert!(text.contains(&format!("{code} ")), "{args:?} does not tell of {code}");
        }
    }
}

#[test]
fn wrong_usage_is_2() {
    for args in [&["frobnicate"][..], &["ping", "--size", "0"], &["ping", "--mtu", "1500"], &["ping", "a", "b"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!stderr(&output).is_empty());
    }
}

/// What is told of a name has nothing in it that acts on a terminal, and is one line, whoever gave the name.
#[test]
fn names_are_shown_without_what_acts_on_a_terminal() {
    let name = "rxe\u{1b}[2J\n\u{9b}\u{202e}0";
    for args in [&["info", "--sim", name][..], &["info", "--sim", name, "--json"], &["caps", name]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(3), "{args:?}");
        let text = stderr(&output) + str::from_utf8(&output.stdout).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}'), "{args:?}: {text:?}");
        assert_eq!(stderr(&output).lines().count(), 1, "{args:?}: {text:?}");
    }
}

/// Whatever is on the command line, the answer is a message and the code for usage.
#[test]
fn odd_arguments_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = |b: &'static [u8]| std::ffi::OsStr::from_bytes(b);
    for args in [&["info", "\u{fffd}"][..], &["list", "--json="], &["list", "--trace="], &["caps", "a", "b"]] {
        let output = run(args);
        assert!([2, 3].contains(&output.status.code().unwrap()), "{args:?}: {}", stderr(&output));
    }
    for value in ["99999999999999999999", "4G", "-1", "0", "1e3", "0x40", "\u{663}"] {
        for option in ["--size", "--iters", "--rx-depth", "--num-qp", "--port", "--gid-index"] {
            if (option, value) == ("--gid-index", "0") || (option == "--size" && value == "1e3") {
                continue;
            }
            let output = run(&["ping", "--loopback", option, value]);
            assert_eq!(output.status.code(), Some(2), "{option} {value}: {}", stderr(&output));
        }
    }
    for args in [[bytes(b"info"), bytes(b"\xff")], [bytes(b"ping"), bytes(b"\xff\xfe")], [bytes(b"\xff"), bytes(b"")]] {
        let output = Command::new(env!("CARGO_BIN_EXE_rdma-probe")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
}

/// A program without standard streams, as a daemon may start it.
#[test]
fn closed_streams_are_no_trouble() {
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let script = format!("{} schema {closed}", env!("CARGO_BIN_EXE_rdma-probe"));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{closed}: {}", stderr(&output));
    }
}

#[test]
fn an_unknown_device_is_3() {
    for args in
        [&["info", "no-such-device"][..], &["gids", "no-such-device"], &["ping", "-d", "no-such-device", "-p", "18700"]]
    {
        let output = run(args);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(text.starts_with("rdma-probe: ") && text.lines().count() == 1, "{text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_failure_is_told_in_json_too() {
    let output = run(&["info", "no-such-device", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["exit_code"], 3);
    assert_eq!(json["error"]["kind"], "no_device");
    assert!(json["result"].is_null());
}

#[test]
fn a_full_disk_is_8() {
    let digits = "0000050a 00004101 00000008 00000000";
    for args in [&["schema"][..], &["--help"], &["ping", "-h"], &["--version"], &["list", "--sim"], &["decode", digits]]
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = probe(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(8), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("No space left on device"), "{args:?}: {}", stderr(&output));
    }
}

/// Every command that has a result, with what it takes.
const COMMANDS: [&[&str]; 9] = [
    &["schema"],
    &["list", "--sim"],
    &["info", "--sim"],
    &["gids", "--sim"],
    &["caps", "--sim"],
    &["watch", "--sim", "--count", "1"],
    &["ping", "--sim", "--loopback", "-n", "10"],
    &["decode", "0000050a 00004101 00000008 00000000"],
    &["--help"],
];

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn whatever_cannot_be_written_is_8() {
    for command in COMMANDS {
        let output = probe(command).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(8), "{command:?}: {}", stderr(&output));
        if command == ["--help"] {
            continue;
        }
        for json in ["--json", "--json=/dev/full"] {
            let output = probe(&[command, &[json]].concat()).stdout(full()).output().unwrap();
            assert_eq!(output.status.code(), Some(8), "{command:?} {json}: {}", stderr(&output));
        }
        let output = run(&[command, &["--json=/dev/full"]].concat());
        assert_eq!(output.status.code(), Some(8), "{command:?}: {}", stderr(&output));
        // That it is simulated, if nothing else.
        let traces = command.contains(&"--sim");
        for trace in ["--trace=/dev/full", "--trace"] {
            let mut probe = probe(&[command, &[trace, "--json"]].concat());
            if trace == "--trace" {
                probe.stderr(full());
            }
            let output = probe.output().unwrap();
            let code = if traces { 8 } else { 0 };
            assert_eq!(output.status.code(), Some(code), "{command:?} {trace}: {}", stderr(&output));
            if traces {
                let text = String::from_utf8(output.stdout).unwrap();
                let last = if command[0] == "watch" { text.lines().last().unwrap() } else { &text };
                let json: serde_json::Value = serde_json::from_str(last).unwrap();
                assert_eq!(json["exit_code"], 8, "{command:?} {trace}");
            }
        }
    }
}

/// The file has its document although the text went nowhere, and says so.
#[test]
fn what_can_be_written_is() {
    let path = std::env::temp_dir().join(format!("rdma-probe-cli-{}.json", std::process::id()));
    let entries = "0000050a 00004101 00000008 00000000\n\n".repeat(2);
    for command in [
        &["info", "--sim"][..],
        &["caps", "--sim"],
        &["list", "--sim"],
        &["ping", "--sim", "--loopback"],
        &["decode", &entries],
    ] {
        let json = format!("--json={}", path.display());
        let output = probe(&[command, &[json.as_str()]].concat()).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(8), "{command:?}");
        let text = std::fs::read_to_string(&path).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{command:?}: {e}: {text}"));
        assert_eq!((&json["exit_code"], &json["error"]["kind"]), (&8.into(), &"output".into()), "{command:?}");
        assert!(!json["result"].is_null(), "{command:?}");
        if command[0] == "decode" {
            assert_eq!(json["result"]["records"].as_array().unwrap().len(), 2);
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_place_that_cannot_be_written_is_8_before_anything_is_measured() {
    let output = run(&["ping", "--loopback", "--json=/no/such/directory/x"]);
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("/no/such/directory/x"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let traced: &[&str] = &["ping", "--sim", "--loopback", "-n", "10", "--trace"];
    for args in COMMANDS.into_iter().chain([traced]) {
        let mut child = probe(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(args == traced || stderr(&output).is_empty(), "{args:?}: {}", stderr(&output));
    }
    for args in COMMANDS.into_iter().chain([traced]) {
        // The other stream.
        let mut child = probe(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn the_schema_is_json() {
    let json: serde_json::Value = serde_json::from_slice(&run(&["schema"]).stdout).unwrap();
    assert!(json["anyOf"].as_array().is_some_and(|commands| commands.len() == 8));
    assert_eq!(run(&["schema", "--json"]).stdout, run(&["schema"]).stdout);
}
