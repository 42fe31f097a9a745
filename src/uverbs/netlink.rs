//! Netlink: building requests, taking answers apart, and waiting for them with a limit.
//!
//! The layout is that of `struct nlmsghdr` and `struct nlattr` (`include/uapi/linux/netlink.h`): native byte order, every
//! message and attribute starts on a multiple of four bytes. Nothing here knows RDMA; see [`super::nldev`].

use super::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// `NLM_F_REQUEST`.
const F_REQUEST: u16 = 0x1;
/// `NLM_F_DUMP_INTR`: what was dumped changed meanwhile, so the dump may be inconsistent.
const F_DUMP_INTR: u16 = 0x10;
/// `NLM_F_DUMP`.
const F_DUMP: u16 = 0x300;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `NLMSG_MIN_TYPE`: lower types are netlink's own.
const MIN_TYPE: u16 = 0x10;
/// Size of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Size of `struct nlattr`.
const ATTR_HEADER: usize = 4;
/// `NLA_TYPE_MASK`: the two high bits are flags.
const ATTR_TYPE: u16 = 0x3fff;

/// How long one exchange may take in all. The kernel answers within the system call that asks, so this is never reached
/// unless something is broken.
const PATIENCE: Duration = Duration::from_secs(2);
/// More messages than any exchange has.
const MAX_MESSAGES: usize = 1 << 16;
/// How many datagrams are read between two looks at the clock.
const CLOCK_EVERY: usize = 64;
/// Requests sent at once: their answers must fit the socket's receive buffer together.
const BATCH: usize = 16;
/// The kernel builds no longer datagram for a dump (`netlink_dump` in `net/netlink/af_netlink.c`).
const BUFFER: usize = 32 << 10;
/// How often an inconsistent dump is asked for again.
const DUMP_TRIES: usize = 4;

/// Why netlink gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel answered with an error, or refused the socket.
    #[error("{0}")]
    Kernel(Errno),
    /// The answer cannot be taken apart.
    #[error("the answer is malformed")]
    Malformed,
    /// The answer was longer than any the kernel makes.
    #[error("the answer was cut off")]
    Truncated,
    /// The devices changed during every attempt to list them.
    #[error("the devices kept changing while they were listed")]
    Interrupted,
    /// No answer in time.
    #[error("no answer within {PATIENCE:?}")]
    TimedOut,
}

/// One message: its type, flags, sequence number, and what follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message<'a> {
    kind: u16,
    flags: u16,
    seq: u32,
    payload: &'a [u8],
}

/// The messages of one datagram. Ends at the first one whose length cannot be; then says so once.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let message = (|| {
            let len = u32_at(rest, 0)? as usize;
            let payload = rest.get(HEADER..len)?;
            self.0 = rest.get(align(len)?..).unwrap_or_default();
            Some(Message { kind: u16_at(rest, 4)?, flags: u16_at(rest, 6)?, seq: u32_at(rest, 8)?, payload })
        })();
        Some(message.ok_or(NetlinkError::Malformed))
    }
}

/// The attributes of a message: number and value. Ends at the first one whose length cannot be; then says so once.
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let attribute = (|| {
            let len = usize::from(u16_at(rest, 0)?);
            let value = rest.get(ATTR_HEADER..len)?;
            self.0 = rest.get(align(len)?..).unwrap_or_default();
            Some((u16_at(rest, 2)? & ATTR_TYPE, value))
        })();
        Some(attribute.ok_or(NetlinkError::Malformed))
    }
}

fn align(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The error in an `NLMSG_ERROR`, or at the end of a dump: a negative error number, or zero.
fn status(payload: &[u8]) -> Result<(), NetlinkError> {
    match u32_at(payload, 0).map(|raw| raw as i32) {
        None => Err(NetlinkError::Malformed),
        Some(0) => Ok(()),
        Some(error) => Err(NetlinkError::Kernel(Errno::from_raw(error.wrapping_neg()))),
    }
}

/// A request without its sequence number: message type and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    kind: u16,
    attributes: Vec<u8>,
}

