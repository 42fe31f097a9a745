//! The seam between ironverbs and whatever answers its commands: the Linux kernel, or a device model.
//!
//! This module is for people who write device models or watch the commands go by. It is public, but stands outside the
//! main promise of stability: it grows as the command set does.

pub use crate::cm::LinuxCm;
pub use crate::cm::sys::{CmFile, CmSys};
pub use crate::mem::map::Mapping;
pub use crate::uverbs::discover::Linux;
pub use crate::uverbs::observe::{Command, CommandForm, Fault, Record, Recorded, Trace};
pub use crate::uverbs::sys::{Cdev, Sys};
