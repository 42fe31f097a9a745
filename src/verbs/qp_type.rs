//! Transport services as types: which work requests a queue pair takes is checked at compile time.

use super::transition::Transport;

/// A queue pair's transport service: [`Rc`], [`Uc`] or [`Ud`]. Sealed.
///
/// | | [`Rc`] | [`Uc`] | [`Ud`] |
/// | --- | --- | --- | --- |
/// | SEND | yes | yes | to any peer, one packet |
/// | RDMA WRITE | yes | yes | |
/// | RDMA READ, atomics | yes | | |
/// | lost packets | sent again | the message is lost | the message is lost |
///
/// ```compile_fail
/// # fn f(qp: &mut ironverbs::Qp<ironverbs::Any, ironverbs::Uc>, sge: ironverbs::Sge, remote: ironverbs::RemoteAddr) {
/// let mut batch = qp.send_batch();
/// batch.read(1, ironverbs::WrFlags::SIGNALED, &[sge], remote); // there is no READ on an unreliable connection
/// # }
/// ```
#[doc(alias = "ibv_qp_type")]
pub trait QpType: sealed::Kind {}

/// A transport service that joins two queue pairs: [`Rc`] or [`Uc`]. Sealed.
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
pub trait Connected: QpType {}

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

impl QpType for Rc {}
impl QpType for Uc {}
impl QpType for Ud {}
impl Connected for Rc {}
impl Connected for Uc {}

pub(crate) mod sealed {
    use super::{Rc, Transport, Uc, Ud};

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
}
