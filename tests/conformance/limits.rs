//! Values that cannot be: refused with an error that names the verb, the value, the limit and what to do.

use crate::fixture::{Half, Pair, Setup};
use crate::harness::{skip, step};
use crate::target::{Host, Target};
use crate::tests;
use ironverbs::{AccessFlags, Context, Errno, Error, GidIndex, Mr, PortNum, PostError, QpBuilder, Sge, devices};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

tests! {
    unknown_device,
    devices_are_looked_for_each_time,
    port_that_is_not_there,
    gid_index_that_is_empty,
    every_gid_index_that_is_there,
    gid_choice_is_usable_and_explained,
    completion_queue_depth,
    completion_vector,
    queue_pair_sizes,
    objects_of_two_contexts_do_not_mix,
    region_bounds,
    region_access_that_makes_no_sense,
    memory_lock_limit_is_named,
    queues_fit_a_small_memory_lock_limit,
    messages_too_long,
    errors_keep_the_kernels_number,
}

#[track_caller]
fn expect(error: Error, text: &str) {
    assert_eq!(error.to_string(), text);
}

fn unknown_device(target: &Target) {
    if !matches!(target.host, Host::Linux) {
        skip("simulated devices are not found by their names alone");
    }
    let error = Context::open("rxe_that_is_not").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("no RDMA device named rxe_that_is_not: there is "), "{text}");
    assert!(text.contains(&target.device), "{text}");
}

/// A report of a list that stayed empty because it was looked up once, before the driver was loaded.
fn devices_are_looked_for_each_time(target: &Target) {
    if !matches!(target.host, Host::Linux) {
        skip("simulated devices are not found by their names alone");
    }
    for _ in 0..2 {
        let all = devices().unwrap();
        let info = all.iter().find(|info| info.name == target.device).unwrap();
        info.usable.as_ref().unwrap();
        let context = Context::open_device(info).unwrap();
        assert_eq!((context.info().name.as_str(), context.index()), (target.device.as_str(), info.index));
        assert_eq!(context.attr(), &context.query_device().unwrap());
    }
}

fn port_that_is_not_there(target: &Target) {
    let context = target.open();
    let ports = context.attr().phys_port_cnt;
    let Some(wrong) = ports.checked_add(8).and_then(|n| PortNum::new(n).ok()) else {
        skip(format!("the device has {ports} ports"));
    };
    let there = if ports == 1 { "port 1".to_string() } else { format!("ports 1 to {ports}") };
    let text = |verb| format!("{verb}: port is {wrong}; {} has {there}", target.device);
    expect(context.query_port(wrong).unwrap_err(), &text("query_port"));
    expect(context.query_gid(wrong, GidIndex(0)).unwrap_err(), &text("query_gid"));
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    expect(QpBuilder::rc(&pd, &cq, &cq).port(wrong).build().unwrap_err(), &text("create_qp"));
    assert!(PortNum::new(0).unwrap_err().to_string().contains("ports count from 1"));
    for port in 1..=ports {
        context.query_port(PortNum::new(port).unwrap()).unwrap();
    }
}

fn gid_index_that_is_empty(target: &Target) {
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let empty = (0..=255).rev().map(GidIndex).find(|i| context.query_gid(target.port, *i).ok() == Some(None));
    let Some(empty) = empty else { skip("every GID index of the port is in use") };
    let used: Vec<_> = context.gid_table().unwrap().into_iter().filter(|entry| entry.port == target.port).collect();
    let list = used.iter().map(|entry| entry.index.to_string()).collect::<Vec<_>>().join(", ");
    let error = QpBuilder::rc(&pd, &cq, &cq).port(target.port).gid_index(empty).build().unwrap_err();
    let port = target.port;
    expect(
        error,
        &format!("query_gid: GID index is {empty}; that entry is empty; port {port} has a GID at index {list}"),
    );
}

/// A named index is the one that is used.
fn every_gid_index_that_is_there(target: &Target) {
    let setup = Setup::default();
    let table = target.open().gid_table().unwrap();
    let indexes =
        table.iter().filter(|entry| entry.port == target.port).filter_map(|entry| u8::try_from(entry.index).ok());
    for index in indexes.map(GidIndex) {
        step(format!("GID index {index}"));
        let named = Target {
            gid_index: Some(index),
            device: target.device.clone(),
            peer: target.device.clone(),
            host: target.host.clone(),
            ..*target
        };
        let mut pair = Pair::new(&named, &setup);
        assert_eq!((pair.a.gid_index, pair.b.gid_index), (Some(index), Some(index)));
        let gid = pair.a.context.query_gid(target.port, index).unwrap().unwrap().gid;
        let attr = pair.a.qp.query().unwrap();
        assert_eq!((pair.a.qp.endpoint().gid, attr.dest.sgid_index, attr.dest.dgid), (Some(gid), index.0, gid));
        let remote = pair.b.remote(0);
        pair.a.send(|batch| batch.write(1, ironverbs::WrFlags::SIGNALED, &[], remote));
        pair.a.success();
    }
}

