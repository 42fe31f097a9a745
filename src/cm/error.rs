//! What can go wrong between two addresses and a connection.

use super::data::PrivateData;
use super::event::EventType;
use super::interface;
use super::reason::Reason;
use super::state::State;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::Error as VerbsError;
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// An error of the connection manager: which step, between which addresses, why, and what to do.
///
/// ```no_run
/// use ironverbs::rdma_cm::{Connector, Error};
/// use std::time::Duration;
/// # fn f() -> Result<(), Error> {
/// match Connector::to("10.9.9.2:7471".parse().unwrap()).resolve(Duration::from_secs(5)) {
///     Err(Error::NoService { .. }) => println!("is the module loaded?"),
///     Err(Error::Timeout { step, .. }) => println!("{step} took too long"),
///     other => drop(other?),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a command. `errno` is what it returned for that very command.
    #[error("{step}{about}: {errno}{}", Hint(.hint))]
    Kernel {
        /// The step that was refused.
        step: Step,
        /// The kernel's answer, unchanged.
        errno: Errno,
        /// Between whom.
        about: Box<About>,
        /// What that answer means for this step, where the library knows it.
        hint: Option<Cow<'static, str>>,
    },
    /// The step was begun, and an event told that it failed.
    #[error("{step}{about}: {reason}{}", Hint(.hint))]
    Failed {
        /// The step that failed.
        step: Step,
        /// The event that told.
        event: EventType,
        /// Why, decoded as the event has it.
        reason: Reason,
        /// Between whom.
        about: Box<About>,
        /// What to do, where the library knows it.
        hint: Option<Cow<'static, str>>,
        /// What the peer said with a rejection: the whole field, see [`PrivateData`].
        private_data: Box<PrivateData>,
    },
    /// While the step was under way, an event came that ends it otherwise, as when the peer disconnects before the connection
    /// is established.
    #[error("{step}{about}: {event} came instead{}", Hint(.hint))]
    Unexpected {
        /// The step that was under way.
        step: Step,
        /// What came.
        event: EventType,
        /// Between whom.
        about: Box<About>,
        /// What to do, where the library knows it.
        hint: Option<Cow<'static, str>>,
    },
    /// A value was refused before any system call was made.
    #[error("{step}: {what} is {value}; {limit}")]
    Invalid {
        /// The step that refused it.
        step: Step,
        /// The parameter.
        what: &'static str,
        /// The value given.
        value: Cow<'static, str>,
        /// The limit, and what to do.
        limit: Cow<'static, str>,
    },
    /// The step did not end within its time. It goes on in the kernel until the id is dropped.
    #[error("{step}{about}: {}{}", Silence(*.waited), Hint(.hint))]
    Timeout {
        /// What was waited for.
        step: Step,
        /// How long.
        waited: Duration,
        /// Between whom.
        about: Box<About>,
        /// What may be the matter, where the library knows it.
        hint: Option<Cow<'static, str>>,
    },
    /// There is no connection manager here.
    #[error("no connection manager: {why}")]
    NoService {
        /// Why, and what to do.
        why: Cow<'static, str>,
    },
    /// The process runs under other credentials than those that the file was opened with, and the kernel takes no command
    /// from it any more (`ib_safe_file_access`). Open the connection manager after the change of user, not before.
    #[error("{step}: the process has changed its credentials since it opened the connection manager; open it anew")]
    OtherCredentials {
        /// The step that was refused.
        step: Step,
    },
    /// A verb failed on the way to a connection.
    #[error("{step}: {error}")]
    Verbs {
        /// The step it was needed for.
        step: Step,
        /// What the verb said.
        #[source]
        error: Box<VerbsError>,
    },
}

/// Prints a hint after a colon, if there is one.
struct Hint<'a>(&'a Option<Cow<'static, str>>);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

/// Prints what a wait came to.
struct Silence(Duration);

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Duration::ZERO => write!(f, "there was no time left to wait for it"),
            // In tenths: what was left of a time that was given in whole seconds is told as that.
            waited if waited >= Duration::from_secs(1) => {
                write!(f, "nothing came within {} s", (waited.as_secs_f32() * 10.0).round() / 10.0)
            }
            waited => write!(f, "nothing came within {} ms", waited.as_millis().max(1)),
        }
    }
}

