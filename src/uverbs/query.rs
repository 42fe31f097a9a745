//! What the kernel tells of a device, its ports and their GIDs.

use super::abi::ioctl::{attr, method};
use super::abi::{verbs, write};
use super::attr::{DeviceAttr, GidEntry, GidType, OdpCaps, PortAttr, PortState, RssCaps, TmCaps};
use super::context::{Ucontext, native_only};
use super::errno::Errno;
use super::error::{Error, Verb};
use super::kernel::{Form, Native};
use super::types::{Gid, Guid, Lid, LinkLayer, Mtu, PortNum};
use zerocopy::{FromZeros, IntoBytes};

/// Most GID table entries that fit one answer: an attribute's length has 16 bits.
const MAX_GID_ENTRIES: usize = u16::MAX as usize / size_of::<verbs::GidEntry>();

impl Ucontext {
    /// The device's limits and abilities.
    pub fn query_device(&self) -> Result<DeviceAttr, Error> {
        let mut response = write::ExQueryDeviceResp::new_zeroed();
        let answer = self.kernel().invoke(&write::ExQueryDevice::default(), &mut response, &[], &mut []);
        match answer {
            // Kernels older than 4.20 have the extended form only for some drivers.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                self.kernel().invoke(&write::QueryDevice::default(), &mut response.base, &[], &mut [])
            }
            answer => answer,
        }
        .map_err(|e| Error::kernel(Verb::QueryDevice, e))?;
        Ok(device_attr(&response))
    }

    /// A port's state and limits.
    pub fn query_port(&self, port: PortNum) -> Result<PortAttr, Error> {
        let mut response = verbs::QueryPortRespEx::new_zeroed();
        let answer = self.kernel().attempt(Native::QueryPort, |form| match form {
            Form::Native => {
                let mut cmd = self.kernel().command(method::QUERY_PORT);
                cmd.const_in(attr::query_port::PORT_NUM, u64::from(port.get()));
                cmd.ptr_out(attr::query_port::RESP, &mut response);
                cmd.issue(&**self.cdev()).map(|_| ())
            }
            Form::Legacy => {
                let request = write::QueryPort { port_num: port.get(), ..Default::default() };
                self.kernel().invoke(&request, &mut response.legacy_resp, &[], &mut [])
            }
        });
        answer.map_err(|e| no_port(Verb::QueryPort, e, port))?;
        Ok(port_attr(&response))
    }

    /// One entry of a port's GID table; `None` if it is empty.
    pub fn query_gid(&self, port: PortNum, index: u32) -> Result<Option<GidEntry>, Error> {
        let mut response = verbs::GidEntry::new_zeroed();
        let mut cmd = self.kernel().command(method::QUERY_GID_ENTRY);
        cmd.const_in(attr::query_gid_entry::PORT, port.get().into());
        cmd.const_in(attr::query_gid_entry::GID_INDEX, index.into());
        cmd.flags_in(attr::query_gid_entry::FLAGS, 0);
        cmd.ptr_out(attr::query_gid_entry::RESP_ENTRY, &mut response);
        match cmd.issue(&**self.cdev()) {
            Ok(_) => Ok(gid_entry(&response)),
            Err(Errno::ENODATA) => Ok(None),
            Err(Errno::EINVAL) => Err(Error::kernel(Verb::QueryGid, Errno::EINVAL).with_hint(format!(
                "port {port} or GID index {index} does not exist: query_device and query_port tell how many there are"
            ))),
            Err(errno) => Err(native_only(Verb::QueryGid, "querying GIDs", errno)),
        }
    }

    /// All valid entries of all ports' GID tables.
    pub fn gid_table(&self) -> Result<Vec<GidEntry>, Error> {
        let capacity = self.gid_table_len()?.clamp(1, MAX_GID_ENTRIES);
        let mut entries = vec![verbs::GidEntry::default(); capacity];
        let mut n_entries = 0_u64;
        let mut cmd = self.kernel().command(method::QUERY_GID_TABLE);
        cmd.const_in(attr::query_gid_table::ENTRY_SIZE, size_of::<verbs::GidEntry>() as u64);
        cmd.flags_in(attr::query_gid_table::FLAGS, 0);
        cmd.ptr_out(attr::query_gid_table::RESP_ENTRIES, entries.as_mut_slice());
        cmd.ptr_out(attr::query_gid_table::RESP_NUM_ENTRIES, &mut n_entries);
        cmd.issue(&**self.cdev()).map_err(|e| native_only(Verb::QueryGid, "querying GIDs", e))?;
        entries.truncate(n_entries as usize);
        Ok(entries.iter().filter_map(gid_entry).collect())
    }

    /// Length of the GID tables of all ports together.
    fn gid_table_len(&self) -> Result<usize, Error> {
        let mut len = 0;
        for port in (1..=self.query_device()?.phys_port_cnt).filter_map(|n| PortNum::new(n).ok()) {
            len += self.query_port(port)?.gid_tbl_len as usize;
        }
        Ok(len)
    }
}

fn no_port(verb: Verb, errno: Errno, port: PortNum) -> Error {
    let error = Error::kernel(verb, errno);
    match errno {
        Errno::EINVAL => error.with_hint(format!("the device has no port {port}")),
        _ => error,
    }
}

