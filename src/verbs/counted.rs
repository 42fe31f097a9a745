//! A shared value that counts its holders, one of whom can go without the value being freed.
//!
//! # Safety argument
//!
//! The value lives on the heap as long as the count is not zero. Each [`Counted`] stands for one of the count, from its
//! making or cloning to its drop, or to [`go_unless_last`](Counted::go_unless_last). Who takes the count to zero frees the
//! value; everything that other holders did with it happened before, by the count's release and acquire.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One holder of a shared value. An `Arc` whose holders can go without a call to free it in their code.
pub(super) struct Counted<T>(NonNull<Inner<T>>);

struct Inner<T> {
    holders: AtomicU64,
    value: T,
}

// SAFETY: as for `Arc`: a holder gives shared access, and the last one may drop the value on its thread.
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: as above; a shared holder can be cloned and sent.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Counted<T> {
    /// The first holder.
    pub(super) fn new(value: T) -> Self {
        let inner = Box::new(Inner { holders: AtomicU64::new(1), value });
        Self(NonNull::from(Box::leak(inner)))
    }

    /// Whether both hold the same value.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Ends this holder; or gives it back if it is the only one, since nobody could reach the value any more. Never frees.
    #[inline(always)]
    pub(super) fn go_unless_last(self) -> Result<(), Self> {
        let holders = &self.inner().holders;
        if holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            // There is no other holder, and none can be made of no holder, so that nobody saw the zero.
            holders.store(1, Ordering::Relaxed);
            return Err(self);
        }
        std::mem::forget(self);
        Ok(())
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: this holder is counted, so the value is there.
        unsafe { self.0.as_ref() }
    }

    #[cold]
    #[inline(never)]
    fn free(&mut self) {
        // SAFETY: called by the holder that took the count to zero, once; the memory came from a box.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Clone for Counted<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        // 2^64 holders would take centuries to make, even if they were all forgotten.
        self.inner().holders.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<T> Drop for Counted<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.inner().holders.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.free();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_last_holder_frees_and_nobody_before() {
        let value = Arc::new(());
        let first = Counted::new(value.clone());
        let second = first.clone();
        assert!(first.same(&second));
        drop(first);
        assert_eq!(Arc::strong_count(&value), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn only_the_last_holder_cannot_go() {
        let value = Arc::new(());
        let first = Counted::new(value.clone());
        assert!(first.clone().go_unless_last().is_ok());
        let Err(first) = first.go_unless_last() else { panic!("it was the last one") };
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(first.clone().go_unless_last().is_ok(), "it counts as before");
        drop(first);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn holders_on_many_threads_free_once() {
        let value = Arc::new(());
        let first = Counted::new(value.clone());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mine = first.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        drop(mine.clone());
                        assert!(mine.clone().go_unless_last().is_ok());
                    }
                });
            }
        });
        drop(first);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
