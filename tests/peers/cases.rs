//! The requests: every opcode and flag, inline payload and lists of every length, and the end of the ring from every start.

use crate::list::{Kind, List, REGION, REMOTE, RESULT, ROOM, Size, Wr};

/// A queue with the longest elements that both sides take. libmlx5 sets aside the room of a bind beside every payload, so that
/// fewer inline bytes are left on connections than this library has.
const LONGEST: Size = Size { send_wr: 16, send_sge: 30, inline: 828, recv_wr: 64, recv_sge: 30 };
/// Of datagrams this library has the shorter one: its element counts units in 6 bits.
const LONGEST_UD: Size = Size { inline: 940, ..LONGEST };
/// The extended connection's elements have one unit more.
const LONGEST_XRC: Size = Size { inline: 812, ..LONGEST };
/// Queues of at most [`RING`] blocks on both sides.
const SHORT: Size = Size { send_wr: 10, send_sge: 4, inline: 64, recv_wr: 8, recv_sge: 3 };
const SHORT_UD: Size = Size { send_sge: 8, inline: 200, ..SHORT };
const FEW_LONG: Size = Size { send_wr: 4, ..LONGEST };
/// Blocks of the rings whose end is looked at, or a multiple.
pub const RING: usize = 64;
/// Queues that have such a ring.
pub const RING_END: &[&str] = &["rc_end", "rc_far_end", "uc_end", "ud_end", "xrc_end"];

const FLAGS: [&str; 8] = ["", "s", "e", "se", "f", "sf", "ef", "sef"];
/// Of requests about windows, which this library always has signaled.
const WINDOW_FLAGS: [&str; 4] = ["s", "se", "sf", "sef"];
const CONNECTED: [&str; 4] = ["SEND", "SEND_IMM", "WRITE", "WRITE_IMM"];
const WRITE_FIRST: [&str; 4] = ["WRITE", "SEND", "SEND_IMM", "WRITE_IMM"];
const RELIABLE: [&str; 7] = ["SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA"];

/// `enum ibv_access_flags`.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
const ZERO_BASED: u32 = 1 << 5;

/// The whole list.
pub fn all() -> List {
    let mut list = List::default();
    list.line(format_args!("region {REGION}"));
    for (name, kind, size) in [
        ("rc", Kind::Rc, LONGEST),
        ("uc", Kind::Uc, LONGEST),
        ("ud", Kind::Ud, LONGEST_UD),
        ("ud_quiet", Kind::Ud, LONGEST_UD),
        ("xrc", Kind::Xrc, LONGEST_XRC),
        ("rc_end", Kind::Rc, SHORT),
        ("rc_far_end", Kind::Rc, FEW_LONG),
        ("uc_end", Kind::Uc, SHORT),
        ("ud_end", Kind::Ud, SHORT_UD),
        ("xrc_end", Kind::Xrc, SHORT),
    ] {
        list.queue(name, kind, false, size);
    }
    list.queue("rc_all", Kind::Rc, true, SHORT);
    for (name, words) in [("plain", "0 0 0 0 0 0"), ("slow", "5 3 0 0 0 0"), ("global", "2 2 1 0x1c 64 0xabcde")] {
        list.line(format_args!("address {name} {words}"));
    }
    for (name, queue, kind) in [("one", "rc", 1), ("two", "rc", 2), ("end", "rc_end", 2)] {
        list.line(format_args!("window {name} {queue} {kind}"));
    }
    connections(&mut list);
    windows(&mut list);
    datagrams(&mut list);
    extended(&mut list);
    ring_ends(&mut list);
    receives(&mut list);
    list
}

/// So many pieces of odd places and lengths.
fn pieces(count: usize) -> Vec<(usize, usize)> {
    (0..count).map(|i| (100 * i + i, 1 + 5 * i % 23)).collect()
}

fn room(n: usize) -> [(usize, usize); 1] {
    [(ROOM + n % 16 * 2048, 2048)]
}

