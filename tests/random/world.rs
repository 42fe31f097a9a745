//! Two adapters, what a program makes on them, and the program's steps.

use crate::program::{ENTRIES, EXPOSED, INLINE, Kind, PairSpec, Program, Step};
use crate::reference::{Area, End, Pair, Slot};
use fastrand::Rng;
use ironverbs::sys::Sys;
use ironverbs::{
    AccessFlags, AckTimeout, AddressHandle, Any, Connected, Context, Cq, Mr, Pd, PreparedQp, Psn, QKey, Qp, QpBuilder,
    Rc, Receives, Srq, Uc, Ud,
};
use softcx::{DeviceId, Disturbance, SimDevice, SimHost};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Everything that a program made, and what should be in it.
pub struct World {
    pub host: SimHost,
    pub devices: [DeviceId; 2],
    pub sides: [Side; 2],
    /// All pairs, those that are gone too.
    pub pairs: Vec<Pair>,
    /// Each place's part of both sides' own regions.
    pub areas: Vec<[Area; 2]>,
    /// Which pair is in each place.
    pub places: Vec<usize>,
    pub rng: Rng,
    /// Longest datagram.
    pub datagram: usize,
    /// Packets may come twice.
    pub duplicates: bool,
    wr_id: u32,
    imm: u32,
}

/// One adapter.
pub struct Side {
    pub cqs: Vec<Cq>,
    pub srq: Option<Srq>,
    /// Receives of the shared queue.
    pub shared: Vec<Slot>,
    pub shared_area: Area,
    /// What its own queue pairs use.
    pub local: Mr,
    /// What peers reach.
    pub exposed: Mr,
    /// What both should hold.
    pub local_image: Vec<u8>,
    pub exposed_image: Vec<u8>,
    /// Places where unreliable writes may have gone, and with which bytes.
    pub maybe: Vec<(usize, Vec<u8>)>,
    pub pd: Pd,
    pub context: Context,
}

/// A queue pair of any transport.
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
pub enum AnyQp {
    Rc(Qp<Any, Rc>),
    Uc(Qp<Any, Uc>),
    Ud(Qp<Any, Ud>, AddressHandle),
}

/// Receives that each side's shared queue holds.
const SHARED_RECEIVES: usize = 24;
pub const QKEY: QKey = QKey(0x1357_9bdf);

/// Completions that came in blocks, of all programs so far.
pub static PACKED: AtomicU64 = AtomicU64::new(0);
/// Completions that brought their data inside: of messages, of answers.
pub static INSIDE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Runs a program, and panics if anything is not as it should be.
pub fn run(program: &Program) {
    let mut world = World::new(program);
    for (n, step) in program.steps.iter().enumerate() {
        let _note = Note(n, step);
        world.step(step);
    }
    world.settle();
    let reports = world.host.fabric().take_reports();
    assert!(reports.is_empty(), "misuse: {reports:#?}");
    let World { host, devices, sides, pairs, .. } = world;
    let packed = devices.map(|device| host.with(device, |device| device.packed_completions()).unwrap());
    PACKED.fetch_add(packed.iter().sum(), Ordering::Relaxed);
    let contexts = [0, 1].map(|side| sides[side].context.clone());
    drop((pairs, sides));
    assert!(contexts.iter().all(|context| context.leaks().is_empty()));
    drop(contexts);
    for device in devices {
        let left = host.with(device, |device| (device.numbers(), device.mkeys())).unwrap();
        assert_eq!(left, ((vec![], vec![], vec![]), 0), "objects are left on the device");
    }
}

/// Says in which step it was when a panic unwinds.
struct Note<'a>(usize, &'a Step);

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::add_to_failure(&format!("in step {}, {:?}", self.0, self.1));
        }
    }
}

