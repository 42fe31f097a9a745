//! Kernel objects: handles that destroy what they name.

use super::abi::ioctl::{Method, attr, method, object};
use super::abi::{verbs, write};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::kernel::{Form, Native};
use super::leaks::{Left, Serial};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kinds of kernel objects that a context can hold.
///
/// ```
/// assert_eq!(ironverbs::ObjectKind::Qp.to_string(), "queue pair");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// Memory region.
    Mr,
    /// Memory window.
    Mw,
    /// Device memory.
    Dm,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Shared receive queue.
    Srq,
    /// Address handle.
    Ah,
    /// XRC domain.
    Xrcd,
}

impl ObjectKind {
    /// The kernel's number of the object type.
    pub(crate) const fn object_id(self) -> u16 {
        match self {
            Self::Pd => object::PD,
            Self::Mr => object::MR,
            Self::Mw => object::MW,
            Self::Dm => object::DM,
            Self::Cq => object::CQ,
            Self::Qp => object::QP,
            Self::Srq => object::SRQ,
            Self::Ah => object::AH,
            Self::Xrcd => object::XRCD,
        }
    }

    const fn destroy_verb(self) -> Verb {
        match self {
            Self::Pd => Verb::DeallocPd,
            Self::Mr => Verb::DeregMr,
            Self::Mw => Verb::DeallocMw,
            Self::Dm => Verb::FreeDm,
            Self::Cq => Verb::DestroyCq,
            Self::Qp => Verb::DestroyQp,
            Self::Srq => Verb::DestroySrq,
            Self::Ah => Verb::DestroyAh,
            Self::Xrcd => Verb::CloseXrcd,
        }
    }

    const fn destroy_native(self) -> (Native, Method) {
        match self {
            Self::Pd => (Native::PdDestroy, method::PD_DESTROY),
            Self::Mr => (Native::MrDestroy, method::MR_DESTROY),
            Self::Mw => (Native::MwDestroy, method::MW_DESTROY),
            Self::Dm => (Native::DmFree, method::DM_FREE),
            Self::Cq => (Native::CqDestroy, method::CQ_DESTROY),
            Self::Qp => (Native::QpDestroy, method::QP_DESTROY),
            Self::Srq => (Native::SrqDestroy, method::SRQ_DESTROY),
            Self::Ah => (Native::AhDestroy, method::AH_DESTROY),
            Self::Xrcd => (Native::XrcdDestroy, method::XRCD_DESTROY),
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pd => "protection domain",
            Self::Mr => "memory region",
            Self::Mw => "memory window",
            Self::Dm => "device memory",
            Self::Cq => "completion queue",
            Self::Qp => "queue pair",
            Self::Srq => "shared receive queue",
            Self::Ah => "address handle",
            Self::Xrcd => "XRC domain",
        })
    }
}

/// An object that the kernel refused to destroy when it was dropped. It is there as yet, and so is the memory that the device
/// may use for it; see [`Context::leaks`](crate::Context::leaks).
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// for leak in context.leaks() {
///     eprintln!("{leak}"); // as `completion queue 7: EBUSY (…)`
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// What it is.
    pub kind: ObjectKind,
    /// The kernel's handle, unique in its context.
    pub handle: u32,
    /// Why the kernel refused, when it was last asked.
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
/// them, are recorded as [`Leak`]s, until that one is gone. Owners that hold what an object needs avoid that.
pub struct Handle {
    context: Arc<Ucontext>,
    kind: ObjectKind,
    id: u32,
    /// Locked while the object is destroyed, so that this happens once.
    end: Mutex<End>,
    /// Memory that the device uses for the object: dropped when it is destroyed, else never.
    kept: Mutex<Option<Kept>>,
}

/// Whatever owns memory that the device uses for an object.
pub type Kept = Box<dyn Any + Send + Sync>;

/// How far an object's end has come.
#[derive(Clone, Copy)]
enum End {
    Alive,
    Destroyed(Destroyed),
    /// Recorded as a leak: from then on only the list says whether it is still there, as its number may be another's.
    Leaked(Serial),
}

impl Handle {
    /// `id` was just returned by a command that made an object of `kind` in `context`.
    pub(super) fn new(context: &Arc<Ucontext>, kind: ObjectKind, id: u32) -> Self {
        Self { context: Arc::clone(context), kind, id, end: Mutex::new(End::Alive), kept: Mutex::new(None) }
    }

