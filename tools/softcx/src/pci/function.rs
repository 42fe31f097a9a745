//! The PCI function: what is where in its BAR, and what stores there set off.

use super::command_queue::{self, NotTaken};
use super::config_space::{BAR_BYTES, ConfigSpace, Fault, MSIX_PENDING, MSIX_TABLE};
use super::event_queues::Untold;
use super::firmware::Firmware;
use super::held::Held;
use super::msix::{Interrupt, Msix, TABLE_BYTES};
use super::segment::{Segment, Syndrome};
use crate::bits::doorbell::{self, SEND, SEND_COUNT, SEND_STRIDE, UAR_BYTES};
use crate::bits::firmware::{eq_doorbell, segment};
use crate::device::CLOCK_KHZ;
use crate::fabric::{DeviceId, Fabric, WrongDevice};
use crate::memory::{BusError, Memory};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Who hears what the function has to say.
type Log = Box<dyn FnMut(fmt::Arguments<'_>) + Send>;

/// A software ConnectX as a PCI function.
///
/// ```
/// use softcx::pci::{Function, GuestMemory};
/// use softcx::{DeviceSpec, Fabric, Port, Punish};
/// use std::sync::Arc;
///
/// let fabric = Fabric::new(1);
/// let memory = Arc::new(GuestMemory::default());
/// let id = fabric.add(DeviceSpec {
///     name: "mlx5_0".into(),
///     memory: memory.clone(),
///     ports: vec![Port::infiniband(1, 1)],
///     guid: 1,
///     punish: Punish::default(),
/// });
/// let mut function = Function::new(&fabric, id)?;
/// assert_eq!(function.config_read(0, 4), 0x1017_15b3);
/// assert!(function.live().is_empty());
/// # Ok::<(), softcx::WrongDevice>(())
/// ```
pub struct Function {
    fabric: Fabric,
    id: DeviceId,
    memory: Arc<dyn Memory>,
    config: ConfigSpace,
    msix: Msix,
    segment: Segment,
    firmware: Firmware,
    stores: Vec<Store>,
    /// A store into a send register that may be the first of a BlueFlame copy.
    held: Option<Held>,
    /// It was pulled out.
    gone: bool,
    blue_flame: bool,
    slowdown: u32,
    log: Log,
}

/// Bytes of a doorbell by itself.
const DOORBELL_BYTES: usize = 8;

/// A store that sets something off, in [`Function::run`].
#[derive(Debug)]
enum Store {
    Commands(u32),
    Cq { page: u32, value: u64 },
    Eq { value: u32, arm: bool },
    Send { page: u32, offset: usize, bytes: Vec<u8> },
}

impl Function {
    /// The function of device `id` of the fabric, switched on. Not of a [`SimHost`](crate::SimHost)'s.
    pub fn new(fabric: &Fabric, id: DeviceId) -> Result<Self, WrongDevice> {
        let memory = fabric.with(id, |device| Arc::clone(device.memory()))?;
        Ok(Self {
            fabric: fabric.clone(),
            id,
            memory,
            config: ConfigSpace::new(),
            msix: Msix::new(),
            segment: Segment::default(),
            firmware: Firmware::new(false, CLOCK_KHZ),
            stores: vec![],
            held: None,
            gone: false,
            blue_flame: false,
            slowdown: 1,
            log: Box::new(|_| {}),
        })
    }

    /// Who hears, from now on, of each command and of what is wrong with one.
    pub fn set_log(&mut self, log: impl FnMut(fmt::Arguments<'_>) + Send + 'static) {
        self.log = Box::new(log);
    }

    /// Lets send registers take whole WQEs (BlueFlame), from the next time on that a driver asks. A copy comes in several
    /// stores: see [`held_until`](Self::held_until). Without it there are doorbells of 8 bytes only.
    pub fn set_blue_flame(&mut self, yes: bool) {
        self.blue_flame = yes;
        self.firmware = self.new_firmware();
    }

    /// Says, from the next time on that a driver asks, that the fabric's time goes by so much more slowly than the guest's.
    /// Zero counts as 1: not at all.
    pub fn set_slowdown(&mut self, slowdown: u32) {
        self.slowdown = slowdown.max(1);
        self.firmware = self.new_firmware();
    }

    fn new_firmware(&self) -> Firmware {
        Firmware::new(self.blue_flame, CLOCK_KHZ / u64::from(self.slowdown))
    }

    /// Until when a store waits for those that may follow it, as parts of one BlueFlame copy; `None` if none does. Then, on the clock
    /// of [`bar_write`](Self::bar_write), [`release`](Self::release) it.
    pub fn held_until(&self) -> Option<Duration> {
        self.held.as_ref().map(|held| held.until)
    }

    /// Nothing follows the store that is held. What it sets off happens in [`run`](Self::run).
    pub fn release(&mut self) {
        if let Some(Held { page, offset, bytes, .. }) = self.held.take() {
            self.stores.push(Store::Send { page, offset, bytes });
        }
    }

    /// The device behind it.
    pub fn device(&self) -> DeviceId {
        self.id
    }

    /// Bus address of the BAR, if it is decoded.
    pub fn bar(&self) -> Option<u64> {
        if self.gone { None } else { self.config.bar() }
    }

    /// Reads `len` bytes (1, 2 or 4) of the configuration space.
    pub fn config_read(&self, offset: usize, len: usize) -> u32 {
        if self.gone { u32::MAX >> (32 - 8 * len.clamp(1, 4)) } else { self.config.read(offset, len) }
    }

    /// Writes them.
    pub fn config_write(&mut self, offset: usize, value: u32, len: usize) {
        if self.gone {
            if ConfigSpace::disables(offset, value) {
                (self.log)(format_args!("plugged in again"));
                self.gone = false;
            }
            return;
        }
        self.config.write(offset, value, len);
        /// The command register: written when the function is enabled, or reset.
        const COMMAND: usize = 4;
        if offset == COMMAND {
            self.segment.restart();
        }
    }

    /// Reads `len` bytes (1, 2, 4 or 8) of the BAR at time `now`, least significant first.
    pub fn bar_read(&mut self, offset: u64, len: usize, now: Duration) -> u64 {
        if self.gone {
            return u64::MAX >> (64 - 8 * len.clamp(1, 8));
        }
        self.release();
        if offset < segment::END {
            // Registers are big endian, 32 bits each.
            let first = offset & !3;
            let words = [first, first + 4, first + 8].map(|at| self.segment.read_once(at, offset + len as u64, now));
            return super::little(&words.concat()[(offset - first) as usize..], len);
        }
        match offset {
            _ if (MSIX_TABLE..MSIX_TABLE + TABLE_BYTES).contains(&offset) => {
                self.msix.read((offset - MSIX_TABLE) as usize, len)
            }
            _ if (MSIX_PENDING..MSIX_PENDING + 8).contains(&offset) => {
                self.msix.read_pending((offset - MSIX_PENDING) as usize, len)
            }
            _ => 0,
        }
    }

    /// Writes `len` bytes (1, 2, 4 or 8) of the BAR at time `now`. What the store sets off happens in [`run`](Self::run).
    pub fn bar_write(&mut self, offset: u64, value: u64, len: usize, now: Duration) {
        let bytes = value.to_le_bytes();
        match offset {
            _ if self.gone || offset >= BAR_BYTES || !matches!(len, 1 | 2 | 4 | 8) => {}
            _ if offset < segment::END => {
                for (at, word) in (offset..).step_by(4).zip(bytes[..len].chunks_exact(4)) {
                    let word = crate::bits::be32(word, 0);
                    match at {
                        segment::CMD_DOORBELL => self.stores.push(Store::Commands(word)),
                        _ => {
                            if self.segment.write(at, word) {
                                self.fabric.with_any(self.id, |device| device.reset());
                                self.firmware = self.new_firmware();
                            }
                        }
                    }
                }
            }
            _ if (MSIX_TABLE..MSIX_PENDING + 8).contains(&offset) => {
                if offset < MSIX_TABLE + TABLE_BYTES {
                    self.msix.write((offset - MSIX_TABLE) as usize, value, len);
                }
            }
            _ => self.uar_write(offset, &bytes[..len], now),
        }
    }

    fn uar_write(&mut self, offset: u64, bytes: &[u8], now: Duration) {
        let (page, offset) = ((offset / UAR_BYTES as u64) as u32, (offset % UAR_BYTES as u64) as usize);
        let registers = SEND..SEND + SEND_COUNT * SEND_STRIDE;
        if let Some(held) = &mut self.held {
            let taken = held.takes(page, offset, bytes, now, self.slowdown);
            if !taken || held.is_whole() {
                self.release();
            }
            if taken {
                return;
            }
        }
        match (offset, bytes.len()) {
            (eq_doorbell::ARM | eq_doorbell::NO_ARM, 4) => {
                let value = crate::bits::be32(bytes, 0);
                self.stores.push(Store::Eq { value, arm: offset == eq_doorbell::ARM });
            }
            (doorbell::CQ, 8) => self.stores.push(Store::Cq { page, value: crate::bits::be64(bytes, 0) }),
            (_, 8) if registers.contains(&offset) && offset.is_multiple_of(SEND_STRIDE) => {
                self.held = Some(Held::new(page, offset, bytes, now, self.slowdown));
                if !self.blue_flame {
                    self.release();
                }
            }
            _ => (self.log)(format_args!("store of {} bytes at {offset:#x} of UAR {page:#x}", bytes.len())),
        }
    }

    /// Does what stores have set off, and passes on what the device has to tell.
    pub fn run(&mut self) {
        if let Some(fault) = self.config.take_fault() {
            self.make(fault);
        }
        for store in std::mem::take(&mut self.stores) {
            match store {
                Store::Commands(entries) => {
                    for index in (0..32).filter(|index| entries >> index & 1 == 1) {
                        self.execute(index);
                    }
                }
                Store::Cq { page, value } => {
                    self.fabric.with_any(self.id, |device| device.doorbell(page, doorbell::CQ, value));
                }
                Store::Send { page, offset, bytes } => self.fabric.with_any(self.id, |device| {
                    if bytes.len() > DOORBELL_BYTES {
                        device.blue_flame(page, offset, &bytes);
                    } else {
                        device.doorbell(page, offset, crate::bits::be64(&bytes, 0));
                    }
                }),
                Store::Eq { value, arm } => self.raise(|firmware, memory| Ok(firmware.eqs.ring(memory, value, arm))),
            }
        }
        self.tell();
    }

    /// Makes a fault, as a test in the guest can.
    pub fn make(&mut self, fault: Fault) {
        (self.log)(format_args!("fault: {fault:?}"));
        let port = |active| self.fabric.with_any(self.id, |device| device.control().set_port_active(1, active));
        match fault {
            // There is a port 1.
            Fault::PortDown => drop(port(false)),
            Fault::PortUp => drop(port(true)),
            Fault::Fatal => self.fail(Syndrome::Assertion),
            Fault::Gone => {
                self.reset();
                self.gone = true;
            }
        }
    }

    fn fail(&mut self, syndrome: Syndrome) {
        self.fabric.with_any(self.id, |device| device.control().die());
        self.segment.fail(syndrome);
    }

    /// Passes on what the device has to tell: events go into event queues.
    pub fn tell(&mut self) {
        for event in self.fabric.with_any(self.id, |device| device.take_events()) {
            self.raise(|firmware, memory| firmware.tell(memory, event));
        }
    }

    /// Does something with event queues, and raises the interrupt that comes of it.
    fn raise(&mut self, f: impl FnOnce(&mut Firmware, &dyn Memory) -> Result<Vec<usize>, Untold>) {
        match f(&mut self.firmware, &*self.memory) {
            Ok(vectors) => vectors.into_iter().for_each(|vector| self.msix.raise(vector)),
            Err(Untold::Bus(BusError { address })) => {
                (self.log)(format_args!("an event queue at {address:#x} cannot be reached"));
            }
            Err(Untold::Overflow(number)) => {
                (self.log)(format_args!("event queue {number} overflows"));
                self.fail(Syndrome::EventQueue);
            }
        }
    }

    /// Takes out the interrupts that are due.
    pub fn take_interrupts(&mut self) -> Vec<Interrupt> {
        if self.config.interrupts() { self.msix.take() } else { vec![] }
    }

    fn execute(&mut self, index: u32) {
        if self.segment.stopped {
            return;
        }
        let at = self.segment.entry(index);
        let memory = Arc::clone(&self.memory);
        let taken = match command_queue::take(&*memory, at) {
            Ok(Ok(taken)) => taken,
            Ok(Err(NotTaken::Refused(status))) => {
                return (self.log)(format_args!("entry {index}: delivery status {status:#x}"));
            }
            Ok(Err(NotTaken::Software)) => return (self.log)(format_args!("entry {index} is the driver's own")),
            Err(BusError { address }) => return (self.log)(format_args!("entry {index}: no memory at {address:#x}")),
        };
        // The command that makes the queue of command events is waited for without one.
        let tells = self.firmware.eqs.tells_of_commands();
        let Self { firmware, log, .. } = self;
        let output = self.fabric.with_any(self.id, |device| firmware.execute(device, &taken.input, log));
        if let Err(BusError { address }) = taken.answer(&*memory, &output) {
            (self.log)(format_args!("entry {index}: no memory at {address:#x}"));
        }
        if tells {
            self.raise(|firmware, memory| firmware.eqs.command_done(memory, 1 << index));
        }
    }

    /// How many objects of each kind the driver has left, kinds without any left out.
    pub fn live(&self) -> Vec<(&'static str, usize)> {
        let mut live = self.fabric.with_any(self.id, |device| device.live());
        live.extend(self.firmware.live());
        live
    }

    /// The guest resets the function: nothing is left of what the driver had.
    pub fn reset(&mut self) {
        self.fabric.with_any(self.id, |device| device.reset());
        (self.config, self.msix) = (ConfigSpace::new(), Msix::new());
        (self.segment, self.firmware) = (Segment::default(), self.new_firmware());
        self.stores.clear();
        self.held = None;
        self.gone = false;
    }
}

impl Segment {
    /// The bytes of a register, if an access that ends at `end` reaches it.
    fn read_once(&mut self, at: u64, end: u64, now: Duration) -> [u8; 4] {
        if at < end { self.read(at, now).to_be_bytes() } else { [0; 4] }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("device", &self.id).field("bar", &self.bar()).finish()
    }
}
