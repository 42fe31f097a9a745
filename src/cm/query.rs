//! What the kernel knows of an id: addresses, device, route, and the attributes that its queue pair is to have.

use super::abi::{InitQpAttr, QpAttr, QueryAddr, QueryAddrResp, QueryPath, QueryRoute, QueryRouteResp, query};
use super::address;
use super::command::send_over;
use super::error::{Error, Step};
use super::id::{CmId, Place};
use crate::uverbs::attr::{AddressVector, ModifyQp, QpState};
use crate::uverbs::device::DeviceIndex;
use crate::uverbs::errno::Errno;
use crate::uverbs::types::{Gid, Guid, PortNum};
use std::net::SocketAddr;
use zerocopy::IntoBytes;

/// Addresses and device of an id.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId) -> Result<(), ironverbs::rdma_cm::Error> {
/// let addresses = id.addresses()?;
/// println!("{:?} to {:?} on device {:?}", addresses.local, addresses.peer, addresses.device);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdAddress {
    /// The own address; `None` if it is no IP address, or not bound.
    pub local: Option<SocketAddr>,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// The device that it is on, by the kernel's index, which is the only name of a device that no other has. `None` as long as
    /// it is on none, or a kernel before Linux 5.7 does not tell.
    pub device: Option<DeviceIndex>,
    /// The device's port.
    pub port: Option<PortNum>,
    /// The partition.
    pub pkey: u16,
    /// The device's node GUID, which several devices can have.
    pub node_guid: Guid,
}

/// Addresses of an id as GIDs.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId) -> Result<(), ironverbs::rdma_cm::Error> {
/// let gids = id.gids()?;
/// println!("{} to {}", gids.local.gid, gids.peer.gid);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdGids {
    /// The own address.
    pub local: IbAddress,
    /// The peer's address.
    pub peer: IbAddress,
}

/// An address of InfiniBand's kind (`struct sockaddr_ib`).
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId) -> Result<(), ironverbs::rdma_cm::Error> {
/// println!("service {:#018x}", id.gids()?.local.service_id);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IbAddress {
    /// The partition.
    pub pkey: u16,
    /// The GID.
    pub gid: Gid,
    /// The service: port space and port.
    pub service_id: u64,
}

impl CmId {
    /// The own address, once it has one.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Result<Option<SocketAddr>, Error> {
        Ok(self.addresses()?.local)
    }

    /// The peer's address, once it has one.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Result<Option<SocketAddr>, Error> {
        Ok(self.addresses()?.peer)
    }

    /// Addresses and device.
    pub fn addresses(&self) -> Result<IdAddress, Error> {
        let id = self.number();
        let addresses = self.step(Step::Query, |channel| {
            let untold = QueryAddrResp { ibdev_index: UNTOLD, ..QueryAddrResp::default() };
            match send_over(channel.file(), QueryAddr { response: 0, id, option: query::ADDR }, untold) {
                // An older kernel has these together with the route.
                Err(Errno::EINVAL) => {
                    let untold = QueryRouteResp { ibdev_index: UNTOLD, ..QueryRouteResp::default() };
                    send_over(channel.file(), QueryRoute { response: 0, id, option: 0 }, untold).map(|told| IdAddress {
                        local: address::from_sockaddr_in6(&told.src_addr),
                        peer: address::from_sockaddr_in6(&told.dst_addr),
                        device: device(told.port_num, told.ibdev_index),
                        port: PortNum::new(told.port_num).ok(),
                        pkey: u16::from_be_bytes(told.ib_route[0].pkey),
                        node_guid: Guid(u64::from_be_bytes(told.node_guid)),
                    })
                }
                told => told.map(|told| IdAddress {
                    local: address::from_storage(&told.src_addr),
                    peer: address::from_storage(&told.dst_addr),
                    device: device(told.port_num, told.ibdev_index),
                    port: PortNum::new(told.port_num).ok(),
                    pkey: u16::from_be_bytes(told.pkey),
                    node_guid: Guid(u64::from_be_bytes(told.node_guid)),
                }),
            }
        })?;
        let ip = addresses.local.map(|local| local.ip());
        let place = addresses.port.zip(addresses.device).map(|(port, device)| Place { ip, port, device });
        self.learn(addresses.local, addresses.peer, place);
        Ok(addresses)
    }

    /// Addresses as GIDs, once it is on a device.
    pub fn gids(&self) -> Result<IdGids, Error> {
        let request = QueryAddr { response: 0, id: self.number(), option: query::GID };
        let told: QueryAddrResp = self.command(Step::Query, request)?;
        let address = |raw| address::ib_from_storage(raw).unwrap_or_default();
        Ok(IdGids { local: address(&told.src_addr), peer: address(&told.dst_addr) })
    }

    /// The path records of the route as on the wire (IB spec 15.2.5.16): the primary one, and the alternate one if there is
    /// one.
    pub fn paths(&self) -> Result<Vec<[u8; 64]>, Error> {
        let told = self.command(Step::Query, QueryPath::of(self.number()))?;
        let paths = told.path_data.iter().take(told.num_paths as usize);
        Ok(paths
            .map(|path| {
                let mut record = [0; 64];
                record.copy_from_slice(path.path_rec.as_bytes());
                record
            })
            .collect())
    }

    /// What the kernel wants the queue pair to have in that state. Mask bits that are not known here are passed on.
    pub(crate) fn qp_attributes(&self, state: QpState) -> Result<ModifyQp, Error> {
        let request = InitQpAttr { response: 0, id: self.number(), qp_state: state.0.into() };
        Ok(modify_qp(&self.command(Step::InitQpAttr, request)?))
    }
}

