//! The real device file, `/dev/infiniband/uverbsN`.
//!
//! # Safety argument
//!
//! [`LinuxCdev`] passes commands to the kernel as they are, and keeps the implementer's part of [`Cdev`] because the
//! kernel does: objects and mappings are reference-counted there, a mapping outlives the file it was made from, and a
//! new file descriptor belongs to nobody yet. That the file *is* a verbs device is for [`from_file`]'s caller to see to;
//! any other file refuses the ioctl.
#![allow(unsafe_code)]

use super::abi::ioctl::RDMA_VERBS_IOCTL;
use super::errno::Errno;
use super::shutdown::lead_nowhere;
use super::sys::Cdev;
use crate::mem::detach::Mappings;
use crate::mem::map::Mapping;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// The device behind an open device file, which belongs to the kernel driver `driver_id` (`enum rdma_driver_id`). It must
/// be open for reading and writing, and closed on exec.
pub fn from_file(file: File, driver_id: u32) -> Arc<dyn Cdev> {
    Arc::new(LinuxCdev { file, driver_id, mappings: Arc::default() })
}

/// An open device file.
struct LinuxCdev {
    file: File,
    driver_id: u32,
    mappings: Arc<Mappings>,
}

impl LinuxCdev {
    /// Makes a mapping that the file keeps an eye on.
    fn own(&self, map: std::io::Result<MmapRaw>) -> Result<Mapping, Errno> {
        let map = map.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EINVAL)))?;
        Mapping::of_file(map, &self.mappings).ok_or(Errno::EINVAL)
    }
}

// SAFETY: see the module's safety argument.
unsafe impl Cdev for LinuxCdev {
    /// No answer leads to a second try, not even `EINTR`: a command that was interrupted may have had an effect.
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: the kernel reads the command's own length from its header, which the caller made; what the addresses
        // in it lead to is the caller's part.
        let returned =
            unsafe { libc::ioctl(self.file.as_raw_fd(), RDMA_VERBS_IOCTL as libc::Ioctl, command.as_mut_ptr()) };
        if returned < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        let len_bytes = size_of_val(command);
        // SAFETY: the buffer is live for the call; what the addresses in it lead to is the caller's part.
        let written = unsafe { libc::write(self.file.as_raw_fd(), command.as_ptr().cast(), len_bytes) };
        match usize::try_from(written) {
            Ok(n) if n == len_bytes => Ok(()),
            // The kernel takes a command as a whole. This is no verbs device.
            Ok(_) => Err(Errno::EPROTO),
            Err(_) => Err(Errno::last()),
        }
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.own(MmapOptions::new().offset(offset).len(len_bytes).map_raw(&self.file))
    }

    fn map_read_only(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.own(MmapOptions::new().offset(offset).len(len_bytes).map_raw_read_only(&self.file))
    }

    fn close(&self) -> Result<(), Errno> {
        self.mappings.detach()?;
        lead_nowhere(&self.file)
    }

    fn driver_id(&self) -> u32 {
        self.driver_id
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}
