//! `rdma-probe watch`: asynchronous events, as they come.
//!
//! Events alone are not enough. A port whose first state is "down" never sends the event for it, so the state is shown at
//! the start; a driver may forget to tell of a change, so the state is read once a second. And some drivers, rxe among them,
//! cannot take a device away while a program has it open: its removal waits. Such a device is gone from the kernel's list
//! already, which is looked at once a second, too, and is closed then.

use crate::args::Watch;
use crate::failure::{Failure, Kind};
use crate::machine::Machine;
use crate::output::{self, Output};
use crate::presence::is_among;
use crate::sim::Sim;
use crate::stop::Stop;
use crate::wait::{Deadline, Ready, wait_any};
use crate::watch_line::{GidNow, Object, PortNow, WatchLine, WatchReport, What};
use ironverbs::sys::Sys;
use ironverbs::{AsyncEvent, AsyncEventType, AsyncEvents, Context, DeviceInfo, Error, GidEntry, PortNum, Subject};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Between two looks at what no event tells.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches `devices` until it has seen enough.
pub fn watch(
    machine: &Machine,
    devices: &[DeviceInfo],
    args: &Watch,
    output: &mut Output,
    stop: &Stop,
) -> (Option<WatchReport>, Result<(), Failure>) {
    let mut report = WatchReport::default();
    let simulated = machine.is_simulated();
    let sys = &**machine.sys();
    let mut watcher = Watcher { sys, simulated, args, output, stop, report: &mut report, watched: Vec::new() };
    let rehearsal = machine.sim().map(Sim::rehearse);
    let result = watcher.run(devices);
    drop(rehearsal);
    (Some(report), result)
}

struct Watcher<'a> {
    sys: &'a dyn Sys,
    simulated: bool,
    args: &'a Watch,
    output: &'a mut Output,
    stop: &'a Stop,
    report: &'a mut WatchReport,
    watched: Vec<Watched>,
}

/// A device that is open.
struct Watched {
    context: Context,
    events: AsyncEvents,
    ports: Vec<Port>,
}

/// A port as it was read last.
struct Port {
    number: PortNum,
    state: PortNow,
    gids: Vec<GidEntry>,
}

/// What a device has to tell.
enum Told {
    Line(Box<WatchLine>),
    Gone,
}

