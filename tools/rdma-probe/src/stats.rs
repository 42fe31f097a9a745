//! Latency samples in bounded memory, and what they come to.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Samples above this count as this: no iteration may take longer, for the deadline ends it.
const HIGHEST_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Three significant digits: a median or percentile is off by at most one part in a thousand.
const DIGITS: u8 = 3;

/// The times that iterations took. Its memory is set once (some 300 KiB), whatever the number of samples.
pub struct Latency {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
}

/// What the samples come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatencySummary {
    /// Number of samples: one per iteration, but none for the first iteration of a server, which would count how late the client came.
    pub samples: u64,
    /// The shortest, exact, in nanoseconds.
    pub min_ns: u64,
    /// The median in nanoseconds, to one part in a thousand.
    pub median_ns: u64,
    /// The time that 99 % of the iterations stay within, in nanoseconds, to one part in a thousand.
    pub p99_ns: u64,
    /// The longest, exact, in nanoseconds.
    pub max_ns: u64,
}

impl Latency {
    /// No samples yet.
    pub fn new() -> Self {
        // The bounds are constants that the histogram accepts; the unit test below holds them to it.
        #[allow(clippy::expect_used, reason = "constant arguments, checked by a unit test")]
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS).expect("constant bounds are valid");
        Self { histogram, min_ns: u64::MAX, max_ns: 0 }
    }

    /// Adds one sample. Allocates nothing.
    #[inline]
    pub fn record(&mut self, sample: Duration) {
        let ns = sample.as_nanos() as u64;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.histogram.saturating_record(ns);
    }

    /// What the samples come to; nothing without samples.
    pub fn summary(&self) -> Option<LatencySummary> {
        if self.histogram.is_empty() {
            return None;
        }
        // A histogram answers with the upper end of a bucket; the extremes are known better.
        let at = |quantile| self.histogram.value_at_quantile(quantile).clamp(self.min_ns, self.max_ns);
        Some(LatencySummary {
            samples: self.histogram.len(),
            min_ns: self.min_ns,
            median_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: self.max_ns,
        })
    }
}

/// How fast messages went to and fro, computed as `ibv_rc_pingpong` computes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Rate {
    /// Payload bytes, both directions together.
    pub bytes: u64,
    /// From the connection to the last completion, in seconds; of a ping that ended early to the last message that arrived.
    pub seconds: f64,
    /// Payload bits per microsecond, both directions together.
    pub mbit_per_second: f64,
    /// Payload bytes per microsecond, both directions together.
    pub mbyte_per_second: f64,
    /// Microseconds per iteration.
    pub usec_per_iteration: f64,
}

impl Rate {
    /// The rate of `iterations` messages of `size_bytes` each way in `time`; nothing if nothing happened.
    pub fn of(iterations: u64, size_bytes: u64, time: Duration) -> Option<Self> {
        if iterations == 0 || time.is_zero() {
            return None;
        }
        let bytes = size_bytes.saturating_mul(iterations).saturating_mul(2);
        let usec = time.as_nanos() as f64 / 1000.0;
        Some(Self {
            bytes,
            seconds: usec / 1e6,
            mbit_per_second: bytes as f64 * 8.0 / usec,
            mbyte_per_second: bytes as f64 / usec,
            usec_per_iteration: usec / iterations as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_samples_no_summary() {
        assert_eq!(Latency::new().summary(), None);
    }

    #[test]
    fn one_sample_is_everything() {
        let mut l = Latency::new();
        l.record(Duration::from_nanos(123_457));
        let s = l.summary().unwrap();
        assert_eq!((s.samples, s.min_ns, s.median_ns, s.p99_ns, s.max_ns), (1, 123_457, 123_457, 123_457, 123_457));
    }

    #[test]
    fn quantiles_are_right_to_a_thousandth() {
        let mut l = Latency::new();
        // In an order that is not sorted.
        for i in 0..10_000u64 {
            l.record(Duration::from_nanos((i * 7919 % 10_000 + 1) * 100));
        }
        let s = l.summary().unwrap();
        assert_eq!((s.samples, s.min_ns, s.max_ns), (10_000, 100, 1_000_000));
        assert!((s.median_ns as f64 / 500_000.0 - 1.0).abs() <= 1e-3, "{}", s.median_ns);
        assert!((s.p99_ns as f64 / 990_000.0 - 1.0).abs() <= 1e-3, "{}", s.p99_ns);
    }

    #[test]
    fn absurd_samples_are_kept_within_bounds() {
        let mut l = Latency::new();
        l.record(Duration::ZERO);
        l.record(Duration::from_secs(1 << 40));
        let s = l.summary().unwrap();
        assert_eq!((s.samples, s.min_ns), (2, 0));
    }

    #[test]
    fn the_rate_is_that_of_ibv_rc_pingpong() {
        // "8192000 bytes in 0.50 seconds = 131.07 Mbit/sec", "1000 iters in 0.50 seconds = 500.00 usec/iter"
        let r = Rate::of(1000, 4096, Duration::from_millis(500)).unwrap();
        assert_eq!(r.bytes, 8_192_000);
        assert!((r.mbit_per_second - 131.072).abs() < 1e-9);
        assert!((r.mbyte_per_second - 16.384).abs() < 1e-9);
        assert_eq!(r.usec_per_iteration, 500.0);
        assert_eq!(Rate::of(0, 4096, Duration::from_secs(1)), None);
    }
}
