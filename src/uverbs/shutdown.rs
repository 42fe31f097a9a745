//! Giving up a device while its objects are still there: nothing of this process holds it any more.
//!
//! A driver that cannot disconnect its users (rxe) removes a device only when the last file of it is closed, and a file is
//! closed only when its last descriptor *and* its last mapping are gone. Objects own both, and other threads may be using
//! them. So descriptors are not closed but made to lead elsewhere, and mappings become ordinary memory in place.

use super::attr::{ModifyQp, QpState, qp_attr_mask};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::object::{Handle, ObjectKind};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Event files that are open, and what became of the rest.
#[derive(Default)]
pub struct Closing {
    done: AtomicBool,
    files: Mutex<Files>,
    deregistered: Mutex<HashSet<u32>>,
}

#[derive(Default)]
struct Files {
    open: Vec<Weak<OwnedFd>>,
    /// They were led elsewhere. What another thread had just opened follows.
    given_up: bool,
}

impl Closing {
    /// Keeps an eye on an event file as long as it is open.
    pub fn watch(&self, fd: OwnedFd) -> Result<Arc<OwnedFd>, Errno> {
        let fd = Arc::new(fd);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.given_up {
            lead_nowhere(&fd)?;
        }
        files.open.retain(|file| file.strong_count() != 0);
        files.open.push(Arc::downgrade(&fd));
        Ok(fd)
    }

    /// Whether the device let go of that region before the file was given up.
    pub fn has_deregistered(&self, id: u32) -> bool {
        self.deregistered.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }
}

impl Ucontext {
    /// Gives the device up: no queue pair works any more, and no file or mapping of it is left in this process. Later
    /// commands are answered as by a device that is gone. One that is gone already is given up like any other.
    ///
    /// If another thread is at it, waits for that one.
    ///
    /// Descriptors stay open, on a pipe at its end, until their owners close them. Mappings keep the bytes they had.
    pub fn shutdown(self: &Arc<Self>) -> Result<(), Error> {
        if !self.gate().begin_closing() {
            return Ok(());
        }
        if self.closing().done.load(Ordering::Acquire) {
            self.gate().end_closing();
            return Ok(());
        }
        let given_up = self.give_up();
        // Before the next thread is let in, which must not do it again.
        self.closing().done.store(given_up.is_ok(), Ordering::Release);
        // Also after an error: handles of what was destroyed are still there, and their numbers must not be given again.
        self.gate().end_closing();
        // Regions that were refused to whoever dropped them, and not here: their memory goes.
        self.retry_all_leaks();
        given_up
    }

    fn give_up(self: &Arc<Self>) -> Result<(), Error> {
        let refused = |errno| Error::kernel(Verb::CloseDevice, errno);
        self.retry_all_leaks();
        // Windows first: a bound one holds on to its queue pair and to its region. One that stays, stays with its region.
        let windows = match self.handles_there(ObjectKind::Mw) {
            // The driver has none, and the kernel hides what a driver has not.
            Err(error) if error.errno() == Some(Errno::ENOENT) => vec![],
            listed => listed?,
        };
        for id in windows {
            let _ = self.destroy(ObjectKind::Mw, id);
        }
        // Queue pairs next: once they are gone, the device touches neither memory nor completion queues.
        for id in self.handles_there(ObjectKind::Qp)? {
            self.stop_queue_pair(id);
        }
        let regions = self.handles_there(ObjectKind::Mr)?;
        let gone = regions.into_iter().filter(|id| self.destroy(ObjectKind::Mr, *id).is_ok());
        self.closing().deregistered.lock().unwrap_or_else(PoisonError::into_inner).extend(gone);
        self.cdev().close().map_err(refused)?;
        let mut files = self.closing().files.lock().unwrap_or_else(PoisonError::into_inner);
        files.given_up = true;
        for file in files.open.iter().filter_map(Weak::upgrade) {
            lead_nowhere(&file).map_err(refused)?;
        }
        Ok(())
    }

    /// The objects of one kind that can be destroyed: none of a device that is gone, of which the kernel does so itself. Only the
    /// file is left to be closed then.
    fn handles_there(&self, kind: ObjectKind) -> Result<Vec<u32>, Error> {
        match self.info_handles(kind) {
            Err(Error::DeviceGone { .. }) => Ok(vec![]),
            listed => listed,
        }
    }

    /// Destroys a queue pair; one that cannot be destroyed (it is in a multicast group, say) is stopped.
    fn stop_queue_pair(self: &Arc<Self>, id: u32) {
        if self.destroy(ObjectKind::Qp, id).is_err() {
            let reset = ModifyQp { attr_mask: qp_attr_mask::STATE, qp_state: QpState::RESET, ..ModifyQp::default() };
            // If this fails as well, the device is gone.
            let _ = self.modify_qp(&Handle::not_owned(self, ObjectKind::Qp, id), &reset);
        }
    }
}

/// Makes the descriptor one of a pipe that nobody writes: reads find its end, writes and ioctls fail.
pub fn lead_nowhere(fd: &impl AsRawFd) -> Result<(), Errno> {
    let (reader, _) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    redirect::replace(fd, &reader)
}

mod redirect {
    //! # Safety argument
    //!
    //! A descriptor is replaced in one step, so that its number is never free; its owner closes it as before.
    #![allow(unsafe_code)]

    use super::*;

