//! Descriptors that come to this process from elsewhere, as numbers.
//!
//! # Safety argument
//!
//! A descriptor may have one owner. The kernel makes those that come with a message for this process and nobody else; and
//! those that the process was started with are named once each on its command line, by whoever started it for that.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// A socket that this process was started with.
pub(crate) fn socket(number: RawFd) -> Result<UnixStream> {
    std::fs::read_link(format!("/proc/self/fd/{number}"))
        .with_context(|| format!("descriptor {number} was not inherited"))?;
    // SAFETY: it is open, and was given to this process for this; see above.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(UnixStream::from(fd))
}

/// A descriptor that has just come with a message.
pub(crate) fn received(number: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for this process, and nothing else knows of it.
    unsafe { OwnedFd::from_raw_fd(number) }
}
