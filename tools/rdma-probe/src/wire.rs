//! The records that `ibv_rc_pingpong` and its sisters exchange over TCP (rdma-core, `libibverbs/examples/pingpong.c`).
//!
//! Fifty-two bytes of text, the final NUL included, every number in hexadecimal and filled with zeros:
//!
//! ```text
//! LID : QPN    : PSN    : GID                              NUL
//! 0000:000011:5a5a5a:00000000000000000000ffff0a090901\0
//! ```
//!
//! `ibv_xsrq_pingpong` has 66 bytes, with two numbers more:
//!
//! ```text
//! LID :QPN,   receives : sends : PSN  : SRQN : GID                              NUL
//! 0000:000011:000012:5a5a5a:000007:00000000000000000000ffff0a090901\0
//! ```
//!
//! The GID is its 16 bytes in the order they travel. A zero GID means that the peer was started without one.

use ironverbs::{Gid, Lid, Psn, Qpn, Srqn};

/// What the client sends once it has the server's record, NUL included.
pub const DONE: &[u8; 5] = b"done\0";

/// What either end of `ibv_xsrq_pingpong` sends when it has received and sent all, NUL included.
pub const END: &[u8; 4] = b"END\0";

/// Which record a tool sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// That of all but one.
    Plain,
    /// That of `ibv_xsrq_pingpong`.
    Xrc,
}

/// Where one end of the connection is. The default, all zero, is what fills records beyond those that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Local identifier of the port; zero on Ethernet.
    pub lid: Lid,
    /// Number of the queue pair that the peer sends to.
    pub qpn: Qpn,
    /// The first packet sequence number that this end sends.
    pub psn: Psn,
    /// Global identifier of the port, or zero.
    pub gid: Gid,
    /// What an end of an extended reliable connection has besides.
    pub xrc: Option<XrcNumbers>,
}

/// What an end of an extended reliable connection has besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcNumbers {
    /// Number of the queue pair that it sends by.
    pub send_qpn: Qpn,
    /// Number of the shared receive queue that the peer's messages are for.
    pub srqn: Srqn,
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

impl RecordError {
    /// The other record, if the bytes may be one.
    pub fn may_be(self) -> Option<Record> {
        /// Up to this byte both are alike. Here one ends a number, and the other is in its GID.
        const DIFFERENT: usize = 25;
        match self {
            Self::Digit { at: DIFFERENT, found: b':' } => Some(Record::Xrc),
            Self::Separator { at: DIFFERENT, found } if found.is_ascii_hexdigit() => Some(Record::Plain),
            _ => None,
        }
    }
}

