//! Two functions, a driver for each, and a message between them: from the doorbell to the interrupt.

use super::objects::{Base, be24, set};
use softcx::Fabric;
use std::time::Duration;

/// A queue pair and where its rings are: a receive ring of 4 WQEs of 16 bytes, then a send ring of 64 blocks over two pages that
/// are not neighbours.
pub struct QueuePair {
    pub qpn: u32,
    pages: [u64; 2],
    record: u64,
}

const RQ_BYTES: u64 = 64;

impl QueuePair {
    /// Address of byte `at` of the rings.
    fn place(&self, at: u64) -> u64 {
        self.pages[(at / 4096) as usize] + at % 4096
    }
}

pub fn queue_pair(base: &mut Base) -> QueuePair {
    let second = base.driver.page();
    let pages = [base.driver.page(), second];
    let (pd, cqn, uar, record) = (base.pd, base.cqn, base.uar, base.records + 128);
    let answer = base.driver.ok(0x500, 0x120, 16, |i| {
        let c = &mut i[0x18..0x100];
        set(c, 0x28, 24, pd.into());
        set(c, 0x49, 4, 2);
        set(c, 0x4d, 3, 0);
        set(c, 0x51, 4, 6);
        set(c, 0x68, 24, uar.into());
        set(c, 0x88, 24, 0x00ab_cdef);
        set(c, 0x3e8, 24, cqn.into());
        set(c, 0x4e8, 24, cqn.into());
        set(c, 0x500, 64, record);
        for (place, page) in i[0x110..].chunks_exact_mut(8).zip(pages) {
            place.copy_from_slice(&page.to_be_bytes());
        }
    });
    QueuePair { qpn: answer.number(), pages, record }
}

/// To RTS, towards queue pair `remote` at LID `lid`.
pub fn connect(base: &mut Base, qpn: u32, remote: u32, lid: u16) {
    let mut step = |opcode: u16, fill: &dyn Fn(&mut [u8])| {
        base.driver.ok(opcode, 0x110, 16, |i| {
            i[9..12].copy_from_slice(&be24(qpn));
            fill(&mut i[0x18..0x100]);
        });
    };
    step(0x502, &|c| {
        set(&mut c[0x18..], 0x128, 8, 1);
        // Reads and writes from outside.
        set(c, 0x490, 3, 0b110);
    });
    step(0x503, &|c| {
        set(c, 0x40, 3, 3);
        set(c, 0xa8, 24, remote.into());
        set(c, 0x4a8, 24, 0x456);
        set(c, 0x488, 3, 3);
        set(&mut c[0x18..], 0x30, 16, lid.into());
    });
    step(0x504, &|c| {
        set(c, 0x3c8, 24, 0x123);
        set(c, 0x38d, 3, 7);
        set(c, 0x390, 3, 7);
        set(c, 0x388, 3, 2);
        set(&mut c[0x18..], 0x40, 5, 14);
    });
}

