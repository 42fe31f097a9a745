//! The rings of an mlx5 device, read beside the program that posts to them and polls them.
//!
//! A real device shows nothing of what it reads and writes. But its rings are memory of this process, and the commands that
//! made the queues say where: they are recorded, and the memory is read through `/proc/self/mem`, where the kernel copies, so
//! that nobody has a reference to bytes that a device may change. A look after each step of the ping finds what was posted
//! and completed since the last one.

use super::Lines;
use crate::decode::{Decoded, Kind, Layout};
use ironverbs::sys::{Record, Recorded};
use softcx::bits::wqe::{BB_BYTES, srq_next};
use softcx::bits::{array, be16, be32, cqe, doorbell};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Entries that one look shows of a queue at most: as many as the longest ring has.
const MOST_AT_ONCE: u32 = 1 << 16;

/// What was found of the rings, and how far they have been shown.
pub struct Rings {
    record: Record,
    lines: Lines,
    memory: Option<File>,
    sends: Vec<SendRing>,
    receives: Vec<RecvRing>,
    completions: Vec<CqRing>,
}

struct SendRing {
    at: u64,
    blocks: u32,
    record: u64,
    layout: Layout,
    shown: u16,
}

struct RecvRing {
    /// Of the queue pair, or of the shared queue.
    number: u32,
    at: u64,
    entries: u32,
    log2_stride: u32,
    record: u64,
    /// A shared queue is a list: the entry to be posted next.
    next: Option<u16>,
    shown: u16,
}

struct CqRing {
    number: u32,
    at: u64,
    log2_entries: u32,
    entry_bytes: u32,
    consumed: u32,
}

impl Rings {
    /// Of the devices whose commands `record` keeps.
    pub fn new(record: Record, lines: Lines) -> Self {
        let memory = File::open("/proc/self/mem").inspect_err(|e| {
            lines.put(format_args!("no work queue entries are shown: cannot open /proc/self/mem: {e}"))
        });
        let memory = memory.ok();
        Self { record, lines, memory, sends: Vec::new(), receives: Vec::new(), completions: Vec::new() }
    }

    /// Shows what was posted and completed since the last look.
    pub fn look(&mut self) {
        for command in self.record.take() {
            self.learn(&command);
        }
        let Self { lines, memory: Some(memory), sends, receives, completions, .. } = self else { return };
        // Memory that cannot be read is that of a queue that is gone.
        sends.retain_mut(|ring| ring.look(memory, lines).is_some());
        receives.retain_mut(|ring| ring.look(memory, lines).is_some());
        completions.retain_mut(|ring| ring.look(memory, lines).is_some());
    }

    /// Takes note of queues that come and go. Where some go, all of their kind do: a ping begins anew, or ends.
    fn learn(&mut self, command: &Recorded) {
        if command.result.is_err() {
            return;
        }
        match command.name.as_str() {
            "QP.CREATE" => drop(self.learn_qp(command)),
            "CQ.CREATE" => drop(self.learn_cq(command)),
            "SRQ.CREATE" => drop(self.learn_srq(command)),
            "QP.DESTROY" => {
                self.sends.clear();
                self.receives.retain(|ring| ring.next.is_some());
            }
            "CQ.DESTROY" => self.completions.clear(),
            "SRQ.DESTROY" => self.receives.retain(|ring| ring.next.is_none()),
            _ => {}
        }
    }

    fn learn_qp(&mut self, command: &Recorded) -> Option<()> {
        let driver = driver_input(command)?;
        let (at, record) = (word(driver, 0)?, word(driver, 8)?);
        let (blocks, entries, log2_stride) = (half(driver, 16)?, half(driver, 20)?, half(driver, 24)?);
        if log2_stride > 16 || !(blocks.is_power_of_two() || blocks == 0) {
            return None;
        }
        let layout = match value(command, attribute::QP_TYPE)? {
            QP_TYPE_UD => Layout::Datagram,
            QP_TYPE_XRC_INI => Layout::Xrc,
            _ => Layout::Connected,
        };
        if entries.is_power_of_two() {
            let number = output(command, attribute::QP_NUM)?;
            self.receives.push(RecvRing { number, at, entries, log2_stride, record, next: None, shown: 0 });
        }
        if blocks > 0 {
            let at = at + (u64::from(entries) << log2_stride);
            self.sends.push(SendRing { at, blocks, record, layout, shown: 0 });
        }
        Some(())
    }

