//! `rdma-probe info`: all that is known of a device.

use crate::attributes::{DeviceAttributes, Line, PortAttributes};
use crate::defaults::ConnectionDefaults;
use crate::failure::Failure;
use crate::gids::{GidRow, GidTable};
use crate::host::HostReport;
use crate::list::DeviceSummary;
use crate::machine::Machine;
use crate::shown;
use crate::table::or_dash;
use ironverbs::sys::Sys;
use ironverbs::{Context, DeviceDetails, DeviceInfo, Mtu, NodeType, PortDetails, Unusable};
use serde::Serialize;
use std::fmt;

/// Result of `rdma-probe info`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InfoReport {
    /// What of the host decides whether its devices can be used.
    pub host: HostReport,
    /// What a connection is made with unless told otherwise.
    pub connection_defaults: ConnectionDefaults,
    /// The devices asked for.
    pub devices: Vec<DeviceReport>,
}

/// All that is known of a device.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceReport {
    /// What a list shows of it.
    #[serde(flatten)]
    pub summary: DeviceSummary,
    /// What kind of device it is.
    pub node_type: Option<String>,
    /// InfiniBand (also on Ethernet, as RoCE), iWARP or usNIC: what `ibv_devinfo` calls transport.
    pub transport: Option<String>,
    /// Description set by the administrator.
    pub node_desc: Option<String>,
    /// Vendor's board identification.
    pub board_id: Option<String>,
    /// Vendor's name of the hardware type.
    pub hca_type: Option<String>,
    /// The bus device behind it, as 0000:3b:00.0.
    pub hardware: Option<String>,
    /// Kernel driver bound to the bus device.
    pub hardware_driver: Option<String>,
    /// ib, roce, iw, opa or usnic.
    pub protocol: Option<String>,
    /// exclusive: a device can be used in its own network namespace only; shared: in all of them.
    pub netns_mode: Option<String>,
    /// Whether fork leaves registered memory alone in the parent.
    pub copy_on_fork: Option<bool>,
    /// Limits and abilities; none if the device cannot be opened.
    pub attributes: Option<DeviceAttributes>,
    /// Completion vectors.
    pub num_comp_vectors: Option<u32>,
    /// Why there are no attributes.
    pub no_attributes_because: Option<String>,
    /// Its ports, in more detail.
    pub port_details: Vec<PortReport>,
}

/// All that is known of a port.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortReport {
    /// The port's number, from 1.
    pub port: u8,
    /// State and limits as numbers, as the kernel answers QUERY_PORT; none if the device cannot be opened. The fields beside
    /// it are the names of some of them, and known without opening the device.
    pub attributes: Option<PortAttributes>,
    /// Logical state, as ACTIVE.
    pub state: Option<String>,
    /// Physical state, as LINK_UP.
    pub phys_state: Option<String>,
    /// InfiniBand or Ethernet.
    pub link_layer: Option<String>,
    /// Speed and width, as the kernel words it.
    pub rate: Option<String>,
    /// Speed in megabits per second.
    pub rate_mbps: Option<u32>,
    /// The network device behind it.
    pub netdev: Option<String>,
    /// Index of that network device, if it is in this network namespace.
    pub netdev_index: Option<u32>,
    /// MTU of that network device in bytes, if it is in this network namespace.
    pub netdev_mtu: Option<u32>,
    /// The largest path MTU of a connection from here, in bytes: the lower active MTU of both ends is used.
    pub max_path_mtu: Option<u32>,
    /// Index of the GID that a connection would use; none if there is none that can be.
    pub chosen_gid_index: Option<u8>,
    /// Why that one, or why none.
    pub gid_reason: String,
    /// The valid entries of the GID table.
    pub gids: Vec<GidRow>,
    /// The entries of the partition key table that are not zero.
    pub pkeys: Vec<PkeyRow>,
}

/// What RoCE packets need of a network device's MTU beyond the payload, in a round number: 4200 for 4096, as is usual.
const ROOM_FOR_HEADERS: u32 = 104;

fn netdev_mtu(netdev: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{netdev}/mtu")).ok()?.trim().parse().ok()
}

/// An entry of a partition key table.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PkeyRow {
    /// Its index.
    pub index: u16,
    /// The partition key.
    pub pkey: u16,
}

