//! How the simulated networks of two processes become one: over a Unix socket, beside the TCP conversation of the ping.
//!
//! ```text
//! client                                server
//!                                         listens on the socket, then on TCP
//!   connects on TCP
//!   connects to the socket, says hello
//!   sends its record on TCP ──────────▶
//!                                         takes the socket's connection whose hello names this client
//! ```
//!
//! By the time the server has the record, the hello is there, so that it never waits for one: a client without it is not of
//! this network. The socket has an abstract name, made from the user and the TCP port. Such names are, as TCP ports are, of a
//! network namespace; they need no folder, and go when their owner does, however it ends. Anybody could take the name or
//! connect to it, so both ends ask the kernel who the other is, and talk to processes of the same user only.

use super::{Sim, SimLink};
use crate::exchange::{Aside, is_called, is_own_shortage, pause};
use crate::failure::{Failure, Kind};
use crate::stop::Stop;
use crate::wait::Deadline;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Connections that are kept, of each kind: those that have said who they are, and those that have yet to. One more takes the
/// place of the oldest: others than the client's may be of clients that came to nothing.
const MOST_CALLERS: usize = 128;

/// How long a client tries again where too many have called and were not looked at yet.
const CROWDED: Duration = Duration::from_secs(5);
const CROWDED_PAUSE: Duration = Duration::from_millis(10);

fn name(port: u16) -> String {
    format!("rdma-probe/sim/{}/{port}", geteuid())
}

/// What a client says first: who it is, on TCP, and of which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    link: SimLink,
    tcp: SocketAddr,
    version: [u8; VERSION_LEN],
}

const MAGIC: &[u8; 12] = b"rdma-sim v1\n";
const VERSION_LEN: usize = 16;
const HELLO_LEN: usize = MAGIC.len() + 1 + VERSION_LEN + 16 + 2;

impl Hello {
    fn new(link: SimLink, tcp: SocketAddr) -> Self {
        let mut version = [0; VERSION_LEN];
        for (to, from) in version.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
            *to = from;
        }
        Self { link, tcp: plain(tcp), version }
    }

    fn encode(&self) -> Vec<u8> {
        let ip = match self.tcp.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let link = match self.link {
            SimLink::Roce => 1,
            SimLink::Ib => 2,
        };
        [MAGIC, &[link][..], &self.version, &ip.octets(), &self.tcp.port().to_be_bytes()].concat()
    }

    fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (link, rest) = rest.split_first()?;
        let link = match link {
            1 => SimLink::Roce,
            2 => SimLink::Ib,
            _ => return None,
        };
        let (version, rest) = rest.split_first_chunk()?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let port = u16::from_be_bytes(*rest.first_chunk()?);
        let tcp = plain(SocketAddr::new(Ipv6Addr::from(*ip).into(), port));
        Some(Self { link, tcp, version: *version })
    }
}

/// An address without what only its own end knows of it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether the other end belongs to the user of this process.
fn is_own(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

/// Where a server waits for the client's network.
pub struct Meeting {
    listener: UnixListener,
    port: u16,
    /// Own processes that have not said who they are.
    silent: VecDeque<UnixStream>,
    known: VecDeque<(UnixStream, Hello)>,
}

impl Aside for Meeting {
    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Lets callers in: who is not taken in time finds the door closed.
    fn attend(&mut self) -> bool {
        let done = loop {
            match self.listener.accept() {
                Ok((stream, _)) if is_own(&stream) && stream.set_nonblocking(true).is_ok() => {
                    self.silent.push_back(stream);
                    if self.silent.len() > MOST_CALLERS {
                        self.hear();
                    }
                }
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) if is_own_shortage(&e) && is_called(&self.listener) && self.forget_oldest() => {}
                // Nobody else is there, or cannot be let in now.
                Err(e) => break e.kind() == ErrorKind::WouldBlock || !is_called(&self.listener),
            }
        };
        self.hear();
        done
    }

    fn make_room(&mut self) -> bool {
        self.forget_oldest()
    }
}

