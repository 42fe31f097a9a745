use super::*;
use crate::uverbs::error::Error;
use crate::uverbs::fake::{FakeKernel, Knows};
use crate::uverbs::observe::Fault;
use crate::uverbs::sys::Cdev;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

fn open() -> (Arc<FakeKernel>, Arc<Ucontext>) {
    let kernel = FakeKernel::new(Knows::ALL);
    let ctx = Ucontext::open(kernel.clone() as Arc<dyn Cdev>, &[], &mut []).unwrap();
    (kernel, ctx)
}

/// Its owner still has it: whoever else had it destroyed was refused.
#[test]
fn what_was_refused_can_be_destroyed_by_its_owner() {
    let (kernel, ctx) = open();
    let pd = ctx.alloc_pd(&mut []).unwrap();
    let (window, _) = ctx.alloc_mw(&pd, 2).unwrap();
    for errno in [Errno::ENOMEM, Errno::EINTR] {
        kernel.refuse_destroy(Some(errno));
        assert!(!window.destroy_or_leak());
        assert_eq!(window.destroy().unwrap_err().errno(), Some(errno));
    }
    kernel.refuse_destroy(None);
    window.destroy().unwrap();
    assert_eq!((ctx.leaks(), kernel.live()), (vec![], vec![pd.id()]));
}

/// The kernel gives the number of what is gone to the next object.
#[test]
fn what_is_gone_is_not_asked_for_by_its_number() {
    let (kernel, ctx) = open();
    let (pd, other) = (ctx.alloc_pd(&mut []).unwrap(), ctx.alloc_pd(&mut []).unwrap());
    let (window, _) = ctx.alloc_mw(&pd, 2).unwrap();
    kernel.refuse_destroy(Some(Errno::ENOMEM));
    assert!(!window.destroy_or_leak());
    kernel.refuse_destroy(None);
    drop(other);
    assert_eq!((ctx.leaks(), kernel.live()), (vec![], vec![pd.id()]));
    kernel.take_log();
    window.destroy().unwrap();
    // Nor is what is left with it taken for another's.
    let serial = ctx.leaks.record(Leak { kind: ObjectKind::Mw, handle: window.id(), errno: Errno::EBUSY }, None);
    let memory = Arc::new(());
    window.leave(Box::new(memory.clone()));
    assert_eq!(Arc::strong_count(&memory), 1);
    ctx.leaks.leave(serial, Box::new(memory.clone()));
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(window);
    assert_eq!(kernel.take_log(), Vec::<String>::new());
}

/// Also by whoever sees the command on its way.
#[test]
fn the_list_can_be_read_while_the_kernel_is_asked() {
    let (kernel, fault) = (FakeKernel::new(Knows::ALL), Fault::new());
    let ctx = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap();
    let (pd, other) = (ctx.alloc_pd(&mut []).unwrap(), ctx.alloc_pd(&mut []).unwrap());
    kernel.refuse_destroy(Some(Errno::ENOMEM));
    drop(pd);
    kernel.refuse_destroy(None);
    let (weak, (seen, all)) = (Arc::downgrade(&ctx), mpsc::channel());
    let look = move |_: &crate::sys::Command<'_>| {
        seen.send(weak.upgrade().map_or(0, |ctx| ctx.leaks().len())).unwrap();
        false
    };
    fault.fail_matching(look, Errno::EIO);
    thread::spawn(move || drop(other));
    let seen: Vec<_> =
        (0..2).map(|_| all.recv_timeout(Duration::from_secs(20)).expect("it waits for itself")).collect();
    assert_eq!(seen, [1, 1], "the other one's end, and the question");
}

#[test]
fn many_that_stay_do_not_hold_up_those_that_go() {
    let (kernel, ctx) = open();
    let file = File::open("/dev/null").unwrap();
    let regions: Vec<_> = (0..A_FEW + 10)
        .map(|_| {
            let pd = ctx.alloc_pd(&mut []).unwrap();
            let (region, ..) = ctx.reg_dmabuf_mr(&pd, file.as_fd(), 0, 4096, 0, 0).unwrap();
            region
        })
        .collect();
    assert_eq!(ctx.leaks().len(), A_FEW + 10, "each domain waits for its region");
    let other = ctx.alloc_pd(&mut []).unwrap();
    kernel.take_log();
    drop(other);
    assert_eq!(kernel.take_log().len(), 1 + A_FEW);
    drop(regions);
    // Those whose turn it was not.
    ctx.retry_all_leaks();
    assert_eq!((ctx.leaks(), kernel.live()), (vec![], vec![]));
}

/// What was left with a queue may hold on to the file, whatever the kernel said last.
#[test]
fn a_queue_of_a_device_that_is_gone_is_given_up_with_its_file() {
    let (kernel, ctx) = open();
    let (pd, kept) = (ctx.alloc_pd(&mut []).unwrap(), ctx.alloc_pd(&mut []).unwrap());
    kernel.refuse_destroy(Some(Errno::ENOMEM));
    drop(pd);
    kernel.refuse_destroy(Some(Errno::EIO));
    ctx.abandon();
    kernel.refuse_destroy(None);
    assert!(matches!(ctx.alloc_pd(&mut []), Err(Error::DeviceGone { .. })), "the file is still open");
    drop(kept);
}
