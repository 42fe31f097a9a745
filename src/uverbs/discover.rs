//! Finding the host's RDMA devices.
//!
//! Netlink and sysfs are both asked, and either is enough for a list. Netlink knows the kernel's device index, the driver
//! and the state of the ports in a handful of system calls, and only of devices that the caller's network namespace may
//! use. Sysfs is read for what is left: devices of other network namespaces, and everything if there is no netlink.

use super::assess::{Chardev, Driver, Facts, Node, assess};
use super::details::DeviceDetails;
use super::device::{DeviceInfo, DriverId, PortInfo};
use super::errno::Errno;
use super::error::{Error, Verb};
use super::netlink::{NetlinkError, Socket};
use super::nldev::{self, Nldev, Scan};
use super::sys::{Cdev, Sys};
use super::sysfs::{Sysfs, Uverbs};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The RDMA devices of a Linux host. Keeps nothing between two calls, and prints nothing.
///
/// Costs of [`devices`](Sys::devices): about eight system calls, and six for each device.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// use ironverbs::sys::{Linux, Sys};
/// let elsewhere = Linux::with_roots("/host/sys", "/host/dev/infiniband", false);
/// println!("{:?}", elsewhere.devices()?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Linux {
    pub(super) sysfs: Sysfs,
    dev_dir: PathBuf,
    netlink: bool,
}

