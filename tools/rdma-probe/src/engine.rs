//! Keeps the ends of a ping-pong going until all is done, somebody asks to stop, or nothing happens any more.

use crate::buffers::CheckOutcome;
use crate::failure::{Failure, Kind};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::sim::Sim;
use crate::stats::LatencySummary;
use crate::stop::Stop;
use crate::trace::Rings;
use crate::wait::{Deadline, Ready, wait};
use ironverbs::{CompChannel, Cq, WcError, WcStatus};
use nix::poll::PollFlags;
use std::os::fd::AsFd;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// Empty polls before the processor is offered to others: a software device needs one for its own work, and the scheduler
/// may leave it waiting behind a process that only polls. Between polls there is no pause instruction: an emulated
/// processor takes long over one, and a real one no shorter to see the entry.
const SPINS_BEFORE_YIELD: u32 = 500;

/// Yields between two looks at the clock.
const YIELDS_BEFORE_CLOCK: u32 = 64;

/// How long a flushed work request waits for the one that failed.
const CAUSE_COMES_WITHIN: Duration = Duration::from_millis(200);

/// Why a work request failed. A flush is the consequence of an error, whose own completion may come right behind.
#[cold]
pub fn cause(cq: &mut Cq, first: (u64, WcError), send_id: u64) -> Failure {
    let begin = Instant::now();
    let (mut wr_id, mut error) = first;
    while error.status == WcStatus::WR_FLUSH_ERR && begin.elapsed() < CAUSE_COMES_WITHIN {
        match cq.poll_one() {
            Ok(Some(wc)) => {
                if let Err(other) = wc.outcome() {
                    (wr_id, error) = (wc.wr_id, other);
                }
            }
            Ok(None) => yield_now(),
            Err(e) => return e.into(),
        }
    }
    Failure::completion(wr_id == send_id, error)
}

/// One end of a ping-pong.
pub trait Player {
    /// The clock starts.
    fn begin(&mut self, now: Instant);
    /// Handles the completions that are there, and sends what is due. False if there was nothing to do.
    fn step(&mut self) -> Result<bool, Failure>;
    /// Whether there is nothing left to do.
    fn is_done(&self) -> bool;
    /// Asks for an event, once. To be followed by another [`step`](Self::step) before waiting for it.
    fn arm(&mut self) -> Result<(), Failure>;
    /// Takes the events that came.
    fn drain_events(&mut self) -> Result<(), Failure>;
    /// How to sleep until a completion comes; without it the queue is polled.
    fn channel(&self) -> Option<&CompChannel>;
    /// Messages to send, and to receive.
    fn iterations(&self) -> u64;
    /// Iterations that are complete.
    fn completed(&self) -> u64;
    /// When the last message arrived.
    fn last_arrival(&self) -> Option<Instant>;
    /// What the latency samples come to.
    fn latency(&self) -> Option<LatencySummary>;
    /// How the payload checks went, if there were any.
    fn check_outcome(&self) -> Option<CheckOutcome>;
}

/// Runs one end, or both ends of a loopback, until all iterations are complete. On an error, what the ends counted and
/// measured until then stays.
///
/// A simulated device does its work in between, or in a thread of its own where the ends sleep.
///
/// `left` says whether the peer has ended the connection, where something tells that.
pub fn run<P: Player>(
    ends: &mut [P],
    silence: Duration,
    stop: &Stop,
    machine: &Machine,
    left: Option<&dyn Fn() -> bool>,
) -> Result<(), Failure> {
    let sim = machine.sim();
    let is_alone = || sim.is_some_and(Sim::is_alone);
    let company = match (left, sim) {
        (Some(left), _) => Company::new(Some((left, LEFT))),
        (None, Some(_)) if ends.len() == 1 => Company::new(Some((&is_alone, ALONE))),
        _ => Company::new(None),
    };
    match machine.rings() {
        // Two copies of the loops, so that a ping that is not traced pays nothing.
        None => run_watched(ends, silence, stop, sim, company, &mut ()),
        Some(rings) => run_watched(ends, silence, stop, sim, company, &mut *rings.borrow_mut()),
    }
}

/// Looks at what was posted and completed, after each step.
trait Witness {
    fn look(&mut self);
}

impl Witness for () {
    #[inline]
    fn look(&mut self) {}
}

impl Witness for Rings {
    fn look(&mut self) {
        Rings::look(self);
    }
}

