//! What is known of a device before it is opened.

use super::errno::Errno;
use super::types::{Guid, LinkLayer};
use std::fmt;
use std::path::PathBuf;

/// The kernel's `enum rdma_driver_id` (`include/uapi/rdma/ib_user_ioctl_verbs.h`). Unknown numbers are kept.
///
/// ```
/// use ironverbs::DriverId;
/// assert_eq!(DriverId::RXE.to_string(), "rxe");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriverId(pub u32);

/// The kernel's index of a device, stable while the device exists and never shared by two devices at once.
///
/// Names can change and GUIDs can be zero or repeat, so this is what tells devices apart.
///
/// ```no_run
/// # fn f(index: ironverbs::DeviceIndex) -> Result<(), ironverbs::Error> {
/// let device = ironverbs::devices()?.into_iter().find(|device| device.index == Some(index));
/// # drop(device);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIndex(pub u32);

/// One RDMA device, usable by this library or not.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// for device in ironverbs::devices()? {
///     match &device.usable {
///         Ok(()) => println!("{}: {:?}", device.name, device.driver),
///         Err(why) => println!("{}: {why}", device.name),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The kernel's device index, where the kernel told it (netlink).
    pub index: Option<DeviceIndex>,
    /// The device's name, as `rxe0`. May change at any time.
    pub name: String,
    /// The kernel driver, where the kernel told it.
    pub driver: Option<DriverId>,
    /// The driver's provider ABI version, where known.
    pub abi_version: Option<u32>,
    /// The device file, as `/dev/infiniband/uverbs0`, where there is one.
    pub node: Option<PathBuf>,
    /// Device number (major, minor) of the device file: what the node is checked against when it is opened.
    pub dev: Option<(u32, u32)>,
    /// Node GUID; zero is legal.
    pub node_guid: Option<Guid>,
    /// System image GUID.
    pub sys_image_guid: Option<Guid>,
    /// Firmware version string; empty for rxe.
    pub fw_version: Option<String>,
    /// Network devices behind the ports, as `eth0`, port 1 first.
    pub netdevs: Vec<Option<String>>,
    /// The ports, in order, starting with port 1.
    pub ports: Vec<PortInfo>,
    /// Whether this library can use the device, or why not.
    pub usable: Result<(), Unusable>,
}

impl DeviceInfo {
    /// Its name as an error shows it: administrators may give it any, also one that would act on a terminal.
    pub(crate) fn shown_name(&self) -> impl fmt::Display {
        self.name.escape_debug()
    }

    /// A device of which nothing is known but its name. It counts as usable; what more is known is set field by field.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            index: None,
            name: name.into(),
            driver: None,
            abi_version: None,
            node: None,
            dev: None,
            node_guid: None,
            sys_image_guid: None,
            fw_version: None,
            netdevs: Vec::new(),
            ports: Vec::new(),
            usable: Ok(()),
        }
    }
}

/// One port of a device, as it is seen without opening the device.
///
/// ```no_run
/// # fn f(device: &ironverbs::DeviceInfo) -> Result<(), ironverbs::Error> {
/// for (port, number) in device.ports.iter().zip(1..) {
///     println!("port {number}: state {:?}, {:?}", port.state, port.link_layer);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Port state, the kernel's `enum ib_port_state`.
    pub state: Option<u8>,
    /// Link layer.
    pub link_layer: Option<LinkLayer>,
}

