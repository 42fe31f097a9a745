//! Post and poll allocate nothing: counted by an allocator that counts.
//!
//! On the device that `IRONVERBS_TEST_DEVICE` names, or else on a simulated mlx5 adapter, as on `sim:roce`; `sim:ib` is one on InfiniBand; `IRONVERBS_TEST_PORT` (default 1) and `IRONVERBS_TEST_GID_INDEX` (default:
//! the one that fits best) choose the rest.
//!
//! # Safety argument
//!
//! The allocator hands every request on to the system's as it came, and counts. Raw batches name memory of a region that
//! outlives the queue pairs, and no reference to that memory is made.
#![allow(unsafe_code)]

use ironverbs::sys::Sys;
use ironverbs::{
    AccessFlags, Context, Cq, CqBuilder, Error, FlushLevel, FlushPlacement, GidIndex, Inline, InlinePieces, Mlx5, Mr,
    Mw, Pages, Pd, Pool, PortNum, PreparedQp, Provider, QKey, Qp, QpBuilder, QpState, QpUpdate, RemoteAddr, Rxe, Sge,
    Stamps, Wc, WcStatus, WrFlags,
};
use softcx::{Engine, SimDevice, SimHost};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const DEPTH: u32 = 32;
const SLOT: usize = 256;
const ROUNDS: u64 = 300;

struct Counting;

thread_local! {
    /// Calls of the allocator by this thread: the test harness has others.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: each method passes its arguments to the system's allocator, which obeys the rules of `GlobalAlloc`, as the caller
// does. The counter is constant at first and is not dropped, so that counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: passed on to the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: passed on to the caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `f` calls the allocator.
fn allocations(f: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    f();
    CALLS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 2, "an allocation and its end");
    assert_eq!(allocations(|| drop(black_box(Vec::<u8>::new()))), 0);
    let mut vec = vec![0_u8; 10];
    assert_eq!(allocations(|| vec.reserve(black_box(1000))), 1);
}

#[test]
fn batches_and_polls_allocate_nothing() {
    let context = context();
    Pair::new(&context).batches();
    match context.into_provider::<Rxe>() {
        Ok(context) => Pair::new(&context).batches(),
        Err(context) => {
            let context = context.into_provider::<Mlx5>().unwrap();
            Pair::new(&context).batches();
        }
    }
}

#[test]
fn windows_and_flushes_allocate_nothing() {
    let context = context();
    Pair::new(&context).windows(&context);
    match context.into_provider::<Rxe>() {
        Ok(context) => Pair::new(&context).windows(&context),
        Err(context) => {
            let context = context.into_provider::<Mlx5>().unwrap();
            Pair::new(&context).windows(&context);
        }
    }
}

#[test]
fn unreliable_transports_allocate_nothing() {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let mut cq = context.create_cq(4 * DEPTH).unwrap();
    let port = number("PORT").map_or(PortNum::ONE, |port| PortNum::new(port).unwrap());
    let uc = QpBuilder::uc(&pd, &cq, &cq).port(port).max_inline_bytes(32).access(AccessFlags::ALL).build().unwrap();
    let itself = uc.endpoint();
    let mut uc = uc.connect(&itself).unwrap();
    let mut ud = QpBuilder::ud(&pd, &cq, &cq).port(port).max_inline_bytes(32).build().unwrap().activate().unwrap();
    let ah = ud.create_ah(&ud.endpoint()).unwrap();
    let (sge, room, remote) = (mr.sge(0..8).unwrap(), mr.sge(64..256).unwrap(), mr.remote(1024).unwrap());
    let mut round = || {
        let mut receives = uc.recv_batch();
        receives.recv(0, &[room]).unwrap();
        receives.recv(1, &[room]).unwrap();
        // SAFETY: the region outlives the queue pairs, and nothing refers to its memory.
        unsafe { receives.submit().unwrap() };
        let mut sends = uc.send_batch();
        sends.send(2, WrFlags::SIGNALED, &[sge]).unwrap();
        sends.write(3, WrFlags::SIGNALED, &[sge], remote).unwrap();
        sends.write_imm(4, WrFlags::SIGNALED, Inline(b"inline"), remote, 1).unwrap();
        // SAFETY: as above.
        unsafe { sends.submit().unwrap() };
        let mut receives = ud.recv_batch();
        receives.recv(5, &[room]).unwrap();
        receives.recv(6, &[room]).unwrap();
        // SAFETY: as above.
        unsafe { receives.submit().unwrap() };
        let to = ah.to(ud.qpn(), QKey(0));
        let mut sends = ud.send_batch();
        sends.send_to(7, WrFlags::SIGNALED, &[sge], to).unwrap();
        sends.send_imm_to(8, WrFlags::SIGNALED, Inline(b"inline"), 1, to).unwrap();
        // SAFETY: as above.
        unsafe { sends.submit().unwrap() };
        let deadline = Deadline::new();
        let mut left = 9;
        while left > 0 {
            let mut completions = cq.poll().unwrap();
            while let Some(completion) = completions.next() {
                assert_eq!(completion.status(), WcStatus::SUCCESS);
                left -= 1;
            }
            deadline.check();
        }
    };
    round();
    let allocations = allocations(|| (0..ROUNDS).for_each(|_| round()));
    assert_eq!(allocations, 0, "in {ROUNDS} rounds");
}

