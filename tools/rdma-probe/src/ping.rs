//! `rdma-probe ping`: client, server, or both in one process.

use crate::args::Ping;
use crate::buffers::Buffers;
use crate::choose;
use crate::engine::{self, End, Parts};
use crate::exchange::{Conversation, Limits, Listener};
use crate::failure::{Failure, Kind};
use crate::output::Output;
use crate::payload::Role;
use crate::ping_report::{CheckReport, PingAddress, PingReport, PingRole};
use crate::stats::Rate;
use crate::stop::Stop;
use crate::turn::Turn;
use crate::wire::Address;
use ironverbs::sys::Sys;
use ironverbs::{
    AddressFamily, ConnectOptions, Context, DeviceInfo, DriverId, Endpoint, Gid, GidIndex, GidWant, LinkLayer, Mtu, Pd,
    PortAttr, PortState, PreparedQp, Qp, QpBuilder,
};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Longest message that is copied into its work request, where the device can do that. Longer ones gain nothing by it.
const MAX_INLINE_BYTES: u32 = 128;

/// Sends for each completion of a send, where completions are polled for.
const SIGNAL_EVERY: u32 = 16;

/// What `ibv_rc_pingpong` uses unless told otherwise. Both ends need the same.
const DEFAULT_MTU: Mtu = Mtu::B1024;

/// Runs a ping. The report holds what is known when it ends, however it ends.
pub fn ping(
    sys: &dyn Sys,
    devices: &[DeviceInfo],
    args: &Ping,
    output: &mut Output,
    stop: &Stop,
) -> (Option<PingReport>, Result<(), Failure>) {
    let mut report = None;
    let result = (|| {
        // A port that is taken is told before anything is made on the device.
        let listener = match (&args.host, args.loopback) {
            (None, false) => Some(Listener::bind(args.bind, args.port)?),
            _ => None,
        };
        let place = Place::open(sys, devices, args)?;
        match (&args.host, listener) {
            (Some(host), _) => client(&place, host, output, stop, &mut report),
            (None, Some(listener)) => server(&place, listener, output, stop, &mut report),
            (None, None) => loopback(&place, output, stop, &mut report),
        }
    })();
    (report, result)
}

fn client(
    place: &Place<'_>,
    host: &str,
    output: &mut Output,
    stop: &Stop,
    report: &mut Option<PingReport>,
) -> Result<(), Failure> {
    let args = place.args;
    let conversation = Conversation::connect(host, args.port, limits(args), stop)?;
    let peer = conversation.peer();
    let half = place.half(Role::Client, family_of(peer))?;
    let report = report.insert(place.report(PingRole::Client, &half));
    report.peer_tcp = Some(peer.to_string());
    show_local(output, report)?;
    let remote = conversation.client(&half.address())?;
    show_remote(output, report, &remote)?;
    let mut ends = [half.connect(place, &remote)?];
    measure(&mut ends, args, output, stop, report)
}

fn server(
    place: &Place<'_>,
    listener: Listener,
    output: &mut Output,
    stop: &Stop,
    report: &mut Option<PingReport>,
) -> Result<(), Failure> {
    let args = place.args;
    // Made before the client comes, so that what can go wrong here does so at once.
    let mut half = place.half(Role::Server, None)?;
    let report = report.insert(place.report(PingRole::Server, &half));
    show_local(output, report)?;
    let mut conversation = listener.accept(limits(args), stop)?;
    report.peer_tcp = Some(conversation.peer().to_string());
    let remote = conversation.server_receive()?;
    if let Some(better) = place.better_gid(&half, &remote) {
        drop(half);
        half = place.half(Role::Server, Some(better))?;
        let tcp = report.peer_tcp.take();
        *report = place.report(PingRole::Server, &half);
        report.peer_tcp = tcp;
        show_local(output, report)?;
    }
    show_remote(output, report, &remote)?;
    let local = half.address();
    let mut ends = [half.connect(place, &remote)?];
    conversation.server_answer(&local)?;
    measure(&mut ends, args, output, stop, report)
}

fn loopback(
    place: &Place<'_>,
    output: &mut Output,
    stop: &Stop,
    report: &mut Option<PingReport>,
) -> Result<(), Failure> {
    let client = place.half(Role::Client, None)?;
    let server = place.half(Role::Server, None)?;
    let (client_address, server_address) = (client.address(), server.address());
    let report = report.insert(place.report(PingRole::Loopback, &client));
    show_local(output, report)?;
    show_remote(output, report, &server_address)?;
    let mut ends = [client.connect(place, &server_address)?, server.connect(place, &client_address)?];
    measure(&mut ends, place.args, output, stop, report)
}