    fn learn_cq(&mut self, command: &Recorded) -> Option<()> {
        let driver = driver_input(command)?;
        let (at, entry_bytes) = (word(driver, 0)?, half(driver, 16)?);
        let entries = (value(command, attribute::CQ_ENTRIES)? as u32).checked_add(1)?.checked_next_power_of_two()?;
        if !matches!(entry_bytes, 64 | 128) {
            return None;
        }
        let number = output(command, attribute::DRIVER_OUTPUT)?;
        self.completions.push(CqRing { number, at, log2_entries: entries.ilog2(), entry_bytes, consumed: 0 });
        Some(())
    }

    fn learn_srq(&mut self, command: &Recorded) -> Option<()> {
        let driver = driver_input(command)?;
        let (at, record) = (word(driver, 0)?, word(driver, 8)?);
        let (max_wr, max_sge) =
            (value(command, attribute::SRQ_MAX_WR)? as u32, value(command, attribute::SRQ_MAX_SGE)? as u32);
        let entries = max_wr.checked_add(1)?.checked_next_power_of_two()?;
        let stride = max_sge.checked_mul(16)?.checked_add(16)?.checked_next_power_of_two()?.max(32);
        let number = output(command, attribute::DRIVER_OUTPUT)?;
        self.receives.push(RecvRing {
            number,
            at,
            entries,
            log2_stride: stride.ilog2(),
            record,
            next: Some(0),
            shown: 0,
        });
        Some(())
    }
}

/// Attributes of the commands, by number (`ib_user_ioctl_cmds.h`).
mod attribute {
    pub const DRIVER_INPUT: u16 = 0x1000;
    /// Of a completion queue or a shared receive queue: its number comes first.
    pub const DRIVER_OUTPUT: u16 = 0x1001;
    pub const QP_NUM: u16 = 14;
    pub const CQ_ENTRIES: u16 = 1;
    pub const QP_TYPE: u16 = 9;
    pub const SRQ_MAX_WR: u16 = 5;
    pub const SRQ_MAX_SGE: u16 = 6;
}

/// `enum ib_uverbs_qp_type`.
const QP_TYPE_UD: u64 = 4;
const QP_TYPE_XRC_INI: u64 = 9;

fn driver_input(command: &Recorded) -> Option<&[u8]> {
    command.inputs.iter().find(|(id, _)| *id == attribute::DRIVER_INPUT).map(|(_, bytes)| bytes.as_slice())
}

/// The first word of what the device wrote there.
fn output(command: &Recorded, id: u16) -> Option<u32> {
    command.outputs.iter().find(|(other, _)| *other == id).and_then(|(_, bytes)| half(bytes, 0))
}

