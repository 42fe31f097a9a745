//! The kernel refuses to destroy what a program drops: it is told, memory that a device may still use stays, and nothing
//! crashes. These tests leave objects in the kernel, so they come last.

use crate::harness::{descriptors_may_stay, step};
use crate::scene::{Freed, Scene, assert_mappings, device_mappings, objects, send};
use crate::target::Target;
use crate::tests;
use ironverbs::sys::{Command, Fault};
use ironverbs::{AddressHandle, Any, Cq, Errno, Inline, ObjectKind, Pd, QKey, Qp, QpBuilder, Ud, WrFlags};
use std::collections::BTreeSet;
use std::time::Duration;

tests! {
    nth_command_of_the_way_down_is_refused,
    device_that_is_gone_holds_only_memory,
    refused_close_gives_the_object_back,
    refused_window_is_its_owners_to_close,
    refused_queue_pair_counts_until_it_is_gone,
    refused_kind_is_told_and_its_memory_stays,
}

/// One refusal anywhere: what the kernel still has is told as leaked, and nothing else.
fn nth_command_of_the_way_down_is_refused(target: &Target) {
    descriptors_may_stay();
    let freed = Freed::default();
    let fault = Fault::new();
    let (scene, context) = Scene::watched(target, &fault, &freed);
    let before = fault.count();
    drop(scene);
    let n_commands = fault.count() - before;
    drop(context);
    assert!(n_commands >= 6, "two queue pairs, two queues for them, a region and a domain are destroyed");
    for n in 0..n_commands {
        step(format!("command {n} on the way down is refused"));
        let (objects_before, mappings_before) = (objects(target), device_mappings());
        let fault = Fault::new();
        let (scene, context) = Scene::watched(target, &fault, &freed);
        fault.fail_nth(n, Errno::EBUSY);
        drop(scene);
        assert_eq!(fault.injected(), 1);
        let leaks = context.leaks();
        assert!(leaks.iter().all(|leak| leak.errno == Errno::EBUSY), "{leaks:?}");
        // It was asked for again when the next object went.
        assert!(leaks.is_empty() || n + 1 == n_commands, "{leaks:?}");
        if let (Some(before), Some(after)) = (objects_before, objects(target)) {
            // The kernel's list has no windows.
            let listed = leaks.iter().filter(|leak| leak.kind != ObjectKind::Mw).count();
            assert_eq!(after - before, listed as u64, "the kernel has what is leaked: {leaks:?}");
        }
        if leaks.is_empty() {
            assert!(freed.get(), "nothing was leaked, and yet memory was not freed");
            // A context may have mappings of its own.
            drop(context);
            assert_mappings(&mappings_before, "nothing was leaked, and yet queues are still mapped");
        }
        if leaks.iter().any(|leak| leak.kind == ObjectKind::Mr) {
            assert!(!freed.get(), "memory was freed that the device may still use");
        }
    }
}

/// When every command fails because the device went away, its objects are gone. Memory is kept all the same: the kernel
/// answers so before it has ended all transfers.
fn device_that_is_gone_holds_only_memory(target: &Target) {
    let (fault, freed) = (Fault::new(), Freed::default());
    let (scene, context) = Scene::watched(target, &fault, &freed);
    fault.fail_matching(|_| true, Errno::EIO);
    drop(scene);
    let leaks = context.leaks();
    assert!(leaks.iter().all(|leak| leak.kind == ObjectKind::Mr && leak.errno == Errno::EIO), "{leaks:?}");
    assert!(!leaks.is_empty() && !freed.get(), "memory was freed that the device may still use");
}

