//! Where the ends of a ping meet if the kernel's connection manager (rdma_cm) brings them together: at an IP address and a
//! port of its own. It finds the device that leads there, and tells each end of the other.

use crate::args::Ping;
use crate::exchange::resolve;
use crate::failure::{Failure, Kind};
use crate::machine::Machine;
use crate::stop::Stop;
use crate::wait::{Deadline, Ready, wait};
use ironverbs::rdma_cm::{Connection, Connector, Error, EventType, Handshake, IdAddress};
use ironverbs::rdma_cm::{Listener, Reason, RejectReason, Request, Route, Step};
use ironverbs::{Cq, Errno, Pd, PreparedQp, QpBuilder, Rc};
use nix::poll::PollFlags;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A peer that is known, and not connected yet.
pub enum Rendezvous {
    /// This end asks for the connection.
    Client(Route),
    /// This end is asked.
    Server(Request),
}

impl Rendezvous {
    /// The client's way to the server.
    pub fn with_server(
        host: &str,
        (machine, args): (&Machine, &Ping),
        deadline: &Deadline,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let mut failure = None;
        for address in resolve(host, args.port, deadline, stop)? {
            let (left, connector) = (deadline.left(), Connector::to(address).on(machine.cm()));
            match interruptible(stop, move || connector.resolve(left))? {
                Ok(route) => return Ok(Self::Client(route)),
                Err(error) => failure = Some(error.into()),
            }
        }
        Err(failure.unwrap_or_else(|| Failure::new(Kind::Peer, format!("{host} has no address"))))
    }

    /// The server's next client. `last` is what became of the one before, which is told if no other comes.
    pub fn with_client(
        listener: &Listener,
        deadline: &Deadline,
        last: Option<&Failure>,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let failed = |e| Failure::new(Kind::Device, format!("cannot wait for a client: {e}"));
        let nobody_came = || {
            let text = format!("no client came within {:?}", deadline.limit());
            match last {
                Some(last) => Failure { message: format!("{text}; of the last one: {}", last.message), ..last.clone() },
                None => Failure::new(Kind::Peer, text)
                    .hint("start the client, also with --cm, or wait longer with --connect-timeout"),
            }
        };
        loop {
            // Who comes to nothing does not prolong the wait, however many there are.
            if last.is_some() && deadline.passed() {
                return Err(nobody_came());
            }
            match wait((listener.as_fd(), None), PollFlags::POLLIN, deadline, stop).map_err(failed)? {
                Ready::Stopped => return Err(Failure::interrupted()),
                Ready::TimedOut => return Err(nobody_came()),
                Ready::Yes => {}
            }
            if let Some(request) = listener.request(Duration::ZERO)? {
                return Ok(Self::Server(request));
            }
        }
    }

    /// Addresses and device.
    pub fn addresses(&self) -> IdAddress {
        match self {
            Self::Client(route) => *route.addresses(),
            Self::Server(request) => *request.addresses(),
        }
    }

    /// A queue pair on the port that leads there.
    pub fn qp_builder<'a>(&self, pd: &'a Pd, cq: &'a Cq) -> Result<QpBuilder<'a, ironverbs::Any, Rc>, Failure> {
        Ok(match self {
            Self::Client(route) => route.qp_builder(pd, cq, cq)?,
            Self::Server(request) => request.qp_builder(pd, cq, cq)?,
        })
    }

    /// Connects the queue pair, within `limit`; a server that has others to serve, within [`PATIENCE`] from when the next of them came
    /// to `listener`.
    pub fn connect(
        self,
        prepared: PreparedQp<ironverbs::Any, Rc>,
        handshake: Handshake<'static>,
        limit: Duration,
        listener: Option<&Listener>,
        stop: &Stop,
    ) -> Result<Result<Connection, Error>, Failure> {
        interruptible_by(listener.map(|listener| (listener.as_fd(), PATIENCE)), stop, move || match self {
            Self::Client(route) => route.connect(prepared, &handshake, limit),
            Self::Server(request) => request.accept(prepared, &handshake, limit),
        })
    }
}

/// A place for clients: at `bind`, or at every address of every device, IPv6 and IPv4.
pub fn listen(machine: &Machine, bind: Option<SocketAddr>, port: u16) -> Result<Listener, Failure> {
    let at = |mut local: SocketAddr| {
        local.set_port(port);
        Listener::bind_on(machine.cm(), local, 0, |_| Ok(()))
    };
    let listener = match bind {
        Some(local) => at(local),
        // A host without IPv6 has no such addresses.
        None => at((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|e| match e.errno() {
            Some(Errno::EADDRINUSE | Errno::EACCES) => Err(e),
            _ => at((Ipv4Addr::UNSPECIFIED, port).into()),
        }),
    };
    Ok(listener?)
}

/// Whether nobody listens there, which may be only a matter of time.
pub fn is_early(error: &Error) -> bool {
    matches!(error, Error::Failed { reason: Reason::Rejected(RejectReason::INVALID_SERVICE_ID), .. })
}

/// How long a client may take to complete its handshake once another one waits. It takes milliseconds; where a message of it is lost, more
/// than four seconds, after which the kernel repeats its answer (`CMA_CM_RESPONSE_TIMEOUT`: 4.096 µs × 2^20). A client that was stopped,
/// or whose host has gone, would take all the time that there is.
const PATIENCE: Duration = Duration::from_secs(6);

/// Does what blocks on a thread of its own, so that a signal can end the wait for it. The process ends soon after that, and
/// the thread with it.
fn interruptible<T: Send + 'static>(stop: &Stop, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    interruptible_by(None, stop, work)
}

