//! The kernel's error numbers.

use std::fmt;

/// An error number as the kernel returned it: positive, never translated. Unknown numbers are kept and print as numbers.
///
/// ```
/// use ironverbs::Errno;
/// assert!(Errno::EINVAL.to_string().starts_with("EINVAL"));
/// assert_eq!(Errno::from_raw(524).to_string(), "ENOTSUPP (the kernel does not do this)");
/// assert_eq!(Errno::from_raw(9999).to_string(), "error 9999");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Wraps a raw, positive error number.
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// The raw, positive error number.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The calling thread's `errno`.
    pub(crate) fn last() -> Self {
        Self(nix::errno::Errno::last_raw())
    }
}

macro_rules! errnos {
    ($($name:ident)*) => {
        #[allow(missing_docs, reason = "each constant is the C constant of the same name")]
        impl Errno {
            $(pub const $name: Self = Self(libc::$name);)*
        }
        impl Errno {
            /// The C name, for the numbers that a verbs device returns.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    ENOTSUPP => Some("ENOTSUPP"),
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE ENOTTY ENOSPC
    EPIPE ERANGE EDEADLK ENOSYS ENODATA ETIME EPROTO EOVERFLOW EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL
    ENETDOWN ENETUNREACH ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY
    EINPROGRESS EREMOTEIO ECANCELED
}

/// A number of the kernel's own (`include/linux/errno.h`), which some of its commands let out.
const ENOTSUPP: i32 = 524;

impl From<nix::errno::Errno> for Errno {
    fn from(e: nix::errno::Errno) -> Self {
        Self(e as i32)
    }
}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> Self {
        Self::from_raw_os_error(e.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) if self.0 == ENOTSUPP => write!(f, "{name} (the kernel does not do this)"),
            Some(name) => write!(f, "{name} ({})", nix::errno::Errno::from_raw(self.0).desc()),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}
