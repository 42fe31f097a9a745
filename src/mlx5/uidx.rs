//! User indices: the numbers, chosen here, by which completions name their queue.
//!
//! Queue pairs and shared receive queues of a context share one set of 24-bit numbers, since completions of both come in
//! one field. The lowest free number is taken, so that the tables of completion queues stay short.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Never given: what a completion that nobody wants any more is marked with. The kernel takes it for "no index".
pub const NONE: u32 = 0xff_ffff;
/// How many names a completion queue's poller has for queues that are gone: one for each entry of the largest ring, as only a queue
/// of which there is a completion to read needs one.
pub const NAMES: usize = 1 << 22;
/// The first of them. No number from here on is ever given to a queue.
pub const FIRST_NAME: u32 = NONE - NAMES as u32;

/// The numbers of one context.
#[derive(Default)]
pub struct UserIndices {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Below it every number was given at some time.
    next: u32,
    /// Numbers below `next` that are free.
    free: BTreeSet<u32>,
}

/// A number of one's own, given back when dropped.
pub struct UserIndex {
    state: Arc<Mutex<State>>,
    value: u32,
}

impl UserIndices {
    /// The lowest number that is free; `None` when all are taken.
    pub fn alloc(&self) -> Option<UserIndex> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let value = match state.free.pop_first() {
            Some(value) => value,
            None if state.next < FIRST_NAME => {
                state.next += 1;
                state.next - 1
            }
            None => return None,
        };
        Some(UserIndex { state: Arc::clone(&self.state), value })
    }
}

impl UserIndex {
    /// The number, below [`FIRST_NAME`].
    pub fn get(&self) -> u32 {
        self.value
    }
}

impl Drop for UserIndex {
    fn drop(&mut self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).free.insert(self.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_number_is_never_given() {
        let indices = UserIndices::default();
        indices.state.lock().unwrap().next = FIRST_NAME - 1;
        let last = indices.alloc().unwrap();
        assert_eq!(last.get(), FIRST_NAME - 1);
        assert!(indices.alloc().is_none());
        drop(last);
        assert_eq!(indices.alloc().unwrap().get(), FIRST_NAME - 1);
    }

    proptest! {
        /// Live numbers are unique, and each is the lowest that was free.
        #[test]
        fn live_numbers_are_unique_and_lowest(steps in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..200)) {
            let indices = UserIndices::default();
            let mut live: Vec<UserIndex> = vec![];
            for step in steps {
                match step {
                    Some(at) if !live.is_empty() => {
                        live.swap_remove(at.index(live.len()));
                    }
                    _ => {
                        let index = indices.alloc().unwrap();
                        let lowest = (0..).find(|n| live.iter().all(|l| l.get() != *n)).unwrap();
                        prop_assert_eq!(index.get(), lowest);
                        live.push(index);
                    }
                }
            }
        }
    }
}
