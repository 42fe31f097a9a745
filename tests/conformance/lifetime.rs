//! Objects are dropped in any order, at any time, and leave nothing behind.

use crate::fixture::{Half, Pair, SHORT, Setup, Side, prepare, try_recv};
use crate::harness::{skip, step};
use crate::memory::Unmapped;
use crate::target::{Target, fast_forward, open_descriptors};
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AccessFlags, AsyncEvents, CompChannel, Context, Cq, Errno, Mlx5, Mr, Notify, Pd, Provider, Qp, Rxe, Slot, WcStatus,
    WrFlags,
};
use std::env;

tests! {
    any_drop_order_with_work_pending,
    same_device_opened_twice,
    refused_close_gives_the_object_back,
    close_gives_the_memory_back,
    memory_outlives_what_may_write_it,
    queue_pair_outlives_its_completion_queue,
    provider_named_at_compile_time,
    descriptors_are_closed_on_exec,
    failed_creation_leaves_nothing,
    nothing_is_left_in_the_kernel,
    queue_pairs_come_and_go_with_work_pending,
}

/// Whatever a program can hold.
#[expect(dead_code, reason = "held, then dropped")]
enum Held {
    Context(Context),
    Pd(Pd),
    Mr(Mr),
    Cq(Cq),
    Channel(Option<CompChannel>),
    Qp(Box<Qp>),
    Events(AsyncEvents),
    Slot(Option<Slot>),
}

/// Reports of hangs and EBUSY at the end of programs that freed things in another order than the library's authors did.
/// The order is random; `IRONVERBS_TEST_SEED` repeats one that failed.
fn any_drop_order_with_work_pending(target: &Target) {
    let chosen = env::var("IRONVERBS_TEST_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match chosen {
        Some(seed) => seed..seed + 1,
        None => 0..200,
    };
    let before = target.objects();
    let setup = Setup { channel: true, send_wr: 7, recv_wr: 7, mr_bytes: 4096, ..Setup::default() };
    for seed in seeds {
        step(format!("IRONVERBS_TEST_SEED={seed}"));
        let descriptors = open_descriptors();
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair::new(target, &setup);
        let (entry, remote) = (pair.a.sge(0, 1024), pair.b.remote(1024));
        let pool = ironverbs::Pool::new(&pair.b.pd, 3, 64).unwrap();
        // Work of every kind in every state: done and not polled, under way, waiting, waiting for ever; events unread.
        if rng.bool() {
            pair.a.cq.arm(Notify::Any).unwrap();
        }
        pair.b.cq.arm(Notify::Any).unwrap();
        for id in 0..rng.u64(0..3) {
            pair.b.recv(id, &[]);
        }
        if rng.bool() {
            pair.b.qp.recv_slot(pool.take().unwrap()).unwrap();
        }
        let n = rng.u64(0..6);
        pair.a.send(|batch| {
            (0..n).try_for_each(|id| match id % 3 {
                0 => batch.write(id, WrFlags::SIGNALED, &[entry], remote),
                1 => batch.read(id, WrFlags::SIGNALED, &[entry], remote),
                _ => batch.send(id, WrFlags::NONE, &[]),
            })
        });
        if rng.bool() {
            pair.a.cq.poll_one().unwrap();
        }
        if rng.u8(0..4) == 0 {
            pair.b.qp.to_error().unwrap();
        }
        let leaks_of = pair.a.context.clone();
        let mut all = vec![Held::Slot(pool.take())];
        drop(pool);
        for Side { qp, cq, mr, channel, pd, context, .. } in [pair.a, pair.b] {
            all.push(Held::Events(context.async_events()));
            all.extend([
                Held::Context(context),
                Held::Pd(pd),
                Held::Mr(mr),
                Held::Cq(cq),
                Held::Channel(channel),
                Held::Qp(Box::new(qp)),
            ]);
        }
        rng.shuffle(&mut all);
        drop(all);
        assert!(leaks_of.leaks().is_empty(), "{:?}", leaks_of.leaks());
        drop(leaks_of);
        assert_eq!(open_descriptors(), descriptors);
    }
    compare_kernel_objects(target, before);
}

/// The kernel has as many objects as before; without a program to ask, says so.
fn compare_kernel_objects(target: &Target, before: Result<std::collections::BTreeMap<String, u64>, String>) {
    match (before, target.objects()) {
        (Ok(before), Ok(after)) => assert_eq!(after, before, "objects in the kernel"),
        (Err(reason), _) | (_, Err(reason)) => eprintln!("skipped: the kernel's objects are not counted: {reason}"),
    }
}

/// A report of one handle's end closing the other's device.
fn same_device_opened_twice(target: &Target) {
    let setup = Setup::default();
    for first in [true, false] {
        let (one, two) = (target.open(), target.open());
        let one_pd = one.alloc_pd().unwrap();
        let two_pd = two.alloc_pd().unwrap();
        let (gone, stays, pd) = if first { ((one, one_pd), two, two_pd) } else { ((two, two_pd), one, one_pd) };
        drop(gone);
        let cq = stays.create_cq(8).unwrap();
        let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
        let qp = prepare(target, &pd, &cq, &cq, &setup);
        assert!(mr.len_bytes() == 4096 && qp.cap().max_send_wr >= setup.send_wr);
        stays.query_device().unwrap();
    }
}

