//! The device under test, as the environment names it, and what this machine tells about it.

use ironverbs::sys::Sys;
use ironverbs::{AccessFlags, Context, DeviceInfo, DriverId, Error, GidIndex, PortNum, QpBuilder, devices};
use softcx::{DeviceId, GidEntry, Network, SimDevice, SimHost};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::net::Ipv6Addr;
use std::process::Command;
use std::str::FromStr;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

/// The device under test.
#[derive(Clone)]
pub struct Target {
    /// Its name, as `rxe0`.
    pub device: String,
    /// The device of the other side; the same one if none is named.
    pub peer: String,
    /// The port, of both.
    pub port: PortNum,
    /// The GID index, of both; the library's choice if none is named.
    pub gid_index: Option<GidIndex>,
    /// Kernel and driver, which decide how some errors look.
    pub kind: Kind,
    /// Where the devices are.
    pub host: Host,
}

/// Which driver, and for Soft-RoCE which kernel, is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Soft-RoCE of Linux 6.1.
    Rxe6_1,
    /// Soft-RoCE of Linux 6.12.
    Rxe6_12,
    /// Soft-RoCE of another kernel.
    Rxe,
    /// Another driver.
    Other,
}

/// Where devices are found.
#[derive(Clone)]
pub enum Host {
    /// On this machine.
    Linux,
    /// In this process.
    Sim(Arc<Simulation>),
}

/// Two simulated adapters, and what runs them.
pub struct Simulation {
    host: SimHost,
    _engine: softcx::Engine,
}

/// The host of the simulated adapters, if the device under test is one: for those who are not told the target.
static SIMULATED: OnceLock<SimHost> = OnceLock::new();

/// Lets simulated adapters do whatever there is to do, and moves their time on, by at most `limit`, where they only wait.
/// False if the device under test is not simulated: then nothing was done.
#[allow(dead_code, reason = "not every test program waits for devices")]
pub fn fast_forward(limit: Duration) -> bool {
    let Some(host) = SIMULATED.get() else { return false };
    host.fabric().settle(limit);
    true
}

impl Host {
    /// `sim:roce` or `sim:ib` names two simulated adapters of that link layer.
    fn named(device: &str) -> Option<Self> {
        let new: fn(&'static str) -> SimDevice = match device {
            "sim:roce" => |name| SimDevice::roce(name),
            "sim:ib" => |name| SimDevice::infiniband(name),
            _ => return None,
        };
        let host = SimHost::new(variable("SEED").ok().flatten().unwrap_or(1));
        for (name, number) in [("mlx5_0", 1), ("mlx5_1", 2)] {
            let id = host.add(new(name));
            if device == "sim:roce" {
                add_ipv6(&host, id, Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number));
            }
        }
        let engine = host.fabric().spawn();
        // Some descriptors come with the first context and stay for the next ones.
        for info in host.devices().unwrap() {
            drop(Context::open_on(&host, &info).unwrap());
        }
        let _ = SIMULATED.set(host.clone());
        Some(Self::Sim(Arc::new(Simulation { host, _engine: engine })))
    }

    /// Where they are found.
    #[allow(dead_code, reason = "not every test program looks for devices itself")]
    pub fn sys(&self) -> Arc<dyn Sys> {
        match self {
            Self::Linux => Arc::new(ironverbs::sys::Linux::new()),
            Self::Sim(simulation) => Arc::new(simulation.host.clone()),
        }
    }

    /// What simulates them, if anything does.
    #[allow(dead_code, reason = "not every test program asks")]
    pub fn simulated(&self) -> Option<&SimHost> {
        match self {
            Self::Linux => None,
            Self::Sim(simulation) => Some(&simulation.host),
        }
    }

    pub fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        match self {
            Self::Linux => devices(),
            Self::Sim(simulation) => simulation.host.devices(),
        }
    }

    pub fn open(&self, name: &str) -> Result<Context, Error> {
        match self {
            Self::Linux => Context::open(name),
            Self::Sim(simulation) => {
                let all = self.devices()?;
                Context::open_on(&simulation.host, all.iter().find(|info| info.name == name).unwrap())
            }
        }
    }

    /// How many objects of each kind programs have on a device: as the kernel counts them, or the simulated device. What
    /// cannot be counted gives the reason.
    ///
    /// Some are there from the start, so compare two counts.
    #[allow(dead_code, reason = "not every test program counts objects")]
    pub fn objects(&self, device: &str) -> Result<BTreeMap<String, u64>, String> {
        match self {
            Self::Linux => kernel_objects(device),
            Self::Sim(simulation) => {
                let host = &simulation.host;
                let id = host.id(device).ok_or("there is no such device")?;
                let counts = host.with(id, |device| device.objects()).unwrap();
                Ok(counts.into_iter().map(|(kind, count)| (kind.to_owned(), count as u64)).collect())
            }
        }
    }

    /// What simulated adapters found wrong with how they were used.
    pub fn reports(&self) -> Vec<String> {
        match self {
            Self::Linux => vec![],
            Self::Sim(simulation) => {
                simulation.host.fabric().take_reports().iter().map(|report| format!("{report:?}")).collect()
            }
        }
    }
}

