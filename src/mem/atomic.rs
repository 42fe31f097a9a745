//! The atomics of the rings: the standard library's, or loom's when the crate is built with `--cfg loom` to model them.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, Ordering};
