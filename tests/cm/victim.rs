//! This program again, as another process that goes to some state of a connection, and is killed there.

use crate::scene::{End, Scene, WITHIN};
use ironverbs::rdma_cm::{
    CmId, ConnParams, Connector, Devices, EventChannel, EventType, Handshake, Listener, PortSpace, Route,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::any::Any;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::str::FromStr;

/// What a victim is at. Either side of a connection may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The client's, in their order.
    ResolvingAddr,
    AddrResolved,
    RouteResolved,
    Connecting,
    Answered,
    /// The listener's.
    Bound,
    Listening,
    RequestUnread,
    Requested,
    Accepted,
    /// Of either side, which is to be told.
    Established(Side),
    /// It has asked for the end.
    Disconnecting(Side),
    /// It was told of the end, and has not answered.
    ToldTheEnd(Side),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Listener,
}

pub const CLIENTS: [At; 8] = [
    At::ResolvingAddr,
    At::AddrResolved,
    At::RouteResolved,
    At::Connecting,
    At::Answered,
    At::Established(Side::Client),
    At::Disconnecting(Side::Client),
    At::ToldTheEnd(Side::Client),
];

pub const LISTENERS: [At; 8] = [
    At::Bound,
    At::Listening,
    At::RequestUnread,
    At::Requested,
    At::Accepted,
    At::Established(Side::Listener),
    At::Disconnecting(Side::Listener),
    At::ToldTheEnd(Side::Listener),
];

impl FromStr for At {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        CLIENTS.into_iter().chain(LISTENERS).find(|at| format!("{at:?}") == text).ok_or(())
    }
}

const ROLE: &str = "IRONVERBS_TEST_VICTIM";

/// A process that is to be killed; it is when this is dropped.
pub struct Victim {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Victim {
    /// Starts one that goes to that state, at or toward an address.
    pub fn start(at: At, address: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, format!("{at:?} {address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// Waits until it listens, if it does.
    pub fn listens(&mut self) {
        assert_eq!(self.line(), "listens");
    }

    /// Waits until it is where it is to be.
    pub fn is_there(&mut self) {
        assert_eq!(self.line(), "is there");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// By SIGKILL. When this returns, its descriptors are closed.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.end();
    }
}

/// Is a victim, if this process was started as one.
pub fn main_of_one() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let (at, address) = role.split_once(' ').unwrap();
    let (at, address): (At, SocketAddr) = (at.parse().unwrap(), address.parse().unwrap());
    let _held = go(at, address);
    println!("is there");
    loop {
        std::thread::park();
    }
}

/// Returns what must be held to stay there.
fn go(at: At, address: SocketAddr) -> Box<dyn Any> {
    let scene = Scene { devices: Devices::new(), ip: address.ip() };
    match at {
        At::ResolvingAddr => {
            let SocketAddr::V4(own) = address else { unreachable!("the scene's address is IPv4") };
            let [a, b, c, _] = own.ip().octets();
            let id = resolving(SocketAddr::new([a, b, c, 78].into(), 7471));
            Box::new(id)
        }
        At::AddrResolved => {
            let id = resolving(address);
            next(&id, EventType::ADDR_RESOLVED);
            Box::new(id)
        }
        At::RouteResolved => Box::new(Connector::to(address).resolve(WITHIN).unwrap()),
        At::Connecting => Box::new(connecting(&scene, address)),
        At::Answered => {
            let held = connecting(&scene, address);
            next(held.0.id(), EventType::CONNECT_RESPONSE);
            Box::new(held)
        }
        At::Bound => {
            let id = EventChannel::open().unwrap().create_id(PortSpace::Tcp).unwrap();
            id.bind(address).unwrap();
            Box::new(id)
        }
        At::Listening => Box::new(Listener::bind(address).unwrap()),
        At::RequestUnread => {
            let listener = listening(address);
            let mut readable = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut readable, PollTimeout::NONE), Ok(1));
            Box::new(listener)
        }
        At::Requested => {
            let listener = listening(address);
            let request = listener.request(WITHIN).unwrap().unwrap();
            Box::new((listener, request))
        }
        At::Accepted => {
            let listener = listening(address);
            let request = listener.request(WITHIN).unwrap().unwrap();
            let qp = scene.answer(&request);
            Box::new((listener, request, qp))
        }
        At::Established(side) => Box::new(established(&scene, side, address)),
        At::Disconnecting(side) => {
            let (listener, end) = established(&scene, side, address);
            end.connection.link().id().disconnect().unwrap();
            Box::new((listener, end))
        }
        At::ToldTheEnd(side) => {
            let (listener, end) = established(&scene, side, address);
            next(end.connection.link().id(), EventType::DISCONNECTED);
            Box::new((listener, end))
        }
    }
}

fn next(id: &CmId, wanted: EventType) {
    let event = id.channel().next(WITHIN).unwrap().expect("an event comes in time");
    assert_eq!(event.event_type(), wanted, "{event:?}");
}

fn resolving(to: SocketAddr) -> CmId {
    let id = EventChannel::open().unwrap().create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, to, WITHIN).unwrap();
    id
}

fn connecting(scene: &Scene, to: SocketAddr) -> (Route, ironverbs::PreparedQp) {
    let (route, prepared) = scene.route(to);
    route.id().connect(&ConnParams::new(prepared.qpn())).unwrap();
    (route, prepared)
}

fn listening(at: SocketAddr) -> Listener {
    let listener = Listener::bind(at).unwrap();
    println!("listens");
    listener
}

fn established(scene: &Scene, side: Side, at: SocketAddr) -> (Option<Listener>, End) {
    let handshake = Handshake::default();
    match side {
        Side::Client => (None, scene.connect(at, (1, 64), &handshake).unwrap()),
        Side::Listener => {
            let listener = listening(at);
            let end = scene.accept(&listener, (1, 64), &handshake).unwrap();
            (Some(listener), end)
        }
    }
}
