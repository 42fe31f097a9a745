//! A software ConnectX: runs programs that use RDMA through [`ironverbs`] on any machine, and tells them what they do wrong.
//!
//! There is no hardware, no kernel module and no privilege. A program opens a simulated device as it opens a real one;
//! the commands of its mlx5 device file are answered in the same process, with the refusals of the Linux driver, and its rings
//! are read and written where they are. Several devices share a [`Fabric`], which can lose, double, delay and reorder packets.
//!
//! # Using it in the tests of another program
//!
//! ```toml
//! [dev-dependencies]
//! softcx = { git = "…" }
//! ```
//!
//! ```no_run
//! use ironverbs::{Context, sys::Sys};
//! use softcx::{Disturbance, SimDevice, SimHost};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = SimHost::new(42); // the seed: all chance comes from it
//! host.add(SimDevice::roce("mlx5_0"));
//! host.add(SimDevice::roce("mlx5_1"));
//! host.fabric().disturb(Disturbance { loss: 0.01, ..Disturbance::default() });
//! let _engine = host.fabric().spawn(); // or step it: see below
//!
//! let devices = host.devices()?;
//! let client = Context::open_on(&host, &devices[0])?;
//! let server = Context::open_on(&host, &devices[1])?;
//! // … the program under test, as it is …
//!
//! let reports = host.fabric().take_reports();
//! assert!(reports.is_empty(), "{reports:#?}");
//! # Ok(()) }
//! ```
//!
//! # Time
//!
//! Nothing moves unless the fabric is stepped. [`Fabric::step`] takes the time as an argument and does what is due;
//! [`Fabric::settle`] steps until nothing is left to do, and moves time from deadline to deadline, so that a test of a
//! time-out of seconds takes none. The same seed and the same calls give the same bytes. [`Fabric::spawn`] runs the fabric on
//! a thread in real time instead, for programs that block.
//!
//! Two processes can share a network: [`Fabric::bridge`] joins their fabrics over a socket.
//!
//! # Faults
//!
//! | to see what happens when | call |
//! | --- | --- |
//! | packets are lost, doubled, late, out of order | [`Fabric::disturb`] |
//! | one certain packet is lost | [`Fabric::filter`] |
//! | a send or receive completes with a [`Syndrome`] | [`Control::fail_next_send`], [`Control::fail_next_receive`] |
//! | a queue pair hangs, or dies | [`Control::set_stuck`], [`Control::kill_qp`] |
//! | a completion queue overruns | [`Control::overrun_cq`] |
//! | a port goes down, gets another LID or GID | [`Control::set_port_active`], [`Control::set_lid`], [`Control::set_gid`] |
//! | any event comes | [`Control::raise`] |
//! | the device dies | [`Control::die`] |
//! | a command is refused | [`SimHost::refuse_command`] |
//!
//! Methods of [`Control`] are called through [`SimHost::with`].
//!
//! # Misuse
//!
//! What hardware would let pass, or punish without a word, is in [`Fabric::take_reports`], with the WQE at fault: access
//! outside registered memory, a doorbell ahead of its record, a wrong WQE index, an overfull ring, an arm doorbell without its
//! record, a missing fence, a completion queue overrun. And some misuses are made to hurt, so that tests fail where hardware
//! may only be slow or lucky (see [`Punish`]): a posted receive buffer holds [`POISON`] until its completion is there, a
//! consumed WQE is overwritten with [`SCRIBBLE`], and queue pairs take turns in changing order. Without a doorbell there is no
//! progress.
//!
//! # Watching
//!
//! [`Control::tap`] shows every WQE that the device takes and every CQE that it writes, with the time and the bytes.
//!
//! # The device by itself
//!
//! [`Device`] knows memory only through the trait [`Memory`], and time as an argument. It can be tested, or put behind another
//! front, without any driver: commands are its methods, stores into its registers are [`Device::doorbell`], and packets
//! come out of [`Device::work`] and go into [`Device::receive`]. Its view of every structure is in [`bits`], written from the
//! field tables of the device and shared with no driver.
//!
//! The front [`pci`] is one: it answers the kernel's driver in a guest of QEMU, through a PCI function's registers and a command queue.
//!
//! # What it does
//!
//! RC, UC, UD and XRC queue pairs; SEND (with immediate data, with invalidation), RDMA WRITE (with immediate data), RDMA READ,
//! compare and swap, fetch and add, their masked forms, NOP, and binding and invalidating memory windows of both types;
//! inline data, scatter and gather, fences; packet sequence numbers, acknowledgement, retry, receiver-not-ready; shared
//! receive queues with limits; CQEs of 64 and 128 bytes, with small messages inside, compressed on request; arming,
//! moderation, overrun, resize, stamps of the clock or of the time; multicast; InfiniBand (LIDs) and Ethernet (RoCE v1 and v2) ports.
//!
//! What it does not: raw packets, flow steering, DC, tag matching, signatures, on-demand paging, congestion control,
//! alternate paths, DEVX. The front refuses them as a device without them does. Timing means nothing here.

pub mod bits;
mod bridge;
mod commands;
mod control;
mod cq;
mod device;
mod event;
mod fabric;
mod frame;
mod host_memory;
mod memory;
mod mini;
mod mkey;
mod packet;
pub mod pci;
mod port;
mod qp;
mod recv;
mod registers;
mod report;
mod shared;
mod syndrome;
mod tap;
mod uverbs;
mod wire;
mod wqe;

pub use commands::{NO_USER_INDEX, Refusal};
pub use control::Control;
pub use cq::{Cq, CqSpec, Moderation};
pub use device::{CLOCK_KHZ, Device, DeviceSpec};
pub use event::{Eq, Event, PortChange};
pub use fabric::{DeviceId, Engine, Fabric, WrongDevice};
pub use memory::{Buffer, BusError, Memory, VecMemory};
pub use mini::MiniFormat;
pub use mkey::{Access, Asker, KeyError, KeyRange, Mkey, Mkeys, Translation, Why};
pub use packet::{Body, Gid, Grh, Mac, Nak, Network, Packet, Part, Remote, Route, Transport};
pub use port::{GidEntry, Link, Path, PathGrh, Port};
pub use qp::{QpAttr, QpKind, QpSpec, QpState, SendSpec};
pub use recv::{POISON, RecvSpec, SCRIBBLE, Sge, XrcSrq};
pub use registers::UarPage;
pub use report::{Misuse, Report, WqeImage};
pub use shared::Punish;
pub use syndrome::Syndrome;
pub use tap::{Entry, Tapped};
pub use uverbs::{SimDevice, SimHost};
pub use wire::{Disturbance, Verdict};
pub use wqe::{Atomic, Av, Segment, SendWqe, Umr, Work, scatter_list};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