impl Error {
    /// The kernel's error number: the answer to a command, or what an event told.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } | Self::Failed { reason: Reason::Errno(errno), .. } => Some(*errno),
            Self::OtherCredentials { .. } => Some(Errno::EACCES),
            Self::Verbs { error, .. } => error.errno(),
            _ => None,
        }
    }

    /// The step it came from. `None` if there is no connection manager at all.
    pub fn step(&self) -> Option<Step> {
        match self {
            Self::Kernel { step, .. }
            | Self::Failed { step, .. }
            | Self::Unexpected { step, .. }
            | Self::Invalid { step, .. }
            | Self::Timeout { step, .. }
            | Self::OtherCredentials { step }
            | Self::Verbs { step, .. } => Some(*step),
            Self::NoService { .. } => None,
        }
    }

    /// The kernel refused `step`.
    pub(crate) fn kernel(step: Step, errno: Errno) -> Self {
        Self::Kernel { step, errno, about: Box::default(), hint: None }
    }

    pub(crate) fn invalid(
        step: Step,
        what: &'static str,
        value: impl fmt::Display,
        limit: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Invalid { step, what, value: value.to_string().into(), limit: limit.into() }
    }

    pub(crate) fn verbs(step: Step) -> impl FnOnce(VerbsError) -> Self {
        move |error| Self::Verbs { step, error: Box::new(error) }
    }

    /// The same error, with what it means. Keeps an earlier hint.
    pub(crate) fn with_hint(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        if let Self::Kernel { hint: hint @ None, .. } | Self::Failed { hint: hint @ None, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }
}

/// Between whom a step was to lead.
///
/// ```
/// use ironverbs::rdma_cm::About;
/// let mut about = About::default();
/// (about.to, about.interface) = (Some("10.9.9.2:7471".parse().unwrap()), Some("net0".into()));
/// assert_eq!(about.to_string(), " to 10.9.9.2:7471 (via net0)");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The own address, where one was given or is known.
    pub from: Option<SocketAddr>,
    /// The peer's address.
    pub to: Option<SocketAddr>,
    /// The network interface that leads there.
    pub interface: Option<String>,
    /// The state the id was in.
    pub state: Option<State>,
    /// The last event of the id.
    pub last_event: Option<EventType>,
}

impl About {
    /// Looks up the interface: when something went wrong, and never before.
    pub(super) fn with_interface(mut self) -> Self {
        self.interface = interface::between(self.from, self.to);
        self
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(from) = self.from {
            write!(f, " from {from}")?;
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if let Some(interface) = &self.interface {
            write!(f, " (via {interface})")?;
        }
        Ok(())
    }
}

macro_rules! steps {
    ($($variant:ident = $name:literal,)*) => {
        /// A step on the way to a connection and back, printed as the field writes it.
        ///
        /// ```
        /// assert_eq!(ironverbs::rdma_cm::Step::ResolveAddr.to_string(), "rdma_resolve_addr");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each variant is the step it prints as")]
        pub enum Step {
            $($variant,)*
        }

        impl Step {
            /// The step's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

steps! {
    Open = "rdma_create_event_channel",
    CreateId = "rdma_create_id",
    DestroyId = "rdma_destroy_id",
    Bind = "rdma_bind_addr",
    ResolveAddr = "rdma_resolve_addr",
    ResolveRoute = "rdma_resolve_route",
    Query = "rdma_query",
    SetOption = "rdma_set_option",
    Listen = "rdma_listen",
    GetRequest = "rdma_get_request",
    Connect = "rdma_connect",
    Accept = "rdma_accept",
    Establish = "rdma_establish",
    Reject = "rdma_reject",
    Disconnect = "rdma_disconnect",
    InitQpAttr = "rdma_init_qp_attr",
    Notify = "rdma_notify",
    JoinMulticast = "rdma_join_multicast",
    LeaveMulticast = "rdma_leave_multicast",
    Migrate = "rdma_migrate_id",
    GetEvent = "rdma_get_cm_event",
    OpenDevice = "open_device",
    PrepareQp = "create_qp",
    ModifyQp = "modify_qp",
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
