//! The simulated host: which devices a program finds, and how it opens them.

use super::cdev::SimCdev;
use super::file::File;
use super::page::PagePool;
use super::router::Router;
use crate::control::Control;
use crate::device::{Device, DeviceSpec};
use crate::fabric::{DeviceId, Fabric, WrongDevice};
use crate::memory::Memory;
use crate::packet::{MULTICAST_LIDS, Network};
use crate::port::{Link, Port};
use crate::shared::Punish;
use ironverbs::sys::{Cdev, Sys};
use ironverbs::{
    DeviceDetails, DeviceIndex, DeviceInfo, DriverId, Errno, Error, GidDetails, GidType, Guid, Lid, LinkLayer,
    LinkRate, NodeType, PhysState, PortDetails, PortInfo, PortNum, PortState,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A host with simulated mlx5 devices, in this process. Clones are the same host.
///
/// ```
/// use ironverbs::sys::Sys;
/// use softcx::{SimDevice, SimHost};
///
/// let host = SimHost::new(1);
/// host.add(SimDevice::roce("mlx5_0"));
/// host.add(SimDevice::infiniband("mlx5_1"));
/// let _engine = host.fabric().spawn();
/// let names: Vec<String> = host.devices()?.into_iter().map(|d| d.name).collect();
/// assert_eq!(names, ["mlx5_0", "mlx5_1"]);
/// // From here on as with any device: Context::open_on(&host, &info).
/// # Ok::<(), ironverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct SimHost {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub fabric: Fabric,
    pub router: Arc<Mutex<Router>>,
    pub pages: Arc<PagePool>,
    pub domains: Mutex<Domains>,
    state: Mutex<HostState>,
}

/// What several files of a device can share.
#[derive(Default)]
pub(super) struct Domains {
    /// Open XRC domains by device and inode: domain, and how often it is open.
    pub open: HashMap<(DeviceId, u64, u64), (u32, u32)>,
    /// Receiving ends of XRC by device and number: the domain that each is in, and how many handles of it there are.
    pub receiving: HashMap<(DeviceId, u32), (u32, u32)>,
}

#[derive(Default)]
struct HostState {
    devices: Vec<(DeviceId, SimDevice)>,
    refuse: HashMap<DeviceId, (u64, Errno)>,
    commands: HashMap<DeviceId, u64>,
    first_place: u16,
    net_raw: Option<bool>,
}

/// A device to be.
#[derive(Clone, Debug)]
pub struct SimDevice {
    name: String,
    ports: Option<Vec<Port>>,
    ethernet: bool,
    write_combining: bool,
    big_endian_atomics: bool,
    keeps_time: bool,
    punish: Punish,
}

impl SimDevice {
    /// A device with an Ethernet port: RoCE v1 and v2, addresses made from its place among the devices.
    pub fn roce(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ports: None,
            ethernet: true,
            write_combining: true,
            big_endian_atomics: false,
            keeps_time: false,
            punish: Punish::default(),
        }
    }

    /// A device with an InfiniBand port: LID made from its place among the devices, as a subnet manager would.
    pub fn infiniband(name: impl Into<String>) -> Self {
        Self { ethernet: false, ..Self::roce(name) }
    }

    /// Other ports than the one it would have.
    pub fn ports(mut self, ports: Vec<Port>) -> Self {
        self.ports = Some(ports);
        self
    }

    /// Whether the host can map registers write-combining. Without it there is no BlueFlame, and only UARs that are not
    /// cached.
    pub fn write_combining(mut self, yes: bool) -> Self {
        self.write_combining = yes;
        self
    }

    /// Whether results of atomics come back most significant byte first, which the driver tells by saying that there are no
    /// atomics.
    pub fn big_endian_atomics(mut self, yes: bool) -> Self {
        self.big_endian_atomics = yes;
        self
    }

    /// Whether completions can carry the time, which is the fabric's, instead of the clock's ticks.
    pub fn keeps_time(mut self, yes: bool) -> Self {
        self.keeps_time = yes;
        self
    }

    /// Which misuses hurt; all, unless set.
    pub fn punish(mut self, punish: Punish) -> Self {
        self.punish = punish;
        self
    }
}

