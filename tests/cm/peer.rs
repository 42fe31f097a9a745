//! Programs of rdmacm-utils as the other side.

use crate::scene::{WITHIN, not_installed};
use std::io::{ErrorKind, Read};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running program; killed when it is dropped.
pub struct Peer {
    name: String,
    child: Child,
    output: Vec<JoinHandle<String>>,
}

impl Peer {
    /// Starts it, if it is [installed](not_installed).
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let name = format!("{program} {}", arguments.join(" "));
        let command = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match command {
            Ok(child) => child,
            Err(e) if e.kind() == ErrorKind::NotFound => not_installed(program, "rdmacm-utils"),
            Err(e) => panic!("{name}: {e}"),
        };
        let output = vec![collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap())];
        Self { name, child, output }
    }

    /// Waits for it to end by itself. Returns what it printed; fails with that unless its exit status is 0.
    pub fn finish(self) -> String {
        self.finish_within(WITHIN)
    }

    /// As [`finish`](Self::finish), within that time.
    pub fn finish_within(mut self, time: Duration) -> String {
        let deadline = Instant::now() + time;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let printed = self.printed();
                panic!("{} does not end:\n{printed}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let printed = self.printed();
        assert!(status.success(), "{}: {status}\n{printed}", self.name);
        printed
    }

    fn printed(&mut self) -> String {
        self.output.drain(..).map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Joined, so that their descriptors are closed by the end of the test.
        self.printed();
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = vec![];
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}
