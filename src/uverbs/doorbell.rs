//! The send doorbell of a driver that shares its rings with the kernel (rxe): POST_SEND without work requests.
//!
//! # Safety argument
//!
//! A [`SendDoorbell`] owns the command it writes. The one address in it is that of a static, which the kernel answers into: it is
//! only ever written by the kernel and never read, so that any threads may ring at once. The file stays open because the
//! doorbell keeps its [`Cdev`].
#![allow(unsafe_code)]

use super::abi::ioctl::{attr, method};
use super::abi::write::{self, CmdHdr, command};
use super::cmd::CmdBuf;
use super::errno::Errno;
use super::object::Handle;
use super::raw;
use super::sys::Cdev;
use super::wr::PostError;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The command as write() takes it.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Kick {
    header: CmdHdr,
    request: write::PostSend,
}

const KICK_WORDS: usize = size_of::<Kick>() / size_of::<u64>();

/// A write to it is refused, so that the usual way needs no branch of its own.
const NO_FILE: RawFd = -1;

/// Tells the kernel that there is something new in a send queue. Built once per queue pair, rung once per batch.
pub struct SendDoorbell {
    kick: [u64; KICK_WORDS],
    /// The file; [`NO_FILE`] where commands must go through the [`Cdev`].
    fd: RawFd,
    cdev: Arc<dyn Cdev>,
}

/// Where the kernel writes its answer, which nobody reads.
#[repr(align(64))]
struct Response(UnsafeCell<write::PostSendResp>);

// SAFETY: nothing in this process reads or writes the cell; the kernel does, from any thread.
unsafe impl Sync for Response {}

/// Queue pairs that are made one after the other have different ones, so that processors which ring at once do not wait for
/// each other's cache line.
static RESPONSES: [Response; 64] = [const { Response(UnsafeCell::new(write::PostSendResp { bad_wr: 0 })) }; 64];

impl Response {
    fn of(qp: u32) -> &'static Self {
        &RESPONSES[qp as usize % RESPONSES.len()]
    }
}

impl SendDoorbell {
    /// The doorbell of `qp`, which belongs to the file `cdev`.
    pub fn new(cdev: &Arc<dyn Cdev>, qp: &Handle) -> Self {
        let kick = Kick {
            header: CmdHdr {
                command: command::POST_SEND,
                in_words: (size_of::<Kick>() / 4) as u16,
                out_words: (size_of::<write::PostSendResp>() / 4) as u16,
            },
            request: write::PostSend {
                response: Response::of(qp.id()).0.get().expose_provenance() as u64,
                qp_handle: qp.id(),
                wr_count: 0,
                sge_count: 0,
                wqe_size: write::SEND_WR_BYTES,
            },
        };
        Self { kick: zerocopy::transmute!(kick), fd: cdev.raw_fd().unwrap_or(NO_FILE), cdev: Arc::clone(cdev) }
    }

    /// Rings. Everything stored before is seen by the kernel: entering it is a full barrier for the calling thread.
    /// Afterwards `unheard` tells whether the kernel refused.
    ///
    /// Where a plain write does not do, a call does all the rest: nothing is left to be done after it, so that the plain
    /// way need not save a register.
    #[inline(always)]
    pub fn ring(&self, unheard: &mut bool) -> Result<(), PostError> {
        // SAFETY: the file, if there is one, is open as long as `cdev` lives, the command is live, and the kernel writes to
        // no memory but the response, which always is.
        match unsafe { raw::write(self.fd, self.kick.as_ptr().cast(), size_of::<Kick>()) } {
            Ok(_) => {
                *unheard = false;
                Ok(())
            }
            Err(errno) => self.ring_otherwise(errno, unheard),
        }
    }

    /// The ways around a plain write: a device model has no file; and the kernel takes no write() from a process that
    /// changed its credentials since it opened the file (`EACCES`), but an ioctl.
    #[cold]
    #[inline(never)]
    fn ring_otherwise(&self, refused: Errno, unheard: &mut bool) -> Result<(), PostError> {
        let rung = self.try_otherwise(refused);
        *unheard = rung.is_err();
        rung.map_err(PostError::Doorbell)
    }

