//! Memory keys: what a device may touch, for whom, and where it is.

use crate::memory::{Buffer, BusError, Memory};
use std::collections::BTreeMap;
use std::fmt;

/// What a key allows, as bits. Local read is always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u8);

impl Access {
    /// Nothing but local read.
    pub const LOCAL_READ: Self = Self(0);
    /// Local write.
    pub const LOCAL_WRITE: Self = Self(1 << 0);
    /// Remote write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Remote read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Remote atomic.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// All of them.
    pub const ALL: Self = Self(0xf);

    /// Whether everything that `need` allows is allowed.
    pub fn allows(self, need: Self) -> bool {
        self.0 & need.0 == need.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where the memory of a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Bus addresses: a memory region.
    Bus(Buffer),
    /// Ranges of other keys: a memory window.
    Keys(Vec<KeyRange>),
}

/// A range of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The key.
    pub key: u32,
    /// First address under that key.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// A memory key. The index is its place in the device's table, the low byte of the 32-bit key is software's to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mkey {
    /// Low byte of the key.
    pub variant: u8,
    /// Protection domain.
    pub pd: u32,
    /// What is allowed.
    pub access: Access,
    /// Address of the first byte under this key (iova).
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Where they are.
    pub translation: Translation,
    /// Not usable until a UMR binds it.
    pub free: bool,
    /// The only QP that may use it.
    pub qpn: Option<u32>,
    /// Whether UMR and remote invalidation may change it: a memory window.
    pub is_window: bool,
    /// Whether a UMR of the driver's own queue pair ([`Device::set_privileged`](crate::Device::set_privileged)) may change it.
    pub umr: bool,
}

/// Why a key does not lead to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError {
    /// The key.
    pub key: u32,
    /// First address asked for.
    pub address: u64,
    /// Bytes asked for.
    pub len: u64,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is no such key.
    NoKey,
    /// The key is of another protection domain.
    Pd,
    /// The key does not allow it.
    Forbidden,
    /// The range is not within the key's.
    Bounds {
        /// First address of the key.
        start: u64,
        /// Bytes of the key.
        len: u64,
    },
    /// The key is of another queue pair.
    Qp,
    /// The key leads to other keys, where only one that leads to memory may be.
    Indirect,
    /// The memory itself is not there.
    Bus,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, address, len, why } = self;
        write!(f, "key {key:#x}, {len} bytes at {address:#x}: ")?;
        match why {
            Why::NoKey => f.write_str("there is no such key"),
            Why::Pd => f.write_str("the key is of another protection domain"),
            Why::Forbidden => f.write_str("the key does not allow it"),
            Why::Bounds { start, len } => write!(f, "the key covers {len} bytes at {start:#x}"),
            Why::Qp => f.write_str("the key is bound to another queue pair"),
            Why::Indirect => f.write_str("the key leads to other keys, and not to memory"),
            Why::Bus => f.write_str("the memory is not there"),
        }
    }
}

/// Who asks for memory: keys are checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Protection domain.
    pub pd: u32,
    /// Queue pair.
    pub qpn: u32,
}

/// The device's table of memory keys.
#[derive(Debug, Default)]
pub struct Mkeys {
    table: BTreeMap<u32, Mkey>,
    made: u32,
}

impl Mkeys {
    /// Adds a key and returns it. Indexes are used again only when all were used, and low bytes differ from key to key,
    /// so that a stale key names nothing.
    pub fn insert(&mut self, mut mkey: Mkey) -> u32 {
        loop {
            self.made = self.made.wrapping_add(1);
            let index = 0x10 + self.made % 0xff_ff00;
            if !self.table.contains_key(&index) {
                mkey.variant = (self.made as u8).wrapping_mul(0x2b) | 1;
                let key = index << 8 | u32::from(mkey.variant);
                self.table.insert(index, mkey);
                return key;
            }
        }
    }

