//! The device: its objects, and its turn in time.

use crate::cq::Cq;
use crate::event::Event;
use crate::fabric::END_OF_TIME;
use crate::memory::Memory;
use crate::mkey::{Asker, Mkeys};
use crate::packet::{Gid, Packet, Transport};
use crate::port::Port;
use crate::qp::Qp;
use crate::registers::UarPage;
use crate::report::Report;
use crate::shared::{Punish, Shared};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// What a device is made of.
#[derive(Clone)]
pub struct DeviceSpec {
    /// Name.
    pub name: String,
    /// The memory that its addresses mean.
    pub memory: Arc<dyn Memory>,
    /// Ports, port 1 first.
    pub ports: Vec<Port>,
    /// Node GUID.
    pub guid: u64,
    /// Which misuses hurt.
    pub punish: Punish,
}

/// Frequency of the free-running clock that completions are stamped with, in kHz.
pub const CLOCK_KHZ: u64 = 156_250;

/// A software ConnectX.
///
/// ```
/// use softcx::{Device, DeviceSpec, Port, Punish, VecMemory};
/// use std::{sync::Arc, time::Duration};
///
/// let mut device = Device::new(DeviceSpec {
///     name: "cx0".into(),
///     memory: Arc::new(VecMemory::new(0x1000, 0x1000)),
///     ports: vec![Port::infiniband(1, 1)],
///     guid: 1,
///     punish: Punish::default(),
/// });
/// let pd = device.alloc_pd();
/// assert!(device.work(Duration::ZERO).is_empty(), "no packets leave");
/// device.dealloc_pd(pd).unwrap();
/// ```
pub struct Device {
    pub(crate) shared: Shared,
    pub(crate) guid: u64,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) pds: BTreeSet<u32>,
    pub(crate) xrcds: BTreeSet<u32>,
    pub(crate) uars: BTreeMap<u32, Box<dyn UarPage>>,
    /// Registers, by page and offset, whose BlueFlame copy was not whole when it was last looked at.
    pub(crate) torn: BTreeSet<(u32, usize)>,
    /// It is a thread of the fabric's own that looks at the registers, while the driver writes them.
    pub(crate) looks_beside: bool,
    pub(crate) multicast: BTreeSet<(Gid, u32)>,
    /// Queues of a driver's that it ended not long ago, with their pages: see [`forget`](Self::forget).
    ended: VecDeque<(u32, u32)>,
    /// Queue pairs that are known as 0 and 1.
    pub(crate) well_known: [Option<u32>; 2],
    pub(crate) next_number: u32,
    pub(crate) turn: u64,
    pub(crate) dead: bool,
    /// Its addresses are those of a program in this process: safe code may not make any up.
    pub(crate) is_of_program: bool,
}

impl Device {
    /// A device by itself. To send to others it has to be part of a [`Fabric`](crate::Fabric).
    pub fn new(spec: DeviceSpec) -> Self {
        let DeviceSpec { name, memory, ports, guid, punish } = spec;
        let shared = Shared {
            name,
            memory,
            mkeys: Mkeys::default(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            ports,
            events: VecDeque::new(),
            reports: vec![],
            out: vec![],
            now: Duration::ZERO,
            clock_khz: CLOCK_KHZ,
            punish,
            keeps_time: false,
            big_endian_atomics: false,
            progress: false,
            tap: None,
        };
        Self {
            shared,
            guid,
            qps: BTreeMap::new(),
            pds: BTreeSet::new(),
            xrcds: BTreeSet::new(),
            uars: BTreeMap::new(),
            torn: BTreeSet::new(),
            looks_beside: false,
            multicast: BTreeSet::new(),
            ended: VecDeque::new(),
            well_known: [None; 2],
            next_number: 0,
            turn: 0,
            dead: false,
            is_of_program: false,
        }
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Node GUID.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Ports, port 1 first.
    pub fn ports(&self) -> &[Port] {
        &self.shared.ports
    }

    /// The memory that its addresses mean.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.shared.memory
    }

    /// Whether the device has died.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Takes out what happened besides completions.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.shared.events.drain(..).collect()
    }

