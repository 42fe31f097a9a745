//! Post and poll on the software ConnectX, whose engine does not run meanwhile: what the benches time, and what runs under
//! callgrind.
//!
//! The measured functions are those that `cargo rings` counts.

/// The device that everything is measured on.
#[path = "../../rings/src/ironverbs/device.rs"]
pub mod device;
/// What the least code would be.
#[path = "../../rings/src/ironverbs/floor.rs"]
#[allow(missing_docs, clippy::new_without_default, reason = "shared with a program")]
pub mod floor;
/// The measured code.
#[path = "../../rings/src/ironverbs/hot.rs"]
#[allow(missing_docs, reason = "shared with a program")]
pub mod hot;
mod operation;
mod rig;

pub use operation::{OPERATIONS, Operation};
pub use rig::{LIST, Rig};

/// What set-up gives.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