impl Watcher<'_> {
    fn run(&mut self, devices: &[DeviceInfo]) -> Result<(), Failure> {
        let end = self.args.timeout.map(Deadline::after);
        self.open(devices)?;
        let mut last_look = Instant::now();
        loop {
            self.read_events()?;
            if last_look.elapsed() >= LOOK_EVERY {
                last_look = Instant::now();
                self.look()?;
            }
            if self.enough() {
                return Ok(());
            }
            if self.watched.is_empty() {
                return Err(Failure::new(Kind::Removed, "no device is left to watch: it was removed"));
            }
            if let Some(end) = end.filter(Deadline::passed) {
                return self.time_is_over(&end);
            }
            let look_in = LOOK_EVERY.saturating_sub(last_look.elapsed());
            let until = Deadline::after(end.map_or(look_in, |end| look_in.min(end.left())));
            let fds: Vec<_> = self.watched.iter().map(|w| w.events.as_fd()).collect();
            let stdout = io::stdout();
            match wait_any(&fds, stdout.as_fd(), &until, self.stop) {
                Ok(Ready::Yes) if reader_is_gone(stdout.as_fd()) => self.output.close(),
                Ok(Ready::Yes | Ready::TimedOut) => {}
                Ok(Ready::Stopped) => return Err(Failure::interrupted()),
                Err(e) => return Err(Failure::new(Kind::Device, format!("cannot wait for events: {e}"))),
            }
        }
    }

    /// Opens each device and shows its ports. Of several devices, those that cannot be opened are left out.
    fn open(&mut self, devices: &[DeviceInfo]) -> Result<(), Failure> {
        let mut why_not = None;
        for device in devices {
            match Watched::open(self.sys, device) {
                Ok(watched) => {
                    for port in &watched.ports {
                        let mut line = watched.line(What::Initial, Object::Port { port: port.number.get() });
                        line.port_state = Some(port.state.clone());
                        line.gids_added = port.gids.iter().map(GidNow::from).collect();
                        self.print(&line)?;
                    }
                    self.watched.push(watched);
                }
                Err(failure) => {
                    let failure = failure.during(format_args!("cannot watch {}", device.name));
                    if devices.len() > 1 {
                        output::complain(&failure);
                    }
                    why_not.get_or_insert(failure);
                }
            }
        }
        match why_not {
            Some(failure) if self.watched.is_empty() => Err(failure),
            _ => Ok(()),
        }
    }

    /// Prints every event that is there.
    fn read_events(&mut self) -> Result<(), Failure> {
        let mut at = 0;
        while at < self.watched.len() && !self.enough() {
            match self.watched[at].next_event()? {
                None => at += 1,
                Some(Told::Line(line)) => self.tell(&line)?,
                Some(Told::Gone) => self.let_go(at)?,
            }
        }
        Ok(())
    }

    /// Looks for what no event told.
    fn look(&mut self) -> Result<(), Failure> {
        let listed = self.sys.devices()?;
        let mut at = 0;
        while at < self.watched.len() && !self.enough() {
            if !is_among(self.watched[at].context.info(), &listed) {
                self.let_go(at)?;
                continue;
            }
            match self.watched[at].changes() {
                Ok(lines) => {
                    lines.iter().try_for_each(|line| self.tell(line))?;
                    at += 1;
                }
                Err(Error::DeviceGone { .. }) => self.let_go(at)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Closes a device, so that it can go, and says so.
    fn let_go(&mut self, at: usize) -> Result<(), Failure> {
        let gone = self.watched.remove(at);
        let line = gone.line(What::Removed, Object::Device);
        drop(gone);
        self.tell(&line)
    }

    fn tell(&mut self, line: &WatchLine) -> Result<(), Failure> {
        self.report.events += 1;
        self.print(line)
    }

    fn print(&mut self, line: &WatchLine) -> Result<(), Failure> {
        self.output.text(line)?;
        self.output.json_line(&WatchLine { simulated: self.simulated, ..line.clone() })
    }

    /// Whether all that was asked for was seen, or nobody is there to see more.
    fn enough(&self) -> bool {
        self.output.is_closed() || self.args.count.is_some_and(|count| self.report.events >= count)
    }

    fn time_is_over(&self, end: &Deadline) -> Result<(), Failure> {
        match self.args.count {
            None => Ok(()),
            Some(count) => {
                let text = format!("{} of {count} events came within {:?}", self.report.events, end.limit());
                Err(Failure::new(Kind::TimedOut, text))
            }
        }
    }
}

impl Watched {
    fn open(sys: &dyn Sys, device: &DeviceInfo) -> Result<Self, Failure> {
        if let Err(why) = &device.usable {
            return Err(why.into());
        }
        let context = Context::open_on(sys, device)?;
        let events = context.async_events();
        let mut ports = Vec::new();
        for number in (1..=context.attr().phys_port_cnt).filter_map(|n| PortNum::new(n).ok()) {
            let state = PortNow::from(&context.query_port(number)?);
            ports.push(Port { number, state, gids: gids(&context, number)? });
        }
        Ok(Self { context, events, ports })
    }

    fn line(&self, what: What, object: Object) -> WatchLine {
        let info = self.context.info();
        WatchLine::new(&info.name, info.index.map(|index| index.0), what, object)
    }

    fn next_event(&mut self) -> Result<Option<Told>, Failure> {
        let event = match self.events.try_next() {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(None),
            Err(Error::DeviceGone { .. }) => return Ok(Some(Told::Gone)),
            Err(e) => return Err(e.into()),
        };
        match self.explain(&event) {
            Ok(line) => Ok(Some(Told::Line(Box::new(line)))),
            // The event is told in any case; that the device is gone comes next.
            Err(Error::DeviceGone { .. }) => {
                Ok(Some(Told::Line(Box::new(self.line(What::Event, event.subject.into()).event(&event)))))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// An event, with what it means for the port it is about.
    fn explain(&mut self, event: &AsyncEvent) -> Result<WatchLine, Error> {
        let mut line = self.line(What::Event, event.subject.into()).event(event);
        let Subject::Port(number) = event.subject else { return Ok(line) };
        let Some(port) = self.ports.iter_mut().find(|port| port.number == number) else { return Ok(line) };
        if event.kind == AsyncEventType::GID_CHANGE {
            (line.gids_added, line.gids_removed) = port.read_gids(&self.context)?;
        } else {
            port.state = PortNow::from(&self.context.query_port(number)?);
            line.port_state = Some(port.state.clone());
        }
        Ok(line)
    }

    /// What changed without an event since the last look.
    fn changes(&mut self) -> Result<Vec<WatchLine>, Error> {
        let mut lines = Vec::new();
        for i in 0..self.ports.len() {
            let number = self.ports[i].number;
            let state = PortNow::from(&self.context.query_port(number)?);
            let (added, removed) = self.ports[i].read_gids(&self.context)?;
            if state != self.ports[i].state || !added.is_empty() || !removed.is_empty() {
                let mut line = self.line(What::Change, Object::Port { port: number.get() });
                line.port_state = Some(state.clone());
                (line.gids_added, line.gids_removed) = (added, removed);
                lines.push(line);
                self.ports[i].state = state;
            }
        }
        Ok(lines)
    }
}

impl Port {
    /// Reads the GID table; returns what was added and what went.
    fn read_gids(&mut self, context: &Context) -> Result<(Vec<GidNow>, Vec<GidNow>), Error> {
        let now = gids(context, self.number)?;
        let before = std::mem::replace(&mut self.gids, now);
        let only_in = |these: &[GidEntry], those: &[GidEntry]| {
            these.iter().filter(|gid| !those.contains(gid)).map(GidNow::from).collect()
        };
        Ok((only_in(&self.gids, &before), only_in(&before, &self.gids)))
    }
}

fn gids(context: &Context, port: PortNum) -> Result<Vec<GidEntry>, Error> {
    Ok(context.gid_table()?.into_iter().filter(|gid| gid.port == port).collect())
}

/// Whether the other end of a pipe is closed.
fn reader_is_gone(output: std::os::fd::BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut set = [PollFd::new(output, PollFlags::empty())];
    let told = poll(&mut set, PollTimeout::ZERO).is_ok_and(|n| n > 0);
    told && set[0].revents().is_some_and(|e| e.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}
