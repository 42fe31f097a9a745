//! The two traits that the kernel, or a device model in its place, implements.
//!
//! # Safety argument
//!
//! Only declarations: [`Cdev`] is an `unsafe trait`, and lists what its implementer and its caller owe each other.
#![allow(unsafe_code)]

use super::details::DeviceDetails;
use super::device::DeviceInfo;
use super::errno::Errno;
use super::error::Error;
use crate::mem::map::Mapping;
use std::os::fd::RawFd;
use std::sync::Arc;

/// A place to find RDMA devices: the host, or a simulator.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// use ironverbs::sys::{Linux, Sys};
/// let host = Linux::new();
/// for device in host.devices()? {
///     let context = ironverbs::Context::open_on(&host, &device)?;
/// #   drop(context);
/// }
/// # Ok(()) }
/// ```
pub trait Sys: Send + Sync {
    /// Lists every device, usable or not, in the order of their kernel device index. Looks anew at each call.
    fn devices(&self) -> Result<Vec<DeviceInfo>, Error>;

    /// Opens the character device of `device`. Two calls give two independent files.
    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error>;

    /// What there is to know of `device` without opening it, beyond what the list tells. Nothing, unless implemented.
    fn details(&self, device: &DeviceInfo) -> DeviceDetails {
        DeviceDetails::new(device.name.clone())
    }
}

/// One open file of an RDMA character device, `/dev/infiniband/uverbsN`.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// use ironverbs::sys::{Linux, Sys};
/// let host = Linux::new();
/// for device in host.devices()? {
///     println!("driver {}", host.open(&device)?.driver_id());
/// }
/// # Ok(()) }
/// ```
///
/// # Safety
///
/// *Implementer*:
/// - A [`Mapping`] from `map` stays valid until it is dropped, even if the `Cdev` was dropped before.
/// - After a command that destroys an object has succeeded, the device writes no memory on that object's behalf; after a
///   memory region is deregistered, it touches that region no more.
/// - A file descriptor that a command returns is open, is not owned by anyone else, and behaves as the kernel's does.
/// - Values in answers are true: a queue's size covers its ring, and a handle names the object it was returned for.
/// - A slot of a mapped ring is touched only while the ring's index words give it to the device, and what the device did
///   there is ordered before the store that gives it back.
///
/// *Caller*:
/// - A command is as long as its header says.
/// - Pointers inside a command are valid, for the lengths that the command gives, until the call returns. Memory that the
///   command hands to the device for longer (a registered region) stays allocated until it is taken back.
pub unsafe trait Cdev: Send + Sync {
    /// `ioctl(RDMA_VERBS_IOCTL)`. `command` is a `struct ib_uverbs_ioctl_hdr` and its attributes; answers are written
    /// into it in place, as the kernel does (`include/uapi/rdma/rdma_user_ioctl_cmds.h`).
    ///
    /// # Safety
    ///
    /// See the trait: pointers in `command` obey the caller's part.
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno>;

    /// `write()` of one command, header included (`include/uapi/rdma/ib_user_verbs.h`).
    ///
    /// # Safety
    ///
    /// See the trait: pointers in `command` obey the caller's part.
    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno>;

    /// Maps `len_bytes` of the device's memory at `offset`, shared, readable and writable.
    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno>;

    /// As [`map`](Self::map), of memory that the caller only reads, and that a driver may refuse to map writable.
    fn map_read_only(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.map(offset, len_bytes)
    }

    /// Gives the file up: no later command reaches the device, and no mapping keeps the file open. What was mapped stays
    /// valid memory, with the bytes that were there. The caller has destroyed every queue pair. Nothing to do by default.
    fn close(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// The kernel's `enum rdma_driver_id` of the driver behind the file; every ioctl carries it.
    fn driver_id(&self) -> u32;

    /// The file itself, if commands may be written to it directly, past this trait. A device model returns `None`, and
    /// doorbells then go through [`Cdev::write`].
    fn raw_fd(&self) -> Option<RawFd>;
}