/// Gives the port of an Ethernet device an IPv6 address beside the IPv4 one that it has.
fn add_ipv6(host: &SimHost, id: DeviceId, address: Ipv6Addr) {
    let entries = [Network::RoceV1, Network::RoceV2].map(|network| GidEntry { gid: address.octets(), network });
    host.with(id, |device| {
        let free = device.ports()[0].gids.iter().position(Option::is_none).unwrap();
        for (index, entry) in (free..).zip(entries) {
            device.set_gid(1, index, Some(entry)).unwrap();
        }
    })
    .unwrap();
}

impl Kind {
    pub fn is_rxe(self) -> bool {
        self != Self::Other
    }
}

impl Target {
    /// From `IRONVERBS_TEST_DEVICE`, `…_PEER`, `…_PORT` and `…_GID_INDEX`; `None` if no device is named. A value that makes
    /// no sense is an error, not a reason to skip.
    pub fn from_env() -> Result<Option<Self>, String> {
        let Some(device) = variable::<String>("DEVICE")? else {
            return Ok(None);
        };
        let (host, device) = match Host::named(&device) {
            Some(host) => (host, "mlx5_0".to_owned()),
            None => (Host::Linux, device),
        };
        let all = host.devices().map_err(|error| error.to_string())?;
        let simulated = matches!(host, Host::Sim(_)).then(|| "mlx5_1".to_owned());
        let peer = variable("PEER")?.or(simulated).unwrap_or_else(|| device.clone());
        for name in [&device, &peer] {
            if !all.iter().any(|info| info.name == *name) {
                let names = all.iter().map(|info| info.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(format!("no RDMA device {name} on this host; there is: {names}"));
            }
        }
        let driver = all.iter().find(|info| info.name == device).and_then(|info| info.driver);
        let port = PortNum::new(variable("PORT")?.unwrap_or(1)).map_err(|error| error.to_string())?;
        let gid_index = variable("GID_INDEX")?.map(GidIndex);
        Ok(Some(Self { device, peer, port, gid_index, kind: kind(driver), host }))
    }

    /// How many objects of each kind programs have on the device of one side: [`Host::objects`].
    #[allow(dead_code, reason = "not every test program counts objects")]
    pub fn objects(&self) -> Result<BTreeMap<String, u64>, String> {
        /// The mlx5 driver of 6.12 makes objects of its own for a device's first user, and keeps them: that is not to be a test.
        static USED: Once = Once::new();
        USED.call_once(|| self.use_once());
        self.host.objects(&self.device)
    }

    /// Makes one of each of the objects that are counted.
    fn use_once(&self) {
        let context = self.open();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4).unwrap();
        let (_mr, _srq) = (pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE).unwrap(), context.create_srq(&pd, 4).unwrap());
        drop(QpBuilder::rc(&pd, &cq, &cq).port(self.port).build().unwrap());
    }

    /// Opens the device of one side.
    pub fn open(&self) -> Context {
        self.host.open(&self.device).unwrap()
    }

    /// Opens the device of the other side: again the same one, if there is only one.
    pub fn open_peer(&self) -> Context {
        self.host.open(&self.peer).unwrap()
    }
}

/// The value of `IRONVERBS_TEST_…`.
fn variable<T: FromStr>(name: &str) -> Result<Option<T>, String> {
    let name = format!("IRONVERBS_TEST_{name}");
    match env::var(&name) {
        Ok(text) if !text.is_empty() => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("{name} is {text:?}, which does not parse")),
        },
        _ => Ok(None),
    }
}

fn kind(driver: Option<DriverId>) -> Kind {
    if driver != Some(DriverId::RXE) {
        return Kind::Other;
    }
    match kernel() {
        [6, 1] => Kind::Rxe6_1,
        [6, 12] => Kind::Rxe6_12,
        _ => Kind::Rxe,
    }
}

/// Version and patch level of this machine's kernel.
pub fn kernel() -> [u32; 2] {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 2].map(|()| numbers.next().unwrap_or(0))
}

/// This process's open descriptors and what they are, from `/proc/self/fd`.
pub fn open_descriptors() -> Vec<String> {
    let mut all: Vec<_> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // The descriptor of this very listing is gone when its link is read.
            let to = fs::read_link(entry.path()).ok()?;
            let listing = to.ends_with("fd") && to.starts_with("/proc");
            (!listing).then(|| format!("{} -> {}", entry.file_name().display(), to.display()))
        })
        .collect();
    all.sort();
    all
}

/// As `rdma resource show` counts them. Memory regions, protection domains and queue pairs that the kernel made for itself are
/// among them.
fn kernel_objects(device: &str) -> Result<BTreeMap<String, u64>, String> {
    let output = Command::new("rdma").args(["resource", "show", device]).output();
    let output = output.map_err(|error| format!("the program rdma (iproute2) cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("rdma resource show {device}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    // "0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0"
    let words: Vec<_> = text.split_whitespace().skip(2).collect();
    let counts: BTreeMap<_, _> =
        words.chunks_exact(2).filter_map(|pair| Some((pair[0].to_string(), pair[1].parse().ok()?))).collect();
    if counts.is_empty() { Err(format!("rdma resource show {device} printed {text:?}")) } else { Ok(counts) }
}
