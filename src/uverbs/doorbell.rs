//! The send doorbell of a driver that shares its rings with the kernel (rxe): POST_SEND without work requests.
//!
//! # Safety argument
//!
//! A [`SendDoorbell`] owns the command it writes and the word that the kernel answers into, both on the heap, so that
//! moving the doorbell moves neither. The command holds no other address. The file stays open because the doorbell keeps
//! its [`Cdev`]. The word is only ever written by the kernel and never read, so that two threads may ring at once.
#![allow(unsafe_code)]

use super::abi::ioctl::{attr, method};
use super::abi::write::{self, CmdHdr, command};
use super::cmd::CmdBuf;
use super::errno::Errno;
use super::object::Handle;
use super::raw;
use super::sys::Cdev;
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

/// Tells the kernel that there is something new in a send queue. Built once per queue pair, rung once per batch.
pub struct SendDoorbell {
    kick: Box<[u64; KICK_WORDS]>,
    /// The file, or -1 where commands must go through the [`Cdev`].
    fd: RawFd,
    cdev: Arc<dyn Cdev>,
    /// Where the kernel writes its answer, by the address in `kick`.
    _response: Box<Response>,
}

struct Response(UnsafeCell<write::PostSendResp>);

// SAFETY: nothing in this process reads or writes the cell; the kernel does, from any thread.
unsafe impl Sync for Response {}

impl SendDoorbell {
    /// The doorbell of `qp`, which belongs to the file `cdev`.
    pub fn new(cdev: &Arc<dyn Cdev>, qp: &Handle) -> Self {
        let response = Box::new(Response(UnsafeCell::default()));
        let kick = Kick {
            header: CmdHdr {
                command: command::POST_SEND,
                in_words: (size_of::<Kick>() / 4) as u16,
                out_words: (size_of::<write::PostSendResp>() / 4) as u16,
            },
            request: write::PostSend {
                response: response.0.get().expose_provenance() as u64,
                qp_handle: qp.id(),
                wr_count: 0,
                sge_count: 0,
                wqe_size: write::SEND_WR_BYTES,
            },
        };
        Self {
            kick: Box::new(zerocopy::transmute!(kick)),
            fd: cdev.raw_fd().unwrap_or(-1),
            cdev: Arc::clone(cdev),
            _response: response,
        }
    }

    /// Rings. Everything stored before is seen by the kernel: entering it is a full barrier for the calling thread.
    #[inline(always)]
    pub fn ring(&self) -> Result<(), Errno> {
        // SAFETY: the file is open as long as `cdev` lives, the command is live, and the kernel writes to no memory but
        // the response, which is live too.
        match unsafe { raw::write(self.fd, self.kick.as_ptr().cast(), size_of::<Kick>()) } {
            Ok(_) => Ok(()),
            Err(errno) => self.ring_otherwise(errno),
        }
    }

    /// The ways around a plain write: a device model has no file, and the kernel takes no write() from a process that
    /// changed its credentials since it opened the file (`EACCES`), but an ioctl.
    #[cold]
    #[inline(never)]
    fn ring_otherwise(&self, errno: Errno) -> Result<(), Errno> {
        if self.fd < 0 {
            // SAFETY: the command's one address is that of the response, which is live.
            return unsafe { self.cdev.write(&*self.kick) };
        }
        if errno != Errno::EACCES {
            return Err(errno);
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
