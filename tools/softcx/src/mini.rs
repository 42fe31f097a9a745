//! Compressed completions: a run of entries that are alike becomes one title and arrays of 8-byte minis.
//!
//! A session of `n` completions takes the `n` places that they would have taken alone. The first place holds the title: the
//! first completion, with the format "compressed" and, in place of its byte count, `n`. The minis are in arrays of eight: those
//! of completions 0 to 7 in the second place, then those of completions `8 k` to `8 k + 7` in place `8 k`. What else is in
//! the places is stale, and software has to set their owner bits itself.

use crate::bits::cqe::{self, Cqe, opcode};
use crate::bits::{be16, be32, put};

/// Completions of a session at most.
pub const MAX_SESSION: usize = 64;
/// Minis of an array.
pub(crate) const PER_ARRAY: usize = 8;
/// Bytes of a mini: what [`MiniFormat`] says, then the byte count.
pub(crate) const MINI_BYTES: usize = 8;
/// `OP_OWN` 3:2 of a title.
const FORMAT_COMPRESSED: u8 = 3 << 2;

/// What the first half of a responder's mini holds. A requester's holds the WQE counter and the send opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MiniFormat {
    /// A hash of the packet's headers; always zero here.
    Hash,
    /// A checksum of the packet; always zero here.
    Checksum,
    /// A checksum, and the index of the receive WQE.
    ChecksumStride,
}

/// Whether `next` can follow `last` in a session.
pub(crate) fn follows(last: &Cqe, next: &Cqe) -> bool {
    let code = last.opcode();
    let alike = |at: &usize| {
        let counted =
            (cqe::BYTE_CNT..cqe::TIMESTAMP + 8).contains(at) || (cqe::WQE_COUNTER..cqe::SIGNATURE).contains(at);
        counted || code == opcode::REQ && *at == cqe::SOP_QPN || last.body[*at] == next.body[*at]
    };
    matches!(code, opcode::REQ | opcode::RESP_SEND)
        && last.body[cqe::OP_OWN] & 0xf == 0
        && (code == opcode::REQ || counter(next) == counter(last).wrapping_add(1))
        && (0..cqe::BYTES).all(|at| alike(&at))
}

fn counter(entry: &Cqe) -> u16 {
    be16(&entry.body, cqe::WQE_COUNTER)
}

/// The title, and the arrays with the places that they go to, counted from the title's.
pub(crate) fn compress(session: &[Cqe], format: MiniFormat) -> (Cqe, Vec<(u32, [u8; cqe::BYTES])>) {
    let mut title = session[0].clone();
    title.put(cqe::BYTE_CNT, &(session.len() as u32).to_be_bytes());
    title.body[cqe::OP_OWN] |= FORMAT_COMPRESSED;
    let arrays = session.chunks(PER_ARRAY).enumerate().map(|(k, chunk)| {
        let mut array = [0; cqe::BYTES];
        for (i, entry) in chunk.iter().enumerate() {
            let at = i * MINI_BYTES;
            match (entry.opcode(), format) {
                (opcode::REQ, _) => {
                    put(&mut array, at, &counter(entry).to_be_bytes());
                    put(&mut array, at + 2, &[entry.body[cqe::SOP_QPN]]);
                }
                (_, MiniFormat::ChecksumStride) => put(&mut array, at + 2, &counter(entry).to_be_bytes()),
                _ => {}
            }
            put(&mut array, at + 4, &be32(&entry.body, cqe::BYTE_CNT).to_be_bytes());
        }
        ((k * PER_ARRAY).max(1) as u32, array)
    });
    (title, arrays.collect())
}

#[cfg(test)]
#[path = "../tests/golden/vectors.rs"]
mod vectors;

#[cfg(test)]
mod tests {
    use super::*;

    /// As the library's golden vectors have it, which know nothing of this file.
    #[test]
    fn blocks_are_as_the_library_expects_them() {
        let golden = vectors::vectors("cqe_packed.txt");
        let entry = |opcode: u8, counter: u16, sop: u8, bytes: u32| {
            let mut entry = Cqe::new(opcode, 0x12_3456, 5, counter);
            entry.put(cqe::TIMESTAMP, &1_000_000_000_000_u64.to_be_bytes());
            entry.put(cqe::SOP_QPN, &[sop]).put(cqe::BYTE_CNT, &bytes.to_be_bytes());
            entry
        };
        let receives = [0x400, 0, 0x10].iter().zip(1..).map(|(bytes, n)| entry(opcode::RESP_SEND, n, 0, *bytes));
        let sends = [(3, 0x08, 0), (5, 0x10, 0x1000)].map(|(at, sop, bytes)| entry(opcode::REQ, at, sop, bytes));
        let ten = (0..10).map(|n| entry(opcode::RESP_SEND, 0xffff_u16.wrapping_add(n), 0, 1 + u32::from(n))).collect();
        let blocks =
            [("three receives", receives.collect::<Vec<_>>()), ("two sends", sends.to_vec()), ("ten receives", ten)];
        for (name, session) in blocks {
            assert!(session.windows(2).all(|pair| follows(&pair[0], &pair[1])), "{name}");
            let (title, arrays) = compress(&session, MiniFormat::Hash);
            let mut want: Vec<(u32, &[u8])> = (0..).zip(golden[name].chunks_exact(cqe::BYTES)).collect();
            // Places that the block takes and does not write.
            want.retain(|(_, entry)| *entry != [0xee; cqe::BYTES]);
            let got: Vec<(u32, &[u8])> = std::iter::once((0, &title.body[..]))
                .chain(arrays.iter().map(|(place, array)| (*place, &array[..])))
                .collect();
            assert_eq!(got, want, "{name}");
        }
    }
}