/// Looks at each of `devices`. A device that cannot be opened is shown as far as it is known; the failure says why, unless
/// it is one that rdma-probe has no provider for, which is nothing to be mended on this host.
pub fn look(machine: &Machine, devices: &[DeviceInfo]) -> (InfoReport, Result<(), Failure>) {
    let mut first_failure = Ok(());
    let mut reports = Vec::new();
    for device in devices {
        let opened = open(&**machine.sys(), device);
        reports.push(DeviceReport::of(device, &machine.sys().details(device), opened.as_ref()));
        if let Err(failure) = opened
            && first_failure.is_ok()
            && !has_no_provider(device)
        {
            first_failure = Err(failure.during(format_args!("cannot open {}", device.name)));
        }
    }
    let host = HostReport::of(machine, devices);
    (InfoReport { host, connection_defaults: ConnectionDefaults::new(), devices: reports }, first_failure)
}

/// Opens a device for a look at it.
pub fn open(sys: &dyn Sys, device: &DeviceInfo) -> Result<Context, Failure> {
    match &device.usable {
        Ok(()) => Ok(Context::open_on(sys, device)?),
        Err(why) => Err(Failure::from(why)),
    }
}

/// Whether it is this program that cannot use the device, so that nothing on this host is to be mended.
pub fn has_no_provider(device: &DeviceInfo) -> bool {
    matches!(
        device.usable,
        Err(Unusable::NoProvider(_)
            | Unusable::UnknownDriver(_)
            | Unusable::AbiVersion { .. }
            | Unusable::PointerWidth(_))
    )
}

impl DeviceReport {
    fn of(device: &DeviceInfo, details: &DeviceDetails, opened: Result<&Context, &Failure>) -> Self {
        let context = opened.ok();
        let mut summary = DeviceSummary::of(device);
        summary.fw_version = summary.fw_version.or_else(|| details.fw_version.clone()).filter(|v| !v.is_empty());
        Self {
            summary,
            node_type: details.node_type.map(|t| t.to_string()),
            transport: details.node_type.and_then(transport).map(str::to_owned),
            node_desc: details.node_desc.clone(),
            board_id: details.board_id.clone(),
            hca_type: details.hca_type.clone(),
            hardware: details.hardware.clone(),
            hardware_driver: details.hardware_driver.clone(),
            protocol: details.protocol.clone(),
            netns_mode: details.netns_mode.map(|mode| mode.to_string()),
            copy_on_fork: details.copy_on_fork,
            attributes: context.map(|c| DeviceAttributes::of(c.attr())),
            num_comp_vectors: context.map(Context::num_comp_vectors),
            no_attributes_because: opened.err().map(Failure::to_string),
            port_details: details.ports.iter().map(|port| PortReport::of(port, context)).collect(),
        }
    }
}

/// The transport that a kind of device speaks (`rdma_node_get_transport` in the kernel's `core/device.c`).
fn transport(node_type: NodeType) -> Option<&'static str> {
    match node_type.0 {
        1..=3 => Some("InfiniBand"),
        4 => Some("iWARP"),
        5 | 6 => Some("usNIC"),
        _ => None,
    }
}

impl PortReport {
    fn of(port: &PortDetails, context: Option<&Context>) -> Self {
        let queried = context.and_then(|c| c.query_port(port.port).ok());
        let choice = GidTable::of("", port, None);
        Self {
            port: port.port.get(),
            attributes: queried.as_ref().map(PortAttributes::of),
            state: port.state.map(|state| state.to_string()),
            phys_state: port.phys_state.map(|state| state.to_string()),
            link_layer: port.link_layer.map(|layer| layer.to_string()),
            rate: port.rate.as_ref().map(|rate| rate.text.clone()),
            rate_mbps: port.rate.as_ref().and_then(|rate| rate.mbps),
            netdev: port.netdev.clone(),
            netdev_index: port.netdev_index,
            netdev_mtu: port.netdev.as_deref().filter(|_| port.netdev_index.is_some()).and_then(netdev_mtu),
            max_path_mtu: queried.as_ref().and_then(|p| p.active_mtu).map(Mtu::bytes),
            chosen_gid_index: choice.chosen_index,
            gid_reason: choice.reason,
            gids: choice.entries,
            pkeys: port.pkeys.iter().map(|&(index, pkey)| PkeyRow { index, pkey }).collect(),
        }
    }

