//! Whether a device in use is still there.
//!
//! Some drivers, rxe among them, cannot take a device away while a program has it open: its removal waits, and nothing tells
//! the program. Such a device is gone from the kernel's list already. A ping has no time to look there, so a thread does,
//! and asks it to stop as a signal would.

use crate::failure::{Failure, Kind};
use crate::stop::Stop;
use ironverbs::DeviceInfo;
use ironverbs::sys::Sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks at the list.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks after a device until it is dropped.
pub struct Presence {
    name: String,
    gone: Arc<AtomicBool>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Presence {
    /// From now on, `stop` is asked to if `device` is no longer among those of `sys`.
    pub fn watch(sys: Arc<dyn Sys>, device: &DeviceInfo, stop: &Stop) -> Result<Self, Failure> {
        Self::watch_every(LOOK_EVERY, sys, device, stop)
    }

    fn watch_every(time: Duration, sys: Arc<dyn Sys>, device: &DeviceInfo, stop: &Stop) -> Result<Self, Failure> {
        let failed = |e| Failure::new(Kind::Device, format!("cannot look after {}: {e}", device.name));
        let asker = stop.asker().map_err(failed)?;
        let gone = Arc::new(AtomicBool::new(false));
        let (end, ended) = channel();
        let (is_gone, device_wanted) = (Arc::clone(&gone), device.clone());
        let looks = move || {
            while ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                // A list that cannot be had says nothing.
                if sys.devices().is_ok_and(|listed| !is_among(&device_wanted, &listed)) {
                    // Read by the thread that is asked, behind what asks it.
                    is_gone.store(true, Ordering::Release);
                    asker.ask();
                    return;
                }
            }
        };
        let thread = thread::Builder::new().spawn(looks).map_err(failed)?;
        Ok(Self { name: device.name.clone(), gone, end: Some(end), thread: Some(thread) })
    }

    /// The reason of a failure, if the device's end is it.
    pub fn explain(&self, failure: Failure) -> Failure {
        if failure.kind != Kind::Interrupted || !self.gone.load(Ordering::Acquire) {
            return failure;
        }
        Failure::new(Kind::Removed, format!("{} was removed while it was in use", self.name))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed by itself.
            let _ = thread.join();
        }
    }
}

/// By its index: another device may have its name by now.
pub fn is_among(device: &DeviceInfo, listed: &[DeviceInfo]) -> bool {
    listed.iter().any(|d| if device.index.is_some() { d.index == device.index } else { d.name == device.name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::{Deadline, Ready, wait};
    use ironverbs::sys::Cdev;
    use ironverbs::{DeviceIndex, Error};
    use nix::poll::PollFlags;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    /// A host whose list is set.
    struct Host(Mutex<Option<Vec<DeviceInfo>>>);

    impl Sys for Host {
        fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
            self.0.lock().unwrap().clone().ok_or_else(none)
        }

        fn open(&self, _: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
            Err(none())
        }
    }

    fn none() -> Error {
        ironverbs::Context::open("no-such-device").unwrap_err()
    }

    fn device(index: u32) -> DeviceInfo {
        let mut device = DeviceInfo::new("rxe0");
        device.index = Some(DeviceIndex(index));
        device
    }

    /// How a wait for nothing ends within that time.
    fn wait_for(time: Duration, stop: &Stop) -> Ready {
        let (silent, _peer) = UnixStream::pair().unwrap();
        wait((silent.as_fd(), None), PollFlags::POLLIN, &Deadline::after(time), stop).unwrap()
    }

    #[test]
    fn a_device_that_goes_ends_waits_and_is_the_reason() {
        let host = Arc::new(Host(Mutex::new(Some(vec![device(1)]))));
        let stop = Stop::never().unwrap();
        let presence = Presence::watch_every(Duration::from_millis(5), host.clone(), &device(1), &stop).unwrap();
        assert_eq!(wait_for(Duration::from_millis(60), &stop), Ready::TimedOut);
        *host.0.lock().unwrap() = None;
        assert_eq!(wait_for(Duration::from_millis(60), &stop), Ready::TimedOut, "a list that cannot be had");
        assert_eq!(presence.explain(Failure::interrupted()), Failure::interrupted(), "a signal");
        // Another device of the same name.
        *host.0.lock().unwrap() = Some(vec![device(2)]);
        assert_eq!(wait_for(Duration::from_secs(10), &stop), Ready::Stopped);
        assert!(stop.asked());
        assert_eq!(presence.explain(Failure::interrupted()).kind, Kind::Removed);
        let other = Failure::new(Kind::Data, "payload mismatch");
        assert_eq!(presence.explain(other.clone()), other);
    }
}
