//! How a conversation fails.

use crate::failure::{Failure, Kind};
use crate::wire::{self, Record, RecordError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

/// What the client says when it has the server's record.
pub(super) const DONE_WORD: &str = "\"done\\0\"";

/// A conversation that failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The host name has no address.
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        /// As given.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No address accepted a connection. The last one's error is told.
    #[error("cannot connect to {peer}: {source}")]
    Connect {
        /// The address tried last.
        peer: SocketAddr,
        /// Its error.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on {local}: {source}")]
    Listen {
        /// The local address.
        local: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// No client came.
    #[error("no client connected to {local} within {waited:?}{}", last_caller(.last.as_deref()))]
    NobodyCame {
        /// The local address.
        local: SocketAddr,
        /// How long was waited.
        waited: Duration,
        /// Others may have called: why the last of them was none.
        last: Option<Box<Self>>,
    },
    /// The peer is connected, but sends nothing, or stopped in the middle.
    #[error("{peer} sent {got} of the {need} bytes of {what} and then nothing for {waited:?}")]
    Silent {
        /// The peer.
        peer: SocketAddr,
        /// What was due.
        what: &'static str,
        /// Bytes that came.
        got: usize,
        /// Bytes that were due.
        need: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The peer closed the connection too early.
    #[error("{peer} closed the connection after {got} of the {need} bytes of {what}")]
    Closed {
        /// The peer.
        peer: SocketAddr,
        /// What was due.
        what: &'static str,
        /// Bytes that came.
        got: usize,
        /// Bytes that were due.
        need: usize,
    },
    /// The peer sent something that is no record.
    #[error("{peer} speaks another protocol: it sent {excerpt}: {source}")]
    Garbage {
        /// The peer.
        peer: SocketAddr,
        /// The beginning of what it sent.
        excerpt: String,
        /// What is wrong with it.
        source: RecordError,
    },
    /// The peer's last word is another one.
    #[error("{peer} sent {excerpt} instead of {due}")]
    Unexpected {
        /// The peer.
        peer: SocketAddr,
        /// What it sent.
        excerpt: String,
        /// What was due.
        due: &'static str,
    },
    /// The ping was over for this end, and the peer did not part with it as it should.
    #[error("{0}")]
    Farewell(Box<Self>),
    /// The connection broke.
    #[error("the connection to {peer} broke: {source}")]
    Broken {
        /// The peer.
        peer: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// The process was asked to stop.
    #[error("stopped by a signal")]
    Stopped,
    /// The system refused to wait for a socket, or to tell of one.
    #[error("cannot use a socket: {0}")]
    Wait(io::Error),
}

fn last_caller(trouble: Option<&ExchangeError>) -> String {
    trouble.map_or(String::new(), |trouble| format!("; the last caller was none: {trouble}"))
}

impl ExchangeError {
    /// What was wrong with the last caller, if there was none that was right; otherwise this.
    pub fn trouble(&self) -> &Self {
        match self {
            Self::NobodyCame { last: Some(last), .. } => last,
            _ => self,
        }
    }

    /// The peer sent these bytes.
    pub(super) fn garbage(peer: SocketAddr, bytes: &[u8], source: RecordError) -> Self {
        Self::Garbage { peer, excerpt: wire::excerpt(bytes), source }
    }
}

impl From<ExchangeError> for Failure {
    fn from(e: ExchangeError) -> Self {
        use ExchangeError as E;
        let (kind, hint) = match e.trouble() {
            E::Stopped => return Failure::interrupted(),
            E::Connect { source, .. } if source.kind() == ErrorKind::ConnectionRefused => {
                (Kind::Peer, Some("is the server running there, on that port?"))
            }
            E::Listen { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                (Kind::NotPermitted, Some("ports below 1024 are for root: choose another with --port"))
            }
            E::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse => {
                (Kind::Usage, Some("another program waits on that TCP port: choose another with --port"))
            }
            E::Listen { source, .. } if source.kind() == ErrorKind::AddrNotAvailable => {
                (Kind::Usage, Some("this host has no such address: ip addr shows those that it has"))
            }
            E::NobodyCame { .. } => (Kind::Peer, Some("start the client, or wait longer with --connect-timeout")),
            E::Garbage { source, .. } => (
                Kind::Peer,
                Some(match source.may_be() {
                    Some(Record::Xrc) => "so begins what a peer with --transport xsrq sends, or ibv_xsrq_pingpong",
                    Some(Record::Plain) => "so begins what a peer sends that was not started with --transport xsrq",
                    None => "the peer must be `rdma-probe ping` or one of the C pingpongs",
                }),
            ),
            E::Unexpected { due: DONE_WORD, .. } => {
                (Kind::Peer, Some("a peer that sends more than one record wants --transport srq"))
            }
            E::Farewell(cause) if matches!(**cause, E::Stopped) => return Failure::interrupted(),
            E::Farewell(_) => (Kind::Peer, Some("all messages came and went; do both ends use the same --iters?")),
            // One record, whole, and no more: that is all that the others send.
            E::Silent { got, need, .. } if *got == Record::Plain.bytes() && need > got => {
                (Kind::Peer, Some("so much does a peer send that was not started with --transport srq"))
            }
            // The C tools end without a word where they cannot reach this end's GID from the one that they have not got.
            E::Closed { got: 0, .. } => (
                Kind::Peer,
                Some("an ibv_rc_pingpong there needs -g INDEX to use RoCE; do both ends use the same --transport?"),
            ),
            E::Silent { .. } | E::Closed { .. } | E::Broken { .. } => {
                (Kind::Peer, Some("do both ends use the same --transport?"))
            }
            _ => (Kind::Peer, None),
        };
        let failure = Failure::new(kind, e.to_string());
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
