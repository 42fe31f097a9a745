//! Every golden vector says what its comments say, and nothing in damaged input makes decoding fail.

use super::*;

fn text_of(records: &[Record]) -> String {
    records.iter().map(Record::to_string).collect::<Vec<_>>().join("\n")
}

/// Every entry in a text.
fn records_of(source: &str, text: &str, args: &Decode) -> Vec<Record> {
    let mut records = Vec::new();
    super::records_of(source, text, args, &mut |record| {
        records.push(record);
        Ok(())
    })
    .unwrap();
    records
}

use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn golden(name: &str) -> (String, Vec<Record>) {
    golden_as(name, &args())
}

fn golden_as(name: &str, args: &Decode) -> (String, Vec<Record>) {
    let path = format!("{}/../../tests/golden/mlx5/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let records = records_of(name, &text, args);
    (text, records)
}

fn args() -> Decode {
    Decode::default()
}

/// The fields that are not zero, as `segment.name=value`.
fn shown(fields: &[Field]) -> Vec<String> {
    fields.iter().filter(|f| !f.is_zero()).map(|f| format!("{}.{}={}", f.segment, f.name, f.value)).collect()
}

/// `expected` names all fields that are not zero, in any order.
#[track_caller]
fn check(record: &Record, kind: Kind, expected: &str) {
    let label = record.label.as_deref().unwrap_or_default();
    assert_eq!((record.kind, &record.problems), (kind, &Vec::new()), "{label}");
    let (mut shown, mut expected): (Vec<_>, Vec<_>) =
        (shown(&record.fields), expected.split_whitespace().map(str::to_owned).collect());
    shown.sort();
    expected.sort();
    assert_eq!(shown, expected, "{label}");
}

/// What the control segment of every vector has, but opcode and units.
const CTRL: &str = "ctrl.wqe_index=0xbeef ctrl.qpn=0x123456";
const RADDR: &str = "raddr.remote_address=0x7f1234567890abc8 raddr.rkey=0x1a2b";
const DATA: &str = "data[0].byte_count=0x40 data[0].lkey=0x5c01 data[0].address=0x7f00deadbeef0010";
const EIGHT: &str = "data[0].byte_count=0x8 data[0].lkey=0x5c01 data[0].address=0x7f00deadbeef0010";
const KLM: &str = "klm[0].byte_count=0x2000 klm[0].mkey=0x5c01 klm[0].address=0x7f00000000001000";
/// Bytes that count from 0, in hex.
fn counting(n: usize) -> String {
    (0..n).map(|i| format!("{i:02x}")).collect()
}

const RECV: &str = "data[0].byte_count=0x1000 data[0].lkey=0x5c01 data[0].address=0x7f00deadbeef0010";

#[test]
fn golden_work_queue_entries() {
    use Kind::{RecvWqe, SendWqe, SrqWqe};
    let (_, records) = golden("wqe.txt");
    let mut by_name: BTreeMap<_, _> = records.iter().filter_map(|r| Some((r.label.as_deref()?, r))).collect();
    for (name, kind, head, rest) in [
        (
            "RC SEND of one entry, signaled",
            SendWqe,
            "ctrl.opcode=0xa ctrl.ds=0x2 ctrl.completion=0x2",
            "data[0].byte_count=0x1234 data[0].lkey=0x5c01 data[0].address=0x7f00deadbeef0010",
        ),
        (
            "RC SEND of no entry, with every flag",
            SendWqe,
            "ctrl.opcode=0xa ctrl.ds=0x1 ctrl.completion=0x2 ctrl.fence=0x4 ctrl.solicited=0x1",
            "",
        ),
        (
            "RC SEND of 61 bytes inline, in two blocks",
            SendWqe,
            "ctrl.opcode=0xa ctrl.ds=0x6 ctrl.completion=0x2",
            &format!("inline[0].inline=0x1 inline[0].byte_count=0x3d inline[0].data={}", counting(61)),
        ),
        (
            "RC SEND with immediate, 5 bytes inline",
            SendWqe,
            "ctrl.opcode=0xb ctrl.ds=0x2 ctrl.immediate=0x11223344",
            "inline[0].inline=0x1 inline[0].byte_count=0x5 inline[0].data=68656c6c6f",
        ),
        (
            "RC SEND with invalidate",
            SendWqe,
            "ctrl.opcode=0x1 ctrl.ds=0x2 ctrl.completion=0x2 ctrl.invalidated_rkey=0x1a2b",
            "data[0].byte_count=0x10 data[0].lkey=0x11 data[0].address=0x1000",
        ),
        (
            "RC WRITE of three entries, one empty",
            SendWqe,
            "ctrl.opcode=0x8 ctrl.ds=0x4 ctrl.completion=0x2",
            "raddr data[0].byte_count=0x10 data[0].lkey=0x11 data[0].address=0x1000 data[1].byte_count=0x30 \
             data[1].lkey=0x33 data[1].address=0x3000",
        ),
        (
            "RC WRITE of 8 bytes inline",
            SendWqe,
            "ctrl.opcode=0x8 ctrl.ds=0x3",
            "raddr inline[0].inline=0x1 inline[0].byte_count=0x8 inline[0].data=0102030405060708",
        ),
        (
            "RC WRITE with immediate, 13 bytes inline in pieces",
            SendWqe,
            "ctrl.opcode=0x9 ctrl.ds=0x4 ctrl.completion=0x2 ctrl.solicited=0x1 ctrl.immediate=0x11223344",
            "raddr inline[0].inline=0x1 inline[0].byte_count=0xd inline[0].data=0102030405060708090a0b0c0d",
        ),
        (
            "RC READ of 2 GiB",
            SendWqe,
            "ctrl.opcode=0x10 ctrl.ds=0x3 ctrl.completion=0x2 ctrl.fence=0x4",
            "raddr data[0].lkey=0x5c01 data[0].address=0x7f00deadbeef0010",
        ),
        (
            "RC compare and swap",
            SendWqe,
            "ctrl.opcode=0x11 ctrl.ds=0x4 ctrl.completion=0x2",
            "raddr atomic.swap=0x1112131415161718 atomic.compare=0x2122232425262728 eight",
        ),
        (
            "RC fetch and add",
            SendWqe,
            "ctrl.opcode=0x12 ctrl.ds=0x4 ctrl.completion=0x2",
            "raddr atomic.add=0x1112131415161718 eight",
        ),
        ("RC NOP", SendWqe, "ctrl.ds=0x1 ctrl.completion=0x2", ""),
        (
            "RC bind of a type 1 window",
            SendWqe,
            "ctrl.opcode=0x25 ctrl.ds=0xc ctrl.completion=0x2 ctrl.changed_mkey=0xabcd01",
            "umr.flags=0x90 umr.klm_octowords=0x4 umr.mkey_mask=0x203c2041 mkey.access=0x30 mkey.qpn=0xffffff \
             mkey.key_byte=0x2 mkey.start_address=0x7f00000000001000 mkey.length=0x2000 klm",
        ),
        (
            "RC bind of a type 2 window",
            SendWqe,
            "ctrl.opcode=0x25 ctrl.ds=0xc ctrl.completion=0x2 ctrl.changed_mkey=0xabcd01",
            "umr.flags=0xb0 umr.klm_octowords=0x4 umr.mkey_mask=0x203c6041 mkey.access=0x70 mkey.qpn=0x123456 \
             mkey.key_byte=0x2 mkey.start_address=0x7f00000000001000 mkey.length=0x2000 klm",
        ),
        (
            "RC bind of a zero-based window",
            SendWqe,
            "ctrl.opcode=0x25 ctrl.ds=0xc ctrl.completion=0x2 ctrl.changed_mkey=0xabcd01",
            "umr.flags=0xb0 umr.klm_octowords=0x4 umr.mkey_mask=0x203c6041 mkey.access=0x10 mkey.qpn=0x123456 \
             mkey.key_byte=0x2 mkey.length=0x2000 klm",
        ),
        (
            "RC unbind of a type 1 window",
            SendWqe,
            "ctrl.opcode=0x25 ctrl.ds=0x8 ctrl.completion=0x2 ctrl.changed_mkey=0xabcd01",
            "umr.flags=0x90 umr.mkey_mask=0x20002000 mkey.free=0x1 mkey.qpn=0xffffff mkey.key_byte=0x2",
        ),
        (
            "RC unbind of a type 2 window",
            SendWqe,
            "ctrl.opcode=0x25 ctrl.ds=0x8 ctrl.completion=0x2 ctrl.changed_mkey=0xabcd01",
            "umr.flags=0x98 umr.mkey_mask=0x20006000 mkey.free=0x1 mkey.qpn=0xffffff mkey.key_byte=0x2",
        ),
        (
            "RC local invalidate",
            SendWqe,
            "ctrl.opcode=0x25 ctrl.ds=0x8 ctrl.completion=0x2 ctrl.fence=0x4 ctrl.changed_mkey=0x1a2b",
            "umr.flags=0x98 umr.mkey_mask=0x20006000 mkey.free=0x1 mkey.qpn=0xffffff",
        ),
        (
            "UD SEND on RoCE v2",
            SendWqe,
            "ctrl.opcode=0xa ctrl.ds=0x5 ctrl.completion=0x2",
            "av.qkey=0x11111111 av.extended=0x1 av.remote_qpn=0x654321 av.static_rate=0x3 av.sl=0x6 \
             av.rlid_or_udp_sport=0xfcf4 av.rmac=020304050607 av.traffic_class=0x2a av.hop_limit=0x40 av.grh=0x1 \
             av.sgid_index=0x3 av.flow_label=0xabcde av.remote_gid=00000000000000000000ffff0a000001 data",
        ),
        (
            "UD SEND with immediate on RoCE v1",
            SendWqe,
            "ctrl.opcode=0xb ctrl.ds=0x5 ctrl.completion=0x2 ctrl.immediate=0x11223344",
            "av.qkey=0x11111111 av.extended=0x1 av.remote_qpn=0x654321 av.sl=0x6 av.rmac=020304050607 \
             av.traffic_class=0x28 av.hop_limit=0x40 av.grh=0x1 av.sgid_index=0x3 av.flow_label=0xabcde \
             av.remote_gid=fe800000000000000202030405060708 data",
        ),
        (
            "UD SEND with immediate on InfiniBand, 4 bytes inline",
            SendWqe,
            "ctrl.opcode=0xb ctrl.ds=0x5 ctrl.completion=0x2 ctrl.immediate=0x11223344",
            "av.qkey=0x11111111 av.extended=0x1 av.remote_qpn=0x654321 av.sl=0x9 av.path_bits=0x5 \
             av.rlid_or_udp_sport=0x1234 inline[0].inline=0x1 inline[0].byte_count=0x4 inline[0].data=a1a2a3a4",
        ),
        ("XRC SEND of one entry", SendWqe, "ctrl.opcode=0xa ctrl.ds=0x3 ctrl.completion=0x2", "xrc.srqn=0xabcdef data"),
        (
            "XRC SEND with invalidate",
            SendWqe,
            "ctrl.opcode=0x1 ctrl.ds=0x3 ctrl.completion=0x2 ctrl.invalidated_rkey=0x1a2b",
            "xrc.srqn=0xabcdef data",
        ),
        (
            "XRC WRITE of one entry",
            SendWqe,
            "ctrl.opcode=0x8 ctrl.ds=0x4 ctrl.completion=0x2",
            "xrc.srqn=0xabcdef raddr data",
        ),
        (
            "XRC SEND with immediate, 4 bytes inline",
            SendWqe,
            "ctrl.opcode=0xb ctrl.ds=0x3 ctrl.completion=0x2 ctrl.solicited=0x1 ctrl.immediate=0x11223344",
            "xrc.srqn=0xabcdef inline[0].inline=0x1 inline[0].byte_count=0x4 inline[0].data=a1a2a3a4",
        ),
        (
            "XRC WRITE with immediate, one entry",
            SendWqe,
            "ctrl.opcode=0x9 ctrl.ds=0x4 ctrl.completion=0x2 ctrl.immediate=0x11223344",
            "xrc.srqn=0xabcdef raddr data",
        ),
        (
            "XRC READ of one entry",
            SendWqe,
            "ctrl.opcode=0x10 ctrl.ds=0x4 ctrl.completion=0x2 ctrl.fence=0x4",
            "xrc.srqn=0xabcdef raddr data",
        ),
        (
            "XRC compare and swap",
            SendWqe,
            "ctrl.opcode=0x11 ctrl.ds=0x5 ctrl.completion=0x2",
            "xrc.srqn=0xabcdef raddr atomic.swap=0x1112131415161718 atomic.compare=0x2122232425262728 eight",
        ),
        (
            "XRC fetch and add",
            SendWqe,
            "ctrl.opcode=0x12 ctrl.ds=0x5 ctrl.completion=0x2",
            "xrc.srqn=0xabcdef raddr atomic.add=0x1112131415161718 eight",
        ),
        ("receive of one entry where four fit", RecvWqe, "", "recv data[1].lkey=0x100"),
        ("receive of no entry", RecvWqe, "", "data[0].lkey=0x100"),
        ("shared receive of one entry where three fit", SrqWqe, "next.next_wqe_index=0x1", "recv data[1].lkey=0x100"),
    ] {
        let record = by_name.remove(name).unwrap_or_else(|| panic!("{name} is not there"));
        let words = rest.split_whitespace().map(|word| match word {
            "raddr" => RADDR,
            "data" => DATA,
            "eight" => EIGHT,
            "klm" => KLM,
            "recv" => RECV,
            other => other,
        });
        let head = if kind == SendWqe { format!("{CTRL} {head}") } else { head.to_owned() };
        check(record, kind, &format!("{head} {}", words.collect::<Vec<_>>().join(" ")));
        assert!(record.kind_guessed);
    }
    // Two entries and no end: the bytes alone do not tell.
    assert!(by_name.remove("receive of as many entries as fit").is_some());
    assert!(by_name.is_empty(), "not checked: {:?}", by_name.keys());
    let (_, records) = golden_as("wqe.txt", &Decode { recv_wqe: true, ..args() });
    let full = records.iter().find(|r| r.label.as_deref() == Some("receive of as many entries as fit")).unwrap();
    check(full, RecvWqe, &format!("{RECV} data[1].byte_count=0x10 data[1].lkey=0x11 data[1].address=0x1000"));
    assert_eq!((full.summary.as_str(), full.kind_guessed), ("receive of 4112 bytes into 2 buffers", false));
}

const DONE: &str = "cqe.qpn=0x123456 cqe.user_index=0x5";
const TIME: &str = "cqe.timestamp=0xe8d4a51000";

#[test]
fn golden_completions() {
    let (_, records) = golden("cqe.txt");
    let mut by_name: BTreeMap<_, _> = records.iter().filter_map(|r| Some((r.label.as_deref()?, r))).collect();
    let inline_32 = format!("{}{}", counting(20), "ff".repeat(12));
    let inline_8 = format!("{}{}", counting(8), "ff".repeat(24));
    let inline_64 = format!("{}{}", counting(50), "ff".repeat(14));
    for (name, fields) in [
        ("done: SEND", "cqe.send_opcode=0xa cqe.wqe_counter=0x3"),
        ("done: SEND with immediate", "cqe.send_opcode=0xb cqe.wqe_counter=0x3"),
        ("done: SEND with invalidate", "cqe.send_opcode=0x1 cqe.wqe_counter=0x3"),
        ("done: RDMA WRITE", "cqe.send_opcode=0x8 cqe.wqe_counter=0x3"),
        ("done: RDMA WRITE with immediate", "cqe.send_opcode=0x9 cqe.wqe_counter=0x3"),
        ("done: NOP", "cqe.wqe_counter=0x3"),
        ("done: RDMA READ", "cqe.send_opcode=0x10 cqe.wqe_counter=0x3 cqe.byte_count=0x1000"),
        ("done: compare and swap", "cqe.send_opcode=0x11 cqe.wqe_counter=0x3 cqe.byte_count=0x8"),
        ("done: fetch and add", "cqe.send_opcode=0x12 cqe.wqe_counter=0x3 cqe.byte_count=0x8"),
        ("done: UMR", "cqe.send_opcode=0x25 cqe.wqe_counter=0x3"),
        (
            "done: RDMA READ of 20 bytes, inside the element",
            &format!(
                "cqe.send_opcode=0x10 cqe.format=0x1 cqe.wqe_counter=0x3 cqe.byte_count=0x14 \
                 cqe.inline_data={inline_32}"
            ),
        ),
        (
            "done: fetch and add, its 8 bytes inside the element",
            &format!(
                "cqe.send_opcode=0x12 cqe.format=0x1 cqe.wqe_counter=0x3 cqe.byte_count=0x8 cqe.inline_data={inline_8}"
            ),
        ),
        ("received: SEND", "cqe.opcode=0x2 cqe.wqe_counter=0x1 cqe.byte_count=0x400"),
        (
            "received: SEND with immediate, solicited",
            "cqe.opcode=0x3 cqe.solicited=0x1 cqe.wqe_counter=0x1 cqe.byte_count=0x400 cqe.immediate=0x11223344",
        ),
        ("received: SEND with invalidate", "cqe.opcode=0x4 cqe.wqe_counter=0x1 cqe.invalidated_rkey=0x1a2b"),
        (
            "received: RDMA WRITE with immediate",
            "cqe.opcode=0x1 cqe.wqe_counter=0x1 cqe.byte_count=0x2000 cqe.immediate=0x11223344",
        ),
        (
            "received: datagram on InfiniBand",
            "cqe.opcode=0x2 cqe.wqe_counter=0x1 cqe.byte_count=0x428 cqe.imm_or_pkey_index=0x7 cqe.path_bits=0x5 \
             cqe.slid=0x1234 cqe.remote_qpn=0x654321 cqe.sl=0x9 cqe.grh=0x1",
        ),
        (
            "received: datagram on RoCE v2",
            "cqe.opcode=0x2 cqe.solicited=0x1 cqe.wqe_counter=0x1 cqe.byte_count=0x68 cqe.remote_qpn=0x654321 \
             cqe.sl=0x2 cqe.grh=0x1",
        ),
        (
            "received: SEND with immediate, 8 bytes inside the element",
            &format!(
                "cqe.opcode=0x3 cqe.format=0x1 cqe.wqe_counter=0x1 cqe.byte_count=0x8 cqe.immediate=0x11223344 \
                 cqe.inline_data={inline_8}"
            ),
        ),
        (
            "received: 20 bytes inside the element",
            &format!(
                "cqe.opcode=0x2 cqe.format=0x1 cqe.wqe_counter=0x1 cqe.byte_count=0x14 cqe.inline_data={inline_32}"
            ),
        ),
        (
            "received: 50 bytes before the element, of 128",
            &format!(
                "cqe.opcode=0x2 cqe.format=0x2 cqe.wqe_counter=0x1 cqe.byte_count=0x32 before.inline_data={inline_64}"
            ),
        ),
    ] {
        let record = by_name.remove(name).unwrap_or_else(|| panic!("{name} is not there"));
        check(record, Kind::Cqe, &format!("{DONE} {TIME} {fields}"));
        assert_eq!(record.failure, None);
    }
    let end = by_name.remove("the end of a ring that was resized").unwrap();
    check(end, Kind::Cqe, &format!("cqe.opcode=0x5 {TIME}"));
    assert!(by_name.keys().all(|name| name.starts_with("failed ")), "not checked: {:?}", by_name.keys());
    let failed: Vec<_> = by_name.iter().filter(|(name, _)| name.starts_with("failed ")).collect();
    let of = |side: &str| failed.iter().filter(|(name, _)| name.starts_with(side)).count();
    // Every syndrome that has a name, and one that has none.
    let each = softcx::Syndrome::ALL.len() + 1;
    assert_eq!((of("failed send: "), of("failed receive: ")), (each, each));
    for (name, record) in failed {
        let cause = record.failure.as_ref().unwrap_or_else(|| panic!("{name}: no failure"));
        let (side, what) = name.strip_prefix("failed ").unwrap().split_once(": ").unwrap();
        let status = match what {
            "local length error" => "LOC_LEN_ERR",
            "local queue pair operation error" => "LOC_QP_OP_ERR",
            "local protection error" => "LOC_PROT_ERR",
            "flushed" => "WR_FLUSH_ERR",
            "memory window bind error" => "MW_BIND_ERR",
            "bad response" => "BAD_RESP_ERR",
            "local access error" => "LOC_ACCESS_ERR",
            "remote invalid request" => "REM_INV_REQ_ERR",
            "remote access error" => "REM_ACCESS_ERR",
            "remote operation error" => "REM_OP_ERR",
            "transport retries exceeded" => "RETRY_EXC_ERR",
            "receiver not ready retries exceeded" => "RNR_RETRY_EXC_ERR",
            "remote aborted" => "REM_ABORT_ERR",
            "not known: general error" => "GENERAL_ERR",
            _ => panic!("{name}: a syndrome that this test does not know"),
        };
        assert_eq!(cause.status, status, "{name}");
        assert!(!cause.usual_causes.is_empty() && !cause.vendor_note.is_empty());
        let (opcode, rest) = match side {
            "send" => ("0xd", "cqe.send_opcode=0xa cqe.wqe_counter=0x3"),
            _ => ("0xe", "cqe.wqe_counter=0x3"),
        };
        let (syndrome, vendor) = (cause.syndrome, cause.vendor_syndrome);
        let fields = format!("cqe.opcode={opcode} cqe.syndrome={syndrome:#x} cqe.vendor_syndrome={vendor:#x}");
        check(record, Kind::Cqe, &format!("{DONE} {fields} {rest}"));
    }
}

#[test]
fn golden_packed_completions() {
    let (_, records) = golden("cqe_packed.txt");
    let [title, receives, other_title, sends, ten_title, eight, two] = records.as_slice() else {
        panic!("{records:#?}")
    };
    check(
        title,
        Kind::Cqe,
        &format!("{DONE} {TIME} cqe.opcode=0x2 cqe.format=0x3 cqe.wqe_counter=0x1 cqe.byte_count=0x3"),
    );
    check(receives, Kind::PackedReceives, "packed[0].byte_count=0x400 packed[2].byte_count=0x10");
    assert_eq!(receives.summary, "3 packed completions: receives");
    let title = "cqe.send_opcode=0x8 cqe.format=0x3 cqe.wqe_counter=0x3 cqe.byte_count=0x2";
    check(other_title, Kind::Cqe, &format!("{DONE} {TIME} {title}"));
    check(
        sends,
        Kind::PackedSends,
        "packed[0].wqe_counter=0x3 packed[0].send_opcode=0x8 packed[1].wqe_counter=0x5 packed[1].send_opcode=0x10 \
         packed[1].byte_count=0x1000",
    );
    let title = "cqe.opcode=0x2 cqe.format=0x3 cqe.wqe_counter=0xffff cqe.byte_count=0xa";
    check(ten_title, Kind::Cqe, &format!("{DONE} {TIME} {title}"));
    let counts: Vec<_> = (0..8).map(|i| format!("packed[{i}].byte_count={:#x}", i + 1)).collect();
    check(eight, Kind::PackedReceives, &counts.join(" "));
    check(two, Kind::PackedReceives, "packed[0].byte_count=0x9 packed[1].byte_count=0xa");
}

#[test]
fn packed_completions_of_a_ring_are_found_behind_stale_places() {
    // Nine completions take nine places: the title, eight packed ones, six stale places, and the ninth in the last.
    let title = "00*44 00000009 00*8 00000041 0000 00 2c\n";
    let text = format!("{title}{}ee*384\n0000000000000077 00*56\n", "0000000000000011".repeat(8) + "\n");
    let records = records_of("-", &text, &Decode { cqe: true, ..args() });
    let found: Vec<_> = records.iter().map(|r| (r.kind, r.bytes.len() / 2)).collect();
    assert_eq!(found, [(Kind::Cqe, 64), (Kind::PackedReceives, 64), (Kind::PackedReceives, 8)]);
    assert_eq!(shown(&records[2].fields), ["packed[0].byte_count=0x77"]);
}

#[test]
fn a_line_from_the_world() {
    let text = "00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n\
                00000000 00000000 00000000 00000000\n00000000 00008813 08006214 0000f6d2\n";
    let records = records_of("-", text, &args());
    let [record] = records.as_slice() else { panic!("{records:#?}") };
    assert_eq!(record.summary, "send failed: RDMA WRITE, QP 0x006214, counter 0: REM_ACCESS_ERR (remote access error)");
    let cause = record.failure.as_ref().unwrap();
    assert_eq!((cause.syndrome, cause.vendor_syndrome, cause.status_number), (0x13, 0x88, 10));
    assert!(cause.vendor_note.contains("usually") && cause.usual_causes.contains("key"), "{cause:?}");
    let text = text_of(&records);
    assert!(text.contains("usual causes:") && text.contains("cqe.syndrome"), "{text}");
}

#[test]
fn a_ring_is_cut_into_its_entries() {
    // A NOP, a send of three blocks, and blocks that were never written.
    let nop = "00000500 00004101 00000008 00000000";
    let send = "0000060a 00004109 00000008 00000000";
    let sge = "00001000 00005c01 00007f00 00001000\n";
    let text = format!("{nop}\n00*48\n{send}\n{}00*48\n00*512\n", sge.repeat(8));
    let records = records_of("-", &text, &Decode { wqe: true, ..args() });
    let kinds: Vec<_> = records.iter().map(|r| (r.summary.split(',').next().unwrap(), r.bytes.len() / 2)).collect();
    assert_eq!(kinds, [("NOP", 16), ("SEND", 144)]);
    let two = "00000000".repeat(14) + "0a000041 00000000" + &"00000000".repeat(14) + "0a000041 00010000";
    let records = records_of("-", &two, &Decode { cqe: true, ..args() });
    assert_eq!(records.len(), 2);
    assert_eq!(records_of("-", &two, &Decode { cqe: true, cqe_size: Some(128), ..args() }).len(), 1);
}

#[test]
fn what_is_cut_off_is_told() {
    for (text, args) in [
        ("00beef0a 12345604 00000008 00000000", args()),
        ("00beef0a 12345602 00000008 00000000 80000050 01020304 05060708 090a0b0c", Decode { wqe: true, ..args() }),
        ("00*16", Decode { wqe: true, ..args() }),
        ("00*63", Decode { cqe: true, ..args() }),
        ("00*63 f0", Decode { cqe: true, ..args() }),
        ("80000005 68656c6c 6f000000 00000000", Decode { recv_wqe: true, ..args() }),
        ("0001", Decode { srq_wqe: true, ..args() }),
    ] {
        let records = records_of("-", text, &args);
        assert!(records.iter().any(|r| !r.problems.is_empty()), "{text}: {records:#?}");
        assert!(!text_of(&records).is_empty());
    }
}

/// As large as dumps may be, whatever is in it, it takes no longer than its size.
#[test]
fn a_large_dump_is_cut_at_once() {
    let send = [&[0, 0, 5, 0x0a, 0, 0, 0x41, 1, 0, 0, 0, 8][..], &[0; 52]].concat();
    let mut blank = vec![0; 1 << 20];
    blank[(1 << 20) - 1] = 1;
    for (bytes, kind) in [(send.repeat(1 << 14), None), (blank.clone(), None), (blank, Some(Kind::Cqe))] {
        let begin = std::time::Instant::now();
        let entries = guess::entries(&bytes, None, kind, None);
        assert!(entries.len() >= 1 << 13, "{}", entries.len());
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::SendWqe),
        Just(Kind::RecvWqe),
        Just(Kind::SrqWqe),
        Just(Kind::Cqe),
        Just(Kind::PackedSends),
        Just(Kind::PackedReceives)
    ]
}

