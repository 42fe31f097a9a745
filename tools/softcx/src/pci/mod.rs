//! The front for a driver in a guest: a PCI function, as the `mlx5_core` driver of Linux expects it.
//!
//! A [`Function`] has a configuration space, a BAR with the initialization segment, UAR pages and the table of interrupts,
//! and firmware behind a command queue in the guest's memory. Commands make, change and end objects of the same [`Device`](crate::Device)
//! that every front has; doorbells ring on it; its events go into event queues in the guest's memory, and raise interrupts.
//!
//! A transport carries accesses of the guest's processor to the function and interrupts back; the crate `softcx-pci` has one for
//! QEMU. It calls [`Function::config_read`] and its sisters, answers the access, and then calls [`Function::run`].
//!
//! Layers, from the guest inwards: `config_space` and `msix` (PCI), `function` (what is where in the BAR), `held` (BlueFlame copies), `command_queue` (entries and
//! mailboxes), `firmware` (which command is which), `capabilities`, `port`, `objects`, `event_queues`, `completion_queues`,
//! `queue_pairs`, `receive_queues` (what each says), `limits` (how many of each), `guest_memory`.
//!
//! What it does not: Ethernet ports, virtual functions, flow steering, DEVX, on-demand paging, memory registration by UMR.
//! Capabilities say so, and commands for it answer that there is no such opcode.
//!
//! A test in the guest can make some [`Fault`]s by itself.

mod capabilities;
mod command;
mod command_queue;
mod completion_queues;
mod config_space;
mod event_queues;
mod firmware;
mod function;
mod guest_memory;
mod held;
mod limits;
mod msix;
mod objects;
mod port;
mod queue_pairs;
mod receive_queues;
mod segment;

pub use config_space::{BAR_BYTES, Fault};
pub use function::Function;
pub use guest_memory::{GuestMemory, Region};
pub use msix::Interrupt;

/// The first `len` bytes as a number, least significant first; bytes past the end are zero.
fn little(bytes: &[u8], len: usize) -> u64 {
    bytes.iter().take(len.min(8)).rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}
