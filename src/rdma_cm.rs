//! The connection manager: connections and services of datagrams by IP address and port.
//!
//! Most RDMA programs meet each other this way, and so can those of this library: with each other, and with programs on
//! librdmacm. It speaks to `/dev/infiniband/rdma_cm` (kernel module `rdma_ucm`) itself.
//!
//! [`Connector`] and [`Listener`] lead to a [`Connection`] in a few calls, each with a deadline; with feature `tokio` each has a
//! twin for tasks.
//!
//! [`EventChannel`] and [`CmId`] are the connection manager as the kernel has it, for programs with an event loop: each step
//! returns at once, and an [`Event`] tells what came of it.

pub use crate::cm::channel::EventChannel;
pub use crate::cm::data::{PrivateData, SendData};
pub use crate::cm::error::{About, Error, Step};
pub use crate::cm::event::{DatagramPeer, Ece, Event, EventType, PeerParams};
pub use crate::cm::id::{CmId, ConnParams, IdKey, PortSpace};
pub use crate::cm::reason::{Reason, RejectReason, SidrStatus};
pub use crate::cm::state::State;
pub use crate::cm::{Group, IbAddress, IdAddress, IdGids, Membership};
pub use crate::verbs::rdma_cm::{Connection, Connector, Devices, Handshake, Link, Listener, Request, Route};