#[test]
fn a_work_request_in_a_register_is_taken_from_there() {
    let fabric = Fabric::new(1);
    let mut base = Base::new(&fabric, 1);
    base.driver.function.set_blue_flame(true);
    // The firmware is new: so is everything else.
    let general = base.driver.ok(0x100, 16, 0x1010, |_| {}).bytes[16..].to_vec();
    assert_eq!((super::objects::get(&general, 0x260, 1), super::objects::get(&general, 0x36b, 5)), (1, 16));
    assert_eq!(super::objects::get(&general, 0x4e0, 32), 156_250, "frequency of the clock, in kHz");
    base.driver.function.set_slowdown(5);
    let general = base.driver.ok(0x100, 16, 0x1010, |_| {}).bytes[16..].to_vec();
    assert_eq!((super::objects::get(&general, 0x260, 1), super::objects::get(&general, 0x4e0, 32)), (1, 31_250));

    let mut base = Base::new(&fabric, 2);
    base.driver.function.set_blue_flame(true);
    let uar = base.uar;
    base.eqs = [0, 1].map(|vector| base.driver.event_queue(uar, vector, 0));
    let (ring, record, cqn) = (base.driver.page(), base.records + 256, base.cqn);
    let (pd, uar) = (base.pd, base.uar);
    let sqn = base.driver.ok(0x904, 0x118, 16, |i| {
        set(&mut i[0x20..], 0x48, 24, cqn.into());
        let wq = &mut i[0x50..];
        set(wq, 0x48, 24, pd.into());
        set(wq, 0x68, 24, uar.into());
        set(wq, 0x80, 64, record);
        set(wq, 0x10c, 4, 6);
        set(wq, 0x11b, 5, 4);
        wq[0xc0..0xc8].copy_from_slice(&ring.to_be_bytes());
    });
    let sqn = sqn.number();
    base.driver.ok(0x905, 0x110, 16, |i| {
        i[9..12].copy_from_slice(&be24(sqn));
        set(&mut i[0x20..], 0x08, 4, 1);
    });
    // A NOP for each of three places: in memory it asks for no completion, in the register it does. As Linux finds out whether
    // stores are combined.
    let nop = |index: u8, completes: bool| {
        let mut wqe = [0; 64];
        wqe[2] = index;
        wqe[4..8].copy_from_slice(&(sqn << 8 | 1).to_be_bytes());
        wqe[11] = if completes { 8 } else { 0 };
        wqe
    };
    for index in 0..3 {
        base.driver.put(ring + 64 * u64::from(index), &nop(index, false));
    }
    let store = |base: &mut Base, at: u64, words: &[u8]| {
        for (n, word) in words.chunks(8).enumerate() {
            let value = u64::from_le_bytes(word.try_into().unwrap());
            base.driver.function.bar_write(u64::from(uar) * 4096 + at + 8 * n as u64, value, 8, Duration::ZERO);
            base.driver.function.run();
        }
        fabric.step(Duration::ZERO);
    };
    let completed = |base: &Base, n: u64| base.driver.get::<64>(base.cq_ring + 64 * n)[63] == 0;
    // A whole copy.
    base.driver.put(record + 4, &1_u32.to_be_bytes());
    store(&mut base, 0x800, &nop(0, true));
    assert!(base.driver.function.held_until().is_none() && completed(&base, 0));
    // A doorbell by itself waits, until it is released or something else is stored.
    base.driver.put(record + 4, &2_u32.to_be_bytes());
    store(&mut base, 0x900, &nop(1, true)[..8]);
    assert!(base.driver.function.held_until().is_some());
    base.driver.put(record + 4, &3_u32.to_be_bytes());
    store(&mut base, 0x800, &nop(2, true));
    assert!(base.driver.function.held_until().is_none());
    let cqe = base.driver.get::<64>(base.cq_ring + 64);
    assert_eq!((cqe[63], cqe[61]), (0, 2), "the second was taken from memory, where it asked for none");
    assert!(!completed(&base, 2));
    let reports = fabric.take_reports();
    assert_eq!(reports.iter().filter(|r| r.misuse == softcx::Misuse::BlueFlameImage).count(), 0, "{reports:?}");
    assert_eq!(base.driver.about(0x906, sqn).status, 0);
}