/// A completion queue in use cannot be destroyed; it comes back and works on.
fn refused_close_gives_the_object_back(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let Pair { a, b } = &mut pair;
    let (entry, remote) = (a.sge(0, 8), b.remote(0));
    let spare = a.context.create_cq(4).unwrap();
    let cq = std::mem::replace(&mut a.cq, spare);
    let refused = cq.close().unwrap_err();
    let text = "destroy_cq: number of queue pairs on it is 1; drop them first";
    assert_eq!(refused.error.to_string(), text);
    std::mem::replace(&mut a.cq, refused.object).close().unwrap();
    a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], remote));
    assert_eq!(a.success().wr_id, 1);
    step("after the queue pair is gone it closes");
    let Pair { a, b: _b } = pair;
    a.qp.close().unwrap();
    a.cq.close().unwrap();
    assert!(a.context.leaks().is_empty());
}

fn close_gives_the_memory_back(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let bytes: Vec<u8> = (0..5000).map(|i| i as u8).collect();
    let mut mr = Mr::register(&pd, bytes.clone(), AccessFlags::LOCAL_WRITE).unwrap();
    mr.write(100, &[1, 2, 3]).unwrap();
    let mut expected = bytes;
    expected[100..103].copy_from_slice(&[1, 2, 3]);
    assert_eq!(mr.close().unwrap(), expected);
    assert_eq!(Mr::register(&pd, vec![7; 33], AccessFlags::LOCAL_READ).unwrap().close().unwrap(), [7; 33]);
}

/// A region that is dropped while a message for it is under way: it fails, and the memory is used for something else.
fn memory_outlives_what_may_write_it(target: &Target) {
    let mut pair = Pair::new(target, &Setup { options: |options| options.retry_count = 1, ..Setup::default() });
    let (entry, len) = (pair.a.sge(0, 16 * 1024), 16 * 1024);
    for round in 0..10 {
        step(format!("round {round}"));
        let mr = Mr::register(&pair.b.pd, vec![0u8; len], AccessFlags::ALL).unwrap();
        let remote = mr.remote(0).unwrap();
        pair.a.send(|batch| (0..4).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
        drop(mr);
        // Most likely the same memory.
        let innocent = vec![0x77u8; len];
        let all = pair.a.completions(4);
        assert!(innocent.iter().all(|byte| *byte == 0x77), "freed memory was written");
        if all.iter().any(|wc| wc.status() != WcStatus::SUCCESS) {
            pair = Pair::new(target, &Setup::default());
        }
    }
}

/// Completions that nobody can poll any more are lost, and nothing else.
fn queue_pair_outlives_its_completion_queue(target: &Target) {
    if !target.kind.is_rxe() {
        skip("a send's place comes back when its completion is polled, and a queue that nobody polls overruns");
    }
    let mut rng = Rng::with_seed(71);
    let mut pair = Pair::new(target, &Setup { cq_depth: 4, ..Setup::default() });
    pair.scramble(&mut rng);
    let spare = pair.a.context.create_cq(1).unwrap();
    drop(std::mem::replace(&mut pair.a.cq, spare));
    for round in 0..100 {
        let (entry, remote) = (pair.a.sge(round * 8, 8), pair.b.remote(round * 8));
        pair.a.settle(target);
        pair.a.send(|batch| batch.write(round as u64, WrFlags::SIGNALED, &[entry], remote));
    }
    pair.b.recv(1, &[]);
    pair.a.send(|batch| batch.send(1, WrFlags::NONE, &[]));
    assert_eq!(pair.b.success().wr_id, 1);
    let written = pair.a.image[..800].to_vec();
    pair.b.expect(0, &written);
    pair.check();
}

/// The same as with the provider chosen at run time, and refused where the device needs another.
fn provider_named_at_compile_time(target: &Target) {
    let context = target.open();
    let wrong =
        if target.kind.is_rxe() { context.into_provider::<Mlx5>().err() } else { context.into_provider::<Rxe>().err() };
    let context = wrong.expect("the context comes back from a provider that is not its own");
    if target.kind.is_rxe() {
        with_provider(target, &context.into_provider::<Rxe>().unwrap());
    } else if let Ok(context) = context.into_provider::<Mlx5>() {
        with_provider(target, &context);
    } else {
        skip("the driver's provider has no name here");
    }
}

fn with_provider<P: Provider>(target: &Target, context: &Context<P>) {
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let pool = ironverbs::Pool::new(&pd, 2, 16).unwrap();
    let builder = || ironverbs::QpBuilder::rc(&pd, &cq, &cq).port(target.port);
    let (one, other) = (builder().build().unwrap(), builder().build().unwrap());
    let (one_end, other_end) = (one.endpoint(), other.endpoint());
    let (mut one, mut other) = (one.connect(&other_end).unwrap(), other.connect(&one_end).unwrap());
    other.recv_slot(pool.take().unwrap()).unwrap();
    let mut slot = pool.take().unwrap();
    slot.copy_from_slice(b"sixteen bytes ok");
    one.send_slot(slot, 16).unwrap();
    let mut received = None;
    let patience = crate::fixture::Patience::new();
    while received.is_none() {
        patience.check("the message is received");
        if let Some(completion) = cq.poll().unwrap().next() {
            let (slot, wc) = pool.reclaim(completion).unwrap();
            received = wc.outcome().unwrap().opcode.is_recv().then_some(slot);
        }
    }
    assert_eq!(*received.unwrap(), *b"sixteen bytes ok");
}

/// A program that starts another one does not hand it the device.
fn descriptors_are_closed_on_exec(target: &Target) {
    if target.host.simulated().is_some() {
        skip("a simulated device has no file");
    }
    let half = Half::new(target, target.open(), &Setup { channel: true, ..Setup::default() });
    let _events = half.context.async_events();
    let mut found = 0;
    for line in open_descriptors() {
        let (fd, what) = line.split_once(" -> ").unwrap();
        if what.contains("uverbs") || what.contains("infiniband") {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            const O_CLOEXEC: u32 = 0o2000000;
            assert_ne!(u32::from_str_radix(flags, 8).unwrap() & O_CLOEXEC, 0, "{line}");
            found += 1;
        }
    }
    assert!(found >= 3, "device, asynchronous events and channel have one each");
}

fn failed_creation_leaves_nothing(target: &Target) {
    let before = target.objects();
    let context = target.open();
    let descriptors = open_descriptors();
    let pd = context.alloc_pd().unwrap();
    for _ in 0..20 {
        let refused = Mr::register(&pd, Unmapped::new(), AccessFlags::LOCAL_WRITE).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::EFAULT), "{refused:?}");
        assert!(Context::open("no such device").is_err());
        let cq = context.create_cq(1).unwrap();
        assert!(ironverbs::QpBuilder::rc(&pd, &cq, &cq).max_inline_bytes(1 << 30).build().is_err());
    }
    assert_eq!(open_descriptors(), descriptors);
    assert!(context.leaks().is_empty());
    drop((pd, context));
    compare_kernel_objects(target, before);
}

