//! Elements of every kind that start at every block of the ring, with pages around the ring and the register that nobody may
//! touch.

use super::*;
use crate::mlx5::av::{Link, address_vector};
use crate::mlx5::bus::record::Recorder;
use crate::mlx5::testing::{DIRTY, Sends, blueflame_register, guarded_ring, peek_page, sends_on, sge};
use crate::mlx5::umr::{WindowAccess, WindowType};
use crate::uverbs::attr::AddressVector;
use crate::uverbs::types::Lkey;

const LAYOUT: SqLayout = SqLayout { blocks: 64, max_wr: 4, max_ds: 63, max_sge: 55, max_inline: 900 };
const BYTES: usize = 64 * 64;

fn wr(op: SendOp, payload: Payload<'_>) -> SendWr<'_> {
    SendWr { wr_id: 1, flags: WrFlags::SIGNALED, op, payload }
}

type Push<'a> = (&'a str, Box<dyn Fn(&mut Sq<Recorder>) -> Result<(), PostError> + 'a>);

#[test]
fn every_kind_of_element_from_every_block() {
    let remote = RemoteAddr { addr: 0x1122_3344_5566_7788, rkey: Rkey(0x99) };
    let list: Vec<_> = (0..55).map(|i| sge(0x1000 * i, 16 + i as u32, i as u32)).collect();
    let bytes: Vec<u8> = (0..900_u32).map(|i| (i * 7 + 1) as u8).collect();
    let pieces: Vec<&[u8]> = bytes.chunks(37).collect();
    let to = Destination {
        av: address_vector(&AddressVector::default(), Link::RoceV1 { dmac: [1, 2, 3, 4, 5, 6] }),
        qpn: Qpn::new(5).unwrap(),
        qkey: 6,
    };
    let bind = Bind {
        zero_based: false,
        window: WindowType::Two,
        rkey: Rkey(0x100),
        new_rkey: Rkey(0x101),
        lkey: Lkey(7),
        addr: 0x1000,
        length: 0x2000,
        access: WindowAccess { remote_read: true, ..Default::default() },
    };
    let eight = [sge(1, 8, 2)];
    let atomic = SendOp::CompareSwap { remote, compare: 1, swap: 2 };
    let mut kinds: Vec<Push<'_>> = vec![
        ("atomic", Box::new(|sq| sq.push(&wr(atomic, Payload::Sges(&eight))))),
        ("atomic on XRC", Box::new(|sq| sq.push_to(&wr(atomic, Payload::Sges(&eight)), Target::Xrc { srqn: 3 }))),
        ("bind", Box::new(|sq| sq.push_bind(1, WrFlags::NONE, &bind))),
        ("invalidate", Box::new(|sq| sq.push_local_inv(1, WrFlags::NONE, Rkey(5)))),
        ("nop", Box::new(|sq| sq.push_nop(1, WrFlags::NONE))),
        ("pieces", Box::new(|sq| sq.push(&wr(SendOp::Write(remote), Payload::InlinePieces(&pieces))))),
        (
            "datagram pieces",
            Box::new(|sq| sq.push_to(&wr(SendOp::Send, Payload::InlinePieces(&pieces)), Target::Datagram(&to))),
        ),
    ];
    for entries in 0..=55 {
        let list = &list[..entries];
        kinds.push(("write", Box::new(move |sq| sq.push(&wr(SendOp::Write(remote), Payload::Sges(list))))));
        kinds.push(("read", Box::new(move |sq| sq.push(&wr(SendOp::Read(remote), Payload::Sges(list))))));
        let to = &to;
        kinds.push((
            "datagram",
            Box::new(move |sq| sq.push_to(&wr(SendOp::Send, Payload::Sges(list)), Target::Datagram(to))),
        ));
    }
    for len in (0..=900).step_by(11).chain([1, 7, 8, 9, 11, 12, 13, 27, 28, 29, 59, 60, 61, 899]) {
        let bytes = &bytes[..len];
        kinds.push(("inline send", Box::new(move |sq| sq.push(&wr(SendOp::Send, Payload::Inline(bytes))))));
        kinds.push((
            "inline write",
            Box::new(move |sq| sq.push(&wr(SendOp::WriteImm(remote, 9), Payload::Inline(bytes)))),
        ));
    }
    for (kind, push) in &kinds {
        let (register, page) = blueflame_register();
        let Sends { mut sq, .. } = sends_on(LAYOUT, register);
        sq.use_ring(guarded_ring(BYTES));
        let straight = element_at(&mut sq, 0, push);
        let ds = usize::from(straight[7] & 0x3f);
        for block in 1..LAYOUT.blocks {
            let got = element_at(&mut sq, block, push);
            // Halves of the register take turns; a copy is of whole blocks.
            let copied = if (2..=16).contains(&ds) { ds.div_ceil(4) * 64 } else { 8 };
            let rung = peek_page(page + 0x800 + 0x100 * (block as usize % 2), copied);
            assert_eq!(rung, got[..copied], "{kind} of {ds} units from block {block}, in the register");
            assert_eq!(got[..1], straight[..1], "{kind} from block {block}");
            assert_eq!(u16::from_be_bytes([got[1], got[2]]), block as u16, "{kind}: index");
            assert_eq!(got[3..], straight[3..], "{kind} from block {block}");
        }
    }
}

/// Pushes one element that starts at `block` of a dirty ring, and returns the whole ring from there on.
fn element_at(sq: &mut Sq<Recorder>, block: u32, push: &dyn Fn(&mut Sq<Recorder>) -> Result<(), PostError>) -> Vec<u8> {
    sq.ring.fill(DIRTY);
    sq.start_at(block, 0);
    push(sq).unwrap();
    sq.submit();
    sq.ring.peek(block as usize * 64, BYTES)
}
