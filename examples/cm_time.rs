//! How long each step takes of connecting many queue pairs by the connection manager: the same steps, counts and words as
//! `cmtime` of rdmacm-utils, which either side gets on with.
//!
//! ```sh
//! cm_time -b 10.9.9.1                           # server, until it is killed
//! cm_time -b 10.9.9.1 -s 10.9.9.1 -c 100        # client
//! ```
//!
//! Each step is begun for all connections before the next one; another thread takes the events.

use ironverbs::rdma_cm::{CmId, ConnParams, Devices, Event, EventChannel, EventType, IdKey, PortSpace};
use ironverbs::{Context, Cq, Pd, PreparedQp, Qp, QpBuilder};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{LazyLock, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const RESOLVE: Duration = Duration::from_secs(2);

fn main() -> std::process::ExitCode {
    let done = Options::from_args().and_then(|options| match options.server {
        Some(server) => client(&options, server),
        None => serve(options.bind.ok_or("a server needs -b ADDRESS")?),
    });
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cm_time: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

struct Options {
    server: Option<SocketAddr>,
    bind: Option<SocketAddr>,
    connections: usize,
}

impl Options {
    fn from_args() -> Result<Self> {
        let (mut server, mut bind, mut connections, mut port) = (None, None, 100, 7471);
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "-s" => server = Some(value.parse()?),
                "-b" => bind = Some(value.parse()?),
                "-c" => connections = value.parse()?,
                "-p" => port = value.parse()?,
                _ => {
                    return Err(
                        "usage: cm_time [-s server_address] [-b bind_address] [-c connections] [-p port]".into()
                    );
                }
            }
        }
        let from_port = if server.is_some() { 0 } else { port };
        Ok(Self {
            server: server.map(|ip| SocketAddr::new(ip, port)),
            bind: bind.map(|ip| SocketAddr::new(ip, from_port)),
            connections,
        })
    }
}

/// What all connections share: the device that leads to the peer, and a completion queue for each direction.
struct Shared {
    context: Context,
    pd: Pd,
    queues: OnceLock<[Cq; 2]>,
}

impl Shared {
    fn on(id: &CmId) -> Result<Self> {
        let context = Devices::new().context_of(id)?;
        let pd = context.alloc_pd()?;
        Ok(Self { context, pd, queues: OnceLock::new() })
    }

    fn queue_pair(&self, id: &CmId) -> Result<PreparedQp> {
        let cq = || self.context.cq_builder(1).channel(&self.context.create_comp_channel()?).build();
        let [send_cq, recv_cq] = match self.queues.get() {
            Some(queues) => queues,
            None => {
                let made = [cq()?, cq()?];
                self.queues.get_or_init(|| made)
            }
        };
        let builder = QpBuilder::rc(&self.pd, send_cq, recv_cq).max_send_wr(1).max_recv_wr(1);
        Ok(builder.on_id(id)?.build()?)
    }
}

/// Takes connections until it is killed: one thread takes events, one accepts, one disconnects.
fn serve(at: SocketAddr) -> Result<()> {
    let events = EventChannel::open()?;
    let listener = events.create_id(PortSpace::Tcp)?;
    listener.bind(at)?;
    listener.listen(0)?;
    let connected: Mutex<BTreeMap<IdKey, Box<(CmId, Qp)>>> = Mutex::default();
    thread::scope(|scope| {
        let (ask, asked) = mpsc::channel::<CmId>();
        let (end, ended) = mpsc::channel::<IdKey>();
        let accept_all = || -> Result<()> {
            let mut shared = None;
            for id in asked {
                let shared = match &mut shared {
                    Some(shared) => shared,
                    none => none.insert(Shared::on(&id)?),
                };
                let qp = id.bring_up(shared.queue_pair(&id)?)?;
                // Held until its events can find it.
                let mut connected = connected.lock().unwrap();
                id.accept(&ConnParams::new(qp.qpn()))?;
                connected.insert(id.key(), Box::new((id, qp)));
            }
            Ok(())
        };
        scope.spawn(move || accept_all().unwrap_or_else(|error| fail(&*error)));
        let connected = &connected;
        scope.spawn(move || {
            for key in ended {
                let Some(ended) = connected.lock().unwrap().remove(&key) else { continue };
                let (id, qp) = *ended;
                end_of(&id, qp).unwrap_or_else(|error| fail(&*error));
            }
        });
        loop {
            let Some(mut event) = events.next(Duration::MAX)? else { continue };
            match event.event_type() {
                EventType::CONNECT_REQUEST => ask.send(event.take_request().ok_or("a request without an id")?)?,
                EventType::DISCONNECTED => end.send(event.id())?,
                EventType::ESTABLISHED | EventType::TIMEWAIT_EXIT => {}
                _ => eprintln!("{event:?}"),
            }
        }
    })
}