impl SimHost {
    /// A host without devices, on a fabric of its own. All chance in it comes from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::on(Fabric::new(seed))
    }

    /// A host without devices, on a fabric that others may be on.
    pub fn on(fabric: Fabric) -> Self {
        let router = Arc::new(Mutex::new(Router::default()));
        let listener = Arc::downgrade(&router);
        fabric.listen(move |id, device: &mut Device| {
            let Some(router) = listener.upgrade() else { return false };
            let mut router = router.lock().unwrap_or_else(PoisonError::into_inner);
            router.flush();
            // Other hosts, and programs without one, may have devices on the fabric, too.
            if router.has_device(id) {
                device.take_events().into_iter().for_each(|event| router.deliver(id, event));
            }
            true
        });
        Self {
            shared: Arc::new(Shared {
                fabric,
                router,
                pages: Arc::default(),
                domains: Mutex::default(),
                state: Mutex::default(),
            }),
        }
    }

    /// Devices added from now on have addresses as if `place` others were there before them: so that those of several
    /// hosts on bridged fabrics differ.
    pub fn first_place(self, place: u16) -> Self {
        self.state().first_place = place;
        self
    }

    /// Whether programs have `CAP_NET_RAW`, which setting a controlled Q_Key takes. Unless set: what the calling thread has.
    pub fn net_raw(self, yes: bool) -> Self {
        self.state().net_raw = Some(yes);
        self
    }

    /// The fabric: step it, run it, disturb it, or reach a device by the id that [`add`](Self::add) gave.
    pub fn fabric(&self) -> &Fabric {
        &self.shared.fabric
    }

    fn state(&self) -> MutexGuard<'_, HostState> {
        self.shared.state()
    }

    /// Adds a device.
    pub fn add(&self, device: SimDevice) -> DeviceId {
        let place = u32::from(self.state().first_place).saturating_add(self.shared.fabric.len() as u32 + 1);
        let [_, highest, high, low] = place.to_be_bytes();
        let mac = [0x02, 0, 0x5e, highest, high, low];
        let guid = 0x0200_5eff_fe00_0000 | u64::from(place);
        let port = if device.ethernet {
            // 198.18.0.0/15 is for tests.
            Port::ethernet(mac, [198, 18 | highest & 1, high, low])
        } else {
            // LIDs end where those of groups begin, and with 1 again.
            let lids = u32::from(MULTICAST_LIDS) - 1;
            Port::infiniband(((place - 1) % lids + 1) as u16, guid)
        };
        let memory: Arc<dyn Memory> = super::cdev::process_memory();
        let mut made = Device::new(DeviceSpec {
            name: device.name.clone(),
            memory,
            ports: device.ports.clone().unwrap_or_else(|| vec![port]),
            guid,
            punish: device.punish,
        });
        made.is_of_program = true;
        made.shared.big_endian_atomics = device.big_endian_atomics;
        made.shared.keeps_time = device.keeps_time;
        let id = self.shared.fabric.insert(made);
        self.shared.router.lock().unwrap_or_else(PoisonError::into_inner).add_device(id);
        self.state().devices.push((id, device));
        id
    }

    /// The id of a device by name.
    pub fn id(&self, name: &str) -> Option<DeviceId> {
        self.state().devices.iter().find(|(_, d)| d.name == name).map(|(id, _)| *id)
    }

    /// Looks at a device, or does something to it: every fault is a method of [`Control`].
    pub fn with<T>(&self, id: DeviceId, f: impl FnOnce(&mut Control<'_>) -> T) -> Result<T, WrongDevice> {
        if !self.state().devices.iter().any(|(known, _)| *known == id) {
            return Err(WrongDevice::Elsewhere(id));
        }
        Ok(self.shared.fabric.with_any(id, |device| f(&mut device.control())))
    }

    /// Fault: of the commands to the device from now on, the `nth` (from 1) is refused with `errno`, and has no effect.
    pub fn refuse_command(&self, id: DeviceId, nth: u64, errno: Errno) {
        self.state().refuse.insert(id, (nth, errno));
    }

    /// Commands that the device has had, refused ones included.
    pub fn commands(&self, id: DeviceId) -> u64 {
        self.state().commands.get(&id).copied().unwrap_or(0)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write_combining(&self, id: DeviceId) -> bool {
        self.state().devices.iter().find(|(d, _)| *d == id).is_none_or(|(_, d)| d.write_combining)
    }

    /// Whether the program that calls has `CAP_NET_RAW`.
    pub fn has_net_raw(&self) -> bool {
        let set = self.state().net_raw;
        set.unwrap_or_else(|| effective_capabilities() >> CAP_NET_RAW & 1 != 0)
    }

    pub fn domains(&self) -> MutexGuard<'_, Domains> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up a handle of a receiving end of XRC. Whether it was the last one.
    pub fn leave_receiving(&self, id: DeviceId, qpn: u32) -> bool {
        let mut domains = self.domains();
        let Some((_, handles)) = domains.receiving.get_mut(&(id, qpn)) else { return true };
        *handles -= 1;
        let is_last = *handles == 0;
        if is_last {
            domains.receiving.remove(&(id, qpn));
        }
        is_last
    }

    /// Counts a command, and refuses it if it is the one.
    pub fn count_command(&self, id: DeviceId) -> Result<(), Errno> {
        let mut state = self.state();
        *state.commands.entry(id).or_default() += 1;
        let Some((left, errno)) = state.refuse.get_mut(&id) else { return Ok(()) };
        *left = left.saturating_sub(1);
        let errno = *errno;
        if *left == 0 {
            state.refuse.remove(&id);
            return Err(errno);
        }
        Ok(())
    }
}

impl Sys for SimHost {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        let state = self.state();
        Ok(state
            .devices
            .iter()
            .map(|(id, device)| self.shared.fabric.with_any(*id, |d| describe(*id, device, d)))
            .collect())
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
        let state = self.state();
        let by_index = |id: &DeviceId| device.index.is_none_or(|i| i.0 == id.place() as u32);
        match state.devices.iter().find(|(id, d)| d.name == device.name && by_index(id)) {
            Some((id, _)) => Ok(Arc::new(SimCdev::new(File::new(Arc::clone(&self.shared), *id)))),
            None => Err(Error::NoDevice {
                wanted: format!("is called {}", device.name).into(),
                hint: Some("the simulated host has no device of that name and index".into()),
            }),
        }
    }

    fn details(&self, device: &DeviceInfo) -> DeviceDetails {
        match self.id(&device.name) {
            Some(id) => self.shared.fabric.with_any(id, |d| detail(device, d)),
            None => DeviceDetails::new(device.name.clone()),
        }
    }
}

