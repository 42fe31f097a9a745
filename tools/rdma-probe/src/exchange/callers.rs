//! A port on which one client is awaited, among callers that may be none: who says nothing, or something else, keeps nobody
//! from being heard.

use super::tcp;
use super::{Conversation, ExchangeError, Limits, Result};
use crate::stop::Stop;
use crate::wait::{Deadline, Ready, wait_for_any};
use crate::wire::{self, Address, RECORD_LEN};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// Callers that are listened to at once. One more takes the place of the one that is waited for longest: a client speaks as
/// soon as it is connected.
const MOST_CALLERS: usize = 128;

/// What else has to be looked after while a client is awaited.
pub trait Aside {
    /// Readable when there is something to do.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Does it, without waiting.
    fn attend(&mut self);
}

/// A port on which one client is awaited.
pub struct Listener {
    listener: TcpListener,
    local: SocketAddr,
}

/// A connection that may be the client's.
struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    deadline: Deadline,
    records: Vec<u8>,
    got: usize,
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

    /// Waits for a client: the first caller from which `count` addresses have come, the first half of the server's part. The
    /// port is closed then, and so are the other callers: there is one peer.
    ///
    /// Fails with what is wrong with a caller when no other is there.
    pub fn client<'a>(
        self,
        count: usize,
        limits: Limits,
        stop: &'a Stop,
        mut aside: Option<&mut dyn Aside>,
    ) -> Result<(Conversation<'a>, Vec<Address>)> {
        let arrival = Deadline::after(limits.connect);
        let mut callers: VecDeque<Caller> = VecDeque::new();
        loop {
            if let Some(aside) = &mut aside {
                aside.attend();
            }
            let late = arrival.passed();
            while !late && let Some(caller) = self.next(count, limits)? {
                if callers.len() == MOST_CALLERS {
                    callers.pop_front();
                }
                callers.push_back(caller);
            }
            let mut trouble = None;
            let mut still = VecDeque::with_capacity(callers.len());
            for mut caller in callers {
                match caller.hear() {
                    Ok(true) => return caller.into_conversation(limits, stop),
                    Ok(false) => still.push_back(caller),
                    Err(e) => trouble = Some(e),
                }
            }
            callers = still;
            match trouble {
                Some(trouble) if callers.is_empty() => return Err(trouble),
                _ => {}
            }
            if late && callers.is_empty() {
                return Err(ExchangeError::NobodyCame { local: self.local, waited: arrival.limit() });
            }
            let mut fds: Vec<BorrowedFd<'_>> = callers.iter().map(|caller| caller.stream.as_fd()).collect();
            if !late {
                fds.push(self.listener.as_fd());
            }
            fds.extend(aside.as_ref().map(|aside| aside.fd()));
            let first = (!late).then_some(arrival).into_iter().chain(callers.iter().map(|caller| caller.deadline));
            let deadline = first.min_by_key(|deadline| deadline.left()).unwrap_or(arrival);
            if wait_for_any(&fds, &deadline, stop).map_err(ExchangeError::Wait)? == Ready::Stopped {
                return Err(ExchangeError::Stopped);
            }
        }
    }

    /// A caller that is there.
    fn next(&self, count: usize, limits: Limits) -> Result<Option<Caller>> {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true).map_err(|source| ExchangeError::Broken { peer, source })?;
                    let deadline = Deadline::after(limits.silence);
                    return Ok(Some(Caller { stream, peer, deadline, records: vec![0; count * RECORD_LEN], got: 0 }));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                // A client that gave up between its arrival and now is not the one waited for.
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(source) => return Err(ExchangeError::Listen { local: self.local, source }),
            }
        }
    }
}

impl Caller {
    /// Reads what has come. True if that is everything.
    fn hear(&mut self) -> Result<bool> {
        let (peer, what, need) = (self.peer, "what the client sends", self.records.len());
        while self.got < need {
            match self.stream.read(&mut self.records[self.got..]) {
                Ok(0) => return Err(ExchangeError::Closed { peer, what, got: self.got, need }),
                Ok(n) => {
                    self.got += n;
                    let come = &self.records[..self.got];
                    wire::check_records(come).map_err(|source| ExchangeError::garbage(peer, come, source))?;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let (got, waited) = (self.got, self.deadline.limit());
                    let silent = ExchangeError::Silent { peer, what, got, need, waited };
                    return if self.deadline.passed() { Err(silent) } else { Ok(false) };
                }
                Err(source) => return Err(ExchangeError::Broken { peer, source }),
            }
        }
        Ok(true)
    }

    fn into_conversation(self, limits: Limits, stop: &Stop) -> Result<(Conversation<'_>, Vec<Address>)> {
        let Self { stream, peer, records, .. } = self;
        let conversation = Conversation { stream, peer, limits, stop };
        let addresses = conversation.addresses(&records)?;
        Ok((conversation, addresses))
    }
}
