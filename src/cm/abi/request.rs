//! Requests.

use super::{MAX_PRIVATE_DATA, query};
use crate::uverbs::abi::layout;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// An IPv6 address as sockets know it, or an IPv4 one in its first 16 bytes.
#[doc(alias = "sockaddr_in6")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SockaddrIn6 {
    pub family: u16,
    /// Big endian.
    pub port: [u8; 2],
    /// Big endian; the address itself if that is an IPv4 one.
    pub flowinfo: [u8; 4],
    pub addr: [u8; 16],
    pub scope_id: u32,
}
layout!(SockaddrIn6, 28, port @ 2, flowinfo @ 4, addr @ 8, scope_id @ 24);

/// Room for an address of any family.
#[doc(alias = "__kernel_sockaddr_storage")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Storage {
    pub bytes: [u8; 128],
}
layout!(Storage, 128);

/// Makes an id.
#[doc(alias = "rdma_ucm_create_id")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateId {
    /// Comes back in events. The kernel keeps quiet about ids whose `uid` is zero.
    pub uid: u64,
    pub response: u64,
    pub ps: u16,
    /// `enum ib_qp_type`; counts in the port space IB only.
    pub qp_type: u8,
    pub reserved: [u8; 5],
}
layout!(CreateId, 24, response @ 8, ps @ 16, qp_type @ 18);

/// Destroys an id.
#[doc(alias = "rdma_ucm_destroy_id")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyId {
    pub response: u64,
    pub id: u32,
    pub reserved: u32,
}
layout!(DestroyId, 16, id @ 8);

/// Leaves a multicast group; `id` is what joining it gave. The same structure as [`DestroyId`].
#[doc(alias = "rdma_ucm_destroy_id")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LeaveMcast {
    pub response: u64,
    pub id: u32,
    pub reserved: u32,
}
layout!(LeaveMcast, 16, id @ 8);

/// Binds an id to an IP address.
#[doc(alias = "rdma_ucm_bind_ip")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindIp {
    /// Not used: there is no response.
    pub response: u64,
    pub addr: SockaddrIn6,
    pub id: u32,
}
layout!(BindIp, 40, addr @ 8, id @ 36);

/// Binds an id to an address of any family.
#[doc(alias = "rdma_ucm_bind")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bind {
    pub id: u32,
    /// Exactly as long as addresses of the family are.
    pub addr_size: u16,
    pub reserved: u16,
    pub addr: Storage,
}
layout!(Bind, 136, addr_size @ 4, addr @ 8);

/// Resolves an IP address.
#[doc(alias = "rdma_ucm_resolve_ip")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveIp {
    /// All zero to leave it to the kernel.
    pub src_addr: SockaddrIn6,
    pub dst_addr: SockaddrIn6,
    pub id: u32,
    pub timeout_ms: u32,
}
layout!(ResolveIp, 64, dst_addr @ 28, id @ 56, timeout_ms @ 60);

/// Resolves an address of any family.
#[doc(alias = "rdma_ucm_resolve_addr")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveAddr {
    pub id: u32,
    pub timeout_ms: u32,
    /// Zero to leave the source to the kernel.
    pub src_size: u16,
    pub dst_size: u16,
    pub reserved: u32,
    pub src_addr: Storage,
    pub dst_addr: Storage,
}
layout!(ResolveAddr, 272, src_size @ 8, dst_size @ 10, src_addr @ 16, dst_addr @ 144);

/// Resolves the route to a resolved address.
#[doc(alias = "rdma_ucm_resolve_route")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResolveRoute {
    pub id: u32,
    /// Not zero.
    pub timeout_ms: u32,
}
layout!(ResolveRoute, 8);

/// `struct rdma_ucm_query`, in a type for each kind of answer.
macro_rules! query {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[doc(alias = "rdma_ucm_query")]
        #[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            pub response: u64,
            pub id: u32,
            pub option: u32,
        }
        layout!($name, 16, id @ 8, option @ 12);
    };
}

query! {
    /// Asks for addresses, as bound and resolved ([`ADDR`](query::ADDR)) or as GIDs ([`GID`](query::GID)).
    QueryAddr
}
query! {
    /// Asks for the path records of the route ([`PATH`](query::PATH)).
    QueryPath
}
query! {
    /// Asks for addresses and route at once, of IP only; `option` means nothing.
    QueryRoute
}

impl QueryPath {
    pub fn of(id: u32) -> Self {
        Self { response: 0, id, option: query::PATH }
    }
}