    /// Adds a key whose low byte software has chosen, and returns it.
    pub fn insert_as(&mut self, mkey: Mkey) -> u32 {
        let variant = mkey.variant;
        let key = self.insert(mkey);
        if let Some(entry) = self.entry(key) {
            entry.variant = variant;
        }
        key & !0xff | u32::from(variant)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How many of them are memory windows.
    pub fn windows(&self) -> usize {
        self.table.values().filter(|key| key.is_window).count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Takes out the key with the index of `key`, whatever its low byte.
    pub fn remove(&mut self, key: u32) -> Option<Mkey> {
        self.table.remove(&(key >> 8))
    }

    /// The key with the index of `key`, whatever its low byte.
    pub fn entry(&mut self, key: u32) -> Option<&mut Mkey> {
        self.table.get_mut(&(key >> 8))
    }

    /// Whether a window is bound to a range of the region with the index of `key`.
    pub fn is_bound(&self, key: u32) -> bool {
        let of = |m: &&Mkey| matches!(&m.translation, Translation::Keys(k) if k.iter().any(|r| r.key >> 8 == key >> 8));
        self.table.values().filter(|m| !m.free).any(|m| of(&m))
    }

    /// Finds the memory behind `len` bytes at `address` of `key`, and calls `each` with its runs: bus address, and range
    /// of `0..len`.
    pub fn runs(
        &self,
        asker: Asker,
        range: KeyRange,
        need: Access,
        each: &mut dyn FnMut(u64, std::ops::Range<usize>) -> Result<(), BusError>,
    ) -> Result<(), KeyError> {
        self.runs_of(asker, range, need, true, each)
    }

    /// `may_lead_on`: the key may lead to other keys; those may not.
    fn runs_of(
        &self,
        asker: Asker,
        KeyRange { key, address, len }: KeyRange,
        need: Access,
        may_lead_on: bool,
        each: &mut dyn FnMut(u64, std::ops::Range<usize>) -> Result<(), BusError>,
    ) -> Result<(), KeyError> {
        let fail = |why| KeyError { key, address, len, why };
        let mkey = self.table.get(&(key >> 8)).filter(|m| m.variant == key as u8 && !m.free).ok_or(fail(Why::NoKey))?;
        if mkey.pd != asker.pd {
            return Err(fail(Why::Pd));
        }
        if mkey.qpn.is_some_and(|qpn| qpn != asker.qpn) {
            return Err(fail(Why::Qp));
        }
        if !mkey.access.allows(need) {
            return Err(fail(Why::Forbidden));
        }
        let at = address.wrapping_sub(mkey.start);
        if at > mkey.len || len > mkey.len - at {
            return Err(fail(Why::Bounds { start: mkey.start, len: mkey.len }));
        }
        let bytes = usize::try_from(len).map_err(|_| fail(Why::Bus))?;
        match &mkey.translation {
            Translation::Bus(buffer) => buffer.runs(at, bytes, each).map_err(|_| fail(Why::Bus)),
            Translation::Keys(_) if !may_lead_on => Err(fail(Why::Indirect)),
            Translation::Keys(ranges) => {
                let under = if need.0 & !Access::REMOTE_READ.0 == 0 { Access::LOCAL_READ } else { Access::LOCAL_WRITE };
                let (mut skip, mut done) = (at, 0);
                for range in ranges {
                    if skip >= range.len {
                        skip -= range.len;
                        continue;
                    }
                    let n = (range.len - skip).min(len - done);
                    let part = KeyRange { key: range.key, address: range.address.wrapping_add(skip), len: n };
                    let base = done as usize;
                    self.runs_of(asker, part, under, false, &mut |bus, r| each(bus, base + r.start..base + r.end))
                        .map_err(|e| fail(e.why))?;
                    done += n;
                    skip = 0;
                }
                if done == len { Ok(()) } else { Err(fail(Why::Bus)) }
            }
        }
    }

    /// Whether the access is allowed.
    pub fn check(&self, asker: Asker, range: KeyRange, need: Access) -> Result<(), KeyError> {
        self.runs(asker, range, need, &mut |_, _| Ok(()))
    }

    /// Whether a window may be bound to the range: it is that of a region.
    pub(crate) fn check_direct(&self, asker: Asker, range: KeyRange, need: Access) -> Result<(), KeyError> {
        self.runs_of(asker, range, need, false, &mut |_, _| Ok(()))
    }

    /// Reads memory through a key.
    pub fn read(&self, memory: &dyn Memory, asker: Asker, range: KeyRange, need: Access) -> Result<Vec<u8>, KeyError> {
        self.check(asker, range, need)?;
        let mut out = vec![0; range.len as usize];
        self.runs(asker, range, need, &mut |bus, r| memory.read(bus, &mut out[r]))?;
        Ok(out)
    }

    /// Writes memory through a key.
    pub fn write(
        &self,
        memory: &dyn Memory,
        asker: Asker,
        (key, address): (u32, u64),
        need: Access,
        from: &[u8],
    ) -> Result<(), KeyError> {
        let range = KeyRange { key, address, len: from.len() as u64 };
        self.runs(asker, range, need, &mut |bus, r| memory.write(bus, &from[r]))
    }
}