fn gid_choice_is_usable_and_explained(target: &Target) {
    let setup = Setup::default();
    let (context, peer) = (target.open(), target.open_peer());
    let builder_choice = {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let prepared = QpBuilder::rc(&pd, &cq, &cq).port(target.port).build().unwrap();
        (prepared.gid_index(), prepared.gid_choice().is_some(), prepared.endpoint())
    };
    let (index, chosen, endpoint) = builder_choice;
    let Some(index) = index else { skip("the port has no GID, and needs none") };
    assert!(chosen);
    let entry = context.query_gid(target.port, index).unwrap().expect("the chosen GID is there");
    assert_eq!(endpoint.gid, Some(entry.gid));
    assert!(!entry.gid.is_zero());
    let b = Half::new(target, peer, &setup);
    let mut a = Half::new(target, context, &setup).connect(&b.prepared.endpoint(), &setup);
    let b = b.connect(&a.qp.endpoint(), &setup);
    a.send(|batch| batch.write(1, ironverbs::WrFlags::SIGNALED, &[], b.remote(0)));
    a.success();
}

fn completion_queue_depth(target: &Target) {
    let context = target.open();
    let max = context.attr().max_cqe;
    let error = context.create_cq(0).unwrap_err();
    let limit = "a completion queue holds at least one completion";
    expect(error, &format!("create_cq: depth is 0; {limit}; the device takes up to {max}"));
    for depth in [max + 1, u32::MAX] {
        let error = context.create_cq(depth).unwrap_err();
        let limit = "spread the queue pairs over several completion queues";
        expect(error, &format!("create_cq: depth is {depth}; the device takes 1 to {max}; {limit}"));
    }
    assert!(context.create_cq(1).unwrap().capacity() >= 1);
    assert!(context.create_cq(max).unwrap().capacity() >= max);
}

fn completion_vector(target: &Target) {
    let context = target.open();
    let vectors = context.num_comp_vectors();
    assert!(vectors > 0);
    let error = context.cq_builder(4).comp_vector(vectors).build().unwrap_err();
    let text = format!("create_cq: completion vector is {vectors}; the device has {vectors} vectors, counted from 0");
    expect(error, &text);
    context.cq_builder(4).comp_vector(vectors - 1).build().unwrap();
}

fn queue_pair_sizes(target: &Target) {
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let (wr, sge) = (context.attr().max_qp_wr, context.attr().max_sge);
    type Set<'a> = fn(QpBuilder<'a>, u32) -> QpBuilder<'a>;
    let cases: [(&str, Set<'_>, u32, u32); 4] = [
        ("max_send_wr", |b, n| b.max_send_wr(n), 1, wr),
        ("max_recv_wr", |b, n| b.max_recv_wr(n), 0, wr),
        ("max_send_sge", |b, n| b.max_send_sge(n), 0, sge),
        ("max_recv_sge", |b, n| b.max_recv_sge(n), 0, sge),
    ];
    for (what, set, min, max) in cases {
        for value in [min.checked_sub(1), Some(max + 1), Some(u32::MAX)].into_iter().flatten() {
            let error = set(QpBuilder::rc(&pd, &cq, &cq).port(target.port), value).build().unwrap_err();
            expect(error, &format!("create_qp: {what} is {value}; the device takes {min} to {max}"));
        }
    }
    let error = QpBuilder::rc(&pd, &cq, &cq).port(target.port).max_inline_bytes(1 << 20).build().unwrap_err();
    assert!(error.to_string().starts_with("create_qp: "), "{error}");
    assert!(error.to_string().contains("inline"), "it should say what was too much: {error}");
    let least = QpBuilder::rc(&pd, &cq, &cq)
        .port(target.port)
        .max_send_wr(1)
        .max_recv_wr(0)
        .max_send_sge(0)
        .max_recv_sge(0)
        .max_inline_bytes(0);
    assert!(least.build().unwrap().cap().max_send_wr >= 1);
}

fn objects_of_two_contexts_do_not_mix(target: &Target) {
    let (one, two) = (target.open(), target.open());
    let (pd, own, foreign) = (one.alloc_pd().unwrap(), one.create_cq(4).unwrap(), two.create_cq(4).unwrap());
    for (send, recv, which) in [(&foreign, &own, "send"), (&own, &foreign, "receive")] {
        let error = QpBuilder::rc(&pd, send, recv).port(target.port).build().unwrap_err();
        let limit = "it belongs to another context than the protection domain";
        expect(error, &format!("create_qp: {which} completion queue is foreign; {limit}"));
    }
}

