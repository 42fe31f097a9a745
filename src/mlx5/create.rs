//! Making objects: each in two steps around the command, since the device is told of memory that must be there before.
//!
//! A `…Plan` has everything that the command needs, and the driver's part of it; when the command has succeeded, `finish`
//! makes the queues of it. If the command fails, the plan is dropped, and with it all that it had.

use super::abi;
use super::av::{Link, MIN_SPORT, address_vector};
use super::context::Mlx5Context;
use super::cq::{Cq, CqParts};
use super::cq_memory::CqRing;
use super::dbrec::{DoorbellRecord, Word};
use super::home::Home;
use super::layout::{CqLayout, RqLayout, SqLayout, SrqLayout, Transport};
use super::mailbox::{Change, Mailbox, Receives};
use super::memory::pages;
use super::owned::Kept;
use super::ring::Ring;
use super::rq::{Rq, RqParts};
use super::shadow::{RqShared, SqShared, SrqShared};
use super::sq::{Sq, SqParts};
use super::srq::Srq;
use super::uar::SendRegister;
use super::uidx::{FIRST_NAME, UserIndex};
use super::wqe::Av;
use crate::mem::map::{Mapping, page_bytes};
use crate::uverbs::abi::ioctl::cq_create_flags;
use crate::uverbs::abi::verbs::qp_type;
use crate::uverbs::attr::{AddressVector, CreateQp, CreatedQp, GidEntry, GidType, QpCap, QpDomain};
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::explain;
use crate::uverbs::object::Handle;
use crate::uverbs::shared_receive_queue::{CreateSrq, CreatedSrq};
use crate::uverbs::types::{Qpn, Srqn};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Makes a protection domain.
pub fn alloc_pd(context: &Mlx5Context) -> Result<Handle, Error> {
    let mut response = abi::AllocPdResp::default();
    context.ucontext().alloc_pd(response.as_mut_bytes())
}

/// What is asked of a completion queue.
#[derive(Clone, Copy)]
pub struct CqRequest<'a> {
    /// Completions that it holds at least.
    pub cqe: u32,
    /// Comes back in events.
    pub user_handle: u64,
    pub channel: Option<BorrowedFd<'a>>,
    pub comp_vector: u32,
    /// Bytes of an entry: 64 or 128.
    pub entry_bytes: u32,
    /// Whether the device may pack completions.
    pub compressed: bool,
    /// What time completions must carry; without it, the device's ticks if it can.
    pub stamps: Option<Stamps>,
}

/// What time a completion carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// The device's clock, in ticks.
    Ticks,
    /// Seconds since 1970 in the upper and nanoseconds in the lower half.
    RealTime,
}

/// A completion queue and the kernel's object of it.
pub struct NewCq {
    pub object: Handle,
    pub cq: Cq,
}

/// A completion queue before its command.
pub struct CqPlan {
    layout: CqLayout,
    ring: CqRing,
    record: DoorbellRecord,
    pub request: abi::CreateCq,
    compressed: bool,
}

impl CqPlan {
    pub fn new(context: &Mlx5Context, r: &CqRequest<'_>) -> Result<Self, Error> {
        let layout = CqLayout::new(r.cqe, r.entry_bytes)?;
        let real_time = r.stamps == Some(Stamps::RealTime);
        if real_time && !context.caps().has_real_time_stamps {
            return Err(unsupported(Verb::CreateCq, "real time stamps of completions", Lacking::Device));
        }
        let Ok(uar_page_index) = u16::try_from(context.shared_uar().page_id()) else {
            return Err(unsupported(Verb::CreateCq, "a doorbell page beyond the first 65536", Lacking::Library));
        };
        let ring = CqRing::new(layout).map_err(no_memory(Verb::CreateCq, "the completion ring", layout.bytes()))?;
        let record = record(context, Verb::CreateCq)?;
        // Other than what a first arming stores, so that the device sees that one also where another doorbell hides it.
        record.store(Word::ARM, 2 << 28);
        let real_time = if real_time { abi::create_cq_flags::REAL_TIME_TS } else { 0 };
        let request = abi::CreateCq {
            buf_addr: ring.addr(),
            db_addr: record.addr(),
            cqe_size: r.entry_bytes,
            cqe_comp_en: r.compressed.into(),
            cqe_comp_res_format: if r.compressed { abi::cqe_comp_format::HASH } else { 0 },
            flags: abi::create_cq_flags::UAR_PAGE_INDEX | real_time,
            uar_page_index,
            ..Default::default()
        };
        Ok(Self { layout, ring, record, request, compressed: r.compressed })
    }

