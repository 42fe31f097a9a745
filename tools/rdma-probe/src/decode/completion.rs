//! Completion queue entries.

use super::cause::Cause;
use super::field::Fields;
use super::send;
use softcx::bits::be32;
use softcx::bits::cqe::{self, opcode};

/// What the opcode of a completion stands for.
pub fn name(op: u8) -> Option<&'static str> {
    Some(match op {
        opcode::REQ => "send done",
        opcode::RESP_WRITE_IMM => "received RDMA WRITE with immediate",
        opcode::RESP_SEND => "received SEND",
        opcode::RESP_SEND_IMM => "received SEND with immediate",
        opcode::RESP_SEND_INV => "received SEND with invalidate",
        opcode::RESIZE => "end of the ring: the queue was resized",
        6 => "no packet: a list operation of tag matching",
        12 => "signature error",
        opcode::REQ_ERR => "send failed",
        opcode::RESP_ERR => "receive failed",
        _ => return None,
    })
}

/// Opcode of the entry whose 64 bytes these are.
pub fn opcode_of(body: &[u8]) -> u8 {
    body.get(cqe::OP_OWN).map_or(opcode::INVALID, |op_own| op_own >> 4)
}

/// Whether the entry carries part of the message in its first 32 bytes.
pub fn is_inline(body: &[u8]) -> bool {
    let is_receive = matches!(opcode_of(body), opcode::REQ..=opcode::RESP_SEND_INV);
    is_receive && body.get(cqe::OP_OWN).is_some_and(|op_own| op_own & FORMAT == cqe::FORMAT_INLINE_32)
}

/// How many completions the entry stands for, and whether they are of sends, if it is the first of a packed block.
pub fn packs(body: &[u8]) -> Option<(usize, bool)> {
    let is_packed =
        body.get(cqe::OP_OWN)? & FORMAT == COMPRESSED && matches!(opcode_of(body), opcode::REQ..=opcode::RESP_SEND_INV);
    let count = be32(body, cqe::BYTE_CNT) as usize;
    (is_packed && count <= MOST_PACKED).then_some((count, opcode_of(body) == opcode::REQ))
}

/// More than any device packs into one block.
const MOST_PACKED: usize = 1 << 10;
/// Packed completions in the place of one entry.
pub const PACKED_PER_ENTRY: usize = 8;
/// Bytes of a packed completion.
pub const PACKED_BYTES: usize = 8;

/// Takes packed completions apart. Returns what they are, in short.
pub fn decode_packed(fields: &mut Fields<'_>, bytes: &[u8], is_send: bool) -> String {
    let count = bytes.len() / PACKED_BYTES;
    for i in 0..count {
        fields.segment(format!("packed[{i}]"), i * PACKED_BYTES, PACKED_BYTES);
        if is_send {
            let counter = fields.whole("wqe_counter", 0, 2);
            fields.means(format!("{counter}: block at which the send work queue entry begins"));
            let sent = fields.whole("send_opcode", 2, 1) as u8;
            fields.may_mean(send::name(sent));
        } else {
            fields.whole("hash_or_checksum", 0, 4);
        }
        let len = fields.whole("byte_count", 4, 4);
        fields.means(format!("{len} bytes"));
    }
    fields.finish(bytes.len());
    if !bytes.len().is_multiple_of(PACKED_BYTES) {
        fields.problem(format!("the last of the packed completions has {} of 8 bytes", bytes.len() % PACKED_BYTES));
    }
    let what = if is_send { "sends done" } else { "receives" };
    format!("{count} packed completions: {what}")
}

const FORMAT: u8 = 3 << 2;
const COMPRESSED: u8 = 3 << 2;

