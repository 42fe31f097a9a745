//! The library's golden vectors, read by the device's own tables: what the library writes is what the device understands, and
//! what the device writes is what the library expects. Neither knows the other's formats; both know these files.

mod vectors;

use softcx::bits::cqe::{self, Cqe};
use softcx::{Access, Atomic, QpKind, Segment, SendWqe, Sge, Syndrome, Work, scatter_list};
use std::collections::BTreeMap;
use vectors::vectors;

const REMOTE: Option<(u64, u32)> = Some((0x7f12_3456_7890_abc8, 0x1a2b));

fn sge(address: u64, len: u32, lkey: u32) -> Segment {
    Segment::Sge(Sge { lkey, address, len })
}

/// The entry that most vectors have.
fn entry(len: u32) -> Segment {
    sge(0x7f00_dead_beef_0010, len, 0x5c01)
}

/// What a vector must be taken for: its units, whether it completes, is solicited, its fence; its work, its remote side and
/// its data.
type Want = (u8, bool, bool, u8, Work, Option<(u64, u32)>, Vec<Segment>);

#[test]
fn send_elements_mean_what_their_names_say() {
    let mut all = vectors("wqe.txt");
    let send = |imm: Option<[u8; 4]>, invalidate| Work::Send { imm, invalidate };
    let imm = Some([0x11, 0x22, 0x33, 0x44]);
    let cas = Work::Atomic(Atomic::CompareSwap {
        compare: 0x2122_2324_2526_2728,
        swap: 0x1112_1314_1516_1718,
        compare_mask: u64::MAX,
        swap_mask: u64::MAX,
    });
    let add = Work::Atomic(Atomic::FetchAdd { add: 0x1112_1314_1516_1718, boundary: 0 });
    let (three, inline) = ([sge(0x1000, 0x10, 0x11), sge(0x3000, 0x30, 0x33)].to_vec(), |bytes: &[u8]| {
        vec![Segment::Inline(bytes.to_vec())]
    });
    let fence = 0x80;
    let wanted: Vec<(&str, Want)> = vec![
        ("RC SEND of one entry, signaled", (2, true, false, 0, send(None, None), None, vec![entry(0x1234)])),
        ("RC SEND of no entry, with every flag", (1, true, true, fence, send(None, None), None, vec![])),
        (
            "RC SEND of 61 bytes inline, in two blocks",
            (6, true, false, 0, send(None, None), None, inline(&(0..61).collect::<Vec<u8>>())),
        ),
        ("RC SEND with immediate, 5 bytes inline", (2, false, false, 0, send(imm, None), None, inline(b"hello"))),
        ("RC SEND with invalidate", (2, true, false, 0, send(None, Some(0x1a2b)), None, three[..1].to_vec())),
        ("RC WRITE of three entries, one empty", (4, true, false, 0, Work::Write { imm: None }, REMOTE, three)),
        (
            "RC WRITE of 8 bytes inline",
            (3, false, false, 0, Work::Write { imm: None }, REMOTE, inline(&[1, 2, 3, 4, 5, 6, 7, 8])),
        ),
        (
            "RC WRITE with immediate, 13 bytes inline in pieces",
            (4, true, true, 0, Work::Write { imm }, REMOTE, inline(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])),
        ),
        ("RC READ of 2 GiB", (3, true, false, fence, Work::Read, REMOTE, vec![entry(1 << 31)])),
        ("RC compare and swap", (4, true, false, 0, cas.clone(), REMOTE, vec![entry(8)])),
        ("RC fetch and add", (4, true, false, 0, add.clone(), REMOTE, vec![entry(8)])),
        ("RC NOP", (1, true, false, 0, Work::Nop, None, vec![])),
        ("UD SEND on RoCE v2", (5, true, false, 0, send(None, None), None, vec![entry(0x40)])),
        ("UD SEND with immediate on RoCE v1", (5, true, false, 0, send(imm, None), None, vec![entry(0x40)])),
        (
            "UD SEND with immediate on InfiniBand, 4 bytes inline",
            (5, true, false, 0, send(imm, None), None, inline(&[0xa1, 0xa2, 0xa3, 0xa4])),
        ),
        ("XRC SEND of one entry", (3, true, false, 0, send(None, None), None, vec![entry(0x40)])),
        (
            "XRC SEND with immediate, 4 bytes inline",
            (3, true, true, 0, send(imm, None), None, inline(&[0xa1, 0xa2, 0xa3, 0xa4])),
        ),
        ("XRC SEND with invalidate", (3, true, false, 0, send(None, Some(0x1a2b)), None, vec![entry(0x40)])),
        ("XRC WRITE of one entry", (4, true, false, 0, Work::Write { imm: None }, REMOTE, vec![entry(0x40)])),
        ("XRC WRITE with immediate, one entry", (4, true, false, 0, Work::Write { imm }, REMOTE, vec![entry(0x40)])),
        ("XRC READ of one entry", (4, true, false, fence, Work::Read, REMOTE, vec![entry(0x40)])),
        ("XRC compare and swap", (5, true, false, 0, cas, REMOTE, vec![entry(8)])),
        ("XRC fetch and add", (5, true, false, 0, add, REMOTE, vec![entry(8)])),
    ];
    for (name, (ds, signaled, solicited, fence, work, remote, data)) in wanted {
        let wqe = take(&mut all, name);
        assert_eq!((wqe.index, wqe.ds), (0xbeef, ds), "{name}");
        assert_eq!((wqe.signaled, wqe.solicited, wqe.fence), (signaled, solicited, fence), "{name}");
        assert_eq!((&wqe.work, wqe.remote), (&work, remote), "{name}");
        assert_eq!(wqe.data, data, "{name}");
        assert_eq!(wqe.xrc_srqn, name.starts_with("XRC").then_some(0xab_cdef), "{name}");
        assert_eq!(wqe.av.is_some(), name.starts_with("UD"), "{name}");
    }
    key_changes(&mut all);
    receive_elements(&mut all);
    assert_eq!(all.keys().collect::<Vec<_>>(), Vec::<&String>::new(), "vectors that nobody looked at");
    addresses();
}

