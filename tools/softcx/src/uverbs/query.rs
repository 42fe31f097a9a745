//! Queries of the device, its ports and its GIDs.

use super::caps::*;
use super::file::File;
use super::uapi::{Answer, Call, Request, Response};
use crate::device::{CLOCK_KHZ, Device};
use crate::mini::MAX_SESSION;
use crate::packet::Network;
use crate::port::{Link, Port};
use ironverbs::Errno;

impl File {
    /// QUERY_DEVICE: 176 bytes.
    pub(super) fn query_device(&self) -> Response {
        let (guid, ports, gids) =
            self.with(|d| (d.guid(), d.ports().len(), d.ports().iter().map(|p| p.pkeys.len()).max().unwrap_or(1)));
        Response::new(176)
            .u64(0, FIRMWARE)
            .put(8, &guid.to_be_bytes())
            .put(16, &guid.to_be_bytes())
            .u64(24, u64::MAX)
            .u64(32, 0xffff_f000)
            .u32(40, VENDOR_ID)
            .u32(44, PART_ID)
            .u32(48, 0)
            .u32(52, 1 << LOG2_MAX_QP)
            .u32(56, MAX_QP_WR)
            .u32(60, DEVICE_CAP_FLAGS)
            .u32(64, MAX_SEND_SGE)
            .u32(68, MAX_SEND_SGE)
            .u32(72, 1 << 16)
            .u32(76, (1 << LOG2_MAX_CQ_SIZE) - 1)
            .u32(80, 1 << 20)
            .u32(84, 1 << 16)
            .u32(88, 1 << LOG2_MAX_RD_ATOMIC)
            .u32(96, 1 << (LOG2_MAX_QP + LOG2_MAX_RD_ATOMIC))
            .u32(100, 1 << LOG2_MAX_RD_ATOMIC)
            // Atomics of the device itself; none where results are not in the host's order.
            .u32(108, u32::from(!self.with(|d| d.shared.big_endian_atomics)))
            .u32(120, 1 << 20)
            .u32(132, 1 << 8)
            .u32(136, 16)
            .u32(140, 16 << 8)
            .u32(144, i32::MAX as u32)
            .u32(156, 1 << 16)
            .u32(160, (1 << LOG2_MAX_SRQ_SIZE) - 1)
            .u32(164, MAX_SRQ_SGE)
            .u16(168, gids as u16)
            .u8(170, 16)
            .u8(171, ports as u8)
    }

    /// Extended QUERY_DEVICE: 304 bytes, and the driver's 112.
    pub(super) fn query_device_ex(&self, call: &Call<'_>) -> Result<Answer, Errno> {
        if call.request.u32(0) != 0 {
            return Err(Errno::EINVAL);
        }
        if !call.driver.is_zero_from(0) {
            return Err(Errno::EINVAL);
        }
        let base = self.query_device().done();
        let core = Response::new(304)
            .put(0, &base)
            .u32(180, 304)
            .u64(208, 0x7fff_ffff_ffff_ffff)
            .u64(216, CLOCK_KHZ)
            .u64(224, DEVICE_CAP_FLAGS.into())
            .u16(280, u16::MAX)
            .u16(282, MAX_MODERATION_US);
        let room = call.driver_room.unwrap_or(0).min(112);
        // No TSO, RSS, pacing, striding or padding; completions can be compressed in any of three formats.
        let driver = Response::new(112).u32(4, room as u32).u32(32, MAX_SESSION as u32).u32(36, 7).done();
        Ok(Answer { core: core.done(), driver: driver[..room].to_vec() })
    }

    /// QUERY_PORT: 40 bytes, or 48 in the form of the ioctl.
    pub(super) fn query_port(&self, number: u64) -> Result<Response, Errno> {
        let index = usize::try_from(number).ok().and_then(|n| n.checked_sub(1)).ok_or(Errno::EINVAL)?;
        let port = self.with(|d| d.ports().get(index).cloned()).ok_or(Errno::EINVAL)?;
        Ok(describe_port(&port))
    }

    /// Entries of the GID table that are in use: GID, index, port, type, interface; 32 bytes each.
    pub(super) fn gid_entries(&self) -> Vec<[u8; 32]> {
        self.with(|d| {
            let ports = d.ports().iter().enumerate();
            ports
                .flat_map(|(p, port)| (0..port.gids.len()).filter_map(move |i| gid_entry(port, p as u32 + 1, i)))
                .collect()
        })
    }

