//! A firmware command in execution: its input taken apart, its output put together.

use crate::bits::context::PAGE_OFFSET_UNITS;
use crate::bits::field::Field;
use crate::bits::firmware::status;
use crate::bits::{be16, be32, be64};
use crate::commands::Refusal;
use crate::memory::Buffer;

/// The 24-bit number of an object, where nearly all commands and answers have it.
pub(super) const NUMBER: Field = Field::new(0x48, 24);
/// Where a command's context begins.
pub(super) const CONTEXT: usize = 0x10;
/// Where a command's page list begins.
pub(super) const PAGES: usize = 0x110;
/// Log of the smallest page.
const LOG_PAGE: u32 = 12;

/// Status of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub u8);

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self(match refusal {
            Refusal::NoObject => status::BAD_RESOURCE,
            Refusal::Busy => status::RESOURCE_BUSY,
            Refusal::BadState => status::BAD_RESOURCE_STATE,
            Refusal::BadParam | Refusal::Memory(_) => status::BAD_PARAM,
        })
    }
}

/// A command in execution.
pub(super) struct Command<'a> {
    pub opcode: u16,
    pub modifier: u16,
    pub input: &'a [u8],
    out: Vec<u8>,
}

impl<'a> Command<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Self { opcode: be16(input, 0), modifier: be16(input, 6), input, out: vec![0; 16] }
    }

    /// The number of the object that the command is about.
    pub fn number(&self) -> u32 {
        NUMBER.get32(self.input)
    }

    pub fn be32(&self, at: usize) -> u32 {
        be32(self.input, at)
    }

    pub fn be16(&self, at: usize) -> u16 {
        be16(self.input, at)
    }

    /// The input from byte `at` on.
    pub fn from(&self, at: usize) -> &'a [u8] {
        self.input.get(at..).unwrap_or_default()
    }

    /// A context of `len` bytes at byte `at` of the input.
    pub fn context(&self, at: usize, len: usize) -> Result<&'a [u8], Status> {
        self.input.get(at..at + len).ok_or(Status(status::BAD_INPUT_LEN))
    }

    /// A field of the output.
    pub fn put(&mut self, field: Field, value: impl Into<u64>) {
        field.set(&mut self.out, value.into());
    }

    /// The answer is the number of an object.
    pub fn put_number(&mut self, number: u32) {
        self.put(NUMBER, number);
    }

    /// `len` bytes of output from byte `at` on.
    pub fn output(&mut self, at: usize, len: usize) -> &mut [u8] {
        if self.out.len() < at + len {
            self.out.resize(at + len, 0);
        }
        &mut self.out[at..at + len]
    }

    /// The output, with its status.
    pub fn finish(self, result: Result<(), Status>) -> Vec<u8> {
        match result {
            Ok(()) => self.out,
            Err(Status(code)) => {
                let mut out = vec![0; 16];
                out[0] = code;
                // What a log shows besides: which command it was.
                out[4..8].copy_from_slice(&(u32::from(self.opcode) << 8 | u32::from(code)).to_be_bytes());
                out
            }
        }
    }
}

/// The list of pages of a ring or region of `len` bytes: `log_page` is the log of a page's size, `offset` where in the first
/// page it begins.
pub(super) fn paged(list: &[u8], log_page: u32, offset: u64, len: u64) -> Result<Buffer, Status> {
    const BAD: Status = Status(status::BAD_PARAM);
    if !(LOG_PAGE..=40).contains(&log_page) || len == 0 {
        return Err(BAD);
    }
    let count = offset.checked_add(len).ok_or(BAD)?.div_ceil(1 << log_page);
    let bytes = usize::try_from(count * 8).ok().and_then(|n| list.get(..n)).ok_or(BAD)?;
    // The low bits of an entry are rights.
    let pages = bytes.chunks_exact(8).map(|entry| be64(entry, 0) & !((1 << LOG_PAGE) - 1)).collect();
    Ok(Buffer::paged(pages, log_page, offset, len))
}

/// The same where context fields say it: pages by log of their size minus 12, offset in parts of the page.
pub(super) fn paged_ring(list: &[u8], log_page_minus_12: u32, offset: u64, len: u64) -> Result<Buffer, Status> {
    let log_page = log_page_minus_12 + LOG_PAGE;
    let unit = (1_u64 << log_page.min(40)) / PAGE_OFFSET_UNITS;
    paged(list, log_page, offset * unit, len)
}