/// A request of that opcode, with what it needs, and a receive for it where it takes one.
fn request(list: &mut List, queue: &'static str, op: &'static str, flags: &'static str) -> Wr {
    let send = Wr::new(op).flags(flags);
    if matches!(op, "SEND" | "SEND_IMM" | "WRITE_IMM") {
        list.receive(queue, &room(0));
    }
    match op {
        "SEND_IMM" | "WRITE_IMM" => send.imm(0x1122_3344).entries(&[(8, 24)]),
        "READ" => send.entries(&[(RESULT, 24)]),
        "CAS" => send.operands(0x0102_0304_0506_0708, 0x1112_1314_1516_1718).entries(&[(RESULT + 64, 8)]),
        "FAA" => send.operands(0x2122_2324_2526_2728, 0).entries(&[(RESULT + 72, 8)]),
        _ => send.entries(&[(8, 24)]),
    }
}

/// Each of those opcodes with each set of flags, with a list and inline. What is not signaled is followed by what is.
fn opcodes(list: &mut List, queue: &'static str, opcodes: &[&'static str]) {
    for op in opcodes {
        for flags in FLAGS {
            for inline in [false, true] {
                if inline && matches!(*op, "READ" | "CAS" | "FAA") {
                    continue;
                }
                let mut send = request(list, queue, op, flags);
                send.inline = inline;
                list.send(queue, &send);
                if !flags.contains('s') {
                    list.send(queue, &Wr::new("WRITE").inline(&[(1, 3)]));
                }
                list.submit(queue);
            }
        }
    }
}

/// Requests in batches, each with a receive where it takes one.
fn in_batches(list: &mut List, queue: &'static str, of: usize, sends: impl IntoIterator<Item = Wr>) {
    let sends: Vec<_> = sends.into_iter().collect();
    for batch in sends.chunks(of) {
        // Datagrams that find no receive are lost, and as well sent.
        if list.queues[queue].kind != Kind::Ud {
            let received = batch.iter().filter(|send| send.takes_a_receive()).count();
            (0..received).for_each(|n| list.receive(queue, &room(n)));
        }
        list.in_batches(queue, of, batch.to_vec());
    }
}

/// One of that opcode, whose immediate is a number where it has one.
fn numbered(op: &'static str, target: &'static str, number: usize) -> Wr {
    let imm = if op.ends_with("_IMM") { 0x0101_0000 + number as u32 } else { 0 };
    Wr::new(op).to(target).imm(imm)
}

/// Inline payload of every length with each of those opcodes, in batches, and with the first of them also one by one.
fn inline_lengths(list: &mut List, queue: &'static str, ops: &[&'static str], target: &'static str, most: usize) {
    let of = |op, length: usize| numbered(op, target, length).inline(&[(length % 61, length)]);
    for op in ops {
        in_batches(list, queue, 8, (0..=most).map(|length| of(op, length)));
    }
    let some = (0..260.min(most)).step_by(7).chain([11, 12, 13, 27, 28, 29, most]);
    in_batches(list, queue, 1, some.map(|length| of(ops[0], length)));
}

/// Inline payload in pieces, some of them empty.
fn inline_pieces(list: &mut List, queue: &'static str, op: &'static str, target: &'static str) {
    let sets: [&[(usize, usize)]; 9] = [
        &[],
        &[(5, 0)],
        &[(5, 0), (6, 0)],
        &[(0, 1), (2, 1)],
        &[(5, 0), (0, 12)],
        &[(0, 12), (5, 0)],
        &[(0, 7), (100, 5), (200, 1)],
        &[(0, 13), (40, 0), (300, 50), (9, 40)],
        &[(0, 100), (1, 100), (2, 100), (3, 100), (4, 100), (5, 100)],
    ];
    let most: Vec<_> = (0..30).map(|i| (i * 9, i)).collect();
    for pieces in sets.into_iter().chain([&most[..]]) {
        list.send(queue, &Wr::new(op).to(target).inline(pieces));
        list.submit(queue);
    }
}

/// Lists of every length, full and with entries of no bytes.
fn lists(list: &mut List, queue: &'static str, ops: &[&'static str], target: &'static str) {
    for op in ops {
        let at = if *op == "READ" { RESULT } else { 0 };
        let shifted = |pieces: Vec<(usize, usize)>| -> Vec<_> { pieces.iter().map(|(o, l)| (o + at, *l)).collect() };
        in_batches(list, queue, 3, (0..=30).map(|n| numbered(op, target, n).entries(&shifted(pieces(n)))));
        for empty in [0, 1, 5, 29] {
            let mut some = shifted(pieces(30));
            some[empty].1 = 0;
            let few = numbered(op, target, empty).entries(&some[empty..=empty]);
            in_batches(list, queue, 1, [numbered(op, target, empty).entries(&some), few]);
        }
    }
}

