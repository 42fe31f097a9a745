//! A bench with two devices, a queue pair on each, and the bytes of their rings in plain sight.

use softcx::*;
use std::sync::Arc;
use std::time::Duration;

/// Memory of a device: base address and size.
const BASE: u64 = 0x1_0000;
const SIZE: usize = 0x10_0000;
/// Places in it.
pub const CQ_RING: u64 = BASE;
pub const CQ_RECORD: u64 = BASE + 0x8000;
const SQ_RING: u64 = BASE + 0x1_0000;
const RQ_RING: u64 = BASE + 0x2_0000;
pub const QP_RECORD: u64 = BASE + 0x8040;
/// Registered memory, by every key the bench makes itself.
pub const DATA: u64 = BASE + 0x4_0000;
pub const DATA_BYTES: u64 = 0x4_0000;
/// A UAR page that nobody looks at: the bench tells the device of each store.
pub const UAR: u32 = 7;
/// The user index of both queue pairs.
pub const USER_INDEX: u32 = 0x00ab_cdef;

pub const LOG2_CQ: u32 = 5;
pub const LOG2_SQ: u32 = 6;
pub const LOG2_RQ: u32 = 4;

/// One device and its queue pair.
pub struct Side {
    pub fabric: Fabric,
    pub id: DeviceId,
    pub memory: Arc<VecMemory>,
    pub pd: u32,
    pub key: u32,
    pub cqn: u32,
    pub qpn: u32,
    pub entry_bytes: u64,
    ci: u32,
    sq: u16,
    rq: u16,
}

/// A completion, by the field table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub opcode: u8,
    pub bytes: [u8; 64],
}

impl Completion {
    pub fn syndrome(&self) -> u8 {
        assert!(self.opcode == 13 || self.opcode == 14, "{self:?}");
        self.bytes[55]
    }

    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    pub fn byte_count(&self) -> u32 {
        self.word(44)
    }

    pub fn wqe_counter(&self) -> u16 {
        u16::from_be_bytes(self.bytes[60..62].try_into().unwrap())
    }

    pub fn send_opcode(&self) -> u8 {
        self.bytes[56]
    }
}

/// What to build.
#[derive(Clone, Copy)]
pub struct Plan {
    pub kind: QpKind,
    pub entry_bytes: u64,
    pub scatter: bool,
    pub own_recv: bool,
    pub compress: Option<MiniFormat>,
}

impl Plan {
    pub fn of(kind: QpKind) -> Self {
        Self { kind, entry_bytes: 64, scatter: false, own_recv: true, compress: None }
    }
}

/// Two connected sides of a fabric.
pub fn pair(kind: QpKind) -> (Side, Side) {
    pair_of(Plan::of(kind), 1)
}

pub fn pair_of(plan: Plan, seed: u64) -> (Side, Side) {
    let fabric = Fabric::new(seed);
    let mut a = Side::new(&fabric, 1, plan);
    let mut b = Side::new(&fabric, 2, plan);
    a.connect(&b, plan.kind);
    b.connect(&a, plan.kind);
    (a, b)
}

impl Side {
    pub fn new(fabric: &Fabric, lid: u16, plan: Plan) -> Self {
        Self::on(fabric, lid, plan, Port::infiniband(lid, lid.into()))
    }

    pub fn on(fabric: &Fabric, lid: u16, plan: Plan, port: Port) -> Self {
        let memory = Arc::new(VecMemory::new(BASE, SIZE));
        let id = fabric.add(DeviceSpec {
            name: format!("cx{lid}"),
            memory: Arc::clone(&memory) as Arc<dyn Memory>,
            ports: vec![port],
            guid: lid.into(),
            punish: Punish::default(),
        });
        let mut side = Self {
            fabric: fabric.clone(),
            id,
            memory,
            pd: 0,
            key: 0,
            cqn: 0,
            qpn: 0,
            entry_bytes: plan.entry_bytes,
            ci: 0,
            sq: 0,
            rq: 0,
        };
        side.pd = side.device(|d| d.alloc_pd());
        side.key = side.register(DATA, DATA_BYTES, Access::ALL);
        side.cqn = side.make_cq(CQ_RING, CQ_RECORD, plan.compress);
        side.qpn = side.make_qp(plan);
        side
    }

    pub fn device<T>(&self, f: impl FnOnce(&mut Device) -> T) -> T {
        self.fabric.with(self.id, f).unwrap()
    }

    pub fn register(&self, start: u64, len: u64, access: Access) -> u32 {
        let key = Mkey { access, ..self.open_key(start, len) };
        self.device(|d| d.create_mkey(key))
    }

    /// An ordinary key that allows everything, yet to be made.
    pub fn open_key(&self, start: u64, len: u64) -> Mkey {
        Mkey {
            variant: 0,
            pd: self.pd,
            access: Access::ALL,
            start,
            len,
            translation: Translation::Bus(Buffer::contiguous(start, len)),
            free: false,
            qpn: None,
            is_window: false,
            umr: false,
        }
    }

