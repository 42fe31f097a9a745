use super::*;
use crate::mlx5::memory::pages;
use proptest::prelude::*;

fn info(nsec: u64, cycles: u64) -> ClockInfo {
    // 1/4 ns a tick, 40 bits of ticks.
    ClockInfo { sign: 2, nsec, cycles, frac: 0, mult: 1 << 6, shift: 8, mask: (1 << 40) - 1, ..ClockInfo::default() }
}

/// Writes a copy into the page, as the kernel does, but for the barriers.
fn page(info: &ClockInfo) -> ClockPage {
    let memory = pages(4096).unwrap();
    for (i, byte) in info.as_bytes().iter().enumerate() {
        // SAFETY: in the page, which nobody else knows.
        unsafe { memory.as_ptr().add(i).write_volatile(*byte) };
    }
    ClockPage::new(memory).unwrap()
}

#[test]
fn ticks_before_and_after_the_copy() {
    let info = info(1_000_000, 500);
    assert_eq!(info.nanoseconds(500), 1_000_000);
    assert_eq!(info.nanoseconds(900), 1_000_100);
    assert_eq!(info.nanoseconds(100), 999_900);
}

#[test]
fn the_tick_counter_wraps() {
    let info = info(1_000_000, (1 << 40) - 100);
    assert_eq!(info.nanoseconds(300), 1_000_100);
    let info = self::info(1_000_000, 300);
    assert_eq!(info.nanoseconds((1 << 40) - 100), 999_900);
}

#[test]
fn fractions_count() {
    let info = ClockInfo { frac: 255, ..info(10, 0) };
    assert_eq!((info.nanoseconds(0), info.nanoseconds(1)), (10, 11));
}

#[test]
fn a_copy_is_read_whole() {
    let written = info(123_456_789, 0x12_3456_789a);
    let read = page(&written).read().unwrap();
    assert_eq!(read.as_bytes(), written.as_bytes());
}

#[test]
fn a_kernel_that_never_ends_writing_is_given_up() {
    assert!(page(&ClockInfo { sign: 3, ..info(1, 1) }).read().is_none());
}

#[test]
fn a_short_page_is_refused() {
    let memory = pages(4096).unwrap();
    let start = std::ptr::NonNull::new(memory.as_ptr()).unwrap();
    // SAFETY: part of `memory`, which becomes the owner.
    let short = unsafe { Mapping::from_raw(start, 48, Box::new(memory)) };
    assert!(ClockPage::new(short).is_err());
}

proptest! {
    /// Against exact arithmetic, for times that 128 bits hold.
    #[test]
    fn agrees_with_exact_arithmetic(cycles in 0_u64..1 << 40, ahead in -(1_i64 << 38)..1 << 38) {
        let info = info(1 << 62, cycles);
        let ticks = cycles.wrapping_add_signed(ahead) & info.mask;
        let exact = (1_i128 << 62) + (i128::from(ahead) * 64).div_euclid(256);
        let got = i128::from(info.nanoseconds(ticks));
        prop_assert!((got - exact).abs() <= 1, "{} {}", got, exact);
    }

    /// Whatever the kernel's page holds, nothing panics.
    #[test]
    fn anything_is_survived(bytes in prop::array::uniform32(any::<u64>()), ticks in any::<u64>()) {
        let info: ClockInfo = zerocopy::transmute!([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6]]);
        info.nanoseconds(ticks);
    }
}
