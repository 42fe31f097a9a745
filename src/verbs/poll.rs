//! Polling a completion queue.
//!
//! # Safety argument
//!
//! The one unsafe block takes the part of a slice that was just written for what it is: initialised.
#![allow(unsafe_code)]

use super::cq::{Cq, CqShared};
use super::provider::sealed::{CompEntry, CompOps, EndComps, OpenComps};
use super::provider::{Any, Provider};
use super::wc::Completion;
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::PollError;
use std::mem::MaybeUninit;

impl<P: Provider> Cq<P> {
    /// The completions that are there now. Their slots go back to the device when the returned value is dropped, and in its course
    /// where the device may overrun meanwhile.
    ///
    /// If none is there because the device lost some, or is known to be gone, that is the error. A program that only polls
    /// learns of an overrun too: a queue that is found full is watched for a while. That the device is gone becomes known by
    /// a wait, by [`AsyncEvents`](crate::AsyncEvents), or by a refused command.
    ///
    /// ```no_run
    /// # fn f(cq: &mut ironverbs::Cq) -> Result<(), ironverbs::PollError> {
    /// let mut completions = cq.poll()?;
    /// while let Some(completion) = completions.next() {
    ///     println!("{}: {:?}", completion.wr_id(), completion.outcome());
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_start_poll")]
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Completions<'_, P>, PollError> {
        let Self { poller, shared } = self;
        let mut open = poller.open();
        let alarmed = open.is_drained() && shared.is_alarmed(&open)?;
        Ok(Completions { open, shared, alarmed })
    }

    /// One completion, if there is one.
    ///
    /// A copy of it, which a [`Pool`](crate::Pool) does not take for its slot: where slots are under way, [`poll`](Self::poll),
    /// or each that completes is lost to its pool.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll_one(&mut self) -> Result<Option<Wc>, PollError> {
        let Self { poller, shared } = self;
        let mut open = poller.open();
        let first = open.next().map(|entry| entry.wc());
        let alarmed = first.is_none() && shared.is_alarmed(&open)?;
        drop(Completions::<P> { open, shared, alarmed });
        Ok(first)
    }

    /// Copies the completions that are there now to the start of `out`, as many as it has room for, and returns those.
    ///
    /// As with [`poll_one`](Self::poll_one) they are copies, which give no slot back to a [`Pool`](crate::Pool).
    ///
    /// The room need not be initialised: an array of `MaybeUninit`, or a `Vec`'s `spare_capacity_mut`.
    ///
    /// ```no_run
    /// # fn f(cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut room = [const { std::mem::MaybeUninit::uninit() }; 16];
    /// for wc in cq.poll_into(&mut room)? {
    ///     println!("{}: {:?}", wc.wr_id, wc.outcome()?);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_into<'out>(&mut self, out: &'out mut [MaybeUninit<Wc>]) -> Result<&'out mut [Wc], PollError> {
        let Self { poller, shared } = self;
        let mut open = poller.open();
        let n = open.fill(out);
        let alarmed = n == 0 && open.is_drained() && shared.is_alarmed(&open)?;
        drop(Completions::<P> { open, shared, alarmed });
        // SAFETY: the first `n` elements exist and were just written; `MaybeUninit<Wc>` has the layout of `Wc`.
        Ok(unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<Wc>(), n) })
    }
}

impl CqShared {
    /// For an empty queue: whether its batch must end with a closer look. An error, if none will come any more or some are lost.
    #[inline(always)]
    fn is_alarmed<C: OpenComps>(&self, open: &C) -> Result<bool, PollError> {
        if let Some(error) = open.fault() {
            return Err(error);
        }
        // A batch that was forgotten holds slots, too.
        let alarmed = !self.health.is_well() || open.holds_slots();
        if alarmed && let Some(error) = self.health.poll_error() {
            return Err(error);
        }
        Ok(alarmed)
    }

    /// Ends a batch that [`EndComps::end`] did not end, since the queue is full; or that is empty, maybe because the device
    /// has lost something. Looks at what the device has reported; the next empty batch tells.
    ///
    /// If the device has lost something, no slot is given back: what would come after the gap is worth nothing.
    #[cold]
    #[inline(never)]
    fn end_alarmed(&self, poller: &mut dyn EndComps) {
        if poller.end() {
            if self.health.is_suspect() {
                self.look_at_events();
            }
            return;
        }
        if !self.has_lost_any() {
            poller.give_back();
        }
    }

    /// Whether the device has reported that completions were lost. For a queue that is full.
    pub(super) fn has_lost_any(&self) -> bool {
        self.health.suspect();
        self.look_at_events();
        self.health.poll_error().is_some()
    }

    /// Reads what the device has reported, unless someone else does.
    fn look_at_events(&self) {
        // An error is one of reading, not of this queue; whoever waits for events gets it.
        let _ = self.context.registry.keep_unread_events(self.context.ucontext.async_fd());
    }
}

/// Completions that were there when the queue was polled. See [`Cq::poll`].
///
/// ```no_run
/// # fn f(cq: &mut ironverbs::Cq) -> Result<(), ironverbs::PollError> {
/// let mut completions = cq.poll()?; // those that are there now
/// while let Some(completion) = completions.next() {
///     println!("{}", completion.wr_id());
/// }
/// drop(completions); // their places go back to the device
/// # Ok(()) }
/// ```
pub struct Completions<'cq, P: Provider = Any> {
    open: <P::Cq as CompOps>::Open<'cq>,
    shared: &'cq CqShared,
    /// Nothing came, and the queue is not well.
    alarmed: bool,
}

impl<P: Provider> Completions<'_, P> {
    /// The next one. It is borrowed from the queue, so there is one at a time.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Completion<'_, P>> {
        self.open.next().map(Completion::new)
    }
}

impl<P: Provider> Drop for Completions<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        // Made last, so that no register is saved for the call when all is well. It is the only one of polling, but for one at the end of
        // each batch where the provider is not known when compiled.
        if self.alarmed || !self.open.end() {
            self.shared.end_alarmed(self.open.queue());
        }
    }
}
