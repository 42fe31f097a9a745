//! Structures of the kernel interface: bytes in, bytes out, by offset. Unlike everything of the device, they are in the
//! host's byte order.

use crate::bits::array;

/// A structure that a command brought. What it is too short for reads as zero.
#[derive(Clone, Copy)]
pub(super) struct Request<'a>(pub &'a [u8]);

impl Request<'_> {
    pub fn u8(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(array(self.0, at))
    }

    pub fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(array(self.0, at))
    }

    pub fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(array(self.0, at))
    }

    pub fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        array(self.0, at)
    }

    /// Whether every byte from `at` on is zero.
    pub fn is_zero_from(self, at: usize) -> bool {
        self.0.iter().skip(at).all(|b| *b == 0)
    }
}

/// A structure that answers a command.
pub(super) struct Response(Vec<u8>);

impl Response {
    pub fn new(len: usize) -> Self {
        Self(vec![0; len])
    }

    pub fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        crate::bits::put(&mut self.0, at, bytes);
        self
    }

    pub fn u8(self, at: usize, value: u8) -> Self {
        self.put(at, &[value])
    }

    pub fn u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub fn u64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// What a command of the write() interface brings, whichever way it came.
pub(super) struct Call<'a> {
    /// The command's own structure, from its `response` field on (extended commands have none).
    pub request: Request<'a>,
    /// The driver's part.
    pub driver: Request<'a>,
    /// Room for the driver's answer; `None`: nowhere to put it.
    pub driver_room: Option<usize>,
}

impl Call<'_> {
    /// The driver of the kernel copies so many bytes without looking at the room; where there is none it fails. Here it
    /// fails, too, where the room is too small: hardware would have overrun it.
    pub fn needs_room(&self, bytes: usize) -> Result<(), ironverbs::Errno> {
        if self.driver_room.is_some_and(|room| room >= bytes) { Ok(()) } else { Err(ironverbs::Errno::EFAULT) }
    }
}

/// What a command answers.
#[derive(Default)]
pub(super) struct Answer {
    pub core: Vec<u8>,
    pub driver: Vec<u8>,
}

impl From<Response> for Answer {
    fn from(core: Response) -> Self {
        Self { core: core.done(), driver: vec![] }
    }
}