    /// Takes out what programs did wrong.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.shared.reports)
    }

    /// A number that no object of the device has: small, and not used before until all have been.
    pub(crate) fn number(&mut self, from: u32) -> u32 {
        /// With the largest of `from` in 24 bits.
        const NUMBERS: u32 = 0xf0_0000;
        loop {
            self.next_number = self.next_number % NUMBERS + 1;
            let number = from + self.next_number;
            let Shared { cqs, srqs, .. } = &self.shared;
            let is_used = self.pds.contains(&number)
                || self.xrcds.contains(&number)
                || self.uars.contains_key(&number)
                || cqs.contains_key(&number)
                || srqs.contains_key(&number)
                || self.qps.contains_key(&number);
            if !is_used {
                return number;
            }
        }
    }

    pub(crate) fn refresh_srqs(&mut self) {
        let mut srqs = std::mem::take(&mut self.shared.srqs);
        for (srqn, srq) in &mut srqs {
            srq.queue.refresh(&mut self.shared, *srqn, Asker { pd: srq.pd, qpn: 0xff_ffff });
        }
        self.shared.srqs = srqs;
    }

    /// One turn at time `now`: looks at doorbells, then lets each queue pair work. Returns the packets that leave.
    pub fn work(&mut self, now: Duration) -> Vec<Packet> {
        self.shared.now = now.min(END_OF_TIME);
        if self.dead {
            return vec![];
        }
        self.poll_uars();
        self.refresh_srqs();
        self.turn += 1;
        if self.shared.punish.reorder && self.turn.is_multiple_of(2) {
            for qp in self.qps.values_mut().rev() {
                qp.work(&mut self.shared);
            }
        } else {
            for qp in self.qps.values_mut() {
                qp.work(&mut self.shared);
            }
        }
        self.shared.end_turn();
        let mut out = std::mem::take(&mut self.shared.out);
        for packet in out.iter_mut().filter(|packet| packet.transport == Transport::Ud) {
            if let Some(number) = self.well_known.iter().position(|known| *known == Some(packet.src_qpn)) {
                packet.src_qpn = number as u32;
            }
        }
        out
    }

    /// A packet from outside arrives.
    pub fn receive(&mut self, packet: Packet) {
        if self.dead || !self.shared.ports.iter().any(|p| p.accepts(&packet.route)) {
            return;
        }
        const MULTICAST_QPN: u32 = 0xff_ffff;
        if packet.dest_qpn != MULTICAST_QPN {
            let known = self.well_known.get(packet.dest_qpn as usize).copied().flatten();
            if let Some(qp) = self.qps.get_mut(&known.unwrap_or(packet.dest_qpn)) {
                qp.receive(packet, &mut self.shared);
            }
            return;
        }
        let Some(gid) = packet.route.grh.as_ref().map(|g| g.dgid) else { return };
        let attached: Vec<u32> = self.multicast.iter().filter(|(g, _)| *g == gid).map(|(_, q)| *q).collect();
        for qpn in attached {
            if let Some(qp) = self.qps.get_mut(&qpn)
                && !(qp.spec.block_multicast_loopback && qpn == packet.src_qpn)
            {
                qp.receive(packet.clone(), &mut self.shared);
            }
        }
    }

    /// Whether something happened since this was last asked.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.shared.progress)
    }

    /// When something is due although nothing comes in.
    pub fn deadline(&self) -> Option<Duration> {
        if self.dead {
            return None;
        }
        let moderated = self.shared.cqs.values().filter_map(Cq::due);
        self.qps.values().filter_map(Qp::deadline).chain(moderated).min()
    }

    /// How many objects of each kind there are, kinds without any left out.
    pub fn live(&self) -> Vec<(&'static str, usize)> {
        let Shared { mkeys, cqs, srqs, .. } = &self.shared;
        let all = [
            ("protection domains", self.pds.len()),
            ("XRC domains", self.xrcds.len()),
            ("memory keys", mkeys.len()),
            ("completion queues", cqs.len()),
            ("shared receive queues", srqs.len()),
            ("queue pairs", self.qps.len()),
            ("multicast attachments", self.multicast.len()),
        ];
        all.into_iter().filter(|(_, count)| *count != 0).collect()
    }

    /// Forgets all objects and events, as a reset of the function does: nothing is completed, no memory is touched.
    pub fn reset(&mut self) {
        let Shared { mkeys, cqs, srqs, events, out, .. } = &mut self.shared;
        (*mkeys, *cqs, *srqs) = (Mkeys::default(), BTreeMap::new(), BTreeMap::new());
        events.clear();
        out.clear();
        self.qps.clear();
        self.pds.clear();
        self.xrcds.clear();
        self.multicast.clear();
        self.ended.clear();
        self.well_known = [None; 2];
        self.dead = false;
    }

    /// A queue of that number and page is no more. Where a kernel has ended it, its program may not know yet, and ring: that is no misuse.
    pub(crate) fn forget(&mut self, number: u32, page: u32) {
        /// More than end at once.
        const KEPT: usize = 4096;
        if self.is_of_program {
            return;
        }
        self.ended.truncate(KEPT - 1);
        self.ended.push_front((number, page));
    }

    /// Whether it was that of a kernel's queue.
    pub(crate) fn has_ended(&self, number: u32, page: u32) -> bool {
        self.ended.contains(&(number, page))
    }

    /// Numbers of all queue pairs, completion queues and shared receive queues.
    pub fn numbers(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let Shared { cqs, srqs, .. } = &self.shared;
        (self.qps.keys().copied().collect(), cqs.keys().copied().collect(), srqs.keys().copied().collect())
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (qps, cqs, srqs) = self.numbers();
        f.debug_struct("Device")
            .field("name", &self.shared.name)
            .field("qps", &qps)
            .field("cqs", &cqs)
            .field("srqs", &srqs)
            .field("dead", &self.dead)
            .finish()
    }
}
