//! Received datagrams: what a receive buffer of a datagram queue pair holds.

use super::attr::{Grh, Path, StaticRate};
use crate::uverbs::types::{Gid, GidIndex, PortNum};
use crate::uverbs::wc::{Source, Wc, WcError};
use std::net::Ipv4Addr;

/// Bytes at the start of each datagram's receive buffer that are not payload.
pub const GRH_BYTES: usize = 40;

/// A received datagram: its payload, and the header that says where it came from.
///
/// ```no_run
/// # fn f(qp: &ironverbs::Qp<ironverbs::Any, ironverbs::Ud>, cq: &mut ironverbs::Cq, pool: &ironverbs::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(completion) = cq.poll()?.next() {
///     let Ok((slot, wc)) = pool.reclaim(completion) else { continue };
///     let datagram = ironverbs::Datagram::new(&slot, &wc)?;
///     let back = qp.create_ah_from(&wc, &datagram)?;
///     println!("{:?} from {:?}", datagram.payload, back.path());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The header, which is always there on RoCE.
    pub grh: Option<ReceivedGrh>,
    /// The payload.
    pub payload: &'a [u8],
}

/// The network header of a datagram, whichever it was: its source and its destination.
#[doc(alias("ibv_grh", "rdma_network_hdr"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedGrh {
    /// What header it was.
    pub kind: GrhKind,
    /// The sender's GID.
    pub sgid: Gid,
    /// The GID it was sent to: one of the port's, or a multicast group's.
    pub dgid: Gid,
    /// Traffic class; DSCP and ECN in an IP header.
    pub traffic_class: u8,
    /// Flow label, 20 bits; zero with IPv4, which has none.
    pub flow_label: u32,
    /// Hop limit or time to live, as it arrived.
    pub hop_limit: u8,
}

/// Which header carried a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrhKind {
    /// The global routing header of InfiniBand, or of RoCE v1.
    Grh,
    /// RoCE v2 over IPv4.
    Ipv4,
    /// RoCE v2 over IPv6.
    Ipv6,
}

/// A buffer that holds no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The receive failed.
    #[error("the receive failed: {0}")]
    Failed(#[from] WcError),
    /// The completion is a send's.
    #[error("the completion is of a send")]
    NotReceived,
    /// The buffer is not the one that was received into, or has less than the 40 bytes of the header.
    #[error(
        "the completion tells of {told} bytes, of which the buffer has {has}: a datagram's buffer has 40 bytes, then the payload"
    )]
    Size {
        /// What the completion tells.
        told: u32,
        /// Bytes of the buffer.
        has: usize,
    },
    /// The completion tells of a header, and there is none that is known.
    #[error("the 40 bytes before the payload are neither a GRH nor end with an IPv4 header")]
    Header,
}

impl<'a> Datagram<'a> {
    /// Reads a buffer that a receive was posted with, in one piece, and its completion.
    pub fn new(buffer: &'a [u8], wc: &Wc) -> Result<Self, DatagramError> {
        let told = wc.outcome()?.byte_len;
        let source = wc.source().ok_or(DatagramError::NotReceived)?;
        let size = DatagramError::Size { told, has: buffer.len() };
        let (header, payload) = buffer.get(..told as usize).and_then(<[u8]>::split_first_chunk).ok_or(size)?;
        let grh = match source.grh {
            true => Some(ReceivedGrh::parse(header, payload.len()).ok_or(DatagramError::Header)?),
            false => None,
        };
        Ok(Self { grh, payload })
    }
}

const UDP: u8 = 17;
/// Next header of a GRH (IB spec 8.3.3).
const BTH: u8 = 0x1b;

impl ReceivedGrh {
    /// With IPv4 the first 20 bytes are undefined, and may look like anything; the header is in the last 20.
    fn parse(header: &[u8; GRH_BYTES], payload_bytes: usize) -> Option<Self> {
        let (_, ipv4) = header.split_at(20);
        let like_ipv4 = ipv4[0] == 0x45 && ipv4[9] == UDP;
        let like_grh = header[0] >> 4 == 6 && matches!(header[6], UDP | BTH);
        // Both look right. A device that sends to itself may leave the checksum out, but not the length.
        let is_ipv4 = like_ipv4 && (!like_grh || checksum_is_right(ipv4) || is_length(&ipv4[2..4], 20, payload_bytes));
        if is_ipv4 {
            let address = |at: usize| {
                Gid::from(std::net::IpAddr::from(Ipv4Addr::new(ipv4[at], ipv4[at + 1], ipv4[at + 2], ipv4[at + 3])))
            };
            return Some(Self {
                kind: GrhKind::Ipv4,
                sgid: address(12),
                dgid: address(16),
                traffic_class: ipv4[1],
                flow_label: 0,
                hop_limit: ipv4[8],
            });
        }
        let gid = |at: usize| {
            let mut gid = Gid::default();
            gid.0.copy_from_slice(&header[at..at + 16]);
            gid
        };
        let word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        like_grh.then(|| Self {
            kind: if header[6] == UDP { GrhKind::Ipv6 } else { GrhKind::Grh },
            sgid: gid(8),
            dgid: gid(24),
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: header[7],
        })
    }
}

/// Whether the one's complement sum of an IPv4 header comes out right (RFC 791).
fn checksum_is_right(header: &[u8]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Whether an IP header's length fits the payload: UDP 8, BTH 12, DETH 8 and ICRC 4 bytes, perhaps an immediate of 4, and
/// padding to a multiple of 4.
fn is_length(field: &[u8], header_bytes: usize, payload_bytes: usize) -> bool {
    let length = usize::from(u16::from_be_bytes([field[0], field[1]]));
    let least = header_bytes + 32 + payload_bytes.next_multiple_of(4);
    length == least || length == least + 4
}

impl Path {
    /// To a GID, with a hop limit of 64 and everything else zero.
    pub fn to_gid(port: PortNum, sgid_index: GidIndex, dgid: Gid) -> Self {
        let grh = Grh { dgid, sgid_index, hop_limit: Grh::DEFAULT_HOP_LIMIT, traffic_class: 0, flow_label: 0 };
        Self { port, dlid: Default::default(), sl: 0, static_rate: StaticRate::PORT, grh: Some(grh) }
    }

    /// Back to where a datagram came from, from the GID at `sgid_index`.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn reply(port: PortNum, sgid_index: GidIndex, source: &Source, grh: &ReceivedGrh) -> Self {
        let ReceivedGrh { sgid: dgid, traffic_class, flow_label, .. } = *grh;
        let grh = Grh { dgid, sgid_index, hop_limit: Grh::DEFAULT_HOP_LIMIT, traffic_class, flow_label };
        Self { port, dlid: source.lid, sl: source.sl, static_rate: StaticRate::PORT, grh: Some(grh) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
