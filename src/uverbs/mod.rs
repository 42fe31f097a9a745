//! The kernel boundary: discovery, commands, objects, events, and the words that all providers share.

pub mod device;
pub mod errno;
pub mod error;
pub mod sys;
pub mod types;
pub mod wr;
