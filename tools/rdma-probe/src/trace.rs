//! Where traces go: lines with the time, from any thread.

mod cm;
mod rings;

pub use cm::TracedCm;
pub use rings::Rings;

use crate::decode::{Decoded, Kind, Layout};
use crate::failure::Failure;
use crate::output;
use crate::shown;
use softcx::{Entry, QpKind, Tapped};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Takes lines of a trace. Clones write to the same place.
#[derive(Clone)]
pub struct Lines {
    to: Arc<Mutex<To>>,
    start: Instant,
}

struct To {
    /// `None`: standard error.
    file: Option<(File, PathBuf)>,
    /// Why a line could not be written. Those behind it are not tried.
    failure: Option<Failure>,
}

impl Lines {
    /// Writes to a file, made at once, or to standard error for `-`.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = if path == Path::new("-") {
            None
        } else {
            let file = File::create(path).map_err(|e| output::cannot_write(path.display(), &e))?;
            Some((file, path.to_owned()))
        };
        Ok(Self { to: Arc::new(Mutex::new(To { file, failure: None })), start: Instant::now() })
    }

    /// Writes a line, with the seconds since the start in front. What is traced goes on if that cannot be done; see
    /// [`result`](Self::result).
    pub fn put(&self, line: impl fmt::Display) {
        let line = format!("{:12.6} {}\n", self.start.elapsed().as_secs_f64(), shown::line(&line.to_string()));
        self.write(|to| match to {
            Some(file) => file.write_all(line.as_bytes()),
            None => match io::stderr().write_all(line.as_bytes()) {
                // Nobody listens any more.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
                other => other,
            },
        });
    }

    /// Whether every line so far is where it belongs.
    pub fn result(&self) -> Result<(), Failure> {
        self.write(|to| to.map_or(Ok(()), |file| output::sync(file)));
        self.to.lock().unwrap_or_else(PoisonError::into_inner).failure.clone().map_or(Ok(()), Err)
    }

    fn write(&self, f: impl FnOnce(Option<&mut File>) -> io::Result<()>) {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if to.failure.is_some() {
            return;
        }
        if let Err(e) = f(to.file.as_mut().map(|(file, _)| file)) {
            let name = to.file.as_ref().map_or("standard error".to_owned(), |(_, path)| path.display().to_string());
            to.failure = Some(output::cannot_write(format_args!("the trace to {name}"), &e));
        }
    }
}

/// A line about an entry that a simulated device has read or written.
pub fn entry(tapped: &Tapped<'_>) -> String {
    let device = tapped.device;
    match tapped.entry {
        Entry::Send { qpn, kind, bytes, .. } => {
            let layout = match kind {
                QpKind::Ud => Layout::Datagram,
                QpKind::XrcIni => Layout::Xrc,
                _ => Layout::Connected,
            };
            format!("{device} QP {qpn:#08x} send WQE: {}", Decoded::of(Kind::SendWqe, Some(layout), bytes).line())
        }
        Entry::Receive { number, linked, index, bytes } => {
            let (queue, kind) = if linked { ("SRQ", Kind::SrqWqe) } else { ("QP", Kind::RecvWqe) };
            format!("{device} {queue} {number:#x} receive WQE {index}: {}", Decoded::of(kind, None, bytes).line())
        }
        Entry::Completion { cqn, bytes, .. } => {
            format!("{device} CQ {cqn:#x} CQE: {}", Decoded::of(Kind::Cqe, None, bytes).line())
        }
        Entry::Packed { cqn, is_send, bytes, .. } => {
            let kind = if is_send { Kind::PackedSends } else { Kind::PackedReceives };
            format!("{device} CQ {cqn:#x} CQE: {}", Decoded::of(kind, None, bytes).line())
        }
        _ => format!("{device}: {:x?}", tapped.entry),
    }
}
