//! How the public API reaches a provider: sealed traits, and the markers that name the providers.
//!
//! A type parameter `P` names the provider at compile time: [`Rxe`] gives concrete queues, [`Any`] an enum of all of
//! them, chosen when the device is opened. The enum's branch is always predicted, so `Any` is the default everywhere.

use super::ah::Destination;
use super::any::AnyAh;
use super::clock::Stamps;
use super::opened::{CqLink, Opened, SrqLink};
use crate::rxe::{self, RxeCq, RxeCqe, RxeRq, RxeSq};
use crate::uverbs::attr::{CreateQp, QpCap};
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::{CreateSrq, ModifySrq};
use crate::uverbs::types::{Qpn, Srqn};
use crate::uverbs::wc::{InlineData, Wc};
use crate::uverbs::wr::{PollError, PostError, SendWr, Sge, WrFlags};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device driver that this library can drive, or [`Any`] of them. Sealed.
///
/// ```no_run
/// /// Works with a queue of any provider, at the speed of the one it is called with.
/// fn drain<P: ironverbs::Provider>(cq: &mut ironverbs::Cq<P>) -> Result<usize, ironverbs::PollError> {
///     let (mut n, mut completions) = (0, cq.poll()?);
///     while completions.next().is_some() {
///         n += 1;
///     }
///     Ok(n)
/// }
/// ```
pub trait Provider: sealed::Backend {}

/// Soft-RoCE, the kernel's `rdma_rxe`.
///
/// ```no_run
/// # fn f(context: ironverbs::Context) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::{Context, Cq, Rxe};
/// let context: Context<Rxe> = context.into_provider().map_err(|other| format!("{other:?} is not Soft-RoCE"))?;
/// let cq: Cq<Rxe> = context.create_cq(16)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Rxe {}

/// NVIDIA (Mellanox) ConnectX adapters, the kernel's `mlx5_ib`.
///
/// ```no_run
/// # fn f(context: ironverbs::Context) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::{Context, Cq, Mlx5};
/// let context: Context<Mlx5> = context.into_provider().map_err(|other| format!("{other:?} is no ConnectX"))?;
/// let cq: Cq<Mlx5> = context.create_cq(16)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Mlx5 {}

/// Whichever provider the opened device needs.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let mut cq: ironverbs::Cq<ironverbs::Any> = context.create_cq(16)?; // the same as Cq
/// println!("{:?}", cq.poll_one());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Any {}

impl Provider for Rxe {}
impl Provider for Mlx5 {}
impl Provider for Any {}

pub(crate) mod sealed {
    use super::*;

    /// What a provider does when it makes objects.
    pub trait Backend: Sized + Send + Sync + 'static {
        type Sq: SendOps + 'static;
        type Rq: RecvOps + 'static;
        type Cq: CompOps + 'static;

        /// Whether this marker can stand for a device of that driver.
        fn drives(driver: DriverId) -> bool;

        fn create_cq(opened: &Opened, request: CqRequest<'_>) -> Result<NewCq<Self::Cq>, Error>;

        /// Makes it hold at least `cqe` completions, and keeps those that were not polled.
        fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut Self::Cq, cqe: u32) -> Result<(), Error>;

