//! Multicast groups of a datagram queue pair.

use super::provider::Provider;
use super::qp::Qp;
use super::qp_core::QpShared;
use super::qp_type::Ud;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::types::{Gid, Lid};
use std::sync::{Mutex, PoisonError};

/// The groups that a queue pair is in. The kernel does not destroy it before it has left them all.
#[derive(Default)]
pub(super) struct Groups(Mutex<Vec<(Gid, Lid)>>);

impl<P: Provider> Qp<P, Ud> {
    /// Joins a multicast group: from here on datagrams to `gid` that carry the queue pair's Q_Key are received. `lid` is the
    /// group's LID on InfiniBand, and zero on Ethernet.
    ///
    /// This is the device's part. The network must be told too: by the subnet manager on InfiniBand; on RoCE by joining the
    /// group with a socket on the same network device (`UdpSocket::join_multicast_v4`), which Soft-RoCE needs in order to see
    /// the packets at all. The queue pair leaves its groups when it is closed or dropped.
    ///
    /// Datagrams to a group go to [`Qpn::MULTICAST`](crate::Qpn::MULTICAST).
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, gid: Gid, lid: Lid) -> Result<(), Error> {
        if !gid.is_multicast() {
            let limit = "a group's GID is in ff00::/8, or an IPv4 address in 224.0.0.0/4";
            return Err(Error::invalid(Verb::AttachMcast, "gid", gid, limit));
        }
        let shared = self.core.shared();
        let context = &shared.pd.context;
        // The kernel takes any, and counts it as another group; the driver does not, so that it cannot be left again, and
        // the queue pair not be destroyed, even when the process ends.
        if lid != Lid(0) && context.is_ethernet(self.local.port)? {
            let limit = "groups on Ethernet have none: give zero";
            return Err(Error::invalid(Verb::AttachMcast, "LID", lid.0, limit));
        }
        let mut groups = shared.groups.lock();
        context.ucontext.attach_mcast(&shared.control.handle, gid, lid).map_err(|error| match error.errno() {
            Some(Errno::ENOMEM) => error.with_hint(format!(
                "the device has {} groups at most, with {} queue pairs each and {} in all (max_mcast_grp, \
                 max_mcast_qp_attach, max_total_mcast_qp_attach)",
                context.attr.max_mcast_grp, context.attr.max_mcast_qp_attach, context.attr.max_total_mcast_qp_attach
            )),
            Some(Errno::EINVAL) => error.with_hint("on InfiniBand the LID must be a multicast one, 0xc000 to 0xfffe"),
            _ => error,
        })?;
        if !groups.contains(&(gid, lid)) {
            groups.push((gid, lid));
        }
        Ok(())
    }

    /// Leaves a multicast group.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, gid: Gid, lid: Lid) -> Result<(), Error> {
        let shared = self.core.shared();
        let mut groups = shared.groups.lock();
        if !groups.contains(&(gid, lid)) {
            return Err(Error::invalid(Verb::DetachMcast, "gid", gid, "the queue pair is not in that group"));
        }
        shared.pd.context.ucontext.detach_mcast(&shared.control.handle, gid, lid)?;
        groups.retain(|group| *group != (gid, lid));
        Ok(())
    }
}

impl Groups {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Gid, Lid)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Provider> QpShared<P> {
    /// Leaves every group. Whatever cannot be left is told by the kernel when it refuses to destroy the queue pair.
    pub(super) fn leave_groups(&self) {
        self.groups
            .lock()
            .retain(|(gid, lid)| self.pd.context.ucontext.detach_mcast(&self.control.handle, *gid, *lid).is_err());
    }
}
