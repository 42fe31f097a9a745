//! The device that everything is measured on: a real one, or a software ConnectX that works when it is told to.

use crate::Result;
use ironverbs::Context;
use std::time::Duration;

/// Where completions come from.
pub enum Device {
    /// The kernel, or an adapter: by itself.
    Real,
    /// The fabric, when it is stepped.
    Simulated(softcx::SimHost),
}

impl Device {
    /// Opens a device by its name. `sim` is a software ConnectX of this process.
    pub fn open(name: &str) -> Result<(Self, Context)> {
        match name {
            "sim" => {
                use ironverbs::sys::Sys;
                let host = softcx::SimHost::new(1);
                host.add(softcx::SimDevice::roce("mlx5_0"));
                let context = Context::open_on(&host, &host.devices()?[0])?;
                Ok((Self::Simulated(host), context))
            }
            _ => Ok((Self::Real, Context::open(name)?)),
        }
    }

    /// Gives the device time for what is under way.
    pub fn work(&self, time: Duration) {
        match self {
            Self::Real => std::thread::sleep(time),
            Self::Simulated(host) => {
                host.fabric().settle(Duration::from_secs(1));
            }
        }
    }
}
