//! The seam: what the kernel's connection manager, or a model of it, implements.
//!
//! # Safety argument
//!
//! Only declarations: [`CmFile`] is an `unsafe trait`, and lists what its implementer and its caller owe each other.
#![allow(unsafe_code)]

use super::error::Error;
use crate::uverbs::errno::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where there is a connection manager: on the host, or in a model of one.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::rdma_cm::Error> {
/// use ironverbs::rdma_cm::EventChannel;
/// use ironverbs::sys::LinuxCm;
/// let elsewhere = LinuxCm::at("/host/dev/infiniband/rdma_cm");
/// let channel = EventChannel::open_on(&elsewhere)?;
/// # drop(channel);
/// # Ok(()) }
/// ```
pub trait CmSys: Send + Sync {
    /// Opens it. Two calls give two independent files, each with events of its own.
    fn open(&self) -> Result<Arc<dyn CmFile>, Error>;
}

/// One open file of the connection manager.
///
/// # Safety
///
/// *Implementer*:
/// - A response is written to where the command says, at most as long as the command says, before the call returns.
/// - The descriptor is open, and readable when there is an event.
///
/// *Caller*:
/// - A command is as long as its header says.
/// - Addresses inside a command are of memory that is valid for the lengths that the command gives until the call returns.
pub unsafe trait CmFile: Send + Sync {
    /// `write()` of one command, header included (`include/uapi/rdma/rdma_user_cm.h`). Never blocks for an event, unless
    /// it is [let wait](Self::let_wait): where there is none the answer is `EAGAIN`.
    ///
    /// # Safety
    ///
    /// See the trait: addresses in `command` obey the caller's part.
    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno>;

    /// Whether the answer to GET_EVENT, where there is none, is from now on to wait for one instead of `EAGAIN`. `EOPNOTSUPP` where
    /// it cannot, as by default: then `poll` waits.
    fn let_wait(&self, wait: bool) -> Result<(), Errno> {
        let _ = wait;
        Err(Errno::EOPNOTSUPP)
    }

    /// To wait with: readable when there is an event. Its number is also what MIGRATE_ID names the file by.
    fn as_fd(&self) -> BorrowedFd<'_>;
}
