//! There can be no more objects of a kind than the capabilities announce, and as many.

use super::objects::{Base, be24};
use softcx::*;

/// Status of a command that would go past a limit.
const LIMIT: u8 = 8;

fn base() -> (Fabric, Base) {
    let fabric = Fabric::new(1);
    let base = Base::new(&fabric, 1);
    (fabric, base)
}

/// Status of a command that has nothing but its opcode. One within all limits fails for another reason, or makes an object.
fn status(base: &mut Base, opcode: u16) -> u8 {
    let mut input = [0; 16];
    input[..2].copy_from_slice(&opcode.to_be_bytes());
    base.driver.command(&input, 16).status
}

fn live(device: &Device, kind: &str) -> usize {
    device.live().into_iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| count)
}

/// A UD queue pair without rings.
fn datagrams(base: &Base) -> QpSpec {
    QpSpec {
        kind: QpKind::Ud,
        pd: base.pd,
        send_cq: base.cqn,
        recv_cq: base.cqn,
        srq: None,
        xrcd: None,
        send: None,
        recv: None,
        uar_page: base.uar,
        user_index: None,
        scatter_requester: false,
        scatter_responder: false,
        block_multicast_loopback: false,
    }
}

#[test]
fn event_queues() {
    let (_fabric, mut base) = base();
    let (uar, there_are) = (base.uar, base.eqs.len());
    for _ in there_are..64 {
        assert_ne!(status(&mut base, 0x301), LIMIT);
        base.driver.event_queue(uar, 0, 0);
    }
    assert_eq!(status(&mut base, 0x301), LIMIT);
}

#[test]
fn objects_of_the_device() {
    type Make = fn(&mut Device, &Base);
    let kinds: [(&[u16], &str, u32, Make); 5] = [
        (&[0x800], "protection domains", 16, |d, _| {
            d.alloc_pd();
        }),
        (&[0x80e], "XRC domains", 16, |d, _| {
            d.alloc_xrcd();
        }),
        (&[0x400], "completion queues", 18, |d, base| {
            let spec = CqSpec {
                ring: Buffer::contiguous(base.cq_ring, 64),
                log2_size: 0,
                entry_bytes: 64,
                record: base.records,
                uar_page: base.uar,
                ignore_overrun: false,
                compress: None,
                real_time: false,
            };
            d.create_cq(spec).unwrap();
        }),
        (&[0x705, 0x90c], "shared receive queues", 16, |d, base| {
            let (ring, record) = (Buffer::contiguous(base.cq_ring, 32), base.records);
            let spec = RecvSpec { ring, log2_count: 0, log2_stride: 5, record, linked: true };
            d.create_srq(base.pd, spec, None, 0).unwrap();
        }),
        (&[0x500, 0x904], "queue pairs", 17, |d, base| {
            d.create_qp(datagrams(base)).unwrap();
        }),
    ];
    for (opcodes, kind, log2_most, make) in kinds {
        let (fabric, mut base) = base();
        let fill = |base: &Base, until: usize| {
            let rest = |device: &mut Device| (live(device, kind)..until).for_each(|_| make(device, base));
            fabric.with(base.driver.function.device(), rest).unwrap();
        };
        fill(&base, (1 << log2_most) - 1);
        for opcode in opcodes {
            assert_ne!(status(&mut base, *opcode), LIMIT, "{kind}");
        }
        fill(&base, 1 << log2_most);
        for opcode in opcodes {
            assert_eq!(status(&mut base, *opcode), LIMIT, "{kind}");
        }
    }
}

#[test]
fn queue_pairs_of_a_multicast_group_and_groups() {
    const MEMBERS: usize = 56;
    const GROUPS: u32 = 1 << 16;
    let group = |n: u32| {
        let mut gid = [0xff; 16];
        gid[12..].copy_from_slice(&n.to_be_bytes());
        gid
    };
    let (fabric, mut base) = base();
    let id = base.driver.function.device();
    let make = |d: &mut Device| (0..=MEMBERS).map(|_| d.create_qp(datagrams(&base)).unwrap()).collect::<Vec<_>>();
    let qpns = fabric.with(id, make).unwrap();
    let attach = |base: &mut Base, gid: Gid, qpn: u32| {
        let mut input = [0; 32];
        input[..2].copy_from_slice(&0x806_u16.to_be_bytes());
        input[9..12].copy_from_slice(&be24(qpn));
        input[16..].copy_from_slice(&gid);
        base.driver.command(&input, 16).status
    };
    let (last, members) = qpns.split_last().unwrap();
    for qpn in members {
        assert_eq!(attach(&mut base, group(0), *qpn), 0);
    }
    assert_eq!(attach(&mut base, group(0), *last), LIMIT);
    assert_eq!(attach(&mut base, group(1), *last), 0, "another group has room");

    fabric.with(id, |d| (2..GROUPS - 1).for_each(|n| d.attach_multicast(group(n), *last).unwrap())).unwrap();
    assert_eq!(attach(&mut base, group(GROUPS - 1), *last), 0);
    assert_eq!(attach(&mut base, group(GROUPS), *last), LIMIT);
    assert_eq!(attach(&mut base, group(1), members[0]), 0, "no new group");
}
