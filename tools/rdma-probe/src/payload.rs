//! What `--check` sends, and what it can know about what comes back.
//!
//! `ibv_rc_pingpong` has one buffer for both directions, so it sends back every message as it came, with or without
//! its own `-c`. Its buffer starts as 0x7b everywhere; with `-c`, its client puts zero at the start of every page before
//! the first message, and its server looks, after the last message, whether the start of every page is zero.
//!
//! `ibv_xsrq_pingpong` does the same, but its buffer starts as zeros, it looks at nothing, and its server sends first: there,
//! the server is the client of what follows.
//!
//! So each message is different, and each is checked completely:
//!
//! | this end | peer | what must arrive |
//! | --- | --- | --- |
//! | client | `ibv_rc_pingpong`, or ours without `--check` | what the client has just sent |
//! | client | ours with `--check` | the server's own message of that round |
//! | server | `ibv_rc_pingpong`, or ours without `--check` | first the initial buffer, then what the server sent the round before |
//! | server | ours with `--check` | the client's own message of that round |
//!
//! The first message shows which peer it is. The client's last message has zero at the start of every 4096 bytes, which
//! is what a C server with `-c` looks for.

use crate::args::Transport;
use std::fmt;

/// Where the C tools' `-c` looks: the start of each page. Larger pages start at multiples of this one, too.
const PAGE: usize = 4096;

/// What `ibv_rc_pingpong` fills its buffer with.
const C_FILL: u8 = 0x7b;

/// Who makes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends first.
    Client,
    /// Answers.
    Server,
}

impl Role {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// What the peer was found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// No message has come yet.
    Unknown,
    /// It sends back what it received, as `ibv_rc_pingpong` does.
    Echoes,
    /// It makes its own messages: `rdma-probe ping --check`.
    Makes,
}

/// A message whose bytes are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The round it belongs to, counted from 0.
    pub round: u64,
    /// Offset of the first wrong byte.
    pub at: usize,
    /// The byte that was expected there.
    pub expected: u8,
    /// The byte that came.
    pub found: u8,
    /// Number of wrong bytes in the message.
    pub wrong_bytes: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, at, expected, found, wrong_bytes } = self;
        write!(
            f,
            "message {round}: {wrong_bytes} wrong byte(s), the first at offset {at}: {found:#04x}, not {expected:#04x}"
        )
    }
}

/// Makes and checks the messages of one end.
pub struct Check {
    role: Role,
    peer: Peer,
    rounds: u64,
    transport: Transport,
    expected: Vec<u8>,
    /// Messages found right so far.
    pub checked: u64,
}

impl Check {
    /// For messages of `size` bytes, `rounds` of them each way. The peer may be the C tool of that transport.
    pub fn new(role: Role, size: usize, rounds: u64, transport: Transport) -> Self {
        Self { role, peer: Peer::Unknown, rounds, transport, expected: vec![0; size], checked: 0 }
    }

    /// What the peer was found to do.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Writes this end's message of `round`.
    pub fn make(&self, round: u64, out: &mut [u8]) {
        message(self.role, round, self.rounds, out);
    }

    /// Checks the peer's message of `round`.
    pub fn check(&mut self, round: u64, found: &[u8]) -> Result<(), Mismatch> {
        if self.peer == Peer::Unknown {
            self.recognise(round, found)?;
        } else {
            let Self { role, rounds, .. } = *self;
            match (self.peer, role) {
                (Peer::Makes, _) => message(role.other(), round, rounds, &mut self.expected),
                (_, Role::Client) => message(role, round, rounds, &mut self.expected),
                (_, Role::Server) => message(role, round.saturating_sub(1), rounds, &mut self.expected),
            }
            compare(round, &self.expected, found)?;
        }
        self.checked += 1;
        Ok(())
    }

