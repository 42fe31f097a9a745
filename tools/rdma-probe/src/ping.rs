//! `rdma-probe ping`: client, server, or both in one process.

use crate::args::{ENDLESS_RNR_RETRIES, Ping, Transport};
use crate::engine::{self, Player};
use crate::exchange::{Aside, Conversation, ExchangeError, Farewell, Limits, Listener};
use crate::failure::{Failure, Kind};
use crate::half::{Half, OneQp};
use crate::machine::Machine;
use crate::output::Output;
use crate::payload::Role;
use crate::ping_cm;
use crate::ping_report::{CheckReport, PingAddress, PingReport, PingRole};
use crate::place::Place;
use crate::presence::Presence;
use crate::reach::Reach;
use crate::sim::{Meeting, Sim, meet};
use crate::srq::SrqHalf;
use crate::stats::Rate;
use crate::stop::Stop;
use crate::wait::{Deadline, wait};
use crate::wire::{Address, Record};
use crate::xsrq::XsrqHalf;
use ironverbs::{AddressFamily, DeviceInfo, GidChoice, GidIndex, GidWant, Rc, Uc, Ud};
use nix::poll::PollFlags;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a ping. The report holds what is known when it ends, however it ends.
pub fn ping(
    machine: &Machine,
    devices: &[DeviceInfo],
    args: &Ping,
    output: &mut Output,
    stop: &Stop,
) -> (Option<PingReport>, Result<(), Failure>) {
    let mut report = None;
    let result = (|| {
        args.check_options()?;
        if args.cm {
            return ping_cm::ping(machine, args, output, stop, &mut report);
        }
        // A port that is taken is told before anything is made on the device.
        let is_server = args.host.is_none() && !args.loopback;
        let meeting = machine.sim().filter(|_| is_server).map(|_| Meeting::open(args.port)).transpose()?;
        let listener = if is_server { Some(Listener::bind(args.bind, args.port)?) } else { None };
        let place = Place::open(machine, devices, args, stop)?;
        let presence = Presence::watch(Arc::clone(machine.sys()), place.context.info(), stop)?;
        let run = Run { place: &place, meeting, output, report: &mut report };
        let result = match args.transport {
            Transport::Rc => run.run::<OneQp<Rc>>(listener),
            Transport::Uc => run.run::<OneQp<Uc>>(listener),
            Transport::Ud => run.run::<OneQp<Ud>>(listener),
            Transport::Srq => run.run::<SrqHalf>(listener),
            Transport::Xsrq => run.run::<XsrqHalf>(listener),
        };
        result.map_err(|failure| presence.explain(failure))
    })();
    (report, result)
}

/// A ping that runs.
struct Run<'a> {
    place: &'a Place<'a>,
    /// Where the network of a simulated server's client comes.
    meeting: Option<Meeting>,
    output: &'a mut Output,
    report: &'a mut Option<PingReport>,
}