    /// Names an object that is another handle's to destroy.
    pub(super) fn not_owned(context: &Arc<Ucontext>, kind: ObjectKind, id: u32) -> Self {
        let end = Mutex::new(End::Destroyed(Destroyed::default()));
        Self { context: Arc::clone(context), kind, id, end, kept: Mutex::new(None) }
    }

    /// The same object, with what must stay until it is destroyed.
    pub fn keeping(self, kept: Kept) -> Self {
        *self.kept() = Some(kept);
        self
    }

    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// stay too. A device that is gone has no objects any more: that is success, but for a memory region, whose memory it
    /// may still be using.
    pub fn destroy(&self) -> Result<Destroyed, Error> {
        self.destroy_now(&mut self.end()).map_err(|errno| {
            let error = Error::kernel(self.kind.destroy_verb(), errno);
            match errno {
                Errno::EBUSY => error.with_hint("another object still uses it: drop that one first"),
                Errno::EINVAL if self.kind == ObjectKind::Mr => {
                    error.with_hint("a memory window may still be bound to it: invalidate or drop that one first")
                }
                _ => error,
            }
        })
    }

    /// Destroys the object, in a destructor: a refusal is recorded as a [`Leak`]. Returns whether the object is gone; if it is
    /// not, [leave](Self::leave) what the device may use for it.
    pub fn destroy_or_leak(&self) -> bool {
        let mut end = self.end();
        if matches!(*end, End::Leaked(_)) {
            return false;
        }
        match self.destroy_now(&mut end) {
            Ok(_) => true,
            Err(errno) => {
                let kept = self.kept().take().map(|kept| kept as Left);
                *end = End::Leaked(self.context.leaks.record(Leak { kind: self.kind, handle: self.id, errno }, kept));
                false
            }
        }
    }

    /// Whether it is known to be destroyed.
    pub fn is_destroyed(&self) -> bool {
        matches!(*self.end(), End::Destroyed(_))
    }

    /// Leaves `left` with the object that [was not destroyed](Self::destroy_or_leak): it is dropped when that is gone after all,
    /// else never.
    pub fn leave(&self, left: Left) {
        let end = *self.end();
        match end {
            End::Leaked(serial) => self.context.leaks.leave(serial, left),
            End::Destroyed(_) => drop(left),
            End::Alive => std::mem::forget(left),
        }
    }

