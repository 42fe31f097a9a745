//! [`Mlx5`] as a provider: its queues in the form that the verbs use.

use super::ah::Destination;
use super::any::{AnyAh, no_provider};
use super::clock::Stamps;
use super::opened::{CqLink, Opened, SrqLink};
use super::provider::Mlx5;
use super::provider::sealed::{
    Backend, CompEntry, CompOps, CqOptions, CqRequest, EndComps, NewCq, NewQp, NewSrq, OpenComps, OpenSends, QpRequest,
    RecvOps, SendOps, SrqRequest,
};
use crate::mlx5::{self, Mlx5Context};
use crate::uverbs::abi::verbs::qp_type;
use crate::uverbs::attr::QpCap;
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::memory_wr::Owner;
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::ModifySrq;
use crate::uverbs::types::Srqn;
use crate::uverbs::wc::{InlineData, Wc};
use crate::uverbs::wr::{Payload, PollError, PostError, SendWr, Sge, WrFlags};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A send queue, and what the verbs tell it once.
pub struct Mlx5Sq {
    sq: mlx5::Sq,
    owner: Owner,
    max_datagram: u32,
}

/// A receive queue of either kind, or none.
pub enum Mlx5Rq {
    Own(mlx5::Rq),
    Shared(mlx5::Srq),
    /// Why nothing can be posted.
    None(PostError),
}

fn context(opened: &Opened, verb: Verb) -> Result<&Arc<Mlx5Context>, Error> {
    match opened {
        Opened::Mlx5(context) => Ok(context),
        Opened::Rxe(_) => Err(no_provider(verb, opened.driver())),
    }
}

fn foreign(what: &'static str) -> Error {
    Error::invalid(Verb::CreateQp, what, "of another driver", "make it on the queue pair's own context")
}

fn mailbox(link: &CqLink) -> Result<&Arc<mlx5::CqMailbox>, Error> {
    match link {
        CqLink::Mlx5 { mailbox, .. } => Ok(mailbox),
        CqLink::Rxe => Err(foreign("completion queue")),
    }
}

/// Refuses a queue of packed completions for receives of a shared queue.
///
/// What is packed of a receive has no index of its element (it has a hash or a checksum of the packet in its place): that is counted
/// on from the first of the block. Elements of a shared queue are taken in the order of a list, not of their indices, and nothing that
/// is published says that the device packs only those whose indices follow each other.
fn named_elements(verb: Verb, link: &CqLink) -> Result<(), Error> {
    match link {
        CqLink::Mlx5 { compressed: true, .. } => Err(Error::invalid(
            verb,
            "completion queue of a shared receive queue's receives",
            "compressed",
            "packed completions do not name the shared queue's elements: make it without CqBuilder::compressed",
        )),
        _ => Ok(()),
    }
}

impl Backend for Mlx5 {
    type Sq = Mlx5Sq;
    type Rq = Mlx5Rq;
    type Cq = mlx5::Cq;

    fn drives(driver: DriverId) -> bool {
        driver == DriverId::MLX5
    }

    fn create_cq(opened: &Opened, r: CqRequest<'_>) -> Result<NewCq<mlx5::Cq>, Error> {
        let context = context(opened, Verb::CreateCq)?;
        let CqRequest { cqe, user_handle, channel, comp_vector, options } = r;
        let CqOptions { entry_bytes, compressed, stamps } = options;
        let request = mlx5::CqRequest {
            cqe,
            user_handle,
            channel,
            comp_vector,
            entry_bytes: entry_bytes.unwrap_or(64),
            compressed,
            stamps: stamps.map(|stamps| match stamps {
                Stamps::Ticks => mlx5::Stamps::Ticks,
                Stamps::RealTime => mlx5::Stamps::RealTime,
            }),
        };
        let mlx5::NewCq { object: handle, cq } = mlx5::create_cq(context, &request)?;
        let link = CqLink::Mlx5 { mailbox: cq.mailbox().clone(), compressed };
        Ok(NewCq { handle, cq, link })
    }

    fn resize_cq(context: &Arc<Ucontext>, handle: &Handle, cq: &mut mlx5::Cq, cqe: u32) -> Result<(), Error> {
        use zerocopy::IntoBytes;
        // The queue keeps the memory that the request names: the new ring takes the old one's place.
        cq.resize(cqe, |cqe, request| context.resize_cq(handle, cqe, request.as_bytes(), &mut []))
    }

    fn create_srq(opened: &Opened, request: &SrqRequest<'_>) -> Result<NewSrq<Mlx5Rq>, Error> {
        let context = context(opened, Verb::CreateSrq)?;
        let xrc_cq = request.xrc_cq.map(mailbox).transpose()?;
        request.xrc_cq.map_or(Ok(()), |cq| named_elements(Verb::CreateSrq, cq))?;
        let mlx5::NewSrq { object: handle, srq, shared, srqn } = mlx5::create_srq(context, &request.create, xrc_cq)?;
        Ok(NewSrq { handle, queue: Mlx5Rq::Shared(srq), link: SrqLink::Mlx5(shared), srqn })
    }

