//! `rdma-probe ping --cm`: the kernel's connection manager brings the ends together.

use crate::args::Ping;
use crate::end::Parts;
use crate::engine::LEFT as ENDED;
use crate::exchange::{REFUSED_PAUSE, pause, refused_grace};
use crate::failure::{Failure, Kind};
use crate::half::prepare;
use crate::line::QpLine;
use crate::machine::Machine;
use crate::output::Output;
use crate::payload::Role;
use crate::ping::{measure, report_of};
use crate::ping_report::{ConnectionReport, PingReport, PingRole};
use crate::place::Place;
use crate::presence::Presence;
use crate::rendezvous::{Rendezvous, is_early, listen};
use crate::stop::Stop;
use crate::wait::Deadline;
use crate::wire::Address;
use ironverbs::rdma_cm::{Connection, Handshake, Link, Listener};
use ironverbs::{Any, Context, GidIndex, Psn, Qp, Qpn, Rc};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Runs a ping over a connection of the connection manager.
pub fn ping(
    machine: &Machine,
    args: &Ping,
    output: &mut Output,
    stop: &Stop,
    report: &mut Option<PingReport>,
) -> Result<(), Failure> {
    if machine.is_simulated() {
        let text = "--cm goes through the kernel's connection manager, which knows no device of --sim";
        return Err(Failure::new(Kind::Usage, text).hint("leave out --cm, or --sim"));
    }
    let listener = match args.host {
        Some(_) => None,
        None => {
            let listener = listen(machine, args.bind, args.port)?;
            output.text(format_args!("  waiting for a client on rdma_cm {}\n", shown(listener.local_addr()?)))?;
            Some(listener)
        }
    };
    let deadline = Deadline::after(args.connect_timeout);
    let grace = Deadline::after(refused_grace(args.connect_timeout));
    let mut last = None;
    loop {
        let searched = Instant::now();
        let (role, rendezvous, limit, begin) = match (&args.host, &listener) {
            (Some(host), _) => {
                // Where the time ran out on the way there once more, what was heard before says why.
                let rendezvous = Rendezvous::with_server(host, (machine, args), &deadline, stop)
                    .map_err(|failure| last.take().filter(|_| deadline.passed()).unwrap_or(failure))?;
                (Role::Client, rendezvous, deadline.left(), searched)
            }
            (None, Some(listener)) => {
                let rendezvous = Rendezvous::with_client(listener, &deadline, last.as_ref(), stop)?;
                // It may have come at the last moment.
                (Role::Server, rendezvous, args.timeout, Instant::now())
            }
            (None, None) => return Err(Failure::new(Kind::Usage, "--cm has a client and a server")),
        };
        let Joined { place, presence, parts, connection } =
            match join(rendezvous, listener.as_ref(), machine, args, limit, stop) {
                Ok(joined) => joined,
                // Another one may be better.
                Err(apart) if role == Role::Server && apart.failure.kind == Kind::Peer => {
                    last = Some(apart.failure);
                    continue;
                }
                Err(apart)
                    if apart.is_early && !grace.passed() && deadline.left() > REFUSED_PAUSE + searched.elapsed() =>
                {
                    pause(REFUSED_PAUSE, stop)?;
                    last = Some(apart.failure);
                    continue;
                }
                // Nobody answered the last call in time; somebody did before.
                Err(apart) if !apart.is_early && role == Role::Client && deadline.passed() => {
                    return Err(last.unwrap_or(apart.failure));
                }
                Err(apart) => return Err(apart.failure),
            };
        let took = begin.elapsed();
        let (qp, link) = connection.into_parts();
        let report = report.insert(connected(&place, role, &qp, &link, took)?);
        show(output, report)?;
        let mut ends = [parts.connected(QpLine::new(qp, ()))?];
        let left = || matches!(link.wait_end(Duration::ZERO), Ok(Some(_)));
        return measure(&mut ends, &place, output, report, Some(&left))
            .map_err(|failure| presence.explain(explain_end(failure, &link)));
    }
}

/// An end that is connected.
struct Joined<'a> {
    place: Place<'a>,
    presence: Presence,
    parts: Parts,
    connection: Connection,
}

/// An end that could not be connected.
struct Apart {
    failure: Failure,
    /// Nobody listens there, which may be only a matter of time.
    is_early: bool,
}

impl From<Failure> for Apart {
    fn from(failure: Failure) -> Self {
        Self { failure, is_early: false }
    }
}

