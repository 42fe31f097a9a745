//! Running programs, never for longer than they may take.

use serde_json::Value;
use std::any::Any;
use std::fmt::Debug;
use std::io::Read;
use std::panic::resume_unwind;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// No program takes this long, even in an emulated guest on a busy host: one that does hangs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The device under test.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    /// The GID that rdma-probe chooses; the C tools have to be told.
    pub gid_index: String,
}

impl Device {
    pub fn from_env() -> Option<Self> {
        let name = std::env::var("IRONVERBS_TEST_DEVICE").ok().filter(|name| !name.is_empty())?;
        let gids = Run::probe(["gids", name.as_str(), "--json"]).json();
        let index = gids["result"]["tables"][0]["chosen_index"].as_u64().expect("the device has a GID");
        Some(Self { name, gid_index: index.to_string() })
    }
}

/// Why a test cannot be run here.
pub struct Skip(pub String);

/// Ends the running test, which cannot be run here.
pub fn skip(reason: impl Into<String>) -> ! {
    resume_unwind(Box::new(Skip(reason.into())))
}

pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".into())
}

/// A TCP port that no earlier test used.
pub fn fresh_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(18600);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// Waits until something listens on a TCP port of this host.
pub fn until_listening(port: &str) {
    let hex = format!(":{:04X} ", port.parse::<u16>().unwrap());
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("0A") && line.contains(&hex);
    let begin = Instant::now();
    loop {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| std::fs::read_to_string(t).unwrap_or_default());
        if tables.iter().flat_map(|t| t.lines()).any(listens) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "nobody listens on port {port}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A program that runs.
pub struct Run {
    what: String,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

/// A program that ended.
#[derive(Debug)]
pub struct Ended {
    #[allow(dead_code, reason = "shown by Debug when a test fails")]
    pub what: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Run {
    /// Starts rdma-probe.
    pub fn start_probe<'a>(args: impl IntoIterator<Item = &'a str>) -> Self {
        Self::start(Command::new(env!("CARGO_BIN_EXE_rdma-probe")).args(args))
    }

    /// Starts ibv_rc_pingpong, if it is installed.
    pub fn start_c<'a>(args: impl IntoIterator<Item = &'a str>) -> Self {
        Self::start(Command::new("ibv_rc_pingpong").args(args))
    }

    pub fn start(command: &mut Command) -> Self {
        let what = format!("{command:?}");
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                skip(format!("{} is not installed", command.get_program().display()))
            }
            Err(e) => panic!("{what}: {e}"),
        };
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Self { what, child, stdout, stderr }
    }

    /// Runs rdma-probe to its end.
    pub fn probe<'a>(args: impl IntoIterator<Item = &'a str>) -> Ended {
        Self::start_probe(args).end()
    }

    pub fn id(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ended {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > LIMIT {
                self.kill();
                panic!("{} hangs", self.what);
            }
            thread::sleep(Duration::from_millis(5));
        };
        let text = |reader: Option<JoinHandle<String>>| reader.map(|r| r.join().unwrap()).unwrap_or_default();
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        Ended { what: std::mem::take(&mut self.what), status, stdout, stderr, took: begin.elapsed() }
    }
}

impl Drop for Run {
    /// A test that failed leaves no program behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Ended {
    /// The exit code is that.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// It failed with that exit code, and told why in one line that contains all of `words`.
    #[track_caller]
    pub fn expect_failure(self, code: i32, words: &[&str]) -> Self {
        let this = self.expect(code);
        let line = this.stderr.trim_end();
        assert!(line.starts_with("rdma-probe: ") && line.lines().count() == 1, "{this:#?}");
        for word in words {
            assert!(line.contains(word), "no {word:?} in {line:?}");
        }
        this
    }

    /// Its output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// Both are equal, and if not, the program's whole output is shown.
#[track_caller]
pub fn same<T: PartialEq + Debug>(left: T, right: T, ended: &Ended) {
    assert!(left == right, "{left:?} is not {right:?}: {ended:#?}");
}
