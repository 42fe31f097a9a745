//! Event files: what completion channels and asynchronous event files are to a program, made of a pair of sockets.
//!
//! A socket that keeps packets apart gives one record per read, as the kernel's file does, and works with poll, epoll and
//! non-blocking reads. Two things differ: a read into a buffer that is too small loses the record (the kernel refuses the
//! read), and completion channels read as ended after their context is gone (the kernel's fail with EIO).
//!
//! # Safety argument
//!
//! Only socket calls, on descriptors that are owned here or new, with buffers that are live for the call.
#![allow(unsafe_code)]

use ironverbs::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The device's end of an event file.
#[derive(Debug)]
pub(super) struct Channel {
    ours: OwnedFd,
    /// The program's end once more, to take records of destroyed objects out again.
    theirs: OwnedFd,
    number: RawFd,
    /// Records that the socket has no room for yet, oldest first.
    backlog: Mutex<VecDeque<Vec<u8>>>,
}

impl Channel {
    /// A new event file: our end, and the descriptor that is the program's to close.
    pub fn new() -> Result<(Self, RawFd), Errno> {
        let mut pair = [-1; 2];
        // SAFETY: the array has room for two descriptors.
        let made =
            unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
        if made < 0 {
            return Err(Errno::from_raw(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE)));
        }
        // SAFETY: both are new and nobody else's.
        let (ours, program) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let theirs = program.try_clone().map_err(|_| Errno::EMFILE)?;
        let number = program.into_raw_fd();
        Ok((Self { ours, theirs, number, backlog: Mutex::default() }, number))
    }

    /// The program's descriptor.
    pub fn number(&self) -> RawFd {
        self.number
    }

    fn backlog(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record. False if it has to wait for room: [`flush`](Self::flush) is to be called again.
    pub fn send(&self, record: &[u8]) -> bool {
        self.backlog().push_back(record.to_vec());
        self.flush()
    }

    /// Moves records that wait into the socket. True if none is left.
    pub fn flush(&self) -> bool {
        let mut backlog = self.backlog();
        while backlog.front().is_some_and(|record| self.put(record)) {
            backlog.pop_front();
        }
        backlog.is_empty()
    }

    /// False if there is no room. Where nobody reads any more, the record is lost.
    fn put(&self, record: &[u8]) -> bool {
        // SAFETY: the record is live for the call.
        let sent = unsafe {
            libc::send(
                self.ours.as_raw_fd(),
                record.as_ptr().cast(),
                record.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        sent >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock
    }

    /// Takes queued records out for which `gone` holds: their object was destroyed.
    pub fn remove(&self, gone: impl Fn(&[u8]) -> bool) {
        let mut backlog = self.backlog();
        let mut kept = VecDeque::new();
        loop {
            let mut record = [0; 16];
            // SAFETY: the buffer is live and as long as said.
            let n = unsafe {
                libc::recv(self.theirs.as_raw_fd(), record.as_mut_ptr().cast(), record.len(), libc::MSG_DONTWAIT)
            };
            match usize::try_from(n) {
                Ok(n) if n > 0 => kept.push_back(record[..n].to_vec()),
                _ => break,
            }
        }
        kept.append(&mut backlog);
        kept.retain(|record| !gone(record));
        *backlog = kept;
        drop(backlog);
        self.flush();
    }

    /// After the end of its context an asynchronous event file gives nothing, not even its end: our end stays open until
    /// the program closes its own, so that a program that waits for the end of the file does not pass here.
    pub fn bury(self: Arc<Self>) {
        static GRAVES: Mutex<Vec<OwnedFd>> = Mutex::new(vec![]);
        let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Self { ours, theirs, .. }) = Arc::into_inner(self) {
            drop(theirs);
            graves.push(ours);
        }
        // This one too, if the program closed it before its context.
        graves.retain(|grave| {
            let mut poll = libc::pollfd { fd: grave.as_raw_fd(), events: 0, revents: 0 };
            // SAFETY: one structure, live for the call.
            unsafe { libc::poll(&raw mut poll, 1, 0) };
            poll.revents & libc::POLLHUP == 0
        });
    }
}
