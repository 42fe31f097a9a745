//! Objects that the kernel refused to destroy, and what the device may use for them.
//!
//! A refusal may pass: what the object waited for goes later, or memory is there again. So the kernel is asked once more
//! whenever another object of the context is gone. What is left when nobody uses the context any more goes with its file, which
//! is closed then, whoever still holds a part of it: what was left with an object may hold on to the file itself.
//!
//! The kernel gives numbers of what is gone anew, so only what is on the list is asked for, by one thread at a time: its number
//! is not another object's before it is off the list.

use super::context::Ucontext;
use super::errno::Errno;
use super::object::{Leak, ObjectKind};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the device may use for an object.
pub type Left = Box<dyn Any + Send>;

/// As many are asked for in one go when something else is gone, so that those which never go do not hold up all that do.
const A_FEW: usize = 64;

/// Of one context.
#[derive(Default)]
pub struct Leaks {
    list: Mutex<List>,
    /// Locked by whoever asks the kernel, which takes as long as it takes.
    asking: Mutex<()>,
}

/// Never locked while the kernel is asked, or while anything is dropped.
#[derive(Default)]
struct List {
    /// In the order that they were refused: those that others wait for come first.
    leaked: Vec<Leaked>,
    recorded: u64,
    /// The one that is asked for next, where there are many.
    turn: usize,
}

struct Leaked {
    serial: Serial,
    leak: Leak,
    /// Dropped when the object is gone. If it never goes: nobody knows whether the device is done with it.
    left: ManuallyDrop<Vec<Left>>,
}

/// Tells an object on the list from all others, which its number does not once it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial(u64);

impl Leaks {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Vec<Leak> {
        self.list().leaked.iter().map(|leaked| leaked.leak).collect()
    }

    pub fn record(&self, leak: Leak, kept: Option<Left>) -> Serial {
        let left = ManuallyDrop::new(kept.into_iter().collect());
        let mut list = self.list();
        list.recorded += 1;
        let serial = Serial(list.recorded);
        list.leaked.push(Leaked { serial, leak, left });
        serial
    }

    /// Adds to what is left with an object. If another thread saw it go meanwhile, that is dropped.
    pub fn leave(&self, serial: Serial, left: Left) {
        let mut list = self.list();
        match list.leaked.iter_mut().find(|leaked| leaked.serial == serial) {
            Some(leaked) => leaked.left.push(left),
            None => {
                drop(list);
                drop(left);
            }
        }
    }

    /// Why it was refused when it was last asked for, if it is still there.
    fn errno(&self, serial: Serial) -> Option<Errno> {
        self.list().leaked.iter().find(|leaked| leaked.serial == serial).map(|leaked| leaked.leak.errno)
    }

    /// Asks once more for `most` of them, until none goes any more.
    fn retry(&self, most: usize, destroy: impl Fn(ObjectKind, u32) -> Result<(), Errno>) {
        if self.list().leaked.is_empty() {
            return;
        }
        let mut gone: Vec<Leaked> = vec![];
        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let before = gone.len();
            // Another thread may add to the list meanwhile, and only this one takes from it.
            let asked = self.list().whose_turn_it_is(most);
            for (serial, leak) in asked {
                let answer = destroy(leak.kind, leak.handle);
                gone.extend(self.list().answered(serial, answer));
            }
            if gone.len() == before {
                break;
            }
        }
        drop(asking);
        // Without a lock: what was left may itself own objects.
        for leaked in gone {
            drop(ManuallyDrop::into_inner(leaked.left));
        }
    }
}

impl List {
    fn whose_turn_it_is(&mut self, most: usize) -> Vec<(Serial, Leak)> {
        let n = self.leaked.len();
        let start = if most < n { self.turn % n } else { 0 };
        self.turn = start.wrapping_add(most);
        self.leaked.iter().cycle().skip(start).take(most.min(n)).map(|leaked| (leaked.serial, leaked.leak)).collect()
    }

    /// Notes the kernel's answer, and takes off the list what is gone.
    fn answered(&mut self, serial: Serial, answer: Result<(), Errno>) -> Option<Leaked> {
        let at = self.leaked.iter().position(|leaked| leaked.serial == serial)?;
        match answer {
            Ok(()) => Some(self.leaked.remove(at)),
            Err(errno) => {
                self.leaked[at].leak.errno = errno;
                None
            }
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
        self.ask_again(A_FEW);
    }

    /// Asks the kernel once more for all that it refused, and one object most of all: tells why it is still there, if it is.
    pub(super) fn retry_leak(&self, serial: Serial) -> Option<Errno> {
        self.retry_all_leaks();
        self.leaks.errno(serial)
    }

    pub(super) fn retry_all_leaks(&self) {
        self.ask_again(usize::MAX);
    }

    fn ask_again(&self, most: usize) {
        self.leaks.retry(most, |kind, id| match self.destroy(kind, id) {
            // The device had let go of the region before the file was given up.
            Err(Errno::EIO) if kind == ObjectKind::Mr && self.closing().has_deregistered(id) => Ok(()),
            // EIO is that of a device that is gone; what it may still use it goes on to use.
            answer => answer.map(drop),
        });
    }

    /// Nobody uses the context any more. If the kernel still refuses to destroy something of it, the file is closed at once,
    /// and with it the kernel destroys that.
    pub fn abandon(self: &Arc<Self>) {
        self.retry_all_leaks();
        // A region of a device that is gone has memory which does not hold on to the file. A queue may.
        let holds_file = |leak: &Leak| leak.kind != ObjectKind::Mr || leak.errno != Errno::EIO;
        if self.leaks.all().iter().any(holds_file) {
            // There is nobody to tell.
            let _ = self.shutdown();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
