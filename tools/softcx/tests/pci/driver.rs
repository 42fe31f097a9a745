//! A driver in miniature: memory, the command queue, mailboxes, event queues.

use softcx::pci::Function;
use softcx::{DeviceSpec, Fabric, Memory, Port, Punish, VecMemory};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Guest-physical addresses.
pub const MEMORY: u64 = 0x10_0000;
const MEMORY_BYTES: usize = 0x20_0000;
/// The command queue.
const QUEUE: u64 = MEMORY;
/// Mailboxes of input and output.
const IN: u64 = MEMORY + 0x1000;
const OUT: u64 = MEMORY + 0x9000;
/// From here on pages are given out.
const PAGES: u64 = MEMORY + 0x2_0000;
/// Where the driver put the BAR.
pub const BAR: u64 = 0xf000_0000;
const TOKEN: u8 = 0x5a;

pub struct Driver {
    pub function: Function,
    pub memory: Arc<VecMemory>,
    pub said: Arc<Mutex<Vec<String>>>,
    next_page: u64,
}

/// What a command came back with.
pub struct Answer {
    pub delivery: u8,
    pub status: u8,
    pub bytes: Vec<u8>,
}

impl Answer {
    /// The 24-bit number of an object.
    pub fn number(&self) -> u32 {
        assert_eq!((self.delivery, self.status), (0, 0));
        u32::from_be_bytes(self.bytes[8..12].try_into().unwrap()) & 0xff_ffff
    }
}

impl Driver {
    /// A function of its own on `fabric`, with LID `lid`, that has been given its place and its command queue.
    pub fn new(fabric: &Fabric, lid: u16) -> Self {
        let memory = Arc::new(VecMemory::new(MEMORY, MEMORY_BYTES));
        let id = fabric.add(DeviceSpec {
            name: format!("cx{lid}"),
            memory: memory.clone(),
            ports: vec![Port::infiniband(lid, lid.into())],
            guid: lid.into(),
            punish: Punish::default(),
        });
        let mut function = Function::new(fabric, id).unwrap();
        let said = Arc::new(Mutex::new(vec![]));
        let log = Arc::clone(&said);
        function.set_log(move |what| log.lock().unwrap().push(what.to_string()));
        function.config_write(0x10, BAR as u32, 4);
        // Memory space, bus master; MSI-X enabled.
        function.config_write(0x04, 0x6, 2);
        function.config_write(0x42, 0x8000, 2);
        for vector in 0..8 {
            let entry = (2 << 20) + 16 * vector;
            function.bar_write(entry, 0xfee0_0000, 8, Duration::ZERO);
            function.bar_write(entry + 8, 0x4000 + vector, 4, Duration::ZERO);
            function.bar_write(entry + 12, 0, 4, Duration::ZERO);
        }
        let mut driver = Self { function, memory, said, next_page: PAGES };
        assert_eq!(driver.read(0x4) >> 16, 5, "revision of the command interface");
        assert_eq!(driver.read(0x14) & 0xff, 5 << 4 | 6, "32 entries of 64 bytes");
        assert_eq!(driver.read(0x1fc), 0, "the firmware is ready");
        driver.write(0x10, 0);
        driver.write(0x14, QUEUE as u32);
        driver
    }

    /// A register of the initialization segment.
    pub fn read(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes((self.function.bar_read(offset, 4, Duration::ZERO) as u32).to_be_bytes())
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.function.bar_write(offset, u32::from_le_bytes(value.to_be_bytes()).into(), 4, Duration::ZERO);
    }