/// Whether the kernel copies registered memory for a child when a process forks. `false` if it does not say.
pub fn copy_on_fork() -> bool {
    Linux::new().nldev().and_then(|mut nldev| nldev.system()).is_ok_and(|system| system.copy_on_fork)
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Linux {
    /// The host: `/sys`, `/dev/infiniband` and netlink.
    pub fn new() -> Self {
        Self::with_roots("/sys", "/dev/infiniband", true)
    }

    /// Another sysfs tree and another folder of device files, with or without asking the host's kernel over netlink.
    /// For tests, and for a host tree that a container has mounted elsewhere.
    pub fn with_roots(sysfs: impl Into<PathBuf>, dev_dir: impl Into<PathBuf>, netlink: bool) -> Self {
        Self { sysfs: Sysfs::new(sysfs.into()), dev_dir: dev_dir.into(), netlink }
    }

    /// Why [`devices`](Sys::devices) finds none, for a person to read.
    pub fn why_none(&self) -> String {
        const LOAD: &str = "for Soft-RoCE, modprobe rdma_rxe, and rdma link add NAME type rxe netdev NETDEV; for \
                            a ConnectX, modprobe mlx5_ib";
        match self.nldev().and_then(|mut nldev| nldev.system()) {
            // Sysfs would have shown the devices of other namespaces.
            Ok(nldev::System { shared_netns: Some(false), .. }) if self.sysfs.uverbs_names().is_none() => {
                "no device is in this network namespace, and the RDMA subsystem keeps devices to their namespaces (rdma \
                 system show)"
                    .to_owned()
            }
            Ok(_) => format!("the kernel's RDMA core is loaded, but no driver offers a device; {LOAD}"),
            Err(_) if self.sysfs.devices().is_some() => {
                format!("the kernel's RDMA core is loaded, but no driver offers a device; {LOAD}")
            }
            Err(NetlinkError::Kernel(Errno::EPROTONOSUPPORT)) => {
                format!("the kernel's RDMA core is not loaded; {LOAD}")
            }
            Err(e) => format!("netlink does not answer ({e}), and {} shows no device", self.sysfs.root().display()),
        }
    }

    /// A fresh netlink socket; none is kept, so that a module that is loaded later is seen.
    pub(super) fn nldev(&self) -> Result<Nldev<Socket>, NetlinkError> {
        if !self.netlink {
            return Err(NetlinkError::Kernel(Errno::EPROTONOSUPPORT));
        }
        Socket::rdma().map(Nldev::new).map_err(NetlinkError::Kernel)
    }

    /// Facts about every device, in order.
    fn facts(&self) -> Result<Vec<Facts>, Error> {
        let mut nldev = self.nldev();
        match nldev.as_mut().map_err(|e| *e).and_then(Nldev::scan) {
            Ok(scan) => Ok(self.netlink_first(scan, || nldev.as_mut().map_err(|e| *e).and_then(Nldev::scan))),
            Err(e) => match too_many_files(Verb::ListDevices, e) {
                Some(error) => Err(error),
                None if self.sysfs.is_mounted() => Ok(self.sysfs_only()),
                None => Err(Error::NoDevice {
                    wanted: "can be listed".into(),
                    hint: Some(
                        format!(
                            "netlink does not answer ({e}), and there is no sysfs at {}",
                            self.sysfs.root().display()
                        )
                        .into(),
                    ),
                }),
            },
        }
    }

    /// Devices as netlink told them, then those that only sysfs shows.
    fn netlink_first(&self, mut scan: Scan, rescan: impl FnOnce() -> Result<Scan, NetlinkError>) -> Vec<Facts> {
        let exclusive = scan.system.shared_netns == Some(false);
        let mut strangers = Vec::new();
        if exclusive || scan.found.iter().any(|found| found.chardev.is_err()) {
            strangers = self.strangers(&scan);
        }
        if !strangers.is_empty()
            && let Ok(again) = rescan()
        {
            // A device may have come between the two looks; if it is still not there, it is someone else's.
            scan = again;
            strangers.retain(|stranger| !is_told(&scan, &stranger.name));
        }

        let mut facts = Vec::new();
        for device in scan.found {
            let uverbs = match &device.chardev {
                Ok(chardev) => Some(Uverbs {
                    name: chardev.name.clone(),
                    ibdev: None,
                    abi: Some(chardev.abi),
                    dev: Some(chardev.dev),
                }),
                // A kernel that cannot tell the character device: sysfs can, by name.
                Err(_) => strangers
                    .iter()
                    .position(|s| s.ibdev.as_deref() == Some(&device.device.name))
                    .map(|at| strangers.remove(at)),
            };
            if uverbs.is_some() || !device.is_gone() {
                facts.push(self.netlink_facts(device, uverbs));
            }
        }
        let here = facts.len();
        for mut uverbs in strangers {
            // One whose name cannot be read has just gone.
            let Some(name) = uverbs.ibdev.take() else { continue };
            let abi = uverbs.abi;
            let chardev = self.chardev(uverbs);
            let stranger = match facts.get(..here).unwrap_or_default().iter().any(|f| f.name == name) {
                // Sysfs shows devices by name: it would show the namesake.
                true => Facts { name, abi, chardev, ..Facts::default() },
                false => self.device_facts(name, chardev, abi, "netlink does not show the device"),
            };
            facts.push(Facts { other_namespace: exclusive, ..stranger });
        }
        facts
    }

    /// The uverbs character devices that netlink told nothing of.
    fn strangers(&self, scan: &Scan) -> Vec<Uverbs> {
        let names = self.sysfs.uverbs_names().unwrap_or_default();
        names.iter().filter(|name| !is_told(scan, name)).map(|name| self.sysfs.uverbs(name)).collect()
    }

    fn netlink_facts(&self, found: nldev::Found, uverbs: Option<Uverbs>) -> Facts {
        let driver = match found.chardev.as_ref().ok().and_then(|c| c.driver) {
            Some(driver) => Driver::Known(driver),
            None => self.guess_driver(&found.device.name, "netlink does not tell it for this device"),
        };
        Facts {
            index: Some(found.device.index),
            driver,
            abi: uverbs.as_ref().and_then(|u| u.abi),
            other_namespace: false,
            chardev: uverbs.map_or(Chardev::None, |u| self.chardev(u)),
            node_guid: found.device.node_guid,
            sys_image_guid: found.device.sys_image_guid,
            fw_version: Some(found.device.fw_version.clone()),
            ports: found.ports.iter().map(port_info).collect(),
            netdevs: found
                .ports
                .iter()
                .map(|port| port.as_ref().ok()?.netdev.as_ref().map(|(_, name)| name.clone()))
                .collect(),
            name: found.device.name,
        }
    }

    /// Everything from sysfs.
    fn sysfs_only(&self) -> Vec<Facts> {
        const SILENT: &str = "netlink does not answer";
        let names = self.sysfs.devices();
        let mut without_chardev = names.clone().unwrap_or_default();
        let mut facts = Vec::new();
        for uverbs in self.sysfs.uverbs_names().unwrap_or_default() {
            let mut uverbs = self.sysfs.uverbs(&uverbs);
            // One whose name cannot be read has just gone.
            let Some(name) = uverbs.ibdev.take() else { continue };
            let abi = uverbs.abi;
            without_chardev.retain(|other| *other != name);
            // Character devices are shown in every network namespace, devices in their own only.
            let other_namespace = names.as_ref().is_some_and(|names| !names.contains(&name));
            facts.push(Facts { other_namespace, ..self.device_facts(name, self.chardev(uverbs), abi, SILENT) });
        }
        facts.extend(without_chardev.into_iter().map(|name| self.device_facts(name, Chardev::None, None, SILENT)));
        facts
    }

    fn device_facts(&self, name: String, chardev: Chardev, abi: Option<u32>, why_no_driver: &str) -> Facts {
        let ports = 1..=self.sysfs.port_count(&name);
        Facts {
            index: None,
            driver: self.guess_driver(&name, why_no_driver),
            abi,
            other_namespace: false,
            chardev,
            node_guid: self.sysfs.guid(&name, "node_guid"),
            sys_image_guid: self.sysfs.guid(&name, "sys_image_guid"),
            fw_version: self.sysfs.text(&name, "fw_ver"),
            ports: ports
                .clone()
                .map(|port| PortInfo {
                    state: self.sysfs.port_enum(&name, port, "state"),
                    link_layer: self.sysfs.link_layer(&name, port),
                })
                .collect(),
            netdevs: ports.map(|port| self.sysfs.netdev(&name, port)).collect(),
            name,
        }
    }

    /// The driver from what only that driver shows in sysfs, never from the device's name: names are free.
    ///
    /// A wrong guess does no harm: every command names the driver, and the kernel refuses commands for another one.
    pub(super) fn guess_driver(&self, device: &str, why: &str) -> Driver {
        if !self.sysfs.is_mounted() {
            return Driver::Unknown(format!("{why}, and there is no sysfs at {}", self.sysfs.root().display()));
        }
        // Only rxe has this attribute (drivers/infiniband/sw/rxe/rxe_verbs.c). On old kernels rxe also points to the
        // hardware of its network device, so this comes first.
        if self.sysfs.text(device, "parent").is_some() {
            return Driver::Known(DriverId::RXE);
        }
        // Other software devices may point to a network card, too; they have no hardware description of their own.
        let hardware = self.sysfs.hardware_driver(device);
        let described = self.sysfs.text(device, "hca_type").or_else(|| self.sysfs.text(device, "board_id"));
        match hardware.as_deref().filter(|_| described.is_some()).and_then(DriverId::of_hardware_driver) {
            Some(driver) => Driver::Known(driver),
            None => Driver::Unknown(format!(
                "{why}, and sysfs gives no sure sign of it (hardware driver: {})",
                hardware.as_deref().unwrap_or("none")
            )),
        }
    }

    fn chardev(&self, uverbs: Uverbs) -> Chardev {
        let Some(dev) = uverbs.dev else {
            return Chardev::Bad(format!("the device number of {} cannot be read", uverbs.name));
        };
        let path = self.dev_dir.join(&uverbs.name);
        let node = look_at(&path, dev);
        match node {
            Node::Ready | Node::Denied(_) => Chardev::At { dev, path, node },
            // A container may have the device under another name.
            Node::Missing | Node::NotCharDevice | Node::Wrong(_) => match self.node_of(dev) {
                Some((path, node)) => Chardev::At { dev, path, node },
                None => Chardev::At { dev, path, node },
            },
        }
    }

    /// A device file of number `dev`, whatever its name.
    fn node_of(&self, dev: (u32, u32)) -> Option<(PathBuf, Node)> {
        let entries = std::fs::read_dir(&self.dev_dir).ok()?;
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .map(|path| {
                let node = look_at(&path, dev);
                (path, node)
            })
            .find(|(_, node)| matches!(node, Node::Ready | Node::Denied(Errno::EACCES | Errno::EPERM)))
    }
}

impl Sys for Linux {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        Ok(self.facts()?.into_iter().map(|facts| assess(facts, usize::BITS)).collect())
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
        self.open_device(device)
    }

    fn details(&self, device: &DeviceInfo) -> DeviceDetails {
        Linux::details(self, device)
    }
}

