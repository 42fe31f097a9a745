//! Faults that a test in the guest makes through the configuration space.

use super::driver::Driver;
use super::objects::{Base, get};
use softcx::Fabric;
use std::time::Duration;

impl Base {
    fn fault(&mut self, number: u32) {
        self.driver.function.config_write(0xf0, number, 4);
        self.driver.function.run();
    }

    fn port_states(&mut self) -> [u64; 2] {
        let context = self.driver.ok(0x762, 16, 0x210, |_| {}).bytes[16..].to_vec();
        [get(&context, 0x110, 4), get(&context, 0x11c, 4)]
    }
}

#[test]
fn the_port_goes_down_and_comes_back() {
    let mut base = Base::new(&Fabric::new(1), 1);
    for (at, fault, subtype, states) in [(0, 1, 1, [3, 1]), (1, 2, 4, [5, 4])] {
        base.fault(fault);
        let eqe = base.driver.get::<64>(base.eqs[0].1 + 64 * at);
        assert_eq!((eqe[1], eqe[3], eqe[40], eqe[63]), (0x09, subtype, 0x10, 0));
        assert_eq!(base.port_states(), states);
    }
    base.fault(99);
    assert_eq!(base.driver.get::<64>(base.eqs[0].1 + 128)[63], 1, "no such fault, no event");
    base.end();
}

#[test]
fn a_firmware_that_failed_says_so_and_begins_anew_with_the_driver() {
    let mut base = Base::new(&Fabric::new(1), 1);
    let health = |driver: &mut Driver| {
        let counter = driver.read(0x1010);
        let byte = |driver: &mut Driver, at| driver.function.bar_read(at, 1, std::time::Duration::ZERO);
        (driver.read(0x1010) != counter, byte(driver, 0x238) >> 7, byte(driver, 0x23d) != 0)
    };
    assert_eq!(health(&mut base.driver), (true, 0, false));
    base.fault(3);
    assert_eq!(health(&mut base.driver), (false, 1, true));

    // A command stays the firmware's, also one of no type that there is.
    for kind in [7, 3] {
        let mut entry = [0; 64];
        (entry[0], entry[7], entry[59], entry[63]) = (kind, 16, 16, 1);
        entry[16..18].copy_from_slice(&0x80d_u16.to_be_bytes());
        base.driver.put(super::driver::MEMORY, &entry);
        base.driver.function.bar_write(0x18, 1_u64 << 24, 4, Duration::ZERO);
        base.driver.function.run();
        assert_eq!(base.driver.get::<64>(super::driver::MEMORY), entry);
    }

    // The interface of the driver is gone. The firmware starts when the function is set up, and begins anew with a command queue.
    let low = |state: u32| (super::driver::MEMORY as u32 | state << 8).swap_bytes().into();
    assert_eq!(base.driver.read(0x14) >> 8 & 7, 1);
    base.driver.function.config_write(0x04, 0x6, 2);
    assert_eq!(health(&mut base.driver), (true, 0, false));
    base.driver.function.bar_write(0x14, low(1), 4, Duration::ZERO);
    assert!(!base.driver.function.live().is_empty());
    base.driver.function.bar_write(0x14, low(0), 4, Duration::ZERO);
    assert!(base.driver.function.live().is_empty());
    assert_eq!(health(&mut base.driver), (true, 0, false));
    base.driver.ok(0x80d, 16, 16, |_| {});
}

#[test]
fn a_function_that_was_pulled_out_is_not_there_until_the_kernel_lets_go_of_it() {
    let fabric = Fabric::new(1);
    let mut base = Base::new(&fabric, 1);
    let qp = super::traffic::queue_pair(&mut base);
    super::traffic::connect(&mut base, qp.qpn, qp.qpn, 1);
    // A command is on its way, and an interrupt.
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[63]) = (7, 16, 16, 1);
    entry[16..18].copy_from_slice(&0x80d_u16.to_be_bytes());
    base.driver.put(super::driver::MEMORY, &entry);
    base.fault(1);
    base.driver.function.bar_write(0x18, 1_u64 << 24, 4, Duration::ZERO);
    base.fault(4);

    let function = &mut base.driver.function;
    assert!(function.live().is_empty(), "{:?}", function.live());
    assert!(function.take_interrupts().is_empty());
    assert_eq!([1, 2, 4].map(|len| function.config_read(0, len)), [0xff, 0xffff, 0xffff_ffff]);
    assert_eq!((function.bar(), function.bar_read(0, 4, Duration::ZERO)), (None, 0xffff_ffff));
    assert_eq!(function.bar_read(0x1010, 8, Duration::ZERO), u64::MAX);
    // Stores go nowhere: no command, no doorbell, no fault, and no place on the bus.
    function.bar_write(0x18, 1_u64 << 24, 4, Duration::ZERO);
    function.bar_write(u64::from(base.uar) * 4096 + 0x800, u64::from(qp.qpn << 8 | 1).swap_bytes(), 8, Duration::ZERO);
    function.config_write(0xf0, 2, 4);
    function.config_write(0x10, 0xfa00_0000, 4);
    function.config_write(0x04, 0x6, 2);
    function.run();
    fabric.step(Duration::from_millis(1));
    function.tell();
    assert!(fabric.take_reports().is_empty());
    assert_eq!((function.config_read(0, 4), function.bar()), (0xffff_ffff, None));
    assert_eq!(base.driver.get::<64>(super::driver::MEMORY), entry);

    // The kernel disables it, as it reads it; who looks then finds a function that is new.
    let function = &mut base.driver.function;
    function.config_write(0x04, 0xfffb, 2);
    assert_eq!([0, 0x10, 0x04].map(|at| function.config_read(at, 4)), [0x1017_15b3, 0, 0x10_0000]);
    assert_eq!(base.driver.read(0x1fc), 0, "the firmware is ready");
}
