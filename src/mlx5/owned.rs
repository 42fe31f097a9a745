//! A kernel object together with the memory that the device uses for it.
//!
//! The memory is the program's own, and the device may use it until the object is destroyed. So the handle keeps it,
//! whatever becomes of the queue that is posted to or polled; and if the kernel refuses to destroy the object it is
//! never freed.

use super::cq_memory::CqRing;
use super::dbrec::DoorbellRecord;
use super::home::Home;
use super::mailbox::{Change, Mailbox};
use crate::mem::map::Mapping;
use crate::uverbs::object::Handle;
use std::sync::Arc;

/// What an object needs until it is destroyed.
#[derive(Default)]
pub struct Kept {
    /// Rings of work queue elements.
    pub memory: Option<Arc<Mapping>>,
    /// A completion queue's ring: whichever it has at the time.
    pub completions: Option<Arc<Mailbox<CqRing>>>,
    pub record: Option<DoorbellRecord>,
    /// Where its sends complete, and its receives: taken leave of when the object is gone.
    pub sends: Option<Home>,
    pub receives: Option<Home>,
}

impl Drop for Kept {
    /// The object is gone: no completion comes any more. Those that are there belong to nobody, and the index may be given
    /// again.
    fn drop(&mut self) {
        if let Some(home) = &self.sends {
            home.announce(Change::Sends(None));
        }
        if let Some(home) = &self.receives {
            home.announce(Change::Receives(None));
        }
    }
}

impl Kept {
    /// The object, which from now on keeps all this until it is destroyed.
    pub fn by(self, handle: Handle) -> Handle {
        handle.keeping(Box::new(self))
    }
}
