//! A simulated device in place of a real one: a software ConnectX in this process, on a network that a second process can
//! share.

mod meeting;

pub use meeting::{Meeting, meet};

use clap::ValueEnum;
use ironverbs::sys::Sys;
use softcx::{DeviceId, Engine, Punish, SimDevice, SimHost, Tapped};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Name of the simulated device. No kernel driver gives one like it.
const DEVICE: &str = "sim0";

/// What the network's chance comes from. It has none to decide: nothing is lost here.
const SEED: u64 = 1;

/// Longest time that is spent on giving the other end what is under way.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Link layer of a simulated port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimLink {
    /// Ethernet, with RoCE v1 and v2
    Roce,
    /// InfiniBand
    Ib,
}

impl fmt::Display for SimLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Roce => "RoCE",
            Self::Ib => "InfiniBand",
        })
    }
}

/// A simulated device that runs.
pub struct Sim {
    host: SimHost,
    id: DeviceId,
    link: SimLink,
    begin: Instant,
}

impl Sim {
    /// Makes one, in which nothing moves yet: see [`step`](Self::step) and [`run`](Self::run). Devices of different places have different addresses.
    pub fn new(link: SimLink, place: u16) -> Self {
        let host = SimHost::new(SEED).first_place(place);
        let device = match link {
            SimLink::Roce => SimDevice::roce(DEVICE),
            SimLink::Ib => SimDevice::infiniband(DEVICE),
        };
        // As the C tools, an end that does not check sends from the very buffer that its receives are posted to.
        let id = host.add(device.punish(Punish { poison: false, ..Punish::default() }));
        Self { host, id, link, begin: Instant::now() }
    }

    /// The place to find the device at.
    pub fn sys(&self) -> Arc<dyn Sys> {
        Arc::new(self.host.clone())
    }

    /// Shows every work queue entry that the device takes, and every completion that it makes.
    pub fn tap(&self, tap: impl FnMut(&Tapped<'_>) + Send + 'static) {
        let _ = self.host.with(self.id, |device| device.tap(tap));
    }

    /// Lets the device work for a moment, in this thread. False if there was nothing to do.
    pub fn step(&self) -> bool {
        self.host.fabric().step(self.begin.elapsed())
    }

    /// Waits until there may be something to do, at most for `limit`.
    pub fn rest(&self, limit: Duration) {
        self.host.fabric().rest(self.begin.elapsed(), limit);
    }

    /// Lets the device work in a thread of its own, until the result is dropped: for programs that sleep.
    pub fn run(&self) -> Engine {
        self.host.fabric().spawn()
    }

    /// Whether no other process is on this network, or none any more.
    pub fn is_alone(&self) -> bool {
        self.host.fabric().bridges() == 0
    }

    /// Lets the device finish what it has begun: acknowledge what came last, and hand over what is to go to another process.
    pub fn settle(&self) {
        let begin = Instant::now();
        let fabric = self.host.fabric();
        // Only what is there now: timers are for what is never to come.
        while begin.elapsed() < LAST_WORDS && (fabric.step(fabric.now()) || fabric.step(fabric.now())) {}
    }

    /// Takes out what the device saw this program do wrong, as people read it.
    pub fn take_reports(&self) -> Vec<String> {
        self.host.fabric().take_reports().iter().map(|report| report.to_string()).collect()
    }

    /// From now on the port goes down and comes back, again and again, until the result is dropped: something to watch.
    pub fn rehearse(&self) -> Rehearsal {
        let (host, id) = (self.host.clone(), self.id);
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || toggle_port(&host, id, &stopped));
        Rehearsal { stop: Some(stop), thread: Some(thread) }
    }
}

/// How long a port is up, and down, in a rehearsal.
pub const UP_FOR: Duration = Duration::from_secs(2);
/// See [`UP_FOR`].
pub const DOWN_FOR: Duration = Duration::from_secs(1);

fn toggle_port(host: &SimHost, id: DeviceId, stopped: &Receiver<()>) {
    let mut active = true;
    while stopped.recv_timeout(if active { UP_FOR } else { DOWN_FOR }) == Err(RecvTimeoutError::Timeout) {
        active = !active;
        // The device and its port 1 are there.
        let _ = host.with(id, |device| device.set_port_active(1, active));
    }
}

/// A port that goes up and down. Ends when dropped.
pub struct Rehearsal {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Rehearsal {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed by itself.
            let _ = thread.join();
        }
    }
}