#[test]
fn shared_receives_allocate_nothing() {
    let context = context();
    shared_receives(&context);
    match context.into_provider::<Rxe>() {
        Ok(context) => shared_receives(&context),
        Err(context) => {
            let context = context.into_provider::<Mlx5>().unwrap();
            shared_receives(&context);
        }
    }
}

/// Receives by batch and by slot, through a queue pair that is connected to itself.
fn shared_receives<P: Provider>(context: &Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let (mut sent, mut received) = (context.create_cq(DEPTH).unwrap(), context.create_cq(DEPTH).unwrap());
    let pool = Pool::new(&pd, 1, SLOT).unwrap();
    let mut srq = context.create_srq(&pd, DEPTH).unwrap();
    let port = number("PORT").map_or(PortNum::ONE, |port| PortNum::new(port).unwrap());
    let prepared = QpBuilder::rc(&pd, &sent, &received).srq(&srq).port(port).max_inline_bytes(32).build().unwrap();
    let itself = prepared.endpoint();
    let mut qp = prepared.connect(&itself).unwrap();
    let room = mr.sge(0..256).unwrap();
    let mut round = || {
        let mut receives = srq.recv_batch();
        receives.recv(0, &[room]).unwrap();
        receives.recv(1, &[room]).unwrap();
        // SAFETY: the region outlives the queue pair, and nothing refers to its memory.
        unsafe { receives.submit().unwrap() };
        srq.recv_slot(pool.take().unwrap()).unwrap();
        let mut sends = qp.send_batch();
        (3..6).for_each(|wr_id| sends.send(wr_id, WrFlags::SIGNALED, Inline(b"inline")).unwrap());
        // SAFETY: inline payload.
        unsafe { sends.submit().unwrap() };
        (0..3).for_each(|_| assert_eq!(one(&mut sent).status(), WcStatus::SUCCESS));
        (0..2).for_each(|wr_id| assert_eq!(one(&mut received).wr_id, wr_id));
        let deadline = Deadline::new();
        loop {
            if let Some(completion) = received.poll().unwrap().next() {
                break drop(pool.reclaim(completion).unwrap());
            }
            deadline.check();
        }
    };
    round();
    let allocations = allocations(|| (0..ROUNDS).for_each(|_| round()));
    assert_eq!(allocations, 0, "in {ROUNDS} rounds");
}

#[test]
fn extended_connections_and_nops_allocate_nothing() {
    let context = context();
    if matches!(context.create_xrcd(), Err(Error::Unsupported { .. })) {
        return println!("skipped: the driver has no extended reliable connections");
    }
    extended(&context);
    if let Ok(context) = context.into_provider::<Mlx5>() {
        extended(&context);
    }
}

