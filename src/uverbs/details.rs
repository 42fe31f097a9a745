//! What the kernel tells of a device without its being opened, beyond what a list needs.

use super::attr::{GidEntry, GidType, PortState};
use super::device::{DeviceInfo, Unusable};
use super::discover::Linux;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::named::named;
use super::nldev;
use super::sysfs::GidSlot;
use super::types::{Gid, Lid, LinkLayer, PortNum};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What there is to know of a device without opening it. Everything is `None` or empty where the kernel does not tell.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// let linux = ironverbs::sys::Linux::new();
/// for device in ironverbs::devices()? {
///     let details = linux.details(&device);
///     println!("{}: firmware {:?}, {} ports", details.name, details.fw_version, details.ports.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceDetails {
    /// The device's name now; it may have been renamed since it was listed.
    pub name: String,
    /// What kind of device it is.
    pub node_type: Option<NodeType>,
    /// Description that travels in management packets; set by the administrator.
    pub node_desc: Option<String>,
    /// Vendor's board identification.
    pub board_id: Option<String>,
    /// Hardware revision.
    pub hw_rev: Option<String>,
    /// Vendor's name of the hardware type, as `MT4119`.
    pub hca_type: Option<String>,
    /// Firmware version; empty for rxe.
    pub fw_version: Option<String>,
    /// The bus device behind it, as `0000:3b:00.0`; none for rxe.
    pub hardware: Option<String>,
    /// Kernel driver bound to the bus device, as `mlx5_core`.
    pub hardware_driver: Option<String>,
    /// Protocol of the first port: `ib`, `roce`, `iw`, `opa` or `usnic`.
    pub protocol: Option<String>,
    /// Device capability bits (`enum ib_uverbs_device_cap_flags` and the kernel's own).
    pub cap_flags: Option<u64>,
    /// Whether network namespaces share all devices.
    pub netns_mode: Option<NetnsMode>,
    /// Whether `fork` leaves registered memory alone in the parent (kernel 5.12 and later).
    pub copy_on_fork: Option<bool>,
    /// The ports, starting with port 1.
    pub ports: Vec<PortDetails>,
}

/// What there is to know of a port without opening the device.
///
/// ```no_run
/// # fn f(details: &ironverbs::DeviceDetails) -> Result<(), ironverbs::Error> {
/// for port in &details.ports {
///     println!("port {} on {:?}: {:?}", port.port, port.netdev, port.state);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortDetails {
    /// The port's number.
    pub port: PortNum,
    /// Logical state.
    pub state: Option<PortState>,
    /// Physical state.
    pub phys_state: Option<PhysState>,
    /// Link layer.
    pub link_layer: Option<LinkLayer>,
    /// Local identifier; zero on Ethernet. A LID of more than 16 bits (Omni-Path) is left out.
    pub lid: Option<Lid>,
    /// LID mask count: the port answers to 2^lmc LIDs.
    pub lmc: Option<u8>,
    /// LID of the subnet manager.
    pub sm_lid: Option<Lid>,
    /// Service level to the subnet manager.
    pub sm_sl: Option<u8>,
    /// Port capability bits (IB spec 14.2.5.6, CapabilityMask). Bit 26 is the specification's, while the same field of
    /// a port query says there whether GIDs are IP addresses (`make_port_cap_flags` in
    /// `drivers/infiniband/core/uverbs_cmd.c`).
    pub cap_mask: Option<u32>,
    /// Subnet prefix; InfiniBand only.
    pub subnet_prefix: Option<u64>,
    /// Speed and width.
    pub rate: Option<LinkRate>,
    /// Name of the network device behind the port.
    pub netdev: Option<String>,
    /// Index of that network device, if it is in the caller's network namespace.
    pub netdev_index: Option<u32>,
    /// Valid entries of the GID table, by index.
    pub gids: Vec<GidDetails>,
    /// Index and value of each P_Key that is not zero.
    pub pkeys: Vec<(u16, u16)>,
}

/// A GID and the network device it belongs to.
///
/// ```no_run
/// # fn f(port: &ironverbs::PortDetails) -> Result<(), ironverbs::Error> {
/// for gid in &port.gids {
///     println!("{} of {:?}", gid.entry.gid, gid.netdev);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidDetails {
    /// The table entry.
    pub entry: GidEntry,
    /// Name of the network device (RoCE), in that device's own network namespace.
    pub netdev: Option<String>,
    /// Whether that network device is in the caller's network namespace. Connections over a GID whose network device is
    /// elsewhere cannot be made.
    pub netdev_is_here: Option<bool>,
}

