//! From what was found out about a device to whether it can be used. No system call is made here.

use super::device::{DeviceIndex, DeviceInfo, DriverId, PortInfo, Unusable};
use super::errno::Errno;
use super::types::Guid;
use std::path::PathBuf;

/// A provider of this library: the driver it is for, and the lowest and highest provider ABI version it speaks.
///
/// Versions 1 and 2 of rxe have the same layout on 64-bit machines: version 2 aligned the members of the queue for
/// 32-bit programs (`include/uapi/rdma/rdma_user_rxe.h`).
const PROVIDERS: [(DriverId, u32, u32); 2] = [(DriverId::RXE, 1, 2), (DriverId::MLX5, 1, 1)];

/// What was found out about one device.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub index: Option<DeviceIndex>,
    pub name: String,
    pub driver: Driver,
    pub abi: Option<u32>,
    /// Whether the kernel lets other network namespaces have it, and it is not in the caller's.
    pub other_namespace: bool,
    pub chardev: Chardev,
    pub node_guid: Option<Guid>,
    pub sys_image_guid: Option<Guid>,
    pub fw_version: Option<String>,
    pub ports: Vec<PortInfo>,
    pub netdevs: Vec<Option<String>>,
}

/// What is known of a device's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    Known(DriverId),
    /// Why it is not known.
    Unknown(String),
}

impl Default for Driver {
    fn default() -> Self {
        Self::Unknown("nothing was asked".to_owned())
    }
}

/// What is known of a device's character device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Chardev {
    /// There is none.
    #[default]
    None,
    /// There is one, but its number cannot be read. Why not.
    Bad(String),
    /// There is one, of this number; and what is at the path of its file.
    At { dev: (u32, u32), path: PathBuf, node: Node },
}

/// What is at the path of a device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// The device, and the caller may open it.
    Ready,
    Missing,
    NotCharDevice,
    /// Another device.
    Wrong((u32, u32)),
    /// The device, but the caller may not open it; or the path cannot be looked at.
    Denied(Errno),
}

/// Whether a program with pointers of `pointer_bits` can use the device, and all that is to be told about it.
pub fn assess(facts: Facts, pointer_bits: u32) -> DeviceInfo {
    let usable = usable(&facts, pointer_bits);
    let (dev, node) = match facts.chardev {
        Chardev::At { dev, path, node } => (Some(dev), (node != Node::Missing).then_some(path)),
        Chardev::None | Chardev::Bad(_) => (None, None),
    };
    DeviceInfo {
        index: facts.index,
        driver: match facts.driver {
            Driver::Known(driver) => Some(driver),
            Driver::Unknown(_) => None,
        },
        abi_version: facts.abi,
        node,
        dev,
        node_guid: facts.node_guid,
        sys_image_guid: facts.sys_image_guid,
        fw_version: facts.fw_version,
        netdevs: facts.netdevs,
        ports: facts.ports,
        usable,
        ..DeviceInfo::new(facts.name)
    }
}

/// First what no device file can mend, then the device file.
fn usable(facts: &Facts, pointer_bits: u32) -> Result<(), Unusable> {
    if facts.other_namespace {
        return Err(Unusable::OtherNamespace);
    }
    let (dev, path, node) = match &facts.chardev {
        Chardev::None => return Err(Unusable::NoCharDevice),
        Chardev::Bad(why) => return Err(Unusable::BadEntry(why.clone())),
        Chardev::At { dev, path, node } => (*dev, path, node),
    };
    provider(&facts.driver, facts.abi, pointer_bits)?;
    match *node {
        Node::Ready => Ok(()),
        Node::Missing => Err(Unusable::NoNode(path.clone())),
        Node::NotCharDevice => Err(Unusable::NotCharDevice(path.clone())),
        Node::Wrong(found) => Err(Unusable::WrongNode {
            path: path.clone(),
            found_major: found.0,
            found_minor: found.1,
            need_major: dev.0,
            need_minor: dev.1,
        }),
        Node::Denied(Errno::EACCES) => Err(Unusable::NoPermission(path.clone())),
        // Only the device control group answers access(2) so.
        Node::Denied(Errno::EPERM) => Err(Unusable::Forbidden(path.clone())),
        Node::Denied(errno) => Err(Unusable::NodeError { path: path.clone(), errno }),
    }
}

/// The driver, if this library has a provider for it and its ABI version.
pub fn provider(driver: &Driver, abi: Option<u32>, pointer_bits: u32) -> Result<DriverId, Unusable> {
    let driver = match driver {
        Driver::Known(driver) => *driver,
        Driver::Unknown(why) => return Err(Unusable::UnknownDriver(why.clone())),
    };
    let Some((_, min, max)) = PROVIDERS.into_iter().find(|p| p.0 == driver) else {
        return Err(Unusable::NoProvider(driver));
    };
    if pointer_bits != 64 {
        return Err(Unusable::PointerWidth(driver));
    }
    match abi {
        Some(found) if (min..=max).contains(&found) => Ok(driver),
        Some(found) => Err(Unusable::AbiVersion { driver, found, min, max }),
        None => Err(Unusable::BadEntry("its provider ABI version cannot be read".to_owned())),
    }
}

#[cfg(test)]
mod tests;
