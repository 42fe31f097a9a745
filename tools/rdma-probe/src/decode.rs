//! `rdma-probe decode`: what the bytes of work queue and completion queue entries say.
//!
//! Fields are found by the tables of the software ConnectX (`softcx::bits`), not by the library's: a decoder that shared
//! those with the provider that writes the entries would agree with its mistakes.

pub mod args;
mod cause;
mod completion;
mod field;
mod guess;
mod input;
mod receive;
mod send;

pub use cause::Cause;
pub use field::Field;
pub use send::Layout;

use crate::both;
use crate::failure::{Failure, Kind as FailureKind};
use crate::output::Output;
use args::Decode;
use field::{Fields, Hex};
use serde::Serialize;
use softcx::bits::cqe;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a text that are read at most.
const MOST_TEXT: u64 = 16 << 20;

/// Fields, and entries, of which a JSON document is made at most, for it is made in memory.
const MOST_IN_JSON: usize = 1 << 19;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Send work queue entry.
    SendWqe,
    /// Receive work queue entry of a queue pair.
    RecvWqe,
    /// Receive work queue entry of a shared receive queue.
    SrqWqe,
    /// Completion queue entry.
    Cqe,
    /// Completions of sends, packed behind an entry that stands for all of them.
    PackedSends,
    /// Completions of receives, packed behind an entry that stands for all of them.
    PackedReceives,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendWqe => "send WQE",
            Self::RecvWqe => "receive WQE",
            Self::SrqWqe => "shared receive WQE",
            Self::Cqe => "CQE",
            Self::PackedSends => "packed CQEs of sends",
            Self::PackedReceives => "packed CQEs of receives",
        })
    }
}

/// Result of `rdma-probe decode`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DecodeReport {
    /// The entries, in the order of the input.
    pub records: Vec<Record>,
}

/// An entry, taken apart.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Record {
    /// The input: the name of a file, `-` for standard input, or `argument`.
    pub source: String,
    /// The line of the input on which its dump begins, from 1.
    pub line: usize,
    /// The line of text before the dump.
    pub label: Option<String>,
    /// What it is.
    pub kind: Kind,
    /// Whether nobody said so, and the bytes were asked.
    pub kind_guessed: bool,
    /// What it is, in short.
    pub summary: String,
    /// Why the work request failed, if the entry is an error completion.
    pub failure: Option<Cause>,
    /// Its bytes, as hexadecimal digits.
    pub bytes: String,
    /// Its fields.
    pub fields: Vec<Field>,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

/// An entry of which the kind is known, taken apart.
pub struct Decoded {
    /// What it is, in short.
    pub summary: String,
    /// Why the work request failed, if it did.
    pub failure: Option<Cause>,
    /// Its fields.
    pub fields: Vec<Field>,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

impl Decoded {
    /// Of these bytes. Nothing in them is wrong enough to have no answer.
    pub fn of(kind: Kind, layout: Option<Layout>, bytes: &[u8]) -> Self {
        let mut fields = Fields::of(bytes);
        let mut failure = None;
        let summary = match kind {
            Kind::SendWqe => send::decode(&mut fields, bytes, layout),
            Kind::RecvWqe => receive::decode(&mut fields, bytes, false),
            Kind::SrqWqe => receive::decode(&mut fields, bytes, true),
            Kind::PackedSends => completion::decode_packed(&mut fields, bytes, true),
            Kind::PackedReceives => completion::decode_packed(&mut fields, bytes, false),
            Kind::Cqe => {
                let (summary, cause) = completion::decode(&mut fields, bytes);
                failure = cause;
                summary
            }
        };
        let Fields { list, problems, .. } = fields;
        Self { summary, failure, fields: list, problems }
    }

    /// Bytes that a send work queue entry says to have, of which this is the first block; zero if it is none.
    pub fn send_bytes(block: &[u8]) -> usize {
        send::len_bytes(block)
    }

