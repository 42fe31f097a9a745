//! What only a device that can be told what to do shows: every reason of a failure from the device to the completion,
//! completions out of order and in blocks, queue pairs that go between their completions, indices that wrap, the device's time.
//! On simulated adapters.
//!
//! # Safety argument
//!
//! Batches are submitted whose payload is inline, or is of regions that outlive their queue pairs and that are read and written
//! by copying functions only.
#![allow(unsafe_code)]

mod channel;
mod inside;
mod order;
mod packed;
mod rig;
mod settings;
mod syndromes;
mod wrap;