/// What a side says of itself when it connects or accepts, and learns from the other side in an event.
#[doc(alias = "rdma_ucm_conn_param")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnParam {
    pub qp_num: u32,
    pub qkey: u32,
    pub private_data: [u8; MAX_PRIVATE_DATA],
    pub private_data_len: u8,
    pub srq: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Whether any of it counts.
    pub valid: u8,
}
layout!(ConnParam, 272, private_data @ 8, private_data_len @ 264, retry_count @ 269, valid @ 271);

impl Default for ConnParam {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// Enhanced connection establishment: an agreement of two adapters of one vendor.
#[doc(alias = "rdma_ucm_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ece {
    pub vendor_id: u32,
    pub attr_mod: u32,
}
layout!(Ece, 8);

/// Connects.
#[doc(alias = "rdma_ucm_connect")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Connect {
    pub conn_param: ConnParam,
    pub id: u32,
    pub reserved: u32,
    pub ece: Ece,
}
layout!(Connect, 288, id @ 272, ece @ 280);

/// Listens.
#[doc(alias = "rdma_ucm_listen")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Listen {
    pub id: u32,
    /// Zero for as much as the kernel gives.
    pub backlog: u32,
}
layout!(Listen, 8);

/// Accepts; with `conn_param.valid` zero it acknowledges the other side's answer.
#[doc(alias = "rdma_ucm_accept")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Accept {
    /// As of [`CreateId`]: the id's own from now on.
    pub uid: u64,
    pub conn_param: ConnParam,
    pub id: u32,
    pub reserved: u32,
    pub ece: Ece,
}
layout!(Accept, 296, conn_param @ 8, id @ 280, ece @ 288);

/// Rejects.
#[doc(alias = "rdma_ucm_reject")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reject {
    pub id: u32,
    pub private_data_len: u8,
    /// Zero for the ordinary one.
    pub reason: u8,
    pub reserved: [u8; 2],
    pub private_data: [u8; MAX_PRIVATE_DATA],
}
layout!(Reject, 264, private_data_len @ 4, reason @ 5, private_data @ 8);

/// Disconnects.
#[doc(alias = "rdma_ucm_disconnect")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Disconnect {
    pub id: u32,
}
layout!(Disconnect, 4);

/// Asks for the attributes that bring a queue pair into a state.
#[doc(alias = "rdma_ucm_init_qp_attr")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitQpAttr {
    pub response: u64,
    pub id: u32,
    /// `enum ib_qp_state`.
    pub qp_state: u32,
}
layout!(InitQpAttr, 16, id @ 8, qp_state @ 12);

/// Tells the kernel what happened to the queue pair.
#[doc(alias = "rdma_ucm_notify")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notify {
    pub id: u32,
    /// `enum ib_event_type`.
    pub event: u32,
}
layout!(Notify, 8);

/// Joins the multicast group of an IP address.
#[doc(alias = "rdma_ucm_join_ip_mcast")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JoinIpMcast {
    pub response: u64,
    pub uid: u64,
    pub addr: SockaddrIn6,
    pub id: u32,
}
layout!(JoinIpMcast, 48, uid @ 8, addr @ 16, id @ 44);

/// Joins the multicast group of an address of any family.
#[doc(alias = "rdma_ucm_join_mcast")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JoinMcast {
    pub response: u64,
    pub uid: u64,
    pub id: u32,
    pub addr_size: u16,
    pub join_flags: u16,
    pub addr: Storage,
}
layout!(JoinMcast, 152, uid @ 8, id @ 16, addr_size @ 20, join_flags @ 22, addr @ 24);

/// Takes the next event.
#[doc(alias = "rdma_ucm_get_event")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetEvent {
    pub response: u64,
}
layout!(GetEvent, 8);

/// Sets an option. Names memory.
#[doc(alias = "rdma_ucm_set_option")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetOption {
    /// Address of `optlen` bytes.
    pub optval: u64,
    pub id: u32,
    pub level: u32,
    pub optname: u32,
    pub optlen: u32,
}
layout!(SetOption, 24, id @ 8, level @ 12, optname @ 16, optlen @ 20);

/// Takes an id over from another file; written to the new one.
#[doc(alias = "rdma_ucm_migrate_id")]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MigrateId {
    pub response: u64,
    pub id: u32,
    /// The file that it is taken from.
    pub fd: u32,
}
layout!(MigrateId, 16, id @ 8, fd @ 12);
