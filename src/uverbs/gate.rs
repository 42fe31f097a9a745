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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A file that can be given up while other threads use it.
pub struct Gate {
    inner: Arc<dyn Cdev>,
    state: Mutex<State>,
    /// The last command under way is answered, or a closing has ended.
    quiet: Condvar,
}

struct State {
    stage: Stage,
    under_way: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Only this thread's commands pass.
    Closing(ThreadId),
    Closed,
}

impl Gate {
    pub fn new(inner: Arc<dyn Cdev>) -> Arc<Self> {
        let state = Mutex::new(State { stage: Stage::Open, under_way: 0 });
        Arc::new(Self { inner, state, quiet: Condvar::new() })
    }

    /// Waits until no other thread is closing it, and for commands under way; lets only this thread's pass from now on.
    /// `false` if this thread is closing it already.
    pub fn begin_closing(&self) -> bool {
        let this = thread::current().id();
        let mut state = self.lock();
        while let Stage::Closing(thread) = state.stage {
            if thread == this {
                return false;
            }
            state = self.quiet.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stage = Stage::Closing(this);
        while state.under_way != 0 {
            state = self.quiet.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Ends what [`begin_closing`](Self::begin_closing) began: no command passes any more.
    pub fn end_closing(&self) {
        self.lock().stage = Stage::Closed;
        self.quiet.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a command, unless the file was given up: then the answer is that of a device that is gone.
    fn pass<T>(&self, run: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = self.lock();
        match state.stage {
            Stage::Open => {}
            Stage::Closing(thread) if thread == thread::current().id() => {}
            Stage::Closing(_) | Stage::Closed => return Err(Errno::EIO),
        }
        state.under_way += 1;
        drop(state);
        let _under_way = UnderWay(self);
        run()
    }
}

/// A command under way, until it is answered or panics.
struct UnderWay<'a>(&'a Gate);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        // Nobody else waits for commands, and to wake nobody takes a system call, too.
        if state.under_way == 0 && matches!(state.stage, Stage::Closing(_)) {
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
        assert!(slow.is_finished() || gate.lock().under_way == 0);
        slow.join().unwrap().unwrap();
    }
}
