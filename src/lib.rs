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
//! # What to reach for
//!
//! | to | use |
//! | --- | --- |
//! | see what is there | [`devices`], [`Context::query_port`], [`Context::choose_gid`] |
//! | connect | [`QpBuilder`] → [`PreparedQp`] → [`PreparedQp::connect`] |
//! | send with no cost | [`Qp::send_batch`] and [`Mr`], one `unsafe` at [`SendBatch::submit`] |
//! | send with no `unsafe` | [`Pool`] and [`Slot`] |
//! | send from borrowed memory, simply | [`Qp::scope`] |
//! | complete | [`Cq::poll`]; blocking: [`Cq::wait`], or [`CompChannel`] in an event loop |
//! | know of what goes wrong elsewhere | [`AsyncEvents`] |
//!
//! # Threads
//!
//! Control objects ([`Context`], [`Pd`], [`CompChannel`], [`Pool`]) can be cloned and shared between threads. A [`Qp`] is
//! posted to, and a [`Cq`] polled, by one thread at a time, which `&mut self` sees to; both can be moved to another thread,
//! and a queue pair and its completion queue can live in different ones. No hot path takes a lock: a caller who wants to
//! share a queue puts one around it, and sees its price.
//!
//! A software device such as rxe does its work in kernel threads. A loop that polls without end can starve them of the
//! CPU: poll a bounded number of times, then yield or [`Cq::wait`].
//!
//! # Layers
//!
//! Each module uses those below it only: `verbs` (everything re-exported here), `rxe` (the provider for Soft-RoCE), `uverbs`
//! (the kernel boundary), `mem` (memory shared with a device). [`sys`] is the seam between the kernel boundary and whatever
//! answers it: the real kernel, or a device model.

mod mem;
mod rxe;
pub mod sys;
mod uverbs;
mod verbs;

pub use verbs::*;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