    /// On one line: in short, and the fields that are not zero.
    pub fn line(&self) -> String {
        let mut line = self.summary.clone();
        let mut segment = "";
        for field in self.fields.iter().filter(|field| !field.is_zero()) {
            if field.segment != segment {
                segment = &field.segment;
                line += &format!(" | {segment}");
            }
            line += &format!(" {}={}", field.name, field.value);
        }
        self.problems.iter().for_each(|problem| line += &format!(" | {problem}"));
        line
    }
}

/// Decodes what the command line names, and prints each entry at once. The report has them for JSON. The failure tells that
/// there was nothing, that it was too much, or that something is damaged.
pub fn decode(args: &Decode, output: &mut Output) -> (Option<DecodeReport>, Result<(), Failure>) {
    let mut told = Told { output, records: Vec::new(), weight: 0, count: 0, damaged: 0, written: Ok(()) };
    let result = inputs(&args.input, |source, text| records_of(source, text, args, &mut |record| told.tell(record)));
    let Told { records, count, damaged, written, .. } = told;
    let report = (count > 0).then_some(DecodeReport { records });
    let found = result.and_then(|()| match (count, damaged) {
        (0, _) => Err(Failure::new(FailureKind::Usage, "there is no dump of a WQE or CQE in the input")
            .hint("give its lines, hexadecimal, as an argument, in a file, or on standard input; a kernel log without one tells of no failure")),
        (_, 0) => Ok(()),
        (count, n) => Err(Failure::new(FailureKind::Data, format!("{n} of {count} entries are damaged or cut off"))
            .hint("each says what is wrong with it; --wqe, --recv-wqe, --srq-wqe, --cqe and --qp say what it is")),
    });
    (report, both(found, written))
}

impl From<input::TooMuch> for Failure {
    fn from(_: input::TooMuch) -> Self {
        let what = format!("the dumps of a text have more than {} bytes together", input::MOST_TOGETHER);
        Self::new(FailureKind::Usage, what).hint("cut out those that are of interest")
    }
}

/// What was told so far.
struct Told<'a> {
    output: &'a mut Output,
    /// All of them, if JSON is made of them.
    records: Vec<Record>,
    weight: usize,
    count: usize,
    damaged: usize,
    /// Whether the text of all of them could be written.
    written: Result<(), Failure>,
}

impl Told<'_> {
    fn tell(&mut self, record: Record) -> Result<(), Failure> {
        if self.output.makes_json() {
            self.weight += record.fields.len() + 1;
            if self.weight > MOST_IN_JSON {
                let what =
                    format!("the entries have more than {MOST_IN_JSON} fields together, too many for a JSON document");
                return Err(Failure::new(FailureKind::Usage, what)
                    .hint("cut out those that are of interest, or leave --json out"));
            }
        }
        let between = if self.count == 0 { "" } else { "\n" };
        if self.written.is_ok() {
            self.written = self.output.text(format_args!("{between}{record}"));
        }
        self.count += 1;
        self.damaged += usize::from(!record.problems.is_empty());
        if self.output.makes_json() {
            // There it is complete, even if no more text can be written.
            self.records.push(record);
            return Ok(());
        }
        std::mem::replace(&mut self.written, Ok(()))
    }
}