/// Sends to two shared receive queues of an XRC domain, receives there, and NOPs between.
fn extended<P: Provider>(context: &Context<P>) {
    let (pd, xrcd) = (context.alloc_pd().unwrap(), context.create_xrcd().unwrap());
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let (mut sent, mut received) = (context.create_cq(DEPTH).unwrap(), context.create_cq(DEPTH).unwrap());
    let mut queues = [(); 2].map(|()| context.srq_builder(&pd, DEPTH).xrc(&xrcd, &received).build().unwrap());
    let srqns = [0, 1].map(|n: usize| queues[n].number());
    let port = number("PORT").map_or(PortNum::ONE, |port| PortNum::new(port).unwrap());
    let send = QpBuilder::xrc_send(&pd, &sent).port(port).max_inline_bytes(32).build().unwrap();
    let recv = xrcd.recv_qp().port(port).access(AccessFlags::ALL).build().unwrap();
    let (send_end, recv_end) = (send.endpoint(), recv.endpoint());
    let _recv = recv.connect(&send_end).unwrap();
    let mut qp = send.connect(&recv_end).unwrap();
    let plain = QpBuilder::rc(&pd, &sent, &received).port(port).build().unwrap();
    let itself = plain.endpoint();
    let mut plain = plain.connect(&itself).unwrap();
    let (sge, room, remote) = (mr.sge(0..8).unwrap(), mr.sge(64..256).unwrap(), mr.remote(1024).unwrap());
    let mut round = || {
        for queue in &mut queues {
            let mut receives = queue.recv_batch();
            (0..2).for_each(|wr_id| receives.recv(wr_id, &[room]).unwrap());
            // SAFETY: the region outlives the queues, and nothing refers to its memory.
            unsafe { receives.submit().unwrap() };
        }
        let mut sends = qp.send_batch();
        for srqn in srqns {
            let mut to = sends.to_srq(srqn);
            to.send(1, WrFlags::SIGNALED, Inline(b"inline")).unwrap();
            to.write_imm(2, WrFlags::SIGNALED, &[sge], remote, 3).unwrap();
            to.write(3, WrFlags::SIGNALED, &[sge], remote).unwrap();
            to.read(4, WrFlags::SIGNALED, &[sge], remote).unwrap();
            to.fetch_add(5, WrFlags::SIGNALED, sge, remote, 1).unwrap();
        }
        // SAFETY: as above.
        unsafe { sends.submit().unwrap() };
        let mut nops = plain.send_batch();
        nops.nop(6, WrFlags::SIGNALED).unwrap();
        nops.nop(7, WrFlags::SIGNALED | WrFlags::FENCE).unwrap();
        // SAFETY: NOPs name no memory.
        unsafe { nops.submit().unwrap() };
        (0..12).for_each(|_| assert_eq!(one(&mut sent).status(), WcStatus::SUCCESS));
        (0..4).for_each(|_| assert_eq!(one(&mut received).status(), WcStatus::SUCCESS));
    };
    round();
    let allocations = allocations(|| (0..ROUNDS).for_each(|_| round()));
    assert_eq!(allocations, 0, "in {ROUNDS} rounds");
}

#[test]
fn completions_of_every_kind_allocate_nothing() {
    let context = context();
    if matches!(context.cq_builder(8).entry_bytes(128).build(), Err(Error::Unsupported { .. })) {
        return println!("skipped: the driver's completion queues have no options");
    }
    every_kind(&context);
    if let Ok(context) = context.into_provider::<Mlx5>() {
        every_kind(&context);
    }
}

