//! Dispatch by enum for [`Any`]: one variant for each provider, chosen when the device is opened.

use super::ah::Destination;
use super::mlx5::{Mlx5Rq, Mlx5Sq, OpenMlx5};
use super::opened::Opened;
use super::provider::sealed::{
    Backend, CompEntry, CompOps, CqRequest, EndComps, NewCq, NewQp, NewSrq, OpenComps, OpenSends, QpRequest, RecvOps,
    SendOps, SrqRequest,
};
use super::provider::{Any, Mlx5, Rxe};
use crate::mlx5;
use crate::rxe::{self, RxeAh, RxeCq, RxeCqe, RxeRq, RxeSq};
use crate::uverbs::attr::{AddressVector, GidEntry};
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::ModifySrq;
use crate::uverbs::types::{Qpn, Srqn};
use crate::uverbs::wc::{InlineData, Wc};
use crate::uverbs::wr::{PollError, PostError, SendWr, Sge, WrFlags};
use std::mem::MaybeUninit;
use std::sync::Arc;

pub enum AnySq {
    Rxe(RxeSq),
    Mlx5(Mlx5Sq),
}

pub enum AnyRq {
    Rxe(RxeRq),
    Mlx5(Mlx5Rq),
}

#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each queue, and a box would be a look elsewhere for each poll"
)]
pub enum AnyCq {
    Rxe(RxeCq),
    Mlx5(mlx5::Cq),
}

#[derive(Clone, Copy)]
pub enum AnyCqe<'a> {
    Rxe(RxeCqe<'a>),
    Mlx5(mlx5::Cqe<'a>),
}

/// What work requests say of an address handle. Address handles have no provider in their type, as memory has none.
pub enum AnyAh {
    Rxe(RxeAh),
    Mlx5(mlx5::Av),
}

/// Makes an address handle. `local` is the GID that `av` names as its source.
pub fn create_ah(
    opened: &Opened,
    pd: &Handle,
    av: &AddressVector,
    local: Option<&GidEntry>,
) -> Result<(Handle, AnyAh), Error> {
    match (opened, local) {
        (Opened::Rxe(context), Some(local)) => {
            rxe::create_ah(context, pd, av, local).map(|(handle, ah)| (handle, AnyAh::Rxe(ah)))
        }
        (Opened::Rxe(_), None) => {
            Err(Error::invalid(Verb::CreateAh, "GRH", "missing", "Soft-RoCE addresses by GID only"))
        }
        (Opened::Mlx5(context), local) => {
            mlx5::create_ah(context, pd, av, local).map(|(handle, av)| (handle, AnyAh::Mlx5(av)))
        }
    }
}

/// Makes the receiving end of XRC in a domain, in state RESET.
pub fn create_xrc_recv(opened: &Opened, xrcd: &Handle, user_handle: u64) -> Result<(Handle, Qpn), Error> {
    match opened {
        // There is no domain to make one in.
        Opened::Rxe(_) => Err(Error::Unsupported {
            verb: Verb::CreateQp,
            what: "the receiving end of XRC".into(),
            by: Lacking::Driver,
        }),
        Opened::Mlx5(context) => mlx5::create_xrc_recv(context, xrcd, user_handle),
    }
}

/// Runs the same expression on whichever provider's value `$value` holds.
macro_rules! each {
    ($any:ident, $value:expr, $inner:ident => $body:expr) => {
        match $value {
            $any::Rxe($inner) => $body,
            $any::Mlx5($inner) => $body,
        }
    };
}

impl Backend for Any {
    type Sq = AnySq;
    type Rq = AnyRq;
    type Cq = AnyCq;

    fn drives(driver: DriverId) -> bool {
        Rxe::drives(driver) || Mlx5::drives(driver)
    }

    fn create_cq(opened: &Opened, request: CqRequest<'_>) -> Result<NewCq<AnyCq>, Error> {
        match opened {
            Opened::Rxe(_) => {
                let NewCq { handle, cq, link } = Rxe::create_cq(opened, request)?;
                Ok(NewCq { handle, cq: AnyCq::Rxe(cq), link })
            }
            Opened::Mlx5(_) => {
                let NewCq { handle, cq, link } = Mlx5::create_cq(opened, request)?;
                Ok(NewCq { handle, cq: AnyCq::Mlx5(cq), link })
            }
        }
    }

    fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut AnyCq, cqe: u32) -> Result<(), Error> {
        match cq {
            AnyCq::Rxe(cq) => Rxe::resize_cq(context, handle, cq, cqe),
            AnyCq::Mlx5(cq) => Mlx5::resize_cq(context, handle, cq, cqe),
        }
    }

    fn create_srq(opened: &Opened, request: &SrqRequest<'_>) -> Result<NewSrq<AnyRq>, Error> {
        match opened {
            Opened::Rxe(_) => {
                let NewSrq { handle, queue, link, srqn } = Rxe::create_srq(opened, request)?;
                Ok(NewSrq { handle, queue: AnyRq::Rxe(queue), link, srqn })
            }
            Opened::Mlx5(_) => {
                let NewSrq { handle, queue, link, srqn } = Mlx5::create_srq(opened, request)?;
                Ok(NewSrq { handle, queue: AnyRq::Mlx5(queue), link, srqn })
            }
        }
    }

    fn modify_srq(context: &Arc<Ucontext>, handle: &Handle, queue: &mut AnyRq, change: ModifySrq) -> Result<(), Error> {
        match queue {
            AnyRq::Rxe(queue) => Rxe::modify_srq(context, handle, queue, change),
            AnyRq::Mlx5(queue) => Mlx5::modify_srq(context, handle, queue, change),
        }
    }

    fn create_qp(opened: &Opened, request: &QpRequest<'_>) -> Result<NewQp<AnySq, AnyRq>, Error> {
        match opened {
            Opened::Rxe(_) => {
                let NewQp { handle, qpn, cap, sq, rq } = Rxe::create_qp(opened, request)?;
                Ok(NewQp { handle, qpn, cap, sq: AnySq::Rxe(sq), rq: AnyRq::Rxe(rq) })
            }
            Opened::Mlx5(_) => {
                let NewQp { handle, qpn, cap, sq, rq } = Mlx5::create_qp(opened, request)?;
                Ok(NewQp { handle, qpn, cap, sq: AnySq::Mlx5(sq), rq: AnyRq::Mlx5(rq) })
            }
        }
    }
}

