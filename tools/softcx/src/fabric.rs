//! The fabric: the devices of a simulation, the network between them, and time.

use crate::bridge::Bridge;
use crate::device::{Device, DeviceSpec};
use crate::packet::{Gid, MULTICAST_LIDS, Mac, Network, Packet};
use crate::port::{Link, Port};
use crate::report::Report;
use crate::wire::{Disturbance, Verdict, Wire};
use nix::poll::{PollFd, PollFlags, ppoll};
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time of a fabric goes no further: half of what can be told, so that what is due behind it can be told, too.
pub(crate) const END_OF_TIME: Duration = Duration::from_secs(u64::MAX / 2);

/// Which device of which fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    fabric: u64,
    place: usize,
}

impl DeviceId {
    /// Its place among the devices of its fabric, from 0.
    pub fn place(self) -> usize {
        self.place
    }
}

/// Why there is no device by an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongDevice {
    /// The id is that of another fabric's or host's device.
    Elsewhere(DeviceId),
    /// The device is a [`SimHost`](crate::SimHost)'s: its commands are those of the program that uses it.
    OfProgram(DeviceId),
}

impl fmt::Display for WrongDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere(id) => {
                write!(f, "device {} is of another fabric or host: use the id with the one that gave it", id.place)
            }
            Self::OfProgram(id) => {
                write!(
                    f,
                    "device {} belongs to a simulated host: use SimHost::with, for its commands are the program's",
                    id.place
                )
            }
        }
    }
}

impl std::error::Error for WrongDevice {}

/// Devices and the network between them. Clones are the same fabric.
///
/// Nothing happens unless the fabric is stepped, or [spawned](Self::spawn) on a thread of its own. Stepped, it is
/// deterministic: the same seed and the same calls give the same bytes.
///
/// ```
/// use softcx::{Disturbance, Fabric};
/// use std::time::Duration;
///
/// let fabric = Fabric::new(1);
/// fabric.disturb(Disturbance { loss: 0.01, ..Disturbance::default() });
/// assert!(!fabric.step(Duration::from_micros(1)), "nobody is there");
/// ```
#[derive(Clone)]
pub struct Fabric(Arc<Inner>);

struct Inner {
    /// Differs from fabric to fabric of the process.
    number: u64,
    world: Mutex<World>,
    /// Calls that wait for the engine to let go of the world.
    waiting: AtomicUsize,
}

type Listener = Box<dyn FnMut(DeviceId, &mut Device) -> bool + Send>;
type Clock = Box<dyn FnMut(Duration) -> bool + Send>;

struct World {
    /// The fabric's.
    number: u64,
    devices: Vec<Device>,
    wire: Wire,
    bridges: Vec<Bridge>,
    now: Duration,
    /// Called after each step, while they return true: fronts hand events on.
    listeners: Vec<Listener>,
    /// Called with the time of each step while they return true.
    clocks: Vec<Clock>,
    /// Threads that the fabric runs on.
    engines: usize,
}

