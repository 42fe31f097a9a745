//! Runs each operation through this library, between two marks that the counter sees.
//!
//! `rings-ironverbs DEVICE rxe|mlx5|any [QUEUE PAIRS|clock]`, where `any` uses the types without a provider in them. The device `sim` is a
//! software ConnectX (feature `sim`), whose engine does not run while something is counted. Does
//! what the program in `libibverbs` does: two queue pairs of one process are connected to each other, others to themselves, and
//! nothing but the operation itself lies between the marks. With `clock` there are no marks, and a few operations are timed
//! instead.

mod clock;
mod crowd;
mod device;
mod floor;
mod hot;
mod mark;

use device::Device;
use floor::{Floor, floor_write_inline_list};
use hot::Hot;
use ironverbs::{
    AccessFlags, Context, Cq, FlushLevel, FlushPlacement, GRH_BYTES, Mr, Mtu, Mw, Pages, PreparedQp, Provider, QKey,
    Qp, QpBuilder, Sge, Srq, Uc, Ud, Wc, WcStatus,
};
use mark::counted;
use std::error::Error;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Duration;

const DEPTH: u32 = 64;
const LIST: u64 = 32;
const POLL: usize = 16;
const SGES: usize = 4;
/// Entries of the longest list, where the device takes so many.
const MANY_SGES: usize = 30;
const INLINE: usize = 64;
const BUFFER: usize = 4096;
const LENGTH: usize = 64;
const REMOTE: usize = 2048;
const ROUNDS: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (name, provider, what) = match &args[..] {
        [_, name, provider] => (name, provider, What::Marked),
        [_, name, provider, what] if what == "clock" => (name, provider, What::Clocked),
        [_, name, provider, crowd] => (name, provider, What::Crowd(crowd.parse()?)),
        _ => return Err("usage: rings-ironverbs DEVICE rxe|mlx5|any [QUEUE PAIRS|clock]".into()),
    };
    let (device, context) = Device::open(name)?;
    if !matches!(what, What::Clocked) {
        mark::calibrate();
    }
    let other = || format!("{name} is not of the driver {provider}");
    match provider.as_str() {
        "any" => run(device, &context, black_box(&hot::ANY), &what),
        "rxe" => run(device, &context.into_provider().map_err(|_| other())?, black_box(&hot::RXE), &what),
        "mlx5" => run(device, &context.into_provider().map_err(|_| other())?, black_box(&hot::MLX5), &what),
        unknown => Err(format!("no provider {unknown}").into()),
    }
}

/// What is run.
enum What {
    /// Every operation, between marks.
    Marked,
    /// A few, with so many queue pairs.
    Crowd(usize),
    /// A few, timed.
    Clocked,
}

fn run<P: Provider>(device: Device, context: &Context<P>, hot: &Hot<P>, what: &What) -> Result<()> {
    match what {
        What::Crowd(count) => crowd::run(&device, context, hot, *count),
        What::Marked => Bench::new(device, context)?.run(hot),
        What::Clocked => Bench::new(device, context)?.clock(hot),
    }
}

/// Two queue pairs connected to each other, of which only `a` sends; and some that send to themselves.
struct Bench<P: Provider> {
    device: Device,
    a: Qp<P>,
    b: Qp<P>,
    uc: Qp<P, Uc>,
    ud: Qp<P, Ud>,
    /// Takes its receives from `srq`.
    shared: Qp<P>,
    srq: Srq<P>,
    /// Of type 2, of `a`.
    window: Mw,
    /// Completions of what `a` sent.
    sent: Cq<P>,
    /// Completions of everything else.
    other: Cq<P>,
    mr: Mr<Pages>,
    /// Whether the device has FLUSH and ATOMIC_WRITE.
    extras: bool,
}

