//! What an entry is, as far as its bytes tell, and where the next one begins.

use super::{Kind, completion, receive, send};
use softcx::bits::wqe::{BB_BYTES, DS_BYTES, ctrl};
use softcx::bits::{be32, be64, cqe};
use std::ops::Range;

/// Entries of one dump at most: as many as fit into the longest.
const MOST_ENTRIES: usize = 1 << 15;

/// Units of a receive at most, as far as anybody looks for its end.
const MOST_RECEIVE_UNITS: usize = 64;

/// An entry in a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Nobody said so.
    pub guessed: bool,
    /// Where its bytes are.
    pub range: Range<usize>,
}

/// Cuts a dump into entries. `kind` and `cqe_bytes` are what is known of them.
pub fn entries(bytes: &[u8], label: Option<&str>, kind: Option<Kind>, cqe_bytes: Option<usize>) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut at = 0;
    let alike = bytes.iter().rev().take_while(|b| bytes.last() == Some(b)).count();
    while at < bytes.len() && found.len() < MOST_ENTRIES {
        let rest = &bytes[at..];
        // A ring that was never written ends in bytes that are all alike.
        if !found.is_empty() && rest.len() <= alike {
            break;
        }
        let guessed = kind.is_none();
        let kind = kind.unwrap_or_else(|| guess(rest, label));
        if kind == Kind::Cqe
            && let Some((count, is_send)) = completion::packs(rest.get(..cqe::BYTES).unwrap_or_default())
        {
            found.push(Entry { kind, guessed, range: at..at + cqe::BYTES });
            found.extend(packed(at, bytes.len(), count, is_send, guessed));
            at += cqe::BYTES * count.max(1);
            continue;
        }
        let (len, step) = match kind {
            Kind::Cqe => {
                let len = cqe_bytes.unwrap_or_else(|| guess_cqe_bytes(rest));
                (len, len)
            }
            Kind::SendWqe => match send::len_bytes(rest) {
                0 => (rest.len().min(BB_BYTES), BB_BYTES),
                len => (len, len.next_multiple_of(BB_BYTES)),
            },
            // Their strides are not written anywhere.
            _ => (rest.len(), rest.len()),
        };
        found.push(Entry { kind, guessed, range: at..(at + len).min(bytes.len()) });
        at += step;
    }
    found
}

/// The completions that are packed behind the entry at `title`: the first eight in the next place, the others eight at a time
/// in the place that the first of them would have had. What else is in the places of the block is stale.
fn packed(title: usize, end: usize, count: usize, is_send: bool, guessed: bool) -> Vec<Entry> {
    let kind = if is_send { Kind::PackedSends } else { Kind::PackedReceives };
    let firsts = (0..count).step_by(completion::PACKED_PER_ENTRY);
    let arrays = firsts.map(|first| {
        let start = title + cqe::BYTES * first.max(1);
        let here = (count - first).min(completion::PACKED_PER_ENTRY) * completion::PACKED_BYTES;
        start.min(end)..(start + here).min(end)
    });
    arrays.filter(|range| !range.is_empty()).map(|range| Entry { kind, guessed, range }).collect()
}

/// 128 if the first half of what is there is no entry of its own.
fn guess_cqe_bytes(rest: &[u8]) -> usize {
    let Some((first, second)) = rest.split_at_checked(cqe::BYTES) else { return cqe::BYTES };
    let Some(second) = second.get(..cqe::BYTES) else { return cqe::BYTES };
    let is_blank = first.iter().all(|b| *b == first[0]);
    let is_inline = second[cqe::OP_OWN] & (3 << 2) == cqe::FORMAT_INLINE_64;
    let first_is_none = is_blank || is_inline || completion::name(completion::opcode_of(first)).is_none();
    let second_is_one = completion::name(completion::opcode_of(second)).is_some();
    if first_is_none && second_is_one { 2 * cqe::BYTES } else { cqe::BYTES }
}

fn guess(bytes: &[u8], label: Option<&str>) -> Kind {
    let label = label.unwrap_or_default().to_ascii_lowercase();
    let is_cqe = label.contains("cqe") || label.contains("completion");
    let is_wqe = label.contains("wqe") || label.contains("work queue");
    if is_cqe && !is_wqe {
        return Kind::Cqe;
    }
    // Only a list of receive buffers ends like this.
    let mut units = bytes.chunks_exact(DS_BYTES).take(MOST_RECEIVE_UNITS);
    if let Some(end) = units.position(receive::is_end) {
        let starts_with_link = end > 0 && be32(bytes, 0) >> 16 == 0 && be32(bytes, 4) == 0 && be64(bytes, 8) == 0;
        return if starts_with_link { Kind::SrqWqe } else { Kind::RecvWqe };
    }
    let looks_sent = looks_sent(bytes);
    if is_wqe {
        return if looks_sent || bytes.len() >= BB_BYTES { Kind::SendWqe } else { Kind::RecvWqe };
    }
    let body = bytes.get(..cqe::BYTES).unwrap_or_default();
    if looks_sent && !(completion::is_inline(body) && bytes.len().is_multiple_of(cqe::BYTES)) {
        return Kind::SendWqe;
    }
    match bytes.len() {
        len if len >= cqe::BYTES => Kind::Cqe,
        _ => Kind::SendWqe,
    }
}

/// Whether the first unit can be a control segment: a known opcode, and as many units as are there.
fn looks_sent(bytes: &[u8]) -> bool {
    let len = send::len_bytes(bytes);
    bytes.len() >= DS_BYTES
        && (DS_BYTES..=bytes.len()).contains(&len)
        && send::name(be32(bytes, ctrl::OPMOD_INDEX_OPCODE) as u8).is_some()
}
