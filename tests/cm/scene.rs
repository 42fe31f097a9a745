//! What most tests need: a device with an address, and what a side of a connection has on it.

use crate::harness::skip;
use crate::target::Target;
use ironverbs::rdma_cm::{
    ConnParams, Connection, Connector, Devices, Error, EventChannel, Handshake, Listener, Reason, RejectReason,
    Request, Route,
};
use ironverbs::{
    AccessFlags, Context, Cq, Gid, GidEntry, GidType, LinkLayer, Pd, Pool, PreparedQp, Qp, QpBuilder, Slot, Wc,
    WcOpcode,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Nothing that is to work takes longer, even in an emulated guest on a busy machine, where 64 connections are opened at a time.
pub const WITHIN: Duration = Duration::from_secs(200);

/// A device under test, as the connection manager sees it.
pub struct Scene {
    pub devices: Devices,
    /// An address of the device's.
    pub ip: IpAddr,
}

/// The scene on the device under test.
pub fn scene(target: &Target) -> Scene {
    let ip = address_of(target, &target.device, |gid| gid.to_ipv4().is_some());
    let Some(ip) = ip.and_then(|entry| entry.gid.to_ipv4()) else { skip("the port has no IPv4 address") };
    Scene { devices: Devices::new(), ip: ip.into() }
}

/// An entry of a device's GID table that is `wanted`, for packets of IP. Skips where there is no connection manager.
pub fn address_of(target: &Target, device: &str, wanted: fn(&Gid) -> bool) -> Option<GidEntry> {
    if target.host.simulated().is_some() {
        skip("simulated adapters have no connection manager");
    }
    if let Err(error @ Error::NoService { .. }) = EventChannel::open() {
        skip(error.to_string());
    }
    let context = target.host.open(device).unwrap();
    if context.query_port(target.port).unwrap().link_layer == LinkLayer::InfiniBand {
        skip("the port is InfiniBand: an IP address there takes IP over InfiniBand and a subnet manager");
    }
    let mut table = context.gid_table().unwrap().into_iter();
    table.find(|entry| entry.gid_type == GidType::ROCE_V2 && wanted(&entry.gid))
}

impl Scene {
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }
}

/// What a side has on a device.
pub struct Kit {
    pub pd: Pd,
    pub cq: Cq,
    pub pool: Pool,
}

impl Kit {
    /// With so many slots of that size.
    pub fn on(context: &Context, slots: u32, slot_bytes: usize) -> Self {
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.cq_builder(2 * slots.max(16)).channel(&channel).build().unwrap();
        let pool = Pool::new(&pd, slots, slot_bytes).unwrap();
        Self { pd, cq, pool }
    }

    /// The next completion, which must be a success, with its slot.
    pub fn completion(&mut self) -> (Slot, Wc) {
        let (slot, wc) = self.any_completion().expect("a completion comes in time");
        wc.outcome().unwrap();
        (slot, wc)
    }

    /// The next completion, if one comes.
    pub fn any_completion(&mut self) -> Option<(Slot, Wc)> {
        self.completion_within(WITHIN)
    }

    pub fn completion_within(&mut self, time: Duration) -> Option<(Slot, Wc)> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            self.cq.spin_then_wait(100, deadline - Instant::now()).unwrap();
            if let Some(completion) = self.cq.poll().unwrap().next() {
                return Some(self.pool.reclaim(completion).unwrap_or_else(|wc| panic!("a stranger: {wc:?}")));
            }
        }
        None
    }

    /// The next message that comes in; completions of sends may come before it.
    pub fn message(&mut self) -> Vec<u8> {
        loop {
            let (slot, wc) = self.completion();
            if is_receive(&wc) {
                return slot[..length(&wc)].to_vec();
            }
        }
    }

    pub fn send(&mut self, qp: &mut Qp, bytes: &[u8]) {
        let mut slot = self.pool.take().expect("a slot is free");
        slot[..bytes.len()].copy_from_slice(bytes);
        qp.send_slot(slot, bytes.len() as u32).unwrap();
    }
}

/// Whether a message came in, and was no other work request's success.
pub fn is_receive(wc: &Wc) -> bool {
    wc.outcome().is_ok_and(|done| done.opcode == WcOpcode::RECV)
}

/// Bytes that came in.
pub fn length(wc: &Wc) -> usize {
    wc.outcome().unwrap().byte_len as usize
}

/// A connection and what it uses.
pub struct End {
    pub connection: Connection,
    pub kit: Kit,
}

/// What a queue pair of these tests is like: receives are posted, peers may read and write.
fn prepare(builder: QpBuilder<'_>, pool: &Pool, n_receives: u32) -> PreparedQp {
    let builder = builder.max_recv_wr(n_receives.max(1)).max_send_wr(32);
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let mut prepared = builder.access(access).build().unwrap();
    for _ in 0..n_receives {
        prepared.recv_slot(pool.take().unwrap()).unwrap();
    }
    prepared
}

impl Scene {
    /// Connects to `to`, with receives of that size posted. Waits for a peer that does not listen yet.
    pub fn connect(&self, to: SocketAddr, receives: (u32, usize), handshake: &Handshake<'_>) -> Result<End, Error> {
        let (n_receives, slot_bytes) = receives;
        let deadline = Instant::now() + WITHIN;
        loop {
            let route = Connector::to(to).resolve(WITHIN)?;
            let kit = Kit::on(&self.devices.context_of(route.id())?, 2 * n_receives.max(4), slot_bytes);
            let prepared = prepare(route.qp_builder(&kit.pd, &kit.cq, &kit.cq)?, &kit.pool, n_receives);
            match route.connect(prepared, handshake, WITHIN) {
                Err(Error::Failed { reason: Reason::Rejected(RejectReason::INVALID_SERVICE_ID), .. })
                    if Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                connected => return connected.map(|connection| End { connection, kit }),
            }
        }
    }

