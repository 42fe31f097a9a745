//! Every operation with every shape of payload, verified at the peer to the last byte and at both completions.

use crate::fixture::{Kind, Pair, Setup, assert_received, assert_sent, eventually};
use crate::harness::step;
use crate::seen;
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{Any, Inline, InlinePieces, Payload, PostError, Rc, RemoteAddr, SendBatch, Sge, Uc, WcOpcode, WrFlags};
use std::ops::Range;

tests! {
    send,
    send_imm,
    write,
    write_imm,
    read,
    uc_send,
    uc_send_imm,
    uc_write,
    uc_write_imm,
    compare_swap,
    fetch_add,
    large_messages_both_ways,
    immediate_data_keeps_its_byte_order,
}

/// Operations with a payload of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
}

/// Where a payload is on one's own side.
#[derive(Clone, Debug)]
pub enum Local {
    /// In pieces of the region of these lengths.
    Sges(Vec<usize>),
    /// Copied into the work request, from that many bytes.
    Inline(usize),
    /// Copied into the work request, from pieces of these lengths.
    InlinePieces(Vec<usize>),
}

impl Local {
    fn len(&self) -> usize {
        match self {
            Self::Sges(lens) | Self::InlinePieces(lens) => lens.iter().sum(),
            Self::Inline(len) => *len,
        }
    }
}