impl World {
    fn new(program: &Program) -> Self {
        let Program { seed, infiniband, network, cqs, pairs, steps: _ } = program;
        let host = SimHost::new(*seed);
        let devices = ["mlx5_0", "mlx5_1"]
            .map(|name| host.add(if *infiniband { SimDevice::infiniband(name) } else { SimDevice::roce(name) }));
        let part = |thousandths| f64::from(thousandths) / 1000.0;
        host.fabric().disturb(Disturbance {
            loss: part(network.loss),
            duplication: part(network.duplication),
            reordering: part(network.reordering),
            delay: Duration::from_micros(1),
            jitter: Duration::from_micros(20),
        });
        let infos = host.devices().unwrap();
        let mut rng = Rng::with_seed(*seed);
        let shared = pairs.iter().any(|pair| pair.shared);
        let sides = [0, 1]
            .map(|side| Side::new(Context::open_on(&host, &infos[side]).unwrap(), *cqs, pairs.len(), shared, &mut rng));
        let mut world = Self {
            host,
            devices,
            sides,
            pairs: vec![],
            areas: (0..pairs.len()).map(|place| [Area::new(place), Area::new(place)]).collect(),
            places: vec![],
            rng,
            // The MTU of simulated ports.
            datagram: if *infiniband { 4096 } else { 1024 },
            duplicates: network.duplication > 0,
            wr_id: 0,
            imm: 0,
        };
        for (place, spec) in pairs.iter().enumerate() {
            world.places.push(place);
            let pair = world.connect(spec, place);
            world.pairs.push(pair);
        }
        for side in 0..2 {
            for cq in 0..*cqs {
                world.resize(side, cq, 1);
            }
        }
        world
    }

    fn step(&mut self, step: &Step) {
        let pair = |number: &usize| self.places[number % self.places.len()];
        match step {
            Step::Post { pair: number, from, works, dropped } => {
                let pair = pair(number);
                self.post(pair, *from, works, *dropped);
            }
            Step::Receives { pair: number, at, entries } => {
                let pair = pair(number);
                self.receives(pair, *at, entries);
            }
            Step::Run { steps } => self.run_fabric(*steps),
            Step::Poll { side, cq, most, how } => {
                let cq = cq % self.sides[*side].cqs.len();
                self.poll(*side, cq, *most, *how);
            }
            Step::Settle => self.settle(),
            Step::Bind { pair: number, at, type_2, start, len } => {
                let pair = pair(number);
                self.bind(pair, *at, *type_2, *start..start + len);
            }
            Step::Unbind { pair: number, at, by_peer } => {
                let pair = pair(number);
                self.unbind(pair, *at, *by_peer);
            }
            Step::Resize { side, cq, times } => {
                let cq = cq % self.sides[*side].cqs.len();
                self.resize(*side, cq, *times);
            }
            Step::Replace { pair: number } => self.replace(number % self.places.len()),
            Step::Break { pair: number, from, syndrome, works } => {
                let pair = pair(number);
                self.break_down(pair, *from, *syndrome, works);
            }
        }
    }

    fn run_fabric(&mut self, steps: u32) {
        for _ in 0..steps {
            let now = self.host.fabric().now();
            self.host.fabric().step(now + Duration::from_micros(1));
        }
    }

    /// A new pair in that place.
    fn connect(&mut self, spec: &PairSpec, place: usize) -> Pair {
        let cqs = [0, 1].map(|side: usize| spec.cqs.map(|number| number % self.sides[side].cqs.len()));
        let ends = match spec.kind {
            Kind::Rc => {
                let [a, b] = [0, 1].map(|side| {
                    let Side { pd, cqs: all, .. } = &self.sides[side];
                    let [send, recv] = cqs[side];
                    self.prepare(
                        spec,
                        side,
                        QpBuilder::rc(pd, &all[send], &all[recv])
                            .access(AccessFlags::ALL)
                            .data_in_completions(spec.inside),
                    )
                });
                join(spec, a, b).map(AnyQp::Rc)
            }
            Kind::Uc => {
                let [a, b] = [0, 1].map(|side| {
                    let Side { pd, cqs: all, .. } = &self.sides[side];
                    let [send, recv] = cqs[side];
                    self.prepare(
                        spec,
                        side,
                        QpBuilder::uc(pd, &all[send], &all[recv])
                            .access(AccessFlags::ALL)
                            .data_in_completions(spec.inside),
                    )
                });
                join(spec, a, b).map(AnyQp::Uc)
            }
            Kind::Ud => {
                let [a, b] = [0, 1].map(|side| {
                    let Side { pd, cqs: all, .. } = &self.sides[side];
                    let [send, recv] = cqs[side];
                    let builder = QpBuilder::ud(pd, &all[send], &all[recv]).qkey(QKEY);
                    self.prepare(spec, side, builder).activate().unwrap()
                });
                let (to_a, to_b) = (b.create_ah(&a.endpoint()).unwrap(), a.create_ah(&b.endpoint()).unwrap());
                [AnyQp::Ud(a, to_b), AnyQp::Ud(b, to_a)]
            }
        };
        let mut side = 0;
        let ends = ends.map(|qp| {
            let end = End::new(qp, cqs[side]);
            side += 1;
            end
        });
        Pair::new(spec.clone(), place, ends)
    }

