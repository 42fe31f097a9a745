//! A completion that is still in its queue.

use super::provider::Provider;
use super::provider::sealed::{CompEntry, CompOps};
use crate::uverbs::wc::{Done, InlineData, Wc, WcError};
use crate::uverbs::wr::WcStatus;
use std::fmt;

/// A completion still in the completion queue: fields are read as they are asked for.
///
/// Not `Clone`: there is exactly one for each work request, which is why a [`Pool`](crate::Pool) can take its slot back
/// for one.
///
/// ```no_run
/// # fn f(cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(completion) = cq.poll()?.next() {
///     let done = completion.outcome()?;
///     println!("{}: {:?}, {} bytes", completion.wr_id(), done.opcode, done.byte_len);
/// }
/// # Ok(()) }
/// ```
pub struct Completion<'a, P: Provider + 'a> {
    entry: <P::Cq as CompOps>::Entry<'a>,
}

impl<'a, P: Provider> Completion<'a, P> {
    #[inline(always)]
    pub(super) fn new(entry: <P::Cq as CompOps>::Entry<'a>) -> Self {
        Self { entry }
    }

    /// The number given with the work request.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.entry.wc().wr_id
    }

    /// The local queue pair's number.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.entry.wc().qpn()
    }

    /// The status.
    #[inline(always)]
    pub fn status(&self) -> WcStatus {
        self.entry.wc().status()
    }

    /// What was done, or why it failed.
    #[inline(always)]
    pub fn outcome(&self) -> Result<Done, WcError> {
        self.entry.wc().outcome()
    }

    /// When the device made it: its clock in ticks, which [`DeviceClock`](crate::DeviceClock) turns into time, or what else the
    /// completion queue was made with ([`Stamps`](crate::Stamps)). None from a device that has no clock.
    ///
    /// Completions that the device compressed have the time of the first of their block.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    #[inline(always)]
    pub fn timestamp(&self) -> Option<u64> {
        self.entry.timestamp()
    }

    /// What came inside the completion, of a queue pair that was built with
    /// [`data_in_completions`](crate::QpBuilder::data_in_completions): then nothing of it is in memory. None if it is there.
    #[inline(always)]
    pub fn inline_data(&self) -> Option<InlineData> {
        self.entry.inline_data().copied()
    }

    #[inline(always)]
    pub(super) fn inline_data_in_place(&self) -> Option<&InlineData> {
        self.entry.inline_data()
    }

    /// All of it, as a value.
    #[inline(always)]
    pub fn wc(&self) -> Wc {
        self.entry.wc()
    }
}

impl<P: Provider> fmt::Debug for Completion<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wc().fmt(f)
    }
}
