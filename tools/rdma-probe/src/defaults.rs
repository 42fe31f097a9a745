//! What a connection is made with unless told otherwise, and what the codes in it stand for.

use ironverbs::{ConnectOptions, RnrTimer};
use serde::Serialize;

/// What a connection is made with unless told otherwise.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConnectionDefaults {
    /// How long the peer waits after it found no receive posted, as a code (IB spec 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// The same in microseconds.
    pub min_rnr_timer_us: u64,
    /// Retries after that; 7 would be without end.
    pub rnr_retry: u8,
    /// How long an acknowledgement is awaited, as a code: 4.096 us times 2^n.
    pub ack_timeout: u8,
    /// The same in microseconds; none for ever.
    pub ack_timeout_us: Option<u64>,
    /// Retries after that.
    pub retry_count: u8,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// What each code of the receiver-not-ready timer stands for, in microseconds. The first is the longest.
    pub rnr_timer_codes_us: Vec<u64>,
}

impl ConnectionDefaults {
    /// Those of the library.
    pub fn new() -> Self {
        let options = ConnectOptions::default();
        let us = |wait: std::time::Duration| wait.as_micros() as u64;
        Self {
            min_rnr_timer: options.min_rnr_timer.code(),
            min_rnr_timer_us: us(options.min_rnr_timer.wait()),
            rnr_retry: options.rnr_retry,
            ack_timeout: options.timeout.code(),
            ack_timeout_us: options.timeout.wait().map(us),
            retry_count: options.retry_count,
            hop_limit: options.hop_limit,
            rnr_timer_codes_us: (0..32)
                .filter_map(|code| RnrTimer::from_code(code).ok())
                .map(|t| us(t.wait()))
                .collect(),
        }
    }

    /// As text: names and values.
    pub fn lines(&self) -> [(&'static str, String); 4] {
        let ms = |us: u64| format!("{} ms", us as f64 / 1000.0);
        let longest = self.rnr_timer_codes_us.first().copied().unwrap_or_default();
        [
            (
                "min_rnr_timer",
                format!(
                    "{} = {}: so long does a peer wait that found no receive here (0 = {}, the longest; ibv_rc_pingpong \
                     uses 12, too)",
                    self.min_rnr_timer,
                    ms(self.min_rnr_timer_us),
                    ms(longest)
                ),
            ),
            ("rnr_retry", format!("{} (7 = without end: a peer without receives would never be told)", self.rnr_retry)),
            (
                "ack timeout",
                format!("{} = {}", self.ack_timeout, self.ack_timeout_us.map_or_else(|| "for ever".to_owned(), ms)),
            ),
            ("retry_count", format!("{} (Soft-RoCE takes 7 for without end)", self.retry_count)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_wait_is_short_and_finite() {
        let d = ConnectionDefaults::new();
        assert!(d.min_rnr_timer_us > 0 && d.min_rnr_timer_us < 50_000, "{d:?}");
        assert!(d.rnr_retry < 7 && d.retry_count < 7 && d.ack_timeout_us.is_some(), "{d:?}");
        assert_eq!(
            (d.rnr_timer_codes_us[0], d.rnr_timer_codes_us[12], d.rnr_timer_codes_us[31]),
            (655_360, 640, 491_520)
        );
        let [timer, ..] = d.lines();
        assert!(timer.1.starts_with("12 = 0.64 ms") && timer.1.contains("0 = 655.36 ms"), "{timer:?}");
    }
}
