//! Completion queues.
//!
//! # Safety argument
//!
//! The one unsafe block takes the poller out of a queue that is being dropped, where nothing uses it any more.
#![allow(unsafe_code)]

use super::channel::{ChannelInner, CompChannel, SLICE, deadline};
use super::clock::Stamps;
use super::cq_depth::{CqLoad, Demand};
use super::device::{Context, ContextInner};
use super::health::Health;
use super::mr::CloseError;
use super::opened::CqLink;
use super::provider::sealed::{CompOps, CqOptions, CqRequest, EndComps, NewCq};
use super::provider::{Any, Provider};
use super::registry::Source;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::object::Handle;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Which completion queue an event is about: unique within its context.
///
/// ```no_run
/// # fn f(channel: &ironverbs::CompChannel, cqs: &[ironverbs::Cq]) -> Result<(), ironverbs::Error> {
/// channel.drain(|id| {
///     let cq = cqs.iter().find(|cq| cq.id() == id); // none, if it was dropped since
///     println!("{cq:?}");
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub(super) u64);

/// Completion queue (CQ): where the device says which work requests it has finished.
///
/// Poll it from one thread at a time (`&mut self`); it can be moved to another. It may be dropped before the queue pairs
/// that use it: the kernel's side stays until the last of them is gone. What nobody polled is gone with it, but for the
/// receives of a shared receive queue: their places are free again.
///
/// What a queue pair completed before it was destroyed is still there to poll afterwards, with the `wr_id` that it was posted
/// with. Which work it was is for the program to know by that number: the library keeps no table of it, and the queue pair's
/// number in the completion may by then be another's.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), Box<dyn std::error::Error>> {
/// let mut cq = context.create_cq(64)?;
/// while let Some(wc) = cq.poll_one()? {
///     println!("{}: {:?}", wc.wr_id, wc.outcome());
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_cq")]
pub struct Cq<P: Provider = Any> {
    pub(super) poller: ManuallyDrop<P::Cq>,
    pub(super) shared: Arc<CqShared>,
}

/// What the queue pairs of a completion queue keep of it.
pub(super) struct CqShared {
    pub(super) handle: Handle,
    pub(super) link: CqLink,
    pub(super) id: CqId,
    pub(super) context: Arc<ContextInner>,
    pub(super) channel: Option<Arc<ChannelInner>>,
    pub(super) health: Arc<Health>,
    /// Queue pairs that use it.
    pub(super) attached: AtomicU32,
    /// What they can put into it.
    pub(super) demand: Demand,
    /// Completions that it holds.
    capacity: AtomicU32,
    /// The poller, when the queue was dropped. What is put into the queue until it is destroyed goes to nobody, but says which
    /// receives of shared queues were taken.
    parked: Mutex<Option<Unread>>,
}

/// The poller of a queue that nobody polls any more. It must be dropped after the last completion came.
struct Unread(Box<dyn EndComps + Send>);

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.settle();
    }
}

/// Which completions raise an event.
///
/// ```no_run
/// # fn f(cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// cq.arm(ironverbs::Notify::Solicited)?; // sleep until a message that asks for it
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next one of any kind.
    Any,
    /// The next receive whose sender asked for it with [`SOLICITED`](crate::WrFlags::SOLICITED), or the next error. An
    /// earlier [`Any`](Self::Any) that has not fired yet stays armed.
    Solicited,
}

/// Settings of a completion queue to be made.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let channel = context.create_comp_channel()?;
/// let cq = context.cq_builder(64).channel(&channel).comp_vector(0).build()?;
/// # drop(cq);
/// # Ok(()) }
/// ```
pub struct CqBuilder<'a, P: Provider = Any> {
    context: Arc<ContextInner>,
    depth: u32,
    channel: Option<&'a CompChannel>,
    comp_vector: u32,
    options: CqOptions,
    provider: PhantomData<P>,
}

impl<P: Provider> Context<P> {
    /// A completion queue that holds at least `depth` completions that were not yet polled.
    ///
    /// It must hold every completion that can be under way at once: each signaled send and each receive of all its queue
    /// pairs, and on errors also the unsignaled ones ([`CqDepth`](crate::CqDepth) adds them up). A device that finds it full
    /// loses completions.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, depth: u32) -> Result<Cq<P>, Error> {
        self.cq_builder(depth).build()
    }

    /// As [`create_cq`](Self::create_cq), with more settings.
    pub fn cq_builder<'a>(&self, depth: u32) -> CqBuilder<'a, P> {
        let context = self.inner().clone();
        let options = CqOptions::default();
        CqBuilder { context, depth, channel: None, comp_vector: 0, options, provider: PhantomData }
    }
}

