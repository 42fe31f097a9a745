//! Send work queue entries.

use super::field::Fields;
use softcx::bits::wqe::{DS_BYTES, atomic, av, ctrl, data, klm, mkey, opcode, raddr, umr, xrc};
use softcx::bits::{be32, be64};
use std::net::Ipv6Addr;

/// What follows the control segment, which depends on the queue pair's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// RC, UC: nothing more.
    Connected,
    /// UD: an address vector.
    Datagram,
    /// XRC: the remote shared receive queue.
    Xrc,
}

/// Opcodes that are known by name.
const OPCODES: [(u8, &str); 20] = [
    (opcode::NOP, "NOP"),
    (opcode::SEND_INVAL, "SEND with invalidate"),
    (opcode::RDMA_WRITE, "RDMA WRITE"),
    (opcode::RDMA_WRITE_IMM, "RDMA WRITE with immediate"),
    (opcode::SEND, "SEND"),
    (opcode::SEND_IMM, "SEND with immediate"),
    (0x0e, "TSO"),
    (0x0f, "WAIT"),
    (opcode::RDMA_READ, "RDMA READ"),
    (opcode::ATOMIC_CS, "compare and swap"),
    (opcode::ATOMIC_FA, "fetch and add"),
    (opcode::ATOMIC_MASKED_CS, "masked compare and swap"),
    (opcode::ATOMIC_MASKED_FA, "masked fetch and add"),
    (0x17, "SEND_ENABLE"),
    (0x20, "SET_PSV"),
    (0x23, "DUMP"),
    (opcode::UMR, "UMR: binds a memory window, or invalidates or changes a key"),
    (0x28, "TAG_MATCHING"),
    (0x2c, "FLOW_TBL_ACCESS"),
    (0x2f, "MMO"),
];

/// Name of an opcode.
pub fn name(op: u8) -> Option<&'static str> {
    OPCODES.iter().find(|(known, _)| *known == op).map(|(_, name)| *name)
}

/// Bytes that the entry at the start of `bytes` says to have; zero if it is none.
pub fn len_bytes(bytes: &[u8]) -> usize {
    (be32(bytes, ctrl::QPN_DS) & 0x3f) as usize * DS_BYTES
}

/// Whether the entry has data, so that its layout matters.
fn is_message(op: u8) -> bool {
    !matches!(op, opcode::NOP | opcode::UMR)
}

fn has_remote_address(op: u8) -> bool {
    matches!(op, opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ) || is_atomic(op)
}

fn is_atomic(op: u8) -> bool {
    matches!(op, opcode::ATOMIC_CS | opcode::ATOMIC_FA | opcode::ATOMIC_MASKED_CS | opcode::ATOMIC_MASKED_FA)
}

/// The layout, as far as the bytes tell: an address vector has a bit where addresses of programs have none; the number of
/// a shared receive queue stands alone in its unit.
pub fn guess_layout(bytes: &[u8]) -> Layout {
    let op = be32(bytes, ctrl::OPMOD_INDEX_OPCODE) as u8;
    let len = len_bytes(bytes).min(bytes.len());
    let Some(unit) = bytes.get(DS_BYTES..len) else { return Layout::Connected };
    let is_send = matches!(op, opcode::SEND | opcode::SEND_IMM);
    if is_send && unit.len() >= av::BYTES && be32(unit, 4) == 0 && be32(unit, av::DQP) & av::EXTENDED != 0 {
        return Layout::Datagram;
    }
    let number = be32(unit, xrc::SRQN);
    let stands_alone = number != 0 && number < 1 << 24 && be32(unit, 4) == 0 && be64(unit, 8) == 0;
    let more_comes = unit.len() > DS_BYTES;
    match is_message(op) && stands_alone && more_comes {
        true => Layout::Xrc,
        false => Layout::Connected,
    }
}

