//! RDMA verbs in pure Rust over the kernel's device files.
//!
//! Layers, each using only those below it:
//!
//! - [`verbs`]: the public API; everything in it is re-exported here.
//! - `rxe`: the provider for Soft-RoCE: work requests written into rings shared with the kernel.
//! - `uverbs`: the kernel boundary: commands on `/dev/infiniband/uverbsN`, discovery, and the words all providers share.
//! - `mem`: mappings, ring arithmetic, barriers, atomics.
//!
//! [`sys`] is the seam between the kernel boundary and whatever answers it: the real kernel or a device model.

mod mem;
mod rxe;
pub mod sys;
mod uverbs;
pub mod verbs;

pub use verbs::*;
