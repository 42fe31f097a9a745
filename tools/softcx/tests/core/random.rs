//! Random programs over a network that loses, doubles, delays and reorders, against plain memory.

use crate::bench::*;
use proptest::prelude::*;
use softcx::*;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    Send { len: usize, imm: bool },
    Write { at: u64, len: usize, imm: bool },
    Read { at: u64, len: usize },
    Add { at: u64, by: u64 },
    Swap { at: u64, hit: bool, with: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..0x8000_u64;
    let len = 1..3000_usize;
    let step = prop_oneof![
        (1..2000_usize, any::<bool>()).prop_map(|(len, imm)| Step::Send { len, imm }),
        (at.clone(), len.clone(), any::<bool>()).prop_map(|(at, len, imm)| Step::Write { at, len, imm }),
        (at.clone(), len).prop_map(|(at, len)| Step::Read { at, len }),
        (at.clone(), any::<u64>()).prop_map(|(at, by)| Step::Add { at: at & !7, by }),
        (at, any::<bool>(), any::<u64>()).prop_map(|(at, hit, with)| Step::Swap { at: at & !7, hit, with }),
    ];
    prop::collection::vec(step, 1..12)
}

/// Where things are at either side: written to and read from at the target, source and sink at the requester.
const TARGET: u64 = DATA;
const INBOX: u64 = DATA + 0x1_0000;
const SOURCE: u64 = DATA;
const SINK: u64 = DATA + 0x1_0000;

/// Runs the program, and the same on plain vectors; everything must be equal.
fn run(program: &[Step], seed: u64, disturbance: Disturbance) {
    let (mut a, mut b) = pair_of(Plan::of(QpKind::Rc), seed);
    a.fabric.disturb(disturbance);
    // More tries than hardware has, so that bad luck alone never ends a connection.
    a.modify(|attr| attr.retry_count = 100, None);
    let mut target = pattern(0xA000, 1);
    b.put(TARGET, &target);
    let (mut sink_at, mut inbox_at, mut sources) = (SINK, INBOX, 0);
    let mut expected_sink = vec![];
    let mut expected_inbox = vec![];
    for (i, step) in program.iter().enumerate() {
        let imm = 0x1000 + i as u32;
        match step {
            Step::Send { len, imm: with_imm } => {
                let data = pattern(*len, i as u8);
                a.put(SOURCE + sources, &data);
                b.receive(&[(2048, b.key, inbox_at)]);
                let op = if *with_imm { 0x0b } else { 0x0a };
                let half = (*len / 2) as u32;
                let tail = sge(*len as u32 - half, a.key, SOURCE + sources + u64::from(half));
                let head = if half > 0 { sge(half, a.key, SOURCE + sources) } else { vec![] };
                a.send(op, imm, &[&head, &tail]);
                sources += *len as u64;
                expected_inbox.push((inbox_at, if *with_imm { 3 } else { 2 }, data, with_imm.then_some(imm)));
                inbox_at += 2048;
            }
            Step::Write { at, len, imm: with_imm } => {
                let data = pattern(*len, 0x80 | i as u8);
                a.put(SOURCE + sources, &data);
                let segments = [raddr(TARGET + at, b.key), sge(*len as u32, a.key, SOURCE + sources)];
                if *with_imm {
                    b.receive(&[(2048, b.key, inbox_at)]);
                    expected_inbox.push((inbox_at, 1, vec![0; *len], Some(imm)));
                    inbox_at += 2048;
                }
                a.send(if *with_imm { 0x09 } else { 0x08 }, imm, &[&segments[0], &segments[1]]);
                target[*at as usize..*at as usize + len].copy_from_slice(&data);
                sources += *len as u64;
            }
            Step::Read { at, len } => {
                // Behind everything before it: WRITEs are done when their turn comes, so no fence is needed.
                a.send(0x10, 0, &[&raddr(TARGET + at, b.key), &sge(*len as u32, a.key, sink_at)]);
                expected_sink.push((sink_at, target[*at as usize..*at as usize + len].to_vec()));
                sink_at += 4096;
                // What is written behind it may be seen by it; the reference reads at once.
                a.settle();
            }
            Step::Add { at, by } => {
                let cell = &mut target[*at as usize..*at as usize + 8];
                let old = u64::from_ne_bytes(cell.try_into().unwrap());
                a.send(0x12, 0, &[&raddr(TARGET + at, b.key), &atomic(*by, 0), &sge(8, a.key, sink_at)]);
                expected_sink.push((sink_at, old.to_ne_bytes().to_vec()));
                cell.copy_from_slice(&old.wrapping_add(*by).to_ne_bytes());
                sink_at += 4096;
            }
            Step::Swap { at, hit, with } => {
                let cell = &mut target[*at as usize..*at as usize + 8];
                let old = u64::from_ne_bytes(cell.try_into().unwrap());
                let compare = if *hit { old } else { !old };
                a.send(0x11, 0, &[&raddr(TARGET + at, b.key), &atomic(*with, compare), &sge(8, a.key, sink_at)]);
                expected_sink.push((sink_at, old.to_ne_bytes().to_vec()));
                if *hit {
                    cell.copy_from_slice(&with.to_ne_bytes());
                }
                sink_at += 4096;
            }
        }
    }
    a.settle();
    let codes: Vec<(u8, u16)> = a.poll_all().iter().map(|c| (c.opcode, c.wqe_counter())).collect();
    assert_eq!(codes.len(), program.len());
    assert!(codes.iter().all(|(code, _)| *code == 0), "{codes:?}");
    assert!(codes.is_sorted_by_key(|(_, counter)| *counter));
    assert_eq!(b.get(TARGET, target.len()), target);
    for (at, data) in expected_sink {
        assert_eq!(a.get(at, data.len()), data);
    }
    let received = b.poll_all();
    assert_eq!(received.len(), expected_inbox.len());
    for (completion, (at, opcode, data, imm)) in received.iter().zip(expected_inbox) {
        assert_eq!((completion.opcode, completion.byte_count()), (opcode, data.len() as u32));
        if let Some(imm) = imm {
            assert_eq!(completion.word(36), imm);
        }
        if opcode != 1 {
            assert_eq!(b.get(at, data.len()), data);
        }
    }
    a.clean();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bad_network_changes_nothing(program in steps(), seed: u64, loss in 0.0..0.15, duplication in 0.0..0.3, reordering in 0.0..0.3) {
        run(&program, seed, Disturbance {
            loss,
            duplication,
            reordering,
            delay: Duration::from_micros(1),
            jitter: Duration::from_micros(20),
        });
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let once = || {
        let (mut a, mut b) = pair_of(Plan::of(QpKind::Rc), 42);
        a.fabric.disturb(Disturbance { loss: 0.2, ..Disturbance::default() });
        b.receive(&[(8000, b.key, DATA)]);
        a.send(0x0a, 0, &[&sge(8000, a.key, DATA)]);
        a.settle();
        (a.fabric.now(), a.fabric.lost(), a.poll(), b.poll())
    };
    assert_eq!(once(), once());
    assert!(once().1 > 0);
}
