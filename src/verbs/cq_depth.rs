//! How deep a completion queue must be, and how full its queue pairs can make it.

use super::srq::SrqShared;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Adds up how many completions can be under way at once, which is what a completion queue must hold.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// use ironverbs::CqDepth;
/// // 64 queue pairs with up to 16 sends each, which receive from one shared receive queue of 1024.
/// let depth = CqDepth::new().queue_pairs(64, 16, 0).shared_receives(1024);
/// let cq = context.create_cq(depth.entries())?;
/// # Ok(()) }
/// ```
///
/// Count signaled sends only if no queue pair ever fails: one that goes to the error state completes them all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqDepth(u64);

impl CqDepth {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `n` queue pairs, with up to `sends` sends and `receives` receives each that complete here.
    pub const fn queue_pairs(self, n: u32, sends: u32, receives: u32) -> Self {
        self.plus((n as u64).saturating_mul(sends as u64 + receives as u64))
    }

    /// Adds a shared receive queue of up to `n` receives. Once, however many queue pairs take from it.
    pub const fn shared_receives(self, n: u32) -> Self {
        self.plus(n as u64)
    }

    /// The sum, for [`Context::create_cq`](crate::Context::create_cq), which refuses what is beyond the device's limit.
    pub const fn entries(self) -> u32 {
        if self.0 > u32::MAX as u64 { u32::MAX } else { self.0 as u32 }
    }

    const fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }
}

/// How full a completion queue can get: what its queue pairs can put into it, and what it holds. See
/// [`Cq::load`](crate::Cq::load).
///
/// Sizes of queues count as they were asked for. A provider may make them larger, which only matters to a program that posts
/// until a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqLoad {
    /// Queue pairs that use it.
    pub queue_pairs: u32,
    /// Completions that can be under way at once, if every send is signaled.
    pub demand: u64,
    /// Completions that it holds.
    pub capacity: u32,
}

impl CqLoad {
    /// Whether completions can be lost: more can come at once than it holds. A program that signals few sends, and whose
    /// queue pairs never fail, may know better.
    pub fn is_short(&self) -> bool {
        self.demand > self.capacity.into()
    }
}

impl fmt::Display for CqLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue_pairs, demand, capacity } = self;
        write!(
            f,
            "{queue_pairs} queue pairs can have {demand} completions under way; the completion queue holds {capacity}"
        )
    }
}

/// What the queue pairs on one completion queue can put into it.
#[derive(Default)]
pub(super) struct Demand(Mutex<Sum>);

#[derive(Default)]
struct Sum {
    own: u64,
    /// Shared receive queues, each with the number of queue pairs that take from it.
    shared: Vec<(Arc<SrqShared>, u32)>,
}

impl Demand {
    /// A queue pair was made, whose work requests of its own complete here, and whose receives from `srq` do.
    pub(super) fn add(&self, own: u64, srq: Option<&Arc<SrqShared>>) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sum.own += own;
        let Some(srq) = srq else { return };
        match sum.shared.iter_mut().find(|(known, _)| Arc::ptr_eq(known, srq)) {
            Some((_, users)) => *users += 1,
            None => sum.shared.push((srq.clone(), 1)),
        }
    }

    /// That queue pair is gone.
    pub(super) fn remove(&self, own: u64, srq: Option<&Arc<SrqShared>>) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sum.own -= own;
        let Some(srq) = srq else { return };
        for (known, users) in &mut sum.shared {
            *users -= u32::from(Arc::ptr_eq(known, srq));
        }
        // The queue pair still holds the shared receive queue, so that it is not destroyed here, under the lock.
        sum.shared.retain(|(_, users)| *users != 0);
    }

    /// All of it.
    pub(super) fn get(&self) -> u64 {
        let sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared: u64 = sum.shared.iter().map(|(srq, _)| u64::from(srq.asked.load(Ordering::Relaxed))).sum();
        sum.own + shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_add_up_and_do_not_overflow() {
        assert_eq!(CqDepth::new().entries(), 0);
        assert_eq!(CqDepth::new().queue_pairs(3, 16, 16).entries(), 96);
        assert_eq!(CqDepth::new().queue_pairs(64, 16, 0).shared_receives(1024).entries(), 2048);
        let most = CqDepth::new().queue_pairs(u32::MAX, u32::MAX, u32::MAX).queue_pairs(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(most.entries(), u32::MAX);
        assert_eq!(most.shared_receives(1).entries(), u32::MAX);
    }

    #[test]
    fn a_queue_is_short_if_more_can_come_than_it_holds() {
        let load = |demand, capacity| CqLoad { queue_pairs: 3, demand, capacity };
        assert!(load(64, 63).is_short() && !load(63, 63).is_short());
        assert_eq!(
            load(96, 63).to_string(),
            "3 queue pairs can have 96 completions under way; the completion queue holds 63"
        );
    }
}