/// Makes this end where the peer can be reached, and connects it within `limit`: a server's, which has a `listener`, or a client's.
fn join<'a>(
    rendezvous: Rendezvous,
    listener: Option<&Listener>,
    machine: &'a Machine,
    args: &'a Ping,
    limit: Duration,
    stop: &'a Stop,
) -> Result<Joined<'a>, Apart> {
    let role = if listener.is_some() { Role::Server } else { Role::Client };
    let place = place_of(&rendezvous, machine, args, stop)?;
    let presence = Presence::watch(machine.sys().clone(), place.context.info(), stop)?;
    let (parts, qp) = prepare::<Rc>(&place, role, |pd, cq| rendezvous.qp_builder(pd, cq))?;
    match rendezvous.connect(qp, handshake(args), limit, listener, stop) {
        Ok(Ok(connection)) => Ok(Joined { place, presence, parts, connection }),
        Ok(Err(error)) => Err(Apart { is_early: is_early(&error), failure: error.into() }),
        Err(failure) => Err(presence.explain(failure).into()),
    }
}

/// The device and the port that lead to the peer.
fn place_of<'a>(
    rendezvous: &Rendezvous,
    machine: &'a Machine,
    args: &'a Ping,
    stop: &'a Stop,
) -> Result<Place<'a>, Failure> {
    let addresses = rendezvous.addresses();
    let devices = machine.devices()?;
    let device = devices.iter().find(|device| addresses.device.is_some() && device.index == addresses.device);
    let Some((device, port)) = device.zip(addresses.port) else {
        let text = format!("the connection manager names a device that is not listed ({:?})", addresses.device);
        return Err(Failure::new(Kind::NoDevice, text).hint("a kernel before Linux 5.7 names none"));
    };
    let context = Context::open_on(&**machine.sys(), device)
        .map_err(|e| Failure::from(e).during(format_args!("cannot open {}", device.name)))?;
    Place::at(machine, context, port, args, stop)
}

fn handshake(args: &Ping) -> Handshake<'static> {
    let mut handshake = Handshake::default();
    handshake.min_rnr_timer = args.min_rnr_timer;
    handshake.rnr_retry_count = args.rnr_retry;
    handshake
}

fn connected(
    place: &Place<'_>,
    role: Role,
    qp: &Qp<Any, Rc>,
    link: &Link,
    took: Duration,
) -> Result<PingReport, Failure> {
    let (attr, gids) = (qp.query()?, link.id().gids()?);
    let local = Address {
        lid: place.lid(),
        qpn: qp.qpn(),
        psn: Psn::new(attr.sq_psn).unwrap_or_default(),
        gid: gids.local.gid,
        xrc: None,
    };
    let remote = Address {
        lid: attr.dest.dlid,
        qpn: Qpn::new(attr.dest_qp_num).unwrap_or_default(),
        psn: Psn::new(attr.rq_psn).unwrap_or_default(),
        gid: gids.peer.gid,
        xrc: None,
    };
    let index = attr.dest.is_global.then_some(GidIndex(attr.dest.sgid_index));
    let role = if role == Role::Client { PingRole::Client } else { PingRole::Server };
    let mut report = report_of(place, role, (index, None), &[local]);
    report.mtu_bytes = attr.path_mtu.map_or(report.mtu_bytes, |mtu| mtu.bytes());
    report.service_level = attr.dest.sl;
    report.remote = Some((&remote).into());
    let addresses = link.addresses();
    report.connection = Some(ConnectionReport {
        local: shown(addresses.local),
        peer: shown(addresses.peer),
        seconds: took.as_secs_f64(),
    });
    Ok(report)
}

fn show(output: &mut Output, report: &PingReport) -> Result<(), Failure> {
    output.text(format_args!("  local address:  {}\n", report.local))?;
    if let Some(remote) = &report.remote {
        output.text(format_args!("  remote address: {remote}\n"))?;
    }
    if let Some(ConnectionReport { local, peer, seconds }) = &report.connection {
        output.text(format_args!(
            "  connection:     {local} to {peer}, through {} port {}, in {:.2} ms\n",
            report.device,
            report.port,
            seconds * 1000.0
        ))?;
    }
    report.notes.iter().try_for_each(|note| output.text(format_args!("  note: {note}\n")))
}

/// An address, if there is one.
fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an address that is no IP address".to_owned(), |address| address.to_string())
}

/// The connection manager hears of a peer's end at once, which silence alone does not tell.
fn explain_end(failure: Failure, link: &Link) -> Failure {
    match link.wait_end(Duration::ZERO) {
        Ok(Some(_)) if failure.kind == Kind::Peer && !failure.message.contains(ENDED) => {
            Failure { message: format!("{}; {ENDED}", failure.message), ..failure }
        }
        _ => failure,
    }
}
