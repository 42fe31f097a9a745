//! Counters of all queues across the ends of 16, 24, 31 and 32 bits, with the software ConnectX at work: either side counts by itself,
//! and both start shortly before. From the start on it would take millions of messages.
//!
//! # Safety argument
//!
//! The device touches memory of this process: rings, doorbell records and a buffer, at the addresses that it was given. What is behind
//! them stays mapped as long as the [`Rig`], and is reached by raw pointers only. Device and queues have one thread, the test's.
#![allow(unsafe_code)]

use super::bus::record::{Event, Recorder};
use super::cq::tests::{Fixture, UIDX};
use super::dbrec::{DoorbellPages, DoorbellRecord, Word};
use super::layout::{RqLayout, SqLayout};
use super::memory::pages;
use super::ring::Ring;
use super::rq::{Rq, RqParts};
use super::shadow::{ONE, RqShared, SqShared};
use super::sq::{Sq, SqParts};
use super::testing::{sge, shared_register};
use crate::mem::map::{Mapping, page_bytes};
use crate::uverbs::types::Qpn;
use crate::uverbs::wr::{Inline, SendOp, SendWr, WcOpcode, WcStatus, WrFlags};
use softcx::{
    Access, Buffer, BusError, CqSpec, Device, DeviceId, DeviceSpec, Fabric, Memory, Mkey, Port, Punish, QpKind, QpSpec,
    QpState, RecvSpec, SendSpec, Translation,
};
use std::sync::Arc;
use std::time::Duration;

/// Of blocks, receives and completions.
const LOG2_DEPTH: u32 = 4;
const DEPTH: u32 = 1 << LOG2_DEPTH;
const SENDS: SqLayout = SqLayout { blocks: DEPTH, max_wr: 8, max_ds: 8, max_sge: 1, max_inline: 100 };
const RECEIVES: RqLayout = RqLayout { elements: DEPTH, log2_stride: 6, max_sge: 4 };
/// The page that doorbells ring on.
const UAR: u32 = 7;

/// The memory of this process.
struct Here;