impl<'a, P: Provider> CqBuilder<'a, P> {
    /// Completion events go to `channel`.
    pub fn channel(mut self, channel: &'a CompChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// The completion vector, which chooses the interrupt of the events. At most the context's
    /// [`num_comp_vectors`](Context::num_comp_vectors) - 1.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Bytes of an entry: 64, as by default, or 128. Larger ones have a cache line pair to themselves, which suits processors
    /// that fetch two at a time. Only ConnectX adapters have a choice.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE")]
    pub fn entry_bytes(mut self, bytes: u32) -> Self {
        self.options.entry_bytes = Some(bytes);
        self
    }

    /// Let the device pack completions that are alike: fewer bytes on the bus, some more work for who polls. Default off; only
    /// some ConnectX adapters can, and most only with entries of 64 bytes. Not for receives of a [shared queue](crate::Srq): what is
    /// packed does not say which element of it was taken, so a queue pair or XRC queue that would complete them here is refused.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE")]
    pub fn compressed(mut self, on: bool) -> Self {
        self.options.compressed = on;
        self
    }

    /// Demand a time in each completion ([`Completion::timestamp`](crate::Completion::timestamp)). Without this there is one
    /// where the device can.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    pub fn stamps(mut self, stamps: Stamps) -> Self {
        self.options.stamps = Some(stamps);
        self
    }

    /// Makes it.
    pub fn build(self) -> Result<Cq<P>, Error> {
        let Self { context, depth, channel, comp_vector, options, provider: _ } = self;
        check_depth(Verb::CreateCq, depth, context.attr.max_cqe)?;
        let vectors = context.ucontext.num_comp_vectors();
        if comp_vector >= vectors.max(1) {
            let limit = format!("the device has {vectors} vectors, counted from 0");
            return Err(Error::invalid(Verb::CreateCq, "completion vector", comp_vector, limit));
        }
        if let Some(channel) = channel
            && !Arc::ptr_eq(&channel.inner().context, &context)
        {
            let limit = "it belongs to another context; make one on this context";
            return Err(Error::invalid(Verb::CreateCq, "completion channel", "foreign", limit));
        }
        let user_handle = context.ucontext.next_user_handle();
        let request = CqRequest { cqe: depth, user_handle, channel: channel.map(AsFd::as_fd), comp_vector, options };
        let NewCq { handle, cq: poller, link } = P::create_cq(&context.opened, request)?;
        let channel = channel.map(|c| c.inner().clone());
        if let Some(channel) = &channel {
            channel.attached.fetch_add(1, Ordering::Relaxed);
        }
        let shared = Arc::new(CqShared {
            handle,
            link,
            id: CqId(user_handle),
            context,
            health: Arc::new(Health::new(channel.as_ref().map(|channel| channel.alarm.clone()))),
            channel,
            attached: AtomicU32::new(0),
            demand: Demand::default(),
            capacity: AtomicU32::new(poller.capacity()),
            parked: Mutex::new(None),
        });
        shared.context.registry.insert(user_handle, Source::Cq(shared.health.clone()));
        Ok(Cq { poller: ManuallyDrop::new(poller), shared })
    }
}

impl<P: Provider> Cq<P> {
    /// How many completions it holds.
    pub fn capacity(&self) -> u32 {
        self.poller.capacity()
    }

    /// What events about it carry.
    pub fn id(&self) -> CqId {
        self.shared.id
    }

    /// What its queue pairs can put into it at once, and what it holds.
    ///
    /// A completion queue that is too small is not refused when a queue pair is made on it, since only the program knows how
    /// much it will have under way: look here, or at [`PreparedQp::short_cq`](crate::PreparedQp::short_cq).
    pub fn load(&self) -> CqLoad {
        self.shared.load()
    }

