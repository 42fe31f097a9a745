//! The command queue: entries and mailboxes in the driver's memory, with their tokens and signatures.

use crate::bits::firmware::{block, delivery, entry};
use crate::bits::{array, be32, be64, put};
use crate::memory::{BusError, Memory};

/// Fewest bytes of a command or its answer.
const MIN_BYTES: usize = 8;
/// Most bytes of a command or its answer: what bounds how much a damaged entry can ask for.
const MAX_BYTES: usize = 1 << 20;

/// A command taken from its entry.
#[derive(Debug)]
pub(super) struct Taken {
    /// Bus address of the entry.
    at: u64,
    entry: [u8; entry::BYTES],
    /// The whole input.
    pub input: Vec<u8>,
    /// Bytes that the output has room for.
    pub room: usize,
}

/// Why there is no command in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The entry is software's.
    Software,
    /// This delivery status has been written into it.
    Refused(u8),
}

/// Takes the command out of the entry at `at`.
pub(super) fn take(memory: &dyn Memory, at: u64) -> Result<Result<Taken, NotTaken>, BusError> {
    /// In the byte of the delivery status: the entry is the device's.
    const OWNED: u8 = 1;
    let mut bytes = [0; entry::BYTES];
    memory.read(at, &mut bytes)?;
    if bytes[entry::STATUS_OWN] & OWNED == 0 {
        return Ok(Err(NotTaken::Software));
    }
    let taken = read(memory, at, &bytes);
    Ok(match taken {
        Ok(taken) => Ok(taken),
        Err(status) => {
            finish(memory, at, bytes, status)?;
            Err(NotTaken::Refused(status))
        }
    })
}

fn read(memory: &dyn Memory, at: u64, bytes: &[u8; entry::BYTES]) -> Result<Taken, u8> {
    if bytes[entry::TYPE] != entry::TYPE_PCI {
        return Err(delivery::TYPE);
    }
    // Drivers that do not sign leave zero.
    if bytes[entry::SIGNATURE] != 0 && exclusive_or(bytes) != 0xff {
        return Err(delivery::SIGNATURE);
    }
    let (len, room) = (be32(bytes, entry::IN_LEN) as usize, be32(bytes, entry::OUT_LEN) as usize);
    if !(MIN_BYTES..=MAX_BYTES).contains(&len) {
        return Err(delivery::IN_LEN);
    }
    if !(MIN_BYTES..=MAX_BYTES).contains(&room) {
        return Err(delivery::OUT_LEN);
    }
    let mut input = bytes[entry::IN..entry::OUT][..len.min(entry::INLINE_BYTES)].to_vec();
    each_block(memory, bytes, entry::IN_PTR, len, delivery::IN_ALIGN, |_, block, range| {
        input.extend_from_slice(&block[..range.len()]);
        Ok(())
    })?;
    Ok(Taken { at, entry: *bytes, input, room })
}

impl Taken {
    /// Writes the answer, as much of it as there is room for, and gives the entry back to the driver.
    pub fn answer(mut self, memory: &dyn Memory, output: &[u8]) -> Result<(), BusError> {
        let mut output = output.to_vec();
        output.resize(self.room.max(entry::INLINE_BYTES), 0);
        put(&mut self.entry, entry::OUT, &output[..entry::INLINE_BYTES]);
        let (room, align) = (self.room, delivery::OUT_ALIGN);
        let written = each_block(memory, &self.entry, entry::OUT_PTR, room, align, |at, block, range| {
            put(block, 0, &output[range]);
            sign(block);
            memory.write(at, block).map_err(|_| delivery::FIRMWARE)
        });
        let status = written.err().unwrap_or(delivery::OK);
        finish(memory, self.at, self.entry, status)
    }
}

/// Calls `each` with the blocks of a mailbox that hold what does not fit into the entry, of `len` bytes in all: address,
/// bytes, and the range of the whole that is in this block.
fn each_block(
    memory: &dyn Memory,
    entry: &[u8; entry::BYTES],
    pointer: usize,
    len: usize,
    misaligned: u8,
    mut each: impl FnMut(u64, &mut [u8; block::BYTES], std::ops::Range<usize>) -> Result<(), u8>,
) -> Result<(), u8> {
    let mut next = be64(entry, pointer);
    let (mut done, mut number) = (entry::INLINE_BYTES, 0);
    while done < len {
        if !next.is_multiple_of(block::ALIGN) || next == 0 {
            return Err(misaligned);
        }
        let mut bytes = [0; block::BYTES];
        memory.read(next, &mut bytes).map_err(|_| misaligned)?;
        if bytes[block::TOKEN] != entry[entry::TOKEN] {
            return Err(delivery::TOKEN);
        }
        if be32(&bytes, block::NUMBER) != number {
            return Err(delivery::BLOCK_NUMBER);
        }
        let end = len.min(done + block::DATA_BYTES);
        each(next, &mut bytes, done..end)?;
        next = be64(&bytes, block::NEXT);
        done = end;
        number += 1;
    }
    Ok(())
}

/// Writes entry and delivery status; the byte that says whose the entry is comes last.
fn finish(memory: &dyn Memory, at: u64, mut bytes: [u8; entry::BYTES], status: u8) -> Result<(), BusError> {
    bytes[entry::STATUS_OWN] = status << 1;
    bytes[entry::SIGNATURE] = 0;
    bytes[entry::SIGNATURE] = !exclusive_or(&bytes);
    memory.write(at + entry::OUT as u64, &array::<{ entry::INLINE_BYTES }>(&bytes, entry::OUT))?;
    memory.write(at + entry::SIGNATURE as u64, &[bytes[entry::SIGNATURE]])?;
    memory.publish(at + entry::STATUS_OWN as u64, bytes[entry::STATUS_OWN])
}

fn sign(bytes: &mut [u8; block::BYTES]) {
    bytes[block::CONTROL_SIGNATURE] = !exclusive_or(&bytes[block::DATA_BYTES..block::CONTROL_SIGNATURE]);
    bytes[block::SIGNATURE] = !exclusive_or(&bytes[..block::SIGNATURE]);
}

fn exclusive_or(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}
