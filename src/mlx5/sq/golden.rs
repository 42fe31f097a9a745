//! Every byte of each kind of element, against `tests/golden/mlx5/wqe.txt`.

use super::*;
use crate::mlx5::av::{Link, MIN_SPORT, address_vector};
use crate::mlx5::testing::{Golden, compare, sends, sge};
use crate::mlx5::umr::{WindowAccess, WindowType};
use crate::uverbs::attr::AddressVector;
use crate::uverbs::types::{Gid, Lid, Lkey};

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x7f12_3456_7890_abc8, rkey: Rkey(0x1a2b) };
const SIGNALED: WrFlags = WrFlags::SIGNALED;

/// Pushes one element that starts at block 0x1beef, and compares it.
#[track_caller]
fn check(
    golden: &Golden,
    name: &str,
    push: impl FnOnce(&mut Sq<crate::mlx5::bus::record::Recorder>) -> Result<(), PostError>,
) {
    let mut queue = sends(16);
    queue.sq.start_at(0x1_beef, 0);
    push(&mut queue.sq).unwrap_or_else(|e| panic!("{name}: {e}"));
    let want = golden.get(name);
    let start = (0x1_beef % 16) * 64;
    compare(name, &queue.sq.ring.peek(start, want.len()), want);
    let after = queue.sq.ring.peek(start + want.len(), 1024 - want.len());
    assert!(after.iter().all(|b| *b == 0xff), "{name}: wrote more than the element");
    assert_eq!(queue.sq.pushed.at.head.block(), 0xbeef + (want.len() as u32).div_ceil(64), "{name}: blocks");
}

fn wr<'a>(flags: WrFlags, op: SendOp, payload: impl Into<Payload<'a>>) -> SendWr<'a> {
    SendWr { wr_id: 1, flags, op, payload: payload.into() }
}

#[test]
fn every_kind_of_element() {
    use crate::uverbs::wr::{Inline, InlinePieces};
    let golden = Golden::read("wqe.txt");
    let all = WrFlags::FENCE | WrFlags::SIGNALED | WrFlags::SOLICITED;
    let one = [sge(0x7f00_dead_beef_0010, 0x1234, 0x5c01)];
    let three = [sge(0x1000, 0x10, 0x11), sge(0x2000, 0, 0x22), sge(0x3000, 0x30, 0x33)];
    let eight = [sge(0x7f00_dead_beef_0010, 8, 0x5c01)];
    let (a, b) = (0x1112_1314_1516_1718, 0x2122_2324_2526_2728);

    let check = |name, push: &dyn Fn(&mut Sq<_>) -> _| check(&golden, name, push);
    check("RC SEND of one entry, signaled", &|sq| sq.push(&wr(SIGNALED, SendOp::Send, &one)));
    check("RC SEND of no entry, with every flag", &|sq| sq.push(&wr(all, SendOp::Send, &[])));
    check("RC SEND of 61 bytes inline, in two blocks", &|sq| {
        sq.push(&wr(SIGNALED, SendOp::Send, Inline(&(0..61).collect::<Vec<u8>>())))
    });
    check("RC SEND with immediate, 5 bytes inline", &|sq| {
        sq.push(&wr(WrFlags::NONE, SendOp::SendImm(0x1122_3344), Inline(b"hello")))
    });
    check("RC SEND with invalidate", &|sq| {
        sq.push_send_inv(1, SIGNALED, Rkey(0x1a2b), &Payload::Sges(&three[..1]), Target::Connected)
    });
    check("RC WRITE of three entries, one empty", &|sq| sq.push(&wr(SIGNALED, SendOp::Write(REMOTE), &three)));
    check("RC WRITE of 8 bytes inline", &|sq| {
        sq.push(&wr(WrFlags::NONE, SendOp::Write(REMOTE), Inline(&[1, 2, 3, 4, 5, 6, 7, 8])))
    });
    check("RC WRITE with immediate, 13 bytes inline in pieces", &|sq| {
        let pieces: [&[u8]; 3] = [&[1, 2, 3, 4, 5, 6, 7], &[], &[8, 9, 10, 11, 12, 13]];
        let flags = WrFlags::SIGNALED | WrFlags::SOLICITED;
        sq.push(&wr(flags, SendOp::WriteImm(REMOTE, 0x1122_3344), InlinePieces(&pieces)))
    });
    check("RC READ of 2 GiB", &|sq| {
        let all = [sge(0x7f00_dead_beef_0010, 1 << 31, 0x5c01)];
        sq.push(&wr(WrFlags::FENCE | WrFlags::SIGNALED, SendOp::Read(REMOTE), &all))
    });
    check("RC compare and swap", &|sq| {
        sq.push(&wr(SIGNALED, SendOp::CompareSwap { remote: REMOTE, compare: b, swap: a }, &eight))
    });
    check("RC fetch and add", &|sq| sq.push(&wr(SIGNALED, SendOp::FetchAdd { remote: REMOTE, add: a }, &eight)));
    check("RC NOP", &|sq| sq.push_nop(1, SIGNALED));
    golden_windows(&golden);
    golden_datagrams(&golden);
    golden_xrc(&golden);
    golden.all_used(&["RC", "UD", "XRC"]);
}

