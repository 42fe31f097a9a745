use super::*;
use crate::mlx5::bus::record::{Event, Recorder};
use crate::mlx5::memory::pages;
use crate::mlx5::ring::Ring;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Says when it is dropped.
struct Object(Arc<AtomicU32>);

impl Drop for Object {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn page(page_id: u32, caching: Caching) -> Arc<UarPage> {
    UarPage::new(pages(UAR_BYTES).unwrap(), 0, page_id, caching, Box::new(())).unwrap()
}

/// Offsets on hosts of 4, 16 and 64 KiB pages.
#[test]
fn a_doorbell_page_is_found_in_a_larger_system_page() {
    for (page_bytes, per_page) in [(4096, 1), (16384, 4), (65536, 16)] {
        for page_id in [0, 1, 3, 4, 5, 15, 16, 17, 0x1234] {
            assert_eq!(offset_in_page(page_id, page_bytes, 12), (page_id as usize % per_page) * 4096);
            // A device without pages of 4 KiB, and a kernel that does not say.
            assert_eq!(offset_in_page(page_id, page_bytes, page_bytes.trailing_zeros()), 0);
            assert_eq!(offset_in_page(page_id, page_bytes, 0), 0);
        }
    }
}

#[test]
fn a_page_that_does_not_fit_its_mapping_is_refused() {
    let size = pages(1).unwrap().len_bytes();
    for offset in [size - UAR_BYTES + 1, size, usize::MAX, 64] {
        assert!(UarPage::new(pages(1).unwrap(), offset, 0, Caching::Uncached, Box::new(())).is_err(), "{offset:#x}");
    }
    assert!(UarPage::new(pages(1).unwrap(), size - UAR_BYTES, 0, Caching::Uncached, Box::new(())).is_ok());
}

#[test]
fn arming_is_one_store_of_eight_bytes() {
    let page = page(7, Caching::Uncached);
    let bus = Recorder::default();
    page.arm(&bus, 0x3112_3456, 0x00ab_cdef);
    let at = page.base.addr().get() + 0x20;
    let value = [0x31, 0x12, 0x34, 0x56, 0x00, 0xab, 0xcd, 0xef];
    assert_eq!(bus.take(), [Event::Register { at, value }]);
}

#[test]
fn halves_are_used_in_turn() {
    let registers = Registers::default();
    let page = page(7, Caching::WriteCombining);
    let base = page.base.addr().get();
    let mut first = registers.exclusive(512, true, || Ok(page)).unwrap();
    let mut second = registers.exclusive(512, true, || unreachable!("the page has another register")).unwrap();
    let bus = Recorder::default();
    for _ in 0..2 {
        for register in [&mut first, &mut second] {
            register.ring(&bus, [1; 8]);
            register.turn();
        }
    }
    let at: Vec<usize> = bus
        .take()
        .iter()
        .map(|event| match event {
            Event::Register { at, .. } => at - base,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(at, [0x800, 0xa00, 0x900, 0xb00]);
}

#[test]
fn the_shared_register_has_one_half_and_takes_no_elements() {
    let page = page(7, Caching::Uncached);
    let base = page.base.addr().get();
    let mut register = SendRegister::shared(page);
    let bus = Recorder::default();
    for _ in 0..2 {
        register.ring(&bus, [2; 8]);
        register.turn();
        let ring = Ring::new(Arc::new(pages(1).unwrap()), 0, 64);
        register.copy(&bus, 1, |n| ring.block(64 * n as usize));
    }
    assert_eq!(bus.take(), [Event::Register { at: base + 0x800, value: [2; 8] }; 2]);
    assert!((0..64).all(|ds| !register.takes_whole(ds)) && !register.has_blueflame());
}

#[test]
fn elements_are_copied_only_where_they_fit_and_combine() {
    let take = |caching, blueflame, bytes| {
        let registers = Registers::default();
        let register = registers.exclusive(bytes, blueflame, || Ok(page(1, caching)));
        register.map(|register| (0..64).filter(|ds| register.takes_whole(*ds)).collect::<Vec<u32>>())
    };
    assert_eq!(take(Caching::WriteCombining, true, 512), Some((2..=16).collect()), "256 bytes");
    assert_eq!(take(Caching::WriteCombining, true, 256), Some((2..=8).collect()), "128 bytes");
    assert_eq!(take(Caching::WriteCombining, false, 512), Some(vec![]));
    assert_eq!(take(Caching::Uncached, true, 512), Some(vec![]));
    assert_eq!(take(Caching::WriteCombining, true, 1024), Some((2..=32).collect()), "the largest that fits a page");
    for nonsense in [1, 64, 100, 768, 2048, u32::MAX] {
        assert_eq!(take(Caching::WriteCombining, true, nonsense), None, "{nonsense} bytes");
    }
}

#[test]
fn a_register_is_given_to_one_owner_at_a_time() {
    let registers = Registers::default();
    let made = AtomicU32::new(0);
    let next = || registers.exclusive(512, true, || Ok(page(made.fetch_add(1, SeqCst), Caching::WriteCombining)));
    let mut all: Vec<_> = std::iter::from_fn(next).collect();
    assert_eq!((all.len(), made.load(SeqCst)), (MAX_PAGES * REGISTERS_PER_UAR, MAX_PAGES as u32));
    let places: HashSet<_> = all.iter().map(|register| register.next).collect();
    assert_eq!(places.len(), all.len());
    let freed = all.swap_remove(77).next;
    assert_eq!(next().map(|register| register.next), Some(freed));
}

#[test]
fn a_page_goes_when_its_last_register_does_and_no_sooner() {
    let dropped = Arc::new(AtomicU32::new(0));
    let registers = Registers::default();
    let object = Object(dropped.clone());
    let page = || UarPage::new(pages(UAR_BYTES).unwrap(), 0, 3, Caching::WriteCombining, Box::new(object));
    let first = registers.exclusive(512, true, page).unwrap();
    let second = registers.exclusive(512, true, || unreachable!()).unwrap();
    drop(first);
    drop(registers);
    assert_eq!(dropped.load(SeqCst), 0);
    drop(second);
    assert_eq!(dropped.load(SeqCst), 1);
}
