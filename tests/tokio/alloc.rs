//! An operation allocates nothing: counted by an allocator that counts.
//!
//! # Safety argument
//!
//! The allocator hands every request on to the system's as it came, and counts.
#![allow(unsafe_code)]

use crate::fixture::{Pair, Setup, Side};
use crate::target::Target;
use crate::{block_on, tests};
use ironverbs::Pool;
use ironverbs::tokio::Operations;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

tests! {
    operations_allocate_nothing,
}

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on as it is. The counter is constant at first and is not dropped, so that counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn operations_allocate_nothing(target: &Target) {
    let Pair { a, b } = Pair::new(target, &Setup { channel: true, ..Setup::default() });
    let (Side { qp: mut a_qp, cq: a_cq, pd: a_pd, .. }, Side { qp: mut b_qp, cq: b_cq, pd: b_pd, .. }) = (a, b);
    block_on(async {
        let [a_pool, b_pool] = [&a_pd, &b_pd].map(|pd| Pool::new(pd, 4, 64).unwrap());
        let (sends, mut a_driver) = Operations::new(&a_pool, a_cq).unwrap();
        let (receives, mut b_driver) = Operations::new(&b_pool, b_cq).unwrap();
        let work = async {
            let mut before = 0;
            for n in 0..300 {
                // The first ones let the runtime make what it keeps.
                if n == 100 {
                    before = CALLS.get();
                }
                let receive = receives.recv(&mut b_qp, b_pool.take().unwrap()).unwrap();
                let send = sends.send(&mut a_qp, a_pool.take().unwrap(), 64).unwrap();
                if n % 2 == 0 {
                    send.await.unwrap().1.outcome().unwrap();
                } else {
                    drop(send);
                }
                receive.await.unwrap().1.outcome().unwrap();
                while a_pool.take().is_none() {
                    tokio::task::yield_now().await;
                }
            }
            CALLS.get() - before
        };
        let allocations = tokio::select! {
            allocations = work => allocations,
            error = a_driver.run() => panic!("{error}"),
            error = b_driver.run() => panic!("{error}"),
        };
        assert_eq!(allocations, 0, "200 messages");
    });
}
