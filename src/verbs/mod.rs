//! The public API.

pub use crate::uverbs::device::{DeviceIndex, DeviceInfo, DriverId, PortInfo, Unusable};
pub use crate::uverbs::errno::Errno;
pub use crate::uverbs::error::{Error, Lacking, Transition, Verb};
pub use crate::uverbs::types::{Gid, GidIndex, Guid, Lid, LinkLayer, Lkey, Mtu, OutOfRange, PortNum, Psn, Qpn, Rkey};
pub use crate::uverbs::wr::{PollError, PostError, RemoteAddr, Sge, WcOpcode, WcStatus, WrFlags};
