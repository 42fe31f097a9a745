//! A device's clock: what completions tell of when they were made.

use super::device::Context;
use super::opened::Opened;
use super::provider::Provider;
use crate::mlx5;
use crate::uverbs::error::{Error, Lacking, Verb};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What time completions carry.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context) -> Result<(), ironverbs::Error> {
/// let cq = context.cq_builder(64).stamps(ironverbs::Stamps::Ticks).build()?;
/// # drop(cq);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// The device's clock, in ticks: see [`DeviceClock`].
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    Ticks,
    /// The time of a device that keeps it: seconds since 1970 in the upper half, nanoseconds in the lower.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
    RealTime,
}

/// A device's clock, and its relation to the host's. Needs no system call.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, cq: &mut ironverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// let clock = context.clock()?;
/// while let Some(completion) = cq.poll()?.next() {
///     let made = completion.timestamp().and_then(|ticks| clock.time(ticks));
///     println!("{}: {made:?}", completion.wr_id());
/// }
/// # Ok(()) }
/// ```
#[doc(alias("ibv_query_rt_values_ex", "mlx5dv_clock_info"))]
pub struct DeviceClock {
    clock: mlx5::Clock,
    khz: u64,
}

impl<P: Provider> Context<P> {
    /// The device's clock.
    pub fn clock(&self) -> Result<DeviceClock, Error> {
        match &self.inner().opened {
            Opened::Rxe(_) => Err(Error::Unsupported {
                verb: Verb::QueryDevice,
                what: "a clock of the device".into(),
                by: Lacking::Driver,
            }),
            Opened::Mlx5(context) => {
                Ok(DeviceClock { clock: mlx5::Clock::map(context)?, khz: self.attr().hca_core_clock_khz })
            }
        }
    }
}

impl DeviceClock {
    /// Ticks in a millisecond.
    #[doc(alias = "hca_core_clock")]
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// The clock now, in ticks. None if the driver does not show it.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> Option<u64> {
        self.clock.now()
    }

    /// The host's time when the clock stood at `ticks`, which is not long ago: as long as the clock needs for half a round
    /// at most. None if the kernel is for ever about to change what relates the two.
    #[doc(alias = "mlx5dv_ts_to_ns")]
    pub fn time(&self, ticks: u64) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_nanos(self.clock.nanoseconds(ticks)?))
    }
}

impl fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceClock").field("khz", &self.khz).field("now", &self.now()).finish()
    }
}