    /// How large packets can be from here, and what would make them larger.
    fn path_mtu_text(&self) -> Option<String> {
        let max = self.max_path_mtu?;
        let mut text = format!("at most {max}: the lower active_mtu of both ends");
        let possible = self.attributes.as_ref().and_then(|a| a.max_mtu).filter(|&possible| possible > max);
        if let (Some(possible), Some(netdev), Some(mtu)) = (possible, &self.netdev, self.netdev_mtu) {
            text += &format!(
                "; {netdev} has an MTU of {mtu}, and {possible} needs headers on top: ip link set {netdev} mtu {}",
                possible + ROOM_FOR_HEADERS
            );
        }
        Some(text)
    }

    /// State and limits; as far as they are known without opening the device, if it could not be.
    fn lines(&self) -> Vec<Line> {
        match &self.attributes {
            Some(attributes) => attributes.lines(),
            None => vec![
                ("state", or_dash(self.state.as_ref())),
                ("phys_state", or_dash(self.phys_state.as_ref())),
                ("link_layer", or_dash(self.link_layer.as_ref())),
            ],
        }
    }
}

impl fmt::Display for InfoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, device) in self.devices.iter().enumerate() {
            write!(f, "{}{device}", if i == 0 { "" } else { "\n" })?;
        }
        writeln!(f, "\nhost")?;
        line(f, 1, "netns_mode", &or_dash(self.host.netns_mode.as_ref()))?;
        line(f, 1, "memlock", &self.host.memlock_text())?;
        self.host.notes.iter().try_for_each(|note| line(f, 1, "note", note))?;
        writeln!(f, "\nconnections, unless told otherwise")?;
        self.connection_defaults.lines().iter().try_for_each(|(name, value)| line(f, 1, name, value))
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", shown::line(&self.summary.name))?;
        let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let known = [
            ("index", self.summary.index.map(|i| i.to_string())),
            ("driver", self.summary.driver_text()),
            ("provider_abi", self.summary.provider_abi.map(|abi| abi.to_string())),
            ("node", self.summary.node.clone()),
            ("usable", Some(self.summary.unusable_because.as_ref().map_or("yes".into(), |why| format!("no: {why}")))),
            ("fw_ver", self.summary.fw_version.clone()),
            ("node_guid", self.summary.node_guid.clone()),
            ("sys_image_guid", self.summary.sys_image_guid.clone()),
            ("node_type", self.node_type.clone()),
            ("transport", self.transport.clone()),
            ("node_desc", self.node_desc.clone()),
            ("board_id", self.board_id.clone()),
            ("hca_type", self.hca_type.clone()),
            ("hardware", self.hardware.clone()),
            ("hardware_driver", self.hardware_driver.clone()),
            ("protocol", self.protocol.clone()),
            ("netns_mode", self.netns_mode.clone()),
            ("copy_on_fork", self.copy_on_fork.map(yes_no)),
            ("num_comp_vectors", self.num_comp_vectors.map(|n| n.to_string())),
        ];
        for (name, value) in known {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                line(f, 1, name, &value)?;
            }
        }
        for (name, value) in self.attributes.iter().flat_map(DeviceAttributes::lines) {
            line(f, 1, name, &value)?;
        }
        if let Some(why) = &self.no_attributes_because
            && self.summary.usable
        {
            line(f, 1, "no attributes", why)?;
        }
        self.port_details.iter().try_for_each(|port| port.fmt(f))
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  port {}", self.port)?;
        for (name, value) in self.lines() {
            line(f, 2, name, &value)?;
        }
        if let Some(rate) = &self.rate {
            line(f, 2, "rate", rate)?;
        }
        if let Some(netdev) = &self.netdev {
            line(f, 2, "netdev", netdev)?;
        }
        if let Some(text) = self.path_mtu_text() {
            line(f, 2, "path_mtu", &text)?;
        }
        for row in &self.pkeys {
            line(f, 2, &format!("pkey[{}]", row.index), &format!("{:#06x}", row.pkey))?;
        }
        for row in &self.gids {
            let value = match &row.netdev {
                None => format!("{}, {}", row.gid, row.r#type),
                Some(_) => format!("{}, {}, {}", row.gid, row.r#type, row.netdev_text()),
            };
            line(f, 2, &format!("gid[{}]", row.index), &value)?;
        }
        match self.chosen_gid_index {
            Some(index) => line(f, 2, "chosen gid", &format!("index {index}: {}", self.gid_reason))?,
            None => line(f, 2, "chosen gid", &format!("none: {}", self.gid_reason))?,
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, depth: usize, name: &str, value: &str) -> fmt::Result {
    let width = 36 - 2 * depth;
    let value = shown::line(value);
    writeln!(f, "{:indent$}{:width$} {value}", "", format!("{name}:"), indent = 2 * depth)
}
