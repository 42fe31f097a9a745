//! What a test may do to a device that a program is using: look at it, and make faults.

use crate::commands::Refusal;
use crate::device::Device;
use crate::event::{Event, PortChange};
use crate::port::{GidEntry, Link, Port};
use crate::qp::{QpAttr, QpState};
use crate::shared::Punish;
use crate::syndrome::Syndrome;
use crate::tap::Tapped;

/// A device, without the commands that name memory to it: those are the program's, which uses the device meanwhile.
///
/// ```
/// use softcx::{SimDevice, SimHost};
/// let host = SimHost::new(1);
/// let id = host.add(SimDevice::roce("mlx5_0"));
/// host.with(id, |device| device.set_port_active(1, false))??;
/// assert!(!host.with(id, |device| device.ports()[0].active)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Control<'a>(&'a mut Device);

impl Device {
    /// The device as a test sees it: for looking, and for faults.
    pub fn control(&mut self) -> Control<'_> {
        Control(self)
    }
}

impl Control<'_> {
    /// Name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Ports, port 1 first.
    pub fn ports(&self) -> &[Port] {
        self.0.ports()
    }

    /// Numbers of all queue pairs, completion queues and shared receive queues.
    pub fn numbers(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        self.0.numbers()
    }

    /// How many objects of each kind there are, by the names that `rdma resource show` has for them; `uar` are pages of
    /// doorbell registers, `mw` memory windows.
    pub fn objects(&self) -> [(&'static str, usize); 8] {
        let (qps, cqs, srqs) = self.numbers();
        let windows = self.0.shared.mkeys.windows();
        let Device { pds, xrcds, uars, .. } = &*self.0;
        [
            ("pd", pds.len()),
            ("cq", cqs.len()),
            ("qp", qps.len()),
            ("srq", srqs.len()),
            ("mr", self.mkeys() - windows),
            ("mw", windows),
            ("xrcd", xrcds.len()),
            ("uar", uars.len()),
        ]
    }

    /// State and attributes of a queue pair; its PSNs are the next ones.
    pub fn query_qp(&self, qpn: u32) -> Option<(QpState, QpAttr)> {
        self.0.query_qp(qpn)
    }

    /// Memory keys that there are, free ones of windows included.
    pub fn mkeys(&self) -> usize {
        self.0.shared.mkeys.len()
    }

    /// Completions that were written as part of a block, into the completion queues that there are.
    pub fn packed_completions(&self) -> u64 {
        self.0.shared.cqs.values().map(|cq| cq.packed).sum()
    }

    /// Whether the device has died.
    pub fn is_dead(&self) -> bool {
        self.0.is_dead()
    }

    /// Which misuses hurt from now on.
    pub fn set_punish(&mut self, punish: Punish) {
        self.0.shared.punish = punish;
    }

    /// Shows every entry of a ring that the device reads or writes from now on, until another tap takes its place. Called
    /// on the thread that steps the fabric, which waits meanwhile: nothing that uses the fabric may be called there.
    ///
    /// ```
    /// use softcx::{Entry, SimDevice, SimHost};
    /// let host = SimHost::new(1);
    /// let id = host.add(SimDevice::roce("mlx5_0"));
    /// host.with(id, |device| {
    ///     device.tap(|tapped| {
    ///         if let Entry::Completion { cqn, bytes, .. } = tapped.entry {
    ///             println!("{:?}: CQ {cqn}: {bytes:02x?}", tapped.at);
    ///         }
    ///     })
    /// })?;
    /// # Ok::<(), softcx::WrongDevice>(())
    /// ```
    pub fn tap(&mut self, tap: impl FnMut(&Tapped<'_>) + Send + 'static) {
        self.0.shared.tap = Some(Box::new(tap));
    }

    /// Ends [`tap`](Self::tap).
    pub fn no_tap(&mut self) {
        self.0.shared.tap = None;
    }

    /// Lets a queue pair and its completion queues go on as if so many blocks, receives and completions had been before, so that their
    /// counters soon wrap. For queues that nothing went through yet; the driver's rings and doorbell records have to be as they
    /// would be by then.
    pub fn age(&mut self, qpn: u32, count: u32) -> Result<(), Refusal> {
        let Device { qps, shared, .. } = &mut *self.0;
        let qp = qps.get_mut(&qpn).ok_or(Refusal::NoObject)?;
        // Those of work queues have 16 bits.
        if let Some(send) = &mut qp.send {
            send.age(count as u16);
        }
        if let Some(recv) = &mut qp.recv {
            recv.age(count as u16);
        }
        for cqn in [qp.spec.send_cq, qp.spec.recv_cq] {
            shared.cqs.get_mut(&cqn).ok_or(Refusal::NoObject)?.age(count);
        }
        Ok(())
    }

    /// Fault: the next send WQE of the queue pair fails with `syndrome`.
    pub fn fail_next_send(&mut self, qpn: u32, syndrome: Syndrome) -> Result<(), Refusal> {
        self.0.qps.get_mut(&qpn).ok_or(Refusal::NoObject)?.inject_send = Some(syndrome);
        Ok(())
    }

    /// Fault: the next receive WQE that the queue pair uses fails with `syndrome`, and the sender hears of it.
    pub fn fail_next_receive(&mut self, qpn: u32, syndrome: Syndrome) -> Result<(), Refusal> {
        self.0.qps.get_mut(&qpn).ok_or(Refusal::NoObject)?.inject_recv = Some(syndrome);
        Ok(())
    }

    /// Fault: the queue pair does nothing at all, until it is told to go on.
    pub fn set_stuck(&mut self, qpn: u32, stuck: bool) -> Result<(), Refusal> {
        self.0.qps.get_mut(&qpn).ok_or(Refusal::NoObject)?.stuck = stuck;
        self.0.shared.progress = true;
        Ok(())
    }

    /// Fault: the queue pair goes to error, and software is told.
    pub fn kill_qp(&mut self, qpn: u32) -> Result<(), Refusal> {
        let qp = self.0.qps.get_mut(&qpn).ok_or(Refusal::NoObject)?;
        self.0.shared.events.push_back(Event::QpFatal { qpn });
        if qp.state != QpState::Err {
            qp.enter(QpState::Err, &mut self.0.shared);
        }
        Ok(())
    }

    /// Fault: the completion queue breaks as if overrun.
    pub fn overrun_cq(&mut self, cqn: u32) -> Result<(), Refusal> {
        if self.0.shared.cqs.get_mut(&cqn).ok_or(Refusal::NoObject)?.break_down() {
            self.0.shared.events.push_back(Event::CqError { cqn });
        }
        Ok(())
    }

    /// Fault: an event out of the blue.
    pub fn raise(&mut self, event: Event) {
        self.0.shared.events.push_back(event);
        self.0.shared.progress = true;
    }

    /// Fault: the port goes down or comes back.
    pub fn set_port_active(&mut self, port: u8, active: bool) -> Result<(), Refusal> {
        let entry = self.0.shared.ports.get_mut(usize::from(port).wrapping_sub(1)).ok_or(Refusal::NoObject)?;
        if std::mem::replace(&mut entry.active, active) != active {
            let change = if active { PortChange::Active } else { PortChange::Down };
            self.raise(Event::Port { port, change });
        }
        Ok(())
    }

    /// Gives an InfiniBand port another LID, as a subnet manager does.
    pub fn set_lid(&mut self, port: u8, new: u16) -> Result<(), Refusal> {
        match &mut self.0.shared.ports.get_mut(usize::from(port).wrapping_sub(1)).ok_or(Refusal::NoObject)?.link {
            Link::InfiniBand { lid } => *lid = new,
            Link::Ethernet { .. } => return Err(Refusal::BadParam),
        }
        self.raise(Event::Port { port, change: PortChange::Lid });
        Ok(())
    }

    /// Sets a place of a port's GID table, as the network stack does when an address comes or goes.
    pub fn set_gid(&mut self, port: u8, index: usize, entry: Option<GidEntry>) -> Result<(), Refusal> {
        let gids = &mut self.0.shared.ports.get_mut(usize::from(port).wrapping_sub(1)).ok_or(Refusal::NoObject)?.gids;
        *gids.get_mut(index).ok_or(Refusal::BadParam)? = entry;
        self.raise(Event::Port { port, change: PortChange::Gid });
        Ok(())
    }

    /// Fault: the device dies. It does nothing any more.
    pub fn die(&mut self) {
        if !std::mem::replace(&mut self.0.dead, true) {
            self.raise(Event::Fatal);
        }
    }
}
