//! The `RDMA_VERBS_IOCTL` command: header, attributes, and the numbers of objects, methods and attributes.
//!
//! Sources: `include/uapi/rdma/rdma_user_ioctl_cmds.h` (framing) and `include/uapi/rdma/ib_user_ioctl_cmds.h` (numbers).
//! Rules of the framing: `drivers/infiniband/core/uverbs_ioctl.c`.

use super::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The one request number of the ioctl interface.
pub const RDMA_VERBS_IOCTL: u32 = 0xc018_1b01;

/// Head of an ioctl command; `num_attrs` [`Attr`]s follow.
#[doc(alias = "ib_uverbs_ioctl_hdr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlHdr {
    /// Bytes of header and attributes together.
    pub length: u16,
    pub object_id: u16,
    pub method_id: u16,
    pub num_attrs: u16,
    pub reserved1: u64,
    /// Must be the device's own driver, for core objects too.
    pub driver_id: u32,
    pub reserved2: u32,
}
layout!(IoctlHdr, 24, object_id @ 2, method_id @ 4, num_attrs @ 6, driver_id @ 16);

/// One attribute of an ioctl command.
#[doc(alias = "ib_uverbs_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attr {
    pub attr_id: u16,
    /// Bytes of what `data` holds or points to; 0 for objects and file descriptors.
    pub len: u16,
    /// See [`attr_flags`].
    pub flags: u16,
    /// Element of an enumeration attribute; reserved in all others.
    pub attr_data: u16,
    /// An input of at most 8 bytes itself, a user address, an object handle, or a file descriptor.
    pub data: u64,
}
layout!(Attr, 16, len @ 2, flags @ 4, attr_data @ 6, data @ 8);

/// Flags of an [`Attr`].
pub mod attr_flags {
    /// The kernel is to refuse the command if it does not know the attribute. Without it the attribute is skipped.
    #[doc(alias = "UVERBS_ATTR_F_MANDATORY")]
    pub const MANDATORY: u16 = 1 << 0;
}

/// Numbers of object types (`enum uverbs_default_objects`).
pub mod object {
    pub const DEVICE: u16 = 0;
    pub const PD: u16 = 1;
    pub const COMP_CHANNEL: u16 = 2;
    pub const CQ: u16 = 3;
    pub const QP: u16 = 4;
    pub const SRQ: u16 = 5;
    pub const AH: u16 = 6;
    pub const MR: u16 = 7;
    pub const MW: u16 = 8;
    pub const XRCD: u16 = 10;
    pub const DM: u16 = 14;
    pub const ASYNC_EVENT: u16 = 16;
}

/// A method of an object type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    pub object: u16,
    pub method: u16,
}

/// The methods that this library calls.
pub mod method {
    use super::{Method, object};

    const fn on(object: u16, method: u16) -> Method {
        Method { object, method }
    }

    /// A command of the write() interface inside an ioctl.
    #[doc(alias = "UVERBS_METHOD_INVOKE_WRITE")]
    pub const INVOKE_WRITE: Method = on(object::DEVICE, 0);
    #[doc(alias = "UVERBS_METHOD_INFO_HANDLES")]
    pub const INFO_HANDLES: Method = on(object::DEVICE, 1);
    #[doc(alias = "UVERBS_METHOD_QUERY_PORT")]
    pub const QUERY_PORT: Method = on(object::DEVICE, 2);
    #[doc(alias = "UVERBS_METHOD_GET_CONTEXT")]
    pub const GET_CONTEXT: Method = on(object::DEVICE, 3);
    #[doc(alias = "UVERBS_METHOD_QUERY_GID_TABLE")]
    pub const QUERY_GID_TABLE: Method = on(object::DEVICE, 5);
    #[doc(alias = "UVERBS_METHOD_QUERY_GID_ENTRY")]
    pub const QUERY_GID_ENTRY: Method = on(object::DEVICE, 6);
    #[doc(alias = "UVERBS_METHOD_PD_DESTROY")]
    pub const PD_DESTROY: Method = on(object::PD, 0);
    #[doc(alias = "UVERBS_METHOD_CQ_CREATE")]
    pub const CQ_CREATE: Method = on(object::CQ, 0);
    #[doc(alias = "UVERBS_METHOD_CQ_DESTROY")]
    pub const CQ_DESTROY: Method = on(object::CQ, 1);
    #[doc(alias = "UVERBS_METHOD_AH_DESTROY")]
    pub const AH_DESTROY: Method = on(object::AH, 0);
    #[doc(alias = "UVERBS_METHOD_QP_CREATE")]
    pub const QP_CREATE: Method = on(object::QP, 0);
    #[doc(alias = "UVERBS_METHOD_QP_DESTROY")]
    pub const QP_DESTROY: Method = on(object::QP, 1);
    #[doc(alias = "UVERBS_METHOD_SRQ_CREATE")]
    pub const SRQ_CREATE: Method = on(object::SRQ, 0);
    #[doc(alias = "UVERBS_METHOD_SRQ_DESTROY")]
    pub const SRQ_DESTROY: Method = on(object::SRQ, 1);
    #[doc(alias = "UVERBS_METHOD_MR_DESTROY")]
    pub const MR_DESTROY: Method = on(object::MR, 1);
    #[doc(alias = "UVERBS_METHOD_ADVISE_MR")]
    pub const ADVISE_MR: Method = on(object::MR, 2);
    #[doc(alias = "UVERBS_METHOD_REG_DMABUF_MR")]
    pub const REG_DMABUF_MR: Method = on(object::MR, 4);
    #[doc(alias = "UVERBS_METHOD_MW_DESTROY")]
    pub const MW_DESTROY: Method = on(object::MW, 0);
    #[doc(alias = "UVERBS_METHOD_XRCD_DESTROY")]
    pub const XRCD_DESTROY: Method = on(object::XRCD, 0);
    #[doc(alias = "UVERBS_METHOD_DM_ALLOC")]
    pub const DM_ALLOC: Method = on(object::DM, 0);
    #[doc(alias = "UVERBS_METHOD_DM_FREE")]
    pub const DM_FREE: Method = on(object::DM, 1);
    #[doc(alias = "UVERBS_METHOD_ASYNC_EVENT_ALLOC")]
    pub const ASYNC_EVENT_ALLOC: Method = on(object::ASYNC_EVENT, 0);
}

