//! An [`Endpoint`] as one line of text, for programs that tell each other over TCP, a file, or a terminal.

use super::endpoint::Endpoint;
use crate::uverbs::types::{Gid, Lid, Mtu, Psn, Qpn};
use std::fmt;
use std::str::FromStr;

/// `lid=0 qpn=17 psn=4711 gid=fe80:0000:… mtu=1024`, without what is not known.
///
/// ```
/// let text = "lid=0 qpn=17 psn=4711 gid=0000:0000:0000:0000:0000:ffff:0a09:0901 mtu=1024";
/// let endpoint: ironverbs::Endpoint = text.parse()?;
/// assert_eq!(endpoint.qpn.get(), 17);
/// assert_eq!(endpoint.to_string(), text);
/// # Ok::<(), ironverbs::ParseEndpointError>(())
/// ```
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lid={} qpn={} psn={}", self.lid.0, self.qpn.get(), self.psn.get())?;
        if let Some(gid) = self.gid {
            write!(f, " gid={gid}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu={mtu}")?;
        }
        Ok(())
    }
}

/// A text that is no [`Endpoint`]. It is quoted, if it is long by its first characters.
///
/// ```
/// let error = "qpn=17".parse::<ironverbs::Endpoint>().unwrap_err();
/// assert!(error.to_string().contains("psn is missing"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no endpoint: {what} in {text}")]
pub struct ParseEndpointError {
    what: String,
    /// Quoted.
    text: String,
}

/// Characters of a text that are quoted: somewhat more than an endpoint has.
const QUOTED: usize = 96;

/// A text as an error shows it: what acts on a terminal is written out, and what is too long is cut. It may be of any length, and of
/// anybody's making.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// Parts in any order, separated by spaces. Parts with unknown names are passed over, so that later versions can say more.
impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let wrong = |what: &str| ParseEndpointError { what: what.to_owned(), text: quoted(text) };
        let (mut lid, mut qpn, mut psn, mut gid, mut mtu) = (None, None, None, None, None);
        for part in text.split_whitespace() {
            let (name, value) = part.split_once('=').ok_or_else(|| wrong("a part without ="))?;
            let number = || value.parse::<u32>().map_err(|_| wrong(&format!("{name} is not a number")));
            match name {
                "lid" => lid = Some(Lid(number()?.try_into().map_err(|_| wrong("lid is beyond 16 bits"))?)),
                "qpn" => qpn = Some(Qpn::new(number()?).map_err(|e| wrong(&e.to_string()))?),
                "psn" => psn = Some(Psn::new(number()?).map_err(|e| wrong(&e.to_string()))?),
                "gid" => gid = Some(value.parse::<Gid>().map_err(|_| wrong("gid is not one"))?),
                "mtu" => mtu = Some(Mtu::from_bytes(number()?).ok_or_else(|| wrong("mtu is not one"))?),
                _ => {}
            }
        }
        let lacks = |name: &'static str| wrong(&format!("{name} is missing"));
        Ok(Self {
            lid: lid.unwrap_or(Lid(0)),
            qpn: qpn.ok_or_else(|| lacks("qpn"))?,
            psn: psn.ok_or_else(|| lacks("psn"))?,
            gid,
            mtu,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_parsed() {
        let gid = Gid::from(std::net::IpAddr::from([10, 9, 9, 1]));
        for (gid, mtu) in [(Some(gid), Some(Mtu::B4096)), (None, None)] {
            let endpoint =
                Endpoint { lid: Lid(0xffff), qpn: Qpn::new(0xff_ffff).unwrap(), psn: Psn::new(0).unwrap(), gid, mtu };
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what) in [
            ("", "qpn is missing"),
            ("qpn=1", "psn is missing"),
            ("qpn=16777216 psn=0", "16777216"),
            ("qpn=x psn=0", "qpn is not a number"),
            ("qpn=1 psn=2 mtu=1000", "mtu is not one"),
            ("qpn=1 psn=2 gid=zz", "gid is not one"),
            ("qpn=1 psn=2 lid=65536", "lid is beyond 16 bits"),
            ("qpn", "a part without ="),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert!("qpn=1 psn=2 later=3".parse::<Endpoint>().is_ok());
    }

    #[test]
    fn what_is_quoted_is_short_and_harmless() {
        let told = |text: &str| text.parse::<Endpoint>().unwrap_err().to_string();
        let long = "ü".repeat(100_000);
        assert_eq!(told(&long), format!("no endpoint: a part without = in {:?}… (200000 bytes)", "ü".repeat(96)));
        assert_eq!(told("x\u{1b}[2J\n\u{9b}"), r#"no endpoint: a part without = in "x\u{1b}[2J\n\u{9b}""#);
        let longest = "lid=65535 qpn=16777215 psn=16777215 gid=ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff mtu=4096";
        assert!(told(&format!("{longest} x")).ends_with("mtu=4096 x\""));
    }
}
