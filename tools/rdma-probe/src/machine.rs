//! Whose devices a command is about: this host's, or simulated ones.

use crate::choose;
use crate::failure::{Failure, Kind};
use crate::sim::{Sim, SimLink};
use crate::trace::Lines;
use ironverbs::DeviceInfo;
use ironverbs::sys::{Linux, Sys, Trace};
use std::sync::Arc;

/// Where devices are.
pub struct Machine {
    sys: Arc<dyn Sys>,
    sim: Option<Sim>,
}

impl Machine {
    /// This host.
    pub fn real() -> Self {
        Self { sys: Arc::new(Linux::new()), sim: None }
    }

    /// A machine with one simulated device, whose addresses are those of `place` in the simulated network.
    pub fn simulated(link: SimLink, place: u16) -> Self {
        let sim = Sim::new(link, place);
        Self { sys: sim.sys(), sim: Some(sim) }
    }

    /// The same, with every command of its devices written to `lines`.
    pub fn traced(self, lines: &Lines) -> Self {
        let lines = lines.clone();
        if let Some(sim) = &self.sim {
            let lines = lines.clone();
            sim.tap(move |tapped| lines.put(format_args!("{:x?}", tapped.entry)));
        }
        Self { sys: Trace::new(move |line| lines.put(line)).wrap_sys(self.sys), sim: self.sim }
    }

    /// Where to open devices.
    pub fn sys(&self) -> &Arc<dyn Sys> {
        &self.sys
    }

    /// The simulation, if it is one.
    pub fn sim(&self) -> Option<&Sim> {
        self.sim.as_ref()
    }

    /// Whether no hardware and no kernel is involved.
    pub fn is_simulated(&self) -> bool {
        self.sim.is_some()
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