impl Record {
    /// Its length in bytes, its NUL included.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Plain => 52,
            Self::Xrc => 66,
        }
    }

    const fn colons(self) -> &'static [usize] {
        match self {
            Self::Plain => &[4, 11, 18],
            Self::Xrc => &[4, 11, 18, 25, 32],
        }
    }

    /// Whether `bytes` can be the beginning of records. The last one may be incomplete; those before it are complete. Tells
    /// garbage from the first wrong byte on.
    pub fn check(self, bytes: &[u8]) -> Result<(), RecordError> {
        bytes.chunks(self.bytes()).try_for_each(|record| self.check_one(record))
    }

    fn check_one(self, bytes: &[u8]) -> Result<(), RecordError> {
        for (at, &found) in bytes.iter().enumerate() {
            if self.colons().contains(&at) {
                if found != b':' {
                    return Err(RecordError::Separator { at, found });
                }
            } else if at == self.bytes() - 1 {
                if found != 0 {
                    return Err(RecordError::Terminator { at, found });
                }
            } else if !found.is_ascii_hexdigit() {
                return Err(RecordError::Digit { at, found });
            }
        }
        Ok(())
    }

    /// The records of these addresses, in lowercase.
    pub fn encode(self, addresses: &[Address]) -> Vec<u8> {
        addresses.iter().flat_map(|address| self.encode_one(address).into_bytes()).collect()
    }

    fn encode_one(self, address: &Address) -> String {
        let Address { lid, qpn, psn, gid, xrc } = address;
        let (lid, qpn, psn, gid) = (lid.0, qpn.get(), psn.get(), u128::from_be_bytes(gid.0));
        match self {
            Self::Plain => format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0"),
            Self::Xrc => {
                let XrcNumbers { send_qpn, srqn } = xrc.unwrap_or_default();
                let (send_qpn, srqn) = (send_qpn.get(), srqn.get());
                format!("{lid:04x}:{qpn:06x}:{send_qpn:06x}:{psn:06x}:{srqn:06x}:{gid:032x}\0")
            }
        }
    }

    /// Reads records. Digits may be of either case, as the C tools' `scanf` takes them; nothing else may differ, and the last
    /// record must be complete.
    pub fn decode(self, records: &[u8]) -> Result<Vec<Address>, RecordError> {
        records.chunks(self.bytes()).map(|record| self.decode_one(record)).collect()
    }

    fn decode_one(self, record: &[u8]) -> Result<Address, RecordError> {
        self.check_one(record)?;
        let number = |digits: &[u8]| digits.iter().fold(0, |n, &digit| n << 4 | u128::from(nibble(digit)));
        let mut fields = record.split(|&byte| byte == b':' || byte == 0).map(number);
        let mut next = || fields.next().unwrap_or_default();
        // Four and six digits cannot exceed 16 and 24 bits.
        let lid = Lid(next() as u16);
        let qpn = |number| Qpn::new(number as u32).unwrap_or(Qpn::MAX);
        let psn = |number| Psn::new(number as u32).unwrap_or(Psn::MAX);
        let gid = |number: u128| Gid(number.to_be_bytes());
        Ok(match self {
            Self::Plain => Address { lid, qpn: qpn(next()), psn: psn(next()), gid: gid(next()), xrc: None },
            Self::Xrc => {
                let (receives, send_qpn, psn, srqn) = (qpn(next()), qpn(next()), psn(next()), next());
                let srqn = Srqn::new(srqn as u32).unwrap_or(Srqn::MAX);
                Address { lid, qpn: receives, psn, gid: gid(next()), xrc: Some(XrcNumbers { send_qpn, srqn }) }
            }
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
        Address { lid: Lid(0xbeef), qpn: Qpn::new(0x11).unwrap(), psn: Psn::new(0xffabcd).unwrap(), gid, xrc: None }
    }

    fn address_of(record: Record) -> Address {
        let xrc = XrcNumbers { send_qpn: Qpn::new(0x12).unwrap(), srqn: Srqn::new(0xabcdef).unwrap() };
        Address { xrc: (record == Record::Xrc).then_some(xrc), ..address() }
    }

    /// What a tool sends that has that address.
    fn golden(record: Record) -> &'static [u8] {
        match record {
            Record::Plain => b"beef:000011:ffabcd:00000000000000000000ffff0a090901\0",
            Record::Xrc => b"beef:000011:000012:ffabcd:abcdef:00000000000000000000ffff0a090901\0",
        }
    }

    const BOTH: [Record; 2] = [Record::Plain, Record::Xrc];

    #[test]
    fn golden_records() {
        for record in BOTH {
            let address = address_of(record);
            assert_eq!(record.encode(&[address]), golden(record));
            assert_eq!(record.decode(golden(record)), Ok(vec![address]));
            assert_eq!(record.bytes(), golden(record).len());
            let two = [golden(record), golden(record)].concat();
            assert_eq!(record.decode(&two), Ok(vec![address; 2]));
        }
    }

    #[test]
    fn uppercase_digits_are_read() {
        for record in BOTH {
            let upper = golden(record).to_ascii_uppercase();
            assert_eq!(record.decode(&upper), Ok(vec![address_of(record)]));
        }
    }

    #[test]
    fn extremes_survive() {
        for (lid, n, byte) in [(0, 0, 0), (0xffff, 0xff_ffff, 0xff)] {
            let (qpn, psn) = (Qpn::new(n).unwrap(), Psn::new(n).unwrap());
            let plain = Address { lid: Lid(lid), qpn, psn, gid: Gid([byte; 16]), xrc: None };
            let xrc = Address { xrc: Some(XrcNumbers { send_qpn: qpn, srqn: Srqn::new(n).unwrap() }), ..plain };
            for (record, address) in [(Record::Plain, plain), (Record::Xrc, xrc)] {
                assert_eq!(record.decode(&record.encode(&[address])), Ok(vec![address]));
            }
        }
    }

    #[test]
    fn every_single_wrong_byte_is_found_where_it_is() {
        for record in BOTH {
            let good = golden(record);
            for at in 0..good.len() {
                for found in [b' ', b'-', b'+', b'x', b'g', b'\n', 0x80, 0xff] {
                    let mut bytes = good.to_vec();
                    bytes[at] = found;
                    let error = record.decode(&bytes).unwrap_err();
                    let expected = match good[at] {
                        b':' => RecordError::Separator { at, found },
                        0 => RecordError::Terminator { at, found },
                        _ => RecordError::Digit { at, found },
                    };
                    assert_eq!(error, expected);
                    assert_eq!(error.may_be(), None);
                    assert_eq!(record.check(&bytes[..=at]), Err(expected));
                    assert_eq!(record.check(&bytes[..at]), Ok(()));
                }
            }
        }
    }

    #[test]
    fn the_other_record_is_known_as_soon_as_it_differs() {
        for (expected, sent) in [(Record::Plain, Record::Xrc), (Record::Xrc, Record::Plain)] {
            let sent_bytes = golden(sent);
            assert_eq!(expected.check(sent_bytes).unwrap_err().may_be(), Some(sent));
            assert_eq!(expected.check(&sent_bytes[..25]), Ok(()));
        }
    }

    #[test]
    fn other_protocols_are_told_early() {
        // A web browser, perftest 4.5 (its version comes first), and a TLS client.
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", &[0x16, 3, 1, 2, 0]] {
            for record in BOTH {
                assert!(record.check(bytes).is_err(), "{bytes:?}");
            }
        }
    }

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt(b"GET\r\n\0\xff"), r#""GET\r\n\x00\xff""#);
        assert!(excerpt(&[b'a'; 1000]).len() < 50);
    }
}
