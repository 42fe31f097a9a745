//! Objects that the kernel refused to destroy, and what the device may use for them.
//!
//! A refusal may pass: what the object waited for goes later, or memory is there again. So the kernel is asked once more
//! whenever another object of the context is gone. What is left when nobody uses the context any more goes with its file, which
//! is closed then, whoever still holds a part of it: what was left with an object may hold on to the file itself.

use super::context::Ucontext;
use super::errno::Errno;
use super::object::{Leak, ObjectKind};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the device may use for an object.
pub type Left = Box<dyn Any + Send>;

/// Of one context.
#[derive(Default)]
pub struct Leaks(Mutex<Vec<Leaked>>);

struct Leaked {
    leak: Leak,
    /// Dropped when the object is gone. If it never goes: nobody knows whether the device is done with it.
    left: ManuallyDrop<Vec<Left>>,
}

impl Leaks {
    fn lock(&self) -> MutexGuard<'_, Vec<Leaked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Vec<Leak> {
        self.lock().iter().map(|leaked| leaked.leak).collect()
    }

    pub fn record(&self, leak: Leak, kept: Option<Left>) {
        let left = ManuallyDrop::new(kept.into_iter().collect());
        self.lock().push(Leaked { leak, left });
    }

    /// Adds to what is left with an object. If another thread saw it go meanwhile, that is dropped.
    pub fn leave(&self, kind: ObjectKind, handle: u32, left: Left) {
        let mut all = self.lock();
        match all.iter_mut().find(|leaked| (leaked.leak.kind, leaked.leak.handle) == (kind, handle)) {
            Some(leaked) => leaked.left.push(left),
            None => {
                drop(all);
                drop(left);
            }
        }
    }

    /// Asks once more for all of them, until none goes any more.
    fn retry(&self, destroy: impl Fn(ObjectKind, u32) -> Result<(), Errno>) {
        let mut gone = vec![];
        let mut all = self.lock();
        loop {
            let before = all.len();
            // In the order that they were refused: those that others wait for come first.
            gone.extend(all.extract_if(.., |Leaked { leak, .. }| match destroy(leak.kind, leak.handle) {
                Ok(()) => true,
                Err(errno) => {
                    leak.errno = errno;
                    false
                }
            }));
            if all.len() == before || all.is_empty() {
                break;
            }
        }
        drop(all);
        // Without the lock: what was left may itself own objects.
        for leaked in gone {
            drop(ManuallyDrop::into_inner(leaked.left));
        }
    }
}

impl Ucontext {
    /// Objects that the kernel refused to destroy when their handles were dropped, and that are still there.
    pub fn leaks(&self) -> Vec<Leak> {
        self.leaks.all()
    }

    /// Asks the kernel once more for what it refused, as something else is gone.
    pub(super) fn retry_leaks(&self) {
        self.leaks.retry(|kind, id| match self.destroy(kind, id) {
            // Of a device that is gone; what it may still use it goes on to use.
            Err(errno) => Err(errno),
            Ok(_) => Ok(()),
        });
    }

    /// Nobody uses the context any more. If the kernel still refuses to destroy something of it, the file is closed at once,
    /// and with it the kernel destroys that.
    pub fn abandon(self: &Arc<Self>) {
        if self.leaks.all().is_empty() {
            return;
        }
        self.retry_leaks();
        // Of a device that is gone there are only regions, whose memory does not hold on to the file.
        if self.leaks.all().iter().any(|leak| leak.errno != Errno::EIO) {
            // There is nobody to tell.
            let _ = self.shutdown();
        }
    }
}