    /// The number of completions that the kernel is asked for: it rounds it to the same ring.
    pub fn cqe(&self) -> u32 {
        self.layout.capacity()
    }

    /// The queue of the object that the command made.
    pub fn finish(self, context: &Mlx5Context, handle: Handle, response: &abi::CreateCqResp) -> NewCq {
        let Self { ring, record, compressed, .. } = self;
        let mailbox = Arc::new(Mailbox::new(ring.clone()));
        let mut kept = Kept::default();
        (kept.completions, kept.record) = (Some(mailbox.clone()), Some(record.clone()));
        let uar = Arc::clone(context.shared_uar());
        let cqn = response.cqn & 0xff_ffff;
        let cq = Cq::new(CqParts { ring, cqn, record, uar, compressed, mailbox });
        NewCq { object: kept.by(handle), cq }
    }
}

/// Makes a completion queue.
pub fn create_cq(context: &Mlx5Context, request: &CqRequest<'_>) -> Result<NewCq, Error> {
    let plan = CqPlan::new(context, request)?;
    let mut response = abi::CreateCqResp::default();
    let &CqRequest { user_handle, channel, comp_vector, stamps, compressed, entry_bytes, .. } = request;
    let flags = if stamps == Some(Stamps::Ticks) { cq_create_flags::TIMESTAMP_COMPLETION } else { 0 };
    // The driver's part names the plan's memory, which goes into the object that keeps it until it is destroyed.
    let made = context.ucontext().create_cq_with_flags(
        plan.cqe(),
        user_handle,
        channel,
        comp_vector,
        flags,
        plan.request.as_bytes(),
        response.as_mut_bytes(),
    );
    let (handle, _) = made.map_err(|error| match error.errno() {
        Some(Errno::EOPNOTSUPP) if compressed => Error::Unsupported {
            verb: Verb::CreateCq,
            what: format!("compressed completions in entries of {entry_bytes} bytes").into(),
            by: Lacking::Device,
        },
        Some(Errno::EOPNOTSUPP) if flags != 0 => unsupported(Verb::CreateCq, "a clock in completions", Lacking::Device),
        _ => error,
    })?;
    Ok(plan.finish(context, handle, &response))
}

/// Where a queue pair's receives come from.
pub enum ReceiveFrom {
    /// A queue of its own, as large as asked for.
    Own,
    /// A shared one. What is asked for receives does not count.
    Shared(Arc<SrqShared>),
    /// Nowhere: it receives nothing, or on behalf of another object (XRC).
    Nowhere,
}

/// A queue pair, its queues, and the kernel's object of it.
pub struct NewQp {
    pub object: Handle,
    pub qpn: Qpn,
    /// What the queues really hold.
    pub cap: QpCap,
    pub sq: Option<Sq>,
    pub rq: Option<Rq>,
}

/// A queue pair before its command.
pub struct QpPlan {
    sq: SqLayout,
    rq: RqLayout,
    sig_all: bool,
    memory: Option<Arc<Mapping>>,
    record: DoorbellRecord,
    register: SendRegister,
    sends: (Arc<SqShared>, Home),
    receives: Option<(Receives, Home)>,
    /// Where completions may carry data.
    data_in: Vec<Arc<Mailbox<CqRing>>>,
    pub request: abi::CreateQp,
}

