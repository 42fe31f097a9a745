//! Which device an id is on.

use crate::cm::error::{Error, Step};
use crate::cm::id::{CmId, Place};
use crate::sys::Linux;
use crate::uverbs::device::DeviceIndex;
use crate::uverbs::error::Error as VerbsError;
use crate::uverbs::sys::Sys;
use crate::verbs::device::Context;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Devices that a program has opened, found by the kernel's index: neither name nor GUID of a device is its own.
///
/// It opens a device when an id is on it for the first time, and keeps it open; connections on one device share a context.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId) -> Result<(), Box<dyn std::error::Error>> {
/// let devices = ironverbs::rdma_cm::Devices::new();
/// let context = devices.context_of(id)?;
/// println!("{} leads there", context.info().name);
/// # Ok(()) }
/// ```
pub struct Devices {
    sys: Box<dyn Sys>,
    open: Mutex<Vec<Context>>,
}

impl Devices {
    /// None yet, of this host's.
    pub fn new() -> Self {
        Self::on(Linux::new())
    }

    /// None yet, of `sys`'s.
    pub fn on(sys: impl Sys + 'static) -> Self {
        Self { sys: Box::new(sys), open: Mutex::default() }
    }

    /// One more, which the program has opened itself.
    pub fn add(&self, context: Context) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(context);
    }

    /// Keeps a device open no longer, and returns its context. Do so when it goes
    /// ([`DEVICE_REMOVAL`](crate::rdma_cm::EventType::DEVICE_REMOVAL)), and drop what is on it: some drivers, as Soft-RoCE's, let a
    /// device go only when its last user has closed it.
    pub fn forget(&self, device: DeviceIndex) -> Option<Context> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|context| context.index() == Some(device))?;
        Some(open.remove(at))
    }

    /// The device that the id is on: bound, resolved, or as a request.
    pub fn context_of(&self, id: &CmId) -> Result<Context, Error> {
        let Some(Place { device: index, .. }) = id.place()? else {
            let limit = "bind it to an address of a device, or resolve it, first; kernels before Linux 5.7 tell none";
            return Err(Error::invalid(Step::OpenDevice, "the id's device", "none", limit));
        };
        self.context(index).map_err(Error::verbs(Step::OpenDevice))
    }

    fn context(&self, index: DeviceIndex) -> Result<Context, VerbsError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // A device that has gone leaves its index to another.
        open.retain(|context| context.index() != Some(index) || !context.is_disconnected());
        if let Some(context) = open.iter().find(|context| context.index() == Some(index)) {
            return Ok(context.clone());
        }
        let all = self.sys.devices()?;
        let Some(info) = all.iter().find(|info| info.index == Some(index)) else {
            let known = all.iter().map(|info| match info.index {
                Some(index) => format!("{} ({})", info.shown_name(), index.0),
                None => format!("{} (index not known)", info.shown_name()),
            });
            let hint = format!("there is {}", known.collect::<Vec<_>>().join(", "));
            let wanted = format!("of index {}", index.0).into();
            return Err(VerbsError::NoDevice { wanted, hint: Some(hint.into()) });
        };
        let context = Context::open_on(&*self.sys, info)?;
        open.push(context.clone());
        Ok(context)
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_list().entries(open.iter().map(|context| &context.info().name)).finish()
    }
}