impl Meeting {
    /// Opens it. To be done before TCP is listened on, so that a client who got through there finds it.
    pub fn open(port: u16) -> Result<Self, Failure> {
        let listening = UnixAddr::from_abstract_name(name(port)).and_then(|address| UnixListener::bind_addr(&address));
        let listener = listening.and_then(|l| l.set_nonblocking(true).map(|()| l)).map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => Failure::new(
                Kind::Usage,
                format!("another simulated server is waiting for a client on TCP port {port}"),
            )
            .hint("choose another port with --port, at both ends"),
            _ => Failure::new(Kind::Device, format!("cannot listen for another simulated network: {e}")),
        })?;
        Ok(Self { listener, port, silent: VecDeque::new(), known: VecDeque::new() })
    }

    /// Hears who has said who they are; forgets those who said something else, and the oldest of too many.
    fn hear(&mut self) {
        for stream in std::mem::take(&mut self.silent) {
            match read_hello(&stream) {
                Heard::Hello(hello) => self.known.push_back((stream, hello)),
                Heard::Nothing => self.silent.push_back(stream),
                Heard::Other => {}
            }
        }
        self.silent.drain(..self.silent.len().saturating_sub(MOST_CALLERS));
        self.known.drain(..self.known.len().saturating_sub(MOST_CALLERS));
    }

    /// Makes room for another caller. False if nobody is here.
    fn forget_oldest(&mut self) -> bool {
        self.hear();
        self.silent.pop_front().is_some() || self.known.pop_front().is_some()
    }

    /// Makes one network of `sim` and that of the client at `peer`, which has sent its record already.
    pub fn join(mut self, sim: &Sim, peer: SocketAddr) -> Result<(), Failure> {
        self.attend();
        if let Some((stream, hello)) = self.known.into_iter().find(|(_, hello)| hello.tcp == plain(peer)) {
            let expected = Hello::new(sim.link, peer);
            if hello.version != expected.version {
                return Err(Failure::new(Kind::Peer, "the client is another version of rdma-probe")
                    .hint("a simulated network takes the same version at both ends"));
            }
            if hello.link != sim.link {
                let text = format!("the client simulates {}, this end {}", hello.link, sim.link);
                return Err(Failure::new(Kind::Peer, text).hint("give both ends the same --sim"));
            }
            return sim.host.fabric().bridge(stream).map_err(|e| cannot_join(&e));
        }
        Err(Failure::new(
            Kind::Peer,
            format!("the client at {peer} is not on the simulated network of port {}", self.port),
        )
        .hint("start it with --sim, too, on this machine and as the same user"))
    }
}

/// What a caller has said.
enum Heard {
    Hello(Hello),
    Nothing,
    Other,
}

/// A hello is sent in one piece, before the TCP record, so that it is all there or not at all.
fn read_hello(mut stream: &UnixStream) -> Heard {
    let mut bytes = [0; HELLO_LEN];
    match stream.read(&mut bytes) {
        Ok(HELLO_LEN) => Hello::decode(&bytes).map_or(Heard::Other, Heard::Hello),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Heard::Nothing,
        _ => Heard::Other,
    }
}

/// Makes one network of `sim` and that of the server on TCP port `port` of this machine. `own` is this end of the TCP
/// connection to it.
pub fn meet(sim: &Sim, port: u16, own: SocketAddr, deadline: &Deadline, stop: &Stop) -> Result<(), Failure> {
    let mut stream = connect(port, deadline, stop)?.map_err(|e| {
        let text = format!("there is no simulated network of TCP port {port} on this machine: {e}");
        Failure::new(Kind::Peer, text).hint("start the server with --sim, too, on this machine and as the same user")
    })?;
    if !is_own(&stream) {
        let text = format!("the simulated network of TCP port {port} belongs to another user");
        return Err(Failure::new(Kind::NotPermitted, text).hint("choose another port with --port, at both ends"));
    }
    stream.write_all(&Hello::new(sim.link, own).encode()).map_err(|e| cannot_join(&e))?;
    sim.host.fabric().bridge(stream).map_err(|e| cannot_join(&e))
}

/// Waits for a moment where there is a crowd: a server that does not take its callers is none. The inner error is the door's;
/// the outer one ends the wait for it.
fn connect(port: u16, deadline: &Deadline, stop: &Stop) -> Result<io::Result<UnixStream>, Failure> {
    let patience = Deadline::after(CROWDED.min(deadline.left()));
    let knock = || -> io::Result<UnixStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(format!("\0{}", name(port)))?)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    };
    loop {
        match knock() {
            Err(e) if e.kind() == ErrorKind::WouldBlock && !patience.passed() => pause(CROWDED_PAUSE, stop)?,
            answer => return Ok(answer),
        }
    }
}