/// What a kernel before Linux 5.7 leaves of the device's index, since its responses end before it. No device has it.
const UNTOLD: u32 = u32::MAX;

/// The device, if there is one, as its port that is not zero tells, and if the kernel says which.
fn device(port: u8, index: u32) -> Option<DeviceIndex> {
    (port != 0 && index != UNTOLD).then_some(DeviceIndex(index))
}

/// The kernel lays an address out in one way where it gives attributes, and in another where it takes them.
fn modify_qp(raw: &QpAttr) -> ModifyQp {
    ModifyQp {
        attr_mask: raw.qp_attr_mask,
        qp_state: QpState(raw.qp_state as u8),
        cur_qp_state: QpState(raw.cur_qp_state as u8),
        path_mtu: raw.path_mtu as u8,
        path_mig_state: raw.path_mig_state as u8,
        qkey: raw.qkey,
        rq_psn: raw.rq_psn,
        sq_psn: raw.sq_psn,
        dest_qp_num: raw.dest_qp_num,
        qp_access_flags: raw.qp_access_flags,
        pkey_index: raw.pkey_index,
        alt_pkey_index: raw.alt_pkey_index,
        en_sqd_async_notify: raw.en_sqd_async_notify != 0,
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        min_rnr_timer: raw.min_rnr_timer,
        port_num: raw.port_num,
        timeout: raw.timeout,
        retry_cnt: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
        alt_port_num: raw.alt_port_num,
        alt_timeout: raw.alt_timeout,
        dest: AddressVector::from(&raw.ah_attr),
        alt_dest: AddressVector::from(&raw.alt_ah_attr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields in an order of their own, and a mask bit of a kernel to come.
    #[test]
    fn attributes_are_passed_on_field_by_field() {
        let mut raw = QpAttr::default();
        for (n, byte) in raw.as_mut_bytes().iter_mut().enumerate() {
            *byte = n as u8;
        }
        raw.qp_attr_mask = 0x8012_9181;
        raw.ah_attr.grh.dgid = [7; 16];
        let update = modify_qp(&raw);
        assert_eq!(update.attr_mask, 0x8012_9181);
        assert_eq!(update.qp_state, QpState(4));
        assert_eq!((update.path_mtu, update.path_mig_state), (12, 16));
        assert_eq!((update.dest.dgid, update.dest.sgid_index, update.dest.hop_limit), (Gid([7; 16]), 60, 61));
        assert_eq!((update.dest.traffic_class, update.dest.sl, update.dest.src_path_bits), (62, 66, 67));
        assert_eq!((update.dest.static_rate, update.dest.is_global, update.dest.port_num), (68, true, 70));
        assert_eq!((update.alt_dest.sgid_index, update.alt_dest.port_num), (92, 102));
        assert_eq!((update.max_rd_atomic, update.max_dest_rd_atomic, update.min_rnr_timer), (130, 131, 132));
        assert_eq!((update.port_num, update.timeout, update.retry_cnt, update.rnr_retry), (133, 134, 135, 136));
        assert_eq!((update.alt_port_num, update.alt_timeout), (137, 138));
    }
}
