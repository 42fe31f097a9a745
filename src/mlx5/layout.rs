//! How large a queue must be for what is asked of it. Arithmetic only; the kernel does the same for its part.

use super::wqe::{BB_BYTES, DS_BYTES, DS_PER_BB, MAX_DS};
use crate::uverbs::abi::verbs::qp_type;
use crate::uverbs::attr::QpCap;
use crate::uverbs::error::{Error, Lacking, Verb};

/// Longest send queue there is, in blocks. The device is told of blocks by an index of 16 bits: a ring of twice as many would look
/// empty when it is full.
pub const MAX_SEND_BLOCKS: u32 = 1 << 15;
/// Most elements of a queue pair's receive queue, for the same reason.
pub const MAX_RECEIVES: u32 = 1 << 15;

/// What a device can do, as far as queues are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest send queue, in blocks.
    pub max_send_blocks: u32,
    /// Longest send element, bytes.
    pub max_send_element_bytes: u32,
    /// Longest receive element, bytes.
    pub max_recv_element_bytes: u32,
    pub max_recv_wr: u32,
    pub max_srq_recv_wr: u32,
}

/// What goes over the wire, as far as a send queue's elements are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Sending side of an extended reliable connection.
    XrcIni,
    /// Receiving side of one: has no queue of its own.
    XrcTgt,
}

impl Transport {
    /// From `enum ib_uverbs_qp_type`.
    pub fn from_raw(raw: u8) -> Result<Self, Error> {
        Ok(match raw {
            qp_type::RC => Self::Rc,
            qp_type::UC => Self::Uc,
            qp_type::UD => Self::Ud,
            qp_type::XRC_INI => Self::XrcIni,
            qp_type::XRC_TGT => Self::XrcTgt,
            _ => {
                return Err(Error::Unsupported {
                    verb: Verb::CreateQp,
                    what: format!("queue pair type {raw} on mlx5").into(),
                    by: Lacking::Library,
                });
            }
        })
    }

    /// Units that come before an element's payload, at most.
    const fn head_ds(self) -> u32 {
        match self {
            // Control, remote address, atomic operands.
            Self::Rc => 3,
            // Control, remote address.
            Self::Uc => 2,
            // Control, address vector.
            Self::Ud => 4,
            // Control, receive queue, remote address, operands.
            Self::XrcIni => 4,
            Self::XrcTgt => 0,
        }
    }

    /// Units of the longest element that carries no payload: binding a memory window.
    const fn bare_ds(self) -> u32 {
        match self {
            // Control, UMR control (3), memory key (4), one entry padded to a block (4).
            Self::Rc | Self::Uc | Self::XrcIni => 12,
            Self::Ud => 4,
            Self::XrcTgt => 0,
        }
    }
}

/// A send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqLayout {
    /// A power of two; 0 for none.
    pub blocks: u32,
    /// Work requests that fit at once, whatever they are.
    pub max_wr: u32,
    /// Units of the longest element, in whole blocks: none longer may be written.
    pub max_ds: u32,
    pub max_sge: u32,
    pub max_inline: u32,
}

impl SqLayout {
    pub fn new(transport: Transport, cap: &QpCap, limits: &Limits) -> Result<Self, Error> {
        if transport == Transport::XrcTgt || cap.max_send_wr == 0 {
            return Ok(Self { blocks: 0, max_wr: 0, max_ds: 0, max_sge: 0, max_inline: 0 });
        }
        let QpCap { max_send_wr, max_send_sge, max_inline_data, .. } = *cap;
        // The device counts an element's units in 6 bits, and may take less.
        let most_ds = MAX_DS.min(limits.max_send_element_bytes / DS_BYTES).saturating_sub(transport.head_ds());
        if max_send_sge > most_ds {
            return Err(too_many(Verb::CreateQp, "max_send_sge", max_send_sge, most_ds, "scatter/gather entries"));
        }
        let inline_ds = match max_inline_data {
            0 => 0,
            bytes => bytes.saturating_add(4).div_ceil(DS_BYTES),
        };
        if inline_ds > most_ds {
            let most = (most_ds * DS_BYTES).saturating_sub(4);
            return Err(too_many(Verb::CreateQp, "max_inline_data", max_inline_data, most, "inline bytes"));
        }
        let ds = (transport.head_ds() + max_send_sge.max(inline_ds)).max(transport.bare_ds());
        let element_blocks = (ds * DS_BYTES).div_ceil(BB_BYTES);
        let need = u64::from(max_send_wr) * u64::from(element_blocks);
        if need > u64::from(limits.max_send_blocks) {
            let most = limits.max_send_blocks / element_blocks;
            return Err(too_many(
                Verb::CreateQp,
                "max_send_wr",
                max_send_wr,
                most,
                "work requests of such entries and inline bytes",
            ));
        }
        // At most `max_send_blocks`, a power of two itself.
        let blocks = (need as u32).next_power_of_two().min(limits.max_send_blocks);
        Ok(Self {
            blocks,
            max_wr: blocks / element_blocks,
            max_ds: (element_blocks * DS_PER_BB).min(MAX_DS),
            max_sge: max_send_sge,
            max_inline: max_inline_data,
        })
    }