/// A transport that connects, and what it can do beyond SEND and WRITE.
pub trait Posts: Kind {
    const RELIABLE: bool;
    fn read(batch: &mut SendBatch<'_, Any, Self>, wr_id: u64, sges: &[Sge], from: RemoteAddr) -> Result<(), PostError>;
}

impl Posts for Rc {
    const RELIABLE: bool = true;
    fn read(batch: &mut SendBatch<'_, Any, Self>, wr_id: u64, sges: &[Sge], from: RemoteAddr) -> Result<(), PostError> {
        batch.read(wr_id, WrFlags::SIGNALED, sges, from)
    }
}

impl Posts for Uc {
    const RELIABLE: bool = false;
    fn read(_: &mut SendBatch<'_, Any, Self>, _: u64, _: &[Sge], _: RemoteAddr) -> Result<(), PostError> {
        panic!("an unreliable connection has no READ")
    }
}

/// Where peers' bytes go or come from, and where each side's own are: the two never overlap.
const FAR: Range<usize> = 16 * 1024..32 * 1024;

fn send(target: &Target) {
    every_shape::<Rc>(target, Op::Send);
    seen::works("RC SEND");
}

fn send_imm(target: &Target) {
    every_shape::<Rc>(target, Op::SendImm);
    seen::works("RC SEND with immediate");
}

fn write(target: &Target) {
    every_shape::<Rc>(target, Op::Write);
    seen::works("RC RDMA WRITE");
}

fn write_imm(target: &Target) {
    every_shape::<Rc>(target, Op::WriteImm);
    seen::works("RC RDMA WRITE with immediate");
}

fn read(target: &Target) {
    every_shape::<Rc>(target, Op::Read);
    seen::works("RC RDMA READ");
}

fn uc_send(target: &Target) {
    every_shape::<Uc>(target, Op::Send);
    seen::works("UC SEND");
}

fn uc_send_imm(target: &Target) {
    every_shape::<Uc>(target, Op::SendImm);
    seen::works("UC SEND with immediate");
}

fn uc_write(target: &Target) {
    every_shape::<Uc>(target, Op::Write);
    seen::works("UC RDMA WRITE");
}

fn uc_write_imm(target: &Target) {
    every_shape::<Uc>(target, Op::WriteImm);
    seen::works("UC RDMA WRITE with immediate");
}

/// One piece, the most pieces there can be, unequal ones, inline in one and several pieces, and nothing at all; lengths
/// around a packet's.
fn every_shape<T: Posts>(target: &Target, op: Op) {
    let mut rng = Rng::with_seed(op as u64 + 1);
    let mut pair = pair_of_widest::<T>(target);
    pair.scramble(&mut rng);
    let caps = pair.a.qp.cap();
    let (most, inline, mtu) = (caps.max_send_sge as usize, caps.max_inline_data as usize, pair.mtu() as usize);

    let mut shapes = vec![Local::Sges(vec![])];
    shapes.extend([1, 7, 64, mtu - 1, mtu, mtu + 1, 3 * mtu + 5].map(|len| Local::Sges(vec![len])));
    shapes.push(Local::Sges((0..most).map(|i| 1 + (i * 37) % 90).collect()));
    shapes.push(Local::Sges(vec![8; most]));
    shapes.push(Local::Sges(vec![1, mtu + 100, 3, 700, 17]));
    shapes.push(Local::Sges(vec![5, 0, 9]));
    if op != Op::Read {
        shapes.extend([0, 1, 15, 16, 17, inline].map(Local::Inline));
        shapes.push(Local::InlinePieces(vec![]));
        shapes.push(Local::InlinePieces(vec![3, 0, 40, 1]));
        shapes.push(Local::InlinePieces(vec![inline - 9, 9]));
        shapes.push(Local::InlinePieces(vec![1; inline]));
    }
    for shape in &shapes {
        // The receive as large as the message and in one piece, then larger and in unequal pieces.
        for room in [vec![shape.len()], uneven(shape.len() + 77, pair.b.qp.cap().max_recv_sge as usize)] {
            step(format!("{op:?} of {shape:?} into {room:?}"));
            exchange(target, &mut pair, op, shape, &room, &mut rng);
            pair.swap();
            if !matches!(op, Op::Send | Op::SendImm) {
                break;
            }
        }
    }
    pair.a.silent();
    pair.b.silent();
}

/// A pair whose queue pairs take as many scatter/gather entries as the device has.
pub fn pair_of_widest<T: Kind>(target: &Target) -> Pair<T> {
    let attr = target.open().attr().clone();
    Pair::of_kind(target, &Setup { send_sge: attr.max_sge, recv_sge: attr.max_sge, inline: 128, ..Setup::default() })
}

/// `total` as `n` lengths, of which no two neighbours are equal.
fn uneven(total: usize, n: usize) -> Vec<usize> {
    let mut lens: Vec<_> = (0..n.min(total).max(1)).map(|i| 1 + i % 3).collect();
    let used: usize = lens.iter().sum();
    let last = lens.len() - 1;
    lens[last] += total.saturating_sub(used);
    lens
}

/// Pieces of these lengths in `area`, with gaps between them that nothing may touch.
pub fn scatter(lens: &[usize], area: Range<usize>, rng: &mut Rng) -> Vec<Range<usize>> {
    let mut at = area.start;
    let pieces = lens.iter().map(|len| {
        at += rng.usize(1..40);
        at += len;
        at - len..at
    });
    let pieces: Vec<_> = pieces.collect();
    assert!(at < area.end, "the pieces need {at} bytes");
    pieces
}

/// Runs one operation from side `a`, and checks everything that it should have done and nothing else.
pub fn exchange<T: Posts>(target: &Target, pair: &mut Pair<T>, op: Op, local: &Local, room: &[usize], rng: &mut Rng) {
    let len = local.len();
    let imm = rng.u32(..);
    let (sent_id, received_id) = (rng.u64(..), rng.u64(..));
    let far = FAR.start + rng.usize(1..100);
    let receives = matches!(op, Op::Send | Op::SendImm | Op::WriteImm);

    // Receives first. A WRITE with immediate takes one without looking at its entries.
    let into = match op {
        Op::Send | Op::SendImm => scatter(room, FAR, rng),
        _ => vec![],
    };
    if receives {
        let sges = pair.b.sges(&into);
        pair.b.recv(received_id, &sges);
    }

    // The payload: bytes of the region, or of the program's own.
    let own: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
    let lens = match local {
        Local::Sges(lens) | Local::InlinePieces(lens) => lens.clone(),
        Local::Inline(len) => vec![*len],
    };
    let from = match local {
        Local::Sges(_) => scatter(&lens, 0..FAR.start, rng),
        _ => vec![],
    };
    let payload: Vec<u8> = match (op, local) {
        (Op::Read, _) => pair.b.image[far..far + len].to_vec(),
        (_, Local::Sges(_)) => from.iter().flat_map(|piece| pair.a.image[piece.clone()].to_vec()).collect(),
        _ => own.clone(),
    };

    let sges = pair.a.sges(&from);
    let pieces: Vec<&[u8]> = lens
        .iter()
        .scan(0, |at, len| {
            *at += len;
            Some(&own[*at - len..*at])
        })
        .collect();
    let source = match local {
        Local::Sges(_) => Payload::from(&sges[..]),
        Local::Inline(_) => Inline(&own).into(),
        Local::InlinePieces(_) => InlinePieces(&pieces).into(),
    };
    let remote = pair.b.remote(far);
    pair.a.send(|batch| match op {
        Op::Send => batch.send(sent_id, WrFlags::SIGNALED, source),
        Op::SendImm => batch.send_imm(sent_id, WrFlags::SIGNALED, source, imm),
        Op::Write => batch.write(sent_id, WrFlags::SIGNALED, source, remote),
        Op::WriteImm => batch.write_imm(sent_id, WrFlags::SIGNALED, source, remote, imm),
        Op::Read => T::read(batch, sent_id, &sges, remote),
    });

    // What should now be where.
    let targets = match op {
        Op::Send | Op::SendImm => into,
        Op::Write | Op::WriteImm => std::iter::once(far..far + len).collect(),
        Op::Read => from,
    };
    let mut rest = &payload[..];
    let side = if op == Op::Read { &mut pair.a } else { &mut pair.b };
    for piece in targets {
        let (now, later) = rest.split_at(piece.len().min(rest.len()));
        side.expect(piece.start, now);
        rest = later;
    }
    assert!(rest.is_empty());

    let sent = pair.a.completions(1)[0];
    if !T::RELIABLE && !receives {
        // Sent says nothing of arrived.
        let image = pair.b.image[FAR].to_vec();
        eventually("the bytes arrive", || pair.b.bytes(FAR.start, FAR.len()) == image);
    }
    let opcode = match op {
        Op::Send | Op::SendImm => WcOpcode::SEND,
        Op::Write | Op::WriteImm => WcOpcode::RDMA_WRITE,
        Op::Read => WcOpcode::RDMA_READ,
    };
    assert_sent(&sent, sent_id, &pair.a.qp, opcode);
    // Only reads have a length there by the specification (11.4.2.1); Soft-RoCE tells it always.
    if op == Op::Read || target.kind.is_rxe() {
        assert_eq!(sent.outcome().unwrap().byte_len as usize, len);
    }
    if receives {
        let received = pair.b.completions(1)[0];
        let (opcode, imm) = match op {
            Op::Send => (WcOpcode::RECV, None),
            Op::SendImm => (WcOpcode::RECV, Some(imm)),
            _ => (WcOpcode::RECV_RDMA_WITH_IMM, Some(imm)),
        };
        assert_received(&received, received_id, &pair.b.qp, opcode, len, imm);
    }
    pair.check();
}

/// Atomics answer in host order: reports of byte-swapped results on some devices.
fn compare_swap(target: &Target) {
    let mut rng = Rng::with_seed(11);
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut rng);
    for hit in [true, false, true, true, false] {
        let (far, near) = (FAR.start + 8 * rng.usize(1..50), 8 * rng.usize(1..50));
        step(format!("compare and swap at {far}, hit: {hit}"));
        let before = u64::from_ne_bytes(pair.b.image[far..far + 8].try_into().unwrap());
        let (compare, swap) = (if hit { before } else { !before }, rng.u64(..));
        let (result, remote) = (pair.a.sge(near, 8), pair.b.remote(far));
        pair.a.send(|batch| batch.compare_swap(5, WrFlags::SIGNALED, result, remote, compare, swap));
        let wc = pair.a.completions(1)[0];
        assert_sent(&wc, 5, &pair.a.qp, WcOpcode::COMP_SWAP);
        assert_eq!(wc.outcome().unwrap().byte_len, 8);
        pair.a.expect(near, &before.to_ne_bytes());
        if hit {
            pair.b.expect(far, &swap.to_ne_bytes());
        }
        pair.check();
        pair.swap();
    }
    seen::works("RC compare and swap");
}