impl QpPlan {
    /// `send_cq` and `recv_cq` are where its completions go; with `data_in_completions`, and short messages with them.
    pub fn new(
        context: &Mlx5Context,
        r: &CreateQp<'_>,
        from: ReceiveFrom,
        send_cq: &Arc<Mailbox<CqRing>>,
        recv_cq: &Arc<Mailbox<CqRing>>,
        data_in_completions: bool,
    ) -> Result<Self, Error> {
        let limits = &context.caps().limits;
        let transport = Transport::from_raw(r.qp_type)?;
        let sq = SqLayout::new(transport, &r.cap, limits)?;
        let rq = match (&from, transport) {
            (ReceiveFrom::Own, Transport::Rc | Transport::Uc | Transport::Ud) => {
                RqLayout::new(r.cap.max_recv_wr, r.cap.max_recv_sge, limits)?
            }
            _ => RqLayout::NONE,
        };
        let no_memory = |bytes| no_memory(Verb::CreateQp, "the queue pair's rings", bytes);
        let bytes = rq.bytes() + sq.bytes();
        let memory = if bytes > 0 { Some(Arc::new(pages(bytes).map_err(no_memory(bytes))?)) } else { None };
        let record = record(context, Verb::CreateQp)?;
        let register = if sq.blocks > 0 { context.send_register() } else { context.shared_register() };
        let uidx = alloc_index(context, Verb::CreateQp)?;
        let home = |cq: &Arc<Mailbox<CqRing>>| Home { mailbox: Arc::clone(cq), uidx: Arc::clone(&uidx) };
        let receives = match from {
            ReceiveFrom::Own if rq.elements > 0 => Some(Receives::Own(Arc::new(RqShared::new(rq.elements)))),
            ReceiveFrom::Shared(shared) => Some(Receives::Shared(shared)),
            _ => None,
        };
        let request = abi::CreateQp {
            // Receive ring first, then send ring.
            buf_addr: memory.as_ref().map_or(0, |memory| memory.as_ptr().expose_provenance() as u64),
            db_addr: record.addr(),
            sq_wqe_count: sq.blocks,
            rq_wqe_count: rq.elements,
            rq_wqe_shift: rq.log2_stride,
            // Receives inside their completion only where asked for: their bytes are not copied to where the work request
            // said, which is an address of the memory region's own and not of this process.
            flags: abi::create_qp_flags::UAR_PAGE_INDEX
                | if data_in_completions { abi::create_qp_flags::SCATTER_CQE } else { 0 },
            uidx: uidx.get(),
            bfreg_index: register.page_id(),
            ..Default::default()
        };
        let sends = (Arc::new(SqShared::new(sq.blocks.max(1))), home(send_cq));
        let receives = receives.map(|receives| (receives, home(recv_cq)));
        let data_in = if data_in_completions { vec![send_cq.clone(), recv_cq.clone()] } else { vec![] };
        Ok(Self { sq, rq, sig_all: r.sq_sig_all, memory, record, register, sends, receives, data_in, request })
    }

    /// The queues of the object that the command made.
    pub fn finish(self, handle: Handle, qpn: Qpn) -> NewQp {
        let Self { sq: sq_layout, rq: rq_layout, sig_all, memory, record, register, sends, receives, data_in, .. } =
            self;
        data_in.iter().for_each(|cq| cq.expect_data());
        let (shared, home) = sends;
        let mut kept = Kept::default();
        (kept.memory, kept.record) = (memory.clone(), Some(record.clone()));
        let (mut sq, mut rq) = (None, None);
        if let (Some(memory), true) = (&memory, sq_layout.blocks > 0) {
            home.announce(Change::Sends(Some(shared.clone())));
            let ring = Ring::new(memory.clone(), rq_layout.bytes(), sq_layout.bytes());
            let (record, home) = (record.clone(), Some(home.clone()));
            sq = Some(Sq::new(SqParts { ring, layout: sq_layout, qpn, sig_all, record, register, shared, home }));
        }
        if let Some((receives, home)) = receives {
            home.announce(Change::Receives(Some(receives.clone())));
            if let (Some(memory), Receives::Own(shared)) = (&memory, receives) {
                let ring = Ring::new(memory.clone(), 0, rq_layout.bytes());
                let home = Some(home.clone());
                rq = Some(Rq::new(RqParts { ring, layout: rq_layout, record, shared, home }));
            }
            kept.receives = Some(home);
        }
        kept.sends = Some(home);
        let cap = QpCap {
            max_send_wr: sq_layout.max_wr,
            max_recv_wr: rq_layout.elements,
            max_send_sge: sq_layout.max_sge,
            max_recv_sge: rq_layout.max_sge,
            max_inline_data: sq_layout.max_inline,
        };
        NewQp { object: kept.by(handle), qpn, cap, sq, rq }
    }
}