/// Entries of both sizes, stamped and packed; messages with immediate data, and inside their completion; and what is flushed.
fn every_kind<P: Provider>(context: &Context<P>) {
    type With<P> = for<'a> fn(CqBuilder<'a, P>) -> CqBuilder<'a, P>;
    let kinds: [(&str, bool, With<P>); 5] = [
        ("plain", false, |cq| cq),
        ("with data inside", true, |cq| cq),
        ("of 128 bytes, with data inside", true, |cq| cq.entry_bytes(128)),
        ("stamped", false, |cq| cq.stamps(Stamps::Ticks)),
        ("packed", false, |cq| cq.compressed(true)),
    ];
    let port = number("PORT").map_or(PortNum::ONE, |port| PortNum::new(port).unwrap());
    for (name, inside, with) in kinds {
        let pd = context.alloc_pd().unwrap();
        let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
        let cq = || with(context.cq_builder(4 * DEPTH)).build();
        let (mut sent, mut received) = match (cq(), cq()) {
            (Ok(sent), Ok(received)) => (sent, received),
            (Err(error), _) | (_, Err(error)) => {
                println!("skipped: completions {name}: {error}");
                continue;
            }
        };
        let builder = QpBuilder::rc(&pd, &sent, &received).port(port).max_inline_bytes(32).access(AccessFlags::ALL);
        let prepared = builder.max_send_wr(DEPTH).max_recv_wr(DEPTH).data_in_completions(inside).build().unwrap();
        let itself = prepared.endpoint();
        let mut qp = prepared.connect(&itself).unwrap();
        let (room, remote) = (mr.sge(64..128).unwrap(), mr.remote(1024).unwrap());
        let mut values: Vec<Wc> = Vec::with_capacity(DEPTH as usize);
        let mut stamps = 0;
        let mut round = |qp: &mut Qp<P>, is_last: bool| {
            let mut receives = qp.recv_batch();
            (0..8).for_each(|wr_id| receives.recv(wr_id, &[room]).unwrap());
            // SAFETY: the region outlives the queue pair, and nothing refers to its memory.
            unsafe { receives.submit().unwrap() };
            if is_last {
                return;
            }
            let mut sends = qp.send_batch();
            for wr_id in 0..6 {
                sends.send(wr_id, WrFlags::SIGNALED, Inline(b"inline")).unwrap();
            }
            sends.send_imm(6, WrFlags::SIGNALED, Inline(b"inline"), 1).unwrap();
            sends.write_imm(7, WrFlags::SIGNALED, Inline(b"inline"), remote, 2).unwrap();
            // SAFETY: inline payload.
            unsafe { sends.submit().unwrap() };
            let deadline = Deadline::new();
            for cq in [&mut sent, &mut received] {
                let mut left = 8;
                while left > 0 {
                    let mut completions = cq.poll().unwrap();
                    while let Some(completion) = completions.next() {
                        assert_eq!(completion.status(), WcStatus::SUCCESS, "{name}");
                        stamps += u64::from(completion.timestamp().is_some());
                        black_box((completion.inline_data(), completion.wc(), completion.outcome().is_ok()));
                        left -= 1;
                    }
                    deadline.check();
                }
            }
        };
        round(&mut qp, false);
        let counted = allocations(|| (0..ROUNDS / 4).for_each(|_| round(&mut qp, false)));
        assert_eq!(counted, 0, "completions {name}");
        // What is flushed.
        round(&mut qp, true);
        qp.to_error().unwrap();
        let counted = allocations(|| {
            let deadline = Deadline::new();
            while values.len() < 8 {
                values.extend(received.poll_one().unwrap());
                deadline.check();
            }
        });
        assert_eq!(counted, 0, "flushed completions {name}");
        assert!(values.iter().all(|wc| wc.status() == WcStatus::WR_FLUSH_ERR), "{values:?}");
        assert!(stamps > 0, "{name}");
    }
}

#[test]
fn pool_slots_go_round_without_allocating() {
    let context = context();
    Pair::new(&context).slots();
}

/// The device to test on.
fn context() -> Context {
    match env::var("IRONVERBS_TEST_DEVICE") {
        Ok(name) if !name.is_empty() && !name.starts_with("sim:") => Context::open(&name).unwrap(),
        name => simulated(name.is_ok_and(|name| name == "sim:ib")),
    }
}

/// An adapter that works on a thread of its own, whose allocations are not counted.
fn simulated(is_infiniband: bool) -> Context {
    static HOST: LazyLock<(SimHost, Engine)> = LazyLock::new(|| {
        let host = SimHost::new(1);
        host.add(SimDevice::roce("mlx5_0"));
        host.add(SimDevice::infiniband("mlx5_1"));
        let engine = host.fabric().spawn();
        (host, engine)
    });
    let (host, _) = &*HOST;
    Context::open_on(host, &host.devices().unwrap()[usize::from(is_infiniband)]).unwrap()
}

/// Two queue pairs of one device, connected to each other. All completions are signaled.
struct Pair<P: Provider> {
    a: Qp<P>,
    b: Qp<P>,
    sent: Cq<P>,
    received: Cq<P>,
    /// Dropped last.
    mr: Mr<Pages>,
    pd: Pd,
}

impl<P: Provider> Pair<P> {
    fn new(context: &Context<P>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
        let (sent, received) = (context.create_cq(4 * DEPTH).unwrap(), context.create_cq(4 * DEPTH).unwrap());
        let prepare = || {
            let mut builder = QpBuilder::rc(&pd, &sent, &received)
                .max_send_wr(DEPTH)
                .max_recv_wr(DEPTH)
                .max_send_sge(2)
                .max_recv_sge(2)
                .max_inline_bytes(32)
                .port(number("PORT").map_or(PortNum::ONE, |port| PortNum::new(port).unwrap()))
                .access(AccessFlags::ALL);
            if let Some(index) = number("GID_INDEX") {
                builder = builder.gid_index(GidIndex(index));
            }
            builder.build().unwrap()
        };
        let (a, b): (PreparedQp<P>, PreparedQp<P>) = (prepare(), prepare());
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        Self { a: a.connect(&to_b).unwrap(), b: b.connect(&to_a).unwrap(), sent, received, mr, pd }
    }

