//! What a device tells its driver besides completions, and the rings that a kernel driver reads it from.

use crate::bits::eqe;
use crate::memory::{Buffer, BusError, Memory};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A CQ that was armed has a completion.
    Completion {
        /// The CQ.
        cqn: u32,
    },
    /// A CQ is broken; it was overrun.
    CqError {
        /// The CQ.
        cqn: u32,
    },
    /// A QP cannot go on: its rings or its CQ are broken.
    QpFatal {
        /// The QP.
        qpn: u32,
    },
    /// A QP received a request it cannot serve.
    QpInvalidRequest {
        /// The QP.
        qpn: u32,
    },
    /// A QP received a request for memory it must not touch.
    QpAccess {
        /// The QP.
        qpn: u32,
    },
    /// A QP in RTR received its first request.
    CommEstablished {
        /// The QP.
        qpn: u32,
    },
    /// A QP's send queue has drained.
    SqDrained {
        /// The QP.
        qpn: u32,
    },
    /// A QP in error will take no more WQEs from its SRQ.
    LastWqe {
        /// The QP.
        qpn: u32,
    },
    /// An SRQ holds fewer WQEs than its limit.
    SrqLimit {
        /// The SRQ.
        srqn: u32,
    },
    /// An SRQ's ring is broken.
    SrqError {
        /// The SRQ.
        srqn: u32,
    },
    /// A port changed.
    Port {
        /// Port number.
        port: u8,
        /// How.
        change: PortChange,
    },
    /// The device is dead.
    Fatal,
}

/// How a port changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the verbs'")]
pub enum PortChange {
    Down,
    Active,
    Lid,
    Pkey,
    Gid,
    ClientReregister,
}

impl Event {
    /// The event as an entry of an event queue, owner bit clear.
    pub fn encode(self) -> [u8; eqe::BYTES] {
        use eqe::kind;
        match self {
            Self::Completion { cqn } => eqe::of_object(kind::COMPLETION, cqn),
            Self::CqError { cqn } => eqe::of_cq_error(cqn, 1),
            Self::QpFatal { qpn } => eqe::of_object(kind::WQ_CATAS_ERROR, qpn),
            Self::QpInvalidRequest { qpn } => eqe::of_object(kind::WQ_INVAL_REQ_ERROR, qpn),
            Self::QpAccess { qpn } => eqe::of_object(kind::WQ_ACCESS_ERROR, qpn),
            Self::CommEstablished { qpn } => eqe::of_object(kind::COMM_EST, qpn),
            Self::SqDrained { qpn } => eqe::of_object(kind::SQ_DRAINED, qpn),
            Self::LastWqe { qpn } => eqe::of_object(kind::SRQ_LAST_WQE, qpn),
            Self::SrqLimit { srqn } => eqe::of_object(kind::SRQ_RQ_LIMIT, srqn),
            Self::SrqError { srqn } => eqe::of_object(kind::SRQ_CATAS_ERROR, srqn),
            Self::Port { port, change } => {
                let subtype = match change {
                    PortChange::Down => eqe::port::DOWN,
                    PortChange::Active => eqe::port::ACTIVE,
                    PortChange::Lid => eqe::port::LID,
                    PortChange::Pkey => eqe::port::PKEY,
                    PortChange::Gid => eqe::port::GUID,
                    PortChange::ClientReregister => eqe::port::CLIENT_REREGISTER,
                };
                eqe::of_port(subtype, port)
            }
            Self::Fatal => eqe::of_object(kind::INTERNAL_ERROR, 0),
        }
    }
}

/// An event queue (EQ): a ring of 64-byte entries in the memory of a kernel driver, for fronts that have one.
#[derive(Debug)]
pub struct Eq {
    ring: Buffer,
    log2_size: u32,
    produced: u32,
    consumed: u32,
    armed_at: Option<u32>,
}

impl Eq {
    /// A queue of `1 << log2_size` entries, of 2^22 at most. Software has set every owner bit to 1.
    pub fn new(ring: Buffer, log2_size: u32) -> Self {
        Self { ring, log2_size: log2_size.min(22), produced: 0, consumed: 0, armed_at: None }
    }

    /// Entries ever written, modulo 2^32.
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Consumer index, 24 bits, of the last doorbell.
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Whether software has consumed enough for another entry.
    pub fn has_room(&self) -> bool {
        self.produced.wrapping_sub(self.consumed) & 0xff_ffff < 1 << self.log2_size
    }

    /// Adds an event. True if the queue was armed: the interrupt is to be raised, once.
    pub fn post(&mut self, memory: &dyn Memory, event: Event) -> Result<bool, BusError> {
        self.post_entry(memory, &event.encode())
    }

    /// Adds an entry, whose owner bit is set here. True if the queue was armed: the interrupt is to be raised, once.
    pub fn post_entry(&mut self, memory: &dyn Memory, entry: &[u8; eqe::BYTES]) -> Result<bool, BusError> {
        let at = u64::from(self.produced & ((1 << self.log2_size) - 1)) * eqe::BYTES as u64;
        self.ring.write(memory, at, &entry[..eqe::OWNER])?;
        let (owner, _) = self.ring.locate(at + eqe::OWNER as u64)?;
        memory.publish(owner, (self.produced >> self.log2_size & 1) as u8)?;
        self.produced = self.produced.wrapping_add(1);
        Ok(self.armed_at.take().is_some())
    }

    /// Software consumed up to `ci` (24 bits), and wants an interrupt for the next if `arm`. True if there is one already.
    pub fn ring_doorbell(&mut self, ci: u32, arm: bool) -> bool {
        self.consumed = ci;
        let behind = self.produced.wrapping_sub(ci) & 0xff_ffff != 0;
        self.armed_at = (arm && !behind).then_some(ci);
        arm && behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::VecMemory;

    #[test]
    fn an_event_queue_flips_its_owner_bit_each_pass_and_interrupts_once() {
        let memory = VecMemory::new(0, 128);
        memory.write(63, &[1]).unwrap();
        memory.write(127, &[1]).unwrap();
        let mut eq = Eq::new(Buffer::contiguous(0, 128), 1);
        assert!(!eq.ring_doorbell(0, true));
        assert!(eq.post(&memory, Event::Completion { cqn: 0x1234 }).unwrap());
        let mut entry = [0; 64];
        memory.read(0, &mut entry).unwrap();
        // Type 0, CQ number at 32 + 24, owner 0 in the first pass.
        assert_eq!((entry[1], &entry[56..60], entry[63]), (0, [0, 0, 0x12, 0x34].as_slice(), 0));
        assert!(!eq.post(&memory, Event::Port { port: 2, change: PortChange::Active }).unwrap());
        memory.read(64, &mut entry).unwrap();
        assert_eq!((entry[1], entry[3], entry[40], entry[63]), (0x09, 4, 0x20, 0));
        assert!(eq.ring_doorbell(1, true), "an entry is there already");
        eq.post(&memory, Event::CqError { cqn: 7 }).unwrap();
        memory.read(0, &mut entry).unwrap();
        assert_eq!((entry[1], &entry[32..36], entry[43], entry[63]), (0x04, [0, 0, 0, 7].as_slice(), 1, 1));
    }
}
