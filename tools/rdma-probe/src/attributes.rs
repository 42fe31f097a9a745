//! What an open device tells of itself, by the kernel's names, which are also those of `ibv_devinfo -v`.

use ironverbs::{DeviceAttr, LinkLayer, Mtu, PhysState, PortAttr};
use serde::Serialize;

/// One line of text: a name and a value.
pub type Line = (&'static str, String);

macro_rules! attributes {
    ($(#[$doc:meta])* $name:ident of $source:ty {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = |$from:ident| $value:expr, $show:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// From what the library was told.
            pub fn of(attr: &$source) -> Self {
                Self { $($field: { let $from = attr; $value },)* }
            }

            /// As text, line by line.
            pub fn lines(&self) -> Vec<Line> {
                vec![$((stringify!($field), { let show: fn(&$type) -> String = $show; show(&self.$field) }),)*]
            }
        }
    };
}

fn plain<T: ToString>(value: &T) -> String {
    value.to_string()
}

fn hex<T: std::fmt::LowerHex>(value: &T) -> String {
    format!("{value:#x}")
}

fn list(names: &[String]) -> String {
    names.join(" ")
}

fn mtu_bytes(bytes: &Option<u32>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string())
}

attributes! {
    /// Limits and abilities of a device (`struct ib_uverbs_ex_query_device_resp`). Numbers may need 64 bits.
    DeviceAttributes of DeviceAttr {
        /// Vendor, an IEEE OUI.
        vendor_id: u32 = |a| a.vendor_id, hex;
        /// Vendor's part number.
        vendor_part_id: u32 = |a| a.vendor_part_id, plain;
        /// Hardware version.
        hw_ver: u32 = |a| a.hw_ver, hex;
        /// Number of ports.
        phys_port_cnt: u8 = |a| a.phys_port_cnt, plain;
        /// Longest memory region in bytes.
        max_mr_size: u64 = |a| a.max_mr_size, hex;
        /// Page sizes the device can map: bit n stands for 2^n bytes.
        page_size_cap: u64 = |a| a.page_size_cap, hex;
        /// Most queue pairs.
        max_qp: u32 = |a| a.max_qp, plain;
        /// Most outstanding work requests of one queue.
        max_qp_wr: u32 = |a| a.max_qp_wr, plain;
        /// The low 32 bits of device_cap_flags_ex.
        device_cap_flags: u32 = |a| a.device_cap_flags, hex;
        /// Abilities, all bits.
        device_cap_flags_ex: u64 = |a| a.device_cap_flags_ex, hex;
        /// Names of the known bits of device_cap_flags_ex (`enum ib_uverbs_device_cap_flags`).
        device_cap_flag_names: Vec<String> = |a| cap_names(a.device_cap_flags_ex), |n| list(n);
        /// Most scatter/gather entries of a work request.
        max_sge: u32 = |a| a.max_sge, plain;
        /// Most scatter/gather entries of an RDMA READ.
        max_sge_rd: u32 = |a| a.max_sge_rd, plain;
        /// Most completion queues.
        max_cq: u32 = |a| a.max_cq, plain;
        /// Most entries of a completion queue.
        max_cqe: u32 = |a| a.max_cqe, plain;
        /// Most memory regions.
        max_mr: u32 = |a| a.max_mr, plain;
        /// Most protection domains.
        max_pd: u32 = |a| a.max_pd, plain;
        /// Most READs and atomics that a queue pair answers at once.
        max_qp_rd_atom: u32 = |a| a.max_qp_rd_atom, plain;
        /// The same for end-to-end contexts.
        max_ee_rd_atom: u32 = |a| a.max_ee_rd_atom, plain;
        /// Most READs and atomics that the device answers at once.
        max_res_rd_atom: u32 = |a| a.max_res_rd_atom, plain;
        /// Most READs and atomics that a queue pair has outstanding.
        max_qp_init_rd_atom: u32 = |a| a.max_qp_init_rd_atom, plain;
        /// The same for end-to-end contexts.
        max_ee_init_rd_atom: u32 = |a| a.max_ee_init_rd_atom, plain;
        /// Atomics: 0 none, 1 among this device's own, 2 with every access to the memory (`enum ib_atomic_cap`).
        atomic_cap: u32 = |a| a.atomic_cap, |cap| match cap {
            0 => "NONE (0)".into(),
            1 => "HCA (1)".into(),
            2 => "GLOB (2)".into(),
            other => other.to_string(),
        };
        /// Most end-to-end contexts.
        max_ee: u32 = |a| a.max_ee, plain;
        /// Most reliable datagram domains.
        max_rdd: u32 = |a| a.max_rdd, plain;
        /// Most memory windows.
        max_mw: u32 = |a| a.max_mw, plain;
        /// Most raw IPv6 queue pairs.
        max_raw_ipv6_qp: u32 = |a| a.max_raw_ipv6_qp, plain;
        /// Most raw Ethertype queue pairs.
        max_raw_ethy_qp: u32 = |a| a.max_raw_ethy_qp, plain;
        /// Most multicast groups.
        max_mcast_grp: u32 = |a| a.max_mcast_grp, plain;
        /// Most queue pairs in a multicast group.
        max_mcast_qp_attach: u32 = |a| a.max_mcast_qp_attach, plain;
        /// Most queue pairs in all multicast groups.
        max_total_mcast_qp_attach: u32 = |a| a.max_total_mcast_qp_attach, plain;
        /// Most address handles.
        max_ah: u32 = |a| a.max_ah, plain;
        /// Most fast memory regions.
        max_fmr: u32 = |a| a.max_fmr, plain;
        /// Most maps of a fast memory region between unmaps.
        max_map_per_fmr: u32 = |a| a.max_map_per_fmr, plain;
        /// Most shared receive queues.
        max_srq: u32 = |a| a.max_srq, plain;
        /// Most work requests of a shared receive queue.
        max_srq_wr: u32 = |a| a.max_srq_wr, plain;
        /// Most scatter/gather entries of a shared receive queue's work request.
        max_srq_sge: u32 = |a| a.max_srq_sge, plain;
        /// Length of the partition key table.
        max_pkeys: u16 = |a| a.max_pkeys, plain;
        /// Delay of an acknowledgement: 4.096 us times 2^n.
        local_ca_ack_delay: u8 = |a| a.local_ca_ack_delay, plain;
        /// On-demand paging in general, as bits.
        general_odp_caps: u64 = |a| a.odp_caps.general, hex;
        /// On-demand paging of reliable connections, as bits (`enum ib_uverbs_odp_transport_cap_bits`).
        rc_odp_caps: u32 = |a| a.odp_caps.rc, hex;
        /// On-demand paging of unreliable connections.
        uc_odp_caps: u32 = |a| a.odp_caps.uc, hex;
        /// On-demand paging of datagrams.
        ud_odp_caps: u32 = |a| a.odp_caps.ud, hex;
        /// On-demand paging of extended reliable connections.
        xrc_odp_caps: u32 = |a| a.odp_caps.xrc, hex;
        /// Which bits of a completion's time stamp are valid; 0 if there are none.
        completion_timestamp_mask: u64 = |a| a.timestamp_mask, hex;
        /// Frequency of that clock in kHz; 0 if there is none.
        hca_core_clock_khz: u64 = |a| a.hca_core_clock_khz, plain;
        /// Queue pair types that receive-side scaling works with, one bit each.
        rss_supported_qpts: u32 = |a| a.rss_caps.supported_qpts, hex;
        /// Most indirection tables of receive-side scaling.
        max_rwq_indirection_tables: u32 = |a| a.rss_caps.max_rwq_indirection_tables, plain;
        /// Most entries of one.
        max_rwq_indirection_table_size: u32 = |a| a.rss_caps.max_rwq_indirection_table_size, plain;
        /// Most receive work queues.
        max_wq_type_rq: u32 = |a| a.max_wq_type_rq, plain;
        /// Raw packet abilities (`enum ib_uverbs_raw_packet_caps`).
        raw_packet_caps: u32 = |a| a.raw_packet_caps, hex;
        /// Tag matching: longest rendezvous header in bytes.
        tm_max_rndv_hdr_size: u32 = |a| a.tm_caps.max_rndv_hdr_size, plain;
        /// Tag matching: most tags.
        tm_max_num_tags: u32 = |a| a.tm_caps.max_num_tags, plain;
        /// Tag matching: most outstanding operations.
        tm_max_ops: u32 = |a| a.tm_caps.max_ops, plain;
        /// Tag matching: most scatter/gather entries.
        tm_max_sge: u32 = |a| a.tm_caps.max_sge, plain;
        /// Most completions that one event can stand for.
        max_cq_moderation_count: u16 = |a| a.max_cq_moderation_count, plain;
        /// Longest delay of a completion event in microseconds.
        max_cq_moderation_period_us: u16 = |a| a.max_cq_moderation_period_us, plain;
        /// Device memory in bytes.
        max_dm_size: u64 = |a| a.max_dm_size, plain;
    }
}

