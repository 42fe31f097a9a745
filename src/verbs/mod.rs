//! The public API: devices, contexts, protection domains, memory, completion queues, queue pairs.

mod access;
mod ah;
mod any;
mod attr;
mod batch;
mod channel;
mod counted;
mod cq;
mod cq_depth;
mod datagram;
mod device;
mod device_memory;
mod dmabuf;
mod drain;
mod endpoint_text;
mod events;
mod fork;
mod gid;
mod halves;
mod health;
mod mcast;
mod mlx5;
mod mr;
mod mr_builder;
mod odp;
mod opened;
mod owners;
mod pages;
mod pd;
mod persist;
mod poll;
mod pool;
mod prepared;
mod provider;
mod qp;
mod qp_core;
mod qp_type;
mod registry;
mod route;
mod scope;
mod slots;
mod srq;
#[cfg(feature = "tokio")]
pub mod tokio;
mod transition;
mod wc;
mod window;
mod window_post;

pub use crate::uverbs::attr::{
    AddressVector, DeviceAttr, GidEntry, GidType, OdpCaps, PortAttr, PortState, QpAttr, QpCap, QpState, RssCaps, TmCaps,
};
pub use crate::uverbs::details::{DeviceDetails, GidDetails, LinkRate, NetnsMode, NodeType, PhysState, PortDetails};
pub use crate::uverbs::device::{DeviceIndex, DeviceInfo, DriverId, PortInfo, Unusable};
pub use crate::uverbs::errno::Errno;
pub use crate::uverbs::error::{Error, Lacking, Transition, Verb};
pub use crate::uverbs::event::AsyncEventType;
pub use crate::uverbs::explain::PinLimits;
pub use crate::uverbs::memory_wr::{FlushLevel, FlushPlacement, MwBinding};
pub use crate::uverbs::object::{Leak, ObjectKind};
pub use crate::uverbs::shared_receive_queue::SrqAttr;
pub use crate::uverbs::types::{
    Gid, GidIndex, Guid, Lid, LinkLayer, Lkey, Mtu, OutOfRange, PortNum, Psn, QKey, Qpn, Rkey,
};
pub use crate::uverbs::wc::{Done, Source, Wc, WcError};
pub use crate::uverbs::wr::{
    Inline, InlinePieces, Payload, PollError, PostError, RemoteAddr, Sge, WcOpcode, WcStatus, WrFlags,
};
pub use access::AccessFlags;
pub use ah::{AddressHandle, Destination};
pub use attr::{AckTimeout, Grh, Path, QpUpdate, RnrTimer};
pub use batch::{RecvBatch, SendBatch};
pub use channel::CompChannel;
pub use cq::{Cq, CqBuilder, CqId, Notify};
pub use cq_depth::{CqDepth, CqLoad};
pub use datagram::{Datagram, DatagramError, GRH_BYTES, GrhKind, ReceivedGrh};
pub use device::{Context, devices};
pub use device_memory::DeviceMemory;
pub use dmabuf::DmabufMr;
pub use endpoint_text::ParseEndpointError;
pub use events::{AsyncEvent, AsyncEvents, SrqId, Subject};
pub use fork::ForkPolicy;
pub use gid::{AddressFamily, GidChoice, GidLoss, GidReason, GidWant, NoGid, choose_gid};
pub use halves::{JoinError, RecvHalf, SendHalf};
pub use mr::{CloseError, Memory, Mr};
pub use mr_builder::MrBuilder;
pub use odp::{Advice, ImplicitMr};
pub use pages::{PageKind, Pages};
pub use pd::Pd;
pub use poll::Completions;
pub use pool::{Pool, Slot, SlotError};
pub use prepared::{ConnectError, ConnectOptions, Endpoint, PreparedQp, QpBuilder};
pub use provider::{Any, Mlx5, Provider, Rxe};
pub use qp::Qp;
pub use qp_type::{Connected, QpType, Rc, Uc, Ud};
pub use scope::Scope;
pub use srq::{Srq, SrqBuilder};
pub use transition::Transport;
pub use wc::Completion;
pub use window::{Mw, MwType};
