//! Commands: making, changing and ending the objects of a device.

use crate::cq::{Cq, CqSpec, Moderation};
use crate::device::Device;
use crate::event::Event;
use crate::memory::{Buffer, BusError};
use crate::mkey::{Asker, Mkey};
use crate::packet::Gid;
use crate::qp::{Qp, QpAttr, QpKind, QpSpec, QpState};
use crate::recv::{RecvQueue, RecvSpec, Srq, XrcSrq};
use crate::registers::UarPage;
use std::fmt;
use std::sync::Arc;

/// User index of who does without: completions carry numbers of queues then, as version 0 of them has it.
pub const NO_USER_INDEX: u32 = 0xff_ffff;

/// Entries of a completion queue at most, as a power of two.
const LOG2_MAX_CQ_SIZE: u32 = 22;
/// The largest path MTU that there is.
const MAX_MTU_BYTES: u32 = 4096;

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such object.
    NoObject,
    /// Something uses the object.
    Busy,
    /// The object's state does not allow it.
    BadState,
    /// A parameter makes no sense.
    BadParam,
    /// Memory named by the command is not there.
    Memory(BusError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoObject => f.write_str("the device has no such object"),
            Self::Busy => f.write_str("the object is in use"),
            Self::BadState => f.write_str("the state of the object does not allow it"),
            Self::BadParam => f.write_str("a parameter makes no sense"),
            Self::Memory(e) => write!(f, "memory named by the command: {e}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<BusError> for Refusal {
    fn from(e: BusError) -> Self {
        Self::Memory(e)
    }
}

impl Device {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> u32 {
        let pd = self.number(0x20);
        self.pds.insert(pd);
        pd
    }

    /// Ends a protection domain.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), Refusal> {
        let used = self.qps.values().any(|q| q.spec.pd == pd) || self.shared.srqs.values().any(|s| s.pd == pd);
        if used {
            return Err(Refusal::Busy);
        }
        self.pds.remove(&pd).then_some(()).ok_or(Refusal::NoObject)
    }

    /// Makes an XRC domain.
    pub fn alloc_xrcd(&mut self) -> u32 {
        let xrcd = self.number(0x20);
        self.xrcds.insert(xrcd);
        xrcd
    }

    /// Ends an XRC domain.
    pub fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), Refusal> {
        self.xrcds.remove(&xrcd).then_some(()).ok_or(Refusal::NoObject)
    }

    /// Makes a memory key; its low byte is chosen here. Returns the key.
    pub fn create_mkey(&mut self, mkey: Mkey) -> u32 {
        self.shared.mkeys.insert(mkey)
    }

    /// Makes a memory key whose low byte is `mkey`'s. Returns the key.
    pub fn create_mkey_as(&mut self, mkey: Mkey) -> u32 {
        self.shared.mkeys.insert_as(mkey)
    }

    /// Ends a memory key, whatever its low byte is now. A region with a window bound to it stays.
    pub fn destroy_mkey(&mut self, key: u32) -> Result<(), Refusal> {
        if self.shared.mkeys.is_bound(key) {
            return Err(Refusal::Busy);
        }
        self.shared.mkeys.remove(key).map(drop).ok_or(Refusal::NoObject)
    }

    /// The entry of a memory key, whatever its low byte is now.
    pub fn mkey(&mut self, key: u32) -> Option<&mut Mkey> {
        self.shared.mkeys.entry(key)
    }

    /// Adds a UAR page that has to be looked at. A front that is told of each store calls [`Self::doorbell`] instead.
    pub fn add_uar(&mut self, page: u32, registers: Box<dyn UarPage>) {
        self.uars.insert(page, registers);
    }

    /// Takes a UAR page away.
    pub fn remove_uar(&mut self, page: u32) -> Result<(), Refusal> {
        let used = self.qps.values().any(|q| q.spec.uar_page == page)
            || self.shared.cqs.values().any(|c| c.spec.uar_page == page);
        if used {
            return Err(Refusal::Busy);
        }
        self.torn.retain(|(of, _)| *of != page);
        self.uars.remove(&page).map(drop).ok_or(Refusal::NoObject)
    }

    /// A number for a new UAR page.
    pub fn uar_number(&mut self) -> u32 {
        self.number(2)
    }

    /// Makes a completion queue and returns its number.
    pub fn create_cq(&mut self, spec: CqSpec) -> Result<u32, Refusal> {
        if !matches!(spec.entry_bytes, 64 | 128)
            || spec.compress.is_some() && spec.entry_bytes != 64
            || spec.log2_size > LOG2_MAX_CQ_SIZE
            || spec.ring.len() < spec.entry_bytes << spec.log2_size
        {
            return Err(Refusal::BadParam);
        }
        let cqn = self.number(0x400);
        let cq = Cq::new(cqn, spec, &*self.shared.memory)?;
        self.shared.cqs.insert(cqn, cq);
        Ok(cqn)
    }

    /// A completion queue.
    pub fn cq(&self, cqn: u32) -> Option<&Cq> {
        self.shared.cqs.get(&cqn)
    }

    /// Sets when software is told of a queue's completions.
    pub fn moderate_cq(&mut self, cqn: u32, moderation: Moderation) -> Result<(), Refusal> {
        self.shared.cqs.get_mut(&cqn).ok_or(Refusal::NoObject)?.moderation = moderation;
        Ok(())
    }

    /// Moves a completion queue to another ring.
    pub fn resize_cq(&mut self, cqn: u32, ring: Buffer, log2_size: u32) -> Result<(), Refusal> {
        let memory = Arc::clone(&self.shared.memory);
        let (cqs, mut watch) = self.shared.queues();
        let cq = cqs.get_mut(&cqn).ok_or(Refusal::NoObject)?;
        if log2_size > LOG2_MAX_CQ_SIZE || ring.len() < cq.spec.entry_bytes << log2_size {
            return Err(Refusal::BadParam);
        }
        cq.resize(&*memory, ring, log2_size, &mut watch)?.ok_or(Refusal::BadState)
    }

    /// Ends a completion queue.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), Refusal> {
        self.poll_uars();
        let used = self.qps.values().any(|q| q.spec.send_cq == cqn || q.spec.recv_cq == cqn)
            || self.shared.srqs.values().any(|s| s.xrc.is_some_and(|x| x.cqn == cqn));
        if used {
            return Err(Refusal::Busy);
        }
        let cq = self.shared.cqs.remove(&cqn).ok_or(Refusal::NoObject)?;
        self.forget(cqn, cq.spec.uar_page);
        Ok(())
    }

    /// Makes a shared receive queue, for XRC if `xrc` says so, and returns its number.
    pub fn create_srq(&mut self, pd: u32, spec: RecvSpec, xrc: Option<XrcSrq>, limit: u16) -> Result<u32, Refusal> {
        if !spec.is_sound() {
            return Err(Refusal::BadParam);
        }
        let srqn = self.number(0x1000);
        let xrc =
            xrc.map(|x| XrcSrq { user_index: if x.user_index == NO_USER_INDEX { srqn } else { x.user_index }, ..x });
        self.shared.srqs.insert(srqn, Srq { queue: RecvQueue::new(spec), pd, xrc, limit });
        Ok(srqn)
    }

    /// Asks for an event when fewer than `limit` WQEs are left, at once if so now.
    pub fn arm_srq(&mut self, srqn: u32, limit: u16) -> Result<(), Refusal> {
        self.shared.srqs.get_mut(&srqn).ok_or(Refusal::NoObject)?.limit = limit;
        self.refresh_srqs();
        let srq = self.shared.srqs.get_mut(&srqn).ok_or(Refusal::NoObject)?;
        if srq.queue.ready() < usize::from(srq.limit) {
            srq.limit = 0;
            self.shared.events.push_back(Event::SrqLimit { srqn });
        }
        Ok(())
    }

    /// The limit that is waited for; zero: none.
    pub fn srq_limit(&self, srqn: u32) -> Option<u16> {
        self.shared.srqs.get(&srqn).map(|s| s.limit)
    }

    /// Ends a shared receive queue.
    pub fn destroy_srq(&mut self, srqn: u32) -> Result<(), Refusal> {
        if self.qps.values().any(|q| q.spec.srq == Some(srqn)) {
            return Err(Refusal::Busy);
        }
        let mut srq = self.shared.srqs.remove(&srqn).ok_or(Refusal::NoObject)?;
        srq.queue.give_back(&mut self.shared, Asker { pd: srq.pd, qpn: 0xff_ffff });
        Ok(())
    }

    /// Makes a queue pair and returns its number.
    pub fn create_qp(&mut self, spec: QpSpec) -> Result<u32, Refusal> {
        let cqs = &self.shared.cqs;
        let sends = spec.kind != QpKind::XrcTgt;
        let receives = !matches!(spec.kind, QpKind::XrcIni | QpKind::XrcTgt);
        if sends && !cqs.contains_key(&spec.send_cq)
            || receives && !cqs.contains_key(&spec.recv_cq)
            || spec.srq.is_some_and(|s| !self.shared.srqs.contains_key(&s))
        {
            return Err(Refusal::NoObject);
        }
        if spec.send.as_ref().is_some_and(|s| !s.is_sound()) || spec.recv.as_ref().is_some_and(|r| !r.is_sound()) {
            return Err(Refusal::BadParam);
        }
        let qpn = self.number(0x4_0000);
        self.qps.insert(qpn, Qp::new(qpn, spec));
        Ok(qpn)
    }

    /// State and attributes of a queue pair; its PSNs are the next ones.
    pub fn query_qp(&self, qpn: u32) -> Option<(QpState, QpAttr)> {
        let qp = self.qps.get(&qpn)?;
        let mut attr = qp.attr.clone();
        if qp.state >= QpState::Rtr {
            (attr.sq_psn, attr.rq_psn) = qp.psns();
        }
        Some((qp.state, attr))
    }

    /// Changes attributes, then the state. Refused: a state that does not follow, with the attributes changed all the same,
    /// and a path MTU of no bytes or more than 4096, without a change.
    pub fn modify_qp(
        &mut self,
        qpn: u32,
        change: impl FnOnce(&mut QpAttr),
        state: Option<QpState>,
    ) -> Result<(), Refusal> {
        // Doorbells that rang before the command are not to be taken for later ones.
        self.poll_uars();
        let qp = self.qps.get_mut(&qpn).ok_or(Refusal::NoObject)?;
        let mut attr = qp.attr.clone();
        change(&mut attr);
        if !(1..=MAX_MTU_BYTES).contains(&attr.mtu_bytes) {
            return Err(Refusal::BadParam);
        }
        qp.attr = attr;
        if let Some(state) = state {
            let from = qp.state;
            let legal = matches!(
                (from, state),
                (_, QpState::Reset | QpState::Err)
                    | (QpState::Reset | QpState::Init, QpState::Init)
                    | (QpState::Init, QpState::Rtr)
                    | (QpState::Rtr | QpState::Rts | QpState::Sqe | QpState::Sqd, QpState::Rts)
                    | (QpState::Rts | QpState::Sqd, QpState::Sqd)
            );
            if !legal {
                return Err(Refusal::BadState);
            }
            if from != state || state == QpState::Reset {
                qp.enter(state, &mut self.shared);
                // Whoever resets or ends a queue pair next may count on it that no completion is still to come.
                self.shared.end_turn();
            }
        }
        Ok(())
    }

    /// Ends a queue pair. From then on the device writes nothing for it.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), Refusal> {
        self.poll_uars();
        if self.multicast.iter().any(|(_, q)| *q == qpn) {
            return Err(Refusal::Busy);
        }
        let mut qp = self.qps.remove(&qpn).ok_or(Refusal::NoObject)?;
        self.forget(qpn, qp.spec.uar_page);
        qp.give_back(&mut self.shared);
        // What it has completed, and was held back to be compressed, is in the ring by now.
        self.shared.end_turn();
        for known in self.well_known.iter_mut().filter(|known| **known == Some(qpn)) {
            *known = None;
        }
        Ok(())
    }

    /// Makes a UD queue pair the one that others reach by number 0 (subnet management) or 1 (general services), and whose
    /// datagrams carry that number. One device has one of each.
    pub fn set_well_known(&mut self, number: u32, qpn: u32) -> Result<(), Refusal> {
        let place = self.well_known.get_mut(number as usize).ok_or(Refusal::BadParam)?;
        if !self.qps.get(&qpn).is_some_and(|q| q.spec.kind == QpKind::Ud) {
            return Err(Refusal::BadParam);
        }
        if place.is_some() {
            return Err(Refusal::Busy);
        }
        *place = Some(qpn);
        Ok(())
    }

    /// Lets UMRs of the queue pair change every key that allows it, whatever its domain: the kernel driver's own.
    pub fn set_privileged(&mut self, qpn: u32) -> Result<(), Refusal> {
        self.qps.get_mut(&qpn).ok_or(Refusal::NoObject)?.privileged = true;
        Ok(())
    }

    /// Delivers datagrams sent to a multicast GID to the queue pair, too.
    pub fn attach_multicast(&mut self, gid: Gid, qpn: u32) -> Result<(), Refusal> {
        if !self.qps.get(&qpn).is_some_and(|q| q.spec.kind == QpKind::Ud) {
            return Err(Refusal::BadParam);
        }
        self.multicast.insert((gid, qpn));
        Ok(())
    }

    /// Ends it.
    pub fn detach_multicast(&mut self, gid: Gid, qpn: u32) -> Result<(), Refusal> {
        self.multicast.remove(&(gid, qpn)).then_some(()).ok_or(Refusal::BadParam)
    }
}