fn run_watched<P: Player>(
    ends: &mut [P],
    silence: Duration,
    stop: &Stop,
    sim: Option<&Sim>,
    mut company: Company<'_>,
    witness: &mut impl Witness,
) -> Result<(), Failure> {
    let begin = Instant::now();
    ends.iter_mut().for_each(|end| end.begin(begin));
    match (ends.iter().all(|end| end.channel().is_some()), sim) {
        (true, sim) => {
            let _engine = sim.map(Sim::run);
            run_sleeping(ends, silence, stop, &mut company, witness)
        }
        (false, None) => run_polling(ends, silence, stop, &mut company, witness),
        (false, Some(sim)) => run_stepping(ends, silence, stop, (sim, &mut company), witness),
    }
}

fn run_polling<P: Player>(
    ends: &mut [P],
    silence: Duration,
    stop: &Stop,
    company: &mut Company<'_>,
    witness: &mut impl Witness,
) -> Result<(), Failure> {
    let mut progress = progress(ends);
    let mut quiet = Quiet::new(silence);
    while !all_done(ends) {
        if step_all(ends, &mut progress, witness)? {
            quiet.ended();
        } else {
            quiet.goes_on(company)?;
        }
        if stop.asked() {
            return Err(Failure::interrupted());
        }
    }
    Ok(())
}

/// As [`run_polling`], with a device that works when it is asked to: in one thread, neither waits for the other to be
/// given a processor.
fn run_stepping<P: Player>(
    ends: &mut [P],
    silence: Duration,
    stop: &Stop,
    (sim, company): (&Sim, &mut Company<'_>),
    witness: &mut impl Witness,
) -> Result<(), Failure> {
    let mut progress = progress(ends);
    let mut deadline = Deadline::after(silence);
    while !all_done(ends) {
        if stop.asked() {
            return Err(Failure::interrupted());
        }
        let moved = step_all(ends, &mut progress, witness)?;
        if moved {
            deadline = Deadline::after(silence);
        }
        if sim.step() || moved {
            continue;
        }
        if deadline.passed() {
            return Err(silent(silence));
        }
        company.check()?;
        sim.rest(LONGEST_REST);
    }
    Ok(())
}

/// Between two looks of a simulation at whether it is asked to stop.
const LONGEST_REST: Duration = Duration::from_millis(10);

/// How long nothing comes after the peer has gone until that is taken for its end.
const LAST_COMES_WITHIN: Duration = Duration::from_millis(300);

/// What a simulated network tells: while on a real one only silence does.
const ALONE: &str = "the other end of the simulated network is gone";

/// What the connection manager tells.
pub const LEFT: &str = "the peer has ended the connection";

/// Looks whether the peer is still there, where that is known.
struct Company<'a> {
    /// Tells whether it has gone; and what that is called.
    gone: Option<(&'a dyn Fn() -> bool, &'static str)>,
    alone_since: Option<Instant>,
}

impl<'a> Company<'a> {
    fn new(gone: Option<(&'a dyn Fn() -> bool, &'static str)>) -> Self {
        Self { gone, alone_since: None }
    }

    /// To be called when there is nothing to do.
    fn check(&mut self) -> Result<(), Failure> {
        let Some((gone, what)) = self.gone else { return Ok(()) };
        // Gone is gone: it is asked no more.
        if self.alone_since.is_none() && !gone() {
            return Ok(());
        }
        match *self.alone_since.get_or_insert_with(Instant::now) {
            since if since.elapsed() < LAST_COMES_WITHIN => Ok(()),
            _ => Err(Failure::new(Kind::Peer, what)
                .hint("did the peer end, or was it started with another --size or a lower --iters?")),
        }
    }

    /// How long a wait may take until the next look.
    fn limit(&self) -> Option<Duration> {
        self.gone.map(|_| LAST_COMES_WITHIN)
    }
}

/// Empty polls in a row: first they spin, then they yield, and in the end they give up.
struct Quiet {
    limit: Duration,
    since: Option<Instant>,
    spins: u32,
    yields: u32,
}

impl Quiet {
    fn new(limit: Duration) -> Self {
        Self { limit, since: None, spins: 0, yields: 0 }
    }

    #[inline]
    fn ended(&mut self) {
        self.spins = 0;
        self.yields = 0;
        self.since = None;
    }