pub(super) fn no_provider(verb: Verb, driver: DriverId) -> Error {
    Error::Unsupported { verb, what: format!("driver {driver}").into(), by: Lacking::Library }
}

/// A batch of [`AnySq`].
pub enum AnyOpen<'a> {
    Rxe(&'a mut RxeSq),
    Mlx5(OpenMlx5<'a>),
}

impl OpenSends for AnyOpen<'_> {
    #[inline(always)]
    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        each!(AnyOpen, self, open => OpenSends::push(open, wr))
    }
    #[inline(always)]
    fn push_to(&mut self, wr: &SendWr<'_>, to: Destination<'_>) -> Result<(), PostError> {
        each!(AnyOpen, self, open => OpenSends::push_to(open, wr, to))
    }
    #[inline(always)]
    fn push_xrc(&mut self, wr: &SendWr<'_>, srqn: Srqn) -> Result<(), PostError> {
        each!(AnyOpen, self, open => OpenSends::push_xrc(open, wr, srqn))
    }
    #[inline(always)]
    fn push_nop(&mut self, wr_id: u64, flags: WrFlags) -> Result<(), PostError> {
        each!(AnyOpen, self, open => OpenSends::push_nop(open, wr_id, flags))
    }
    #[inline(always)]
    fn submit(&mut self) -> Result<(), PostError> {
        each!(AnyOpen, self, open => OpenSends::submit(open))
    }
    #[inline(always)]
    fn rollback(&mut self) {
        each!(AnyOpen, self, open => OpenSends::rollback(open));
    }
    #[inline(always)]
    fn remaining(&mut self) -> u32 {
        each!(AnyOpen, self, open => OpenSends::remaining(open))
    }
    #[inline(always)]
    fn owner(&self) -> Owner {
        each!(AnyOpen, self, open => OpenSends::owner(open))
    }
}

impl SendOps for AnySq {
    type Open<'a> = AnyOpen<'a>;
    #[inline(always)]
    fn open(&mut self) -> AnyOpen<'_> {
        match self {
            Self::Rxe(sq) => AnyOpen::Rxe(sq.open()),
            Self::Mlx5(sq) => AnyOpen::Mlx5(sq.open()),
        }
    }
    fn set_max_datagram(&mut self, bytes: u32) {
        each!(AnySq, self, sq => sq.set_max_datagram(bytes));
    }
    fn capacity(&self) -> u32 {
        each!(AnySq, self, sq => sq.capacity())
    }
    fn is_idle(&mut self) -> bool {
        each!(AnySq, self, sq => SendOps::is_idle(sq))
    }
    fn resync(&mut self) {
        each!(AnySq, self, sq => sq.resync());
    }
    fn introduce(&mut self, owner: Owner, device_caps: u64) {
        each!(AnySq, self, sq => sq.introduce(owner, device_caps));
    }
    #[inline(always)]
    fn owner(&self) -> Owner {
        each!(AnySq, self, sq => SendOps::owner(sq))
    }
}

