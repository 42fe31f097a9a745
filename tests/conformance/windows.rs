//! Memory windows: what a peer reaches through one, and when it no longer does.

use crate::fixture::{Pair, Setup, assert_sent, eventually};
use crate::harness::step;
use crate::seen;
use crate::target::{Kind, Target};
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AccessFlags, Inline, Mw, MwBinding, MwType, PostError, Qp, RemoteAddr, Rkey, Wc, WcOpcode, WcStatus, WrFlags,
};
use std::time::{Duration, Instant};

tests! {
    type_1_is_bound_rebound_and_unbound,
    type_2_is_bound_and_invalidated,
    peer_invalidates_with_a_send,
    access_is_the_windows_own,
    stale_keys_are_refused,
    zero_based_window,
    bind_through_a_batch,
    requests_that_make_no_sense_are_refused,
    bindings_that_cannot_be_are_refused,
    failed_bind_is_told,
    flushed_bind_leaves_open_whether_it_was_done,
    region_outlives_its_windows_or_leaks,
    queue_pair_goes_with_its_windows,
    shutdown_goes_with_its_windows,
}

const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE;

/// Regions that peers reach through windows only.
fn setup() -> Setup {
    Setup { mr_access: ACCESS | AccessFlags::MW_BIND, ..Setup::default() }
}

fn everything() -> AccessFlags {
    AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC
}

/// Binds on side `b` and waits until it is done.
fn bind(pair: &mut Pair, window: &mut Mw, binding: MwBinding) -> Wc {
    pair.b.qp.bind_mw(77, window, binding).unwrap();
    let wc = pair.b.success();
    assert!(window.observe(&wc), "{wc:?}");
    assert_sent(&wc, 77, &pair.b.qp, WcOpcode::BIND_MW);
    assert_eq!(window.rkey(), binding.rkey());
    wc
}

/// A write from `a`, and how it ended.
fn write(pair: &mut Pair, remote: RemoteAddr, bytes: &[u8]) -> WcStatus {
    pair.a.send(|batch| batch.write(5, WrFlags::SIGNALED, Inline(bytes), remote));
    pair.a.completions(1)[0].status()
}

/// Both queue pairs are in the error state now; a new pair of the same kind.
fn assert_refused(pair: &mut Pair, remote: RemoteAddr) {
    assert_eq!(write(pair, remote, b"must not arrive"), WcStatus::REM_ACCESS_ERR);
    pair.b.check("b");
}

fn type_1_is_bound_rebound_and_unbound(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    pair.scramble(&mut Rng::with_seed(201));
    let mut window = pair.b.pd.alloc_mw().unwrap();
    assert_eq!((window.mw_type(), window.is_bound()), (MwType::Type1, false));
    let first = window.rkey();
    let mut keys = vec![first];
    for (start, len) in [(0, 4096), (4096, 1000), (100, 1)] {
        step(format!("bound to {len} bytes at {start}"));
        let binding = window.plan_bind(&pair.b.mr, start..start + len, everything()).unwrap();
        assert_eq!(binding.rkey(), window.rkey().next_key());
        bind(&mut pair, &mut window, binding);
        assert!(window.is_bound() && !keys.contains(&window.rkey()));
        keys.push(window.rkey());
        assert_eq!(write(&mut pair, binding.remote(), &[start as u8]), WcStatus::SUCCESS);
        pair.b.expect(start, &[start as u8]);
        pair.b.check("b");
    }
    let nothing = window.plan_unbind().unwrap();
    bind(&mut pair, &mut window, nothing);
    assert!(!window.is_bound());
    let addr = pair.b.mr.iova();
    assert_refused(&mut pair, RemoteAddr { addr, rkey: window.rkey() });
    assert!(keys.iter().all(|key| key.0 >> 8 == first.0 >> 8), "only the low 8 bits change: {keys:?}");
    window.close().unwrap();
    seen::works("MW type 1 bind");
}

