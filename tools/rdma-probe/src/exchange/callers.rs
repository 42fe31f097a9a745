//! A port on which one client is awaited, among callers that may be none: who says nothing, or something else, keeps nobody
//! from being heard, and ends no wait. What was wrong with the last of them is told if no client comes.

use super::tcp;
use super::{Conversation, ExchangeError, Limits, Result};
use crate::stop::Stop;
use crate::wait::{Deadline, Ready, wait_for_any};
use crate::wire::{Address, Record};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Callers that are listened to at once, as far as the process may have descriptors. One more takes the place of the one that
/// is waited for longest, if that has nothing to say: a client speaks as soon as it is connected.
pub(super) const MOST_CALLERS: usize = 128;

/// How long callers are left alone where there are no descriptors for them.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// What else has to be looked after while a client is awaited.
pub trait Aside {
    /// Readable when there is something to do.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Does it, without waiting. False if it cannot be done now, and is to be tried again in a moment.
    fn attend(&mut self) -> bool;
    /// Closes something, so that a caller can be let in: the oldest of what may be nobody's. False if it has nothing.
    fn make_room(&mut self) -> bool;
}

/// A port on which one client is awaited.
pub struct Listener {
    listener: TcpListener,
    local: SocketAddr,
}

/// Connections of which one may be the client's.
#[derive(Default)]
struct Callers {
    /// Those that have yet to say something, or the rest of it; who is waited for longest comes first.
    silent: VecDeque<Caller>,
    /// Who has said all that a client says.
    client: Option<Caller>,
    /// What was wrong with the last one that was none.
    trouble: Option<ExchangeError>,
}

/// A connection that may be the client's.
struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    deadline: Deadline,
    record: Record,
    records: Vec<u8>,
    got: usize,
}

impl Listener {
    /// Listens on `bind`, or on all addresses, IPv6 and IPv4.
    pub fn bind(bind: Option<SocketAddr>, port: u16) -> Result<Self> {
        let at = |mut local: SocketAddr| {
            local.set_port(port);
            tcp::listen(local).map_err(|source| ExchangeError::Listen { local, source })
        };
        let listener = match bind {
            Some(local) => at(local)?,
            // A host without IPv6 has no such addresses.
            None => at((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|e| match e {
                ExchangeError::Listen { ref source, .. }
                    if matches!(source.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) =>
                {
                    Err(e)
                }
                _ => at((Ipv4Addr::UNSPECIFIED, port).into()),
            })?,
        };
        let local = listener.local_addr().map_err(ExchangeError::Wait)?;
        Ok(Self { listener, local })
    }

    /// Where it listens.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Waits for a client: the first caller from which so many addresses have come, in records of that kind, the first half of
    /// the server's part. The port is closed then, and so are the other callers: there is one peer.
    pub fn client<'a>(
        self,
        due: (usize, Record),
        limits: Limits,
        stop: &'a Stop,
        mut aside: Option<&mut dyn Aside>,
    ) -> Result<(Conversation<'a>, Vec<Address>)> {
        let arrival = Deadline::after(limits.connect);
        let mut callers = Callers::default();
        let mut open = true;
        loop {
            let mut room = aside.as_mut().is_none_or(|aside| aside.attend());
            if open {
                // Once more when the time is over: for those who came in time.
                open = !arrival.passed();
                room &= self.admit(&mut callers, due, limits, &mut aside)?;
            }
            callers.hear();
            if let Some(client) = callers.client {
                return client.into_conversation(limits, stop);
            }
            if !open && callers.silent.is_empty() {
                let last = callers.trouble.map(Box::new);
                return Err(ExchangeError::NobodyCame { local: self.local, waited: arrival.limit(), last });
            }
            let mut fds: Vec<BorrowedFd<'_>> = callers.silent.iter().map(|caller| caller.stream.as_fd()).collect();
            if room {
                fds.extend(open.then(|| self.listener.as_fd()));
                fds.extend(aside.as_ref().map(|aside| aside.fd()));
            }
            let ends = callers.silent.iter().map(|caller| caller.deadline).chain(open.then_some(arrival));
            let ends = ends.chain((!room).then(|| Deadline::after(NO_ROOM_PAUSE)));
            let deadline = ends.min_by_key(|deadline| deadline.left()).unwrap_or(arrival);
            if wait_for_any(&fds, &deadline, stop).map_err(ExchangeError::Wait)? == Ready::Stopped {
                return Err(ExchangeError::Stopped);
            }
        }
    }

    /// Takes in who has called. False if there is no room for one.
    fn admit(
        &self,
        callers: &mut Callers,
        (count, record): (usize, Record),
        limits: Limits,
        aside: &mut Option<&mut dyn Aside>,
    ) -> Result<bool> {
        // Not all at once: those who are in have to be heard, too.
        for _ in 0..MOST_CALLERS {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true).map_err(|source| ExchangeError::Broken { peer, source })?;
                    let deadline = Deadline::after(limits.silence);
                    let records = vec![0; count * record.bytes()];
                    callers.add(Caller { stream, peer, deadline, record, records, got: 0 });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                // A client that gave up between its arrival and now is not the one waited for.
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) if tcp::is_shortage(&e) => {
                    if !tcp::is_called(&self.listener) {
                        return Ok(true);
                    }
                    // Of callers there may be none, because what is done aside has all descriptors.
                    let mut make_room = || aside.as_mut().is_some_and(|aside| aside.make_room());
                    if !tcp::is_own_shortage(&e) || !(callers.part_with_oldest() || make_room()) {
                        return Ok(false);
                    }
                }
                Err(source) => return Err(ExchangeError::Listen { local: self.local, source }),
            }
        }
        Ok(true)
    }
}

impl Callers {
    fn add(&mut self, caller: Caller) {
        if self.silent.len() == MOST_CALLERS {
            self.part_with_oldest();
        }
        self.silent.push_back(caller);
    }

    /// Hears all of them.
    fn hear(&mut self) {
        for _ in 0..self.silent.len() {
            let still = self.hear_oldest();
            self.silent.extend(still);
        }
    }

    /// Closes the oldest, unless it has become the client meanwhile. False if there is none.
    fn part_with_oldest(&mut self) -> bool {
        let any = !self.silent.is_empty();
        self.hear_oldest();
        any
    }

    /// Hears the oldest, and takes it out. Returned if it may yet say more.
    fn hear_oldest(&mut self) -> Option<Caller> {
        let mut caller = self.silent.pop_front()?;
        match caller.hear() {
            Ok(false) => return Some(caller),
            Ok(true) => _ = self.client.get_or_insert(caller),
            Err(e) => self.trouble = Some(e),
        }
        None
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
                    self.record.check(come).map_err(|source| ExchangeError::garbage(peer, come, source))?;
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
        let Self { stream, peer, record, records, .. } = self;
        let conversation = Conversation { stream, peer, limits, stop };
        let addresses = conversation.addresses(record, &records)?;
        Ok((conversation, addresses))
    }
}
