//! What tests of several files need: golden vectors, and queues in dirty memory.
//!
//! # Safety argument
//!
//! Access is taken away from pages that were just mapped and that nobody uses. Memory is read only where a mapping is.
#![allow(unsafe_code)]

use super::bus::record::Recorder;
use super::dbrec::DoorbellPages;
use super::layout::SqLayout;
use super::memory::pages;
use super::ring::Ring;
use super::shadow::SqShared;
use super::sq::{Sq, SqParts};
use super::uar::{Caching, Registers, SendRegister, UAR_BYTES, UarPage};
use crate::mem::map::Mapping;
use crate::uverbs::types::{Lkey, Qpn};
use crate::uverbs::wr::Sge;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What unused bytes of a test's ring hold.
pub const DIRTY: u8 = 0xff;

/// The vectors of one file in `tests/golden/mlx5`. In it, a name starts a line, and its bytes follow indented, in any
/// grouping; `xx*n` stands for `n` bytes, and everything after a `#` is a comment.
pub struct Golden {
    vectors: BTreeMap<String, Vec<u8>>,
    used: RefCell<BTreeSet<String>>,
}

impl Golden {
    pub fn read(file: &str) -> Self {
        let path = format!("{}/tests/golden/mlx5/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut vectors = BTreeMap::new();
        let mut name = String::new();
        for line in text.lines() {
            let bare = line.split('#').next().unwrap_or("").trim_end();
            if bare.is_empty() {
                continue;
            }
            if !bare.starts_with(' ') {
                name = bare.to_owned();
                assert!(vectors.insert(name.clone(), vec![]).is_none(), "{path}: {name} twice");
                continue;
            }
            let bytes: &mut Vec<u8> = vectors.get_mut(&name).unwrap();
            for word in bare.split_whitespace() {
                let (digits, count) = word.split_once('*').unwrap_or((word, "1"));
                assert!(digits.len().is_multiple_of(2), "{path}: odd number of digits in {word}");
                for _ in 0..count.parse().unwrap() {
                    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
                    bytes.extend((0..digits.len()).step_by(2).map(byte));
                }
            }
        }
        Self { vectors, used: RefCell::default() }
    }

    pub fn get(&self, name: &str) -> &[u8] {
        self.used.borrow_mut().insert(name.to_owned());
        self.vectors.get(name).unwrap_or_else(|| panic!("no golden vector {name}"))
    }

    /// Fails if there are vectors that no test asked for, of those whose names begin so.
    pub fn all_used(&self, prefixes: &[&str]) {
        let unused =
            |name: &&String| prefixes.iter().any(|p| name.starts_with(p)) && !self.used.borrow().contains(*name);
        let unused: Vec<_> = self.vectors.keys().filter(unused).collect();
        assert!(unused.is_empty(), "golden vectors that nothing is compared with: {unused:?}");
    }
}

/// Fails with the first byte that differs.
#[track_caller]
pub fn compare(name: &str, got: &[u8], want: &[u8]) {
    for (offset, (got_byte, want_byte)) in got.iter().zip(want).enumerate() {
        assert_eq!(got_byte, want_byte, "{name}: offset {offset} is {got_byte:#04x}, not {want_byte:#04x}\n{got:02x?}");
    }
    assert_eq!(got.len(), want.len(), "{name}: length");
}

pub fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge::from_raw(addr, length, Lkey(lkey))
}

pub const QPN: u32 = 0x12_3456;

/// A ring of dirty bytes.
pub fn dirty_ring(bytes: usize) -> Ring {
    let mut ring = Ring::new(Arc::new(pages(bytes).unwrap()), 0, bytes);
    ring.fill(DIRTY);
    ring
}

/// Memory of `bytes` bytes, a multiple of a page, between two pages that nobody may touch, and where it begins.
pub fn guarded(bytes: usize) -> (Mapping, usize) {
    use nix::sys::mman::{ProtFlags, mprotect};
    let page = crate::mem::map::page_bytes();
    assert!(bytes.is_multiple_of(page));
    let memory = pages(bytes + 2 * page).unwrap();
    for guard in [0, page + bytes] {
        // SAFETY: inside the mapping, whole pages; nobody touches them, which is the point.
        unsafe {
            let at = std::ptr::NonNull::new(memory.as_ptr().add(guard).cast()).unwrap();
            mprotect(at, page, ProtFlags::PROT_NONE).unwrap();
        }
    }
    (memory, page)
}

/// A ring of dirty bytes, a multiple of a page, between two pages that nobody may touch.
pub fn guarded_ring(bytes: usize) -> Ring {
    let (memory, start) = guarded(bytes);
    let mut ring = Ring::new(Arc::new(memory), start, bytes);
    ring.fill(DIRTY);
    ring
}

/// A send register of one's own, of two halves of 256 bytes, in a page that lies at the address given back, between two that
/// nobody may touch.
pub fn blueflame_register() -> (SendRegister, usize) {
    let (memory, start) = guarded(UAR_BYTES);
    let base = memory.as_ptr().expose_provenance() + start;
    let page = UarPage::new(memory, start, 9, Caching::WriteCombining, Box::new(())).unwrap();
    (Registers::default().exclusive(512, true, || Ok(page)).unwrap(), base)
}

/// What a page holds that [`blueflame_register`] gave the address of, and that is still mapped.
pub fn peek_page(address: usize, len: usize) -> Vec<u8> {
    let at: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: in a mapping that the caller keeps; volatile, as the writes are.
    (0..len).map(|i| unsafe { at.add(i).read_volatile() }).collect()
}

/// A register that takes eight bytes only.
pub fn shared_register() -> SendRegister {
    let memory = pages(UAR_BYTES).unwrap();
    SendRegister::shared(UarPage::new(memory, 0, 8, Caching::Uncached, Box::new(())).unwrap())
}

/// A send queue in dirty memory, and what it writes to.
pub struct Sends {
    pub sq: Sq<Recorder>,
    pub bus: Recorder,
    pub shared: Arc<SqShared>,
    pub record: super::dbrec::DoorbellRecord,
}

/// A send queue of `layout`, on `register`.
pub fn sends_on(layout: SqLayout, register: SendRegister) -> Sends {
    let bus = Recorder::default();
    let shared = Arc::new(SqShared::new(layout.blocks));
    let record = DoorbellPages::default().alloc().unwrap();
    let parts = SqParts {
        ring: dirty_ring(layout.bytes()),
        layout,
        qpn: Qpn::new(QPN).unwrap(),
        sig_all: false,
        record: record.clone(),
        register,
        shared: shared.clone(),
        home: None,
    };
    Sends { sq: Sq::with_bus(parts, bus.clone()), bus, shared, record }
}

/// A send queue of that many blocks, for elements of up to 8 entries and 200 inline bytes, on a shared register.
pub fn sends(blocks: u32) -> Sends {
    sends_on(SqLayout { blocks, max_wr: blocks / 4, max_ds: 16, max_sge: 8, max_inline: 200 }, shared_register())
}