fn fetch_add(target: &Target) {
    let mut rng = Rng::with_seed(12);
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut rng);
    pair.b.put(FAR.start, &(u64::MAX - 2).to_ne_bytes());
    for add in [1, 1, 1, u64::MAX, 0, 1 << 40, rng.u64(..)] {
        step(format!("fetch and add {add:#x}"));
        let before = u64::from_ne_bytes(pair.b.image[FAR.start..][..8].try_into().unwrap());
        let near = 8 * rng.usize(1..50);
        let (result, remote) = (pair.a.sge(near, 8), pair.b.remote(FAR.start));
        pair.a.send(|batch| batch.fetch_add(6, WrFlags::SIGNALED, result, remote, add));
        let wc = pair.a.completions(1)[0];
        assert_sent(&wc, 6, &pair.a.qp, WcOpcode::FETCH_ADD);
        assert_eq!(wc.outcome().unwrap().byte_len, 8);
        pair.a.expect(near, &before.to_ne_bytes());
        pair.b.expect(FAR.start, &before.wrapping_add(add).to_ne_bytes());
        pair.check();
    }
    seen::works("RC fetch and add");
}

/// Reports of large transfers failing where small ones work: each side had assumed a path MTU of its own.
fn large_messages_both_ways(target: &Target) {
    const LEN: usize = 1 << 20;
    let mut rng = Rng::with_seed(13);
    let mut pair = Pair::new(target, &Setup { mr_bytes: 2 * LEN, ..Setup::default() });
    pair.scramble(&mut rng);
    for write in [true, true, false, false] {
        step(format!("1 MiB, write: {write}"));
        let (near, remote) = (pair.a.sge(0, LEN), pair.b.remote(LEN));
        pair.a.send(|batch| match write {
            true => batch.write(1, WrFlags::SIGNALED, &[near], remote),
            false => batch.read(1, WrFlags::SIGNALED, &[near], remote),
        });
        pair.a.success();
        let (from, to, at) = match write {
            true => (&pair.a.image[..LEN], &mut pair.b, LEN),
            false => (&pair.b.image[LEN..], &mut pair.a, 0),
        };
        let payload = from.to_vec();
        to.expect(at, &payload);
        pair.check();
        pair.swap();
    }
}

/// Immediate data travels in network order; programs give and get it in their own.
fn immediate_data_keeps_its_byte_order(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    for imm in [0x1122_3344, 1, 0x8000_0000, 0, u32::MAX] {
        pair.b.recv(1, &[]);
        pair.a.send(|batch| batch.send_imm(2, WrFlags::SIGNALED, Inline(&[]), imm));
        assert_received(&pair.b.completions(1)[0], 1, &pair.b.qp, WcOpcode::RECV, 0, Some(imm));
        pair.a.success();
    }
}
