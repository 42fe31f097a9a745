//! Shared receive queues.

use super::batch::RecvBatch;
use super::cq::{Cq, CqShared};
use super::device::{Context, ContextInner};
use super::events::SrqId;
use super::mr::CloseError;
use super::opened::SrqLink;
use super::pd::{Pd, PdInner};
use super::pool::{self, Slot, SlotError};
use super::provider::sealed::{NewSrq, RecvOps, SrqRequest};
use super::provider::{Any, Provider};
use super::registry::Source;
use super::xrc::{Xrcd, XrcdInner};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::{CreateSrq, ModifySrq, SrqAttr, XrcReceives};
use crate::uverbs::types::Srqn;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared receive queue (SRQ): receives that any of many queue pairs takes when a message comes.
///
/// A server with a thousand clients posts as many receives as messages are under way, and not as many for each client. A
/// message takes the receive that was posted first; its completion goes to the receive completion queue of the queue pair it
/// came in by.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, cq: &ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::{Pool, QpBuilder};
/// let pd = &context.alloc_pd()?;
/// let pool = Pool::new(pd, 512, 4096)?;
/// let mut srq = context.create_srq(pd, 512)?;
/// while let Some(slot) = pool.take() {
///     srq.recv_slot(slot)?;
/// }
/// let one = QpBuilder::rc(pd, cq, cq).srq(&srq).build()?;
/// let other = QpBuilder::rc(pd, cq, cq).srq(&srq).build()?;
/// srq.arm_limit(64)?; // an SRQ_LIMIT_REACHED event, once, when fewer than 64 receives are left
/// # Ok(()) }
/// ```
///
/// Post from one thread at a time (`&mut self`), which need not be that of any of its queue pairs. It may be dropped before
/// the queue pairs: the kernel's side stays until the last of them is gone, and what was posted is still received into.
///
/// **Nothing flushes it.** A queue pair that goes to the error state, or is destroyed, gives back no receive but the one that
/// a message is just being received into. What no message took stays posted, until the shared receive queue is destroyed: no
/// completion tells of it, and a [`Slot`] that was in it is lost to its pool.
#[doc(alias = "ibv_srq")]
pub struct Srq<P: Provider = Any, K: SrqKind = Basic> {
    queue: P::Rq,
    shared: Arc<SrqShared>,
    kind: PhantomData<K>,
}

/// What kind a shared receive queue is of: [`Basic`] or [`Xrc`]. Sealed.
///
/// ```no_run
/// /// Gives the device every free slot of a pool.
/// fn fill<K: ironverbs::SrqKind>(srq: &mut ironverbs::Srq<ironverbs::Any, K>, pool: &ironverbs::Pool) -> Result<(), ironverbs::SlotError> {
///     while let Some(slot) = pool.take() {
///         srq.recv_slot(slot)?;
///     }
///     Ok(())
/// }
/// ```
#[doc(alias = "ibv_srq_type")]
pub trait SrqKind: sealed::Kind {}

/// A shared receive queue for queue pairs of the same context, which name it when they are made
/// ([`QpBuilder::srq`](crate::QpBuilder::srq)).
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, pd: &ironverbs::Pd) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Any, Basic, Srq};
/// let srq: Srq<Any, Basic> = context.create_srq(pd, 256)?; // the same as Srq
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_SRQT_BASIC")]
#[derive(Clone, Copy, Debug)]
pub enum Basic {}

/// A shared receive queue that peers name by its [number](Srq::number) in each work request. What reaches any receiving end
/// of its [`Xrcd`] with that number is received here, and completes on the queue's own completion queue.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, pd: &ironverbs::Pd, cq: &ironverbs::Cq, xrcd: &ironverbs::Xrcd) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Any, Srq, Xrc};
/// let srq: Srq<Any, Xrc> = context.srq_builder(pd, 256).xrc(xrcd, cq).build()?;
/// println!("tell the peers: {}", srq.number());
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_SRQT_XRC")]
#[derive(Clone, Copy, Debug)]
pub enum Xrc {}

impl SrqKind for Basic {}
impl SrqKind for Xrc {}

mod sealed {
    pub trait Kind: Send + Sync + 'static {}
    impl Kind for super::Basic {}
    impl Kind for super::Xrc {}
}

/// What the queue pairs of a shared receive queue keep of it.
pub(super) struct SrqShared {
    pub(super) handle: Handle,
    pub(super) id: SrqId,
    pub(super) pd: Arc<PdInner>,
    /// Queue pairs that use it.
    pub(super) attached: AtomicU32,
    pub(super) link: SrqLink,
    /// Receives that it was asked to hold.
    pub(super) asked: AtomicU32,
    xrc: Option<XrcParts>,
}

