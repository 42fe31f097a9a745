//! Address vectors: where a datagram goes, in the device's form.
//!
//! The link layers differ in more than the address. On InfiniBand a rate limit and a service level share a byte, and a peer
//! has a LID. On RoCE the same byte holds the priority one bit higher and the peer's place is its Ethernet address, which
//! only the kernel can find; every packet has a global route header; and on RoCE v2 a UDP source port takes the LID's place.

use super::wqe::{AV_GRH, Av};
use crate::uverbs::attr::AddressVector;
use zerocopy::big_endian::{U16, U32};

/// What the link layer adds to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    InfiniBand,
    /// RoCE v1.
    RoceV1 {
        /// The next hop's Ethernet address, as the kernel resolved it.
        dmac: [u8; 6],
    },
    /// RoCE v2.
    RoceV2 {
        /// As for RoCE v1.
        dmac: [u8; 6],
        /// Lowest UDP source port that the device is to use (`r_roce_min_src_udp_port`).
        min_sport: u16,
    },
}

/// Lowest UDP source port where the device gives no other: start of the dynamic ports.
pub const MIN_SPORT: u16 = 0xc000;
/// Capable of marking congestion (ECN), the traffic class's low bits.
const ECT: u8 = 2;

/// The address vector for `address`, without the remote queue pair and its key, which each work request brings.
pub fn address_vector(address: &AddressVector, link: Link) -> Av {
    let AddressVector { flow_label, sgid_index, hop_limit, traffic_class, is_global, .. } = *address;
    let rate = device_rate(address.static_rate) << 4;
    let mut av = Av {
        qkey: U32::ZERO,
        reserved: U32::ZERO,
        dqp_dct: U32::ZERO,
        stat_rate_sl: rate | address.sl & 0xf,
        fl_mlid: address.src_path_bits & 0x7f,
        rlid: U16::new(address.dlid.0),
        reserved0: [0; 4],
        rmac: [0; 6],
        tclass: 0,
        hop_limit: 0,
        grh_gid_fl: U32::ZERO,
        rgid: [0; 16],
    };
    if is_global || link != Link::InfiniBand {
        av.tclass = traffic_class;
        av.hop_limit = hop_limit;
        av.grh_gid_fl = U32::new(AV_GRH | u32::from(sgid_index) << 20 | flow_label & 0xf_ffff);
        av.rgid = address.dgid.0;
    }
    match link {
        Link::InfiniBand => {}
        Link::RoceV1 { dmac } | Link::RoceV2 { dmac, .. } => {
            av.stat_rate_sl = rate | (address.sl & 7) << 1;
            av.fl_mlid = 0;
            av.rmac = dmac;
            av.rlid = U16::ZERO;
        }
    }
    if let Link::RoceV2 { min_sport, .. } = link {
        av.tclass |= ECT;
        av.rlid = U16::new(source_port(flow_label, min_sport));
    }
    av
}

/// The UDP source port of a flow, so that switches keep its packets on one path.
fn source_port(flow_label: u32, min_sport: u16) -> u16 {
    let flow_label = flow_label & 0xf_ffff;
    if flow_label == 0 {
        return min_sport;
    }
    let folded = (flow_label & 0x3fff) ^ (flow_label >> 14);
    MIN_SPORT | folded as u16
}

/// The device's number of a rate limit (`enum ib_rate`), 0 for none. A rate that it has no number for becomes the next lower
/// one that it has.
fn device_rate(static_rate: u8) -> u8 {
    match static_rate {
        // 2.5, 10, 30, 5, 20, 40, 60, 80, 120 Gb/s: the standard's own number, shifted.
        2..=10 => static_rate + 5,
        // 14 Gb/s: as 10.
        11 => 8,
        // 56 Gb/s.
        12 => 1,
        // 25 Gb/s; 28 Gb/s.
        15 | 19 => 2,
        // 100 Gb/s; 112 Gb/s.
        16 | 13 => 3,
        // 168 Gb/s: as 120.
        14 => 15,
        // 200 Gb/s; 300 Gb/s.
        17 | 18 => 4,
        // 50 Gb/s.
        20 => 5,
        // 400 Gb/s; 600 Gb/s.
        21 | 22 => 6,
        // The port's own rate; 800 Gb/s.
        _ => 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