fn type_2_is_bound_and_invalidated(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    pair.scramble(&mut Rng::with_seed(202));
    let mut window = pair.b.qp.alloc_mw().unwrap();
    assert_eq!((window.mw_type(), window.is_bound()), (MwType::Type2, false));
    for round in 0..3u8 {
        let binding = window.plan_bind(&pair.b.mr, 64..128, everything()).unwrap();
        bind(&mut pair, &mut window, binding);
        assert_eq!(write(&mut pair, binding.remote(), &[round; 8]), WcStatus::SUCCESS);
        pair.b.expect(64, &[round; 8]);
        pair.b.check("b");
        pair.b.qp.invalidate_mw(78, &mut window).unwrap();
        let wc = pair.b.success();
        assert!(window.observe(&wc));
        assert_sent(&wc, 78, &pair.b.qp, WcOpcode::LOCAL_INV);
        assert!(!window.is_bound());
    }
    let addr = pair.b.mr.iova() + 64;
    assert_refused(&mut pair, RemoteAddr { addr, rkey: window.rkey() });
    seen::works("MW type 2 bind");
    seen::works("RC LOCAL_INV");
}

/// The receiver learns which key is gone; everything else does not look like an immediate.
fn peer_invalidates_with_a_send(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    pair.scramble(&mut Rng::with_seed(203));
    let mut window = pair.b.qp.alloc_mw().unwrap();
    for len in [0, 1, 40] {
        let binding = window.plan_bind(&pair.b.mr, 64..128, everything()).unwrap();
        bind(&mut pair, &mut window, binding);
        let room = [pair.b.sge(8192, 64)];
        pair.b.recv(9, &room);
        let message = vec![0x5a; len];
        pair.a.send(|batch| batch.send_inv(6, WrFlags::SIGNALED, Inline(&message), binding.rkey()));
        let sent = pair.a.success();
        assert_sent(&sent, 6, &pair.a.qp, WcOpcode::SEND);
        assert_eq!(sent.invalidated_rkey(), None, "the sender has invalidated nothing of its own");
        let wc = pair.b.success();
        let done = wc.outcome().unwrap();
        assert_eq!((done.opcode, done.byte_len as usize, done.imm), (WcOpcode::RECV, len, None));
        assert_eq!(wc.invalidated_rkey(), Some(binding.rkey()));
        pair.b.expect(8192, &message);
        pair.b.check("b");
        assert!(window.is_bound() && window.observe(&wc) && !window.is_bound());
    }
    let addr = pair.b.mr.iova() + 64;
    assert_refused(&mut pair, RemoteAddr { addr, rkey: window.rkey() });
    seen::works("RC SEND with invalidate");
}

fn access_is_the_windows_own(target: &Target) {
    for (allowed, op) in [
        (AccessFlags::REMOTE_READ, "write"),
        (AccessFlags::REMOTE_WRITE, "read"),
        (AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE, "atomic"),
    ] {
        step(format!("{op} with {allowed}"));
        let mut pair = Pair::new(target, &setup());
        pair.scramble(&mut Rng::with_seed(204));
        let mut window = pair.b.pd.alloc_mw().unwrap();
        let binding = window.plan_bind(&pair.b.mr, 0..64, allowed).unwrap();
        bind(&mut pair, &mut window, binding);
        let (entry, remote) = (pair.a.sge(0, 8), binding.remote());
        pair.a.send(|batch| match op {
            "write" => batch.write(5, WrFlags::SIGNALED, &[entry], remote),
            "read" => batch.read(5, WrFlags::SIGNALED, &[entry], remote),
            _ => batch.fetch_add(5, WrFlags::SIGNALED, entry, remote, 1),
        });
        assert_eq!(pair.a.completions(1)[0].status(), WcStatus::REM_ACCESS_ERR);
        pair.check();
    }
}

/// A key of an earlier binding opens nothing, though it differs in its low 8 bits only.
fn stale_keys_are_refused(target: &Target) {
    for stale in [0, 1] {
        let mut pair = Pair::new(target, &setup());
        let mut window = pair.b.pd.alloc_mw().unwrap();
        let mut keys = vec![window.rkey()];
        for _ in 0..2 {
            let binding = window.plan_bind(&pair.b.mr, .., everything()).unwrap();
            bind(&mut pair, &mut window, binding);
            keys.push(binding.rkey());
        }
        let addr = pair.b.mr.iova();
        assert_refused(&mut pair, RemoteAddr { addr, rkey: keys[stale] });
    }
}

