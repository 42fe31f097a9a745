//! What is between devices: packets on their way, and what happens to some of them.

use crate::fabric::END_OF_TIME;
use crate::packet::Packet;
use std::collections::BTreeMap;
use std::time::Duration;

/// What the network does to packets. Chances are from 0 to 1. The default does nothing.
///
/// ```
/// use softcx::{Disturbance, Fabric};
/// use std::time::Duration;
/// let fabric = Fabric::new(7);
/// fabric.disturb(Disturbance { reordering: 0.1, jitter: Duration::from_micros(50), ..Disturbance::default() });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Chance that a packet is lost, from 0 to 1.
    pub loss: f64,
    /// Chance that a packet arrives twice, from 0 to 1.
    pub duplication: f64,
    /// Chance, from 0 to 1, that a packet is held back by up to `jitter`, so that later ones overtake it.
    pub reordering: f64,
    /// How long every packet is on its way.
    pub delay: Duration,
    /// How long a packet that is held back is late at most.
    pub jitter: Duration,
}

/// What to do with one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the [`Disturbance`] says.
    Pass,
    /// Lose it.
    Drop,
}

type Filter = Box<dyn FnMut(&Packet) -> Verdict + Send>;

pub(crate) struct Wire {
    pub disturbance: Disturbance,
    pub filter: Option<Filter>,
    random: Random,
    on_the_way: BTreeMap<(Duration, u64), Packet>,
    count: u64,
    pub lost: u64,
}

impl Wire {
    pub fn new(seed: u64) -> Self {
        Self {
            disturbance: Disturbance::default(),
            filter: None,
            random: Random(seed),
            on_the_way: BTreeMap::new(),
            count: 0,
            lost: 0,
        }
    }

    pub fn send(&mut self, now: Duration, packet: Packet) {
        let Disturbance { loss, duplication, reordering, .. } = self.disturbance;
        let dropped = self.filter.as_mut().is_some_and(|f| f(&packet) == Verdict::Drop);
        if dropped || self.random.chance(loss) {
            self.lost += 1;
            return;
        }
        if self.random.chance(duplication) {
            self.put(now, packet.clone(), reordering);
        }
        self.put(now, packet, reordering);
    }

    fn put(&mut self, now: Duration, packet: Packet, reordering: f64) {
        let late = if self.random.chance(reordering) {
            self.disturbance.jitter.min(END_OF_TIME).mul_f64(self.random.unit())
        } else {
            Duration::ZERO
        };
        self.count += 1;
        let arrives = now.saturating_add(self.disturbance.delay).saturating_add(late);
        self.on_the_way.insert((arrives, self.count), packet);
    }

    /// Takes out what has arrived by `now`, in order.
    pub fn arrived(&mut self, now: Duration) -> Vec<Packet> {
        let later = self.on_the_way.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.on_the_way, later).into_values().collect()
    }

    pub fn next_arrival(&self) -> Option<Duration> {
        self.on_the_way.first_key_value().map(|((at, _), _)| *at)
    }
}

/// A small generator of random numbers (SplitMix64, Steele, Lea and Flood 2014): the same seed, the same run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ a >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ b >> 31
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn chance(&mut self, of: f64) -> bool {
        of > 0.0 && self.unit() < of
    }
}