        fn create_srq(opened: &Opened, request: &SrqRequest<'_>) -> Result<NewSrq<Self::Rq>, Error>;

        fn modify_srq(
            context: &Arc<Ucontext>,
            handle: &Handle,
            queue: &mut Self::Rq,
            change: ModifySrq,
        ) -> Result<(), Error>;

        fn create_qp(opened: &Opened, request: &QpRequest<'_>) -> Result<NewQp<Self::Sq, Self::Rq>, Error>;
    }

    /// The send queue of a queue pair.
    pub trait SendOps: Send {
        /// A batch that is being written.
        type Open<'a>: OpenSends
        where
            Self: 'a;
        /// Opens a batch. What an earlier one pushed and never submitted is forgotten.
        fn open(&mut self) -> Self::Open<'_>;
        /// From here on longer datagrams are refused.
        fn set_max_datagram(&mut self, bytes: u32);
        fn capacity(&self) -> u32;
        fn is_idle(&mut self) -> bool;
        fn resync(&mut self);
        /// Called once, before anything is pushed: whose it is, and what the device can (`device_cap_flags_ex`).
        fn introduce(&mut self, owner: Owner, device_caps: u64);
        fn owner(&self) -> Owner;
    }

    /// A send queue with an open batch. `submit` or `rollback` ends it.
    pub trait OpenSends {
        fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError>;
        /// As `push`, for a SEND on a datagram queue pair.
        fn push_to(&mut self, wr: &SendWr<'_>, to: Destination<'_>) -> Result<(), PostError>;
        /// As `push`, on the sending end of XRC, for a shared receive queue of the peer's.
        fn push_xrc(&mut self, wr: &SendWr<'_>, srqn: Srqn) -> Result<(), PostError>;
        /// Pushes a work request that does nothing.
        fn push_nop(&mut self, wr_id: u64, flags: WrFlags) -> Result<(), PostError>;
        fn submit(&mut self) -> Result<(), PostError>;
        fn rollback(&mut self);
        fn remaining(&mut self) -> u32;
        fn owner(&self) -> Owner;
    }

    /// A receive queue, of one queue pair or shared by several. `begin` opens a batch; `submit` or `rollback` ends it.
    pub trait RecvOps: Send {
        fn begin(&mut self);
        fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError>;
        fn submit(&mut self);
        fn rollback(&mut self);
        fn remaining(&mut self) -> u32;
        /// Why nothing fits when nothing remains.
        fn full(&self) -> PostError;
        fn capacity(&self) -> u32;
        fn max_sge(&self) -> u32;
        fn is_idle(&mut self) -> bool;
        fn resync(&mut self);
    }

    /// The poller of a completion queue.
    pub trait CompOps: EndComps + Send {
        type Entry<'a>: CompEntry
        where
            Self: 'a;
        /// While a batch is read.
        type Open<'a>: OpenComps<Cq = Self>
        where
            Self: 'a;
        fn capacity(&self) -> u32;
        fn has_entry(&self) -> bool;
        /// Starts a batch.
        fn open(&mut self) -> Self::Open<'_>;
        /// Asks for an event when the next completion comes. `events` is how many events of it were received.
        fn arm(&self, context: &Ucontext, handle: &Handle, events: u32, solicited_only: bool) -> Result<(), Error>;
    }

    /// What the end of a batch needs of a completion queue.
    pub trait EndComps {
        /// Hands the slots of what was read back to the device. `false` if the device may have found the queue full, so that it
        /// may have lost an entry: nothing is handed back.
        fn end(&mut self) -> bool;
        /// Hands the slots back even so.
        fn give_back(&mut self);
        /// Whether there are slots to be handed back.
        fn holds_slots(&self) -> bool;
        /// Why no entry can be read any more, if that is so.
        fn fault(&self) -> Option<PollError>;
        /// Nobody polls any more: takes what is there as read, so that the elements of shared receive queues that it tells of are
        /// free again.
        fn settle(&mut self);
    }

    /// A completion queue with an open batch. How far it was read is in the queue at any time, so it may be forgotten.
    pub trait OpenComps {
        type Cq: CompOps + 'static;
        /// The next entry of those that are there.
        fn next(&mut self) -> Option<<Self::Cq as CompOps>::Entry<'_>>;
        /// Writes those that are there to the start of `out`, as many as it has room for, and says how many.
        #[inline(always)]
        fn fill(&mut self, out: &mut [MaybeUninit<Wc>]) -> usize {
            let mut n = 0;
            for room in out {
                let Some(entry) = self.next() else { break };
                room.write(entry.wc());
                n += 1;
            }
            n
        }
        /// Whether there is none.
        fn is_drained(&mut self) -> bool;
        /// As [`EndComps::fault`].
        fn fault(&self) -> Option<PollError>;
        /// As [`EndComps::holds_slots`].
        fn holds_slots(&self) -> bool;
        /// As [`EndComps::end`]; `false` also where that has to be asked.
        fn end(&mut self) -> bool;
        /// The queue itself, for what happens seldom.
        fn queue(&mut self) -> &mut dyn EndComps;
    }

    /// One completion. What of the value is not used is not read.
    pub trait CompEntry: Copy {
        fn wc(&self) -> Wc;
        /// When it was made, by the device's clock.
        fn timestamp(&self) -> Option<u64>;
        /// What came inside it.
        fn inline_data(&self) -> Option<&InlineData>;
    }

    /// What is asked of a provider for a completion queue.
    pub struct CqRequest<'a> {
        pub cqe: u32,
        pub user_handle: u64,
        pub channel: Option<BorrowedFd<'a>>,
        pub comp_vector: u32,
        pub options: CqOptions,
    }

    /// What only some providers have of a completion queue.
    #[derive(Clone, Copy, PartialEq, Eq, Default)]
    pub struct CqOptions {
        /// Bytes of an entry; the provider's choice if none.
        pub entry_bytes: Option<u32>,
        pub compressed: bool,
        pub stamps: Option<Stamps>,
    }

    /// A completion queue just made.
    pub struct NewCq<C> {
        pub handle: Handle,
        pub cq: C,
        pub link: CqLink,
    }

    /// What is asked of a provider for a shared receive queue.
    pub struct SrqRequest<'a> {
        pub create: CreateSrq<'a>,
        /// Where the receives of an XRC queue complete.
        pub xrc_cq: Option<&'a CqLink>,
    }

