//! `rdma-probe gids`: the GID tables, which entry would be used, and why.

use crate::failure::Failure;
use crate::shown;
use crate::table::{Table, or_dash};
use ironverbs::sys::Sys;
use ironverbs::{DeviceInfo, GidDetails, GidWant, LinkLayer, PortDetails, choose_gid};
use serde::Serialize;
use std::fmt;
use std::net::Ipv6Addr;

/// Result of `rdma-probe gids`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GidsReport {
    /// exclusive: a device can be used in its own network namespace only; shared: in all of them.
    pub netns_mode: Option<String>,
    /// One table for each port of each device asked for.
    pub tables: Vec<GidTable>,
}

/// The GID table of one port.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GidTable {
    /// The device's name.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// InfiniBand or Ethernet.
    pub link_layer: Option<String>,
    /// Index of the entry that would be used; none if there is none that can be.
    pub chosen_index: Option<u8>,
    /// Why that one, or why none.
    pub reason: String,
    /// The valid entries, by index.
    pub entries: Vec<GidRow>,
}

/// A valid entry of a GID table.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GidRow {
    /// Its index.
    pub index: u32,
    /// The GID, as an IPv6 address.
    pub gid: String,
    /// IB, RoCE v1 or RoCE v2.
    pub r#type: String,
    /// The network device it belongs to.
    pub netdev: Option<String>,
    /// Whether that network device is in this network namespace. If it is elsewhere, that namespace's addresses and routes
    /// count, and rdma_cm finds no device here.
    pub netdev_is_here: Option<bool>,
    /// Whether it would be used.
    pub chosen: bool,
    /// Why not.
    pub not_chosen_because: Option<String>,
}

impl GidRow {
    /// Of an entry of which nobody asked whether to use it.
    pub fn of(gid: &GidDetails) -> Self {
        Self {
            index: gid.entry.index,
            gid: Ipv6Addr::from(gid.entry.gid.0).to_string(),
            r#type: gid.entry.gid_type.to_string(),
            netdev: gid.netdev.clone(),
            netdev_is_here: gid.netdev_is_here,
            chosen: false,
            not_chosen_because: None,
        }
    }

    /// The network device, with a remark if it is elsewhere.
    pub fn netdev_text(&self) -> String {
        match self.netdev_is_here {
            Some(false) => format!("{} (not in this network namespace)", or_dash(self.netdev.as_ref())),
            _ => or_dash(self.netdev.as_ref()),
        }
    }
}

/// Shows the GID tables of these devices. That there is none to show is a failure, if one of the devices tells why.
pub fn look(sys: &dyn Sys, devices: &[DeviceInfo], want: Option<GidWant>) -> Result<GidsReport, Failure> {
    let report = GidsReport::of(sys, devices, want);
    let refused = devices.iter().find_map(|device| Some((device, device.usable.as_ref().err()?)));
    match refused {
        Some((device, why)) if report.tables.is_empty() => {
            Err(Failure::from(why).during(format_args!("no GID table of {} can be seen", device.name)))
        }
        _ => Ok(report),
    }
}

impl GidsReport {
    /// Of these devices, for a peer of which `want` is known.
    fn of(sys: &dyn Sys, devices: &[DeviceInfo], want: Option<GidWant>) -> Self {
        let mut netns_mode = None;
        let mut tables = Vec::new();
        for device in devices {
            let details = sys.details(device);
            netns_mode = netns_mode.or(details.netns_mode);
            tables.extend(details.ports.iter().map(|port| GidTable::of(&device.name, port, want)));
        }
        Self { netns_mode: netns_mode.map(|mode| mode.to_string()), tables }
    }
}

impl GidTable {
    /// The table of `port`, with the choice for a peer of which `want` is known.
    pub fn of(device: &str, port: &PortDetails, want: Option<GidWant>) -> Self {
        let entries: Vec<_> = port.gids.iter().map(|gid| gid.entry).collect();
        let layer = port.link_layer.unwrap_or(LinkLayer::Ethernet);
        let choice = choose_gid(layer, &entries, want);
        let rows = port.gids.iter().map(|gid| {
            let mut row = GidRow::of(gid);
            if let Ok(choice) = &choice {
                row.chosen = choice.entry == gid.entry;
                let loss = choice.losers.iter().find(|(loser, _)| *loser == gid.entry);
                row.not_chosen_because = loss.map(|(_, why)| why.to_string());
            }
            row
        });
        Self {
            device: device.to_owned(),
            port: port.port.get(),
            link_layer: port.link_layer.map(|layer| layer.to_string()),
            chosen_index: choice.as_ref().ok().map(|choice| choice.index.0),
            reason: match &choice {
                Ok(choice) => choice.reasons.iter().map(|r| r.to_string()).collect::<Vec<_>>().join(", "),
                Err(why) => why.to_string(),
            },
            entries: rows.collect(),
        }
    }
}

impl fmt::Display for GidsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, table) in self.tables.iter().enumerate() {
            write!(f, "{}{table}", if i == 0 { "" } else { "\n" })?;
        }
        match self.netns_mode.as_deref() {
            Some("exclusive") => {
                writeln!(f, "\nnetwork namespaces are exclusive: those of other devices are not shown")
            }
            Some(_) => writeln!(f, "\nnetwork namespaces share all devices"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for GidTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, link_layer, chosen_index, reason, entries } = self;
        writeln!(f, "{} port {port} ({})", shown::line(device), or_dash(link_layer.as_ref()))?;
        if !entries.is_empty() {
            let mut text = Table::new(["", "INDEX", "GID", "TYPE", "NETDEV", ""]);
            for row in entries {
                text.row([
                    if row.chosen { " *" } else { "" }.to_owned(),
                    row.index.to_string(),
                    row.gid.clone(),
                    row.r#type.clone(),
                    row.netdev_text(),
                    row.not_chosen_because.clone().unwrap_or_else(|| "chosen".to_owned()),
                ]);
            }
            text.fmt(f)?;
        }
        match chosen_index {
            Some(index) => {
                writeln!(f, "index {index} is chosen: {reason}")?;
                if entries.iter().any(|row| row.chosen && row.netdev_is_here == Some(false)) {
                    writeln!(
                        f,
                        "its network device is in another network namespace, whose addresses and routes count; rdma_cm, \
                         which looks in this one, finds no device"
                    )?;
                }
                Ok(())
            }
            None => writeln!(f, "none can be used: {reason}"),
        }
    }
}
