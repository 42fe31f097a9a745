//! The connection manager: `/dev/infiniband/rdma_cm`, spoken without any provider.
//!
//! Commands are written to the file, and so is the one that takes the next event. What an event tells is copied out of the
//! kernel's record at once, so there is nothing to acknowledge. Queue pairs are somebody else's: this module hands out the
//! attributes that the kernel wants them to have.

pub mod abi;
pub mod address;
mod bell;
pub mod channel;
mod command;
pub mod data;
pub mod error;
pub mod event;
mod explain;
pub mod id;
mod interface;
mod linux;
mod multicast;
mod options;
mod params;
mod query;
pub mod reason;
mod shared;
pub mod state;
pub mod sys;
mod taking;
mod waiting;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

pub use explain::{ended, removed, timed_out};
pub use linux::LinuxCm;
pub use multicast::{Group, Membership};
pub use query::{IbAddress, IdAddress, IdGids};