fn connections(list: &mut List) {
    list.case("rc_opcodes_and_flags");
    opcodes(list, "rc", &RELIABLE);
    list.case("rc_all_signaled");
    list.one_by_one("rc_all", FLAGS.map(|flags| Wr::new("WRITE").flags(flags).entries(&[(8, 24)])));
    list.case("rc_inline_lengths");
    inline_lengths(list, "rc", &WRITE_FIRST, "-", LONGEST.inline);
    list.case("rc_inline_pieces");
    inline_pieces(list, "rc", "WRITE", "-");
    list.case("rc_lists");
    lists(list, "rc", &["WRITE", "SEND", "SEND_IMM", "WRITE_IMM", "READ"], "-");
    list.case("rc_extremes");
    let send = Wr { remote: REMOTE + 1, ..Wr::new("WRITE") };
    list.one_by_one("rc", [send.entries(&[(1, 60_000)])]);
    for imm in [0, 1, 0x8000_0000, u32::MAX] {
        let mut send = request(list, "rc", "WRITE_IMM", "s");
        send.imm = imm;
        list.one_by_one("rc", [send]);
    }
    for (a, b) in [(0, 0), (u64::MAX, 1), (1, u64::MAX)] {
        for op in ["CAS", "FAA"] {
            let send = request(list, "rc", op, "s").operands(a, if op == "CAS" { b } else { 0 });
            list.one_by_one("rc", [send]);
        }
    }
    list.case("uc_opcodes_and_flags");
    opcodes(list, "uc", &CONNECTED);
    list.case("uc_inline_lengths");
    inline_lengths(list, "uc", &WRITE_FIRST, "-", LONGEST.inline);
    list.case("uc_lists");
    lists(list, "uc", &WRITE_FIRST, "-");
}

/// Windows, and what the elements behind them must wait for.
fn windows(list: &mut List) {
    let rights = [REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC];
    let access = |set: u32| (0..3).filter(|i| set >> i & 1 != 0).map(|i| rights[i]).fold(0, |a, b| a | b);
    list.case("windows_of_type_1");
    for set in 1..8 {
        list.bind("rc", "one", WINDOW_FLAGS[set as usize % 4], (REMOTE + 8 * set as usize, 4096), access(set));
        list.submit("rc");
        // The element after a bind waits for it, in a batch of its own too.
        list.one_by_one("rc", [Wr::new("WRITE").inline(&[(1, 9)]), Wr::new("WRITE").inline(&[(2, 9)])]);
    }
    for flags in WINDOW_FLAGS {
        list.bind("rc", "one", "s", (REMOTE, 8), REMOTE_READ);
        list.submit("rc");
        list.unbind("rc", "one", flags);
        list.submit("rc");
    }
    list.one_by_one("rc", [Wr::new("WRITE").flags("sf").inline(&[(1, 9)])]);
    list.case("windows_of_type_2");
    for set in 1..8 {
        for zero in [0, ZERO_BASED] {
            list.bind(
                "rc",
                "two",
                WINDOW_FLAGS[set as usize % 4],
                (REMOTE + 16 * set as usize, 100 * set as usize),
                access(set) | zero,
            );
            list.send("rc", &Wr::new("WRITE").flags(if set == 2 { "f" } else { "" }).inline(&[(1, 9)]));
            list.send("rc", &Wr::new("WRITE").inline(&[(2, 9)]));
            list.submit("rc");
            list.invalidate("rc", "two", WINDOW_FLAGS[set as usize / 2]);
            list.submit("rc");
        }
    }
    list.one_by_one("rc", [Wr::new("WRITE").inline(&[(1, 9)])]);
    list.case("windows_that_a_send_ends");
    for flags in FLAGS {
        ended(list, &Wr::new("SEND_INV").flags(flags).inline(&[(3, 20)]));
        ended(list, &Wr::new("SEND_INV").flags(flags).entries(&[(3, 20)]));
    }
    list.case("windows_that_sends_of_every_length_end");
    for length in 0..=LONGEST.inline {
        ended(list, &Wr::new("SEND_INV").inline(&[(length % 61, length)]));
    }
    for n in 0..=30 {
        ended(list, &Wr::new("SEND_INV").entries(&pieces(n)));
    }
}

