//! Objects by their contexts, written from the field tables.

use super::driver::Driver;
use softcx::Fabric;

/// A driver with a UAR page, an event queue for asynchronous events and one for completions, a domain, and a completion queue.
pub struct Base {
    pub driver: Driver,
    pub uar: u32,
    pub eqs: [(u32, u64); 2],
    pub pd: u32,
    pub cqn: u32,
    pub cq_ring: u64,
    pub records: u64,
}

/// All asynchronous events.
const ASYNC: u64 = 0x1f_02be;

pub fn be24(number: u32) -> [u8; 3] {
    number.to_be_bytes()[1..].try_into().unwrap()
}

impl Base {
    pub fn new(fabric: &Fabric, lid: u16) -> Self {
        let mut driver = Driver::new(fabric, lid);
        let uar = driver.ok(0x802, 16, 16, |_| {}).number();
        let eqs = [driver.event_queue(uar, 0, ASYNC), driver.event_queue(uar, 1, 0)];
        eqs.iter().for_each(|(eqn, _)| driver.ring_eq(uar, *eqn, 0, true));
        let pd = driver.ok(0x800, 16, 16, |_| {}).number();
        let (cq_ring, records) = (driver.page(), driver.page());
        for entry in 0..64 {
            driver.put(cq_ring + 64 * entry + 63, &[0xf1]);
        }
        let cqn = driver.ok(0x400, 0x118, 16, |i| cq_context(i, 6, uar, eqs[1].0, cq_ring, records)).number();
        Self { driver, uar, eqs, pd, cqn, cq_ring, records }
    }

    /// A key of `len` bytes at `start` of its own, for everything, over `pages`.
    pub fn key(&mut self, start: u64, len: u64, pages: &[u64]) -> u32 {
        const LOW: u8 = 0x42;
        let pd = self.pd;
        let number = self.driver.ok(0x200, 0x110 + 8 * pages.len(), 16, |i| {
            let c = &mut i[0x10..0x50];
            // UMR enabled, all rights; access mode: pages.
            c[2] = 0xfc;
            set(c, 0x16, 2, 1);
            set(c, 0x20, 24, 0xff_ffff);
            c[7] = LOW;
            c[13..16].copy_from_slice(&be24(pd));
            c[16..24].copy_from_slice(&start.to_be_bytes());
            c[24..32].copy_from_slice(&len.to_be_bytes());
            c[0x3b] = 12;
            for (place, page) in i[0x110..].chunks_exact_mut(8).zip(pages) {
                // Rights in the low bits, as drivers leave them.
                place.copy_from_slice(&(page | 3).to_be_bytes());
            }
        });
        number.number() << 8 | u32::from(LOW)
    }

    /// Everything that was made here is ended.
    pub fn end(mut self) {
        for (opcode, number) in [(0x401, self.cqn), (0x801, self.pd), (0x803, self.uar)] {
            assert_eq!(self.driver.about(opcode, number).status, 0);
        }
        for (eqn, _) in self.eqs {
            assert_eq!(self.driver.about(0x302, eqn).status, 0);
        }
        assert!(self.driver.function.live().is_empty(), "{:?}", self.driver.function.live());
    }
}

/// A field of `width` bits from bit `bit` on, most significant bit first.
pub fn set(bytes: &mut [u8], bit: usize, width: usize, value: u64) {
    for n in 0..width {
        let (at, mask) = ((bit + n) / 8, 0x80 >> ((bit + n) % 8));
        bytes[at] = if value >> (width - 1 - n) & 1 == 1 { bytes[at] | mask } else { bytes[at] & !mask };
    }
}

pub fn get(bytes: &[u8], bit: usize, width: usize) -> u64 {
    (bit..bit + width).fold(0, |n, at| n << 1 | u64::from(bytes[at / 8] >> (7 - at % 8) & 1))
}

fn cq_context(input: &mut [u8], log_size: u64, uar: u32, eqn: u32, ring: u64, record: u64) {
    let c = &mut input[0x10..0x50];
    set(c, 0x63, 5, log_size);
    set(c, 0x68, 24, uar.into());
    set(c, 0xa0, 32, eqn.into());
    set(c, 0x1c0, 64, record);
    input[0x110..0x118].copy_from_slice(&ring.to_be_bytes());
}