/// Makes a queue pair, in state RESET.
pub fn create_qp(
    context: &Mlx5Context,
    request: &CreateQp<'_>,
    from: ReceiveFrom,
    send_cq: &Arc<Mailbox<CqRing>>,
    recv_cq: &Arc<Mailbox<CqRing>>,
    data_in_completions: bool,
) -> Result<NewQp, Error> {
    let plan = QpPlan::new(context, request, from, send_cq, recv_cq, data_in_completions)?;
    let mut response = abi::CreateQpResp::default();
    // As for a completion queue: the object keeps the memory that the driver's part names.
    let CreatedQp { handle, qpn, .. } =
        context.ucontext().create_qp(request, plan.request.as_bytes(), response.as_mut_bytes())?;
    Ok(plan.finish(handle, qpn))
}

/// A shared receive queue and the kernel's object of it.
pub struct NewSrq {
    pub object: Handle,
    pub srq: Srq,
    /// For the queue pairs that receive from it.
    pub shared: Arc<SrqShared>,
    /// Its number, of XRC only.
    pub srqn: Option<Srqn>,
}

/// A shared receive queue before its command.
pub struct SrqPlan {
    layout: SrqLayout,
    memory: Arc<Mapping>,
    record: DoorbellRecord,
    uidx: Arc<UserIndex>,
    pub request: abi::CreateSrq,
}

impl SrqPlan {
    pub fn new(context: &Mlx5Context, max_wr: u32, max_sge: u32) -> Result<Self, Error> {
        let layout = SrqLayout::new(max_wr, max_sge, &context.caps().limits)?;
        let refused = no_memory(Verb::CreateSrq, "the shared receive queue's ring", layout.bytes());
        let memory = Arc::new(pages(layout.bytes()).map_err(refused)?);
        let record = record(context, Verb::CreateSrq)?;
        let uidx = alloc_index(context, Verb::CreateSrq)?;
        let request = abi::CreateSrq {
            buf_addr: memory.as_ptr().expose_provenance() as u64,
            db_addr: record.addr(),
            uidx: uidx.get(),
            ..Default::default()
        };
        Ok(Self { layout, memory, record, uidx, request })
    }

    /// The two numbers that the kernel is asked for: it computes the same ring of them.
    pub fn max_wr_and_sge(&self) -> (u32, u32) {
        (self.layout.capacity(), self.layout.max_sge)
    }

    /// The queue of the object that the command made. `xrc_cq` is where the receives of an XRC queue complete, under its own
    /// index; those of others complete where their queue pairs' do.
    pub fn finish(self, made: CreatedSrq, xrc_cq: Option<&Arc<Mailbox<CqRing>>>) -> NewSrq {
        let CreatedSrq { handle, srqn, max_sge: _ } = made;
        let Self { layout, memory, record, uidx, .. } = self;
        let shared = Arc::new(SrqShared::new(layout.elements));
        let home = xrc_cq.map(|cq| Home { mailbox: Arc::clone(cq), uidx });
        if let Some(home) = &home {
            home.announce(Change::Receives(Some(Receives::Shared(shared.clone()))));
        }
        let ring = Ring::new(memory.clone(), 0, layout.bytes());
        let mut kept = Kept::default();
        (kept.memory, kept.record, kept.receives) = (Some(memory), Some(record.clone()), home);
        let srq = Srq::new(ring, layout, record, shared.clone());
        NewSrq { object: kept.by(handle), srq, shared, srqn }
    }
}

