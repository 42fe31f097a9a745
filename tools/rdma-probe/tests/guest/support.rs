//! Running programs, never for longer than they may take.

use ironverbs::Context;
use serde_json::Value;
use std::any::Any;
use std::fmt::Debug;
use std::io::Read;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// No program takes this long, even in an emulated guest on a busy host: one that does hangs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The device under test.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    /// The GID that rdma-probe chooses where it has to; the C tools have to be told.
    pub gid_index: String,
    /// Ends reach each other by LID alone, unless they are told a GID.
    pub is_infiniband: bool,
    pub has_xrc: bool,
}

impl Device {
    pub fn from_env() -> Option<Self> {
        let name = std::env::var("IRONVERBS_TEST_DEVICE").ok().filter(|name| !name.is_empty())?;
        let gids = Run::probe(["gids", name.as_str(), "--json"]).json();
        let table = &gids["result"]["tables"][0];
        let index = table["chosen_index"].as_u64().expect("the device has a GID");
        let is_infiniband = table["link_layer"] == "InfiniBand";
        let has_xrc = Context::open(&name).expect("the device can be opened").create_xrcd().is_ok();
        Some(Self { name, gid_index: index.to_string(), is_infiniband, has_xrc })
    }

    /// Ends the running test on a device without extended reliable connections.
    pub fn needs_xrc(&self) {
        if !self.has_xrc {
            skip("the device has no XRC");
        }
    }

    /// What a C tool has to be told about the device.
    pub fn for_c(&self) -> Vec<&str> {
        let gid = ["-g", self.gid_index.as_str()];
        [&["-d", &self.name][..], if self.is_infiniband { &[] } else { &gid }].concat()
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

/// Does the same with each, beside each other: what mostly waits for deadlines need not wait for them one by one.
pub fn at_once<T: Send>(each: impl IntoIterator<Item = T>, what: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        let what = &what;
        let running: Vec<_> = each.into_iter().map(|one| scope.spawn(move || what(one))).collect();
        for ended in running.into_iter().map(|one| one.join()) {
            ended.unwrap_or_else(|payload| resume_unwind(payload));
        }
    });
}

/// A TCP port that no earlier test used.
pub fn fresh_port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(18600);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// A file for a program's JSON, while its text goes to standard output.
pub struct JsonFile(PathBuf);

impl JsonFile {
    pub fn new() -> Self {
        let file = Self(std::env::temp_dir().join(format!("rdma-probe-{}-{}.json", std::process::id(), fresh_port())));
        let _ = std::fs::remove_file(&file.0);
        file
    }

    pub fn option(&self) -> String {
        format!("--json={}", self.0.display())
    }

    #[track_caller]
    pub fn read(&self) -> Value {
        serde_json::from_slice(&std::fs::read(&self.0).unwrap()).unwrap()
    }
}

impl Drop for JsonFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
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
    stdout: Stream,
    stderr: Stream,
}

/// What a program says, while it runs and after.
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
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

/// The program under test: the one that `IRONVERBS_PROBE` names, or the one built with the tests.
pub fn probe() -> String {
    std::env::var("IRONVERBS_PROBE").unwrap_or_else(|_| env!("CARGO_BIN_EXE_rdma-probe").to_owned())
}

impl Run {
    /// Starts rdma-probe.
    pub fn start_probe<'a>(args: impl IntoIterator<Item = &'a str>) -> Self {
        Self::start(Command::new(probe()).args(args))
    }

    /// Starts the C pingpong of that transport, if it is installed.
    pub fn start_c<'a>(transport: &str, args: impl IntoIterator<Item = &'a str>) -> Self {
        Self::start(Command::new(format!("ibv_{transport}_pingpong")).args(args))
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
        let stdout = Stream::of(child.stdout.take().unwrap());
        let stderr = Stream::of(child.stderr.take().unwrap());
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

    /// Waits until it has printed `text`.
    pub fn until_says(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.stdout.so_far().contains(text) {
            assert!(self.is_running(), "{} ended without {text:?}: {}", self.what, self.stderr.so_far());
            assert!(begin.elapsed() < LIMIT, "{} never says {text:?}", self.what);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it, a ping, has sent so many packets that it has had answers. The kernel's list shows its queue pairs while it runs,
    /// and the number of the next packet of each.
    pub fn until_under_way(&self) {
        let numbers = || {
            let shown = Self::start(Command::new("rdma").args(["resource", "show", "qp"])).end().expect(0);
            let is_own = |line: &&str| line.contains(" state RTS ") && line.contains(&format!(" pid {} ", self.id()));
            let number = |line: &str| line.split_once(" sq-psn ")?.1.split_whitespace().next()?.parse().ok();
            shown.stdout.lines().filter(is_own).map(|line| number(line).expect(line)).collect::<Vec<u32>>()
        };
        let (begin, mut first) = (Instant::now(), vec![]);
        loop {
            let now = numbers();
            if first.len() != now.len() {
                first.clone_from(&now);
            }
            let sent = first.iter().zip(&now).map(|(first, now)| now.wrapping_sub(*first) & 0xff_ffff);
            if sent.max().is_some_and(|most| most >= 100) {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "nothing is sent: {first:?}, {now:?}");
            thread::sleep(Duration::from_millis(20));
        }
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
        let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
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

impl Stream {
    fn of(mut from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let said = text.clone();
        let reader = thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut some) {
                said.lock().unwrap().extend(&some[..n]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// Everything, once the program has ended.
    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.so_far()
    }
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