fn zero_based_window(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    pair.scramble(&mut Rng::with_seed(205));
    let mut window = pair.b.qp.alloc_mw().unwrap();
    let access = everything() | AccessFlags::ZERO_BASED;
    let binding = window.plan_bind(&pair.b.mr, 256..512, access).unwrap();
    assert_eq!(binding.remote().addr, 0);
    bind(&mut pair, &mut window, binding);
    assert_eq!(write(&mut pair, RemoteAddr { addr: 3, ..binding.remote() }, b"zero"), WcStatus::SUCCESS);
    pair.b.expect(259, b"zero");
    pair.b.check("b");
    seen::works("MW type 2 zero based");
}

/// A bind and what relies on it in one batch: the device carries them out in order.
fn bind_through_a_batch(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    pair.scramble(&mut Rng::with_seed(206));
    let room = [pair.a.sge(0, 64)];
    pair.a.recv(1, &room);
    let mut window = pair.b.qp.alloc_mw().unwrap();
    let binding = window.plan_bind(&pair.b.mr, 0..64, everything()).unwrap();
    let key = binding.rkey().0.to_ne_bytes();
    pair.b.send(|batch| {
        batch.bind_mw(1, WrFlags::NONE, &mut window, binding)?;
        batch.send(2, WrFlags::SIGNALED, Inline(&key))
    });
    let done = pair.b.successes(2);
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert!(window.observe(&done[0]) && !window.observe(&done[1]) && window.is_bound());
    pair.a.success();
    let told = Rkey(u32::from_ne_bytes(pair.a.bytes(0, 4).try_into().unwrap()));
    assert_eq!(told, binding.rkey());
    pair.b.send(|batch| batch.local_inv(3, WrFlags::NONE, &mut window));
    assert!(window.observe(&pair.b.success()) && !window.is_bound());
    // A receive that has the number of the bind says nothing about it.
    let binding = window.plan_bind(&pair.b.mr, 0..64, everything()).unwrap();
    let room = [pair.b.sge(64, 64)];
    pair.b.recv(6, &room);
    pair.b.qp.bind_mw(6, &mut window, binding).unwrap();
    pair.a.send(|batch| batch.send(7, WrFlags::SIGNALED, Inline(b"number")));
    let mut done = pair.b.successes(2);
    done.sort_by_key(|wc| !wc.outcome().unwrap().opcode.is_recv());
    assert!(done.iter().all(|wc| wc.wr_id == 6));
    assert!(!window.observe(&done[0]) && !window.is_bound() && window.observe(&done[1]) && window.is_bound());
    pair.a.success();
    pair.b.send(|batch| batch.local_inv(3, WrFlags::NONE, &mut window));
    assert!(window.observe(&pair.b.success()) && !window.is_bound());
    // A batch that is dropped binds nothing, and its request is given up.
    let binding = window.plan_bind(&pair.b.mr, 0..64, everything()).unwrap();
    let mut dropped = pair.b.qp.send_batch();
    dropped.bind_mw(4, WrFlags::NONE, &mut window, binding).unwrap();
    drop(dropped);
    assert_eq!(pair.b.qp.bind_mw(5, &mut window, binding), Err(PostError::WindowBusy));
    window.give_up();
    bind(&mut pair, &mut window, binding);
}

