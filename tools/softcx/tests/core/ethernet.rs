//! Ethernet ports: RoCE v1 and v2, what a datagram brings along, groups; and two networks that do not hear each other.

use crate::bench::*;
use softcx::*;

const SEND: u8 = 0x0a;

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// Two connected sides on Ethernet; `gid` is an index into both tables: 0 and 1 link-local, 2 and 3 IPv4; odd ones are v2.
fn on_ethernet(kind: QpKind, gid: u8) -> (Side, Side) {
    let fabric = Fabric::new(1);
    let plan = Plan::of(kind);
    let make = |n: u8| Side::on(&fabric, n.into(), plan, Port::ethernet(mac(n), [198, 18, 0, n]));
    let (mut a, mut b) = (make(1), make(2));
    a.connect(&b, kind);
    b.connect(&a, kind);
    for (side, other) in [(&a, &b), (&b, &a)] {
        let dgid = gid_of(other, gid);
        let dmac = mac(other.id.place() as u8 + 1);
        side.modify(
            |attr| {
                attr.path.dmac = dmac;
                attr.path.grh = Some(PathGrh { sgid_index: gid, dgid, flow_label: 5, tclass: 6, hop_limit: 64 });
            },
            None,
        );
    }
    (a, b)
}

fn gid_of(side: &Side, index: u8) -> Gid {
    side.device(|d| d.ports()[0].gids[usize::from(index)].unwrap().gid)
}

/// Address vector, by the field table.
fn av(to: &Side, gid: u8, dgid: Gid, dmac: [u8; 6]) -> Vec<u8> {
    let mut av = vec![0; 48];
    av[..4].copy_from_slice(&0x1111_1111_u32.to_be_bytes());
    av[8..12].copy_from_slice(&(to.qpn | 0x8000_0000).to_be_bytes());
    av[20..26].copy_from_slice(&dmac);
    (av[26], av[27]) = (0x20, 33);
    av[28..32].copy_from_slice(&(1 << 30 | u32::from(gid) << 20 | 0x12345).to_be_bytes());
    av[32..].copy_from_slice(&dgid);
    av
}

#[test]
fn connections_work_over_every_gid() {
    for gid in 0..4 {
        let (mut a, mut b) = on_ethernet(QpKind::Rc, gid);
        b.receive(&[(64, b.key, DATA)]);
        a.send(SEND, 0, &[&inline(b"roce")]);
        a.settle();
        assert_eq!((a.poll().unwrap().opcode, b.poll().unwrap().byte_count()), (0, 4), "{gid}");
        a.clean();
    }
}

#[test]
fn a_wrong_address_is_heard_by_nobody() {
    let wrong: [fn(&mut QpAttr); 3] = [
        |attr| attr.path.dmac[5] = 9,
        |attr| attr.path.grh.as_mut().unwrap().dgid[15] ^= 1,
        // RoCE v1 for v2.
        |attr| attr.path.grh = None,
    ];
    for change in wrong {
        let (mut a, b) = on_ethernet(QpKind::Rc, 3);
        a.modify(change, None);
        a.send(SEND, 0, &[&inline(b"x")]);
        a.settle();
        assert_eq!((a.poll().unwrap().syndrome(), b.state()), (0x15, QpState::Rts));
    }
}

#[test]
fn a_datagram_shows_the_header_that_it_came_with() {
    // GID index; L3 type in the completion; where the header starts, and what it starts with.
    for (gid, kind, at, first) in [(0, 0, 0, 0x62), (1, 1, 0, 0x62), (3, 2, 20, 0x45)] {
        let (mut a, mut b) = on_ethernet(QpKind::Ud, gid);
        b.receive(&[(200, b.key, DATA)]);
        let dgid = gid_of(&b, gid);
        a.send(SEND, 0, &[&av(&b, gid, dgid, mac(2)), &inline(b"datagram")]);
        a.settle();
        let received = b.poll().unwrap();
        assert_eq!((received.byte_count(), received.word(24) >> 24), (48, 1 << 4 | kind), "{gid}");
        let header = b.get(DATA, 40);
        assert_eq!(header[at], first);
        if gid == 3 {
            assert_eq!((&header[..20], header[29]), ([0; 20].as_slice(), 17), "UDP");
            assert_eq!(header[32..], [198, 18, 0, 1, 198, 18, 0, 2]);
            let sum: u32 = header[20..].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "checksum");
        } else {
            assert_eq!((&header[8..24], &header[24..]), (gid_of(&a, gid).as_slice(), dgid.as_slice()));
            assert_eq!((header[6], header[7]), (if gid == 0 { 0x1b } else { 17 }, 33));
            assert_eq!(u32::from_be_bytes(header[..4].try_into().unwrap()), 0x6201_2345 | 0x20 << 20);
        }
        assert_eq!(b.get(DATA + 40, 8), b"datagram");
    }
}

#[test]
fn a_group_hears_once_each() {
    let (mut a, mut b) = on_ethernet(QpKind::Ud, 1);
    let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    for side in [&a, &b] {
        side.device(|d| d.attach_multicast(group, side.qpn)).unwrap();
    }
    a.receive(&[(100, a.key, DATA)]);
    b.receive(&[(100, b.key, DATA)]);
    let mut to_all = av(&b, 1, group, [0x33, 0x33, 0, 0, 0, 7]);
    to_all[8..12].copy_from_slice(&0x80ff_ffff_u32.to_be_bytes());
    a.send(SEND, 0, &[&to_all, &inline(b"all")]);
    a.settle();
    assert_eq!(b.poll().unwrap().byte_count(), 43);
    let own: Vec<u8> = a.poll_all().iter().map(|c| c.opcode).collect();
    assert!(own.contains(&0) && own.contains(&2), "the sender hears itself: {own:?}");
    b.device(|d| d.detach_multicast(group, b.qpn)).unwrap();
    b.receive(&[(100, b.key, DATA)]);
    a.send(SEND, 0, &[&to_all, &inline(b"all")]);
    a.settle();
    assert_eq!(b.poll(), None);
}

#[test]
fn a_datagram_longer_than_a_packet_is_refused() {
    let (mut a, b) = on_ethernet(QpKind::Ud, 1);
    a.send(SEND, 0, &[&av(&b, 1, gid_of(&b, 1), mac(2)), &sge(1025, a.key, DATA)]);
    a.settle();
    assert_eq!((a.poll().unwrap().syndrome(), a.state()), (0x01, QpState::Sqe));
}
