//! A record of what passes between rings and adapters.

use crate::command_line::time_unit;
use softcx::{DeviceId, Entry, Fabric, SendWqe, Tapped, WrongDevice, scatter_list};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A file with a line for each entry: seconds, device, kind of entry, numbers, the bytes in hexadecimal; behind `#` what they say.
pub(crate) struct Recorder(Arc<Mutex<Recorded>>);

struct Recorded {
    file: BufWriter<File>,
    /// Why something is not in the file.
    failed: Option<io::Error>,
}

impl Recorder {
    pub fn create(path: &Path, slowdown: u32) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(file, "{}", time_unit(slowdown))?;
        Ok(Self(Arc::new(Mutex::new(Recorded { file, failed: None }))))
    }

    /// Records what a device does from now on.
    pub fn watch(&self, fabric: &Fabric, id: DeviceId) -> Result<(), WrongDevice> {
        let recorded = Arc::clone(&self.0);
        let record =
            move |tapped: &Tapped<'_>| recorded.lock().unwrap_or_else(PoisonError::into_inner).add(&Line(tapped));
        fabric.with(id, |device| device.control().tap(record))
    }

    /// Everything is in the file.
    pub fn finish(&self) -> io::Result<()> {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.failed.take().map_or_else(|| recorded.file.flush(), Err)
    }
}

impl Recorded {
    /// Ends with the first line that cannot be written, which is told at the end: one with a gap would be taken for the whole.
    fn add(&mut self, line: &dyn fmt::Display) {
        if self.failed.is_none() {
            self.failed = writeln!(self.file, "{line}").err();
        }
    }
}

struct Line<'a>(&'a Tapped<'a>);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tapped { device, at, entry } = self.0;
        write!(f, "{:.6} {device} ", at.as_secs_f64())?;
        match *entry {
            Entry::Send { qpn, kind, index, blocks, copied, bytes } => {
                let from = if copied { "copy" } else { "ring" };
                let hex = Hex(bytes);
                write!(f, "send qp={qpn:#x} kind={kind:?} index={index} blocks={blocks} from={from} hex={hex} # ")?;
                match SendWqe::decode(bytes, kind) {
                    Ok(wqe) => write!(f, "{wqe:?}"),
                    Err(why) => f.write_str(why),
                }
            }
            Entry::Receive { number, linked, index, bytes } => {
                let (queue, head) = if linked { ("srq", 16) } else { ("qp", 0) };
                let list = scatter_list(bytes.get(head..).unwrap_or_default());
                write!(f, "receive {queue}={number:#x} index={index} hex={} # {list:?}", Hex(bytes))
            }
            Entry::Completion { cqn, index, bytes, before } => {
                let before = Hex(before.unwrap_or_default());
                write!(f, "completion cq={cqn:#x} index={index} hex={before}{}", Hex(bytes))?;
                describe_completion(f, bytes)
            }
            Entry::Packed { cqn, index, is_send, bytes } => {
                let what = if is_send { "sends" } else { "receives" };
                let count = bytes.len() / 8;
                write!(f, "packed cq={cqn:#x} index={index} of={what} hex={} # {count} completions", Hex(bytes))
            }
            _ => f.write_str("unknown"),
        }
    }
}

fn describe_completion(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    use softcx::bits::{be16, be32, cqe};
    let Some(last) = bytes.get(cqe::OP_OWN) else { return Ok(()) };
    let sop_qpn = be32(bytes, cqe::SOP_QPN);
    write!(f, " # opcode {}, QP {:#x}, counter {}", last >> 4, sop_qpn & 0xff_ffff, be16(bytes, cqe::WQE_COUNTER))?;
    match last >> 4 {
        cqe::opcode::REQ_ERR | cqe::opcode::RESP_ERR => write!(f, ", syndrome {:#x}", bytes[cqe::SYNDROME]),
        _ => write!(f, ", send opcode {:#x}, {} bytes", sop_qpn >> 24, be32(bytes, cqe::BYTE_CNT)),
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(2 * self.0.len());
        self.0.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_could_not_be_written_is_told_at_the_end() {
        let full = BufWriter::with_capacity(8, File::options().write(true).open("/dev/full").unwrap());
        let mut recorded = Recorded { file: full, failed: None };
        recorded.add(&"longer than the buffer");
        // The disk has room again.
        recorded.file = BufWriter::new(File::options().write(true).open("/dev/null").unwrap());
        recorded.add(&"another");
        let error = Recorder(Arc::new(Mutex::new(recorded))).finish().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
