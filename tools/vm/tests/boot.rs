//! Boots guests, and checks what the tool promises about them. Slow, so only on request:
//! `cargo test -p vm -- --ignored`. `IRONVERBS_TEST_KERNEL` names a kernel that alone is booted.

use nix::sys::signal::Signal;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// One guest at a time: each takes all the processors a small machine has.
static MACHINE: Mutex<()> = Mutex::new(());

/// The kernels to boot.
fn kernels() -> Vec<&'static str> {
    let only = std::env::var("IRONVERBS_TEST_KERNEL").ok();
    let kernels: Vec<_> =
        ["6.1", "6.12"].into_iter().filter(|kernel| only.as_deref().is_none_or(|k| k == *kernel)).collect();
    assert!(!kernels.is_empty(), "IRONVERBS_TEST_KERNEL is 6.1 or 6.12");
    kernels
}

fn vm(options: &[&str], command: &str) -> Output {
    run(&[options, &["--", command]].concat())
}

/// Two guests, and the command of each.
fn pair(options: &[&str], server: &str, client: &str) -> Output {
    run(&[&["--pair"], options, &["--", server, "--", client]].concat())
}

/// The tool, while it runs, with whatever it started. Where a test fails, it is ended.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is taken at the end only")
    }

    fn output(mut self) -> Output {
        self.0.take().expect("it is taken at the end only").wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run(words: &[&str]) -> Output {
    let _one = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(env!("CARGO_BIN_EXE_vm")).args(words).output().unwrap();
    println!("vm {words:?}\n{}", output.status);
    println!("stdout: {}\nstderr: {}", text(&output.stdout), text(&output.stderr));
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(20_000)]).into_owned()
}

/// Waits until ibv_rc_pingpong, as a server, listens.
const LISTENING: &str = "until ss -Hltn sport 18515 | grep -q .; do sleep 0.1; done";

/// The number after `before` in `text`, each time.
fn numbers_after(text: &str, before: &str) -> Vec<u64> {
    text.split(before)
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
        .collect()
}

#[test]
#[ignore = "boots guests"]
fn both_streams_come_back_byte_for_byte_with_the_status() {
    let all_bytes: Vec<u8> = (0..1 << 18).map(|n: u32| (n ^ (n >> 8)) as u8).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bytes");
    fs::write(&file, &all_bytes).unwrap();
    for kernel in kernels() {
        // The file's directory is not shared: the guest sees it as it sees everything on this machine.
        let command = format!(
            "cat {0}; uname -r >&2; echo late >/dev/stderr; echo lost >{0}; sleep 999 & exit 7",
            file.display()
        );
        let output = vm(&["--kernel", kernel], &command);
        assert_eq!(output.status.code(), Some(7));
        assert!(output.stdout == all_bytes, "the bytes on stdout differ");
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with(&format!("{kernel}.")) && stderr.ends_with("\nlate\n"), "{stderr}");
        assert!(fs::read(&file).unwrap() == all_bytes, "the guest wrote to this machine");
    }
}

#[test]
#[ignore = "boots guests"]
fn an_unprivileged_user_gets_a_device_and_a_shared_directory() {
    for kernel in kernels() {
        let dir = tempfile::Builder::new().prefix("with, comma").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let file = dir.path().join("result.json");
        let script = format!(
            "id -u; id -G; ulimit -l; pwd; echo $WORD; touch ~/f && echo home; exec 3<>/dev/infiniband/uverbs0 && echo open
            touch /etc/passwd 2>/dev/null || echo kept out
            cat /sys/class/infiniband/rxe0/ports/1/gids/[0-2]
            ibv_devinfo -d rxe0 | grep -E 'state|active_mtu'
            echo '{{}}' >'{}'",
            file.display()
        );
        let options = ["--kernel", kernel, "--device", "rxe", "--mtu", "4200", "--user", "1000", "--memlock", "512"];
        let share = dir.path().to_str().unwrap();
        let output = vm(&[&options[..], &["--env", "WORD=a  b", "--share", share]].concat(), &script);
        assert_eq!(output.status.code(), Some(0));
        let here = std::env::current_dir().unwrap();
        let expected = [
            "1000",
            "1000",
            "512",
            here.to_str().unwrap(),
            "a b",
            "home",
            "open",
            "kept out",
            "fe80:0000:0000:0000:0000:00ff:fe09:0901",
            "0000:0000:0000:0000:0000:ffff:0a09:0901",
            "fd00:0009:0009:0000:0000:0000:0000:0001",
            "state: PORT_ACTIVE (4)",
            "active_mtu: 4096 (5)",
        ];
        let stdout = text(&output.stdout);
        let lines: Vec<_> = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, expected);
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");
    }
}