    fn modify_srq(context: &Arc<Ucontext>, handle: &Handle, _: &mut Mlx5Rq, change: ModifySrq) -> Result<(), Error> {
        match change {
            ModifySrq::Limit(_) => context.modify_srq_alone(handle, change),
            ModifySrq::MaxWr(_) => Err(Error::Unsupported {
                verb: Verb::ModifySrq,
                what: "another size of a shared receive queue".into(),
                by: Lacking::Driver,
            }),
        }
    }

    fn create_qp(opened: &Opened, r: &QpRequest<'_>) -> Result<NewQp<Mlx5Sq, Mlx5Rq>, Error> {
        let context = context(opened, Verb::CreateQp)?;
        let sends_only = r.create.qp_type == qp_type::XRC_INI;
        let from = match r.srq {
            None if sends_only => mlx5::ReceiveFrom::Nowhere,
            None => mlx5::ReceiveFrom::Own,
            Some(SrqLink::Mlx5(shared)) => {
                named_elements(Verb::CreateQp, r.recv_cq)?;
                mlx5::ReceiveFrom::Shared(shared.clone())
            }
            Some(SrqLink::Rxe) => return Err(foreign("shared receive queue")),
        };
        // Every other queue pair has both queues, be they of one element.
        let QpCap { max_send_wr, max_recv_wr, .. } = r.create.cap;
        let mut create = r.create;
        create.cap.max_send_wr = max_send_wr.max(1);
        if !sends_only {
            create.cap.max_recv_wr = max_recv_wr.max(1);
        }
        let (send_cq, recv_cq) = (mailbox(r.send_cq)?, mailbox(r.recv_cq)?);
        let made = mlx5::create_qp(context, &create, from, send_cq, recv_cq, r.data_in_completions)?;
        let mlx5::NewQp { object: handle, qpn, cap, sq, rq } = made;
        let Some(sq) = sq else {
            return Err(Error::invalid(Verb::CreateQp, "queue pair type", create.qp_type, "one that sends"));
        };
        let rq = match rq {
            Some(rq) => Mlx5Rq::Own(rq),
            None if sends_only => Mlx5Rq::None(PostError::NotOffered),
            None => Mlx5Rq::None(PostError::SharedReceives),
        };
        let sq = Mlx5Sq { sq, owner: Owner::default(), max_datagram: u32::MAX };
        Ok(NewQp { handle, qpn, cap, sq, rq })
    }
}

/// A batch of [`Mlx5Sq`].
pub struct OpenMlx5<'a> {
    sq: mlx5::OpenSq<'a>,
    owner: Owner,
    max_datagram: u32,
}

impl OpenSends for OpenMlx5<'_> {
    #[inline(always)]
    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.sq.push(wr)
    }
    #[inline(always)]
    fn push_to(&mut self, wr: &SendWr<'_>, to: Destination<'_>) -> Result<(), PostError> {
        let destination = destination(self.owner, self.max_datagram, wr, to)?;
        self.sq.push_to(wr, mlx5::Target::Datagram(&destination))
    }
    #[inline(always)]
    fn push_xrc(&mut self, wr: &SendWr<'_>, srqn: Srqn) -> Result<(), PostError> {
        self.sq.push_to(wr, mlx5::Target::Xrc { srqn: srqn.get() })
    }
    #[inline(always)]
    fn push_nop(&mut self, wr_id: u64, flags: WrFlags) -> Result<(), PostError> {
        self.sq.push_nop(wr_id, flags)
    }
    #[inline(always)]
    fn submit(&mut self) -> Result<(), PostError> {
        self.sq.submit();
        Ok(())
    }
    #[inline(always)]
    fn rollback(&mut self) {
        // The queue knows nothing of it yet.
    }
    #[inline(always)]
    fn remaining(&mut self) -> u32 {
        self.sq.remaining()
    }
    #[inline(always)]
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl SendOps for Mlx5Sq {
    type Open<'a> = OpenMlx5<'a>;
    #[inline(always)]
    fn open(&mut self) -> OpenMlx5<'_> {
        let Self { sq, owner, max_datagram } = self;
        OpenMlx5 { sq: sq.open(), owner: *owner, max_datagram: *max_datagram }
    }
    fn set_max_datagram(&mut self, bytes: u32) {
        self.max_datagram = bytes;
    }
    fn capacity(&self) -> u32 {
        self.sq.capacity()
    }
    fn is_idle(&mut self) -> bool {
        self.sq.remaining() == self.sq.capacity()
    }
    fn resync(&mut self) {
        self.sq.resync();
    }
    fn introduce(&mut self, owner: Owner, _: u64) {
        self.owner = owner;
    }
    #[inline(always)]
    fn owner(&self) -> Owner {
        self.owner
    }
}

/// Where a datagram goes, if it may.
#[inline(always)]
fn destination(
    owner: Owner,
    max_datagram: u32,
    wr: &SendWr<'_>,
    to: Destination<'_>,
) -> Result<mlx5::Destination, PostError> {
    if !to.ah.is_of(owner.pd) {
        return Err(PostError::ForeignPd);
    }
    let AnyAh::Mlx5(av) = &to.ah.wire else { return Err(PostError::ForeignPd) };
    if length(&wr.payload) > u64::from(max_datagram) {
        return Err(PostError::DatagramTooLong);
    }
    Ok(mlx5::Destination { av: *av, qpn: to.qpn, qkey: to.qkey.0 })
}