    pub const fn bytes(&self) -> usize {
        self.blocks as usize * BB_BYTES as usize
    }
}

/// A receive ring of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RqLayout {
    /// A power of two; 0 for none.
    pub elements: u32,
    /// Log2 of an element's bytes; 0 without a ring.
    pub log2_stride: u32,
    pub max_sge: u32,
}

impl RqLayout {
    /// No receive ring.
    pub const NONE: Self = Self { elements: 0, log2_stride: 0, max_sge: 0 };

    pub fn new(max_recv_wr: u32, max_recv_sge: u32, limits: &Limits) -> Result<Self, Error> {
        if max_recv_wr == 0 {
            return Ok(Self::NONE);
        }
        let most_sge = limits.max_recv_element_bytes / DS_BYTES;
        if max_recv_sge > most_sge {
            return Err(too_many(Verb::CreateQp, "max_recv_sge", max_recv_sge, most_sge, "scatter/gather entries"));
        }
        if max_recv_wr > limits.max_recv_wr {
            return Err(too_many(Verb::CreateQp, "max_recv_wr", max_recv_wr, limits.max_recv_wr, "work requests"));
        }
        let stride = (max_recv_sge.max(1) * DS_BYTES).next_power_of_two();
        // The send ring follows, and starts on a block.
        let elements = max_recv_wr.next_power_of_two().max(BB_BYTES / stride);
        Ok(Self { elements, log2_stride: stride.ilog2(), max_sge: stride / DS_BYTES })
    }

    pub const fn bytes(&self) -> usize {
        (self.elements as usize) << self.log2_stride
    }
}

/// A shared receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqLayout {
    /// A power of two. One is never posted: the list's end.
    pub elements: u32,
    pub log2_stride: u32,
    pub max_sge: u32,
}

impl SrqLayout {
    pub fn new(max_wr: u32, max_sge: u32, limits: &Limits) -> Result<Self, Error> {
        let most_sge = (limits.max_recv_element_bytes / DS_BYTES).saturating_sub(1);
        if max_sge > most_sge {
            return Err(too_many(Verb::CreateSrq, "max_sge", max_sge, most_sge, "scatter/gather entries"));
        }
        // Indices have 16 bits.
        let most_wr = limits.max_srq_recv_wr.min(0xffff);
        if max_wr == 0 || max_wr > most_wr {
            return Err(too_many(Verb::CreateSrq, "max_wr", max_wr, most_wr, "work requests, and at least 1"));
        }
        // Head of 16 bytes, then the list: as the kernel computes it from the same two numbers.
        let stride = (DS_BYTES + max_sge * DS_BYTES).next_power_of_two().max(32);
        let max_sge = (stride - DS_BYTES) / DS_BYTES;
        Ok(Self { elements: (max_wr + 1).next_power_of_two(), log2_stride: stride.ilog2(), max_sge })
    }

    /// Receives that can be posted at once.
    pub const fn capacity(&self) -> u32 {
        self.elements - 1
    }

    pub const fn bytes(&self) -> usize {
        (self.elements as usize) << self.log2_stride
    }
}

/// A completion ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqLayout {
    pub log2_entries: u32,
    pub log2_entry_bytes: u32,
}

/// Most entries of a completion queue: the counter that the device is told has 24 bits, and one bit tells passes apart.
const MAX_LOG2_ENTRIES: u32 = 22;

impl CqLayout {
    /// For at least `cqe` completions in entries of 64 or 128 bytes.
    pub fn new(cqe: u32, entry_bytes: u32) -> Result<Self, Error> {
        let verb = Verb::CreateCq;
        if !matches!(entry_bytes, 64 | 128) {
            return Err(Error::invalid(verb, "cqe_size", entry_bytes, "mlx5 has entries of 64 and of 128 bytes"));
        }
        if cqe == 0 || cqe >= 1 << MAX_LOG2_ENTRIES {
            return Err(Error::invalid(verb, "cqe", cqe, format!("1 to {}", (1 << MAX_LOG2_ENTRIES) - 1)));
        }
        // One entry stays free, as with every other provider; the kernel rounds what it is asked for in the same way.
        Ok(Self { log2_entries: (cqe + 1).next_power_of_two().ilog2(), log2_entry_bytes: entry_bytes.ilog2() })
    }

    pub const fn entries(&self) -> u32 {
        1 << self.log2_entries
    }

    /// Completions that it holds at once, and what the kernel is asked for.
    pub const fn capacity(&self) -> u32 {
        self.entries() - 1
    }

    pub const fn bytes(&self) -> usize {
        1 << (self.log2_entries + self.log2_entry_bytes)
    }
}

fn too_many(verb: Verb, what: &'static str, value: u32, limit: u32, of: &str) -> Error {
    Error::invalid(verb, what, value, format!("the device takes at most {limit} {of}"))
}

#[cfg(all(test, not(loom)))]
mod tests;
