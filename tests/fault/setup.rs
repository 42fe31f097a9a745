//! The nth command fails, at every step from opening the device to connected queue pairs.

use crate::harness::step;
use crate::scene::{FEWEST_COMMANDS, Freed, Scene, device_mappings, objects};
use crate::target::{Target, open_descriptors};
use crate::tests;
use ironverbs::sys::{Command, Fault, Linux};
use ironverbs::{Errno, Error, ObjectKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tests! {
    every_step_fails_with_einval,
    every_step_fails_with_enomem,
    every_step_fails_when_the_device_goes,
    everything_fails_from_a_step_on,
}

fn every_step_fails_with_einval(target: &Target) {
    sweep(target, Errno::EINVAL);
}

fn every_step_fails_with_enomem(target: &Target) {
    sweep(target, Errno::ENOMEM);
}

fn every_step_fails_when_the_device_goes(target: &Target) {
    sweep(target, Errno::EIO);
}

/// How many commands a whole set-up takes.
fn commands(target: &Target) -> u64 {
    let fault = Fault::new();
    let scene = Scene::watched(target, &fault, &Freed::default());
    let count = fault.count();
    drop(scene);
    assert!(count >= FEWEST_COMMANDS, "only {count} commands were seen");
    count
}

fn sweep(target: &Target, errno: Errno) {
    let freed = Freed::default();
    let (objects_before, descriptors_before) = (objects(target), open_descriptors());
    for n in 0..commands(target) {
        step(format!("command {n} fails with {errno:?}"));
        let fault = Fault::new();
        let sys = fault.wrap_sys(Arc::new(Linux::new()));
        fault.fail_nth(n, errno);
        let mut context = None;
        let Err(error) = Scene::new(target, &*sys, &mut context, &freed) else {
            panic!("it all succeeded although a command failed");
        };
        assert_eq!(fault.injected(), 1);
        expect(&error, errno);
        // The context is still open, so its end cannot hide what was left.
        if let Some(context) = context {
            assert_eq!(objects(target), objects_before, "objects were left: {error}");
            assert!(context.leaks().is_empty(), "{:?} after: {error}", context.leaks());
            if objects_before.is_some() {
                context.alloc_pd().expect("the context works on");
            }
        }
        assert_eq!(device_mappings(), Vec::<String>::new(), "after: {error}");
        assert_eq!(open_descriptors(), descriptors_before, "after: {error}");
    }
    step("without faults");
    drop(Scene::watched(target, &Fault::new(), &freed));
    assert!(freed.get());
    assert_eq!(objects(target), objects_before);
}

/// The error is the injected one, and tells so.
fn expect(error: &Error, errno: Errno) {
    assert_eq!(error.errno(), Some(errno), "{error}");
    match error {
        Error::DeviceGone { .. } => assert_eq!(errno, Errno::EIO),
        Error::Kernel { .. } => {
            assert_ne!(errno, Errno::EIO);
            assert!(error.to_string().contains(errno.name().unwrap()), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// The device is gone from the nth command on: objects are gone with it; only memory is kept, since it may still be in use.
fn everything_fails_from_a_step_on(target: &Target) {
    let descriptors_before = open_descriptors();
    for n in 0..commands(target) {
        step(format!("all commands from {n} on fail with EIO"));
        let fault = Fault::new();
        let sys = fault.wrap_sys(Arc::new(Linux::new()));
        let seen = AtomicU64::new(0);
        fault.fail_matching(move |_: &Command<'_>| seen.fetch_add(1, Ordering::Relaxed) >= n, Errno::EIO);
        let mut context = None;
        let error = Scene::new(target, &*sys, &mut context, &Freed::default()).err().expect("it cannot succeed");
        expect(&error, Errno::EIO);
        if let Some(context) = context {
            let leaks = context.leaks();
            assert!(leaks.iter().all(|leak| leak.kind == ObjectKind::Mr), "{leaks:?}");
        }
        assert_eq!(device_mappings(), Vec::<String>::new());
        assert_eq!(open_descriptors(), descriptors_before);
    }
}
