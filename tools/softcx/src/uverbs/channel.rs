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

/// Which file a descriptor is of.
type Inode = (libc::dev_t, libc::ino_t);

/// The file that a descriptor is of, if there is such a descriptor.
fn inode(fd: RawFd) -> Option<Inode> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the structure has room for the answer, and lives for the call; the kernel checks the number.
    let answer = unsafe { libc::fstat(fd, stat.as_mut_ptr()) };
    // SAFETY: the kernel has filled the structure.
    (answer == 0).then(|| unsafe { stat.assume_init() }).map(|stat| (stat.st_dev, stat.st_ino))
}

/// The device's end of an event file. The other end is the program's alone: when that is closed, this end shows it.
#[derive(Debug)]
pub(super) struct Channel {
    ours: OwnedFd,
    /// The program's descriptor, as it was made: it may be closed by now, and the number another file's.
    number: RawFd,
    /// The program's end, whatever numbers it has.
    theirs: Inode,
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
        let theirs = inode(program.as_raw_fd()).ok_or(Errno::EBADF)?;
        let number = program.into_raw_fd();
        Ok((Self { ours, number, theirs, backlog: Mutex::default() }, number))
    }

    /// The one of `files` whose other end the program has as `number`.
    pub fn named(files: &[Arc<Self>], number: RawFd) -> Option<Arc<Self>> {
        let named = inode(number)?;
        files.iter().find(|file| file.theirs == named).cloned()
    }

    /// Whether the program has closed its end.
    pub fn is_closed(&self) -> bool {
        is_hung_up(&self.ours)
    }

    /// The program's end once more, for a moment, to take records out that are in it. `None` if it is closed, or known to
    /// the program by other numbers only.
    fn end(&self) -> Option<OwnedFd> {
        // A copy first: what has the number now may be closed, and the number used again, at any time.
        // SAFETY: the kernel checks the number; the copy is new, and nobody else's.
        let copy = unsafe {
            let copy = libc::fcntl(self.number, libc::F_DUPFD_CLOEXEC, 0);
            (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))?
        };
        (inode(copy.as_raw_fd()) == Some(self.theirs)).then_some(copy)
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
        let end = self.end();
        while let Some(end) = &end {
            let mut record = [0; 16];
            // SAFETY: the buffer is live and as long as said.
            let n =
                unsafe { libc::recv(end.as_raw_fd(), record.as_mut_ptr().cast(), record.len(), libc::MSG_DONTWAIT) };
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
        graves.extend(Arc::into_inner(self).map(|channel| channel.ours));
        // This one too, if the program closed it before its context.
        graves.retain(|grave| !is_hung_up(grave));
    }
}

/// Whether the other end of a socket is closed.
fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, live for the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & libc::POLLHUP != 0
}