impl Request {
    /// A request of message type `kind`.
    pub fn new(kind: u16) -> Self {
        Self { kind, attributes: Vec::new() }
    }

    /// Adds a 32-bit attribute.
    pub fn u32(self, attribute: u16, value: u32) -> Self {
        self.bytes(attribute, &value.to_ne_bytes())
    }

    /// Adds a string attribute, with the zero byte that ends it.
    pub fn string(self, attribute: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(attribute, &bytes)
    }

    fn bytes(mut self, attribute: u16, value: &[u8]) -> Self {
        // Names are short: a length over 16 bits is a bug in the caller, and the kernel would refuse the message.
        let len = (ATTR_HEADER + value.len()) as u16;
        self.attributes.extend_from_slice(&len.to_ne_bytes());
        self.attributes.extend_from_slice(&attribute.to_ne_bytes());
        self.attributes.extend_from_slice(value);
        self.attributes.resize(self.attributes.len().next_multiple_of(4), 0);
        self
    }

    fn append_to(&self, out: &mut Vec<u8>, flags: u16, seq: u32) {
        out.extend_from_slice(&((HEADER + self.attributes.len()) as u32).to_ne_bytes());
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&(F_REQUEST | flags).to_ne_bytes());
        out.extend_from_slice(&seq.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out.extend_from_slice(&self.attributes);
    }
}

/// What carries datagrams: a socket, or a test.
pub trait Channel {
    /// Sends one datagram.
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno>;
    /// Receives one datagram; its true length, which may be more than `buffer` holds. `EAGAIN` after the time-out.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno>;
}

/// A socket of the `NETLINK_RDMA` family that talks to the kernel and to nobody else.
pub struct Socket(OwnedFd);

impl Socket {
    /// Opens the socket. `EPROTONOSUPPORT`: the kernel has no RDMA core (`ib_core`).
    pub fn rdma() -> Result<Self, Errno> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRDMA)?;
        setsockopt(&fd, ReceiveTimeout, &TimeVal::seconds(PATIENCE.as_secs() as i64))?;
        // Connected to port 0, the kernel: datagrams of other processes are then refused.
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self(fd))
    }
}

impl Channel for Socket {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        loop {
            match send(self.0.as_raw_fd(), datagram, MsgFlags::empty()) {
                Err(nix::errno::Errno::EINTR) => {}
                other => return other.map(drop).map_err(Errno::from),
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        recv(self.0.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC).map_err(Errno::from)
    }
}

/// Requests and their answers over one channel.
pub struct Conversation<C> {
    channel: C,
    buffer: Vec<u8>,
    next_seq: u32,
}

/// What one datagram said; `false` from the callback ends the exchange.
type Each<'a> = dyn FnMut(Result<Message<'_>, NetlinkError>) -> bool + 'a;

impl<C: Channel> Conversation<C> {
    /// Starts talking.
    pub fn new(channel: C) -> Self {
        Self { channel, buffer: vec![0; BUFFER], next_seq: 1 }
    }