/// Nothing of these reaches the device: an invalidate of a window that is not bound brings some kernels down.
fn requests_that_make_no_sense_are_refused(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    let mut other = Pair::new(target, &setup());
    let (mut one, mut two) = (pair.b.pd.alloc_mw().unwrap(), pair.b.qp.alloc_mw().unwrap());
    assert_eq!(pair.b.qp.invalidate_mw(1, &mut two), Err(PostError::NotBound), "bound to nothing");
    let binding = two.plan_bind(&pair.b.mr, 0..8, everything()).unwrap();
    bind(&mut pair, &mut two, binding);
    assert_eq!(pair.b.qp.bind_mw(1, &mut two, binding), Err(PostError::StaleBinding));
    let again = two.plan_bind(&pair.b.mr, 0..8, everything()).unwrap();
    assert_eq!(pair.b.qp.bind_mw(1, &mut two, again), Err(PostError::WindowBound));
    assert_eq!(other.b.qp.invalidate_mw(1, &mut two), Err(PostError::ForeignPd));
    pair.b.qp.invalidate_mw(1, &mut two).unwrap();
    assert_eq!(pair.b.qp.invalidate_mw(2, &mut two), Err(PostError::WindowBusy));
    assert!(two.observe(&pair.b.success()));
    assert_eq!(pair.b.qp.invalidate_mw(1, &mut two), Err(PostError::NotBound), "invalidated already");
    let binding = one.plan_bind(&pair.b.mr, 0..8, everything()).unwrap();
    assert_eq!(pair.b.qp.bind_mw(1, &mut two, binding), Err(PostError::StaleBinding), "of another window");
    bind(&mut pair, &mut one, binding);
    assert_eq!(pair.b.qp.invalidate_mw(1, &mut one), Err(PostError::NotBound), "of type 1");
    // A queue pair of the same domain that the window is not of.
    let mut sibling = sibling(target, &pair);
    let binding = two.plan_bind(&pair.b.mr, 0..8, everything()).unwrap();
    assert_eq!(sibling.bind_mw(1, &mut two, binding), Err(PostError::ForeignWindow));
    pair.b.silent();
    other.b.silent();
}

/// Another queue pair of side `b`'s protection domain, connected to nobody that listens.
fn sibling(target: &Target, pair: &Pair) -> Qp {
    let prepared = crate::fixture::prepare(target, &pair.b.pd, &pair.b.cq, &pair.b.cq, &setup());
    let to = prepared.endpoint();
    crate::fixture::connect(prepared, &to, &setup())
}

fn bindings_that_cannot_be_are_refused(target: &Target) {
    let pair = Pair::new(target, &setup());
    let (one, two) = (pair.b.pd.alloc_mw().unwrap(), pair.b.qp.alloc_mw().unwrap());
    let plain = pair.b.pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let read_only = pair.b.pd.alloc_mr(4096, AccessFlags::MW_BIND).unwrap();
    let foreign = pair.b.context.alloc_pd().unwrap().alloc_mr(4096, ACCESS | AccessFlags::MW_BIND).unwrap();
    for (error, text) in [
        (one.plan_bind(&plain, .., everything()), "register it with MW_BIND"),
        (one.plan_bind(&read_only, .., everything()), "needs a region with LOCAL_WRITE"),
        (one.plan_bind(&foreign, .., everything()), "of another protection domain"),
        (one.plan_bind(&pair.b.mr, 5..5, everything()), "length is 0"),
        (one.plan_bind(&pair.b.mr, ..usize::MAX, everything()), "the region has bytes"),
        (one.plan_bind(&pair.b.mr, .., everything() | AccessFlags::ZERO_BASED), "a window of type 1 takes"),
        (one.plan_bind(&pair.b.mr, .., AccessFlags::LOCAL_WRITE), "access is LOCAL_WRITE; a window of type 1 takes"),
        (two.plan_bind(&pair.b.mr, .., AccessFlags::LOCAL_READ), "access is LOCAL_READ; a window takes"),
        (two.plan_unbind(), "only one of type 1 is bound to nothing"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("bind_mw: ") || error.starts_with("memory region: "), "{error}");
        assert!(error.contains(text), "it should say {text}: {error}");
    }
}

