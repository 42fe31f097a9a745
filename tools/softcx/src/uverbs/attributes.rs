//! The attributes of an ioctl command: found, checked against what the method takes, read and answered.
//!
//! # Safety argument
//!
//! Memory of the caller is touched at addresses that the command gives, for the lengths that it gives, during the call: that
//! they are valid is the caller's part of [`Cdev`](ironverbs::sys::Cdev).
#![allow(unsafe_code)]

use ironverbs::Errno;

/// Driver's request data.
pub(super) const DRIVER_IN: u16 = 0x1000;
/// Driver's response data.
pub(super) const DRIVER_OUT: u16 = 0x1001;

/// What an attribute is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes in: exactly so many.
    In(usize),
    /// Bytes in: at least so many.
    InAtLeast(usize),
    /// Bytes out: room for at least so many.
    Out(usize),
    /// A number of 8 bytes.
    Constant,
    /// A number of 4 or 8 bytes, no bits of which are set that the method does not know.
    Flags(u64),
    /// An object, a new object, a file, or a new file.
    Object,
    File,
}

/// An attribute that a method takes: its id, what it is, and whether it has to be there.
pub(super) type Takes = (u16, Kind, bool);
/// It has to be there.
pub(super) const MUST: bool = true;
/// It need not be there.
pub(super) const MAY: bool = false;

const MANDATORY: u64 = 1 << 0;
const VALID_OUTPUT: u64 = 1 << 1;

/// The attributes of one command, two words each: id (15:0), length (31:16), flags (47:32); then the datum.
pub(super) struct Attributes<'a> {
    words: &'a mut [u64],
}

fn bits(word: u64, from: u32) -> u16 {
    (word.to_le() >> from) as u16
}

impl<'a> Attributes<'a> {
    /// Checks the attributes against what the method takes.
    ///
    /// # Safety
    ///
    /// Inputs longer than 8 bytes and outputs are at valid addresses while the value lives.
    pub unsafe fn new(words: &'a mut [u64], takes: &[Takes]) -> Result<Self, Errno> {
        let attributes = Self { words };
        let mut seen = vec![];
        for attr in attributes.words.chunks_exact(2) {
            let (id, len, flags) = (bits(attr[0], 0), usize::from(bits(attr[0], 16)), u64::from(bits(attr[0], 32)));
            if seen.contains(&id) || bits(attr[0], 48) != 0 {
                return Err(Errno::EINVAL);
            }
            seen.push(id);
            let known = takes.iter().find(|t| t.0 == id).map(|t| t.1);
            let known = known.or(match id {
                DRIVER_IN => Some(Kind::InAtLeast(0)),
                DRIVER_OUT => Some(Kind::Out(0)),
                _ => None,
            });
            let fits = match known {
                None if flags & MANDATORY != 0 => return Err(Errno::EPROTONOSUPPORT),
                None => true,
                Some(Kind::In(n)) => len == n,
                Some(Kind::InAtLeast(n) | Kind::Out(n)) => len >= n,
                Some(Kind::Constant) => len == 8,
                Some(Kind::Flags(known)) => matches!(len, 4 | 8) && attr[1] & !known == 0,
                Some(Kind::Object | Kind::File) => len == 0,
            };
            if !fits {
                return Err(Errno::EINVAL);
            }
        }
        if takes.iter().any(|(id, _, required)| *required && !seen.contains(id)) {
            return Err(Errno::EINVAL);
        }
        Ok(attributes)
    }

    fn find(&self, id: u16) -> Option<usize> {
        self.words.chunks_exact(2).position(|attr| bits(attr[0], 0) == id).map(|i| i * 2)
    }

    /// Whether the command has the attribute.
    pub fn has(&self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Datum of an attribute; zero if it is not there.
    pub fn number(&self, id: u16) -> u64 {
        self.find(id).map_or(0, |at| self.words[at + 1])
    }

    /// Handle of an object.
    pub fn object(&self, id: u16) -> Option<u32> {
        self.find(id).map(|at| self.words[at + 1] as u32)
    }

    /// Bytes in. Up to 8 are the datum itself.
    pub fn input(&self, id: u16) -> Option<Vec<u8>> {
        let at = self.find(id)?;
        let len = usize::from(bits(self.words[at], 16));
        if len <= 8 {
            return Some(self.words[at + 1].to_ne_bytes()[..len].to_vec());
        }
        // SAFETY: the contract of `new`.
        Some(unsafe { read_caller(self.words[at + 1], len) })
    }

    /// A 32-bit number in.
    pub fn u32(&self, id: u16) -> u32 {
        self.input(id).map_or(0, |b| u32::from_ne_bytes(crate::bits::array(&b, 0)))
    }

    /// Room of an output; `None` if it is not there.
    pub fn room(&self, id: u16) -> Option<usize> {
        self.find(id).map(|at| usize::from(bits(self.words[at], 16)))
    }

    /// Bytes out, as many as there is room for.
    pub fn output(&mut self, id: u16, bytes: &[u8]) {
        let (Some(at), Some(room)) = (self.find(id), self.room(id)) else { return };
        // SAFETY: the contract of `new`.
        unsafe { write_caller(self.words[at + 1], &bytes[..room.min(bytes.len())]) };
        self.words[at] |= (VALID_OUTPUT << 32).to_le();
    }

    /// A new object's handle or file.
    pub fn set(&mut self, id: u16, value: u64) {
        if let Some(at) = self.find(id) {
            self.words[at + 1] = value;
        }
    }
}

/// # Safety
///
/// `address` is valid for reads of `len` bytes.
unsafe fn read_caller(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let from: *const u8 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the caller's promise; a vector of ours overlaps nothing of the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
    bytes
}

/// # Safety
///
/// `address` is valid for writes of `bytes.len()` bytes.
pub(super) unsafe fn write_caller(address: u64, bytes: &[u8]) {
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller's promise; a slice of ours overlaps nothing of the caller's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