/// Makes a shared receive queue. `xrc_cq` is where the receives of an XRC queue complete.
pub fn create_srq(
    context: &Mlx5Context,
    request: &CreateSrq<'_>,
    xrc_cq: Option<&Arc<Mailbox<CqRing>>>,
) -> Result<NewSrq, Error> {
    if request.limit != 0 {
        // The driver passes over the limit of a new queue without a word.
        let what = "a limit from the start (arm it with arm_limit, once receives are posted)";
        return Err(unsupported(Verb::CreateSrq, what, Lacking::Driver));
    }
    let plan = SrqPlan::new(context, request.max_wr, request.max_sge)?;
    let (max_wr, max_sge) = plan.max_wr_and_sge();
    let request = CreateSrq { max_wr, max_sge, ..*request };
    let mut response = abi::CreateSrqResp::default();
    // As for a completion queue: the object keeps the memory that the driver's part names.
    let made = context.ucontext().create_srq(&request, plan.request.as_bytes(), response.as_mut_bytes())?;
    Ok(plan.finish(made, xrc_cq))
}

/// Makes the receiving end of XRC in a domain, in state RESET. It has no queue, and no memory of this process's.
pub fn create_xrc_recv(context: &Mlx5Context, xrcd: &Handle, user_handle: u64) -> Result<(Handle, Qpn), Error> {
    let create = CreateQp {
        domain: QpDomain::Xrcd(xrcd),
        send_cq: None,
        recv_cq: None,
        srq: None,
        qp_type: qp_type::XRC_TGT,
        sq_sig_all: false,
        cap: QpCap::default(),
        user_handle,
    };
    // Required, and empty: there is nothing to tell.
    let (request, mut response) = (abi::CreateQp::default(), abi::CreateQpResp::default());
    let CreatedQp { handle, qpn, .. } =
        context.ucontext().create_qp(&create, request.as_bytes(), response.as_mut_bytes())?;
    Ok((handle, qpn))
}

/// Makes an address handle, and the address in the device's form. `local` is the GID that `av` names as its source; none on
/// InfiniBand without a global route.
pub fn create_ah(
    context: &Mlx5Context,
    pd: &Handle,
    av: &AddressVector,
    local: Option<&GidEntry>,
) -> Result<(Handle, Av), Error> {
    let mut response = abi::CreateAhResp::default();
    let handle = context.ucontext().create_ah(pd, av, response.as_mut_bytes())?;
    let link = match local.map(|local| local.gid_type) {
        Some(GidType::ROCE_V1) => Link::RoceV1 { dmac: response.dmac },
        Some(GidType::ROCE_V2) => Link::RoceV2 { dmac: response.dmac, min_sport: MIN_SPORT },
        _ => Link::InfiniBand,
    };
    if link != Link::InfiniBand && !context.caps().create_ah_tells_dmac {
        return Err(unsupported(Verb::CreateAh, "the next hop's address", Lacking::Driver));
    }
    Ok((handle, address_vector(av, link)))
}

/// Why there is no memory for a queue.
fn no_memory(verb: Verb, what: &'static str, len_bytes: usize) -> impl Fn(Errno) -> Error {
    move |errno| explain::mapping(Error::kernel(verb, errno), what, len_bytes)
}

fn record(context: &Mlx5Context, verb: Verb) -> Result<DoorbellRecord, Error> {
    context.records().alloc().map_err(no_memory(verb, "a page of doorbell records", page_bytes()))
}

fn alloc_index(context: &Mlx5Context, verb: Verb) -> Result<Arc<UserIndex>, Error> {
    context.indices().alloc().map(Arc::new).ok_or_else(|| Error::Invalid {
        verb,
        what: "number of queues",
        value: FIRST_NAME.to_string().into(),
        limit: "completions cannot name more of one context: drop some, or open another context".into(),
    })
}

fn unsupported(verb: Verb, what: &'static str, by: Lacking) -> Error {
    Error::Unsupported { verb, what: what.into(), by }
}

#[cfg(all(test, not(loom)))]
mod tests;