impl RecvOps for AnyRq {
    #[inline(always)]
    fn begin(&mut self) {
        each!(AnyRq, self, rq => rq.begin());
    }
    #[inline(always)]
    fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        each!(AnyRq, self, rq => rq.push(wr_id, sges))
    }
    #[inline(always)]
    fn submit(&mut self) {
        each!(AnyRq, self, rq => rq.submit());
    }
    #[inline(always)]
    fn rollback(&mut self) {
        each!(AnyRq, self, rq => rq.rollback());
    }
    #[inline(always)]
    fn remaining(&mut self) -> u32 {
        each!(AnyRq, self, rq => rq.remaining())
    }
    fn full(&self) -> PostError {
        each!(AnyRq, self, rq => rq.full())
    }
    fn capacity(&self) -> u32 {
        each!(AnyRq, self, rq => rq.capacity())
    }
    fn max_sge(&self) -> u32 {
        each!(AnyRq, self, rq => rq.max_sge())
    }
    fn is_idle(&mut self) -> bool {
        each!(AnyRq, self, rq => RecvOps::is_idle(rq))
    }
    fn resync(&mut self) {
        each!(AnyRq, self, rq => rq.resync());
    }
}

impl CompOps for AnyCq {
    type Entry<'a> = AnyCqe<'a>;
    type Open<'a> = AnyOpenCq<'a>;
    fn capacity(&self) -> u32 {
        each!(AnyCq, self, cq => cq.capacity())
    }
    #[inline(always)]
    fn has_entry(&self) -> bool {
        each!(AnyCq, self, cq => cq.has_entry())
    }
    #[inline(always)]
    fn open(&mut self) -> AnyOpenCq<'_> {
        match self {
            Self::Rxe(cq) => AnyOpenCq::Rxe(cq.open()),
            Self::Mlx5(cq) => AnyOpenCq::Mlx5(cq.open()),
        }
    }
    fn arm(&self, context: &Ucontext, handle: &Handle, events: u32, solicited_only: bool) -> Result<(), Error> {
        each!(AnyCq, self, cq => CompOps::arm(cq, context, handle, events, solicited_only))
    }
}

impl EndComps for AnyCq {
    #[inline(always)]
    fn end(&mut self) -> bool {
        each!(AnyCq, self, cq => EndComps::end(cq))
    }
    fn give_back(&mut self) {
        each!(AnyCq, self, cq => EndComps::give_back(cq));
    }
    fn holds_slots(&self) -> bool {
        each!(AnyCq, self, cq => EndComps::holds_slots(cq))
    }
    fn fault(&self) -> Option<PollError> {
        each!(AnyCq, self, cq => EndComps::fault(cq))
    }
    fn settle(&mut self) {
        each!(AnyCq, self, cq => EndComps::settle(cq));
    }
}

/// A batch of [`AnyCq`].
pub enum AnyOpenCq<'a> {
    Rxe(&'a mut RxeCq),
    Mlx5(mlx5::OpenCq<'a>),
}

impl OpenComps for AnyOpenCq<'_> {
    type Cq = AnyCq;
    #[inline(always)]
    fn next(&mut self) -> Option<AnyCqe<'_>> {
        match self {
            Self::Rxe(open) => OpenComps::next(open).map(AnyCqe::Rxe),
            Self::Mlx5(open) => OpenComps::next(open).map(AnyCqe::Mlx5),
        }
    }
    #[inline(always)]
    fn fill(&mut self, out: &mut [MaybeUninit<Wc>]) -> usize {
        each!(AnyOpenCq, self, open => OpenComps::fill(open, out))
    }
    #[inline(always)]
    fn is_drained(&mut self) -> bool {
        each!(AnyOpenCq, self, open => OpenComps::is_drained(open))
    }
    #[inline(always)]
    fn fault(&self) -> Option<PollError> {
        each!(AnyOpenCq, self, open => OpenComps::fault(open))
    }
    #[inline(always)]
    fn holds_slots(&self) -> bool {
        each!(AnyOpenCq, self, open => OpenComps::holds_slots(open))
    }
    #[inline(always)]
    fn end(&mut self) -> bool {
        match self {
            Self::Rxe(open) => end_rxe(open),
            Self::Mlx5(open) => {
                let ci = open.ci();
                end_mlx5(open.queue(), ci)
            }
        }
    }
    fn queue(&mut self) -> &mut dyn EndComps {
        each!(AnyOpenCq, self, open => OpenComps::queue(open))
    }
}

// The ends of a batch, out of line, and told what they need as values. Were both in place, the compiler would put the end of an
// `AnyOpenCq` out of line itself and hand it the batch's address; so the batch would be in memory, not in registers, for each completion.
// `extern "C"`, so that nothing unwinds.

#[inline(never)]
extern "C" fn end_rxe(cq: &mut RxeCq) -> bool {
    cq.end()
}

#[inline(never)]
extern "C" fn end_mlx5(cq: &mut mlx5::Cq, ci: u32) -> bool {
    cq.end_at(ci)
}

impl CompEntry for AnyCqe<'_> {
    #[inline(always)]
    fn wc(&self) -> Wc {
        each!(AnyCqe, self, cqe => CompEntry::wc(cqe))
    }
    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        each!(AnyCqe, self, cqe => CompEntry::timestamp(cqe))
    }
    #[inline(always)]
    fn inline_data(&self) -> Option<&InlineData> {
        each!(AnyCqe, self, cqe => CompEntry::inline_data(cqe))
    }
}
