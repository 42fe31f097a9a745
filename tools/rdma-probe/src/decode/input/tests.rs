//! Dumps as they are found in the world.

use super::*;

fn dumps(text: &str) -> Vec<Dump> {
    let mut all = Vec::new();
    super::dumps(text, |dump| {
        all.push(dump);
        Ok::<(), TooMuch>(())
    })
    .unwrap();
    all
}

fn only(text: &str) -> Dump {
    let mut all = dumps(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

const TAIL: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x88, 0x13, 8, 0, 0x62, 0x14, 0, 0, 0xf6, 0xd2];

fn whole() -> Vec<u8> {
    [&[0; 48][..], &TAIL].concat()
}

#[test]
fn as_libmlx5_prints_it() {
    let dump = only(
        "mlx5: vegas06: got completion with error:\n00000000 00000000 00000000 00000000\n\
         00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n\
         00000000 00008813 08006214 0000f6d2[1496344648.549828] [vegas06:14872:0] dc_verbs.c:614 UCX ERROR\n",
    );
    assert_eq!((dump.bytes, dump.line), (whole(), 2));
    assert_eq!(dump.label.as_deref(), Some("mlx5: vegas06: got completion with error:"));
}

#[test]
fn as_kernels_print_it() {
    let old = "[ 12.3] mlx5_0:dump_cqe:262:(pid 0): dump error cqe\n[ 12.4] 00000000 00000000 00000000 00000000\n\
               [ 12.4] 00000000 00000000 00000000 00000000\n[ 12.4] 00000000 00000000 00000000 00000000\n\
               [ 12.4] 00000000 00008813 08006214 0000f6d2\n";
    assert_eq!(only(old).bytes, whole());
    let zero = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
    let tail = "00 00 00 00 00 00 88 13 08 00 62 14 00 00 f6 d2";
    for prefix in [
        "",
        "[   12.345678] ",
        "Nov 30 00:02:26 host kernel: ",
        "<4>[   12.3] ",
        "kern  :warn  : [Mon Nov 30] cqe_dump: ",
    ] {
        // Another line in between does no harm where there are offsets.
        let text = format!(
            "{prefix}dump error cqe\n{prefix}00000000: {zero}\n{prefix}00000010: {zero}\n{prefix}eth0: link is down\n\
             {prefix}00000020: {zero}\n{prefix}00000030: {tail}\n{prefix}syndrome 0x13, vendor syndrome 0x88\n"
        );
        assert_eq!(only(&text).bytes, whole(), "{text}");
    }
}

/// What ends as an offset does need not be one.
#[test]
fn an_offset_is_the_last_word_with_a_colon() {
    let zero = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
    let dump = only(&format!("x100: 00: {zero}\nx110: 10: {zero}\n"));
    assert_eq!((dump.bytes.len(), dump.problems.len()), (32, 0));
}

#[test]
fn as_tools_print_it() {
    let xxd = "00000000: 0000 0000 0000 0000 0000 0000 0000 0000  ................\n*\n\
               00000030: 0000 0000 0000 8813 0800 6214 0000 f6d2  ..........b.....\n";
    assert_eq!(only(xxd).bytes, whole());
    let hexdump = "00000000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n*\n\
                   00000030  00 00 00 00 00 00 88 13  08 00 62 14 00 00 f6 d2  |..........b.....|\n00000040\n";
    assert_eq!(only(hexdump).bytes, whole());
    let od = "0000000 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
              0000020 00 00 00 00 00 00 88 13 08 00 62 14 00 00 f6 d2\n0000040\n";
    assert_eq!(only(od).bytes, whole()[32..]);
    assert_eq!(only("{ 0x00, 0x8, 0x13,\n 0xff };").bytes, [0, 8, 0x13, 0xff]);
    assert_eq!(only(&"0A".repeat(64)).bytes, [10; 64]);
    assert_eq!(only("00*3 ff  # four bytes").bytes, [0, 0, 0, 0xff]);
}

#[test]
fn what_would_be_read_wrongly_is_told() {
    let words = only("0000000 0000 0000 0000 8813\n0000008\n");
    assert!(words.problems[0].contains("hexdump -C"), "{words:?}");
    let odd = only("0a0b0c0d0");
    assert!(odd.problems[0].contains("odd"), "{odd:?}");
    assert_eq!(odd.bytes, [10, 11, 12, 13]);
    assert!(only("00*99999999").problems[0].contains("4096"));
}

#[test]
fn a_byte_that_lost_a_digit_is_told() {
    let zeros = "00 ".repeat(16);
    let dump = only(&format!("{zeros}\n{zeros}\n{zeros}\n00 00 00 00 00 00 88 1 08 00 62 14 00 00 f6 d2\n"));
    assert_eq!(dump.bytes.len(), 64, "the others stay where they are");
    assert_eq!(dump.problems, ["line 4: 1 has one digit, and other bytes have two"]);
    // As source code and printf's %x write them.
    for text in ["0, 1, 2, 10, 0x00", "0 1 ff 12 0"] {
        assert_eq!(bytes_of(&text.split_whitespace().collect::<Vec<_>>()).unwrap().1, None, "{text}");
    }
}

#[test]
fn records_are_apart_and_have_the_text_before_them() {
    let text = "# comment\nfirst one\n0102\n0304\n\n0506\nnot hex\n07\n00000000: 08\n00000001: 09\n00000000: 0a\n";
    let mut found = Vec::new();
    let has_words = digits(text, &mut |dump| {
        found.push(dump);
        Ok::<(), TooMuch>(())
    });
    assert_eq!(has_words, Ok(true));
    let seen: Vec<_> = found.iter().map(|d| (d.line, d.label.as_deref(), d.bytes.as_slice())).collect();
    assert_eq!(
        seen,
        [
            (3, Some("first one"), &[1, 2, 3, 4][..]),
            (6, None, &[5, 6]),
            (8, Some("not hex"), &[7]),
            (9, None, &[8, 9]),
            (11, None, &[10]),
        ]
    );
    for text in ["", "\n\n", "no hex here", "#0102", "opcode 0xd, syndrome 0x5"] {
        assert!(dumps(text).is_empty(), "{text}");
    }
}

#[test]
fn size_is_bounded() {
    let line = "00 ".repeat(16);
    let text: String = (0..100_000).map(|_| format!("{line}\n")).collect();
    let dump = only(&text);
    assert_eq!((dump.bytes.len(), dump.problems.len()), (MOST_BYTES, 1));
    let stars = dumps("00000000: 01\n*\nffffffff: 02\n00000000: 01\n*\n00100000: 02\n*\n00200000: 03\n");
    assert!(stars.iter().all(|dump| dump.bytes.len() <= MOST_BYTES + 1), "{}", stars.len());
    // Offsets have no bound, and a line may say much in few characters.
    assert_eq!(dumps("ffffffffffffffff: 00 11\nffffffffffffffff: 22\n").len(), 2);
    assert_eq!(only(&"00*4096 ".repeat(100_000)).problems.len(), 1);
}

/// A log may hold anything; a terminal must not obey it.
#[test]
fn a_label_has_no_control_characters() {
    let dump = only("it \u{1b}[31mwent\u{7} wrong\n00000000 00000001 00000002 00000003\n");
    assert_eq!(dump.label.as_deref(), Some("it \u{fffd}[31mwent\u{fffd} wrong"));
}

/// As a kernel says much that is no dump.
#[test]
fn numbers_among_words_are_no_dumps() {
    for text in [
        "usb 1-1: new device\n12 34\nfoo\n",
        "[    0.000000] pcpu-alloc: s221184 r8192 d28672 u1048576 alloc=1*2097152\n[    0.000000] pcpu-alloc: [0] 0 1 \n",
        "a.out[7]: segfault at 0 ip 0000000000401106 error 4\n\
         Code: 48 8b 45 f8 8b 00 89 c6 bf 10 20 40 00 b8 00 00 00 00 e8 1c ff ff ff 90 c9 c3\n",
    ] {
        assert!(dumps(text).is_empty(), "{text}: {:#?}", dumps(text));
    }
    let tail = "00 00 00 00 00 00 88 13 08 00 62 14 00 00 f6 d2";
    assert_eq!(only(&format!("usb 1-1: new device\n12 34\ndump error cqe\n{tail}\n")).bytes, TAIL);
}

/// The rest is still of what the text in front says.
#[test]
fn a_dump_with_a_hole_keeps_its_label() {
    let zero = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
    for hole in ["", "00000020: zz 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n"] {
        let found = dumps(&format!("dump error cqe\n00000000: {zero}\n00000010: {zero}\n{hole}00000030: {zero}\n"));
        let seen: Vec<_> = found.iter().map(|d| (d.bytes.len(), d.label.as_deref())).collect();
        assert_eq!(seen, [(32, Some("dump error cqe")), (16, Some("dump error cqe"))], "{hole}");
    }
}

/// As softcx reports what it refused.
#[test]
fn digits_behind_words_with_colons() {
    let dump = only(
        "mlx5_0: 0x40005: refused by the other side: remote access error (0x13); WQE 0: 00000008040005030000000800000000 \
         00007f6b4c8060000000117e00000000\n",
    );
    assert_eq!((dump.bytes.len(), &dump.bytes[..4]), (32, &[0, 0, 0, 8][..]));
}
