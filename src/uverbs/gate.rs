//! The gate before an open file: commands pass until the file is given up.
//!
//! # Safety argument
//!
//! Commands are passed on as they are, or not at all; what is mapped is mapped by the file itself.
#![allow(unsafe_code)]

use super::errno::Errno;
use super::sys::Cdev;
use crate::mem::map::Mapping;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A file that can be given up while other threads use it.
pub struct Gate {
    inner: Arc<dyn Cdev>,
    /// How many commands are under way, and [`SHUT`] from when it is closed for the first time: a command of an open file locks
    /// nothing.
    traffic: AtomicU32,
    stage: Mutex<Stage>,
    /// The last command under way is answered, or a closing has ended.
    quiet: Condvar,
}

/// Only the stage says who may pass.
const SHUT: u32 = 1 << 31;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Only this thread's commands pass.
    Closing(ThreadId),
    Closed,
}

impl Gate {
    pub fn new(inner: Arc<dyn Cdev>) -> Arc<Self> {
        let stage = Mutex::new(Stage::Open);
        Arc::new(Self { inner, traffic: AtomicU32::new(0), stage, quiet: Condvar::new() })
    }

    /// Waits until no other thread is closing it, and for commands under way; lets only this thread's pass from now on.
    /// `false` if this thread is closing it already.
    pub fn begin_closing(&self) -> bool {
        let this = thread::current().id();
        let mut stage = self.lock();
        while let Stage::Closing(thread) = *stage {
            if thread == this {
                return false;
            }
            stage = self.quiet.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
        *stage = Stage::Closing(this);
        self.traffic.fetch_or(SHUT, Ordering::Relaxed);
        while self.traffic.load(Ordering::Acquire) != SHUT {
            stage = self.quiet.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Ends what [`begin_closing`](Self::begin_closing) began: no command passes any more.
    pub fn end_closing(&self) {
        *self.lock() = Stage::Closed;
        self.quiet.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a command, unless the file was given up: then the answer is that of a device that is gone.
    fn pass<T>(&self, run: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let Some(_under_way) = UnderWay::begin(self) else { return self.pass_shut(run) };
        run()
    }

    #[cold]
    fn pass_shut<T>(&self, run: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let stage = *self.lock();
        match stage {
            // It waits for nobody's commands while it gives its own.
            Stage::Closing(thread) if thread == thread::current().id() => run(),
            Stage::Open | Stage::Closing(_) | Stage::Closed => Err(Errno::EIO),
        }
    }
}

/// A command under way, until it is answered or panics.
struct UnderWay<'a>(&'a Gate);

impl<'a> UnderWay<'a> {
    /// If the file is open to all. Whoever closes it sees that there is one, or this sees that it is shut.
    fn begin(gate: &'a Gate) -> Option<Self> {
        // Looked at first, so that nobody who is refused holds up the closing, however often he tries.
        if gate.traffic.load(Ordering::Relaxed) & SHUT != 0 {
            return None;
        }
        let before = gate.traffic.fetch_add(1, Ordering::Acquire);
        let under_way = Self(gate);
        (before & SHUT == 0).then_some(under_way)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // It was the last one that somebody waits for. With the lock, so that he waits already, or has not looked yet.
        if self.0.traffic.fetch_sub(1, Ordering::Release) == SHUT + 1 {
            let _stage = self.0.lock();
            self.0.quiet.notify_all();
        }
    }
}

// SAFETY: see the module's safety argument.
unsafe impl Cdev for Gate {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: the caller's part is passed on.
        self.pass(|| unsafe { self.inner.ioctl(command) })
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        // SAFETY: the caller's part is passed on.
        self.pass(|| unsafe { self.inner.write(command) })
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.pass(|| self.inner.map(offset, len_bytes))
    }

    fn map_read_only(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.pass(|| self.inner.map_read_only(offset, len_bytes))
    }

    fn driver_id(&self) -> u32 {
        self.inner.driver_id()
    }

    fn raw_fd(&self) -> Option<RawFd> {
        self.inner.raw_fd()
    }

    fn close(&self) -> Result<(), Errno> {
        self.pass(|| self.inner.close())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::fake::{FakeKernel, Knows};
    use std::time::Duration;

    #[test]
    fn lets_only_the_closing_thread_pass() {
        let gate = Gate::new(FakeKernel::new(Knows::ALL));
        assert_eq!(gate.pass(|| Ok(1)), Ok(1));
        assert!(gate.begin_closing());
        assert_eq!(gate.pass(|| Ok(2)), Ok(2));
        assert!(!gate.begin_closing(), "this thread is at it");
        let other = gate.clone();
        let passed = thread::spawn(move || other.pass(|| Ok(3))).join().unwrap();
        assert_eq!(passed, Err(Errno::EIO));
        gate.end_closing();
        assert_eq!(gate.pass(|| Ok(4)), Err(Errno::EIO));
        assert!(gate.begin_closing(), "what failed can be tried again");
        assert_eq!(gate.pass(|| Ok(5)), Ok(5));
    }

    /// Whoever gives a device up may rely on it afterwards, also if another thread was first.
    #[test]
    fn waits_for_another_thread_that_closes() {
        let gate = Gate::new(FakeKernel::new(Knows::ALL));
        assert!(gate.begin_closing());
        let other = gate.clone();
        let second = thread::spawn(move || other.begin_closing());
        thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        gate.end_closing();
        assert!(second.join().unwrap());
    }

    #[test]
    fn a_command_that_panics_is_not_waited_for() {
        let gate = Gate::new(FakeKernel::new(Knows::ALL));
        let other = gate.clone();
        thread::spawn(move || other.pass(|| -> Result<(), Errno> { std::panic::resume_unwind(Box::new(())) }))
            .join()
            .unwrap_err();
        assert!(gate.begin_closing());
    }

    #[test]
    fn waits_for_commands_under_way() {
        let gate = Gate::new(FakeKernel::new(Knows::ALL));
        let other = gate.clone();
        let (entered, has_entered) = std::sync::mpsc::channel();
        let slow = thread::spawn(move || {
            other.pass(|| {
                entered.send(()).unwrap();
                thread::sleep(Duration::from_millis(50));
                Ok(())
            })
        });
        has_entered.recv().unwrap();
        assert!(gate.begin_closing());
        assert!(slow.is_finished() || gate.traffic.load(Ordering::Relaxed) & !SHUT == 0);
        slow.join().unwrap().unwrap();
    }
}
