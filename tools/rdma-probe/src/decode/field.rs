//! Fields of an entry, collected one by one; what no field covers and is not zero is told, too.

use serde::Serialize;
use softcx::bits::{array, be64};
use std::fmt;

/// One field of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Field {
    /// The segment of a work queue entry, as `ctrl` or `data[0]`; `cqe` in a completion.
    pub segment: String,
    /// Name.
    pub name: String,
    /// Offset of its first byte in the entry.
    pub offset_bytes: u32,
    /// Its bits, counted from the least significant one of the big-endian word at the offset, as `23:8`; none if it is all of
    /// its bytes.
    pub bits: Option<String>,
    /// Its value: a hexadecimal number, or for more than eight bytes their digits.
    pub value: String,
    /// What the value stands for.
    pub meaning: Option<String>,
}

impl Field {
    /// Whether there is anything to see.
    pub fn is_zero(&self) -> bool {
        self.value.trim_start_matches("0x").bytes().all(|b| b == b'0')
    }
}

/// Takes fields out of the bytes of an entry. Bytes past its end read as zero.
pub struct Fields<'a> {
    bytes: &'a [u8],
    segment: String,
    base: usize,
    covered: Vec<bool>,
    pub list: Vec<Field>,
    pub problems: Vec<String>,
}

impl<'a> Fields<'a> {
    /// Of these bytes.
    pub fn of(bytes: &'a [u8]) -> Self {
        let covered = vec![false; bytes.len()];
        Self { bytes, segment: String::new(), base: 0, covered, list: Vec::new(), problems: Vec::new() }
    }

    /// Begins the segment at byte `at`, of `len` bytes. False, and a problem, if they are not all there.
    pub fn segment(&mut self, name: impl Into<String>, at: usize, len: usize) -> bool {
        self.segment = name.into();
        self.base = at;
        let there = at.checked_add(len).is_some_and(|end| end <= self.bytes.len());
        if !there {
            let left = self.bytes.len().saturating_sub(at);
            self.problems.push(format!("segment {} has {len} bytes, and only {left} are there", self.segment));
        }
        there
    }

    /// The field of `width` bytes, at most 8, at `at` of the segment.
    pub fn whole(&mut self, name: &str, at: usize, width: usize) -> u64 {
        let value = self.word(at, width);
        self.push(name, at, width, None, format!("{value:#x}"));
        value
    }

    /// Bits `high` to `low` of the big-endian word of `width` bytes at `at` of the segment.
    pub fn bits(&mut self, name: &str, at: usize, width: usize, (high, low): (u32, u32)) -> u64 {
        let value = self.word(at, width) >> low & (u64::MAX >> (63 - (high - low)));
        let bits = if high == low { high.to_string() } else { format!("{high}:{low}") };
        self.push(name, at, width, Some(bits), format!("{value:#x}"));
        value
    }

    /// Bytes that are no number.
    pub fn raw(&mut self, name: &str, at: usize, len: usize) -> &'a [u8] {
        let start = (self.base + at).min(self.bytes.len());
        let end = (start + len).min(self.bytes.len());
        let bytes = &self.bytes[start..end];
        self.push(name, at, len, None, Hex(bytes).to_string());
        bytes
    }

    /// Says what the value of the last field stands for.
    pub fn means(&mut self, meaning: impl Into<String>) {
        if let Some(field) = self.list.last_mut() {
            field.meaning = Some(meaning.into());
        }
    }

    /// Says so if there is something to say.
    pub fn may_mean(&mut self, meaning: Option<impl Into<String>>) {
        if let Some(meaning) = meaning {
            self.means(meaning);
        }
    }

    /// Bytes whose values do not matter.
    pub fn ignore(&mut self, at: usize, len: usize) {
        self.cover(at, len);
    }

    /// Something is wrong with the entry.
    pub fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Adds what is left of the first `len` bytes and not zero.
    pub fn finish(&mut self, len: usize) {
        let len = len.min(self.bytes.len());
        self.base = 0;
        self.segment = "reserved".to_owned();
        let mut at = 0;
        while at < len {
            let run = (at..len).take_while(|&i| !self.covered[i]).count();
            if run > 0 && self.bytes[at..at + run].iter().any(|b| *b != 0) {
                self.raw("bytes", at, run);
                self.means("not zero, and no field that is known");
            }
            at += run.max(1);
        }
    }

    fn word(&self, at: usize, width: usize) -> u64 {
        let bytes: [u8; 8] = array(self.bytes, self.base + at);
        be64(&bytes, 0) >> (64 - 8 * width as u32)
    }

    fn push(&mut self, name: &str, at: usize, width: usize, bits: Option<String>, value: String) {
        self.cover(at, width);
        self.list.push(Field {
            segment: self.segment.clone(),
            name: name.to_owned(),
            offset_bytes: (self.base + at) as u32,
            bits,
            value,
            meaning: None,
        });
    }

    fn cover(&mut self, at: usize, len: usize) {
        self.covered.iter_mut().skip(self.base + at).take(len).for_each(|c| *c = true);
    }
}

/// Bytes as hexadecimal digits.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