    pub fn replace(fd: &impl AsRawFd, by: &OwnedFd) -> Result<(), Errno> {
        // SAFETY: the number belongs to the caller, whose it remains; that it leads to another file now is the purpose.
        if unsafe { libc::dup3(by.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) } < 0 {
            return Err(Errno::last());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::observe::Fault;
    use crate::uverbs::sys::Cdev;
    use std::os::fd::AsFd;

    fn open() -> (Arc<FakeKernel>, Arc<Ucontext>) {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone() as Arc<dyn Cdev>, &[], &mut []).unwrap();
        (kernel, ctx)
    }

    /// Soft-RoCE waits long for a queue pair that a bound window holds, and then frees it under the window.
    #[test]
    fn windows_go_before_queue_pairs_and_regions_last() {
        let (kernel, ctx) = open();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let (cq, _) = ctx.create_cq(1, 1, None, 0, &[], &mut []).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let (mr, ..) = ctx.reg_dmabuf_mr(&pd, file.as_fd(), 0, 4096, 0, 0).unwrap();
        let mw = ctx.alloc_mw(&pd, 2).unwrap();
        let request = crate::uverbs::attr::CreateQp {
            domain: crate::uverbs::attr::QpDomain::Pd(&pd),
            send_cq: Some(&cq),
            recv_cq: Some(&cq),
            srq: None,
            qp_type: 2,
            sq_sig_all: false,
            cap: Default::default(),
            user_handle: 1,
        };
        let qp = ctx.create_qp(&request, &[], &mut []).unwrap().handle;
        kernel.take_log();
        ctx.shutdown().unwrap();
        let destroyed: Vec<_> = kernel.take_log().into_iter().filter(|command| command != "0.1").collect();
        assert_eq!(destroyed, ["8.0", "4.1", "7.1"], "window, queue pair, region");
        drop((qp, mw, mr, cq, pd));
        assert!(ctx.leaks().is_empty());
    }

    #[test]
    fn a_driver_may_have_no_windows() {
        let (kernel, fault) = (FakeKernel::new(Knows::ALL), Fault::new());
        let ctx = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let (mr, ..) = ctx.reg_dmabuf_mr(&pd, file.as_fd(), 0, 4096, 0, 0).unwrap();
        fault.fail_nth(0, Errno::ENOENT);
        ctx.shutdown().unwrap();
        assert_eq!((fault.injected(), kernel.live()), (1, vec![pd.id()]));
        drop(mr);
        assert!(ctx.leaks().is_empty());
    }

    /// A region, and what keeps its memory.
    struct Region {
        kernel: Arc<FakeKernel>,
        fault: Fault,
        ctx: Arc<Ucontext>,
        pd: Handle,
        mr: Handle,
        memory: Arc<()>,
    }

    impl Region {
        fn new() -> Self {
            let (kernel, fault) = (FakeKernel::new(Knows::ALL), Fault::new());
            let ctx = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap();
            let pd = ctx.alloc_pd(&mut []).unwrap();
            let file = std::fs::File::open("/dev/null").unwrap();
            let (mr, ..) = ctx.reg_dmabuf_mr(&pd, file.as_fd(), 0, 4096, 0, 0).unwrap();
            let memory = Arc::new(());
            let mr = mr.keeping(Box::new(memory.clone()));
            Self { kernel, fault, ctx, pd, mr, memory }
        }
    }

    /// Nothing can be listed nor destroyed, and the file must be closed all the same: the kernel waits for that.
    #[test]
    fn a_device_that_is_gone_is_given_up_too() {
        let Region { fault, ctx, pd, mr, memory, .. } = Region::new();
        fault.fail_matching(|_| true, Errno::EIO);
        ctx.shutdown().unwrap();
        assert!(ctx.closing().done.load(Ordering::Acquire));
        ctx.shutdown().unwrap();
        fault.clear();
        assert!(matches!(ctx.alloc_pd(&mut []), Err(Error::DeviceGone { .. })));
        drop((mr, pd));
        let leaks: Vec<_> = ctx.leaks().iter().map(|leak| (leak.kind, leak.errno)).collect();
        assert_eq!(leaks, [(ObjectKind::Mr, Errno::EIO)], "the device may still be at the region's memory");
        drop(ctx);
        assert_eq!(Arc::strong_count(&memory), 2);
    }

    /// Its window kept it, say. The device is done with its memory before the file is closed.
    #[test]
    fn memory_of_a_region_that_was_refused_before_goes_with_it() {
        let Region { kernel, fault, ctx, pd, mr, memory } = Region::new();
        fault.fail_nth(0, Errno::EINVAL);
        drop(mr);
        assert_eq!(ctx.leaks().len(), 1);
        // Asked for once more, it is still refused; then what holds it goes.
        fault.fail_nth(0, Errno::EINVAL);
        ctx.shutdown().unwrap();
        assert_eq!((ctx.leaks(), fault.injected()), (vec![], 2));
        assert_eq!((kernel.live(), Arc::strong_count(&memory)), (vec![pd.id()], 1));
    }

    /// Another thread had opened it, and not yet put it on the list.
    #[test]
    fn an_event_file_that_comes_late_leads_nowhere_too() {
        let (_kernel, ctx) = open();
        ctx.shutdown().unwrap();
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let late = ctx.closing().watch(ours.into()).unwrap();
        assert_eq!(nix::unistd::read(late.as_fd(), &mut [0; 8]), Ok(0), "it is a pipe at its end");
    }
}
