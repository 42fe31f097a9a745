//! Getting a TCP connection, with a deadline on everything that can block.

use super::{ExchangeError, Result};
use crate::stop::Stop;
use crate::wait::{Deadline, Ready, wait};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// For how long a client tries again after its connection was refused: its server may be starting at this moment. Who gives
/// it long for the connection gives it longer.
pub fn refused_grace(limit: Duration) -> Duration {
    Duration::from_secs(3).max(limit / 10).min(limit)
}

pub const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// Connects to the first of `addresses` that accepts.
pub fn connect_patiently(
    addresses: &[SocketAddr],
    deadline: &Deadline,
    stop: &Stop,
) -> Result<(TcpStream, SocketAddr)> {
    let grace = Deadline::after(refused_grace(deadline.limit()));
    loop {
        match connect_first(addresses, deadline, stop) {
            Err(ExchangeError::Connect { source, .. })
                if source.kind() == ErrorKind::ConnectionRefused && !grace.passed() =>
            {
                pause(REFUSED_PAUSE, stop)?;
            }
            other => return other,
        }
    }
}

pub fn listen(local: SocketAddr) -> io::Result<TcpListener> {
    /// Callers that the kernel keeps until they are accepted: more than come while a device is being opened.
    const BACKLOG: i32 = 1024;
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, None)?;
    // A server can be started again at once.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(local))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Whether a caller could not be let in for want of something that there may be again in a moment.
pub fn is_shortage(e: &io::Error) -> bool {
    is_own_shortage(e) || [Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM].contains(&Errno::from_raw(code(e)))
}

/// Whether it is this process that has no descriptor left.
pub fn is_own_shortage(e: &io::Error) -> bool {
    code(e) == Errno::EMFILE as i32
}

fn code(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(0)
}

/// Whether somebody waits to be let in: without a descriptor left, `accept` fails before it looks.
pub fn is_called(listener: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Looks the host's addresses up, on a thread of its own: a resolver may hang for longer than the deadline.
pub fn resolve(host: &str, port: u16, deadline: &Deadline, stop: &Stop) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let failed = |source| ExchangeError::Resolve { host: host.to_owned(), source };
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    thread::Builder::new()
        .spawn(move || {
            // Nobody listens any more if the deadline passed first.
            let _ = sender.send((name.as_str(), port).to_socket_addrs().map(|a| a.collect::<Vec<_>>()));
        })
        .map_err(failed)?;
    loop {
        match receiver.recv_timeout(REFUSED_PAUSE) {
            Ok(Ok(addresses)) if addresses.is_empty() => return Err(failed(io::Error::other("it has no address"))),
            Ok(answer) => return answer.map_err(failed),
            Err(_) if stop.asked() => return Err(ExchangeError::Stopped),
            Err(_) if deadline.passed() => return Err(failed(ErrorKind::TimedOut.into())),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(failed(io::Error::other("the resolver died"))),
        }
    }
}

fn connect_first(addresses: &[SocketAddr], deadline: &Deadline, stop: &Stop) -> Result<(TcpStream, SocketAddr)> {
    let mut last = ExchangeError::Stopped;
    for &peer in addresses {
        match connect(peer, deadline, stop)? {
            Ok(stream) => return Ok((stream, peer)),
            Err(source) => last = ExchangeError::Connect { peer, source },
        }
    }
    Err(last)
}

/// The inner error is this address's own; the outer one ends the search.
fn connect(peer: SocketAddr, deadline: &Deadline, stop: &Stop) -> Result<io::Result<TcpStream>> {
    let begin = || {
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(peer)) {
            Err(e) if e.raw_os_error() == Some(Errno::EINPROGRESS as i32) => Ok((socket, false)),
            other => other.map(|()| (socket, true)),
        }
    };
    let (socket, connected) = match begin() {
        Ok(begun) => begun,
        Err(e) => return Ok(Err(e)),
    };
    if !connected {
        if !wait_for(&socket, PollFlags::POLLOUT, deadline, stop)? {
            return Ok(Err(ErrorKind::TimedOut.into()));
        }
        if let Some(e) = socket.take_error().transpose() {
            return Ok(Err(e.unwrap_or_else(|e| e)));
        }
    }
    Ok(Ok(socket.into()))
}

pub fn wait_for(fd: &impl AsFd, events: PollFlags, deadline: &Deadline, stop: &Stop) -> Result<bool> {
    match wait((fd.as_fd(), None), events, deadline, stop).map_err(ExchangeError::Wait)? {
        Ready::Yes => Ok(true),
        Ready::TimedOut => Ok(false),
        Ready::Stopped => Err(ExchangeError::Stopped),
    }
}

pub fn pause(time: Duration, stop: &Stop) -> Result<()> {
    // The stop descriptor doubles as the one that never becomes ready.
    match wait((stop.as_fd(), None), PollFlags::empty(), &Deadline::after(time), stop).map_err(ExchangeError::Wait)? {
        Ready::Stopped => Err(ExchangeError::Stopped),
        _ => Ok(()),
    }
}
