//! What the two sides of a connection tell each other, and how they behave.

use super::attr::{AckTimeout, Grh, RnrTimer, StaticRate};
use crate::uverbs::attr::DeviceAttr;
use crate::uverbs::types::{Gid, Lid, Mtu, Psn, Qpn};

/// What one side must know of the other to connect. How it gets there is the program's own business; as one line of text
/// it prints and parses (`Display`, `FromStr`).
///
/// ```no_run
/// # fn f(prepared: ironverbs::PreparedQp, peers: &str) -> Result<(), Box<dyn std::error::Error>> {
/// println!("{}", prepared.endpoint()); // one line of text, for the peer
/// let qp = prepared.connect(&peers.parse()?)?;
/// # drop(qp);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// LID of the port; zero on Ethernet.
    pub lid: Lid,
    /// Queue pair number.
    pub qpn: Qpn,
    /// First packet sequence number sent.
    pub psn: Psn,
    /// GID, always there on Ethernet.
    pub gid: Option<Gid>,
    /// Active MTU of the port, where it is known: the connection uses the lower one of both sides'.
    pub mtu: Option<Mtu>,
}

/// How a connection behaves. Time-outs, retries, READs and atomics are for reliable connections only.
///
/// ```no_run
/// # fn f(prepared: ironverbs::PreparedQp, remote: ironverbs::Endpoint) -> Result<(), ironverbs::Error> {
/// let mut options = prepared.connect_options();
/// options.rnr_retry = 7; // receives may be as late as they like
/// let qp = prepared.connect_with(&remote, &options)?;
/// # drop(qp);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Path MTU; `None` for the lower of both sides' active MTU. More than that is refused.
    pub path_mtu: Option<Mtu>,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// How fast packets may go. Default: as the port does.
    pub static_rate: StaticRate,
    /// Traffic class; on RoCE the DSCP and ECN byte.
    pub traffic_class: u8,
    /// Routers that a packet may pass. Default 64.
    pub hop_limit: u8,
    /// Flow label, 20 bits; on RoCE it chooses the UDP source port.
    pub flow_label: u32,
    /// Local ACK timeout. Default code 14, 67 ms.
    pub timeout: AckTimeout,
    /// Retries after a timeout, 0 to 7. Default 6: Soft-RoCE takes 7 for retries without end (`COMPST_ERROR_RETRY` in
    /// `drivers/infiniband/sw/rxe/rxe_comp.c`), and a peer that is gone would then never give an error.
    pub retry_count: u8,
    /// Retries after a receiver-not-ready NAK, 0 to 6; 7 retries for ever. Default 6, so that a peer that never posts a
    /// receive gives an error and not a hang.
    pub rnr_retry: u8,
    /// How long the peer waits after it found no receive posted here. Default 0.64 ms.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics under way at once from here. Default 16, or what the device can.
    pub max_rd_atomic: u8,
    /// READs and atomics under way at once from the peer. Default 16, or what the device can.
    pub max_dest_rd_atomic: u8,
}

/// What is used unless a program or a device's limits say otherwise.
impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            path_mtu: None,
            sl: 0,
            static_rate: StaticRate::PORT,
            traffic_class: 0,
            hop_limit: Grh::DEFAULT_HOP_LIMIT,
            flow_label: 0,
            timeout: AckTimeout::DEFAULT,
            retry_count: 6,
            rnr_retry: 6,
            min_rnr_timer: RnrTimer::DEFAULT,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
        }
    }
}

impl ConnectOptions {
    /// The default ones, within a device's limits.
    pub(super) fn within(attr: &DeviceAttr) -> Self {
        let at_most = |limit: u32| limit.min(16) as u8;
        Self {
            max_rd_atomic: at_most(attr.max_qp_init_rd_atom),
            max_dest_rd_atomic: at_most(attr.max_qp_rd_atom),
            ..Self::default()
        }
    }
}
