//! What `rdma-probe watch` prints: a line for each thing that happened, and one for how it ended.

use crate::output::SCHEMA_VERSION;
use crate::shown;
use crate::time;
use ironverbs::{AsyncEvent, GidEntry, Mtu, PhysState, PortAttr, Subject};
use serde::Serialize;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::SystemTime;

/// One thing that happened.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WatchLine {
    /// Version of this layout.
    pub schema_version: u32,
    /// When watch learnt of it: UTC, RFC 3339, with microseconds.
    pub time: String,
    /// Whether the device is a simulated one.
    pub simulated: bool,
    /// The device's name when watch began.
    pub device: String,
    /// The kernel's index of the device.
    pub device_index: Option<u32>,
    /// How watch learnt of it.
    pub what: What,
    /// The event, as `enum ib_event_type` names it; none unless `what` is `event`.
    pub event: Option<String>,
    /// Its number in that enumeration.
    pub event_number: Option<u32>,
    /// What it happened to.
    pub object: Object,
    /// The port's state, as it was read right after.
    pub port_state: Option<PortNow>,
    /// GIDs that the port's table has, and had not when it was last read. At the start, all of them; text leaves those out.
    pub gids_added: Vec<GidNow>,
    /// GIDs that the port's table had, and has no longer.
    pub gids_removed: Vec<GidNow>,
}

/// How watch learnt of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Nothing happened: this is the state at the start.
    Initial,
    /// The kernel sent an event.
    Event,
    /// No event told of it; watch saw it when it looked.
    Change,
    /// The device is gone, or is about to go: watch has let go of it.
    Removed,
}

/// What something happened to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Object {
    /// A port.
    Port {
        /// Its number, from 1.
        port: u8,
    },
    /// The device as a whole.
    Device,
    /// Something else.
    Other {
        /// What the library calls it.
        name: String,
    },
}

/// State of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortNow {
    /// Logical state, as ACTIVE.
    pub state: String,
    /// Physical state, as LINK_UP.
    pub phys_state: String,
    /// MTU in use, in bytes.
    pub active_mtu: Option<u32>,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
}

/// An entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GidNow {
    /// Its index.
    pub index: u32,
    /// The GID, as an IPv6 address.
    pub gid: String,
    /// IB, RoCE v1 or RoCE v2.
    pub r#type: String,
}

/// Result of `rdma-probe watch`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WatchReport {
    /// Lines printed, without those of the start.
    pub events: u64,
}

impl WatchLine {
    /// Of now.
    pub fn new(device: &str, device_index: Option<u32>, what: What, object: Object) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            time: time::utc(SystemTime::now()),
            simulated: false,
            device: device.to_owned(),
            device_index,
            what,
            event: None,
            event_number: None,
            object,
            port_state: None,
            gids_added: Vec::new(),
            gids_removed: Vec::new(),
        }
    }

    /// The same, naming the event.
    pub fn event(mut self, event: &AsyncEvent) -> Self {
        self.event = Some(event.kind.to_string());
        self.event_number = Some(event.kind.0);
        self
    }
}

impl From<Subject> for Object {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Port(port) => Self::Port { port: port.get() },
            Subject::Device => Self::Device,
            other => Self::Other { name: format!("{other:?}") },
        }
    }
}

impl From<&PortAttr> for PortNow {
    fn from(port: &PortAttr) -> Self {
        Self {
            state: port.state.to_string(),
            phys_state: PhysState(port.phys_state).to_string(),
            active_mtu: port.active_mtu.map(Mtu::bytes),
            lid: port.lid.0,
        }
    }
}

impl From<&GidEntry> for GidNow {
    fn from(entry: &GidEntry) -> Self {
        Self { index: entry.index, gid: Ipv6Addr::from(entry.gid.0).to_string(), r#type: entry.gid_type.to_string() }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { port } => write!(f, " port {port}"),
            Self::Device => Ok(()),
            Self::Other { name } => write!(f, " {name}"),
        }
    }
}

impl fmt::Display for PortNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, phys_state, active_mtu, lid } = self;
        write!(f, "{state}, {phys_state}")?;
        if let Some(mtu) = active_mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if *lid != 0 {
            write!(f, ", LID {lid}")?;
        }
        Ok(())
    }
}

impl fmt::Display for WatchLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}: ", self.time, shown::line(&self.device), self.object)?;
        match (self.what, &self.event) {
            (What::Initial, _) => f.write_str("at the start")?,
            (What::Event, Some(event)) => f.write_str(event)?,
            (What::Event, None) => f.write_str("an event")?,
            (What::Change, _) => f.write_str("changed, and no event told of it")?,
            (What::Removed, _) => f.write_str("the device was removed")?,
        }
        if let Some(port) = &self.port_state {
            write!(f, ", {port}")?;
        }
        if self.what == What::Initial {
            return f.write_str("\n");
        }
        for (sign, gids) in [('+', &self.gids_added), ('-', &self.gids_removed)] {
            for GidNow { index, gid, r#type } in gids {
                write!(f, ", {sign}gid[{index}] {gid} ({type})")?;
            }
        }
        f.write_str("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironverbs::{AsyncEventType, PortNum};

    fn line(what: What) -> WatchLine {
        WatchLine { time: "T".into(), ..WatchLine::new("rxe0", Some(3), what, Object::Port { port: 1 }) }
    }

    #[test]
    fn lines_in_text() {
        let port = PortNow { state: "ACTIVE".into(), phys_state: "LINK_UP".into(), active_mtu: Some(1024), lid: 0 };
        let gid = GidNow { index: 3, gid: "::ffff:10.9.9.7".into(), r#type: "RoCE v2".into() };
        let event = AsyncEvent { kind: AsyncEventType::GID_CHANGE, subject: Subject::Port(PortNum::ONE) };
        let initial = WatchLine { port_state: Some(port), ..line(What::Initial) };
        assert_eq!(initial.to_string(), "T rxe0 port 1: at the start, ACTIVE, LINK_UP, MTU 1024\n");
        let added = WatchLine { gids_added: vec![gid], ..line(What::Event).event(&event) };
        assert_eq!(added.to_string(), "T rxe0 port 1: GID_CHANGE, +gid[3] ::ffff:10.9.9.7 (RoCE v2)\n");
        let gone = WatchLine { object: Object::Device, ..line(What::Removed) };
        assert_eq!(gone.to_string(), "T rxe0: the device was removed\n");
    }

    #[test]
    fn the_object_in_json() {
        let json = serde_json::to_value(line(What::Change)).unwrap();
        assert_eq!(json["object"], serde_json::json!({"kind": "port", "port": 1}));
        assert_eq!(json["what"], "change");
        assert_eq!(serde_json::to_value(Object::from(Subject::Device)).unwrap()["kind"], "device");
        assert_eq!(serde_json::to_value(Object::from(Subject::Unknown(7))).unwrap()["kind"], "other");
    }
}