/// `close` returns the kernel's reason and the object, which works on and can be closed later.
fn refused_close_gives_the_object_back(target: &Target) {
    let (fault, freed) = (Fault::new(), Freed::default());
    let (Scene { windows, a, b, srq, mr, cq, channel, pd }, context) = Scene::watched(target, &fault, &freed);
    drop(windows);
    fault.fail_nth(0, Errno::EBUSY);
    let refused = a.close().unwrap_err();
    assert_eq!(refused.error.errno(), Some(Errno::EBUSY));
    assert!(refused.error.to_string().starts_with("destroy_qp: EBUSY"), "{}", refused.error);
    refused.object.query().unwrap();
    refused.object.close().unwrap();
    b.close().unwrap();

    fault.fail_nth(0, Errno::EBUSY);
    let refused = srq.close().unwrap_err();
    assert_eq!(refused.error.errno(), Some(Errno::EBUSY));
    assert!(refused.error.to_string().starts_with("destroy_srq: EBUSY"), "{}", refused.error);
    refused.object.query().unwrap();
    refused.object.close().unwrap();

    fault.fail_nth(0, Errno::EBUSY);
    let refused = mr.close().unwrap_err();
    assert_eq!(refused.error.errno(), Some(Errno::EBUSY));
    assert!(!freed.get());
    let memory = refused.object.close().unwrap();
    assert!(!freed.get(), "it was given back");
    drop(memory);
    assert!(freed.get());

    fault.fail_nth(0, Errno::EBUSY);
    let refused = cq.close().unwrap_err();
    assert_eq!(refused.error.errno(), Some(Errno::EBUSY));
    let mut cq = refused.object;
    assert_eq!(cq.poll_one().unwrap(), None);
    cq.close().unwrap();
    drop((channel, pd));
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
}

/// A window of type 2 goes before its queue pair; if that is refused, its owner has it still. Whenever it goes, what gets its number
/// then is not taken for it.
fn refused_window_is_its_owners_to_close(target: &Target) {
    for stays in [true, false] {
        let (fault, freed) = (Fault::new(), Freed::default());
        let (scene, context) = Scene::watched(target, &fault, &freed);
        let Scene { windows: [_type_1, window], a, b, srq: _srq, mr: _mr, cq: _cq, channel: _channel, pd: _pd } = scene;
        if stays {
            fault.fail_matching(|command| command.name() == "MW.DESTROY", Errno::EPERM);
        } else {
            fault.fail_nth(0, Errno::EPERM);
        }
        a.close().unwrap();
        let leaks: Vec<_> = context.leaks().into_iter().map(|leak| (leak.kind, leak.errno)).collect();
        if stays {
            assert_eq!(leaks, [(ObjectKind::Mw, Errno::EPERM)]);
            let refused = window.close().unwrap_err();
            assert_eq!(refused.error.errno(), Some(Errno::EPERM), "{}", refused.error);
            fault.clear();
            refused.object.close().unwrap();
            assert_eq!(context.leaks(), vec![]);
            let another = b.alloc_mw().unwrap();
            drop(context.alloc_pd().unwrap());
            another.close().unwrap();
        } else {
            assert_eq!((leaks, fault.injected()), (vec![], 1), "it went when the queue pair did");
            let another = b.alloc_mw().unwrap();
            window.close().unwrap();
            another.close().unwrap();
        }
    }
}

/// It may put completions into its queues as long as it is there, and not longer.
fn refused_queue_pair_counts_until_it_is_gone(target: &Target) {
    let (fault, freed) = (Fault::new(), Freed::default());
    let (scene, context) = Scene::watched(target, &fault, &freed);
    let Scene { windows, a, b, srq, mr: _mr, mut cq, channel: _channel, pd } = scene;
    drop(windows);
    fault.fail_matching(|command| command.name() == "QP.DESTROY", Errno::EPERM);
    drop((a, b));
    fault.clear();
    assert_eq!((context.leaks().len(), cq.load().queue_pairs), (2, 2));
    drop(context.alloc_pd().unwrap());
    assert_eq!((context.leaks(), cq.load().queue_pairs, cq.load().demand), (vec![], 0, 0));
    srq.close().unwrap();
    let mut qp = connected_to_itself(target, &pd, &cq);
    qp.scope(&mut cq, Duration::from_secs(20), |_| Ok(())).unwrap();
    drop(qp);
    cq.close().unwrap();
}

