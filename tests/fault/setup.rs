//! The nth command fails, at every step from opening the device to connected queue pairs.

use crate::harness::step;
use crate::scene::{Freed, Scene, assert_mappings, device_mappings, fewest_commands, objects};
use crate::target::{Target, open_descriptors};
use crate::tests;
use ironverbs::sys::{Command, CommandForm, Fault, Record};
use ironverbs::{Context, Errno, Error, ObjectKind, QpBuilder};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

tests! {
    every_step_fails_with_einval,
    every_step_fails_with_enomem,
    every_step_fails_when_the_device_goes,
    everything_fails_from_a_step_on,
    bytes_tell_the_type_of_each_queue_pair,
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
    assert!(count >= fewest_commands(target), "only {count} commands were seen");
    count
}

fn sweep(target: &Target, errno: Errno) {
    let freed = Freed::default();
    let (objects_before, descriptors_before) = (objects(target), open_descriptors());
    let (mappings_before, mut done_without) = (device_mappings(), 0);
    for n in 0..commands(target) {
        step(format!("command {n} fails with {errno:?}"));
        let fault = Fault::new();
        let sys = fault.wrap_sys(target.host.sys());
        let (seen, refused) = (AtomicU64::new(0), Arc::new(Mutex::new((String::new(), false))));
        let told = refused.clone();
        let nth = move |command: &Command<'_>| {
            let is_nth = seen.fetch_add(1, Ordering::Relaxed) == n;
            if is_nth {
                *told.lock().unwrap() = (command.name(), makes_doorbell_page(command));
            }
            is_nth
        };
        fault.fail_matching(nth, errno);
        let mut context = None;
        let error = match Scene::new(target, &*sys, &mut context, &freed) {
            Err(error) => {
                expect(&error, errno);
                error.to_string()
            }
            Ok(scene) => {
                let (name, is_needless) = &*refused.lock().unwrap();
                assert!(is_needless, "it all succeeded although {name} failed");
                drop(scene);
                assert!(freed.get());
                done_without += 1;
                "it could do without".to_owned()
            }
        };
        assert_eq!(fault.injected(), 1);
        // The context is still open, so its end cannot hide what was left.
        if let Some(context) = context {
            assert_eq!(objects(target), objects_before, "objects were left: {error}");
            assert!(context.leaks().is_empty(), "{:?} after: {error}", context.leaks());
            if objects_before.is_some() {
                context.alloc_pd().expect("the context works on");
            }
        }
        assert_mappings(&mappings_before, format_args!("after: {error}"));
        assert_eq!(open_descriptors(), descriptors_before, "after: {error}");
    }
    // The page, and its mapping.
    let most = if target.kind.is_rxe() { 0 } else { 2 };
    assert!(done_without <= most, "{done_without} commands that failed made no difference");
    step("without faults");
    drop(Scene::watched(target, &Fault::new(), &freed));
    assert!(freed.get());
    assert_eq!(objects(target), objects_before);
}

/// Whether it makes a page of doorbell registers, or maps one. A queue pair that gets no register of its own shares one.
fn makes_doorbell_page(command: &Command<'_>) -> bool {
    // `MLX5_IB_OBJECT_UAR` and `MLX5_IB_METHOD_UAR_OBJ_ALLOC` of `mlx5_user_ioctl_cmds.h`.
    const ALLOC: (u16, u16) = (0x1008, 0x1000);
    command.method() == Some(ALLOC) || command.form() == CommandForm::Map
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
    let (descriptors_before, mappings_before) = (open_descriptors(), device_mappings());
    for n in 0..commands(target) {
        step(format!("all commands from {n} on fail with EIO"));
        let fault = Fault::new();
        let sys = fault.wrap_sys(target.host.sys());
        let seen = AtomicU64::new(0);
        fault.fail_matching(move |_: &Command<'_>| seen.fetch_add(1, Ordering::Relaxed) >= n, Errno::EIO);
        let mut context = None;
        let error = Scene::new(target, &*sys, &mut context, &Freed::default()).err().expect("it cannot succeed");
        expect(&error, Errno::EIO);
        if let Some(context) = context {
            let leaks = context.leaks();
            assert!(leaks.iter().all(|leak| leak.kind == ObjectKind::Mr), "{leaks:?}");
        }
        assert_mappings(&mappings_before, "with all gone");
        assert_eq!(open_descriptors(), descriptors_before);
    }
}

/// What the library says it makes is what it asks the kernel for.
fn bytes_tell_the_type_of_each_queue_pair(target: &Target) {
    let record = Record::new();
    let sys = record.wrap_sys(target.host.sys());
    let info = sys.devices().unwrap().into_iter().find(|info| info.name == target.device).unwrap();
    let context = Context::open_on(&*sys, &info).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    record.take();
    let rc = QpBuilder::rc(&pd, &cq, &cq).port(target.port).build().unwrap();
    let uc = QpBuilder::uc(&pd, &cq, &cq).port(target.port).build().unwrap();
    let ud = QpBuilder::ud(&pd, &cq, &cq).port(target.port).build().unwrap();
    let created: Vec<_> = record.take().into_iter().filter(|command| command.name == "QP.CREATE").collect();
    // Attribute 9, of 8 bytes, mandatory; then its value: IB_QPT_RC, _UC and _UD of `include/rdma/ib_verbs.h`.
    let types: Vec<_> = created
        .iter()
        .map(|command| {
            let attr = command.bytes[24..].chunks_exact(16).find(|attr| attr[..8] == [9, 0, 8, 0, 1, 0, 0, 0]);
            attr.unwrap_or_else(|| panic!("no type in\n{command}"))[8..].to_vec()
        })
        .collect();
    assert_eq!(types, [2_u64, 3, 4].map(|number| number.to_le_bytes().to_vec()));
    drop((rc, uc, ud));
}