/// A region that was deregistered before its bind is carried out: the bind fails, and the window stays as it was.
fn failed_bind_is_told(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    let mut window = pair.b.qp.alloc_mw().unwrap();
    let mr = pair.b.pd.alloc_mr(4096, ACCESS | AccessFlags::MW_BIND).unwrap();
    let binding = window.plan_bind(&mr, .., everything()).unwrap();
    let key = window.rkey();
    mr.close().unwrap();
    pair.b.qp.bind_mw(1, &mut window, binding).unwrap();
    let wc = pair.b.completions(1)[0];
    assert!(window.observe(&wc));
    assert_eq!((window.is_bound(), window.rkey()), (false, key));
    match target.kind {
        Kind::Rxe6_1 => assert_eq!(wc.status(), WcStatus::MW_BIND_ERR),
        Kind::Rxe6_12 => assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR),
        _ => assert_ne!(wc.status(), WcStatus::SUCCESS),
    }
}

/// The kernel flushes what it has carried out, too, if a request before it fails.
fn flushed_bind_leaves_open_whether_it_was_done(target: &Target) {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut pair = Pair::new(target, &setup());
        let mut window = match mw_type {
            MwType::Type1 => pair.b.pd.alloc_mw().unwrap(),
            MwType::Type2 => pair.b.qp.alloc_mw().unwrap(),
        };
        let binding = window.plan_bind(&pair.b.mr, .., everything()).unwrap();
        pair.b.qp.to_error().unwrap();
        pair.b.qp.bind_mw(1, &mut window, binding).unwrap();
        let wc = pair.b.completions(1)[0];
        assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
        assert!(window.observe(&wc) && !window.is_bound());
        assert_eq!(pair.b.qp.bind_mw(2, &mut window, binding), Err(PostError::WindowUnknown));
        assert_eq!(pair.b.qp.invalidate_mw(2, &mut window), Err(PostError::NotBound));
        window.close().unwrap();
    }
}

/// The kernel does not let go of a region that a window is bound to. With `close` it comes back whole.
fn region_outlives_its_windows_or_leaks(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    let mr = pair.b.pd.alloc_mr(4096, ACCESS | AccessFlags::MW_BIND).unwrap();
    let mut window = pair.b.pd.alloc_mw().unwrap();
    let binding = window.plan_bind(&mr, .., everything()).unwrap();
    bind(&mut pair, &mut window, binding);
    if target.kind.is_rxe() {
        let refused = mr.close().unwrap_err();
        let text = refused.error.to_string();
        assert!(text.starts_with("dereg_mr: EINVAL") && text.contains("a memory window may still be bound"), "{text}");
        window.close().unwrap();
        refused.object.close().unwrap();
    }
    assert!(pair.b.context.leaks().is_empty());
}

/// A bound window holds on to its queue pair in the kernel; it goes first, whatever is dropped first here.
fn queue_pair_goes_with_its_windows(target: &Target) {
    for close_first in [true, false] {
        let mut pair = Pair::new(target, &setup());
        let mut windows: Vec<_> = (0..3).map(|_| pair.b.qp.alloc_mw().unwrap()).collect();
        for window in &mut windows {
            let binding = window.plan_bind(&pair.b.mr, .., everything()).unwrap();
            bind(&mut pair, window, binding);
        }
        let last = windows.pop().unwrap();
        drop(last);
        let started = Instant::now();
        let Pair { a, b } = pair;
        let context = b.context.clone();
        if close_first {
            b.qp.close().unwrap();
            drop(windows);
        } else {
            drop(b.qp);
            for window in windows {
                window.close().unwrap();
            }
        }
        assert!(started.elapsed() < Duration::from_secs(5), "the kernel waited for a window: {:?}", started.elapsed());
        b.mr.close().unwrap();
        drop(a);
        eventually("nothing is left", || context.leaks().is_empty());
    }
}

/// As when a queue pair is dropped: the kernel would wait for a window that is bound, and then free the queue pair under it.
fn shutdown_goes_with_its_windows(target: &Target) {
    let mut pair = Pair::new(target, &setup());
    let mut windows = [pair.b.qp.alloc_mw().unwrap(), pair.b.pd.alloc_mw().unwrap()];
    for window in &mut windows {
        let binding = window.plan_bind(&pair.b.mr, .., everything()).unwrap();
        bind(&mut pair, window, binding);
    }
    let context = pair.b.context.clone();
    let started = Instant::now();
    context.shutdown().unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "the kernel waited for a window: {:?}", started.elapsed());
    drop((pair, windows));
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
}
