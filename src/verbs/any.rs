//! Dispatch by enum for [`Any`]: one variant for each provider, chosen when the device is opened.

use super::ah::Destination;
use super::provider::sealed::{Backend, CompEntry, CompOps, CqRequest, NewQp, RecvOps, SendOps};
use super::provider::{Any, Rxe};
use crate::rxe::{self, RxeAh, RxeCq, RxeCqe, RxeRq, RxeSq};
use crate::uverbs::attr::{AddressVector, CreateQp, GidEntry};
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::{CreateSrq, ModifySrq};
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::{PostError, SendWr, Sge};
use std::sync::Arc;

pub enum AnySq {
    Rxe(RxeSq),
}

pub enum AnyRq {
    Rxe(RxeRq),
}

pub enum AnyCq {
    Rxe(RxeCq),
}

#[derive(Clone, Copy)]
pub enum AnyCqe<'a> {
    Rxe(RxeCqe<'a>),
}

/// What work requests say of an address handle. Address handles have no provider in their type, as memory has none.
pub enum AnyAh {
    Rxe(RxeAh),
}

/// Makes an address handle. `local` is the GID that `av` names as its source.
pub fn create_ah(
    driver: DriverId,
    context: &Arc<Ucontext>,
    pd: &Handle,
    av: &AddressVector,
    local: Option<&GidEntry>,
) -> Result<(Handle, AnyAh), Error> {
    match (driver, local) {
        (DriverId::RXE, Some(local)) => {
            rxe::create_ah(context, pd, av, local).map(|(handle, ah)| (handle, AnyAh::Rxe(ah)))
        }
        (DriverId::RXE, None) => {
            Err(Error::invalid(Verb::CreateAh, "GRH", "missing", "Soft-RoCE addresses by GID only"))
        }
        _ => Err(no_provider(Verb::CreateAh, driver)),
    }
}

/// Runs the same expression on whichever provider's value `$value` holds.
macro_rules! each {
    ($any:ident, $value:expr, $inner:ident => $body:expr) => {
        match $value {
            $any::Rxe($inner) => $body,
        }
    };
}

impl Backend for Any {
    type Sq = AnySq;
    type Rq = AnyRq;
    type Cq = AnyCq;

    fn drives(driver: DriverId) -> bool {
        Rxe::drives(driver)
    }

    fn create_cq(driver: DriverId, request: CqRequest<'_>) -> Result<(Handle, AnyCq), Error> {
        match driver {
            DriverId::RXE => Rxe::create_cq(driver, request).map(|(handle, cq)| (handle, AnyCq::Rxe(cq))),
            _ => Err(no_provider(Verb::CreateCq, driver)),
        }
    }

    fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut AnyCq, cqe: u32) -> Result<(), Error> {
        match cq {
            AnyCq::Rxe(cq) => Rxe::resize_cq(context, handle, cq, cqe),
        }
    }

    fn create_srq(
        driver: DriverId,
        context: &Arc<Ucontext>,
        request: &CreateSrq<'_>,
    ) -> Result<(Handle, AnyRq), Error> {
        match driver {
            DriverId::RXE => Rxe::create_srq(driver, context, request).map(|(handle, rq)| (handle, AnyRq::Rxe(rq))),
            _ => Err(no_provider(Verb::CreateSrq, driver)),
        }
    }

    fn modify_srq(context: &Arc<Ucontext>, handle: &Handle, queue: &mut AnyRq, change: ModifySrq) -> Result<(), Error> {
        match queue {
            AnyRq::Rxe(queue) => Rxe::modify_srq(context, handle, queue, change),
        }
    }

    fn create_qp(
        driver: DriverId,
        context: &Arc<Ucontext>,
        request: &CreateQp<'_>,
    ) -> Result<NewQp<AnySq, AnyRq>, Error> {
        match driver {
            DriverId::RXE => {
                let NewQp { handle, qpn, cap, sq, rq } = Rxe::create_qp(driver, context, request)?;
                Ok(NewQp { handle, qpn, cap, sq: AnySq::Rxe(sq), rq: AnyRq::Rxe(rq) })
            }
            _ => Err(no_provider(Verb::CreateQp, driver)),
        }
    }
}

fn no_provider(verb: Verb, driver: DriverId) -> Error {
    Error::Unsupported { verb, what: format!("driver {driver}").into(), by: Lacking::Library }
}

impl SendOps for AnySq {
    #[inline(always)]
    fn begin(&mut self) {
        each!(AnySq, self, sq => sq.begin());
    }
    #[inline(always)]
    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        each!(AnySq, self, sq => sq.push(wr))
    }
    #[inline(always)]
    fn push_to(&mut self, wr: &SendWr<'_>, to: Destination<'_>) -> Result<(), PostError> {
        each!(AnySq, self, sq => SendOps::push_to(sq, wr, to))
    }
    #[inline(always)]
    fn submit(&mut self) -> Result<(), PostError> {
        each!(AnySq, self, sq => sq.submit())
    }
    #[inline(always)]
    fn rollback(&mut self) {
        each!(AnySq, self, sq => sq.rollback());
    }
    #[inline(always)]
    fn remaining(&mut self) -> u32 {
        each!(AnySq, self, sq => sq.remaining())
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
    fn capacity(&self) -> u32 {
        each!(AnyCq, self, cq => cq.capacity())
    }
    #[inline(always)]
    fn has_entry(&self) -> bool {
        each!(AnyCq, self, cq => cq.has_entry())
    }
    #[inline(always)]
    fn begin(&mut self) {
        each!(AnyCq, self, cq => cq.begin());
    }
    #[inline(always)]
    fn next(&mut self) -> Option<AnyCqe<'_>> {
        match self {
            Self::Rxe(cq) => cq.next().map(AnyCqe::Rxe),
        }
    }
    #[inline(always)]
    fn is_drained(&self) -> bool {
        each!(AnyCq, self, cq => cq.is_drained())
    }
    #[inline(always)]
    fn end(&mut self) -> bool {
        each!(AnyCq, self, cq => cq.end())
    }
    fn give_back(&mut self) {
        each!(AnyCq, self, cq => cq.give_back());
    }
    fn holds_slots(&self) -> bool {
        each!(AnyCq, self, cq => cq.holds_slots())
    }
}

impl CompEntry for AnyCqe<'_> {
    #[inline(always)]
    fn wc(&self) -> Wc {
        each!(AnyCqe, self, cqe => CompEntry::wc(cqe))
    }
}