    /// Asks for a dump and collects what `parse` makes of each part; parts of which it makes nothing are left out. Asks
    /// again, from the start, if the kernel says that the answer is not consistent.
    pub fn dump<T>(&mut self, request: &Request, parse: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, NetlinkError> {
        let mut last = NetlinkError::Interrupted;
        for _ in 0..DUMP_TRIES {
            let mut found = Vec::new();
            match self.dump_once(request, &mut |payload| found.extend(parse(payload))) {
                Ok(()) => return Ok(found),
                Err(e @ (NetlinkError::Interrupted | NetlinkError::Truncated)) => last = e,
                Err(NetlinkError::Kernel(e @ (Errno::EBUSY | Errno::ENOBUFS))) => last = NetlinkError::Kernel(e),
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }

    fn dump_once(&mut self, request: &Request, each: &mut dyn FnMut(&[u8])) -> Result<(), NetlinkError> {
        let seq = self.take_seqs(1);
        let mut datagram = Vec::with_capacity(HEADER);
        request.append_to(&mut datagram, F_DUMP, seq);
        self.channel.send(&datagram).map_err(NetlinkError::Kernel)?;

        let mut outcome = Ok(());
        self.receive_until(&mut |message| match message {
            Ok(m) if m.seq != seq => true,
            Ok(m) => {
                if m.flags & F_DUMP_INTR != 0 {
                    outcome = Err(NetlinkError::Interrupted);
                }
                match m.kind {
                    ERROR | DONE => {
                        // An empty NLMSG_DONE is a success, too.
                        if !m.payload.is_empty() {
                            outcome = outcome.and(status(m.payload));
                        }
                        false
                    }
                    0..MIN_TYPE => true,
                    _ => {
                        each(m.payload);
                        true
                    }
                }
            }
            // Read on to the end, or the next dump on this socket is refused with EBUSY.
            Err(e) => {
                outcome = Err(e);
                true
            }
        })?;
        outcome
    }

    /// Asks single questions; the answers come in the order of the requests. One failing leaves the others alone.
    pub fn ask(&mut self, requests: &[Request]) -> Vec<Result<Vec<u8>, NetlinkError>> {
        requests.chunks(BATCH).flat_map(|batch| self.ask_batch(batch)).collect()
    }

    fn ask_batch(&mut self, requests: &[Request]) -> Vec<Result<Vec<u8>, NetlinkError>> {
        let first = self.take_seqs(requests.len() as u32);
        let mut datagram = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            request.append_to(&mut datagram, 0, first.wrapping_add(i as u32));
        }
        let mut answers: Vec<Option<Result<Vec<u8>, NetlinkError>>> = vec![None; requests.len()];
        let mut missing = requests.len();

        let outcome = self.channel.send(&datagram).map_err(NetlinkError::Kernel).and_then(|()| {
            self.receive_until(&mut |message| {
                if let Ok(m) = message
                    && (m.kind == ERROR || m.kind >= MIN_TYPE)
                    && let Some(slot @ None) = answers.get_mut(m.seq.wrapping_sub(first) as usize)
                {
                    *slot = Some(match m.kind {
                        ERROR => status(m.payload).map(|()| Vec::new()),
                        _ => Ok(m.payload.to_vec()),
                    });
                    missing -= 1;
                }
                missing > 0
            })
        });
        let why = outcome.err().unwrap_or(NetlinkError::Malformed);
        answers.into_iter().map(|answer| answer.unwrap_or(Err(why))).collect()
    }

    fn take_seqs(&mut self, count: u32) -> u32 {
        let first = self.next_seq;
        self.next_seq = first.wrapping_add(count);
        first
    }

    /// Receives until `each` returns false. Fails only if nothing more can be received.
    fn receive_until(&mut self, each: &mut Each<'_>) -> Result<(), NetlinkError> {
        let mut deadline = None;
        for count in 1..MAX_MESSAGES {
            let outcome = self.channel.receive(&mut self.buffer);
            // An answer comes at once or after the socket's own time-out, so the clock is looked at only where neither
            // ends the loop.
            if count % CLOCK_EVERY == 0 || outcome == Err(Errno::EINTR) {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + PATIENCE) {
                    return Err(NetlinkError::TimedOut);
                }
            }
            let got = match outcome {
                Ok(got) => got,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(NetlinkError::TimedOut),
                // The socket's buffer was full and something was lost; what follows is still to be read.
                Err(Errno::ENOBUFS) => {
                    if !each(Err(NetlinkError::Kernel(Errno::ENOBUFS))) {
                        return Ok(());
                    }
                    continue;
                }
                Err(e) => return Err(NetlinkError::Kernel(e)),
            };
            let Some(datagram) = self.buffer.get(..got) else {
                if !each(Err(NetlinkError::Truncated)) {
                    return Ok(());
                }
                continue;
            };
            for message in Messages(datagram) {
                if !each(message) {
                    return Ok(());
                }
            }
        }
        Err(NetlinkError::TimedOut)
    }
}

#[cfg(test)]
pub mod tests;