    /// Which peer the first message is from. A wrong message is blamed on the peer that it is nearest to.
    fn recognise(&mut self, round: u64, found: &[u8]) -> Result<(), Mismatch> {
        let mut nearest: Option<(Peer, Mismatch)> = None;
        for (peer, first) in first_messages(self.transport) {
            self.expect_first(first, round);
            match compare(round, &self.expected, found) {
                Ok(()) => {
                    self.peer = peer;
                    return Ok(());
                }
                Err(m) if nearest.is_none_or(|(_, n)| m.wrong_bytes < n.wrong_bytes) => nearest = Some((peer, m)),
                Err(_) => {}
            }
        }
        match nearest {
            None => Ok(()),
            Some((peer, mismatch)) => {
                self.peer = peer;
                Err(mismatch)
            }
        }
    }

    /// Puts what the peer's first message may be into `self.expected`.
    fn expect_first(&mut self, first: First, round: u64) {
        let Self { role, rounds, .. } = *self;
        match (first, role) {
            (First::Made, _) => message(role.other(), round, rounds, &mut self.expected),
            // To a client, a peer without messages of its own sends back what it got.
            (_, Role::Client) => message(role, round, rounds, &mut self.expected),
            (First::Filled, Role::Server) => self.expected.fill(C_FILL),
            (First::Paged, Role::Server) => initial_echo_buffer(&mut self.expected),
            (First::Zeroed, Role::Server) => self.expected.fill(0),
        }
    }
}

/// Whose first message may be what. Zeros are one with XRC only: elsewhere they are memory that nothing has arrived in.
fn first_messages(transport: Transport) -> [(Peer, First); 3] {
    let c_first = if transport == Transport::Xsrq { First::Zeroed } else { First::Filled };
    [(Peer::Makes, First::Made), (Peer::Echoes, c_first), (Peer::Echoes, First::Paged)]
}

/// What the first message of a peer may be.
#[derive(Clone, Copy)]
enum First {
    /// A message of the peer's own.
    Made,
    /// The buffer as `ibv_rc_pingpong` fills it.
    Filled,
    /// The same after the client's `-c`, and that of an end of ours that makes no messages.
    Paged,
    /// The buffer of `ibv_xsrq_pingpong`.
    Zeroed,
}

/// Makes and checks messages that are all alike. The client chooses which: one of ours a message with different bytes
/// everywhere, a C client some byte, with or without zeros at the start of each page.
pub struct Same {
    message: Vec<u8>,
    /// No message has come yet from a client that chooses.
    is_open: bool,
}

impl Same {
    /// For messages of `size` bytes.
    pub fn new(role: Role, size: usize) -> Self {
        let mut chosen = vec![0; size];
        // The last message of a ping, which a C server's `-c` is content with.
        message(Role::Client, 0, 1, &mut chosen);
        Self { message: chosen, is_open: role == Role::Server }
    }

    /// The message, as far as it is known.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Checks a message. True if it was the first, which decides what all must be.
    pub fn check(&mut self, round: u64, found: &[u8]) -> Result<bool, Mismatch> {
        if !self.is_open {
            return compare(round, &self.message, found).map(|()| false);
        }
        if found != self.message {
            // The first byte that is no page's first, where there is one.
            let fill = found.get(1).or(found.first()).copied().unwrap_or_default();
            let mut uniform = vec![fill; found.len()];
            let is_uniform = found == uniform;
            zero_page_starts(&mut uniform);
            if fill == SPOILT || !(is_uniform || found == uniform) {
                // Blamed on our own kind of peer.
                return compare(round, &self.message, found).map(|()| false);
            }
            self.message.copy_from_slice(found);
        }
        self.is_open = false;
        Ok(true)
    }
}

/// What a buffer is filled with where a message is to arrive, so that a byte that did not arrive is found.
pub const SPOILT: u8 = 0xee;

/// The buffer of an end that makes no messages of its own, before anything arrived: that of `ibv_rc_pingpong -c`.
pub fn initial_echo_buffer(out: &mut [u8]) {
    out.fill(C_FILL);
    zero_page_starts(out);
}

