//! The structures and numbers of `/dev/infiniband/rdma_cm`, written by hand.
//!
//! Source: `include/uapi/rdma/rdma_user_cm.h`; what the kernel does with them: `drivers/infiniband/core/ucma.c`. Everything is
//! in the host's byte order unless a field says otherwise. `check` compares every field and constant with the installed
//! kernel headers.
//!
//! # Safety argument
//!
//! [`Command`] is an `unsafe trait` that promises that a request names no memory but its response's. It is implemented by
//! hand for each structure; `SetOption`, which does name memory, is set apart.
#![allow(unsafe_code)]

mod answer;
mod request;

pub use answer::*;
pub use request::*;

#[cfg(test)]
mod check;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of all of this (`RDMA_USER_CM_ABI_VERSION`).
pub const ABI_VERSION: u32 = 4;

/// Bytes that every private data field has room for; each message holds less.
pub const MAX_PRIVATE_DATA: usize = 256;

/// Numbers of commands.
#[doc(alias = "RDMA_USER_CM_CMD")]
pub mod command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
}

/// Port spaces (`enum rdma_ucm_port_space`).
pub mod port_space {
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// What [`Query`] asks for.
pub mod query {
    pub const ADDR: u32 = 0;
    pub const PATH: u32 = 1;
    pub const GID: u32 = 2;
}

/// Levels and names of options.
pub mod option {
    /// Level: the id itself.
    pub const ID: u32 = 0;
    /// Level: InfiniBand.
    pub const IB: u32 = 1;
    pub const ID_TOS: u32 = 0;
    pub const ID_REUSEADDR: u32 = 1;
    pub const ID_AFONLY: u32 = 2;
    pub const ID_ACK_TIMEOUT: u32 = 3;
    pub const IB_PATH: u32 = 1;
}

/// What a path record of [`PathData`] is for (`ib_user_sa.h`).
pub mod path_flags {
    pub const GMP: u32 = 1;
    pub const PRIMARY: u32 = 2;
    pub const OUTBOUND: u32 = 8;
    pub const INBOUND_REVERSE: u32 = 32;
    pub const BIDIRECTIONAL: u32 = OUTBOUND | INBOUND_REVERSE;
}

/// How to join a multicast group.
pub mod join {
    pub const FULLMEMBER: u16 = 0;
    pub const SENDONLY_FULLMEMBER: u16 = 1;
}

/// A request that is sent with [`Command::NUMBER`] and answered with a `Response`.
///
/// # Safety
///
/// The request's fields name no memory, but for the one that [`respond_to`](Self::respond_to) sets.
pub unsafe trait Command: IntoBytes + Immutable {
    const NUMBER: u32;
    /// `()` for none.
    type Response: FromBytes + IntoBytes + Immutable;
    /// Puts the response's address where the command has it.
    fn respond_to(&mut self, address: u64);
}

macro_rules! commands {
    ($($request:ty, $number:ident, $response:ty $(, $field:ident)?;)*) => {$(
        // SAFETY: no field of the structure is an address, but for `response`.
        unsafe impl Command for $request {
            const NUMBER: u32 = command::$number;
            type Response = $response;
            #[allow(unused_variables, reason = "not every command has a response")]
            fn respond_to(&mut self, address: u64) {
                $(self.$field = address;)?
            }
        }
    )*};
}

commands! {
    CreateId, CREATE_ID, IdResp, response;
    DestroyId, DESTROY_ID, EventsReported, response;
    BindIp, BIND_IP, ();
    Bind, BIND, ();
    ResolveIp, RESOLVE_IP, ();
    ResolveAddr, RESOLVE_ADDR, ();
    ResolveRoute, RESOLVE_ROUTE, ();
    QueryAddr, QUERY, QueryAddrResp, response;
    QueryPath, QUERY, QueryPathResp, response;
    QueryRoute, QUERY_ROUTE, QueryRouteResp, response;
    Connect, CONNECT, ();
    Listen, LISTEN, ();
    Accept, ACCEPT, ();
    Reject, REJECT, ();
    Disconnect, DISCONNECT, ();
    InitQpAttr, INIT_QP_ATTR, QpAttr, response;
    Notify, NOTIFY, ();
    JoinIpMcast, JOIN_IP_MCAST, IdResp, response;
    JoinMcast, JOIN_MCAST, IdResp, response;
    LeaveMcast, LEAVE_MCAST, EventsReported, response;
    MigrateId, MIGRATE_ID, EventsReported, response;
    GetEvent, GET_EVENT, EventResp, response;
}

/// What every command begins with. Both lengths are in bytes; neither counts the header.
#[doc(alias = "rdma_ucm_cmd_hdr")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CmdHdr {
    pub cmd: u32,
    /// Bytes of the request after this header.
    pub in_bytes: u16,
    /// Bytes that the response has room for.
    pub out_bytes: u16,
}
crate::uverbs::abi::layout!(CmdHdr, 8, in_bytes @ 4, out_bytes @ 6);