    fn make_cq(&self, ring: u64, record: u64, compress: Option<MiniFormat>) -> u32 {
        // Every entry invalid: opcode 15, owner 0.
        for i in 0..1 << LOG2_CQ {
            self.memory.write(ring + i * self.entry_bytes + self.entry_bytes - 1, &[0xf0]).unwrap();
        }
        self.make_cq_at(ring, record, compress)
    }

    /// One on a ring that nobody has prepared, and that may be nowhere.
    pub fn make_cq_at(&self, ring: u64, record: u64, compress: Option<MiniFormat>) -> u32 {
        let len = self.entry_bytes << LOG2_CQ;
        let entry_bytes = self.entry_bytes;
        let spec = CqSpec {
            ring: Buffer::contiguous(ring, len),
            log2_size: LOG2_CQ,
            entry_bytes,
            record,
            uar_page: UAR,
            ignore_overrun: false,
            compress,
            real_time: false,
        };
        self.device(|d| d.create_cq(spec)).unwrap()
    }

    pub fn make_qp(&self, plan: Plan) -> u32 {
        let spec = self.spec(plan);
        self.device(|d| d.create_qp(spec)).unwrap()
    }

    pub fn spec(&self, plan: Plan) -> QpSpec {
        QpSpec {
            kind: plan.kind,
            pd: self.pd,
            send_cq: self.cqn,
            recv_cq: self.cqn,
            srq: None,
            xrcd: None,
            send: Some(SendSpec {
                ring: Buffer::contiguous(SQ_RING, 64 << LOG2_SQ),
                log2_bbs: LOG2_SQ,
                record: QP_RECORD,
            }),
            recv: plan.own_recv.then(|| RecvSpec {
                ring: Buffer::contiguous(RQ_RING, 64 << LOG2_RQ),
                log2_count: LOG2_RQ,
                log2_stride: 6,
                record: QP_RECORD,
                linked: false,
            }),
            uar_page: UAR,
            user_index: Some(USER_INDEX),
            scatter_requester: plan.scatter,
            scatter_responder: plan.scatter,
            block_multicast_loopback: false,
        }
    }

    /// To RTS, towards `other`. PSNs start near the end of their range, so that every test sees them wrap.
    pub fn connect(&mut self, other: &Side, kind: QpKind) {
        self.connect_to(other.id, other.qpn, kind);
    }

    pub fn connect_to(&mut self, other: DeviceId, dest_qpn: u32, kind: QpKind) {
        let qpn = self.qpn;
        self.device(|d| {
            d.modify_qp(qpn, |_| {}, Some(QpState::Init)).unwrap();
            d.modify_qp(
                qpn,
                |a| {
                    a.path.dlid = other.place() as u16 + 1;
                    a.dest_qpn = dest_qpn;
                    a.mtu_bytes = 256;
                    (a.rq_psn, a.sq_psn) = (0xff_fff0, 0xff_fff0);
                    a.access = Access::ALL;
                    (a.max_rd_atomic, a.max_dest_rd_atomic) = (4, 4);
                    a.qkey = 0x1111_1111;
                    // 4.096 µs × 2^10 = 4.2 ms; RNR code 5: 60 µs.
                    (a.timeout, a.retry_count, a.rnr_retry, a.min_rnr_timer) = (10, 7, 7, 5);
                },
                Some(QpState::Rtr),
            )
            .unwrap();
            if kind != QpKind::XrcTgt {
                d.modify_qp(qpn, |_| {}, Some(QpState::Rts)).unwrap();
            }
        });
    }

    pub fn modify(&self, change: impl FnOnce(&mut QpAttr), state: Option<QpState>) {
        let qpn = self.qpn;
        self.device(|d| d.modify_qp(qpn, change, state)).unwrap();
    }

    pub fn state(&self) -> QpState {
        self.device(|d| d.query_qp(self.qpn)).unwrap().0
    }

    /// Starts the rings over, after RESET.
    pub fn forget_rings(&mut self) {
        (self.sq, self.rq) = (0, 0);
        self.memory.write(QP_RECORD, &[0; 8]).unwrap();
    }

    /// Control segment: opcode, units, flags, immediate. Index and QP number are this side's.
    pub fn ctrl(&self, opcode: u8, ds: u8, flags: u8, imm: u32) -> Vec<u8> {
        let mut c = vec![0];
        c.extend(self.sq.to_be_bytes());
        c.push(opcode);
        c.extend((self.qpn << 8 | u32::from(ds)).to_be_bytes());
        c.extend([0, 0, 0, flags]);
        c.extend(imm.to_be_bytes());
        c
    }

    /// Writes a WQE into the ring, without telling anybody.
    pub fn write_wqe(&mut self, wqe: &[u8]) {
        assert_eq!(wqe.len() % 16, 0);
        for bb in wqe.chunks(64) {
            let at = SQ_RING + u64::from(self.sq & ((1 << LOG2_SQ) - 1)) * 64;
            self.memory.write(at, bb).unwrap();
            self.sq = self.sq.wrapping_add(1);
        }
    }

