//! Where results go: text to standard output, JSON there or to a file, errors to standard error.

use crate::failure::{Failure, Kind};
use crate::shown::{self, OneLine, Pretty};
use crate::trace::Lines;
use serde::Serialize;
use serde_json::Serializer;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Version of the JSON layout. A field may be added without a new version; none changes or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// The JSON schema of everything that `--json` prints.
pub const SCHEMA: &str = include_str!("../schema/rdma-probe.schema.json");

/// One command's outcome, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Document<R> {
    /// Version of this layout.
    pub schema_version: u32,
    /// Version of rdma-probe.
    pub version: &'static str,
    /// Whether a simulated device answered: then no figure is one of hardware.
    pub simulated: bool,
    /// The exit code of the process.
    pub exit_code: u8,
    /// Why the command did not succeed, if it did not.
    pub error: Option<ErrorInfo>,
    /// The result, as far as there is one: a ping that failed or was interrupted tells what it measured until then.
    pub result: Option<R>,
}

/// Why a command did not succeed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ErrorInfo {
    /// The kind of trouble.
    pub kind: Kind,
    /// What went wrong, for people.
    pub message: String,
    /// What to do about it, for people.
    pub hint: Option<String>,
}

/// Where a command's result goes.
pub struct Output {
    text: bool,
    json: Option<Sink>,
    /// JSON comes as one object on each line, and not as one document.
    lines: bool,
    /// Standard output was closed by its reader; the rest of the text goes nowhere.
    closed: bool,
    /// A simulated device answers, and each document says so.
    simulated: bool,
    /// The text has yet to say so.
    marked: bool,
    trace: Option<Lines>,
}

/// First line of every text about a simulated device.
const MARK: &str =
    "simulated: a software ConnectX in this process answers; no hardware is involved, and no time is one of hardware\n";

enum Sink {
    Stdout,
    File(File, PathBuf),
}

impl Output {
    /// Opens the file at once, so that a measurement is not made in vain. `-` is standard output.
    pub fn open(json: Option<&Path>, simulated: bool) -> Result<Self, Failure> {
        let json = match json {
            None => None,
            Some(path) if path == Path::new("-") => Some(Sink::Stdout),
            Some(path) => {
                let file = File::create(path).map_err(|e| cannot_write(path.display(), &e))?;
                Some(Sink::File(file, path.to_owned()))
            }
        };
        Ok(Self {
            text: !matches!(json, Some(Sink::Stdout)),
            json,
            lines: false,
            closed: false,
            simulated,
            marked: !simulated,
            trace: None,
        })
    }

    /// Whether JSON was asked for.
    pub fn makes_json(&self) -> bool {
        self.json.is_some()
    }

    /// The trace that is written meanwhile: that it could not be is a failure, too.
    pub fn trace(&mut self, lines: Lines) {
        if self.simulated {
            lines.put(MARK.trim_end());
        }
        self.trace = Some(lines);
    }

    /// Whether the trace is whole.
    pub fn trace_result(&self) -> Result<(), Failure> {
        self.trace.as_ref().map_or(Ok(()), Lines::result)
    }

    /// Prints text, complete lines, at once, without what would act on a terminal. Nothing happens if JSON takes its place.
    pub fn text(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        if !self.text {
            return Ok(());
        }
        let mark = if std::mem::replace(&mut self.marked, true) { "" } else { MARK };
        self.stdout(shown::lines(&format!("{mark}{text}")).as_bytes())
    }

    /// From now on, JSON is one object on each line.
    pub fn as_lines(&mut self) {
        self.lines = true;
    }

    /// Whether the reader of standard output has gone.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Standard output will not be read any more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Writes one line of JSON at once, if JSON was asked for.
    pub fn json_line(&mut self, line: &impl Serialize) -> Result<(), Failure> {
        let bytes = to_json(line)?;
        let written = match &mut self.json {
            None => return Ok(()),
            Some(Sink::Stdout) => self.stdout(&bytes),
            Some(Sink::File(file, path)) => file.write_all(&bytes).map_err(|e| cannot_write(path.display(), &e)),
        };
        if written.is_err() {
            // The last line could not be written either, and this failure is told once.
            self.json = None;
        }
        written
    }

