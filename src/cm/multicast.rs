//! Multicast groups of an id of datagrams.

use super::abi::{JoinIpMcast, JoinMcast, LeaveMcast, join};
use super::address;
use super::command::send;
use super::error::{Error, Step};
use super::event::Event;
use super::id::CmId;
use crate::uverbs::errno::Errno;
use std::net::SocketAddr;

/// What a member of a multicast group does in it.
///
/// ```
/// use ironverbs::rdma_cm::Membership;
/// assert_ne!(Membership::Full, Membership::SendOnly);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// It sends and receives.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_FULLMEMBER")]
    Full,
    /// It sends only, and the network need not bring it anything.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER")]
    SendOnly,
}

/// A membership that was asked for, to leave the group by. It ends with its id in any case.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::rdma_cm::Membership;
/// let group = id.join_multicast("239.1.1.1:0".parse()?, Membership::Full)?;
/// // … MULTICAST_JOIN tells where datagrams to the group go …
/// id.leave_multicast(group)?;
/// # Ok(()) }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    number: u32,
}

impl Group {
    /// Whether the event is about it.
    pub fn is_of(&self, event: &Event) -> bool {
        event.group() == Some(self.number)
    }
}

impl CmId {
    /// Begins to join the multicast group of an address: [`MULTICAST_JOIN`](super::event::EventType::MULTICAST_JOIN), with where
    /// datagrams to the group go, or [`MULTICAST_ERROR`](super::event::EventType::MULTICAST_ERROR) will tell. The id is bound
    /// to a device's address, or resolved to one. To receive, have the queue pair join the group's GID itself
    /// ([`Qp::attach_mcast`](crate::Qp::attach_mcast)).
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, address: SocketAddr, membership: Membership) -> Result<Group, Error> {
        let (addr, addr_size) = address::storage(address);
        let (uid, id) = (self.key().0, self.number());
        let join_flags = match membership {
            Membership::Full => join::FULLMEMBER,
            Membership::SendOnly => join::SENDONLY_FULLMEMBER,
        };
        let request = JoinMcast { response: 0, uid, id, addr_size, join_flags, addr };
        let joined = self.step(Step::JoinMulticast, |channel| match send(channel.file(), request) {
            // An older kernel knows IP addresses and full members only.
            Err(Errno::EINVAL) if membership == Membership::Full => {
                send(channel.file(), JoinIpMcast { response: 0, uid, addr: address::sockaddr_in6(address), id })
            }
            joined => joined,
        });
        Ok(Group { number: joined?.id })
    }

    /// Leaves a multicast group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: Group) -> Result<(), Error> {
        let request = LeaveMcast { response: 0, id: group.number, reserved: 0 };
        self.command(Step::LeaveMulticast, request).map(drop)
    }
}