    /// Makes it hold at least `depth` completions, while queue pairs may be at work. Completions that were not polled stay, in
    /// their order.
    ///
    /// The kernel refuses fewer than there are to be polled. If the new ring cannot be mapped, that is the error, polling says
    /// [`Unmapped`](crate::PollError::Unmapped), and resizing once more mends it; nothing is lost.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, depth: u32) -> Result<(), Error> {
        let Self { poller, shared } = self;
        let context = &shared.context;
        check_depth(Verb::ResizeCq, depth, context.attr.max_cqe)?;
        let before = poller.capacity();
        let resized = P::resize_cq(&context.ucontext, &shared.handle, poller, depth);
        // The new ring does not tell whether the old one was full, at last while the kernel worked.
        shared.health.suspect();
        // Without a ring it holds nothing; a refusal leaves it as it was.
        shared.health.set_mapped(resized.is_ok() || (poller.capacity() == before && before != 0));
        shared.capacity.store(poller.capacity(), Ordering::Relaxed);
        resized
    }

    /// Lets one event stand for up to `count` completions, and wait for them for up to `period`: fewer interrupts, later. With a
    /// count of 0 or 1, or no time at all, each completion that is asked for gives its event at once, as at first.
    ///
    /// The device's limits are [`max_cq_moderation_count`](crate::DeviceAttr::max_cq_moderation_count) and
    /// [`max_cq_moderation_period_us`](crate::DeviceAttr::max_cq_moderation_period_us).
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<(), Error> {
        let CqShared { context, handle, .. } = &*self.shared;
        let (most, longest) = (context.attr.max_cq_moderation_count, context.attr.max_cq_moderation_period_us);
        if most == 0 {
            let what = "moderation of completion events".into();
            return Err(Error::Unsupported { verb: Verb::ModifyCq, what, by: Lacking::Driver });
        }
        if count > most {
            return Err(Error::invalid(Verb::ModifyCq, "count", count, format!("the device takes up to {most}")));
        }
        match u16::try_from(period.as_micros()) {
            Ok(period_us) if period_us <= longest => context.ucontext.modify_cq(handle, count, period_us),
            _ => {
                let limit = format!("the device waits for up to {longest} us");
                Err(Error::invalid(Verb::ModifyCq, "period", format_args!("{period:?}"), limit))
            }
        }
    }

    /// Asks for one event on the channel when the next completion comes. One that is already there raises none on some devices
    /// (Soft-RoCE), and one at once on others:
    /// poll once more after arming, and wait only if there was nothing.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self, notify: Notify) -> Result<(), Error> {
        if self.shared.channel.is_none() {
            let limit = "give it one with CqBuilder::channel";
            return Err(Error::invalid(Verb::ReqNotifyCq, "completion channel", "none", limit));
        }
        self.request_event(notify)
    }

    /// Looks for a completion `spins` times, then arms the queue and blocks, as [`wait`](Self::wait) does: `false` if none
    /// came within `timeout`, which counts from the start.
    ///
    /// Spinning answers within a fraction of a microsecond, and costs a processor: a software device such as Soft-RoCE
    /// needs one for itself to make the completion. So the budget is in looks, some nanoseconds each; 1000 to 10000 suit a
    /// peer that answers at once.
    ///
    /// ```no_run
    /// # fn f(cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
    /// while cq.spin_then_wait(2000, std::time::Duration::from_secs(10))? {
    ///     while let Some(completion) = cq.poll()?.next() {
    ///         println!("{}: {:?}", completion.wr_id(), completion.outcome()?);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn spin_then_wait(&mut self, spins: u32, timeout: Duration) -> Result<bool, Error> {
        /// Looks between two looks at the clock.
        const ROUND: u32 = 256;
        let deadline = deadline(timeout);
        for spin in 0..spins {
            if self.poller.has_entry() {
                break;
            }
            if spin % ROUND == ROUND - 1 && (!self.shared.health.is_well() || Instant::now() >= deadline) {
                break;
            }
            std::hint::spin_loop();
        }
        self.wait(deadline.saturating_duration_since(Instant::now()))
    }

    /// Blocks until a completion is there to be polled; `false` if none came within `timeout`.
    ///
    /// Arms the queue itself, and loses no wake-up. Its channel must serve this completion queue alone: with a shared one,
    /// wait on the [`CompChannel`]. A queue that the device overran gives an error, once what was there is polled, rather than
    /// a wait without end.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        if self.poller.holds_slots() {
            // A batch was forgotten, and the queue may be full because of that.
            drop(self.poll().map_err(|error| error.during(Verb::GetCqEvent))?);
        }
        let shared = &self.shared;
        let channel = self.own_channel()?;
        if self.poller.has_entry() && !shared.health.is_gone() {
            return Ok(true);
        }
        shared.health.check(Verb::GetCqEvent)?;
        let deadline = deadline(timeout);
        loop {
            // Looked at each time round, since another completion queue may be attached meanwhile.
            self.own_channel()?;
            // Events of earlier arms go first, then the arm, then the look: a completion before the arm is seen by the
            // look, one after it raises an event.
            channel.drain(|_| ())?;
            self.request_event(Notify::Any)?;
            if self.poller.has_entry() {
                return Ok(true);
            }
            // In slices: a clone of the channel may have drained the event.
            let slice = deadline.min(Instant::now() + SLICE);
            channel.wait_readable(slice, &shared.health)?;
            if self.poller.has_entry() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    /// Arms. If that fails because the device is gone, the queue's health says so before the caller knows.
    fn request_event(&self, notify: Notify) -> Result<(), Error> {
        let CqShared { context, handle, health, .. } = &*self.shared;
        let armed = self.poller.arm(&context.ucontext, handle, health.comp_events(), notify == Notify::Solicited);
        context.registry.heed(armed)
    }

    /// The channel, if it serves this queue alone.
    pub(super) fn own_channel(&self) -> Result<&Arc<ChannelInner>, Error> {
        let refuse = |value, limit| Err(Error::invalid(Verb::GetCqEvent, "completion channel", value, limit));
        match &self.shared.channel {
            None => refuse("none", "give it one with CqBuilder::channel"),
            Some(channel) if channel.attached.load(Ordering::Relaxed) != 1 => {
                refuse("shared", "it serves several completion queues; wait on the CompChannel")
            }
            Some(channel) => Ok(channel),
        }
    }

    /// Destroys it; or gives it back with the reason, as long as a queue pair uses it.
    ///
    /// Completions that were not polled, those of destroyed queue pairs too, are gone with it.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let destroyed = match Arc::strong_count(&self.shared) {
            1 => self.shared.handle.destroy().map(drop),
            _ => {
                let n = self.shared.attached.load(Ordering::Relaxed);
                Err(Error::invalid(Verb::DestroyCq, "number of queue pairs on it", n, "drop them first"))
            }
        };
        destroyed.map_err(|error| CloseError { error, object: self })
    }

    pub(super) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Whether nothing is there to poll, and at most one queue pair can put something there.
    pub(super) fn is_quiet(&self) -> bool {
        !self.poller.has_entry() && self.shared.attached.load(Ordering::Relaxed) <= 1
    }
}