fn measure(
    ends: &mut [End],
    args: &Ping,
    output: &mut Output,
    stop: &Stop,
    report: &mut PingReport,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let result = engine::run(ends, args.timeout, stop);
    let time = begin.elapsed();
    let done = ends.iter().map(End::completed).min().unwrap_or(0);
    report.completed_iterations = done;
    report.rate = Rate::of(done, args.size.into(), time);
    report.latency = ends.first().and_then(End::latency);
    report.check = CheckReport::of(ends.iter().filter_map(End::check_outcome), args.size);
    // The queue pairs stay until the report is out: they still acknowledge the peer's last message.
    output.text(&report)?;
    result
}

fn show_local(output: &mut Output, report: &PingReport) -> Result<(), Failure> {
    output.text(format_args!("  local address:  {}\n", report.local))?;
    if let (Some(index), Some(reason)) = (report.gid_index, &report.gid_reason) {
        output.text(format_args!(
            "  local GID:      index {index} of {} port {}, {reason}\n",
            report.device, report.port
        ))?;
    }
    Ok(())
}

fn show_remote(output: &mut Output, report: &mut PingReport, remote: &Address) -> Result<(), Failure> {
    let remote = report.remote.insert(remote.into());
    output.text(format_args!("  remote address: {remote}\n"))
}

fn limits(args: &Ping) -> Limits {
    Limits { connect: args.connect_timeout, silence: args.timeout }
}

/// What the peer's TCP address says about the GIDs it has: their family, most likely. A loopback address says nothing.
fn family_of(peer: SocketAddr) -> Option<GidWant> {
    let ip = peer.ip().to_canonical();
    (!ip.is_loopback()).then_some(GidWant::Family(match ip {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    }))
}

/// The device and port, opened and checked.
struct Place<'a> {
    args: &'a Ping,
    context: Context,
    pd: Pd,
    port: PortAttr,
    mtu: Mtu,
}

/// One end that is not connected yet, with its receives posted.
struct Half {
    parts: Parts,
    qp: PreparedQp,
}

impl<'a> Place<'a> {
    fn open(sys: &dyn Sys, devices: &[DeviceInfo], args: &'a Ping) -> Result<Self, Failure> {
        let device = choose::usable(devices, args.device.as_deref())?;
        let cannot_open = |e| Failure::from(e).during(format_args!("cannot open {}", device.name));
        let context = Context::open_on(sys, device).map_err(cannot_open)?;
        let port = context.query_port(args.ib_port)?;
        check_port(&context, args, &port)?;
        let mtu = path_mtu(args, &port)?;
        let pd = context.alloc_pd()?;
        Ok(Self { args, context, pd, port, mtu })
    }

    /// Makes one end, with the GID that was asked for, or the one that fits `want` best.
    fn half(&self, role: Role, want: Option<GidWant>) -> Result<Half, Failure> {
        let Self { args, context, pd, .. } = self;
        let buffers = Buffers::new(pd, role, args.size, args.iters, args.check)?;
        let channel = if args.events { Some(context.create_comp_channel()?) } else { None };
        // Completions wake this end up when it sleeps; the one of its own send comes while the peer is at work.
        let signal_every = if args.events { 1 } else { SIGNAL_EVERY };
        let send_depth = Turn::send_depth(signal_every);
        // If the peer goes, all sends and all receives complete before any is polled.
        let mut cq = context.cq_builder(args.rx_depth.saturating_add(send_depth));
        if let Some(channel) = &channel {
            cq = cq.channel(channel);
        }
        let cq = cq.build()?;
        let inline = if args.size <= MAX_INLINE_BYTES { args.size } else { 0 };
        let mut qp = QpBuilder::rc(pd, &cq, &cq)
            .port(args.ib_port)
            .max_send_wr(send_depth)
            .max_recv_wr(args.rx_depth)
            .max_inline_bytes(inline);
        match (args.gid_index, want) {
            (Some(index), _) => qp = qp.gid_index(GidIndex(index)),
            (None, Some(want)) => qp = qp.gid_want(want),
            (None, None) => {}
        }
        let mut qp = qp.build()?;
        let turn = Turn::new(args.iters, args.rx_depth, signal_every, role == Role::Client);
        let is_software_device = context.info().driver == Some(DriverId::RXE);
        let mut parts = Parts { role, cq, channel, buffers, size: args.size, is_software_device, turn };
        parts.post_first_receives(&mut qp)?;
        Ok(Half { parts, qp })
    }

    /// Another GID than that of `half`, if none was asked for and the peer's GID is of another address family.
    fn better_gid(&self, half: &Half, remote: &Address) -> Option<GidWant> {
        let local = half.qp.endpoint().gid?;
        let free = self.args.gid_index.is_none() && !remote.gid.is_zero() && self.is_ethernet();
        (free && AddressFamily::of(local) != AddressFamily::of(remote.gid)).then_some(GidWant::Peer(remote.gid))
    }

