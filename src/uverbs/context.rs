//! One open file with its context: what every command and every object of a device goes through.

use super::abi::ioctl::{attr, method};
use super::abi::write;
use super::cmd;
use super::errno::Errno;
use super::error::{Error, Lacking, Verb};
use super::event;
use super::gate::Gate;
use super::kernel::{Form, Kernel, Native};
use super::leaks::Leaks;
use super::object::ObjectKind;
use super::shutdown::Closing;
use super::sys::Cdev;
use super::types::PortNum;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles that [`Ucontext::info_handles`] asks for at first.
const FIRST_HANDLES: usize = 64;
/// Most handles that fit one answer: an attribute's length has 16 bits.
const MAX_HANDLES: usize = u16::MAX as usize / size_of::<u32>();

/// An open file with its context in the kernel. There is one per file, made when it is opened.
pub struct Ucontext {
    // Fields are dropped in this order: the event file before the file it came from.
    async_fd: Arc<OwnedFd>,
    kernel: Kernel,
    gate: Arc<Gate>,
    closing: Closing,
    num_comp_vectors: u32,
    core_support: u64,
    next_user_handle: AtomicU64,
    pub(super) leaks: Leaks,
}

/// What GET_CONTEXT gave, by either form.
struct Opened {
    async_fd: Option<OwnedFd>,
    num_comp_vectors: u32,
    core_support: u64,
}

impl Ucontext {
    /// Opens the file's context, with the driver's own request and response, and its asynchronous event file.
    ///
    /// `uhw_in` must name no memory.
    pub fn open(cdev: Arc<dyn Cdev>, uhw_in: &[u8], uhw_out: &mut [u8]) -> Result<Arc<Self>, Error> {
        let gate = Gate::new(cdev);
        let kernel = Kernel::new(gate.clone());
        let opened = kernel
            .attempt(Native::GetContext, |form| match form {
                Form::Native => get_context(&kernel, uhw_in, uhw_out),
                Form::Legacy => get_context_legacy(&kernel, uhw_in, uhw_out),
            })
            .map_err(open_refused)?;
        let async_fd = match opened.async_fd {
            Some(fd) => fd,
            None => alloc_async_fd(&kernel)?,
        };
        event::set_nonblocking(async_fd.as_fd()).map_err(|e| Error::kernel(Verb::AllocAsyncFd, e))?;
        let closing = Closing::default();
        Ok(Arc::new(Self {
            async_fd: closing.watch(async_fd).map_err(|e| Error::kernel(Verb::AllocAsyncFd, e))?,
            kernel,
            gate,
            closing,
            num_comp_vectors: opened.num_comp_vectors,
            core_support: opened.core_support,
            next_user_handle: AtomicU64::new(1),
            leaks: Leaks::default(),
        }))
    }

    /// The file.
    pub fn cdev(&self) -> &Arc<dyn Cdev> {
        self.kernel.cdev()
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(super) fn closing(&self) -> &Closing {
        &self.closing
    }

    /// A second descriptor of an event file of this context.
    #[cfg(feature = "tokio")]
    pub fn duplicate(&self, fd: BorrowedFd<'_>, verb: Verb) -> Result<Arc<OwnedFd>, Error> {
        let fd = fd
            .try_clone_to_owned()
            .map_err(|e| Error::kernel(verb, Errno::from_raw(e.raw_os_error().unwrap_or(libc::EMFILE))))?;
        self.closing.watch(fd).map_err(|e| Error::kernel(verb, e))
    }

    /// How many completion vectors there are to choose from, at least 1.
    pub fn num_comp_vectors(&self) -> u32 {
        self.num_comp_vectors
    }

    /// What the kernel's core offers beyond its first version; bit 0: optional access flags of memory regions.
    pub fn core_support(&self) -> u64 {
        self.core_support
    }

    /// The file that asynchronous events are read from, non-blocking. It gives no end-of-file when the device goes away.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.async_fd.as_fd()
    }