    /// Doorbell record, then doorbell with the first 8 bytes of `last`.
    pub fn ring(&self, last: &[u8]) {
        self.memory.store_be32(QP_RECORD + 4, self.sq.into()).unwrap();
        self.ring_only(last);
    }

    pub fn ring_only(&self, last: &[u8]) {
        let value = u64::from_be_bytes(last[..8].try_into().unwrap());
        self.device(|d| d.doorbell(UAR, 0x800, value));
    }

    /// Posts one WQE.
    pub fn post(&mut self, wqe: &[u8]) {
        self.write_wqe(wqe);
        self.ring(wqe);
    }

    /// A signaled WQE of `opcode`: `segments` behind the control segment.
    pub fn send(&mut self, opcode: u8, imm: u32, segments: &[&[u8]]) {
        let body: Vec<u8> = segments.concat();
        let ds = (1 + body.len() / 16) as u8;
        let wqe = [self.ctrl(opcode, ds, 0x08, imm), body].concat();
        self.post(&wqe);
    }

    /// Posts a receive WQE of up to 4 segments.
    pub fn receive(&mut self, segments: &[(u32, u32, u64)]) {
        let at = RQ_RING + u64::from(self.rq & ((1 << LOG2_RQ) - 1)) * 64;
        let mut wqe: Vec<u8> = segments.iter().flat_map(|s| sge(s.0, s.1, s.2)).collect();
        if segments.len() < 4 {
            // Byte count 0, key 0x100: the list ends here.
            wqe.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        self.memory.write(at, &wqe).unwrap();
        self.rq = self.rq.wrapping_add(1);
        self.memory.store_be32(QP_RECORD, self.rq.into()).unwrap();
    }

    /// The next completion, if there is one: valid by opcode and owner bit.
    pub fn poll(&mut self) -> Option<Completion> {
        let slot = CQ_RING + u64::from(self.ci & ((1 << LOG2_CQ) - 1)) * self.entry_bytes;
        let mut bytes = [0; 64];
        self.memory.read(slot + self.entry_bytes - 64, &mut bytes).unwrap();
        let owner = (self.ci >> LOG2_CQ & 1) as u8;
        if bytes[63] >> 4 == 15 || bytes[63] & 1 != owner {
            return None;
        }
        self.ci += 1;
        self.memory.store_be32(CQ_RECORD, self.ci & 0xff_ffff).unwrap();
        Some(Completion { opcode: bytes[63] >> 4, bytes })
    }

    /// The 64 bytes before the entry polled last, in a ring of 128-byte entries.
    pub fn before_last(&self) -> [u8; 64] {
        let slot = CQ_RING + u64::from((self.ci - 1) & ((1 << LOG2_CQ) - 1)) * self.entry_bytes;
        let mut bytes = [0; 64];
        self.memory.read(slot, &mut bytes).unwrap();
        bytes
    }

    /// The bytes of the entry `n` places ahead, whatever they are.
    pub fn peek(&self, n: u32) -> Vec<u8> {
        self.get(CQ_RING + u64::from((self.ci + n) & ((1 << LOG2_CQ) - 1)) * 64, 64)
    }

    /// Consumes `n` entries unseen.
    pub fn skip(&mut self, n: u32) {
        self.ci += n;
        self.memory.store_be32(CQ_RECORD, self.ci).unwrap();
    }

    pub fn poll_all(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// Arms the CQ: record, then doorbell.
    pub fn arm(&self, sn: u32, solicited: bool) {
        let word = (sn & 3) << 28 | u32::from(solicited) << 24 | self.ci & 0xff_ffff;
        self.memory.store_be32(CQ_RECORD + 4, word).unwrap();
        self.device(|d| d.doorbell(UAR, 0x20, u64::from(word) << 32 | u64::from(self.cqn)));
    }

    pub fn events(&self) -> Vec<Event> {
        self.device(|d| d.take_events())
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }

    pub fn settle(&self) {
        assert!(self.fabric.settle(Duration::from_secs(20)), "the fabric does not come to rest");
    }

    /// No misuse was seen.
    pub fn clean(&self) {
        assert_eq!(self.fabric.take_reports(), []);
    }
}

/// Data segment.
pub fn sge(len: u32, key: u32, address: u64) -> Vec<u8> {
    [len.to_be_bytes().to_vec(), key.to_be_bytes().to_vec(), address.to_be_bytes().to_vec()].concat()
}

/// Remote address segment.
pub fn raddr(address: u64, key: u32) -> Vec<u8> {
    [address.to_be_bytes().to_vec(), key.to_be_bytes().to_vec(), vec![0; 4]].concat()
}

/// Inline segment, padded to whole units.
pub fn inline(data: &[u8]) -> Vec<u8> {
    let mut s = (0x8000_0000 | data.len() as u32).to_be_bytes().to_vec();
    s.extend(data);
    s.resize(s.len().next_multiple_of(16), 0);
    s
}

/// Atomic segment.
pub fn atomic(swap_add: u64, compare: u64) -> Vec<u8> {
    [swap_add.to_be_bytes(), compare.to_be_bytes()].concat()
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}
