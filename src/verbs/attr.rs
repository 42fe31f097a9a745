//! Attributes of a queue pair: what can be set, with checked ranges.

use super::access::AccessFlags;
use crate::uverbs::attr::qp_attr_mask as mask;
use crate::uverbs::attr::{AddressVector, ModifyQp, QpState};
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::types::{Gid, GidIndex, Lid, Mtu, PortNum, Psn, QKey, Qpn};
use std::fmt;
use std::time::Duration;

/// How to reach a peer (`struct ib_uverbs_qp_dest`, the address vector).
///
/// ```no_run
/// # fn f(remote: &ironverbs::Endpoint) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Grh, GidIndex, Path, PortNum, StaticRate};
/// let grh = remote.gid.map(|dgid| Grh { dgid, sgid_index: GidIndex(1), hop_limit: 64, traffic_class: 0, flow_label: 0 });
/// let path = Path { port: PortNum::ONE, dlid: remote.lid, sl: 0, static_rate: StaticRate::PORT, grh };
/// # let _ = path;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Local port.
    pub port: PortNum,
    /// The peer's LID; zero on Ethernet.
    pub dlid: Lid,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// How fast packets may go, where the peer or the way to it is slower than the port.
    pub static_rate: StaticRate,
    /// Global routing, always needed on Ethernet.
    pub grh: Option<Grh>,
}

/// A limit of the rate that a path is sent at (`enum ib_rate`). A device that has no such limit takes the next lower one, and
/// Soft-RoCE none at all.
///
/// ```
/// use ironverbs::StaticRate;
/// assert_eq!(StaticRate::default(), StaticRate::PORT);
/// assert_ne!(StaticRate::GBPS_10, StaticRate::GBPS_100);
/// ```
#[doc(alias = "ibv_rate")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StaticRate(pub u8);

#[allow(missing_docs, reason = "the names say it: gigabits a second")]
impl StaticRate {
    /// As fast as the port goes.
    #[doc(alias = "IBV_RATE_MAX")]
    pub const PORT: Self = Self(0);
    #[doc(alias = "IBV_RATE_2_5_GBPS")]
    pub const GBPS_2_5: Self = Self(2);
    #[doc(alias = "IBV_RATE_10_GBPS")]
    pub const GBPS_10: Self = Self(3);
    #[doc(alias = "IBV_RATE_20_GBPS")]
    pub const GBPS_20: Self = Self(6);
    #[doc(alias = "IBV_RATE_25_GBPS")]
    pub const GBPS_25: Self = Self(15);
    #[doc(alias = "IBV_RATE_40_GBPS")]
    pub const GBPS_40: Self = Self(7);
    #[doc(alias = "IBV_RATE_50_GBPS")]
    pub const GBPS_50: Self = Self(20);
    #[doc(alias = "IBV_RATE_100_GBPS")]
    pub const GBPS_100: Self = Self(16);
    #[doc(alias = "IBV_RATE_200_GBPS")]
    pub const GBPS_200: Self = Self(17);
    #[doc(alias = "IBV_RATE_400_GBPS")]
    pub const GBPS_400: Self = Self(21);
}

/// Global routing header fields.
///
/// ```no_run
/// # fn f(dgid: ironverbs::Gid) -> Result<(), ironverbs::Error> {
/// use ironverbs::{Grh, GidIndex};
/// let grh = Grh { dgid, sgid_index: GidIndex(1), hop_limit: 64, traffic_class: 0, flow_label: 0 };
/// # let _ = grh;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of one's own GID.
    pub sgid_index: GidIndex,
    /// Routers that the packet may pass.
    pub hop_limit: u8,
    /// Traffic class; on RoCE the DSCP and ECN byte.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// How long a peer is asked to wait after it found no receive posted (RNR NAK timer field, IB spec 9.7.5.2.8).
///
/// Beware of zero: it is the longest wait there is, not the shortest.
///
/// ```
/// use ironverbs::RnrTimer;
/// assert_eq!(RnrTimer::DEFAULT.wait().as_micros(), 640);
/// assert_eq!(RnrTimer::from_code(0)?.wait().as_millis(), 655);
/// # Ok::<(), ironverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Units of 10 µs for each code.
    const TENS_OF_US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// 0.64 ms: short enough not to be felt, long enough not to storm.
    pub const DEFAULT: Self = Self(12);

    /// From the code on the wire, 0 to 31.
    pub fn from_code(code: u8) -> Result<Self, Error> {
        if code > 31 {
            return Err(Error::invalid(Verb::ModifyQp, "min_rnr_timer", code, "the field has codes 0 to 31"));
        }
        Ok(Self(code))
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The wait it stands for.
    pub const fn wait(self) -> Duration {
        Duration::from_micros(Self::TENS_OF_US[(self.0 & 31) as usize] as u64 * 10)
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({}: {:?})", self.0, self.wait())
    }
}