#[test]
fn a_message_goes_from_one_guest_to_another() {
    let fabric = Fabric::new(1);
    let (mut a, mut b) = (Base::new(&fabric, 1), Base::new(&fabric, 2));
    let (qp_a, qp_b) = (queue_pair(&mut a), queue_pair(&mut b));
    for (base, qpn, remote, lid) in [(&mut a, qp_a.qpn, qp_b.qpn, 2), (&mut b, qp_b.qpn, qp_a.qpn, 1)] {
        connect(base, qpn, remote, lid);
    }
    // The PSNs of the two do not fit together: the receiver's is what the sender's next is.
    for (base, qpn) in [(&mut a, qp_a.qpn), (&mut b, qp_b.qpn)] {
        assert_eq!(base.driver.about(0x50a, qpn).status, 0);
    }
    let same_psn = |base: &mut Base, qpn: u32, remote: u32, lid: u16| {
        let mut step = |opcode: u16, fill: &dyn Fn(&mut [u8])| {
            base.driver.ok(opcode, 0x110, 16, |i| {
                i[9..12].copy_from_slice(&be24(qpn));
                fill(&mut i[0x18..0x100]);
            });
        };
        step(0x502, &|c| set(&mut c[0x18..], 0x128, 8, 1));
        step(0x503, &|c| {
            set(c, 0x40, 3, 3);
            set(c, 0xa8, 24, remote.into());
            set(&mut c[0x18..], 0x30, 16, lid.into());
        });
        step(0x504, &|c| {
            set(c, 0x38d, 3, 7);
            set(c, 0x390, 3, 7);
        });
    };
    same_psn(&mut a, qp_a.qpn, qp_b.qpn, 2);
    same_psn(&mut b, qp_b.qpn, qp_a.qpn, 1);

    // The receiver: a buffer that crosses from one page to another, registered at an address that is not the guest's. The two come
    // last of so many that their list takes several blocks of a mailbox.
    let (first, second) = (b.driver.page(), b.driver.page());
    let key_b = b.key(0x7000_0ff0 - (128 << 12), (128 << 12) + 0x20, &[&[0x1000; 128][..], &[second, first]].concat());
    let mut receive = [0; 16];
    receive[..4].copy_from_slice(&32_u32.to_be_bytes());
    receive[4..8].copy_from_slice(&key_b.to_be_bytes());
    receive[8..].copy_from_slice(&0x7000_0ff0_u64.to_be_bytes());
    b.driver.put(qp_b.place(0), &receive);
    b.driver.put(qp_b.record, &1_u32.to_be_bytes());
    // The completion queue is armed: record, then doorbell.
    b.driver.put(b.records + 4, &[0, 0, 0, 0]);
    b.driver.ring(b.uar, 0x20, u64::from(b.cqn));

    // The sender.
    let page = a.driver.page();
    let message: Vec<u8> = (1..=32).collect();
    a.driver.put(page, &message);
    let key_a = a.key(page, 0x1000, &[page]);
    let mut wqe = [0; 32];
    wqe[3] = 0x0a;
    wqe[4..8].copy_from_slice(&(qp_a.qpn << 8 | 2).to_be_bytes());
    wqe[11] = 0x08;
    wqe[16..20].copy_from_slice(&32_u32.to_be_bytes());
    wqe[20..24].copy_from_slice(&key_a.to_be_bytes());
    wqe[24..].copy_from_slice(&page.to_be_bytes());
    a.driver.put(qp_a.place(RQ_BYTES), &wqe);
    a.driver.put(qp_a.record + 4, &1_u32.to_be_bytes());
    a.driver.ring(a.uar, 0x800, u64::from_be_bytes(wqe[..8].try_into().unwrap()));

    for base in [&mut a, &mut b] {
        assert!(base.driver.function.take_interrupts().is_empty(), "no time has passed");
    }
    assert!(fabric.settle(Duration::from_secs(1)));
    b.driver.function.tell();
    a.driver.function.tell();

    assert_eq!([b.driver.get::<16>(second + 0xff0), b.driver.get::<16>(first)].concat(), message);
    let sent = a.driver.get::<64>(a.cq_ring);
    assert_eq!((sent[63], &sent[57..60]), (0x00, &be24(qp_a.qpn)[..]));
    let received = b.driver.get::<64>(b.cq_ring);
    assert_eq!((received[63], &received[32..36], received[47]), (0x20, &[0, 0xab, 0xcd, 0xef][..], 32));
    // The armed queue's event is in the event queue for completions, and its vector was raised.
    let eqe = b.driver.get::<64>(b.eqs[1].1);
    assert_eq!((eqe[1], &eqe[57..60], eqe[63]), (0, &be24(b.cqn)[..], 0));
    assert_eq!(b.driver.function.take_interrupts().iter().map(|i| i.data).collect::<Vec<_>>(), [0x4001]);
    assert!(a.driver.function.take_interrupts().is_empty(), "not armed");
    assert!(fabric.take_reports().is_empty());

    for (mut base, qpn, key) in [(a, qp_a.qpn, key_a), (b, qp_b.qpn, key_b)] {
        assert_eq!(base.driver.about(0x501, qpn).status, 0);
        assert_eq!(base.driver.about(0x202, key >> 8).status, 0);
        base.end();
    }
}
