//! A driver gone mad does the device no harm: any command, any entry, any store.

use super::driver::{Driver, MEMORY};
use super::objects::Base;
use proptest::prelude::*;
use softcx::Fabric;
use softcx::bits::firmware::opcode;
use std::time::Duration;

/// Memory that is there, and not the driver's command queue.
const SPARE: u64 = MEMORY + 0x10_0000;

/// Contexts with words of all kinds: mostly zeros and addresses that are there, so that not everything is refused at once.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word =
        prop_oneof![4 => Just(0_u32), 1 => Just(u32::MAX), 2 => 0..64_u32, 2 => Just(SPARE as u32), 2 => any::<u32>()];
    prop::collection::vec(word, 0..160).prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect())
}

fn opcodes() -> impl Strategy<Value = u16> {
    let known: Vec<u16> = (0..0x1000).filter(|code| opcode::name(*code).is_some()).collect();
    prop_oneof![8 => prop::sample::select(known), 1 => any::<u16>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_commands(list in prop::collection::vec((opcodes(), words(), 8..0x1200_usize), 1..12)) {
        let fabric = Fabric::new(1);
        let mut base = Base::new(&fabric, 1);
        for (code, mut input, room) in list {
            input.resize(input.len().max(12), 0);
            input[..2].copy_from_slice(&code.to_be_bytes());
            let answer = base.driver.command(&input, room);
            prop_assert!(answer.delivery <= 0x10);
            fabric.step(Duration::from_millis(1));
            base.driver.function.tell();
        }
    }

    #[test]
    fn any_entry(bytes in prop::collection::vec(any::<u8>(), 64)) {
        let mut driver = Driver::new(&Fabric::new(1), 1);
        driver.put(MEMORY, &bytes);
        driver.function.bar_write(0x18, u64::from(u32::MAX), 4, Duration::ZERO);
        driver.function.run();
        prop_assert_eq!(driver.get::<64>(MEMORY)[63] & 1, 0);
    }

    #[test]
    fn any_accesses(list in prop::collection::vec((0..1_u64 << 26, any::<u64>(), 0..9_usize, any::<bool>()), 1..50), bf: bool) {
        let fabric = Fabric::new(1);
        let mut base = Base::new(&fabric, 1);
        base.driver.function.set_blue_flame(bf);
        for (place, value, len, near) in list {
            // Near the beginning, where the registers are, or anywhere.
            let offset = if near { place % 0x5000 } else { place };
            base.driver.function.bar_read(offset, len, Duration::ZERO);
            base.driver.function.bar_write(offset, value, len, Duration::ZERO);
            base.driver.function.config_write(offset as usize % 300, value as u32, len);
            base.driver.function.config_read(offset as usize % 300, len);
            base.driver.function.run();
            fabric.step(Duration::from_millis(1));
        }
    }
}