/// A message that no other round and no other role has, from its first byte on.
fn message(role: Role, round: u64, rounds: u64, out: &mut [u8]) {
    let seed = mix(round << 1 | (role == Role::Server) as u64);
    for (i, word) in out.chunks_mut(8).enumerate() {
        let bytes = mix(seed.wrapping_add(i as u64)).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
    // One-byte messages, too, tell the roles, successive rounds, and a C peer's initial buffer apart.
    if let Some(first) = out.first_mut() {
        *first = match role {
            Role::Client => 1 + (round % (C_FILL as u64 - 1)) as u8,
            Role::Server => 0x80 | (round % 0x80) as u8,
        };
    }
    if role == Role::Client && round + 1 == rounds {
        zero_page_starts(out);
    }
}

fn zero_page_starts(out: &mut [u8]) {
    out.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
}

/// The finaliser of SplitMix64: every input bit changes about half of the output bits.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// Both have the same length: the size of a message is checked before its content.
fn compare(round: u64, expected: &[u8], found: &[u8]) -> Result<(), Mismatch> {
    if expected == found {
        return Ok(());
    }
    let mut wrong = expected.iter().zip(found).enumerate().filter(|(_, (e, f))| e != f);
    match wrong.next() {
        Some((at, (&expected, &found))) => Err(Mismatch { round, at, expected, found, wrong_bytes: 1 + wrong.count() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 7] = [1, 2, 7, 64, 4095, 4097, 10_000];
    const ROUNDS: u64 = 300;

    #[test]
    fn messages_that_are_all_alike() {
        for size in SIZES {
            let mut client = Same::new(Role::Client, size);
            let chosen = client.message().to_vec();
            assert!(chosen.iter().step_by(PAGE).all(|&byte| byte == 0), "a C server's -c looks there");
            let mut paged = vec![0; size];
            initial_echo_buffer(&mut paged);
            for first in [chosen.clone(), paged, vec![C_FILL; size], vec![0; size]] {
                let mut server = Same::new(Role::Server, size);
                assert_eq!(server.check(0, &first), Ok(true));
                assert_eq!(server.message(), first);
                assert_eq!(server.check(1, &first), Ok(false));
                let mut wrong = first.clone();
                wrong[size - 1] ^= 0xee;
                assert_eq!(server.check(2, &wrong).unwrap_err().at, size - 1);
            }
            assert_eq!(client.check(0, &chosen), Ok(false));
            assert!(client.check(1, &vec![0xee; size]).is_err());
            assert!(Same::new(Role::Server, size).check(0, &vec![SPOILT; size]).is_err());
            if size > 2 {
                let mut torn = vec![C_FILL; size];
                torn[1] = 0;
                assert!(Same::new(Role::Server, size).check(0, &torn).is_err());
            }
        }
    }

    /// The buffer of a C peer, which receives into what it sends from.
    struct CPeer {
        buffer: Vec<u8>,
    }

    impl CPeer {
        /// As rc_pingpong.c: the client's `-c` writes `page number % sizeof(char)`, which is zero.
        fn new(size: usize, writes_pages: bool) -> Self {
            let mut buffer = vec![0x7b; size];
            if writes_pages {
                buffer.iter_mut().step_by(4096).for_each(|b| *b = 0);
            }
            Self { buffer }
        }

        fn its_check_passes(&self) -> bool {
            self.buffer.iter().step_by(4096).all(|&b| b == 0)
        }
    }

    #[test]
    fn a_checking_client_against_a_c_server() {
        for size in SIZES {
            let mut check = Check::new(Role::Client, size, ROUNDS, Transport::Rc);
            let mut c = CPeer::new(size, false);
            for round in 0..ROUNDS {
                check.make(round, &mut c.buffer);
                assert_eq!(check.check(round, &c.buffer), Ok(()));
            }
            assert_eq!((check.peer(), check.checked), (Peer::Echoes, ROUNDS));
            assert!(c.its_check_passes());
        }
    }

    #[test]
    fn a_checking_server_against_a_c_client() {
        for size in SIZES {
            for writes_pages in [false, true] {
                let mut check = Check::new(Role::Server, size, ROUNDS, Transport::Rc);
                let mut c = CPeer::new(size, writes_pages);
                for round in 0..ROUNDS {
                    assert_eq!(check.check(round, &c.buffer), Ok(()));
                    check.make(round, &mut c.buffer);
                }
                assert_eq!((check.peer(), check.checked), (Peer::Echoes, ROUNDS));
            }
        }
    }

    /// The server of `ibv_xsrq_pingpong` sends first, from a buffer of zeros.
    #[test]
    fn a_checking_client_against_a_c_server_of_xrc() {
        for size in SIZES {
            let mut check = Check::new(Role::Server, size, ROUNDS, Transport::Xsrq);
            let mut buffer = vec![0; size];
            for round in 0..ROUNDS {
                assert_eq!(check.check(round, &buffer), Ok(()));
                check.make(round, &mut buffer);
            }
            assert_eq!((check.peer(), check.checked), (Peer::Echoes, ROUNDS));
        }
    }

    #[test]
    fn zeros_are_no_first_message_of_another_transport() {
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
            // One zero is the start of a page.
            for size in SIZES.into_iter().filter(|size| *size > 1) {
                let mut check = Check::new(Role::Server, size, ROUNDS, transport);
                assert!(check.check(0, &vec![0; size]).is_err(), "{size} bytes over {transport}");
                assert_eq!(check.checked, 0);
            }
        }
    }

    #[test]
    fn two_checking_ends() {
        for size in SIZES {
            for rounds in [1, 2, ROUNDS] {
                let mut client = Check::new(Role::Client, size, rounds, Transport::Rc);
                let mut server = Check::new(Role::Server, size, rounds, Transport::Rc);
                let mut buffer = vec![0; size];
                for round in 0..rounds {
                    client.make(round, &mut buffer);
                    assert_eq!(server.check(round, &buffer), Ok(()));
                    server.make(round, &mut buffer);
                    assert_eq!(client.check(round, &buffer), Ok(()));
                }
                assert_eq!((client.peer(), server.peer()), (Peer::Makes, Peer::Makes));
            }
        }
    }

    #[test]
    fn an_unchecked_end_of_ours_passes_as_a_c_client_and_satisfies_a_c_server() {
        let mut buffer = vec![1; 9000];
        initial_echo_buffer(&mut buffer);
        for transport in [Transport::Rc, Transport::Xsrq] {
            assert_eq!(Check::new(Role::Server, 9000, 5, transport).check(0, &buffer), Ok(()));
        }
        assert!(CPeer { buffer }.its_check_passes());
    }

    #[test]
    fn every_single_wrong_byte_is_found() {
        for size in [1, 64, 4097] {
            for at in 0..size {
                let mut check = Check::new(Role::Client, size, ROUNDS, Transport::Rc);
                let mut buffer = vec![0; size];
                check.make(0, &mut buffer);
                check.check(0, &buffer).unwrap();
                check.make(1, &mut buffer);
                let expected = buffer[at];
                buffer[at] ^= 0x10;
                let mismatch = Mismatch { round: 1, at, expected, found: buffer[at], wrong_bytes: 1 };
                assert_eq!(check.check(1, &buffer), Err(mismatch));
            }
        }
    }

    #[test]
    fn a_wrong_first_message_is_found() {
        for role in [Role::Client, Role::Server] {
            let mut check = Check::new(role, 64, ROUNDS, Transport::Rc);
            let mut buffer = vec![0; 64];
            message(role.other(), 0, ROUNDS, &mut buffer);
            buffer[63] ^= 1;
            assert_eq!(check.check(0, &buffer).unwrap_err().wrong_bytes, 1);
            assert_eq!(check.peer(), Peer::Makes);
            assert_eq!(check.checked, 0);
        }
    }

    #[test]
    fn a_stale_message_is_found_whatever_the_size() {
        for size in SIZES {
            let mut check = Check::new(Role::Client, size, ROUNDS, Transport::Rc);
            let mut old = vec![0; size];
            check.make(0, &mut old);
            check.check(0, &old).unwrap();
            let wrong = check.check(1, &old).unwrap_err().wrong_bytes;
            assert!(wrong >= size / 2 + size % 2, "{wrong} of {size}");
        }
    }
}