impl Fabric {
    /// An empty fabric. All chance in it comes from `seed`.
    pub fn new(seed: u64) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only that numbers differ counts.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let world = World {
            number,
            devices: vec![],
            wire: Wire::new(seed),
            bridges: vec![],
            now: Duration::ZERO,
            listeners: vec![],
            clocks: vec![],
            engines: 0,
        };
        Self(Arc::new(Inner { number, world: Mutex::new(world), waiting: AtomicUsize::new(0) }))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // Relaxed: the count is a hint to the engine, and orders nothing.
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let world = self.0.world.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        world
    }

    /// Adds a device, to be driven by [`with`](Self::with). Devices for programs are added to a
    /// [`SimHost`](crate::SimHost).
    pub fn add(&self, spec: DeviceSpec) -> DeviceId {
        self.insert(Device::new(spec))
    }

    pub(crate) fn insert(&self, device: Device) -> DeviceId {
        let mut world = self.world();
        world.devices.push(device);
        DeviceId { fabric: self.0.number, place: world.devices.len() - 1 }
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.world().devices.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at a device, or commands it. Not one of a [`SimHost`](crate::SimHost):
    /// [`SimHost::with`](crate::SimHost::with) does what there is to do to those.
    ///
    /// ```
    /// use softcx::{Fabric, SimDevice, SimHost, WrongDevice};
    /// let host = SimHost::new(1);
    /// let id = host.add(SimDevice::roce("mlx5_0"));
    /// assert_eq!(host.fabric().with(id, |device| device.alloc_pd()), Err(WrongDevice::OfProgram(id)));
    /// assert_eq!(Fabric::new(1).with(id, |device| device.alloc_pd()), Err(WrongDevice::Elsewhere(id)));
    /// ```
    pub fn with<T>(&self, id: DeviceId, f: impl FnOnce(&mut Device) -> T) -> Result<T, WrongDevice> {
        let mut world = self.world();
        let known = world.devices.get_mut(id.place).filter(|_| id.fabric == self.0.number);
        let device = known.ok_or(WrongDevice::Elsewhere(id))?;
        if device.is_of_program {
            return Err(WrongDevice::OfProgram(id));
        }
        let result = f(device);
        world.tell_listeners();
        Ok(result)
    }

    /// As [`with`](Self::with), for an id that this fabric has given, whoever's device it is.
    pub(crate) fn with_any<T>(&self, id: DeviceId, f: impl FnOnce(&mut Device) -> T) -> T {
        let mut world = self.world();
        let result = f(&mut world.devices[id.place]);
        world.tell_listeners();
        result
    }

    /// Calls `f` after each step and each [`with`](Self::with), for each device, until it returns false: to hand its
    /// events on.
    pub(crate) fn listen(&self, f: impl FnMut(DeviceId, &mut Device) -> bool + Send + 'static) {
        self.world().listeners.push(Box::new(f));
    }

    /// Calls `clock` now and with the time of each step, until it returns false.
    pub(crate) fn watch_time(&self, mut clock: impl FnMut(Duration) -> bool + Send + 'static) {
        let mut world = self.world();
        let now = world.now;
        world.clocks.retain_mut(|clock| clock(now));
        if clock(now) {
            world.clocks.push(Box::new(clock));
        }
    }

    /// The Ethernet address of the port that has a GID.
    pub(crate) fn find_mac(&self, gid: &Gid, network: Network) -> Option<Mac> {
        let mut world = self.world();
        world.find_mac(gid, network).or_else(|| {
            // What the other end of a bridge said of its addresses may not have been read yet.
            world.cross_bridges();
            world.find_mac(gid, network)
        })
    }

    /// Joins the fabric of another process: packets for nobody here go over `stream`, and what comes over it is delivered
    /// here. Both fabrics run on threads of their own ([`spawn`](Self::spawn)); their devices must have different addresses
    /// ([`SimHost::first_place`](crate::SimHost::first_place)). When the other end goes, the bridge does.
    ///
    /// Both ends must be of one version of this crate.
    pub fn bridge(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut bridge = Bridge::new(stream)?;
        let mut world = self.world();
        bridge.announce(&world.addresses());
        world.bridges.push(bridge);
        Ok(())
    }

    /// What the network does to packets from now on.
    pub fn disturb(&self, disturbance: Disturbance) {
        self.world().wire.disturbance = disturbance;
    }

    /// Looks at each packet that leaves a device, and may lose it.
    pub fn filter(&self, filter: impl FnMut(&Packet) -> Verdict + Send + 'static) {
        self.world().wire.filter = Some(Box::new(filter));
    }

    /// Ends [`filter`](Self::filter).
    pub fn no_filter(&self) {
        self.world().wire.filter = None;
    }

    /// Packets lost so far.
    pub fn lost(&self) -> u64 {
        self.world().wire.lost
    }

    /// Takes out what programs did wrong, on all devices. Empty at the end of a good program.
    pub fn take_reports(&self) -> Vec<Report> {
        self.world().devices.iter_mut().flat_map(Device::take_reports).collect()
    }

    /// The time of the last step.
    pub fn now(&self) -> Duration {
        self.world().now
    }

    /// One step at time `now`, which never goes back, and stops at half of what a [`Duration`] can hold: packets arrive, doorbells are seen, queue pairs work. True if
    /// anything happened.
    pub fn step(&self, now: Duration) -> bool {
        self.world().step(now)
    }

    /// When the next thing happens although nobody rings: a packet arrives, or a timer runs out.
    pub fn deadline(&self) -> Option<Duration> {
        self.world().deadline()
    }

    /// Steps until nothing happens any more, moving time on from deadline to deadline, for at most `limit`. True if the
    /// fabric came to rest.
    ///
    /// Also while the fabric runs on a [thread](Self::spawn), which goes on from there: a program that waits for something
    /// late, or for something that must not happen, need not wait as long.
    pub fn settle(&self, limit: Duration) -> bool {
        let mut world = self.world();
        let end = world.now.saturating_add(limit).min(END_OF_TIME);
        loop {
            let now = world.now;
            if world.step(now) {
                continue;
            }
            match world.deadline() {
                None => return true,
                Some(at) if at > end => return false,
                Some(at) => world.now = at.max(now),
            }
        }
    }

    /// Waits until something comes over a bridge, the next deadline is there, or `limit` has passed: for a program that steps
    /// the fabric itself, when a step found nothing to do. `now` is the time of that step.
    pub fn rest(&self, now: Duration, limit: Duration) {
        let (sockets, deadline) = {
            let world = self.world();
            let sockets: Vec<_> = world.bridges.iter().map(Bridge::waits_on).collect();
            (sockets, world.deadline())
        };
        let limit = deadline.map_or(limit, |at| limit.min(at.saturating_sub(now)));
        let mut set: Vec<PollFd<'_>> = sockets
            .iter()
            .map(|(socket, writes)| {
                let events = if *writes { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
                PollFd::new(socket.as_fd(), events)
            })
            .collect();
        // A signal ends the wait, as anything may: the caller looks for itself. The kernel knows no wait of ages.
        let _ = ppoll(&mut set, Some(limit.min(Duration::from_secs(1 << 30)).into()), None);
    }

    /// How many bridges there are. One whose other end is gone is none.
    pub fn bridges(&self) -> usize {
        self.world().bridges.len()
    }

    /// Runs the fabric on a thread, in real time, until the returned value is dropped.
    pub fn spawn(&self) -> Engine {
        let stop = Arc::new(AtomicBool::new(false));
        let (fabric, flag) = (self.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || fabric.run(&flag));
        Engine { stop, thread: Some(thread) }
    }

    fn run(&self, stop: &AtomicBool) {
        self.world().engines += 1;
        let mut last = Instant::now();
        let mut idle = 0_u32;
        // Relaxed: the flag carries nothing but itself.
        while !stop.load(Ordering::Relaxed) {
            // A mutex is not fair: without this, commands could starve beside a busy engine.
            while self.0.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let at = Instant::now();
            let passed = at - std::mem::replace(&mut last, at);
            let (now, progress) = {
                let mut world = self.world();
                // From where time is, not from where it started: others may have moved it on.
                let now = world.now.saturating_add(passed);
                (now, world.step(now))
            };
            if progress {
                idle = 0;
                continue;
            }
            idle = idle.saturating_add(1);
            match idle {
                0..64 => std::hint::spin_loop(),
                64..1024 => std::thread::yield_now(),
                1024..4096 => self.rest(now, Duration::from_micros(50)),
                // Nothing has happened for a while; a program that wakes up can wait half a millisecond.
                _ => self.rest(now, Duration::from_micros(500)),
            }
        }
        self.world().engines -= 1;
    }
}

impl World {
    fn find_mac(&self, gid: &Gid, network: Network) -> Option<Mac> {
        let known = self.addresses().into_iter().chain(self.bridges.iter().flat_map(|b| b.addresses.iter().copied()));
        known.into_iter().find(|(g, n, _)| (g, *n) == (gid, network)).map(|(_, _, mac)| mac)
    }

    /// Gives a packet to whoever listens to its address. True if anyone does.
    fn deliver(&mut self, packet: &Packet) -> bool {
        let hears = |d: &&mut Device| d.ports().iter().any(|p| p.accepts(&packet.route));
        let mut heard = false;
        for device in self.devices.iter_mut().filter(hears) {
            device.receive(packet.clone());
            heard = true;
        }
        heard
    }

    /// Delivers what came over bridges. True if anything did.
    fn cross_bridges(&mut self) -> bool {
        if self.bridges.is_empty() {
            return false;
        }
        let addresses = self.addresses();
        let mut packets = vec![];
        for bridge in &mut self.bridges {
            bridge.announce(&addresses);
            packets.extend(bridge.receive());
        }
        self.bridges.retain(|bridge| !bridge.broken);
        for packet in &packets {
            self.deliver(packet);
        }
        !packets.is_empty()
    }

    /// Ethernet addresses of all ports, by GID.
    fn addresses(&self) -> Vec<(Gid, Network, Mac)> {
        let ports = self.devices.iter().flat_map(|d| d.ports());
        let of = |port: &Port| match port.link {
            Link::Ethernet { mac } => port.gids.iter().flatten().map(|e| (e.gid, e.network, mac)).collect(),
            Link::InfiniBand { .. } => vec![],
        };
        ports.flat_map(of).collect()
    }

    fn step(&mut self, now: Duration) -> bool {
        self.now = self.now.max(now.min(END_OF_TIME));
        let now = self.now;
        self.clocks.retain_mut(|clock| clock(now));
        let arrived = self.wire.arrived(self.now);
        let mut progress = !arrived.is_empty();
        for packet in arrived {
            let is_multicast = packet.route.dlid >= MULTICAST_LIDS || packet.route.dmac[0] & 1 == 1;
            let heard = self.deliver(&packet);
            if is_multicast || !heard {
                self.bridges.iter_mut().for_each(|bridge| {
                    bridge.send(&packet);
                });
            }
        }
        progress |= self.cross_bridges();
        for device in &mut self.devices {
            let up: Vec<bool> = device.ports().iter().map(|p| p.active).collect();
            device.looks_beside = self.engines > 0;
            for packet in device.work(self.now) {
                // A port that is down sends nothing; all ports of a device are of one subnet here.
                if up.iter().any(|up| *up) {
                    self.wire.send(self.now, packet);
                }
            }
            progress |= device.take_progress();
        }
        self.tell_listeners();
        progress
    }

    fn tell_listeners(&mut self) {
        let World { number, devices, listeners, .. } = self;
        let fabric = *number;
        listeners.retain_mut(|listener| {
            let mut devices = devices.iter_mut().enumerate();
            devices.all(|(i, device)| listener(DeviceId { fabric, place: i }, device))
        });
    }

    fn deadline(&self) -> Option<Duration> {
        self.devices.iter().filter_map(Device::deadline).chain(self.wire.next_arrival()).min()
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let world = self.world();
        f.debug_struct("Fabric").field("now", &world.now).field("devices", &world.devices).finish()
    }
}

/// A fabric that runs on a thread of its own, until this is dropped.
#[derive(Debug)]
pub struct Engine {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the engine was printed by its thread; a destructor adds nothing to it.
            let _ = thread.join();
        }
    }
}
