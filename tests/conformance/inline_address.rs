//! Datagrams whose work request holds the whole address, from and to every GID that the device has.

use crate::fixture::{DATAGRAM_ROOM, QKEY, Setup, Side};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{Datagram, GidIndex, GidType, Inline, WrFlags};

tests! {
    address_in_the_work_request,
}

fn address_in_the_work_request(target: &Target) {
    if !target.kind.is_rxe() {
        skip("other drivers have no other form");
    }
    let context = target.open();
    let mut table = context.gid_table().unwrap();
    table.retain(|entry| entry.port == target.port && entry.gid_type == GidType::ROCE_V2);
    assert!(!table.is_empty());
    for entry in &table {
        step(format!("{}", entry.gid));
        let index = Some(GidIndex(entry.index as u8));
        let setup = Setup { inline: 64, ..Setup::default() };
        let mut a = Side::datagrams(target, context.clone(), index, &setup);
        let mut b = Side::datagrams(target, target.open(), index, &setup);
        let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
        let room = b.sge(0, DATAGRAM_ROOM);
        for len in [0, 1, 63, 64] {
            b.recv(7, &[room]);
            let payload = vec![len as u8; len];
            a.send(|batch| batch.send_to(1, WrFlags::SIGNALED, Inline(&payload), ah.to(b.qp.qpn(), QKEY)));
            a.success();
            let wc = b.success();
            let buffer = b.bytes(0, DATAGRAM_ROOM);
            let datagram = Datagram::new(&buffer, &wc).unwrap();
            assert_eq!(datagram.payload, payload);
            let grh = datagram.grh.unwrap();
            assert_eq!((grh.sgid, grh.dgid), (entry.gid, entry.gid));
        }
    }
    seen::works("UD address in the request");
}
