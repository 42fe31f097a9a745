//! What can go wrong on the control path.

use super::errno::Errno;
use super::explain;
use super::wc::WcError;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// Who lacks a feature.
///
/// ```
/// assert_eq!(ironverbs::Lacking::Driver.to_string(), "the device's kernel driver");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lacking {
    /// The running kernel's verbs core does not know it.
    Kernel,
    /// The device's kernel driver does not offer it.
    Driver,
    /// The device itself does not offer it.
    Device,
    /// This library has no code for it.
    Library,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "the running kernel",
            Self::Driver => "the device's kernel driver",
            Self::Device => "the device",
            Self::Library => "this library",
        })
    }
}

/// An error of a verb that is not on the hot path.
///
/// ```no_run
/// # fn f() -> Result<(), ironverbs::Error> {
/// use ironverbs::{Context, Errno, Error};
/// match Context::open("rxe0") {
///     Err(Error::NoDevice { .. }) => println!("is the module loaded?"),
///     Err(error) if error.errno() == Some(Errno::EACCES) => println!("{error}"),
///     other => drop(other?),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a command. `errno` is what it returned for that very command.
    #[error("{verb}: {errno}{}", Hint(.hint))]
    Kernel {
        /// The verb that was refused.
        verb: Verb,
        /// The kernel's answer, unchanged.
        errno: Errno,
        /// What that answer means for this verb, where the library knows it.
        hint: Option<Cow<'static, str>>,
    },
    /// Nobody here can do what was asked, and trying again will not help.
    #[error("{verb}: {what} is not supported by {by}")]
    Unsupported {
        /// The verb that was asked for.
        verb: Verb,
        /// The feature.
        what: Cow<'static, str>,
        /// Who lacks it.
        by: Lacking,
    },
    /// The other side speaks another version of an interface, or answered something that cannot be.
    #[error("{verb}: {what}: needs {need}, found {got}")]
    Abi {
        /// The verb that met it.
        verb: Verb,
        /// The interface or field.
        what: Cow<'static, str>,
        /// What this library can use.
        need: Cow<'static, str>,
        /// What there was.
        got: Cow<'static, str>,
    },
    /// A value was refused before any system call was made.
    #[error("{verb}: {what} is {value}; {limit}")]
    Invalid {
        /// The verb that refused it.
        verb: Verb,
        /// The parameter.
        what: &'static str,
        /// The value given.
        value: Cow<'static, str>,
        /// The limit, and what to do.
        limit: Cow<'static, str>,
    },
    /// A queue pair cannot go from one state to the other with the attributes given. No system call was made.
    #[error("modify_qp: {0}")]
    Transition(Box<Transition>),
    /// No device is what the caller asked for.
    #[error("no RDMA device {wanted}{}", Hint(.hint))]
    NoDevice {
        /// What was asked for.
        wanted: Cow<'static, str>,
        /// What there is instead, or why there is none.
        hint: Option<Cow<'static, str>>,
    },
    /// A wait with a deadline came to it.
    #[error("{verb}: nothing came within {waited:?}")]
    Timeout {
        /// What was waited for.
        verb: Verb,
        /// How long.
        waited: Duration,
    },
    /// A work request of a [`scope`](crate::Qp::scope) failed.
    #[error("{verb}: operation {index} of the scope, counted from 0, failed: {error}")]
    Failed {
        /// How it was posted.
        verb: Verb,
        /// Which one, in the order of posting, from 0.
        index: u32,
        /// Why.
        error: WcError,
    },
    /// The device found a completion queue full and lost completions: make it larger, and connect its queue pairs anew.
    #[error("{verb}: the completion queue overran and lost completions: make it larger and connect anew")]
    CqOverrun {
        /// The verb that noticed.
        verb: Verb,
    },
    /// The device went away; its objects are gone with it.
    ///
    /// The removal of a Soft-RoCE device (`rdma link del`) waits until every program has closed it, so it comes with no
    /// error here: let go with [`Context::shutdown`](crate::Context::shutdown) when told to.
    #[error("{verb}: the device is gone")]
    DeviceGone {
        /// The verb that noticed.
        verb: Verb,
    },
}

