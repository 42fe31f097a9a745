//! Whose devices a command is about: this host's, or simulated ones.

use crate::choose;
use crate::failure::{Failure, Kind};
use crate::sim::{Sim, SimLink};
use crate::trace::{self, Lines, Rings, TracedCm};
use ironverbs::DeviceInfo;
use ironverbs::sys::{CmSys, Linux, LinuxCm, Record, Sys, Trace};
use std::cell::RefCell;
use std::sync::Arc;

/// Where devices are.
pub struct Machine {
    sys: Arc<dyn Sys>,
    sim: Option<Sim>,
    /// What a trace shows of the rings of a real device.
    rings: Option<RefCell<Rings>>,
    lines: Option<Lines>,
}

impl Machine {
    /// This host.
    pub fn real() -> Self {
        Self { sys: Arc::new(Linux::new()), sim: None, rings: None, lines: None }
    }

    /// A machine with one simulated device, whose addresses are those of `place` in the simulated network.
    pub fn simulated(link: SimLink, place: u16) -> Self {
        let sim = Sim::new(link, place);
        Self { sys: sim.sys(), sim: Some(sim), rings: None, lines: None }
    }

    /// The same, with every command of its devices written to `lines`; of a simulated device also what it reads from rings
    /// and writes there.
    pub fn traced(mut self, lines: &Lines) -> Self {
        let to = lines.clone();
        self.sys = Trace::new(move |line| to.put(line)).wrap_sys(self.sys);
        if let Some(sim) = &self.sim {
            let to = lines.clone();
            sim.tap(move |tapped| to.put(trace::entry(tapped)));
        }
        self.lines = Some(lines.clone());
        self
    }

    /// The same, with the rings of its devices read while a ping runs, and what is new there written to `lines`. For
    /// devices that do not show it themselves.
    pub fn with_rings(mut self, lines: &Lines) -> Self {
        let record = Record::new();
        self.sys = record.wrap_sys(self.sys);
        self.rings = Some(RefCell::new(Rings::new(record, lines.clone())));
        self
    }

    /// The rings that are to be looked at.
    pub fn rings(&self) -> Option<&RefCell<Rings>> {
        self.rings.as_ref()
    }

    /// Where to open devices.
    pub fn sys(&self) -> &Arc<dyn Sys> {
        &self.sys
    }

    /// The kernel's connection manager.
    pub fn cm(&self) -> Arc<dyn CmSys> {
        let host = Arc::new(LinuxCm::new());
        match &self.lines {
            Some(lines) => Arc::new(TracedCm::new(host, lines.clone())),
            None => host,
        }
    }

    /// The simulation, if it is one.
    pub fn sim(&self) -> Option<&Sim> {
        self.sim.as_ref()
    }

    /// Whether no hardware and no kernel is involved.
    pub fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// Lets a simulated device finish what it has begun, and tells a trace what it saw go wrong.
    pub fn settle(&self) {
        let Some(sim) = &self.sim else { return };
        sim.settle();
        if let Some(lines) = &self.lines {
            sim.take_reports().iter().for_each(|report| lines.put(format_args!("the device reports: {report}")));
        }
    }

    /// All devices. That there is none is a failure.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, Failure> {
        let devices = self.sys.devices()?;
        if devices.is_empty() {
            let why = Linux::new().why_none();
            return Err(Failure::new(Kind::NoDevice, "this host has no RDMA device")
                .hint(format!("{why}; without a device, --sim simulates one: rdma-probe ping --sim --loopback")));
        }
        Ok(devices)
    }

    /// The device of that name or index, or all of them.
    pub fn asked_for(&self, wanted: Option<&str>) -> Result<Vec<DeviceInfo>, Failure> {
        let devices = self.devices()?;
        match wanted {
            None => Ok(devices),
            Some(wanted) => Ok(vec![choose::named(&devices, wanted)?.clone()]),
        }
    }
}
