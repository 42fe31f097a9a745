//! Every interleaving of threads that take, post, reclaim and give back the slots of one pool.
//!
//! The bytes of a slot are loom's cells: two owners at once are a failure, and so is an owner who is not ordered after the
//! one before.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Pool {
    owners: Owners,
    bytes: Vec<UnsafeCell<u32>>,
}

impl Pool {
    fn new(count: u32) -> Arc<Self> {
        let bytes = (0..count).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { owners: Owners::new(count), bytes })
    }

    /// Uses a slot as its holder.
    fn touch(&self, index: u32) {
        self.bytes[index as usize].with_mut(|_| ());
    }

    fn use_one(&self) -> bool {
        let Some(index) = self.owners.take() else { return false };
        self.touch(index);
        self.owners.give_back(index);
        true
    }
}

#[test]
fn loom_two_holders_never_share_a_slot() {
    loom::model(|| {
        let pool = Pool::new(2);
        let other = pool.clone();
        let thread = thread::spawn(move || {
            other.use_one();
            other.use_one()
        });
        pool.use_one();
        thread.join().unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.owners.take()).collect();
        assert_eq!(all.len(), 2, "a slot was lost or doubled: {all:?}");
        all.iter().for_each(|index| pool.touch(*index));
    });
}

/// One thread posts, another reclaims what it learns of and gives it back, and the first takes it again. The device is the
/// channel between them, which orders the completion after the post.
#[test]
fn loom_a_posted_slot_comes_back_once() {
    loom::model(|| {
        let pool = Pool::new(1);
        let completions = Arc::new(AtomicU32::new(0));
        let (poller_pool, poller_completions) = (pool.clone(), completions.clone());
        let poller = thread::spawn(move || {
            let mut seen = 0;
            // The second look stands for a completion that is not this pool's: nothing must come of it.
            for _ in 0..2 {
                if poller_completions.load(Ordering::Acquire) == 1 && poller_pool.owners.reclaim(0) {
                    seen += 1;
                    poller_pool.touch(0);
                    poller_pool.owners.give_back(0);
                }
            }
            seen
        });
        let index = pool.owners.take().unwrap();
        pool.touch(index);
        pool.owners.post(index);
        completions.store(1, Ordering::Release);
        let again = pool.owners.take();
        if let Some(index) = again {
            pool.touch(index);
        }
        let seen = poller.join().unwrap();
        assert!(seen <= 1);
        assert!(again.is_none() || seen == 1, "a slot that the device had was handed out");
    });
}

#[test]
fn loom_two_reclaims_of_one_slot_make_one_owner() {
    loom::model(|| {
        let pool = Pool::new(1);
        let index = pool.owners.take().unwrap();
        pool.owners.post(index);
        let other = pool.clone();
        let thread = thread::spawn(move || {
            let ours = other.owners.reclaim(0);
            if ours {
                other.touch(0);
            }
            ours
        });
        let ours = pool.owners.reclaim(0);
        if ours {
            pool.touch(0);
        }
        assert!(ours ^ thread.join().unwrap());
    });
}
