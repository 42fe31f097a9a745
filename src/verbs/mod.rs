//! The public API.

mod gid;

pub use crate::uverbs::attr::{GidEntry, GidType, PortState};
pub use crate::uverbs::details::{DeviceDetails, GidDetails, LinkRate, NetnsMode, NodeType, PhysState, PortDetails};
pub use crate::uverbs::device::{DeviceIndex, DeviceInfo, DriverId, PortInfo, Unusable};
pub use crate::uverbs::errno::Errno;
pub use crate::uverbs::error::{Error, Lacking, Transition, Verb};
pub use crate::uverbs::types::{Gid, GidIndex, Guid, Lid, LinkLayer, Lkey, Mtu, OutOfRange, PortNum, Psn, Qpn, Rkey};
pub use crate::uverbs::wr::{PollError, PostError, RemoteAddr, Sge, WcOpcode, WcStatus, WrFlags};
pub use gid::{AddressFamily, GidChoice, GidLoss, GidReason, GidWant, NoGid, choose_gid};
