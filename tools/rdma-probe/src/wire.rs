//! The record that `ibv_rc_pingpong` and its sisters exchange over TCP (rdma-core, `libibverbs/examples/pingpong.c`).
//!
//! Fifty-two bytes of text, the final NUL included, every number in hexadecimal and filled with zeros:
//!
//! ```text
//! LID : QPN    : PSN    : GID                              NUL
//! 0000:000011:5a5a5a:00000000000000000000ffff0a090901\0
//! ```
//!
//! The GID is its 16 bytes in the order they travel. A zero GID means that the peer was started without one.

use ironverbs::{Gid, Lid, Psn, Qpn};
use std::fmt::Write;

/// Length of a record in bytes, its NUL included.
pub const RECORD_LEN: usize = 52;

/// What the client sends once it has the server's record, NUL included.
pub const DONE: &[u8; 5] = b"done\0";

/// Where one end of the connection is. The default, all zero, is what fills records beyond those that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Local identifier of the port; zero on Ethernet.
    pub lid: Lid,
    /// Queue pair number.
    pub qpn: Qpn,
    /// The first packet sequence number that this end sends.
    pub psn: Psn,
    /// Global identifier of the port, or zero.
    pub gid: Gid,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A field separator is missing.
    #[error("byte {at} is {found:#04x}, not the colon that ends a field")]
    Separator {
        /// Offset in bytes.
        at: usize,
        /// What is there.
        found: u8,
    },
    /// A field holds something else than hexadecimal digits.
    #[error("byte {at} is {found:#04x}, not a hexadecimal digit")]
    Digit {
        /// Offset in bytes.
        at: usize,
        /// What is there.
        found: u8,
    },
    /// The record does not end with a NUL.
    #[error("byte {at} is {found:#04x}, not the final NUL")]
    Terminator {
        /// Offset in bytes.
        at: usize,
        /// What is there.
        found: u8,
    },
}

const COLONS: [usize; 3] = [4, 11, 18];
const NUL: usize = RECORD_LEN - 1;

/// Whether `bytes` can be the beginning of a record. Tells garbage from the first wrong byte on.
pub fn check_prefix(bytes: &[u8]) -> Result<(), RecordError> {
    for (at, &found) in bytes.iter().enumerate().take(RECORD_LEN) {
        if COLONS.contains(&at) {
            if found != b':' {
                return Err(RecordError::Separator { at, found });
            }
        } else if at == NUL {
            if found != 0 {
                return Err(RecordError::Terminator { at, found });
            }
        } else if !found.is_ascii_hexdigit() {
            return Err(RecordError::Digit { at, found });
        }
    }
    Ok(())
}

/// Whether `bytes` can be the beginning of records. The last one may be incomplete; those before it are complete.
pub fn check_records(bytes: &[u8]) -> Result<(), RecordError> {
    bytes.chunks(RECORD_LEN).try_for_each(check_prefix)
}

/// The records of these addresses.
pub fn encode_all(addresses: &[Address]) -> Vec<u8> {
    addresses.iter().flat_map(Address::encode).collect()
}

impl Address {
    /// The record of this address, in lowercase.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        let mut text = String::with_capacity(RECORD_LEN);
        // Writing to a String cannot fail.
        let _ = write!(text, "{:04x}:{:06x}:{:06x}:", self.lid.0, self.qpn.get(), self.psn.get());
        for byte in self.gid.0 {
            let _ = write!(text, "{byte:02x}");
        }
        let mut record = [0; RECORD_LEN];
        record[..NUL].copy_from_slice(text.as_bytes());
        record
    }

    /// Reads a record. Digits may be of either case, as the C tools' `scanf` takes them; nothing else may differ.
    pub fn decode(record: &[u8; RECORD_LEN]) -> Result<Self, RecordError> {
        check_prefix(record)?;
        let number = |from: usize, to: usize| record[from..to].iter().fold(0, |n, &digit| n << 4 | nibble(digit));
        let mut gid = [0; 16];
        for (i, byte) in gid.iter_mut().enumerate() {
            *byte = number(19 + 2 * i, 21 + 2 * i) as u8;
        }
        // Four and six digits cannot exceed 16 and 24 bits.
        Ok(Self {
            lid: Lid(number(0, 4) as u16),
            qpn: Qpn::new(number(5, 11)).unwrap_or(Qpn::MAX),
            psn: Psn::new(number(12, 18)).unwrap_or(Psn::MAX),
            gid: Gid(gid),
        })
    }
}

fn nibble(digit: u8) -> u32 {
    (digit as char).to_digit(16).unwrap_or(0)
}

/// What a peer sent, as text fit for an error message: at most 40 bytes, anything unprintable escaped.
pub fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 40;
    let shown = bytes.get(..MOST).unwrap_or(bytes).escape_ascii();
    let dots = if bytes.len() > MOST { "..." } else { "" };
    format!("\"{shown}{dots}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        let gid = Gid::from("10.9.9.1".parse::<std::net::IpAddr>().unwrap());
        Address { lid: Lid(0xbeef), qpn: Qpn::new(0x11).unwrap(), psn: Psn::new(0xffabcd).unwrap(), gid }
    }

    const RECORD: &[u8; RECORD_LEN] = b"beef:000011:ffabcd:00000000000000000000ffff0a090901\0";

    #[test]
    fn golden_record() {
        assert_eq!(&address().encode(), RECORD);
        assert_eq!(Address::decode(RECORD), Ok(address()));
    }

    #[test]
    fn uppercase_digits_are_read() {
        let mut upper = *RECORD;
        upper.make_ascii_uppercase();
        assert_eq!(Address::decode(&upper), Ok(address()));
    }

    #[test]
    fn extremes_survive() {
        for (lid, n, byte) in [(0, 0, 0), (0xffff, 0xff_ffff, 0xff)] {
            let a =
                Address { lid: Lid(lid), qpn: Qpn::new(n).unwrap(), psn: Psn::new(n).unwrap(), gid: Gid([byte; 16]) };
            assert_eq!(Address::decode(&a.encode()), Ok(a));
        }
    }

    #[test]
    fn every_single_wrong_byte_is_found_where_it_is() {
        for at in 0..RECORD_LEN {
            for found in [b' ', b'-', b'+', b'x', b'g', b'\n', 0x80, 0xff] {
                let mut record = *RECORD;
                record[at] = found;
                let error = Address::decode(&record).unwrap_err();
                let expected = match at {
                    4 | 11 | 18 => RecordError::Separator { at, found },
                    51 => RecordError::Terminator { at, found },
                    _ => RecordError::Digit { at, found },
                };
                assert_eq!(error, expected);
                assert_eq!(check_prefix(&record[..=at]), Err(expected));
                assert_eq!(check_prefix(&record[..at]), Ok(()));
            }
        }
    }

    #[test]
    fn other_protocols_are_told_early() {
        // A web browser, perftest 4.5 (its version comes first), and a TLS client.
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", &[0x16, 3, 1, 2, 0]] {
            assert!(check_prefix(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt(b"GET\r\n\0\xff"), r#""GET\r\n\x00\xff""#);
        assert!(excerpt(&[b'a'; 1000]).len() < 50);
    }
}