    /// Writes the outcome as JSON, if it was asked for. To be called once, at the end.
    pub fn json<R: Serialize>(&mut self, result: Option<R>, failure: Option<&Failure>) -> Result<(), Failure> {
        let Some(sink) = self.json.take() else { return Ok(()) };
        let document = Document {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            simulated: self.simulated,
            exit_code: failure.map_or(0, |f| f.kind.exit_code()),
            error: failure.map(|f| ErrorInfo { kind: f.kind, message: f.message.clone(), hint: f.hint.clone() }),
            result,
        };
        if self.lines {
            let bytes = to_json(&document)?;
            return self.write_to(sink, &bytes);
        }
        // As it is made: a document may be long.
        match sink {
            Sink::Stdout if self.closed => Ok(()),
            Sink::Stdout => {
                let written = write_document(io::stdout().lock(), &document);
                self.seen_enough(written)
            }
            Sink::File(mut file, path) => {
                let written = write_document(&file, &document);
                whole(&mut file, written).map_err(|e| cannot_write(path.display(), &e))
            }
        }
    }

    /// Prints the schema; it is JSON itself, so it goes where that was asked to go.
    pub fn schema(&mut self) -> Result<(), Failure> {
        let sink = self.json.take().unwrap_or(Sink::Stdout);
        self.write_to(sink, SCHEMA.as_bytes())
    }

    fn write_to(&mut self, sink: Sink, bytes: &[u8]) -> Result<(), Failure> {
        match sink {
            Sink::Stdout => self.stdout(bytes),
            Sink::File(mut file, path) if self.lines => {
                file.write_all(bytes).map_err(|e| cannot_write(path.display(), &e))
            }
            Sink::File(mut file, path) => write_file(&mut file, bytes).map_err(|e| cannot_write(path.display(), &e)),
        }
    }

    fn stdout(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
        self.seen_enough(written)
    }

    /// `rdma-probe ... | head` has seen enough; that is no failure.
    fn seen_enough(&mut self, written: io::Result<()>) -> Result<(), Failure> {
        match written {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(|e| cannot_write("standard output", &e)),
        }
    }
}

/// On one line.
fn to_json(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let made = value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine));
    made.map_err(|e| Failure::new(Kind::Output, format!("cannot make JSON: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Writes a document, in lines that people can read.
fn write_document(to: impl Write, document: &impl Serialize) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    document.serialize(&mut Serializer::with_formatter(&mut to, Pretty::default()))?;
    to.write_all(b"\n")?;
    to.flush()
}

fn write_file(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let written = file.write_all(bytes);
    whole(file, written)
}

/// All or nothing: half a document would be taken for a whole one by nobody, but it would lie there.
fn whole(file: &mut File, written: io::Result<()>) -> io::Result<()> {
    let written = written.and_then(|()| sync(file));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = file.set_len(0);
    }
    written
}

/// Everything is where it will stay.
pub fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        // Pipes and devices cannot be synchronised.
        Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Something could not be written.
pub fn cannot_write(what: impl fmt::Display, e: &io::Error) -> Failure {
    let failure = Failure::new(Kind::Output, format!("cannot write {what}: {e}"));
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => failure.hint("make room, or write somewhere else"),
        _ => failure,
    }
}

/// Prints a failure, as one line, to standard error. That it cannot be printed is nobody's business.
pub fn complain(failure: &Failure) {
    let _ = writeln!(io::stderr().lock(), "rdma-probe: {}", shown::line(&failure.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told() {
        let mut output = Output::open(Some(Path::new("/dev/full")), false).unwrap();
        let failure = output.json(Some(1), None).unwrap_err();
        assert_eq!(failure.kind, Kind::Output);
        assert!(failure.message.contains("/dev/full") && failure.message.contains("No space left"), "{failure}");
        assert!(failure.hint.is_some());
    }

    #[test]
    fn a_file_that_cannot_be_made_is_told_at_once() {
        let failure = Output::open(Some(Path::new("/no/such/directory/x.json")), false).err().unwrap();
        assert_eq!(failure.kind, Kind::Output);
    }

    #[test]
    fn the_document_says_how_it_went() {
        let path = std::env::temp_dir().join(format!("rdma-probe-test-{}.json", std::process::id()));
        let mut output = Output::open(Some(&path), true).unwrap();
        let failure = Failure::new(Kind::Peer, "gone").hint("look there");
        output.json(Some("partial"), Some(&failure)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["exit_code"], &json["simulated"]), (&5.into(), &true.into()));
        assert_eq!(json["error"]["kind"], "peer");
        assert_eq!(json["error"]["hint"], "look there");
        assert_eq!(json["result"], "partial");
    }
}