impl<P: Provider> Bench<P> {
    fn new(device: Device, context: &Context<P>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let extras = context.has_flush(FlushPlacement::GLOBAL_VISIBILITY) && context.has_atomic_write();
        let access = AccessFlags::ALL | if extras { AccessFlags::FLUSH_GLOBAL } else { AccessFlags::LOCAL_READ };
        let mr = pd.alloc_mr(BUFFER, access | AccessFlags::MW_BIND)?;
        let (sent, other) = (context.create_cq(4 * DEPTH)?, context.create_cq(4 * DEPTH)?);
        let prepare = |send_cq| {
            QpBuilder::rc(&pd, send_cq, &other)
                .max_send_wr(DEPTH)
                .max_recv_wr(2 * DEPTH)
                .max_send_sge(if extras { SGES } else { MANY_SGES } as u32)
                .max_inline_bytes(INLINE as u32)
                .access(access)
                .build()
        };
        let (a, b) = (prepare(&sent)?, prepare(&other)?);
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        let connect = |prepared: PreparedQp<P>, peer| {
            let mut options = prepared.connect_options();
            options.path_mtu = Some(Mtu::B1024);
            prepared.connect_with(peer, &options)
        };
        let uc = QpBuilder::uc(&pd, &sent, &other).build()?;
        let to_itself = uc.endpoint();
        let uc = uc.connect(&to_itself)?;
        let ud = QpBuilder::ud(&pd, &sent, &other).max_inline_bytes(INLINE as u32).build()?.activate()?;
        let srq = context.create_srq(&pd, 2 * DEPTH)?;
        let shared = QpBuilder::rc(&pd, &sent, &other).srq(&srq).max_send_wr(DEPTH).build()?;
        let to_itself = shared.endpoint();
        let (a, b, shared) = (connect(a, &to_b)?, connect(b, &to_a)?, connect(shared, &to_itself)?);
        let window = a.alloc_mw()?;
        Ok(Self { device, a, b, uc, ud, shared, srq, window, sent, other, mr, extras })
    }

    fn run(&mut self, hot: &Hot<P>) -> Result<()> {
        self.sends(hot)?;
        self.unreliable(hot)?;
        self.windows(hot)?;
        if self.extras {
            self.flushes(hot)?;
        }
        self.receives(hot)?;
        self.shared_receives(hot)?;
        self.polls(hot)
    }

    fn sends(&mut self, hot: &Hot<P>) -> Result<()> {
        let sge = black_box(self.sge(0, LENGTH)?);
        let word = black_box(self.sge(0, 8)?);
        let remote = black_box(self.mr.remote(REMOTE)?);
        let mut sges = [word; SGES];
        for (i, sge) in sges.iter_mut().enumerate() {
            *sge = self.sge(16 * i, 16)?;
        }
        let many_sges = [self.sge(0, 2)?; MANY_SGES];
        let (sges, many_sges): (&[Sge], &[Sge]) = black_box((&sges, &many_sges));
        let bytes = [0; INLINE];
        let (few, many): (&[u8], &[u8]) = black_box((&bytes[..8], &bytes));
        let words = black_box([1, 2]);
        let (word_list, remotes) = ([[7; 8]; LIST as usize], [remote; LIST as usize]);
        let (word_list, remotes) = black_box((&word_list[..], &remotes[..]));
        let mut floor = black_box(Floor::new());

        for _ in 0..ROUNDS {
            self.send(hot, 1, |qp| counted(c"send", || must((hot.send)(qp, 0, &sge))))?;
            self.send(hot, LIST, |qp| counted(c"send_list", || must((hot.send_list)(qp, LIST, &sge))))?;
            self.send(hot, 1, |qp| counted(c"send_4_sges", || must((hot.send_sges)(qp, 0, sges))))?;
            if self.a.cap().max_send_sge >= MANY_SGES as u32 {
                self.send(hot, 1, |qp| counted(c"send_30_sges", || must((hot.send_sges)(qp, 0, many_sges))))?;
            }
            self.send(hot, 1, |qp| counted(c"send_inline_8", || must((hot.send_inline)(qp, 0, few))))?;
            self.send(hot, 1, |qp| counted(c"send_inline_64", || must((hot.send_inline)(qp, 0, many))))?;
            self.one_sided(|qp| counted(c"write", || must((hot.write)(qp, 0, &sge, &remote))))?;
            self.one_sided(|qp| counted(c"write_inline_8", || must((hot.write_inline)(qp, 0, few, &remote))))?;
            let eight = &word_list[0];
            self.one_sided(|qp| {
                counted(c"write_inline_word", || must((hot.write_inline_word)(qp, 0, eight, &remote)))
            })?;
            counted(c"write_inline_8_list", || must((hot.write_inline_list)(&mut self.a, word_list, remotes)));
            self.drain(LIST, 0)?;
            let floor = &mut floor;
            counted(c"floor", || floor_write_inline_list(floor, &word_list[..1], &remotes[..1]));
            counted(c"floor_list", || floor_write_inline_list(floor, word_list, remotes));
            self.one_sided(|qp| counted(c"read", || must((hot.read)(qp, 0, &sge, &remote))))?;
            self.one_sided(|qp| {
                counted(c"compare_swap", || must((hot.compare_swap)(qp, 0, &word, &remote, &words)));
            })?;
            self.one_sided(|qp| counted(c"fetch_add", || must((hot.fetch_add)(qp, 0, &word, &remote, 1))))?;
        }
        Ok(())
    }