attributes! {
    /// State and limits of a port (`struct ib_uverbs_query_port_resp_ex`).
    PortAttributes of PortAttr {
        /// Logical state (`enum ib_port_state`): 4 is ACTIVE.
        state: u8 = |a| a.state.0, |&state| format!("{} ({state})", ironverbs::PortState(state));
        /// Physical state (`enum ib_port_phys_state`): 5 is LINK_UP.
        phys_state: u8 = |a| a.phys_state, |&state| format!("{} ({state})", PhysState(state));
        /// InfiniBand or Ethernet.
        link_layer: String = |a| link_layer(a.link_layer), plain;
        /// Largest MTU in bytes.
        max_mtu: Option<u32> = |a| a.max_mtu.map(Mtu::bytes), mtu_bytes;
        /// MTU in use, in bytes.
        active_mtu: Option<u32> = |a| a.active_mtu.map(Mtu::bytes), mtu_bytes;
        /// The subnet manager's LID.
        sm_lid: u16 = |a| a.sm_lid.0, plain;
        /// Local identifier; 0 on Ethernet.
        port_lid: u16 = |a| a.lid.0, plain;
        /// How many low bits of the LID name paths.
        port_lmc: u8 = |a| a.lmc, hex;
        /// Longest message in bytes.
        max_msg_sz: u32 = |a| a.max_msg_sz, hex;
        /// Abilities (`enum ib_uverbs_query_port_cap_flags`).
        port_cap_flags: u32 = |a| a.port_cap_flags, hex;
        /// More abilities.
        port_cap_flags2: u16 = |a| a.port_cap_flags2, hex;
        /// Virtual lanes, encoded.
        max_vl_num: u8 = |a| a.max_vl_num, plain;
        /// Packets with a bad partition key.
        bad_pkey_cntr: u32 = |a| a.bad_pkey_cntr, hex;
        /// Packets with a bad queue key.
        qkey_viol_cntr: u32 = |a| a.qkey_viol_cntr, hex;
        /// The subnet manager's service level.
        sm_sl: u8 = |a| a.sm_sl, plain;
        /// Entries of the partition key table.
        pkey_tbl_len: u16 = |a| a.pkey_tbl_len, plain;
        /// Entries of the GID table.
        gid_tbl_len: u32 = |a| a.gid_tbl_len, plain;
        /// Subnet time-out: 4.096 us times 2^n.
        subnet_timeout: u8 = |a| a.subnet_timeout, plain;
        /// What the subnet manager initialised.
        init_type_reply: u8 = |a| a.init_type_reply, plain;
        /// Link width (`enum ib_port_width`).
        active_width: u8 = |a| a.active_width, |&code| format!("{} ({code})", width_text(code));
        /// Link speed of one lane (`enum ib_port_speed`).
        active_speed: u32 = |a| a.active_speed, |&code| format!("{} ({code})", speed_text(code));
        /// Flags (`enum ib_uverbs_query_port_flags`): bit 0, packets need a global route header.
        flags: u8 = |a| a.flags, hex;
    }
}

