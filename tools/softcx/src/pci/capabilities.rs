//! What the device says it can do, and what the driver says that it will use of it.

use super::command::{Command, Status};
use super::limits;
use crate::bits::capability::{AREA_BYTES, BYTES, atomic, general as g, kind};
use crate::bits::firmware::status;
use crate::device::Device;
use crate::mini;
use std::collections::BTreeMap;

/// Capabilities in force, by type, where they are not simply all that there are.
#[derive(Debug)]
pub(super) struct Capabilities {
    set: BTreeMap<u16, Vec<u8>>,
    /// Send registers take whole WQEs.
    blue_flame: bool,
    /// Ticks of the clock in a thousandth of a second of the guest's time.
    clock_khz: u64,
}

impl Capabilities {
    pub fn new(blue_flame: bool, clock_khz: u64) -> Self {
        Self { set: BTreeMap::new(), blue_flame, clock_khz }
    }

    /// QUERY_HCA_CAP: type in 15:1 of the modifier; bit 0 asks for those in force.
    pub fn query(&self, command: &mut Command<'_>) -> Result<(), Status> {
        let (kind, in_force) = (command.modifier >> 1, command.modifier & 1 == 1);
        let all = match (in_force, self.set.get(&kind)) {
            (true, Some(set)) => set.clone(),
            _ => self.there_are(kind).ok_or(Status(status::BAD_PARAM))?,
        };
        command.output(16, AREA_BYTES)[..BYTES].copy_from_slice(&all);
        Ok(())
    }

    /// SET_HCA_CAP: those in force from now on.
    pub fn set(&mut self, device: &mut Device, command: &Command<'_>) -> Result<(), Status> {
        let kind = command.modifier >> 1;
        let mut set = self.there_are(kind).ok_or(Status(status::BAD_PARAM))?;
        let wanted = command.context(16, BYTES)?;
        if kind == kind::ATOMIC {
            // The order of results is all that can be chosen.
            atomic::HOST_ORDER.set(&mut set, atomic::HOST_ORDER.get(wanted));
            device.shared.big_endian_atomics = !atomic::HOST_ORDER.is_set(&set);
        } else {
            set.copy_from_slice(wanted);
        }
        self.set.insert(kind, set);
        Ok(())
    }

    fn there_are(&self, kind: u16) -> Option<Vec<u8>> {
        let mut caps = vec![0; BYTES];
        let list: &[_] = match kind {
            kind::GENERAL => &GENERAL,
            kind::ATOMIC => &[(atomic::HOST_ORDER_SUPPORTED, 1), (atomic::OPERATIONS, 0xf), (atomic::SIZES, 1 << 3)],
            _ => return None,
        };
        for (field, value) in list {
            field.set(&mut caps, *value);
        }
        if kind == kind::GENERAL {
            g::DEVICE_FREQUENCY_MHZ.set(&mut caps, self.clock_khz / 1000);
            g::DEVICE_FREQUENCY_KHZ.set(&mut caps, self.clock_khz);
        }
        if kind == kind::GENERAL && self.blue_flame {
            g::BF.set(&mut caps, 1);
            // With send queues by themselves the driver finds out whether the host combines stores.
            g::LOG_MAX_SQ.set(&mut caps, 16);
        }
        Some(caps)
    }
}

const GENERAL: [(crate::bits::field::Field, u64); 63] = [
    (g::LOG_MAX_SRQ_SZ, 15),
    (g::LOG_MAX_QP_SZ, 15),
    (g::LOG_MAX_QP, limits::LOG_MAX_QP as u64),
    (g::LOG_MAX_SRQ, limits::LOG_MAX_SRQ as u64),
    (g::LOG_MAX_CQ_SZ, 22),
    (g::LOG_MAX_CQ, limits::LOG_MAX_CQ as u64),
    (g::LOG_MAX_EQ_SZ, 22),
    (g::LOG_MAX_MKEY, limits::LOG_MAX_MKEY as u64),
    (g::LOG_MAX_EQ, 7),
    (g::MAX_INDIRECTION, 16),
    (g::FIXED_BUFFER_SIZE, 1),
    (g::LOG_MAX_MRW_SZ, 40),
    (g::LOG_MAX_KLM_LIST_SIZE, 16),
    (g::LOG_MAX_RA_REQ_QP, 4),
    (g::LOG_MAX_RA_RES_QP, 4),
    // Eight GIDs and 128 P_Keys, the fewest that there can be.
    (g::GID_TABLE_SIZE, 0),
    (g::PKEY_TABLE_SIZE, 0),
    (g::RETRANSMISSION_Q_COUNTERS, 1),
    (g::MAX_QP_CNT, 10),
    (g::VPORT_GROUP_MANAGER, 1),
    // Ports are asked about by commands of their own, not by datagrams of subnet management.
    (g::IB_VIRT, 1),
    (g::LOCAL_CA_ACK_DELAY, 16),
    (g::PORT_TYPE, 0),
    (g::NUM_PORTS, 1),
    (g::LOG_MAX_MSG, 30),
    (g::STAT_RATE_SUPPORT, 0x3ff),
    (g::CQE_VERSION, 1),
    // Regions come as page lists of CREATE_MKEY; only rights and domains change by work requests of the driver's own.
    (g::UMR_MODIFY_ENTITY_SIZE_DISABLED, 1),
    (g::UMR_INDIRECT_MKEY_DISABLED, 1),
    (g::UMR_FENCE, 2),
    (g::SCTR_DATA_CQE, 1),
    (g::ATOMIC, 1),
    (g::CQ_OI, 1),
    (g::CQ_RESIZE, 1),
    (g::CQ_MODERATION, 1),
    (g::BLOCK_LB_MC, 1),
    (g::SCQE_BREAK_MODERATION, 1),
    (g::UMR_PTR_RLKY, 1),
    (g::IMAICL, 1),
    (g::QKV, 1),
    (g::PKV, 1),
    (g::XRC, 1),
    (g::UD, 1),
    (g::UC, 1),
    (g::RC, 1),
    (g::UAR_4K, 1),
    // Log of MiB of the BAR.
    (g::UAR_SZ, 5),
    (g::LOG_PG_SZ, 12),
    (g::DRIVER_VERSION, 1),
    (g::LOG_BF_REG_SIZE, 9),
    (g::MAX_WQE_SZ_SQ, 1024),
    (g::MAX_WQE_SZ_RQ, 512),
    (g::MAX_WQE_SZ_SQ_DC, 1024),
    (g::MAX_QP_MCG, limits::MAX_QP_MCG as u64),
    (g::LOG_MAX_MCG, limits::LOG_MAX_MCG as u64),
    (g::LOG_MAX_TRANSPORT_DOMAIN, limits::LOG_MAX_TRANSPORT_DOMAIN as u64),
    (g::LOG_MAX_PD, limits::LOG_MAX_PD as u64),
    (g::LOG_MAX_XRCD, limits::LOG_MAX_XRCD as u64),
    (g::MAX_NUM_EQS, limits::MAX_EQS as u64),
    // With 4 KiB UARs the driver divides by it.
    (g::NUM_OF_UARS_PER_PAGE, 1),
    (g::MINI_CQE_RESP_STRIDE_INDEX, 1),
    (g::CQE_COMPRESSION, 1),
    (g::CQE_COMPRESSION_MAX_NUM, mini::MAX_SESSION as u64),
];