fn take(all: &mut BTreeMap<String, Vec<u8>>, name: &str) -> SendWqe {
    let bytes = all.remove(name).unwrap_or_else(|| panic!("no vector {name}"));
    assert_eq!(bytes[4..7], [0x12, 0x34, 0x56], "{name}: queue pair");
    let kind = match name.split(' ').next() {
        Some("UD") => QpKind::Ud,
        Some("XRC") => QpKind::XrcIni,
        _ => QpKind::Rc,
    };
    SendWqe::decode(&bytes, kind).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Bindings and invalidations.
fn key_changes(all: &mut BTreeMap<String, Vec<u8>>) {
    const FREE: u64 = 1 << 29;
    const KEY: u64 = 1 << 13;
    const QP: u64 = 1 << 14;
    const BIND: u64 = FREE | KEY | 1 | 1 << 6 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21;
    let read_write = Access::LOCAL_READ | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let read = Access::LOCAL_READ | Access::REMOTE_READ;
    let (atomic, none, any) = (read_write | Access::REMOTE_ATOMIC, Access::LOCAL_READ, 0xff_ffff);
    let (start, len, klm) = (0x7f00_0000_0000_1000, 0x2000, vec![(0x2000, 0x5c01, 0x7f00_0000_0000_1000)]);
    for (name, key, flags, mask, free, access, qpn, variant, range, klms, fence) in [
        ("RC bind of a type 1 window", 0xab_cd01, 0x90, BIND, false, read_write, any, 2, (start, len), klm.clone(), 0),
        (
            "RC bind of a type 2 window",
            0xab_cd01,
            0xb0,
            BIND | QP,
            false,
            atomic,
            0x12_3456,
            2,
            (start, len),
            klm.clone(),
            0,
        ),
        ("RC bind of a zero-based window", 0xab_cd01, 0xb0, BIND | QP, false, read, 0x12_3456, 2, (0, len), klm, 0),
        ("RC unbind of a type 1 window", 0xab_cd01, 0x90, FREE | KEY, true, none, any, 2, (0, 0), vec![], 0),
        ("RC unbind of a type 2 window", 0xab_cd01, 0x98, FREE | KEY | QP, true, none, any, 2, (0, 0), vec![], 0),
        ("RC local invalidate", 0x1a2b, 0x98, FREE | KEY | QP, true, none, any, 0, (0, 0), vec![], 0x80),
    ] {
        let wqe = take(all, name);
        let Work::Umr(umr) = &wqe.work else { panic!("{name}: {:?}", wqe.work) };
        assert_eq!((umr.key, umr.flags, umr.mask, umr.free), (key, flags, mask, free), "{name}");
        assert_eq!((umr.access, umr.qpn, umr.variant), (access, qpn, variant), "{name}");
        assert_eq!(((umr.start, umr.len), &umr.klms), (range, &klms), "{name}");
        assert_eq!((wqe.fence, wqe.signaled, wqe.index), (fence, true, 0xbeef), "{name}");
    }
}

fn receive_elements(all: &mut BTreeMap<String, Vec<u8>>) {
    let first = Sge { lkey: 0x5c01, address: 0x7f00_dead_beef_0010, len: 0x1000 };
    let second = Sge { lkey: 0x11, address: 0x1000, len: 0x10 };
    let mut list = |name: &str, from: usize| scatter_list(&all.remove(name).unwrap()[from..]);
    assert_eq!(list("receive of one entry where four fit", 0), [first]);
    assert_eq!(list("receive of as many entries as fit", 0), [first, second]);
    assert_eq!(list("receive of no entry", 0), []);
    assert_eq!(vectors("wqe.txt")["shared receive of one entry where three fit"][2..4], [0, 1], "the element after it");
    assert_eq!(list("shared receive of one entry where three fit", 16), [first]);
}

fn addresses() {
    let all = vectors("wqe.txt");
    let av = |name: &str| SendWqe::decode(&all[name], QpKind::Ud).unwrap().av.unwrap();
    let roce = av("UD SEND on RoCE v2");
    assert_eq!((roce.qkey, roce.dqpn, roce.sl, roce.src_path_bits), (0x1111_1111, 0x65_4321, 6, 0));
    assert_eq!((roce.rlid, roce.rmac), (0xfcf4, [2, 3, 4, 5, 6, 7]));
    assert_eq!((roce.tclass, roce.hop_limit, roce.grh), (0x2a, 64, true));
    assert_eq!((roce.sgid_index, roce.flow_label), (3, 0xa_bcde));
    assert_eq!(roce.rgid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    let roce_v1 = av("UD SEND with immediate on RoCE v1");
    assert_eq!((roce_v1.qkey, roce_v1.dqpn, roce_v1.sl, roce_v1.src_path_bits), (0x1111_1111, 0x65_4321, 6, 0));
    assert_eq!((roce_v1.rlid, roce_v1.rmac), (0, [2, 3, 4, 5, 6, 7]));
    assert_eq!((roce_v1.tclass, roce_v1.hop_limit, roce_v1.grh), (0x28, 64, true));
    assert_eq!((roce_v1.sgid_index, roce_v1.flow_label), (3, 0xa_bcde));
    assert_eq!(roce_v1.rgid, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 3, 4, 5, 6, 7, 8]);
    let infiniband = av("UD SEND with immediate on InfiniBand, 4 bytes inline");
    assert_eq!((infiniband.qkey, infiniband.dqpn, infiniband.sl), (0x1111_1111, 0x65_4321, 9));
    assert_eq!((infiniband.src_path_bits, infiniband.rlid, infiniband.grh), (5, 0x1234, false));
}

#[test]
fn completions_are_written_as_the_vectors_have_them() {
    use cqe::opcode::{REQ, REQ_ERR, RESP_ERR, RESP_SEND, RESP_SEND_IMM, RESP_SEND_INV, RESP_WRITE_IMM};
    const TIME: u64 = 1_000_000_000_000;
    let mut all = vectors("cqe.txt");
    let base = |opcode: u8, counter: u16| {
        let mut entry = Cqe::new(opcode, 0x12_3456, 5, counter);
        entry.put(cqe::TIMESTAMP, &TIME.to_be_bytes());
        entry
    };
    let mut check = |name: &str, entry: &Cqe| {
        let want = all.remove(name).unwrap_or_else(|| panic!("no vector {name}"));
        let mut bytes = entry.before.map(Vec::from).unwrap_or_default();
        bytes.extend(entry.body);
        assert_eq!(bytes, want, "{name}");
    };
    for (name, sop, len) in [
        ("done: SEND", 0x0a, 0_u32),
        ("done: SEND with immediate", 0x0b, 0),
        ("done: SEND with invalidate", 0x01, 0),
        ("done: RDMA WRITE", 0x08, 0),
        ("done: RDMA WRITE with immediate", 0x09, 0),
        ("done: NOP", 0x00, 0),
        ("done: RDMA READ", 0x10, 0x1000),
        ("done: compare and swap", 0x11, 8),
        ("done: fetch and add", 0x12, 8),
        ("done: UMR", 0x25, 0),
    ] {
        let mut entry = base(REQ, 3);
        entry.put(cqe::SOP_QPN, &[sop]).put(cqe::BYTE_CNT, &len.to_be_bytes());
        check(name, &entry);
    }
    for (name, sop, len) in [
        ("done: RDMA READ of 20 bytes, inside the element", 0x10, 20_usize),
        ("done: fetch and add, its 8 bytes inside the element", 0x12, 8),
    ] {
        let mut entry = base(REQ, 3);
        entry.put(cqe::SOP_QPN, &[sop]).put(cqe::BYTE_CNT, &(len as u32).to_be_bytes());
        entry.put(0, &[0xff; 32]).put(0, &(0..len as u8).collect::<Vec<_>>());
        entry.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_32;
        check(name, &entry);
    }
    for (name, opcode, word, len, flags) in [
        ("received: SEND", RESP_SEND, 0_u32, 0x400_u32, 0),
        ("received: SEND with immediate, solicited", RESP_SEND_IMM, 0x1122_3344, 0x400, cqe::SOLICITED),
        ("received: SEND with invalidate", RESP_SEND_INV, 0x1a2b, 0, 0),
        ("received: RDMA WRITE with immediate", RESP_WRITE_IMM, 0x1122_3344, 0x2000, 0),
    ] {
        let mut entry = base(opcode, 1);
        entry.put(cqe::IMM_INVAL_PKEY, &word.to_be_bytes()).put(cqe::BYTE_CNT, &len.to_be_bytes());
        entry.body[cqe::OP_OWN] |= flags;
        check(name, &entry);
    }
    let mut datagram = base(RESP_SEND, 1);
    datagram.put(cqe::ML_PATH, &[5]).put(cqe::SLID, &0x1234_u16.to_be_bytes());
    // Route header, service level 9, queue pair of the sender.
    datagram.put(cqe::FLAGS_RQPN, &(1_u32 << 28 | 9 << 24 | 0x65_4321).to_be_bytes());
    datagram.put(cqe::IMM_INVAL_PKEY, &7_u32.to_be_bytes()).put(cqe::BYTE_CNT, &0x428_u32.to_be_bytes());
    check("received: datagram on InfiniBand", &datagram);
    let mut datagram = base(RESP_SEND, 1);
    // Route header, IPv4, queue pair of the sender.
    datagram.put(cqe::FLAGS_RQPN, &(1_u32 << 28 | 2 << 24 | 0x65_4321).to_be_bytes());
    datagram.put(cqe::BYTE_CNT, &0x68_u32.to_be_bytes());
    datagram.body[cqe::OP_OWN] |= cqe::SOLICITED;
    check("received: datagram on RoCE v2", &datagram);
    let message: Vec<u8> = (0..64).collect();
    let mut short = base(RESP_SEND_IMM, 1);
    short.put(0, &[0xff; 32]).put(0, &message[..8]).put(cqe::BYTE_CNT, &8_u32.to_be_bytes());
    short.put(cqe::IMM_INVAL_PKEY, &0x1122_3344_u32.to_be_bytes());
    short.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_32;
    check("received: SEND with immediate, 8 bytes inside the element", &short);
    let mut inside = base(RESP_SEND, 1);
    inside.put(0, &[0xff; 32]).put(0, &message[..20]).put(cqe::BYTE_CNT, &20_u32.to_be_bytes());
    inside.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_32;
    check("received: 20 bytes inside the element", &inside);
    let mut before = base(RESP_SEND, 1);
    let mut half = [0xff; 64];
    half[..50].copy_from_slice(&message[..50]);
    before.before = Some(half);
    before.put(cqe::BYTE_CNT, &50_u32.to_be_bytes());
    before.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_64;
    check("received: 50 bytes before the element, of 128", &before);
    let syndromes = [
        ("local length error", Syndrome::LOCAL_LENGTH.0),
        ("local queue pair operation error", 0x02),
        ("local protection error", Syndrome::LOCAL_PROTECTION.0),
        ("flushed", 0x05),
        ("memory window bind error", 0x06),
        ("bad response", 0x10),
        ("local access error", Syndrome::LOCAL_ACCESS.0),
        ("remote invalid request", 0x12),
        ("remote access error", 0x13),
        ("remote operation error", 0x14),
        ("transport retries exceeded", 0x15),
        ("receiver not ready retries exceeded", 0x16),
        ("remote aborted", 0x22),
    ];
    let failure = |opcode: u8, counter: u16, sop: u8, vendor: u8, syndrome: u8| {
        let mut entry = Cqe::new(opcode, 0x12_3456, 5, counter);
        entry.put(cqe::SOP_QPN, &[sop]).put(cqe::VENDOR_ERR, &[vendor]).put(cqe::SYNDROME, &[syndrome]);
        entry
    };
    for (i, (what, syndrome)) in syndromes.iter().enumerate() {
        check(&format!("failed send: {what}"), &failure(REQ_ERR, 3, 0x0a, 0x80 + i as u8, *syndrome));
    }
    let named: Vec<u8> = syndromes.iter().map(|(_, syndrome)| *syndrome).collect();
    assert_eq!(
        named,
        Syndrome::ALL.iter().map(|syndrome| syndrome.0).collect::<Vec<_>>(),
        "a syndrome without vectors"
    );
    for (what, syndrome) in syndromes {
        let vendor = match what {
            "flushed" => 0xf9,
            "remote aborted" => 0x93,
            _ => 0x33,
        };
        check(&format!("failed receive: {what}"), &failure(RESP_ERR, 3, 0, vendor, syndrome));
    }
    let vectors = vectors("cqe.txt");
    let unknown = |name: &str| all_but_known(&vectors[name]);
    let (send, receive) = ("failed send: not known: general error", "failed receive: not known: general error");
    check(send, &failure(REQ_ERR, 3, 0x0a, 0x8d, unknown(send)));
    check(receive, &failure(RESP_ERR, 3, 0, 0x33, unknown(receive)));
    let mut end = Cqe::new(cqe::opcode::RESIZE, 0, 0, 0);
    end.put(cqe::TIMESTAMP, &TIME.to_be_bytes());
    check("the end of a ring that was resized", &end);
    assert_eq!(all.keys().collect::<Vec<_>>(), Vec::<&String>::new(), "vectors that nobody looked at");
}

/// The syndrome of an entry, which must be none that has a name.
fn all_but_known(entry: &[u8]) -> u8 {
    let syndrome = entry[cqe::SYNDROME];
    assert!(![1, 2, 4, 5, 6, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22].contains(&syndrome));
    syndrome
}
