//! Options of an id.

use super::abi::{PathData, option, path_flags};
use super::command::set_option;
use super::error::{Error, Step};
use super::id::CmId;
use zerocopy::IntoBytes;

impl CmId {
    /// The type of service of its packets: the traffic class, on RoCE the DSCP and ECN byte. Before the route is resolved.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_type_of_service(&self, tos: u8) -> Result<(), Error> {
        self.set(option::ID, option::ID_TOS, &[tos])
    }

    /// Whether its port may be one that others have bound, too. Before it is bound.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&self, on: bool) -> Result<(), Error> {
        self.set(option::ID, option::ID_REUSEADDR, &i32::from(on).to_ne_bytes())
    }

    /// Whether an IPv6 address takes IPv6 peers only. Before it is bound.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_ipv6_only(&self, on: bool) -> Result<(), Error> {
        self.set(option::ID, option::ID_AFONLY, &i32::from(on).to_ne_bytes())
    }

    /// The acknowledgement time-out that its queue pair's attributes are to have, as the code of an
    /// [`AckTimeout`](crate::AckTimeout): 4.096 µs × 2^code, 0 for ever, at most 31. Before it is connected or accepted.
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&self, code: u8) -> Result<(), Error> {
        if code > 31 {
            return Err(Error::invalid(Step::SetOption, "ack_timeout", code, "the field has codes 0 to 31"));
        }
        self.set(option::ID, option::ID_ACK_TIMEOUT, &[code])
    }

    /// The route, given instead of asked for: a path record as on the wire (IB spec 15.2.5.16). The address is resolved
    /// already; [`ROUTE_RESOLVED`](super::event::EventType::ROUTE_RESOLVED) follows.
    #[doc(alias = "RDMA_OPTION_IB_PATH")]
    pub fn set_path(&self, record: &[u8; 64]) -> Result<(), Error> {
        let flags = path_flags::GMP | path_flags::PRIMARY | path_flags::BIDIRECTIONAL;
        let mut path = PathData { flags, ..PathData::default() };
        path.path_rec.as_mut_bytes().copy_from_slice(record);
        self.set(option::IB, option::IB_PATH, path.as_bytes())
    }

    fn set(&self, level: u32, name: u32, value: &[u8]) -> Result<(), Error> {
        self.step(Step::SetOption, |channel| set_option(channel.file(), self.number(), level, name, value))
    }
}