/// Takes an entry apart. Returns what it is, in short.
pub fn decode(fields: &mut Fields<'_>, bytes: &[u8], layout: Option<Layout>) -> String {
    if !fields.segment("ctrl", 0, DS_BYTES) {
        return "a send work queue entry that ends before its first unit does".to_owned();
    }
    let head = be32(bytes, ctrl::OPMOD_INDEX_OPCODE);
    let (op, index) = (head as u8, head >> 8 & 0xffff);
    let qpn = be32(bytes, ctrl::QPN_DS) >> 8;
    let len = len_bytes(bytes);
    control(fields, op, len);
    if len == 0 {
        fields.problem("it says to have no units (ds is 0): no send work queue entry, or one that was never written");
    } else if len > bytes.len() {
        fields.problem(format!("it says to have {len} bytes, and only {} are there", bytes.len()));
    }
    if name(op).is_none() {
        fields.problem(format!("opcode {op:#04x} is unknown: its segments cannot be told apart"));
    }
    let mut at = DS_BYTES;
    if is_message(op) && name(op).is_some() {
        match layout.unwrap_or_else(|| guess_layout(bytes)) {
            Layout::Connected => {}
            Layout::Datagram => at = address_vector(fields, at),
            Layout::Xrc => {
                if fields.segment("xrc", at, DS_BYTES) {
                    fields.bits("srqn", xrc::SRQN, 4, (23, 0));
                    fields.means("shared receive queue at the peer");
                }
                at += DS_BYTES;
            }
        }
    }
    if has_remote_address(op) {
        if fields.segment("raddr", at, DS_BYTES) {
            fields.whole("remote_address", raddr::ADDR, 8);
            fields.whole("rkey", raddr::RKEY, 4);
        }
        at += DS_BYTES;
    }
    if is_atomic(op) {
        at = atomic_operands(fields, op, at);
    }
    match op {
        opcode::NOP => {}
        opcode::UMR => at = key_change(fields, bytes, at),
        _ if name(op).is_some() && op != 0x0e => at = data_segments(fields, bytes, at, len),
        _ => {}
    }
    if at < len.min(bytes.len()) && op != opcode::NOP && (name(op).is_none() || op == 0x0e) {
        // Its segments are not known here.
        fields.segment("rest", at, len - at);
        fields.raw("bytes", 0, len - at);
    }
    fields.finish(len);
    let name =
        name(op).map_or_else(|| format!("unknown opcode {op:#04x}"), |n| n.split(':').next().unwrap_or(n).to_owned());
    format!("{name}, index {index}, QP {qpn:#08x}, {len} bytes")
}

fn control(fields: &mut Fields<'_>, op: u8, len: usize) {
    fields.bits("opcode", ctrl::OPMOD_INDEX_OPCODE, 4, (7, 0));
    fields.means(name(op).unwrap_or("unknown"));
    fields.bits("opmod", ctrl::OPMOD_INDEX_OPCODE, 4, (31, 24));
    let index = fields.bits("wqe_index", ctrl::OPMOD_INDEX_OPCODE, 4, (23, 8));
    fields.means(format!("{index}, in blocks of 64 bytes since the queue was reset"));
    fields.bits("qpn", ctrl::QPN_DS, 4, (31, 8));
    fields.bits("ds", ctrl::QPN_DS, 4, (5, 0));
    fields.means(format!("{len} bytes"));
    fields.bits("reserved", ctrl::QPN_DS, 4, (7, 6));
    fields.whole("signature", ctrl::SIGNATURE, 1);
    fields.whole("dci_stream", ctrl::SIGNATURE + 1, 2);
    let fence = fields.bits("fence", ctrl::FM_CE_SE, 1, (7, 5));
    fields.means(match fence {
        0 => "none",
        1 => "small: waits for the key change before it",
        2 => "fence",
        3 => "strong ordering",
        4 => "waits for READs and atomics before it",
        _ => "unknown",
    });
    fields.bits("reserved", ctrl::FM_CE_SE, 1, (4, 4));
    let completion = fields.bits("completion", ctrl::FM_CE_SE, 1, (3, 2));
    fields.means(match completion {
        0 => "only if it fails",
        2 => "always",
        _ => "unknown",
    });
    let solicited = fields.bits("solicited", ctrl::FM_CE_SE, 1, (1, 1));
    fields.means(if solicited == 1 { "event at the peer" } else { "no" });
    let what = match op {
        opcode::SEND_IMM | opcode::RDMA_WRITE_IMM => "immediate",
        opcode::SEND_INVAL => "invalidated_rkey",
        opcode::UMR => "changed_mkey",
        _ => "imm",
    };
    fields.whole(what, ctrl::IMM, 4);
}

