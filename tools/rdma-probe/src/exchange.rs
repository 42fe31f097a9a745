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
//! With a shared receive queue, each side sends 256 records instead of one; those beyond its queue pairs are zero. With one of
//! XRC, the client says nothing more after the server's record, the connection stays, and they take leave of each other when
//! the ping is over.
//!
//! The C tools read a record with one `read()` and take nothing but all of it, so a record is sent in one `write()`.
//! This side reads in a loop, and every step has a deadline.

mod callers;
mod error;
mod farewell;
mod tcp;
#[cfg(test)]
mod tests;

pub use callers::{Aside, Listener};
pub use error::ExchangeError;
pub use farewell::Farewell;
pub use tcp::{REFUSED_PAUSE, is_called, is_own_shortage, pause, refused_grace, resolve};

use crate::stop::Stop;
use crate::wait::Deadline;
use crate::wire::{self, Address, DONE, Record, RecordError};
use nix::poll::PollFlags;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
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

    /// The client's part: sends `local`, returns as many addresses of the server; and what is left, if they go on talking.
    pub fn client(mut self, record: Record, local: &[Address]) -> Result<(Vec<Address>, Option<Farewell<'a>>)> {
        self.send(&record.encode(local))?;
        let remote = self.receive_records(record, local.len(), "what the server sends")?;
        let farewell = match record {
            Record::Plain => {
                self.send(DONE)?;
                None
            }
            Record::Xrc => Some(Farewell(self)),
        };
        Ok((remote, farewell))
    }

    /// The second half of the server's part: answers with `local`, and waits until the client has it, if it tells that.
    /// Returns what is left, if they go on talking.
    pub fn server_answer(mut self, record: Record, local: &[Address]) -> Result<Option<Farewell<'a>>> {
        self.send(&record.encode(local))?;
        if record == Record::Xrc {
            return Ok(Some(Farewell(self)));
        }
        let mut done = [0; DONE.len()];
        self.receive(&mut done, error::DONE_WORD, |_| Ok(()))?;
        match &done == DONE {
            true => Ok(None),
            false => {
                let (peer, excerpt) = (self.peer, wire::excerpt(&done));
                Err(ExchangeError::Unexpected { peer, excerpt, due: error::DONE_WORD })
            }
        }
    }

    fn receive_records(&mut self, record: Record, count: usize, what: &'static str) -> Result<Vec<Address>> {
        let mut records = vec![0; count * record.bytes()];
        self.receive(&mut records, what, |records| record.check(records))?;
        self.addresses(record, &records)
    }

    /// Takes records apart.
    fn addresses(&self, record: Record, records: &[u8]) -> Result<Vec<Address>> {
        record.decode(records).map_err(|source| ExchangeError::garbage(self.peer, records, source))
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
                    check(&buf[..got]).map_err(|source| ExchangeError::garbage(self.peer, &buf[..got], source))?;
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
}
