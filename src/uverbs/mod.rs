//! The kernel boundary: discovery, commands, objects, events, and the words that all providers share.

pub mod abi;
mod address;
mod assess;
pub mod attr;
mod cmd;
mod completion;
pub mod context;
pub mod details;
pub mod device;
pub mod discover;
pub mod doorbell;
pub mod errno;
pub mod error;
pub mod event;
pub mod explain;
mod gate;
mod kernel;
mod leaks;
pub mod linux;
mod memory;
pub mod memory_wr;
pub(crate) mod named;
mod netlink;
mod nldev;
pub mod object;
pub mod observe;
mod open;
mod query;
mod queue_pair;
pub mod raw;
pub mod shared_receive_queue;
mod shutdown;
pub mod sys;
mod sysfs;
pub mod types;
pub mod wc;
pub mod wr;
pub mod xrc;

#[cfg(test)]
pub mod fake;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod live;
#[cfg(test)]
mod scenario;
