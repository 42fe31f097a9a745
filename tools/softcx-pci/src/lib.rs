//! Gives guests software ConnectX adapters as PCI functions: carries accesses of the guest to [`Function`](softcx::pci::Function)s, and
//! interrupts back.
//!
//! The [`Server`] has a [`Function`](softcx::pci::Function) behind each [`Transport`], all on one fabric, and does everything on one thread: it
//! sleeps until a guest asks for something, or until the device has something to do by itself. [`qemu`] is the transport of QEMU's
//! proxy device; another only has to implement the trait.
//!
//! [`run`] is the whole program, which `cargo vm --device softcx` starts.

mod command_line;
mod inherited;
mod misuse;
mod recorder;
mod server;
mod transport;

pub mod qemu;

pub use command_line::{Verdict, run};
pub use server::Server;
pub use transport::{Request, Transport};