/// As [`interruptible`]; and so long after the descriptor is readable, it is waited for no longer. The work goes on until its own
/// deadline, and what comes of it is dropped.
fn interruptible_by<T: Send + 'static>(
    other: Option<(BorrowedFd<'_>, Duration)>,
    stop: &Stop,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let failed = |e| Failure::new(Kind::Device, format!("cannot start a thread: {e}"));
    let (ended, end) = UnixStream::pair().map_err(failed)?;
    let thread = std::thread::Builder::new()
        .spawn(move || {
            let result = work();
            drop(end);
            result
        })
        .map_err(failed)?;
    // The work has a deadline of its own.
    let never = Deadline::after(Duration::from_secs(u32::MAX.into()));
    let ready = |other, deadline| wait((ended.as_fd(), other), PollFlags::POLLIN, &deadline, stop).map_err(failed);
    let mut state = ready(other.map(|(fd, _)| fd), never)?;
    if let (Ready::Yes, Some((_, patience))) = (state, other) {
        // One of the two, or both.
        state = ready(None, Deadline::after(patience))?;
        if state == Ready::TimedOut {
            let text = format!("a client did not complete its handshake within {patience:?}, while another one waited");
            return Err(Failure::new(Kind::Peer, text));
        }
    }
    match state {
        Ready::Stopped => Err(Failure::interrupted()),
        Ready::Yes | Ready::TimedOut => thread.join().map_err(|_| failed(std::io::Error::other("it panicked"))),
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let kind = match &e {
            Error::Verbs { error, .. } => {
                return Self { message: e.to_string(), ..Self::from(&**error) };
            }
            Error::Invalid { .. } => Kind::Usage,
            Error::NoService { .. } => Kind::NoDevice,
            Error::OtherCredentials { .. } => Kind::NotPermitted,
            Error::Unexpected { event: EventType::DEVICE_REMOVAL, .. } => Kind::Removed,
            Error::Failed { .. } | Error::Unexpected { .. } | Error::Timeout { .. } => Kind::Peer,
            Error::Kernel { errno: Errno::EACCES | Errno::EPERM, .. } => Kind::NotPermitted,
            // EINVAL is the answer to a link-local address that names no link.
            Error::Kernel {
                step: Step::Bind | Step::Listen,
                errno: Errno::EADDRINUSE | Errno::EADDRNOTAVAIL | Errno::EINVAL,
                ..
            } => Kind::Usage,
            Error::Kernel { errno: Errno::ENODEV, .. } => Kind::NoDevice,
            Error::Kernel { step: Step::ResolveAddr | Step::ResolveRoute | Step::Connect, .. } => Kind::Peer,
            // So it answers where the peer has given up meanwhile.
            Error::Kernel {
                step: Step::InitQpAttr | Step::Accept | Step::Establish,
                errno: Errno::EINVAL | Errno::ENOENT,
                ..
            } => Kind::Peer,
            _ => Kind::Device,
        };
        Self::new(kind, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::mpsc;
    use std::time::Instant;

    /// A client that says nothing more keeps the next one waiting for so long only; one that does is not hurried, though another waits.
    #[test]
    fn a_client_that_hangs_holds_up_the_next_one_no_longer_than_patience_lasts() {
        let stop = Stop::never().unwrap();
        let patience = Duration::from_millis(100);
        let (next, mut client) = UnixStream::pair().unwrap();
        let (keep, hangs) = mpsc::channel::<()>();
        let connect_within = |patience, work: Box<dyn FnOnce() -> u32 + Send>| {
            interruptible_by(Some((next.as_fd(), patience)), &stop, work)
        };
        let connect = |work| connect_within(patience, work);
        // Nobody else is there.
        let late = Duration::from_millis(300);
        assert_eq!(connect(Box::new(move || [std::thread::sleep(late)].len() as u32)), Ok(1));
        client.write_all(b"x").unwrap();
        // The time that a busy machine takes to start a thread is not the client's.
        assert_eq!(connect_within(Duration::from_secs(20), Box::new(|| 2)), Ok(2));
        let begin = Instant::now();
        // Ten seconds at most, should nobody give up.
        let failure =
            connect(Box::new(move || hangs.recv_timeout(Duration::from_secs(10)).map_or(3, |()| 4))).unwrap_err();
        assert_eq!(failure.kind, Kind::Peer, "the server goes on to the next one");
        assert!(begin.elapsed() >= patience && begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        drop(keep);
    }

    #[test]
    fn a_peer_that_went_during_the_handshake_is_what_failed() {
        let kind = |step, errno| Failure::from(Error::Kernel { step, errno, about: Box::default(), hint: None }).kind;
        for step in [Step::InitQpAttr, Step::Accept, Step::Establish] {
            for errno in [Errno::EINVAL, Errno::ENOENT] {
                assert_eq!(kind(step, errno), Kind::Peer, "{step}");
            }
            assert_eq!(kind(step, Errno::ENOMEM), Kind::Device, "{step}");
        }
    }
}