/// Every entry in a text, until `each` fails.
fn records_of(
    source: &str,
    text: &str,
    args: &Decode,
    each: &mut dyn FnMut(Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cqe_bytes = args.cqe_size.map(usize::from);
    input::dumps(text, |dump| {
        let mut problems = dump.problems;
        let kind = args.kind().or(dump.kind);
        // A line that says what it is has one entry.
        let cqe_bytes = cqe_bytes.or(dump.kind.map(|_| dump.bytes.len()).filter(|len| *len > cqe::BYTES));
        for entry in guess::entries(&dump.bytes, dump.label.as_deref(), kind, cqe_bytes) {
            let bytes = &dump.bytes[entry.range];
            let decoded = Decoded::of(entry.kind, args.qp.map(Layout::from).or(dump.layout), bytes);
            // What is wrong with the text is told once.
            problems.extend(decoded.problems);
            each(Record {
                source: source.to_owned(),
                line: dump.line,
                label: dump.label.clone(),
                kind: entry.kind,
                kind_guessed: entry.guessed,
                summary: decoded.summary,
                failure: decoded.failure,
                bytes: Hex(bytes).to_string(),
                fields: decoded.fields,
                problems: std::mem::take(&mut problems),
            })?;
        }
        if problems.is_empty() {
            return Ok(());
        }
        // Not one byte could be read.
        let decoded = Decoded::of(args.kind().unwrap_or(Kind::Cqe), None, &[]);
        each(Record {
            source: source.to_owned(),
            line: dump.line,
            label: dump.label,
            kind: args.kind().unwrap_or(Kind::Cqe),
            kind_guessed: args.kind().is_none(),
            summary: "nothing that could be read".to_owned(),
            failure: None,
            bytes: String::new(),
            fields: decoded.fields,
            problems,
        })
    })
}

/// Texts to look through, with their names, one after the other. Arguments are digits if all of them are; otherwise they are
/// files.
fn inputs(arguments: &[String], mut each: impl FnMut(&str, &str) -> Result<(), Failure>) -> Result<(), Failure> {
    if arguments.is_empty() {
        return each("-", &read(&mut io::stdin().lock(), "standard input")?);
    }
    let text = arguments.join(" ");
    let is_digits = |c: char| c.is_ascii_hexdigit() || c.is_whitespace() || "xX,;:*{}".contains(c);
    if text.chars().all(is_digits) && text.chars().any(|c| c.is_ascii_hexdigit()) && !Path::new(&arguments[0]).exists()
    {
        return each("argument", &text);
    }
    arguments.iter().try_for_each(|name| match name.as_str() {
        "-" => each("-", &read(&mut io::stdin().lock(), "standard input")?),
        // Lines of a log, given as they are.
        name if name.contains('\n') => each("argument", name),
        name => {
            let mut file = File::open(name).map_err(|e| {
                Failure::new(FailureKind::Usage, format!("cannot open {name}: {e}"))
                    .hint("an argument is hexadecimal digits, a file's name, or - for standard input")
            })?;
            each(name, &read(&mut file, name)?)
        }
    })
}

fn read(from: &mut impl Read, name: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let failed = |e: io::Error| Failure::new(FailureKind::Usage, format!("cannot read {name}: {e}"));
    from.take(MOST_TEXT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_TEXT {
        let text = format!("{name} has more than {MOST_TEXT} bytes");
        return Err(Failure::new(FailureKind::Usage, text).hint("cut out the lines of the dump"));
    }
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guessed = if self.kind_guessed { ", as it seems" } else { "" };
        let label = self.label.as_ref().map_or(String::new(), |label| format!(" ({label})"));
        writeln!(f, "{}{guessed}, {} line {}{label}", self.kind, self.source, self.line)?;
        writeln!(f, "  {}", self.summary)?;
        if let Some(cause) = &self.failure {
            writeln!(f, "  status:           {} ({})", cause.status, cause.status_number)?;
            writeln!(f, "  syndrome:         {:#04x}, {}", cause.syndrome, cause.syndrome_name)?;
            writeln!(f, "  vendor syndrome:  {:#04x}, {}", cause.vendor_syndrome, cause.vendor_note)?;
            writeln!(f, "  usual causes:     {}", cause.usual_causes)?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "  damaged:          {problem}"))?;
        let mut table = crate::table::Table::new(["  BYTE", "BITS", "FIELD", "VALUE", "MEANING"]);
        for field in &self.fields {
            table.row([
                format!("  {}", field.offset_bytes),
                field.bits.clone().unwrap_or_default(),
                format!("{}.{}", field.segment, field.name),
                shortened(&field.value),
                field.meaning.clone().unwrap_or_default(),
            ]);
        }
        table.fmt(f)
    }
}

/// Digits that would not fit on a line, as many as do.
fn shortened(value: &str) -> String {
    const MOST: usize = 66;
    match value.get(..MOST) {
        Some(start) if value.len() > MOST => format!("{start}…"),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests;