fn cannot_join(e: &io::Error) -> Failure {
    Failure::new(Kind::Peer, format!("cannot join the simulated network of the other end: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    fn hello() -> Hello {
        Hello::new(SimLink::Ib, "127.0.0.1:18515".parse().unwrap())
    }

    #[test]
    fn a_hello_comes_through_as_it_was() {
        let bytes: [u8; HELLO_LEN] = hello().encode().try_into().unwrap();
        assert_eq!(Hello::decode(&bytes), Some(hello()));
        let mapped = Hello::new(SimLink::Ib, "[::ffff:127.0.0.1]:18515".parse().unwrap());
        assert_eq!(mapped, hello(), "one address, however it is written");
        for at in 0..=MAGIC.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x80;
            assert_eq!(Hello::decode(&damaged), None, "byte {at}");
        }
    }

    /// As a client knocks that has time.
    fn connect(port: u16) -> io::Result<UnixStream> {
        super::connect(port, &Deadline::after(CROWDED), &Stop::never().unwrap()).unwrap()
    }

    fn meet(sim: &Sim, port: u16, own: SocketAddr) -> Result<(), Failure> {
        super::meet(sim, port, own, &Deadline::after(CROWDED), &Stop::never().unwrap())
    }

    /// A pair of addresses of a real connection; the port is not used by anybody else meanwhile.
    fn tcp() -> (TcpListener, TcpStream, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (listener, stream, port)
    }

    #[test]
    fn the_right_caller_is_found_among_others() {
        let (_listener, stream, port) = tcp();
        let own = stream.local_addr().unwrap();
        let meeting = Meeting::open(port).unwrap();
        assert_eq!(Meeting::open(port).err().unwrap().kind, Kind::Usage, "twice");
        let _silent = connect(port).unwrap();
        let mut garbage = connect(port).unwrap();
        garbage.write_all(&[0xff; 4096]).unwrap();
        let mut other = connect(port).unwrap();
        other.write_all(&Hello::new(SimLink::Roce, "127.0.0.1:1".parse().unwrap()).encode()).unwrap();
        let client = Sim::new(SimLink::Roce, 1);
        meet(&client, port, own).unwrap();
        meeting.join(&Sim::new(SimLink::Roce, 0), own).unwrap();
        assert_eq!(meet(&client, port, own).unwrap_err().kind, Kind::Peer, "the meeting is over");
    }

    #[test]
    fn who_is_not_there_or_simulates_another_link_is_told() {
        let (_listener, stream, port) = tcp();
        let own = stream.local_addr().unwrap();
        let sim = Sim::new(SimLink::Roce, 0);
        let alone = Meeting::open(port).unwrap().join(&sim, own).unwrap_err();
        assert_eq!(alone.kind, Kind::Peer);
        assert!(alone.to_string().contains("--sim"), "{alone}");
        let meeting = Meeting::open(port).unwrap();
        meet(&Sim::new(SimLink::Ib, 1), port, own).unwrap();
        let other = meeting.join(&sim, own).unwrap_err().to_string();
        assert!(other.contains("InfiniBand") && other.contains("RoCE"), "{other}");
    }

    #[test]
    fn a_crowd_holds_up_neither_a_stop_nor_the_deadline() {
        let (_tcp, _stream, port) = tcp();
        // A door with room for one, who is not let in.
        let door = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        door.bind(&SockAddr::unix(format!("\0{}", name(port))).unwrap()).unwrap();
        door.listen(0).unwrap();
        let _first = connect(port).unwrap();
        let begin = Instant::now();
        let stop = Stop::never().unwrap();
        let late = super::connect(port, &Deadline::after(Duration::from_millis(50)), &stop).unwrap();
        assert_eq!(late.unwrap_err().kind(), ErrorKind::WouldBlock);
        stop.asker().unwrap().ask();
        let stopped = super::connect(port, &Deadline::after(CROWDED), &stop);
        assert_eq!(stopped.unwrap_err().kind, Kind::Interrupted);
        assert!(begin.elapsed() < CROWDED / 2, "{:?}", begin.elapsed());
    }
}