    /// Each queue pair sends to itself.
    fn unreliable(&mut self, hot: &Hot<P>) -> Result<()> {
        let sge = black_box(self.sge(0, LENGTH)?);
        let room = black_box(self.sge(0, GRH_BYTES + LENGTH)?);
        let ah = self.ud.create_ah(&self.ud.endpoint())?;
        let to = black_box(ah.to(self.ud.qpn(), QKey(0)));
        let few: &[u8] = black_box(&[0; 8]);
        for _ in 0..ROUNDS {
            let mut batch = self.uc.recv_batch();
            batch.recv(0, &[sge])?;
            hot::submit_recv(batch)?;
            let uc = &mut self.uc;
            counted(c"uc_send", || must((hot.uc_send)(uc, 0, &sge)));
            self.drain(1, 1)?;

            let ud = &mut self.ud;
            counted(c"ud_recv", || must((hot.ud_recv)(ud, 0, &room)));
            let ud = &mut self.ud;
            counted(c"ud_send", || must((hot.ud_send)(ud, 0, &sge, &to)));
            self.drain(1, 1)?;

            let ud = &mut self.ud;
            must((hot.ud_recv)(ud, 0, &room));
            counted(c"ud_send_inline_8", || must((hot.ud_send_inline)(ud, 0, few, &to)));
            self.drain(1, 1)?;
        }
        Ok(())
    }

    /// A window is bound and invalidated in turn.
    fn windows(&mut self, hot: &Hot<P>) -> Result<()> {
        for _ in 0..ROUNDS {
            let binding = black_box(self.window.plan_bind(&self.mr, 0..LENGTH, AccessFlags::REMOTE_WRITE)?);
            let (a, window) = (&mut self.a, &mut self.window);
            counted(c"bind_mw", || must((hot.bind_mw)(a, 0, window, &binding)));
            self.observe()?;
            let (a, window) = (&mut self.a, &mut self.window);
            counted(c"local_inv", || must((hot.local_inv)(a, 0, window)));
            self.observe()?;
        }
        Ok(())
    }

    /// Waits for a request about the window.
    fn observe(&mut self) -> Result<()> {
        let (window, mut known) = (&mut self.window, false);
        wait(&self.device, &mut self.sent, 1, |wc| known = window.observe(wc))?;
        if known { Ok(()) } else { Err("the window does not know its completion".into()) }
    }

    fn flushes(&mut self, hot: &Hot<P>) -> Result<()> {
        let remote = black_box(self.mr.remote(REMOTE)?);
        let placement = black_box(FlushPlacement::GLOBAL_VISIBILITY);
        let level = black_box(FlushLevel::Range(LENGTH as u32));
        for _ in 0..ROUNDS {
            self.one_sided(|qp| counted(c"atomic_write", || must((hot.atomic_write)(qp, 0, &remote, 1))))?;
            self.one_sided(|qp| counted(c"flush", || must((hot.flush)(qp, 0, &remote, placement, level))))?;
        }
        Ok(())
    }