    /// Every kind of work request, received and polled in every way.
    fn batches(&mut self) {
        let sges = [self.mr.sge(0..8).unwrap(), self.mr.sge(16..24).unwrap()];
        let remote = self.mr.remote(1024).unwrap();
        let mut values: Vec<Wc> = Vec::with_capacity(DEPTH as usize);
        // Once outside the count, for what is set up on first use.
        self.batch(&sges, remote, &mut values);
        let allocations = allocations(|| {
            for _ in 0..ROUNDS {
                self.batch(&sges, remote, &mut values);
            }
        });
        assert_eq!(allocations, 0, "in {ROUNDS} rounds");
    }

    fn batch(&mut self, sges: &[Sge; 2], remote: RemoteAddr, values: &mut Vec<Wc>) {
        const SIGNALED: WrFlags = WrFlags::SIGNALED;
        const RECEIVES: usize = 6;
        const SENDS: usize = 10;
        let mut receives = self.b.recv_batch();
        for wr_id in 0..RECEIVES as u64 {
            receives.recv(wr_id, sges).unwrap();
        }
        // SAFETY: the region outlives the queue pairs, and nothing refers to its memory.
        unsafe { receives.submit().unwrap() };

        let mut sends = self.a.send_batch();
        sends.reserve(SENDS as u32).unwrap();
        sends.send(0, SIGNALED, sges).unwrap();
        sends.send_imm(1, SIGNALED, &sges[..1], 1).unwrap();
        sends.send(2, SIGNALED, Inline(b"inline")).unwrap();
        sends.send(3, SIGNALED, InlinePieces(&[b"in", b"line"])).unwrap();
        sends.write(4, SIGNALED, sges, remote).unwrap();
        sends.write_imm(5, SIGNALED, Inline(b"inline"), remote, 2).unwrap();
        sends.read(6, SIGNALED, sges, remote).unwrap();
        sends.compare_swap(7, SIGNALED, sges[0], remote, 1, 2).unwrap();
        sends.fetch_add(8, SIGNALED, sges[1], remote, 3).unwrap();
        // Fenced work comes last, and is no READ or atomic: rxe never sends again what is fenced while a READ or atomic
        // from there on is under way (rxe_wqe_is_fenced in drivers/infiniband/sw/rxe/rxe_req.c, kernels 6.1 to 6.12).
        sends.send(9, SIGNALED | WrFlags::FENCE | WrFlags::SOLICITED, &[]).unwrap();
        // SAFETY: as above.
        unsafe { sends.submit().unwrap() };

        // A batch that is given up leaves no trace.
        let mut dropped = self.a.send_batch();
        dropped.send(10, SIGNALED, sges).unwrap();
        drop(dropped);

        let deadline = Deadline::new();
        let mut sent = 0;
        while sent < SENDS {
            let mut completions = self.sent.poll().unwrap();
            while let Some(completion) = completions.next() {
                assert_eq!((completion.wr_id(), completion.status()), (sent as u64, WcStatus::SUCCESS));
                assert!(completion.outcome().is_ok());
                sent += 1;
            }
            deadline.check();
        }
        values.clear();
        let mut room = [const { MaybeUninit::uninit() }; 2];
        while values.len() < RECEIVES - 1 {
            values.extend_from_slice(self.received.poll_into(&mut room[..1]).unwrap());
            deadline.check();
        }
        while values.len() < RECEIVES {
            values.extend(self.received.poll_one().unwrap());
            deadline.check();
        }
        assert!(values.iter().all(|wc| wc.status() == WcStatus::SUCCESS), "{values:?}");
    }