fn region_bounds(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mut mr = Mr::register(&pd, vec![1u8; 100], AccessFlags::LOCAL_WRITE).unwrap();
    assert_eq!(mr.len_bytes(), 100);
    for (text, error) in [
        ("0..101", mr.sge(0..101).unwrap_err()),
        ("0..101", mr.sge(..=100).unwrap_err()),
        ("101..100", mr.sge(101..).unwrap_err()),
        ("99..101", mr.read(99, &mut [0; 2]).unwrap_err()),
        ("100..101", mr.write(100, &[0]).unwrap_err()),
        ("18446744073709551615..18446744073709551615", mr.read(usize::MAX, &mut [0; 2]).unwrap_err()),
    ] {
        expect(error, &format!("memory region: range is {text}; the region has bytes 0..100"));
    }
    let error = mr.remote(101).unwrap_err();
    expect(error, "memory region: offset is 101; the region has bytes 0..100");
    let (start, whole) = (mr.sge(..).unwrap(), (mr.addr(), 100));
    assert_eq!((start.addr(), start.length()), whole);
    assert_eq!(start.lkey(), mr.lkey());
    assert_eq!(mr.sge(100..).unwrap().length(), 0);
    let mut bytes = [0; 3];
    mr.write(97, &[7, 8, 9]).unwrap();
    mr.read(97, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 8, 9]);
    expect(pd.alloc_mr(0, AccessFlags::LOCAL_READ).unwrap_err(), "reg_mr: length is 0; a region has at least one byte");
}

fn region_access_that_makes_no_sense(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_READ] {
        let error = pd.alloc_mr(4096, access).unwrap_err();
        let text = format!("reg_mr: access is {access}; remote write and remote atomic need local write as well");
        expect(error, &text);
    }
}

/// Runs `f` with 64 KiB of locked memory, which many systems give by default. A process with CAP_IPC_LOCK has no limit.
fn with_small_limit(target: &Target, f: impl FnOnce()) {
    if target.host.simulated().is_some() {
        skip("simulated devices lock no memory");
    }
    let capabilities = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = capabilities.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    const CAP_IPC_LOCK: u64 = 1 << 14;
    if u64::from_str_radix(effective, 16).unwrap() & CAP_IPC_LOCK != 0 {
        skip("the process has CAP_IPC_LOCK, so it has no limit of locked memory; run it as another user");
    }
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, hard).unwrap();
    f();
    setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard).unwrap();
}

/// Reports of a bare "out of memory" where the limit of locked memory was meant.
fn memory_lock_limit_is_named(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    with_small_limit(target, || {
        let some = pd.alloc_mr(16 << 10, AccessFlags::LOCAL_WRITE).unwrap();
        let error = pd.alloc_mr(1 << 20, AccessFlags::LOCAL_WRITE).unwrap_err();
        drop(some);
        assert_eq!(error.errno(), Some(Errno::ENOMEM));
        for part in ["1048576", "65536", "16384 bytes are pinned already", "ulimit -l", "CAP_IPC_LOCK"] {
            assert!(error.to_string().contains(part), "it should say {part}: {error}");
        }
    });
}

/// Reports of the same error for completion queues and queue pairs, blamed on not being root.
fn queues_fit_a_small_memory_lock_limit(target: &Target) {
    with_small_limit(target, || {
        let mut pair = Pair::new(target, &Setup { mr_bytes: 8192, ..Setup::default() });
        let (entry, remote) = (pair.a.sge(0, 8192), pair.b.remote(0));
        pair.a.send(|batch| batch.write(1, ironverbs::WrFlags::SIGNALED, &[entry], remote));
        pair.a.success();
    });
}

fn messages_too_long(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (half, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    let huge = Sge::from_raw(half.addr(), 1 << 30, half.lkey());
    let entries = [huge, huge, half];
    let refused = pair.a.try_send(|batch| batch.write(1, ironverbs::WrFlags::SIGNALED, &entries, remote));
    assert_eq!(refused, Err(PostError::MessageTooLong));
    pair.a.silent();
}

/// The number is the kernel's own, and the device is told from an empty answer.
fn errors_keep_the_kernels_number(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4).unwrap();
    let error = QpBuilder::rc(&pd, &cq, &cq).port(target.port).max_inline_bytes(1 << 20).build().unwrap_err();
    if !target.kind.is_rxe() {
        // The library computes the ring, and knows before it asks.
        assert!(error.to_string().starts_with("create_qp: max_inline_data is 1048576"), "{error}");
        return;
    }
    assert!(matches!(error.errno(), Some(Errno::EINVAL | Errno::ENOMEM)), "{error:?}");
    assert!(error.to_string().starts_with("create_qp: E"), "{error}");
}