    /// A number for a new object to be known by in events: not zero, never given twice by this context.
    pub fn next_user_handle(&self) -> u64 {
        self.next_user_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether [`next_user_handle`](Self::next_user_handle) gave that number to an object.
    pub fn gave_user_handle(&self, user_handle: u64) -> bool {
        (1..self.next_user_handle.load(Ordering::Relaxed)).contains(&user_handle)
    }

    /// Whether the kernel has taken the device away from this file. Asks for what the kernel knows without the driver, but no longer
    /// answers then.
    pub fn is_disconnected(&self) -> bool {
        matches!(self.query_gid(PortNum::ONE, 0), Err(Error::DeviceGone { .. }))
    }

    /// The kernel's handles of all objects of one kind in this file, for leak checks; at most 16383.
    pub fn info_handles(&self, kind: ObjectKind) -> Result<Vec<u32>, Error> {
        let mut handles = vec![0_u32; FIRST_HANDLES];
        loop {
            let mut total = 0_u32;
            let mut cmd = self.kernel.command(method::INFO_HANDLES);
            cmd.const_in(attr::info_handles::OBJECT_ID, u64::from(kind.object_id()));
            cmd.ptr_out(attr::info_handles::TOTAL_HANDLES, &mut total);
            cmd.ptr_out(attr::info_handles::HANDLES_LIST, handles.as_mut_slice());
            cmd.issue(&**self.cdev()).map_err(|e| native_only(Verb::InfoHandles, "listing handles", e))?;
            // The count stops at the list's length, so a full list may not be all.
            if (total as usize) < handles.len() || handles.len() == MAX_HANDLES {
                handles.truncate(total as usize);
                return Ok(handles);
            }
            handles.resize((handles.len() * 4).min(MAX_HANDLES), 0);
        }
    }
}

impl fmt::Debug for Ucontext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ucontext").field("async_fd", &self.async_fd).finish_non_exhaustive()
    }
}

/// The error of a command that has only an ioctl method.
pub(super) fn native_only(verb: Verb, what: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::EPROTONOSUPPORT | Errno::ENOTTY => Error::Unsupported { verb, what: what.into(), by: Lacking::Kernel },
        _ => Error::kernel(verb, errno),
    }
}

fn get_context(kernel: &Kernel, uhw_in: &[u8], uhw_out: &mut [u8]) -> Result<Opened, Errno> {
    let mut num_comp_vectors = 0_u32;
    let mut core_support = 0_u64;
    let mut cmd = kernel.command(method::GET_CONTEXT);
    cmd.ptr_out(attr::get_context::NUM_COMP_VECTORS, &mut num_comp_vectors);
    // Not as old as the method. An untouched zero is the truth: the kernel offers nothing more.
    cmd.optional_out(attr::get_context::CORE_SUPPORT, &mut core_support);
    cmd.uhw(uhw_in, uhw_out);
    cmd.issue(&**kernel.cdev())?;
    Ok(Opened { async_fd: None, num_comp_vectors, core_support })
}

fn get_context_legacy(kernel: &Kernel, uhw_in: &[u8], uhw_out: &mut [u8]) -> Result<Opened, Errno> {
    let mut response = write::GetContextResp { async_fd: u32::MAX, num_comp_vectors: 0 };
    kernel.invoke(&write::GetContext::default(), &mut response, uhw_in, uhw_out)?;
    let async_fd = cmd::adopt(i64::from(response.async_fd as i32)).ok_or(Errno::EBADF)?;
    Ok(Opened { async_fd: Some(async_fd), num_comp_vectors: response.num_comp_vectors, core_support: 0 })
}

/// The first such file becomes the one that gets the events of the device and of all objects.
fn alloc_async_fd(kernel: &Kernel) -> Result<OwnedFd, Error> {
    let mut cmd = kernel.command(method::ASYNC_EVENT_ALLOC);
    cmd.fd_out(attr::async_event_alloc::FD_HANDLE);
    let refused = |errno| native_only(Verb::AllocAsyncFd, "an asynchronous event file", errno);
    let mut answer = cmd.issue(&**kernel.cdev()).map_err(refused)?;
    answer.fd(attr::async_event_alloc::FD_HANDLE).ok_or_else(|| refused(Errno::EBADF))
}

fn open_refused(errno: Errno) -> Error {
    let error = Error::kernel(Verb::OpenDevice, errno);
    match errno {
        Errno::EAGAIN => error.with_hint("the device is not active yet: try again shortly"),
        Errno::EACCES => error.with_hint("the process changed its credentials after it opened the device file"),
        Errno::ENOMEM | Errno::ENOSPC => error.with_hint("the kernel or the device has no room for one more context"),
        _ => error,
    }
}
