//! Keeps the bytes of every command.

use super::command::WriteParts;
use super::names::Shape;
use super::{Command, CommandForm, Exchange, Observer, observe_cdev, observe_sys};
use crate::uverbs::abi::ioctl::Attr;
use crate::uverbs::abi::write::{CmdHdr, CreateCq, command};
use crate::uverbs::errno::Errno;
use crate::uverbs::sys::{Cdev, Sys};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Keeps every command that passes: its bytes, the inputs that it points to, and the answer.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// use ironverbs::sys::{Linux, Record};
/// let record = Record::new();
/// let host = record.wrap_sys(std::sync::Arc::new(Linux::new()));
/// for device in host.devices()? {
///     drop(ironverbs::Context::open_on(&*host, &device)?);
/// }
/// for command in record.take() {
///     println!("{command}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Record(Arc<Log>);

#[derive(Default)]
struct Log(Mutex<Vec<Recorded>>);

/// A command that was sent.
///
/// Prints as hex, one part a line and each with its name after a `#`, addresses as `->` (an input follows) or `<-` (room
/// for an output), file descriptors of others as `fd`: two runs print the same.
///
/// ```no_run
/// # fn f(record: &ironverbs::sys::Record) -> Result<(), ironverbs::Error> {
/// for command in record.take() {
///     println!("{}: {:?}", command.name, command.result);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// Its name: see [`Command::name`].
    pub name: String,
    /// How it reached the device.
    pub form: CommandForm,
    /// Its own bytes as sent, addresses included.
    pub bytes: Vec<u8>,
    /// The inputs that it pointed to: attribute number and bytes.
    pub inputs: Vec<(u16, Vec<u8>)>,
    /// What the device wrote to where it pointed, if it succeeded: attribute number and bytes. Of ioctls.
    pub outputs: Vec<(u16, Vec<u8>)>,
    /// What came back.
    pub result: Result<(), Errno>,
    text: String,
}

impl Record {
    /// With nothing recorded.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same file, with its commands recorded.
    pub fn wrap(&self, cdev: Arc<dyn Cdev>) -> Arc<dyn Cdev> {
        observe_cdev(&self.0, cdev)
    }

    /// The same devices, with the commands of every file opened from here on recorded.
    pub fn wrap_sys(&self, sys: Arc<dyn Sys>) -> Arc<dyn Sys> {
        observe_sys(&self.0, sys)
    }

    /// Takes out what was recorded so far, in order.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Log {
    fn after(&self, exchange: &Exchange<'_>) {
        let sent = &exchange.sent;
        let memory_of = |command: &Command<'_>, shape| {
            let spec = |attr: &Attr| command.known_method().and_then(|m| m.attr(attr.attr_id));
            let wanted = command.attrs().filter(|attr| spec(attr).is_some_and(|spec| spec.shape == shape));
            wanted.filter_map(|attr| Some((attr.attr_id, command.memory(&attr)?.to_vec()))).collect::<Vec<_>>()
        };
        let mut text = String::new();
        let written = write_text(sent, &mut text);
        debug_assert!(written.is_ok(), "a String takes everything");
        let recorded = Recorded {
            name: sent.name(),
            form: sent.form(),
            bytes: sent.words().as_bytes().to_vec(),
            inputs: memory_of(sent, Shape::In),
            outputs: exchange.result.map_or_else(|_| Vec::new(), |()| memory_of(&exchange.answered, Shape::Out)),
            result: exchange.result,
            text,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Record")
    }
}

fn write_text(command: &Command<'_>, out: &mut String) -> fmt::Result {
    match command.form() {
        CommandForm::Ioctl => {
            writeln!(out, "ioctl {}", command.name())?;
            write_ioctl(command, out)
        }
        CommandForm::Write => {
            writeln!(out, "{}", command.name())?;
            write_write(command, out)
        }
        CommandForm::Map | CommandForm::Open => writeln!(out, "{command}"),
    }
}

fn write_ioctl(command: &Command<'_>, out: &mut String) -> fmt::Result {
    let Some(hdr) = command.ioctl_header() else { return Ok(()) };
    line(out, "  ", &[hdr.as_bytes()], "length object method attributes, reserved, driver, reserved")?;
    for attr in command.attrs() {
        let spec = command.known_method().and_then(|m| m.attr(attr.attr_id));
        let name = spec.map_or("?", |spec| spec.name);
        let head = &attr.as_bytes()[..8];
        match (command.memory(&attr), spec.map(|s| s.shape)) {
            (Some(bytes), Some(Shape::In)) => {
                writeln!(out, "  {} ->  # {name}", hex(head))?;
                write_request(command.write_number(), 0, bytes, "    ", out)?;
            }
            (Some(_), _) => writeln!(out, "  {} <-  # {name}", hex(head))?,
            (None, Some(Shape::Fd)) => writeln!(out, "  {} fd  # {name}", hex(head))?,
            (None, _) => line(out, "  ", &[head, attr.data.as_bytes()], name)?,
        }
    }
    Ok(())
}

fn write_write(command: &Command<'_>, out: &mut String) -> fmt::Result {
    let bytes = command.words().as_bytes();
    let Some((header, mut request)) = bytes.split_at_checked(size_of::<CmdHdr>()) else { return Ok(()) };
    line(out, "  ", &[header], "command in_words out_words")?;
    let mut skipped = 0;
    if WriteParts::of(command.words()).is_some_and(|parts| parts.has_response) {
        writeln!(out, "  <-  # response")?;
        skipped = size_of::<u64>();
        request = &request[skipped..];
    }
    write_request(command.write_number(), skipped, request, "  ", out)
}

/// Writes a request, or its end after `skipped` bytes. File descriptors differ from run to run, so `fd` stands for them.
fn write_request(number: Option<u32>, skipped: usize, bytes: &[u8], indent: &str, out: &mut String) -> fmt::Result {
    const CHANNEL: std::ops::Range<usize> = {
        let start = std::mem::offset_of!(CreateCq, comp_channel);
        start..start + size_of::<i32>()
    };
    let (before, fd, after) = match number {
        Some(command::CREATE_CQ) if bytes.len() > CHANNEL.end - skipped => {
            let (before, rest) = bytes.split_at(CHANNEL.start - skipped);
            let (fd, after) = rest.split_at(CHANNEL.len());
            (before, fd, after)
        }
        _ => (bytes, [].as_slice(), [].as_slice()),
    };
    for bytes in before.chunks(32) {
        line(out, indent, &[bytes], "")?;
    }
    match fd {
        [] => {}
        [0xff, ..] => line(out, indent, &[fd], "")?,
        _ => writeln!(out, "{indent}fd")?,
    }
    for bytes in after.chunks(32) {
        line(out, indent, &[bytes], "")?;
    }
    Ok(())
}

fn line(out: &mut String, indent: &str, parts: &[&[u8]], comment: &str) -> fmt::Result {
    let hex: Vec<String> = parts.iter().map(|part| hex(part)).collect();
    let comment = if comment.is_empty() { String::new() } else { format!("  # {comment}") };
    writeln!(out, "{indent}{}{comment}", hex.join(" "))
}

/// Bytes in their order, a gap after each fourth.
fn hex(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(4).map(|group| group.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    groups.join(" ")
}