/// Whether netlink told of the character device `uverbs`.
fn is_told(scan: &Scan, uverbs: &str) -> bool {
    scan.found.iter().any(|found| found.chardev.as_ref().is_ok_and(|chardev| chardev.name == uverbs))
}

/// Major and minor number of a character device.
pub(super) fn number(metadata: &Metadata) -> Option<(u32, u32)> {
    let dev = metadata.rdev();
    metadata.file_type().is_char_device().then(|| (libc::major(dev), libc::minor(dev)))
}

/// What is at `path`, where the device of number `dev` should be. Permission is that of the effective user.
fn look_at(path: &Path, dev: (u32, u32)) -> Node {
    let denied = |errno| if errno == Errno::ENOENT { Node::Missing } else { Node::Denied(errno) };
    match std::fs::metadata(path) {
        Err(e) => denied(Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO))),
        Ok(metadata) => match number(&metadata) {
            None => Node::NotCharDevice,
            Some(found) if found != dev => Node::Wrong(found),
            Some(_) => match access(path) {
                Ok(()) => Node::Ready,
                Err(e) => denied(e),
            },
        },
    }
}

/// Whether the effective user may read and write.
fn access(path: &Path) -> Result<(), Errno> {
    let both = AccessFlags::R_OK | AccessFlags::W_OK;
    match faccessat(AT_FDCWD, path, both, AtFlags::AT_EACCESS) {
        // Either the device control group forbids it, or an old container runtime forbids the system call itself: it
        // knows the one without flags.
        Err(nix::errno::Errno::EPERM) => faccessat(AT_FDCWD, path, both, AtFlags::empty()),
        other => other,
    }
    .map_err(Errno::from)
}

/// A port as netlink told it.
fn port_info(port: &Result<nldev::Port, NetlinkError>) -> PortInfo {
    match port {
        Ok(port) => PortInfo { state: port.state, link_layer: Some(port.link_layer()) },
        Err(_) => PortInfo::default(),
    }
}

/// What to do if no socket could be made for want of a descriptor: sysfs cannot be read then either, and would seem empty.
pub(super) fn too_many_files(verb: Verb, error: NetlinkError) -> Option<Error> {
    match error {
        NetlinkError::Kernel(errno @ (Errno::EMFILE | Errno::ENFILE)) => Some(Error::kernel(verb, errno)),
        _ => None,
    }
}

#[cfg(test)]
pub mod tests;
