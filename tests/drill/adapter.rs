//! The guest's software ConnectX: what can be made to happen to it, and its driver's way out and in.

use crate::fixture::{Pair, Setup, eventually};
use crate::harness::skip;
use crate::target::Target;
use ironverbs::{AsyncEvent, AsyncEventType, AsyncEvents, Error, PortState, WrFlags};
use softcx::pci::Fault;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take after which a program knows that its device is gone, or that it is back.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Where in its configuration space the adapter takes faults: see [`Fault`].
const FAULT: u64 = 0xf0;

const DRIVER: &str = "/sys/bus/pci/drivers/mlx5_core";

/// The adapter under test. Dropped, it has its driver again, whatever became of the test.
pub struct Adapter {
    /// Its directory in sysfs, by its slot.
    pci: PathBuf,
    slot: String,
}

impl Adapter {
    /// Skips the test if the device is any other than a software ConnectX of the guest's own.
    pub fn of(target: &Target) -> Self {
        let class = Path::new("/sys/class/infiniband").join(&target.device);
        let in_guest = Path::new("/run/vm/command").exists();
        if in_guest {
            // A test that failed may have left it on its way back.
            eventually("the device is there", || class.exists());
        }
        let described = fs::read_to_string(class.join("node_desc")).unwrap_or_default();
        if !in_guest || !described.starts_with("software ConnectX") {
            skip("it makes the device fail, which only a guest's own software ConnectX may: cargo vm --device softcx");
        }
        let pci = fs::canonicalize(class.join("device")).unwrap();
        let slot = pci.file_name().unwrap().to_str().unwrap().to_owned();
        Self { pci, slot }
    }

    /// Makes the fault happen.
    pub fn make(&self, fault: Fault) {
        let config = OpenOptions::new().write(true).open(self.pci.join("config")).unwrap();
        config.write_all_at(&(fault as u32).to_le_bytes(), FAULT).unwrap();
    }

    /// Takes the driver away. Returns how long that took: a driver that waits for its users would take for ever.
    pub fn unbind(&self) -> Duration {
        let begin = Instant::now();
        fs::write(format!("{DRIVER}/unbind"), &self.slot).unwrap();
        begin.elapsed()
    }

    /// Gives it back.
    pub fn bind(&self) {
        fs::write(format!("{DRIVER}/bind"), &self.slot).unwrap();
    }

    /// Takes the whole function off the bus in good order: its driver is told, and lets go of it first. Of one that was pulled out
    /// ([`Fault::Gone`]), the kernel learns so what a hot-plug controller would tell it.
    pub fn remove(&self) {
        fs::write(self.pci.join("remove"), "1").unwrap();
    }

    /// Has the kernel look for functions: it finds this one again.
    pub fn rescan(&self) {
        fs::write("/sys/bus/pci/rescan", "1").unwrap();
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if !self.pci.exists() {
            let _ = fs::write("/sys/bus/pci/rescan", "1");
        }
        if !self.pci.join("driver").exists() {
            let _ = fs::write(format!("{DRIVER}/bind"), &self.slot);
        }
    }
}

/// Waits until the device is there with an active port, and sends a message from one side of a new connection to the other.
pub fn works(target: &Target) {
    let begin = Instant::now();
    let is_ready = || {
        let Ok(context) = target.host.open(&target.device) else { return false };
        context.query_port(target.port).is_ok_and(|port| port.state == PortState::ACTIVE)
    };
    while !is_ready() {
        assert!(begin.elapsed() < LIMIT, "{} does not come back", target.device);
        sleep(Duration::from_millis(20));
    }
    let mut pair: Pair = Pair::new(target, &Setup::default());
    let entries = [pair.a.sge(0, 16), pair.b.sge(0, 16)];
    pair.a.put(0, b"it works again!!");
    pair.b.recv(1, &entries[1..]);
    pair.a.send(|batch| batch.send(2, WrFlags::SIGNALED, &entries[..1]));
    pair.a.success();
    pair.b.success();
    assert_eq!(pair.b.bytes(0, 16), b"it works again!!");
    let contexts = [pair.a.context.clone(), pair.b.context.clone()];
    drop(pair);
    contexts.iter().for_each(|context| assert!(context.leaks().is_empty(), "{:?}", context.leaks()));
}

/// Waits for an event of that kind; others may come before.
#[track_caller]
pub fn expect(events: &AsyncEvents, kind: AsyncEventType) -> AsyncEvent {
    let begin = Instant::now();
    loop {
        match events.next(LIMIT).unwrap() {
            Some(event) if event.kind == kind => return event,
            _ => assert!(begin.elapsed() < LIMIT, "no {kind} within {LIMIT:?}"),
        }
    }
}

/// Reads events until none will ever come. Returns them.
pub fn all_until_gone(events: &AsyncEvents) -> Vec<AsyncEvent> {
    let (begin, mut all) = (Instant::now(), vec![]);
    loop {
        match events.next(LIMIT) {
            Ok(Some(event)) => all.push(event),
            Ok(None) => panic!("nobody tells that the device is gone; after {:?} there were {all:?}", begin.elapsed()),
            Err(Error::DeviceGone { .. }) => return all,
            Err(error) => panic!("{error}, after {all:?}"),
        }
    }
}

/// The port's state, as sysfs has it, is like that.
pub fn until_state(target: &Target, state: PortState) {
    let context = target.open();
    eventually("the port's state", || context.query_port(target.port).unwrap().state == state);
}