/// Speed of a link as the kernel words it.
///
/// ```no_run
/// # fn f(port: &ironverbs::PortDetails) -> Result<(), ironverbs::Error> {
/// if let Some(rate) = &port.rate {
///     println!("{} ({:?} Mb/s)", rate.text, rate.mbps);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkRate {
    /// As `100 Gb/sec (4X EDR)`.
    pub text: String,
    /// The same in megabits per second.
    pub mbps: Option<u32>,
}

/// Whether network namespaces share RDMA devices (`rdma system show`).
///
/// ```
/// assert_eq!(ironverbs::NetnsMode::Shared.to_string(), "shared");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetnsMode {
    /// A device is in one network namespace, and can be used there only.
    Exclusive,
    /// Every network namespace can use every device.
    Shared,
}

impl fmt::Display for NetnsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

named! {
    /// Kind of a device (`enum rdma_node_type`). Unknown values are kept.
    ///
    /// ```
    /// use ironverbs::NodeType;
    /// assert_eq!(NodeType::CA.to_string(), "channel adapter");
    /// assert_eq!(NodeType(99).to_string(), "number 99");
    /// ```
    NodeType else "number" {
        CA = 1 "channel adapter",
        SWITCH = 2 "switch",
        ROUTER = 3 "router",
        RNIC = 4 "iWARP NIC",
        USNIC = 5 "usNIC",
        USNIC_UDP = 6 "usNIC UDP",
        UNSPECIFIED = 7 "unspecified",
    }
}
named! {
    /// Physical state of a port (`enum ib_port_phys_state`, IB spec 14.2.5.6). Unknown values are kept.
    ///
    /// ```
    /// assert_eq!(ironverbs::PhysState::LINK_UP.to_string(), "LINK_UP");
    /// ```
    PhysState else "number" {
        SLEEP = 1 "SLEEP",
        POLLING = 2 "POLLING",
        DISABLED = 3 "DISABLED",
        PORT_CONFIGURATION_TRAINING = 4 "PORT_CONFIGURATION_TRAINING",
        LINK_UP = 5 "LINK_UP",
        LINK_ERROR_RECOVERY = 6 "LINK_ERROR_RECOVERY",
        PHY_TEST = 7 "PHY_TEST",
    }
}

impl DeviceDetails {
    /// Those of a device of which nothing but its name is known.
    ///
    /// ```
    /// let mut details = ironverbs::DeviceDetails::new("mlx5_0");
    /// details.protocol = Some("roce".into());
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            node_type: None,
            node_desc: None,
            board_id: None,
            hw_rev: None,
            hca_type: None,
            fw_version: None,
            hardware: None,
            hardware_driver: None,
            protocol: None,
            cap_flags: None,
            netns_mode: None,
            copy_on_fork: None,
            ports: Vec::new(),
        }
    }
}

impl PortDetails {
    /// Those of a port of which nothing but its number is known.
    ///
    /// ```
    /// use ironverbs::{PortDetails, PortNum, PortState};
    /// let mut port = PortDetails::new(PortNum::ONE);
    /// port.state = Some(PortState::ACTIVE);
    /// ```
    pub fn new(port: PortNum) -> Self {
        Self {
            port,
            state: None,
            phys_state: None,
            link_layer: None,
            lid: None,
            lmc: None,
            sm_lid: None,
            sm_sl: None,
            cap_mask: None,
            subnet_prefix: None,
            rate: None,
            netdev: None,
            netdev_index: None,
            gids: Vec::new(),
            pkeys: Vec::new(),
        }
    }
}

impl GidDetails {
    /// A GID without network device.
    ///
    /// ```
    /// use ironverbs::{Gid, GidDetails, GidEntry, GidType, PortNum};
    /// let entry = GidEntry::new(PortNum::ONE, 0, Gid([0; 16]), GidType::ROCE_V2);
    /// assert_eq!(GidDetails::new(entry).netdev, None);
    /// ```
    pub fn new(entry: GidEntry) -> Self {
        Self { entry, netdev: None, netdev_is_here: None }
    }
}

impl LinkRate {
    /// From the kernel's words; the number in front counts: whole gigabits, or with one digit behind the point.
    ///
    /// ```
    /// let rate = ironverbs::LinkRate::parse("2.5 Gb/sec (1X SDR)");
    /// assert_eq!(rate.mbps, Some(2500));
    /// ```
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        let mbps = (|| {
            let number = text.split(' ').next()?;
            let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
            let tenths = tenths.parse::<u32>().ok().filter(|&t| t < 10)?;
            whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)
        })();
        Self { text, mbps }
    }
}

