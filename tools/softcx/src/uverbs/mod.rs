//! The front for programs in the same process: answers the commands of an mlx5 device file as Linux does, refusals
//! included.
//!
//! Layers, from the program inwards: `sim` (which devices there are), `cdev` and `attributes` (the framing of commands),
//! `native` and `write_commands` (which command is which), `create`, `modify`, `objects`, `query` (what the driver checks),
//! `file` (handles), `router` and `channel` (events), `page` (shared pages).
//!
//! What the driver of the kernel can and this does not: registers handed out by the kernel (contexts without dynamic UARs),
//! DEVX, raw packets, flow steering, tag matching, signatures, on-demand paging and device memory; and of the extended
//! commands, those that have a method of the ioctl. Each is refused as a device without the capability refuses it.

mod attributes;
mod caps;
mod cdev;
mod channel;
mod create;
mod create_qp;
mod file;
mod modify;
mod native;
mod objects;
mod page;
mod query;
mod router;
mod sim;
mod uapi;
mod write_commands;

pub use sim::{SimDevice, SimHost};
