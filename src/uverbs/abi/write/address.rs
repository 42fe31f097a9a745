//! Requests and responses about addresses: address handles and multicast groups.

use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Global route of an address.
#[doc(alias = "ib_uverbs_global_route")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GlobalRoute {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reserved: u8,
}
layout!(GlobalRoute, 24, flow_label @ 16, sgid_index @ 20, traffic_class @ 22);

/// An address: where a datagram goes.
#[doc(alias = "ib_uverbs_ah_attr")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
    pub reserved: u8,
}
layout!(AhAttr, 32, dlid @ 24, sl @ 26, is_global @ 29, port_num @ 30);

/// Makes an address handle.
#[doc(alias = "ib_uverbs_create_ah")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateAh {
    pub response: u64,
    pub user_handle: u64,
    pub pd_handle: u32,
    pub reserved: u32,
    pub attr: AhAttr,
}
layout!(CreateAh, 56, user_handle @ 8, pd_handle @ 16, attr @ 24);

/// Answer to [`CreateAh`].
#[doc(alias = "ib_uverbs_create_ah_resp")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateAhResp {
    pub ah_handle: u32,
}
layout!(CreateAhResp, 4);

/// Destroys an address handle.
#[doc(alias = "ib_uverbs_destroy_ah")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyAh {
    pub ah_handle: u32,
}
layout!(DestroyAh, 4);

/// Joins a queue pair to a multicast group.
#[doc(alias = "ib_uverbs_attach_mcast")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct AttachMcast {
    pub gid: [u8; 16],
    pub qp_handle: u32,
    pub mlid: u16,
    pub reserved: u16,
}
layout!(AttachMcast, 24, qp_handle @ 16, mlid @ 20);

/// Takes a queue pair out of a multicast group.
#[doc(alias = "ib_uverbs_detach_mcast")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct DetachMcast {
    pub gid: [u8; 16],
    pub qp_handle: u32,
    pub mlid: u16,
    pub reserved: u16,
}
layout!(DetachMcast, 24, qp_handle @ 16, mlid @ 20);