/// Destroys the queue pair, and with it what is posted, and disconnects. `rdma_disconnect` moves it to the error state first, since
/// it cannot know that nobody waits for what then completes.
fn end_of(id: &CmId, qp: Qp) -> Result<()> {
    drop(qp);
    Ok(id.disconnect()?)
}

fn fail(error: &dyn std::error::Error) -> ! {
    eprintln!("cm_time: {error}");
    std::process::exit(1)
}

#[derive(Clone, Copy)]
enum Step {
    CreateId,
    Bind,
    ResolveAddr,
    ResolveRoute,
    CreateQp,
    Connect,
    Disconnect,
    Destroy,
}

const STEPS: [(Step, &str); 8] = [
    (Step::CreateId, "create id"),
    (Step::Bind, "bind addr"),
    (Step::ResolveAddr, "resolve addr"),
    (Step::ResolveRoute, "resolve route"),
    (Step::CreateQp, "create qp"),
    (Step::Connect, "connect"),
    (Step::Disconnect, "disconnect"),
    (Step::Destroy, "destroy"),
];

/// When each step began and ended, of one connection or of all: in nanoseconds, zero for never.
#[derive(Default)]
struct Times {
    begun: [AtomicU64; STEPS.len()],
    ended: [AtomicU64; STEPS.len()],
}

impl Times {
    fn begin(&self, step: Step) {
        self.begun[step as usize].store(now(), Ordering::Relaxed);
    }

    fn end(&self, step: Step) {
        self.ended[step as usize].store(now(), Ordering::Relaxed);
    }

    fn took(&self, step: Step) -> Option<Duration> {
        let [begun, ended] = [&self.begun, &self.ended].map(|times| times[step as usize].load(Ordering::Relaxed));
        (ended != 0).then(|| Duration::from_nanos(ended - begun))
    }
}

/// Nanoseconds of this program, so far.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// One connection.
#[derive(Default)]
struct Node {
    times: Times,
    id: OnceLock<CmId>,
    prepared: Mutex<Option<PreparedQp>>,
    connected: Mutex<Option<Qp>>,
}

impl Node {
    fn id(&self) -> &CmId {
        self.id.get().expect("it was created")
    }

    fn timed<T>(&self, step: Step, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.times.begin(step);
        let done = run();
        self.times.end(step);
        done
    }
}

/// What both threads of the client know.
struct Client {
    nodes: Vec<Node>,
    /// Which id the node at the same place has: in order, as they were made.
    keys: Vec<IdKey>,
    completed: [AtomicUsize; STEPS.len()],
}

impl Client {
    /// The next step of a node has come to its end.
    fn complete(&self, node: &Node, step: Step) {
        node.times.end(step);
        self.completed[step as usize].fetch_add(1, Ordering::Release);
    }

    /// Begins a step for all; it ends with events if `by_event`.
    fn run(&self, all: &Times, step: Step, by_event: bool, begin: impl Fn(&Node) -> Result<()>) -> Result<()> {
        println!("{}", STEPS[step as usize].1);
        all.begin(step);
        for node in &self.nodes {
            if by_event {
                node.times.begin(step);
                begin(node)?;
            } else {
                node.timed(step, || begin(node))?;
            }
        }
        while by_event && self.completed[step as usize].load(Ordering::Acquire) < self.nodes.len() {
            thread::yield_now();
        }
        all.end(step);
        Ok(())
    }