    fn end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn destroy_now(&self, end: &mut End) -> Result<Destroyed, Errno> {
        match *end {
            End::Alive => {}
            End::Destroyed(destroyed) => return Ok(destroyed),
            End::Leaked(serial) => match self.context.retry_leak(serial) {
                // As below.
                Some(errno) if errno != Errno::EIO || self.kind == ObjectKind::Mr => return Err(errno),
                _ => return Ok(Destroyed::default()),
            },
        }
        let destroyed = match self.context.destroy(self.kind, self.id) {
            // The device is gone, and with it its objects. Only of memory this says too little: the kernel answers so from
            // the moment it starts to take the device away, before it has ended all transfers.
            Err(Errno::EIO) if self.kind != ObjectKind::Mr || self.context.closing().has_deregistered(self.id) => {
                // As little as of memory does it say of a queue that the device writes to by itself.
                std::mem::forget(self.kept().take());
                Destroyed::default()
            }
            answer => answer?,
        };
        *end = End::Destroyed(destroyed);
        drop(self.kept().take());
        self.context.retry_leaks();
        Ok(destroyed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !matches!(self.end.get_mut(), Ok(End::Destroyed(_))) {
            self.destroy_or_leak();
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({:?} {})", self.kind, self.id)
    }
}

impl Ucontext {
    pub(super) fn destroy(&self, kind: ObjectKind, id: u32) -> Result<Destroyed, Errno> {
        let (native, method) = kind.destroy_native();
        self.kernel().attempt(native, |form| match form {
            Form::Native => self.destroy_native(kind, method, id),
            Form::Legacy => self.destroy_legacy(kind, id),
        })
    }

    fn destroy_native(&self, kind: ObjectKind, method: Method, id: u32) -> Result<Destroyed, Errno> {
        let mut cq = verbs::DestroyCqResp::default();
        let mut qp = verbs::DestroyQpResp::default();
        let mut srq = verbs::DestroySrqResp::default();
        let mut cmd = self.kernel().command(method);
        cmd.object_in(attr::destroy::HANDLE, id);
        match kind {
            ObjectKind::Pd | ObjectKind::Mr | ObjectKind::Mw | ObjectKind::Dm | ObjectKind::Ah | ObjectKind::Xrcd => {}
            ObjectKind::Cq => cmd.ptr_out(attr::destroy::RESP, &mut cq),
            ObjectKind::Qp => cmd.ptr_out(attr::destroy::RESP, &mut qp),
            ObjectKind::Srq => cmd.ptr_out(attr::destroy::RESP, &mut srq),
        }
        cmd.issue(&**self.cdev())?;
        Ok(Destroyed {
            comp_events: cq.comp_events_reported,
            async_events: cq.async_events_reported + qp.events_reported + srq.events_reported,
        })
    }

    fn destroy_legacy(&self, kind: ObjectKind, id: u32) -> Result<Destroyed, Errno> {
        let kernel = self.kernel();
        let mut destroyed = Destroyed::default();
        match kind {
            ObjectKind::Pd => kernel.invoke(&write::DeallocPd { pd_handle: id }, &mut (), &[], &mut [])?,
            ObjectKind::Ah => kernel.invoke(&write::DestroyAh { ah_handle: id }, &mut (), &[], &mut [])?,
            ObjectKind::Xrcd => kernel.invoke(&write::CloseXrcd { xrcd_handle: id }, &mut (), &[], &mut [])?,
            ObjectKind::Mr => kernel.invoke(&write::DeregMr { mr_handle: id }, &mut (), &[], &mut [])?,
            ObjectKind::Mw => kernel.invoke(&write::DeallocMw { mw_handle: id }, &mut (), &[], &mut [])?,
            // There never was another form.
            ObjectKind::Dm => return Err(Errno::EPROTONOSUPPORT),
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
            ObjectKind::Srq => {
                let request = write::DestroySrq { srq_handle: id, ..Default::default() };
                let mut response = verbs::DestroySrqResp::default();
                kernel.invoke(&request, &mut response, &[], &mut [])?;
                destroyed.async_events = response.events_reported;
            }
        }
        Ok(destroyed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::attr::{CreateQp, QpCap, QpDomain};
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::observe::Fault;

    fn create_qp(ctx: &Arc<Ucontext>, pd: &Handle, cq: &Handle) -> Handle {
        let request = CreateQp {
            domain: QpDomain::Pd(pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            qp_type: 2,
            sq_sig_all: false,
            cap: QpCap::default(),
            user_handle: ctx.next_user_handle(),
        };
        ctx.create_qp(&request, &[], &mut []).unwrap().handle
    }

    #[test]
    fn dropping_destroys() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let (cq, _) = ctx.create_cq(1, 1, None, 0, &[], &mut []).unwrap();
        let qp = create_qp(&ctx, &pd, &cq);
        assert_eq!(kernel.live(), [pd.id(), cq.id(), qp.id()]);
        drop(qp);
        drop(cq);
        drop(pd);
        assert!(kernel.live().is_empty());
        assert!(ctx.leaks().is_empty());
    }

    #[test]
    fn an_object_keeps_its_context() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let weak = Arc::downgrade(&ctx);
        drop(ctx);
        assert!(weak.upgrade().is_some());
        drop(pd);
        assert!(weak.upgrade().is_none());
        assert!(kernel.live().is_empty());
    }

    #[test]
    fn a_refused_destroy_can_be_repeated_and_is_no_leak_then() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let (cq, _) = ctx.create_cq(1, 1, None, 0, &[], &mut []).unwrap();
        let qp = create_qp(&ctx, &pd, &cq);
        let error = pd.destroy().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EBUSY));
        assert!(error.to_string().contains("another object still uses it"), "{error}");
        assert_eq!(cq.destroy().unwrap_err().errno(), Some(Errno::EBUSY));
        assert_eq!(qp.destroy().unwrap(), Destroyed { comp_events: 0, async_events: 7 });
        assert_eq!(cq.destroy().unwrap(), Destroyed { comp_events: 5, async_events: 6 });
        pd.destroy().unwrap();
        kernel.take_log();
        assert_eq!(cq.destroy().unwrap(), Destroyed { comp_events: 5, async_events: 6 }, "remembered");
        drop((pd, cq, qp));
        assert!(kernel.take_log().is_empty(), "nothing is destroyed twice");
        assert!(ctx.leaks().is_empty());
    }