impl Memory for Here {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), BusError> {
        let from: *const u8 = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: see the file's argument.
        unsafe { from.copy_to(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), BusError> {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: see the file's argument.
        unsafe { to.copy_from(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn load_be32(&self, address: u64) -> Result<u32, BusError> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn store_be32(&self, address: u64, value: u32) -> Result<(), BusError> {
        self.write(address, &value.to_be_bytes())
    }

    fn publish(&self, address: u64, value: u8) -> Result<(), BusError> {
        self.write(address, &[value])
    }

    fn fetch_update(&self, _: u64, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, BusError> {
        unreachable!("no atomics here")
    }
}

/// A queue pair that is connected to itself, and its completion queue: the provider's queues, and the device's.
struct Rig {
    fabric: Fabric,
    id: DeviceId,
    cqn: u32,
    sq: Sq<Recorder>,
    rq: Rq<Recorder>,
    cq: Fixture,
    bus: Recorder,
    buffer: Mapping,
    lkey: u32,
    /// Events of the completion queue so far.
    events: u32,
}

impl Rig {
    /// As if every counter had come to `start`.
    fn new(start: u32, entry_bytes: u32) -> Self {
        let fabric = Fabric::new(1);
        let id = fabric.add(DeviceSpec {
            name: "cx".into(),
            memory: Arc::new(Here),
            ports: vec![Port::infiniband(1, 1)],
            guid: 1,
            punish: Punish::default(),
        });
        let (blocks, receives) = (Arc::new(pages(SENDS.bytes()).unwrap()), Arc::new(pages(RECEIVES.bytes()).unwrap()));
        let (record, buffer) = (DoorbellPages::default().alloc().unwrap(), pages(page_bytes()).unwrap());
        let mut cq = Fixture::new(DEPTH, entry_bytes);
        cq.sends = Arc::new(SqShared::new(DEPTH));
        cq.receives = Arc::new(RqShared::at(DEPTH, start));
        cq.attach(UIDX);
        // Where each side looks for how far the other is.
        record.store(Word::Send, start & 0xffff);
        record.store(Word::Receive, start & 0xffff);
        cq.record.store(Word::CONSUMED, start & 0xff_ffff);
        let (cqn, qpn, lkey) = fabric
            .with(id, |device| {
                let made = create(device, &cq, &blocks, &receives, &record, &buffer);
                device.control().age(made.1, start).unwrap();
                made
            })
            .unwrap();
        let bus = Recorder::default();
        let ring = |memory: Arc<Mapping>, bytes| Ring::new(memory, 0, bytes);
        let parts = SqParts {
            ring: ring(blocks, SENDS.bytes()),
            layout: SENDS,
            qpn: Qpn::new(qpn).unwrap(),
            sig_all: false,
            record: record.clone(),
            register: shared_register(),
            shared: cq.sends.clone(),
            home: None,
        };
        let mut sq = Sq::with_bus(parts, bus.clone());
        sq.start_at(start, start.wrapping_mul(ONE));
        cq.sends.note(0, 0, start, WcOpcode::SEND);
        cq.sends.complete(0);
        let parts = RqParts {
            ring: ring(receives, RECEIVES.bytes()),
            layout: RECEIVES,
            record,
            shared: cq.receives.clone(),
            home: None,
        };
        let mut rq = Rq::with_bus(parts, bus.clone());
        rq.start_at(start);
        cq.start_at(start);
        Self { fabric, id, cqn, sq, rq, cq, bus, buffer, lkey, events: 0 }
    }

    /// Sends messages `first..first + count`, each of which comes back, and looks at everything that comes of it.
    fn send(&mut self, first: u32, count: u32) {
        let ids = first..first + count;
        for id in ids.clone() {
            self.rq.push(id.into(), &[sge(self.buffer.as_ptr().addr() as u64, 128, self.lkey)]).unwrap();
        }
        self.rq.submit();
        self.cq.cq.arm(self.events, false);
        let [word @ .., _, _, _, _] = rung(&self.cq.bus);
        let arm = u64::from(u32::from_be_bytes(word)) << 32 | u64::from(self.cqn);
        self.fabric.with(self.id, |device| device.doorbell(UAR, 0x20, arm)).unwrap();
        for id in ids.clone() {
            // Of one block and of two.
            let bytes = vec![id as u8; if id % 3 == 0 { 100 } else { 8 }];
            let payload = Inline(&bytes).into();
            let (flags, op) = (WrFlags::SIGNALED, SendOp::SendImm(id));
            self.sq.push(&SendWr { wr_id: id.into(), flags, op, payload }).unwrap();
        }
        self.bus.take();
        self.sq.submit();
        let doorbell = u64::from_be_bytes(rung(&self.bus));
        self.fabric.with(self.id, |device| device.doorbell(UAR, 0x800, doorbell)).unwrap();
        assert!(self.fabric.settle(Duration::from_secs(1)));
        let events = self.fabric.with(self.id, Device::take_events).unwrap();
        assert_eq!(events, [softcx::Event::Completion { cqn: self.cqn }], "messages {ids:?}");
        self.events += 1;
        let (mut sent, mut received) = (ids.clone(), ids);
        let mut open = self.cq.cq.open();
        while let Some(cqe) = open.next() {
            assert_eq!(cqe.status(), WcStatus::SUCCESS);
            if cqe.opcode() == WcOpcode::SEND {
                assert_eq!(Some(cqe.wr_id()), sent.next().map(u64::from));
            } else {
                let id = received.next();
                assert_eq!((Some(cqe.wr_id()), cqe.imm()), (id.map(u64::from), id));
            }
        }
        self.cq.cq.end();
        assert_eq!((sent.len(), received.len()), (0, 0), "what did not come");
        assert_eq!((self.sq.left(), self.rq.remaining()), (SENDS.max_wr, DEPTH));
    }
}

/// What was stored into a register last.
fn rung(bus: &Recorder) -> [u8; 8] {
    let stored = |event: Event| if let Event::Register { value, .. } = event { Some(value) } else { None };
    bus.take().into_iter().rev().find_map(stored).expect("a doorbell")
}

/// Makes the device's part: numbers of completion queue and queue pair, and the buffer's key.
fn create(
    device: &mut Device,
    cq: &Fixture,
    blocks: &Mapping,
    receives: &Mapping,
    record: &DoorbellRecord,
    buffer: &Mapping,
) -> (u32, u32, u32) {
    let of = |memory: &Mapping, bytes| Buffer::contiguous(memory.as_ptr().expose_provenance() as u64, bytes);
    let pd = device.alloc_pd();
    let entry_bytes = u64::from(cq.ring.entry_bytes());
    let cq_spec = CqSpec {
        ring: Buffer::contiguous(cq.ring.addr(), entry_bytes << LOG2_DEPTH),
        log2_size: LOG2_DEPTH,
        entry_bytes,
        record: cq.record.addr(),
        uar_page: UAR,
        ignore_overrun: false,
        compress: None,
        real_time: false,
    };
    let cqn = device.create_cq(cq_spec).unwrap();
    let (send, recv) = (of(blocks, SENDS.bytes() as u64), of(receives, RECEIVES.bytes() as u64));
    let qp_spec = QpSpec {
        kind: QpKind::Rc,
        pd,
        send_cq: cqn,
        recv_cq: cqn,
        srq: None,
        xrcd: None,
        send: Some(SendSpec { ring: send, log2_bbs: LOG2_DEPTH, record: record.addr() }),
        recv: Some(RecvSpec {
            ring: recv,
            log2_count: LOG2_DEPTH,
            log2_stride: RECEIVES.log2_stride,
            record: record.addr(),
            linked: false,
        }),
        uar_page: UAR,
        user_index: Some(UIDX),
        scatter_requester: false,
        scatter_responder: false,
        block_multicast_loopback: false,
    };
    let qpn = device.create_qp(qp_spec).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let to_itself = |attr: &mut softcx::QpAttr| {
            attr.path.dlid = 1;
            attr.dest_qpn = qpn;
        };
        device.modify_qp(qpn, to_itself, Some(state)).unwrap();
    }
    let bytes = buffer.len_bytes() as u64;
    let key = Mkey {
        variant: 0,
        pd,
        access: Access::ALL,
        start: buffer.as_ptr().addr() as u64,
        len: bytes,
        translation: Translation::Bus(of(buffer, bytes)),
        free: false,
        qpn: None,
        is_window: false,
        umr: false,
    };
    (cqn, qpn, device.create_mkey(key))
}

/// Messages in batches of one to six, until all counters are past the end.
#[test]
fn every_counter_wraps_on_both_sides() {
    for around in [1_u64 << 16, 1 << 24, 1 << 31, 1 << 32] {
        for entry_bytes in [64, 128] {
            let start = (around - 40) as u32;
            let mut rig = Rig::new(start, entry_bytes);
            let mut sent = 0;
            for batch in 0..24 {
                let count = 1 + batch % 6;
                rig.send(sent, count);
                sent += count;
            }
            // A message has two completions, a receive, and one block or two.
            assert!(sent > 2 * 40);
            let produced = rig.fabric.with(rig.id, |device| device.cq(rig.cqn).unwrap().produced()).unwrap();
            assert_eq!(produced, start.wrapping_add(2 * sent), "{around:#x}");
            assert_eq!(rig.cq.record.load(Word::CONSUMED), produced & 0xff_ffff);
            assert_eq!(rig.fabric.take_reports(), [], "{around:#x}");
        }
    }
}
