//! The command queue by itself, and what a driver asks before it has objects.

use super::driver::Driver;
use softcx::Fabric;
use std::time::Duration;

fn driver() -> Driver {
    Driver::new(&Fabric::new(1), 1)
}

fn input(opcode: u16, len: usize) -> Vec<u8> {
    let mut input = vec![0; len];
    input[..2].copy_from_slice(&opcode.to_be_bytes());
    input
}

#[test]
fn a_command_goes_through_the_entry_alone() {
    let mut driver = driver();
    // ENABLE_HCA has 12 bytes either way.
    let answer = driver.command(&input(0x104, 12), 12);
    assert_eq!((answer.delivery, answer.status), (0, 0));
    let pd = driver.command(&input(0x800, 16), 16).number();
    assert_ne!(pd, 0);
    assert_eq!(driver.function.live(), [("protection domains", 1)]);
    assert_eq!(driver.about(0x801, pd).status, 0);
    assert_eq!(driver.about(0x801, pd).status, 5, "no such resource");
    assert!(driver.function.live().is_empty());
}

#[test]
fn an_unknown_command_is_a_bad_opcode_and_is_logged() {
    let mut driver = driver();
    let answer = driver.command(&input(0x0abc, 16), 600);
    assert_eq!((answer.delivery, answer.status), (0, 2));
    assert!(answer.bytes[8..].iter().all(|b| *b == 0));
    let said = driver.said.lock().unwrap();
    assert!(said.iter().any(|line| line.contains("unknown command (0xabc") && line.contains("status 0x2")), "{said:?}");
}

#[test]
fn answers_of_several_blocks_are_whole() {
    let mut driver = driver();
    // Capabilities: 4096 bytes behind the first 16.
    let general = driver.ok(0x100, 16, 0x1010, |_| {});
    assert_eq!(general.bytes.len(), 0x1010);
    // log_max_qp, and num_of_uars_per_page, which a driver divides by.
    assert_eq!((general.bytes[16 + 0x13] & 0x1f, general.bytes[16 + 0xa7]), (17, 1));
}

#[test]
fn pages_come_back_as_they_were_lent_and_no_more_are_taken_than_asked_for() {
    let mut driver = driver();
    let pages: Vec<u64> = (0..32).map(|n| 0x1234_5000 + n * 0x1000).collect();
    let give = |pages: &[u64]| {
        let mut give = input(0x108, 16 + 8 * pages.len());
        give[7] = 1;
        give[12..16].copy_from_slice(&(pages.len() as u32).to_be_bytes());
        for (place, page) in give[16..].chunks_exact_mut(8).zip(pages) {
            place.copy_from_slice(&page.to_be_bytes());
        }
        give
    };
    assert_eq!(driver.command(&give(&[&pages[..], &[0x1000]].concat()), 16).status, 8, "one too many");
    assert!(driver.function.live().is_empty());
    assert_eq!(driver.command(&give(&pages), 16).status, 0);
    assert_eq!(driver.command(&give(&[0x1000]), 16).status, 8);
    assert_eq!(driver.function.live(), [("lent pages", 32)]);
    let mut back = vec![];
    for _ in 0..2 {
        let answer = driver.ok(0x108, 16, 16 + 8 * 20, |input| {
            input[7] = 2;
            input[15] = 20;
        });
        let count = u32::from_be_bytes(answer.bytes[8..12].try_into().unwrap()) as usize;
        back.extend(
            answer.bytes[16..16 + 8 * count].chunks_exact(8).map(|p| u64::from_be_bytes(p.try_into().unwrap())),
        );
    }
    back.sort_unstable();
    assert_eq!(back, pages);
    assert!(driver.function.live().is_empty());
}

#[test]
fn pages_are_asked_for_and_too_short_a_list_is_refused() {
    let mut driver = driver();
    for (modifier, count) in [(1, 16), (2, 16), (3, 0)] {
        let answer = driver.ok(0x107, 16, 16, |input| input[7] = modifier);
        assert_eq!(answer.bytes[12..16], u32::to_be_bytes(count));
    }
    let mut give = input(0x108, 24);
    (give[7], give[15]) = (1, 2);
    assert_eq!(driver.command(&give, 16).status, 0x50, "two pages said, one given");
}

#[test]
fn damaged_entries_and_mailboxes_are_told_apart() {
    let mut driver = driver();
    let long = input(0x800, 600);
    let mut delivery = |damage: &dyn Fn(&mut [u8; 64])| driver.command_with(&long, 600, damage).delivery;
    assert_eq!(delivery(&|_| {}), 0);
    assert_eq!(delivery(&|entry| entry[0] = 3), 0x10, "type");
    assert_eq!(delivery(&|entry| entry[20] ^= 1), 0x1, "signature");
    // From here on without one, as Linux has it for mailboxes.
    assert_eq!(delivery(&|entry| (entry[61], entry[60]) = (0, 0x77)), 0x2, "token");
    assert_eq!(delivery(&|entry| (entry[61], entry[15]) = (0, 0x10)), 0x5, "place of the input");
    assert_eq!(delivery(&|entry| (entry[61], entry[55]) = (0, 0x10)), 0x4, "place of the output");
    // The second block where the first should be.
    assert_eq!(delivery(&|entry| (entry[61], entry[14]) = (0, entry[14] + 4)), 0x3, "number of the block");
    assert_eq!(delivery(&|entry| (entry[61], entry[5]) = (0, 0xff)), 0x7, "length of the input");
    assert_eq!(delivery(&|entry| (entry[61], entry[59], entry[58]) = (0, 4, 0)), 0x8, "length of the output");
    assert_eq!(delivery(&|entry| (entry[61], entry[8]) = (0, 0xff)), 0x5, "memory that is not there");
}

