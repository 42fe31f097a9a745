//! Why a command did not succeed: one line for people, one exit code for programs.

use ironverbs::{Errno, Error, PollError, PostError, Unusable, Verb, WcError, WcStatus};
use serde::Serialize;
use std::fmt;

/// What kind of trouble it was. Each kind has an exit code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A value on the command line is wrong, by itself or for this device.
    Usage,
    /// There is no such device, or none that can be used.
    NoDevice,
    /// The device, or the TCP port, is there, but not for this user.
    NotPermitted,
    /// The peer or the way to it: unreachable, silent, gone, or speaking another protocol.
    Peer,
    /// A message arrived whose bytes are not those that were sent, or bytes to decode are damaged.
    Data,
    /// The local device or its driver refused or failed.
    Device,
    /// The result could not be written.
    Output,
    /// The device went away while it was in use.
    Removed,
    /// What was waited for did not come in time.
    TimedOut,
    /// Stopped by SIGINT or SIGTERM.
    Interrupted,
}

impl Kind {
    /// The exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::NoDevice => 3,
            Self::NotPermitted => 4,
            Self::Peer => 5,
            Self::Data => 6,
            Self::Device => 7,
            Self::Output => 8,
            Self::Removed => 9,
            Self::TimedOut => 10,
            Self::Interrupted => 130,
        }
    }
}

/// The table of exit codes, as `--help` prints it.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  success; for list also if none of the host's devices can be used
    2  usage: a wrong option, a value that this device or port does not allow, or a TCP port that is in use
    3  no such device, none that can be used, or no device at all
    4  not permitted: the device file or the TCP port is not for this user
    5  peer: unreachable, silent past its deadline, gone, or speaking another protocol
    6  data: the payload that arrived is not the payload that was sent; for decode, an entry is damaged or cut off
    7  device: the local device or its driver refused or failed
    8  output: the result could not be written
    9  removed: the device went away while it was in use
   10  timed out: watch saw fewer events than --count within --timeout
  130  stopped by SIGINT or SIGTERM; what was measured until then is printed";