    /// Receives go to `b`, and are used up by sends.
    fn receives(&mut self, hot: &Hot<P>) -> Result<()> {
        let sge = black_box(self.sge(0, LENGTH)?);
        for _ in 0..ROUNDS {
            let b = &mut self.b;
            counted(c"recv", || must((hot.recv)(b, 0, &sge)));
            must((hot.send)(&mut self.a, 0, &sge));
            self.drain(1, 1)?;

            let b = &mut self.b;
            counted(c"recv_list", || must((hot.recv_list)(b, LIST, &sge)));
            must((hot.send_list)(&mut self.a, LIST, &sge));
            self.drain(LIST, LIST)?;
        }
        Ok(())
    }

    /// Receives go to the shared queue, and are used up by sends.
    fn shared_receives(&mut self, hot: &Hot<P>) -> Result<()> {
        let sge = black_box(self.sge(0, LENGTH)?);
        for _ in 0..ROUNDS {
            let srq = &mut self.srq;
            counted(c"srq_recv", || must((hot.srq_recv)(srq, 0, &sge)));
            must((hot.send)(&mut self.shared, 0, &sge));
            self.drain(1, 1)?;

            let srq = &mut self.srq;
            counted(c"srq_recv_list", || must((hot.srq_recv_list)(srq, LIST, &sge)));
            must((hot.send_list)(&mut self.shared, LIST, &sge));
            self.drain(LIST, LIST)?;
        }
        Ok(())
    }

    fn polls(&mut self, hot: &Hot<P>) -> Result<()> {
        let mut pairs = [(0, WcStatus::SUCCESS); POLL];
        let mut room = [const { MaybeUninit::<Wc>::uninit() }; LIST as usize];
        let mut many = [(0, WcStatus::SUCCESS); LIST as usize];
        for _ in 0..ROUNDS {
            let mut values = [const { MaybeUninit::<Wc>::uninit() }; POLL];
            self.complete(hot, 1)?;
            let cq = &mut self.sent;
            match counted(c"poll", || (hot.poll)(cq)) {
                Ok(Some(wc)) if wc.outcome().is_ok() => {}
                other => return Err(format!("poll: {other:?}").into()),
            }
            let cq = &mut self.sent;
            match counted(c"poll_empty", || (hot.poll)(cq)) {
                Ok(None) => {}
                other => return Err(format!("poll of an empty queue: {other:?}").into()),
            }

            self.complete(hot, POLL as u64)?;
            let (cq, out) = (&mut self.sent, &mut values[..]);
            let n = counted(c"poll_16", || (hot.poll_many)(cq, out))?;
            if n != POLL {
                return Err(format!("poll of {POLL}: {n} came").into());
            }
            // SAFETY: `Cq::poll_into` makes the values whose number it tells, and that is all of them.
            #[allow(unsafe_code)]
            let values = values.map(|value| unsafe { value.assume_init() });
            if values.iter().any(|wc| wc.outcome().is_err()) {
                return Err(format!("poll of {POLL}: {values:?}").into());
            }

            self.complete(hot, LIST)?;
            let (cq, out) = (&mut self.sent, &mut room[..]);
            let n = counted(c"poll_32", || (hot.poll_many)(cq, out))?;
            if n as u64 != LIST {
                return Err(format!("poll of {LIST}: {n} came").into());
            }
            self.complete(hot, LIST)?;
            let (cq, out) = (&mut self.sent, &mut many[..]);
            let n = counted(c"poll_status_32", || (hot.poll_many_status)(cq, out))?;
            if n as u64 != LIST {
                return Err(format!("poll of {LIST} statuses: {n} came").into());
            }

            self.complete(hot, LIST)?;
            let cq = &mut self.sent;
            let sum = counted(c"poll_in_place_32", || (hot.poll_in_place)(cq))?;
            if sum != LIST * (LIST - 1) / 2 {
                return Err(format!("poll of {LIST} in place: their numbers add up to {sum}").into());
            }

            self.complete(hot, 1)?;
            let cq = &mut self.sent;
            match counted(c"poll_status", || (hot.poll_status)(cq)) {
                Ok(Some((0, WcStatus::SUCCESS))) => {}
                other => return Err(format!("poll of status: {other:?}").into()),
            }

            self.complete(hot, POLL as u64)?;
            let (cq, out) = (&mut self.sent, &mut pairs[..]);
            let n = counted(c"poll_status_16", || (hot.poll_many_status)(cq, out))?;
            if n != POLL || pairs.iter().any(|(_, status)| *status != WcStatus::SUCCESS) {
                return Err(format!("poll of {POLL} statuses: {pairs:?}").into());
            }
        }
        Ok(())
    }

