//! Which parts of an element must be equal, which differ by nature, and which libmlx5 does not write.
//!
//! By nature differ the numbers that the kernel gave: of queue pairs and shared receive queues, and keys. Each side told its own, so
//! they are compared by name. Addresses are equal, since both sides registered their memory at the same one.
//!
//! What libmlx5 does differently on purpose, as the device does not look there:
//!
//! - It leaves what was in the ring before in the second operand of a fetch and add, in the reserved bytes of an XRC segment, in
//!   those parts of a memory key that the UMR's mask leaves out, and, by `ibv_wr_*`, in the immediate of requests that have none. This
//!   library writes zeros.
//! - Neither writes what lies behind inline bytes up to the end of their unit, nor what lies behind the entry that ends a receive's
//!   list.
//! - Of a shared receive queue it uses the element again that has been free for longest, this library the one that was freed last. So
//!   indices and links are equal for as long as elements are used for the first time.

use crate::list::Kind;
use crate::record::Numbers;
use softcx::bits::wqe::{BB_BYTES, DS_BYTES, atomic, av, ctrl, data, klm, mkey, opcode, raddr, srq_next, umr, xrc};
use softcx::bits::{be32, be64};
use std::fmt;

/// Part of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte.
    pub at: usize,
    pub what: &'static str,
    pub value: Value,
}

/// What a part holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bytes(Vec<u8>),
    /// A number, by the name of what has it.
    Named(String),
    /// What libmlx5 may leave as it was. This library clears it.
    Unwritten(Vec<u8>),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: ", self.what, self.at)?;
        match &self.value {
            Value::Bytes(bytes) | Value::Unwritten(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Value::Named(name) => f.write_str(name),
        }
    }
}

/// How two elements differ, if they do.
pub fn difference(theirs: &[Part], ours: &[Part]) -> Option<String> {
    for (theirs, ours) in theirs.iter().zip(ours) {
        let cleared =
            |part: &Part| matches!(&part.value, Value::Unwritten(bytes) if bytes.iter().all(|byte| *byte == 0));
        let same_place = (theirs.at, theirs.what) == (ours.at, ours.what);
        let equal = match (&theirs.value, &ours.value) {
            (Value::Unwritten(a), Value::Unwritten(b)) => a.len() == b.len() && cleared(ours),
            (a, b) => a == b,
        };
        if !same_place || !equal {
            return Some(format!("{theirs}\n  this library has {ours}"));
        }
    }
    (theirs.len() != ours.len()).then(|| format!("{} parts, and this library has {}", theirs.len(), ours.len()))
}

/// The parts of a send element.
pub fn send(bytes: &[u8], kind: Kind, numbers: &Numbers) -> Vec<Part> {
    let mut parts = Parts { bytes, at: 0, numbers, parts: vec![] };
    let code = be32(bytes, ctrl::OPMOD_INDEX_OPCODE) as u8;
    parts.plain("opcode modifier, index, opcode", ctrl::QPN_DS);
    parts.number("queue pair", "qpn", be32(bytes, ctrl::QPN_DS) >> 8, 3);
    parts.plain("units", 1);
    parts.plain("signature, stream", ctrl::FM_CE_SE - ctrl::SIGNATURE);
    parts.plain("fence, completion, event", 1);
    match code {
        opcode::SEND_INVAL | opcode::UMR => parts.key("key to invalidate or change"),
        opcode::SEND_IMM | opcode::RDMA_WRITE_IMM => parts.plain("immediate", 4),
        _ => parts.unwritten("no immediate", 4),
    }
    match kind {
        Kind::Ud => parts.address_vector(),
        Kind::Xrc if code != opcode::UMR => {
            parts.number("shared receive queue", "srqn", be32(bytes, parts.at + xrc::SRQN), 4);
            parts.unwritten("reserved", DS_BYTES - 4);
        }
        _ => {}
    }
    match code {
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ => parts.remote(),
        opcode::ATOMIC_CS | opcode::ATOMIC_FA => {
            parts.remote();
            parts.plain("swap value or addend", atomic::COMPARE);
            match code {
                opcode::ATOMIC_CS => parts.plain("compare value", 8),
                _ => parts.unwritten("no compare value", 8),
            }
        }
        opcode::UMR => parts.key_change(),
        _ => {}
    }
    while parts.at < bytes.len() {
        parts.data();
    }
    parts.parts
}

/// The parts of a receive element. `linked`: of a shared queue, whose links count as long as `fresh`.
pub fn receive(bytes: &[u8], linked: bool, fresh: bool, numbers: &Numbers) -> Vec<Part> {
    let mut parts = Parts { bytes, at: 0, numbers, parts: vec![] };
    if linked {
        parts.plain("reserved", srq_next::NEXT_INDEX);
        if fresh {
            parts.plain("next element", 2);
        } else {
            parts.at += 2;
        }
        parts.plain("signature, reserved", srq_next::BYTES - srq_next::NEXT_INDEX - 2);
    }
    while parts.at < bytes.len() {
        let last = be32(bytes, parts.at + data::LKEY) == data::TERMINATE_LKEY;
        parts.data();
        if last {
            break;
        }
    }
    parts.parts
}

struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
    numbers: &'a Numbers,
    parts: Vec<Part>,
}

impl Parts<'_> {
    fn take(&mut self, what: &'static str, length: usize, value: impl FnOnce(Vec<u8>) -> Value) {
        let end = (self.at + length).min(self.bytes.len());
        let bytes = self.bytes.get(self.at..end).unwrap_or_default().to_vec();
        self.parts.push(Part { at: self.at, what, value: value(bytes) });
        self.at += length;
    }

    /// Must be equal.
    fn plain(&mut self, what: &'static str, length: usize) {
        self.take(what, length, Value::Bytes);
    }

    /// Is not looked at by the device.
    fn unwritten(&mut self, what: &'static str, length: usize) {
        self.take(what, length, Value::Unwritten);
    }

    /// A number that the kernel gave, as part of so many bytes. One that it did not give must be equal.
    fn number(&mut self, what: &'static str, of: &str, number: u32, length: usize) {
        let name = self.numbers.all(of).find(|(_, known)| *known == u64::from(number)).map(|(name, _)| name.to_owned());
        self.take(what, length, |bytes| name.map_or(Value::Bytes(bytes), Value::Named));
    }

    /// A key of the region or of a window. The low byte of a window's is counted up with each binding, from wherever it began.
    fn key(&mut self, what: &'static str) {
        let key = u64::from(be32(self.bytes, self.at));
        let region = self.numbers.all("lkey").chain(self.numbers.all("rkey")).find(|(_, known)| *known == key);
        let window = self.numbers.all("window").find(|(_, first)| *first >> 8 == key >> 8);
        let name = region.map(|(name, _)| name.to_owned());
        let name = name.or(window.map(|(name, first)| format!("{name} + {}", key.wrapping_sub(first) as u8)));
        self.take(what, 4, |bytes| name.map_or(Value::Bytes(bytes), Value::Named));
    }

    fn remote(&mut self) {
        self.plain("remote address", raddr::RKEY);
        self.key("remote key");
        self.plain("reserved", DS_BYTES - raddr::RKEY - 4);
    }

    fn address_vector(&mut self) {
        let number = be32(self.bytes, self.at + av::DQP);
        self.plain("queue key, reserved", av::DQP);
        self.plain("form of the address", 1);
        self.number("remote queue pair", "qpn", number & 0xff_ffff, 3);
        self.plain("address", av::BYTES - av::RATE_SL);
    }

    fn key_change(&mut self) {
        let mask = be64(self.bytes, self.at + umr::MKEY_MASK);
        self.plain("UMR", umr::BYTES);
        let start = self.at;
        let number = be32(self.bytes, start + mkey::QPN_MKEY);
        let binds = mask & umr::MASK_LEN != 0;
        self.plain("free", 1);
        self.unwritten("reserved", 1);
        self.part_of_key(binds, "access", 1);
        self.unwritten("small fence", 1);
        self.number("queue pair of the window", "qpn", number >> 8, 3);
        self.key_byte(be32(self.bytes, ctrl::IMM), number as u8);
        self.unwritten("sequence, domain", mkey::START_ADDR - mkey::FLAGS_PD + 4);
        self.part_of_key(binds, "start and length", mkey::LEN + 8 - mkey::START_ADDR);
        self.unwritten("translation", mkey::BYTES - mkey::LEN - 8);
        debug_assert_eq!(self.at, start + mkey::BYTES);
        if binds {
            self.plain("bytes of the window", klm::MKEY);
            self.key("key of the region");
            self.plain("address in the region", klm::BYTES - klm::ADDR);
            self.plain("padding of the list", BB_BYTES - klm::BYTES);
        }
    }

    fn part_of_key(&mut self, counts: bool, what: &'static str, length: usize) {
        if counts { self.plain(what, length) } else { self.unwritten(what, length) }
    }

    /// The low byte of the window's new key, by how far it is from the old one, `key`. Zero is what an invalidated key has.
    fn key_byte(&mut self, key: u32, byte: u8) {
        let binds = be64(self.bytes, DS_BYTES + umr::MKEY_MASK) & umr::MASK_LEN != 0;
        let own = be64(self.bytes, DS_BYTES + umr::MKEY_MASK) & umr::MASK_QPN != 0;
        match binds || !own {
            true => self.take("low byte of the key", 1, |_| {
                Value::Named(format!("the old one's + {}", byte.wrapping_sub(key as u8)))
            }),
            false => self.plain("low byte of the key", 1),
        }
    }

    fn data(&mut self) {
        let count = be32(self.bytes, self.at + data::BYTE_COUNT);
        self.plain("byte count", 4);
        if count & data::INLINE == 0 {
            self.key("local key");
            self.plain("local address", DS_BYTES - data::ADDR);
            return;
        }
        self.plain("inline bytes", (count & !data::INLINE) as usize);
        self.at = self.at.next_multiple_of(DS_BYTES);
    }
}
