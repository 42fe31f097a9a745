//! Whether something is offered, and who refuses it if not.

use ironverbs::{Errno, Error, Lacking};
use serde::Serialize;
use std::fmt;

/// Whether one thing is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verdict {
    /// What it belongs to.
    pub group: Group,
    /// What it is.
    pub name: String,
    /// Whether it is offered; none if that could not be found out.
    pub offered: Option<bool>,
    /// Who refuses it, if it is refused and that is known.
    pub refused_by: Option<By>,
    /// How that was found out.
    pub found_by: How,
    /// Why, for people.
    pub reason: String,
    /// The kernel's error, as EOPNOTSUPP, if it is the kernel that refused.
    pub errno: Option<String>,
}

/// What a verdict belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Queue pairs of each transport service.
    QueuePairs,
    /// Operations on a queue pair.
    Operations,
    /// Memory that a device may reach.
    Memory,
    /// Completion queues and their events.
    Completions,
    /// Shared receive queues.
    SharedReceives,
    /// Multicast, offloads, and the rest.
    Other,
}

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The running kernel's verbs core.
    Kernel,
    /// The kernel's driver for this device.
    Driver,
    /// The device.
    Device,
    /// The library in rdma-probe, which has no code for it.
    Library,
    /// Not this user, or not with these limits.
    User,
}

/// How something was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// By doing it.
    Tried,
    /// From what the device or driver says of itself.
    Asked,
}

impl Verdict {
    /// From doing it. `Ok` says what came of it.
    pub fn tried(group: Group, name: &str, outcome: Result<String, Error>) -> Self {
        let (offered, refused_by, reason, errno) = match outcome {
            Ok(reason) => (Some(true), None, reason, None),
            Err(error) => {
                let by = who(&error);
                // The library asks the device before it bothers the kernel, and then says who lacks it.
                let errno = error.errno().map(|errno| errno.name().map_or_else(|| errno.to_string(), str::to_owned));
                (by.is_some().then_some(false), by, error.to_string(), errno)
            }
        };
        Self { group, name: name.to_owned(), offered, refused_by, found_by: How::Tried, reason, errno }
    }

    /// From what the device says of itself.
    pub fn asked(group: Group, name: &str, offered: bool, reason: impl Into<String>) -> Self {
        let refused_by = (!offered).then_some(By::Device);
        let (name, reason) = (name.to_owned(), reason.into());
        Self { group, name, offered: Some(offered), refused_by, found_by: How::Asked, reason, errno: None }
    }

    /// In a word or two.
    pub fn answer(&self) -> String {
        match (self.offered, self.refused_by) {
            (Some(true), _) => "yes".to_owned(),
            (Some(false), Some(by)) => format!("no, {by}"),
            (Some(false), None) => "no".to_owned(),
            (None, _) => "unknown".to_owned(),
        }
    }

    /// How it was found out, in a word.
    pub fn how(&self) -> String {
        match self.found_by {
            How::Tried => "tried",
            How::Asked => "says so",
        }
        .to_owned()
    }
}

/// Who refused; none if this refusal says nothing of what is offered.
fn who(error: &Error) -> Option<By> {
    Some(match error {
        Error::Unsupported { by: Lacking::Kernel, .. } => By::Kernel,
        Error::Unsupported { by: Lacking::Driver, .. } => By::Driver,
        Error::Unsupported { by: Lacking::Device, .. } => By::Device,
        Error::Unsupported { .. } => By::Library,
        // A limit of zero.
        Error::Invalid { .. } => By::Device,
        Error::Kernel { errno: Errno::EOPNOTSUPP | Errno::ENOSYS, .. } => By::Driver,
        Error::Kernel { errno: Errno::EPROTONOSUPPORT | Errno::ENOTTY, .. } => By::Kernel,
        Error::Kernel { errno: Errno::EINVAL, .. } => By::Driver,
        Error::Kernel { errno: Errno::EPERM | Errno::EACCES | Errno::ENOMEM, .. } => By::User,
        _ => return None,
    })
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Driver => "driver",
            Self::Device => "device",
            Self::Library => "library",
            Self::User => "user",
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueuePairs => "queue pairs",
            Self::Operations => "operations",
            Self::Memory => "memory",
            Self::Completions => "completions",
            Self::SharedReceives => "shared receive queues",
            Self::Other => "other",
        })
    }
}
