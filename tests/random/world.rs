//! Two adapters, what a program makes on them, and the program's steps.

use crate::connect::AnySrq;
use crate::program::{ENTRIES, EXPOSED, Kind, PairSpec, Program, Shared, Step};
use crate::reference::{AREA, Area, Pair, SharedQueue};
use fastrand::Rng;
use ironverbs::sys::Sys;
use ironverbs::{AccessFlags, Context, Cq, Mr, Pd};
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
    /// Those that a pair uses.
    pub shared: [Option<SharedQueue>; 2],
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

/// Receives that each shared queue holds.
const SHARED_RECEIVES: usize = 24;

/// Completions that came in blocks, of all programs so far.
pub static PACKED: AtomicU64 = AtomicU64::new(0);
/// Completions that brought their data inside: of messages, of answers.
pub static INSIDE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Completions of XRC: of requests without an answer, of those with one, of messages, of messages to a pair that is gone.
pub static XRC: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

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
        let left = host.with(device, |device| device.objects()).unwrap();
        assert!(left.iter().all(|(_, count)| *count == 0), "objects are left on the device: {left:?}");
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
        let Program { seed, infiniband, network, cqs, xrc_cq, pairs, steps: _ } = program;
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
        let on_cqs = |pair: &PairSpec| {
            let [sends, receives] = pair.cqs.map(|number| number % cqs);
            PairSpec { cqs: [sends, if pair.kind == Kind::Xrc { *xrc_cq } else { receives }], ..pair.clone() }
        };
        let pairs: Vec<PairSpec> = pairs.iter().map(on_cqs).collect();
        let sides = [0, 1]
            .map(|side| Side::new(Context::open_on(&host, &infos[side]).unwrap(), *cqs, *xrc_cq, &pairs, &mut rng));
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
            for cq in 0..world.sides[side].cqs.len() {
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

    /// Gives a completion queue room for everything that can come, `times` over; and as much again for pairs that go while
    /// their completions are unread.
    fn resize(&mut self, side: usize, cq: usize, times: u32) {
        let mut need = 1;
        for place in &self.places {
            let (end, spec) = (&self.pairs[*place].ends[side], &self.pairs[*place].spec);
            need += if spec.cqs[0] == cq { end.send_capacity() } else { 0 };
            need += if spec.cqs[1] == cq { end.recv_capacity().max(SHARED_RECEIVES as u32) } else { 0 };
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

impl Side {
    fn new(context: Context, cqs: usize, xrc_cq: usize, pairs: &[PairSpec], rng: &mut Rng) -> Self {
        let pd = context.alloc_pd().unwrap();
        // Of every kind: what is packed, or in larger entries, is the same when it is read. Receives of shared queues may not be packed.
        let of_shared = |cq: usize| pairs.iter().any(|pair| pair.queue().is_some() && pair.cqs[1] == cq);
        let cqs: Vec<Cq> = (0..cqs.max(xrc_cq + 1))
            .map(|cq| match rng.u8(0..4) {
                0 => context.cq_builder(4).entry_bytes(128).build().unwrap(),
                1 => context.create_cq(4).unwrap(),
                _ if of_shared(cq) => context.create_cq(4).unwrap(),
                _ => context.cq_builder(4).compressed(true).build().unwrap(),
            })
            .collect();
        let mut end = pairs.len() * AREA;
        let shared = [Shared::Basic, Shared::Xrc].map(|which| {
            pairs.iter().any(|pair| pair.queue() == Some(which)).then(|| {
                let builder = context.srq_builder(&pd, SHARED_RECEIVES as u32).max_sge(ENTRIES as u32);
                let srq = match which {
                    Shared::Basic => AnySrq::Basic(builder.build().unwrap()),
                    Shared::Xrc => {
                        let xrcd = context.create_xrcd().unwrap();
                        AnySrq::Xrc(builder.xrc(&xrcd, &cqs[xrc_cq]).build().unwrap(), xrcd)
                    }
                };
                let area = Area::shared(end, SHARED_RECEIVES);
                end = area.end();
                SharedQueue::new(srq, area)
            })
        });
        let mut local = pd.alloc_mr(end, AccessFlags::LOCAL_WRITE).unwrap();
        let mut exposed = pd.alloc_mr(pairs.len() * EXPOSED, AccessFlags::ALL | AccessFlags::MW_BIND).unwrap();
        let [local_image, exposed_image] = [&mut local, &mut exposed].map(|mr| {
            let mut image = vec![0; mr.len_bytes()];
            rng.fill(&mut image);
            mr.write(0, &image).unwrap();
            image
        });
        Self { cqs, shared, local, exposed, local_image, exposed_image, maybe: vec![], pd, context }
    }

    pub fn shared(&self, which: Shared) -> Option<&SharedQueue> {
        self.shared[which as usize].as_ref()
    }
}