    /// Runs `post`, which posts `n` SENDs, with receives ready for them, and waits until all is done.
    fn send(&mut self, hot: &Hot<P>, n: u64, post: impl FnOnce(&mut Qp<P>)) -> Result<()> {
        let sge = self.sge(0, LENGTH)?;
        must((hot.recv_list)(&mut self.b, n, &sge));
        post(&mut self.a);
        self.drain(n, n)
    }

    /// Runs `post`, which posts one request without part of the peer, and waits for it.
    fn one_sided(&mut self, post: impl FnOnce(&mut Qp<P>)) -> Result<()> {
        post(&mut self.a);
        self.drain(1, 0)
    }

    /// Puts `n` completions of WRITEs into the completion queue of `a`, and leaves them there.
    fn complete(&mut self, hot: &Hot<P>, n: u64) -> Result<()> {
        let last = REMOTE + LENGTH;
        let (sge, remotes) = (self.sge(0, LENGTH)?, [self.mr.remote(REMOTE)?, self.mr.remote(last)?]);
        self.mr.write(0, &[1])?;
        self.mr.write(last, &[0])?;
        for wr_id in 0..n {
            must((hot.write)(&mut self.a, wr_id, &sge, &remotes[usize::from(wr_id + 1 == n)]));
        }
        // When the last one's bytes are in their own place, which takes what it takes on a busy machine, its completion is near.
        for _ in 0..10_000 {
            let mut there = [0];
            self.mr.read(last, &mut there)?;
            if there == [1] {
                self.device.work(Duration::from_millis(100));
                return Ok(());
            }
            self.device.work(Duration::from_millis(1));
        }
        Err("the last WRITE did not arrive".into())
    }

    fn drain(&mut self, sent: u64, received: u64) -> Result<()> {
        wait(&self.device, &mut self.sent, sent, |_| ())?;
        wait(&self.device, &mut self.other, received, |_| ())
    }

    fn sge(&self, offset: usize, len_bytes: usize) -> Result<Sge> {
        Ok(self.mr.sge(offset..offset + len_bytes)?)
    }
}

/// Waits for so many completions.
fn wait<P: Provider>(device: &Device, cq: &mut Cq<P>, mut expected: u64, mut seen: impl FnMut(&Wc)) -> Result<()> {
    for _ in 0..10_000 {
        while let Some(wc) = cq.poll_one()? {
            seen(&wc);
            wc.outcome()?;
            expected -= 1;
        }
        if expected == 0 {
            return Ok(());
        }
        device.work(Duration::from_millis(1));
    }
    Err(format!("{expected} completions did not come").into())
}

/// What a program does with the answer on its way: one branch.
#[inline(always)]
fn must<E: std::fmt::Display>(result: std::result::Result<(), E>) {
    if let Err(error) = result {
        refused(&error);
    }
}

#[cold]
#[inline(never)]
fn refused(error: &dyn std::fmt::Display) -> ! {
    eprintln!("rings-ironverbs: {error}");
    std::process::exit(1)
}