impl Linux {
    /// Everything there is to know of `device` without opening it, from netlink and sysfs. Works for devices that cannot
    /// be used, too. Reads every slot of every GID table: on an open device, `gid_table` costs less.
    pub fn details(&self, device: &DeviceInfo) -> DeviceDetails {
        let mut nldev = self.nldev();
        let system = nldev.as_mut().ok().and_then(|nldev| nldev.system().ok());
        let found = self.find(device);
        let name = self.sysfs_name(device, found.as_ref());
        let told = found.as_ref().map(|f| &f.device);
        let text = |attribute| self.sysfs.text(&name, attribute);

        let port_count = told.map_or_else(|| self.sysfs.port_count(&name), |d| d.port_count);
        let interfaces = interfaces();
        let ports = (1..=port_count)
            .filter_map(|number| {
                let port = PortNum::new(u8::try_from(number).ok()?).ok()?;
                let told = found.as_ref().and_then(|f| f.ports.get(number as usize - 1)?.as_ref().ok());
                Some(self.port_details(&name, port, told, &interfaces))
            })
            .collect();
        DeviceDetails {
            node_type: told
                .and_then(|d| d.node_type)
                .or_else(|| text("node_type")?.split(':').next()?.parse().ok())
                .map(NodeType),
            node_desc: text("node_desc"),
            board_id: text("board_id"),
            hw_rev: text("hw_rev"),
            hca_type: text("hca_type"),
            fw_version: told.map(|d| d.fw_version.clone()).or_else(|| text("fw_ver")),
            hardware: self.sysfs.hardware(&name),
            hardware_driver: self.sysfs.hardware_driver(&name),
            protocol: told.and_then(|d| d.protocol.clone()),
            cap_flags: told.and_then(|d| d.cap_flags),
            netns_mode: system
                .and_then(|s| s.shared_netns)
                .map(|shared| if shared { NetnsMode::Shared } else { NetnsMode::Exclusive }),
            copy_on_fork: system.map(|s| s.copy_on_fork),
            ports,
            name: told.map_or(&device.name, |d| &d.name).clone(),
        }
    }

    /// One entry of a port's P_Key table, in host order. Only sysfs has it: no command asks a device for it.
    pub fn pkey(&self, device: &DeviceInfo, port: PortNum, index: u16) -> Result<u16, Error> {
        let name = self.sysfs_name(device, self.find(device).as_ref());
        let number = u32::from(port.get());
        if let Some(pkey) = self.sysfs.pkey(&name, number, u32::from(index)) {
            return Ok(pkey);
        }
        let ports = self.sysfs.port_count(&name);
        let shown = device.shown_name();
        if ports == 0 {
            let error = Error::kernel(Verb::QueryPkey, Errno::ENOENT);
            let root = self.sysfs.root().display();
            return Err(error.with_hint(format!("sysfs at {root} does not show {shown}, and P_Keys are nowhere else")));
        }
        if number > ports {
            return Err(Error::invalid(Verb::QueryPkey, "port", port, format!("{shown} has ports 1 to {ports}")));
        }
        let len = self.sysfs.pkey_indexes(&name, number).len();
        Err(Error::invalid(Verb::QueryPkey, "P_Key index", index, format!("port {port} of {shown} has {len} P_Keys")))
    }

    /// What netlink tells of the device now.
    fn find(&self, device: &DeviceInfo) -> Option<nldev::Found> {
        let index = device.index?;
        self.nldev().ok()?.find(index).ok()
    }

    /// The name by which sysfs shows the device: the one it has now. Empty if sysfs does not show it, but a namesake in
    /// the caller's network namespace.
    fn sysfs_name(&self, device: &DeviceInfo, found: Option<&nldev::Found>) -> String {
        let is_namesake = || {
            let scan = self.nldev().and_then(|mut nldev| nldev.scan());
            scan.is_ok_and(|scan| scan.found.iter().any(|f| f.device.name == device.name))
        };
        match found {
            Some(found) => found.device.name.clone(),
            None if device.usable == Err(Unusable::OtherNamespace) && is_namesake() => String::new(),
            None => device.name.clone(),
        }
    }