fn layouts() -> impl Strategy<Value = Option<Layout>> {
    prop_oneof![Just(None), Just(Some(Layout::Connected)), Just(Some(Layout::Datagram)), Just(Some(Layout::Xrc))]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are, there is an answer, and no field is told from bytes that are not there.
    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300), kind in kinds(), layout in layouts()) {
        let decoded = Decoded::of(kind, layout, &bytes);
        prop_assert!(!decoded.summary.is_empty() && !decoded.line().is_empty());
        for field in &decoded.fields {
            prop_assert!((field.offset_bytes as usize) < bytes.len().max(1), "{field:?} of {}", bytes.len());
        }
    }

    /// A plausible head, so that the segments behind it are reached, over damaged bytes.
    #[test]
    fn any_segments(op in 0_u8..0x30, ds in 0_u8..64, mut bytes in vec(any::<u8>(), 16..600), layout in layouts()) {
        bytes[3] = op;
        bytes[7] = ds;
        let decoded = Decoded::of(Kind::SendWqe, layout, &bytes);
        prop_assert!(!decoded.line().is_empty());
    }

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        let records = records_of("-", &text, &args());
        let _ = text_of(&records);
    }

    #[test]
    fn any_dump(text in "([0-9a-f]{0,9}[:*|\\[\\] \\n]{0,3}|0x|kernel: |00000010: ){0,60}") {
        let records = records_of("-", &text, &args());
        let _ = text_of(&records);
    }

}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    /// A golden file with a few characters changed.
    #[test]
    fn a_damaged_file(at in vec((0_usize..20_000, any::<char>()), 1..8), which in 0..3) {
        let (text, _) = golden(["wqe.txt", "cqe.txt", "cqe_packed.txt"][which as usize]);
        let mut chars: Vec<char> = text.chars().collect();
        for (place, other) in at {
            let place = place % chars.len();
            chars[place] = other;
        }
        let text: String = chars.into_iter().collect();
        let records = records_of("-", &text, &args());
        let text = text_of(&records);
        prop_assert!(!text.is_empty());
    }
}

