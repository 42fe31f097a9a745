//! Elements of every kind that start at every block of the ring, with pages around the ring and the register that nobody may
//! touch.
//!
//! The kinds are all that can be made: each transport's longest layout, each operation on it, each shape of its payload. The lists
//! of transports and operations are matches without a default, so that a new one is not forgotten.

use super::*;
use crate::mlx5::av::{Link, address_vector};
use crate::mlx5::bus::record::Recorder;
use crate::mlx5::layout::{Limits as DeviceLimits, Transport};
use crate::mlx5::testing::{DIRTY, Sends, blueflame_register, guarded_ring, peek_page, sends_on, sge};
use crate::uverbs::abi::verbs::access;
use crate::uverbs::attr::{AddressVector, QpCap};
use crate::uverbs::memory_wr::{FlushLevel, FlushPlacement, MwBinding};
use crate::uverbs::types::Lkey;
use crate::uverbs::wr::Sge;
use std::collections::BTreeSet;
use std::iter::successors;

const BLOCKS: u32 = 64;
const BYTES: usize = 64 * BLOCKS as usize;
const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1122_3344_5566_7788, rkey: Rkey(0x99) };

const BIND_ONE: MwBinding = MwBinding {
    old_rkey: Rkey(0x100),
    new_rkey: Rkey(0x101),
    lkey: Lkey(7),
    addr: 0x1000,
    length: 0x2000,
    access: access::REMOTE_READ,
    type_2: false,
};
const BIND_TWO: MwBinding = MwBinding { type_2: true, ..BIND_ONE };
/// Has no list.
const UNBIND: MwBinding = MwBinding { length: 0, ..BIND_TWO };

fn transport_after(transport: &Transport) -> Option<Transport> {
    match transport {
        Transport::Rc => Some(Transport::Uc),
        Transport::Uc => Some(Transport::Ud),
        Transport::Ud => Some(Transport::XrcIni),
        Transport::XrcIni => Some(Transport::XrcTgt),
        Transport::XrcTgt => None,
    }
}

fn op_after(op: &SendOp) -> Option<SendOp> {
    let remote = REMOTE;
    Some(match *op {
        SendOp::Send => SendOp::SendImm(0x2122_2324),
        SendOp::SendImm(_) => SendOp::SendInvalidate(Rkey(0x31)),
        SendOp::SendInvalidate(_) => SendOp::Write(remote),
        SendOp::Write(_) => SendOp::WriteImm(remote, 0x4142_4344),
        SendOp::WriteImm(..) => SendOp::Read(remote),
        SendOp::Read(_) => SendOp::CompareSwap { remote, compare: 0x5152, swap: 0x5354 },
        SendOp::CompareSwap { .. } => SendOp::FetchAdd { remote, add: 0x6162 },
        SendOp::FetchAdd { .. } => SendOp::LocalInvalidate(Rkey(0x71)),
        SendOp::LocalInvalidate(_) => SendOp::Bind(BIND_ONE),
        SendOp::Bind(BIND_ONE) => SendOp::Bind(BIND_TWO),
        SendOp::Bind(BIND_TWO) => SendOp::Bind(UNBIND),
        SendOp::Bind(_) => SendOp::AtomicWrite(remote, 0x8182),
        SendOp::AtomicWrite(..) => SendOp::Flush(remote, FlushPlacement::GLOBAL_VISIBILITY, FlushLevel::Region),
        SendOp::Flush(..) => return None,
    })
}

/// Whether a transport has an operation (IB spec 9.4, 10.8).
fn has(transport: Transport, op: &SendOp) -> bool {
    match op {
        SendOp::Send | SendOp::SendImm(_) => true,
        SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::LocalInvalidate(_) | SendOp::Bind(_) => {
            transport != Transport::Ud
        }
        SendOp::SendInvalidate(_) | SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            matches!(transport, Transport::Rc | Transport::XrcIni)
        }
        // The device has neither.
        SendOp::AtomicWrite(..) | SendOp::Flush(..) => false,
    }
}

/// A transport's layout for the longest elements that a device takes.
fn longest(transport: Transport) -> SqLayout {
    let limits = DeviceLimits {
        max_send_blocks: BLOCKS,
        max_send_element_bytes: 1024,
        max_recv_element_bytes: 0,
        max_recv_wr: 0,
        max_srq_recv_wr: 0,
    };
    let layout = |entries: u32| {
        let inline = (entries * 16).saturating_sub(4);
        let cap = QpCap { max_send_wr: 4, max_send_sge: entries, max_inline_data: inline, ..QpCap::default() };
        SqLayout::new(transport, &cap, &limits).ok()
    };
    (0..64).rev().find_map(layout).expect("a layout of no entries")
}

