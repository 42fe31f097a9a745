//! Private data: the few bytes that travel with the messages of a handshake.

use super::error::{Error, Step};
use std::fmt;

/// Private data to send with a handshake's message.
///
/// The message has a field of fixed size, and the receiver is told that size and not how much was sent: behind what was sent
/// it finds zeros. Either the program's own format tells where it ends ([`raw`](Self::raw)), or a byte in front does
/// ([`counted`](Self::counted)); the receiver must know which.
///
/// ```
/// use ironverbs::rdma_cm::SendData;
/// let data = SendData::counted(b"hello");
/// assert_eq!(data.len(), 6);
/// assert!(SendData::NONE.is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SendData<'a> {
    bytes: &'a [u8],
    counted: bool,
}

impl<'a> SendData<'a> {
    /// None.
    pub const NONE: Self = Self { bytes: &[], counted: false };

    /// As they are.
    pub const fn raw(bytes: &'a [u8]) -> Self {
        Self { bytes, counted: false }
    }

    /// With their number in a byte in front, as [`PrivateData::counted`] reads it.
    pub const fn counted(bytes: &'a [u8]) -> Self {
        Self { bytes, counted: true }
    }

    /// Bytes that it takes in the message.
    pub const fn len(&self) -> usize {
        self.bytes.len() + self.counted as usize
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes it to the start of `field`, and returns how long it is. Refuses more than the message takes.
    pub(super) fn put(&self, step: Step, limit: usize, field: &mut [u8]) -> Result<u8, Error> {
        let len = self.len();
        if len > limit {
            let what = "private data";
            let counted = if self.counted { ", of which one counts the others" } else { "" };
            let limit = format!("the message has room for {limit} bytes{counted}: send the rest over the connection");
            return Err(Error::invalid(step, what, format!("{len} bytes"), limit));
        }
        let (count, rest) = field.split_at_mut(usize::from(self.counted));
        if let [count] = count {
            *count = self.bytes.len() as u8;
        }
        rest[..self.bytes.len()].copy_from_slice(self.bytes);
        Ok(len as u8)
    }
}

/// Which message private data goes with; each has room for so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    Request,
    Reply,
    Reject,
}

impl Message {
    /// Most bytes of a program in it (`ib_cm.h`). An id with an IP address uses 36 bytes of a request itself
    /// (`struct cma_hdr`).
    pub const fn limit(self, datagrams: bool) -> usize {
        const IP_HEADER: usize = 36;
        match (self, datagrams) {
            (Self::Request, false) => 92 - IP_HEADER,
            (Self::Request, true) => 216 - IP_HEADER,
            (Self::Reply, false) => 196,
            (Self::Reject, false) => 148,
            (Self::Reply | Self::Reject, true) => 136,
        }
    }
}

/// Private data that came with a handshake's message.
///
/// ```no_run
/// # fn f(data: &ironverbs::rdma_cm::PrivateData) {
/// match data.counted() {
///     Some(bytes) => println!("{} bytes", bytes.len()),
///     None => println!("a peer that does not count: {:?}", data.padded()),
/// }
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PrivateData(Box<[u8]>);

impl PrivateData {
    pub(super) fn new(field: &[u8], len: u8) -> Self {
        Self(field[..field.len().min(len.into())].into())
    }

    /// The whole field: what was sent, and zeros behind it. Empty if the event came with none, as when the network and not a
    /// program ended the handshake.
    pub fn padded(&self) -> &[u8] {
        &self.0
    }

    /// What was sent as [`SendData::counted`]. `None` if the field cannot be that.
    pub fn counted(&self) -> Option<&[u8]> {
        let (count, rest) = self.0.split_first()?;
        rest.get(..usize::from(*count))
    }

    /// Whether it came with none, or nothing but zeros.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(f, "PrivateData({:02x?} in {})", &self.0[..used], self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(data: SendData<'_>, limit: usize) -> Result<(u8, [u8; 256]), Error> {
        let mut field = [0; 256];
        let len = data.put(Step::Connect, limit, &mut field)?;
        Ok((len, field))
    }

    #[test]
    fn is_refused_above_its_limit_and_taken_at_it() {
        for limit in [0, 1, 56, 148] {
            let bytes = vec![0xa5; limit + 1];
            let (len, field) = put(SendData::raw(&bytes[1..]), limit).unwrap();
            assert_eq!((usize::from(len), &field[..limit]), (limit, &bytes[1..]));
            assert_eq!(field[limit], 0);
            let error = put(SendData::raw(&bytes), limit).unwrap_err().to_string();
            let expected = format!(
                "rdma_connect: private data is {} bytes; the message has room for {limit} bytes: send the rest over the \
                 connection",
                limit + 1
            );
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_count_takes_a_byte_of_the_room() {
        let bytes = [7; 56];
        put(SendData::counted(&bytes[..55]), 56).unwrap();
        let error = put(SendData::counted(&bytes), 56).unwrap_err().to_string();
        assert!(error.contains("57 bytes") && error.contains("one counts the others"), "{error}");
    }

    /// The receiver learns how long the field is, not what was sent.
    #[test]
    fn a_count_tells_zeros_from_padding() {
        for sent in [&b""[..], b"\0", b"abc\0\0", &[1; 55]] {
            let (_, field) = put(SendData::counted(sent), 56).unwrap();
            let received = PrivateData::new(&field, 56);
            assert_eq!(received.padded().len(), 56);
            assert_eq!(received.counted(), Some(sent));
        }
        assert_eq!(PrivateData::new(&[9; 256], 3).counted(), None, "the count is beyond the field");
        assert_eq!(PrivateData::default().counted(), None);
        assert!(PrivateData::default().is_blank());
    }
}