    #[inline]
    fn goes_on(&mut self, company: &mut Company<'_>) -> Result<(), Failure> {
        self.spins += 1;
        if self.spins < SPINS_BEFORE_YIELD {
            return Ok(());
        }
        self.spins = 0;
        self.yields += 1;
        yield_now();
        if self.yields.is_multiple_of(YIELDS_BEFORE_CLOCK) { self.look_at_clock(company) } else { Ok(()) }
    }

    #[cold]
    fn look_at_clock(&mut self, company: &mut Company<'_>) -> Result<(), Failure> {
        company.check()?;
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.limit { Err(silent(self.limit)) } else { Ok(()) }
    }
}

fn run_sleeping<P: Player>(
    ends: &mut [P],
    silence: Duration,
    stop: &Stop,
    company: &mut Company<'_>,
    witness: &mut impl Witness,
) -> Result<(), Failure> {
    let mut progress = progress(ends);
    let mut deadline = Deadline::after(silence);
    while !all_done(ends) {
        ends.iter_mut().try_for_each(P::arm)?;
        if stop.asked() {
            return Err(Failure::interrupted());
        }
        // A completion before the arm is found here; one after it raises an event.
        if step_all(ends, &mut progress, witness)? {
            deadline = Deadline::after(silence);
            continue;
        }
        let mut channels = ends.iter().filter_map(P::channel).map(AsFd::as_fd);
        let Some(first) = channels.next() else { return Ok(()) };
        let look = company.limit().filter(|limit| *limit < deadline.left()).map(Deadline::after);
        let ready = wait((first, channels.next()), PollFlags::POLLIN, &look.unwrap_or(deadline), stop)
            .map_err(|e| Failure::new(Kind::Device, format!("cannot wait for a completion: {e}")))?;
        match ready {
            Ready::Yes => ends.iter_mut().try_for_each(P::drain_events)?,
            Ready::TimedOut if look.is_some() => company.check()?,
            Ready::TimedOut => return Err(silent(silence)),
            Ready::Stopped => return Err(Failure::interrupted()),
        }
    }
    Ok(())
}

#[inline]
fn step_all<P: Player>(ends: &mut [P], progress: &mut Progress, witness: &mut impl Witness) -> Result<bool, Failure> {
    let mut moved = false;
    for end in ends.iter_mut() {
        let stepped = end.step();
        witness.look();
        if stepped? {
            moved = true;
            if let Some(now) = end.last_arrival() {
                progress.update(now, end.completed());
            }
        }
    }
    Ok(moved)
}

#[inline]
fn all_done<P: Player>(ends: &[P]) -> bool {
    ends.iter().all(P::is_done)
}

fn progress<P: Player>(ends: &[P]) -> Progress {
    Progress::new(ends.iter().map(P::iterations).max().unwrap_or(0))
}

#[cold]
fn silent(limit: Duration) -> Failure {
    Failure::new(Kind::Peer, format!("no completion came for {limit:?}"))
        .hint("did the peer end, or was it started with another --iters, --transport or --mtu? --timeout waits longer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_peer_that_has_gone_is_given_a_moment_for_what_is_under_way() {
        let gone = Cell::new(false);
        let left = || gone.get();
        let mut company = Company::new(Some((&left, LEFT)));
        assert_eq!(company.check(), Ok(()));
        gone.set(true);
        let begin = Instant::now();
        let failure = loop {
            match company.check() {
                Ok(()) => std::thread::sleep(Duration::from_millis(5)),
                Err(failure) => break failure,
            }
            // Its end was told once; that is enough.
            gone.set(false);
        };
        assert!(begin.elapsed() >= LAST_COMES_WITHIN && begin.elapsed() < Duration::from_secs(5));
        assert_eq!((failure.kind, failure.message.as_str()), (Kind::Peer, LEFT));
        let mut nobody_tells = Company::new(None);
        assert_eq!((nobody_tells.check(), nobody_tells.limit()), (Ok(()), None));
    }

    /// Polling, a look at the clock is a look at the company.
    #[test]
    fn a_quiet_end_looks_whether_its_peer_is_there() {
        let mut company = Company::new(Some((&|| true, LEFT)));
        let mut quiet = Quiet::new(Duration::from_secs(60));
        let begin = Instant::now();
        let failure = std::iter::repeat_with(|| quiet.goes_on(&mut company)).find_map(Result::err).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30), "it waited for its time to be over");
        assert_eq!(failure.message, LEFT);
    }
}
