//! Transport services as types: which work requests a queue pair takes is checked at compile time.

use super::transition::Transport;

/// A queue pair's transport service: [`Rc`], [`Uc`], [`Ud`] or [`XrcSend`]. Sealed.
///
/// | | [`Rc`] | [`Uc`] | [`Ud`] | [`XrcSend`] |
/// | --- | --- | --- | --- | --- |
/// | SEND | yes | yes | to any peer, one packet | into any XRC shared receive queue of the peer's domain |
/// | RDMA WRITE | yes | yes | | yes |
/// | RDMA READ, atomics | yes | | | yes |
/// | receives | yes | yes | yes | |
/// | lost packets | sent again | the message is lost | the message is lost | sent again |
///
/// ```compile_fail
/// # fn f(qp: &mut ironverbs::Qp<ironverbs::Any, ironverbs::Uc>, sge: ironverbs::Sge, remote: ironverbs::RemoteAddr) {
/// let mut batch = qp.send_batch();
/// batch.read(1, ironverbs::WrFlags::SIGNALED, &[sge], remote); // there is no READ on an unreliable connection
/// # }
/// ```
#[doc(alias = "ibv_qp_type")]
pub trait QpType: sealed::Kind {}

/// A transport service that joins two queue pairs: [`Rc`], [`Uc`] or [`XrcSend`]. Sealed.
///
/// ```no_run
/// /// Connects a queue pair of any kind that can be.
/// fn join<T: ironverbs::Connectable>(
///     prepared: ironverbs::PreparedQp<ironverbs::Any, T>,
///     peer: &ironverbs::Endpoint,
/// ) -> Result<ironverbs::Qp<ironverbs::Any, T>, ironverbs::Error> {
///     Ok(prepared.connect(peer)?)
/// }
/// ```
pub trait Connectable: QpType {}

/// A transport service whose queue pairs receive: all but [`XrcSend`]. Sealed.
///
/// ```no_run
/// /// Gives the device every free slot of a pool.
/// fn fill<T: ironverbs::Receives>(
///     qp: &mut ironverbs::Qp<ironverbs::Any, T>,
///     pool: &ironverbs::Pool,
/// ) -> Result<(), ironverbs::SlotError> {
///     while let Some(slot) = pool.take() {
///         qp.recv_slot(slot)?;
///     }
///     Ok(())
/// }
/// ```
pub trait Receives: QpType {}

/// A transport service that joins two queue pairs, and needs to know no more of where a message goes: [`Rc`] or [`Uc`].
/// Sealed.
///
/// ```no_run
/// /// Sends on any connected queue pair.
/// fn hello<T: ironverbs::Connected>(qp: &mut ironverbs::Qp<ironverbs::Any, T>) -> Result<(), ironverbs::PostError> {
///     let mut batch = qp.send_batch();
///     batch.send(1, ironverbs::WrFlags::SIGNALED, ironverbs::Inline(b"hello"))?;
///     // SAFETY: inline payload is copied; nothing else is named by the batch.
///     unsafe { batch.submit() }
/// }
/// ```
pub trait Connected: Connectable + Receives {}

/// Reliable connection.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Any, PreparedQp, QpBuilder, Rc};
/// let prepared: PreparedQp<Any, Rc> = QpBuilder::rc(pd, cq, cq).build()?; // the same as PreparedQp
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_QPT_RC")]
#[derive(Clone, Copy, Debug)]
pub enum Rc {}

/// Unreliable connection: what is lost is not sent again, and nobody is told.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Any, PreparedQp, QpBuilder, Uc};
/// let prepared: PreparedQp<Any, Uc> = QpBuilder::uc(pd, cq, cq).build()?;
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_QPT_UC")]
#[derive(Clone, Copy, Debug)]
pub enum Uc {}

/// Unreliable datagrams: each send names its peer, and is one packet.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Any, PreparedQp, QpBuilder, Ud};
/// let prepared: PreparedQp<Any, Ud> = QpBuilder::ud(pd, cq, cq).build()?;
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_QPT_UD")]
#[derive(Clone, Copy, Debug)]
pub enum Ud {}

/// The sending end of an extended reliable connection (XRC): it has a send queue only, and each work request names the XRC
/// shared receive queue that it is for ([`SendBatch::to_srq`](crate::SendBatch::to_srq)).
///
/// Its peer is an [`XrcRecvQp`](crate::XrcRecvQp). So a process needs one connection to each host, and not to each process of
/// it; what arrives is found in the shared receive queue of the process that it is for.
///
/// ```no_run
/// # fn f(pd: &ironverbs::Pd, cq: &ironverbs::Cq, peer: &ironverbs::Endpoint, srqn: ironverbs::Srqn) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::{Any, Inline, Qp, QpBuilder, WrFlags, XrcSend};
/// let mut qp: Qp<Any, XrcSend> = QpBuilder::xrc_send(pd, cq).max_inline_bytes(64).build()?.connect(peer)?;
/// let mut batch = qp.send_batch();
/// batch.to_srq(srqn).send(1, WrFlags::SIGNALED, Inline(b"hello"))?;
/// // SAFETY: inline payload is copied; nothing else is named by the batch.
/// unsafe { batch.submit()? };
/// # Ok(()) }
/// ```
#[doc(alias("IBV_QPT_XRC_SEND", "IB_QPT_XRC_INI"))]
#[derive(Clone, Copy, Debug)]
pub enum XrcSend {}

impl QpType for Rc {}
impl QpType for Uc {}
impl QpType for Ud {}
impl QpType for XrcSend {}
impl Connectable for Rc {}
impl Connectable for Uc {}
impl Connectable for XrcSend {}
impl Receives for Rc {}
impl Receives for Uc {}
impl Receives for Ud {}
impl Connected for Rc {}
impl Connected for Uc {}

pub(crate) mod sealed {
    use super::{Rc, Transport, Uc, Ud, XrcSend};

    pub trait Kind: Send + Sync + 'static {
        const TRANSPORT: Transport;
    }

    impl Kind for Rc {
        const TRANSPORT: Transport = Transport::Rc;
    }
    impl Kind for Uc {
        const TRANSPORT: Transport = Transport::Uc;
    }
    impl Kind for Ud {
        const TRANSPORT: Transport = Transport::Ud;
    }
    impl Kind for XrcSend {
        const TRANSPORT: Transport = Transport::XrcSend;
    }
}
