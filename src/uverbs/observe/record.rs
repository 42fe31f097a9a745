//! Keeps the bytes of every command.

use super::command::WriteParts;
use super::names::Shape;
use super::{Command, CommandForm, Exchange, Observer, observe_cdev, observe_sys};
use crate::uverbs::abi::ioctl::Attr;
use crate::uverbs::errno::Errno;
use crate::uverbs::sys::{Cdev, Sys};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Keeps every command that passes: its bytes, the inputs that it points to, and the answer.
#[derive(Clone, Default)]
pub struct Record(Arc<Log>);

#[derive(Default)]
struct Log(Mutex<Vec<Recorded>>);

/// A command that was sent.
///
/// Prints as hex, one part a line and each with its name after a `#`, addresses as `->` (an input follows) or `<-` (room
/// for an output), so that two runs print the same.
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
        let is_input = |attr: &Attr| {
            sent.known_method().and_then(|m| m.attr(attr.attr_id)).is_some_and(|spec| spec.shape == Shape::In)
        };
        let mut text = String::new();
        let written = write_text(sent, &mut text);
        debug_assert!(written.is_ok(), "a String takes everything");
        let recorded = Recorded {
            name: sent.name(),
            form: sent.form(),
            bytes: sent.words().as_bytes().to_vec(),
            inputs: sent
                .attrs()
                .filter(is_input)
                .filter_map(|attr| Some((attr.attr_id, sent.memory(&attr)?.to_vec())))
                .collect(),
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
                for bytes in bytes.chunks(32) {
                    line(out, "    ", &[bytes], "")?;
                }
            }
            (Some(_), _) => writeln!(out, "  {} <-  # {name}", hex(head))?,
            // The number differs from run to run.
            (None, Some(Shape::Fd)) => writeln!(out, "  {} fd  # {name}", hex(head))?,
            (None, _) => line(out, "  ", &[head, attr.data.as_bytes()], name)?,
        }
    }
    Ok(())
}

fn write_write(command: &Command<'_>, out: &mut String) -> fmt::Result {
    let words = command.words();
    let response_at = WriteParts::of(words).and_then(|parts| parts.response_at).map(|at| at / 8);
    for (i, word) in words.iter().enumerate() {
        match i {
            0 => line(out, "  ", &[word.as_bytes()], "command in_words out_words")?,
            i if Some(i) == response_at => writeln!(out, "  <-  # response")?,
            _ => line(out, "  ", &[word.as_bytes()], "")?,
        }
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