impl Run<'_> {
    fn run<H: Half>(self, listener: Option<Listener>) -> Result<(), Failure> {
        match (&self.place.args.host, listener) {
            (Some(host), _) => self.client::<H>(host),
            (None, Some(listener)) => self.server::<H>(listener),
            (None, None) => self.loopback::<H>(),
        }
    }

    fn client<H: Half>(self, host: &str) -> Result<(), Failure> {
        let Self { place, meeting: _, output, report } = self;
        let args = place.args;
        let deadline = Deadline::after(args.connect_timeout);
        let conversation = Conversation::connect(host, args.port, limits(args), place.stop)?;
        if let Some(sim) = place.machine.sim() {
            meet(sim, args.port, conversation.local()?, &deadline, place.stop)?;
        }
        let peer = conversation.peer();
        let half = H::new(place, Role::Client, Reach::first(place, family_of(peer)))?;
        let report = report.insert(report_of(place, PingRole::Client, half.gid(), &half.addresses()));
        report.peer_tcp = Some(peer.to_string());
        show_local(output, report, &half)?;
        let local = padded::<H>(half.addresses());
        let (remote, farewell) = conversation.client(H::RECORD, &local).map_err(|e| broken_off(e, place))?;
        show_remote(output, report, &remote)?;
        let end = half.connect(place, &remote)?;
        measure_and_part(end, place, output, report, (Role::Client, farewell))
    }

    fn server<H: Half>(self, listener: Listener) -> Result<(), Failure> {
        let Self { place, mut meeting, output, report } = self;
        let args = place.args;
        // Made before the client comes, so that what can go wrong here does so at once.
        let reach = Reach::first(place, None);
        let mut half = H::new(place, Role::Server, reach)?;
        let report = report.insert(report_of(place, PingRole::Server, half.gid(), &half.addresses()));
        show_local(output, report, &half)?;
        output.text(format_args!("  waiting for a client on TCP {}\n", listener.local()))?;
        let aside = meeting.as_mut().map(|meeting| meeting as &mut dyn Aside);
        let client = listener.client((H::RECORDS, H::RECORD), limits(args), place.stop, aside);
        let (conversation, remote) = client.map_err(|e| broken_off(e, place))?;
        report.peer_tcp = Some(conversation.peer().to_string());
        if let (Some(sim), Some(meeting)) = (place.machine.sim(), meeting) {
            meeting.join(sim, conversation.peer())?;
        }
        let gids = (half.addresses().first().map(|a| a.gid), remote.first().map(|a| a.gid).unwrap_or_default());
        if let Some(other) = reach.instead(place, gids.0, gids.1) {
            drop(half);
            half = H::new(place, Role::Server, other)?;
            let tcp = report.peer_tcp.take();
            *report = report_of(place, PingRole::Server, half.gid(), &half.addresses());
            report.peer_tcp = tcp;
            show_local(output, report, &half)?;
        }
        show_remote(output, report, &remote)?;
        let local = padded::<H>(half.addresses());
        let end = half.connect(place, &remote)?;
        let farewell = conversation.server_answer(H::RECORD, &local)?;
        if H::RECORD == Record::Xrc {
            std::thread::sleep(CLIENT_CONNECTS);
        }
        measure_and_part(end, place, output, report, (Role::Server, farewell))
    }

    fn loopback<H: Half>(self) -> Result<(), Failure> {
        let Self { place, meeting: _, output, report } = self;
        let [client, server] = [Role::Client, Role::Server].map(|role| H::new(place, role, Reach::first(place, None)));
        let (client, server) = (client?, server?);
        let (client_addresses, server_addresses) = (padded::<H>(client.addresses()), padded::<H>(server.addresses()));
        let report = report.insert(report_of(place, PingRole::Loopback, client.gid(), &client.addresses()));
        show_local(output, report, &client)?;
        show_remote(output, report, &server_addresses)?;
        let mut ends = [client.connect(place, &server_addresses)?, server.connect(place, &client_addresses)?];
        measure(&mut ends, place, output, report, None)
    }
}

/// As many addresses as each side sends; those beyond its queue pairs are zero.
fn padded<H: Half>(mut addresses: Vec<Address>) -> Vec<Address> {
    addresses.resize(H::RECORDS, Address::default());
    addresses
}

/// What an XRC client gets to connect in, before its server sends: nothing tells the server that it has, and a message before that is
/// repeated only after the time-out of an acknowledgement, seconds later.
const CLIENT_CONNECTS: Duration = Duration::from_millis(50);

/// How long a server of a shared receive queue still acknowledges messages. A client has one under way for each queue pair,
/// and `ibv_srq_pingpong` fails on those that nobody takes, if it finds out before it has seen its last answer.
const STRAGGLERS: Duration = Duration::from_millis(500);