fn link_layer(layer: LinkLayer) -> String {
    layer.to_string()
}

fn width_text(code: u8) -> &'static str {
    match code {
        1 => "1X",
        2 => "4X",
        4 => "8X",
        8 => "12X",
        16 => "2X",
        _ => "unknown",
    }
}

fn speed_text(code: u32) -> &'static str {
    match code {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        256 => "200.0 Gbps",
        _ => "unknown",
    }
}

/// Bits and names of `enum ib_uverbs_device_cap_flags` (`include/uapi/rdma/ib_user_verbs.h`).
const DEVICE_CAPS: [(u32, &str); 28] = [
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (29, "MANAGED_FLOW_STEERING"),
    (34, "RAW_SCATTER_FCS"),
    (36, "PCI_WRITE_END_PADDING"),
    (38, "FLUSH_GLOBAL"),
    (39, "FLUSH_PERSISTENT"),
    (40, "ATOMIC_WRITE"),
];

fn cap_names(flags: u64) -> Vec<String> {
    DEVICE_CAPS.iter().filter(|(bit, _)| flags >> bit & 1 == 1).map(|(_, name)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_names_are_those_of_ibv_devinfo() {
        // ibv_devinfo -v on rxe: device_cap_flags 0x01223c76.
        let names = cap_names(0x01223c76).join(" ");
        assert_eq!(
            names,
            "BAD_PKEY_CNTR BAD_QKEY_CNTR AUTO_PATH_MIG CHANGE_PHY_PORT UD_AV_PORT_ENFORCE PORT_ACTIVE_EVENT \
             SYS_IMAGE_GUID RC_RNR_NAK_GEN SRQ_RESIZE MEM_WINDOW MEM_MGT_EXTENSIONS MEM_WINDOW_TYPE_2B"
        );
    }
}