fn address_vector(fields: &mut Fields<'_>, at: usize) -> usize {
    if fields.segment("av", at, av::BYTES) {
        fields.whole("qkey", av::QKEY, 4);
        fields.bits("extended", av::DQP, 4, (31, 31));
        fields.bits("remote_qpn", av::DQP, 4, (23, 0));
        let rate = fields.bits("static_rate", av::RATE_SL, 1, (7, 4));
        fields.may_mean((rate == 0).then_some("no limit"));
        let sl = fields.bits("sl", av::RATE_SL, 1, (3, 0));
        fields.means(format!("service level {sl}; on Ethernet priority {}", sl >> 1));
        fields.bits("force_loopback", av::FL_MLID, 1, (7, 7));
        fields.bits("path_bits", av::FL_MLID, 1, (6, 0));
        let lid = fields.whole("rlid_or_udp_sport", av::RLID, 2);
        fields.means(format!("LID {lid:#06x}, or on RoCE v2 UDP source port {lid}"));
        let mac = fields.raw("rmac", av::RMAC, 6);
        let mac: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        fields.means(mac.join(":"));
        fields.whole("traffic_class", av::TCLASS, 1);
        fields.whole("hop_limit", av::HOP_LIMIT, 1);
        let grh = fields.bits("grh", av::GRH_GID_FL, 4, (30, 30));
        fields.means(if grh == 1 { "packets have a global route" } else { "no global route" });
        fields.bits("sgid_index", av::GRH_GID_FL, 4, (27, 20));
        fields.bits("flow_label", av::GRH_GID_FL, 4, (19, 0));
        let gid = fields.raw("remote_gid", av::RGID, 16);
        let gid: [u8; 16] = softcx::bits::array(gid, 0);
        fields.means(Ipv6Addr::from(gid).to_string());
    }
    at + av::BYTES
}

fn atomic_operands(fields: &mut Fields<'_>, op: u8, at: usize) -> usize {
    let masked = matches!(op, opcode::ATOMIC_MASKED_CS | opcode::ATOMIC_MASKED_FA);
    let swaps = matches!(op, opcode::ATOMIC_CS | opcode::ATOMIC_MASKED_CS);
    let len = if masked { 2 * DS_BYTES } else { DS_BYTES };
    if fields.segment("atomic", at, len) {
        fields.whole(if swaps { "swap" } else { "add" }, atomic::SWAP_ADD, 8);
        fields.whole(if swaps { "compare" } else { "unused" }, atomic::COMPARE, 8);
        if masked {
            fields.whole(if swaps { "swap_mask" } else { "boundary" }, atomic::SWAP_ADD_MASK, 8);
            fields.whole(if swaps { "compare_mask" } else { "unused" }, atomic::COMPARE_MASK, 8);
        }
    }
    at + len
}

/// Data segments from `at` to `end`; returns where they end.
fn data_segments(fields: &mut Fields<'_>, bytes: &[u8], mut at: usize, end: usize) -> usize {
    let mut number = 0;
    while at < end && at < bytes.len() {
        let count = be32(bytes, at + data::BYTE_COUNT);
        if count & data::INLINE == 0 {
            if !fields.segment(format!("data[{number}]"), at, DS_BYTES) {
                return end;
            }
            entry(fields, count);
            at += DS_BYTES;
        } else {
            let len = (count & !data::INLINE) as usize;
            let whole = data::INLINE_HEAD_BYTES + len;
            if !fields.segment(format!("inline[{number}]"), at, whole) || at + whole > end {
                if at + whole <= bytes.len() {
                    fields.problem(format!("{len} inline bytes do not fit into the entry"));
                }
                fields.bits("byte_count", data::BYTE_COUNT, 4, (30, 0));
                return end;
            }
            fields.bits("inline", data::BYTE_COUNT, 4, (31, 31));
            fields.bits("byte_count", data::BYTE_COUNT, 4, (30, 0));
            fields.means(format!("{len} bytes"));
            let message = fields.raw("data", data::INLINE_HEAD_BYTES, len);
            let text = printable(message);
            fields.may_mean(text);
            let padded = whole.next_multiple_of(DS_BYTES);
            fields.ignore(whole, padded - whole);
            at += padded;
        }
        number += 1;
    }
    at
}

/// One data segment of the segment that was begun.
pub fn entry(fields: &mut Fields<'_>, count: u32) {
    fields.whole("byte_count", data::BYTE_COUNT, 4);
    fields.means(if count == 0 { "2147483648 bytes: 0 stands for 2^31".to_owned() } else { format!("{count} bytes") });
    fields.whole("lkey", data::LKEY, 4);
    fields.whole("address", data::ADDR, 8);
}