#[test]
#[ignore = "boots guests"]
fn a_ping_over_one_device_works() {
    for kernel in kernels() {
        let script = &format!(
            "ibv_rc_pingpong -d rxe0 -g 1 -n 200 >/dev/null & {LISTENING}
            ibv_rc_pingpong -d rxe0 -g 1 -n 200 127.0.0.1 && wait $!"
        );
        let output = vm(&["--kernel", kernel, "--device", "rxe"], script);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("\n200 iters in"));
    }
}

#[test]
#[ignore = "boots guests"]
fn the_pair_talks_over_a_link_that_can_lose_packets() {
    for kernel in kernels() {
        // For every kind of GID and in both directions: 200 writes of 4 KiB are 800 packets of 1 KiB each way.
        // Not with ibv_rc_pingpong: each side ends with its last completion, and if the last acknowledgement is lost the
        // other tries for ever (rxe takes a retry count of 7 as no limit). ib_write_bw ends when both have all.
        let script = "set -e
            tc qdisc add dev net0 root netem loss 3%; tc qdisc add dev net1 root netem loss 3%
            for gid in 0 1 2; do
                args=\"-x $gid -b -n 200 -s 4096 -F\"
                ib_write_bw -d rxe0 $args >/dev/null & until ss -Hltn sport 18515 | grep -q .; do sleep 0.1; done
                ib_write_bw -d rxe1 $args 127.0.0.1; wait $!
                tc -s qdisc show dev net0; tc -s qdisc show dev net1
            done";
        let output = vm(&["--kernel", kernel, "--device", "rxe-pair", "--timeout", "600"], script);
        assert_eq!(output.status.code(), Some(0));
        let stdout = text(&output.stdout);
        assert_eq!(stdout.matches("\n 4096       200 ").count(), 3, "all three runs end");
        let (sent, lost) = (numbers_after(&stdout, " bytes "), numbers_after(&stdout, "(dropped "));
        assert_eq!((sent.len(), lost.len()), (6, 6));
        // The counters of a link are those of the previous run and more.
        for link in 0..2 {
            for run in 0..3 {
                let before = if run == 0 { 0 } else { sent[2 * run - 2 + link] };
                let packets = sent[2 * run + link] - before;
                assert!(packets >= 760, "run {run} sent {packets} packets over net{link}: not over the wire");
            }
            assert!(lost[4 + link] >= 8, "net{link} lost {} packets", lost[4 + link]);
        }
    }
}

#[test]
#[ignore = "boots guests"]
fn instructions_are_the_clock_under_icount() {
    for kernel in kernels() {
        // A loop of a fixed number of instructions takes the same virtual time on every machine and at every load.
        let script = &format!(
            "nproc; python3 -c '
import time
def once():
    start = time.perf_counter_ns()
    for _ in range(100_000): pass
    return time.perf_counter_ns() - start
runs = sorted(once() for _ in range(5))
print(runs[0], runs[2])'
            ibv_rc_pingpong -d rxe0 -g 1 -n 20 >/dev/null & {LISTENING}
            ibv_rc_pingpong -d rxe0 -g 1 -n 20 127.0.0.1 && wait $!"
        );
        let output = vm(&["--kernel", kernel, "--icount", "--device", "rxe", "--timeout", "600"], script);
        assert_eq!(output.status.code(), Some(0));
        let stdout = text(&output.stdout);
        let numbers: Vec<u64> = stdout.split_whitespace().map_while(|word| word.parse().ok()).collect();
        assert_eq!((numbers.len(), numbers[0]), (3, 1));
        assert!(numbers[2] < numbers[1] + numbers[1] / 10, "equal loops differ: {numbers:?}");
        assert!(stdout.contains("\n20 iters in"));
    }
}