    /// A page of zeros.
    pub fn page(&mut self) -> u64 {
        self.next_page += 0x1000;
        self.next_page - 0x1000
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).unwrap();
    }

    pub fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }

    /// An 8-byte store into a UAR page, first byte most significant.
    pub fn ring(&mut self, page: u32, offset: u64, value: u64) {
        self.function.bar_write(u64::from(page) * 4096 + offset, value.swap_bytes(), 8, Duration::ZERO);
        self.function.run();
    }

    /// A doorbell of an event queue.
    pub fn ring_eq(&mut self, page: u32, eqn: u32, ci: u32, arm: bool) {
        let at = u64::from(page) * 4096 + if arm { 0x40 } else { 0x48 };
        self.function.bar_write(at, (eqn << 24 | ci).swap_bytes().into(), 4, Duration::ZERO);
        self.function.run();
    }

    /// Runs a command in entry 0, with room for `room` bytes of answer.
    pub fn command(&mut self, input: &[u8], room: usize) -> Answer {
        self.command_with(input, room, |_| {})
    }

    /// The same, after `damage` was done to the entry.
    pub fn command_with(&mut self, input: &[u8], room: usize, damage: impl FnOnce(&mut [u8; 64])) -> Answer {
        self.mailbox(IN, input);
        self.mailbox(OUT, &vec![0xee; room]);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&IN.to_be_bytes());
        let head = input.len().min(16);
        entry[16..16 + head].copy_from_slice(&input[..head]);
        entry[48..56].copy_from_slice(&OUT.to_be_bytes());
        entry[56..60].copy_from_slice(&(room as u32).to_be_bytes());
        entry[60] = TOKEN;
        entry[63] = 1;
        entry[61] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
        damage(&mut entry);
        self.put(QUEUE, &entry);
        self.write(0x18, 1);
        assert_eq!(self.get::<64>(QUEUE), entry, "nothing happens before the access is answered");
        self.function.run();

        let entry = self.get::<64>(QUEUE);
        assert_eq!(entry[63] & 1, 0, "the entry is the driver's again");
        assert_eq!(entry.iter().fold(0, |sum, byte| sum ^ byte), 0xff, "signature of the entry");
        let mut bytes = entry[32..48].to_vec();
        let blocks = room.saturating_sub(16).div_ceil(512);
        for n in 0..blocks as u64 {
            let block = self.get::<576>(OUT + 1024 * n);
            if entry[63] == 0 {
                assert_eq!(block.iter().fold(0, |sum, byte| sum ^ byte), 0xff, "signature of block {n}");
                assert_eq!(block[512..575].iter().fold(0, |sum, byte| sum ^ byte), 0xff, "its control signature");
            }
            bytes.extend_from_slice(&block[..512]);
        }
        bytes.truncate(room.max(16));
        Answer { delivery: entry[63] >> 1, status: bytes[0], bytes }
    }

    /// Writes what of `bytes` does not fit into an entry into blocks from `at` on, each at 1024 bytes.
    fn mailbox(&self, at: u64, bytes: &[u8]) {
        for (n, part) in bytes.get(16..).unwrap_or_default().chunks(512).enumerate() {
            let place = at + 1024 * n as u64;
            let mut block = [0; 576];
            block[..part.len()].copy_from_slice(part);
            block[560..568].copy_from_slice(&(place + 1024).to_be_bytes());
            block[568..572].copy_from_slice(&(n as u32).to_be_bytes());
            block[573] = TOKEN;
            self.put(place, &block);
        }
    }

    /// Runs a command of `len` bytes that `fill` fills, and wants it to succeed.
    pub fn ok(&mut self, opcode: u16, len: usize, room: usize, fill: impl FnOnce(&mut [u8])) -> Answer {
        let mut input = vec![0; len];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        fill(&mut input);
        let answer = self.command(&input, room);
        assert_eq!((answer.delivery, answer.status), (0, 0), "command {opcode:#x}");
        answer
    }

    /// A command about an object by its number.
    pub fn about(&mut self, opcode: u16, number: u32) -> Answer {
        let mut input = [0; 16];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        input[8..12].copy_from_slice(&number.to_be_bytes());
        self.command(&input, 16)
    }

    /// An event queue of 16 entries for the events in `mask`, on vector `vector`: number and ring.
    pub fn event_queue(&mut self, uar: u32, vector: u8, mask: u64) -> (u32, u64) {
        let ring = self.page();
        for entry in 0..16 {
            self.put(ring + 64 * entry + 63, &[1]);
        }
        let answer = self.ok(0x301, 0x118, 16, |input| {
            input[0x10 + 12] = 4;
            input[0x10 + 13..0x10 + 16].copy_from_slice(&uar.to_be_bytes()[1..]);
            input[0x10 + 23] = vector;
            input[0x58..0x60].copy_from_slice(&mask.to_be_bytes());
            input[0x110..0x118].copy_from_slice(&ring.to_be_bytes());
        });
        (answer.bytes[11].into(), ring)
    }
}
