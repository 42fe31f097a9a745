//! Faults that a test in the guest makes through the configuration space.

use super::driver::Driver;
use super::objects::{Base, get};
use softcx::Fabric;

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

    // A command stays the firmware's.
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59], entry[63]) = (7, 16, 16, 1);
    entry[16..18].copy_from_slice(&0x80d_u16.to_be_bytes());
    base.driver.put(super::driver::MEMORY, &entry);
    base.driver.function.bar_write(0x18, 1_u64 << 24, 4);
    base.driver.function.run();
    assert_eq!(base.driver.get::<64>(super::driver::MEMORY), entry);

    // The interface of the driver is gone. The firmware starts when the function is set up, and begins anew with a command queue.
    let low = |state: u32| (super::driver::MEMORY as u32 | state << 8).swap_bytes().into();
    assert_eq!(base.driver.read(0x14) >> 8 & 7, 1);
    base.driver.function.config_write(0x04, 0x6, 2);
    assert_eq!(health(&mut base.driver), (true, 0, false));
    base.driver.function.bar_write(0x14, low(1), 4);
    assert!(!base.driver.function.live().is_empty());
    base.driver.function.bar_write(0x14, low(0), 4);
    assert!(base.driver.function.live().is_empty());
    assert_eq!(health(&mut base.driver), (true, 0, false));
    base.driver.ok(0x80d, 16, 16, |_| {});
}