/// The bytes as text, if they are some.
fn printable(bytes: &[u8]) -> Option<String> {
    let is_text = !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_graphic() || *b == b' ');
    is_text.then(|| format!("{:?}", String::from_utf8_lossy(bytes)))
}

const UMR_FLAGS: [(u8, &str); 5] = [
    (umr::INLINE, "list inline"),
    (umr::FAIL_IF_FREE, "fail if free"),
    (umr::FAIL_IF_NOT_FREE, "fail if not free"),
    (0x10, "translation offset"),
    (umr::CHECK_QPN, "check queue pair"),
];

const UMR_MASK: [(u64, &str); 13] = [
    (umr::MASK_LEN, "length"),
    (1 << 1, "page size"),
    (umr::MASK_START, "start"),
    (1 << 7, "protection domain"),
    (1 << 8, "remote invalidate"),
    (umr::MASK_KEY, "key byte"),
    (umr::MASK_QPN, "queue pair"),
    (1 << 17, "local read"),
    (umr::MASK_LW, "local write"),
    (umr::MASK_RR, "remote read"),
    (umr::MASK_RW, "remote write"),
    (umr::MASK_A, "atomic"),
    (umr::MASK_FREE, "free"),
];

const MKEY_ACCESS: [(u8, &str); 5] = [
    (1 << 2, "local read"),
    (mkey::LW, "local write"),
    (mkey::RR, "remote read"),
    (mkey::RW, "remote write"),
    (mkey::A, "atomic"),
];

fn named<T: Copy + Into<u64>>(value: u64, names: &[(T, &str)]) -> String {
    let known = names.iter().filter(|(bit, _)| value & (*bit).into() != 0).map(|(_, name)| *name);
    let rest = names.iter().fold(value, |rest, (bit, _)| rest & !(*bit).into());
    let rest = (rest != 0).then(|| format!("{rest:#x}"));
    let all: Vec<_> = known.map(str::to_owned).chain(rest).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

fn key_change(fields: &mut Fields<'_>, bytes: &[u8], mut at: usize) -> usize {
    if !fields.segment("umr", at, umr::BYTES) {
        return bytes.len();
    }
    let flags = fields.whole("flags", umr::FLAGS, 1);
    fields.means(named(flags, &UMR_FLAGS));
    let units = fields.whole("klm_octowords", umr::KLM_OCTOWORDS, 2);
    fields.means(format!("{units} units of translation list"));
    fields.whole("translation_offset", umr::KLM_OCTOWORDS + 2, 2);
    let mask = fields.whole("mkey_mask", umr::MKEY_MASK, 8);
    fields.means(format!("changes {}", named(mask, &UMR_MASK)));
    at += umr::BYTES;
    if !fields.segment("mkey", at, mkey::BYTES) {
        return bytes.len();
    }
    let free = fields.bits("free", mkey::FREE, 1, (6, 6));
    fields.means(if free == 1 { "the key names nothing" } else { "the key is in use" });
    let access = fields.whole("access", mkey::ACCESS, 1);
    fields.means(named(access, &MKEY_ACCESS));
    let qpn = fields.bits("qpn", mkey::QPN_MKEY, 4, (31, 8));
    fields.may_mean((qpn == 0xff_ffff).then_some("any queue pair"));
    fields.bits("key_byte", mkey::QPN_MKEY, 4, (7, 0));
    fields.whole("flags_pd", 12, 4);
    fields.whole("start_address", mkey::START_ADDR, 8);
    let len = fields.whole("length", mkey::LEN, 8);
    fields.means(format!("{len} bytes"));
    fields.whole("translations_octowords", 52, 4);
    fields.whole("log_page_size", 59, 1);
    at += mkey::BYTES;
    if flags & u64::from(umr::INLINE) == 0 {
        return at;
    }
    for number in 0..units {
        if bytes.len() <= at || !fields.segment(format!("klm[{number}]"), at, klm::BYTES) {
            return bytes.len();
        }
        // The list is padded with entries of nothing.
        if number == 0 || bytes[at..at + klm::BYTES].iter().any(|b| *b != 0) {
            let count = fields.whole("byte_count", klm::BYTE_COUNT, 4);
            fields.means(format!("{count} bytes"));
            fields.whole("mkey", klm::MKEY, 4);
            fields.whole("address", klm::ADDR, 8);
        }
        at += klm::BYTES;
    }
    at
}