    fn handle(&self, event: &Event) -> Result<()> {
        let node = &self.nodes[self.keys.binary_search(&event.id()).map_err(|_| "an event of a stranger")?];
        match event.event_type() {
            EventType::ADDR_RESOLVED => {
                // librdmacm asks, too: from here on it is known which device leads to the peer.
                node.id().addresses()?;
                self.complete(node, Step::ResolveAddr);
            }
            EventType::ROUTE_RESOLVED => self.complete(node, Step::ResolveRoute),
            EventType::CONNECT_RESPONSE => {
                let prepared = node.prepared.lock().unwrap().take().ok_or("no queue pair")?;
                *node.connected.lock().unwrap() = Some(node.id().bring_up(prepared)?);
                node.id().establish()?;
                self.complete(node, Step::Connect);
            }
            EventType::DISCONNECTED => self.complete(node, Step::Disconnect),
            EventType::TIMEWAIT_EXIT => {}
            _ => return Err(format!("{event:?}").into()),
        }
        Ok(())
    }
}

fn client(options: &Options, server: SocketAddr) -> Result<()> {
    let channel = EventChannel::open()?;
    let all = Times::default();
    let nodes: Vec<Node> = (0..options.connections).map(|_| Node::default()).collect();
    all.begin(Step::CreateId);
    for node in &nodes {
        let id = node.timed(Step::CreateId, || Ok(channel.create_id(PortSpace::Tcp)?))?;
        node.id.get_or_init(|| id);
    }
    all.end(Step::CreateId);
    let keys = nodes.iter().map(|node| node.id().key()).collect();
    let client = Client { nodes, keys, completed: Default::default() };
    thread::scope(|scope| {
        scope.spawn(|| {
            let all = client.nodes.len();
            while client.completed[Step::Disconnect as usize].load(Ordering::Relaxed) < all {
                let handled = channel.next(Duration::MAX).map_err(Into::into);
                let handled = handled.and_then(|event| event.map_or(Ok(()), |event| client.handle(&event)));
                handled.unwrap_or_else(|error| fail(&*error));
            }
        });
        steps(&client, &all, options.bind, server).unwrap_or_else(|error| fail(&*error));
    });
    let mut nodes = client.nodes;
    println!("destroy");
    all.begin(Step::Destroy);
    for node in &mut nodes {
        node.times.begin(Step::Destroy);
        drop(node.id.take());
        node.times.end(Step::Destroy);
    }
    all.end(Step::Destroy);
    show(&all, &nodes);
    Ok(())
}

fn steps(client: &Client, all: &Times, bind: Option<SocketAddr>, server: SocketAddr) -> Result<()> {
    // As there: what is made once counts for the first connection.
    let shared: OnceLock<Shared> = OnceLock::new();
    let on = |node: &Node| -> Result<&Shared> {
        if shared.get().is_none() {
            let _ = shared.set(Shared::on(node.id())?);
        }
        Ok(shared.get().expect("it was set"))
    };
    if let Some(bind) = bind {
        client.run(all, Step::Bind, false, |node| {
            node.id().bind(bind)?;
            on(node).map(drop)
        })?;
    }
    client.run(all, Step::ResolveAddr, true, |node| Ok(node.id().resolve_addr(None, server, RESOLVE)?))?;
    client.run(all, Step::ResolveRoute, true, |node| Ok(node.id().resolve_route(RESOLVE)?))?;
    client.run(all, Step::CreateQp, false, |node| {
        *node.prepared.lock().unwrap() = Some(on(node)?.queue_pair(node.id())?);
        Ok(())
    })?;
    client.run(all, Step::Connect, true, |node| {
        let qpn = node.prepared.lock().unwrap().as_ref().ok_or("no queue pair")?.qpn();
        Ok(node.id().connect(&ConnParams::new(qpn))?)
    })?;
    client.run(all, Step::Disconnect, true, |node| {
        let qp = node.connected.lock().unwrap().take().ok_or("no queue pair")?;
        end_of(node.id(), qp)
    })
}

/// In `cmtime`'s words.
fn show(all: &Times, nodes: &[Node]) {
    println!("step              total ms     max ms     min us  us / conn");
    for (step, name) in STEPS {
        let Some(total) = all.took(step) else { continue };
        let each = || nodes.iter().filter_map(|node| node.times.took(step));
        let (max, min) = (each().max().unwrap_or_default(), each().min().unwrap_or_default());
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let each = us(total) / nodes.len() as f64;
        println!("{name:<13}: {:>11.2}{:>11.2}{:>11.2}{each:>11.2}", us(total) / 1e3, us(max) / 1e3, us(min));
    }
}