/// `None` for an entry that no port can have.
fn gid_entry(entry: &verbs::GidEntry) -> Option<GidEntry> {
    let mut gid = Gid::default();
    gid.0.copy_from_slice(entry.gid.as_bytes());
    Some(GidEntry {
        gid,
        index: entry.gid_index,
        port: u8::try_from(entry.port_num).ok().and_then(|n| PortNum::new(n).ok())?,
        gid_type: GidType(entry.gid_type),
        netdev_ifindex: (entry.netdev_ifindex != 0).then_some(entry.netdev_ifindex),
    })
}

fn port_attr(response: &verbs::QueryPortRespEx) -> PortAttr {
    let port = &response.legacy_resp;
    PortAttr {
        state: PortState(port.state),
        max_mtu: Mtu::from_raw(port.max_mtu),
        active_mtu: Mtu::from_raw(port.active_mtu),
        gid_tbl_len: port.gid_tbl_len,
        port_cap_flags: port.port_cap_flags,
        port_cap_flags2: response.port_cap_flags2,
        max_msg_sz: port.max_msg_sz,
        bad_pkey_cntr: port.bad_pkey_cntr,
        qkey_viol_cntr: port.qkey_viol_cntr,
        pkey_tbl_len: port.pkey_tbl_len,
        lid: Lid(port.lid),
        sm_lid: Lid(port.sm_lid),
        sm_sl: port.sm_sl,
        lmc: port.lmc,
        max_vl_num: port.max_vl_num,
        subnet_timeout: port.subnet_timeout,
        init_type_reply: port.init_type_reply,
        active_width: port.active_width,
        active_speed: match response.active_speed_ex {
            0 => u32::from(port.active_speed),
            speed => speed,
        },
        phys_state: port.phys_state,
        link_layer: match port.link_layer {
            // Drivers that know only InfiniBand leave it unspecified.
            0 | 1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            other => LinkLayer::Other(other),
        },
        flags: port.flags,
    }
}

fn device_attr(response: &write::ExQueryDeviceResp) -> DeviceAttr {
    let base = &response.base;
    DeviceAttr {
        fw_ver: base.fw_ver,
        node_guid: Guid(u64::from_be(base.node_guid)),
        sys_image_guid: Guid(u64::from_be(base.sys_image_guid)),
        max_mr_size: base.max_mr_size,
        page_size_cap: base.page_size_cap,
        vendor_id: base.vendor_id,
        vendor_part_id: base.vendor_part_id,
        hw_ver: base.hw_ver,
        max_qp: base.max_qp,
        max_qp_wr: base.max_qp_wr,
        device_cap_flags: base.device_cap_flags,
        max_sge: base.max_sge,
        max_sge_rd: base.max_sge_rd,
        max_cq: base.max_cq,
        max_cqe: base.max_cqe,
        max_mr: base.max_mr,
        max_pd: base.max_pd,
        max_qp_rd_atom: base.max_qp_rd_atom,
        max_ee_rd_atom: base.max_ee_rd_atom,
        max_res_rd_atom: base.max_res_rd_atom,
        max_qp_init_rd_atom: base.max_qp_init_rd_atom,
        max_ee_init_rd_atom: base.max_ee_init_rd_atom,
        atomic_cap: base.atomic_cap,
        max_ee: base.max_ee,
        max_rdd: base.max_rdd,
        max_mw: base.max_mw,
        max_raw_ipv6_qp: base.max_raw_ipv6_qp,
        max_raw_ethy_qp: base.max_raw_ethy_qp,
        max_mcast_grp: base.max_mcast_grp,
        max_mcast_qp_attach: base.max_mcast_qp_attach,
        max_total_mcast_qp_attach: base.max_total_mcast_qp_attach,
        max_ah: base.max_ah,
        max_fmr: base.max_fmr,
        max_map_per_fmr: base.max_map_per_fmr,
        max_srq: base.max_srq,
        max_srq_wr: base.max_srq_wr,
        max_srq_sge: base.max_srq_sge,
        max_pkeys: base.max_pkeys,
        local_ca_ack_delay: base.local_ca_ack_delay,
        phys_port_cnt: base.phys_port_cnt,
        odp_caps: OdpCaps {
            general: response.odp_caps.general_caps,
            rc: response.odp_caps.rc_odp_caps,
            uc: response.odp_caps.uc_odp_caps,
            ud: response.odp_caps.ud_odp_caps,
            xrc: response.xrc_odp_caps,
        },
        timestamp_mask: response.timestamp_mask,
        hca_core_clock_khz: response.hca_core_clock,
        // The plain form has only the low half.
        device_cap_flags_ex: match response.device_cap_flags_ex {
            0 => u64::from(base.device_cap_flags),
            flags => flags,
        },
        rss_caps: RssCaps {
            supported_qpts: response.rss_caps.supported_qpts,
            max_rwq_indirection_tables: response.rss_caps.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: response.rss_caps.max_rwq_indirection_table_size,
        },
        max_wq_type_rq: response.max_wq_type_rq,
        raw_packet_caps: response.raw_packet_caps,
        tm_caps: TmCaps {
            max_rndv_hdr_size: response.tm_caps.max_rndv_hdr_size,
            max_num_tags: response.tm_caps.max_num_tags,
            flags: response.tm_caps.flags,
            max_ops: response.tm_caps.max_ops,
            max_sge: response.tm_caps.max_sge,
        },
        max_cq_moderation_count: response.cq_moderation_caps.max_cq_moderation_count,
        max_cq_moderation_period_us: response.cq_moderation_caps.max_cq_moderation_period,
        max_dm_size: response.max_dm_size,
    }
}