    fn is_ethernet(&self) -> bool {
        self.port.link_layer == LinkLayer::Ethernet
    }

    fn report(&self, role: PingRole, half: &Half) -> PingReport {
        let Self { args, context, mtu, .. } = self;
        let reason = half.qp.gid_choice().map(|choice| {
            let reasons: Vec<_> = choice.reasons.iter().map(|r| r.to_string()).collect();
            format!("chosen as {}", reasons.join(", "))
        });
        PingReport {
            role,
            device: context.info().name.clone(),
            device_index: context.index().map(|index| index.0),
            port: args.ib_port.get(),
            gid_index: half.qp.gid_index().map(|index| index.0),
            gid_reason: reason,
            mtu_bytes: mtu.bytes(),
            service_level: args.sl,
            size_bytes: args.size,
            iterations: args.iters,
            rx_depth: args.rx_depth,
            events: args.events,
            peer_tcp: None,
            local: PingAddress::from(&half.address()),
            remote: None,
            completed_iterations: 0,
            rate: None,
            latency: None,
            check: None,
        }
    }
}

fn check_port(context: &Context, args: &Ping, port: &PortAttr) -> Result<(), Failure> {
    let name = &context.info().name;
    if port.state != PortState::ACTIVE {
        let state = port.state;
        let failure = Failure::new(Kind::Device, format!("port {} of {name} is {state}, not ACTIVE", args.ib_port));
        return Err(failure.hint("is the cable in, or the network device up? ip link set DEV up"));
    }
    if args.size > port.max_msg_sz {
        let text =
            format!("--size is {}; port {} of {name} takes {} bytes at most", args.size, args.ib_port, port.max_msg_sz);
        return Err(Failure::new(Kind::Usage, text));
    }
    Ok(())
}

/// The MTU asked for, or the one that `ibv_rc_pingpong` would use, as far as the port has it.
fn path_mtu(args: &Ping, port: &PortAttr) -> Result<Mtu, Failure> {
    let Some(active) = port.active_mtu else { return Ok(args.mtu.unwrap_or(DEFAULT_MTU)) };
    match args.mtu {
        Some(mtu) if mtu > active => {
            let text = format!("--mtu is {mtu}; the active MTU of port {} is {active}", args.ib_port);
            Err(Failure::new(Kind::Usage, text)
                .hint("on Ethernet it is the largest that fits the network device's MTU: ip link set DEV mtu 4200"))
        }
        Some(mtu) => Ok(mtu),
        None if args.loopback => Ok(active),
        None => Ok(DEFAULT_MTU.min(active)),
    }
}

impl Half {
    fn address(&self) -> Address {
        let Endpoint { lid, qpn, psn, gid, .. } = self.qp.endpoint();
        Address { lid, qpn, psn, gid: gid.unwrap_or_default() }
    }

    fn connect(self, place: &Place<'_>, remote: &Address) -> Result<End, Failure> {
        check_gids(place, self.qp.endpoint().gid, remote)?;
        let mut options: ConnectOptions = self.qp.connect_options();
        options.path_mtu = Some(place.mtu);
        options.sl = place.args.sl;
        options.max_rd_atomic = 1;
        options.max_dest_rd_atomic = 1;
        let remote_endpoint = Endpoint {
            lid: remote.lid,
            qpn: remote.qpn,
            psn: remote.psn,
            gid: (!remote.gid.is_zero()).then_some(remote.gid),
            mtu: None,
        };
        let qp: Qp = self.qp.connect_with(&remote_endpoint, &options).map_err(|e| {
            Failure::from(e.error).during(format_args!("cannot connect to QPN {} at {}", remote.qpn, remote.gid))
        })?;
        self.parts.connected(qp)
    }
}

/// What the kernel would answer with a bare EINVAL, or not at all.
fn check_gids(place: &Place<'_>, local: Option<Gid>, remote: &Address) -> Result<(), Failure> {
    if !place.is_ethernet() {
        return Ok(());
    }
    if remote.gid.is_zero() {
        return Err(Failure::new(Kind::Peer, "the peer sent no GID, and RoCE reaches nobody without one")
            .hint("start ibv_rc_pingpong with -g INDEX"));
    }
    let families = (local.map(AddressFamily::of), AddressFamily::of(remote.gid));
    match families {
        (Some(ours), theirs) if ours != theirs => {
            let text = format!("the peer's GID is {theirs}, this end's is {ours}: one does not reach the other");
            Err(Failure::new(Kind::Peer, text)
                .hint("choose GIDs of one family with --gid-index; rdma-probe gids shows them"))
        }
        _ => Ok(()),
    }
}