fn check_depth(verb: Verb, depth: u32, max: u32) -> Result<(), Error> {
    let limit = match depth {
        0 => format!("a completion queue holds at least one completion; the device takes up to {max}"),
        _ if depth > max => {
            format!("the device takes 1 to {max}; spread the queue pairs over several completion queues")
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(verb, "depth", depth, limit))
}

impl CqShared {
    pub(super) fn load(&self) -> CqLoad {
        CqLoad {
            queue_pairs: self.attached.load(Ordering::Relaxed),
            demand: self.demand.get(),
            capacity: self.capacity.load(Ordering::Relaxed),
        }
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.context.registry.remove(self.id.0);
        if let Some(channel) = &self.channel {
            channel.attached.fetch_sub(1, Ordering::Relaxed);
        }
        let parked = self.parked.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.handle.destroy_or_leak() {
            self.handle.leave(Box::new(parked));
        }
    }
}

impl<P: Provider> Drop for Cq<P> {
    fn drop(&mut self) {
        // SAFETY: the queue is being dropped, so that its poller is not used again.
        let mut poller = unsafe { ManuallyDrop::take(&mut self.poller) };
        // Queue pairs may keep the rest for long, and whoever posts to their shared receive queue waits for these.
        poller.settle();
        *self.shared.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Unread(Box::new(poller)));
    }
}

impl<P: Provider> fmt::Debug for Cq<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("id", &self.shared.id).field("capacity", &self.capacity()).finish()
    }
}
