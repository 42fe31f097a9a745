//! What `NETLINK_RDMA` tells of devices, ports and the system (`include/uapi/rdma/rdma_netlink.h`, client `NLDEV`).

use super::device::{DeviceIndex, DriverId};
use super::errno::Errno;
use super::netlink::{Attributes, Channel, Conversation, NetlinkError, Request};
use super::types::{Guid, LinkLayer};

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command)`.
const fn kind(command: u16) -> u16 {
    (5 << 10) | command
}

/// `enum rdma_nldev_command`.
mod command {
    pub const GET: u16 = super::kind(1);
    pub const PORT_GET: u16 = super::kind(5);
    pub const SYS_GET: u16 = super::kind(6);
    pub const GET_CHARDEV: u16 = super::kind(15);
}

/// `enum rdma_nldev_attr`.
mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const SUBNET_PREFIX: u16 = 8;
    pub const LID: u16 = 9;
    pub const SM_LID: u16 = 10;
    pub const LMC: u16 = 11;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const CHARDEV_NAME: u16 = 70;
    pub const CHARDEV_ABI: u16 = 71;
    pub const CHARDEV: u16 = 72;
    pub const UVERBS_DRIVER_ID: u16 = 73;
    pub const COPY_ON_FORK: u16 = 93;
}

/// Verbs count ports in eight bits; a device with more shows only these to user space.
const MAX_PORTS: u32 = 255;

/// How often devices are listed again because one went away meanwhile.
const SCAN_TRIES: usize = 4;

/// A device as `RDMA_NLDEV_CMD_GET` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub index: DeviceIndex,
    pub name: String,
    /// At most 255.
    pub port_count: u32,
    pub cap_flags: Option<u64>,
    /// Empty if the device has no firmware.
    pub fw_version: String,
    pub node_guid: Option<Guid>,
    pub sys_image_guid: Option<Guid>,
    pub node_type: Option<u8>,
    /// `ib`, `roce`, `iw`, `opa` or `usnic`, of the first port.
    pub protocol: Option<String>,
}

/// A device's character device as `RDMA_NLDEV_CMD_GET_CHARDEV` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chardev {
    /// The name, as `uverbs0`.
    pub name: String,
    /// Major and minor number.
    pub dev: (u32, u32),
    /// The driver's provider ABI version.
    pub abi: u32,
    /// Missing for a few old drivers.
    pub driver: Option<DriverId>,
}

/// A port as `RDMA_NLDEV_CMD_PORT_GET` tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    pub state: Option<u8>,
    pub phys_state: Option<u8>,
    /// Present exactly on ports that speak the InfiniBand protocol, as are the next three.
    pub lid: Option<u32>,
    pub sm_lid: Option<u32>,
    pub lmc: Option<u8>,
    pub subnet_prefix: Option<u64>,
    pub cap_flags: Option<u64>,
    /// Index and name of the network device behind the port, if it is in the caller's network namespace.
    pub netdev: Option<(u32, String)>,
}

/// What `RDMA_NLDEV_CMD_SYS_GET` tells of all devices together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// Whether every network namespace sees every device.
    pub shared_netns: Option<bool>,
    /// Whether a fork copies registered memory for the child, so that the parent's stays registered.
    pub copy_on_fork: bool,
}

/// One device with everything that netlink tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub device: Device,
    pub chardev: Result<Chardev, NetlinkError>,
    /// Port 1 first.
    pub ports: Vec<Result<Port, NetlinkError>>,
}

/// Every device, and what holds for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// By index.
    pub found: Vec<Found>,
    pub system: System,
}

/// The kernel's RDMA netlink, asked over one channel.
pub struct Nldev<C>(Conversation<C>);

impl<C: Channel> Nldev<C> {
    /// Talks over `channel`.
    pub fn new(channel: C) -> Self {
        Self(Conversation::new(channel))
    }

    /// Every device that the caller's network namespace may use, by index; and what holds for all of them.
    ///
    /// The kernel counts devices to know where to go on with a dump (`_nldev_get_dumpit`): if one that was told goes away
    /// meanwhile, it skips another. The one that went is noticed when it is asked about; then all is done again.
    pub fn scan(&mut self) -> Result<Scan, NetlinkError> {
        let mut scan = self.scan_once()?;
        for _ in 1..SCAN_TRIES {
            if !scan.found.iter().any(Found::is_gone) {
                break;
            }
            scan = self.scan_once()?;
        }
        Ok(scan)
    }

    fn scan_once(&mut self) -> Result<Scan, NetlinkError> {
        let mut devices = self.0.dump(&Request::new(command::GET), Device::parse)?;
        devices.sort_by_key(|d| d.index);

        let questions = devices.iter().flat_map(Device::questions).chain([Request::new(command::SYS_GET)]);
        let mut answers = self.0.ask(&questions.collect::<Vec<_>>()).into_iter();
        let found = devices.into_iter().map(|device| Found::take(device, &mut answers)).collect();
        Ok(Scan { found, system: take(&mut answers).and_then(|a| System::parse(&a)).unwrap_or_default() })
    }

    /// One device with its ports. `EINVAL`: the caller's network namespace has no device of that index.
    pub fn find(&mut self, index: DeviceIndex) -> Result<Found, NetlinkError> {
        let answer = self.ask(Request::new(command::GET).u32(attr::DEV_INDEX, index.0))?;
        let device = Device::parse(&answer).ok_or(NetlinkError::Malformed)?;
        let mut answers = self.0.ask(&device.questions().collect::<Vec<_>>()).into_iter();
        Ok(Found::take(device, &mut answers))
    }

    /// The character device of one device. `EINVAL`: the caller's network namespace has no device of that index.
    pub fn chardev(&mut self, index: DeviceIndex) -> Result<Chardev, NetlinkError> {
        Chardev::parse(&self.ask(chardev_request(index))?)
    }

    /// What holds for all devices.
    pub fn system(&mut self) -> Result<System, NetlinkError> {
        System::parse(&self.ask(Request::new(command::SYS_GET))?)
    }

    fn ask(&mut self, request: Request) -> Answer {
        take(&mut self.0.ask(&[request]).into_iter())
    }
}

type Answer = Result<Vec<u8>, NetlinkError>;

/// The next answer. There is one for each question.
fn take(answers: &mut impl Iterator<Item = Answer>) -> Answer {
    answers.next().unwrap_or(Err(NetlinkError::Malformed))
}

/// Makes the kernel load `ib_uverbs` if it is not loaded.
fn chardev_request(index: DeviceIndex) -> Request {
    Request::new(command::GET_CHARDEV).u32(attr::DEV_INDEX, index.0).string(attr::CHARDEV_TYPE, "uverbs")
}

impl Device {
    fn parse(payload: &[u8]) -> Option<Self> {
        let (mut index, mut name, mut ports) = (None, None, 0);
        let (mut cap_flags, mut node_guid, mut sys_image_guid) = (None, None, None);
        let (mut fw_version, mut node_type, mut protocol) = (None, None, None);
        for attribute in Attributes(payload) {
            let (kind, value) = attribute.ok()?;
            match kind {
                attr::DEV_INDEX => index = Some(DeviceIndex(u32_of(value)?)),
                attr::DEV_NAME => name = Some(string_of(value)),
                attr::PORT_INDEX => ports = u32_of(value)?,
                attr::CAP_FLAGS => cap_flags = u64_of(value),
                attr::FW_VERSION => fw_version = Some(string_of(value)),
                attr::NODE_GUID => node_guid = u64_of(value).map(Guid),
                attr::SYS_IMAGE_GUID => sys_image_guid = u64_of(value).map(Guid),
                attr::DEV_NODE_TYPE => node_type = value.first().copied(),
                attr::DEV_PROTOCOL => protocol = Some(string_of(value)),
                _ => {}
            }
        }
        Some(Self {
            index: index?,
            name: name?,
            port_count: ports.min(MAX_PORTS),
            cap_flags,
            fw_version: fw_version.unwrap_or_default(),
            node_guid,
            sys_image_guid,
            node_type,
            protocol,
        })
    }

    /// What is still to be asked: the character device, then each port. Ports are asked for one by one, because a dump
    /// ends at the first port that cannot be queried.
    fn questions(&self) -> impl Iterator<Item = Request> {
        let index = self.index;
        let ports = (1..=self.port_count)
            .map(move |port| Request::new(command::PORT_GET).u32(attr::DEV_INDEX, index.0).u32(attr::PORT_INDEX, port));
        std::iter::once(chardev_request(index)).chain(ports)
    }
}

impl Found {
    /// Takes the answers to the questions about `device`.
    fn take(device: Device, answers: &mut impl Iterator<Item = Answer>) -> Self {
        let chardev = take(answers).and_then(|a| Chardev::parse(&a));
        let ports = (0..device.port_count).map(|_| take(answers).and_then(|a| Port::parse(&a))).collect();
        Self { device, chardev, ports }
    }

    /// Whether the device went away between the list and the questions about it.
    pub fn is_gone(&self) -> bool {
        let no_such = |e: &NetlinkError| matches!(e, NetlinkError::Kernel(Errno::EINVAL | Errno::ENODEV));
        self.chardev.as_ref().is_err_and(no_such)
            && !self.ports.is_empty()
            && self.ports.iter().all(|port| port.as_ref().is_err_and(no_such))
    }
}

impl Chardev {
    fn parse(payload: &[u8]) -> Result<Self, NetlinkError> {
        let (mut name, mut dev, mut abi, mut driver) = (None, None, None, None);
        for attribute in Attributes(payload) {
            let (kind, value) = attribute?;
            match kind {
                attr::CHARDEV_NAME => name = Some(string_of(value)),
                attr::CHARDEV => dev = u64_of(value).map(decode_dev),
                // The high half is reserved, and zero so far.
                attr::CHARDEV_ABI => abi = u64_of(value).map(|v| v as u32),
                attr::UVERBS_DRIVER_ID => driver = u32_of(value).map(DriverId),
                _ => {}
            }
        }
        match (name, dev, abi) {
            (Some(name), Some(dev), Some(abi)) if is_file_name(&name) => Ok(Self { name, dev, abi, driver }),
            _ => Err(NetlinkError::Malformed),
        }
    }
}

impl Port {
    /// Only ports that speak the InfiniBand protocol have a LID (`fill_port_info` in
    /// `drivers/infiniband/core/nldev.c`); all others are Ethernet ports.
    pub fn link_layer(&self) -> LinkLayer {
        if self.lid.is_some() { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }
    }

    fn parse(payload: &[u8]) -> Result<Self, NetlinkError> {
        let mut port = Self::default();
        let (mut ifindex, mut ifname) = (None, None);
        for attribute in Attributes(payload) {
            let (kind, value) = attribute?;
            match kind {
                attr::PORT_STATE => port.state = value.first().copied(),
                attr::PORT_PHYS_STATE => port.phys_state = value.first().copied(),
                attr::LID => port.lid = u32_of(value),
                attr::SM_LID => port.sm_lid = u32_of(value),
                attr::LMC => port.lmc = value.first().copied(),
                attr::SUBNET_PREFIX => port.subnet_prefix = u64_of(value),
                attr::CAP_FLAGS => port.cap_flags = u64_of(value),
                attr::NDEV_INDEX => ifindex = u32_of(value),
                attr::NDEV_NAME => ifname = Some(string_of(value)),
                _ => {}
            }
        }
        port.netdev = ifindex.zip(ifname);
        Ok(port)
    }
}

impl System {
    fn parse(payload: &[u8]) -> Result<Self, NetlinkError> {
        let mut system = Self::default();
        for attribute in Attributes(payload) {
            let (kind, value) = attribute?;
            match kind {
                attr::NETNS_MODE => system.shared_netns = value.first().map(|&mode| mode != 0),
                attr::COPY_ON_FORK => system.copy_on_fork = value.first().is_some_and(|&v| v != 0),
                _ => {}
            }
        }
        Ok(system)
    }
}

fn u32_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_of(value: &[u8]) -> Option<u64> {
    value.first_chunk().copied().map(u64::from_ne_bytes)
}

/// A string without the zero byte that ends it.
fn string_of(value: &[u8]) -> String {
    let text = value.split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// `huge_encode_dev` backwards (`include/linux/kdev_t.h`): major and minor number.
fn decode_dev(encoded: u64) -> (u32, u32) {
    ((encoded >> 8) as u32 & 0xfff, (encoded & 0xff) as u32 | (encoded >> 12) as u32 & 0xf_ff00)
}

/// Whether `name` names a file in a folder, and nothing elsewhere.
pub fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

#[cfg(test)]
pub mod tests;
