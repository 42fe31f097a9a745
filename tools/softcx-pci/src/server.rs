//! The thread on which guests are answered and the fabric moves.

use crate::transport::{Request, Transport};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use softcx::pci::{Function, GuestMemory};
use softcx::{DeviceId, DeviceSpec, Fabric, Report};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest sleep until something is due: less would be none.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);

/// Adapters of guests, on one fabric.
pub struct Server<T> {
    fabric: Fabric,
    start: Instant,
    slowdown: u32,
    adapters: Vec<Adapter<T>>,
    reports: Box<dyn FnMut(&Report)>,
}

struct Adapter<T> {
    function: Function,
    memory: Arc<GuestMemory>,
    /// `None` once the guest is gone.
    transport: Option<T>,
}

impl<T: Transport> Server<T> {
    /// A server without adapters, which moves `fabric` in real time.
    pub fn new(fabric: &Fabric) -> Self {
        Self { fabric: fabric.clone(), start: Instant::now(), slowdown: 1, adapters: vec![], reports: Box::new(|_| {}) }
    }

    /// Adds an adapter for the guest at the other end of `transport`. `spec` gets the guest's memory.
    pub fn add(&mut self, transport: T, spec: impl FnOnce(Arc<GuestMemory>) -> DeviceSpec) -> DeviceId {
        let memory = Arc::new(GuestMemory::default());
        let id = self.fabric.add(spec(Arc::clone(&memory)));
        let function = Function::new(&self.fabric, id).expect("this fabric has just made the device");
        self.adapters.push(Adapter { function, memory, transport: Some(transport) });
        id
    }

    /// The functions, in the order in which they were added.
    pub fn functions(&mut self) -> impl Iterator<Item = &mut Function> {
        self.adapters.iter_mut().map(|adapter| &mut adapter.function)
    }

    /// Lets the fabric's time, and with it time-outs and the adapters' clocks, go by so much more slowly than real time: an emulated
    /// processor takes longer for everything. Before any guest runs. Zero counts as 1.
    pub fn set_slowdown(&mut self, slowdown: u32) {
        self.functions().for_each(|function| function.set_slowdown(slowdown));
        self.slowdown = slowdown.max(1);
    }

    /// A clock that shows the fabric's time. After [`set_slowdown`](Self::set_slowdown).
    pub fn clock(&self) -> impl Fn() -> Duration + Copy + 'static {
        let (start, slowdown) = (self.start, self.slowdown);
        move || start.elapsed() / slowdown
    }

    /// The fabric's time.
    fn now(&self) -> Duration {
        self.clock()()
    }

    /// Who hears, from now on, what drivers and programs do wrong.
    pub fn set_reports(&mut self, reports: impl FnMut(&Report) + 'static) {
        self.reports = Box::new(reports);
    }

    /// Serves until no guest is left.
    pub fn serve(&mut self) -> io::Result<()> {
        while self.adapters.iter().any(|adapter| adapter.transport.is_some()) {
            let now = self.now();
            self.adapters.iter_mut().for_each(|adapter| adapter.release(now));
            let moved = self.fabric.step(now);
            if moved {
                self.report();
            }
            for adapter in &mut self.adapters {
                adapter.tell()?;
            }
            self.wait(now, moved)?;
        }
        // What was done last was not followed by a step.
        self.report();
        Ok(())
    }

    fn report(&mut self) {
        self.fabric.take_reports().iter().for_each(&mut self.reports);
    }

    /// Waits for guests, not at all if the fabric has more to do, and answers a request of each that has one.
    fn wait(&mut self, now: Duration, moved: bool) -> io::Result<()> {
        let held = self.adapters.iter().filter_map(|adapter| adapter.function.held_until());
        let sleep = match self.fabric.deadline().into_iter().chain(held).min() {
            _ if moved => Some(Duration::ZERO),
            Some(at) => Some((at.saturating_sub(now) * self.slowdown).max(SHORTEST_SLEEP)),
            None => None,
        };
        let (start, slowdown) = (self.start, self.slowdown);
        let waiting: Vec<_> = self.adapters.iter_mut().filter(|a| a.transport.is_some()).collect();
        let mut set: Vec<_> = waiting
            .iter()
            .filter_map(|a| Some(PollFd::new(a.transport.as_ref()?.waits_on(), PollFlags::POLLIN)))
            .collect();
        match ppoll(&mut set, sleep.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = set.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        for (adapter, ready) in waiting.into_iter().zip(ready) {
            if ready {
                adapter.serve(start.elapsed() / slowdown)?;
            }
        }
        Ok(())
    }
}

impl<T: Transport> Adapter<T> {
    /// Lets a store that was held for long enough be a doorbell by itself, whatever else there is to do.
    fn release(&mut self, now: Duration) {
        if self.function.held_until().is_some_and(|until| until <= now) {
            self.function.release();
            self.function.run();
        }
    }

    /// Answers one request, then does what it set off.
    fn serve(&mut self, now: Duration) -> io::Result<()> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        let function = &mut self.function;
        let within = |address: u64, bar: Option<u64>| Some(address.wrapping_sub(bar?));
        let answer = match transport.request()? {
            None => {
                self.transport = None;
                return Ok(());
            }
            Some(Request::ConfigRead { offset, len }) => function.config_read(offset, len).into(),
            Some(Request::ConfigWrite { offset, value, len }) => {
                function.config_write(offset, value, len);
                0
            }
            Some(Request::BarRead { address, len }) => {
                within(address, function.bar()).map_or(u64::MAX, |offset| function.bar_read(offset, len, now))
            }
            Some(Request::BarWrite { address, value, len }) => {
                if let Some(offset) = within(address, function.bar()) {
                    function.bar_write(offset, value, len, now);
                }
                0
            }
            Some(Request::Memory(regions)) => return self.memory.replace(regions),
            Some(Request::Reset) => {
                function.reset();
                0
            }
            Some(Request::Other) => return Ok(()),
        };
        // First the answer: the guest's processor holds up the guest's interrupts until then.
        transport.answer(answer)?;
        function.run();
        self.interrupt()
    }

    fn tell(&mut self) -> io::Result<()> {
        self.function.tell();
        self.interrupt()
    }

    fn interrupt(&mut self) -> io::Result<()> {
        let due = self.function.take_interrupts();
        let Some(transport) = &mut self.transport else { return Ok(()) };
        due.into_iter().try_for_each(|interrupt| transport.interrupt(interrupt))
    }
}