#[test]
fn capabilities_in_force_are_those_that_the_driver_set() {
    let mut driver = driver();
    let query =
        |driver: &mut Driver, modifier: u8| driver.ok(0x100, 16, 0x1010, |i| i[7] = modifier).bytes[16..].to_vec();
    let all = query(&mut driver, 0);
    assert_eq!(query(&mut driver, 1), all);
    driver.ok(0x109, 0x1010, 16, |i| {
        i[16..].copy_from_slice(&all);
        i[16 + 0x13] = 12;
    });
    assert_eq!((query(&mut driver, 1)[0x13], query(&mut driver, 0)[0x13]), (12, 17));
    // Atomics: a driver chooses the order of results and says nothing else, and the rest stays.
    driver.ok(0x109, 0x1010, 16, |i| (i[7], i[16 + 8]) = (6, 0x40));
    let atomic = query(&mut driver, 7);
    assert_eq!((atomic[8] >> 6, atomic[0x13], atomic[0x17]), (1, 0xf, 1 << 3));
    let mut unknown = input(0x100, 16);
    unknown[7] = 0x7e;
    assert_eq!(driver.command(&unknown, 0x1010).status, 3);
}

#[test]
fn commands_are_told_of_by_events_from_the_next_one_on() {
    let mut driver = driver();
    let uar = driver.command(&input(0x802, 16), 16).number();
    assert!(uar > 2, "the first pages are the initialization segment's");
    let (eqn, ring) = driver.event_queue(uar, 0, 1 << 0x0a);
    assert_eq!(driver.get::<64>(ring)[63], 1, "the command that made the queue is not told of");
    driver.ring_eq(uar, eqn, 0, true);
    assert!(driver.function.take_interrupts().is_empty());
    driver.command(&input(0x80d, 16), 16);
    let eqe = driver.get::<64>(ring);
    assert_eq!((eqe[1], &eqe[32..36], eqe[63]), (0x0a, &[0, 0, 0, 1][..], 0));
    let interrupts = driver.function.take_interrupts();
    assert_eq!(interrupts.iter().map(|i| (i.address, i.data)).collect::<Vec<_>>(), [(0xfee0_0000, 0x4000)]);
    driver.command(&input(0x80d, 16), 16);
    assert!(driver.function.take_interrupts().is_empty(), "not armed again");
    driver.ring_eq(uar, eqn, 1, true);
    assert_eq!(driver.function.take_interrupts().len(), 1, "there is more than was consumed");

    // Of what there is no room for, nothing is lost: 16 entries, 2 of them consumed.
    driver.ring_eq(uar, eqn, 2, false);
    (0..20).for_each(|_| drop(driver.command(&input(0x80d, 16), 16)));
    let owners = |driver: &Driver| (0..16).map(|n| driver.get::<64>(ring + 64 * n)[63]).collect::<Vec<_>>();
    let full = [vec![1; 2], vec![0; 14]].concat();
    assert_eq!(owners(&driver), full, "the second pass has owner bit 1");
    driver.ring_eq(uar, eqn, 18, true);
    assert_eq!(owners(&driver)[..6], [1; 6]);
    assert_eq!(driver.function.take_interrupts().len(), 1);
}

#[test]
fn an_event_queue_that_nobody_empties_ends_the_firmware() {
    let mut driver = driver();
    let uar = driver.command(&input(0x802, 16), 16).number();
    driver.event_queue(uar, 0, 1 << 0x0a);
    let syndrome = |driver: &mut Driver| driver.function.bar_read(0x23d, 1, Duration::ZERO);
    // As many as it has entries, and as many again that wait.
    (0..32).for_each(|_| drop(driver.command(&input(0x80d, 16), 16)));
    assert_eq!(syndrome(&mut driver), 0);
    driver.command(&input(0x80d, 16), 16);
    assert_eq!(syndrome(&mut driver), 0x0d);
    assert!(driver.said.lock().unwrap().iter().any(|line| line == "event queue 1 overflows"));
}

#[test]
fn an_entry_that_is_the_drivers_own_stays_as_it_is() {
    let mut driver = driver();
    let mut entry = [0; 64];
    (entry[0], entry[7], entry[59]) = (7, 16, 16);
    entry[16..18].copy_from_slice(&0x800_u16.to_be_bytes());
    for (own, made) in [(0, 0), (1, 1)] {
        entry[63] = own;
        driver.put(super::driver::MEMORY, &entry);
        driver.function.bar_write(0x18, 1_u64 << 24, 4, Duration::ZERO);
        driver.function.run();
        assert_eq!(driver.function.live().len(), made);
        assert_eq!(driver.get::<64>(super::driver::MEMORY) == entry, made == 0);
    }
    assert!(driver.said.lock().unwrap().iter().any(|line| line == "entry 0 is the driver's own"));
}

#[test]
fn an_interface_that_there_is_not_is_not_set() {
    let mut driver = driver();
    let set = |driver: &mut Driver, issi: u8| {
        let mut set = input(0x10b, 16);
        set[11] = issi;
        driver.command(&set, 16).status
    };
    let current = |driver: &mut Driver| driver.ok(0x10a, 16, 0x70, |_| {}).bytes[10..12].to_vec();
    assert_eq!((set(&mut driver, 1), current(&mut driver)), (0, vec![0, 1]));
    assert_eq!((set(&mut driver, 2), current(&mut driver)), (3, vec![0, 1]));
}

#[test]
fn a_reset_leaves_nothing() {
    let mut driver = driver();
    driver.command(&input(0x800, 16), 16);
    driver.command(&input(0x802, 16), 16);
    assert_eq!(driver.function.live().len(), 2);
    driver.function.reset();
    assert!(driver.function.live().is_empty());
    assert_eq!(driver.function.bar(), None);
}
