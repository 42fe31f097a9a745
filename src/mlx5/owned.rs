//! A kernel object together with the memory that the device uses for it.
//!
//! The memory is the program's own, and the device may use it until the object is destroyed. So it is kept here, beside the
//! handle, whatever becomes of the queue that is posted to or polled; and if the kernel refuses to destroy the object it is
//! never freed.

use super::cq_memory::CqRing;
use super::dbrec::DoorbellRecord;
use super::home::Home;
use super::mailbox::{Change, Mailbox};
use crate::mem::map::Mapping;
use crate::uverbs::error::Error;
use crate::uverbs::object::{Destroyed, Handle};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// What an object needs until it is destroyed.
#[derive(Default)]
pub struct Kept {
    /// Rings of work queue elements.
    pub memory: Option<Arc<Mapping>>,
    /// A completion queue's ring: whichever it has at the time.
    pub completions: Option<Arc<Mailbox<CqRing>>>,
    pub record: Option<Arc<DoorbellRecord>>,
    /// Where its sends complete, and its receives: taken leave of when the object is gone.
    pub sends: Option<Home>,
    pub receives: Option<Home>,
}

/// A kernel object with what it needs.
pub struct Owned {
    handle: Handle,
    /// Dropped once the object is gone, else never.
    kept: ManuallyDrop<Option<Kept>>,
}

impl Owned {
    pub fn new(handle: Handle, kept: Kept) -> Self {
        Self { handle, kept: ManuallyDrop::new(Some(kept)) }
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Destroys the object now; see [`Handle::destroy`].
    pub fn destroy(&mut self) -> Result<Destroyed, Error> {
        let destroyed = self.handle.destroy()?;
        self.let_go();
        Ok(destroyed)
    }

    fn let_go(&mut self) {
        if let Some(Kept { sends, receives, .. }) = self.kept.take() {
            // No completion comes any more; those that are there belong to nobody, and the index may be given again.
            if let Some(home) = sends {
                home.announce(Change::Sends(None));
            }
            if let Some(home) = receives {
                home.announce(Change::Receives(None));
            }
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.handle.destroy_or_leak() {
            self.let_go();
        }
    }
}
