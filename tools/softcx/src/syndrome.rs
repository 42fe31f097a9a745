//! Why a work request failed, as an error CQE tells it.

use std::fmt;

/// The syndrome byte of an error CQE. Unknown values are kept.
///
/// ```
/// use softcx::Syndrome;
/// assert_eq!(Syndrome(0x13), Syndrome::REMOTE_ACCESS);
/// assert_eq!(Syndrome(0x15).to_string(), "transport retries exceeded (0x15)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Syndrome(pub u8);

macro_rules! syndromes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $vendor:literal, $text:literal;)*) => {
        impl Syndrome {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Every syndrome that has a name.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What the vendor's byte beside the syndrome usually holds. It refines the syndrome; no program may depend
            /// on it.
            pub fn vendor(self) -> u8 {
                match self.0 { $($value => $vendor,)* _ => 0 }
            }

            /// The syndrome in words.
            pub fn name(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "unknown syndrome" }
            }
        }
    };
}

syndromes! {
    /// A message is longer than the receive buffers, or than the transport allows.
    LOCAL_LENGTH = 0x01, 0xd6, "local length error";
    /// The WQE makes no sense, or its QP cannot do it.
    LOCAL_QP_OP = 0x02, 0x68, "local QP operation error";
    /// A local key does not cover what the WQE names.
    LOCAL_PROTECTION = 0x04, 0x51, "local protection error";
    /// The QP was in error when the WQE's turn came.
    FLUSH = 0x05, 0xf9, "flushed in error";
    /// A memory window could not be bound or a key not invalidated.
    MW_BIND = 0x06, 0x65, "memory window bind error";
    /// The responder's answer made no sense.
    BAD_RESPONSE = 0x10, 0x6a, "bad response";
    /// A remote access was refused by the local side.
    LOCAL_ACCESS = 0x11, 0x52, "local access error";
    /// The responder could not understand or not serve the request.
    REMOTE_INVALID_REQUEST = 0x12, 0x8a, "remote invalid request";
    /// A remote key does not cover what the request names, or forbids it.
    REMOTE_ACCESS = 0x13, 0x88, "remote access error";
    /// The responder failed by no fault of the request.
    REMOTE_OPERATION = 0x14, 0x89, "remote operation error";
    /// Nobody answered, as often as it was tried.
    RETRY_EXCEEDED = 0x15, 0x81, "transport retries exceeded";
    /// The responder had no receive WQE, as often as it was tried.
    RNR_RETRY_EXCEEDED = 0x16, 0x87, "receiver-not-ready retries exceeded";
    /// The responder gave the request up.
    REMOTE_ABORTED = 0x22, 0x93, "remote aborted";
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#04x})", self.name(), self.0)
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
