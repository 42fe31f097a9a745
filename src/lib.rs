//! RDMA verbs in pure Rust over the kernel's device files.
//!
//! ironverbs issues the commands on `/dev/infiniband/uverbsN` itself, maps the rings that a device shares with a program,
//! and writes work requests into them. There is no libibverbs, and no C call between a work request and the device.
//!
//! # Quick start
//!
//! ```no_run
//! use ironverbs::{Context, Inline, QpBuilder, WrFlags};
//!
//! # fn tell_peer(_: &ironverbs::Endpoint) -> ironverbs::Endpoint { unimplemented!() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open("rxe0")?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq(64)?;
//! let prepared = QpBuilder::rc(&pd, &cq, &cq).max_inline_bytes(64).build()?;
//! let remote = tell_peer(&prepared.endpoint()); // over TCP, say
//! let mut qp = prepared.connect(&remote)?;
//!
//! let mut batch = qp.send_batch();
//! batch.send(1, WrFlags::SIGNALED, Inline(b"hello"))?;
//! // SAFETY: inline payload is copied; nothing else is named by the batch.
//! unsafe { batch.submit()? };
//! while cq.poll_one()?.is_none() {
//!     std::thread::yield_now();
//! }
//! # Ok(()) }
//! ```
//!
//! # Without a device
//!
//! The crate `softcx`, part of this project, simulates ConnectX adapters in the process itself: a program opens one with
//! [`Context::open_on`], and all else stays as it is.
//!
//! ```
//! use ironverbs::{Context, sys::Sys};
//! use softcx::{SimDevice, SimHost};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = SimHost::new(1); // all chance comes from this number
//! host.add(SimDevice::roce("mlx5_0"));
//! let _engine = host.fabric().spawn();
//! let context = Context::open_on(&host, &host.devices()?[0])?;
//! assert_eq!(context.info().name, "mlx5_0");
//! # Ok(()) }
//! ```
//!
//! # What to reach for
//!
//! | to | use |
//! | --- | --- |
//! | see what is there | [`devices`], [`Context::query_port`], [`Context::choose_gid`] |
//! | connect | [`QpBuilder`] → [`PreparedQp`] → [`PreparedQp::connect`] |
//! | connect by IP address and port, also with programs on librdmacm | [`rdma_cm`] |
//! | send datagrams | [`QpBuilder::ud`] → [`PreparedQp::activate`], [`AddressHandle`]; receive them: [`Datagram`] |
//! | end a connection | [`Qp::drain`], then [`Qp::close`] |
//! | send with no cost | [`Qp::send_batch`] and [`Mr`], one `unsafe` at [`SendBatch::submit`] |
//! | send with no `unsafe` | [`Pool`] and [`Slot`] |
//! | send from borrowed memory, simply | [`Qp::scope`] |
//! | receive from many peers with one set of buffers | [`Context::create_srq`] and [`QpBuilder::srq`] |
//! | let processes of a host share connections | [`Xrcd`], [`QpBuilder::xrc_send`], [`SrqBuilder::xrc`] |
//! | know when something was done | [`Completion::timestamp`], [`Context::clock`] |
//! | size a completion queue | [`CqDepth`], [`Cq::load`], [`Cq::resize`] |
//! | complete | [`Cq::poll`]; blocking: [`Cq::wait`], [`Cq::spin_then_wait`], or [`CompChannel`] in an event loop |
//! | await | module `tokio`, with the feature of that name |
//! | know of what goes wrong elsewhere | [`AsyncEvents`] |
//! | let a device go while objects are still there | [`Context::shutdown`] |
//!
//! # Threads
//!
//! | object | threads |
//! | --- | --- |
//! | [`Context`], [`Pd`], [`CompChannel`], [`Pool`] | shared freely; clones are the same object |
//! | [`AsyncEvents`], [`Mr`] (reading) | shared by reference; each event goes to one reader |
//! | [`Qp`] | one at a time (`&mut self`), any; [`Qp::split`] makes two that work at once |
//! | [`SendHalf`], [`RecvHalf`] | one at a time each, independent of each other |
//! | [`AddressHandle`] | shared by reference; sends that name it copy what they need |
//! | [`Srq`] | one at a time posts; the queue pairs that receive from it can be anywhere |
//! | [`Cq`] | one at a time polls, any; queue pairs on it post from wherever they are |
//! | [`Slot`], completions | a slot is its holder's; a [`Completion`] stays in the thread that polls |
//!
//! So send queue, receive queue and completion queue of one connection can each have a thread, and a completion queue can
//! serve queue pairs of many threads. Nothing on these paths takes a lock. What two threads do share is the ring itself, whose
//! other end is the device's, and the owner of each [`Pool`] slot, which is decided by atomics. A caller who wants to post
//! to one queue from several threads puts a lock around it, and sees its price.
//!
//! Objects can be dropped in any thread and order. Any thread that waits may read the device's asynchronous events and
//! keeps them for [`AsyncEvents`]; an overrun or a device that is gone is told to whoever waits for that completion queue.
//!
//! A software device such as rxe does its work in kernel threads. A loop that polls without end can starve them of the
//! CPU: poll a bounded number of times, then yield or [`Cq::wait`]; [`Cq::spin_then_wait`] does both.
//!
//! # Layers
//!
//! Each module uses those below it only: `verbs` (everything re-exported here), `rxe` and `mlx5` (the providers for Soft-RoCE and
//! ConnectX), `cm` (the connection manager), `uverbs` (the kernel boundary), `mem` (memory shared with a device). [`sys`] is the seam between the kernel boundary and whatever
//! answers it: the real kernel, or a device model.

mod cm;
mod mem;
mod mlx5;
pub mod rdma_cm;
mod rxe;
pub mod sys;
mod uverbs;
mod verbs;

pub use verbs::*;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