    /// One entry.
    pub(super) fn gid(&self, port: u32, index: u32) -> Result<[u8; 32], Errno> {
        let at = (port as usize).checked_sub(1).ok_or(Errno::EINVAL)?;
        self.with(|d| {
            let entry = d.ports().get(at).ok_or(Errno::EINVAL)?;
            if index as usize >= entry.gids.len() {
                return Err(Errno::EINVAL);
            }
            gid_entry(entry, port, index as usize).ok_or(Errno::ENODATA)
        })
    }
}

/// The kernel's number of an MTU.
pub(super) fn mtu_number(bytes: u32) -> u8 {
    (bytes.max(256).ilog2() - 7) as u8
}

fn describe_port(port: &Port) -> Response {
    let (lid, sm_lid, link_layer, cap_flags, flags) = match port.link {
        Link::InfiniBand { lid } => (lid, 1, 1, 0x0001_0000_u32, 0),
        // GRH required.
        Link::Ethernet { .. } => (0, 0, 2, 0x0001_0000, 1),
    };
    // ACTIVE and LinkUp, or DOWN and Disabled.
    let (state, phys) = if port.active { (4, 5) } else { (1, 3) };
    Response::new(48)
        .u32(0, cap_flags)
        .u32(4, MAX_MESSAGE_BYTES)
        .u32(16, port.gids.len() as u32)
        .u16(20, port.pkeys.len() as u16)
        .u16(22, lid)
        .u16(24, sm_lid)
        .u8(26, state)
        .u8(27, 5)
        .u8(28, mtu_number(port.mtu_bytes))
        .u8(30, 4)
        .u8(32, 18)
        // 4X EDR.
        .u8(34, 2)
        .u8(35, 32)
        .u8(36, phys)
        .u8(37, link_layer)
        .u8(38, flags)
        .u32(44, 32)
}

fn gid_entry(port: &Port, number: u32, index: usize) -> Option<[u8; 32]> {
    let entry = port.gids.get(index).copied().flatten()?;
    let kind = match entry.network {
        Network::InfiniBand => 0,
        Network::RoceV1 => 1,
        Network::RoceV2 => 2,
    };
    // The simulated host has no network interfaces.
    let bytes = Response::new(32).put(0, &entry.gid).u32(16, index as u32).u32(20, number).u32(24, kind);
    Some(crate::bits::array(&bytes.done(), 0))
}

/// What `mlx5_ib_alloc_ucontext_resp` says: 72 bytes.
pub(super) fn describe_context(device: &Device, cqe_version: u8, write_combining: bool, room: usize) -> Vec<u8> {
    const CORE_CLOCK_OFFSET: u32 = 1;
    const REAL_TIME_STAMPS: u32 = 1 << 4;
    let mask = CORE_CLOCK_OFFSET | if device.shared.keeps_time { REAL_TIME_STAMPS } else { 0 };
    Response::new(72)
        .u32(0, 1 << LOG2_MAX_QP)
        .u32(4, if write_combining { 0x200 } else { 0 })
        .u32(12, 64)
        .u16(16, MAX_SEND_WQE_BYTES)
        .u16(18, MAX_RECV_WQE_BYTES)
        .u32(20, 1 << LOG2_MAX_QP_SIZE)
        .u32(24, 1 << LOG2_MAX_QP_SIZE)
        .u32(28, 1 << LOG2_MAX_SRQ_SIZE)
        .u16(32, device.ports().len() as u16)
        .u32(36, mask)
        .u32(40, room.min(72) as u32)
        .u8(44, cqe_version)
        // Driver data of CREATE_AH and QUERY_DEVICE.
        .u8(45, 3)
        .u8(47, 1)
        .u64(48, 0)
        .u32(56, 12)
        .u32(60, 1)
        .u32(64, MAX_DYNAMIC_UARS)
        .done()
}

/// Whether an `mlx5_ib_alloc_ucontext_req_v2` is one that the driver takes: its CQE version.
pub(super) fn check_context_request(request: Request<'_>) -> Result<u8, Errno> {
    let len = request.0.len();
    if len != 8 && len < 16 {
        return Err(Errno::EINVAL);
    }
    const DYNAMIC_UAR: u64 = 2;
    let (total, low_latency, flags) = (request.u32(0), request.u32(4), request.u32(8));
    // The device has no user contexts (DEVX, bit 0), and nobody knows other flags.
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if request.u32(12) != 0 || request.u8(17) != 0 || request.u16(18) != 0 || request.u32(20) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if low_latency > total.wrapping_sub(1) {
        return Err(Errno::EINVAL);
    }
    // Registers handed out by the kernel are not modelled: every page is asked for as an object.
    if request.u64(24) & DYNAMIC_UAR == 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(request.u8(16).min(1))
}