    fn prepare<T: Receives>(&self, spec: &PairSpec, side: usize, builder: QpBuilder<'_, Any, T>) -> PreparedQp<Any, T> {
        let mut builder = builder
            .max_send_wr(spec.depth)
            .max_recv_wr(spec.depth)
            .max_send_sge(ENTRIES as u32)
            .max_recv_sge(ENTRIES as u32)
            .max_inline_bytes(INLINE as u32)
            .signal_all(spec.signal_all)
            .psn(Psn::new(spec.psn).unwrap());
        if spec.shared {
            builder = builder.srq(self.sides[side].srq.as_ref().unwrap());
        }
        builder.build().unwrap()
    }

    /// Gives a completion queue room for everything that can come, `times` over; and as much again for pairs that go while
    /// their completions are unread.
    fn resize(&mut self, side: usize, cq: usize, times: u32) {
        let mut need = 1;
        for place in &self.places {
            let end = &self.pairs[*place].ends[side];
            need += if end.cqs[0] == cq { end.send_capacity() } else { 0 };
            need += if end.cqs[1] == cq { end.recv_capacity().max(SHARED_RECEIVES as u32) } else { 0 };
        }
        self.sides[side].cqs[cq].resize(2 * need * times).unwrap();
    }

    fn replace(&mut self, place: usize) {
        let old = self.places[place];
        if self.pairs.iter().any(|pair| pair.place == place && pair.is_gone() && !pair.is_silent()) {
            // Of one that is gone at a time the completions may be unread.
            self.settle();
        }
        self.come_to_rest();
        let spec = self.pairs[old].spec.clone();
        self.pairs[old].destroy();
        let new = self.connect(&spec, place);
        self.places[place] = self.pairs.len();
        self.pairs.push(new);
    }

    pub fn next_wr_id(&mut self) -> u32 {
        self.wr_id += 1;
        self.wr_id
    }

    pub fn next_imm(&mut self) -> u32 {
        self.imm += 1;
        0x8000_0000 | self.imm
    }
}

fn join<T: Connected>(spec: &PairSpec, a: PreparedQp<Any, T>, b: PreparedQp<Any, T>) -> [Qp<Any, T>; 2] {
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let mut options = a.connect_options();
    options.path_mtu = Some(spec.mtu);
    options.rnr_retry = 7;
    options.retry_count = 7;
    // About a millisecond.
    options.timeout = AckTimeout::from_code(8).unwrap();
    [a.connect_with(&b_end, &options).unwrap(), b.connect_with(&a_end, &options).unwrap()]
}

impl Side {
    fn new(context: Context, cqs: usize, pairs: usize, shared: bool, rng: &mut Rng) -> Self {
        let pd = context.alloc_pd().unwrap();
        let shared_area = Area::shared(pairs, SHARED_RECEIVES);
        let mut local = pd.alloc_mr(shared_area.end(), AccessFlags::LOCAL_WRITE).unwrap();
        let mut exposed = pd.alloc_mr(pairs * EXPOSED, AccessFlags::ALL | AccessFlags::MW_BIND).unwrap();
        let [local_image, exposed_image] = [&mut local, &mut exposed].map(|mr| {
            let mut image = vec![0; mr.len_bytes()];
            rng.fill(&mut image);
            mr.write(0, &image).unwrap();
            image
        });
        // Of every kind: what is packed, or in larger entries, is the same when it is read.
        let cqs = (0..cqs)
            .map(|_| match rng.u8(0..4) {
                0 => context.cq_builder(4).entry_bytes(128).build().unwrap(),
                1 => context.create_cq(4).unwrap(),
                _ => context.cq_builder(4).compressed(true).build().unwrap(),
            })
            .collect();
        let srq =
            shared.then(|| context.srq_builder(&pd, SHARED_RECEIVES as u32).max_sge(ENTRIES as u32).build().unwrap());
        Self {
            cqs,
            srq,
            shared: vec![],
            shared_area,
            local,
            exposed,
            local_image,
            exposed_image,
            maybe: vec![],
            pd,
            context,
        }
    }
}
