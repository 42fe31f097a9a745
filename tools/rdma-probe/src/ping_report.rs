//! What a ping found out, for people and for programs.

use crate::args::Transport;
use crate::buffers::CheckOutcome;
use crate::payload::Peer;
use crate::stats::{LatencySummary, Rate};
use crate::wire::Address;
use serde::Serialize;
use std::fmt;
use std::net::Ipv6Addr;

/// Result of `rdma-probe ping`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PingReport {
    /// Which end this was.
    pub role: PingRole,
    /// Transport service.
    pub transport: Transport,
    /// The device's name.
    pub device: String,
    /// The kernel's index of the device.
    pub device_index: Option<u32>,
    /// The device's port.
    pub port: u8,
    /// Index of the local GID; none where the peer is reached by LID alone, on InfiniBand.
    pub gid_index: Option<u8>,
    /// Why that GID, if it was chosen and not given.
    pub gid_reason: Option<String>,
    /// Path MTU in bytes.
    pub mtu_bytes: u32,
    /// Service level.
    pub service_level: u8,
    /// Bytes of a message.
    pub size_bytes: u32,
    /// Messages each way that were asked for.
    pub iterations: u64,
    /// Receives kept posted.
    pub rx_depth: u32,
    /// Queue pairs of each end; with --transport xsrq there is another one for the other direction.
    pub queue_pairs: u32,
    /// Whether completions were slept for, and not polled for.
    pub events: bool,
    /// Whether the device is a simulated one: then rate and latency are those of a simulation, and say nothing of hardware.
    pub simulated: bool,
    /// The peer's TCP address; none in a loopback, and with --cm.
    pub peer_tcp: Option<String>,
    /// What the connection manager brought together; none without --cm.
    pub connection: Option<ConnectionReport>,
    /// Where this end is. In a loopback, the client's end.
    pub local: PingAddress,
    /// Where the peer is, once that is known.
    pub remote: Option<PingAddress>,
    /// Messages each way that were completed.
    pub completed_iterations: u64,
    /// How fast messages went to and fro; none if no iteration was completed.
    pub rate: Option<Rate>,
    /// How long iterations took: from one message's arrival to the next one's. In a loopback, as the client's end saw it.
    pub latency: Option<LatencySummary>,
    /// How the payload checks went; none without --check.
    pub check: Option<CheckReport>,
    /// What about the options may surprise, for people.
    pub notes: Vec<String>,
}

/// Which end a ping was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PingRole {
    /// Connects and sends first.
    Client,
    /// Waits for a client and answers.
    Server,
    /// Both in one process.
    Loopback,
}

/// Where an end is.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PingAddress {
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// Queue pair number; with --transport xsrq, of the one that receives.
    pub qpn: u32,
    /// Number of the queue pair that sends; none but with --transport xsrq.
    pub send_qpn: Option<u32>,
    /// Number of the shared receive queue; none but with --transport xsrq.
    pub srqn: Option<u32>,
    /// First packet sequence number.
    pub psn: u32,
    /// Global identifier, as an IPv6 address.
    pub gid: String,
}

/// What the kernel's connection manager brought together.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConnectionReport {
    /// This end's address and port.
    pub local: String,
    /// The peer's address and port.
    pub peer: String,
    /// Seconds that it took: of a client from the beginning of the search for the address, of a server from its request.
    pub seconds: f64,
}

/// How the payload checks went.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckReport {
    /// What the peer does: `echoes` is ibv_rc_pingpong, or rdma-probe without --check; `makes` is rdma-probe with --check.
    pub peer: Peer,
    /// Messages in which every byte was right. In a loopback, of both ends.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl CheckReport {
    /// From how the checks of one or both ends went.
    pub fn of(outcomes: impl IntoIterator<Item = CheckOutcome>, size_bytes: u32) -> Option<Self> {
        outcomes.into_iter().fold(None, |sum: Option<Self>, CheckOutcome { peer, messages }| {
            let messages = messages + sum.map_or(0, |s| s.messages);
            Some(Self { peer, messages, bytes: messages * u64::from(size_bytes) })
        })
    }
}

impl From<&Address> for PingAddress {
    fn from(a: &Address) -> Self {
        Self {
            lid: a.lid.0,
            qpn: a.qpn.get(),
            send_qpn: a.xrc.map(|xrc| xrc.send_qpn.get()),
            srqn: a.xrc.map(|xrc| xrc.srqn.get()),
            psn: a.psn.get(),
            gid: Ipv6Addr::from(a.gid.0).to_string(),
        }
    }
}

impl fmt::Display for PingAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, send_qpn, srqn, psn, gid } = self;
        match (send_qpn, srqn) {
            (Some(send), Some(srqn)) => write!(
                f,
                "LID {lid:#06x}, QPN RECV {qpn:#08x} SEND {send:#08x}, PSN {psn:#08x}, SRQN {srqn:#08x}, GID {gid}"
            ),
            _ => write!(f, "LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}"),
        }
    }
}

