//! The kernel boundary: discovery, commands, objects, events, and the words that all providers share.

mod assess;
pub mod details;
pub mod device;
pub mod discover;
pub mod errno;
pub mod error;
mod netlink;
mod nldev;
pub mod sys;
mod sysfs;
pub mod types;
pub mod wr;