    /// A shared receive queue just made.
    pub struct NewSrq<R> {
        pub handle: Handle,
        pub queue: R,
        pub link: SrqLink,
        /// Its number, of XRC only.
        pub srqn: Option<Srqn>,
    }

    /// What is asked of a provider for a queue pair.
    pub struct QpRequest<'a> {
        pub create: CreateQp<'a>,
        pub send_cq: &'a CqLink,
        pub recv_cq: &'a CqLink,
        pub srq: Option<&'a SrqLink>,
        /// Whether the device may put short messages into completions.
        pub data_in_completions: bool,
    }

    /// A queue pair just made.
    pub struct NewQp<S, R> {
        pub handle: Handle,
        pub qpn: Qpn,
        pub cap: QpCap,
        pub sq: S,
        pub rq: R,
    }

    impl Backend for Rxe {
        type Sq = RxeSq;
        type Rq = RxeRq;
        type Cq = RxeCq;

        fn drives(driver: DriverId) -> bool {
            driver == DriverId::RXE
        }

        fn create_cq(opened: &Opened, r: CqRequest<'_>) -> Result<NewCq<RxeCq>, Error> {
            let CqOptions { entry_bytes, compressed, stamps } = r.options;
            let lacks = [
                (entry_bytes.is_some(), "the size of a completion's entry"),
                (compressed, "compressed completions"),
                (stamps.is_some(), "a clock in completions"),
            ];
            if let Some((_, what)) = lacks.into_iter().find(|(asked, _)| *asked) {
                return Err(Error::Unsupported { verb: Verb::CreateCq, what: what.into(), by: Lacking::Driver });
            }
            let (handle, cq) = rxe::create_cq(opened.ucontext(), r.cqe, r.user_handle, r.channel, r.comp_vector)?;
            Ok(NewCq { handle, cq, link: CqLink::Rxe })
        }

        fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut RxeCq, cqe: u32) -> Result<(), Error> {
            rxe::resize_cq(context, handle, cq, cqe)
        }

        fn create_srq(opened: &Opened, request: &SrqRequest<'_>) -> Result<NewSrq<RxeRq>, Error> {
            let (handle, queue) = rxe::create_srq(opened.ucontext(), &request.create)?;
            // The driver has no XRC, and so no domain for one.
            Ok(NewSrq { handle, queue, link: SrqLink::Rxe, srqn: None })
        }

        fn modify_srq(
            context: &Arc<Ucontext>,
            handle: &Handle,
            queue: &mut RxeRq,
            change: ModifySrq,
        ) -> Result<(), Error> {
            rxe::modify_srq(context, handle, queue, change)
        }

        fn create_qp(opened: &Opened, request: &QpRequest<'_>) -> Result<NewQp<RxeSq, RxeRq>, Error> {
            if request.data_in_completions {
                return Err(Error::Unsupported {
                    verb: Verb::CreateQp,
                    what: "data in completions".into(),
                    by: Lacking::Driver,
                });
            }
            let rxe::RxeQp { handle, qpn, cap, sq, rq } = rxe::create_qp(opened.ucontext(), &request.create)?;
            Ok(NewQp { handle, qpn, cap, sq, rq })
        }
    }

    impl SendOps for RxeSq {
        type Open<'a> = &'a mut Self;
        #[inline(always)]
        fn open(&mut self) -> &mut Self {
            RxeSq::begin(self);
            self
        }
        fn set_max_datagram(&mut self, bytes: u32) {
            RxeSq::set_max_datagram(self, bytes);
        }
        fn capacity(&self) -> u32 {
            RxeSq::capacity(self)
        }
        fn is_idle(&mut self) -> bool {
            RxeSq::remaining(self) == RxeSq::capacity(self)
        }
        fn resync(&mut self) {
            RxeSq::resync(self);
        }
        fn introduce(&mut self, owner: Owner, device_caps: u64) {
            RxeSq::set_owner(self, owner);
            RxeSq::set_device_caps(self, device_caps);
        }
        #[inline(always)]
        fn owner(&self) -> Owner {
            RxeSq::owner(self)
        }
    }

    impl OpenSends for &mut RxeSq {
        #[inline(always)]
        fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
            RxeSq::push(self, wr)
        }
        #[inline(always)]
        fn push_to(&mut self, wr: &SendWr<'_>, to: Destination<'_>) -> Result<(), PostError> {
            // The device would not find it, and end the queue pair with no reason given.
            if !to.ah.is_of(RxeSq::owner(self).pd) {
                return Err(PostError::ForeignPd);
            }
            let AnyAh::Rxe(ah) = &to.ah.wire else { return Err(PostError::ForeignPd) };
            RxeSq::push_to(self, wr, rxe::UdTo { ah, qpn: to.qpn.get(), qkey: to.qkey.0 })
        }
        fn push_nop(&mut self, _: u64, _: WrFlags) -> Result<(), PostError> {
            Err(PostError::NotOffered)
        }
        fn push_xrc(&mut self, _: &SendWr<'_>, _: Srqn) -> Result<(), PostError> {
            Err(PostError::NotOffered)
        }
        #[inline(always)]
        fn submit(&mut self) -> Result<(), PostError> {
            RxeSq::submit(self)
        }
        #[inline(always)]
        fn rollback(&mut self) {
            RxeSq::rollback(self);
        }
        #[inline(always)]
        fn remaining(&mut self) -> u32 {
            RxeSq::remaining(self)
        }
        #[inline(always)]
        fn owner(&self) -> Owner {
            RxeSq::owner(self)
        }
    }

    impl RecvOps for RxeRq {
        #[inline(always)]
        fn begin(&mut self) {
            RxeRq::begin(self);
        }
        #[inline(always)]
        fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
            RxeRq::push(self, wr_id, sges)
        }
        #[inline(always)]
        fn submit(&mut self) {
            RxeRq::submit(self);
        }
        #[inline(always)]
        fn rollback(&mut self) {
            RxeRq::rollback(self);
        }
        #[inline(always)]
        fn remaining(&mut self) -> u32 {
            RxeRq::remaining(self)
        }
        fn full(&self) -> PostError {
            RxeRq::full(self)
        }
        fn capacity(&self) -> u32 {
            RxeRq::capacity(self)
        }
        fn max_sge(&self) -> u32 {
            RxeRq::max_sge(self)
        }
        fn is_idle(&mut self) -> bool {
            RxeRq::remaining(self) == RxeRq::capacity(self)
        }
        fn resync(&mut self) {
            RxeRq::resync(self);
        }
    }

    impl CompOps for RxeCq {
        type Entry<'a> = RxeCqe<'a>;
        type Open<'a> = &'a mut Self;
        fn capacity(&self) -> u32 {
            RxeCq::capacity(self)
        }
        #[inline(always)]
        fn has_entry(&self) -> bool {
            RxeCq::has_entry(self)
        }
        #[inline(always)]
        fn open(&mut self) -> &mut Self {
            RxeCq::begin(self);
            self
        }
        fn arm(&self, context: &Ucontext, handle: &Handle, _: u32, solicited_only: bool) -> Result<(), Error> {
            context.req_notify_cq(handle, solicited_only)
        }
    }

    impl EndComps for RxeCq {
        #[inline(always)]
        fn end(&mut self) -> bool {
            RxeCq::end(self)
        }
        fn give_back(&mut self) {
            RxeCq::give_back(self);
        }
        fn holds_slots(&self) -> bool {
            RxeCq::holds_slots(self)
        }
        fn fault(&self) -> Option<PollError> {
            None
        }
        /// The driver itself says in a receive queue's ring what is free.
        fn settle(&mut self) {}
    }

    impl OpenComps for &mut RxeCq {
        type Cq = RxeCq;
        #[inline(always)]
        fn next(&mut self) -> Option<RxeCqe<'_>> {
            RxeCq::next(self)
        }
        #[inline(always)]
        fn is_drained(&mut self) -> bool {
            RxeCq::is_drained(self)
        }
        #[inline(always)]
        fn fault(&self) -> Option<PollError> {
            EndComps::fault(*self)
        }
        #[inline(always)]
        fn holds_slots(&self) -> bool {
            RxeCq::holds_slots(self)
        }
        #[inline(always)]
        fn end(&mut self) -> bool {
            RxeCq::end(self)
        }
        fn queue(&mut self) -> &mut dyn EndComps {
            *self
        }
    }

    impl CompEntry for RxeCqe<'_> {
        #[inline(always)]
        fn wc(&self) -> Wc {
            RxeCqe::wc(*self)
        }
        fn timestamp(&self) -> Option<u64> {
            None
        }
        #[inline(always)]
        fn inline_data(&self) -> Option<&InlineData> {
            None
        }
    }
}