/// Runs late, so it also looks at what earlier tests left.
fn nothing_is_left_in_the_kernel(target: &Target) {
    let before = match target.objects() {
        Ok(counts) => counts,
        Err(reason) => crate::harness::skip(reason),
    };
    let setup = Setup { channel: true, ..Setup::default() };
    let half = Half::new(target, target.open(), &setup);
    let with = target.objects().unwrap();
    // The kernel counts contexts; a simulated device has pages of registers for each.
    let of_context = if target.host.simulated().is_some() { "uar" } else { "ctx" };
    assert!(with[of_context] > before[of_context], "{of_context}: the count that this test relies on does not count");
    for kind in ["pd", "cq", "qp", "mr"] {
        assert_eq!(with[kind], before[kind] + 1, "{kind}: the count that this test relies on does not count");
    }
    let peer = Half::new(target, target.open(), &setup);
    let end = half.prepared.endpoint();
    let side = peer.connect(&end, &setup);
    drop((half, side));
    assert_eq!(target.objects().unwrap(), before);
}

/// Reports of completions that were taken for a new connection's: its queue pair had the number of one that was gone, whose
/// flushed requests were still in the completion queue.
fn queue_pairs_come_and_go_with_work_pending(target: &Target) {
    let rounds = env::var("IRONVERBS_TEST_ROUNDS").map_or(1000, |text| text.parse::<u64>().expect("a number"));
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(1024).unwrap();
    let setup = Setup { send_wr: 4, recv_wr: 4, ..Setup::default() };
    let mut numbers = Vec::new();
    let mut came = 0_u64;
    for round in 0..rounds {
        let mut qp = prepare(target, &pd, &cq, &cq, &setup).into_unconnected();
        // Whoever had the number before is gone for good.
        let qpn = qp.qpn().get();
        numbers.push(qpn);
        try_recv(&mut qp, |batch| (0..3).try_for_each(|n| batch.recv(round * 10 + n, &[]))).unwrap();
        if round % 3 != 0 {
            qp.to_error().unwrap();
        }
        if round % 3 == 2 {
            // Some are flushed before they go; without this, a simulated device may never come to it in time.
            fast_forward(SHORT);
        }
        drop(qp);
        while let Some(wc) = cq.poll_one().unwrap() {
            let owner = numbers[(wc.wr_id / 10) as usize];
            assert_eq!(wc.qpn(), owner, "in round {round}: {wc:?}");
            let again = numbers[(wc.wr_id / 10) as usize + 1..].contains(&wc.qpn());
            assert!(!again, "in round {round} another queue pair has the number of this one: {wc:?}");
            came += 1;
        }
    }
    assert!(came <= rounds * 3, "{came} completions");
    assert!(came > 0, "nothing was ever flushed");
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
}