    fn port_details(
        &self,
        name: &str,
        port: PortNum,
        told: Option<&nldev::Port>,
        interfaces: &[Interface],
    ) -> PortDetails {
        let number = u32::from(port.get());
        let sysfs = &self.sysfs;
        let lid = |told: Option<u32>, attribute| {
            told.or_else(|| sysfs.port_hex(name, number, attribute)).and_then(|raw| u16::try_from(raw).ok()).map(Lid)
        };
        let decimal = |attribute| sysfs.port_text(name, number, attribute)?.parse().ok();
        let link_layer = sysfs.link_layer(name, number).or_else(|| told.map(nldev::Port::link_layer));
        let netdev = told.and_then(|t| t.netdev.clone());
        // Some(None): the network device behind the port is not here.
        let port_netdev = told.map(|t| t.netdev.as_ref().map(|(_, name)| name.as_str()));
        let gids = sysfs
            .gids(name, number)
            .into_iter()
            .map(|slot| gid_details(port, link_layer, slot, port_netdev, interfaces))
            .collect();
        PortDetails {
            port,
            state: told.and_then(|t| t.state).or_else(|| sysfs.port_enum(name, number, "state")).map(PortState),
            phys_state: told
                .and_then(|t| t.phys_state)
                .or_else(|| sysfs.port_enum(name, number, "phys_state"))
                .map(PhysState),
            link_layer,
            lid: lid(told.and_then(|t| t.lid), "lid"),
            lmc: told.and_then(|t| t.lmc).or_else(|| decimal("lid_mask_count")),
            sm_lid: lid(told.and_then(|t| t.sm_lid), "sm_lid"),
            sm_sl: decimal("sm_sl"),
            cap_mask: sysfs.port_hex(name, number, "cap_mask").or_else(|| told?.cap_flags.map(|flags| flags as u32)),
            subnet_prefix: told.and_then(|t| t.subnet_prefix),
            rate: sysfs.port_text(name, number, "rate").map(LinkRate::parse),
            netdev_index: netdev.as_ref().map(|n| n.0),
            netdev: netdev.map(|n| n.1).or_else(|| sysfs.netdev(name, number)),
            gids,
            pkeys: sysfs
                .pkey_indexes(name, number)
                .into_iter()
                .filter_map(|index| Some((u16::try_from(index).ok()?, sysfs.pkey(name, number, index)?)))
                .filter(|(_, pkey)| *pkey != 0)
                .collect(),
        }
    }
}

/// An interface of the caller's network namespace with one of its addresses.
struct Interface {
    name: String,
    address: Option<IpAddr>,
}

/// The interfaces of the caller's network namespace. Empty if they cannot be listed.
fn interfaces() -> Vec<Interface> {
    let Ok(addresses) = getifaddrs() else { return Vec::new() };
    addresses
        .map(|a| Interface {
            address: a.address.and_then(|address| {
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            }),
            name: a.interface_name,
        })
        .collect()
}

fn gid_details(
    port: PortNum,
    link_layer: Option<LinkLayer>,
    slot: GidSlot,
    port_netdev: Option<Option<&str>>,
    interfaces: &[Interface],
) -> GidDetails {
    let netdev_is_here = slot.netdev.as_deref().and_then(|name| is_here(name, slot.gid, port_netdev, interfaces));
    // The index of a network device that is elsewhere would be that of another one here.
    let netdev_ifindex =
        slot.netdev.as_deref().filter(|_| netdev_is_here == Some(true)).and_then(|n| if_nametoindex(n).ok());
    // The kernel has one text for InfiniBand and for RoCE v1 (gid_type_str in drivers/infiniband/core/cache.c).
    let gid_type = match (slot.kind.as_deref(), link_layer) {
        (Some("RoCE v2"), _) => GidType::ROCE_V2,
        (Some("IB/RoCE v1") | None, Some(LinkLayer::InfiniBand)) => GidType::IB,
        (Some("IB/RoCE v1"), _) => GidType::ROCE_V1,
        _ => GidType(u32::MAX),
    };
    GidDetails {
        entry: GidEntry { port, index: slot.index, gid: slot.gid, gid_type, netdev_ifindex },
        netdev: slot.netdev,
        netdev_is_here,
    }
}

/// Whether the network device `netdev` of a GID is in the caller's network namespace. Another one of that name may be, so
/// the name alone does not tell.
///
/// `port_netdev` is the network device behind the port, if it is in the caller's network namespace; `None` if nobody
/// could be asked.
fn is_here(netdev: &str, gid: Gid, port_netdev: Option<Option<&str>>, interfaces: &[Interface]) -> Option<bool> {
    if interfaces.is_empty() {
        return None;
    }
    let mut of_that_name = interfaces.iter().filter(|i| i.name == netdev).peekable();
    if of_that_name.peek().is_none() {
        return Some(false);
    }
    let address = gid.to_ipv4().map_or(IpAddr::V6(Ipv6Addr::from(gid.0)), |v4: Ipv4Addr| IpAddr::V4(v4));
    let has_address = of_that_name.any(|i| i.address == Some(address));
    match port_netdev {
        // The port's own network device, or one on top of it (VLAN, bond).
        Some(Some(_)) => Some(true),
        // The one of that name here is another, unless it carries the very address.
        Some(None) => Some(has_address),
        None => has_address.then_some(true),
    }
}

#[cfg(test)]
mod tests;