fn golden_windows(golden: &Golden) {
    let bind = Bind {
        zero_based: false,
        window: WindowType::One,
        rkey: Rkey(0x00ab_cd01),
        new_rkey: Rkey(0x00ab_cd02),
        lkey: Lkey(0x5c01),
        addr: 0x7f00_0000_0000_1000,
        length: 0x2000,
        access: WindowAccess { remote_read: true, remote_write: true, remote_atomic: false },
    };
    let two = Bind {
        window: WindowType::Two,
        access: WindowAccess { remote_read: true, remote_write: true, remote_atomic: true },
        ..bind
    };
    check(golden, "RC bind of a type 1 window", |sq| sq.push_bind(1, SIGNALED, &bind));
    check(golden, "RC bind of a type 2 window", |sq| sq.push_bind(1, SIGNALED, &two));
    let zero = Bind {
        zero_based: true,
        access: WindowAccess { remote_read: true, ..Default::default() },
        window: WindowType::Two,
        ..bind
    };
    check(golden, "RC bind of a zero-based window", |sq| sq.push_bind(1, SIGNALED, &zero));
    check(golden, "RC unbind of a type 1 window", |sq| sq.push_bind(1, SIGNALED, &Bind { length: 0, ..bind }));
    check(golden, "RC unbind of a type 2 window", |sq| sq.push_bind(1, SIGNALED, &Bind { length: 0, ..two }));
    check(golden, "RC local invalidate", |sq| sq.push_local_inv(1, WrFlags::FENCE | WrFlags::SIGNALED, Rkey(0x1a2b)));
}

fn golden_datagrams(golden: &Golden) {
    let roce = AddressVector {
        dgid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]),
        flow_label: 0xabcde,
        sgid_index: 3,
        hop_limit: 64,
        traffic_class: 0x28,
        sl: 3,
        // 100 Gb/s (`IB_RATE_100_GBPS`).
        static_rate: 16,
        is_global: true,
        port_num: 1,
        ..Default::default()
    };
    let infiniband = AddressVector { dlid: Lid(0x1234), sl: 9, src_path_bits: 5, port_num: 1, ..Default::default() };
    let roce_v1 =
        AddressVector { dgid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 3, 4, 5, 6, 7, 8]), static_rate: 0, ..roce };
    let to = |av| Destination { av, qpn: Qpn::new(0x65_4321).unwrap(), qkey: 0x1111_1111 };
    let roce = to(address_vector(&roce, Link::RoceV2 { dmac: [2, 3, 4, 5, 6, 7], min_sport: MIN_SPORT }));
    let roce_v1 = to(address_vector(&roce_v1, Link::RoceV1 { dmac: [2, 3, 4, 5, 6, 7] }));
    let infiniband = to(address_vector(&infiniband, Link::InfiniBand));
    let entry = [sge(0x7f00_dead_beef_0010, 0x40, 0x5c01)];
    check(golden, "UD SEND on RoCE v2", |sq| sq.push_to(&wr(SIGNALED, SendOp::Send, &entry), Target::Datagram(&roce)));
    check(golden, "UD SEND with immediate on RoCE v1", |sq| {
        sq.push_to(&wr(SIGNALED, SendOp::SendImm(0x1122_3344), &entry), Target::Datagram(&roce_v1))
    });
    check(golden, "UD SEND with immediate on InfiniBand, 4 bytes inline", |sq| {
        let payload = crate::uverbs::wr::Inline(&[0xa1, 0xa2, 0xa3, 0xa4]);
        sq.push_to(&wr(SIGNALED, SendOp::SendImm(0x1122_3344), payload), Target::Datagram(&infiniband))
    });
}

fn golden_xrc(golden: &Golden) {
    let target = Target::Xrc { srqn: 0xab_cdef };
    let entry = [sge(0x7f00_dead_beef_0010, 0x40, 0x5c01)];
    check(golden, "XRC SEND of one entry", |sq| sq.push_to(&wr(SIGNALED, SendOp::Send, &entry), target));
    check(golden, "XRC SEND with invalidate", |sq| {
        sq.push_to(&wr(SIGNALED, SendOp::SendInvalidate(Rkey(0x1a2b)), &entry), target)
    });
    check(golden, "XRC WRITE of one entry", |sq| sq.push_to(&wr(SIGNALED, SendOp::Write(REMOTE), &entry), target));
    check(golden, "XRC SEND with immediate, 4 bytes inline", |sq| {
        let payload = crate::uverbs::wr::Inline(&[0xa1, 0xa2, 0xa3, 0xa4]);
        let flags = WrFlags::SIGNALED | WrFlags::SOLICITED;
        sq.push_to(&wr(flags, SendOp::SendImm(0x1122_3344), payload), target)
    });
    check(golden, "XRC WRITE with immediate, one entry", |sq| {
        sq.push_to(&wr(SIGNALED, SendOp::WriteImm(REMOTE, 0x1122_3344), &entry), target)
    });
    check(golden, "XRC READ of one entry", |sq| {
        sq.push_to(&wr(WrFlags::FENCE | WrFlags::SIGNALED, SendOp::Read(REMOTE), &entry), target)
    });
    let eight = [sge(0x7f00_dead_beef_0010, 8, 0x5c01)];
    let (a, b) = (0x1112_1314_1516_1718, 0x2122_2324_2526_2728);
    check(golden, "XRC compare and swap", |sq| {
        sq.push_to(&wr(SIGNALED, SendOp::CompareSwap { remote: REMOTE, compare: b, swap: a }, &eight), target)
    });
    check(golden, "XRC fetch and add", |sq| {
        sq.push_to(&wr(SIGNALED, SendOp::FetchAdd { remote: REMOTE, add: a }, &eight), target)
    });
}
