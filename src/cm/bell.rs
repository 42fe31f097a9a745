//! What wakes a thread that polls for the events of an id, when another thread has read the last one.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// A thread's own descriptor, readable once it was woken. It is made when the thread waits for the first time, and closed when it
/// ends: to make one for each wait would be two system calls more.
pub struct Bell(EventFd);

thread_local! {
    static OWN: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
}

impl Bell {
    /// This thread's; `None` where the process may open no more files.
    pub fn of_this_thread() -> Option<Arc<Self>> {
        let own = |own: &RefCell<Option<Arc<Self>>>| {
            let mut own = own.borrow_mut();
            if own.is_none() {
                *own = Self::new();
            }
            own.clone()
        };
        // A thread that is ending has none any more.
        OWN.try_with(own).unwrap_or_else(|_| Self::new())
    }

    fn new() -> Option<Arc<Self>> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        EventFd::from_value_and_flags(0, flags).ok().map(|fd| Arc::new(Self(fd)))
    }

    /// Who wakes by it makes the thread's poll return.
    pub fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Silences it, until it is rung again. It may have been rung late, for a wait that is over.
    pub fn silence(&self) {
        let _ = self.0.read();
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // It can fail only where it has been rung 2^64 times.
        let _ = self.0.write(1);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