/// Calls `each` with every shape of payload that an operation may have, and its name.
fn payloads(op: &SendOp, layout: &SqLayout, mut each: impl FnMut(&str, Payload<'_>)) {
    let word: Vec<_> = (0..8).map(|i| sge(0x1000 * i, 1, i as u32)).collect();
    let list: Vec<Sge> = (0..layout.max_sge).map(|i| sge(0x1000 * u64::from(i), 16 + i, i)).collect();
    let bytes: Vec<u8> = (0..layout.max_inline).map(|i| (i * 7 + 1) as u8).collect();
    match op {
        SendOp::LocalInvalidate(_) | SendOp::Bind(_) => each("nothing", Payload::Sges(&[])),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            each("a word", Payload::Sges(&[sge(1, 8, 2)]));
            each("eight bytes apart", Payload::Sges(&word));
        }
        _ => {
            for entries in 0..=list.len() {
                each(&format!("{entries} entries"), Payload::Sges(&list[..entries]));
            }
        }
    }
    if !matches!(
        op,
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::Write(_) | SendOp::WriteImm(..)
    ) {
        return;
    }
    for len in (0..=bytes.len()).step_by(23).chain([1, 7, 8, 9, 11, 12, 13, 27, 28, 29, 59, 60, 61, bytes.len()]) {
        each(&format!("{len} bytes inline"), Payload::Inline(&bytes[..len]));
    }
    for len in [37, 5, 16, 64] {
        let pieces: Vec<&[u8]> = bytes.chunks(len).collect();
        each(&format!("pieces of {len} bytes inline"), Payload::InlinePieces(&pieces));
    }
}

#[test]
fn every_kind_of_element_from_every_block() {
    let to = Destination {
        av: address_vector(&AddressVector::default(), Link::RoceV1 { dmac: [1, 2, 3, 4, 5, 6] }),
        qpn: Qpn::new(5).unwrap(),
        qkey: 6,
    };
    let mut driven = vec![];
    for transport in successors(Some(Transport::Rc), transport_after) {
        let layout = longest(transport);
        let target = match transport {
            Transport::Rc | Transport::Uc => Target::Connected,
            Transport::Ud => Target::Datagram(&to),
            Transport::XrcIni => Target::Xrc { srqn: 0xab_cdef },
            // Has no send queue.
            Transport::XrcTgt => {
                assert_eq!(layout.blocks, 0);
                continue;
            }
        };
        let mut opcodes = BTreeSet::new();
        for op in successors(Some(SendOp::Send), op_after).filter(|op| has(transport, op)) {
            payloads(&op, &layout, |shape, payload| {
                let wr = SendWr { wr_id: 1, flags: WrFlags::SIGNALED, op, payload };
                let kind = format!("{transport:?} {op:?} of {shape}");
                opcodes.insert(from_every_block(&kind, layout, &|sq| sq.push_to(&wr, target)));
            });
        }
        opcodes.insert(from_every_block("NOP", layout, &|sq| sq.push_nop(1, WrFlags::NONE)));
        driven.push((transport, layout.max_sge, opcodes.into_iter().collect::<Vec<_>>()));
    }
    // All that the field tables have of what the library offers: NOP, SEND with invalidate, the WRITEs, the SENDs, READ, the
    // atomics, UMR; and an element of 63 units has room for that many entries.
    let all = [0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x25];
    let want = [
        (Transport::Rc, 60, all.to_vec()),
        (Transport::Uc, 61, vec![0x00, 0x08, 0x09, 0x0a, 0x0b, 0x25]),
        (Transport::Ud, 59, vec![0x00, 0x0a, 0x0b]),
        (Transport::XrcIni, 59, all.to_vec()),
    ];
    assert_eq!(driven, want);
}

/// Compares what an element is at each block with what it is at the ring's start, where it does not wrap. Returns its opcode.
fn from_every_block(kind: &str, layout: SqLayout, push: &dyn Fn(&mut Sq<Recorder>) -> Result<(), PostError>) -> u8 {
    let (register, page) = blueflame_register();
    let Sends { mut sq, bus, .. } = sends_on(layout, register);
    sq.use_ring(guarded_ring(BYTES));
    let straight = element_at(&mut sq, 0, push);
    let ds = usize::from(straight[7] & 0x3f);
    for block in 1..layout.blocks {
        bus.take();
        let got = element_at(&mut sq, block, push);
        // Halves of the register take turns; a copy is of whole blocks.
        let copied = if (2..=16).contains(&ds) { ds.div_ceil(4) * 64 } else { 8 };
        let rung = peek_page(page + 0x800 + 0x100 * (block as usize % 2), copied);
        assert_eq!(rung, got[..copied], "{kind}, {ds} units from block {block}, in the register");
        assert_eq!(got[..1], straight[..1], "{kind} from block {block}");
        assert_eq!(u16::from_be_bytes([got[1], got[2]]), block as u16, "{kind}: index");
        assert_eq!(got[3..], straight[3..], "{kind} from block {block}");
    }
    straight[3]
}

/// Pushes one element that starts at `block` of a dirty ring, and returns the whole ring from there on.
fn element_at(sq: &mut Sq<Recorder>, block: u32, push: &dyn Fn(&mut Sq<Recorder>) -> Result<(), PostError>) -> Vec<u8> {
    sq.ring.fill(DIRTY);
    sq.start_at(block, 0);
    push(sq).unwrap();
    sq.submit();
    sq.ring.peek(block as usize * 64, BYTES)
}
