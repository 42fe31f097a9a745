//! The TCP conversation before the ping, in both roles, as `ibv_rc_pingpong` and its sisters hold it.
//!
//! ```text
//! client                      server
//!   connect
//!   record  ───────────────▶
//!                               moves its queue pair towards the client
//!           ◀───────────────  record
//!   "done\0" ──────────────▶
//!   close                       close
//!   moves its queue pair
//! ```
//!
//! With a shared receive queue, each side sends 256 records instead of one; those beyond its queue pairs are zero.
//!
//! The C tools read a record with one `read()` and take nothing but all of it, so a record is sent in one `write()`.
//! This side reads in a loop, and every step has a deadline.

mod error;
mod tcp;
#[cfg(test)]
mod tests;

pub use error::ExchangeError;

use crate::stop::Stop;
use crate::wait::Deadline;
use crate::wire::{self, Address, DONE, RECORD_LEN, RecordError};
use nix::poll::PollFlags;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tcp::wait_for;

/// How long the steps may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a connection to come about.
    pub connect: Duration,
    /// For the peer to send what is due.
    pub silence: Duration,
}

type Result<T> = std::result::Result<T, ExchangeError>;

/// A TCP connection to the peer.
pub struct Conversation<'a> {
    stream: TcpStream,
    peer: SocketAddr,
    limits: Limits,
    stop: &'a Stop,
}

impl<'a> Conversation<'a> {
    /// Connects to a server: to the first address of `host` that accepts.
    pub fn connect(host: &str, port: u16, limits: Limits, stop: &'a Stop) -> Result<Self> {
        let deadline = Deadline::after(limits.connect);
        let addresses = tcp::resolve(host, port, &deadline, stop)?;
        let (stream, peer) = tcp::connect_patiently(&addresses, &deadline, stop)?;
        Ok(Self { stream, peer, limits, stop })
    }

    /// The peer's TCP address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end's TCP address.
    pub fn local(&self) -> Result<SocketAddr> {
        self.stream.local_addr().map_err(ExchangeError::Wait)
    }

    /// The client's part: sends `local`, returns as many addresses of the server.
    pub fn client(mut self, local: &[Address]) -> Result<Vec<Address>> {
        self.send(&wire::encode_all(local))?;
        let remote = self.receive_records(local.len(), "what the server sends")?;
        self.send(DONE)?;
        Ok(remote)
    }

    /// The first half of the server's part: `count` addresses of the client.
    pub fn server_receive(&mut self, count: usize) -> Result<Vec<Address>> {
        self.receive_records(count, "what the client sends")
    }

    /// The second half of the server's part: answers with `local`, and waits until the client has it.
    pub fn server_answer(mut self, local: &[Address]) -> Result<()> {
        self.send(&wire::encode_all(local))?;
        let mut done = [0; DONE.len()];
        self.receive(&mut done, "\"done\\0\"", |_| Ok(()))?;
        if &done != DONE {
            return Err(ExchangeError::NotDone { peer: self.peer, excerpt: wire::excerpt(&done) });
        }
        Ok(())
    }

    fn receive_records(&mut self, count: usize, what: &'static str) -> Result<Vec<Address>> {
        let mut records = vec![0; count * RECORD_LEN];
        self.receive(&mut records, what, wire::check_records)?;
        let (records, _) = records.as_chunks::<RECORD_LEN>();
        records.iter().map(|record| Address::decode(record).map_err(|source| self.garbage(record, source))).collect()
    }

    /// Fills `buf`. `check` sees everything that has come so far, so that a wrong beginning need not be waited out.
    fn receive(
        &mut self,
        buf: &mut [u8],
        what: &'static str,
        check: impl Fn(&[u8]) -> std::result::Result<(), RecordError>,
    ) -> Result<()> {
        let deadline = Deadline::after(self.limits.silence);
        let need = buf.len();
        let mut got = 0;
        while got < need {
            match self.stream.read(&mut buf[got..]) {
                Ok(0) => return Err(ExchangeError::Closed { peer: self.peer, what, got, need }),
                Ok(n) => {
                    got += n;
                    check(&buf[..got]).map_err(|source| self.garbage(&buf[..got], source))?;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => match self.ready(PollFlags::POLLIN, &deadline)? {
                    true => {}
                    false => {
                        let waited = deadline.limit();
                        return Err(ExchangeError::Silent { peer: self.peer, what, got, need, waited });
                    }
                },
                Err(source) => return Err(ExchangeError::Broken { peer: self.peer, source }),
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        let deadline = Deadline::after(self.limits.silence);
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if !self.ready(PollFlags::POLLOUT, &deadline)? {
                        return Err(ExchangeError::Broken { peer: self.peer, source: ErrorKind::TimedOut.into() });
                    }
                }
                Err(source) => return Err(ExchangeError::Broken { peer: self.peer, source }),
            }
        }
        Ok(())
    }

    /// Waits for the socket; false when the deadline passed.
    fn ready(&self, events: PollFlags, deadline: &Deadline) -> Result<bool> {
        wait_for(&self.stream, events, deadline, self.stop)
    }

    fn garbage(&self, bytes: &[u8], source: RecordError) -> ExchangeError {
        ExchangeError::Garbage { peer: self.peer, excerpt: wire::excerpt(bytes), source }
    }
}

/// A port on which one client is awaited.
pub struct Listener {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener {
    /// Listens on `bind`, or on all addresses, IPv6 and IPv4.
    pub fn bind(bind: Option<IpAddr>, port: u16) -> Result<Self> {
        let at = |ip| {
            let local = SocketAddr::new(ip, port);
            tcp::listen(local).map_err(|source| ExchangeError::Listen { local, source })
        };
        let listener = match bind {
            Some(ip) => at(ip)?,
            // A host without IPv6 has no such addresses.
            None => at(Ipv6Addr::UNSPECIFIED.into()).or_else(|e| match e {
                ExchangeError::Listen { ref source, .. }
                    if matches!(source.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) =>
                {
                    Err(e)
                }
                _ => at(Ipv4Addr::UNSPECIFIED.into()),
            })?,
        };
        let local = listener.local_addr().map_err(ExchangeError::Wait)?;
        Ok(Self { listener, local })
    }

    /// Where it listens.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Waits for a client. The port is closed then: there is one peer.
    pub fn accept(self, limits: Limits, stop: &Stop) -> Result<Conversation<'_>> {
        let deadline = Deadline::after(limits.connect);
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true).map_err(|source| ExchangeError::Broken { peer, source })?;
                    return Ok(Conversation { stream, peer, limits, stop });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if !wait_for(&self.listener, PollFlags::POLLIN, &deadline, stop)? {
                        return Err(ExchangeError::NobodyCame { local: self.local, waited: deadline.limit() });
                    }
                }
                // A client that gave up between its arrival and now is not the one waited for.
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(source) => return Err(ExchangeError::Listen { local: self.local, source }),
            }
        }
    }
}