/// How long to wait for an acknowledgement before sending again (local ACK timeout, IB spec 9.7.6.1.3): 4.096 µs × 2^code,
/// code 0 for ever.
///
/// ```
/// let timeout = ironverbs::AckTimeout::from_code(14)?;
/// assert_eq!(timeout.wait().unwrap().as_millis(), 67);
/// # Ok::<(), ironverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// 67 ms.
    pub const DEFAULT: Self = Self(14);

    /// From the code, 0 to 31.
    pub fn from_code(code: u8) -> Result<Self, Error> {
        if code > 31 {
            return Err(Error::invalid(Verb::ModifyQp, "timeout", code, "the field has codes 0 to 31"));
        }
        Ok(Self(code))
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The wait it stands for; `None` for ever.
    pub const fn wait(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_nanos(4096 << (self.0 & 31))) }
    }
}

impl fmt::Debug for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AckTimeout({}: {:?})", self.0, self.wait())
    }
}

/// A change of a queue pair: attributes to set, each named once. See [`Qp::modify`](crate::Qp::modify).
///
/// ```
/// use ironverbs::{QpState, QpUpdate};
/// let to_error = QpUpdate::to(QpState::ERR);
/// # let _ = to_error;
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Debug)]
pub struct QpUpdate {
    pub(super) raw: ModifyQp,
    /// The kernel chose the attributes, and takes them back as they are, also those that are not known here.
    pub(super) by_kernel: bool,
}

impl Grh {
    /// Far enough for any network, near enough to end a loop.
    pub const DEFAULT_HOP_LIMIT: u8 = 64;
}

impl Path {
    /// In the kernel's words.
    pub(super) fn address_vector(&self) -> AddressVector {
        let av = AddressVector {
            port_num: self.port.get(),
            dlid: self.dlid,
            sl: self.sl,
            static_rate: self.static_rate.0,
            ..Default::default()
        };
        let Some(grh) = self.grh else { return av };
        AddressVector {
            is_global: true,
            dgid: grh.dgid,
            sgid_index: grh.sgid_index.0,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
            ..av
        }
    }

    /// Refuses values that do not fit their field on the wire.
    pub(super) fn check_ranges(&self, verb: Verb) -> Result<(), Error> {
        let flow_label = self.grh.map_or(0, |grh| grh.flow_label);
        check_range(verb, "service level", self.sl.into(), 15)?;
        check_range(verb, "static rate", self.static_rate.0.into(), 23)?;
        check_range(verb, "flow label", flow_label, 0xf_ffff)
    }
}

fn check_range(verb: Verb, what: &'static str, value: u32, max: u32) -> Result<(), Error> {
    if value > max { Err(Error::invalid(verb, what, value, format!("at most {max}"))) } else { Ok(()) }
}

impl QpUpdate {
    /// To another state, or to the same one for a change within it.
    pub fn to(state: QpState) -> Self {
        let raw = ModifyQp { attr_mask: mask::STATE, qp_state: state, ..ModifyQp::default() };
        Self { raw, by_kernel: false }
    }

    /// With attributes that the kernel handed out for the transition.
    pub(super) fn by_kernel(raw: ModifyQp) -> Self {
        Self { raw, by_kernel: true }
    }

    /// The state it goes to.
    pub fn state(&self) -> QpState {
        self.raw.qp_state
    }

    /// The state that the caller takes the queue pair to be in.
    pub fn cur_state(self, state: QpState) -> Self {
        self.set(mask::CUR_STATE, |r| r.cur_qp_state = state)
    }

    /// What peers may do through this queue pair.
    pub fn access(self, access: AccessFlags) -> Self {
        self.set(mask::ACCESS_FLAGS, |r| r.qp_access_flags = access.bits())
    }

    /// Index into the port's P_Key table.
    pub fn pkey_index(self, index: u16) -> Self {
        self.set(mask::PKEY_INDEX, |r| r.pkey_index = index)
    }

    /// Local port.
    pub fn port(self, port: PortNum) -> Self {
        self.set(mask::PORT, |r| r.port_num = port.get())
    }

    /// Q_Key that datagrams must carry to be taken. A [controlled](QKey::is_controlled) one needs `CAP_NET_RAW`.
    pub fn qkey(self, qkey: QKey) -> Self {
        self.set(mask::QKEY, |r| r.qkey = qkey.0)
    }

