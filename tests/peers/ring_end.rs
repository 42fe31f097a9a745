//! Does every kind of element begin at every block of a ring, so that each of them is cut by the ring's end in every way? By what
//! the adapter fetched, and by its word of how long the ring is.

use crate::cases;
use crate::list::Kind;
use crate::record::Element;
use softcx::bits::be32;
use softcx::bits::wqe::{BB_BYTES, DS_BYTES, ctrl, data, opcode};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// What elements of a queue have to begin at every block.
struct Expected {
    /// Blocks of those with inline payload.
    inline: RangeInclusive<usize>,
    /// Of those with a list.
    entries: RangeInclusive<usize>,
    /// And opcodes.
    opcodes: &'static [u8],
}

/// As far as an element of the queue's size ([`cases`]) goes.
fn expected(queue: &str) -> Expected {
    use opcode::{ATOMIC_CS, ATOMIC_FA, RDMA_READ, RDMA_WRITE, SEND, SEND_IMM, UMR};
    const RELIABLE: &[u8] = &[SEND_IMM, RDMA_WRITE, RDMA_READ, ATOMIC_CS, ATOMIC_FA];
    const WITH_WINDOWS: &[u8] = &[SEND_IMM, RDMA_WRITE, RDMA_READ, ATOMIC_CS, ATOMIC_FA, UMR];
    let (inline, entries, opcodes) = match queue {
        "rc_end" => (1..=2, 1..=2, WITH_WINDOWS),
        "xrc_end" => (1..=2, 1..=2, RELIABLE),
        "uc_end" => (1..=2, 1..=2, &[SEND_IMM, RDMA_WRITE][..]),
        "ud_end" => (2..=5, 1..=3, &[SEND][..]),
        "rc_far_end" => (1..=14, 1..=8, &[RDMA_WRITE][..]),
        other => panic!("{other} is a queue whose ring's end is looked at"),
    };
    Expected { inline, entries, opcodes }
}

/// Looks at what a side had the adapter fetch from that queue.
pub fn check(queue: &str, kind: Kind, elements: &[Element]) -> Result<(), String> {
    let ring = elements.first().and_then(|element| element.ring).ok_or("the adapter tells of no ring")?;
    if elements.iter().any(|element| element.ring != Some(ring)) {
        return Err("the ring has not always the same length".into());
    }
    if ring == 0 || !(cases::RING as u64).is_multiple_of(ring) {
        return Err(format!("the ring has {ring} blocks, not {} or a part", cases::RING));
    }
    let (mut shapes, mut opcodes) = (BTreeSet::new(), BTreeSet::new());
    for Element { bytes, index, .. } in elements {
        let (start, blocks) = (u64::from(*index) % ring, bytes.len().div_ceil(BB_BYTES));
        let code = be32(bytes, ctrl::OPMOD_INDEX_OPCODE) as u8;
        opcodes.insert((code, start));
        if matches!(code, opcode::SEND | opcode::SEND_IMM | opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM) {
            shapes.insert((is_inline(bytes, kind, code), blocks, start));
        }
    }
    let Expected { inline, entries, opcodes: codes } = expected(queue);
    for start in 0..ring {
        for (is_inline, range) in [(true, &inline), (false, &entries)] {
            if let Some(blocks) = range.clone().find(|blocks| !shapes.contains(&(is_inline, *blocks, start))) {
                let what = if is_inline { "inline payload" } else { "a list" };
                return Err(format!("no element of {blocks} blocks with {what} begins at block {start} of {ring}"));
            }
        }
        if let Some(code) = codes.iter().find(|code| !opcodes.contains(&(**code, start))) {
            return Err(format!("no element of opcode {code:#x} begins at block {start} of {ring}"));
        }
    }
    Ok(())
}

/// Whether the payload of a SEND or WRITE is in the element. One without any is a list of none.
fn is_inline(bytes: &[u8], kind: Kind, code: u8) -> bool {
    let writes = usize::from(matches!(code, opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM));
    let head = match kind {
        Kind::Rc | Kind::Uc => 1 + writes,
        Kind::Xrc => 2 + writes,
        Kind::Ud => 4,
    };
    bytes.len() > head * DS_BYTES && be32(bytes, head * DS_BYTES + data::BYTE_COUNT) & data::INLINE != 0
}