/// Binds a window, and sends what ends it. What is not signaled is followed by what is.
fn ended(list: &mut List, send: &Wr) {
    list.bind("rc", "two", "s", (REMOTE, 1), REMOTE_READ);
    list.submit("rc");
    list.receive("rc", &room(0));
    list.send("rc", &send.clone().to("two"));
    if !send.flags.contains('s') {
        list.send("rc", &Wr::new("WRITE").inline(&[(1, 3)]));
    }
    list.submit("rc");
}

fn datagrams(list: &mut List) {
    list.case("ud_opcodes_and_flags");
    for target in ["plain", "slow", "global"] {
        for op in ["SEND", "SEND_IMM"] {
            for flags in FLAGS {
                for inline in [false, true] {
                    let mut send = request(list, "ud", op, flags).to(target);
                    send.inline = inline;
                    list.send("ud", &send);
                    list.receive("ud", &room(1));
                    list.send("ud", &Wr::new(op).to(target).imm(0x5566_7788).inline(&[(1, 30)]));
                    list.submit("ud");
                }
            }
        }
    }
    list.case("ud_inline_lengths");
    inline_lengths(list, "ud_quiet", &["SEND", "SEND_IMM"], "global", LONGEST_UD.inline);
    list.case("ud_inline_pieces");
    inline_pieces(list, "ud_quiet", "SEND", "plain");
    list.case("ud_lists");
    lists(list, "ud_quiet", &["SEND", "SEND_IMM"], "slow");
}

fn extended(list: &mut List) {
    list.case("xrc_opcodes_and_flags");
    opcodes(list, "xrc", &RELIABLE);
    list.case("xrc_inline_lengths");
    inline_lengths(list, "xrc", &WRITE_FIRST, "-", LONGEST_XRC.inline);
    list.case("xrc_lists");
    lists(list, "xrc", &["WRITE", "SEND", "SEND_IMM", "WRITE_IMM", "READ"], "-");
}

/// A request from every block of the ring: each is followed by one of a block where that makes an odd number, so that as many
/// rounds as the ring has blocks pass every start.
fn from_every_block(list: &mut List, queue: &'static str, blocks: usize, filler: &Wr, each: impl Fn(&mut List)) {
    for _ in 0..RING {
        each(list);
        if blocks.is_multiple_of(2) {
            list.one_by_one(queue, [filler.clone()]);
        }
    }
}

/// As [`from_every_block`], one request.
fn one_from_every_block(list: &mut List, queue: &'static str, filler: &Wr, units: usize, send: &Wr) {
    from_every_block(list, queue, units.div_ceil(4), filler, |list| {
        if matches!(send.op, "SEND" | "SEND_IMM" | "WRITE_IMM") && list.queues[queue].kind != Kind::Ud {
            list.receive(queue, &room(0));
        }
        list.one_by_one(queue, [send.clone()]);
    });
}

/// Units of inline payload.
fn inline_units(length: usize) -> usize {
    (length + 4).div_ceil(16)
}

