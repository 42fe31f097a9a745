//! Where traces go: lines with the time, from any thread.

mod rings;

pub use rings::Rings;

use crate::decode::{Decoded, Kind, Layout};
use crate::failure::Failure;
use crate::output;
use softcx::{Entry, QpKind, Tapped};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Takes lines of a trace. Clones write to the same place.
#[derive(Clone)]
pub struct Lines {
    to: Arc<Mutex<Box<dyn Write + Send>>>,
    start: Instant,
}

impl Lines {
    /// Writes to a file, made at once, or to standard error for `-`.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let to: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stderr())
        } else {
            Box::new(File::create(path).map_err(|e| output::cannot_write(path.display(), &e))?)
        };
        Ok(Self { to: Arc::new(Mutex::new(to)), start: Instant::now() })
    }

    /// Writes a line, with the seconds since the start in front. What cannot be written is dropped: a trace fails nothing.
    pub fn put(&self, line: impl fmt::Display) {
        let line = format!("{:12.6} {line}\n", self.start.elapsed().as_secs_f64());
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = to.write_all(line.as_bytes());
    }
}

/// A line about an entry that a simulated device has read or is about to write.
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
        _ => format!("{device}: {:x?}", tapped.entry),
    }
}