    #[test]
    fn a_refusal_at_drop_is_recorded_as_a_leak() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let (cq, _) = ctx.create_cq(1, 1, None, 0, &[], &mut []).unwrap();
        let qp = create_qp(&ctx, &pd, &cq);
        let (pd_id, cq_id) = (pd.id(), cq.id());
        drop(pd);
        drop(cq);
        let leaks = ctx.leaks();
        assert_eq!(leaks.len(), 2);
        assert_eq!(leaks[0], Leak { kind: ObjectKind::Pd, handle: pd_id, errno: Errno::EBUSY });
        assert_eq!(leaks[1], Leak { kind: ObjectKind::Cq, handle: cq_id, errno: Errno::EBUSY });
        assert!(leaks[1].to_string().starts_with("completion queue 1: EBUSY"), "{}", leaks[1]);
        drop(qp);
        assert_eq!((kernel.live(), ctx.leaks()), (vec![], vec![]), "what they waited for is gone");
    }

    /// It is asked for again when something else is gone, and what was left with it goes with it, and not before.
    #[test]
    fn a_refusal_that_passes_leaves_nothing() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let (cq, _) = ctx.create_cq(1, 1, None, 0, &[], &mut []).unwrap();
        let memory = Arc::new(());
        let qp = create_qp(&ctx, &pd, &cq).keeping(Box::new(memory.clone()));
        kernel.refuse_destroy(Some(Errno::ENOMEM));
        assert!(!qp.destroy_or_leak());
        qp.leave(Box::new(memory.clone()));
        drop((qp, cq, pd));
        let other = ctx.alloc_pd(&mut []).unwrap();
        assert_eq!((ctx.leaks().len(), Arc::strong_count(&memory)), (3, 3), "{:?}", ctx.leaks());
        kernel.refuse_destroy(None);
        drop(other);
        assert_eq!((kernel.live(), ctx.leaks()), (vec![], vec![]));
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn what_the_device_may_still_use_outlives_its_context() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let memory = Arc::new(());
        let pd = ctx.alloc_pd(&mut []).unwrap().keeping(Box::new(memory.clone()));
        kernel.refuse_destroy(Some(Errno::ENOMEM));
        drop(pd);
        ctx.abandon();
        kernel.refuse_destroy(None);
        drop(ctx);
        assert_eq!(Arc::strong_count(&memory), 2, "nobody knows whether the device is done with it");
    }

    #[test]
    fn objects_of_a_device_that_is_gone_are_gone() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let other = ctx.alloc_pd(&mut []).unwrap();
        kernel.refuse_destroy(Some(Errno::EIO));
        assert_eq!(pd.destroy().unwrap(), Destroyed::default());
        drop((pd, other));
        assert!(ctx.leaks().is_empty());
        kernel.refuse_destroy(None);
    }

    /// Makes every command of a whole life fail in turn: nothing panics, and nothing is left but what was refused.
    #[test]
    fn every_command_may_fail() {
        for knows in [Knows::ALL, Knows::INVOKE_WRITE, Knows::WRITE] {
            for nth in 0.. {
                let kernel = FakeKernel::new(knows);
                let fault = Fault::new();
                fault.fail_nth(nth, Errno::ENOMEM);
                let leaks = live_and_die(fault.wrap(kernel.clone()));
                assert_eq!(kernel.live().len(), leaks, "command {nth} failed, {knows:?}");
                if fault.injected() == 0 {
                    assert!(nth > 8, "the walk has more commands than {nth}");
                    break;
                }
            }
        }
    }

    /// Makes what it can, drops it in order, and returns how many objects the kernel would not destroy.
    fn live_and_die(cdev: Arc<dyn crate::uverbs::sys::Cdev>) -> usize {
        let Ok(ctx) = Ucontext::open(cdev, &[], &mut []) else { return 0 };
        let made = (|| -> Result<(), Error> {
            let pd = ctx.alloc_pd(&mut [])?;
            let (cq, _) = ctx.create_cq(1, 1, None, 0, &[], &mut [])?;
            let request = CreateQp {
                domain: QpDomain::Pd(&pd),
                send_cq: Some(&cq),
                recv_cq: Some(&cq),
                srq: None,
                qp_type: 2,
                sq_sig_all: false,
                cap: QpCap::default(),
                user_handle: 3,
            };
            let qp = ctx.create_qp(&request, &[], &mut [])?.handle;
            ctx.query_qp(&qp).map(|_| ())
        })();
        let leaks = ctx.leaks().len();
        assert!(made.is_err() || leaks <= 3);
        leaks
    }
}
