//! Who is told of an event: which file, with which record.

use super::channel::Channel;
use crate::event::{Event, PortChange};
use crate::fabric::DeviceId;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Kinds of objects that events are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Cq(u32),
    Qp(u32),
    Srq(u32),
}

/// An object that events are about.
#[derive(Debug)]
pub(super) struct Entry {
    pub completions: Option<Arc<Channel>>,
    pub asynchronous: Option<Arc<Channel>>,
    pub user_handle: u64,
    /// Records ever queued, of completions and others.
    pub reported: (u32, u32),
}

/// Numbers of asynchronous events (`enum ib_event_type`).
mod number {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const LID_CHANGE: u32 = 11;
    pub const PKEY_CHANGE: u32 = 12;
    pub const SRQ_ERR: u32 = 14;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    pub const CLIENT_REREGISTER: u32 = 17;
    pub const GID_CHANGE: u32 = 18;
}

#[derive(Debug, Default)]
pub(super) struct Router {
    devices: Vec<DeviceId>,
    objects: HashMap<(DeviceId, Subject), Entry>,
    /// The files that hear of ports and of the device's death.
    files: Vec<(DeviceId, Weak<Channel>)>,
    /// Files with records that wait for room.
    full: Vec<Arc<Channel>>,
}

impl Router {
    pub fn add_device(&mut self, device: DeviceId) {
        self.devices.push(device);
    }

    pub fn has_device(&self, device: DeviceId) -> bool {
        self.devices.contains(&device)
    }

    pub fn add(&mut self, device: DeviceId, subject: Subject, entry: Entry) {
        self.objects.insert((device, subject), entry);
    }

    pub fn add_file(&mut self, device: DeviceId, channel: &Arc<Channel>) {
        self.files.retain(|(_, c)| c.strong_count() > 0);
        self.files.push((device, Arc::downgrade(channel)));
    }

    /// Forgets an object, and takes back what was not read of it. Returns how many records there ever were.
    pub fn remove(&mut self, device: DeviceId, subject: Subject) -> (u32, u32) {
        let Some(entry) = self.objects.remove(&(device, subject)) else { return (0, 0) };
        let handle = entry.user_handle.to_ne_bytes();
        if let Some(channel) = &entry.completions {
            channel.remove(|record| record == handle);
        }
        if let Some(channel) = &entry.asynchronous {
            channel.remove(|record| record.len() == 16 && record[..8] == handle && is_of(record, subject));
        }
        entry.reported
    }

    pub fn deliver(&mut self, device: DeviceId, event: Event) {
        use number::*;
        let (subject, kind) = match event {
            Event::Completion { cqn } => {
                if let Some(entry) = self.objects.get_mut(&(device, Subject::Cq(cqn)))
                    && let Some(channel) = &entry.completions
                {
                    if !channel.send(&entry.user_handle.to_ne_bytes()) {
                        wait(&mut self.full, channel);
                    }
                    entry.reported.0 += 1;
                }
                return;
            }
            Event::CqError { cqn } => (Subject::Cq(cqn), CQ_ERR),
            Event::QpFatal { qpn } => (Subject::Qp(qpn), QP_FATAL),
            Event::QpInvalidRequest { qpn } => (Subject::Qp(qpn), QP_REQ_ERR),
            Event::QpAccess { qpn } => (Subject::Qp(qpn), QP_ACCESS_ERR),
            Event::CommEstablished { qpn } => (Subject::Qp(qpn), COMM_EST),
            Event::SqDrained { qpn } => (Subject::Qp(qpn), SQ_DRAINED),
            Event::LastWqe { qpn } => (Subject::Qp(qpn), QP_LAST_WQE_REACHED),
            Event::SrqLimit { srqn } => (Subject::Srq(srqn), SRQ_LIMIT_REACHED),
            Event::SrqError { srqn } => (Subject::Srq(srqn), SRQ_ERR),
            Event::Port { port, change } => {
                let kind = match change {
                    PortChange::Down => PORT_ERR,
                    PortChange::Active => PORT_ACTIVE,
                    PortChange::Lid => LID_CHANGE,
                    PortChange::Pkey => PKEY_CHANGE,
                    PortChange::Gid => GID_CHANGE,
                    PortChange::ClientReregister => CLIENT_REREGISTER,
                };
                return self.tell_all(device, port.into(), kind);
            }
            Event::Fatal => return self.tell_all(device, 0, DEVICE_FATAL),
        };
        if let Some(entry) = self.objects.get_mut(&(device, subject))
            && let Some(channel) = &entry.asynchronous
        {
            if !channel.send(&record(entry.user_handle, kind)) {
                wait(&mut self.full, channel);
            }
            entry.reported.1 += 1;
        }
    }

    /// Gives records that wait another try.
    pub fn flush(&mut self) {
        self.full.retain(|channel| !channel.flush());
    }

    fn tell_all(&mut self, device: DeviceId, element: u64, kind: u32) {
        for (_, channel) in self.files.iter().filter(|(d, _)| *d == device) {
            if let Some(channel) = channel.upgrade()
                && !channel.send(&record(element, kind))
            {
                wait(&mut self.full, &channel);
            }
        }
    }
}

/// Notes a file whose records wait for room, once.
fn wait(full: &mut Vec<Arc<Channel>>, channel: &Arc<Channel>) {
    if !full.iter().any(|c| Arc::ptr_eq(c, channel)) {
        full.push(Arc::clone(channel));
    }
}

/// `struct ib_uverbs_async_event_desc`.
fn record(element: u64, kind: u32) -> [u8; 16] {
    let mut record = [0; 16];
    record[..8].copy_from_slice(&element.to_ne_bytes());
    record[8..12].copy_from_slice(&kind.to_ne_bytes());
    record
}

/// Whether the event of a record is about a subject of this kind: objects of different kinds may have the same handle.
fn is_of(record: &[u8], subject: Subject) -> bool {
    use number::*;
    let kind = u32::from_ne_bytes(crate::bits::array(record, 8));
    match subject {
        Subject::Cq(_) => kind == CQ_ERR,
        Subject::Srq(_) => matches!(kind, SRQ_ERR | SRQ_LIMIT_REACHED),
        Subject::Qp(_) => {
            matches!(kind, QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR | COMM_EST | SQ_DRAINED | QP_LAST_WQE_REACHED)
        }
    }
}