/// A refused state transition of a queue pair.
///
/// ```no_run
/// # fn f(qp: &mut ironverbs::Qp) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Error, QpState, QpUpdate};
/// if let Err(Error::Transition(why)) = qp.modify(&QpUpdate::to(QpState::RTR)) {
///     println!("missing: {:?}", why.missing);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// The transport of the queue pair, as `RC`.
    pub transport: &'static str,
    /// The state the queue pair is in.
    pub from: &'static str,
    /// The state asked for.
    pub to: &'static str,
    /// Whether the transport has such a transition at all.
    pub exists: bool,
    /// Attributes that the transition needs and that were not given.
    pub missing: Vec<&'static str>,
    /// Attributes that were given and that the transition does not take.
    pub extra: Vec<&'static str>,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queue pair, {} to {}", self.transport, self.from, self.to)?;
        if !self.exists {
            return write!(f, ": there is no such transition");
        }
        if !self.missing.is_empty() {
            write!(f, ": missing {}", self.missing.join(", "))?;
        }
        if !self.extra.is_empty() {
            write!(f, "{} not allowed {}", if self.missing.is_empty() { ":" } else { ";" }, self.extra.join(", "))?;
        }
        Ok(())
    }
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

impl Error {
    /// The kernel's error number, where the kernel is who refused.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } => Some(*errno),
            Self::DeviceGone { .. } => Some(Errno::EIO),
            _ => None,
        }
    }

    /// The kernel refused `verb`.
    pub(crate) fn kernel(verb: Verb, errno: Errno) -> Self {
        if errno == Errno::EIO {
            return Self::DeviceGone { verb };
        }
        Self::Kernel { verb, errno, hint: explain::of_any_verb(errno).map(Cow::from) }
    }

    /// The same error, with what it means. Keeps an earlier hint.
    pub(crate) fn with_hint(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        if let Self::Kernel { hint: hint @ None, .. } | Self::NoDevice { hint: hint @ None, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// `value` of `what` is outside `limit`.
    pub(crate) fn invalid(
        verb: Verb,
        what: &'static str,
        value: impl fmt::Display,
        limit: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Invalid { verb, what, value: value.to_string().into(), limit: limit.into() }
    }
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The verb an error came from, printed as the field writes it.
        ///
        /// ```
        /// assert_eq!(ironverbs::Verb::CreateQp.to_string(), "create_qp");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each variant is the verb it prints as")]
        pub enum Verb {
            $($variant,)*
        }
        impl Verb {
            /// The verb's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

verbs! {
    ListDevices = "list_devices",
    OpenDevice = "open_device",
    CloseDevice = "close_device",
    QueryDevice = "query_device",
    QueryPort = "query_port",
    QueryGid = "query_gid",
    QueryPkey = "query_pkey",
    AllocPd = "alloc_pd",
    DeallocPd = "dealloc_pd",
    RegMr = "reg_mr",
    UseMr = "memory region",
    DeregMr = "dereg_mr",
    ReregMr = "rereg_mr",
    RegDmabufMr = "reg_dmabuf_mr",
    AdviseMr = "advise_mr",
    AllocMw = "alloc_mw",
    DeallocMw = "dealloc_mw",
    BindMw = "bind_mw",
    AllocDm = "alloc_dm",
    FreeDm = "free_dm",
    CreateCompChannel = "create_comp_channel",
    GetCqEvent = "get_cq_event",
    AllocAsyncFd = "alloc_async_fd",
    GetAsyncEvent = "get_async_event",
    CreateCq = "create_cq",
    ResizeCq = "resize_cq",
    ModifyCq = "modify_cq",
    DestroyCq = "destroy_cq",
    ReqNotifyCq = "req_notify_cq",
    PollCq = "poll_cq",
    CreateAh = "create_ah",
    DestroyAh = "destroy_ah",
    AttachMcast = "attach_mcast",
    DetachMcast = "detach_mcast",
    CreateQp = "create_qp",
    ModifyQp = "modify_qp",
    QueryQp = "query_qp",
    DrainQp = "drain_qp",
    DestroyQp = "destroy_qp",
    CreateSrq = "create_srq",
    ModifySrq = "modify_srq",
    QuerySrq = "query_srq",
    DestroySrq = "destroy_srq",
    OpenXrcd = "open_xrcd",
    CloseXrcd = "close_xrcd",
    OpenQp = "open_qp",
    PostSend = "post_send",
    PostRecv = "post_recv",
    MapQueue = "mmap",
    InfoHandles = "info_handles",
    GetCmEvent = "rdma_get_cm_event",
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