#[test]
#[ignore = "boots guests"]
fn adapters_are_driven_by_the_kernel_and_what_passes_is_recorded() {
    for kernel in kernels() {
        let dir = tempfile::tempdir().unwrap();
        let [log, record] = ["log", "record"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
        let command = format!(
            "cat /sys/class/infiniband/mlx5_[01]/ports/1/{{lid,state}}
            ibv_rc_pingpong -d mlx5_0 -n 10 >/dev/null & {LISTENING}; ibv_rc_pingpong -d mlx5_1 -n 10 localhost && wait $!"
        );
        let options = ["--kernel", kernel, "--device", "softcx:2", "--device-log", &log, "--device-record", &record];
        let output = vm(&options, &command);
        assert_eq!(output.status.code(), Some(0));
        let stdout = text(&output.stdout);
        assert!(stdout.starts_with("0x1\n0x2\n4: ACTIVE\n4: ACTIVE\n"), "{stdout}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("mlx5_0: no objects left") && stderr.contains("mlx5_1: no objects left"), "{stderr}");
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("CREATE_QP") && log.contains("TEARDOWN_HCA"), "{log}");
        let record = fs::read_to_string(record).unwrap();
        // One clock, and what it shows: the last command comes behind the last entry, and not long.
        let unit = "# seconds of the adapters' time";
        assert!(log.starts_with(unit) && record.starts_with(unit), "{log}");
        let last = |text: &str| text.lines().next_back()?.split_whitespace().next()?.parse::<f64>().ok();
        let (log_end, record_end) = (last(&log).unwrap(), last(&record).unwrap());
        assert!(log_end >= record_end && log_end < record_end + 15.0, "{log_end} {record_end}");
        let sends = record.lines().filter(|line| line.contains(" send ") && line.contains("kind=Rc"));
        assert!(sends.filter(|line| line.contains("# SendWqe")).count() >= 20);
    }
}

#[test]
#[ignore = "boots guests"]
fn a_pair_shares_a_fabric_and_a_link() {
    for kernel in kernels() {
        let client = "cat /sys/class/infiniband/mlx5_0/ports/1/lid; hostname; ibv_rc_pingpong -d mlx5_0 -n 50 server";
        let server = "hostname >&2; ibv_rc_pingpong -d mlx5_0 -n 50";
        let output = pair(&["--kernel", kernel, "--device", "softcx"], server, client);
        assert_eq!(output.status.code(), Some(0));
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        for line in ["client: 0x2", "client: client", "client: 50 iters in", "server: 50 iters in"] {
            assert!(stdout.lines().any(|l| l.starts_with(line)), "{line:?} is not in {stdout}");
        }
        assert!(stdout.lines().all(|l| l.starts_with("client: ") || l.starts_with("server: ")), "{stdout}");
        assert!(stderr.contains("server: server\n"), "{stderr}");
        for guest in [1, 2] {
            assert!(stderr.contains(&format!("guest {guest}'s mlx5_0: no objects left")), "{stderr}");
        }
    }
}

/// What the kernel has no part in: with one of them it is enough.
mod on_any_kernel {
    use super::*;

    #[test]
    #[ignore = "boots guests"]
    fn a_warning_of_the_kernel_fails_the_run() {
        // Of level 3 (an error) and 4 (a warning) in the driver's name, and a warning of anybody's. What is of level 5 says nothing bad.
        let command = "echo '<3>mlx5_core: a test of errors' >/dev/kmsg; echo '<4>infiniband mlx5_0: a test of warnings' >/dev/kmsg
            echo 'WARNING: a test' >/dev/kmsg; echo '<5>mlx5_core: a test of notices' >/dev/kmsg";
        let output = vm(&["--device", "softcx", "--allow-log", "another test"], command);
        assert_eq!(output.status.code(), Some(125));
        let stderr = text(&output.stderr);
        for line in ["WARNING: a test", "mlx5_core: a test of errors", "mlx5_0: a test of warnings"] {
            assert!(stderr.contains(line), "{line}: {stderr}");
        }
        let one_left = ["--device", "softcx", "--allow-log", "a test of err|WARNING: a test"];
        assert_eq!(vm(&one_left, command).status.code(), Some(125));
        let allowed =
            ["--device", "softcx", "--allow-log", "a test of (err|warn)", "--allow-log", "^.*WARNING: a (test|try)$"];
        assert_eq!(vm(&allowed, command).status.code(), Some(0));
        // A pattern that is none allows nothing.
        let broken = vm(&["--device", "softcx", "--allow-log", "("], command);
        assert_eq!(broken.status.code(), Some(125));
        assert!(text(&broken.stderr).contains("a pattern of --allow-log"), "{}", text(&broken.stderr));
    }

    #[test]
    #[ignore = "boots guests"]
    fn a_pair_ends_together() {
        // The client never begins; it is stopped after its time; it fails by itself; it leaves the server alone.
        for (server, client, status, least, most) in [
            ("echo done; exit 3", "echo begun", 3, 0, 8),
            ("(sleep 999 | cat) & sleep 22; exit 4", "sleep 999", 4, 30, 50),
            ("sleep 999", "exit 5", 5, 28, 50),
            ("exit 0", "exit 0", 0, 0, 8),
        ] {
            let begin = Instant::now();
            let output = pair(&["--timeout", "150"], server, client);
            let boots = Duration::from_secs(40);
            assert_eq!(output.status.code(), Some(status), "{server} and {client}");
            let took = begin.elapsed();
            assert!(took > Duration::from_secs(least) && took < Duration::from_secs(most) + boots, "{took:?}");
            assert!(!text(&output.stdout).contains("begun"), "the client began although the server had failed");
        }
    }

    #[test]
    #[ignore = "boots guests"]
    fn a_command_that_does_not_end_is_a_time_out() {
        let start = Instant::now();
        let output = vm(&["--timeout", "75"], "echo begun; sleep 1000");
        assert_eq!(output.status.code(), Some(124));
        assert_eq!(text(&output.stdout), "begun\n");
        assert!(text(&output.stderr).contains("time-out"), "{}", text(&output.stderr));
        assert!(start.elapsed() < Duration::from_secs(100));
    }

    #[test]
    #[ignore = "boots guests"]
    fn a_guest_that_goes_away_is_no_answer() {
        let output = vm(&[], "echo begun; echo c >/proc/sysrq-trigger; sleep 1000");
        assert_eq!(output.status.code(), Some(125));
        assert_eq!(text(&output.stdout), "begun\n");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("without an answer") && stderr.contains("Kernel panic"), "{stderr}");
    }

    /// Whichever process dies is named, with how and where to read on, and nobody waits for the time-out.
    #[test]
    #[ignore = "boots guests"]
    fn a_process_that_is_killed_is_named() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let log = log.path().to_str().unwrap();
        for (name, words) in [
            ("qemu-system-x86", ["vm: QEMU was killed by SIGKILL (", "what it said is above"]),
            ("vm", ["vm: the adapters' process, softcx, was killed by SIGKILL (", &format!("its log is {log}")]),
        ] {
            let _one = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = Instant::now();
            let mut tool = Running::start(
                Command::new(env!("CARGO_BIN_EXE_vm"))
                    .args(["--device", "softcx", "--device-log", log, "--timeout", "200"])
                    .args(["--", "echo begun; sleep 1000"])
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped()),
            );
            let mut begun = [0; 6];
            tool.child().stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
            signal("KILL", child_of(tool.child().id(), name));
            let output = tool.output();
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{stderr}");
            assert!(words.iter().all(|words| stderr.contains(words)), "{words:?}: {stderr}");
            assert!(begin.elapsed() < Duration::from_secs(180), "it was the time-out that ended it: {stderr}");
        }
    }

    #[test]
    #[ignore = "boots guests"]
    fn qemu_ends_with_the_tool_however_that_ends() {
        let _one = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, code) in [("INT", Some(130)), ("TERM", Some(143)), ("HUP", Some(129)), ("KILL", None)] {
            let mut tool =
                Running::start(Command::new(env!("CARGO_BIN_EXE_vm")).args(["--", "sleep 1000"]).stdout(Stdio::null()));
            let id = tool.child().id();
            // Past setpriv, which gives it its name, and the tool past the last step before its loop.
            let qemu = child_of(id, "qemu-system-x86");
            eventually("the tool takes signals by itself", || blocks(id, Signal::SIGINT));
            signal(name, id);
            assert_eq!(tool.child().wait().unwrap().code(), code, "SIG{name}");
            within(Duration::from_secs(20), &format!("QEMU ends after SIG{name}"), || !is_running(qemu));
        }
    }

    /// Also where the tool ends while it starts them, when neither can have asked the kernel yet to be told of that.
    #[test]
    #[ignore = "boots guests"]
    fn what_the_tool_starts_ends_with_it_from_the_first_moment_on() {
        let _one = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        for (device, processes) in [("none", 1), ("softcx", 2)] {
            for round in 0..30 {
                let words = ["--device", device, "--timeout", "60", "--", "sleep 1000"];
                let mut tool = Running::start(Command::new(env!("CARGO_BIN_EXE_vm")).args(words).stderr(Stdio::null()));
                let id = tool.child().id();
                let mut children = vec![];
                let deadline = Instant::now() + Duration::from_secs(60);
                while children.len() < processes {
                    assert!(Instant::now() < deadline, "the tool starts {} of {processes} processes", children.len());
                    children = children_of(id);
                }
                signal(if round % 2 == 0 { "KILL" } else { "TERM" }, id);
                tool.child().wait().unwrap();
                let what = format!("{device}: what the tool started ends with it, round {round}");
                within(Duration::from_secs(20), &what, || !children.iter().any(|child| is_running(*child)));
            }
        }
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// The child of that name, once there is one.
fn child_of(parent: u32, name: &str) -> u32 {
    let is_named =
        |child: &u32| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name);
    let mut found = None;
    eventually(&format!("the tool has started {name}"), || {
        found = children_of(parent).into_iter().find(is_named);
        found.is_some()
    });
    found.unwrap()
}

/// Whether the main thread of a process blocks a signal.
fn blocks(process: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (signal as u32 - 1) != 0
}

fn signal(name: &str, process: u32) {
    let words = [format!("-{name}"), process.to_string()];
    assert!(Command::new("kill").args(words).status().unwrap().success());
}

fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, condition);
}

fn within(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {time:?}: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// A zombie has ended, though nobody has asked for its status.
fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn wrong_usage_is_2_and_what_cannot_start_is_125() {
    let status = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_vm")).args(words).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(status(&["--kernel", "2.6", "--", "true"]).0, Some(2));
    assert_eq!(status(&["true"]).0, Some(2));
    let (code, stderr) = status(&["--kernel-image", "/nowhere", "--modules", "/nowhere", "--", "true"]);
    assert_eq!(code, Some(125));
    assert!(stderr.contains("/nowhere"), "{stderr}");
}