/// What an XRC shared receive queue has besides. It goes after the kernel's object.
struct XrcParts {
    number: Srqn,
    cq: Arc<CqShared>,
    _xrcd: Arc<XrcdInner>,
}

/// Settings of a shared receive queue to be made.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, pd: &ironverbs::Pd) -> Result<(), ironverbs::Error> {
/// let srq = context.srq_builder(pd, 256).max_sge(2).build()?;
/// # drop(srq);
/// # Ok(()) }
/// ```
pub struct SrqBuilder<'a, P: Provider = Any, K: SrqKind = Basic> {
    context: Arc<ContextInner>,
    pd: &'a Pd,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    xrc: Option<(&'a Xrcd, &'a Cq<P>)>,
    kind: PhantomData<K>,
}

impl<P: Provider> Context<P> {
    /// A shared receive queue that holds at least `max_wr` receives, of one scatter/gather entry each.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, pd: &Pd, max_wr: u32) -> Result<Srq<P>, Error> {
        self.srq_builder(pd, max_wr).build()
    }

    /// As [`create_srq`](Self::create_srq), with more settings.
    pub fn srq_builder<'a>(&self, pd: &'a Pd, max_wr: u32) -> SrqBuilder<'a, P> {
        SrqBuilder { context: self.inner().clone(), pd, max_wr, max_sge: 1, limit: 0, xrc: None, kind: PhantomData }
    }
}

impl<'a, P: Provider> SrqBuilder<'a, P> {
    /// Make it one of XRC: a peer names it by its number, and its receives complete on `cq`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn xrc(self, xrcd: &'a Xrcd, cq: &'a Cq<P>) -> SrqBuilder<'a, P, Xrc> {
        let Self { context, pd, max_wr, max_sge, limit, xrc: _, kind: _ } = self;
        SrqBuilder { context, pd, max_wr, max_sge, limit, xrc: Some((xrcd, cq)), kind: PhantomData }
    }
}

impl<P: Provider, K: SrqKind> SrqBuilder<'_, P, K> {
    /// Scatter/gather entries of one receive. Default 1.
    pub fn max_sge(mut self, n: u32) -> Self {
        self.max_sge = n;
        self
    }

    /// As [`Srq::arm_limit`], from the start. Fewer receives than this are posted at first; that alone gives no event.
    ///
    /// The driver of mlx5 devices has none ([`Error::Unsupported`]): call [`Srq::arm_limit`] once receives are posted.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Makes it.
    #[doc(alias = "ibv_create_srq")]
    pub fn build(self) -> Result<Srq<P, K>, Error> {
        let Self { context, pd, max_wr, max_sge, limit, xrc, kind } = self;
        let ours = |what, used: &Arc<ContextInner>| match Arc::ptr_eq(used, &context) {
            true => Ok(()),
            false => Err(Error::invalid(
                Verb::CreateSrq,
                what,
                "foreign",
                "it belongs to another context; allocate one on this context",
            )),
        };
        ours("protection domain", &pd.inner().context)?;
        if let Some((xrcd, cq)) = xrc {
            ours("XRC domain", &xrcd.inner().context)?;
            ours("completion queue", &cq.shared().context)?;
        }
        check_max_wr(Verb::CreateSrq, max_wr, context.attr.max_srq_wr)?;
        let most = context.attr.max_srq_sge;
        if max_sge > most {
            return Err(Error::invalid(Verb::CreateSrq, "max_sge", max_sge, format!("the device takes up to {most}")));
        }
        check_limit(Verb::CreateSrq, limit, max_wr)?;
        let user_handle = context.ucontext.next_user_handle();
        let receives = xrc.map(|(xrcd, cq)| XrcReceives { xrcd: &xrcd.inner().handle, cq: &cq.shared().handle });
        let pd_handle = &pd.inner().handle;
        let create = CreateSrq { pd: pd_handle, max_wr, max_sge, limit, user_handle, xrc: receives };
        let request = SrqRequest { create, xrc_cq: xrc.map(|(_, cq)| &cq.shared().link) };
        let NewSrq { handle, queue, link, srqn } = P::create_srq(&context.opened, &request)?;
        context.registry.insert(user_handle, Source::Srq);
        let xrc = xrc.zip(srqn).map(|((xrcd, cq), number)| {
            let cq = cq.shared().clone();
            cq.attached.fetch_add(1, Ordering::Relaxed);
            cq.demand.add(max_wr.into(), None);
            XrcParts { number, cq, _xrcd: xrcd.inner().clone() }
        });
        let shared = Arc::new(SrqShared {
            handle,
            link,
            id: SrqId(user_handle),
            pd: pd.inner().clone(),
            attached: AtomicU32::new(0),
            asked: AtomicU32::new(max_wr),
            xrc,
        });
        Ok(Srq { queue, shared, kind })
    }
}

