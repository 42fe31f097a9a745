//! Kernel objects: handles that destroy what they name.

use super::abi::ioctl::{Method, attr, method, object};
use super::abi::{verbs, write};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::kernel::{Form, Native};
use std::fmt;
use std::sync::Arc;

/// Kinds of kernel objects that a context can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// Memory region.
    Mr,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
}

impl ObjectKind {
    /// The kernel's number of the object type.
    pub(crate) const fn object_id(self) -> u16 {
        match self {
            Self::Pd => object::PD,
            Self::Mr => object::MR,
            Self::Cq => object::CQ,
            Self::Qp => object::QP,
        }
    }

    const fn destroy_verb(self) -> Verb {
        match self {
            Self::Pd => Verb::DeallocPd,
            Self::Mr => Verb::DeregMr,
            Self::Cq => Verb::DestroyCq,
            Self::Qp => Verb::DestroyQp,
        }
    }

    const fn destroy_native(self) -> (Native, Method) {
        match self {
            Self::Pd => (Native::PdDestroy, method::PD_DESTROY),
            Self::Mr => (Native::MrDestroy, method::MR_DESTROY),
            Self::Cq => (Native::CqDestroy, method::CQ_DESTROY),
            Self::Qp => (Native::QpDestroy, method::QP_DESTROY),
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pd => "protection domain",
            Self::Mr => "memory region",
            Self::Cq => "completion queue",
            Self::Qp => "queue pair",
        })
    }
}

/// An object that the kernel refused to destroy. It lives until the context is closed, and so must its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// What it is.
    pub kind: ObjectKind,
    /// The kernel's handle, unique in its context.
    pub handle: u32,
    /// Why the kernel refused.
    pub errno: Errno,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.handle, self.errno)
    }
}

/// How many events the kernel ever reported for an object that is now destroyed, read or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    pub comp_events: u32,
    pub async_events: u32,
}

/// A kernel object. It keeps its context open, and is destroyed when dropped.
///
/// Handles of one context may be dropped in any order: those that the kernel refuses, because another object still uses
/// them, are recorded as [`Leak`]s. Owners that hold what an object needs avoid that.
pub struct Handle {
    context: Arc<Ucontext>,
    kind: ObjectKind,
    id: u32,
    /// Set once the object is gone.
    destroyed: Option<Destroyed>,
}

impl Handle {
    /// `id` was just returned by a command that made an object of `kind` in `context`.
    pub(super) fn new(context: &Arc<Ucontext>, kind: ObjectKind, id: u32) -> Self {
        Self { context: Arc::clone(context), kind, id, destroyed: None }
    }

    /// The kernel's number of the object.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Ucontext> {
        &self.context
    }

    /// Destroys the object now. After success later calls return the same.
    ///
    /// If the kernel refuses, the object stays, and a later call may succeed; memory that the device may use for it must
    /// stay too. A device that is gone has no objects any more: that is success.
    pub fn destroy(&mut self) -> Result<Destroyed, Error> {
        self.destroy_now().map_err(|errno| {
            let error = Error::kernel(self.kind.destroy_verb(), errno);
            match errno {
                Errno::EBUSY => error.with_hint("another object still uses it: drop that one first"),
                _ => error,
            }
        })
    }

    fn destroy_now(&mut self) -> Result<Destroyed, Errno> {
        if let Some(destroyed) = self.destroyed {
            return Ok(destroyed);
        }
        let destroyed = match self.context.destroy(self.kind, self.id) {
            Err(Errno::EIO) => Destroyed::default(),
            answer => answer?,
        };
        self.destroyed = Some(destroyed);
        Ok(destroyed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(errno) = self.destroy_now() {
            self.context.record_leak(Leak { kind: self.kind, handle: self.id, errno });
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:?} {})", self.kind, self.id)
    }
}

impl Ucontext {
    fn destroy(&self, kind: ObjectKind, id: u32) -> Result<Destroyed, Errno> {
        let (native, method) = kind.destroy_native();
        self.kernel().attempt(native, |form| match form {
            Form::Native => self.destroy_native(kind, method, id),
            Form::Legacy => self.destroy_legacy(kind, id),
        })
    }

    fn destroy_native(&self, kind: ObjectKind, method: Method, id: u32) -> Result<Destroyed, Errno> {
        let mut cq = verbs::DestroyCqResp::default();
        let mut qp = verbs::DestroyQpResp::default();
        let mut cmd = self.kernel().command(method);
        cmd.object_in(attr::destroy::HANDLE, id);
        match kind {
            ObjectKind::Pd | ObjectKind::Mr => {}
            ObjectKind::Cq => cmd.ptr_out(attr::destroy::RESP, &mut cq),
            ObjectKind::Qp => cmd.ptr_out(attr::destroy::RESP, &mut qp),
        }
        cmd.issue(&**self.cdev())?;
        Ok(Destroyed {
            comp_events: cq.comp_events_reported,
            async_events: cq.async_events_reported + qp.events_reported,
        })
    }

    fn destroy_legacy(&self, kind: ObjectKind, id: u32) -> Result<Destroyed, Errno> {
        let kernel = self.kernel();
        let mut destroyed = Destroyed::default();
        match kind {
            ObjectKind::Pd => kernel.invoke(&write::DeallocPd { pd_handle: id }, &mut (), &[], &mut [])?,
            ObjectKind::Mr => kernel.invoke(&write::DeregMr { mr_handle: id }, &mut (), &[], &mut [])?,
            ObjectKind::Cq => {
                let request = write::DestroyCq { cq_handle: id, ..Default::default() };
                let mut response = verbs::DestroyCqResp::default();
                kernel.invoke(&request, &mut response, &[], &mut [])?;
                destroyed.comp_events = response.comp_events_reported;
                destroyed.async_events = response.async_events_reported;
            }
            ObjectKind::Qp => {
                let request = write::DestroyQp { qp_handle: id, ..Default::default() };
                let mut response = verbs::DestroyQpResp::default();
                kernel.invoke(&request, &mut response, &[], &mut [])?;
                destroyed.async_events = response.events_reported;
            }
        }
        Ok(destroyed)
    }
}