/// A command that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its kind, hence its exit code.
    pub kind: Kind,
    /// What went wrong, with its causes, as one line.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// The same failure, with what to do about it. Keeps an earlier hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert(hint.into());
        self
    }

    /// The same failure, saying first what was being done.
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Stopped by a signal.
    pub fn interrupted() -> Self {
        Self::new(Kind::Interrupted, "stopped by a signal")
    }

    /// A work request, a send or a receive, that completed with an error.
    pub fn completion(is_send: bool, error: WcError) -> Self {
        Self::of_status(is_send, error.status, error.vendor_err)
    }

    fn of_status(is_send: bool, status: WcStatus, vendor_err: u32) -> Self {
        let what = if is_send { "a send" } else { "a receive" };
        let vendor = if vendor_err == 0 { String::new() } else { format!(", vendor error {vendor_err:#x}") };
        let kind = completion_kind(is_send, status);
        match completion_hint(is_send, status) {
            // The hint knows the ping better than the general causes, which come after the colon.
            Some(hint) => {
                let name = status.to_string();
                let name = name.split_once(": ").map_or(name.clone(), |(short, _)| format!("{short})"));
                Self::new(kind, format!("{what} completed with {name}{vendor}")).hint(hint)
            }
            None => Self::new(kind, format!("{what} completed with {status}{vendor}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::from(&e)
    }
}

impl From<&Error> for Failure {
    fn from(e: &Error) -> Self {
        Self::new(error_kind(e), e.to_string())
    }
}

impl From<PostError> for Failure {
    fn from(e: PostError) -> Self {
        Self::new(Kind::Device, e.to_string())
    }
}

impl From<PollError> for Failure {
    fn from(e: PollError) -> Self {
        Self::new(Kind::Device, e.to_string())
    }
}

impl From<&Unusable> for Failure {
    fn from(why: &Unusable) -> Self {
        let kind = match why {
            Unusable::NoPermission(_) | Unusable::Forbidden(_) => Kind::NotPermitted,
            _ => Kind::NoDevice,
        };
        Self::new(kind, why.to_string())
    }
}

fn error_kind(e: &Error) -> Kind {
    match e {
        Error::NoDevice { .. } => Kind::NoDevice,
        Error::DeviceGone { .. } => Kind::Removed,
        Error::Invalid { .. } => Kind::Usage,
        Error::Timeout { .. } => Kind::Peer,
        // A port or an index that is not there.
        Error::Kernel { verb: Verb::QueryPort | Verb::QueryGid, errno: Errno::EINVAL, .. } => Kind::Usage,
        Error::Kernel { errno: Errno::EACCES | Errno::EPERM, .. } => Kind::NotPermitted,
        Error::Kernel { verb: Verb::OpenDevice, errno: Errno::ENOENT | Errno::ENXIO | Errno::ENODEV, .. } => {
            Kind::NoDevice
        }
        // The kernel looks for the peer's link address while it moves the queue pair towards the peer.
        Error::Kernel {
            verb: Verb::ModifyQp,
            errno: Errno::ETIMEDOUT | Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EHOSTDOWN | Errno::ENETDOWN,
            ..
        } => Kind::Peer,
        _ => Kind::Device,
    }
}

fn completion_kind(is_send: bool, status: WcStatus) -> Kind {
    match status {
        // A message that does not fit its receive; rxe says the second.
        WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR if !is_send => Kind::Peer,
        // The queue pair went to the error state with no failure of its own: what it refused came from the peer.
        WcStatus::WR_FLUSH_ERR if !is_send => Kind::Peer,
        WcStatus::RETRY_EXC_ERR
        | WcStatus::RNR_RETRY_EXC_ERR
        | WcStatus::REM_INV_REQ_ERR
        | WcStatus::REM_ACCESS_ERR
        | WcStatus::REM_OP_ERR
        | WcStatus::REM_ABORT_ERR
        | WcStatus::RESP_TIMEOUT_ERR
        | WcStatus::BAD_RESP_ERR => Kind::Peer,
        _ => Kind::Device,
    }
}

fn completion_hint(is_send: bool, status: WcStatus) -> Option<&'static str> {
    Some(match status {
        WcStatus::RETRY_EXC_ERR => NO_ANSWER,
        WcStatus::RNR_RETRY_EXC_ERR => "the peer posts no receives: is it still running?",
        WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR if !is_send => "do both ends use the same --size?",
        // A cause would have been told instead. Soft-RoCE has none to tell where a packet could not be sent.
        WcStatus::WR_FLUSH_ERR => {
            "the device went to the error state without a reason; a request of the peer that it refused may be one, or a \
             packet that it could not send: do both ends use the same --mtu, and does the link between them carry it?"
        }
        WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => "do both ends use the same --size and --mtu?",
        _ => return None,
    })
}

/// No packet was acknowledged, on whatever link.
const NO_ANSWER: &str = "did the peer end, or was it started with a lower --iters? do both ends use the same --size, --transport, --mtu and \
                         matching GIDs?";

impl Failure {
    /// The same failure, with what a port of that link layer has beside others that can go wrong.
    pub fn on_link(mut self, is_ethernet: bool) -> Self {
        if let Some(hint) = self.hint.as_mut().filter(|hint| *hint == NO_ANSWER) {
            hint.push_str(match is_ethernet {
                true => " is UDP port 4791 open both ways?",
                false => " does the subnet manager run, and has no LID changed?",
            });
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 10] = [
        Kind::Usage,
        Kind::NoDevice,
        Kind::NotPermitted,
        Kind::Peer,
        Kind::Data,
        Kind::Device,
        Kind::Output,
        Kind::Removed,
        Kind::TimedOut,
        Kind::Interrupted,
    ];

    #[test]
    fn every_kind_has_its_own_documented_exit_code() {
        let mut codes: Vec<u8> = ALL.iter().map(|k| k.exit_code()).collect();
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), ALL.len());
        for code in codes {
            assert!(EXIT_CODES.lines().any(|l| l.trim_start().starts_with(&format!("{code}  "))), "{code}");
        }
    }

    #[test]
    fn the_peer_is_blamed_for_what_only_it_can_cause() {
        assert_eq!(completion_kind(true, WcStatus::RETRY_EXC_ERR), Kind::Peer);
        assert_eq!(completion_kind(true, WcStatus::LOC_PROT_ERR), Kind::Device);
        assert_eq!(completion_kind(true, WcStatus::LOC_QP_OP_ERR), Kind::Device);
        assert_eq!(completion_kind(false, WcStatus::LOC_QP_OP_ERR), Kind::Peer);
        assert_eq!(completion_kind(true, WcStatus(0x77)), Kind::Device);
    }

    #[test]
    fn a_hint_stands_for_the_general_causes() {
        let text = Failure::of_status(true, WcStatus::RETRY_EXC_ERR, 0).to_string();
        let start = "a send completed with RETRY_EXC_ERR (transport retries exceeded) (did the peer end";
        assert!(text.starts_with(start), "{text}");
        assert!(text.contains("--iters"));
        let text = Failure::of_status(true, WcStatus::LOC_PROT_ERR, 0).to_string();
        assert!(text.contains("LOCAL_WRITE"), "{text}");
    }

    #[test]
    fn what_is_asked_of_the_network_fits_its_kind() {
        let of = |ethernet| Failure::of_status(true, WcStatus::RETRY_EXC_ERR, 0).on_link(ethernet).to_string();
        assert!(of(true).contains("4791") && !of(true).contains("subnet"), "{}", of(true));
        assert!(of(false).contains("subnet manager") && !of(false).contains("4791"), "{}", of(false));
        let other = Failure::of_status(true, WcStatus::RNR_RETRY_EXC_ERR, 0);
        assert_eq!(other.clone().on_link(true), other);
    }

    /// Of two ends with different --mtu, one hears from the other that its request was invalid, and the other sees no more than
    /// that its receives are flushed.
    #[test]
    fn one_cause_is_of_one_kind_at_both_ends() {
        let (heard, flushed) = (
            Failure::of_status(true, WcStatus::REM_INV_REQ_ERR, 0),
            Failure::of_status(false, WcStatus::WR_FLUSH_ERR, 0),
        );
        assert_eq!((heard.kind, flushed.kind), (Kind::Peer, Kind::Peer));
        assert!(flushed.to_string().contains("--mtu") && heard.to_string().contains("--mtu"));
        assert_eq!(Failure::of_status(true, WcStatus::WR_FLUSH_ERR, 0).kind, Kind::Device);
    }

    #[test]
    fn a_failure_is_one_line() {
        let f = Failure::new(Kind::Peer, "nobody came").hint("start the client").during("waiting");
        assert_eq!(f.to_string(), "waiting: nobody came (start the client)");
    }
}