fn ring_ends(list: &mut List) {
    let block = Wr::new("WRITE").inline(&[(0, 8)]);
    for (case, queue, head) in
        [("rc_ring_end", "rc_end", 2), ("uc_ring_end", "uc_end", 2), ("xrc_ring_end", "xrc_end", 3)]
    {
        list.case(case);
        for length in [12, 28, 29, 44, 60, 61, 64] {
            let send = Wr::new("WRITE").inline(&[(length, length)]);
            one_from_every_block(list, queue, &block, head + inline_units(length), &send);
        }
        let split = Wr::new("WRITE").inline(&[(0, 27), (100, 1), (200, 30)]);
        one_from_every_block(list, queue, &block, head + inline_units(58), &split);
        for n in 1..=4 {
            one_from_every_block(list, queue, &block, head + n, &Wr::new("WRITE").entries(&pieces(n)));
        }
        let send = Wr::new("SEND_IMM").imm(9).entries(&pieces(4));
        one_from_every_block(list, queue, &block, head + 3, &send);
        if queue == "uc_end" {
            continue;
        }
        for op in ["CAS", "FAA"] {
            let send = Wr::new(op).operands(3, if op == "CAS" { 4 } else { 0 }).entries(&[(RESULT, 8)]);
            one_from_every_block(list, queue, &block, head + 2, &send);
        }
        let read = Wr::new("READ").entries(&[(RESULT, 1), (RESULT + 9, 2), (RESULT + 20, 3), (RESULT + 30, 4)]);
        one_from_every_block(list, queue, &block, head + 4, &read);
    }
    list.case("windows_ring_end");
    // Three blocks, and two.
    from_every_block(list, "rc_end", 5, &block, |list| {
        list.bind("rc_end", "end", "s", (REMOTE, 64), REMOTE_READ | REMOTE_WRITE);
        list.submit("rc_end");
        list.invalidate("rc_end", "end", "s");
        list.submit("rc_end");
    });
    list.case("rc_far_ring_end");
    // Of every number of blocks.
    for blocks in 1..=14 {
        let length = FEW_LONG.inline.min(16 * (4 * blocks - 2) - 4);
        let send = Wr::new("WRITE").inline(&[(3, length)]);
        one_from_every_block(list, "rc_far_end", &block, 2 + inline_units(length), &send);
    }
    for blocks in 1..=8 {
        let n = 4 * blocks - 2;
        one_from_every_block(list, "rc_far_end", &block, 2 + n, &Wr::new("WRITE").entries(&pieces(n)));
    }
    list.case("ud_ring_end");
    let block = Wr::new("SEND").to("plain");
    for length in [1, 12, 13, 60, 61, 124, 188, 200] {
        let send = Wr::new("SEND").to("global").inline(&[(length, length)]);
        one_from_every_block(list, "ud_end", &block, 4 + inline_units(length), &send);
    }
    for n in [1, 2, 4, 5, 8] {
        one_from_every_block(list, "ud_end", &block, 4 + n, &Wr::new("SEND").to("plain").entries(&pieces(n)));
    }
}

/// Receives of every length, more than the rings hold.
fn receives(list: &mut List) {
    for (case, queue, most) in [
        ("receives", "rc", 30),
        ("receives_of_unreliable_connections", "uc", 30),
        ("receives_of_datagrams", "ud", 30),
        ("receives_of_short_elements", "rc_end", 3),
        ("receives_of_a_shared_queue", "xrc", 30),
        ("receives_of_a_short_shared_queue", "xrc_end", 3),
    ] {
        list.case(case);
        let target = if list.queues[queue].kind == Kind::Ud { "plain" } else { "-" };
        let header = if target == "plain" { 40 } else { 0 };
        let shared = list.queues[queue].kind == Kind::Xrc;
        // Without room for anything. A datagram has a header that must go somewhere.
        if header == 0 {
            list.receive(queue, &[]);
            list.one_by_one(queue, [Wr::new("SEND")]);
        }
        let rounds = if most > 3 { 3 } else { 12 };
        for round in 0..rounds {
            for n in 1..=most {
                let mut pieces: Vec<_> = (0..n).map(|i| (ROOM + 256 * i + round, header + 1 + i)).collect();
                // An empty entry is left out. libmlx5 writes those of shared queues, and the device would take them for 2^31 bytes.
                if round == 1 && !shared {
                    pieces[n / 2].1 = 0;
                    pieces[0].1 += header;
                }
                list.receive(queue, &pieces);
                let send = Wr::new("SEND").to(target);
                let empty = n == 1 && round == 1;
                list.one_by_one(queue, [if empty { send } else { send.inline(&[(0, 1)]) }]);
            }
        }
        // Several at once.
        for _ in 0..3 {
            for n in 0..4 {
                list.receive(queue, &room(n));
            }
            list.in_batches(queue, 4, (0..4).map(|n| Wr::new("SEND").to(target).inline(&[(n, 9)])));
        }
    }
}
