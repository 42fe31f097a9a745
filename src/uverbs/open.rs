//! Opening a device that was listed.
//!
//! A list is a snapshot, and its entries are plain data that anyone may fill in. So what opening relies on is asked of the
//! kernel again: that the file is the device's character device, and that its driver and provider ABI are ones that this
//! library speaks.

use super::assess::{Driver, provider};
use super::device::{DeviceInfo, DriverId, Unusable};
use super::discover::{Linux, number, too_many_files};
use super::errno::Errno;
use super::error::{Error, Lacking, Verb};
use super::linux::from_file;
use super::netlink::NetlinkError;
use super::sys::Cdev;
use std::fs::{Metadata, OpenOptions};
use std::path::Path;
use std::sync::Arc;

impl Linux {
    pub(super) fn open_device(&self, device: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
        if let Err(why) = &device.usable
            && !lies_in_the_file(why)
        {
            return Err(refusal(device, why));
        }
        let (Some(path), Some(dev)) = (&device.node, device.dev) else {
            return Err(match &device.usable {
                Err(why) => refusal(device, why),
                Ok(()) => gone(device, "it has no device file".to_owned()),
            });
        };
        // Looked at before it is opened, because opening another device may set something off.
        let metadata = std::fs::metadata(path).map_err(|e| open_error(device, path, &e))?;
        check_number(device, path, &metadata, dev)?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| open_error(device, path, &e))?;
        // And again, because the file may have been replaced in between.
        let metadata = file.metadata().map_err(|e| open_error(device, path, &e))?;
        check_number(device, path, &metadata, dev)?;
        // Last, because an open file keeps the kernel from giving its number to another device.
        let driver = self.check_driver(device, dev)?;
        Ok(from_file(file, driver.0))
    }

    /// The driver of the device, if it still is the one that was listed and this library has a provider for it.
    fn check_driver(&self, device: &DeviceInfo, dev: (u32, u32)) -> Result<DriverId, Error> {
        let (driver, abi) = match self.driver_by_index(device, dev)? {
            Some(told) => told,
            None => self.driver_by_number(device, dev)?,
        };
        provider(&driver, abi, usize::BITS).map_err(|why| refusal(device, &why))
    }

    /// Driver and provider ABI from netlink. `None` if netlink does not tell.
    fn driver_by_index(&self, device: &DeviceInfo, dev: (u32, u32)) -> Result<Option<(Driver, Option<u32>)>, Error> {
        let Some(index) = device.index else { return Ok(None) };
        match self.nldev().and_then(|mut nldev| nldev.chardev(index)) {
            // A number is given to the next device as soon as it is free; an index is not.
            Ok(chardev) if chardev.dev != dev => Err(gone(device, CHANGED.to_owned())),
            Ok(chardev) => {
                let guess = || self.guess_driver(&device.name, "netlink does not tell it for this device");
                Ok(Some((chardev.driver.map_or_else(guess, Driver::Known), Some(chardev.abi))))
            }
            Err(NetlinkError::Kernel(Errno::EINVAL | Errno::ENODEV)) => Err(gone(device, CHANGED.to_owned())),
            Err(error) => too_many_files(Verb::OpenDevice, error).map_or(Ok(None), Err),
        }
    }

    /// Driver and provider ABI from sysfs.
    fn driver_by_number(&self, device: &DeviceInfo, dev: (u32, u32)) -> Result<(Driver, Option<u32>), Error> {
        let names = self.sysfs.uverbs_names().unwrap_or_default();
        let found = names.iter().map(|name| self.sysfs.uverbs(name)).find(|uverbs| uverbs.dev == Some(dev));
        let Some((uverbs, name)) = found.and_then(|uverbs| Some((uverbs.abi, uverbs.ibdev?))) else {
            let (major, minor) = dev;
            return Err(gone(device, format!("the kernel knows no verbs device of number {major}:{minor}")));
        };
        Ok((self.guess_driver(&name, "netlink does not answer"), uverbs))
    }
}

const CHANGED: &str = "it has been removed since it was listed; list the devices again";

/// Whether the reason is in the device file, and may have been mended since: opening it tells.
fn lies_in_the_file(why: &Unusable) -> bool {
    match why {
        Unusable::NoNode(_)
        | Unusable::NotCharDevice(_)
        | Unusable::WrongNode { .. }
        | Unusable::NoPermission(_)
        | Unusable::Forbidden(_)
        | Unusable::NodeError { .. } => true,
        Unusable::OtherNamespace
        | Unusable::NoCharDevice
        | Unusable::BadEntry(_)
        | Unusable::NoProvider(_)
        | Unusable::UnknownDriver(_)
        | Unusable::AbiVersion { .. }
        | Unusable::PointerWidth(_) => false,
    }
}

/// The error for a device that cannot be used.
fn refusal(device: &DeviceInfo, why: &Unusable) -> Error {
    let verb = Verb::OpenDevice;
    match why {
        Unusable::AbiVersion { driver, found, min, max } => Error::Abi {
            verb,
            what: format!("provider ABI version of driver {driver}").into(),
            need: format!("{min} to {max}").into(),
            got: found.to_string().into(),
        },
        Unusable::NoProvider(_) | Unusable::UnknownDriver(_) | Unusable::PointerWidth(_) => {
            Error::Unsupported { verb, what: format!("{} ({why})", device.shown_name()).into(), by: Lacking::Library }
        }
        _ => gone(device, why.to_string()),
    }
}

fn gone(device: &DeviceInfo, why: String) -> Error {
    Error::NoDevice { wanted: device.shown_name().to_string().into(), hint: Some(why.into()) }
}

fn check_number(device: &DeviceInfo, path: &Path, metadata: &Metadata, need: (u32, u32)) -> Result<(), Error> {
    match number(metadata) {
        Some(found) if found == need => Ok(()),
        Some((found_major, found_minor)) => {
            let (need_major, need_minor) = need;
            let path = path.to_owned();
            let why = Unusable::WrongNode { path, found_major, found_minor, need_major, need_minor };
            Err(refusal(device, &why))
        }
        None => Err(refusal(device, &Unusable::NotCharDevice(path.to_owned()))),
    }
}

/// What the kernel meant by refusing to open the device file (`ib_uverbs_open` in
/// `drivers/infiniband/core/uverbs_main.c`).
fn open_error(device: &DeviceInfo, path: &Path, e: &std::io::Error) -> Error {
    let errno = Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO));
    let (name, path) = (device.shown_name(), path.to_owned());
    let hint = match errno {
        Errno::ENOENT => return refusal(device, &Unusable::NoNode(path)),
        Errno::EACCES => Unusable::NoPermission(path).to_string(),
        Errno::EPERM => format!(
            "{name} belongs to another network namespace (rdma system show: exclusive), or the control group of this \
             container forbids {}",
            path.display()
        ),
        Errno::ENXIO | Errno::ENODEV => format!("{name} is going away"),
        // This says already what to do.
        Errno::EMFILE | Errno::ENFILE => return Error::kernel(Verb::OpenDevice, errno),
        _ => path.display().to_string(),
    };
    Error::kernel(Verb::OpenDevice, errno).with_hint(hint)
}

#[cfg(test)]
mod tests;