    fn try_otherwise(&self, refused: Errno) -> Result<(), Errno> {
        // A device that was given up has the end of a pipe for its file.
        if self.fd == NO_FILE || refused == Errno::EBADF {
            // SAFETY: the command's one address is that of the response, which always is.
            return unsafe { self.cdev.write(&self.kick) };
        }
        if refused != Errno::EACCES {
            return Err(refused);
        }
        let request = &self.kick[size_of::<CmdHdr>() / size_of::<u64>()..];
        let mut response = write::PostSendResp::default();
        let mut cmd = CmdBuf::new(method::INVOKE_WRITE, self.cdev.driver_id());
        cmd.ptr_in(attr::invoke_write::CORE_IN, request);
        cmd.ptr_out(attr::invoke_write::CORE_OUT, &mut response);
        cmd.const_in(attr::invoke_write::WRITE_CMD, command::POST_SEND.into());
        cmd.issue(&*self.cdev).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::map::Mapping;
    use crate::uverbs::context::Ucontext;
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::object::ObjectKind;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    /// A fake kernel whose doorbells go straight to a file.
    struct WithFile {
        inner: Arc<FakeKernel>,
        file: RawFd,
    }

    // SAFETY: all but the file number is the fake kernel's.
    unsafe impl Cdev for WithFile {
        unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
            // SAFETY: the caller's part is passed on.
            unsafe { self.inner.ioctl(command) }
        }
        unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
            // SAFETY: the caller's part is passed on.
            unsafe { self.inner.write(command) }
        }
        fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
            self.inner.map(offset, len_bytes)
        }
        fn driver_id(&self) -> u32 {
            self.inner.driver_id()
        }
        fn raw_fd(&self) -> Option<RawFd> {
            Some(self.file)
        }
    }

    fn qp(ctx: &Arc<Ucontext>) -> Handle {
        Handle::new(ctx, ObjectKind::Qp, 0x0a0b_0c0d)
    }

    #[test]
    fn is_one_write_of_the_whole_command() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let kernel = FakeKernel::new(Knows::ALL);
        let cdev: Arc<dyn Cdev> = Arc::new(WithFile { inner: kernel.clone(), file: writer.as_raw_fd() });
        let ctx = Ucontext::open(cdev, &[], &mut []).unwrap();
        let doorbell = SendDoorbell::new(ctx.cdev(), &qp(&ctx));
        kernel.take_log();
        let mut unheard = true;
        doorbell.ring(&mut unheard).unwrap();
        assert!(!unheard);
        let mut bytes = [0; 33];
        assert_eq!(reader.read(&mut bytes).unwrap(), 32);
        assert_eq!(bytes[..8], [28, 0, 0, 0, 8, 0, 1, 0], "header");
        assert_eq!(bytes[16..32], [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0, 0], "request");
        let response = Response::of(0x0a0b_0c0d).0.get().addr() as u64;
        assert_eq!(bytes[8..16], response.to_ne_bytes(), "address of the response");
        assert!(kernel.take_log().is_empty());
    }

    #[test]
    fn goes_through_the_device_model_where_there_is_no_file() {
        let kernel = FakeKernel::new(Knows::ALL);
        let ctx = Ucontext::open(kernel.clone(), &[], &mut []).unwrap();
        SendDoorbell::new(ctx.cdev(), &qp(&ctx)).ring(&mut true).unwrap();
        assert_eq!(kernel.kicks(), [0x0a0b_0c0d]);
    }

    #[test]
    fn goes_by_ioctl_where_the_process_may_not_write() {
        let kernel = FakeKernel::new(Knows::ALL);
        let file = std::io::pipe().unwrap().1;
        let cdev: Arc<dyn Cdev> = Arc::new(WithFile { inner: kernel.clone(), file: file.as_raw_fd() });
        let ctx = Ucontext::open(cdev, &[], &mut []).unwrap();
        let doorbell = SendDoorbell::new(ctx.cdev(), &qp(&ctx));
        let mut unheard = false;
        assert_eq!(doorbell.ring_otherwise(Errno::EINVAL, &mut unheard), Err(PostError::Doorbell(Errno::EINVAL)));
        assert!(unheard && kernel.kicks().is_empty());
        doorbell.ring_otherwise(Errno::EACCES, &mut unheard).unwrap();
        assert!(!unheard);
        assert_eq!(kernel.kicks(), [0x0a0b_0c0d]);
    }

    #[test]
    fn asks_the_device_where_its_file_is_none_any_more() {
        let kernel = FakeKernel::new(Knows::ALL);
        // A file that can only be read.
        let (reader, _writer) = std::io::pipe().unwrap();
        let cdev: Arc<dyn Cdev> = Arc::new(WithFile { inner: kernel.clone(), file: reader.as_raw_fd() });
        let ctx = Ucontext::open(cdev, &[], &mut []).unwrap();
        let mut unheard = false;
        SendDoorbell::new(ctx.cdev(), &qp(&ctx)).ring(&mut unheard).unwrap();
        assert!(!unheard);
        assert_eq!(kernel.kicks(), [0x0a0b_0c0d]);
    }
}
