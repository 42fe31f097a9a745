//! What sysfs tells of RDMA devices (`Documentation/ABI/stable/sysfs-class-infiniband`). Every path is here.
//!
//! A file that is missing, unreadable or strange gives `None`: devices come and go while they are looked at.

use super::nldev::is_file_name;
use super::types::{Gid, Guid, LinkLayer};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A sysfs tree.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

/// The character device `uverbsN` as its folder tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uverbs {
    /// The name, as `uverbs0`.
    pub name: String,
    /// Name of the device it belongs to.
    pub ibdev: Option<String>,
    /// The driver's provider ABI version.
    pub abi: Option<u32>,
    /// Major and minor number.
    pub dev: Option<(u32, u32)>,
}

/// One GID of a port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidSlot {
    pub index: u32,
    pub gid: Gid,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub kind: Option<String>,
    /// Name of the network device, in that device's own network namespace.
    pub netdev: Option<String>,
}

impl Sysfs {
    /// The tree below `root`, usually `/sys`.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Whether a sysfs is there at all.
    pub fn is_mounted(&self) -> bool {
        self.root.join("class").is_dir()
    }

    /// The root of the tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names of all devices of the namespace this sysfs was mounted in. `None` if there is no such folder.
    pub fn devices(&self) -> Option<Vec<String>> {
        list(&self.root.join("class/infiniband"))
    }

    /// Names of all uverbs character devices, of every namespace. `None` if there is no such folder.
    pub fn uverbs_names(&self) -> Option<Vec<String>> {
        let mut names = list(&self.root.join("class/infiniband_verbs"))?;
        // The folder also holds the file abi_version.
        names.retain(|n| n.strip_prefix("uverbs").is_some_and(|number| number.parse::<u32>().is_ok()));
        Some(names)
    }

    /// What the folder of one uverbs character device tells.
    pub fn uverbs(&self, name: &str) -> Uverbs {
        let folder = self.root.join("class/infiniband_verbs").join(name);
        Uverbs {
            name: name.to_owned(),
            ibdev: read(&folder.join("ibdev")).filter(|n| is_file_name(n)),
            abi: read(&folder.join("abi_version")).and_then(|t| t.parse().ok()),
            dev: read(&folder.join("dev")).and_then(|t| {
                let (major, minor) = t.split_once(':')?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            }),
        }
    }

    /// A text attribute of a device, as `fw_ver`.
    pub fn text(&self, device: &str, attribute: &str) -> Option<String> {
        read(&self.device(device)?.join(attribute))
    }

    /// A GUID attribute of a device, as `node_guid`.
    pub fn guid(&self, device: &str, attribute: &str) -> Option<Guid> {
        let text = self.text(device, attribute)?;
        let groups: Vec<&str> = text.split(':').collect();
        if groups.len() != 4 || groups.iter().any(|g| g.len() != 4) {
            return None;
        }
        u64::from_str_radix(&groups.concat(), 16).ok().map(Guid)
    }

    /// Name of the kernel driver bound to the hardware behind a device, as `mlx5_core`.
    pub fn hardware_driver(&self, device: &str) -> Option<String> {
        link_name(&self.device(device)?.join("device/driver"))
    }

    /// Name of the hardware behind a device, as `0000:3b:00.0`.
    pub fn hardware(&self, device: &str) -> Option<String> {
        link_name(&self.device(device)?.join("device"))
    }

    /// Number of ports: the longest run of port folders from 1 on.
    pub fn port_count(&self, device: &str) -> u32 {
        let Some(ports) = self.device(device).and_then(|d| list(&d.join("ports"))) else { return 0 };
        let numbers: Vec<u32> = ports.iter().filter_map(|name| name.parse().ok()).collect();
        (1..=255).take_while(|n| numbers.contains(n)).last().unwrap_or(0)
    }

    /// A text attribute of a port, as `rate`.
    pub fn port_text(&self, device: &str, port: u32, attribute: &str) -> Option<String> {
        read(&self.port(device, port)?.join(attribute))
    }

    /// A port attribute of the form `4: ACTIVE`, as its number.
    pub fn port_enum(&self, device: &str, port: u32, attribute: &str) -> Option<u8> {
        self.port_text(device, port, attribute)?.split(':').next()?.parse().ok()
    }

    /// A hexadecimal port attribute, as `lid`.
    pub fn port_hex(&self, device: &str, port: u32, attribute: &str) -> Option<u32> {
        hex(&self.port_text(device, port, attribute)?)
    }

    /// A port's link layer.
    pub fn link_layer(&self, device: &str, port: u32) -> Option<LinkLayer> {
        match self.port_text(device, port, "link_layer")?.as_str() {
            "InfiniBand" => Some(LinkLayer::InfiniBand),
            "Ethernet" => Some(LinkLayer::Ethernet),
            _ => None,
        }
    }

    /// Every entry of a port's GID table that is not empty, by index.
    pub fn gids(&self, device: &str, port: u32) -> Vec<GidSlot> {
        let Some(folder) = self.port(device, port) else { return Vec::new() };
        indexes(&folder.join("gids"))
            .into_iter()
            .filter_map(|index| {
                let gid = parse_gid(&read(&folder.join(format!("gids/{index}")))?)?;
                // An empty slot reads as zero; its type and netdev cannot be read at all.
                (!gid.is_zero()).then(|| GidSlot {
                    index,
                    gid,
                    kind: read(&folder.join(format!("gid_attrs/types/{index}"))),
                    netdev: read(&folder.join(format!("gid_attrs/ndevs/{index}"))),
                })
            })
            .collect()
    }

    /// Name of the network device of a port's first GID.
    pub fn netdev(&self, device: &str, port: u32) -> Option<String> {
        read(&self.port(device, port)?.join("gid_attrs/ndevs/0"))
    }

    /// One P_Key of a port.
    pub fn pkey(&self, device: &str, port: u32, index: u32) -> Option<u16> {
        let text = read(&self.port(device, port)?.join(format!("pkeys/{index}")))?;
        hex(&text)?.try_into().ok()
    }

    /// Indexes of a port's P_Key table.
    pub fn pkey_indexes(&self, device: &str, port: u32) -> Vec<u32> {
        self.port(device, port).map(|p| indexes(&p.join("pkeys"))).unwrap_or_default()
    }

    fn device(&self, device: &str) -> Option<PathBuf> {
        is_file_name(device).then(|| self.root.join("class/infiniband").join(device))
    }

    fn port(&self, device: &str, port: u32) -> Option<PathBuf> {
        Some(self.device(device)?.join(format!("ports/{port}")))
    }
}

/// The text of an attribute file, without the white space around it. An attribute is never longer than a page.
fn read(path: &Path) -> Option<String> {
    let mut page = [0; 4096];
    let len = File::open(path).ok()?.read(&mut page).ok()?;
    let text = std::str::from_utf8(page.get(..len)?).ok()?.trim();
    Some(text.to_owned())
}

/// Names in a folder, in order of their length and letters: `uverbs2` before `uverbs10`.
fn list(folder: &Path) -> Option<Vec<String>> {
    let mut names: Vec<String> =
        fs::read_dir(folder).ok()?.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    Some(names)
}

/// The numbers among the names in a folder, in order.
fn indexes(folder: &Path) -> Vec<u32> {
    let mut numbers: Vec<u32> = list(folder).unwrap_or_default().iter().filter_map(|n| n.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn link_name(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Eight groups of four hexadecimal digits.
fn parse_gid(text: &str) -> Option<Gid> {
    text.parse::<std::net::Ipv6Addr>().ok().map(|address| Gid(address.octets()))
}
