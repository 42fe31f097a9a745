//! The configuration space of the function: what it is, where its BAR is, and its MSI-X capability.

/// Bytes of the BAR, a power of two: the initialization segment, the UAR pages, and the interrupt table in between.
pub const BAR_BYTES: u64 = 32 << 20;
/// Interrupt vectors.
pub const VECTORS: usize = 8;
/// Where in the BAR the interrupt table is.
pub const MSIX_TABLE: u64 = 2 << 20;
/// Where the pending bits are.
pub const MSIX_PENDING: u64 = MSIX_TABLE + 0x1000;
/// PCI vendor.
const VENDOR: u16 = 0x15b3;
/// A ConnectX-5.
const DEVICE: u16 = 0x1017;
const SUBSYSTEM: u16 = 0x0007;

mod at {
    pub const VENDOR: usize = 0x00;
    pub const DEVICE: usize = 0x02;
    pub const COMMAND: usize = 0x04;
    pub const STATUS: usize = 0x06;
    pub const CLASS: usize = 0x09;
    pub const CACHE_LINE: usize = 0x0c;
    pub const BAR0: usize = 0x10;
    pub const SUBSYSTEM_VENDOR: usize = 0x2c;
    pub const SUBSYSTEM: usize = 0x2e;
    pub const CAPABILITIES: usize = 0x34;
    pub const INTERRUPT_LINE: usize = 0x3c;
    pub const INTERRUPT_PIN: usize = 0x3d;
    pub const MSIX: usize = 0x40;
    /// High byte of its control word: enable (7), mask all (6).
    pub const MSIX_CONTROL: usize = MSIX + 3;
    /// 32 bits: a [`Fault`](super::Fault) to make. In no capability: the device's own.
    pub const FAULT: usize = 0xf0;
}

/// What a test in the guest can make happen, by a store of its number into the 32 bits at 0xf0 of the configuration space: with
/// `setpci -s SLOT f0.l=NUMBER`, or by writing the file `config` of the device in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 1: the port goes down.
    PortDown = 1,
    /// 2: the port comes back.
    PortUp = 2,
    /// 3: the firmware fails for good, and says so in its health buffer. It comes back when a driver gives it a command queue.
    Fatal = 3,
    /// 4: the function is gone, as when it is pulled out while in use. Reads are all ones, stores go nowhere; no command is answered, no
    /// memory touched, no interrupt raised, and its objects are forgotten. It is plugged in again, as new, once the kernel has let go of it
    /// by disabling it: whoever looks for functions then finds it.
    Gone = 4,
}

/// 256 bytes of configuration space.
#[derive(Debug)]
pub(super) struct ConfigSpace([u8; 256], Option<Fault>);

impl ConfigSpace {
    pub fn new() -> Self {
        let mut space = Self([0; 256], None);
        space.put(at::VENDOR, &VENDOR.to_le_bytes());
        space.put(at::DEVICE, &DEVICE.to_le_bytes());
        // There is a list of capabilities.
        space.put(at::STATUS, &0x10_u16.to_le_bytes());
        // InfiniBand controller.
        space.put(at::CLASS, &[0x00, 0x07, 0x02]);
        space.put(at::SUBSYSTEM_VENDOR, &VENDOR.to_le_bytes());
        space.put(at::SUBSYSTEM, &SUBSYSTEM.to_le_bytes());
        space.put(at::CAPABILITIES, &[at::MSIX as u8]);
        space.put(at::INTERRUPT_PIN, &[1]);
        // MSI-X is the last capability; table and pending bits are in BAR 0.
        space.put(at::MSIX, &[0x11, 0]);
        space.put(at::MSIX + 2, &(VECTORS as u16 - 1).to_le_bytes());
        space.put(at::MSIX + 4, &(MSIX_TABLE as u32).to_le_bytes());
        space.put(at::MSIX + 8, &(MSIX_PENDING as u32).to_le_bytes());
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// `len` bytes (1, 2 or 4) at `offset`, least significant first. What is not there is zero.
    pub fn read(&self, offset: usize, len: usize) -> u32 {
        let mut bytes = [0; 4];
        for (to, from) in bytes.iter_mut().take(len).zip(self.0.iter().skip(offset)) {
            *to = *from;
        }
        u32::from_le_bytes(bytes)
    }

    /// Stores the bytes that can be stored.
    pub fn write(&mut self, offset: usize, value: u32, len: usize) {
        if (offset, len) == (at::FAULT, 4) {
            let all = [Fault::PortDown, Fault::PortUp, Fault::Fatal, Fault::Gone];
            self.1 = all.into_iter().find(|fault| *fault as u32 == value);
        }
        for (at, byte) in (offset..).zip(value.to_le_bytes()).take(len) {
            match at {
                at::BAR0..=0x13 => {
                    // The low bits of the BAR are always zero: so its size is found out, and that it is 32-bit memory.
                    let size_mask = (!(BAR_BYTES as u32 - 1)).to_le_bytes();
                    self.0[at] = byte & size_mask[at - at::BAR0];
                }
                at::MSIX_CONTROL => self.0[at] = self.0[at] & 0x07 | byte & 0xc0,
                at::COMMAND | 0x05 | at::CACHE_LINE | at::INTERRUPT_LINE => self.0[at] = byte,
                _ => {}
            }
        }
    }

    /// Whether this store disables the function, which then does nothing on the bus by itself: so a kernel lets go of it.
    pub fn disables(offset: usize, value: u32) -> bool {
        const BUS_MASTER: u32 = 1 << 2;
        offset == at::COMMAND && value & BUS_MASTER == 0
    }

    /// Takes out the fault that is to be made.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.1.take()
    }

    /// Where the BAR is, if memory accesses are decoded.
    pub fn bar(&self) -> Option<u64> {
        const MEMORY_SPACE: u8 = 1 << 1;
        (self.0[at::COMMAND] & MEMORY_SPACE != 0).then(|| u64::from(self.read(at::BAR0, 4)))
    }

    /// Whether MSI-X is enabled and not masked.
    pub fn interrupts(&self) -> bool {
        self.0[at::MSIX_CONTROL] & 0xc0 == 0x80
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_tells_its_size_and_keeps_its_place() {
        let mut space = ConfigSpace::new();
        assert_eq!(space.read(0, 4), 0x1017_15b3);
        assert_eq!(space.read(8, 4), 0x0207_0000);
        space.write(0x10, 0xffff_ffff, 4);
        assert_eq!(space.read(0x10, 4), 0xfe00_0000, "32 MiB");
        assert_eq!(space.bar(), None);
        space.write(0x10, 0xfa12_3456, 4);
        space.write(4, 0x0006, 2);
        assert_eq!(space.bar(), Some(0xfa00_0000));
        space.write(0x14, 0xffff_ffff, 4);
        assert_eq!(space.read(0x14, 4), 0, "there is no other BAR");
        assert_eq!(space.read(255, 4), 0);
    }

    #[test]
    fn msi_x_is_found_and_enabled() {
        let mut space = ConfigSpace::new();
        let at = space.read(0x34, 1) as usize;
        assert_eq!((space.read(at, 1), space.read(at + 2, 2), space.read(at + 4, 4)), (0x11, 7, 0x20_0000));
        assert!(!space.interrupts());
        space.write(at + 2, 0xffff, 2);
        assert_eq!(space.read(at + 2, 2), 0xc007);
        assert!(!space.interrupts(), "all masked");
        space.write(at + 2, 0x8000, 2);
        assert!(space.interrupts());
    }
}
