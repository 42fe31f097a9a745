//! ATOMIC_WRITE and FLUSH: they work, or are refused with the reason before anything reaches the device.

use crate::fixture::{Pair, Setup, assert_sent};
use crate::harness::step;
use crate::seen;
use crate::target::{Kind, Target};
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AccessFlags, Error, FlushLevel, FlushPlacement, Inline, Lacking, PostError, RemoteAddr, WcOpcode, WcStatus, WrFlags,
};

tests! {
    atomic_write,
    flush,
    flush_needs_the_regions_leave,
    persistent_flush_needs_persistent_memory,
    what_the_device_lacks_never_reaches_it,
}

const GLOBAL: FlushPlacement = FlushPlacement::GLOBAL_VISIBILITY;

fn atomic_write(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut Rng::with_seed(211));
    let remote = pair.b.remote(4096);
    if !pair.a.context.has_atomic_write() {
        let refused = pair.a.try_send(|batch| batch.atomic_write(1, WrFlags::SIGNALED, remote, 7));
        assert_eq!(refused, Err(PostError::NoAtomicWrite));
        pair.a.silent();
        pair.check();
        return seen::refused_by("RC ATOMIC_WRITE", Lacking::Device);
    }
    for value in [0, 0x0102_0304_0506_0708, u64::MAX] {
        step(format!("{value:#x}"));
        pair.a.send(|batch| batch.atomic_write(1, WrFlags::SIGNALED, remote, value));
        assert_sent(&pair.a.success(), 1, &pair.a.qp, WcOpcode::ATOMIC_WRITE);
        pair.b.expect(4096, &value.to_ne_bytes());
        pair.check();
    }
    let odd = RemoteAddr { addr: remote.addr + 4, ..remote };
    let refused = pair.a.try_send(|batch| batch.atomic_write(1, WrFlags::SIGNALED, odd, 7));
    assert_eq!(refused, Err(PostError::AtomicAlignment));
    pair.a.silent();
    pair.check();
    seen::works("RC ATOMIC_WRITE");
}

fn flushable(access: AccessFlags) -> Setup {
    Setup { qp_access: AccessFlags::ALL | access, mr_access: AccessFlags::ALL | access, ..Setup::default() }
}

fn flush(target: &Target) {
    if !target.open().has_flush(GLOBAL) {
        let mut pair = Pair::new(target, &Setup::default());
        let remote = pair.b.remote(0);
        let refused = pair.a.try_send(|batch| batch.flush(1, WrFlags::SIGNALED, remote, GLOBAL, FlushLevel::Range(8)));
        assert_eq!(refused, Err(PostError::NoFlush));
        pair.a.silent();
        return seen::refused_by("RC FLUSH", Lacking::Device);
    }
    let mut pair = Pair::new(target, &flushable(AccessFlags::FLUSH_GLOBAL));
    pair.scramble(&mut Rng::with_seed(212));
    let remote = pair.b.remote(100);
    for level in [FlushLevel::Range(5), FlushLevel::Range(0), FlushLevel::Region, FlushLevel::Range(20_000)] {
        step(format!("{level:?}"));
        pair.a.send(|batch| {
            batch.write(1, WrFlags::NONE, Inline(b"flush"), remote)?;
            batch.flush(2, WrFlags::SIGNALED, remote, GLOBAL, level)
        });
        assert_sent(&pair.a.success(), 2, &pair.a.qp, WcOpcode::FLUSH);
        pair.b.expect(100, b"flush");
        pair.check();
    }
    seen::works("RC FLUSH");
}

fn flush_needs_the_regions_leave(target: &Target) {
    if !target.open().has_flush(GLOBAL) {
        crate::harness::skip("the device has no FLUSH");
    }
    for (qp, mr) in
        [(AccessFlags::FLUSH_GLOBAL, AccessFlags::LOCAL_READ), (AccessFlags::LOCAL_READ, AccessFlags::FLUSH_GLOBAL)]
    {
        let setup = Setup { qp_access: AccessFlags::ALL | qp, mr_access: AccessFlags::ALL | mr, ..Setup::default() };
        let mut pair = Pair::new(target, &setup);
        let remote = pair.b.remote(0);
        pair.a.send(|batch| batch.flush(1, WrFlags::SIGNALED, remote, GLOBAL, FlushLevel::Range(8)));
        let status = pair.a.completions(1)[0].status();
        let expected = [WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR];
        assert!(expected.contains(&status), "queue pair {qp}, region {mr}: {status}");
    }
}

/// Soft-RoCE takes the flag for persistent memory only, and says so when the region is made.
fn persistent_flush_needs_persistent_memory(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let flags = AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT;
    if !target.kind.is_rxe() && context.has_flush(FlushPlacement::PERSISTENCE) {
        crate::harness::skip("what the device says to ordinary memory is not known");
    }
    let error = pd.alloc_mr(4096, flags).unwrap_err();
    let text = error.to_string();
    match target.kind {
        Kind::Rxe6_1 => assert!(text.contains("FLUSH_PERSISTENT") && text.contains("bit 39"), "{text}"),
        Kind::Rxe6_12 => assert!(text.contains("EINVAL") && text.contains("FLUSH_PERSISTENT"), "{text}"),
        _ => assert!(matches!(error, Error::Unsupported { by: Lacking::Device, .. }), "{error}"),
    }
    seen::refused("MR FLUSH_PERSISTENT of ordinary memory", &error);
    assert!(pd.alloc_mr(4096, AccessFlags::ALL).is_ok(), "other regions still work");
}

/// Access flags that the device's capabilities do not cover are refused by name, for regions and for queue pairs.
fn what_the_device_lacks_never_reaches_it(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    for (flag, placement) in
        [(AccessFlags::FLUSH_GLOBAL, GLOBAL), (AccessFlags::FLUSH_PERSISTENT, FlushPlacement::PERSISTENCE)]
    {
        if context.has_flush(placement) {
            continue;
        }
        let error = pd.alloc_mr(4096, flag).unwrap_err();
        assert!(matches!(error, Error::Unsupported { by: Lacking::Device, .. }), "{error}");
        let cq = context.create_cq(4).unwrap();
        let error = ironverbs::QpBuilder::rc(&pd, &cq, &cq).port(target.port).access(flag).build().unwrap_err();
        assert!(matches!(error, Error::Unsupported { by: Lacking::Device, .. }), "{error}");
        assert!(error.to_string().contains(&flag.to_string()), "{error}");
    }
}
