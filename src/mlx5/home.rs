//! Where a queue's completions are looked up: on which completion queue, and under which user index.

use super::cq_memory::CqRing;
use super::mailbox::{Change, Mailbox};
use super::uidx::UserIndex;
use std::sync::Arc;

/// Where a queue's completions are looked up. It keeps the user index from being given to others.
#[derive(Clone)]
pub struct Home {
    pub mailbox: Arc<Mailbox<CqRing>>,
    pub uidx: Arc<UserIndex>,
}

impl Home {
    /// Tells the poller what the index stands for from now on.
    pub fn announce(&self, change: Change) {
        self.mailbox.put(self.uidx.get(), change);
    }
}