/// Numbers of attributes, by method.
pub mod attr {
    /// Driver's request data; the same number in every method.
    #[doc(alias = "UVERBS_ATTR_UHW_IN")]
    pub const UHW_IN: u16 = 0x1000;
    /// Driver's response data; the same number in every method.
    #[doc(alias = "UVERBS_ATTR_UHW_OUT")]
    pub const UHW_OUT: u16 = 0x1001;

    pub mod invoke_write {
        pub const CORE_IN: u16 = 0;
        pub const CORE_OUT: u16 = 1;
        /// Constant: the command's number.
        pub const WRITE_CMD: u16 = 2;
    }

    pub mod info_handles {
        /// Constant: object type.
        pub const OBJECT_ID: u16 = 0;
        /// `u32` out: how many handles were written.
        pub const TOTAL_HANDLES: u16 = 1;
        /// `u32[]` out. The kernel refuses the method without it.
        pub const HANDLES_LIST: u16 = 2;
    }

    pub mod query_port {
        /// Constant: port number.
        pub const PORT_NUM: u16 = 0;
        /// `QueryPortRespEx` out.
        pub const RESP: u16 = 1;
    }

    pub mod get_context {
        /// `u32` out.
        pub const NUM_COMP_VECTORS: u16 = 0;
        /// `u64` out: see `core_support`.
        pub const CORE_SUPPORT: u16 = 1;
    }

    pub mod query_gid_table {
        /// Constant: bytes of one entry.
        pub const ENTRY_SIZE: u16 = 0;
        /// Flags: none are defined.
        pub const FLAGS: u16 = 1;
        /// `GidEntry[]` out.
        pub const RESP_ENTRIES: u16 = 2;
        /// `u64` out: how many entries were written.
        pub const RESP_NUM_ENTRIES: u16 = 3;
    }

    pub mod query_gid_entry {
        /// Constant.
        pub const PORT: u16 = 0;
        /// Constant.
        pub const GID_INDEX: u16 = 1;
        /// Flags: none are defined, yet the attribute is required.
        pub const FLAGS: u16 = 2;
        /// `GidEntry` out.
        pub const RESP_ENTRY: u16 = 3;
    }

    pub mod destroy {
        /// The object; the same number in the destroy methods of PD, MR, CQ, QP and SRQ.
        pub const HANDLE: u16 = 0;
        /// Counts of reported events, out (CQ, QP and SRQ only).
        pub const RESP: u16 = 1;
    }

    pub mod advise_mr {
        /// The protection domain of the regions.
        pub const PD_HANDLE: u16 = 0;
        /// Constant: `enum ib_uverbs_advise_mr_advice`.
        pub const ADVICE: u16 = 1;
        /// Flags (`enum ib_uverbs_advise_mr_flag`).
        pub const FLAGS: u16 = 2;
        /// `Sge[]`.
        pub const SGE_LIST: u16 = 3;
    }