    /// A route to `to`, and a queue pair for it without receives.
    pub fn route(&self, to: SocketAddr) -> (Route, PreparedQp) {
        let route = Connector::to(to).resolve(WITHIN).unwrap();
        let context = self.devices.context_of(route.id()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let prepared = route.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap();
        (route, prepared)
    }

    /// Accepts the next peer, with receives of that size posted.
    pub fn accept(&self, listener: &Listener, receives: (u32, usize), handshake: &Handshake<'_>) -> Result<End, Error> {
        let request = listener.request(WITHIN)?.expect("a peer asks in time");
        self.accept_request(request, receives, handshake)
    }

    /// Accepts a peer that has asked.
    pub fn accept_request(
        &self,
        request: Request,
        (n_receives, slot_bytes): (u32, usize),
        handshake: &Handshake<'_>,
    ) -> Result<End, Error> {
        let kit = Kit::on(&self.devices.context_of(request.id())?, 2 * n_receives.max(4), slot_bytes);
        let prepared = prepare(request.qp_builder(&kit.pd, &kit.cq, &kit.cq)?, &kit.pool, n_receives);
        let connection = request.accept(prepared, handshake, WITHIN)?;
        Ok(End { connection, kit })
    }

    /// Answers a peer that has asked, without waiting for its last word.
    pub fn answer(&self, request: &Request) -> Qp {
        let context = self.devices.context_of(request.id()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let prepared = request.qp_builder(&pd, &cq, &cq).unwrap().build().unwrap();
        let qp = request.id().bring_up(prepared).unwrap();
        request.id().accept(&ConnParams::new(qp.qpn())).unwrap();
        qp
    }

    /// A connection of two sides in this process.
    pub fn pair(&self, port: u16) -> (End, End) {
        let listener = Listener::bind(self.at(port)).unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| self.accept(&listener, (4, 1024), &Handshake::default()).unwrap());
            let client = self.connect(self.at(port), (4, 1024), &Handshake::default()).unwrap();
            (client, server.join().unwrap())
        })
    }
}

/// A route from the other device to this one, and a queue pair for it.
pub fn from_the_other_device(target: &Target, scene: &Scene, port: u16) -> (Route, PreparedQp) {
    if target.peer == target.device {
        skip("IRONVERBS_TEST_PEER names no second device");
    }
    let other = address_of(target, &target.peer, |gid| gid.to_ipv4().is_some()).unwrap().gid.to_ipv4().unwrap();
    let route = Connector::to(scene.at(port)).from(SocketAddr::new(other.into(), 0)).resolve(WITHIN).unwrap();
    let context = scene.devices.context_of(route.id()).unwrap();
    assert_eq!(context.info().name, target.peer);
    let kit = Kit::on(&context, 1, 64);
    let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq).unwrap().build().unwrap();
    (route, prepared)
}

/// Skips where a program is not installed; in a guest of the tests' own it has to be.
pub fn not_installed(program: &str, package: &str) -> ! {
    let text = format!("{program} is not installed (Debian: {package})");
    assert!(std::env::var_os("IRONVERBS_TEST_NETWORK").is_none(), "{text}");
    skip(text)
}

/// Skips where the network is not the tests' own.
pub fn own_network() {
    if std::env::var_os("IRONVERBS_TEST_NETWORK").is_none() {
        skip("IRONVERBS_TEST_NETWORK is not set: the network is not to be changed, and not known");
    }
}

/// Runs a program that changes the network, with these words; skips where the network is not the tests'.
pub fn change_network(program: &str, words: &str) {
    own_network();
    let status = std::process::Command::new(program).args(words.split(' ')).status().unwrap();
    assert!(status.success(), "{program} {words}");
}

/// The name of the network link that has that index.
pub fn link_of(index: u32) -> String {
    let links = nix::net::if_::if_nameindex().unwrap();
    let link = links.iter().find(|link| link.index() == index).expect("there is such a link");
    link.name().to_str().unwrap().to_owned()
}

/// What programs have on the devices under test, as the kernel counts it.
pub type Objects = BTreeMap<String, u64>;

/// As `rdma resource show` counts them, of both devices. Contexts are not among them, which a test may keep open.
pub fn objects(target: &Target) -> Objects {
    let mut sum = Objects::new();
    let mut devices = vec![&target.device, &target.peer];
    devices.dedup();
    for device in devices {
        for (kind, n) in target.host.objects(device).unwrap_or_else(|why| skip(why)) {
            if kind != "ctx" {
                *sum.entry(kind).or_default() += n;
            }
        }
    }
    sum
}

/// Waits until no more of anything is there than before: connections that have just ended take a moment.
pub fn nothing_is_left(target: &Target, before: &Objects) {
    let deadline = Instant::now() + WITHIN;
    loop {
        let now = objects(target);
        if now.iter().all(|(kind, n)| *n <= before.get(kind).copied().unwrap_or(0)) {
            return;
        }
        assert!(Instant::now() < deadline, "{before:?} before, {now:?} after");
        std::thread::sleep(Duration::from_millis(20));
    }
}
