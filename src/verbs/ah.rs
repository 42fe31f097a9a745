//! Address handles: where datagrams go.

use super::any::{AnyAh, create_ah};
use super::attr::{Path, StaticRate};
use super::datagram::Datagram;
use super::endpoint::Endpoint;
use super::pd::{Pd, PdInner};
use super::provider::Provider;
use super::qp::Qp;
use super::qp_type::Ud;
use super::route::explain_route;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{QKey, Qpn};
use crate::uverbs::wc::Wc;
use std::fmt;
use std::sync::Arc;

/// Address handle (AH): where a datagram goes, as far as the peer's port. With a queue pair number and a Q_Key it is a
/// [`Destination`].
///
/// It may be dropped as soon as the sends that name it are written: each of them holds the whole address.
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp<ironverbs::Any, ironverbs::Ud>, peer: ironverbs::Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::{Inline, QKey, WrFlags};
/// let ah = qp.create_ah(&peer)?;
/// let mut batch = qp.send_batch();
/// batch.send_to(1, WrFlags::SIGNALED, Inline(b"hello"), ah.to(peer.qpn, QKey(0x1111_1111)))?;
/// // SAFETY: inline payload is copied; nothing else is named by the batch.
/// unsafe { batch.submit()? };
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_ah")]
pub struct AddressHandle {
    handle: Handle,
    pub(super) wire: AnyAh,
    path: Path,
    pd: Arc<PdInner>,
}

/// Where a datagram goes: a queue pair at an address, and the Q_Key that it takes. Made by [`AddressHandle::to`].
#[derive(Clone, Copy, Debug)]
pub struct Destination<'ah> {
    pub(super) ah: &'ah AddressHandle,
    pub(super) qpn: Qpn,
    pub(super) qkey: QKey,
}

impl AddressHandle {
    /// A queue pair at this address. For a multicast group it is [`Qpn::MULTICAST`].
    #[inline(always)]
    pub fn to(&self, qpn: Qpn, qkey: QKey) -> Destination<'_> {
        Destination { ah: self, qpn, qkey }
    }

    /// Whether a queue pair of the protection domain with that identity may name it.
    #[inline(always)]
    pub(super) fn is_of(&self, pd: usize) -> bool {
        self.pd.identity() == pd
    }

    /// What it was made from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Pd {
    /// Makes an address handle. On RoCE the kernel looks up the peer's link address, which may take seconds.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, path: &Path) -> Result<AddressHandle, Error> {
        let pd = self.inner();
        let context = &pd.context;
        context.check_port(Verb::CreateAh, path.port)?;
        path.check_ranges(Verb::CreateAh)?;
        if path.grh.is_none() && context.is_ethernet(path.port)? {
            let limit = "a RoCE port is reached by GID only; the path needs a GRH";
            return Err(Error::invalid(Verb::CreateAh, "peer's GID", "missing", limit));
        }
        let av = path.address_vector();
        let local = match path.grh {
            Some(grh) => context.named_gid(path.port, grh.sgid_index).map(Some)?,
            None => None,
        };
        let (handle, wire) = create_ah(&context.opened, &pd.handle, &av, local.as_ref())
            .map_err(|error| explain_route(error, context, &av))?;
        Ok(AddressHandle { handle, wire, path: *path, pd: pd.clone() })
    }
}

impl<P: Provider> Qp<P, Ud> {
    /// An address handle for a peer, from the queue pair's own port and GID.
    pub fn create_ah(&self, peer: &Endpoint) -> Result<AddressHandle, Error> {
        let path = match peer.gid.zip(self.local.gid_index) {
            Some((dgid, sgid_index)) => Path { dlid: peer.lid, ..Path::to_gid(self.local.port, sgid_index, dgid) },
            None => Path { port: self.local.port, dlid: peer.lid, sl: 0, static_rate: StaticRate::PORT, grh: None },
        };
        self.pd().create_ah(&path)
    }

    /// An address handle that leads back to where a datagram came from. The peer's queue pair number is in the completion's
    /// [`source`](Wc::source); its Q_Key is agreed upon.
    #[doc(alias("ibv_create_ah_from_wc", "ibv_init_ah_from_wc"))]
    pub fn create_ah_from(&self, wc: &Wc, datagram: &Datagram<'_>) -> Result<AddressHandle, Error> {
        let Some(source) = wc.source() else {
            let limit = "only a receive that succeeded came from somewhere";
            return Err(Error::invalid(Verb::CreateAh, "completion", format_args!("{wc:?}"), limit));
        };
        let port = self.local.port;
        let back = match &datagram.grh {
            Some(grh) => {
                let context = &self.core.shared().pd.context;
                // What was sent to a group names no GID of ours.
                let own = if grh.dgid.is_multicast() { None } else { context.index_of_gid(port, grh)? };
                let Some(sgid_index) = own.or(self.local.gid_index) else {
                    let limit = "the port has no such GID any more";
                    return Err(Error::invalid(Verb::CreateAh, "own GID", grh.dgid, limit));
                };
                let path = Path::reply(port, sgid_index, &source, grh);
                // On Ethernet the completion does not tell it.
                if context.is_ethernet(port)? { Path { sl: 0, ..path } } else { path }
            }
            None => Path { port, dlid: source.lid, sl: source.sl, static_rate: StaticRate::PORT, grh: None },
        };
        self.pd().create_ah(&back)
    }

    fn pd(&self) -> Pd {
        Pd::from_inner(self.core.shared().pd.clone())
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("handle", &self.handle.id()).field("path", &self.path).finish()
    }
}
