//! Blocks of compressed completions, on queues that asked for them.
//!
//! The device may pack `n` completions of one queue: it writes the first as usual but for its format, with `n` in place of the
//! byte count, and then only what differs, eight bytes for each, eight of them in an entry. The block takes up the `n`
//! entries that its completions would have had. The first eight lie in the second entry, since the first is taken; every other
//! eight in the entry that the first of them would have had. What else the block's entries hold is of the past.
//!
//! A block is unpacked where it lies: each of its entries is written as the device would have written it unpacked, with the
//! owner bit of this pass. So nothing of it can be taken for a completion on the next pass, and polling goes on as if it had
//! never been packed.
//!
//! Of a receive nothing that is packed tells the index of its element; indices count on from the first one's. Receives of shared queues,
//! whose elements are taken in any order, do not come to such queues: queue pairs with one are refused there.

use super::cq::CqFault;
use super::cq_memory::CqRing;
use super::cqe::{self, CQE_BYTES, Cqe64, opcode};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What differs from the first completion of a block.
#[doc(alias = "mlx5_mini_cqe8")]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Mini {
    /// Of a send: index of its element and its opcode. Of a receive: a hash or checksum, of no use here.
    wqe_counter: U16,
    s_wqe_opcode: u8,
    reserved: u8,
    byte_cnt: U32,
}

const _: () = assert!(size_of::<Mini>() == 8);

/// In an entry.
const MINIS: usize = CQE_BYTES / size_of::<Mini>();

/// Unpacks the block whose first entry is answer number `ci`.
pub fn unpack(ring: &CqRing, ci: u32) -> Result<(), CqFault> {
    let first: Cqe64 = zerocopy::transmute!(ring.body(ci).copy());
    let count = first.byte_cnt.get();
    // The queue holds one fewer than it has entries.
    if count == 0 || count >= ring.entries() {
        return Err(CqFault::BadBlock { ci, count });
    }
    let kind = cqe::opcode_of(first.op_own);
    let mut minis = [[0_u8; size_of::<Mini>()]; MINIS];
    for n in 0..count {
        let at = ci.wrapping_add(n);
        if (n as usize).is_multiple_of(MINIS) {
            // Copied before any of the entries that it is about is written, of which it may be one.
            let packed = if n == 0 { ci.wrapping_add(1) } else { at };
            minis = zerocopy::transmute!(ring.body(packed).copy());
        }
        let mini: Mini = zerocopy::transmute!(minis[n as usize % MINIS]);
        let mut cqe =
            Cqe64 { byte_cnt: mini.byte_cnt, op_own: kind << 4 | cqe::owner_of_pass(at, ring.log2_entries()), ..first };
        if kind == opcode::REQ {
            cqe.wqe_counter = mini.wqe_counter;
            let qpn = first.sop_drop_qpn.get() & 0xff_ffff;
            cqe.sop_drop_qpn = (u32::from(mini.s_wqe_opcode) << 24 | qpn).into();
        } else {
            cqe.wqe_counter = first.wqe_counter.get().wrapping_add(n as u16).into();
        }
        ring.body(at).write(zerocopy::transmute!(cqe));
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
pub mod tests;