/// Runs this end, and completes the report; then it takes leave of the peer, if they still talk.
fn measure_and_part<P: Player>(
    end: P,
    place: &Place<'_>,
    output: &mut Output,
    report: &mut PingReport,
    (role, farewell): (Role, Option<Farewell<'_>>),
) -> Result<(), Failure> {
    let mut ends = [end];
    let Some(farewell) = farewell else { return measure(&mut ends, place, output, report, None) };
    measure(&mut ends, place, output, report, Some(&|| farewell.has_begun()))?;
    // The queue pairs stay until then, and so does what a simulated device does for them.
    let _engine = place.machine.sim().map(Sim::run);
    Ok(farewell.exchange(role)?)
}

/// Runs the ends, and completes the report. `left` says whether the peer has ended the connection, where something tells that.
pub fn measure<P: Player>(
    ends: &mut [P],
    place: &Place<'_>,
    output: &mut Output,
    report: &mut PingReport,
    left: Option<&dyn Fn() -> bool>,
) -> Result<(), Failure> {
    let args = place.args;
    let begin = Instant::now();
    let result = engine::run(ends, args.timeout, place.stop, place.machine, left);
    let ended = Instant::now();
    // What did not come within its time, and the wait for it, is no part of the iterations that did.
    let last = ends.iter().filter_map(P::last_arrival).max().filter(|_| result.is_err());
    let time = last.unwrap_or(ended).saturating_duration_since(begin);
    let done = ends.iter().map(P::completed).min().unwrap_or(0);
    report.completed_iterations = done;
    report.rate = Rate::of(done, args.size().into(), time);
    report.latency = ends.first().and_then(P::latency);
    report.check = CheckReport::of(ends.iter().filter_map(P::check_outcome), args.size());
    // The queue pairs stay until the report is out: they still acknowledge the peer's last message.
    output.text(&report)?;
    if result.is_ok() && report.role == PingRole::Server && args.transport == Transport::Srq {
        let _ = wait((place.stop.as_fd(), None), PollFlags::POLLIN, &Deadline::after(STRAGGLERS), place.stop);
    }
    place.machine.settle();
    result.map_err(|failure| explain_silence(explain_loss(failure.on_link(place.is_ethernet()), args.transport), args))
}

/// A simulated end is found wanting over another socket than TCP, and the one that finds out ends the conversation.
fn broken_off(error: ExchangeError, place: &Place<'_>) -> Failure {
    let is_end = matches!(error.trouble(), ExchangeError::Closed { got: 0, .. } | ExchangeError::Broken { .. });
    let failure = Failure::from(error);
    if !is_end || !place.machine.is_simulated() {
        return failure;
    }
    let hint =
        "the other end says why: do both use the same --sim and --transport, on this machine and as the same user?";
    Failure { hint: Some(hint.to_owned()), ..failure }
}

/// Retries without end give no completion that would tell of them.
fn explain_silence(failure: Failure, args: &Ping) -> Failure {
    if failure.kind != Kind::Peer || !args.transport.is_reliable() || args.rnr_retry != ENDLESS_RNR_RETRIES {
        return failure;
    }
    let hint = "with --rnr-retry 7 the device asks for ever: does the peer post receives at all?";
    Failure { hint: Some(hint.to_owned()), ..failure }
}

/// Nothing sends a lost message again on an unreliable transport, and nobody is told.
fn explain_loss(failure: Failure, transport: Transport) -> Failure {
    if failure.kind != Kind::Peer || transport.is_reliable() {
        return failure;
    }
    let message = format!(
        "{}; {} does not send again what is lost, so one lost message ends the ping",
        failure.message,
        transport.name()
    );
    Failure { message, ..failure }
}

/// What is known of a ping before its first message. `gid` is the GID of this end, and why that one if it was chosen.
pub fn report_of(
    place: &Place<'_>,
    role: PingRole,
    gid: (Option<GidIndex>, Option<&GidChoice>),
    addresses: &[Address],
) -> PingReport {
    let Place { args, context, mtu, .. } = place;
    let (gid_index, choice) = gid;
    let reason = choice.map(|choice| {
        let reasons: Vec<_> = choice.reasons.iter().map(|r| r.to_string()).collect();
        format!("chosen: {}", reasons.join(", "))
    });
    let mut notes = args.notes();
    notes.extend(place.untraced());
    PingReport {
        role,
        transport: args.transport,
        device: context.info().name.clone(),
        device_index: context.index().map(|index| index.0),
        port: place.port_num.get(),
        gid_index: gid_index.map(|index| index.0),
        gid_reason: reason,
        mtu_bytes: mtu.bytes(),
        service_level: args.sl,
        size_bytes: args.size(),
        iterations: args.iters(),
        rx_depth: args.rx_depth,
        queue_pairs: addresses.len() as u32,
        events: args.events,
        simulated: place.machine.is_simulated(),
        peer_tcp: None,
        connection: None,
        local: PingAddress::from(&addresses.first().copied().unwrap_or_default()),
        remote: None,
        completed_iterations: 0,
        rate: None,
        latency: None,
        check: None,
        notes,
    }
}

fn show_local<H: Half>(output: &mut Output, report: &PingReport, half: &H) -> Result<(), Failure> {
    for address in half.addresses() {
        output.text(format_args!("  local address:  {}\n", PingAddress::from(&address)))?;
    }
    if let (Some(index), Some(reason)) = (report.gid_index, &report.gid_reason) {
        output.text(format_args!(
            "  local GID:      index {index} of {} port {}, {reason}\n",
            report.device, report.port
        ))?;
    }
    report.notes.iter().try_for_each(|note| output.text(format_args!("  note: {note}\n")))
}

fn show_remote(output: &mut Output, report: &mut PingReport, remote: &[Address]) -> Result<(), Failure> {
    report.remote = remote.first().map(PingAddress::from);
    for remote in remote.iter().filter(|remote| **remote != Address::default()) {
        output.text(format_args!("  remote address: {}\n", PingAddress::from(remote)))?;
    }
    Ok(())
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