#[test]
fn what_is_in_use_is_busy() {
    let mut base = Base::new(&Fabric::new(1), 1);
    assert_eq!(base.driver.about(0x302, base.eqs[1].0).status, 6, "a completion queue tells it");
    let live = base.driver.function.live();
    let all = [("protection domains", 1), ("completion queues", 1), ("UAR pages", 1), ("event queues", 2)];
    assert_eq!(live, all);
    base.end();
}

#[test]
fn contexts_that_make_no_sense_are_refused() {
    let mut base = Base::new(&Fabric::new(1), 1);
    let (uar, eqn, ring, records) = (base.uar, base.eqs[1].0, base.cq_ring, base.records);
    let mut status = |len: usize, fill: &dyn Fn(&mut [u8])| {
        let mut input = vec![0; len];
        input[..2].copy_from_slice(&0x400_u16.to_be_bytes());
        fill(&mut input);
        base.driver.command(&input, 16).status
    };
    assert_eq!(status(0x118, &|i| cq_context(i, 6, uar, 99, ring, records)), 5, "no such event queue");
    assert_eq!(status(0x118, &|i| cq_context(i, 7, uar, eqn, ring, records)), 3, "a page list that is too short");
    assert_eq!(status(0x118, &|i| cq_context(i, 6, uar, eqn, ring, 0)), 3, "a record that is not in memory");
    assert_eq!(status(0x20, &|_| {}), 0x50, "an input that is too short");
    base.end();
}

#[test]
fn a_queue_pair_walks_its_states_and_tells_of_them() {
    let mut base = Base::new(&Fabric::new(1), 1);
    let qpn = super::traffic::queue_pair(&mut base).qpn;
    let query = |base: &mut Base| {
        let answer = base.driver.ok(0x50b, 16, 0x1d0, |i| i[9..12].copy_from_slice(&be24(qpn)));
        answer.bytes[0x18..0x100].to_vec()
    };
    assert_eq!(get(&query(&mut base), 0, 4), 0);
    super::traffic::connect(&mut base, qpn, 0x77, 2);
    let c = query(&mut base);
    let path = &c[0x18..];
    let seen = [
        get(&c, 0, 4),
        get(&c, 0x40, 3),
        get(&c, 0xa8, 24),
        get(&c, 0x3c8, 24),
        get(&c, 0x4a8, 24),
        get(&c, 0x388, 3),
        get(&c, 0x488, 3),
        get(&c, 0x490, 3),
        get(path, 0x30, 16),
        get(path, 0x40, 5),
        get(path, 0x128, 8),
    ];
    assert_eq!(seen, [3, 3, 0x77, 0x123, 0x456, 2, 3, 0b110, 2, 14, 1]);

    // Only from the state that it is in.
    let mut input = vec![0; 0x110];
    input[..2].copy_from_slice(&0x502_u16.to_be_bytes());
    input[9..12].copy_from_slice(&be24(qpn));
    assert_eq!(base.driver.command(&input, 16).status, 0x10);
    assert_eq!(base.driver.about(0x507, qpn).status, 0);
    assert_eq!(get(&query(&mut base), 0, 4), 6);
    assert_eq!(base.driver.about(0x50a, qpn).status, 0);
    assert_eq!(get(&query(&mut base), 0, 4), 0);
    assert_eq!(base.driver.about(0x501, qpn).status, 0);
    assert_eq!(base.driver.about(0x50b, qpn).status, 5);
    base.end();
}