impl<P: Provider> Srq<P, Xrc> {
    /// What peers name it by, in each work request.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Srqn {
        self.shared.xrc.as_ref().map_or(Srqn::default(), |xrc| xrc.number)
    }
}

impl<P: Provider, K: SrqKind> Srq<P, K> {
    /// What events about it carry.
    pub fn id(&self) -> SrqId {
        self.shared.id
    }

    /// How many receives it holds.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Scatter/gather entries that a receive takes at most.
    pub fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    /// Opens a batch of receives. One batch at a time: it borrows the queue.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, P> {
        RecvBatch::new(&mut self.queue, &true)
    }

    /// Posts a receive into a slot of a pool. The completion that brings it back comes to the completion queue of whichever
    /// queue pair a message takes it by.
    #[inline(always)]
    pub fn recv_slot(&mut self, slot: Slot) -> Result<(), SlotError> {
        pool::post_recv_slot(&mut self.queue, self.shared.pd.identity(), slot)
    }

    /// Asks the kernel for size and limit.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr, Error> {
        self.shared.pd.context.ucontext.query_srq(&self.shared.handle)
    }

    /// Asks for one [`SRQ_LIMIT_REACHED`](crate::AsyncEventType::SRQ_LIMIT_REACHED) event as soon as a message leaves fewer
    /// than `limit` receives. The event disarms it: post more receives, then arm it again. 0 disarms it now.
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), Error> {
        check_limit(Verb::ModifySrq, limit, self.capacity())?;
        self.modify(ModifySrq::Limit(limit))
    }

    /// Makes it hold at least `max_wr` receives. What is posted stays posted, in its order; queue pairs may receive
    /// meanwhile. Refused by the kernel if more receives are posted, or if a limit above `max_wr` is armed.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, max_wr: u32) -> Result<(), Error> {
        check_max_wr(Verb::ModifySrq, max_wr, self.shared.pd.context.attr.max_srq_wr)?;
        self.modify(ModifySrq::MaxWr(max_wr))?;
        let before = self.shared.asked.swap(max_wr, Ordering::Relaxed);
        if let Some(XrcParts { cq, .. }) = &self.shared.xrc {
            cq.demand.add(max_wr.into(), None);
            cq.demand.remove(before.into(), None);
        }
        Ok(())
    }

    /// Destroys it; or gives it back with the reason, as long as a queue pair uses it. Receives that are posted are gone with
    /// it, and give no completion.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let destroyed = match Arc::strong_count(&self.shared) {
            1 => self.shared.handle.destroy().map(drop),
            _ => {
                let n = self.shared.attached.load(Ordering::Relaxed);
                Err(Error::invalid(Verb::DestroySrq, "number of queue pairs on it", n, "drop them first"))
            }
        };
        CloseError::unless(destroyed, self)
    }

    fn modify(&mut self, change: ModifySrq) -> Result<(), Error> {
        let SrqShared { handle, pd, .. } = &*self.shared;
        P::modify_srq(&pd.context.ucontext, handle, &mut self.queue, change)
    }

    pub(super) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }
}

fn check_max_wr(verb: Verb, max_wr: u32, most: u32) -> Result<(), Error> {
    if max_wr == 0 || max_wr > most {
        return Err(Error::invalid(verb, "max_wr", max_wr, format!("the device takes 1 to {most}")));
    }
    Ok(())
}

fn check_limit(verb: Verb, limit: u32, max_wr: u32) -> Result<(), Error> {
    if limit > max_wr {
        return Err(Error::invalid(verb, "limit", limit, format!("the queue holds {max_wr} receives")));
    }
    Ok(())
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        self.pd.context.registry.remove(self.id.0);
        if let Some(XrcParts { cq, .. }) = &self.xrc {
            cq.attached.fetch_sub(1, Ordering::Relaxed);
            cq.demand.remove(self.asked.load(Ordering::Relaxed).into(), None);
        }
        // The handle destroys itself when it is dropped, after this, and before the protection domain.
    }
}

impl<P: Provider, K: SrqKind> fmt::Debug for Srq<P, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("id", &self.shared.id).field("capacity", &self.capacity()).finish()
    }
}