    /// A window of each type is bound, the one of type 2 invalidated by either side in turn; what is written is flushed, if
    /// the device can.
    fn windows(&mut self, context: &Context<P>) {
        let mr = self.pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND).unwrap();
        let mut windows = [self.pd.alloc_mw().unwrap(), self.b.alloc_mw().unwrap()];
        // Once outside the count, for what is set up on first use.
        self.window_round(&mr, &mut windows, true);
        let binds = allocations(|| {
            for round in 0..ROUNDS {
                self.window_round(&mr, &mut windows, round % 2 == 0);
            }
        });
        assert_eq!(binds, 0, "in {ROUNDS} rounds of windows");
        let access = AccessFlags::ALL | AccessFlags::FLUSH_GLOBAL;
        if !context.has_flush(FlushPlacement::GLOBAL_VISIBILITY) || !context.has_atomic_write() {
            return println!("skipped: the device has no FLUSH and ATOMIC_WRITE");
        }
        for qp in [&mut self.a, &mut self.b] {
            qp.modify(&QpUpdate::to(QpState::RTS).access(access)).unwrap();
        }
        let mr = self.pd.alloc_mr(4096, access).unwrap();
        let remote = mr.remote(0).unwrap();
        let flushes = allocations(|| {
            for value in 0..ROUNDS {
                let mut batch = self.a.send_batch();
                batch.atomic_write(1, WrFlags::SIGNALED, remote, value).unwrap();
                let level = FlushLevel::Range(8);
                batch.flush(2, WrFlags::SIGNALED, remote, FlushPlacement::GLOBAL_VISIBILITY, level).unwrap();
                // SAFETY: as in `batch`.
                unsafe { batch.submit().unwrap() };
                one(&mut self.sent);
                one(&mut self.sent);
            }
        });
        assert_eq!(flushes, 0, "in {ROUNDS} flushes");
    }

    fn window_round(&mut self, mr: &Mr<Pages>, windows: &mut [Mw; 2], by_peer: bool) {
        for window in &mut *windows {
            let binding = window.plan_bind(mr, 0..64, AccessFlags::REMOTE_WRITE).unwrap();
            self.b.bind_mw(1, window, binding).unwrap();
            assert!(window.observe(&one(&mut self.sent)));
        }
        let window = &mut windows[1];
        if by_peer {
            let mut batch = self.b.recv_batch();
            batch.recv(3, &[]).unwrap();
            // SAFETY: a receive without entries names no memory.
            unsafe { batch.submit().unwrap() };
            let mut batch = self.a.send_batch();
            batch.send_inv(2, WrFlags::SIGNALED, Inline(&[]), window.rkey()).unwrap();
            // SAFETY: as above, inline payload.
            unsafe { batch.submit().unwrap() };
            one(&mut self.sent);
            assert!(window.observe(&one(&mut self.received)));
        } else {
            self.b.invalidate_mw(2, window).unwrap();
            assert!(window.observe(&one(&mut self.sent)));
        }
        assert!(!window.is_bound());
    }

    /// Slots are taken, posted on both sides, and reclaimed.
    fn slots(&mut self) {
        let pool = Pool::new(&self.pd, DEPTH, SLOT).unwrap();
        self.round(&pool);
        let allocations = allocations(|| {
            for _ in 0..ROUNDS {
                self.round(&pool);
            }
        });
        assert_eq!(allocations, 0, "in {ROUNDS} rounds");
    }

    fn round(&mut self, pool: &Pool) {
        for _ in 0..DEPTH / 2 {
            self.b.recv_slot(pool.take().unwrap()).unwrap();
        }
        for fill in 0..DEPTH / 2 {
            let mut slot = pool.take().unwrap();
            slot.fill(fill as u8);
            self.a.send_slot(slot, SLOT as u32).unwrap();
        }
        assert!(pool.take().is_none(), "every slot is posted");
        let deadline = Deadline::new();
        let mut reclaimed = 0;
        while reclaimed < DEPTH {
            for cq in [&mut self.sent, &mut self.received] {
                let mut completions = cq.poll().unwrap();
                while let Some(completion) = completions.next() {
                    let (slot, wc) = pool.reclaim(completion).unwrap();
                    assert_eq!(wc.status(), WcStatus::SUCCESS);
                    drop(slot);
                    reclaimed += 1;
                }
            }
            deadline.check();
        }
    }
}

/// Waits for one completion, which must be a success.
fn one<P: Provider>(cq: &mut Cq<P>) -> Wc {
    let deadline = Deadline::new();
    loop {
        if let Some(wc) = cq.poll_one().unwrap() {
            assert_eq!(wc.status(), WcStatus::SUCCESS);
            return wc;
        }
        deadline.check();
    }
}

/// The number in `IRONVERBS_TEST_…`, if it is set.
fn number<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> Option<T> {
    env::var(format!("IRONVERBS_TEST_{name}")).ok().map(|text| text.parse().unwrap())
}

/// Ends a test whose completions do not come.
struct Deadline(Instant);

impl Deadline {
    fn new() -> Self {
        Self(Instant::now() + Duration::from_secs(30))
    }

    /// Also leaves the processor to the kernel's workers.
    fn check(&self) {
        assert!(Instant::now() < self.0, "the completions did not come");
        std::thread::sleep(Duration::from_micros(20));
    }
}