/// What the kernel would tell of the device in netlink and sysfs.
fn detail(info: &DeviceInfo, d: &Device) -> DeviceDetails {
    let mut details = DeviceDetails::new(info.name.clone());
    let is_ethernet = d.ports().first().is_some_and(|p| matches!(p.link, Link::Ethernet { .. }));
    details.node_type = Some(NodeType::CA);
    details.node_desc = Some("software ConnectX".to_owned());
    details.fw_version = info.fw_version.clone();
    details.protocol = Some(if is_ethernet { "roce" } else { "ib" }.to_owned());
    details.cap_flags = Some(super::caps::DEVICE_CAP_FLAGS.into());
    details.ports =
        d.ports().iter().zip(1..).filter_map(|(p, n)| Some(detail_port(p, PortNum::new(n).ok()?))).collect();
    details
}

fn detail_port(port: &Port, number: PortNum) -> PortDetails {
    let mut details = PortDetails::new(number);
    details.state = Some(if port.active { PortState::ACTIVE } else { PortState::DOWN });
    details.phys_state = Some(if port.active { PhysState::LINK_UP } else { PhysState::DISABLED });
    (details.link_layer, details.lid) = match port.link {
        Link::InfiniBand { lid } => (Some(LinkLayer::InfiniBand), Some(Lid(lid))),
        Link::Ethernet { .. } => (Some(LinkLayer::Ethernet), Some(Lid(0))),
    };
    details.rate = Some(LinkRate::parse("100 Gb/sec (4X EDR)"));
    let gids = port.gids.iter().zip(0..).filter_map(|(entry, index)| {
        let entry = (*entry)?;
        let kind = match entry.network {
            Network::InfiniBand => GidType::IB,
            Network::RoceV1 => GidType::ROCE_V1,
            Network::RoceV2 => GidType::ROCE_V2,
        };
        Some(GidDetails::new(ironverbs::GidEntry::new(number, index, ironverbs::Gid(entry.gid), kind)))
    });
    details.gids = gids.collect();
    details.pkeys = port.pkeys.iter().zip(0..).filter(|(pkey, _)| **pkey != 0).map(|(pkey, i)| (i, *pkey)).collect();
    details
}

/// Bit of `linux/capability.h`.
const CAP_NET_RAW: u32 = 13;

/// The calling thread's effective capabilities; none where they cannot be read.
fn effective_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn describe(id: DeviceId, device: &SimDevice, d: &Device) -> DeviceInfo {
    let mut info = DeviceInfo::new(device.name.clone());
    info.index = Some(DeviceIndex(id.place() as u32));
    info.driver = Some(DriverId::MLX5);
    info.abi_version = Some(1);
    info.node_guid = Some(Guid(d.guid()));
    info.sys_image_guid = Some(Guid(d.guid()));
    info.fw_version = Some(super::caps::FIRMWARE_TEXT.to_owned());
    info.netdevs = d.ports().iter().map(|_| None).collect();
    info.ports = d.ports().iter().map(describe_port).collect();
    info
}

fn describe_port(port: &Port) -> PortInfo {
    let mut info = PortInfo::default();
    info.state = Some(if port.active { 4 } else { 1 });
    info.link_layer = Some(match port.link {
        Link::InfiniBand { .. } => LinkLayer::InfiniBand,
        Link::Ethernet { .. } => LinkLayer::Ethernet,
    });
    info
}

impl std::fmt::Debug for SimHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimHost").field("fabric", &self.shared.fabric).finish()
    }
}
