//! Receive work queue entries, of a queue pair's own ring and of a shared receive queue.

use super::field::Fields;
use super::send;
use softcx::bits::be32;
use softcx::bits::wqe::{DS_BYTES, data, srq_next};

/// Whether the unit ends a list of buffers.
pub fn is_end(unit: &[u8]) -> bool {
    be32(unit, data::BYTE_COUNT) == 0 && be32(unit, data::LKEY) == data::TERMINATE_LKEY && be32(unit, data::ADDR) == 0
}

/// Takes an entry apart. Returns what it is, in short.
pub fn decode(fields: &mut Fields<'_>, bytes: &[u8], is_shared: bool) -> String {
    let mut at = 0;
    if is_shared {
        if fields.segment("next", 0, srq_next::BYTES) {
            let next = fields.whole("next_wqe_index", srq_next::NEXT_INDEX, 2);
            fields.means(format!("entry {next} comes next"));
            fields.whole("signature", srq_next::NEXT_INDEX + 2, 1);
        }
        at = srq_next::BYTES;
    }
    let (mut buffers, mut total) = (0, 0_u64);
    while at < bytes.len() {
        if !fields.segment(format!("data[{buffers}]"), at, DS_BYTES) {
            break;
        }
        let unit = &bytes[at..at + DS_BYTES];
        if is_end(unit) {
            fields.whole("byte_count", data::BYTE_COUNT, 4);
            fields.means("ends the list");
            fields.whole("lkey", data::LKEY, 4);
            fields.means("ends the list");
            fields.ignore(0, bytes.len() - at);
            break;
        }
        let count = be32(unit, data::BYTE_COUNT);
        if count & data::INLINE != 0 {
            fields.problem(format!("data[{buffers}] is inline, which no receive can be"));
        }
        send::entry(fields, count);
        total += u64::from(if count == 0 { data::ZERO_MEANS_BYTES } else { count & !data::INLINE });
        buffers += 1;
        at += DS_BYTES;
    }
    fields.finish(bytes.len());
    let whose = if is_shared { "shared receive" } else { "receive" };
    format!("{whose} of {total} bytes into {buffers} buffer{}", if buffers == 1 { "" } else { "s" })
}
