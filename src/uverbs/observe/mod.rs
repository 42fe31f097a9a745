//! Wrappers of the seam: they let commands through, and watch them or refuse them.
//!
//! # Safety argument
//!
//! [`Observed`] hands every command on unchanged or not at all, and returns the inner file's answers, so it keeps the
//! implementer's part of [`Cdev`] because the inner file does. A command that is refused here never reached the device:
//! nothing was made and nothing destroyed. A [`Command`] made here lives only during the call, while the caller
//! guarantees the addresses in it.
#![allow(unsafe_code)]

mod command;
mod fault;
mod names;
mod record;
mod trace;

pub use command::{Command, CommandForm};
pub use fault::Fault;
pub use record::{Record, Recorded};
pub use trace::Trace;

use super::details::DeviceDetails;
use super::device::DeviceInfo;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::sys::{Cdev, Sys};
use crate::mem::map::Mapping;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sees each command before and after.
trait Observer: Send + Sync + 'static {
    /// An error keeps the command from the device and becomes its answer.
    fn before(&self, _sent: &Command<'_>) -> Result<(), Errno> {
        Ok(())
    }

    /// Called after every command, also one that [`Observer::before`] refused.
    fn after(&self, _exchange: &Exchange<'_>) {}
}

/// A command and its answer.
struct Exchange<'a> {
    sent: Command<'a>,
    /// The same command with what was written into it.
    answered: Command<'a>,
    result: Result<(), Errno>,
    took: Duration,
}

/// A file, or a place to find devices, whose commands an observer sees.
struct Observed<T: ?Sized, O> {
    inner: Arc<T>,
    observer: Arc<O>,
}

fn observe_cdev<O: Observer>(observer: &Arc<O>, inner: Arc<dyn Cdev>) -> Arc<dyn Cdev> {
    Arc::new(Observed { inner, observer: Arc::clone(observer) })
}

fn observe_sys<O: Observer>(observer: &Arc<O>, inner: Arc<dyn Sys>) -> Arc<dyn Sys> {
    Arc::new(Observed { inner, observer: Arc::clone(observer) })
}

impl<T: ?Sized, O: Observer> Observed<T, O> {
    /// Runs a command that is not changed by its answer.
    fn run<R>(&self, command: Command<'_>, run: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let start = Instant::now();
        let answer = self.observer.before(&command).and_then(|()| run());
        let result = answer.as_ref().map(|_| ()).map_err(|e| *e);
        self.observer.after(&Exchange { sent: command, answered: command, result, took: start.elapsed() });
        answer
    }
}

// SAFETY: see the module's safety argument.
unsafe impl<O: Observer> Cdev for Observed<dyn Cdev, O> {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        let as_sent = command.to_vec();
        // SAFETY: the caller guarantees the addresses until this function returns, and `sent` lives no longer.
        let sent = unsafe { Command::ioctl(&as_sent) };
        let start = Instant::now();
        let result = self.observer.before(&sent).and_then(|()| {
            // SAFETY: the caller's part is passed on.
            unsafe { self.inner.ioctl(command) }
        });
        let took = start.elapsed();
        // SAFETY: as for `sent`; what was written into the command since are handles and descriptors, no addresses.
        let answered = unsafe { Command::ioctl(command) };
        self.observer.after(&Exchange { sent, answered, result, took });
        result
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        // SAFETY: the caller guarantees the addresses until this function returns, and the view lives no longer.
        let view = unsafe { Command::write(command) };
        // SAFETY: the caller's part is passed on.
        self.run(view, || unsafe { self.inner.write(command) })
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.run(Command::map(offset, len_bytes), || self.inner.map(offset, len_bytes))
    }

    fn map_read_only(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.run(Command::map(offset, len_bytes), || self.inner.map_read_only(offset, len_bytes))
    }

    fn driver_id(&self) -> u32 {
        self.inner.driver_id()
    }

    fn close(&self) -> Result<(), Errno> {
        self.inner.close()
    }

    /// None: doorbells are commands to be seen, too.
    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

impl<O: Observer> Sys for Observed<dyn Sys, O> {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.inner.devices()
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
        let start = Instant::now();
        let command = Command::open(&device.name);
        let answer = match self.observer.before(&command) {
            Ok(()) => self.inner.open(device),
            Err(errno) => Err(Error::kernel(Verb::OpenDevice, errno)),
        };
        let result = answer.as_ref().map(|_| ()).map_err(|e| e.errno().unwrap_or(Errno::EINVAL));
        self.observer.after(&Exchange { sent: command, answered: command, result, took: start.elapsed() });
        Ok(observe_cdev(&self.observer, answer?))
    }

    fn details(&self, device: &DeviceInfo) -> DeviceDetails {
        self.inner.details(device)
    }
}
