//! How the public API reaches a provider: sealed traits, and the markers that name the providers.
//!
//! A type parameter `P` names the provider at compile time: [`Rxe`] gives concrete queues, [`Any`] an enum of all of
//! them, chosen when the device is opened. The enum's branch is always predicted, so `Any` is the default everywhere.

use super::ah::Destination;
use super::any::AnyAh;
use crate::rxe::{self, RxeCq, RxeCqe, RxeRq, RxeSq};
use crate::uverbs::attr::{CreateQp, QpCap};
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::error::Error;
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::{CreateSrq, ModifySrq};
use crate::uverbs::types::Qpn;
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::{PostError, SendWr, Sge};
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

        fn create_cq(driver: DriverId, request: CqRequest<'_>) -> Result<(Handle, Self::Cq), Error>;

        /// Makes it hold at least `cqe` completions, and keeps those that were not polled.
        fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut Self::Cq, cqe: u32) -> Result<(), Error>;

        fn create_srq(
            driver: DriverId,
            context: &Arc<Ucontext>,
            request: &CreateSrq<'_>,
        ) -> Result<(Handle, Self::Rq), Error>;

        fn modify_srq(
            context: &Arc<Ucontext>,
            handle: &Handle,
            queue: &mut Self::Rq,
            change: ModifySrq,
        ) -> Result<(), Error>;

        fn create_qp(
            driver: DriverId,
            context: &Arc<Ucontext>,
            request: &CreateQp<'_>,
        ) -> Result<NewQp<Self::Sq, Self::Rq>, Error>;
    }

    /// The send queue of a queue pair. `begin` opens a batch; `submit` or `rollback` ends it.
    pub trait SendOps: Send {
        fn begin(&mut self);
        fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError>;
        /// As `push`, for a SEND on a datagram queue pair.
        fn push_to(&mut self, wr: &SendWr<'_>, to: Destination<'_>) -> Result<(), PostError>;
        fn submit(&mut self) -> Result<(), PostError>;
        fn rollback(&mut self);
        fn remaining(&mut self) -> u32;
        /// From here on longer datagrams are refused.
        fn set_max_datagram(&mut self, bytes: u32);
        fn capacity(&self) -> u32;
        fn is_idle(&mut self) -> bool;
        fn resync(&mut self);
        /// Called once, before anything is pushed: whose it is, and what the device can (`device_cap_flags_ex`).
        fn introduce(&mut self, owner: Owner, device_caps: u64);
        fn owner(&self) -> Owner;
    }

    /// A receive queue, of one queue pair or shared by several, used like [`SendOps`].
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

    /// The poller of a completion queue. `begin` looks how many entries there are, `next` gives exactly those, `end`
    /// hands their slots back to the device.
    pub trait CompOps: Send {
        type Entry<'a>: CompEntry
        where
            Self: 'a;
        fn capacity(&self) -> u32;
        fn has_entry(&self) -> bool;
        fn begin(&mut self);
        fn next(&mut self) -> Option<Self::Entry<'_>>;
        /// Whether every entry of the batch was taken.
        fn is_drained(&self) -> bool;
        /// `false` if the device may have found the queue full, so that it may have lost an entry: nothing is handed back.
        fn end(&mut self) -> bool;
        /// Hands the slots back even so.
        fn give_back(&mut self);
        /// Whether there are slots to be handed back.
        fn holds_slots(&self) -> bool;
    }

    /// One completion. What of the value is not used is not read.
    pub trait CompEntry: Copy {
        fn wc(&self) -> Wc;
    }

    /// What is asked of a provider for a completion queue.
    pub struct CqRequest<'a> {
        pub context: &'a Arc<Ucontext>,
        pub cqe: u32,
        pub user_handle: u64,
        pub channel: Option<BorrowedFd<'a>>,
        pub comp_vector: u32,
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

        fn create_cq(_: DriverId, r: CqRequest<'_>) -> Result<(Handle, RxeCq), Error> {
            rxe::create_cq(r.context, r.cqe, r.user_handle, r.channel, r.comp_vector)
        }

        fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut RxeCq, cqe: u32) -> Result<(), Error> {
            rxe::resize_cq(context, handle, cq, cqe)
        }

        fn create_srq(_: DriverId, context: &Arc<Ucontext>, request: &CreateSrq<'_>) -> Result<(Handle, RxeRq), Error> {
            rxe::create_srq(context, request)
        }

        fn modify_srq(
            context: &Arc<Ucontext>,
            handle: &Handle,
            queue: &mut RxeRq,
            change: ModifySrq,
        ) -> Result<(), Error> {
            rxe::modify_srq(context, handle, queue, change)
        }

        fn create_qp(
            _: DriverId,
            context: &Arc<Ucontext>,
            request: &CreateQp<'_>,
        ) -> Result<NewQp<RxeSq, RxeRq>, Error> {
            let rxe::RxeQp { handle, qpn, cap, sq, rq } = rxe::create_qp(context, request)?;
            Ok(NewQp { handle, qpn, cap, sq, rq })
        }
    }

    impl SendOps for RxeSq {
        #[inline(always)]
        fn begin(&mut self) {
            RxeSq::begin(self);
        }
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
            let AnyAh::Rxe(ah) = &to.ah.wire;
            RxeSq::push_to(self, wr, rxe::UdTo { ah, qpn: to.qpn.get(), qkey: to.qkey.0 })
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
        fn capacity(&self) -> u32 {
            RxeCq::capacity(self)
        }
        #[inline(always)]
        fn has_entry(&self) -> bool {
            RxeCq::has_entry(self)
        }
        #[inline(always)]
        fn begin(&mut self) {
            RxeCq::begin(self);
        }
        #[inline(always)]
        fn next(&mut self) -> Option<RxeCqe<'_>> {
            RxeCq::next(self)
        }
        #[inline(always)]
        fn is_drained(&self) -> bool {
            RxeCq::is_drained(self)
        }
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
    }

    impl CompEntry for RxeCqe<'_> {
        #[inline(always)]
        fn wc(&self) -> Wc {
            RxeCqe::wc(*self)
        }
    }
}
