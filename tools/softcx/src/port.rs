//! Ports: link layer, addresses, partitions, state.

use crate::packet::{Gid, Grh, MULTICAST_LIDS, Mac, Network, Route, is_multicast};

/// A port of a device.
///
/// ```
/// use softcx::{Link, Port};
/// let port = Port::ethernet([2, 0, 0, 0, 0, 1], [198, 18, 0, 1]);
/// assert_eq!(port.link, Link::Ethernet { mac: [2, 0, 0, 0, 0, 1] });
/// assert_eq!(port.gids.iter().flatten().count(), 4); // link-local and IPv4, RoCE v1 and v2
/// ```
#[derive(Clone, Debug)]
pub struct Port {
    /// Link layer and its address.
    pub link: Link,
    /// GID table; an empty place is none.
    pub gids: Vec<Option<GidEntry>>,
    /// P_Key table.
    pub pkeys: Vec<u16>,
    /// Whether the port is up.
    pub active: bool,
    /// Path MTU in use, bytes.
    pub mtu_bytes: u32,
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand, with the local identifier that a subnet manager would have given it.
    InfiniBand {
        /// Local identifier.
        lid: u16,
    },
    /// Ethernet: RoCE.
    Ethernet {
        /// The port's address.
        mac: Mac,
    },
}

/// A place of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// The network that is used with it.
    pub network: Network,
}

impl Port {
    /// An InfiniBand port, up, with one GID made of the default subnet prefix and `guid`.
    pub fn infiniband(lid: u16, guid: u64) -> Self {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&0xfe80_0000_0000_0000_u64.to_be_bytes());
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        let mut gids = vec![None; 8];
        gids[0] = Some(GidEntry { gid, network: Network::InfiniBand });
        Self { link: Link::InfiniBand { lid }, gids, pkeys: vec![0xffff; 1], active: true, mtu_bytes: 4096 }
    }

    /// An Ethernet port, up, with the link-local and the IPv4 GID, each for RoCE v1 (even places) and v2 (odd places).
    pub fn ethernet(mac: Mac, ipv4: [u8; 4]) -> Self {
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[8..].copy_from_slice(&[mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]]);
        let mut mapped = [0; 16];
        mapped[10..12].copy_from_slice(&[0xff, 0xff]);
        mapped[12..].copy_from_slice(&ipv4);
        let mut gids = vec![None; 256];
        for (i, gid) in [link_local, mapped].into_iter().enumerate() {
            gids[2 * i] = Some(GidEntry { gid, network: Network::RoceV1 });
            gids[2 * i + 1] = Some(GidEntry { gid, network: Network::RoceV2 });
        }
        Self { link: Link::Ethernet { mac }, gids, pkeys: vec![0xffff; 1], active: true, mtu_bytes: 1024 }
    }

    /// Whether the port listens to a packet.
    pub fn accepts(&self, route: &Route) -> bool {
        let ours = |gid: &Gid| {
            is_multicast(gid) || self.gids.iter().flatten().any(|e| e.gid == *gid && e.network == route.network)
        };
        let grh = route.grh.as_ref();
        self.active
            && match self.link {
                Link::InfiniBand { lid } => {
                    route.network == Network::InfiniBand
                        && (route.dlid == lid || route.dlid >= MULTICAST_LIDS)
                        && grh.is_none_or(|g| ours(&g.dgid))
                }
                Link::Ethernet { mac } => {
                    route.network != Network::InfiniBand
                        && (route.dmac == mac || route.dmac[0] & 1 == 1)
                        && grh.is_some_and(|g| ours(&g.dgid))
                }
            }
    }

    /// The route of a packet that leaves here along `path`. `None`: the path's own GID is not in the table, or RoCE is
    /// asked to go without one.
    pub fn route(&self, path: &Path) -> Option<Route> {
        let gid = |index: u8| self.gids.get(usize::from(index)).copied().flatten();
        let grh = |sgid| {
            path.grh.as_ref().map(|g| Grh {
                sgid,
                dgid: g.dgid,
                flow_label: g.flow_label,
                tclass: g.tclass,
                hop_limit: g.hop_limit,
            })
        };
        let route = Route {
            network: Network::InfiniBand,
            slid: 0,
            dlid: path.dlid,
            sl: path.sl,
            smac: [0; 6],
            dmac: path.dmac,
            grh: None,
            udp_sport: path.udp_sport,
        };
        Some(match (self.link, &path.grh) {
            (Link::InfiniBand { lid }, None) => Route { slid: lid | u16::from(path.src_path_bits), ..route },
            (Link::InfiniBand { lid }, Some(g)) => {
                Route { slid: lid | u16::from(path.src_path_bits), grh: grh(gid(g.sgid_index)?.gid), ..route }
            }
            (Link::Ethernet { .. }, None) => return None,
            (Link::Ethernet { mac }, Some(g)) => {
                let own = gid(g.sgid_index)?;
                Route { network: own.network, dlid: 0, smac: mac, grh: grh(own.gid), ..route }
            }
        })
    }
}

/// Where a queue pair or a UD message sends to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub struct Path {
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    /// Kept and told, for nothing here takes time: of a queue pair behind the `uverbs` front the verbs' number (`enum
    /// ib_rate`), of others and of a UD message the device's.
    pub static_rate: u8,
    pub dmac: Mac,
    pub udp_sport: u16,
    pub grh: Option<PathGrh>,
}

/// Global part of a [`Path`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub struct PathGrh {
    pub sgid_index: u8,
    pub dgid: Gid,
    pub flow_label: u32,
    pub tclass: u8,
    pub hop_limit: u8,
}
