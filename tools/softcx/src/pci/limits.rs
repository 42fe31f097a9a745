//! How many objects of each kind there can be: the capabilities announce it, and commands keep to it.

use super::command::{Command, Status};
use crate::bits::firmware::{opcode as op, status};
use crate::device::Device;
use crate::packet::Gid;

pub(super) const LOG_MAX_QP: u32 = 17;
pub(super) const LOG_MAX_SRQ: u32 = 16;
pub(super) const LOG_MAX_CQ: u32 = 18;
pub(super) const LOG_MAX_MKEY: u32 = 24;
pub(super) const MAX_EQS: u32 = 64;
pub(super) const LOG_MAX_PD: u32 = 16;
pub(super) const LOG_MAX_XRCD: u32 = 16;
pub(super) const LOG_MAX_TRANSPORT_DOMAIN: u32 = 16;
/// Multicast groups.
pub(super) const LOG_MAX_MCG: u32 = 16;
/// Queue pairs of a multicast group.
pub(super) const MAX_QP_MCG: u32 = 56;

/// Refuses a command that would make one object more than there can be.
pub(super) fn check(device: &Device, eqs: usize, transport_domains: usize, c: &Command<'_>) -> Result<(), Status> {
    let shared = &device.shared;
    let (there_are, most) = match c.opcode {
        op::CREATE_QP | op::CREATE_SQ => (device.qps.len(), 1 << LOG_MAX_QP),
        op::CREATE_XRC_SRQ | op::CREATE_RMP => (shared.srqs.len(), 1 << LOG_MAX_SRQ),
        op::CREATE_CQ => (shared.cqs.len(), 1 << LOG_MAX_CQ),
        op::CREATE_MKEY => (shared.mkeys.len(), 1 << LOG_MAX_MKEY),
        op::CREATE_EQ => (eqs, MAX_EQS as usize),
        op::ALLOC_PD => (device.pds.len(), 1 << LOG_MAX_PD),
        op::ALLOC_XRCD => (device.xrcds.len(), 1 << LOG_MAX_XRCD),
        op::ALLOC_TRANSPORT_DOMAIN => (transport_domains, 1 << LOG_MAX_TRANSPORT_DOMAIN),
        op::ATTACH_TO_MCG => return attach(device, crate::bits::array(c.input, 16)),
        _ => return Ok(()),
    };
    if there_are < most { Ok(()) } else { Err(Status(status::LIMIT)) }
}

/// Whether one more can be attached to a group.
fn attach(device: &Device, group: Gid) -> Result<(), Status> {
    let members = device.multicast.range((group, 0)..=(group, u32::MAX)).count();
    let groups = || device.multicast.iter().map(|(gid, _)| gid).collect::<std::collections::BTreeSet<_>>().len();
    let is_full = members >= MAX_QP_MCG as usize || members == 0 && groups() >= 1 << LOG_MAX_MCG;
    if is_full { Err(Status(status::LIMIT)) } else { Ok(()) }
}