/// Why a device cannot be used. Where several reasons hold, the one that is hardest to mend.
///
/// ```no_run
/// # fn f(device: &ironverbs::DeviceInfo) -> Result<(), ironverbs::Error> {
/// if let Err(why) = &device.usable {
///     println!("{} cannot be used: {why}", device.name); // says what to do
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The device belongs to another network namespace, and the RDMA subsystem is in exclusive mode.
    #[error(
        "it belongs to another network namespace: run there (ip netns exec), or move it here (rdma dev set DEV netns \
         NAME; not every driver can), or share all devices (rdma system set netns shared)"
    )]
    OtherNamespace,
    /// The kernel offers no character device for it (`ib_uverbs` not loaded).
    #[error("it has no uverbs character device: load the kernel module ib_uverbs (modprobe ib_uverbs)")]
    NoCharDevice,
    /// What the kernel tells of the device makes no sense.
    #[error("what the kernel tells of it cannot be understood: {0}")]
    BadEntry(String),
    /// The device file does not exist.
    #[error("the device file {0} does not exist: is udev or devtmpfs running, and does the container have the device?")]
    NoNode(PathBuf),
    /// The path exists but is no character device.
    #[error("{0} is not a character device: remove it")]
    NotCharDevice(PathBuf),
    /// The path exists but is another device.
    #[error("{path} is device {found_major}:{found_minor}, not {need_major}:{need_minor}: remove the stale file")]
    WrongNode {
        /// The path.
        path: PathBuf,
        /// Major number found.
        found_major: u32,
        /// Minor number found.
        found_minor: u32,
        /// Major number of the device.
        need_major: u32,
        /// Minor number of the device.
        need_minor: u32,
    },
    /// The caller may not open the device file.
    #[error("no permission for {0}: run as root, or give the user read and write access to the device file")]
    NoPermission(PathBuf),
    /// The container the caller is in may not use the device, whatever the device file's permissions.
    #[error("the control group of this container forbids {0}: start the container with the device (--device {0})")]
    Forbidden(PathBuf),
    /// The device file cannot be looked at.
    #[error("{path} cannot be used: {errno}")]
    NodeError {
        /// The path.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
    /// No provider for the driver in this library.
    #[error("driver {0} has no provider in this library, which drives mlx5 and Soft-RoCE (rxe)")]
    NoProvider(DriverId),
    /// The kernel did not tell the driver.
    #[error("the kernel did not tell the driver of the device: {0}")]
    UnknownDriver(String),
    /// The driver's provider ABI version is none that the provider knows.
    #[error("driver {driver} speaks provider ABI {found}; this library speaks {min} to {max}")]
    AbiVersion {
        /// The driver.
        driver: DriverId,
        /// Version found.
        found: u32,
        /// Lowest version supported.
        min: u32,
        /// Highest version supported.
        max: u32,
    },
    /// The library was built for 32-bit pointers, where the provider's shared structures have another layout.
    #[error("driver {0} can be used by 64-bit programs only: build for a 64-bit target")]
    PointerWidth(DriverId),
}

impl DriverId {
    /// The RDMA driver that serves hardware bound to a kernel driver of that name. Only names that stand for one RDMA
    /// driver are known here.
    pub(crate) fn of_hardware_driver(name: &str) -> Option<Self> {
        Some(Self(match name {
            "mlx5_core" => 1,
            "mlx4_core" => 2,
            "cxgb4" => 4,
            "ib_mthca" => 5,
            "bnxt_en" => 6,
            "be2net" => 7,
            "i40e" | "ice" => 9,
            "vmw_pvrdma" => 10,
            "qede" => 11,
            "hfi1" => 15,
            "ib_qib" => 16,
            "efa" => 17,
            "erdma" => 19,
            "mana" => 20,
            "ionic" => 21,
            _ => return None,
        }))
    }

    /// `RDMA_DRIVER_MLX5`.
    pub const MLX5: Self = Self(1);
    /// `RDMA_DRIVER_RXE`.
    pub const RXE: Self = Self(14);

    /// The driver's short name, for the numbers that are known.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "unknown",
            1 => "mlx5",
            2 => "mlx4",
            3 => "cxgb3",
            4 => "cxgb4",
            5 => "mthca",
            6 => "bnxt_re",
            7 => "ocrdma",
            8 => "nes",
            9 => "irdma",
            10 => "vmw_pvrdma",
            11 => "qedr",
            12 => "hns",
            13 => "usnic",
            14 => "rxe",
            15 => "hfi1",
            16 => "qib",
            17 => "efa",
            18 => "siw",
            19 => "erdma",
            20 => "mana",
            21 => "ionic",
            _ => return None,
        })
    }
}

impl fmt::Display for DriverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "number {}", self.0),
        }
    }
}

impl fmt::Debug for DriverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverId({self})")
    }
}
