//! Is all in the list that both sides can? The expectation is every kind of queue pair × opcode × flags × payload, so that a line that
//! is taken out of the list, or never was in it, is told.

use crate::list::List;
use std::collections::{BTreeMap, BTreeSet};

const FLAGS: [&str; 8] = ["-", "s", "e", "se", "f", "sf", "ef", "sef"];
/// Of requests about windows: this library has them always signaled, as the window must see the completion.
const WINDOW_FLAGS: [&str; 4] = ["s", "se", "sf", "sef"];
/// Kinds, their longest inline payload as the list asks for it, and their opcodes. SEND_INV takes a window, which only reliable
/// connections have here.
const KINDS: [(&str, usize, &[&str]); 4] = [
    ("RC", 828, &["SEND", "SEND_IMM", "SEND_INV", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA"]),
    ("UC", 828, &["SEND", "SEND_IMM", "WRITE", "WRITE_IMM"]),
    ("UD", 940, &["SEND", "SEND_IMM"]),
    ("XRC", 812, &["SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ", "CAS", "FAA"]),
];
const MOST_ENTRIES: usize = 30;

/// What the list lacks.
pub fn missing(list: &List) -> Vec<String> {
    let there_are = found(&list.text);
    let mut missing = vec![];
    let mut expect = |what: String| {
        if !there_are.contains(&what) {
            missing.push(what);
        }
    };
    for (kind, most_inline, ops) in KINDS {
        for op in ops {
            let answered = matches!(*op, "READ" | "CAS" | "FAA");
            let forms: &[_] = if answered { &["entries"] } else { &["entries", "inline"] };
            let targets: &[_] = if kind == "UD" { &[" to plain", " to slow", " to global"] } else { &[""] };
            for flags in FLAGS {
                for form in forms {
                    targets.iter().for_each(|target| expect(format!("{kind} {op} {flags} {form}{target}")));
                }
            }
            if matches!(*op, "CAS" | "FAA") {
                expect(format!("{kind} {op} of 1 entries"));
                continue;
            }
            (0..=MOST_ENTRIES).for_each(|n| expect(format!("{kind} {op} of {n} entries")));
            if !answered {
                (0..=most_inline).for_each(|length| expect(format!("{kind} {op} inline of {length}")));
            }
        }
        // A datagram's receive has room for its header at least.
        let fewest = usize::from(kind == "UD");
        (fewest..=MOST_ENTRIES).for_each(|n| expect(format!("{kind} receive of {n} entries")));
    }
    FLAGS.iter().for_each(|flags| expect(format!("RC WRITE {flags} entries, all signaled")));
    for flags in WINDOW_FLAGS {
        for what in ["bind type 1", "bind type 2", "unbind type 1", "invalidate type 2"] {
            expect(format!("{what} {flags}"));
        }
    }
    missing
}

/// What there is in the list.
fn found(text: &str) -> BTreeSet<String> {
    let (mut kinds, mut windows) = (BTreeMap::new(), BTreeMap::new());
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["queue", queue, kind, all_signaled, ..] => drop(kinds.insert(queue, (kind, all_signaled == "1"))),
            ["window", window, _, kind] => drop(windows.insert(window, kind)),
            ["receive", queue, ref pieces @ ..] => {
                found.insert(format!("{} receive of {} entries", kinds[queue].0, pieces.len()));
            }
            [what @ ("bind" | "unbind" | "invalidate"), _, window, flags, ..] => {
                found.insert(format!("{what} type {} {flags}", windows[window]));
            }
            ["send", queue, op, flags, _, _, _, _, target, form, ref pieces @ ..] => {
                let (kind, all_signaled) = kinds[queue];
                if all_signaled {
                    found.insert(format!("{kind} {op} {flags} {form}, all signaled"));
                    continue;
                }
                let target = if kind == "UD" { format!(" to {target}") } else { String::new() };
                found.insert(format!("{kind} {op} {flags} {form}{target}"));
                match (form, pieces) {
                    ("entries", _) => drop(found.insert(format!("{kind} {op} of {} entries", pieces.len()))),
                    (_, [piece]) => {
                        let (_, length) = piece.split_once(':').expect("OFFSET:LENGTH");
                        found.insert(format!("{kind} {op} inline of {length}"));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    found
}