    pub mod reg_dmabuf_mr {
        /// New object.
        pub const HANDLE: u16 = 0;
        pub const PD_HANDLE: u16 = 1;
        /// `u64`: where in the buffer the region starts.
        pub const OFFSET: u16 = 2;
        /// `u64`: bytes.
        pub const LENGTH: u16 = 3;
        /// `u64`: the address by which work requests name the first byte.
        pub const IOVA: u16 = 4;
        /// `u32`: the file descriptor, as a number and not as an attribute of that kind.
        pub const FD: u16 = 5;
        /// Flags (`enum ib_uverbs_access_flags`).
        pub const ACCESS_FLAGS: u16 = 6;
        /// `u32` out.
        pub const RESP_LKEY: u16 = 7;
        /// `u32` out.
        pub const RESP_RKEY: u16 = 8;
    }

    pub mod alloc_dm {
        /// New object.
        pub const HANDLE: u16 = 0;
        /// `u64`: bytes.
        pub const LENGTH: u16 = 1;
        /// `u32`: alignment, as a power of two.
        pub const ALIGNMENT: u16 = 2;
    }

    pub mod create_cq {
        /// New object.
        pub const HANDLE: u16 = 0;
        /// `u32`: entries asked for.
        pub const CQE: u16 = 1;
        /// `u64`: comes back in events.
        pub const USER_HANDLE: u16 = 2;
        /// File descriptor, optional.
        pub const COMP_CHANNEL: u16 = 3;
        /// `u32`.
        pub const COMP_VECTOR: u16 = 4;
        /// Flags, optional: see `cq_create_flags`.
        pub const FLAGS: u16 = 5;
        /// `u32` out: entries there are.
        pub const RESP_CQE: u16 = 6;
    }

    pub mod create_qp {
        /// New object.
        pub const HANDLE: u16 = 0;
        /// Of the receiving end of XRC only, instead of protection domain and completion queues.
        pub const XRCD_HANDLE: u16 = 1;
        pub const PD_HANDLE: u16 = 2;
        /// Optional.
        pub const SRQ_HANDLE: u16 = 3;
        pub const SEND_CQ_HANDLE: u16 = 4;
        /// Not of the sending end of XRC.
        pub const RECV_CQ_HANDLE: u16 = 5;
        /// `u64`: comes back in events.
        pub const USER_HANDLE: u16 = 7;
        /// `QpCap`.
        pub const CAP: u16 = 8;
        /// Constant: transport (`enum ib_uverbs_qp_type`).
        pub const TYPE: u16 = 9;
        /// Flags: see `qp_create_flags`.
        pub const FLAGS: u16 = 10;
        /// `QpCap` out.
        pub const RESP_CAP: u16 = 13;
        /// `u32` out.
        pub const RESP_QP_NUM: u16 = 14;
    }

    pub mod create_srq {
        /// New object.
        pub const HANDLE: u16 = 0;
        pub const PD_HANDLE: u16 = 1;
        /// Of an XRC queue only.
        pub const XRCD_HANDLE: u16 = 2;
        /// Where receives complete, of an XRC queue only.
        pub const CQ_HANDLE: u16 = 3;
        /// `u64`: comes back in events.
        pub const USER_HANDLE: u16 = 4;
        /// `u32`: receives asked for.
        pub const MAX_WR: u16 = 5;
        /// `u32`: scatter/gather entries of a receive.
        pub const MAX_SGE: u16 = 6;
        /// `u32`: fewer receives than this give an event, once; 0 for none.
        pub const LIMIT: u16 = 7;
        /// Constant: see `srq_type`.
        pub const TYPE: u16 = 9;
        /// `u32` out.
        pub const RESP_MAX_WR: u16 = 11;
        /// `u32` out.
        pub const RESP_MAX_SGE: u16 = 12;
        /// `u32` out, of an XRC queue only: its number.
        pub const RESP_SRQ_NUM: u16 = 13;
    }

    pub mod async_event_alloc {
        /// New file descriptor.
        pub const FD_HANDLE: u16 = 0;
    }
}

/// Bits of [`attr::create_cq::FLAGS`] (`enum ib_uverbs_ex_create_cq_flags`).
pub mod cq_create_flags {
    /// Completions carry the device's clock.
    #[doc(alias = "IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION")]
    pub const TIMESTAMP_COMPLETION: u32 = 1 << 0;
}

/// Bits of [`attr::create_qp::FLAGS`] (`enum ib_uverbs_qp_create_flags`).
pub mod qp_create_flags {
    /// Every send work request completes, signaled or not.
    #[doc(alias = "IB_UVERBS_QP_CREATE_SQ_SIG_ALL")]
    pub const SQ_SIG_ALL: u32 = 1 << 12;
}