/// The measurement, in the words of `ibv_rc_pingpong`, and the distribution below.
impl fmt::Display for PingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.completed_iterations;
        let Some(rate) = self.rate else { return writeln!(f, "0 of {} iters", self.iterations) };
        let Rate { bytes, seconds, mbit_per_second, mbyte_per_second, usec_per_iteration } = rate;
        // On each line with a figure, since lines are what people copy.
        let mark = if self.simulated { " [simulated]" } else { "" };
        writeln!(
            f,
            "{bytes} bytes in {seconds:.2} seconds = {mbit_per_second:.2} Mbit/sec ({mbyte_per_second:.2} MB/sec){mark}"
        )?;
        writeln!(f, "{done} iters in {seconds:.2} seconds = {usec_per_iteration:.2} usec/iter{mark}")?;
        if done < self.iterations {
            writeln!(f, "stopped before the other {} iters", self.iterations - done)?;
        }
        if let Some(l) = self.latency {
            let usec = |ns: u64| ns as f64 / 1000.0;
            writeln!(
                f,
                "usec/iter: min {:.2}, median {:.2}, p99 {:.2}, max {:.2} ({} samples){mark}",
                usec(l.min_ns),
                usec(l.median_ns),
                usec(l.p99_ns),
                usec(l.max_ns),
                l.samples
            )?;
        }
        if let Some(c) = self.check {
            writeln!(f, "{} messages, {} bytes, arrived as they were sent", c.messages, c.bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::XrcNumbers;
    use ironverbs::{Gid, Lid, Psn, Qpn, Srqn};
    use std::time::Duration;

    #[test]
    fn addresses_look_as_in_ibv_rc_pingpong() {
        let gid = Gid::from("10.9.9.1".parse::<std::net::IpAddr>().unwrap());
        let (qpn, psn) = (Qpn::new(0x11).unwrap(), Psn::new(0xabcdef).unwrap());
        let mut a = Address { lid: Lid(1), qpn, psn, gid, xrc: None };
        let text = PingAddress::from(&a).to_string();
        assert_eq!(text, "LID 0x0001, QPN 0x000011, PSN 0xabcdef, GID ::ffff:10.9.9.1");
        a.xrc = Some(XrcNumbers { send_qpn: Qpn::new(0x12).unwrap(), srqn: Srqn::new(7).unwrap() });
        let text = PingAddress::from(&a).to_string();
        let expected = "LID 0x0001, QPN RECV 0x000011 SEND 0x000012, PSN 0xabcdef, SRQN 0x000007, GID ::ffff:10.9.9.1";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_measurement_in_text() {
        let address = PingAddress { lid: 0, qpn: 1, send_qpn: None, srqn: None, psn: 2, gid: "::1".into() };
        let latency =
            LatencySummary { samples: 500, min_ns: 400_000, median_ns: 450_000, p99_ns: 700_000, max_ns: 1_234_567 };
        let mut report = PingReport {
            role: PingRole::Client,
            transport: Transport::Rc,
            device: "rxe0".into(),
            device_index: Some(0),
            port: 1,
            gid_index: Some(1),
            gid_reason: None,
            mtu_bytes: 1024,
            service_level: 0,
            size_bytes: 4096,
            iterations: 1000,
            rx_depth: 500,
            queue_pairs: 1,
            events: false,
            simulated: false,
            peer_tcp: None,
            connection: None,
            local: address,
            remote: None,
            completed_iterations: 500,
            rate: Rate::of(500, 4096, Duration::from_millis(250)),
            latency: Some(latency),
            check: CheckReport::of([CheckOutcome { peer: Peer::Echoes, messages: 500 }], 4096),
            notes: Vec::new(),
        };
        let expected = "\
4096000 bytes in 0.25 seconds = 131.07 Mbit/sec (16.38 MB/sec)
500 iters in 0.25 seconds = 500.00 usec/iter
stopped before the other 500 iters
usec/iter: min 400.00, median 450.00, p99 700.00, max 1234.57 (500 samples)
500 messages, 2048000 bytes, arrived as they were sent
";
        assert_eq!(report.to_string(), expected);
        report.simulated = true;
        for line in report.to_string().lines().filter(|line| line.contains("sec")) {
            assert!(line.ends_with(" [simulated]"), "{line}");
        }
        report.completed_iterations = 0;
        report.rate = None;
        assert_eq!(report.to_string(), "0 of 1000 iters\n");
    }

    #[test]
    fn both_ends_of_a_loopback_are_counted() {
        let one = CheckOutcome { peer: Peer::Makes, messages: 10 };
        let both = CheckReport::of([one, one], 100).unwrap();
        assert_eq!((both.messages, both.bytes), (20, 2000));
        assert!(CheckReport::of([], 100).is_none());
    }
}