/// Bytes of a payload.
#[inline(always)]
fn length(payload: &Payload<'_>) -> u64 {
    match payload {
        Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::InlinePieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
    }
}

impl RecvOps for Mlx5Rq {
    #[inline(always)]
    fn begin(&mut self) {
        self.rollback();
    }
    #[inline(always)]
    fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            Self::Own(rq) => rq.push(wr_id, sges),
            Self::Shared(srq) => srq.push(wr_id, sges),
            Self::None(why) => Err(*why),
        }
    }
    #[inline(always)]
    fn submit(&mut self) {
        match self {
            Self::Own(rq) => rq.submit(),
            Self::Shared(srq) => srq.submit(),
            Self::None(_) => {}
        }
    }
    #[inline(always)]
    fn rollback(&mut self) {
        match self {
            Self::Own(rq) => rq.rollback(),
            Self::Shared(srq) => srq.rollback(),
            Self::None(_) => {}
        }
    }
    #[inline(always)]
    fn remaining(&mut self) -> u32 {
        match self {
            Self::Own(rq) => rq.remaining(),
            Self::Shared(srq) => srq.remaining(),
            Self::None(_) => 0,
        }
    }
    fn full(&self) -> PostError {
        match self {
            Self::Own(_) | Self::Shared(_) => PostError::QueueFull,
            Self::None(why) => *why,
        }
    }
    fn capacity(&self) -> u32 {
        match self {
            Self::Own(rq) => rq.capacity(),
            Self::Shared(srq) => srq.capacity(),
            Self::None(_) => 0,
        }
    }
    fn max_sge(&self) -> u32 {
        match self {
            Self::Own(rq) => rq.max_sge(),
            Self::Shared(srq) => srq.max_sge(),
            Self::None(_) => 0,
        }
    }
    fn is_idle(&mut self) -> bool {
        self.remaining() == self.capacity()
    }
    fn resync(&mut self) {
        match self {
            Self::Own(rq) => rq.resync(),
            // A shared queue has no state to leave.
            Self::Shared(_) | Self::None(_) => {}
        }
    }
}

impl CompOps for mlx5::Cq {
    type Entry<'a> = mlx5::Cqe<'a>;
    type Open<'a> = mlx5::OpenCq<'a>;
    fn capacity(&self) -> u32 {
        mlx5::Cq::capacity(self)
    }
    #[inline(always)]
    fn has_entry(&self) -> bool {
        mlx5::Cq::has_entry(self)
    }
    #[inline(always)]
    fn open(&mut self) -> mlx5::OpenCq<'_> {
        mlx5::Cq::open(self)
    }
    fn arm(&self, _: &Ucontext, _: &Handle, events: u32, solicited_only: bool) -> Result<(), Error> {
        mlx5::Cq::arm(self, events, solicited_only);
        Ok(())
    }
}

impl EndComps for mlx5::Cq {
    #[inline(always)]
    fn end(&mut self) -> bool {
        mlx5::Cq::end(self)
    }
    fn give_back(&mut self) {
        mlx5::Cq::give_back(self);
    }
    #[inline(always)]
    fn holds_slots(&self) -> bool {
        mlx5::Cq::holds_slots(self)
    }
    #[inline(always)]
    fn fault(&self) -> Option<PollError> {
        self.bad_entry().map(|(index, kind)| PollError::BadEntry { index, kind })
    }
    fn settle(&mut self) {
        mlx5::Cq::settle(self);
    }
}

impl OpenComps for mlx5::OpenCq<'_> {
    type Cq = mlx5::Cq;
    #[inline(always)]
    fn next(&mut self) -> Option<mlx5::Cqe<'_>> {
        mlx5::OpenCq::next(self)
    }
    #[inline(always)]
    fn fill(&mut self, out: &mut [MaybeUninit<Wc>]) -> usize {
        mlx5::OpenCq::fill(self, out)
    }
    #[inline(always)]
    fn is_drained(&mut self) -> bool {
        mlx5::OpenCq::is_drained(self)
    }
    #[inline(always)]
    fn fault(&self) -> Option<PollError> {
        EndComps::fault(mlx5::OpenCq::cq(self))
    }
    #[inline(always)]
    fn holds_slots(&self) -> bool {
        mlx5::OpenCq::holds_slots(self)
    }
    #[inline(always)]
    fn end(&mut self) -> bool {
        mlx5::OpenCq::end(self)
    }
    fn queue(&mut self) -> &mut dyn EndComps {
        mlx5::OpenCq::queue(self)
    }
}

impl CompEntry for mlx5::Cqe<'_> {
    #[inline(always)]
    fn wc(&self) -> Wc {
        mlx5::Cqe::wc(*self)
    }
    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        Some(mlx5::Cqe::timestamp(*self))
    }
    #[inline(always)]
    fn inline_data(&self) -> Option<&InlineData> {
        mlx5::Cqe::inline_data(*self)
    }
}