    /// How to reach the peer.
    pub fn path(self, path: &Path) -> Self {
        self.set(mask::AV, |r| {
            r.dest = path.address_vector();
        })
    }

    /// Path MTU.
    pub fn path_mtu(self, mtu: Mtu) -> Self {
        self.set(mask::PATH_MTU, |r| r.path_mtu = mtu.raw())
    }

    /// Local ACK timeout.
    pub fn timeout(self, timeout: AckTimeout) -> Self {
        self.set(mask::TIMEOUT, |r| r.timeout = timeout.code())
    }

    /// How often to send again after a timeout, 0 to 7.
    pub fn retry_count(self, retries: u8) -> Self {
        self.set(mask::RETRY_CNT, |r| r.retry_cnt = retries)
    }

    /// How often to send again after an RNR NAK, 0 to 6; 7 is for ever.
    pub fn rnr_retry(self, retries: u8) -> Self {
        self.set(mask::RNR_RETRY, |r| r.rnr_retry = retries)
    }

    /// First packet sequence number expected.
    pub fn rq_psn(self, psn: Psn) -> Self {
        self.set(mask::RQ_PSN, |r| r.rq_psn = psn.get())
    }

    /// First packet sequence number sent.
    pub fn sq_psn(self, psn: Psn) -> Self {
        self.set(mask::SQ_PSN, |r| r.sq_psn = psn.get())
    }

    /// READs and atomics that may be under way at once from here.
    pub fn max_rd_atomic(self, n: u8) -> Self {
        self.set(mask::MAX_QP_RD_ATOMIC, |r| r.max_rd_atomic = n)
    }

    /// READs and atomics that the peer may have under way at once.
    pub fn max_dest_rd_atomic(self, n: u8) -> Self {
        self.set(mask::MAX_DEST_RD_ATOMIC, |r| r.max_dest_rd_atomic = n)
    }

    /// How long the peer waits after it found no receive posted here.
    pub fn min_rnr_timer(self, timer: RnrTimer) -> Self {
        self.set(mask::MIN_RNR_TIMER, |r| r.min_rnr_timer = timer.code())
    }

    /// The peer's queue pair number.
    pub fn dest_qpn(self, qpn: Qpn) -> Self {
        self.set(mask::DEST_QPN, |r| r.dest_qp_num = qpn.get())
    }

    /// Whether to raise [`SQ_DRAINED`](crate::AsyncEventType::SQ_DRAINED) when the send queue is drained.
    pub fn en_sqd_async_notify(self, on: bool) -> Self {
        self.set(mask::EN_SQD_ASYNC_NOTIFY, |r| r.en_sqd_async_notify = on)
    }

    fn set(mut self, bit: u32, f: impl FnOnce(&mut ModifyQp)) -> Self {
        self.raw.attr_mask |= bit;
        f(&mut self.raw);
        self
    }

    /// Refuses values that do not fit their field on the wire.
    pub(super) fn check_ranges(&self) -> Result<(), Error> {
        let r = &self.raw;
        let fields = [
            (mask::RETRY_CNT, "retry_count", r.retry_cnt.into(), 7),
            (mask::RNR_RETRY, "rnr_retry", r.rnr_retry.into(), 7),
            (mask::AV, "service level", r.dest.sl.into(), 15),
            (mask::AV, "flow label", r.dest.flow_label, 0xf_ffff),
        ];
        for (bit, what, value, max) in fields {
            if r.attr_mask & bit != 0 {
                check_range(Verb::ModifyQp, what, value, max)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stalls of 0.65 s: zero is the longest timer, and the default is short.
    #[test]
    fn rnr_timer_zero_is_the_longest() {
        assert_eq!(RnrTimer::from_code(0).unwrap().wait(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::from_code(1).unwrap().wait(), Duration::from_micros(10));
        assert_eq!(RnrTimer::from_code(31).unwrap().wait(), Duration::from_micros(491_520));
        assert_eq!(RnrTimer::DEFAULT.wait(), Duration::from_micros(640));
        assert!(RnrTimer::from_code(32).is_err());
    }

    #[test]
    fn ack_timeout_zero_is_for_ever() {
        assert_eq!(AckTimeout::from_code(0).unwrap().wait(), None);
        assert_eq!(AckTimeout::DEFAULT.wait(), Some(Duration::from_nanos(67_108_864)));
    }

    #[test]
    fn values_too_big_for_their_field_are_named() {
        let error = QpUpdate::to(QpState::RTS).rnr_retry(8).check_ranges().unwrap_err();
        assert_eq!(error.to_string(), "modify_qp: rnr_retry is 8; at most 7");
    }
}