#[test]
fn shared_receive_queues_are_pools_or_for_xrc() {
    let mut base = Base::new(&Fabric::new(1), 1);
    let (pd, cqn, record, ring) = (base.pd, base.cqn, base.records + 64, base.driver.page());
    let xrcd = base.driver.ok(0x80e, 16, 16, |_| {}).number();
    let pool = base.driver.ok(0x90c, 0x118, 16, |i| {
        let wq = &mut i[0x50..];
        set(wq, 0x30, 16, 3);
        set(wq, 0x48, 24, pd.into());
        set(wq, 0x80, 64, record);
        set(wq, 0x10c, 4, 5);
        set(wq, 0x11b, 5, 4);
        wq[0xc0..0xc8].copy_from_slice(&ring.to_be_bytes());
    });
    let pool = pool.number();
    let queried = base.driver.ok(0x90f, 16, 0x110, |i| i[9..12].copy_from_slice(&be24(pool)));
    let wq = &queried.bytes[0x50..];
    assert_eq!((queried.bytes[0x21] >> 4, get(wq, 0x30, 16), get(wq, 0x11b, 5)), (1, 3, 4), "ready, limit, size");
    base.driver.ok(0x90d, 0x110, 16, |i| {
        i[9..12].copy_from_slice(&be24(pool));
        i[0x17] = 1;
        set(&mut i[0x50..], 0x30, 16, 2);
    });
    // Fewer are ready than that: the event comes at once, and the limit is off.
    base.driver.function.run();
    let eqe = base.driver.get::<64>(base.eqs[0].1);
    assert_eq!((eqe[1], &eqe[57..60], eqe[63]), (0x14, &be24(pool)[..], 0));

    let xrc = base.driver.ok(0x705, 0x118, 16, |i| {
        let c = &mut i[0x10..0x50];
        set(c, 0x04, 4, 4);
        set(c, 0x25, 3, 1);
        set(c, 0x28, 24, xrcd.into());
        set(c, 0x48, 24, cqn.into());
        set(c, 0x88, 24, 0x99);
        set(c, 0xc8, 24, pd.into());
        set(c, 0x140, 64, record);
        i[0x110..0x118].copy_from_slice(&ring.to_be_bytes());
    });
    let xrc = xrc.number();
    assert_eq!(base.driver.about(0x401, cqn).status, 6, "its completions go there");
    for (opcode, number) in [(0x706, xrc), (0x90e, pool), (0x80f, xrcd)] {
        assert_eq!(base.driver.about(opcode, number).status, 0);
    }
    base.end();
}

#[test]
fn a_port_is_described() {
    let mut driver = Driver::new(&Fabric::new(1), 9);
    let context = driver.ok(0x762, 16, 0x210, |_| {}).bytes[16..].to_vec();
    let seen = [get(&context, 0x110, 4), get(&context, 0x118, 4), get(&context, 0x11c, 4), get(&context, 0x300, 16)];
    assert_eq!(seen, [5, 4, 4, 9], "physical state, states, LID");
    // Of its capabilities, that somebody manages connections can be said and taken back.
    let capabilities = |driver: &mut Driver| {
        let context = driver.ok(0x762, 16, 0x210, |_| {}).bytes[16..].to_vec();
        (get(&context, 0x200, 32) >> 16 & 1, get(&context, 0x220, 32))
    };
    assert_eq!(capabilities(&mut driver), (0, 0x1_0000));
    let mut change = |mask: u64, value: u64| {
        let mut input = vec![0; 0x210];
        input[..2].copy_from_slice(&0x763_u16.to_be_bytes());
        set(&mut input[16..], 0x200, 32, value);
        set(&mut input[16..], 0x220, 32, mask);
        driver.command(&input, 16).status
    };
    assert_eq!((change(0x1_0000, 0x1_0000), change(0x2_0000, 0)), (0, 3));
    assert_eq!(capabilities(&mut driver).0, 1);
    let gid = driver.ok(0x764, 16, 32, |_| {}).bytes[16..32].to_vec();
    assert_eq!(gid, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let pkey = |driver: &mut Driver, index: u8| driver.ok(0x765, 16, 20, |i| i[15] = index).bytes[18..20].to_vec();
    assert_eq!((pkey(&mut driver, 0), pkey(&mut driver, 1)), (vec![0xff, 0xff], vec![0, 0]));
    let ptys = driver.ok(0x805, 0x50, 0x50, |i| (i[7], i[10], i[11]) = (1, 0x50, 0x04)).bytes[16..].to_vec();
    assert_eq!((get(&ptys, 0x140, 16), get(&ptys, 0x150, 16)), (4, 0x20), "four lanes of EDR");
    let mut unknown = vec![0; 0x50];
    unknown[..12].copy_from_slice(&[0x08, 0x05, 0, 0, 0, 0, 0, 1, 0, 0, 0x12, 0x34]);
    assert_eq!(driver.command(&unknown, 0x50).status, 3);
}