/// As `cargo vm --device-record` writes them.
#[test]
fn lines_of_a_devices_record_say_what_they_are() {
    let (_, sends) = golden("wqe.txt");
    let send = sends.iter().find(|record| record.fields.iter().any(|f| f.segment == "data[0]")).unwrap();
    let cqe = "00".repeat(56) + "0a12345600030000";
    let receive = "00000040 00005c01 7f00deadbeef0010".replace(' ', "");
    let text = format!(
        "# seconds of the adapters' time\n\
         0.012345 mlx5_0 send qp=0x123456 kind=Rc index=48879 blocks=65536 from=copy hex={} # SendWqe {{ .. }}\n\
         0.012346 mlx5_1 receive qp=0x66 index=0 hex={receive} # []\n\
         0.012347 mlx5_1 receive srq=0x3 index=0 hex={}{receive} # []\n\
         0.012348 guest 2's mlx5_0 completion cq=0x81 index=3 hex={cqe} # opcode 0\n\
         0.012348 mlx5_0 completion cq=0x81 index=4 hex={cqe} # opcode 0\n\
         0.012349 mlx5_0 completion cq=0x82 index=0 hex={}{cqe} # opcode 0\n\
         0.012350 mlx5_0 packed cq=0x82 index=2 of=sends hex=00030a0000000040 # 1 completions\n\
         0.012351 mlx5_0 packed cq=0x82 index=4 of=receives hex=0000000000000040 # 1 completions\n",
        send.bytes.replace(' ', ""),
        "00".repeat(16),
        "00".repeat(64),
    );
    let records = records_of("-", &text, &args());
    let kinds: Vec<_> = records.iter().map(|r| (r.kind, r.kind_guessed, r.line)).collect();
    let expected = [
        (Kind::SendWqe, false, 2),
        (Kind::RecvWqe, false, 3),
        (Kind::SrqWqe, false, 4),
        (Kind::Cqe, false, 5),
        (Kind::Cqe, false, 6),
        (Kind::Cqe, false, 7),
        (Kind::PackedSends, false, 8),
        (Kind::PackedReceives, false, 9),
    ];
    assert_eq!(kinds, expected, "{}", text_of(&records));
    assert_eq!(records[0].summary, send.summary);
    assert!(records[4].summary.contains("0x123456") && records[5].summary == records[4].summary);
    assert!(records.iter().all(|record| record.problems.is_empty()), "{}", text_of(&records));
    assert!(records[1].label.as_ref().unwrap().contains("receive qp=0x66"));
}

#[test]
fn the_hardwares_own_syndrome_is_shown() {
    let cqe = "00".repeat(52) + "1a0b8115" + "0a12345600030" + "0d0";
    let records = records_of("-", &cqe, &args());
    let shown = shown(&records[0].fields);
    for field in ["cqe.hw_err_synd=0x1a", "cqe.hw_synd_type=0xb", "cqe.vendor_syndrome=0x81", "cqe.syndrome=0x15"] {
        assert!(shown.iter().any(|f| f == field), "{field}: {shown:?}");
    }
}