/// Takes an entry apart, of 64 bytes or of 128. Returns what it is, in short, and why it failed if it did.
pub fn decode(fields: &mut Fields<'_>, bytes: &[u8]) -> (String, Option<Cause>) {
    let at = if bytes.len() == 2 * cqe::BYTES { cqe::BYTES } else { 0 };
    if !fields.segment("cqe", at, cqe::BYTES) {
        return ("a completion that ends before its 64 bytes do".to_owned(), None);
    }
    let body = &bytes[at..at + cqe::BYTES];
    let (op, format) = (opcode_of(body), body[cqe::OP_OWN] & FORMAT);
    let is_error = matches!(op, opcode::REQ_ERR | opcode::RESP_ERR);
    fields.bits("opcode", cqe::OP_OWN, 1, (7, 4));
    fields.means(name(op).unwrap_or(if op == opcode::INVALID {
        "invalid: never written by the device"
    } else {
        "unknown"
    }));
    fields.bits("format", cqe::OP_OWN, 1, (3, 2));
    fields.means(match format {
        0 => "plain",
        cqe::FORMAT_INLINE_32 => "the message is in the entry's first 32 bytes",
        cqe::FORMAT_INLINE_64 => "the message is in the 64 bytes before the entry",
        _ => "compressed: stands for several",
    });
    let solicited = fields.bits("solicited", cqe::OP_OWN, 1, (1, 1));
    fields.means(if solicited == 1 { "yes" } else { "no" });
    fields.bits("owner", cqe::OP_OWN, 1, (0, 0));
    let (qpn, counter) = (be32(body, cqe::SOP_QPN) & 0xff_ffff, be32(body, cqe::WQE_COUNTER) >> 16);
    fields.bits("qpn", cqe::SOP_QPN, 4, (23, 0));
    let sent = fields.bits("send_opcode", cqe::SOP_QPN, 4, (31, 24)) as u8;
    let is_send = matches!(op, opcode::REQ | opcode::REQ_ERR);
    fields.may_mean(is_send.then(|| send::name(sent).unwrap_or("unknown").split(':').next().unwrap_or_default()));
    fields.whole("wqe_counter", cqe::WQE_COUNTER, 2);
    fields.means(match (is_send, format) {
        (_, COMPRESSED) => format!("{counter}: of the first"),
        (true, _) => format!("{counter}: block at which the send work queue entry begins"),
        (false, _) => format!("{counter}: index of the receive"),
    });
    fields.whole("signature", cqe::SIGNATURE, 1);
    fields.bits("user_index", cqe::SRQN_UIDX, 4, (23, 0));
    fields.bits("reserved", cqe::SRQN_UIDX, 4, (31, 24));
    let cause = is_error.then(|| failure(fields));
    if !is_error {
        success(fields, op, format);
    }
    if bytes.len() == 2 * cqe::BYTES {
        fields.segment("before", 0, cqe::BYTES);
        match format {
            cqe::FORMAT_INLINE_64 => drop(fields.raw("inline_data", 0, cqe::BYTES)),
            _ => fields.ignore(0, cqe::BYTES),
        }
    }
    fields.finish(bytes.len());
    if name(op).is_none() {
        fields.problem(match op {
            opcode::INVALID => "its opcode is that of an entry that the device has never written".to_owned(),
            _ => format!("opcode {op} is unknown"),
        });
    }
    let mut summary = match (is_send, name(op)) {
        (true, Some(name)) => {
            let sent = send::name(sent).unwrap_or("unknown opcode").split(':').next().unwrap_or_default();
            format!("{name}: {sent}")
        }
        (false, Some(name)) => name.to_owned(),
        (_, None) => format!("unknown completion {op:#x}"),
    };
    summary += &format!(", QP {qpn:#08x}, counter {counter}");
    if let Some(cause) = &cause {
        summary += &format!(": {} ({})", cause.status, cause.syndrome_name);
    }
    (summary, cause)
}

fn failure(fields: &mut Fields<'_>) -> Cause {
    let syndrome = fields.whole("syndrome", cqe::SYNDROME, 1) as u8;
    fields.means(softcx::Syndrome(syndrome).name());
    fields.whole("hw_err_synd", 52, 1);
    fields.means("the hardware's own reason");
    fields.whole("hw_synd_type", 53, 1);
    fields.means("and of what kind that is");
    let vendor = fields.whole("vendor_syndrome", cqe::VENDOR_ERR, 1) as u8;
    let cause = Cause::of(syndrome, vendor);
    fields.means(cause.vendor_note.clone());
    cause
}

fn success(fields: &mut Fields<'_>, op: u8, format: u8) {
    let count = fields.whole("byte_count", cqe::BYTE_CNT, 4);
    fields.means(match format {
        COMPRESSED => format!("{count} completions follow in this one and the small ones after it"),
        _ => format!("{count} bytes"),
    });
    fields.whole("timestamp", cqe::TIMESTAMP, 8);
    let what = match op {
        opcode::RESP_WRITE_IMM | opcode::RESP_SEND_IMM => "immediate",
        opcode::RESP_SEND_INV => "invalidated_rkey",
        _ => "imm_or_pkey_index",
    };
    fields.whole(what, cqe::IMM_INVAL_PKEY, 4);
    fields.whole("app", 40, 1);
    fields.whole("app_op", 41, 1);
    fields.whole("app_info", 42, 2);
    if format == cqe::FORMAT_INLINE_32 {
        fields.raw("inline_data", 0, 32);
        return;
    }
    fields.whole("wqe_id", 2, 2);
    fields.bits("path_bits", cqe::ML_PATH, 1, (6, 0));
    fields.bits("multicast", cqe::ML_PATH, 1, (7, 7));
    fields.whole("slid", cqe::SLID, 2);
    fields.bits("remote_qpn", cqe::FLAGS_RQPN, 4, (23, 0));
    fields.bits("sl", cqe::FLAGS_RQPN, 4, (27, 24));
    let grh = fields.bits("grh", cqe::FLAGS_RQPN, 4, (29, 28));
    fields.means(if grh == 0 { "none" } else { "a global route header is there" });
    fields.bits("reserved", cqe::FLAGS_RQPN, 4, (31, 30));
    fields.whole("hds_ip_ext", cqe::HDS_IP_EXT, 1);
    fields.whole("l4_header_type", cqe::HDS_IP_EXT + 1, 1);
    fields.whole("vlan", cqe::HDS_IP_EXT + 2, 2);
}
