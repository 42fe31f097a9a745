//! Responses and event records.

use super::{ConnParam, Ece, MAX_PRIVATE_DATA, SockaddrIn6, Storage};
use crate::uverbs::abi::layout;
use crate::uverbs::abi::write::AhAttr;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// A new id's number.
#[doc(alias = "rdma_ucm_create_id_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdResp {
    pub id: u32,
}
layout!(IdResp, 4);

/// How many events of an id were taken so far.
#[doc(alias("rdma_ucm_destroy_id_resp", "rdma_ucm_migrate_resp"))]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventsReported {
    pub events_reported: u32,
}
layout!(EventsReported, 4);

/// Addresses and device of an id.
#[doc(alias = "rdma_ucm_query_addr_resp")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryAddrResp {
    /// Big endian. Zero as long as there is no device.
    pub node_guid: [u8; 8],
    /// Zero as long as there is no device.
    pub port_num: u8,
    pub reserved: u8,
    /// Big endian.
    pub pkey: [u8; 2],
    pub src_size: u16,
    pub dst_size: u16,
    pub src_addr: Storage,
    pub dst_addr: Storage,
    /// The kernel's index of the device.
    pub ibdev_index: u32,
    pub reserved1: u32,
}
layout!(QueryAddrResp, 280, port_num @ 8, pkey @ 10, src_size @ 12, src_addr @ 16, dst_addr @ 144, ibdev_index @ 272);

impl Default for QueryAddrResp {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// A path record with what it is for. The record is as on the wire (IB spec 15.2.5.16), big endian.
#[doc(alias = "ib_path_rec_data")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PathData {
    pub flags: u32,
    pub reserved: u32,
    pub path_rec: [u32; 16],
}
layout!(PathData, 72, path_rec @ 8);

/// Path records of a route: a primary one and an alternate one are the most that there are.
#[doc(alias = "rdma_ucm_query_path_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPathResp {
    pub num_paths: u32,
    pub reserved: u32,
    pub path_data: [PathData; 2],
}
layout!(QueryPathResp, 152, path_data @ 8);

/// A path record taken apart.
#[doc(alias = "ib_user_path_rec")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PathRec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    /// Big endian, as are the other byte arrays.
    pub dlid: [u8; 2],
    pub slid: [u8; 2],
    pub raw_traffic: u32,
    pub flow_label: [u8; 4],
    pub reversible: u32,
    pub mtu: u32,
    pub pkey: [u8; 2],
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub numb_path: u8,
    pub sl: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(PathRec, 64, dlid @ 32, flow_label @ 40, pkey @ 52, sl @ 57, preference @ 63);

/// Addresses, device and route of an id.
#[doc(alias = "rdma_ucm_query_route_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct QueryRouteResp {
    /// Big endian.
    pub node_guid: [u8; 8],
    pub ib_route: [PathRec; 2],
    pub src_addr: SockaddrIn6,
    pub dst_addr: SockaddrIn6,
    pub num_paths: u32,
    pub port_num: u8,
    pub reserved: [u8; 3],
    pub ibdev_index: u32,
    pub reserved1: u32,
}
layout!(QueryRouteResp, 208, ib_route @ 8, src_addr @ 136, num_paths @ 192, port_num @ 196, ibdev_index @ 200);

/// Attributes that bring a queue pair into a state. Its addresses are laid out otherwise than those of MODIFY_QP.
#[doc(alias = "ib_uverbs_qp_attr")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpAttr {
    /// Which of them are meant.
    pub qp_attr_mask: u32,
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 5],
}
layout!(QpAttr, 144, ah_attr @ 40, alt_ah_attr @ 72, pkey_index @ 124, max_rd_atomic @ 130, port_num @ 133);

/// What the other side of datagrams says of itself.
#[doc(alias = "rdma_ucm_ud_param")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UdParam {
    pub qp_num: u32,
    pub qkey: u32,
    pub ah_attr: AhAttr,
    pub private_data: [u8; MAX_PRIVATE_DATA],
    pub private_data_len: u8,
    pub reserved: [u8; 7],
}
layout!(UdParam, 304, ah_attr @ 8, private_data @ 40, private_data_len @ 296);

impl Default for UdParam {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// What [`EventResp::param`] holds: a [`ConnParam`], or of datagrams a [`UdParam`].
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventParam {
    words: [u32; 76],
}
layout!(EventParam, 304);

impl EventParam {
    pub fn conn(&self) -> ConnParam {
        let mut param = ConnParam::default();
        let len_bytes = size_of::<ConnParam>();
        param.as_mut_bytes().copy_from_slice(&self.as_bytes()[..len_bytes]);
        param
    }

    pub fn ud(&self) -> UdParam {
        zerocopy::transmute!(*self)
    }
}

#[cfg(test)]
impl From<UdParam> for EventParam {
    fn from(param: UdParam) -> Self {
        zerocopy::transmute!(param)
    }
}

#[cfg(test)]
impl From<ConnParam> for EventParam {
    fn from(param: ConnParam) -> Self {
        let mut words = Self { words: [0; 76] };
        words.as_mut_bytes()[..size_of::<ConnParam>()].copy_from_slice(param.as_bytes());
        words
    }
}

/// An event.
#[doc(alias = "rdma_ucm_event_resp")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventResp {
    /// As given with the id, or of a connection request the listening one's.
    pub uid: u64,
    /// The id's number, or of a connection request the new id's.
    pub id: u32,
    pub event: u32,
    /// Signed; what it means depends on `event`.
    pub status: u32,
    pub param: EventParam,
    pub reserved: u32,
    pub ece: Ece,
}
layout!(EventResp, 336, id @ 8, event @ 12, status @ 16, param @ 20, reserved @ 324, ece @ 328);

impl Default for EventResp {
    fn default() -> Self {
        Self::new_zeroed()
    }
}
