//! The commands of the write() interface: their requests, responses and numbers.
//!
//! They are also sent through the ioctl (`INVOKE_WRITE`): the same structures, without [`CmdHdr`].
//! Source: `include/uapi/rdma/ib_user_verbs.h`. Rules: `verify_hdr` in `drivers/infiniband/core/uverbs_main.c`.
//!
//! # Safety argument
//!
//! [`WriteCommand`] is an `unsafe trait` that promises that a request names no memory of the caller. It is implemented
//! by hand for each structure below; those that do name memory (`RegMr`, `ReregMr`, a driver's part of `ModifySrq`, and any
//! request's `response`, which is filled in where the command is sent) are set apart.
#![allow(unsafe_code)]

mod address;
mod device;
mod memory;
mod objects;
mod srq;
mod xrc;

pub use address::*;
pub use device::*;
pub use memory::*;
pub use objects::*;
pub use srq::*;
pub use xrc::*;

use super::layout;
use super::verbs::{DestroyCqResp, DestroyQpResp, DestroySrqResp, QueryPortResp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bit of a command number that marks the extended form, which has [`ExCmdHdr`] and counts 8-byte words.
#[doc(alias = "IB_USER_VERBS_CMD_FLAG_EXTENDED")]
pub const EXTENDED: u32 = 0x8000_0000;

/// Numbers of commands (`enum ib_uverbs_write_cmds`).
#[doc(alias = "ib_uverbs_write_cmds")]
pub mod command {
    use super::EXTENDED;

    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const REQ_NOTIFY_CQ: u32 = 23;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    pub const OPEN_XRCD: u32 = 37;
    pub const CLOSE_XRCD: u32 = 38;
    pub const CREATE_XSRQ: u32 = 39;
    pub const OPEN_QP: u32 = 40;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const EX_QUERY_DEVICE: u32 = EXTENDED | 1;
    pub const EX_MODIFY_CQ: u32 = EXTENDED | 57;
}

/// A request that is sent with [`WriteCommand::COMMAND`] and answered with a `Response`.
///
/// A plain command with a response starts with an 8-byte `response`, zero until the command is sent.
///
/// # Safety
///
/// `COMMAND` is the number of the command that `Self` and `Response` are the kernel's structures of, and the request
/// hands no memory to the kernel or the device: neither during the call, other than the response, nor later.
pub unsafe trait WriteCommand: IntoBytes + Immutable {
    /// The command's number, with [`EXTENDED`] where it is extended.
    const COMMAND: u32;
    /// What the kernel answers; `()` for nothing.
    type Response: IntoBytes + FromBytes + Immutable;
}

macro_rules! commands {
    ($($request:ty = $command:ident -> $response:ty;)*) => {
        $(
            // SAFETY: the number and the structures carry the same name in the kernel's header, and none of the
            // request's fields is an address, other than `response`.
            unsafe impl WriteCommand for $request {
                const COMMAND: u32 = command::$command;
                type Response = $response;
            }
        )*
    };
}

commands! {
    GetContext = GET_CONTEXT -> GetContextResp;
    QueryDevice = QUERY_DEVICE -> QueryDeviceResp;
    ExQueryDevice = EX_QUERY_DEVICE -> ExQueryDeviceResp;
    QueryPort = QUERY_PORT -> QueryPortResp;
    AllocPd = ALLOC_PD -> AllocPdResp;
    DeallocPd = DEALLOC_PD -> ();
    DeregMr = DEREG_MR -> ();
    AllocMw = ALLOC_MW -> AllocMwResp;
    DeallocMw = DEALLOC_MW -> ();
    CreateCompChannel = CREATE_COMP_CHANNEL -> CreateCompChannelResp;
    CreateCq = CREATE_CQ -> CreateCqResp;
    ResizeCq = RESIZE_CQ -> ResizeCqResp;
    DestroyCq = DESTROY_CQ -> DestroyCqResp;
    ReqNotifyCq = REQ_NOTIFY_CQ -> ();
    ExModifyCq = EX_MODIFY_CQ -> ();
    CreateQp = CREATE_QP -> CreateQpResp;
    QueryQp = QUERY_QP -> QueryQpResp;
    ModifyQp = MODIFY_QP -> ();
    DestroyQp = DESTROY_QP -> DestroyQpResp;
    PostSend = POST_SEND -> PostSendResp;
    CreateSrq = CREATE_SRQ -> CreateSrqResp;
    QuerySrq = QUERY_SRQ -> QuerySrqResp;
    DestroySrq = DESTROY_SRQ -> DestroySrqResp;
    OpenXrcd = OPEN_XRCD -> OpenXrcdResp;
    CloseXrcd = CLOSE_XRCD -> ();
    CreateXsrq = CREATE_XSRQ -> CreateSrqResp;
    OpenQp = OPEN_QP -> CreateQpResp;
    CreateAh = CREATE_AH -> CreateAhResp;
    DestroyAh = DESTROY_AH -> ();
    AttachMcast = ATTACH_MCAST -> ();
    DetachMcast = DETACH_MCAST -> ();
}

/// Head of a command given to write().
#[doc(alias = "ib_uverbs_cmd_hdr")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CmdHdr {
    pub command: u32,
    /// Plain: 4-byte words of header and request. Extended: 8-byte words of the request alone.
    pub in_words: u16,
    /// Words of the response, of the same size.
    pub out_words: u16,
}
layout!(CmdHdr, 8, in_words @ 4, out_words @ 6);

/// Second head of an extended command given to write().
#[doc(alias = "ib_uverbs_ex_cmd_hdr")]
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExCmdHdr {
    pub response: u64,
    /// 8-byte words of the driver's request.
    pub provider_in_words: u16,
    /// 8-byte words of the driver's response.
    pub provider_out_words: u16,
    pub cmd_hdr_reserved: u32,
}
layout!(ExCmdHdr, 16, provider_in_words @ 8, provider_out_words @ 10);