/// The value of an attribute that is part of the command: 24 bytes of header, then 16 for each attribute.
fn value(command: &Recorded, id: u16) -> Option<u64> {
    let attributes = command.bytes.get(24..)?.chunks_exact(16);
    attributes.into_iter().find(|a| u16::from_ne_bytes(array(a, 0)) == id).map(|a| u64::from_ne_bytes(array(a, 8)))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read<const N: usize>(memory: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    memory.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

impl SendRing {
    fn look(&mut self, memory: &File, lines: &Lines) -> Option<()> {
        let rung = be32(&read::<4>(memory, self.record + doorbell::RECORD_SEND)?, 0) as u16;
        while self.shown != rung {
            let head = self.block(memory, self.shown)?;
            let blocks = (Decoded::send_bytes(&head).div_ceil(BB_BYTES) as u16).max(1);
            let mut bytes = Vec::new();
            for i in 0..blocks.min(rung.wrapping_sub(self.shown)) {
                bytes.extend(self.block(memory, self.shown.wrapping_add(i))?);
            }
            bytes.truncate(Decoded::send_bytes(&head).max(16));
            let qpn = be32(&head, 4) >> 8;
            let decoded = Decoded::of(Kind::SendWqe, Some(self.layout), &bytes);
            lines.put(format_args!("QP {qpn:#08x} send WQE: {}", decoded.line()));
            self.shown = self.shown.wrapping_add(blocks.min(rung.wrapping_sub(self.shown)));
        }
        Some(())
    }

    fn block(&self, memory: &File, counter: u16) -> Option<[u8; BB_BYTES]> {
        read(memory, self.at + u64::from(u32::from(counter) & (self.blocks - 1)) * BB_BYTES as u64)
    }
}

impl RecvRing {
    fn look(&mut self, memory: &File, lines: &Lines) -> Option<()> {
        let posted = be32(&read::<4>(memory, self.record + doorbell::RECORD_RECV)?, 0) as u16;
        while self.shown != posted {
            let index = self.next.unwrap_or(self.shown);
            let place = u64::from(u32::from(index) & (self.entries - 1));
            let mut bytes = vec![0; 1 << self.log2_stride];
            memory.read_exact_at(&mut bytes, self.at + (place << self.log2_stride)).ok()?;
            let (queue, kind) = if self.next.is_some() { ("SRQ", Kind::SrqWqe) } else { ("QP", Kind::RecvWqe) };
            let number = self.number;
            lines.put(format_args!(
                "{queue} {number:#x} receive WQE {index}: {}",
                Decoded::of(kind, None, &bytes).line()
            ));
            if let Some(next) = &mut self.next {
                *next = be16(&bytes, srq_next::NEXT_INDEX);
            }
            self.shown = self.shown.wrapping_add(1);
        }
        Some(())
    }
}

impl CqRing {
    fn look(&mut self, memory: &File, lines: &Lines) -> Option<()> {
        for _ in 0..MOST_AT_ONCE {
            let place = u64::from(self.consumed & ((1 << self.log2_entries) - 1)) * u64::from(self.entry_bytes);
            let body = self.at + place + u64::from(self.entry_bytes) - cqe::BYTES as u64;
            let bytes: [u8; cqe::BYTES] = read(memory, body)?;
            let op_own = bytes[cqe::OP_OWN];
            let pass = (self.consumed >> self.log2_entries & 1) as u8;
            if op_own >> 4 == cqe::opcode::INVALID || op_own & 1 != pass {
                return Some(());
            }
            lines.put(format_args!("CQ {:#x} CQE: {}", self.number, Decoded::of(Kind::Cqe, None, &bytes).line()));
            self.consumed = self.consumed.wrapping_add(1);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use crate::machine::Machine;
    use crate::output::Output;
    use crate::ping;
    use crate::sim::SimLink;
    use crate::stop::Stop;
    use crate::trace::Lines;
    use clap::Parser;
    use std::path::Path;

    /// The lines about entries, without the time and the device.
    fn entries(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        let entries = text.lines().filter(|line| line.contains("QE: ") || line.contains(" receive WQE "));
        let untimed = entries.filter_map(|line| line.trim_start().split_once(' ')).map(|(_, entry)| entry);
        let mut found: Vec<String> = untimed.map(|e| e.strip_prefix("sim0 ").unwrap_or(e).to_owned()).collect();
        found.sort();
        found
    }

    /// What is read from the rings is what the device, which reads and writes them, says of itself.
    #[test]
    fn the_rings_hold_what_the_device_sees() {
        for transport in ["rc", "uc", "ud", "srq", "xsrq"] {
            let line = ["rdma-probe", "ping", "--sim", "--loopback", "-n", "400", "-r", "16", "-t", transport];
            let Command::Ping(args) = Cli::try_parse_from(line).unwrap().command else { panic!() };
            let path =
                |name| std::env::temp_dir().join(format!("rdma-probe-{name}-{transport}-{}", std::process::id()));
            let (device, rings) = (path("device"), path("rings"));
            let (seen, read) = (Lines::open(&device).unwrap(), Lines::open(&rings).unwrap());
            let machine = Machine::simulated(SimLink::Roce, 0).with_rings(&read).traced(&seen);
            let devices = machine.devices().unwrap();
            let mut output = Output::open(None, true).unwrap();
            output.close();
            let (_, result) = ping::ping(&machine, &devices, &args, &mut output, &Stop::never().unwrap());
            result.unwrap();
            let (seen, read) = (entries(&device), entries(&rings));
            // The device flushes what is left when the queue pairs go; that is after the last look.
            let missing: Vec<_> =
                seen.iter().filter(|line| !read.contains(line) && !line.contains("flushed")).collect();
            assert!(missing.is_empty(), "{transport}: {missing:#?}");
            let invented: Vec<_> = read.iter().filter(|line| !seen.contains(line)).collect();
            assert!(invented.is_empty(), "{transport}: {invented:#?}");
            assert!(
                read.iter().filter(|line| line.contains(" send WQE: SEND, index")).count() == 800,
                "{transport}: {read:#?}"
            );
        }
    }
}
