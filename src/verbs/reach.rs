//! How a queue pair reaches its peer: its own address, and the path from there.

use super::attr::{Grh, Path};
use super::device::ContextInner;
use super::endpoint::{ConnectOptions, Endpoint};
use super::gid::{GidChoice, GidWant};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::types::{Gid, GidIndex, Lid, Mtu, PortNum, Psn, Qpn};
use std::hash::{BuildHasher, Hasher, RandomState};

/// One's own end of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) endpoint: Endpoint,
    pub(super) port: PortNum,
    pub(super) gid_index: Option<GidIndex>,
}

/// Where a queue pair is to be found, as its builder was told.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) port: PortNum,
    /// Instead of the GID that fits best.
    pub(super) gid_index: Option<GidIndex>,
    pub(super) want: Option<GidWant>,
    /// Instead of a random one.
    pub(super) psn: Option<Psn>,
    /// The kernel's connection manager says with what address it is connected; until then it has none.
    pub(super) told_later: bool,
}

impl Default for Place {
    fn default() -> Self {
        Self { port: PortNum::ONE, gid_index: None, want: None, psn: None, told_later: false }
    }
}

/// An address for a queue pair that has no number yet.
pub(super) struct Address {
    lid: Lid,
    pub(super) mtu: Option<Mtu>,
    gid: Option<LocalGid>,
    place: Place,
}

/// The GID that a queue pair uses.
struct LocalGid {
    index: GidIndex,
    gid: Gid,
    /// Why, if it was chosen and not named.
    choice: Option<GidChoice>,
}

impl Address {
    /// The address at that place.
    pub(super) fn find(context: &ContextInner, place: Place) -> Result<Self, Error> {
        context.check_port(Verb::CreateQp, place.port)?;
        if place.told_later {
            return Ok(Self { lid: Lid(0), mtu: None, gid: None, place });
        }
        let port = context.query_port(place.port)?;
        let gid = local_gid(context, place)?;
        Ok(Self { lid: port.lid, mtu: port.active_mtu, gid, place })
    }

    /// The end of the queue pair of that number, and why its GID if it was chosen.
    pub(super) fn of(self, qpn: Qpn) -> (Local, Option<GidChoice>) {
        let Self { lid, mtu, gid, place } = self;
        let psn = match place.psn {
            Some(psn) => psn,
            None if place.told_later => Psn::default(),
            None => random_psn(),
        };
        let endpoint = Endpoint { lid, qpn, psn, gid: gid.as_ref().map(|local| local.gid), mtu };
        let gid_index = gid.as_ref().map(|local| local.index);
        (Local { endpoint, port: place.port, gid_index }, gid.and_then(|local| local.choice))
    }
}

/// The GID to use, and why if it was chosen. An InfiniBand port may have none.
fn local_gid(context: &ContextInner, place: Place) -> Result<Option<LocalGid>, Error> {
    if let Some(index) = place.gid_index {
        return Ok(Some(LocalGid { index, gid: context.named_gid(place.port, index)?.gid, choice: None }));
    }
    match context.choose_gid(place.port, place.want) {
        Ok(choice) => Ok(Some(LocalGid { index: choice.index, gid: choice.entry.gid, choice: Some(choice) })),
        // No GID will do. What the kernel refused is no answer to that.
        Err(Error::Invalid { .. }) if !context.is_ethernet(place.port)? => Ok(None),
        Err(error) => Err(error),
    }
}

impl Local {
    /// The lower of both active MTUs, or what was asked for if it is not above that.
    pub(super) fn path_mtu(&self, remote: &Endpoint, wanted: Option<Mtu>) -> Result<Mtu, Error> {
        let lowest = match (self.endpoint.mtu, remote.mtu) {
            (Some(a), Some(b)) => a.min(b),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => Mtu::B256,
        };
        match wanted {
            Some(mtu) if mtu > lowest => {
                let limit = format!("the active MTU is {lowest}; raise the link's MTU, or ask for less");
                Err(Error::invalid(Verb::ModifyQp, "path_mtu", mtu, limit))
            }
            Some(mtu) => Ok(mtu),
            None => Ok(lowest),
        }
    }

    /// The path to a peer.
    pub(super) fn path(
        &self,
        context: &ContextInner,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Path, Error> {
        let ethernet = context.is_ethernet(self.port)?;
        let grh = match (self.gid_index, remote.gid) {
            (Some(sgid_index), Some(dgid)) if !dgid.is_zero() => Some(Grh {
                dgid,
                sgid_index,
                hop_limit: options.hop_limit,
                traffic_class: options.traffic_class,
                flow_label: options.flow_label,
            }),
            _ => None,
        };
        if ethernet && grh.is_none() {
            let limit = "a RoCE port is reached by GID only; the peer must tell its own";
            return Err(Error::invalid(Verb::ModifyQp, "peer's GID", "missing", limit));
        }
        if !ethernet && grh.is_none() && remote.lid == Lid(0) {
            let limit = "an InfiniBand port is reached by LID; is a subnet manager running?";
            return Err(Error::invalid(Verb::ModifyQp, "peer's LID", 0, limit));
        }
        Ok(Path { port: self.port, dlid: remote.lid, sl: options.sl, static_rate: options.static_rate, grh })
    }
}

/// A start value that does not repeat: a packet of an earlier connection with the same numbers must not be taken for new.
fn random_psn() -> Psn {
    let random = RandomState::new().build_hasher().finish() as u32;
    Psn::default().advance(random)
}
