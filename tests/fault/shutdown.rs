//! A command fails while a device is given up: what was given up is, what was not is told, and another try completes it.

use crate::harness::{descriptors_may_stay, step};
use crate::scene::{Freed, Scene};
use crate::target::Target;
use crate::tests;
use ironverbs::sys::Fault;
use ironverbs::{Errno, Error, ObjectKind};

tests! {
    nth_command_of_a_shutdown_fails,
}

fn nth_command_of_a_shutdown_fails(target: &Target) {
    // A region that could not be taken back keeps its context.
    descriptors_may_stay();
    let mut refused = 0;
    for n in 0.. {
        step(format!("command {n} of the shutdown fails"));
        let (fault, freed) = (Fault::new(), Freed::default());
        let (scene, context) = Scene::watched(target, &fault, &freed);
        fault.fail_nth(n, Errno::ENOMEM);
        let first = context.shutdown();
        let injected = fault.injected();
        fault.clear();
        if let Err(error) = first {
            assert_eq!((injected, error.errno()), (1, Some(Errno::ENOMEM)), "{error}");
            refused += 1;
            assert!(matches!(context.alloc_pd().unwrap_err(), Error::DeviceGone { .. }), "it is not half open");
            context.shutdown().unwrap();
        }
        assert!(!freed.get());
        drop(scene);
        let leaks = context.leaks();
        assert!(leaks.iter().all(|leak| leak.kind == ObjectKind::Mr), "{leaks:?}");
        assert_eq!(freed.get(), leaks.is_empty(), "memory goes with its region: {leaks:?}");
        if injected == 0 {
            assert!(
                n >= 5 && refused >= 3 && leaks.is_empty(),
                "handles are listed three times, and {n} commands were sent"
            );
            break;
        }
    }
}
