//! Makes chosen commands fail.

use super::{Command, Observer, observe_cdev, observe_sys};
use crate::uverbs::errno::Errno;
use crate::uverbs::sys::{Cdev, Sys};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts commands, and makes chosen ones fail before they reach the device.
///
/// Everything that can fail counts: opening a device, every ioctl and write (doorbells too), every mapping.
///
/// ```
/// use ironverbs::{Errno, sys::Fault};
///
/// let fault = Fault::new();
/// fault.fail_nth(3, Errno::ENOMEM); // the fourth command from now fails, once
/// assert_eq!(fault.count(), 0);
/// ```
#[derive(Clone, Default)]
pub struct Fault(Arc<Plan>);

#[derive(Default)]
struct Plan(Mutex<State>);

#[derive(Default)]
struct State {
    count: u64,
    injected: u64,
    nth: Option<(u64, Errno)>,
    matching: Option<(Predicate, Errno)>,
}

type Predicate = Box<dyn Fn(&Command<'_>) -> bool + Send>;

impl Fault {
    /// Lets everything through, and counts.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same file, with its commands counted and refused as planned.
    pub fn wrap(&self, cdev: Arc<dyn Cdev>) -> Arc<dyn Cdev> {
        observe_cdev(&self.0, cdev)
    }

    /// The same devices; opening them counts as a command too.
    pub fn wrap_sys(&self, sys: Arc<dyn Sys>) -> Arc<dyn Sys> {
        observe_sys(&self.0, sys)
    }

    /// Makes one command fail with `errno`: the one after `n` more.
    pub fn fail_nth(&self, n: u64, errno: Errno) {
        let mut state = self.0.state();
        state.nth = Some((state.count + n, errno));
    }

    /// Makes every command fail with `errno` that `which` chooses. Replaces an earlier choice.
    pub fn fail_matching(&self, which: impl Fn(&Command<'_>) -> bool + Send + 'static, errno: Errno) {
        self.0.state().matching = Some((Box::new(which), errno));
    }

    /// Lets everything through again.
    pub fn clear(&self) {
        let mut state = self.0.state();
        state.nth = None;
        state.matching = None;
    }

    /// How many commands there were, failed ones included.
    pub fn count(&self) -> u64 {
        self.0.state().count
    }

    /// How many commands were made to fail.
    pub fn injected(&self) -> u64 {
        self.0.state().injected
    }
}

impl Plan {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Plan {
    fn before(&self, sent: &Command<'_>) -> Result<(), Errno> {
        let mut state = self.state();
        let at = state.count;
        state.count += 1;
        let chosen = match (&state.nth, &state.matching) {
            (Some((nth, errno)), _) if *nth == at => Some(*errno),
            (_, Some((which, errno))) if which(sent) => Some(*errno),
            _ => None,
        };
        match chosen {
            Some(errno) => {
                state.injected += 1;
                Err(errno)
            }
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fault").field("count", &self.count()).field("injected", &self.injected()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::context::Ucontext;
    use crate::uverbs::fake::{FakeKernel, Knows};

    #[test]
    fn only_the_nth_command_fails_and_only_once() {
        let kernel = FakeKernel::new(Knows::ALL);
        let fault = Fault::new();
        let ctx = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap();
        assert_eq!((fault.count(), fault.injected()), (2, 0));
        kernel.take_log();
        fault.fail_nth(1, Errno::ENOMEM);
        let pd = ctx.alloc_pd(&mut []).unwrap();
        assert_eq!(ctx.alloc_pd(&mut []).unwrap_err().errno(), Some(Errno::ENOMEM));
        assert_eq!(kernel.take_log().len(), 1, "the failed command did not reach the device");
        drop((ctx.alloc_pd(&mut []).unwrap(), pd));
        assert_eq!((fault.count(), fault.injected()), (7, 1));
    }

    #[test]
    fn a_mapping_is_a_command_too() {
        let fault = Fault::new();
        let cdev = fault.wrap(FakeKernel::new(Knows::ALL));
        fault.fail_matching(|c| c.form() == crate::sys::CommandForm::Map, Errno::ENOMEM);
        assert_eq!(cdev.map(0, 4096).err(), Some(Errno::ENOMEM));
        fault.clear();
        assert_eq!(cdev.map(0, 4096).err(), Some(Errno::EINVAL), "the fake's own answer");
        assert_eq!((fault.count(), fault.injected()), (2, 1));
    }
}