fn connected_to_itself(target: &Target, pd: &Pd, cq: &Cq) -> Qp {
    let mut builder = QpBuilder::rc(pd, cq, cq).port(target.port);
    if let Some(index) = target.gid_index {
        builder = builder.gid_index(index);
    }
    let prepared = builder.build().unwrap();
    let own = prepared.endpoint();
    prepared.connect(&own).unwrap()
}

/// A queue pair of the scene's that has sent a datagram to itself, and the address of that.
fn datagrams(target: &Target, scene: &Scene) -> (AddressHandle, Qp<Any, Ud>) {
    let mut builder = QpBuilder::ud(&scene.pd, &scene.cq, &scene.cq).port(target.port).max_inline_bytes(8);
    if let Some(index) = target.gid_index {
        builder = builder.gid_index(index);
    }
    let mut qp = builder.build().unwrap().activate().unwrap();
    let (own, ah) = (qp.qpn(), qp.create_ah(&qp.endpoint()).unwrap());
    send(&mut qp, |batch| batch.send_to(1, WrFlags::SIGNALED, Inline(b"x"), ah.to(own, QKey(0)))).unwrap();
    (ah, qp)
}

/// A kind of object whose destruction is refused for good, and with it of all that it uses.
fn refused_kind_is_told_and_its_memory_stays(target: &Target) {
    descriptors_may_stay();
    let cases: [(&str, ObjectKind, &[ObjectKind]); 7] = [
        ("MW.DESTROY", ObjectKind::Mw, &[ObjectKind::Mw, ObjectKind::Pd]),
        ("QP.DESTROY", ObjectKind::Qp, &[ObjectKind::Qp, ObjectKind::Srq, ObjectKind::Cq, ObjectKind::Pd]),
        ("SRQ.DESTROY", ObjectKind::Srq, &[ObjectKind::Srq, ObjectKind::Pd]),
        ("MR.DESTROY", ObjectKind::Mr, &[ObjectKind::Mr, ObjectKind::Pd]),
        ("AH.DESTROY", ObjectKind::Ah, &[ObjectKind::Ah, ObjectKind::Pd]),
        ("CQ.DESTROY", ObjectKind::Cq, &[ObjectKind::Cq]),
        ("PD.DESTROY", ObjectKind::Pd, &[ObjectKind::Pd]),
    ];
    for (name, kind, all) in cases {
        step(name);
        let objects_before = objects(target);
        let (fault, freed) = (Fault::new(), Freed::default());
        let (scene, context) = Scene::watched(target, &fault, &freed);
        let datagrams = datagrams(target, &scene);
        fault.fail_matching(move |command: &Command<'_>| command.name() == name, Errno::EPERM);
        drop((datagrams, scene));
        fault.clear();
        let leaks = context.leaks();
        let kinds: BTreeSet<_> = leaks.iter().map(|leak| leak.kind.to_string()).collect();
        let expected: BTreeSet<_> = all.iter().map(|kind| kind.to_string()).collect();
        assert_eq!(kinds, expected, "{leaks:?}");
        for leak in &leaks {
            assert_eq!(leak.errno, if leak.kind == kind { Errno::EPERM } else { Errno::EBUSY }, "{leak}");
        }
        let handles: BTreeSet<_> = leaks.iter().map(|leak| leak.handle).collect();
        assert_eq!(handles.len(), leaks.len(), "told once each: {leaks:?}");
        assert_eq!(freed.get(), kind != ObjectKind::Mr);
        if let (Some(before), Some(after)) = (objects_before, objects(target)) {
            let listed = leaks.iter().filter(|leak| !matches!(leak.kind, ObjectKind::Mw | ObjectKind::Ah)).count();
            assert_eq!(after - before, listed as u64, "{leaks:?}");
        }
        // A new set-up beside what was leaked works.
        drop(Scene::watched(target, &Fault::new(), &Freed::default()));
        // All of it goes with the file, which is closed although queues that were left hold on to it.
        fault.fail_matching(move |command: &Command<'_>| command.name() == name, Errno::EPERM);
        drop(context);
        assert_eq!(objects(target), objects_before, "the file is still open");
    }
}
